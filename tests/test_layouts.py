"""Copies of the logs under other names: the same steps, and nothing joined that the copy does not prove."""

import gzip
import json
import os
import pathlib
import shutil
import warnings
from unittest import mock

import numpy as np
import pytest

import atarirb
from atarirb import sources
from atarirb.errors import ArgumentError, IngestError, LogError, SourceNotFoundError
from tests import truth
from tests.test_cli import run as command
from tests.test_samples import SAMPLES, check_steps

COLUMNS = ("observation", "action", "reward", "terminal")
COUNTERS = ("add_count", "invalid_range")
#: Where a column of a split of a run goes, below the game's directory; its file's name has yet no end.
PLACES = {
    "original": lambda run, split, column: (
        f"{run}/replay_logs/{'' if column in COUNTERS else '$store$_'}{column}_ckpt.{split}"
    ),
    "run": lambda run, split, column: (
        f"{run}/{'' if column in COUNTERS else '$store$_'}{column}_ckpt.{split}"
    ),
    "d4rl-atari": lambda run, split, column: f"{run}/{split}/{column}",
    "sgi": lambda run, split, column: f"{column}_{split}" if run == 1 else f"{column}_{run}0{split}",
    "atari-pb": lambda run, split, column: f"{column}_{run}_{split}",
}
#: Directory of a game's run, by layout.
SOURCES = {"sgi": "", "atari-pb": "", "original": "{run}", "run": "{run}", "d4rl-atari": "{run}"}


def source(name, column, split):
    prefix = "" if column in COUNTERS else "$store$_"
    return SAMPLES / name / "replay_logs" / f"{prefix}{column}_ckpt.{split}.gz"


def load(name, column, split):
    with gzip.open(source(name, column, split)) as file:
        return np.load(file)


def splits_of(name):
    return sorted(int(path.name.split(".")[-2]) for path in source(name, "*", 0).parent.glob("add_count*"))


def copy(name, game, layout, *, run=1, end=".gz", packed=True, splits=None, columns=COLUMNS):
    """Copy a sample run into another layout; return what to ingest."""
    for split in splits_of(name) if splits is None else splits:
        for column in columns:
            path = game / (PLACES[layout](run, split, column) + end)
            path.parent.mkdir(parents=True, exist_ok=True)
            data = source(name, column, split).read_bytes()
            path.write_bytes(data if packed else gzip.decompress(data))
    return game / SOURCES[layout].format(run=run)


def window(name, split):
    """The adds that a file holds, and the capacity; of all files but the last."""
    count, capacity = int(load(name, "add_count", split)), len(load(name, "action", split))
    return max(0, count - capacity), count, capacity


def ingest(*arguments, **options):
    with mock.patch("os.fsync"):
        return atarirb.ingest(*arguments, workers=1, **{"codec": "raw", **options})


def check_borders(dataset, name):
    """Every logged step is there; steps are joined within files and where the last two share rows alone."""
    batch, play = check_steps(dataset, name)
    logged = np.flatnonzero(play["logged"])
    follows = np.diff(play["add_id"][logged]) == 1
    with atarirb.open(dataset) as reader:
        split = reader.locate(range(len(reader)))[0]
        heads = reader.episodes[~reader.episodes["head_cut"]]["start"]
    known = ~batch["next"]["truncated"][:-1] & ~batch["next"]["terminated"][:-1]
    proven = (split[:-1] == split[1:]) | (split[1:] == split.max())
    np.testing.assert_array_equal(known, follows & proven)
    begins = np.append(True, play["terminal"][:-1] == 1)  # also where the step before is in no file
    assert begins[logged[heads]].all()
    # An episode begins for sure where the rows before it are padding that the file before owed.
    for border in np.flatnonzero(split[:-1] != split[1:]):
        gap = play["add_id"][logged[border + 1]] - play["add_id"][logged[border]]
        stop = window(name, split[border])[1] if split[border + 1] != split.max() else None
        if play["terminal"][logged[border]] and gap == 4 and stop:
            owed = play["add_id"][logged[border]] + 1 + 3 - stop
            assert (border + 1 in heads) == (owed > 0)


