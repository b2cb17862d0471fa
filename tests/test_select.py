"""Drawing from a part only: of episodes, splits, steps, the best of them, or some that a key chooses."""

import contextlib
import dataclasses
import fractions
import os
import pickle
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atarirb
from atarirb.errors import ArgumentError, ClosedError, KeyTypeError, StepIndexError, StepIndexTypeError
from benchmarks.workload import make_sparse
from tests import shards, truth
from tests.logs import record


@pytest.fixture(scope="module")
def reader(codec, tmp_path_factory):
    directory = tmp_path_factory.mktemp("select")
    record(directory / "Game/1", [5, 9, 3, 12, 7, 8, 20], 60)
    atarirb.ingest(directory / "Game/1", directory / "data", codec=codec)
    with atarirb.open(directory / "data", columns=["episode"]) as reader:
        yield reader


def test_draws_come_from_the_selected_episodes_and_reach_all_their_steps(reader):
    some = reader.select([5, 1])
    assert some.selected.tolist() == [1, 5]
    batch = some.sample(0, 2000)
    assert set(batch["episode"]) == {1, 5}
    rows = reader.episodes[[1, 5]]
    expected = np.concatenate([np.arange(row["start"], row["start"] + row["length"]) for row in rows])
    assert sorted(set(batch["index"])) == expected.tolist()
    assert some.valid_steps == len(expected)
    slices = some.sample_slices(0, 500, 8, weighting="episodes")
    assert set(slices["episode"].reshape(-1)) == {1, 5}
    assert set(reader.sample_slices(0, 500, 8)["episode"].reshape(-1)) > {1, 5}


def test_steps_and_episodes_keep_their_numbers(reader):
    some = reader.select(reader.episodes["length"] > 8)
    assert len(some) == len(reader)
    np.testing.assert_array_equal(some.get([3, 1])["observation"], reader.get([3, 1])["observation"])
    np.testing.assert_array_equal(some.locate([3, 1]), reader.locate([3, 1]))
    np.testing.assert_array_equal(some.episodes, reader.episodes)


def test_a_selection_of_a_selection_is_what_both_have(reader):
    some = reader.select([1, 2, 3]).select([3, 4, -1])
    assert some.selected.tolist() == [3]


def test_selecting_all_changes_no_draw(reader):
    everything = reader.select(slice(None))
    np.testing.assert_array_equal(everything.sample(3, 50)["index"], reader.sample(3, 50)["index"])


def test_a_selection_is_pickled_with_its_reader(reader):
    some = reader.select([2, 4])
    again = pickle.loads(pickle.dumps(some))
    assert again.selected.tolist() == [2, 4]
    np.testing.assert_array_equal(again.sample(3, 50)["index"], some.sample(3, 50)["index"])


def test_a_selection_of_nothing_or_of_what_is_not_there(reader):
    with pytest.raises(ArgumentError, match="no episode is selected of the"):
        reader.select([])
    with pytest.raises(ArgumentError, match="no episode is selected of the 2"):
        reader.select([1, 2]).select([3])
    with pytest.raises(StepIndexError, match="episode 99 is out of range: there are"):
        reader.select([99])
    with pytest.raises(StepIndexTypeError, match="episodes are indexed by integers"):
        reader.select([0.5])
    with pytest.raises(ArgumentError, match="a mask of 2 values, expected one per episode"):
        reader.select([True, False])


# Parts with edges: a cut at each, as at a hole in the log.

COLUMNS = ("timestep", "episode", "return_to_go", "split")


@pytest.fixture(scope="module")
def plays(tmp_path_factory):
    """Log play of many kinds; return of each dataset its path and its steps."""
    made, rng = [], np.random.default_rng(3)
    for number in range(8):
        with contextlib.suppress(truth.Undecidable):
            found = truth.dataset(
                tmp_path_factory.mktemp("plays"),
                rng.integers(1, 15, rng.integers(2, 10)).tolist(),
                codec=["packed", "raw"][number % 2],
                capacity=int(rng.integers(8, 30)),
                stack=[4, 4, 1, 2][number % 4],
                unfinished=number % 3 == 0,
                drop=[(), (1,), (2,)][number % 3],
                seed=number,
            )
            made.append(found)
    assert len(made) > 5
    assert any(steps.head_cut.any() for _, steps in made)
    assert any(len(set(steps.split)) > 3 for _, steps in made)
    return made


PLAYS = st.integers(0, 5)


