"""The home of datasets: found by name, downloaded, listed, removed and pruned."""

import contextlib
import importlib
import itertools
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import atarirb
from atarirb import catalog, cli, home
from atarirb.errors import (
    ArgumentError,
    AtarirbError,
    BusyError,
    DatasetNotFoundError,
    DiskSpaceError,
    DownloadError,
    IngestError,
    MissingPackageError,
    SourceNotFoundError,
    UnknownGameError,
)
from atarirb.store import building, inventory
from tests.logs import record

DATA = pathlib.Path(__file__).parent / "data"
SAMPLES = DATA / "samples"
download_module = importlib.import_module("atarirb.verbs.download")


def tree(directory):
    """Read all that is in a directory: bytes of files, targets of links, None of directories."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in directory.rglob("*")
    }


def run(capfd, *arguments):
    status = cli.main(list(map(str, arguments)))
    out, err = capfd.readouterr()
    return status, out, err


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a home that is not there yet; the current directory is empty."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ATARIRB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATARIRB_SOURCE", raising=False)
    return tmp_path / "home"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return a directory of logs: Pong/1 of three splits, Pong/2 of two, Breakout/3 of one."""
    directory = tmp_path_factory.mktemp("source")
    record(directory / "Pong/1", [9, 17, 1, 22, 12], 30, unfinished=5)
    record(directory / "Pong/2", [20, 15], 30, seed=1)
    record(directory / "Breakout/3", [20], 30, seed=2)
    (directory / "notes").mkdir()
    (directory / "README").write_text("logs")
    return directory


@pytest.fixture
def pong(place, source):
    """Return the directory of Pong/1 in the home."""
    atarirb.download("Pong/1", source=source)
    return place / "Pong/1"


def unfinished(source, directory, damaged=1):
    """Begin a dataset of which one split fails."""
    copy = directory.parent / f"copy-{directory.name}"
    shutil.copytree(source / "Pong/1", copy)
    (copy / f"replay_logs/$store$_action_ckpt.{damaged}.gz").write_bytes(b"no")
    with pytest.raises(IngestError):
        atarirb.ingest(copy, directory, name="Pong/1")
    shutil.rmtree(copy)
    assert not (directory / "dataset.json").exists()


# Where it is, and finding by name.


def test_the_home_is_that_of_the_environment_or_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ATARIRB_HOME", raising=False)
    assert home.home() == tmp_path / ".cache/atarirb"
    monkeypatch.setenv("ATARIRB_HOME", "")
    assert home.home() == tmp_path / ".cache/atarirb"
    monkeypatch.setenv("ATARIRB_HOME", "~/data")
    assert home.home() == tmp_path / "data"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATARIRB_HOME", "runs/../data")
    assert home.home() == tmp_path / "data"
    assert atarirb.env()["home"] == str(tmp_path / "data")
    monkeypatch.setenv("ATARIRB_HOME", "~nobody-of-this-name/x")
    with pytest.raises(ArgumentError, match="set ATARIRB_HOME"):
        home.home()


@pytest.mark.parametrize(
    ("text", "named"),
    [("Pong/1", True), ("Pong/mine", True), ("Pong/1/", True), ("a b/#1?", True), ("Pong", False),
     ("/Pong/1", False), ("./Pong/1", False), ("../1", False), ("Pong/..", False), ("a/Pong/1", False),
     ("gs://b/1", False), ("Pong//1", False), ("", False), ("/", False), ("Pong/.ingest", False)],
)  # fmt: skip
def test_names_are_two_words(text, named):
    assert home.is_name(text) == named


def test_every_verb_finds_a_dataset_by_its_name(pong, tmp_path, monkeypatch, capfd):
    expected = atarirb.show(pong)
    assert atarirb.show("Pong/1") == atarirb.show(pathlib.Path("Pong/1")) == expected
    assert atarirb.verify("Pong/1", deep=True).path == str(pong)
    assert atarirb.bench("Pong/1", n=4, seconds=0)["steps"] == expected.steps
    assert atarirb.convert("Pong/1", "raw", codec="raw").steps == expected.steps
    assert set(os.listdir()) == {"raw"}
    with atarirb.open("Pong/1") as reader:
        assert reader.info == expected
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ATARIRB_HOME", str(tmp_path / "another"))
        again = pickle.loads(pickle.dumps(reader))
        np.testing.assert_array_equal(again[3]["observation"], reader[3]["observation"])
        again.close()
    monkeypatch.setenv("ATARIRB_HOME", str(pong.parent.parent))
    mixture = atarirb.mix({"a": atarirb.open("Pong/1"), "b": atarirb.open("here/raw")})
    assert len(mixture) == 2 * expected.steps
    for arguments in [
        ["show", "Pong/1"],
        ["verify", "Pong/1"],
        ["bench", "Pong/1", "--seconds", "0", "-n", "4"],
        ["convert", "Pong/1", "raw2", "--codec", "raw"],
        ["map", "Pong/1", "mapped", "--fn", "tests.test_home:mapped"],
    ]:
        assert run(capfd, *arguments)[0] == 0, arguments
    assert atarirb.show("mapped").extra_columns == ("twice",)


def mapped(batch):
    return {"twice": 2 * batch["action"]}


def test_preview_finds_a_dataset_by_its_name(pong):
    pytest.importorskip("PIL")
    assert atarirb.preview("Pong/1").name.startswith("Pong-1-episode-")


def test_what_is_at_the_path_wins(pong, source, monkeypatch):
    atarirb.ingest(source / "Breakout/3", "Pong/1", name="Pong/here")
    assert atarirb.show("Pong/1").name == "Pong/here"
    monkeypatch.chdir(source)  # where Pong/1 is the logs of it
    with pytest.raises(DatasetNotFoundError, match="these are replay logs"):
        atarirb.open("Pong/1")


def test_a_link_that_leads_nowhere_is_no_reason_to_open_another_dataset(pong):
    os.mkdir("Pong")
    os.symlink("/nowhere/Pong/1", "Pong/1")
    with pytest.raises(DatasetNotFoundError, match="no dataset at 'Pong/1'"):
        atarirb.open("Pong/1")


