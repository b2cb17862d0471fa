"""Columns on request, against loops over what was played or written, in every kind of batch."""

from unittest import mock

import numpy as np
import pytest

import atarirb
from atarirb import catalog
from atarirb.errors import ArgumentError, ColumnError, DatasetError
from tests import shards, truth

COLUMNS = ("timestep", "episode", "return_to_go", "undiscounted_return_to_go", "split", "action_full")
GAMMA = 0.9
#: Steps of an episode at the limit of time, in the log.
LIMIT = 9
#: Of each split the episodes: steps, what it ends by (1: a terminal, 2: truncated, 0: cut), and whether the
#: frame after it is known.
RECORDED = [
    [(5, 1, True), (1, 2, True), (7, 1, False)],
    [(4, 2, False), (3, 1, True)],
    [(6, 2, True), (9, 0, False)],
]


class Expected:
    """What the columns of each step of a dataset must be, of the pieces that its episodes are in."""

    def __init__(self, pieces, action, reward, split, extra=()):
        """`pieces`: of each episode its first step, the one after its last, and whether its end is known."""
        self.values = {name: np.zeros(len(action)) for name in COLUMNS}
        for number, (first, stop, known) in enumerate(pieces):
            total = undiscounted = 0.0
            for step in reversed(range(first, stop)):
                total = float(reward[step]) + GAMMA * total
                undiscounted += float(reward[step])
                self.values["timestep"][step] = step - first
                self.values["episode"][step] = number
                self.values["return_to_go"][step] = total if known else np.nan
                self.values["undiscounted_return_to_go"][step] = undiscounted if known else np.nan
        self.values["split"] = np.asarray(split)
        actions = catalog.game("Pong").minimal_actions
        self.values["action_full"] = np.array([actions[number] for number in action])
        self.values |= dict(extra)

    def check(self, batch, there=None):
        """Check the columns of a batch; `there`: which rows are steps, the others zeros."""
        index = batch["index"]
        there = index >= 0 if there is None else there
        for name, values in self.values.items():
            found = batch[name]
            np.testing.assert_allclose(found[there], values[index[there]], rtol=1e-5, atol=1e-5, err_msg=name)
            assert (found[~there] == 0).all(), name
            float_column = "return" in name
            assert found.dtype == (
                np.float32 if float_column else values.dtype if name in EXTRA else np.int32
            )


EXTRA = {"wide": ((), "int64"), "pair": ((2,), "float32")}


@pytest.fixture(scope="module")
def log(codec, tmp_path_factory):
    """A log with lost steps and two episodes at the limit of time: its path and its steps."""
    with mock.patch("atarirb.store.episodes.TIME_LIMIT", LIMIT):
        return truth.dataset(
            tmp_path_factory.mktemp("log"),
            [1, LIMIT, 20, 5, LIMIT, 14, 3, 8],
            codec=codec,
            capacity=24,
            drop=(1,),
            extra=EXTRA,
            unfinished=True,
        )


@pytest.fixture(scope="module")
def recording(codec, tmp_path_factory):
    """A recording: its path, and what its columns must be."""
    path = tmp_path_factory.mktemp("recording") / "data"
    episodes = shards.write(path, RECORDED, codec=codec)
    action, reward = (
        np.concatenate([np.load(file) for file in sorted(path.glob(f"0*/{name}.npy"))])
        for name in ("action", "reward")
    )
    starts = np.cumsum([0, *(len(episode.frames) for episode in episodes)]).tolist()
    # A truncated episode is known to end where it was truncated; the frame after it alone tells that it was.
    known = [episode.terminal == 1 or episode.final is not None for episode in episodes]
    split = np.repeat(range(3), [sum(length for length, *_ in shard) for shard in RECORDED])
    return path, Expected(zip(starts, starts[1:], known, strict=False), action, reward, split)


def of_log(steps):
    starts = np.flatnonzero(np.diff(steps.episode, prepend=-1)).tolist()
    pieces = [
        (first, stop, bool(steps.terminal[stop - 1]))
        for first, stop in zip(starts, [*starts[1:], len(steps)], strict=True)
    ]
    numbers = steps.number
    extra = {"wide": numbers, "pair": np.repeat(numbers[:, None], 2, axis=1).astype(np.float32)}
    return Expected(pieces, steps.action, steps.reward, steps.split, extra)


def check_all(reader, expected):
    """Check every kind of batch."""
    expected.check(reader[:])
    one = reader[3]
    expected.check({name: np.asarray(leaf)[None] for name, leaf in one.items() if name != "next"})
    expected.check(reader.get([5, 1, 5, -1]))
    expected.check(reader.sample(0, 100))
    for length in (1, 3, 12):
        batch = reader.sample_slices(0, 60, length, strict_length=False)
        expected.check(batch, batch["mask"])
        assert batch["mask"].all() == (length == 1)
    with reader.batches(16, key=0, epochs=1, drop_remainder=False, shard=(0, 1)) as batches:
        for batch in batches:
            expected.check(batch, batch["mask"])
        assert not batch["mask"].all()