def draw_some(data, values):
    """Draw one or more of these numbers."""
    bits = data.draw(st.integers(1, 2 ** len(values) - 1))
    return [value for place, value in enumerate(sorted(values)) if bits >> place & 1]


def draw_conditions(data, steps):
    """Draw some conditions, each as its arguments of `select` and the steps that meet it."""
    count, numbers = len(steps), np.arange(len(steps))
    conditions = []
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["steps", "splits", "episodes"]))
        if kind == "steps":
            low, high = sorted(data.draw(st.tuples(*[st.integers(0, count + 2)] * 2)))
            conditions.append(({"steps": slice(low, high)}, (numbers >= low) & (numbers < high)))
        elif kind == "splits":
            some = draw_some(data, set(steps.split.tolist()))
            conditions.append(({"splits": some}, np.isin(steps.split, some)))
        else:
            some = draw_some(data, set(steps.episode.tolist()))
            conditions.append(({"episodes": some}, np.isin(steps.episode, some)))
    return conditions


def narrow(reader, steps, condition):
    """Select by one condition; episodes are those of the dataset, of which the reader may have pieces."""
    if "episodes" in condition:
        whole = steps.episode[reader.episodes["start"]]
        condition = {"episodes": np.isin(whole, condition["episodes"])}
    return reader.select(**condition)


def cut(steps, insides):
    """Cut the episodes wherever one goes on over an edge of one of these sets of steps."""
    starts = np.diff(steps.episode, prepend=-1) > 0
    edges = np.zeros(len(steps), bool)
    for inside in insides:
        edges[1:] |= inside[1:] != inside[:-1]
    edges &= ~starts
    episode = np.cumsum(starts | edges) - 1
    first = np.flatnonzero(starts | edges)
    head_cut = (steps.head_cut[first] | edges[first])[episode]
    return dataclasses.replace(steps, episode=episode, head_cut=head_cut)


def check_is(reader, steps, chosen, frame_stack, n_step, gamma):
    """Check all that a reader says of a part against loops over the play, cut at the part's edges."""
    batch = reader[:]
    blank = truth.observation(steps, None, frame_stack)
    for step in range(len(steps)):
        walk = truth.transition(steps, step, n_step, gamma)
        following = blank if walk.next_step is None else truth.observation(steps, walk.next_step, frame_stack)
        np.testing.assert_array_equal(batch["observation"][step], truth.observation(steps, step, frame_stack))
        np.testing.assert_array_equal(batch["next"]["observation"][step], following)
        assert batch["next"]["truncated"][step] == walk.truncated
        assert batch["next"]["terminated"][step] == walk.terminated
        np.testing.assert_allclose(batch["next"]["reward"][step], walk.reward, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch["next"]["discount"][step], walk.discount, rtol=1e-5)
        expected = truth.return_to_go(steps, step, gamma)
        np.testing.assert_allclose(batch["return_to_go"][step], expected, rtol=1e-5, atol=1e-5)
        assert batch["timestep"][step] == step - steps.first(step)
    assert batch["episode"].tolist() == steps.episode.tolist()
    table = reader.episodes
    assert len(table) == steps.episode[-1] + 1
    for row in table:
        members = np.flatnonzero(steps.episode == steps.episode[row["start"]])
        assert (row["start"], row["length"]) == (members[0], len(members))
        np.testing.assert_allclose(row["return"], steps.reward[members].sum(dtype=float), atol=1e-5)
        assert row["head_cut"] == steps.head_cut[members[0]]
        assert row["terminal"] == steps.terminal[members[-1]]
        assert not row["time_limit"]
        assert row["final"] == -1
    assert reader.selected.tolist() == sorted(set(steps.episode[chosen].tolist()))
    wanted = [step for step in np.flatnonzero(chosen) if truth.is_valid(steps, step, frame_stack, n_step)]
    assert reader.valid_steps == len(wanted)
    if not wanted:
        with pytest.raises(ArgumentError, match="no step to draw from is valid"):
            reader.sample(0, 1)
        return
    assert set(reader.sample(1, 30 * len(wanted))["index"].tolist()) == set(wanted)
    with reader.batches(7, key=2, epochs=1, drop_remainder=False, prefetch=0) as batches:
        assert sorted(np.concatenate([batch["index"] for batch in batches]).tolist()) == wanted