def test_what_is_nowhere_is_told_with_both_places_and_how_to_get_it(place):
    with pytest.raises(DatasetNotFoundError) as caught:
        atarirb.open("Pong/1")
    for words in (
        "no dataset at 'Pong/1'", "no such directory", f"nor '{place}/Pong/1' in the home",
        f"\n  atarirb ingest REPLAY_LOGS {place}/Pong/1", "\n  atarirb download Pong/1",
    ):  # fmt: skip
        assert words in str(caught.value)
    with pytest.raises(DatasetNotFoundError, match="did you mean 'Pong/1'") as caught:
        atarirb.show("Pnog/1")
    assert "download" not in str(caught.value)
    with pytest.raises(DatasetNotFoundError, match="no dataset at 'nowhere'") as caught:
        atarirb.show("nowhere")
    assert str(place) not in str(caught.value)


def test_an_unfinished_one_in_the_home_says_how_to_go_on(place, source):
    unfinished(source, place / "Pong/1")
    with pytest.raises(DatasetNotFoundError, match="the same 'atarirb download'"):
        atarirb.open("Pong/1")


# Download.


def test_a_download_is_an_ingest_into_the_home(place, source, tmp_path, codec):
    atarirb.ingest(source / "Pong/1", tmp_path / "out", codec=codec, name="Pong/1")
    (info,) = atarirb.download("Pong/1", source=source, codec=codec)
    assert (info.path, info.name) == (str(place / "Pong/1"), "Pong/1")
    assert tree(place / "Pong/1") == tree(tmp_path / "out")
    assert set(os.listdir(place)) == {"Pong"}


def test_the_samples_come_through_a_store_in_memory_as_from_the_disk(place, tmp_path):
    filesystem = MemoryFileSystem()
    try:
        filesystem.put(f"{SAMPLES}/Pong/1/replay_logs/", "/dqn/Pong/1/replay_logs/", recursive=True)
        (info,) = atarirb.download("Pong/1", source="memory://dqn/", splits=[0, 1])
        assert [run.name for run in atarirb.source_runs("memory://dqn")] == ["Pong/1"]
    finally:
        filesystem.rm("/dqn", recursive=True)
    atarirb.ingest(SAMPLES / "Pong/1", tmp_path / "out", splits=[0, 1])
    assert info.splits == (0, 1)
    assert tree(place / "Pong/1") == tree(tmp_path / "out")


def test_names_may_hold_any_character(place, source, tmp_path, monkeypatch):
    odd = "a b#[0-9]?$HOME%20*;x"
    monkeypatch.setenv("ATARIRB_HOME", str(tmp_path / odd))
    shutil.copytree(source / "Pong/1", tmp_path / f"from {odd}/Pong/{odd}")
    for name in (f"Pong/{odd}", "Pong"):
        (info,) = atarirb.download(name, source=tmp_path / f"from {odd}")
        assert info.name == f"Pong/{odd}"
    assert atarirb.open(f"Pong/{odd}").info == info
    (one,) = atarirb.datasets()
    (pathlib.Path(one.path) / ".ingest/x").mkdir(parents=True)
    assert len(atarirb.prune().removed) == 1
    assert one.path == atarirb.rm(one.name)[0].path
    assert os.listdir(tmp_path / odd) == []


def test_splits_are_added_bit_by_bit_and_nothing_is_done_twice(place, source):
    atarirb.download("Pong/1", source=source, splits=[0])
    (info,) = atarirb.download("Pong/1", source=source, splits=iter([2]))
    assert info.splits == (0, 2)
    (info,) = atarirb.download("Pong/1", source=source)
    assert info.splits == (0, 1, 2)
    files = {path: path.stat() for path in place.rglob("*.npy")}
    assert atarirb.download("Pong/1", source=source) == (info,)
    assert {path: path.stat() for path in place.rglob("*.npy")} == files


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("Pong", ["Pong/1", "Pong/2"]),
        (["Pong/2", "Breakout"], ["Pong/2", "Breakout/3"]),
        (["Pong/1-2", "Pong/2"], ["Pong/1", "Pong/2"]),
        ("Pong/2,1", ["Pong/2", "Pong/1"]),
        (("Pong/1/",), ["Pong/1"]),
    ],
)
def test_several_runs_are_named_at_once(place, source, names, expected, monkeypatch):
    monkeypatch.setenv("ATARIRB_SOURCE", str(source))
    assert [one.name for one in atarirb.download(names, dry_run=True)] == expected
    assert [info.name for info in atarirb.download(names)] == expected
    assert sorted(one.name for one in atarirb.datasets()) == sorted(expected)


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        ("Pnog/1", UnknownGameError, "did you mean 'Pong/1'"),
        (["Pong/1", "pong"], UnknownGameError, "did you mean 'Pong'"),
        ("Pong/2-1/x", ArgumentError, "names no run"),
        ("Pong/../1", ArgumentError, "names no run"),
        ("Pong/..", ArgumentError, "names no run"),
        ("Pong/1,", ArgumentError, "names no run"),
        ([], ArgumentError, "no run is named"),
        ("Pong/7", SourceNotFoundError, "Pong/7': there is no such directory"),
        (["Pong/1", "Pong/7"], SourceNotFoundError, "Pong/7': there is no such directory"),
        ("Seaquest", SourceNotFoundError, "Seaquest': there is no such directory"),
    ],
)
def test_names_that_cannot_be_downloaded_write_nothing(place, source, names, error, words):
    with pytest.raises(error, match=words):
        atarirb.download(names, source=source)
    assert not place.exists()


def test_options_that_cannot_be_write_nothing(place, source):
    for options, words in [
        ({"splits": [9]}, "no split 9"), ({"splits": []}, "no split named"), ({"workers": 0}, "workers is 0"),
        ({"codec": "zip"}, "unknown codec 'zip'"),
    ]:  # fmt: skip
        for dry_run in (True, False):
            with pytest.raises(ArgumentError, match=words):
                atarirb.download("Pong/1", source=source, dry_run=dry_run, **options)
    with pytest.raises(UnknownGameError, match="public runs are 1 to 5"):
        atarirb.download("Pong/9")
    assert not place.exists()


