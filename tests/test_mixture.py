"""Several runs as one: each row is its reader's own, and each run gets what it is to get."""

import concurrent.futures
import dataclasses
import gc
import json
import os
import pickle
import types
from unittest import mock

import numpy as np
import pytest

import atarirb
from atarirb import catalog
from atarirb.errors import ArgumentError, ClosedError, DatasetError, StateError
from benchmarks.workload import make_sparse
from tests import shards, truth

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")

#: How the frames of each dataset are kept.
KINDS = {"raw": ["raw"] * 3, "packed": ["packed"] * 3, "mixed": ["packed", "raw", "packed"]}
#: Steps of an episode at the limit of time, in the third dataset.
LIMIT = 9
COLUMNS = ("timestep", "episode", "return_to_go", "undiscounted_return_to_go", "split", "action_full")
EXTRA = {"wide": ((), "int64"), "pair": ((2,), "float32")}
RECORDED = [
    [(5, 1, True), (1, 2, True), (7, 1, False)],
    [(4, 2, False), (3, 1, True), (6, 2, True)],
]


@pytest.fixture(scope="module", params=list(KINDS))
def paths(request, tmp_path_factory):
    """Return a log's dataset with lost steps, a recorded one, and one whose episodes end by the limit."""
    root, codecs = tmp_path_factory.mktemp("runs"), KINDS[request.param]
    log, _ = truth.dataset(
        root / "a", [1, 20, 5, 9, 14, 3, 8], codec=codecs[0], capacity=20, drop=(1,), extra=EXTRA, seed=1
    )
    shards.write(root / "b", RECORDED, codec=codecs[1], seed=2)
    with mock.patch("atarirb.store.episodes.TIME_LIMIT", LIMIT):
        limited, _ = truth.dataset(
            root / "c", [LIMIT, 4, LIMIT, 11], codec=codecs[2], capacity=60, extra=EXTRA, seed=3
        )
    return log, root / "b", limited


def opened(paths, **options):
    """Open the three, the first one also in part, each with options of its own."""
    log, recorded, limited = paths
    whole = atarirb.open(log, **options)
    readers = {
        "log": whole,
        "recorded": atarirb.open(recorded, final="stored", **options),
        "limited": atarirb.open(limited, time_limit="truncated", **options),
        "part": whole.select(steps=slice(3, 30)),
    }
    assert readers["limited"].episodes["time_limit"].sum() == 2
    assert whole.episodes["head_cut"].any()
    assert len(readers["part"].episodes) > len(whole.episodes)
    return readers


def valid_steps(reader):
    """Say which steps a reader draws, by its table of episodes."""
    found, options = [], reader._options
    for row in reader.episodes[reader.selected]:
        limited = row["time_limit"] and options.time_limit == "truncated"
        known = (row["terminal"] and not limited) or row["final"] >= 0
        first = row["start"] + (options.frame_stack - 1 if row["head_cut"] else 0)
        stop = row["start"] + row["length"] - (0 if known else options.n_step)
        found += range(first, stop)
    return found


def rows_of(batches):
    """List the run and the step of each row that is one."""
    return [
        pair
        for batch in batches
        for pair in zip(batch["run"].reshape(-1).tolist(), batch["index"].reshape(-1).tolist(), strict=True)
        if pair[1] >= 0
    ]


def check_rows(batch, readers):
    """Check every row of a batch against what its reader says of that step."""
    batch = dict(batch)
    index, run = batch["index"], batch.pop("run")
    there = batch.pop("mask", index >= 0)
    np.testing.assert_array_equal(there, index >= 0)
    assert run.dtype == np.int32
    for number, reader in enumerate(readers.values()):
        here = there & (run == number)
        truth.assert_same(truth.pick(batch, here), reader.get(index[here]))
    assert not run[~there].any()
    for name, leaf in truth.leaves(truth.pick(batch, ~there)):
        if "observation" not in name:
            assert (leaf == (-1 if name == "index" else 0)).all(), name
    return set(run[there].tolist())