@pytest.mark.parametrize(
    ("layout", "end", "packed"),
    [
        ("original", "", True),
        ("run", ".npy", False),
        ("d4rl-atari", ".gz", True),
        ("sgi", ".npy", False),
        ("sgi", ".gz", False),
        ("atari-pb", ".npy.gz", True),
        ("atari-pb", "", False),
    ],
)
@pytest.mark.parametrize("name", ["Pong/1", "Asterix/2"])
def test_a_copy_has_the_same_steps_and_joins_what_is_proven(tmp_path, name, layout, end, packed):
    directory = copy(name, tmp_path / "Game", layout, end=end, packed=packed)
    info = ingest(directory, tmp_path / "out")
    assert info.name == "Game/1"
    check_borders(tmp_path / "out", name)
    assert atarirb.verify(tmp_path / "out", deep=True).ok


@pytest.mark.parametrize("layout", [*PLACES])
@pytest.mark.parametrize("name", ["Breakout/1", "Asterix/2"])
def test_with_its_counters_a_copy_is_as_good_as_the_original(tmp_path, name, layout):
    directory = copy(name, tmp_path / "Game", layout, columns=(*COLUMNS, *COUNTERS))
    ingest(directory, tmp_path / "out")
    ingest(SAMPLES / name, tmp_path / "original")
    check_steps(tmp_path / "out", name)
    for file in ("episodes.npy", "00001/observation.npy", "00001/segments.npy"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "original" / file).read_bytes()


def test_the_layout_is_kept_in_the_manifest_and_another_is_another_source(tmp_path):
    for layout in ("original", "d4rl-atari", "sgi", "atari-pb"):
        directory = copy("Pong/1", tmp_path / layout / "Pong", layout)
        ingest(directory, tmp_path / "out" / layout)
        assert json.loads((tmp_path / "out" / layout / "dataset.json").read_text())["layout"] == layout
    with pytest.raises(ArgumentError, match=r"out/sgi holds Pong/1 \(sgi\).*not Pong/1 \(atari-pb\)"):
        ingest(tmp_path / "atari-pb/Pong", tmp_path / "out/sgi")


@pytest.mark.parametrize("layout", ["sgi", "atari-pb"])
def test_of_several_runs_in_a_directory_one_is_chosen(tmp_path, layout, capfd):
    copy("Pong/1", tmp_path / "Pong", layout)
    copy("Asterix/2", tmp_path / "Pong", layout, run=2, splits=[1])
    with pytest.raises(ArgumentError, match=r"Pong holds the runs 1, 2, expected run= \(--run\) to name one"):
        ingest(tmp_path / "Pong", tmp_path / "out")
    with pytest.raises(ArgumentError, match="holds the runs 1, 2, but not run 3"):
        ingest(tmp_path / "Pong", tmp_path / "out", run=3)
    assert ingest(tmp_path / "Pong", tmp_path / "out", run=1).name == "Pong/1"
    check_borders(tmp_path / "out", "Pong/1")
    status, out, err = command(
        capfd, "ingest", tmp_path / "Pong", tmp_path / "second", "--run", "2", "--partial", "--json"
    )
    assert (status, err) == (0, "")
    assert json.loads(out)["name"] == "Pong/2" and json.loads(out)["splits"] == [1]


def test_split_1_of_run_1_may_bear_both_of_its_names(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "sgi")
    for column in COLUMNS:
        shutil.copy(directory / f"{column}_1.gz", directory / f"{column}_101.gz")
    ingest(directory, tmp_path / "out")
    check_borders(tmp_path / "out", "Pong/1")


@pytest.mark.parametrize("layout", ["d4rl-atari", "sgi", "atari-pb"])
@pytest.mark.parametrize("split", [0, 1])
def test_a_split_alone_is_read_if_the_run_is_said_to_go_on(tmp_path, layout, split):
    name = "Asterix/2"
    directory = copy(name, tmp_path / "Asterix", layout, splits=[split])
    with pytest.raises(IngestError, match=rf"split {split} is the last one.*say partial=True \(--partial\)"):
        ingest(directory, tmp_path / "out")
    ingest(directory, tmp_path / "out", partial=True)
    start, stop, _ = window(name, split)
    with np.load(SAMPLES / name / "truth.npz") as file:
        play = dict(file)
    inside = (play["add_id"] >= start) & (play["add_id"] < stop)
    with atarirb.open(tmp_path / "out") as reader:
        batch = reader[:]
        first_cut = reader.episodes["head_cut"][0]
    np.testing.assert_array_equal(batch["action"], play["action"][inside])
    np.testing.assert_array_equal(batch["next"]["reward"], play["reward"][inside])
    np.testing.assert_array_equal(batch["next"]["terminated"], play["terminal"][inside] == 1)
    ends = play["terminal"][inside] == 1
    ends[-1] = True
    np.testing.assert_array_equal(batch["next"]["done"], ends)
    assert first_cut == (split > 0)