def test_one_run_that_fails_does_not_keep_the_others_from_coming(place, source, tmp_path):
    shutil.copytree(source, tmp_path / "copy")
    damaged = tmp_path / "copy/Pong/1/replay_logs/$store$_action_ckpt.1.gz"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DownloadError, match="1 of 3 runs failed:\nPong/1: 1 of 3 splits") as caught:
        atarirb.download(["Pong", "Breakout"], source=tmp_path / "copy")
    assert isinstance(caught.value.failures["Pong/1"], IngestError)
    assert pickle.loads(pickle.dumps(caught.value)).failures.keys() == {"Pong/1"}
    states = {one.name: (one.state, one.splits) for one in atarirb.datasets()}
    assert states == {
        "Pong/1": ("unfinished", (0, 2)), "Pong/2": ("ready", (0, 1)), "Breakout/3": ("ready", (0,))
    }  # fmt: skip
    with pytest.raises(IngestError, match="split 1"):
        atarirb.download("Pong/1", source=tmp_path / "copy")
    damaged.write_bytes(whole)
    assert len(atarirb.download(["Pong", "Breakout"], source=tmp_path / "copy")) == 3
    assert {one.state for one in atarirb.datasets()} == {"ready"}


def test_a_dry_run_tells_and_writes_nothing(place, source, codec):
    logs = list((source / "Pong/1/replay_logs").iterdir())
    (estimate,) = atarirb.download("Pong/1", source=source, dry_run=True, codec=codec)
    assert not place.exists()
    assert (estimate.files, estimate.fetch_bytes) == (len(logs), sum(path.stat().st_size for path in logs))
    assert (estimate.splits, estimate.held) == ((0, 1, 2), ())
    (info,) = atarirb.download("Pong/1", source=source, codec=codec)
    assert info.frame_disk_bytes <= estimate.disk_bytes
    if codec == "raw":  # each row is 12 bytes of frame and 9 of columns, each file has a header of 128
        assert estimate.disk_bytes == 3 * (30 * (12 + 9) + 4 * 128)


def test_a_dry_run_counts_only_what_is_missing(place, source):
    atarirb.download("Pong/1", source=source, splits=[0, 2])
    before = tree(place)
    (rest,) = atarirb.download("Pong/1", source=source, dry_run=True)
    assert (rest.splits, rest.held) == ((1,), (0, 2))
    logs = list((source / "Pong/1/replay_logs").glob("*.1.gz"))
    assert (rest.files, rest.fetch_bytes) == (len(logs), sum(path.stat().st_size for path in logs))
    assert rest.free_bytes == pytest.approx(shutil.disk_usage(place).free, rel=0.1)
    assert "1 split(s): 1; there already: 0, 2" in str(rest)
    (rest,) = atarirb.download("Pong/1", source=source, splits=[0], dry_run=True)
    assert (rest.files, rest.fetch_bytes, rest.disk_bytes) == (0, 0, 0)
    with pytest.raises(ArgumentError, match="with codec packed, not"):
        atarirb.download("Pong/1", source=source, dry_run=True, codec="raw")
    assert tree(place) == before