@settings(max_examples=50)
@given(PLAYS, st.sampled_from([1, 2, 4]), st.integers(1, 4), st.data())
def test_the_edges_of_a_part_are_cuts_and_nothing_outside_is_drawn(plays, number, frame_stack, n_step, data):
    path, steps = plays[number]
    with atarirb.open(path, frame_stack=frame_stack, n_step=n_step, gamma=0.9, columns=COLUMNS) as reader:
        conditions = draw_conditions(data, steps)
        chosen = np.logical_and.reduce([inside for _, inside in conditions])
        if not chosen.any():
            with pytest.raises(ArgumentError, match="no episode is selected of the"):
                for condition, _ in conditions:
                    reader = narrow(reader, steps, condition)
            return
        edged = cut(steps, [inside for condition, inside in conditions if "episodes" not in condition])
        for condition, _ in conditions:
            reader = narrow(reader, steps, condition)
        check_is(reader, edged, chosen, frame_stack, n_step, 0.9)
        again = pickle.loads(pickle.dumps(reader))
        np.testing.assert_array_equal(again.episodes, reader.episodes)
        np.testing.assert_array_equal(again.selected, reader.selected)


@settings(max_examples=40)
@given(PLAYS, st.sampled_from([1, 3]), st.integers(1, 3), st.integers(1, 6), st.booleans(), st.data())
def test_slices_of_a_part_stay_within_its_edges_and_reach_them(
    plays, number, frame_stack, n_step, length, strict, data
):
    path, steps = plays[number]
    with atarirb.open(path, frame_stack=frame_stack, n_step=n_step) as reader:
        low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(steps))] * 2)))
        if low == high:
            return
        inside = (np.arange(len(steps)) >= low) & (np.arange(len(steps)) < high)
        edged, part = cut(steps, [inside]), reader.select(steps=slice(low, high))
        legal = truth.slices(edged, length, frame_stack, n_step, strict=strict)
        legal = {found for found in legal if inside[found[0]]}
        if not legal:
            with pytest.raises(ArgumentError, match="valid steps in a row"):
                part.sample_slices(2, 1, length, strict_length=strict)
            return
        batch = part.sample_slices(2, 60 * len(legal), length, strict_length=strict)
        rows = zip(batch["index"], batch["mask"], strict=True)
        assert {tuple(index[mask].tolist()) for index, mask in rows} == legal
        mask = batch.pop("mask")
        truth.assert_same(truth.pick(batch, mask), part[batch["index"][mask]])


@settings(max_examples=30)
@given(PLAYS, st.data())
def test_conditions_at_once_and_one_after_the_other_are_the_same(plays, number, data):
    path, steps = plays[number]
    with atarirb.open(path) as reader:
        episodes = draw_some(data, set(steps.episode.tolist()))
        splits = draw_some(data, set(steps.split.tolist()))
        low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(steps))] * 2)))
        arguments = {"episodes": episodes, "splits": splits, "steps": range(low, high)}
        one_by_one = [{name: arguments[name]} for name in ("episodes", "splits", "steps")]
        try:
            at_once = reader.select(**arguments)
        except ArgumentError:
            with pytest.raises(ArgumentError, match="no episode is selected"):
                for condition in one_by_one:
                    reader = reader.select(**condition)
            return
        for condition in one_by_one:
            reader = reader.select(**condition)
        np.testing.assert_array_equal(at_once.episodes, reader.episodes)
        np.testing.assert_array_equal(at_once.selected, reader.selected)
        truth.assert_same(at_once[:], reader[:])


def test_neighbouring_splits_selected_together_are_not_cut_between(small):
    reader, steps = atarirb.open(small[0]), small[1]
    ends = np.flatnonzero(np.diff(steps.split))
    end = next(int(end) for end in ends if steps.follows(end))
    split = int(steps.split[end])
    both = reader.select(splits=[split, split + 1])
    assert not both[end]["next"]["truncated"]
    assert end in both.sample(0, 3000)["index"]
    apart = reader.select(splits=split)
    assert apart[end]["next"]["truncated"]
    assert end not in apart.sample(0, 3000)["index"]
    assert not reader[end]["next"]["truncated"]
    truth.assert_same(reader.select(splits=range(split, split + 2)).sample(1, 50), both.sample(1, 50))


def test_a_range_of_steps_counts_from_the_end_as_get_does(reader):
    count = len(reader)
    for same in (slice(-20, None), range(-20, 0), range(count - 20, count)):
        part = reader.select(steps=same)
        assert set(part.sample(0, 2000)["index"]) == set(range(count - 20, count))