def test_splits_far_apart_are_not_joined(tmp_path):
    directory = copy("Asterix/2", tmp_path / "Asterix", "sgi", splits=[1, 3, 5])
    info = ingest(directory, tmp_path / "out", partial=True)
    assert info.splits == (1, 3, 5) and info.holes == 2
    with atarirb.open(tmp_path / "out") as reader:
        split = reader.locate(range(len(reader)))[0]
        borders = np.flatnonzero(np.diff(split))
        batch = reader.get(borders)
    assert (batch["next"]["truncated"] | batch["next"]["terminated"]).all()


def test_the_directory_of_one_split_is_that_split(tmp_path):
    directory = copy("Asterix/2", tmp_path / "Asterix", "d4rl-atari", columns=(*COLUMNS, *COUNTERS))
    info = ingest(directory / "2", tmp_path / "out")
    assert (info.name, info.splits) == ("Asterix/1", (2,))


def test_a_run_of_a_game_can_be_chosen_by_number(tmp_path):
    copy("Pong/1", tmp_path / "Pong", "d4rl-atari", run=3)
    copy("Pong/1", tmp_path / "Pong", "original", run=4)
    assert ingest(tmp_path / "Pong", tmp_path / "3", run=3).name == "Pong/3"
    assert ingest(tmp_path / "Pong", tmp_path / "4", run=4).name == "Pong/4"
    assert ingest(tmp_path / "Pong/4", tmp_path / "4", run=4).name == "Pong/4"
    with pytest.raises(SourceNotFoundError, match="it holds the runs 3, 4: name one of them"):
        ingest(tmp_path / "Pong", tmp_path / "out")
    for run in (0, "4"):
        with pytest.raises(ArgumentError, match="run is .*, expected an integer of 1 or more"):
            ingest(tmp_path / "Pong", tmp_path / "out", run=run)
    with pytest.raises(ArgumentError, match=r"run is 5, but .*Pong/4 holds one run"):
        ingest(tmp_path / "Pong/4", tmp_path / "out", run=5)


def test_links_are_followed(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "d4rl-atari")
    linked = tmp_path / "linked" / "Pong" / "1"
    linked.mkdir(parents=True)
    for path in directory.iterdir():
        os.symlink(path, linked / path.name)
    ingest(linked, tmp_path / "out")
    check_borders(tmp_path / "out", "Pong/1")


def test_a_layout_is_told_by_a_bounded_number_of_listings(tmp_path):
    from fsspec.implementations.local import LocalFileSystem

    for layout, directories in (("original", 2), ("sgi", 1), ("atari-pb", 1), ("d4rl-atari", 1 + 5)):
        directory = copy("Pong/1", tmp_path / layout, layout)
        listings = []

        def ls(self, path, *arguments, _ls=LocalFileSystem.ls, _listings=listings, **options):
            _listings.append(path)
            return _ls(self, path, *arguments, **options)

        with mock.patch.object(LocalFileSystem, "ls", ls):
            assert sources.find(directory).layout == layout
        assert len(listings) == directories, (layout, listings)


# What is missing, or not clear.


@pytest.mark.parametrize("layout", ["d4rl-atari", "sgi", "atari-pb"])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_split_that_lacks_a_file_fails_alone_and_names_it(tmp_path, layout, column):
    directory = copy("Pong/1", tmp_path / "Pong", layout)
    missing = PLACES[layout](1, 2, column) + ".gz"
    (tmp_path / "Pong" / missing).unlink()
    with pytest.raises(IngestError, match="1 of 5 splits") as caught:
        ingest(directory, tmp_path / "out")
    assert list(caught.value.failures) == [2]
    shown = missing.removeprefix("1/") if layout == "d4rl-atari" else missing
    assert f"split 2 has no {shown} in " in str(caught.value)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"00000", "00001", "00003", "00004"}


