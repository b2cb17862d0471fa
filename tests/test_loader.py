"""Epochs of batches: what is in them, in which order, and what stops, failures and threads do to them."""

import gc
import hashlib
import itertools
import json
import random
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pytest

import atarirb
from atarirb import kernels
from atarirb.batch import OPTIONAL
from atarirb.errors import ArgumentError, ClosedError, DatasetError, FunctionError, KeyTypeError, StateError
from atarirb.kernels import reference
from atarirb.loader import Batches
from tests import shards, truth

STACK, N_STEP, GAMMA = 3, 2, 0.9
OPTIONS = {"frame_stack": STACK, "n_step": N_STEP, "gamma": GAMMA, "columns": ("timestep",)}
LENGTHS = [1, 30, 5, 7, 30, 5, 4, 20, 20, 1, 14, 7, 7, 7, 5, 4, 5, 9]
LOG = {"capacity": 30, "unfinished": True, "drop": (2, 6)}
KEY, SIZE = 5, 16

#: The ways to go through an epoch. None has a whole number of batches.
MODES = {
    "transitions": {},
    "all transitions": {"drop_remainder": False},
    "slices": {"slice_len": 4},
    "all short slices": {"slice_len": 4, "strict_length": False, "drop_remainder": False},
    "replacement": {"replacement": True},
}
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """The same log in both codecs, and another log."""
    made = {}
    for name, options in {"packed": {}, "raw": {"codec": "raw"}, "other": {"seed": 1}}.items():
        made[name], _ = truth.dataset(tmp_path_factory.mktemp(name), LENGTHS, **LOG, **options)
    return made


@pytest.fixture(scope="module")
def reader(paths):
    return atarirb.open(paths["packed"], **OPTIONS)


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """A dataset of real frames, large enough that threads share the work of a batch."""
    out = tmp_path_factory.mktemp("games") / "Pong"
    truth.ingest(truth.SAMPLES / "Pong" / "1", out)
    return out


@pytest.fixture(autouse=True)
def no_threads_are_left():
    yield
    assert left_behind() == []