@pytest.mark.parametrize(("frame_stack", "n_step"), [(1, 1), (4, 3)])
@pytest.mark.parametrize("way", ["uniform", "weights", "stacked"])
def test_every_row_is_what_its_own_reader_says(paths, frame_stack, n_step, way):
    readers = opened(paths, frame_stack=frame_stack, n_step=n_step, gamma=0.9, columns=COLUMNS)
    options = {
        "uniform": {},
        "weights": {"weights": {"log": 1, "recorded": 2, "limited": 3, "part": 0.5}},
        "stacked": {"stacked": True},
    }[way]
    mixture = atarirb.mix(readers, **options)
    everyone = {0, 1, 2, 3}
    assert check_rows(mixture.sample(0, 200), readers) == everyone
    for weighting in ("starts", "episodes"):
        batch = mixture.sample_slices(1, 60, 5, strict_length=False, weighting=weighting)
        assert not batch["mask"].all()
        assert check_rows(batch, readers) == everyone
        check_rows(mixture.sample_slices(1, 60, 2, weighting=weighting), readers)
    for arguments in (
        {"replacement": True},
        {"replacement": True, "slice_len": 4, "strict_length": False},
        *([] if way == "weights" else [{"drop_remainder": False}, {"slice_len": 3, "strict_length": False}]),
    ):
        with mixture.batches(8, key=2, epochs=1, **arguments) as batches:
            seen = [check_rows(batch, readers) for batch in batches]
        assert set.union(*seen) == everyone


def test_extra_columns_are_those_of_the_runs(paths):
    readers = {
        "log": atarirb.open(paths[0], columns=("wide", "pair")),
        "limited": atarirb.open(paths[2], columns=("wide", "pair")),
    }
    mixture = atarirb.mix(readers)
    batch = mixture.sample(0, 100)
    assert (batch["wide"].dtype, batch["pair"].shape) == (np.int64, (100, 2))
    assert check_rows(batch, readers) == {0, 1}
    padded = mixture.sample_slices(0, 50, 12, strict_length=False)
    assert padded["pair"].shape == (50, 12, 2)
    assert check_rows(padded, readers) == {0, 1}
    stacked = atarirb.mix(readers, stacked=True).sample(0, 100)
    assert stacked["pair"].shape == (2, 50, 2)
    check_rows(stacked, readers)


def test_slices_of_a_mixture_share_their_frames_also_stacked(paths):
    readers = opened(paths)
    for stacked in (False, True):
        batch = atarirb.mix(readers, stacked=stacked).sample_slices(0, 8, 3)
        assert np.shares_memory(batch["observation"], batch["next"]["observation"])


def test_what_was_handed_out_does_not_change_and_is_no_ones_else(paths):
    mixture = atarirb.mix(opened(paths, frame_stack=2, columns=COLUMNS))
    first = mixture.sample(0, 64)
    before = truth.digest(first)
    for key in range(1, 30):
        mixture.sample(key, 64)
    assert truth.digest(first) == before
    for _, leaf in truth.leaves(first):
        leaf[...] = 1
    assert truth.digest(mixture.sample(0, 64)) == before


# Laws.


def counts_of(rows, readers):
    """Count how often each valid step of each run was drawn; nothing else may have been."""
    places = {(run, step): 0 for run, reader in enumerate(readers.values()) for step in valid_steps(reader)}
    for row in rows:
        places[row] += 1
    return places


def by_run(counts):
    runs = np.array([run for run, _ in counts])
    values = np.array(list(counts.values()))
    return [values[runs == run] for run in range(runs.max() + 1)]


@pytest.fixture(scope="module")
def four(paths):
    return opened(paths, frame_stack=3, n_step=2)


def test_without_weights_every_valid_step_is_as_likely_as_any_other(four):
    mixture = atarirb.mix(four)
    assert mixture.valid_steps == sum(len(valid_steps(reader)) for reader in four.values())
    assert len(mixture) == sum(len(reader) for reader in four.values())
    counts = counts_of(rows_of([mixture.sample(5, 20_000)]), four)
    assert truth.surprise(np.array(list(counts.values()))) < 4