@pytest.mark.parametrize("time_limit", ["terminated", "truncated"])
@pytest.mark.parametrize(("frame_stack", "n_step"), [(1, 1), (2, 3)])
def test_columns_of_a_log(log, frame_stack, n_step, time_limit):
    path, steps = log
    reader = atarirb.open(
        path,
        frame_stack=frame_stack,
        n_step=n_step,
        gamma=GAMMA,
        columns=(*COLUMNS, *EXTRA),
        time_limit=time_limit,
    )
    assert reader.episodes["time_limit"].any()
    assert not reader.episodes["terminal"].all()
    expected = of_log(steps)
    assert np.isnan(expected.values["return_to_go"]).any()
    # Where the limit is a cut, the rewards up to it are known all the same: the episode ended there.
    check_all(reader, expected)


@pytest.mark.parametrize("final", ["zeros", "stored"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_columns_of_a_recording(recording, n_step, final):
    path, expected = recording
    values = expected.values["return_to_go"]
    assert np.isnan(values).sum() == 4 + 9  # truncated without its frame, which is as good as cut, and cut
    check_all(atarirb.open(path, n_step=n_step, gamma=GAMMA, columns=COLUMNS, final=final), expected)


def test_columns_of_a_part_are_of_its_pieces(log):
    path, steps = log
    reader = atarirb.open(path, gamma=GAMMA, columns=COLUMNS).select(steps=slice(4, 33))
    cut = {4, 33} - set(np.flatnonzero(np.diff(steps.episode, prepend=-1)).tolist())
    assert cut
    starts = sorted({*np.flatnonzero(np.diff(steps.episode, prepend=-1)).tolist(), *cut})
    pieces = [
        (first, stop, bool(steps.terminal[stop - 1]))
        for first, stop in zip(starts, [*starts[1:], len(steps)], strict=True)
    ]
    expected = Expected(pieces, steps.action, steps.reward, steps.split)
    expected.check(reader[:])
    expected.check(reader.sample(0, 100))
    batch = reader.sample_slices(0, 60, 8, strict_length=False)
    expected.check(batch, batch["mask"])


@pytest.mark.parametrize("stacked", [False, True])
def test_columns_of_a_mixture_are_those_of_its_runs(log, recording, stacked):
    options = {"gamma": GAMMA, "columns": COLUMNS, "n_step": 2}
    readers = {
        "log": atarirb.open(log[0], time_limit="truncated", **options),
        "recording": atarirb.open(recording[0], final="stored", **options),
    }
    of_each = [of_log(log[1]), recording[1]]
    mixture = atarirb.mix(readers, stacked=stacked)
    for batch in (
        mixture.sample(0, 100),
        mixture.sample_slices(0, 60, 8, strict_length=False),
        next(mixture.batches(20, key=0, prefetch=0)),
    ):
        there = batch.get("mask", batch["index"] >= 0)
        for run, expected in enumerate(of_each):
            rows = there & (batch["run"] == run)
            expected.values = {name: expected.values[name] for name in COLUMNS}
            expected.check({name: batch[name][rows] for name in (*COLUMNS, "index")})
        for name in COLUMNS:
            assert not batch[name][~there].any()


def test_return_to_go_without_a_discount_is_the_return_of_the_table(recording):
    reader = atarirb.open(recording[0], columns="undiscounted_return_to_go")
    batch = reader[reader.episodes["start"]]
    known = reader.episodes["terminal"] | (reader.episodes["final"] >= 0)
    np.testing.assert_array_equal(
        batch["undiscounted_return_to_go"], np.where(known, reader.episodes["return"], np.nan)
    )


def test_columns_that_are_none_are_told(log, tmp_path):
    with pytest.raises(
        ColumnError, match="unknown column 'wid'; on request there are timestep, .*, split, pair, wide"
    ):
        atarirb.open(log[0], columns=("wid",))
    with pytest.raises(ArgumentError, match="columns is 3, expected names"):
        atarirb.open(log[0], columns=3)
    truth.play(tmp_path / "Mine" / "1", [9], capacity=30)
    truth.ingest(tmp_path / "Mine" / "1", tmp_path / "mine", codec="raw")
    with pytest.raises(ColumnError, match="'action_full' needs the game's action set"):
        atarirb.open(tmp_path / "mine", columns="action_full")
    truth.play(tmp_path / "Freeway" / "1", [40], capacity=60)  # of three actions
    truth.ingest(tmp_path / "Freeway" / "1", tmp_path / "freeway", codec="raw")
    with pytest.raises(DatasetError, match=r"action [345] of step \d+ is none of the game's 3"):
        atarirb.open(tmp_path / "freeway", columns="action_full")[:]