def running():
    """The threads that make batches ahead."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("atarirb-prefetch")]


def left_behind():
    """Such threads that do not end by themselves soon."""
    if running():
        gc.collect()
    for thread in running():
        thread.join(5)
    return running()


def batches(reader, size=SIZE, **options):
    return reader.batches(size, **{"key": KEY} | options)


def taken(iterator, count=None):
    with iterator:
        return list(itertools.islice(iterator, count))


def indices(found):
    return [batch["index"].tolist() for batch in found]


def digests(found):
    return [truth.digest(batch) for batch in found]


def assert_same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        truth.assert_same(one, other)


# What is in an epoch.


@pytest.mark.parametrize(("frame_stack", "n_step"), [(1, 1), (3, 1), (1, 4), (3, 2), (8, 7)])
def test_every_valid_step_comes_once_an_epoch_and_no_other_does(small, frame_stack, n_step):
    path, steps = small
    valid = [step for step in range(len(steps)) if truth.is_valid(steps, step, frame_stack, n_step)]
    with atarirb.open(path, frame_stack=frame_stack, n_step=n_step) as reader:
        for epoch in range(2):
            iterator = batches(reader, 7, drop_remainder=False)
            iterator.set_state(iterator.get_state() | {"epoch": epoch})
            found = taken(iterator, iterator.batches_per_epoch)
            steps_of = [step for rows in indices(found) for step in rows]
            assert sorted(steps_of) == valid
            assert steps_of != valid


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("length", [1, 4, 20])
def test_every_legal_slice_comes_once_an_epoch_and_no_other_does(small, length, strict):
    path, steps = small
    legal = truth.slices(steps, length, STACK, N_STEP, strict=strict)
    with atarirb.open(path, frame_stack=STACK, n_step=N_STEP) as reader:
        found = taken(
            batches(
                reader, 7, slice_len=length, strict_length=strict, epochs=1, drop_remainder=False, prefetch=3
            )
        )
        rows = [
            tuple(row[mask].tolist())
            for batch in found
            for row, mask in zip(batch["index"], batch["mask"], strict=True)
        ]
    assert sorted(rows) == sorted(legal)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_every_terminal_written_comes_once_an_epoch(small, frame_stack):
    """One only does not: its stack would reach before the cut head of its episode."""
    path, steps = small
    written = [step for step in np.flatnonzero(steps.terminal) if truth.is_valid(steps, step, frame_stack, 1)]
    assert len(written) == steps.terminal.sum() or frame_stack > 1
    with atarirb.open(path, frame_stack=frame_stack) as reader:
        found = taken(batches(reader, 10, epochs=1, drop_remainder=False))
    ends = np.concatenate([batch["index"][batch["next"]["terminated"]] for batch in found])
    assert sorted(ends.tolist()) == written


def test_batches_show_what_was_played(small):
    path, steps = small
    with atarirb.open(path, **OPTIONS) as reader:
        for batch in taken(batches(reader, epochs=1)):
            for row, step in enumerate(batch["index"].tolist()):
                follows = truth.transition(steps, step, N_STEP, GAMMA)
                shown = truth.observation(steps, step, STACK)
                np.testing.assert_array_equal(batch["observation"][row], shown)
                shown = truth.observation(steps, follows.next_step, STACK)
                np.testing.assert_array_equal(batch["next"]["observation"][row], shown)
                assert batch["action"][row] == steps.action[step]
                assert batch["next"]["reward"][row] == pytest.approx(follows.reward, abs=1e-6)
                assert batch["next"]["terminated"][row] == follows.terminated


def test_batches_are_those_of_get(reader):
    for batch in taken(batches(reader, epochs=1, drop_remainder=False)):
        truth.assert_same(batch, reader.get(batch["index"]))


def test_an_epoch_of_a_selection_has_the_valid_steps_of_its_episodes(small):
    path, steps = small
    valid = [step for step in range(len(steps)) if truth.is_valid(steps, step, STACK, N_STEP)]
    with atarirb.open(path, frame_stack=STACK, n_step=N_STEP) as reader:
        found = taken(batches(reader.select([1, 3, 5]), 5, epochs=1, drop_remainder=False))
    expected = [step for step in valid if steps.episode[step] in (1, 3, 5)]
    assert sorted(itertools.chain(*indices(found))) == expected


# How many batches there are.


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("size", [3, 13, 16, 60, 104])
def test_the_number_of_batches_is_right_for_every_prefetch(reader, size, drop):
    """There are 104 valid steps, which some of the sizes divide."""
    rows = reader.valid_steps
    assert rows == 104
    for prefetch in range(17):
        iterator = batches(reader, size, epochs=2, drop_remainder=drop, prefetch=prefetch)
        full, left = divmod(rows, size)
        expected = ([size] * full + [left] * (left > 0 and not drop)) * 2
        assert len(iterator) == len(expected)
        assert iterator.batches_per_epoch == len(expected) / 2
        assert [len(batch["index"]) for batch in taken(iterator)] == expected


def test_batches_without_epochs_never_end(reader):
    iterator = batches(reader, 50)
    with pytest.raises(TypeError, match="without end have no length"):
        len(iterator)
    found = indices(taken(iterator, 20))
    assert len({tuple(rows) for rows in found}) == 20
    for first in range(0, 20, 2):
        assert len({*found[first], *found[first + 1]}) == 100


def test_batches_larger_than_the_data_are_refused_unless_they_may_be_short_or_repeat(reader):
    with pytest.raises(ArgumentError, match=r"batch_size is 105, and an epoch has 104 steps; .*replacement"):
        batches(reader, 105)
    slices = batches(reader, 1, slice_len=4).batches_per_epoch
    with pytest.raises(ArgumentError, match=f"an epoch has {slices} slices of 4 steps"):
        batches(reader, slices + 1, slice_len=4)
    (one,) = taken(batches(reader, 1000, drop_remainder=False, epochs=1))
    assert sorted(one["index"]) == sorted(set(one["index"])) and len(one["index"]) == 104
    (one,) = taken(batches(reader, 1000, replacement=True, epochs=1))
    assert len(one["index"]) == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "batch_size is 0"),
        ({"size": 2.5}, "batch_size is 2.5"),
        ({"size": True}, "batch_size is True"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": -1}, "epochs is -1"),
        ({"prefetch": -1}, "prefetch is -1, expected an integer of 0 or more"),
        ({"prefetch": 1.5}, "prefetch is 1.5"),
        ({"prefetch": None}, "prefetch is None"),
        ({"slice_len": 0}, "slice_len is 0"),
        ({"slice_len": 31}, "no episode has 31 valid steps in a row"),
        ({"transform": 3}, "transform is 3, expected a function"),
        ({"shard": (2, 2)}, r"shard is \(2, 2\), expected \(i, n\)"),
        ({"shard": (-1, 2)}, r"shard is \(-1, 2\)"),
        ({"shard": (0, 0)}, r"shard is \(0, 0\)"),
        ({"shard": (0, 1, 2)}, r"shard is \(0, 1, 2\)"),
        ({"shard": (0.0, 2)}, r"shard is \(0.0, 2\)"),
        ({"shard": 1}, "shard is 1"),
        ({"shard": (0, 3)}, "batch_size 16 does not divide by 3 hosts"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused_at_once(reader, options, words):
    with pytest.raises(ArgumentError, match=words):
        batches(reader, **options)


def test_what_is_no_key_is_refused_at_once(reader):
    with pytest.raises(KeyTypeError, match="unusable key None"):
        batches(reader, key=None)


def test_a_reader_without_a_valid_step_has_no_batches(paths):
    with atarirb.open(paths["packed"], frame_stack=30) as reader, pytest.raises(ArgumentError):
        reader.select([5]).batches(1, key=0)


# In which order.


def test_an_epoch_is_a_function_of_key_and_number_alone(reader):
    one, two = taken(batches(reader, 104), 2)
    (other,) = taken(batches(reader, 104, key=KEY + 1), 1)
    orders = [batch["index"].tolist() for batch in (one, two, other)]
    for mine, theirs in itertools.combinations(orders, 2):
        assert sorted(mine) == sorted(theirs)
        assert sum(a == b for a, b in zip(mine, theirs, strict=True)) < 10
    again = taken(batches(reader, 104), 2)
    assert_same(again, [one, two])


def test_the_order_does_not_depend_on_the_size_of_batches(reader):
    large, small_ones = (taken(batches(reader, size, epochs=1, drop_remainder=False)) for size in (104, 10))
    assert [*itertools.chain(*indices(large))] == [*itertools.chain(*indices(small_ones))]


def test_steps_come_anywhere_in_an_epoch_and_batches_mix_them(reader):
    """Of each step how often it was in which batch of 8, over many epochs."""
    valid = sorted(taken(batches(reader, 104), 1)[0]["index"].tolist())
    counts = np.zeros((104, 13), np.int64)
    neighbours = 0
    for batch in taken(batches(reader, 104, prefetch=1), 400):
        place = np.argsort(batch["index"]) // 8
        counts[np.arange(104), place] += 1
        neighbours += (place[1:] == place[:-1]).sum()
    assert valid == sorted(batch["index"].tolist())
    assert abs(truth.surprise(counts.reshape(-1)) * 104 / 103) < 4
    expected, pairs = 7 / 103, 400 * 103
    assert abs(neighbours - pairs * expected) / (pairs * expected * (1 - expected)) ** 0.5 < 4


GOLDEN_INDEX = {
    "transitions": "f96d9af0552e6b72",
    "all transitions": "0a5ec4fb9286349f",
    "slices": "0fc81c58d0134cdf",
    "all short slices": "c4340ad2e78f0553",
    "replacement": "f102216124539eac",
}


def index_digest(reader, mode):
    """Hash the index of two epochs."""
    sha = hashlib.sha256()
    for batch in taken(batches(reader, epochs=2, **MODES[mode])):
        sha.update(batch["index"].astype("<i8").tobytes())
    return sha.hexdigest()[:16]


def test_the_index_of_epochs_stays_the_same(reader):
    assert {mode: index_digest(reader, mode) for mode in MODES} == GOLDEN_INDEX


GOLDEN_BATCHES = {
    "transitions": "490e7c7c9e163a67",
    "slices": "891e61d9acaceed6",
    "replacement": "9c948d7d788fea1b",
}
WIDE = {"frame_stack": 4, "n_step": 3, "columns": ("return_to_go", "timestep")}


def wide_digests(path, **options):
    """Hash a few batches of real frames, which are large enough for threads to share their work."""
    found = {}
    with atarirb.open(path, **WIDE) as reader:
        for mode in GOLDEN_BATCHES:
            each = digests(taken(batches(reader, 32, **MODES[mode], **options), 3))
            found[mode] = hashlib.sha256("".join(each).encode()).hexdigest()[:16]
    return found


def test_batches_stay_the_same(games):
    assert wide_digests(games) == GOLDEN_BATCHES


@pytest.mark.parametrize("prefetch", [0, 1, 8])
@pytest.mark.parametrize("threads", [1, 16])
def test_batches_do_not_depend_on_threads_or_prefetch(games, monkeypatch, threads, prefetch):
    monkeypatch.setenv("ATARIRB_THREADS", str(threads))
    assert wide_digests(games, prefetch=prefetch) == GOLDEN_BATCHES


@every_mode
def test_batches_do_not_depend_on_numba(reader, monkeypatch, mode):
    options = {"epochs": 1, **MODES[mode]}
    expected = taken(batches(reader, **options))
    monkeypatch.setattr(kernels, "active", lambda: reference)
    assert_same(taken(batches(reader, **options)), expected)


@pytest.mark.parametrize("output", ["jax", "torch"])
@every_mode
def test_batches_do_not_depend_on_the_output(paths, reader, output, mode):
    pytest.importorskip(f"atarirb.outputs.{output}")
    pytest.importorskip(output)
    options = {"epochs": 1, **MODES[mode]}
    with atarirb.open(paths["packed"], output=output, **OPTIONS) as other:
        assert_same(taken(batches(other, **options)), taken(batches(reader, **options)))


def test_every_kind_of_key_is_one(reader):
    jax = pytest.importorskip("jax")
    keys = [7, np.int64(7), np.random.SeedSequence(7)]
    found = [taken(batches(reader, key=key), 3) for key in keys]
    for other in found[1:]:
        assert_same(other, found[0])
    typed, raw = (taken(batches(reader, key=make(7)), 3) for make in (jax.random.key, jax.random.PRNGKey))
    assert_same(typed, raw)
    assert indices(typed) != indices(found[0])


def test_a_generator_moves_on_once_whatever_is_made(reader):
    generator, other = np.random.default_rng(3), np.random.default_rng(3)
    iterators = [batches(reader, key=generator) for _ in range(2)]
    first, second = (indices(taken(iterator, 3)) for iterator in iterators)
    assert first != second
    assert indices(taken(batches(reader, key=other), 3)) == first
    assert indices(taken(batches(reader, key=other), 3)) == second


def test_no_global_generator_is_used_or_changed(reader):
    np.random.seed(1)
    random.seed(1)
    states = np.random.get_state(), random.getstate()
    first = taken(batches(reader, prefetch=4, epochs=1))
    assert random.getstate() == states[1]
    for now, then in zip(np.random.get_state(), states[0], strict=True):
        np.testing.assert_array_equal(now, then)
    np.random.seed(2)
    random.seed(2)
    assert_same(taken(batches(reader, prefetch=4, epochs=1)), first)


def test_batches_with_replacement_are_full_and_uniform(reader):
    found = indices(taken(batches(reader, 520, replacement=True, epochs=40, drop_remainder=False)))
    assert len(found) == 40 and {len(rows) for rows in found} == {520}
    counts = np.bincount(np.concatenate(found))
    assert np.count_nonzero(counts) == 104
    assert abs(truth.surprise(counts[counts > 0])) < 4
    assert len({tuple(rows) for rows in found}) == 40


# Its state.


def play_all(reader, epochs=2, **options):
    """Go through epochs; return the state before each batch, and after the last, and the batches' digests."""
    states, found = [], []
    with batches(reader, epochs=epochs, **options) as iterator:
        for batch in iterator:
            found.append(truth.digest(batch))
            states.append(iterator.get_state())
    with batches(reader, epochs=epochs, **options) as iterator:
        states.insert(0, iterator.get_state())
    return states, found


