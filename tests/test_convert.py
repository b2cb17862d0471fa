"""Convert: another codec, the same answers; stopped and damaged as ingest is."""

import os
import pathlib
import shutil
import signal
import threading
import time

import numpy as np
import pytest

import atarirb
from atarirb import cli
from atarirb.errors import ArgumentError, BusyError, ConvertError, DatasetNotFoundError, DiskSpaceError
from atarirb.verbs import convert as module
from atarirb.verbs import remaking
from benchmarks.probes import probe
from tests import shards, truth
from tests.logs import record
from tests.test_final import EPISODES
from tests.test_ingest import FRAMES, digest

CODECS = ("packed", "raw")


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """One log, ingested by each codec."""
    directory = tmp_path_factory.mktemp("convert")
    extra = {"wide": ((), "int64"), "pair": ((2,), "float32")}
    record(directory / "Game/1", [30, 45, 20, 60, 33, 50], 50, extra=extra)
    for codec in CODECS:
        atarirb.ingest(directory / "Game/1", directory / codec, codec=codec)
    return directory


@pytest.fixture
def source(ingested, codec, tmp_path):
    """A dataset to be spoilt."""
    shutil.copytree(ingested / codec, tmp_path / "source")
    return tmp_path / "source"


def other(codec):
    return {"packed": "raw", "raw": "packed"}[codec]


@pytest.mark.parametrize("wanted", CODECS)
@pytest.mark.parametrize("workers", [None, 1, 5])
def test_a_converted_dataset_is_what_an_ingest_makes(ingested, codec, wanted, workers, tmp_path):
    info = atarirb.convert(ingested / codec, tmp_path / "out", codec=wanted, workers=workers)
    assert digest(tmp_path / "out") == digest(ingested / wanted)
    assert (info.codec, info.path) == (wanted, str(tmp_path / "out"))
    assert info == atarirb.show(tmp_path / "out")
    assert atarirb.verify(tmp_path / "out", deep=True).ok


def test_real_frames_are_packed_to_the_same_bytes_as_by_ingest(tmp_path):
    source = truth.SAMPLES / "Pong/1"
    for codec in CODECS:
        truth.ingest(source, tmp_path / codec, codec=codec)
    atarirb.convert(tmp_path / "raw", tmp_path / "out", codec="packed")
    assert digest(tmp_path / "out") == digest(tmp_path / "packed")
    atarirb.convert(tmp_path / "packed", tmp_path / "back", codec="raw")
    assert digest(tmp_path / "back") == digest(tmp_path / "raw")


def test_final_frames_and_segments_are_kept(codec, tmp_path):
    shards.write(tmp_path / "data", EPISODES, codec=codec)
    atarirb.convert(tmp_path / "data", tmp_path / "out", codec=other(codec))
    atarirb.convert(tmp_path / "out", tmp_path / "back", codec=codec)
    assert digest(tmp_path / "back") == digest(tmp_path / "data")
    answers = []
    for name in ("data", "out"):
        with atarirb.open(tmp_path / name, frame_stack=4, n_step=2, final="stored") as reader:
            answers.append([truth.digest(reader[:]), *truth.sample_digests(reader)])
            answers[-1].append(np.stack(reader.locate(slice(None))).tolist())
            np.testing.assert_array_equal(reader.episodes, np.load(tmp_path / "data/episodes.npy"))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("dtype", ["uint16", "float32", "complex128", "bool"])
def test_frames_of_any_dtype(codec, dtype, tmp_path):
    shards.write(tmp_path / "data", EPISODES, codec=codec, frame_shape=(5,), frame_dtype=dtype)
    atarirb.convert(tmp_path / "data", tmp_path / "out", codec=other(codec))
    with atarirb.open(tmp_path / "data") as reader, atarirb.open(tmp_path / "out") as converted:
        truth.assert_same(converted[:], reader[:])


def test_a_second_convert_changes_nothing_and_converts_nothing(source, codec, tmp_path, monkeypatch):
    out = tmp_path / "out"
    first = atarirb.convert(source, out, codec=other(codec))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(remaking.Job, "run", lambda *_: pytest.fail("converted a shard"))
    assert atarirb.convert(source, out, codec=other(codec)) == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


