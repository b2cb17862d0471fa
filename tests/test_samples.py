"""The sample runs: real play, logged by Dopamine, with the play itself and Dopamine's answers."""

import pathlib
import shutil
import zlib

import numpy as np
import pytest

import atarirb

SAMPLES = pathlib.Path(__file__).parent / "data" / "samples"
RUNS = ("Pong/1", "Breakout/1", "Asterix/2")


@pytest.fixture(scope="module")
def datasets(codec, tmp_path_factory):
    directory = tmp_path_factory.mktemp("samples")
    for run in RUNS:
        atarirb.ingest(SAMPLES / run, directory / run, codec=codec)
    return directory


def crc32s(rows):
    return np.array([zlib.crc32(np.ascontiguousarray(row)) for row in rows], np.uint32)


def check_steps(dataset, run):
    """Every logged step once, in order, and no other."""
    truth = np.load(SAMPLES / run / "truth.npz")
    logged = truth["logged"]
    with atarirb.open(dataset) as reader:
        assert len(reader) == logged.sum()
        batch = reader[:]
    np.testing.assert_array_equal(crc32s(batch["observation"]), truth["frame_crc32"][logged])
    np.testing.assert_array_equal(batch["action"], truth["action"][logged])
    np.testing.assert_array_equal(batch["next"]["reward"], truth["reward"][logged])
    np.testing.assert_array_equal(batch["next"]["terminated"], truth["terminal"][logged] == 1)
    return batch, truth


@pytest.mark.parametrize("run", RUNS)
def test_the_dataset_is_exactly_the_logged_play(datasets, run):
    batch, truth = check_steps(datasets / run, run)
    follows = np.diff(truth["add_id"][truth["logged"]]) == 1
    known = ~batch["next"]["truncated"][:-1] & ~batch["next"]["terminated"][:-1]
    np.testing.assert_array_equal(known, follows)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("run", RUNS)
def test_batches_are_what_dopamine_answers(datasets, run, n_step):
    answers = np.load(SAMPLES / run / "dopamine.npz")[f"n{n_step}"]
    with atarirb.open(datasets / run, frame_stack=4, n_step=n_step, gamma=0.99) as reader:
        splits, slots = reader.locate(range(len(reader)))
        index = {place: step for step, place in enumerate(zip(splits.tolist(), slots.tolist(), strict=True))}
        steps = []
        for split, slot in answers[["suffix", "slot"]].tolist():
            # Rows the last file shares with the one before are that one's.
            steps.append(index[split, slot] if (split, slot) in index else index[split - 1, slot])
        batch = reader.get(steps)
    np.testing.assert_array_equal(crc32s(batch["observation"]), answers["state_crc32"])
    np.testing.assert_array_equal(batch["action"], answers["action"])
    np.testing.assert_array_equal(batch["next"]["terminated"], answers["terminal"] == 1)
    assert not batch["next"]["truncated"].any()
    # Dopamine sums in float32, so the last bit may differ.
    np.testing.assert_array_max_ulp(batch["next"]["reward"], answers["reward"], 2)
    goes_on = answers["terminal"] == 0
    following = batch["next"]["observation"]
    np.testing.assert_array_equal(crc32s(following[goes_on]), answers["next_state_crc32"][goes_on])
    assert not following[~goes_on].any()


@pytest.mark.parametrize("run", RUNS)
def test_without_add_count_nothing_is_joined_that_is_not_proven(datasets, run, tmp_path):
    shutil.copytree(SAMPLES / run, tmp_path / run)
    for file in (tmp_path / run / "replay_logs").glob("add_count*"):
        file.unlink()
    atarirb.ingest(tmp_path / run, tmp_path / "out" / run)
    batch, truth = check_steps(tmp_path / "out" / run, run)
    follows = np.diff(truth["add_id"][truth["logged"]]) == 1
    known = ~batch["next"]["truncated"][:-1] & ~batch["next"]["terminated"][:-1]
    assert not (known & ~follows).any()
    # Only borders between files may be cut, and the last one is proven by the rows both files hold.
    with atarirb.open(tmp_path / "out" / run) as reader:
        splits = reader.locate(range(len(reader)))[0]
    lost = np.flatnonzero(follows & ~known)
    assert (splits[lost] != splits[lost + 1]).all()
    if run != "Breakout/1":
        assert (splits[lost + 1] != splits.max()).all()


@pytest.mark.parametrize("run", ["Pong/1", "Asterix/2"])
def test_without_any_count_the_last_file_is_placed_by_its_stale_rows(run, tmp_path):
    shutil.copytree(SAMPLES / run, tmp_path / run)
    for name in ("add_count", "invalid_range"):
        for file in (tmp_path / run / "replay_logs").glob(f"{name}*"):
            file.unlink()
    atarirb.ingest(tmp_path / run, tmp_path / "out" / run)
    check_steps(tmp_path / "out" / run, run)


def test_without_any_count_a_last_file_that_nothing_places_is_refused(tmp_path):
    shutil.copytree(SAMPLES / "Breakout/1", tmp_path / "Breakout/1")
    for name in ("add_count", "invalid_range"):
        for file in (tmp_path / "Breakout/1/replay_logs").glob(f"{name}*"):
            file.unlink()
    with pytest.raises(atarirb.errors.IngestError, match="split 7 is the last one.*splits=") as caught:
        atarirb.ingest(tmp_path / "Breakout/1", tmp_path / "out")
    assert list(caught.value.failures) == [7]
    info = atarirb.ingest(tmp_path / "Breakout/1", tmp_path / "out", splits=range(7))
    assert info.splits == tuple(range(7))