def test_an_empty_directory_of_a_split_is_no_silent_hole(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "d4rl-atari")
    (directory / "7").mkdir()
    (directory / "0").rename(directory / "old")  # not a number: not looked at
    (directory / "0").mkdir()
    with pytest.raises(IngestError, match=r"split 7 has no 7/terminal.gz in .*it has nothing") as caught:
        ingest(directory, tmp_path / "out")
    assert set(caught.value.failures) == {0, 7}


def test_a_damaged_last_split_leaves_the_others(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "d4rl-atari")
    path = directory / "4" / "reward.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IngestError, match="4/reward.gz: cut short") as caught:
        ingest(directory, tmp_path / "out")
    assert set(caught.value.failures) == {4}


def test_files_of_several_layouts_are_refused(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "sgi")
    copy("Pong/1", tmp_path / "Pong", "atari-pb", run=2)
    with pytest.raises(LogError, match=r"files of several layouts: sgi \(.*\) and atari-pb"):
        ingest(directory, tmp_path / "out", run=1)
    directory = copy("Pong/1", tmp_path / "other", "run")
    copy("Pong/1", tmp_path / "other", "d4rl-atari")
    with pytest.raises(LogError, match=r"original \(.*\) and d4rl-atari \(.*give each a directory"):
        ingest(directory, tmp_path / "out")


def test_two_files_of_one_column_are_refused(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "atari-pb")
    copy("Pong/1", tmp_path / "Pong", "atari-pb", end=".npy", splits=[3], packed=False)
    with pytest.raises(LogError, match="has two files of action for split 3"):
        ingest(directory, tmp_path / "out")


@pytest.mark.parametrize("number", [100, 102, 1001])
def test_a_number_that_is_of_no_split_is_refused(tmp_path, number):
    directory = copy("Pong/1", tmp_path / "Pong", "sgi")
    shutil.copy(directory / "action_1.gz", directory / f"action_{number}.gz")
    with pytest.raises(LogError, match=rf"action_{number}.gz is of no split known: expected .* <run>01"):
        ingest(directory, tmp_path / "out")


def test_pickles_beside_the_logs_are_never_opened(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "run")
    for name in ("sum_tree_ckpt.0.gz", "episode_end_indices_ckpt.1.gz", "observation.pkl"):
        (directory / name).write_bytes(gzip.compress(b"cos\nsystem\n(S'exit 1'\ntR."))
    ingest(directory, tmp_path / "out")
    check_borders(tmp_path / "out", "Pong/1")


def test_a_pickled_column_is_refused(tmp_path):
    directory = copy("Pong/1", tmp_path / "Pong", "d4rl-atari")
    np.save(directory / "1/action.npy", np.array([{}] * 2000, object), allow_pickle=True)
    (directory / "1/action.npy").rename(directory / "1/action.gz")
    with pytest.raises(IngestError, match="1/action.gz: holds pickled objects, which are never read"):
        ingest(directory, tmp_path / "out")


# TorchRL.


def memmaps(name, run):
    """Write a run as TorchRL does, by hand."""
    for split in splits_of(name):
        meta = {"": {}, "data": {}, "data/next": {}}
        for column in (*COLUMNS, *COUNTERS):
            values = load(name, column, split)
            place = {"reward": "data/next", "terminal": "data/next", "observation": "data", "action": "data"}
            folder = place.get(column, "")
            if column == "observation":
                values = np.concatenate([values, np.full_like(values[:1], 99)])
            called = "terminated" if column == "terminal" else column
            (run / str(split) / folder).mkdir(parents=True, exist_ok=True)
            values.tofile(run / str(split) / folder / f"{called}.memmap")
            entry = {"shape": list(values.shape), "dtype": f"torch.{values.dtype}", "is_nested": False}
            meta[folder][called] = {"device": "cpu", **entry}
        for folder, entries in meta.items():
            (run / str(split) / folder / "meta.json").write_text(json.dumps(entries))
    return run