def test_an_ingest_goes_on_in_a_converted_dataset(ingested, codec, tmp_path):
    atarirb.ingest(ingested / "Game/1", tmp_path / "part", codec=codec, splits=[0, 1, 3])
    atarirb.convert(tmp_path / "part", tmp_path / "out", codec=other(codec))
    atarirb.ingest(ingested / "Game/1", tmp_path / "out", codec=other(codec))
    assert digest(tmp_path / "out") == digest(ingested / other(codec))


def test_a_shard_that_changed_is_converted_anew(source, codec, ingested, tmp_path):
    shutil.copytree(ingested / "Game", tmp_path / "Game")
    atarirb.convert(source, tmp_path / "out", codec=other(codec))
    from tests.test_ingest import column, rewrite

    def flip(actions):
        actions[20] ^= 1

    rewrite(column(tmp_path / "Game/1", "$store$_action", 2), flip)
    atarirb.ingest(tmp_path / "Game/1", source, codec=codec)
    atarirb.convert(source, tmp_path / "out", codec=other(codec))
    atarirb.ingest(tmp_path / "Game/1", tmp_path / "fresh", codec=other(codec))
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def spoil(path, at=-20):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("wanted", CODECS)
def test_damaged_frames_fail_their_shard_and_after_mending_only_that_is_converted(
    source, codec, wanted, ingested, tmp_path, monkeypatch
):
    out, path = tmp_path / "out", source / "00002" / FRAMES[codec]
    spoil(path)
    words = "00002/observation.pack: the block of the shard's step 46 is damaged"
    words = words if codec == "packed" else "00002/observation.npy: checksum .* its bytes have changed"
    with pytest.raises(ConvertError, match=f"1 of 6 shards .* failed:\n  split 2: .*{words}") as caught:
        atarirb.convert(source, out, codec=wanted)
    assert "The other 5 are kept" in str(caught.value)
    assert list(caught.value.failures) == [2]
    assert {path.name for path in out.iterdir()} == {f"{split:05d}" for split in (0, 1, 3, 4, 5)}
    with pytest.raises(
        DatasetNotFoundError, match="'atarirb convert' or 'atarirb map' command goes on with it"
    ):
        atarirb.open(out)
    spoil(path)
    done, run = [], remaking.Job.run
    monkeypatch.setattr(remaking.Job, "run", lambda job, *a: (done.append(job.shard.split), run(job, *a))[1])
    atarirb.convert(source, out, codec=wanted)
    assert done == [2]
    assert digest(out) == digest(ingested / wanted)


@pytest.mark.parametrize("name", ["action.npy", "reward.npy", "terminal.npy", "segments.npy", "pair.npy"])
def test_a_damaged_column_fails_its_shard(source, codec, name, tmp_path):
    spoil(source / "00001" / name, at=-1)
    with pytest.raises(ConvertError, match=f"split 1: .*00001/{name}: checksum .* its bytes have changed"):
        atarirb.convert(source, tmp_path / "out", codec=other(codec))
    (source / "00001" / name).write_bytes((source / "00001" / name).read_bytes()[:-1])
    with pytest.raises(ConvertError, match=rf"00001/{name}: [\d,]+ bytes, expected"):
        atarirb.convert(source, tmp_path / "out", codec=other(codec))
    (source / "00001" / name).unlink()
    with pytest.raises(ConvertError, match=f"00001/{name}: missing, though the manifest lists it"):
        atarirb.convert(source, tmp_path / "out", codec=other(codec))


def test_missing_frames_fail_their_shard(source, codec, tmp_path):
    (source / "00001" / FRAMES[codec]).unlink()
    for wanted in CODECS:
        with pytest.raises(ConvertError, match=f"00001/{FRAMES[codec]}: missing, though"):
            atarirb.convert(source, tmp_path / wanted, codec=wanted)