def test_a_state_of_any_position_goes_on_in_a_new_process_bit_for_bit(paths, reader, python, tmp_path):
    code = """
        import itertools, json, pathlib, sys
        import atarirb
        from tests import truth
        path, file, options, modes, size, key = (json.loads(argument) for argument in sys.argv[1:])
        reader = atarirb.open(path, **options)
        found = {}
        for mode, states in json.loads(pathlib.Path(file).read_text()).items():
            found[mode] = []
            for number, state in enumerate(states):
                with reader.batches(size, key=key, epochs=2, prefetch=number % 4, **modes[mode]) as batches:
                    batches.set_state(state)
                    then = [truth.digest(batch) for batch in itertools.islice(batches, 3)]
                    found[mode].append([then, batches.get_state()])
        print(json.dumps(found))
    """
    states, expected = {}, {}
    for mode, options in MODES.items():
        states[mode], made = play_all(reader, prefetch=7, **options)
        for prefetch in (0, 1):
            assert play_all(reader, prefetch=prefetch, **options) == (states[mode], made)
        assert len(states[mode]) == len(made) + 1 > 8
        expected[mode] = [
            [made[at : at + 3], states[mode][min(at + 3, len(made))]] for at in range(len(made) + 1)
        ]
    (tmp_path / "states").write_text(json.dumps(states))
    arguments = [str(paths["raw"]), str(tmp_path / "states"), OPTIONS, MODES, SIZE, KEY]
    output = python(code, *map(json.dumps, arguments), ATARIRB_THREADS=16)
    assert json.loads(output) == expected


