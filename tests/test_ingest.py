"""Ingest under stress: damage, stops, little memory, little disk, wrong arguments."""

import gzip
import hashlib
import importlib.util
import io
import os
import pathlib
import shutil
import signal
import threading
import time

import numpy as np
import pytest

import atarirb
from atarirb.errors import (
    ArgumentError,
    BusyError,
    DiskSpaceError,
    IngestError,
    LogError,
    MissingPackageError,
    SourceNotFoundError,
)
from atarirb.verbs import ingest as module
from benchmarks.probes import probe
from tests import truth
from tests.logs import record

#: The file that takes the most room, by codec.
FRAMES = {"packed": "observation.pack", "raw": "observation.npy"}

LENGTHS = [30, 45, 20, 60, 33, 50]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pristine") / "Game/1"
    record(directory, LENGTHS, 50)
    return directory


@pytest.fixture
def log(pristine, tmp_path):
    """A log of five or six splits, to be spoilt."""
    shutil.copytree(pristine, tmp_path / "Game/1")
    return tmp_path / "Game/1"


def digest(directory):
    """Every file of a dataset, by name."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def column(log, name, split):
    return log / "replay_logs" / f"{name}_ckpt.{split}.gz"


def rewrite(path, change):
    values = np.load(io.BytesIO(gzip.decompress(path.read_bytes())))
    changed = change(values)
    buffer = io.BytesIO()
    np.save(buffer, values if changed is None else changed)
    path.write_bytes(gzip.compress(buffer.getvalue()))


def fails(log, out, words, *, split=2, kept=True):
    """Ingest fails for one split with these words, and keeps the others."""
    with pytest.raises(IngestError, match=words) as caught:
        atarirb.ingest(log, out)
    assert list(caught.value.failures) == [split]
    shards = {path.name for path in out.iterdir()}
    assert f"{split:05d}" not in shards
    assert "dataset.json" not in shards
    assert (f"{0:05d}" in shards) == kept
    assert not (out / ".ingest").exists()


def test_the_source_may_be_the_run_or_its_logs_and_any_number_of_workers(pristine, tmp_path, codec):
    atarirb.ingest(pristine, tmp_path / "a", workers=1, codec=codec)
    atarirb.ingest(pristine / "replay_logs", tmp_path / "b", workers=4, codec=codec)
    atarirb.ingest(f"file://{pristine}", tmp_path / "c", codec=codec)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == digest(tmp_path / "c")


def test_a_second_ingest_changes_nothing_and_copies_nothing(pristine, tmp_path, monkeypatch):
    first = atarirb.ingest(pristine, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr("atarirb.ingestion.copying.Job.run", lambda *_: pytest.fail("copied a split"))
    assert atarirb.ingest(pristine, tmp_path / "out") == first
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert after == before


def test_splits_can_be_added_bit_by_bit(pristine, tmp_path, codec):
    atarirb.ingest(pristine, tmp_path / "whole", codec=codec)
    atarirb.ingest(pristine, tmp_path / "out", splits=[3], codec=codec)
    info = atarirb.ingest(pristine, tmp_path / "out", splits=[0, 1], codec=codec)
    assert info.splits == (0, 1, 3)
    atarirb.ingest(pristine, tmp_path / "out", codec=codec)
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_a_split_whose_source_changed_is_made_anew(log, tmp_path):
    atarirb.ingest(log, tmp_path / "out")

    def flip(actions):
        actions[20] ^= 1

    rewrite(column(log, "$store$_action", 2), flip)
    atarirb.ingest(log, tmp_path / "out")
    atarirb.ingest(log, tmp_path / "fresh")
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_names_with_unusual_characters_survive(pristine, tmp_path):
    odd = tmp_path / "a [b] #c ?d $e ::f" / "My Game" / "1"
    shutil.copytree(pristine, odd)
    info = atarirb.ingest(odd, tmp_path / "out [x] #y")
    assert info.name == "My Game/1"
    assert len(atarirb.open(tmp_path / "out [x] #y")) == info.steps


@pytest.mark.parametrize("name", ["observation", "action", "reward", "terminal"])
@pytest.mark.parametrize("part", ["10 %", "50 %", "its trailer"])
def test_a_file_cut_short_fails_its_split(log, tmp_path, name, part):
    path = column(log, f"$store$_{name}", 2)
    data = path.read_bytes()
    path.write_bytes(data[: {"10 %": len(data) // 10, "50 %": len(data) // 2, "its trailer": -8}[part]])
    fails(log, tmp_path / "out", rf"\$store\$_{name}_ckpt.2.gz: ")


@pytest.mark.parametrize("name", ["$store$_observation", "$store$_terminal", "add_count", "invalid_range"])
def test_a_flipped_byte_fails_its_split(log, tmp_path, name):
    path = column(log, name, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)
    # The header of an npy may be what was hit: then it is not one.
    fails(log, tmp_path / "out", rf"{name.replace('$', '.')}_ckpt.2.gz: ")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("$store$_action", lambda a: a[:-1], r"action_ckpt.2.gz: has 49 rows, expected 50"),
        ("$store$_action", lambda a: a.astype(np.float32), "action_ckpt.2.gz: float32.*expected one integer"),
        ("$store$_reward", lambda a: a.astype("U4"), "reward_ckpt.2.gz.*expected one float a row"),
        (
            "$store$_reward",
            lambda a: np.where(np.arange(50) == 30, np.nan, a),
            "reward_ckpt.2.gz: row 30 holds",
        ),
        ("$store$_action", lambda a: np.where(np.arange(50) == 30, -1, a), "action_ckpt.2.gz: row 30 holds"),
        ("$store$_terminal", lambda a: np.where(np.arange(50) == 30, 9, a), "slot 30 is neither 0 nor 1"),
        ("$store$_observation", lambda a: a[:, :2], "split 2: column observation is uint8.*as in split 0"),
        ("$store$_observation", lambda a: a.astype(np.int16), "column observation is int16"),
        ("$store$_observation", lambda a: a.astype([("a", "u1"), ("b", "u2")]), "expected plain values"),
        ("add_count", lambda a: np.array(["x"]), "add_count_ckpt.2.gz: .*expected integers"),
        ("add_count", lambda a: np.array(49), "add_count of split 2 is 49, expected more than"),
        ("invalid_range", lambda a: np.array([]), "invalid_range_ckpt.2.gz: .*expected integers"),
        ("invalid_range", lambda a: a + 20, "invalid_range_ckpt.2.gz: begins with"),
    ],
)
def test_a_wrong_value_fails_its_split(log, tmp_path, name, change, words):
    rewrite(column(log, name, 2), change)
    fails(log, tmp_path / "out", words)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(50,)", "(50, "),
        ("(50,)", "(-1,)"),
        ("(50,)", "(40000000000000000000000,)"),
        ("(50,)", "(4000000000,)"),
        ("'<i4'", "'<q9'"),
        ("False", "Fals"),
    ],
)
@pytest.mark.parametrize("split", [0, 2])
def test_a_damaged_npy_header_fails_its_split(log, tmp_path, old, new, split):
    path = column(log, "$store$_action", split)
    data = gzip.decompress(path.read_bytes())
    assert old.encode() in data
    head = data[:128].replace(old.encode(), new.encode())
    head = head[:127].ljust(127)[:127] + b"\n" if len(head) != 128 else head
    path.write_bytes(gzip.compress(head + data[128:]))
    fails(log, tmp_path / "out", rf"action_ckpt.{split}.gz: ", split=split, kept=split != 0)
    assert (tmp_path / "out/00001").exists()


def test_an_odd_first_split_fails_itself_and_not_the_others(log, tmp_path):
    rewrite(column(log, "$store$_observation", 0), lambda a: a.astype(np.int16))
    fails(log, tmp_path / "out", "split 0: column observation is int16", split=0, kept=False)
    assert (tmp_path / "out/00001").exists()


def test_a_place_is_found_anew_when_a_neighbour_is_mended(tmp_path):
    """Placed against nothing at first, a split must not keep that place when its predecessor can be read."""
    record(tmp_path / "Game/1", [200], 40)
    for file in (tmp_path / "Game/1/replay_logs").glob("add_count*"):
        file.unlink()
    atarirb.ingest(tmp_path / "Game/1", tmp_path / "fresh")
    path = column(tmp_path / "Game/1", "$store$_terminal", 1)
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    with pytest.raises(IngestError):
        atarirb.ingest(tmp_path / "Game/1", tmp_path / "out")
    path.write_bytes(data)
    info = atarirb.ingest(tmp_path / "Game/1", tmp_path / "out")
    assert info.steps == 200
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_another_codec_is_not_mixed_in(pristine, tmp_path, codec):
    atarirb.ingest(pristine, tmp_path / "out", codec=codec)
    before = digest(tmp_path / "out")
    other = {"packed": "raw", "raw": "packed"}[codec]
    with pytest.raises(
        ArgumentError, match=rf"holds Game/1 \(original\) with codec {codec}, not .* with {other}"
    ):
        atarirb.ingest(pristine, tmp_path / "out", codec=other)
    assert digest(tmp_path / "out") == before


def test_a_damaged_shard_is_made_anew(pristine, tmp_path, codec):
    atarirb.ingest(pristine, tmp_path / "fresh", codec=codec)
    atarirb.ingest(pristine, tmp_path / "out", codec=codec)
    for name, damage in [
        ("00001/shard.json", lambda data: data.replace(b'"steps": 4', b'"steps": 3')),
        (f"00002/{FRAMES[codec]}", lambda data: data[:-5]),
        ("00003/terminal.npy", lambda data: None),
    ]:
        path = tmp_path / "out" / name
        damaged = damage(path.read_bytes())
        path.unlink() if damaged is None else path.write_bytes(damaged)
    atarirb.ingest(pristine, tmp_path / "out", codec=codec)
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_a_decompressed_source_that_changed_is_noticed(log, tmp_path):
    for path in (log / "replay_logs").iterdir():
        path.write_bytes(gzip.decompress(path.read_bytes()))
    atarirb.ingest(log, tmp_path / "out")
    path = column(log, "$store$_action", 1)
    data = bytearray(path.read_bytes())
    data[128 + 4 * 20] ^= 1
    path.write_bytes(data)
    atarirb.ingest(log, tmp_path / "out")
    atarirb.ingest(log, tmp_path / "fresh")
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_two_files_for_one_split_are_refused(log, tmp_path):
    shutil.copy(column(log, "$store$_action", 1), log / "replay_logs/$store$_action_ckpt.01.gz")
    with pytest.raises(LogError, match="has two files of action for split 1"):
        atarirb.ingest(log, tmp_path / "out")


def test_the_name_does_not_depend_on_where_one_stands(pristine, tmp_path, monkeypatch):
    monkeypatch.chdir(pristine)
    assert atarirb.ingest(".", tmp_path / "a").name == "Game/1"
    assert atarirb.ingest("replay_logs", tmp_path / "b").name == "Game/1"


def test_a_reward_too_large_for_float32_fails_its_split(log, tmp_path):
    for split in range(6):
        large = 1e300 if split == 2 else 1.0
        rewrite(column(log, "$store$_reward", split), lambda a, large=large: a.astype(np.float64) * large)
    fails(log, tmp_path / "out", r"reward_ckpt.2.gz: row \d+ holds reward -?1e\+300")


def test_pickles_are_never_read(log, tmp_path):
    path = column(log, "$store$_action", 2)
    buffer = io.BytesIO()
    np.save(buffer, np.array([print] * 50), allow_pickle=True)
    path.write_bytes(gzip.compress(buffer.getvalue()))
    column(log, "sum_tree", 0).write_bytes(b"not even gzip")
    fails(log, tmp_path / "out", "action_ckpt.2.gz: holds pickled objects")


@pytest.mark.parametrize("name", ["$store$_observation", "$store$_reward", "add_count"])
def test_a_missing_file_fails_its_split(log, tmp_path, name):
    column(log, name, 2).unlink()
    fails(log, tmp_path / "out", rf"split 2 has no {name.replace('$', '.')}_ckpt.2.gz")


def test_files_that_were_decompressed_are_read_too(log, pristine, tmp_path):
    for path in (log / "replay_logs").iterdir():
        path.write_bytes(gzip.decompress(path.read_bytes()))
    info = atarirb.ingest(log, tmp_path / "out")
    assert info.steps == atarirb.ingest(pristine, tmp_path / "other").steps


@pytest.mark.parametrize("name", ["$store$_observation", "$store$_terminal", "add_count"])
def test_after_mending_only_the_failed_split_is_read(log, pristine, tmp_path, monkeypatch, name):
    path = column(log, name, 2)
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(IngestError):
        atarirb.ingest(log, tmp_path / "out")
    path.write_bytes(data)
    done = []
    run = module.Job.run
    monkeypatch.setattr(module.Job, "run", lambda job, *a: (done.append(job.portion.split), run(job, *a))[1])
    atarirb.ingest(log, tmp_path / "out")
    assert done == [2]
    atarirb.ingest(pristine, tmp_path / "fresh")
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_a_damaged_split_can_be_left_out(log, tmp_path):
    column(log, "$store$_terminal", 2).write_bytes(b"")
    with pytest.raises(IngestError, match="2.gz: "):
        atarirb.ingest(log, tmp_path / "out")
    info = atarirb.ingest(log, tmp_path / "out", splits=[0, 1, 3])
    assert info.splits == (0, 1, 3, 4, 5)  # those that were done stay
    assert info.holes == 1
    assert atarirb.verify(tmp_path / "out", deep=True).ok


def test_every_split_damaged(log, tmp_path):
    for path in (log / "replay_logs").glob("$store$_terminal*"):
        path.write_bytes(b"nothing")
    with pytest.raises(IngestError, match="neither gzip nor npy"):
        atarirb.ingest(log, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_suffix_zero_alone_and_holes_in_the_suffixes(log, tmp_path):
    for path in (log / "replay_logs").iterdir():
        if path.name.split(".")[1] not in "02":
            path.unlink()
    info = atarirb.ingest(log, tmp_path / "two")
    assert (info.splits, info.holes) == ((0, 2), 1)
    for path in (log / "replay_logs").glob("*.2.gz"):
        path.unlink()
    assert atarirb.ingest(log, tmp_path / "one").splits == (0,)


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(SourceNotFoundError, match="no such directory; did you mean 'Pong/1'"):
        atarirb.ingest(tmp_path / "Pnog/1", tmp_path / "out")
    with pytest.raises(SourceNotFoundError, match="no such directory$"):
        atarirb.ingest(tmp_path / "mydata", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_source_without_logs_says_what_is_expected(log, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFoundError, match=r"expected files named \$store\$_observation.*an empty"):
        atarirb.ingest(tmp_path / "empty", tmp_path / "out")
    with pytest.raises(SourceNotFoundError, match="it holds the runs 1: name one of them"):
        atarirb.ingest(log.parent, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"splits": [1, 77]}, "no split 77; .* has 0, 1, 2"),
        ({"splits": []}, "no split named"),
        ({"splits": 3}, "splits is 3, expected numbers"),
        ({"splits": ["a"]}, "splits is .*, expected numbers"),
        ({"workers": 0}, "workers is 0, expected an integer of 1 or more"),
        ({"workers": "2"}, "workers is '2', expected an integer of 1 or more"),
        ({"codec": "mp4"}, "unknown codec 'mp4'; there are packed, raw"),
    ],
)
def test_wrong_arguments(pristine, tmp_path, options, words):
    with pytest.raises(ArgumentError, match=words):
        atarirb.ingest(pristine, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_an_out_that_is_a_file(pristine, tmp_path):
    (tmp_path / "out").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.ingest").write_text("")
    for out in ("out", "out/Pong/1", "other"):
        with pytest.raises(ArgumentError, match="a dataset is a directory, and there is a file"):
            atarirb.ingest(pristine, tmp_path / out)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="no directory can be made there"):
        atarirb.ingest(pristine, tmp_path / "link")


def test_a_uri_that_cannot_be_reached_names_what_is_needed(tmp_path):
    with pytest.raises(ArgumentError, match="nope://a/b: Protocol not known: nope"):
        atarirb.ingest("nope://a/b", tmp_path / "out")
    if importlib.util.find_spec("gcsfs") is None:
        with pytest.raises(MissingPackageError, match=r"needs gcsfs.*pip install 'atarirb\[gcs\]'"):
            atarirb.ingest("gs://bucket/Pong/1", tmp_path / "out")


def test_another_run_is_not_mixed_in(pristine, log, tmp_path):
    atarirb.ingest(pristine, tmp_path / "out")
    before = digest(tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"holds Game/1 \(original\) with codec packed, not Other/1"):
        atarirb.ingest(pristine, tmp_path / "out", name="Other/1")
    for path in (log / "replay_logs").glob("*.3.gz"):
        path.unlink()
    with pytest.raises(ArgumentError, match=r"holds split\(s\) 3, which .* does not have"):
        atarirb.ingest(log, tmp_path / "out")
    assert digest(tmp_path / "out") == before


def test_a_full_disk_is_known_before_the_first_byte(pristine, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 900, 100))
    with pytest.raises(DiskSpaceError, match=r"out needs [\d,]+ bytes, its disk has 100 free"):
        atarirb.ingest(pristine, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", [".npy", ".pack", ".dict"])
def test_a_disk_that_fills_up_fails_the_split_and_leaves_nothing(log, tmp_path, monkeypatch, file):
    write = os.pwrite

    def full(descriptor, data, at):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/00002/" in path and path.endswith(file):
            raise OSError(28, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    fails(log, tmp_path / "out", "split 2: .*No space left")


def test_two_ingests_of_one_dataset_do_not_meet(pristine, tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    run = module.Job.run

    def slow(job, *arguments):
        entered.set()
        leave.wait(20)
        return run(job, *arguments)

    monkeypatch.setattr(module.Job, "run", slow)
    thread = threading.Thread(target=atarirb.ingest, args=(pristine, tmp_path / "out"))
    thread.start()
    try:
        assert entered.wait(20)
        with pytest.raises(BusyError, match="another process is writing"):
            atarirb.ingest(pristine, tmp_path / "out")
    finally:
        leave.set()
        thread.join()
    assert atarirb.verify(tmp_path / "out").ok


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_leaves_whole_shards_only_and_is_taken_up_again(pristine, tmp_path, monkeypatch, times):
    run = module.Job.run

    def interrupted(job, *arguments):
        if job.portion.split == 2:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
        return run(job, *arguments)

    monkeypatch.setattr(module.Job, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atarirb.ingest(pristine, tmp_path / "out", workers=1)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"00000", "00001"}
    monkeypatch.setattr(module.Job, "run", run)
    atarirb.ingest(pristine, tmp_path / "out")
    atarirb.ingest(pristine, tmp_path / "fresh")
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


@pytest.mark.parametrize(
    ("codec", "call"),
    [*(("packed", call) for call in range(1, 80, 13)), *(("raw", call) for call in (3, 20, 45))],
)
def test_killed_at_any_write_it_ends_the_same(pristine, tmp_path, codec, call):
    """The process dies at its n-th call that changes the disk; whatever is there, the same call mends it."""
    code = f"atarirb.ingest({str(pristine)!r}, {str(tmp_path / 'out')!r}, workers=1, codec={codec!r})"
    status = truth.run_killed(code, at=call)
    assert status == -signal.SIGKILL
    if (tmp_path / "out/dataset.json").exists():
        assert atarirb.verify(tmp_path / "out", deep=True).ok
    for path in (tmp_path / "out").glob("0*"):
        assert (path / "shard.json").exists()
    atarirb.ingest(pristine, tmp_path / "out", codec=codec)
    atarirb.ingest(pristine, tmp_path / "fresh", codec=codec)
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


@pytest.mark.parametrize(("codec", "most"), [("packed", 300), ("raw", 150)])
def test_memory_does_not_grow_with_the_column(tmp_path, codec, most):
    """A column of 420 MB goes through a process that may hold far less."""
    files = tmp_path / "Game/1/replay_logs"
    files.mkdir(parents=True)
    rows, shape = 60_000, (84, 84)
    frame = np.full(shape, 7, np.uint8)
    block = np.broadcast_to(frame, (1000, *shape)).tobytes()
    with gzip.open(files / "$store$_observation_ckpt.0.gz", "wb", compresslevel=1) as file:
        description = {"descr": "|u1", "fortran_order": False, "shape": (rows, *shape)}
        np.lib.format.write_array_header_1_0(file, description)
        file.write(np.zeros((3, *shape), np.uint8).tobytes() + block[: -3 * 7056])
        for _ in range(rows // 1000 - 1):
            file.write(block)
    for name, values in {
        "$store$_action": np.zeros(rows, np.int32),
        "$store$_reward": np.zeros(rows, np.float32),
        "$store$_terminal": np.zeros(rows, np.uint8),
        "add_count": np.array(rows - 1),
    }.items():
        buffer = io.BytesIO()
        np.save(buffer, values)
        (files / f"{name}_ckpt.0.gz").write_bytes(gzip.compress(buffer.getvalue(), 1))
    done = probe("ingest", tmp_path / "Game/1", tmp_path / "out", 0, codec)
    assert done["steps"] == rows - 4
    assert done["peak_mb"] < most


def test_progress_is_silent_when_it_is_not_a_terminal(pristine, tmp_path, capfd):
    atarirb.ingest(pristine, tmp_path / "out", progress=True)
    assert capfd.readouterr() == ("", "")


def test_a_path_object_and_a_string_are_the_same(pristine, tmp_path):
    assert (
        atarirb.ingest(str(pristine), str(tmp_path / "a")).steps
        == atarirb.ingest(pathlib.Path(pristine), tmp_path / "b").steps
    )