def test_a_damaged_episode_table_is_refused(source, codec, tmp_path):
    spoil(source / "episodes.npy", at=-25)
    with pytest.raises(atarirb.errors.DatasetError, match="episodes.npy"):
        atarirb.convert(source, tmp_path / "out", codec=other(codec))
    assert not (tmp_path / "out").exists()


def test_wrong_arguments(source, codec, ingested, tmp_path):
    before = digest(source)
    with pytest.raises(ArgumentError, match="unknown codec 'mp4'; there are packed, raw"):
        atarirb.convert(source, tmp_path / "out", codec="mp4")
    with pytest.raises(ArgumentError, match="workers is 0"):
        atarirb.convert(source, tmp_path / "out", codec="raw", workers=0)
    with pytest.raises(DatasetNotFoundError, match="no dataset at"):
        atarirb.convert(tmp_path / "nowhere", tmp_path / "out", codec="raw")
    for same in (source, source.parent / "." / "source", f"{source}/../source"):
        with pytest.raises(ArgumentError, match="is the dataset to be converted; name another directory"):
            atarirb.convert(source, same, codec=other(codec))
    assert not (tmp_path / "out").exists()
    assert digest(source) == before
    atarirb.convert(source, tmp_path / "out", codec=codec)
    with pytest.raises(ArgumentError, match=rf"holds Game/1 \(original\) with codec {codec}, not Game/1 "):
        atarirb.convert(source, tmp_path / "out", codec=other(codec))
    (tmp_path / "out/dataset.json").unlink()
    atarirb.ingest(ingested / "Game/1", tmp_path / "few", codec=codec, splits=[0])
    with pytest.raises(ArgumentError, match=r"holds split\(s\) 1, 2, 3, 4, 5, which .*few does not have"):
        atarirb.convert(tmp_path / "few", tmp_path / "out", codec=codec)


def test_a_full_disk_is_known_before_the_first_byte(source, codec, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 900, 100))
    for wanted in CODECS:
        with pytest.raises(DiskSpaceError, match=r"out needs [\d,]+ bytes, its disk has 100 free"):
            atarirb.convert(source, tmp_path / "out", codec=wanted)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wanted", CODECS)
def test_what_it_needs_is_estimated_high_but_not_by_much(codec, wanted, pong, tmp_path):
    from atarirb.store.manifest import read_manifest

    manifest = read_manifest(pong)
    needed = sum(
        remaking.Job(
            origin=pong,
            directory=tmp_path,
            frame=manifest.frame,
            shard=shard,
            codec=codec,
            wanted=wanted,
            threads=1,
        ).disk_bytes()
        for shard in manifest.shards
    )
    made = atarirb.convert(pong, tmp_path / "out", codec=wanted).bytes
    assert made * 0.98 < needed < (made * 1.01 if wanted == "raw" else made * 5)


def test_two_writers_of_one_dataset_do_not_meet(source, codec, ingested, tmp_path, monkeypatch):
    entered, leave = threading.Event(), threading.Event()
    run = remaking.Job.run

    def slow(job, *arguments):
        entered.set()
        leave.wait(20)
        return run(job, *arguments)

    monkeypatch.setattr(remaking.Job, "run", slow)
    options = {"codec": other(codec)}
    thread = threading.Thread(target=atarirb.convert, args=(source, tmp_path / "out"), kwargs=options)
    thread.start()
    try:
        assert entered.wait(20)
        with pytest.raises(BusyError, match="another process is writing"):
            atarirb.convert(source, tmp_path / "out", **options)
        with pytest.raises(BusyError, match="another process is writing"):
            atarirb.ingest(ingested / "Game/1", tmp_path / "out", **options)
    finally:
        leave.set()
        thread.join()
    assert atarirb.verify(tmp_path / "out").ok


def test_an_interrupt_leaves_whole_shards_only_and_is_taken_up_again(
    source, codec, ingested, tmp_path, monkeypatch
):
    run = remaking.Job.run

    def interrupted(job, *arguments):
        if job.shard.split == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return run(job, *arguments)

    monkeypatch.setattr(remaking.Job, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atarirb.convert(source, tmp_path / "out", codec=other(codec), workers=1)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"00000", "00001"}
    monkeypatch.setattr(remaking.Job, "run", run)
    atarirb.convert(source, tmp_path / "out", codec=other(codec))
    assert digest(tmp_path / "out") == digest(ingested / other(codec))