@every_mode
def test_a_state_counts_batches_handed_out_and_is_small(reader, mode):
    with batches(reader, prefetch=8, **MODES[mode]) as iterator:
        per_epoch = iterator.batches_per_epoch
        for position in range(2 * per_epoch + 1):
            state = iterator.get_state()
            assert (state["epoch"], state["batch"]) == divmod(position, per_epoch)
            assert json.loads(json.dumps(state)) == state
            assert len(json.dumps(state)) < 1000
            next(iterator)


def test_a_state_does_not_change_when_the_iterator_goes_on(reader):
    with batches(reader) as iterator:
        next(iterator)
        state = iterator.get_state()
        kept = json.dumps(state)
        next(iterator)
        state["of"]["batch_size"] = 3
        assert json.dumps(iterator.get_state()) != kept
        assert iterator.get_state()["of"]["batch_size"] == SIZE


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_state_is_gone_to_from_anywhere_even_from_the_end(reader, prefetch):
    states, found = play_all(reader, prefetch=prefetch)
    with batches(reader, epochs=2, prefetch=prefetch) as iterator:
        for position in (3, 0, 11, 5, 12, 12, 1):
            iterator.set_state(states[position])
            assert iterator.get_state() == states[position]
            rest = digests(itertools.islice(iterator, 4))
            assert rest == found[position : position + 4]
        iterator.set_state(states[2])
        assert digests(iterator) == found[2:]
        assert next(iterator, "end") == "end"
        iterator.set_state(states[2])
        assert digests(iterator) == found[2:]