def test_a_piece_ends_at_the_limit_of_time_if_it_has_the_end(tmp_path):
    with mock.patch("atarirb.store.episodes.TIME_LIMIT", 9):
        path, _ = truth.dataset(tmp_path, [9, 4, 9], capacity=60)
    reader = atarirb.open(path, time_limit="truncated")
    assert reader.episodes["time_limit"].tolist() == [True, False, True]
    part = reader.select(steps=slice(3, 17))
    assert part.episodes["start"].tolist() == [0, 3, 9, 13, 17]
    assert part.episodes["time_limit"].tolist() == [False, True, False, False, True]
    assert part.episodes["terminal"].tolist() == [False, True, True, False, True]
    assert set(part.sample(0, 500)["index"]) == set(range(3, 8)) | set(range(9, 16))
    assert part[:]["next"]["truncated"].nonzero()[0].tolist() == [2, 8, 16, 21]
    as_logged = atarirb.open(path).select(steps=slice(3, 17))
    assert as_logged[:]["next"]["truncated"].nonzero()[0].tolist() == [2, 16]


# Parts with final frames.

RECORDED = [
    [(5, 1, True), (1, 2, True), (7, 1, False)],
    [(4, 2, False), (3, 1, True), (9, 2, True)],
]


@pytest.mark.parametrize("final", ["zeros", "stored"])
@pytest.mark.parametrize(("frame_stack", "n_step"), [(1, 1), (3, 2)])
def test_a_piece_has_the_final_frame_if_it_has_the_end(codec, tmp_path, frame_stack, n_step, final):
    episodes = shards.write(tmp_path / "data", RECORDED, codec=codec)
    reader = atarirb.open(tmp_path / "data", frame_stack=frame_stack, n_step=n_step, final=final)
    starts = np.cumsum([0, *(len(episode.frames) for episode in episodes)])
    for low, high in [(0, 29), (2, 27), (5, 6), (12, 13), (20, 29), (23, 24)]:
        part = reader.select(steps=slice(low, high))
        batch = part[:]
        valid = set()
        for episode, start in zip(episodes, starts, strict=False):
            length, played = len(episode.frames), [*episode.frames, episode.final]
            borders = sorted(
                {0, length, *(edge - start for edge in (low, high) if 0 < edge - start < length)}
            )
            for step in range(length):
                first = max(border for border in borders if border <= step)
                stop = min(border for border in borders if border > step)
                at = min(step + n_step, stop)
                known = episode.final is not None and (episode.terminal != 1 or final == "stored")
                shows = at < stop or (stop == length and known)
                frames = [
                    played[k] if k >= first and shows else np.zeros((4, 3), np.uint8)
                    for k in range(at - frame_stack + 1, at + 1)
                ]
                expected = frames[0] if frame_stack == 1 else np.stack(frames, -1)
                row = start + step
                np.testing.assert_array_equal(batch["next"]["observation"][row], expected, str((low, row)))
                over = step + n_step >= stop
                terminated = over and stop == length and episode.terminal == 1
                assert batch["next"]["terminated"][row] == terminated
                assert batch["next"]["truncated"][row] == (over and not terminated)
                whole_stack = first == 0 or step - first >= frame_stack - 1
                if low <= row < high and whole_stack and (not over or terminated or shows):
                    valid.add(int(row))
        drawn = set(part.sample(0, 1000)["index"].tolist()) if part.valid_steps else set()
        assert drawn == valid
        table = part.episodes
        ends = set((table["start"] + table["length"])[table["final"] >= 0].tolist())
        assert ends == {
            int(stop) for e, stop in zip(episodes, starts[1:], strict=True) if e.final is not None
        }


# The best, and some.


def test_the_best_are_the_whole_episodes_of_the_highest_returns(tmp_path):
    reward = np.zeros(100)
    reward[np.arange(10) * 10] = [3, 7, 7, 1, 9, 4, 8, 7, 2, 99]
    path, _ = truth.dataset(tmp_path, [10] * 10, capacity=200, rewards=reward, unfinished=True)
    reader = atarirb.open(path)
    assert reader.select(top=1 / 9).selected.tolist() == [4]
    assert reader.select(top=3 / 9).selected.tolist() == [1, 4, 6]  # of equal ones the earlier
    assert reader.select(top=4 / 9).selected.tolist() == [1, 2, 4, 6]
    assert reader.select(top=5 / 9).selected.tolist() == [1, 2, 4, 6, 7]
    assert reader.select(top=0.01).selected.tolist() == [4]  # at least one
    assert reader.select(top=0.5).selected.tolist() == [1, 2, 4, 6]  # of nine: 4.5, rounded to even
    assert reader.select(top=1.0).selected.tolist() == list(range(9))  # the last one's end is not known
    assert reader.select(top=1).valid_steps == 90
    assert reader.select([3, 8, 9], top=0.5).selected.tolist() == [8]
    assert reader.select(top=5 / 9).select(top=0.4).selected.tolist() == [4, 6]