def test_slices_are_drawn_evenly_over_starts_or_over_episodes(four):
    mixture, length = atarirb.mix(four), 3
    starts = []  # of each episode of each run
    for run, reader in enumerate(four.values()):
        valid = valid_steps(reader)
        for row in reader.episodes[reader.selected]:
            steps = [step for step in valid if row["start"] <= step < row["start"] + row["length"]]
            if len(steps) >= length:
                starts.append([(run, step) for step in steps[: len(steps) - length + 1]])
    for weighting in ("starts", "episodes"):
        batch = mixture.sample_slices(6, 20_000, length, weighting=weighting)
        places = dict.fromkeys((place for some in starts for place in some), 0)
        for place in zip(batch["run"][:, 0].tolist(), batch["index"][:, 0].tolist(), strict=True):
            places[place] += 1
        law = [1.0 if weighting == "starts" else 1 / len(some) for some in starts for _ in some]
        assert truth.surprise(np.array(list(places.values())), np.array(law)) < 4


@pytest.mark.parametrize("weighting", [None, "starts", "episodes"])
def test_by_weights_each_run_gets_its_part(four, weighting):
    weights = {"part": 1, "log": 4, "recorded": 0.5, "limited": 2.5}
    mixture, law = atarirb.mix(four, weights), np.array([weights[name] for name in four])
    if weighting is None:
        batch = mixture.sample(7, 20_000)
        assert truth.surprise(np.bincount(batch["run"]), law) < 4
        for of_run in by_run(counts_of(rows_of([batch]), four)):
            assert truth.surprise(of_run) < 4
        with mixture.batches(1000, key=1, replacement=True) as batches:
            drawn = np.concatenate([next(batches)["run"] for _ in range(10)])
        assert truth.surprise(np.bincount(drawn), law) < 4
    else:
        batch = mixture.sample_slices(7, 20_000, 2, weighting=weighting)
        assert truth.surprise(np.bincount(batch["run"][:, 0]), law) < 4


def test_a_weight_of_nothing_or_next_to_nothing_is_one(four):
    mixture = atarirb.mix(four, {"log": 1, "recorded": 0, "limited": 1, "part": 0})
    assert set(mixture.sample(0, 4000)["run"].tolist()) == {0, 2}
    for small in (1e-300, 1e-20, 5e-324):
        for first, last in ((1, small), (small, 1), (1e300, small)):
            mixture = atarirb.mix(four, {"log": first, "recorded": 0, "limited": 0, "part": last})
            expected = 0 if first > last else 3
            assert set(mixture.sample(0, 500)["run"].tolist()) == {expected}
    mixture = atarirb.mix(four, {"log": 0, "recorded": 1000, "limited": 0, "part": 1})
    part = (mixture.sample(0, 200_000)["run"] == 3).sum()
    assert abs(part - 200) < 5 * np.sqrt(200)