OTHERWISE = {
    "selection": (lambda reader: reader.select(slice(0, 10)), {}, "selection is .* here, 'all' there"),
    "batch_size": (None, {"size": 8}, "batch_size is 8 here, 16 there"),
    "key": (None, {"key": 6}, "key is '.*' here, '.*' there"),
    "slice_len": (None, {"slice_len": 2}, "slice_len is 2 here, None there"),
    "strict_length": (None, {"strict_length": False}, "strict_length is False here, True there"),
    "replacement": (None, {"replacement": True}, "replacement is True here, False there"),
    "drop_remainder": (None, {"drop_remainder": False}, "drop_remainder is False here, True there"),
    "frame_stack": ({"frame_stack": 2}, {}, "frame_stack is 2 here, 3 there"),
    "n_step": ({"n_step": 1}, {}, "n_step is 1 here, 2 there"),
    "gamma": ({"gamma": 0.5}, {}, "gamma is 0.5 here, 0.9 there"),
    "time_limit": ({"time_limit": "truncated"}, {}, "time_limit is 'truncated' here, 'terminated' there"),
    "final": ({"final": "stored"}, {}, "final is 'stored' here, 'zeros' there"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_state_of_other_batches_is_refused_with_what_differs(paths, reader, name):
    change, options, words = OTHERWISE[name]
    state = batches(reader).get_state()
    if callable(change):
        other = change(reader)
    else:
        other = atarirb.open(paths["packed"], **OPTIONS | (change or {}))
    with pytest.raises(StateError, match=f"of other batches: {words}$"):
        batches(other, **options).set_state(state)


def test_a_state_of_another_dataset_is_refused(paths, reader):
    other = atarirb.open(paths["other"], **OPTIONS)
    with pytest.raises(StateError, match="dataset is '[0-9a-f]+' here, '[0-9a-f]+' there$"):
        batches(other).set_state(batches(reader).get_state())


def test_all_that_differs_is_named_at_once(reader):
    with pytest.raises(StateError, match=r"key is .*; batch_size is 8 here, 16 there; slice_len is 2 here"):
        batches(reader, 8, key=1, slice_len=2).set_state(batches(reader).get_state())


def test_what_is_no_state_is_refused_and_changes_nothing(reader):
    with batches(reader, epochs=2) as iterator:
        next(iterator)
        state = iterator.get_state()
        for garbage in (None, 3, "state", [], {}, b"", np.zeros(3), {"version": 1}, state | {"of": 3}):
            with pytest.raises(StateError, match="not a state of batches: "):
                iterator.set_state(garbage)
        for name in ("epoch", "batch"):
            for value in (None, 1.0, "1", [1]):
                with pytest.raises(StateError, match="not a state of batches: "):
                    iterator.set_state(state | {name: value})
        for version in (0, 2, "1", None):
            with pytest.raises(
                StateError, match=f"a state of version {version!r}, this atarirb reads version 1"
            ):
                iterator.set_state({"version": version})  # what else there is, only that version knows
        with pytest.raises(StateError, match="frame_stack is 3 here, 'not given' there"):
            iterator.set_state(state | {"of": {k: v for k, v in state["of"].items() if k != "frame_stack"}})
        with pytest.raises(StateError, match="more is 'not given' here, 1 there"):
            iterator.set_state(state | {"of": state["of"] | {"more": 1}})
        outside = [(0, -1), (0, 6), (-1, 0), (3, 0), (2, 1)]
        for epoch, number in outside:
            with pytest.raises(
                StateError, match=f"at batch {number} of epoch {epoch}; there are 6 .* 2 epochs"
            ):
                iterator.set_state(state | {"epoch": epoch, "batch": number})
        assert iterator.get_state() == state
        assert indices([next(iterator)]) == indices(taken(batches(reader), 2))[1:]


def test_a_state_goes_on_with_another_codec_prefetch_number_of_hosts_and_output(paths, reader):
    pytest.importorskip("jax")
    with batches(reader, prefetch=5) as iterator:
        next(iterator), next(iterator), next(iterator)
        state = iterator.get_state()
        expected = [next(iterator) for _ in range(6)]
    for path, output, prefetch in itertools.product(("packed", "raw"), ("numpy", "jax"), (0, 4)):
        with atarirb.open(paths[path], output=output, **OPTIONS) as other:
            iterator = batches(other, prefetch=prefetch, epochs=9, transform=lambda batch: batch)
            iterator.set_state(state)
            assert_same(taken(iterator, 6), expected)
            parts = [batches(other, shard=(host, 2)) for host in range(2)]
            for part in parts:
                part.set_state(state)
            assert_same(map(joined, zip(*(taken(part, 6) for part in parts), strict=True)), expected)


def test_other_columns_and_windows_do_not_matter_to_a_state(paths, reader):
    state = batches(reader).get_state()
    for change in ({"columns": ()}, {"windows": True}):
        iterator = batches(atarirb.open(paths["packed"], **OPTIONS | change))
        iterator.set_state(state)
        assert indices(taken(iterator, 2)) == indices(taken(batches(reader), 2))


@pytest.mark.parametrize("mode", ["transitions", "slices", "replacement"])
def test_a_billionth_batch_is_made_at_once(reader, mode):
    with batches(reader, **MODES[mode]) as iterator:
        epoch, number = divmod(10**9, iterator.batches_per_epoch)
        iterator.set_state(iterator.get_state() | {"epoch": epoch, "batch": number})
        first = next(iterator)
        assert iterator.get_state() | {"epoch": epoch, "batch": number + 1} == iterator.get_state()
        iterator.set_state(iterator.get_state() | {"epoch": epoch, "batch": number})
        truth.assert_same(next(iterator), first)
        if mode == "transitions":
            iterator.set_state(iterator.get_state() | {"batch": 0})
            rows = [step for _ in range(iterator.batches_per_epoch) for step in next(iterator)["index"]]
            assert len(set(rows)) == len(rows)


# Failures.


class Failing:
    """A transform that fails for the batch with these rows, as long as it is armed."""

    def __init__(self, batch, error):
        self.rows, self.error = batch["index"].tolist(), error
        self.armed, self.failures = True, 0

    def __call__(self, batch):
        if self.armed and batch["index"].tolist() == self.rows:
            self.fail_here()
        return batch

    def fail_here(self):
        self.failures += 1
        raise self.error(f"failure {self.failures}")


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("prefetch", [0, 1, 4, 16])
def test_a_failure_is_raised_by_the_next_it_belongs_to(reader, prefetch, error):
    expected = taken(batches(reader, epochs=2))
    transform = Failing(expected[5], error)
    with batches(reader, epochs=2, prefetch=prefetch, transform=transform) as iterator:
        assert_same(itertools.islice(iterator, 5), expected[:5])
        for attempt in range(1, 4):
            state = iterator.get_state()
            assert state["batch"] == 5
            with pytest.raises(error, match=f"failure {attempt}$") as caught:
                time.sleep(0.01 if prefetch else 0)  # so that it has failed already
                next(iterator)
            assert "fail_here" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        iterator.set_state(state | {"epoch": 1, "batch": 0})  # the failed one may be left out
        truth.assert_same(next(iterator), expected[6])
        iterator.set_state(state)
        transform.armed = False
        assert_same(iterator, expected[5:])
    assert transform.failures == 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_that_raises_stop_iteration_does_not_end_the_epoch(reader, prefetch):
    def transform(batch):
        return next(iter(()))

    with batches(reader, prefetch=prefetch, transform=transform) as iterator:
        with pytest.raises(FunctionError, match="transform raised StopIteration") as caught:
            next(iterator)
        assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_damaged_frame_fails_its_batch_alone(tmp_path, prefetch):
    shards.write(tmp_path / "data", [[(40, 1, False)], [(50, 1, True)]], codec="packed")
    place = tmp_path / "data/00001/observation.pack"
    whole = place.read_bytes()
    lengths = np.load(tmp_path / "data/00001/observation.idx.npy")["length"].reshape(-1)
    with atarirb.open(tmp_path / "data") as reader:
        expected = taken(batches(reader, 10, epochs=1, drop_remainder=False))
        (bad,) = (number for number, rows in enumerate(indices(expected)) if 47 in rows)
        needs = {number for number, rows in enumerate(indices(expected)) if {46, 47} & set(rows)}

        def damage(data):
            with open(place, "r+b") as file:
                file.write(data)

        broken = bytearray(whole)
        broken[int(lengths[:7].sum()) + 9] ^= 4
        damage(broken)
        failed = []
        with batches(reader, 10, epochs=1, drop_remainder=False, prefetch=prefetch) as iterator:
            while (number := iterator.get_state()["batch"]) < 8:
                try:
                    truth.assert_same(next(iterator), expected[number])
                except DatasetError as error:
                    assert "the block of the shard's step 7 is damaged" in str(error)
                    failed.append(number)
                    with pytest.raises(DatasetError, match=r"00001/observation.pack"):
                        next(iterator)
                    iterator.set_state(iterator.get_state() | {"batch": number + 1})
            iterator.set_state(iterator.get_state() | {"batch": bad})
            with pytest.raises(DatasetError):
                next(iterator)
            damage(whole)
            truth.assert_same(next(iterator), expected[bad])
        assert set(failed) == needs - {8}


@pytest.mark.parametrize("prefetch", [0, 3])
def test_closing_the_reader_fails_the_next_batch_that_needs_it(paths, reader, prefetch):
    expected = taken(batches(reader, epochs=1))
    mine = atarirb.open(paths["packed"], **OPTIONS)
    made = []
    with batches(mine, prefetch=prefetch, transform=lambda batch: made.append(1) or batch) as iterator:
        found = [next(iterator)]
        until = time.monotonic() + 5
        while len(made) < 1 + prefetch and time.monotonic() < until:
            time.sleep(0.001)
        mine.close()
        with pytest.raises(ClosedError, match="the reader of '.*' is closed; open it again"):
            while True:
                found.append(next(iterator))
        assert_same(found, expected[: 1 + prefetch])
        with pytest.raises(ClosedError, match="the reader of"):
            next(iterator)
        assert iterator.get_state()["batch"] == 1 + prefetch


# Stops.


def test_threads_make_batches_ahead_and_no_more_than_asked_for(reader, monkeypatch):
    monkeypatch.setenv("ATARIRB_THREADS", "3")
    for prefetch, workers in ((1, 1), (2, 2), (8, 3)):
        made = []
        with batches(
            reader, prefetch=prefetch, transform=lambda batch, made=made: made.append(1) or batch
        ) as one:
            assert not running()  # none before the first batch is wanted
            for count in range(1, 5):
                next(one)
                until = time.monotonic() + 5
                while len(made) < count + prefetch and time.monotonic() < until:
                    time.sleep(0.001)
                time.sleep(0.005)
                assert len(made) == count + prefetch
            assert len(running()) <= workers
        assert not running()


def test_closing_stops_the_threads_and_what_is_to_be_made(reader):
    started, go_on = [], threading.Event()

    def transform(batch):
        started.append(1)
        assert go_on.wait(5)
        return batch

    iterator = batches(reader, prefetch=16, transform=transform)
    threading.Timer(0.05, go_on.set).start()
    next(iterator)
    go_on.clear()
    before = len(started)
    threading.Timer(0.05, go_on.set).start()
    iterator.close()
    assert not running()
    assert len(started) <= before + 8
    for _ in range(2):
        with pytest.raises(ClosedError, match="these batches are closed; make new ones, and set their state"):
            next(iterator)
        iterator.close()
    fresh = batches(reader)
    fresh.set_state(iterator.get_state())
    assert indices(taken(fresh, 1)) == indices(taken(batches(reader), 2))[1:]


def test_leaving_a_with_block_stops_the_threads(reader):
    with pytest.raises(ZeroDivisionError), batches(reader, prefetch=4) as iterator:
        assert iter(iterator) is iterator
        next(iterator)
        assert running()
        raise ZeroDivisionError
    assert not running()
    with pytest.raises(ClosedError):
        next(iterator)


def test_the_end_of_the_last_epoch_stops_the_threads(reader):
    iterator = batches(reader, epochs=2, prefetch=4)
    assert len(list(iterator)) == 12
    assert not running()
    assert list(iterator) == []


def test_an_error_in_the_loop_leaves_no_thread_behind(reader):
    def loop():
        for _ in batches(reader, prefetch=4):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert left_behind() == []


def test_dropping_the_iterator_ends_its_threads_and_what_is_to_be_made(reader):
    started = []

    def transform(batch):
        started.append(1)
        time.sleep(0.02)
        return batch

    iterator = batches(reader, prefetch=100, transform=transform)
    next(iterator)
    assert running()
    del iterator
    assert left_behind() == []
    assert len(started) < 30


def test_an_iterator_that_failed_ends_its_threads_with_its_error(reader):
    transform = Failing(taken(batches(reader), 1)[0], ValueError)
    iterator = batches(reader, prefetch=3, transform=transform)
    with pytest.raises(ValueError, match="failure"):
        next(iterator)
    del iterator
    assert left_behind() == []


@pytest.fixture
def interrupt_next():
    """A function that interrupts this thread, if it is in a `next` then: elsewhere it would end the tests."""

    def handler(_, frame):
        while frame is not None:
            if frame.f_code is Batches.__next__.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    main, before = threading.get_ident(), signal.signal(signal.SIGINT, handler)
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_of_the_wait_loses_no_batch(reader, interrupt_next):
    expected = taken(batches(reader, epochs=1))
    slow = set()

    def transform(batch):
        if batch["index"].tobytes() not in slow:
            slow.add(batch["index"].tobytes())
            time.sleep(0.03)
            interrupt_next()
            time.sleep(0.03)
        return batch

    found, interrupted = [], 0
    with batches(reader, epochs=1, prefetch=1, transform=transform) as iterator:
        while len(found) < len(expected):
            try:
                found.append(next(iterator))
            except KeyboardInterrupt:
                interrupted += 1
                assert iterator.get_state()["batch"] == len(found)
    assert interrupted > 0
    assert_same(found, expected)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interrupt_at_any_line_loses_no_batch(reader, prefetch):
    """But for the last one of `__next__`: signals come at calls and jumps, and none is right before it."""
    whole = batches(reader, epochs=1, prefetch=0)
    expected = indices(whole)
    file = Batches.__next__.__code__.co_filename
    first = Batches.__next__.__code__.co_firstlineno
    last = max(line for *_, line in Batches.__next__.__code__.co_lines() if line)
    assert first < last
    interrupted_at, points = set(), 0
    while True:
        left = points

        def tracer(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename != file:
                return None
            if event == "line" and not (frame.f_code is Batches.__next__.__code__ and frame.f_lineno == last):
                if not left:
                    interrupted_at.add(frame.f_lineno)
                    left -= 1
                    raise KeyboardInterrupt
                left -= 1
            return tracer

        iterator = batches(reader, epochs=1, prefetch=prefetch)
        found, interrupted, before = [], False, sys.gettrace()
        while True:
            sys.settrace(tracer)
            try:
                batch = next(iterator, None)
            except KeyboardInterrupt:
                interrupted = True
                continue
            finally:
                sys.settrace(before)
            if batch is None:
                break
            found.append(batch["index"].tolist())
        assert found == expected, interrupted_at
        if not interrupted:
            break
        points += 1
    assert points > len(expected) * 5
    assert len(interrupted_at) > 5


def test_a_child_goes_on_from_its_parents_position_and_the_interpreter_ends_in_the_middle(paths, python):
    """Both end while batches are made ahead: without waiting long, and without a word."""
    code = """
        import itertools, json, os, pathlib, sys, time, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
        os.dup2(1, 2)
        import atarirb
        from tests import truth
        path, options, size, key = (json.loads(argument) for argument in sys.argv[1:])
        reader = atarirb.open(path, **options)

        def slow(batch):
            time.sleep(0.002)
            return batch

        batches = reader.batches(size, key=key, prefetch=6, transform=slow)
        found = [truth.digest(batch) for batch in itertools.islice(batches, 4)]
        untouched = reader.batches(size, key=key, prefetch=6)
        restored = reader.batches(size, key=key, prefetch=6)
        next(restored)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            restored.set_state(batches.get_state())
            state = batches.get_state()["batch"]
            mine = [truth.digest(batch) for batch in itertools.islice(batches, 10)]
            again = [truth.digest(batch) for batch in itertools.islice(restored, 10)]
            os.write(writing, json.dumps([state, mine, again]).encode())
            os.close(writing)
            sys.exit(3)
        os.close(writing)
        found += [truth.digest(batch) for batch in itertools.islice(batches, 10)]
        with open(reading, "rb") as pipe:
            childs = json.load(pipe)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([found, childs, status]))
        json.kept = batches  # until other modules are gone
        del batches
    """
    arguments = [str(paths["packed"]), OPTIONS, SIZE, KEY]
    output = python(code, *map(json.dumps, arguments))
    found, (state, childs, again), status = json.loads(output)
    with atarirb.open(paths["packed"], **OPTIONS) as reader:
        expected = digests(taken(batches(reader), 14))
    assert found == expected
    assert state == 4
    assert childs == again == expected[4:]
    assert status == 3


# Hosts.


def joined(parts):
    """Put the parts of a batch together."""
    names = [name for name, _ in truth.leaves(parts[0])]
    leaves = [dict(truth.leaves(part)) for part in parts]
    flat = {name: np.concatenate([leaf[name] for leaf in leaves]) for name in names}
    batch = {name: values for name, values in flat.items() if not name.startswith("next.")}
    batch["next"] = {name[5:]: values for name, values in flat.items() if name.startswith("next.")}
    return batch


@pytest.mark.parametrize(
    ("hosts", "size"), [(1, 48), (2, 48), (3, 48), (4, 48), (5, 35), (6, 48), (7, 35), (8, 48)]
)
@every_mode
def test_hosts_get_equal_parts_that_are_the_epoch_together(reader, hosts, size, mode):
    options = {"epochs": 2, **MODES[mode]}
    expected = taken(batches(reader, size, **options))
    parts = [taken(batches(reader, size, shard=(host, hosts), **options)) for host in range(hosts)]
    assert {len(part) for part in parts} == {len(expected)}
    shapes = {
        tuple((name, values.shape) for name, values in truth.leaves(batch))
        for part in parts
        for batch in part
    }
    assert len(shapes) == 1
    assert {len(batch["index"]) for part in parts for batch in part} == {size // hosts}
    for number, batch in enumerate(expected):
        whole = joined([part[number] for part in parts])
        padding = whole["index"].reshape(size, -1)[:, 0] < 0
        assert not padding[: len(batch["index"])].any() and padding[len(batch["index"]) :].all()
        if "drop_remainder" in MODES[mode]:
            np.testing.assert_array_equal(whole["mask"], whole["index"] >= 0)
            if "slice_len" not in MODES[mode]:
                batch["mask"] = np.ones(len(batch["index"]), np.bool_)
        else:
            assert "mask" not in whole or "slice_len" in MODES[mode]
        truth.assert_same(truth.pick(whole, slice(0, len(batch["index"]))), batch)
        for name, values in truth.leaves(truth.pick(whole, padding)):
            if name != "index":
                assert not values.any(), name


@pytest.mark.parametrize("windows", [False, True])
def test_padding_is_zero_in_every_column_and_in_windows(small, windows):
    columns = (*OPTIONAL, "wide", "pair")
    with atarirb.open(small[0], **OPTIONS | {"columns": columns}, windows=windows) as reader:
        padded = 0
        for host in range(4):
            for batch in taken(batches(reader, 100, shard=(host, 4), drop_remainder=False, epochs=1)):
                assert len(batch["index"]) == 25
                mask = batch.pop("mask")
                rest, padding = truth.pick(batch, mask), truth.pick(batch, ~mask)
                truth.assert_same(rest, truth.pick(reader.get(batch["index"][mask]), ...))
                assert (padding.pop("index") == -1).all()
                padded += (~mask).sum()
                for name, values in truth.leaves(padding):
                    assert not values.any(), name
        assert padded == 200 - reader.valid_steps


@every_mode
def test_two_hosts_go_on_where_four_stopped(reader, mode):
    expected = taken(batches(reader, epochs=2, **MODES[mode]))
    four = [batches(reader, shard=(host, 4), prefetch=host, **MODES[mode]) for host in range(4)]
    for iterator in four:
        for _ in range(7):
            next(iterator)
    states = [iterator.get_state() for iterator in four]
    assert states == states[:1] * 4
    for iterator in four:
        iterator.close()
    two = [batches(reader, shard=(host, 2), epochs=2, **MODES[mode]) for host in range(2)]
    for iterator in two:
        iterator.set_state(states[0])
    rest = [joined(parts) for parts in zip(*map(taken, two), strict=True)]
    assert len(rest) == len(expected) - 7
    for batch, whole in zip(rest, expected[7:], strict=True):
        rows = len(whole["index"])
        np.testing.assert_array_equal(batch["index"][:rows], whole["index"])
        assert (batch["index"][rows:] == -1).all()


# Transforms.


@pytest.mark.parametrize("output", ["numpy", "jax"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_gets_numpy_arrays_in_the_threads_and_may_return_another_tree(paths, output, prefetch):
    jax = pytest.importorskip("jax")
    seen = []

    def transform(batch):
        seen.append((threading.current_thread().name, {type(leaf) for _, leaf in raw_leaves(batch)}))
        batch["observation"] //= 2
        return {
            "x": {"y": batch["observation"], "z": batch["index"]},
            "a": batch["action"].astype(np.float32),
        }

    def raw_leaves(tree):
        for name, leaf in tree.items():
            yield from raw_leaves(leaf) if isinstance(leaf, dict) else [(name, leaf)]

    with (
        atarirb.open(paths["packed"], output=output, **OPTIONS) as other,
        atarirb.open(paths["packed"], **OPTIONS) as plain,
    ):
        found = taken(batches(other, epochs=1, prefetch=prefetch, transform=transform))
        expected = taken(batches(plain, epochs=1))
    for batch, whole in zip(found, expected, strict=True):
        kind = jax.Array if output == "jax" else np.ndarray
        assert isinstance(batch["a"], kind) and isinstance(batch["x"]["y"], kind)
        np.testing.assert_array_equal(batch["x"]["y"], whole["observation"] // 2)
        np.testing.assert_array_equal(batch["a"], whole["action"].astype(np.float32), strict=True)
    names, kinds = zip(*seen, strict=True)
    assert set().union(*kinds) == {np.ndarray}
    if prefetch:
        assert all(name.startswith("atarirb-prefetch") for name in names)
    else:
        assert set(names) == {threading.current_thread().name}


def test_a_transform_may_return_anything_where_arrays_are_of_numpy(reader):
    found = taken(batches(reader, epochs=1, transform=lambda batch: (len(batch["index"]), "mine")))
    assert found == [(SIZE, "mine")] * 6


# Several at once, and arrays that stay.


def test_several_iterators_over_one_reader_go_on_at_once(reader):
    expected = {mode: digests(taken(batches(reader, epochs=2, **MODES[mode]))) for mode in MODES}
    found, failures = {}, []

    def work(number, mode):
        try:
            iterator = batches(reader, epochs=2, prefetch=number % 4, **MODES[mode])
            found[number, mode] = digests(taken(iterator))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number, mode)) for number in range(3) for mode in MODES]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures
    assert found == {(number, mode): expected[mode] for number in range(3) for mode in MODES}


def test_two_iterators_in_turns_do_not_disturb_each_other(reader):
    with batches(reader) as one, batches(reader, key=KEY + 1) as other:
        pairs = [(next(one), next(other)) for _ in range(8)]
    assert_same([pair[0] for pair in pairs], taken(batches(reader), 8))
    assert_same([pair[1] for pair in pairs], taken(batches(reader, key=KEY + 1), 8))


@pytest.mark.parametrize("output", ["numpy", "jax"])
def test_arrays_handed_out_never_change(games, output):
    pytest.importorskip("jax")
    with (
        atarirb.open(games, output=output, frame_stack=4) as reader,
        atarirb.open(games, frame_stack=4) as plain,
    ):
        for options in ({}, {"slice_len": 3}):
            kept, views = [], []
            with batches(reader, 16, prefetch=4, **options) as iterator:
                for number in range(100):
                    batch = next(iterator)
                    if number % 2:  # the others' memory is used again
                        kept.append(batch)
                    elif number % 20 == 0:
                        views.append((batch["index"], batch["observation"][3]))
            for batch in kept:
                flat = np.asarray(batch["index"]).reshape(-1)
                fresh = plain.get(flat)
                shown = np.asarray(batch["observation"]).reshape(fresh["observation"].shape)
                np.testing.assert_array_equal(shown, fresh["observation"])
                after = np.asarray(batch["next"]["observation"]).reshape(fresh["observation"].shape)
                np.testing.assert_array_equal(after, fresh["next"]["observation"])
            for index, view in views:
                np.testing.assert_array_equal(view, plain.get(index[3])["observation"])


def test_writing_to_a_batch_changes_no_other(reader):
    expected = taken(batches(reader, epochs=2))
    with batches(reader, epochs=2, prefetch=4) as iterator:
        for batch, whole in zip(iterator, expected, strict=True):
            truth.assert_same(batch, whole)
            for leaf in (batch["observation"], batch["index"], batch["action"], batch["next"]["observation"]):
                leaf[...] = 1