def test_the_best_of_a_part_are_of_its_whole_episodes(tmp_path):
    reward = np.zeros(60)
    reward[np.arange(6) * 10] = [9, 1, 2, 3, 8, 7]
    path, _ = truth.dataset(tmp_path, [10] * 6, capacity=200, rewards=reward)
    part = atarirb.open(path).select(steps=slice(5, 55))
    assert part.episodes["start"].tolist() == [0, 5, 10, 20, 30, 40, 50, 55]
    assert part.select(top=0.5).episodes["start"][part.select(top=0.5).selected].tolist() == [30, 40]
    both = atarirb.open(path).select(steps=slice(5, 55), top=0.5)
    np.testing.assert_array_equal(both.selected, part.select(top=0.5).selected)
    with pytest.raises(ArgumentError, match="top= ranks whole episodes, and all of these are cut"):
        part.select(steps=slice(5, 10), top=0.5)


def test_a_truncated_episode_with_its_final_frame_is_whole(tmp_path):
    shards.write(tmp_path / "data", RECORDED, codec="raw")
    assert atarirb.open(tmp_path / "data").select(top=1.0).selected.tolist() == [0, 1, 2, 4, 5]


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.integers(1, 100).map(lambda percent: (fractions.Fraction(percent, 100), percent / 100)),
    st.integers(0, 1000),
)
def test_a_fraction_is_the_fewest_whole_episodes_that_reach_it(lengths, part, key):
    exact, part = part
    table = np.zeros(len(lengths), atarirb.store.manifest.EPISODE)
    table["length"], table["terminal"], table["final"] = lengths, True, -1
    table["start"] = np.cumsum([0, *lengths[:-1]])
    selection = atarirb.selection
    found = selection.narrowed(
        selection.whole(table), episodes=None, ranges=[], top=None, fraction=part, key=key, rewards=None
    ).chosen
    order = atarirb.draws.order(key, len(lengths))(np.arange(len(lengths))).tolist()
    taken, held = set(), 0
    for episode in order:
        if held >= exact * sum(lengths):
            break
        taken.add(episode)
        held += lengths[episode]
    assert set(np.flatnonzero(found).tolist()) == taken


def test_seven_hundredths_of_a_hundred_episodes_are_seven(tmp_path):
    record(tmp_path / "Game/1", [2] * 100, 500, stack=1)
    atarirb.ingest(tmp_path / "Game/1", tmp_path / "data", codec="raw")
    reader = atarirb.open(tmp_path / "data")
    for percent in range(1, 101):
        assert len(reader.select(fraction=percent / 100, key=percent).selected) == percent
    counts = np.zeros(100)
    for key in range(2000):
        counts[reader.select(fraction=0.3, key=key).selected] += 1
    # Each is in 0.3 of them; drawn without replacement, counts vary a little less than the law's.
    assert abs(counts / 2000 - 0.3).max() < 4.5 * np.sqrt(0.3 * 0.7 / 2000)
    assert abs(np.corrcoef(np.arange(100), counts)[0, 1]) < 0.4