def test_weights_share_the_words_exactly():
    """The first and the last word of each run's part of the 2**64."""
    for weights in ([1, 1, 1], [3, 5], [1, 2, 0, 4], [7], [0, 1, 0]):
        drawn, last_words = atarirb.mixture._shares(weights)
        total, before = sum(weights), 0
        for run, weight in enumerate(weights):
            if weight:
                words = np.array(
                    [-(-(before << 64) // total), -(-((before + weight) << 64) // total) - 1], np.uint64
                )
                assert drawn[np.searchsorted(last_words, words)].tolist() == [run, run]
            before += weight


def test_stacked_every_run_has_the_same_number_of_rows(four):
    mixture = atarirb.mix(four, stacked=True)
    batch = mixture.sample(3, 20_000)
    for name, leaf in truth.leaves(batch):
        assert leaf.shape[:2] == (4, 5000), name
    assert (batch["run"] == np.arange(4)[:, None]).all()
    assert max(truth.surprise(of_run) for of_run in by_run(counts_of(rows_of([batch]), four))) < 4
    slices = mixture.sample_slices(3, 40, 5, strict_length=False, weighting="episodes")
    assert slices["observation"].shape == (4, 10, 5, 4, 3, 3)
    assert (slices["run"] == np.arange(4)[:, None, None] * slices["mask"]).all()


# Epochs.


def test_an_epoch_has_every_valid_step_of_every_run_once(four):
    mixture = atarirb.mix(four)
    everything = sorted(
        (run, step) for run, reader in enumerate(four.values()) for step in valid_steps(reader)
    )
    epochs = []
    with mixture.batches(7, key=1, epochs=2, drop_remainder=False) as batches:
        assert len(batches) == 2 * -(-len(everything) // 7)
        found = list(batches)
    for epoch in (found[: len(found) // 2], found[len(found) // 2 :]):
        epochs.append(rows_of(epoch))
        assert sorted(epochs[-1]) == everything
    assert epochs[0] != epochs[1]
    parts = [list(mixture.batches(8, key=1, epochs=1, drop_remainder=False, shard=(i, 2))) for i in (0, 1)]
    assert sorted(row for part in parts for row in rows_of(part)) == everything
    assert {batch["mask"].shape for part in parts for batch in part} == {(4,)}


def test_a_stacked_epoch_ends_with_the_smallest_run_and_has_no_step_twice(four):
    mixture = atarirb.mix(four, stacked=True)
    smallest = min(len(valid_steps(reader)) for reader in four.values())
    for drop_remainder in (True, False):
        with mixture.batches(12, key=1, epochs=3, drop_remainder=drop_remainder) as batches:
            found = list(batches)
            assert batches.batches_per_epoch == smallest // 3
        for epoch in range(3):
            rows = rows_of(found[epoch * (smallest // 3) : (epoch + 1) * (smallest // 3)])
            assert len(rows) == smallest // 3 * 12
            assert len(set(rows)) == len(rows)
            assert [sum(run == number for run, _ in rows) for number in range(4)] == [len(rows) // 4] * 4
            counts_of(rows, four)  # all are valid
    # Runs do not go through their steps in the same order.
    with atarirb.mix({"a": four["log"], "b": four["log"]}, stacked=True).batches(20, key=1) as batches:
        first, second = next(batches)["index"]
        assert first.tolist() != second.tolist()
    # Over many epochs every step comes, of the large runs as well.
    with mixture.batches(12, key=2, epochs=60) as batches:
        assert min(counts_of(rows_of(batches), four).values()) > 0


@pytest.mark.parametrize("slice_len", [None, 2])
def test_hosts_of_a_stacked_mixture_have_a_part_of_every_run(four, slice_len):
    mixture = atarirb.mix(four, stacked=True)
    options = {"key": 4, "epochs": 1, "slice_len": slice_len, "drop_remainder": False}
    whole = list(mixture.batches(16, **options))
    parts = [list(mixture.batches(16, shard=(host, 2), **options)) for host in range(2)]
    assert len(whole) == len(parts[0]) == len(parts[1])
    for batch, *halves in zip(whole, *parts, strict=True):
        for half in halves:
            assert half["mask"].shape == half["index"].shape
            assert half["mask"].all()
            if slice_len is None:
                half.pop("mask")
        for host, half in enumerate(halves):
            truth.assert_same(half, truth.pick(batch, (slice(None), slice(2 * host, 2 * host + 2))))
    with pytest.raises(ArgumentError, match="each run's share of 2 rows does not divide by 3 hosts"):
        mixture.batches(8, key=0, shard=(0, 3))


# State.


@pytest.mark.parametrize("options", [{}, {"stacked": True}, {"weights": {"log": 1, "part": 3}}], ids=str)
def test_a_mixture_goes_on_from_a_state_anywhere(paths, options):
    def both():
        return {name: reader for name, reader in opened(paths).items() if name in ("log", "part")}

    arguments = {"key": 9, "replacement": "weights" in options}
    batches = atarirb.mix(both(), **options).batches(6, **arguments)
    for _ in range(11):
        next(batches)
    state = json.loads(json.dumps(batches.get_state()))
    assert len(json.dumps(state)) < 1000
    expected = [next(batches) for _ in range(8)]
    again = atarirb.mix(both(), **options).batches(6, prefetch=0, **arguments)
    again.set_state(state)
    for batch in expected:
        truth.assert_same(next(again), batch)
    batches.close()


def test_a_state_of_another_mixture_is_refused_by_what_differs(four):
    def batches(readers=four, weights=None, stacked=False, **options):
        arguments = {"key": 0, "replacement": True, "prefetch": 0} | options
        return atarirb.mix(readers, weights, stacked=stacked).batches(4, **arguments)

    state = batches().get_state()
    batches().set_state(state)
    equal = dict.fromkeys(four, 1.0)
    turned = dict(reversed(four.items()))
    other = four | {"part": four["part"].select(steps=slice(5, 20))}
    for changed, named in [
        (batches(weights=equal), "weights is '"),
        (batches(stacked=True), "stacked is True here, False there"),
        (batches(turned), "runs is '"),
        (batches(other), "runs is '"),
        (batches({name: four[name] for name in ("log", "recorded", "limited")}), "runs is '"),
        (batches(four | {"part": four["limited"]}), "runs is '"),
        (batches(slice_len=2), "slice_len is 2 here, None there"),
    ]:
        with pytest.raises(StateError, match=named):
            changed.set_state(state)
    weighted = batches(weights=equal).get_state()
    batches(weights=dict(reversed(equal.items()))).set_state(weighted)  # in the order of the runs
    with pytest.raises(StateError, match="weights is '"):
        batches(weights=equal | {"log": 2}).set_state(weighted)
    with pytest.raises(StateError, match="frame_stack is"):
        four["log"].batches(4, key=0, replacement=True).set_state(
            atarirb.mix({"one": atarirb.open(four["log"]._path)})
            .batches(4, key=0, replacement=True)
            .get_state()
        )


def test_a_mixture_of_another_codec_goes_on_from_a_state(tmp_path):
    """What is kept of the data is of its steps, however the frames are kept."""
    path, _ = truth.dataset(tmp_path, [9, 8, 7], codec="packed", capacity=40)
    atarirb.convert(path, tmp_path / "raw", codec="raw")
    packed, raw = (
        atarirb.mix({"a": atarirb.open(each)}).batches(4, key=0) for each in (path, tmp_path / "raw")
    )
    next(packed)
    raw.set_state(packed.get_state())
    truth.assert_same(next(raw), next(packed))
    packed.close()
    raw.close()


# Its life.


def test_a_mixture_is_used_after_its_readers_are_closed(paths):
    readers = opened(paths, frame_stack=2, columns=COLUMNS)
    mixture = atarirb.mix(readers, dict.fromkeys(readers, 1))
    expected = truth.sample_digests(mixture)
    for reader in readers.values():
        reader.close()
    assert truth.sample_digests(mixture) == expected
    batches = mixture.batches(8, key=0, replacement=True)
    first = next(batches)
    batches.close()
    again = pickle.loads(pickle.dumps(mixture))
    assert truth.sample_digests(again) == expected
    truth.assert_same(next(again.batches(8, key=0, replacement=True, prefetch=0)), first)
    mixture.close()
    mixture.close()
    with pytest.raises(ClosedError, match="the mixture is closed"):
        mixture.sample(0, 1)
    with pytest.raises(ClosedError):
        mixture.batches(8, key=0, replacement=True)
    with pytest.raises(ClosedError):
        len(mixture)
    with pytest.raises(ClosedError), mixture:
        pass
    assert "closed" in repr(mixture)
    assert truth.sample_digests(pickle.loads(pickle.dumps(mixture))) == expected
    with pytest.raises(ClosedError, match="the reader of"):
        atarirb.mix(readers)


@pytest.mark.parametrize(
    "options", [{"stacked": True}, {"weights": {"log": 3, "recorded": 0, "limited": 1, "part": 1}}], ids=str
)
def test_a_mixture_is_pickled_with_all_it_was_made_of(four, options):
    mixture = atarirb.mix(four, **options)
    data = pickle.dumps(mixture)
    assert len(data) < 10_000
    again = pickle.loads(data)
    assert again.runs == mixture.runs == ("log", "recorded", "limited", "part")
    assert list(again.readers) == list(four)
    truth.assert_same(again.sample(0, 40), mixture.sample(0, 40))
    assert repr(again) == repr(mixture)
    state = mixture.batches(4, key=0, replacement=True).get_state()
    again.batches(4, key=0, replacement=True).set_state(state)


def test_readers_go_on_when_their_mixture_is_closed(paths):
    readers = opened(paths)
    atarirb.mix(readers).close()
    for reader in readers.values():
        reader.sample(0, 4)


@needs_proc
def test_maps_are_gone_with_the_mixture_and_its_readers(tmp_path):
    shards.write(tmp_path / "a", RECORDED, codec="packed")
    shards.write(tmp_path / "b", RECORDED, codec="raw")

    def maps():
        with open("/proc/self/maps") as file:
            return sum(str(tmp_path) in line for line in file)

    gc.disable()
    try:
        readers = {name: atarirb.open(tmp_path / name) for name in "ab"}
        before = maps()
        mixture = atarirb.mix(readers)
        mixture.sample(0, 30)
        assert maps() == before > 0
        for reader in readers.values():
            reader.close()
        assert maps() > 0
        mixture.close()
        assert maps() == 0
    finally:
        gc.enable()


def test_many_threads_draw_from_one_mixture(four):
    mixture = atarirb.mix(four)

    def draw(key):
        return truth.digest(mixture.sample(key, 64)), truth.digest(mixture.sample_slices(key, 8, 1 + key % 5))

    expected = [draw(key) for key in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(draw, range(40))) == expected


def test_the_same_key_gives_the_same_rows_for_ever(tmp_path):
    path, _ = truth.dataset(tmp_path, [7, 12, 5], capacity=60, codec="raw")
    whole = atarirb.open(path)
    readers = {"whole": whole, "some": whole.select([0, 2])}
    mixture, stacked = atarirb.mix(readers), atarirb.mix(readers, stacked=True)
    weighted = atarirb.mix(readers, {"whole": 1, "some": 3})
    for batch, run, index in [
        (mixture.sample(7, 6), [0] * 6, [16, 15, 13, 8, 4, 18]),
        (weighted.sample(7, 6), [1, 0, 1, 1, 0, 0], [5, 3, 23, 21, 0, 22]),
        (stacked.sample(7, 6), [[0] * 3, [1] * 3], [[10, 3, 23], [21, 0, 23]]),
        (next(mixture.batches(6, key=7, prefetch=0)), [0, 1, 0, 0, 0, 0], [22, 20, 23, 5, 20, 6]),
        (next(stacked.batches(6, key=7, prefetch=0)), [[0] * 3, [1] * 3], [[13, 10, 4], [0, 5, 1]]),
    ]:
        assert batch["run"].tolist() == run
        assert batch["index"].tolist() == index


# What cannot be.


def test_readers_that_do_not_go_together_are_told_by_their_names(paths, tmp_path):
    shards.write(tmp_path / "wide", RECORDED, codec="raw", frame_shape=(4, 6))
    shards.write(tmp_path / "float", RECORDED, codec="raw", frame_dtype=np.float32)
    usual = atarirb.open(paths[0])
    for name, words in [
        ("wide", r"a frame of 'usual' is uint8\[4, 3\] and of 'wide' uint8\[4, 6\]"),
        ("float", r"a frame of 'usual' is uint8\[4, 3\] and of 'float' float32\[4, 3\]"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            atarirb.mix({"usual": usual, "same": usual, name: atarirb.open(tmp_path / name)})
    for options, words in [
        ({"frame_stack": 4}, "frame_stack is 1 in the reader of 'usual', and 4 in that of 'other'"),
        ({"n_step": 2}, "n_step is 1 in the reader of 'usual', and 2 in that of 'other'"),
        ({"gamma": 0.5}, "gamma is 0.99 in the reader of 'usual', and 0.5 in that of 'other'"),
        (
            {"columns": "split"},
            r"columns is \(\) in the reader of 'usual', and \('split',\) in that of 'other'",
        ),
        ({"windows": True}, "windows is False in the reader of 'usual', and True in that of 'other'"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            atarirb.mix({"usual": usual, "other": atarirb.open(paths[0], **options)})
    other, _ = truth.dataset(tmp_path / "pair", [9], capacity=30, extra={"pair": ((3,), "float32")})
    with pytest.raises(ArgumentError, match=r"column 'pair' of 'a' is float32\[2\] and of 'b' float32\[3\]"):
        atarirb.mix({"a": atarirb.open(paths[0], columns="pair"), "b": atarirb.open(other, columns="pair")})
    atarirb.mix({"a": usual, "b": atarirb.open(other)})  # not asked for


def test_readers_that_are_none_are_told():
    for readers in ({}, [], None, "Pong/1"):
        with pytest.raises(ArgumentError, match="expected one or more by name"):
            atarirb.mix(readers)
    with pytest.raises(ArgumentError, match="'a' is 'data/Pong/1', expected a reader"):
        atarirb.mix({"a": "data/Pong/1"})


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"log": 1}, "expected one for each of 'log', 'recorded', 'limited', 'part'"),
        ({"log": 1, "recorded": 1, "limited": 1, "part": 1, "more": 1}, "expected one for each of"),
        ([1, 1, 1, 1], "expected one for each of"),
        ({"log": -1, "recorded": 1, "limited": 1, "part": 1}, "expected numbers of 0 or more, not all 0"),
        ({"log": np.inf, "recorded": 1, "limited": 1, "part": 1}, "expected numbers of 0 or more"),
        ({"log": np.nan, "recorded": 1, "limited": 1, "part": 1}, "expected numbers of 0 or more"),
        ({"log": 0, "recorded": 0, "limited": 0, "part": 0}, "not all 0"),
        ({"log": "much", "recorded": 1, "limited": 1, "part": 1}, "weights are numbers"),
    ],
    ids=str,
)
def test_weights_that_are_none_are_told(four, weights, words):
    with pytest.raises(ArgumentError, match=words):
        atarirb.mix(four, weights)


def test_what_a_way_of_mixing_cannot_give_is_told(four):
    equal = dict.fromkeys(four, 1)
    with pytest.raises(ArgumentError, match="stacked, every run has an equal share"):
        atarirb.mix(four, equal, stacked=True)
    with pytest.raises(ArgumentError, match="weights= goes with replacement=True"):
        atarirb.mix(four, equal).batches(4, key=0)
    stacked = atarirb.mix(four, stacked=True)
    for draw in (
        lambda: stacked.sample(0, 6),
        lambda: stacked.sample_slices(0, 6, 2),
        lambda: stacked.batches(6, key=0),
    ):
        with pytest.raises(ArgumentError, match="6 rows do not divide by 4 runs"):
            draw()
    smallest = min(four, key=lambda name: four[name].valid_steps)
    for drop_remainder in (True, False):
        with pytest.raises(ArgumentError, match=f"run '{smallest}' has .* its share of a batch is 100"):
            stacked.batches(400, key=0, drop_remainder=drop_remainder)
    spanning = types.SimpleNamespace(is_fully_addressable=False)
    with mock.patch.object(
        stacked, "_options", dataclasses.replace(stacked._options, output="jax", device=spanning)
    ):
        with pytest.raises(ArgumentError, match=r"give each process its part of every run by shard="):
            stacked.batches(4, key=0)
    with pytest.raises(ArgumentError, match="no episode has 99 valid steps in a row"):
        atarirb.mix(four).sample_slices(0, 4, 99)


def test_a_run_that_has_nothing_to_draw_is_told_whatever_the_key(four):
    long = 8  # only the log has slices of so many steps
    few = {"log": four["log"], "recorded": four["recorded"]}
    assert few["log"].sample_slices(0, 1, long)
    words = "run 'recorded' has no valid slice of 8 steps"
    for key in range(5):
        with pytest.raises(ArgumentError, match=words):
            atarirb.mix(few, {"log": 1000, "recorded": 1}).sample_slices(key, 2, long)
        with pytest.raises(ArgumentError, match=words):
            atarirb.mix(few, stacked=True).sample_slices(key, 2, long, weighting="episodes")
    with pytest.raises(ArgumentError, match=words):
        atarirb.mix(few, stacked=True).batches(4, key=0, slice_len=long)
    assert not atarirb.mix(few).sample_slices(0, 9, long)["run"].any()
    assert not atarirb.mix(few, {"log": 1, "recorded": 0}).sample_slices(0, 9, long)["run"].any()
    empty = four["recorded"].select(steps=slice(0, 2))
    assert empty.valid_steps == 0
    with pytest.raises(ArgumentError, match="run 'empty' has no valid step"):
        atarirb.mix({"log": four["log"], "empty": empty}, {"log": 1, "empty": 1}).sample(0, 1)
    assert not atarirb.mix({"log": four["log"], "empty": empty}).sample(0, 50)["run"].any()


# Several games.

GAMES = ("Asterix", "Pong", "Seaquest", "SpaceInvaders")


def test_actions_of_several_games_have_one_meaning(tmp_path):
    readers, played = {}, {}
    for seed, game in enumerate(GAMES):
        steps, _ = truth.play(tmp_path / game / "1", [9, 14, 30], capacity=100, seed=seed)
        truth.ingest(tmp_path / game / "1", tmp_path / "data" / game, codec="raw")
        readers[game] = atarirb.open(tmp_path / "data" / game, columns="action_full")
        played[game] = steps.action
    for mixture in (atarirb.mix(readers), atarirb.mix(readers, stacked=True)):
        batch = mixture.sample(0, 400)
        for run, index, full in zip(
            *(batch[name].reshape(-1) for name in ("run", "index", "action_full")), strict=True
        ):
            game = GAMES[run]
            assert full == catalog.game(game).minimal_actions[played[game][index]]
    slices = mixture.sample_slices(0, 8, 20, strict_length=False)
    assert not slices["action_full"][~slices["mask"]].any()


def test_an_action_that_a_game_does_not_have_is_told(tmp_path):
    readers = {}
    for game in ("Pong", "Breakout"):  # of six actions and of four
        truth.play(tmp_path / game / "1", [30], capacity=100)
        truth.ingest(tmp_path / game / "1", tmp_path / "data" / game, codec="raw")
        readers[game] = atarirb.open(tmp_path / "data" / game, columns="action_full")
    with pytest.raises(DatasetError, match=r"action [45] of step \d+ is none of the game's 4"):
        atarirb.mix(readers).sample(0, 200)


# Many runs, of very many steps.

LONG = 30_000_000


@pytest.fixture(scope="module")
def virtual(tmp_path_factory):
    """A run of 30 million steps, 2,000 episodes, that takes no room."""
    directory = tmp_path_factory.mktemp("sparse") / "data"
    make_sparse(directory, shards=1, steps=LONG, episode=15_000)
    return directory


@pytest.fixture(scope="module")
def many(virtual):
    return {f"Game/{number}": atarirb.open(virtual, columns=("episode",)) for number in range(300)}


def test_three_hundred_runs_are_drawn_from_evenly_to_their_ends(many):
    files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
    mixture = atarirb.mix(many)
    assert mixture.valid_steps == len(mixture) == 300 * LONG > 2**33
    # The steps alone: the frames of so many are of no interest here.
    drawn = [mixture._draw(key, 30_000, mixture._legal(None)) for key in range(2)]
    drawn.append(mixture._epoch(5, mixture._legal(None), np.arange(30_000) * 299_993, 1))
    for steps in drawn:
        assert truth.surprise(np.bincount(steps // LONG, minlength=300)) < 4
        assert truth.surprise(np.bincount(steps % LONG // (LONG // 100), minlength=100)) < 4
    assert len(set(drawn[-1].tolist())) == 30_000
    with mock.patch.object(mixture, "_draw", lambda *arguments, **options: drawn[0][:200]):
        batch = mixture.sample(0, 200)
    assert batch["run"].tolist() == (drawn[0][:200] // LONG).tolist()
    assert batch["index"].tolist() == (drawn[0][:200] % LONG).tolist()
    assert batch["episode"].tolist() == (drawn[0][:200] % LONG // 15_000).tolist()
    last = mixture._gather(np.array([300 * LONG - 1]))
    assert (last["run"][0], last["index"][0], last["next"]["terminated"][0]) == (299, LONG - 1, True)
    if files:
        assert len(os.listdir("/proc/self/fd")) == files


def test_three_hundred_runs_by_weights_and_stacked(many):
    weights = {name: 1 + number % 3 for number, name in enumerate(many)}
    mixture = atarirb.mix(many, weights)
    steps = mixture._draw(0, 30_000, mixture._legal(None))
    assert truth.surprise(np.bincount(steps // LONG, minlength=300), np.array(list(weights.values()))) < 4
    assert truth.surprise(np.bincount(steps % LONG // (LONG // 100), minlength=100)) < 4
    batch = atarirb.mix(many, stacked=True).sample(0, 600)
    assert batch["run"].tolist() == [[number] * 2 for number in range(300)]
    assert batch["index"].max() > LONG / 2
    assert len(json.dumps(mixture.batches(4, key=0, replacement=True).get_state())) < 1000