def test_a_disk_that_is_too_small_for_all_runs_is_told_before_the_first(place, source, monkeypatch):
    sizes = {one.name: one.disk_bytes for one in atarirb.download("Pong", source=source, dry_run=True)}
    usage = shutil.disk_usage("/")._replace(free=max(sizes.values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(DiskSpaceError, match=f"needs {sum(sizes.values()):,} bytes.* another home"):
        atarirb.download("Pong", source=source)
    assert not place.exists()


def test_keep_source_is_a_source_again(place, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.put(str(SAMPLES / "Pong/1/replay_logs"), "/kept/Pong/1/replay_logs", recursive=True)
    try:
        atarirb.download("Pong/1", source="memory://kept", keep_source=tmp_path / "kept")
    finally:
        memory.rm("/kept", recursive=True)
    theirs = SAMPLES / "Pong/1/replay_logs"
    ours = tmp_path / "kept/Pong/1/replay_logs"
    assert sorted(os.listdir(ours)) == sorted(path.name for path in theirs.iterdir())
    assert all((ours / path.name).read_bytes() == path.read_bytes() for path in theirs.iterdir())
    before = tree(place / "Pong/1")
    atarirb.rm("Pong/1")
    atarirb.download("Pong/1", source=tmp_path / "kept")
    assert tree(place / "Pong/1") == before


# A store that refuses.


class HttpError(Exception):
    """What gcsfs raises of answers it has no other error for: no OSError."""

    def __init__(self, answer):
        super().__init__(f"{answer['message']}, {answer['code']}")
        self.code = answer["code"]


HttpError.__module__ = "gcsfs.retry"


class Refusing(fsspec.AbstractFileSystem):
    """A store that answers every request with the same error, and as gcsfs does asks it by `info`."""

    protocol = "refusing"
    cachable = False
    error: Exception

    def info(self, path, **_):
        raise self.error

    def ls(self, path, detail=True, **_):
        raise self.error


@pytest.fixture
def refusing(monkeypatch):
    """Return a function that makes the public bucket refuse with an error."""
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    monkeypatch.setattr(catalog, "PUBLIC_SOURCE", "refusing://bucket/dqn")

    def refuse(error):
        monkeypatch.setattr(Refusing, "error", error, raising=False)

    return refuse


ANSWERS = {
    "401": HttpError({"code": 401, "message": "Anonymous caller does not have storage.objects.list access"}),
    "403": OSError("Forbidden: https://storage.googleapis.com/storage/v1/b/bucket/o\nno access"),
    "404": FileNotFoundError("b/bucket/o"),
    "denied": PermissionError(13, "Forbidden"),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", ["Pong/1", "Pong", "Pong/1-3"])
def test_a_bucket_that_refuses_was_withdrawn(place, refusing, answer, name, capfd):
    refusing(ANSWERS[answer])
    for dry_run in (False, True):
        with pytest.raises(SourceNotFoundError) as caught:
            atarirb.download(name, dry_run=dry_run)
        assert caught.value.__cause__ is not None
    run_name = "Pong/1"
    for words in (
        "refusing://bucket/dqn/Pong", "withdrawn", "refused everyone since about April 2025",
        f"\n  atarirb ingest COPY/{run_name} {place}/{run_name}\n", "--source URI", "ATARIRB_SOURCE",
    ):  # fmt: skip
        assert words in str(caught.value)
    status, out, err = run(capfd, "download", name)
    assert (status, out) == (1, "")
    assert "Traceback" not in err
    assert err.startswith("atarirb download: refusing://bucket/dqn/Pong")
    assert not place.exists()
    assert not os.listdir()


def test_a_store_that_lists_but_may_not_be_read_is_withdrawn_too(place, refusing, monkeypatch):
    refusing(PermissionError("Forbidden"))
    monkeypatch.setattr(Refusing, "isdir", lambda self, path: True)
    with pytest.raises(SourceNotFoundError, match=r"cannot be had: .*withdrawn"):
        atarirb.download("Pong/1")
    assert not place.exists()


def test_listing_a_bucket_that_refuses_says_so(place, refusing, capfd):
    refusing(ANSWERS["401"])
    status, out, err = run(capfd, "list", "--source")
    assert (status, out) == (1, "")
    assert "withdrawn" in err


def test_another_store_that_refuses_is_named_and_not_called_withdrawn(place, refusing, monkeypatch):
    monkeypatch.setattr(Refusing, "isdir", lambda self, path: self.ls(path))
    for error, words in [
        (ANSWERS["401"], r"the store refuses access \(status 401"),
        (ANSWERS["403"], r"the store refuses access \(status 403"),
        (ConnectionResetError("reset by peer"), "cannot be reached or read, .*: reset by peer"),
    ]:
        refusing(error)
        with pytest.raises(AtarirbError, match=f"refusing://other/dqn/Pong/1: {words}") as caught:
            atarirb.download("Pong/1", source="refusing://other/dqn")
        assert "withdrawn" not in str(caught.value)
    refusing(ZeroDivisionError("a fault of the program"))
    with pytest.raises(ZeroDivisionError):
        atarirb.download("Pong/1", source="refusing://other/dqn")
    assert not place.exists()


def test_a_package_is_not_to_be_installed_in_vain(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    monkeypatch.delitem(sys.modules, "atarirb.sources.gcs", raising=False)  # another test may have read it in
    with pytest.raises(MissingPackageError, match=r"atarirb\[gcs\].*But the public bucket was withdrawn"):
        atarirb.download("Pong/1")
    with pytest.raises(MissingPackageError) as caught:
        atarirb.download("Pong/1", source="gs://other/dqn")
    assert "withdrawn" not in str(caught.value)


# List.


def test_a_home_that_is_not_there_holds_nothing(place, capfd):
    assert atarirb.datasets() == ()
    assert atarirb.prune().removed == ()
    assert run(capfd, "list") == (0, f"no datasets in {place}\n", "")
    assert not place.exists()


def test_what_is_local_is_listed_with_what_it_is(place, source, capfd):
    atarirb.download(["Pong", "Breakout/3"], source=source, codec="raw")
    (place / "Pong/10").mkdir()
    shutil.copytree(place / "Pong/1", place / "Pong/10", dirs_exist_ok=True)
    (place / "notes/1").mkdir(parents=True)
    (place / "notes/1/todo.txt").write_text("nothing of ours")
    (place / "Pong/file").write_text("nor this")
    os.utime(place / "Pong/1/dataset.json", (0, 86400))
    os.utime(place / "Pong/1/00000/action.npy", (2 * 86400, 0))
    found = {one.name: one for one in atarirb.datasets()}
    assert list(found) == ["Breakout/3", "Pong/1", "Pong/2", "Pong/10"]
    info, one = atarirb.show("Pong/1"), found["Pong/1"]
    assert (one.steps, one.episodes, one.splits, one.codec) == (info.steps, info.episodes, (0, 1, 2), "raw")
    assert one.bytes == sum(path.stat().st_size for path in (place / "Pong/1").rglob("*") if path.is_file())
    assert (one.state, one.writing, one.recording) == ("ready", False, False)
    assert (one.changed, one.used) == ("1970-01-02T00:00:00Z", "1970-01-03T00:00:00Z")
    status, out, err = run(capfd, "list")
    assert (status, err) == (0, "")
    head, *rows = out.splitlines()
    assert head.split() == [
        "name",
        "steps",
        "episodes",
        "splits",
        "codec",
        "bytes",
        "changed",
        "last",
        "used",
    ]
    told = ["Pong/1", f"{info.steps}", f"{info.episodes}", "3", "raw", f"{one.bytes:,}"]
    assert rows[1].split() == [*told, "1970-01-02", "1970-01-03"]
    status, out, _ = run(capfd, "list", "--json")
    assert [one["name"] for one in json.loads(out)] == list(found)
    assert json.loads(out)[1]["steps"] == info.steps
    assert run(capfd, "list", "-q") == (0, "", "")


def test_what_is_not_whole_is_marked(place, source, capfd):
    unfinished(source, place / "Pong/1")
    atarirb.download("Pong/2", source=source)
    (place / "Pong/2/dataset.json").write_text("{")
    with atarirb.Recorder(place / "Pong/me") as recorder:
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, False, False)
        found = {one.name: one for one in atarirb.datasets()}
        assert (found["Pong/me"].state, found["Pong/me"].writing, found["Pong/me"].recording) == (
            "unfinished", True, True
        )  # fmt: skip
        _, out, _ = run(capfd, "list")
        assert "being recorded" in out
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, True, False)
        recorder.commit()
        assert {one.name: one for one in atarirb.datasets()}["Pong/me"].steps == 2
    found = {one.name: one for one in atarirb.datasets()}
    assert (found["Pong/me"].state, found["Pong/me"].writing, found["Pong/me"].recording) == (
        "ready", False, True
    )  # fmt: skip
    one = found["Pong/1"]
    assert (one.state, one.episodes, one.splits, one.codec) == ("unfinished", None, (0, 2), "packed")
    assert one.steps == sum(len(np.load(path)) for path in (place / "Pong/1").glob("0000?/action.npy"))
    assert found["Pong/2"].state == "damaged"
    assert "dataset.json: not a manifest" in found["Pong/2"].problem
    status, out, _ = run(capfd, "list")
    assert status == 0
    assert "unfinished" in out
    assert "damaged: " in out


GATED = """
import os, pathlib, sys, time
import atarirb
from atarirb.ingestion import copying
source, gate = sys.argv[1:]
run = copying.Job.run
def gated(self, *arguments):
    pathlib.Path(gate, "begun").touch()
    while not pathlib.Path(gate, "open").exists():
        time.sleep(0.01)
    return run(self, *arguments)
copying.Job.run = gated
atarirb.download("Pong/1", source=source)
"""


@contextlib.contextmanager
def downloading(place, source, gate):
    """Have another process that downloads Pong/1, and has begun."""
    gate.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", GATED, str(source), str(gate)],
        env=os.environ | {"PYTHONPATH": str(DATA.parent.parent), "ATARIRB_HOME": str(place)},
    )
    try:
        while not (gate / "begun").exists():
            assert process.poll() is None
        yield process
        (gate / "open").touch()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_a_dataset_that_another_process_makes_is_marked_and_left_alone(place, source, tmp_path, capfd):
    with downloading(place, source, tmp_path / "gate"):
        (one,) = atarirb.datasets()
        assert (one.name, one.state, one.writing, one.recording) == ("Pong/1", "unfinished", True, False)
        assert "being written" in run(capfd, "list")[1]
        for dry_run in (True, False):
            with pytest.raises(BusyError, match="another process is writing this dataset"):
                atarirb.rm("Pong/1", dry_run=dry_run)
            done = atarirb.prune(unfinished=True, dry_run=dry_run)
            assert done.removed == ()
            assert "another process is writing" in done.skipped[str(place / "Pong/1")]
        status, _, err = run(capfd, "rm", "-y", "Pong/1")
        assert status == 1
        assert "another process is writing" in err
    (one,) = atarirb.datasets()
    assert (one.state, one.writing) == ("ready", False)
    assert atarirb.verify("Pong/1", deep=True).ok


def test_a_killed_download_is_unfinished_and_the_same_call_goes_on(place, source, tmp_path):
    with contextlib.suppress(AssertionError), downloading(place, source, tmp_path / "gate") as process:
        process.kill()
        process.wait()
        (one,) = atarirb.datasets()
        assert (one.state, one.writing) == ("unfinished", False)
    atarirb.download("Pong/1", source=source)
    atarirb.ingest(source / "Pong/1", "whole", name="Pong/1")
    assert tree(place / "Pong/1") == tree(pathlib.Path("whole"))


def test_listing_stands_what_others_do_meanwhile(place, source):
    stop, failures = threading.Event(), []

    def look():
        try:
            while not stop.is_set():
                atarirb.datasets()
                atarirb.prune(dry_run=True)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(8):
            atarirb.download("Pong", source=source)
            atarirb.rm("Pong/1", "Pong/2")
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert os.listdir(place) == []


def test_who_only_looks_keeps_nobody_from_writing(tmp_path):
    work, stop = tmp_path / "data/.ingest", threading.Event()
    work.mkdir(parents=True)
    (work / "lock").touch()

    def look():
        while not stop.is_set():
            building.is_locked(work)
            stop.wait(0.001)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(1000):
            with building.lock(work):
                assert building.is_locked(work)
    finally:
        stop.set()
        thread.join()
    assert not building.is_locked(work)
    assert not building.is_locked(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_what_a_source_has_is_listed_with_what_is_local(place, source, capfd):
    atarirb.download("Pong/1", source=source, splits=[0, 2])
    runs = {run.name: run for run in atarirb.source_runs(source)}
    assert list(runs) == ["Breakout/3", "Pong/1", "Pong/2"]
    logs = list((source / "Pong/1/replay_logs").iterdir())
    one = runs["Pong/1"]
    assert (one.splits, one.local, one.layout) == ((0, 1, 2), (0, 2), "original")
    assert (one.bytes, one.problem) == (sum(path.stat().st_size for path in logs), "")
    assert runs["Pong/2"].local == ()
    assert [run.name for run in atarirb.source_runs(source, game="Breakout")] == ["Breakout/3"]
    status, out, _ = run(capfd, "list", "--source", source)
    assert status == 0
    assert out.splitlines()[2].split() == ["Pong/1", "original", "3", f"{one.bytes:,}", "2", "split(s)"]
    assert json.loads(run(capfd, "list", "--json", "--source", source)[1])[1]["local"] == [0, 2]


def test_a_run_of_a_source_that_cannot_be_read_is_listed_with_the_reason(place, source, tmp_path, capfd):
    shutil.copytree(source, tmp_path / "copy")
    (tmp_path / "copy/Pong/4").mkdir()
    runs = {run.name: run for run in atarirb.source_runs(tmp_path / "copy")}
    assert list(runs) == ["Breakout/3", "Pong/1", "Pong/2", "Pong/4"]
    assert runs["Pong/4"].splits == ()
    assert "an empty directory" in runs["Pong/4"].problem
    assert "an empty directory" in run(capfd, "list", "--source", tmp_path / "copy")[1]


# Remove.


def test_a_dataset_is_removed_and_the_bytes_freed_are_told(pong, place, capfd):
    size = sum(path.stat().st_size for path in pong.rglob("*") if path.is_file())
    (removed,) = atarirb.rm("Pong/1", dry_run=True)
    assert (removed.name, removed.path, removed.what, removed.bytes) == ("Pong/1", str(pong), "dataset", size)
    assert pong.exists()
    assert run(capfd, "rm", "-y", "Pong/1") == (0, f"removed {pong}, {size:,} bytes\n", "")
    assert os.listdir(place) == []
    status, out, err = run(capfd, "rm", "-y", "Pong/1")
    assert (status, out) == (1, "")
    assert "no dataset at 'Pong/1'" in err


def test_the_other_runs_of_a_game_stay(place, source):
    atarirb.download("Pong", source=source)
    before = tree(place / "Pong/2")
    atarirb.rm("Pong/1")
    assert os.listdir(place / "Pong") == ["2"]
    assert tree(place / "Pong/2") == before


def test_a_reader_goes_on_with_what_was_removed(place, codec, source):
    atarirb.download("Pong/1", source=source, codec=codec)
    with atarirb.open("Pong/1", frame_stack=4) as reader:
        expected = reader.sample(0, 64)
        atarirb.rm("Pong/1")
        found = reader.sample(0, 64)
        np.testing.assert_array_equal(found["observation"], expected["observation"])
        np.testing.assert_array_equal(found["next"]["reward"], expected["next"]["reward"])
        np.testing.assert_array_equal(reader[:]["action"], reader[: len(reader)]["action"])


def test_it_is_asked_for_on_a_terminal(pong, capfd, monkeypatch):
    class Terminal:
        def __init__(self, answer):
            self.answer = answer

        def isatty(self):
            return True

        def readline(self):
            return self.answer

    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        status, out, err = run(capfd, "rm", "Pong/1")
        assert (status, out) == (1, "")
        assert f"{pong}  dataset, " in err
        assert err.endswith("remove it? [y/N] nothing was removed\n")
        assert pong.exists()
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    status, out, err = run(capfd, "rm", "--json", "Pong/1")
    assert status == 0
    assert json.loads(out)[0]["path"] == str(pong)
    assert not pong.exists()


def test_without_a_terminal_it_must_be_told_not_to_ask(pong, capfd, monkeypatch):
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    status, out, err = run(capfd, "rm", "Pong/1")
    sys.stdin.close()
    assert (status, out, err) == (
        2, "", "atarirb rm: there is no terminal to ask at; -y removes without asking\n"
    )  # fmt: skip
    assert pong.exists()


@pytest.mark.parametrize("golden", ["v2-packed/Game/1", "v2-raw/Game/1", "v2-recorded/Game/me"])
def test_datasets_with_more_columns_and_final_frames_are_ours_whole(place, golden):
    shutil.copytree(DATA / "golden" / golden, place / "Game/1")
    assert inventory.take(place / "Game/1").strange == ()
    atarirb.rm("Game/1")
    assert os.listdir(place) == []


def add_file(directory):
    (directory / "notes.txt").write_text("mine")
    return "notes.txt"


def add_file_to_shard(directory):
    (directory / "00001/weights.npy").write_text("mine")
    return "00001/weights.npy"


def add_directory(directory):
    (directory / "checkpoints").mkdir()
    return "checkpoints"


def add_directory_to_shard(directory):
    (directory / "00001/action.npy").unlink()
    (directory / "00001/action.npy").mkdir()
    return "00001/action.npy"


def add_link(directory):
    (directory / "latest").symlink_to("00001")
    return "latest"


def link_shard(directory):
    shutil.move(directory / "00001", directory.parent.parent.parent / "elsewhere")
    (directory / "00001").symlink_to(directory.parent.parent.parent / "elsewhere")
    return "00001"


def link_file(directory):
    shutil.move(directory / "00001/observation.pack", directory.parent.parent.parent / "elsewhere")
    (directory / "00001/observation.pack").symlink_to(directory.parent.parent.parent / "elsewhere")
    return "00001/observation.pack"


def link_manifest(directory):
    shutil.move(directory / "dataset.json", directory.parent.parent.parent / "elsewhere")
    (directory / "dataset.json").symlink_to(directory.parent.parent.parent / "elsewhere")
    return "dataset.json"


def link_work(directory):
    (directory / ".source").symlink_to("/")
    return ".source"


def link_in_work(directory):
    (directory / ".ingest/00004").mkdir(parents=True)
    (directory / ".ingest/00004/all").symlink_to("/")
    return ".ingest/00004/all"


def add_pipe(directory):
    os.mkfifo(directory / "dataset.pipe")
    return "dataset.pipe"


def add_play(directory):
    (directory / ".play/data").mkdir(parents=True)
    return ".play"


@pytest.mark.parametrize(
    "odd",
    [add_file, add_file_to_shard, add_directory, add_directory_to_shard, add_link, link_shard, link_file,
     link_manifest, link_work, link_in_work, add_pipe, add_play],
)  # fmt: skip
def test_a_directory_that_holds_anything_else_is_refused(pong, tmp_path, odd, capfd):
    name = odd(pong)
    before = {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(ArgumentError, match=f"{pong} holds what is no dataset's: {name}; move that away"):
        atarirb.rm("Pong/1")
    status, out, err = run(capfd, "rm", "-y", "Pong/1")
    assert (status, out) == (2, "")
    assert name in err
    done = atarirb.prune(unfinished=True)
    assert done.removed == ()
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_link_to_a_dataset_is_refused(pong, place, tmp_path):
    shutil.move(pong, tmp_path / "big")
    pong.symlink_to(tmp_path / "big")
    before = tree(tmp_path)
    assert [one.name for one in atarirb.datasets()] == ["Pong/1"]
    for name in ("Pong/1", "Pong/1/", f"{pong}/"):
        with pytest.raises(ArgumentError, match=f"is a link to {tmp_path}/big; name that"):
            atarirb.rm(name)
    (tmp_path / "big/.ingest").mkdir()
    before = tree(tmp_path)
    assert atarirb.prune(unfinished=True).removed == ()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["", ".", "..", "/", "Pong", "here", "{home}", "{home}/Pong"])
def test_what_is_no_dataset_is_refused(pong, place, name, tmp_path):
    before = tree(tmp_path)
    with pytest.raises((ArgumentError, DatasetNotFoundError)):
        atarirb.rm(name.format(home=place))
    with pytest.raises(ArgumentError, match="no dataset is named"):
        atarirb.rm()
    assert tree(tmp_path) == before


def test_a_file_that_only_has_a_manifests_name_makes_no_dataset(place):
    (place / "Pong/1").mkdir(parents=True)
    (place / "Pong/1/dataset.json").write_text('{"features": []}')
    assert atarirb.datasets() == ()
    with pytest.raises(DatasetNotFoundError, match="there is no dataset; nothing was removed"):
        atarirb.rm("Pong/1")
    assert atarirb.prune(unfinished=True).removed == ()
    assert (place / "Pong/1/dataset.json").exists()


def test_of_several_none_is_removed_if_one_cannot_be(place, source):
    atarirb.download("Pong", source=source)
    (place / "Pong/2/mine").touch()
    before = tree(place)
    for names in (["Pong/1", "Pong/2"], ["Pong/1", "Pong/3"]):
        with pytest.raises((ArgumentError, DatasetNotFoundError)):
            atarirb.rm(*names)
    assert tree(place) == before
    (place / "Pong/2/mine").unlink()
    assert len(atarirb.rm("Pong/1", "Pong/2", place / "Pong/1")) == 2
    assert os.listdir(place) == []


def test_a_path_is_removed_from_where_it_is(place, source):
    atarirb.ingest(source / "Pong/1", "data/Pong/1")
    (removed,) = atarirb.rm("data/Pong/1")
    assert removed.path == str(pathlib.Path.cwd() / "data/Pong/1")
    assert tree(pathlib.Path("data")) == {"Pong": None}


def test_unfinished_and_damaged_ones_are_removed(place, source):
    unfinished(source, place / "Pong/1")
    atarirb.download("Pong/2", source=source)
    (place / "Pong/2/dataset.json").write_text("{")
    (place / "Pong/2/00001/shard.json").write_text("{")
    assert [one.what for one in atarirb.rm("Pong/1", "Pong/2")] == ["unfinished", "damaged"]
    assert os.listdir(place) == []


def test_a_recording_is_removed_when_nobody_records(place):
    with atarirb.Recorder(place / "Pong/me") as recorder:
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, False, False)
        before = tree(place)
        with pytest.raises(BusyError):
            atarirb.rm("Pong/me")
        assert tree(place) == before
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, True, False)
    assert atarirb.show("Pong/me").steps == 2
    assert atarirb.rm("Pong/me")[0].what == "recording"
    assert os.listdir(place) == []


def test_one_who_begins_between_the_look_and_the_removal_is_not_disturbed(pong, monkeypatch):
    take, looks = inventory.take, itertools.count()

    def begun(directory):
        found = take(directory)
        if next(looks) == 1:  # `rm` has looked, and the removal itself
            stack.enter_context(building.claimed(directory, building.WORK))
        return found

    with contextlib.ExitStack() as stack:
        monkeypatch.setattr(inventory, "take", begun)
        with pytest.raises(BusyError):
            atarirb.rm("Pong/1")
        assert (pong / ".ingest/lock").exists()
    assert atarirb.verify("Pong/1", deep=True).ok
    assert not (pong / ".ingest").exists()


def test_one_who_begins_anew_under_the_name_keeps_its_lock(pong, monkeypatch):
    delete = inventory.delete

    def anew(directory):
        freed = delete(directory)
        stack.enter_context(building.claimed(pong, building.WORK))
        return freed

    monkeypatch.setattr(inventory, "delete", anew)
    with contextlib.ExitStack() as stack:
        atarirb.rm("Pong/1")
        assert building.is_locked(pong / ".ingest")
        with pytest.raises(BusyError), building.claimed(pong, building.WORK):
            pass


@pytest.mark.parametrize("how", ["rm", "prune"])
def test_a_removal_that_is_stopped_leaves_no_half_under_the_name(pong, place, monkeypatch, how, capfd):
    rmtree = shutil.rmtree

    def stopped(directory):
        (directory / "dataset.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", stopped)
    assert run(capfd, "rm", "-y", "Pong/1") == (130, "", "interrupted; the same command goes on from here\n")
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert not pong.exists()
    assert atarirb.datasets() == ()
    (rest,) = (place / "Pong").iterdir()
    size = sum(path.stat().st_size for path in rest.rglob("*") if path.is_file())
    if how == "rm":
        (done,) = atarirb.rm("Pong/1")
        assert (done.what, done.path, done.bytes) == ("remains", str(rest), size)
    else:
        (done,) = atarirb.prune().removed
        assert (done.what, done.path, done.bytes) == ("a removal that was stopped", str(rest), size)
    assert os.listdir(place) == []


@pytest.mark.parametrize("work", ["rm", "prune"])
def test_a_kill_leaves_all_or_nothing_under_the_name(pong, place, source, work):
    (pong / ".ingest/00003").mkdir(parents=True)
    before = tree(pong)
    code = """
    import os, shutil, signal, sys
    import atarirb
    def killed(directory, ignore_errors=False):
        os.remove(os.path.join(directory, "dataset.json")) if sys.argv[1] == "rm" else None
        os.kill(os.getpid(), signal.SIGKILL)
    shutil.rmtree = killed
    atarirb.rm("Pong/1") if sys.argv[1] == "rm" else atarirb.prune()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), work]
    environment = os.environ | {"PYTHONPATH": str(DATA.parent.parent)}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    if work == "rm":
        assert not pong.exists()
        assert len(os.listdir(place / "Pong")) == 1
    else:
        assert tree(pong) == before | {".ingest/lock": b""}
    atarirb.prune()
    atarirb.download("Pong/1", source=source)
    del before[".ingest"], before[".ingest/00003"]
    assert tree(place / "Pong") == {"1": None} | {f"1/{name}": content for name, content in before.items()}


def test_remains_do_not_stand_in_the_way_of_a_new_dataset_and_go_with_it(pong, place, source):
    (place / "Pong/.1.removed-0123abcd").mkdir()
    (place / "Pong/.10.removed-0123abcd").mkdir()
    atarirb.download("Pong/1", source=source)
    assert [one.what for one in atarirb.rm("Pong/1")] == ["dataset", "remains"]
    assert os.listdir(place / "Pong") == [".10.removed-0123abcd"]


@pytest.fixture
def other_user(source, monkeypatch):
    """Return a home, and a context in which all is done by a user who may write only what is theirs."""
    directory = pathlib.Path(tempfile.mkdtemp())
    monkeypatch.setenv("ATARIRB_HOME", str(directory / "home"))
    atarirb.download("Pong", source=source)

    @contextlib.contextmanager
    def other():
        if os.geteuid() != 0:
            yield
            return
        for path in (directory, *directory.rglob("*")):
            os.chown(path, 65534, 65534)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)

    yield directory / "home", other
    for path in directory.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.parametrize("fixed", ["Pong", "Pong/1", "Pong/1/00001"])
def test_what_may_not_be_removed_stays_whole(other_user, fixed, capfd, monkeypatch, tmp_path):
    place, other = other_user
    (place / fixed).chmod(0o555)
    before = tree(place)
    monkeypatch.chdir("/")
    with other():
        with pytest.raises(PermissionError):
            atarirb.rm("Pong/1")
        assert run(capfd, "rm", "-y", "Pong/1")[0] == 1
        done = atarirb.prune(unfinished=True)
    assert tree(place) == before
    assert done.removed == ()


# Prune.


@pytest.fixture
def leftovers(place, source):
    """Return a home where much was stopped, and what a prune is to remove in any case, and its bytes."""
    atarirb.download(["Pong", "Breakout/3"], source=source)
    (place / "Pong/1/.ingest/00003").mkdir(parents=True)
    (place / "Pong/1/.ingest/00003/action.npy").write_bytes(bytes(100))
    (place / "Pong/1/.ingest/lock").touch()
    (place / "Pong/1/.source/0").mkdir(parents=True)
    (place / "Pong/1/.source/0/part").write_bytes(bytes(1000))
    (place / "Pong/1/.dataset.json.partial").write_bytes(bytes(10))
    (place / "Pong/1/00000/.shard.json.partial").write_bytes(bytes(10))
    unfinished(source, place / "Pong/3")
    (place / "Pong/3/.ingest/00001").mkdir(parents=True)
    (place / "Pong/3/.ingest/00001/reward.npy").write_bytes(bytes(7))
    (place / "Pong/4/.ingest").mkdir(parents=True)
    (place / "Pong/.5.removed-00000000").mkdir()
    (place / "Pong/.5.removed-00000000/episodes.npy").write_bytes(bytes(50))
    with atarirb.Recorder(place / "Pong/me") as recorder:
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, True, False)
    (place / "Pong/me/.recording/ended-7").write_bytes(b"journal")
    with atarirb.Recorder(place / "Asterix/me") as recorder:
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, True, False)
    shutil.rmtree(place / "Asterix/me/00000")
    (place / "Asterix/me/dataset.json").unlink()
    (place / "Asterix/me/episodes.npy").unlink()
    (place / "Asterix/me/.recording/open-0").write_bytes(b"journal")
    (place / "Breakout/3/.ingest").mkdir()
    (place / "Breakout/3/mine").touch()
    always = {
        "Pong/1/.ingest": 100, "Pong/1/.source": 1000, "Pong/1/.dataset.json.partial": 10,
        "Pong/1/00000/.shard.json.partial": 10, "Pong/.5.removed-00000000": 50,
    }  # fmt: skip
    return place, always


@pytest.mark.parametrize("with_unfinished", [False, True])
def test_prune_removes_what_was_stopped_and_nothing_else(leftovers, with_unfinished):
    place, expected = leftovers
    before = tree(place)
    ready = {name: atarirb.show(name) for name in ("Pong/1", "Pong/2", "Pong/me")}
    if with_unfinished:
        size = sum(path.stat().st_size for path in (place / "Pong/3").rglob("*") if path.is_file())
        expected |= {"Pong/3": size, "Pong/4": 0}
    else:
        expected |= {"Pong/3/.ingest": 7, "Pong/4/.ingest": 0}
    would = atarirb.prune(unfinished=with_unfinished, dry_run=True)
    assert tree(place) == before
    assert {os.path.relpath(one.path, place): one.bytes for one in would.removed} == expected
    assert would.bytes == sum(expected.values())
    assert would.skipped.keys() == {str(place / "Breakout/3")}
    assert "mine" in would.skipped[str(place / "Breakout/3")]
    assert atarirb.prune(unfinished=with_unfinished) == would
    gone = [*expected, "Pong/4"]
    assert tree(place) == {
        path: content
        for path, content in before.items()
        if not any(path == one or path.startswith(f"{one}/") for one in gone)
    }
    assert {name: atarirb.show(name) for name in ready} == ready
    assert all(atarirb.verify(name).ok for name in ready)
    assert atarirb.prune(unfinished=with_unfinished).removed == ()


def test_pruned_downloads_go_on(leftovers, source):
    place, _ = leftovers
    atarirb.prune()
    before = (place / "Pong/3/00000").stat()
    atarirb.ingest(source / "Pong/1", place / "Pong/3", name="Pong/1")
    assert (place / "Pong/3/00000").stat() == before
    assert atarirb.show("Pong/3").steps == atarirb.show("Pong/1").steps


def test_prune_by_the_command_line(leftovers, capfd):
    place, expected = leftovers
    status, out, err = run(capfd, "prune", "--dry-run")
    assert status == 0
    assert f"would remove {place}/Pong/1/.source: work that was stopped, 1,000 bytes\n" in out
    assert f"{place}/Breakout/3 was left alone: " in err
    assert (place / "Pong/1/.source").exists()
    status, out, _ = run(capfd, "prune", "--json", "--unfinished")
    assert status == 0
    assert json.loads(out)["bytes"] >= sum(expected.values())
    assert not (place / "Pong/3").exists()
    assert run(capfd, "prune")[1] == "removed 0 bytes in all\n"


def test_a_recording_in_progress_is_not_pruned(place):
    with atarirb.Recorder(place / "Pong/me") as recorder:
        recorder.add(np.zeros((3, 4), np.uint8), 0, 0.0, False, False)
        before = tree(place)
        assert atarirb.prune(unfinished=True).removed == ()
        assert tree(place) == before
    assert atarirb.show("Pong/me").steps == 1


def test_prune_does_not_go_where_links_lead(place, tmp_path, source):
    atarirb.ingest(source / "Pong/1", tmp_path / "far/Pong/1")
    (tmp_path / "far/Pong/1/.ingest").mkdir()
    place.mkdir()
    (place / "Pong").symlink_to(tmp_path / "far/Pong")
    assert [one.name for one in atarirb.datasets()] == ["Pong/1"]
    before = tree(tmp_path)
    assert atarirb.prune(unfinished=True).removed == ()
    assert tree(tmp_path) == before


# The command line.


def test_download_by_the_command_line(place, source, capfd, monkeypatch):
    monkeypatch.setenv("ATARIRB_SOURCE", str(source))
    status, out, err = run(capfd, "download", "Pong/1", "Breakout/3", "--dry-run", "--splits", "0")
    assert (status, err) == (0, "")
    assert f"Pong/1  {source}/Pong/1 -> {place}/Pong/1\nfetch     1 split(s): 0\n" in out
    assert not place.exists()
    status, out, err = run(
        capfd, "download", "--json", "Pong/1", "Breakout/3", "--codec", "raw", "--workers", 1
    )
    assert (status, err) == (0, "")
    assert [(one["name"], one["codec"]) for one in json.loads(out)] == [
        ("Pong/1", "raw"),
        ("Breakout/3", "raw"),
    ]
    assert run(capfd, "download", "-q", "Pong/2") == (0, "", "")
    status, _, err = run(capfd, "download", "Pong/2", "--splits", "7")
    assert (status, "no split 7" in err) == (2, True)


def test_every_verb_of_the_home_is_a_function():
    for verb in ("download", "datasets", "source_runs", "rm", "prune"):
        assert callable(getattr(atarirb, verb))
        assert verb in dir(atarirb)