def by_torchrl(name, run):
    """Let TorchRL's own preprocessing write it."""
    pytest.importorskip("torchrl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of its own parts
        from benchmarks.rivals import TorchRLReplay

        replay = TorchRLReplay(SAMPLES / name, run.parent.parent)
        replay.preprocess()
    made = run.parent.parent / name
    return made if made == run else made.rename(run)


@pytest.fixture(scope="module", params=[memmaps, by_torchrl], ids=["by hand", "by TorchRL"])
def unpacked(request, tmp_path_factory):
    return request.param("Breakout/1", tmp_path_factory.mktemp("torchrl") / "Breakout" / "1")


def test_torchrl_folders_hold_the_same_steps(unpacked, tmp_path):
    info = ingest(unpacked, tmp_path / "out")
    ingest(SAMPLES / "Breakout/1", tmp_path / "original")
    assert info.name == "Breakout/1"
    check_steps(tmp_path / "out", "Breakout/1")
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    for file in ("episodes.npy", "00006/observation.npy", "00007/segments.npy"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "original" / file).read_bytes()


def test_one_split_of_torchrl_folders(unpacked, tmp_path):
    ingest(unpacked, tmp_path / "out", splits=[3])
    ingest(unpacked / "3", tmp_path / "alone")
    ingest(SAMPLES / "Breakout/1", tmp_path / "original", splits=[3])
    for out in ("out", "alone"):
        for file in ("00003/observation.npy", "00003/segments.npy", "00003/reward.npy"):
            assert (tmp_path / out / file).read_bytes() == (tmp_path / "original" / file).read_bytes()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda split: (split / "data/meta.json").unlink(), "no 2/data/meta.json .*describes 2/data/action"),
        (lambda split: (split / "data/next/meta.json").write_text("{"), "2/data/next/meta.json: no descrip"),
        (lambda split: (split / "data/next/meta.json").write_text("{}"), "KeyError: 'terminated'"),
        (lambda split: os.truncate(split / "data/action.memmap", 8), "has 8 bytes, expected 3,752 as its"),
        (lambda split: (split / "data/next/reward.memmap").unlink(), "has no 2/data/next/reward.memmap"),
        (lambda split: shutil.rmtree(split / "data"), "split 2 has no 2/data/next/terminated.memmap"),
        (
            lambda split: (split / "meta.json").write_text(
                json.dumps({"add_count": {"shape": [], "dtype": "torch.bfloat16"}})
            ),
            "2/meta.json: no description .*bfloat16",
        ),
    ],
)
def test_a_spoilt_torchrl_folder_fails_alone(tmp_path, spoil, words):
    run = memmaps("Breakout/1", tmp_path / "Breakout" / "1")
    spoil(run / "2")
    with pytest.raises(IngestError, match=words) as caught:
        ingest(run, tmp_path / "out")
    assert set(caught.value.failures) == {2}


def test_two_torchrl_folders_of_one_split_are_refused(tmp_path):
    run = memmaps("Breakout/1", tmp_path / "Breakout" / "1")
    shutil.copytree(run / "3", run / "03")
    with pytest.raises(LogError, match="has two directories for split 3"):
        ingest(run, tmp_path / "out")


def test_a_torchrl_folder_that_changed_is_noticed(tmp_path):
    run = memmaps("Breakout/1", tmp_path / "Breakout" / "1")
    ingest(run, tmp_path / "out")
    path = run / "2/data/action.memmap"
    actions = np.fromfile(path, np.int32)
    actions[500] ^= 1
    actions.tofile(path)
    ingest(run, tmp_path / "out")
    ingest(run, tmp_path / "fresh")
    changed = pathlib.Path("00002/action.npy")
    assert (tmp_path / "out" / changed).read_bytes() == (tmp_path / "fresh" / changed).read_bytes()


def test_packed_frames_of_torchrl_folders(tmp_path):
    run = memmaps("Breakout/1", tmp_path / "Breakout" / "1")
    ingest(run, tmp_path / "out", codec="packed", splits=[1, 2])
    ingest(SAMPLES / "Breakout/1", tmp_path / "original", codec="packed", splits=[1, 2])
    with atarirb.open(tmp_path / "out") as reader, atarirb.open(tmp_path / "original") as other:
        truth.assert_same(reader[:], other[:])