@pytest.mark.parametrize("call", [2, 9, 26, 55, 70])
def test_killed_at_any_write_it_ends_the_same(source, codec, ingested, tmp_path, call):
    code = f"atarirb.convert({str(source)!r}, {str(tmp_path / 'out')!r}, codec={other(codec)!r}, workers=1)"
    status = truth.run_killed(code, at=call)
    assert status == -signal.SIGKILL
    assert not (tmp_path / "out/dataset.json").exists()
    for path in (tmp_path / "out").glob("0*"):
        assert (path / "shard.json").exists()
    atarirb.convert(source, tmp_path / "out", codec=other(codec))
    assert digest(tmp_path / "out") == digest(ingested / other(codec))


def test_memory_does_not_grow_with_the_dataset(tmp_path):
    """Frames of 420 MB, of which packing leaves 60 MB, go through a process that may hold less."""
    from atarirb.store import building, raw
    from atarirb.store.manifest import ColumnRecord
    from atarirb.store.shards import ShardWriter, place

    data, steps, shape = tmp_path / "raw", 60_000, (84, 84)
    (data / "work").mkdir(parents=True)
    shard = ShardWriter(data / "work", 0)
    for name, dtype in (("action", np.int32), ("reward", np.float32), ("terminal", np.uint8)):
        shard.column(name, np.zeros(steps, dtype))
    rng = np.random.default_rng(0)
    frames = np.full((1000, *shape), 7, np.uint8)
    writer = raw.Writer(shard.directory, steps, shape, np.dtype(np.uint8), samples=frames)
    for first in range(0, steps, len(frames)):
        frames.reshape(1000, -1)[:, :1000] = rng.integers(0, 256, (1000, 1000))
        writer.write(frames, first)
    shard.keep(writer.close())
    made = shard.finish(
        segments=np.array([[0, 0]]), finals=np.zeros(0, np.int64), steps=steps, adds=(0, steps),
        capacity=steps, head="start", clipped=True, source={},
    )  # fmt: skip
    place(data / "work", data, made)
    frame = ColumnRecord(shape=shape, dtype="|u1")
    building.finish(
        data, [made], name="Pong/1", layout="x", codec="raw", frame=frame, extra={}, writer_stack=1
    )
    done = probe("convert", data, tmp_path / "packed", "packed")
    assert done["steps"] == steps and done["peak_mb"] < 300
    assert (tmp_path / "packed/00000/observation.pack").stat().st_size > 50_000_000
    done = probe("convert", tmp_path / "packed", tmp_path / "back", "raw")
    assert done["peak_mb"] < 250
    assert (tmp_path / "back/00000/shard.json").read_bytes() == (data / "00000/shard.json").read_bytes()


def test_the_command_line_converts(source, codec, ingested, tmp_path, capfd):
    out = tmp_path / "out"
    assert cli.main(["convert", str(source), str(out), "--codec", other(codec), "--workers", "2"]) == 0
    printed = capfd.readouterr()
    assert f"codec {other(codec)}: " in printed.out and printed.err == ""
    assert digest(out) == digest(ingested / other(codec))
    assert cli.main(["convert", str(source), str(source), "--codec", "raw"]) == 2
    assert "is the dataset to be converted" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["convert", str(source), str(out)])


def test_an_interrupt_says_how_to_go_on(monkeypatch, capfd):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "convert", interrupted)
    assert cli.main(["convert", "a", "b", "--codec", "raw"]) == 130
    assert capfd.readouterr().err == "interrupted; the same command goes on from here\n"


def test_a_path_object_and_a_string_are_the_same(source, codec, tmp_path, capfd):
    one = atarirb.convert(str(source), str(tmp_path / "a"), codec=other(codec), progress=True)
    two = atarirb.convert(pathlib.Path(source), tmp_path / "b", codec=other(codec))
    assert one.steps == two.steps
    assert capfd.readouterr() == ("", "")