def test_a_fraction_is_chosen_by_its_key(reader):
    some = reader.select(fraction=0.5, key=3)
    assert some.selected.tolist() == reader.select(fraction=0.5, key=3).selected.tolist()
    assert len({tuple(reader.select(fraction=0.5, key=key).selected) for key in range(20)}) > 10
    jax = pytest.importorskip("jax")
    reader.select(fraction=0.5, key=jax.random.key(0))
    generator = np.random.default_rng(0)
    first = [tuple(reader.select(fraction=0.4, key=generator).selected) for _ in range(8)]
    assert len(set(first)) > 1
    assert reader.select(fraction=1, key=0).selected.tolist() == list(range(len(reader.episodes)))
    assert reader.select(top=0.5, fraction=0.1, key=0).selected.tolist()[0] in reader.select(top=0.5).selected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fraction": 0.5}, "fraction= needs a key="),
        ({"key": 0}, "key= goes with fraction="),
        ({"top": 0}, "top is 0, expected a number above 0, up to 1"),
        ({"top": 1.5}, "top is 1.5, expected a number above 0, up to 1"),
        ({"top": float("nan")}, "top is nan"),
        ({"top": True}, "top is True"),
        ({"fraction": -0.1, "key": 0}, "fraction is -0.1, expected a number above 0, up to 1"),
        ({"fraction": "0.5", "key": 0}, "fraction is '0.5'"),
        ({"splits": 99}, r"no split 99 in this dataset; it has \[0"),
        ({"splits": -1}, "no split -1"),
        ({"splits": 0.5}, "splits is 0.5, expected one number or several"),
        ({"splits": [[0], [0, 1]]}, "expected one number or several"),
        ({"splits": []}, "expected one number or several"),
        ({"splits": True}, "expected one number or several"),
        ({"steps": slice(0, 9, 2)}, "expected neighbours: a step of 1"),
        ({"steps": slice(9, 0, -1)}, "expected neighbours: a step of 1"),
        ({"steps": slice(0, 9, 0)}, "expected neighbours: a step of 1"),
        ({"steps": range(0, 9, 2)}, "expected neighbours: a step of 1"),
        ({"steps": range(-3, 3)}, "goes on past the end at the beginning"),
        ({"steps": slice(0.5, 9)}, "steps is slice"),
        ({"steps": 5}, "steps is 5, expected a slice or a range"),
        ({"steps": slice(7, 7)}, "no episode is selected of the"),
        ({"steps": slice(10_000, None)}, "no episode is selected of the"),
        ({"steps": range(5, 5), "top": 0.5}, "no episode is selected of the"),
        ({"episodes": [], "fraction": 0.5, "key": 0}, "no episode is selected of the"),
    ],
    ids=str,
)
def test_what_cannot_be_selected_is_told(reader, arguments, words):
    with pytest.raises(ArgumentError, match=words):
        reader.select(**arguments)


def test_other_errors_are_of_their_kind(reader):
    with pytest.raises(StepIndexError, match="step 9999 is out of range"):
        reader.select(steps=range(0, 10_000))
    with pytest.raises(KeyTypeError, match="unusable key"):
        reader.select(fraction=0.5, key="seed")
    closed = reader.select(slice(None))
    closed.close()
    with pytest.raises(ClosedError):
        closed.select([1])
    assert len(reader[[1]]["index"]) == 1  # its parent is open


# What it costs.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A virtual run: 50 splits of a million steps, 50,000 episodes."""
    directory = tmp_path_factory.mktemp("sparse") / "data"
    make_sparse(directory, shards=50)
    return directory


def test_a_part_of_a_whole_run_is_pickled_in_little(run):
    reader = atarirb.open(run)
    for part in (
        reader.select(fraction=0.01, key=0),
        reader.select(fraction=0.5, key=0),
        reader.select(splits=range(0, 50, 2), steps=slice(500, 40_000_500), fraction=0.1, key=1),
    ):
        data = pickle.dumps(part)
        assert len(data) < 10_000
        again = pickle.loads(data)
        np.testing.assert_array_equal(again.episodes, part.episodes)
        np.testing.assert_array_equal(again.sample(1, 100)["index"], part.sample(1, 100)["index"])


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
def test_a_part_maps_nothing_and_reads_no_frame(run):
    def maps():
        with open("/proc/self/maps") as file:
            return sum(str(run) in line for line in file)

    reader = atarirb.open(run)
    before, gathered = maps(), reader._dataset.frames
    parts = [reader.select(fraction=0.01, key=key) for key in range(3)]
    parts.append(reader.select(splits=[3, 4], steps=slice(3_000_500, 4_500_000)))
    assert maps() == before
    assert all(part._dataset.frames is gathered for part in parts)
    assert set((parts[-1].sample(0, 300)["index"] // 500_000).tolist()) == {6, 7, 8}
    rows = parts[0].sample(0, 200)["index"] // 1000
    assert np.isin(rows, parts[0].selected).all()
    assert len(parts[0].selected) == 500


def test_of_many_equal_episodes_the_earlier_are_the_best(tmp_path):
    reward = np.arange(400) % 2 * (np.arange(400) // 2 % 3)  # 200 episodes that return 0, 1 and 2 in turn
    path, _ = truth.dataset(tmp_path, [2] * 200, capacity=1000, rewards=reward, stack=1, codec="raw")
    reader = atarirb.open(path)
    best, next_best = list(range(2, 200, 3)), list(range(1, 200, 3))
    for count in (10, 40, len(best), len(best) + 25):
        assert reader.select(top=count / 200).selected.tolist() == sorted((best + next_best)[:count])
