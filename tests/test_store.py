"""Datasets on disk: the golden one, and what opening refuses."""

import errno
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zstandard

import atarirb
from atarirb.errors import AtarirbError, DatasetError, DatasetNotFoundError
from atarirb.store.building import put_manifest
from atarirb.store.dataset import Dataset
from atarirb.store.files import checksum
from atarirb.store.manifest import read_manifest
from atarirb.store.mapping import let_go, map_file
from atarirb.store.npy import NpyRows, NpyWriter, check_npy, header, map_npy
from atarirb.store.shards import narrowed
from benchmarks.workload import make_sparse
from tests import make_golden, shards, truth
from tests.logs import record
from tests.test_ingest import digest

GOLDEN = pathlib.Path(__file__).parent / "data" / "golden"


@pytest.fixture(scope="module")
def pristine(codec, tmp_path_factory):
    directory = tmp_path_factory.mktemp("store")
    record(directory / "Game/1", [30, 45, 20, 60], 50)
    atarirb.ingest(directory / "Game/1", directory / "data", codec=codec)
    return directory / "data"


@pytest.fixture
def dataset(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("kept", ["raw", "packed"])
def test_ingest_of_the_golden_log_gives_the_golden_dataset(tmp_path, kept):
    atarirb.ingest(GOLDEN / "logs/Game/1", tmp_path / "out", codec=kept)
    found, expected = digest(tmp_path / "out"), digest(GOLDEN / f"v2-{kept}/Game/1")
    version = json.loads((GOLDEN / "versions.json").read_text())["zstd"]
    if kept == "packed" and version != list(zstandard.ZSTD_VERSION):  # its blocks may well be others
        for files in (found, expected):
            for name in list(files):
                if "observation." in name or name.endswith(".json"):
                    del files[name]
        with atarirb.open(tmp_path / "out") as reader, atarirb.open(GOLDEN / "v2-raw/Game/1") as other:
            np.testing.assert_array_equal(reader[:]["observation"], other[:]["observation"])
    assert found == expected


@pytest.mark.parametrize("kept", ["raw", "packed"])
def test_the_golden_dataset_is_read_for_ever(kept):
    expected = np.load(GOLDEN / "expected.npz")
    path = GOLDEN / f"v2-{kept}/Game/1"
    with atarirb.open(path, frame_stack=4, n_step=3, columns=["lives"]) as reader:
        assert (reader.info.format_version, reader.info.codec) == (2, kept)
        batch = reader[:]
        drawn = reader.sample(7, 16)["index"]
        slices = reader.sample_slices(7, 4, 5)["index"]
    for name in ("observation", "action", "lives"):
        np.testing.assert_array_equal(batch[name], expected[name])
    for name in ("observation", "reward", "discount", "terminated", "truncated"):
        np.testing.assert_array_equal(batch["next"][name], expected[f"next.{name}"])
    np.testing.assert_array_equal(drawn, expected["drawn"])
    np.testing.assert_array_equal(slices, expected["slices"])
    assert atarirb.verify(path, deep=True).ok


def test_the_golden_recording_is_read_for_ever():
    frames, finals = make_golden.recorded()
    path = GOLDEN / "v2-recorded/Game/me"
    with atarirb.open(path, final="stored", columns=["reward_unclipped"]) as reader:
        batch = reader[:]
        assert reader.episodes["length"].tolist() == [5, 7]
        assert reader.episodes["terminal"].tolist() == [True, False]
        assert reader.episodes["final"].tolist() == [12, 13]
        assert reader.valid_steps == 12
    np.testing.assert_array_equal(batch["observation"], frames)
    following = [*frames[1:5], finals[0], *frames[6:12], finals[1]]
    np.testing.assert_array_equal(batch["next"]["observation"], following)
    np.testing.assert_array_equal(batch["reward_unclipped"], np.arange(12) - 4)
    np.testing.assert_array_equal(batch["next"]["reward"], np.sign(np.arange(12) - 4))
    assert batch["next"]["truncated"].tolist() == [False] * 11 + [True]
    assert batch["next"]["terminated"].tolist() == [False] * 4 + [True] + [False] * 7
    assert atarirb.verify(path, deep=True).ok


def test_plain_numpy_reads_every_column(pristine):
    script = f"""
import numpy as np, pathlib
for path in sorted(pathlib.Path({str(pristine)!r}).rglob("*.npy")):
    print(path.name, np.load(path, mmap_mode="r").dtype)
"""
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert "action.npy int8" in answer.stdout
    assert "observation.npy uint8" in answer.stdout or "observation.idx.npy [('offset'" in answer.stdout


def test_a_scalar_column_is_kept_as_int8_where_that_loses_nothing(tmp_path):
    rewards = np.zeros(60)
    rewards[40:] = 0.5
    truth.play(tmp_path / "Pong/1", [60], capacity=30, rewards=rewards, extra={"ram": ((), "float64")})
    truth.ingest(tmp_path / "Pong/1", tmp_path / "data")
    kept = [shard.columns for shard in read_manifest(tmp_path / "data").shards]
    assert [columns["reward"] for columns in kept] == ["|i1", "<f4", "<f4"]
    assert {columns["action"] for columns in kept} == {"|i1"}
    assert {columns["terminal"] for columns in kept} == {"|u1"}
    with atarirb.open(tmp_path / "data", columns=["ram"]) as reader:
        batch = reader[:]
    assert batch["next"]["reward"].dtype == np.float32 and batch["ram"].dtype == np.float64
    np.testing.assert_array_equal(batch["next"]["reward"], rewards)
    np.testing.assert_array_equal(batch["ram"], np.arange(60))


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        (np.array([-128, 127], np.int64), "int8"),
        (np.array([-129], np.int64), "int64"),
        (np.array([128], np.int32), "int32"),
        (np.array([2**32 + 5], np.int64), "int64"),
        (np.array([200], np.uint16), "uint16"),
        (np.array([-0.0, 1.0], np.float32), "float32"),
        (np.array([np.nan], np.float64), "float64"),
        (np.array([np.inf], np.float16), "float16"),
        (np.array([0.5], np.float32), "float32"),
        (np.array([1e30], np.float64), "float64"),
        (np.array([3.0, -7.0], np.float32), "int8"),
        (np.array([True]), "bool"),
        (np.array([3], np.uint8), "uint8"),
        (np.array([3 + 0j]), "complex128"),
        (np.zeros((2, 2), np.int64), "int64"),
        (np.zeros(0, np.int32), "int8"),
    ],
)
def test_what_a_column_is_stored_as(values, stored):
    narrow = narrowed(values)
    assert narrow.dtype == stored
    assert narrow.astype(values.dtype).tobytes() == values.tobytes()


def test_episodes_tell_how_each_began_and_ended(pristine):
    with atarirb.open(pristine) as reader:
        episodes = reader.episodes
        batch = reader[:]
    assert episodes["length"].sum() == len(batch["index"])
    for episode in episodes:
        rows = slice(episode["start"], episode["start"] + episode["length"])
        assert batch["next"]["terminated"][rows][-1] == episode["terminal"]
        assert not batch["next"]["terminated"][rows][:-1].any()
        assert episode["return"] == batch["next"]["reward"][rows].sum()


def test_no_dataset_says_how_to_make_one(tmp_path, pristine):
    with pytest.raises(DatasetNotFoundError, match="no such directory.*\n  atarirb ingest REPLAY_LOGS"):
        atarirb.open(tmp_path / "Pong/1")
    with pytest.raises(DatasetNotFoundError, match="did you mean 'Pong/1'"):
        atarirb.open("nowhere/Pnog/1")
    with pytest.raises(DatasetNotFoundError, match=r"no dataset\.json in it.*\n  atarirb ingest REPLAY_LOGS"):
        atarirb.open(tmp_path)
    with pytest.raises(DatasetNotFoundError, match="these are replay logs; make a dataset"):
        atarirb.open(pristine.parent / "Game/1")
    with pytest.raises(DatasetNotFoundError, match="these are replay logs; make a dataset"):
        atarirb.open(pristine.parent / "Game/1/replay_logs")
    (tmp_path / "half").mkdir()
    shutil.copytree(pristine / "00000", tmp_path / "half/00000")
    with pytest.raises(DatasetNotFoundError, match="its making did not finish; the same"):
        atarirb.open(tmp_path / "half")
    with pytest.raises(FileNotFoundError):
        atarirb.open(tmp_path)


def test_a_manifest_that_is_damaged_or_of_another_version(dataset):
    manifest = dataset / "dataset.json"
    content = json.loads(manifest.read_text())
    for text, words in [
        ("{", "not a manifest"),
        ("[]", "not a manifest"),
        (json.dumps({**content, "format_version": 1}), "format version 1, this atarirb reads version 2"),
        (json.dumps({**content, "codec": "mp4"}), "frames kept as 'mp4', this atarirb reads packed, raw"),
        (json.dumps({**content, "steps": 3}), "its episodes do not cover the 3 steps"),
        (json.dumps({name: content[name] for name in content if name != "frame"}), "damaged: KeyError"),
        (json.dumps({**content, "more": 1}), "damaged: TypeError"),
        (json.dumps({**content, "steps": "155"}), "damaged: TypeError: steps is '155'"),
        (json.dumps({**content, "name": 5}), "damaged: TypeError: name is 5"),
        (json.dumps({**content, "shards": []}), "damaged: it lists no shards"),
        (json.dumps({**content, "frame": {"shape": [3], "dtype": "zzz"}}), "damaged: TypeError"),
        (json.dumps({**content, "shards": [{**content["shards"][0], "split": "0"}]}), "split is '0'"),
        (json.dumps({**content, "steps": 10**30}), "damaged: ValueError: steps is 1000"),
        ("\x00\xff", "not a manifest"),
    ]:
        manifest.write_text(text, encoding="latin-1")
        with pytest.raises(DatasetError, match=words):
            atarirb.open(dataset)


@pytest.mark.parametrize("name", ["observation", "action", "reward", "terminal", "segments"])
def test_a_file_that_is_not_what_the_manifest_says_is_refused_at_open(dataset, name):
    if name == "observation" and not (dataset / "00001/observation.npy").exists():
        name = "observation.idx"
    path = dataset / f"00001/{name}.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(
        DatasetError, match=rf"{name}.npy: [\d,]+ bytes, expected {len(data):,}; it is damaged"
    ):
        atarirb.open(dataset)
    path.write_bytes(data[:40])
    with pytest.raises(DatasetError, match=rf"{name}.npy: its npy header is damaged"):
        atarirb.open(dataset)
    values = np.load(pathlib.Path(dataset / f"00000/{name}.npy"))
    np.save(path, np.zeros(values.shape, np.complex64))
    with pytest.raises(DatasetError, match=rf"{name}.npy: holds complex64\[\d+.*expected .*\[\d+"):
        atarirb.open(dataset)
    path.unlink()
    with pytest.raises(DatasetError, match=rf"{name}.npy: missing, though the manifest lists it"):
        atarirb.open(dataset)


@pytest.mark.parametrize(
    ("field", "value"), [("start", 10**9), ("start", -1), ("length", 0), ("length", -5), ("length", 10**9)]
)
def test_an_episode_table_that_would_lead_astray_is_refused_at_open(dataset, field, value):
    table = np.load(dataset / "episodes.npy")
    table[field][1] = value
    np.save(dataset / "episodes.npy", table)
    for reads in (atarirb.open, atarirb.show):
        with pytest.raises(
            DatasetError, match="episodes.npy: damaged: its episodes do not cover the 155 steps"
        ):
            reads(dataset)


def test_a_column_saved_again_by_numpy_is_as_good(dataset, pristine):
    path = dataset / "00001/action.npy"
    with open(path, "r+b") as file:
        values = np.load(path)
        np.lib.format.write_array(file, values, version=(2, 0))
    with atarirb.open(dataset) as reader, atarirb.open(pristine) as other:
        np.testing.assert_array_equal(reader[:]["action"], other[:]["action"])


def test_verify_names_every_damaged_file(dataset):
    assert atarirb.verify(dataset, deep=True).ok
    (frames,) = {"observation.npy", "observation.pack"} & {path.name for path in dataset.glob("00001/*")}
    data = bytearray((dataset / "00001" / frames).read_bytes())
    data[-5] ^= 1
    (dataset / "00001" / frames).write_bytes(data)
    (dataset / "00000/segments.npy").unlink()
    (dataset / "episodes.npy").write_bytes(b"")
    (dataset / "00002/shard.json").write_text("{}")
    report = atarirb.verify(dataset)
    assert not report.ok
    words = "\n".join(report.problems)
    assert re.search(rf"00001/{frames}: checksum \w{{8}}, expected \w{{8}}; its bytes have changed", words)
    assert "00000/segments.npy: missing" in words
    assert "episodes.npy: 0 bytes, expected" in words
    assert "shard.json is not what the manifest says" in words
    assert len(report.problems) == 4


@pytest.mark.parametrize(
    ("name", "row", "value", "words"),
    [
        ("terminal", 7, 3, "the terminal of row 7 is none of 0, 1 and 2"),
        ("reward", 8, np.inf, "the reward of row 8 is not a finite number"),
        ("action", 9, -2, "the action of row 9 is negative"),
        ("segments", 0, [0, 99], "holds a row outside of 0..49"),
        ("segments", 0, [1, 2], "its segments do not cover the 47 steps, each once"),
        ("segments", 1, "later", "does not follow the one before it in the source files"),
        ("terminal", 20, 1, "row 21 does not follow the one before it"),
        ("reward", 12, 5, "is not what the columns say"),
    ],
)
def test_verify_deep_finds_values_that_cannot_be(dataset, name, row, value, words):
    """The checksum is made to fit, so that only the values tell."""
    path = dataset / f"00001/{name}.npy"
    values = np.load(path)
    if isinstance(value, float):
        values = values.astype(np.float32)
    values[row] = values[row] + [0, 1] if value == "later" else value
    put(path, values)
    assert atarirb.verify(dataset).ok
    problems = atarirb.verify(dataset, deep=True).problems
    assert any(words in problem for problem in problems), problems


def put(path, values):
    """Replace a column of a shard, with a record made to fit."""
    np.save(path, values)
    record = json.loads((path.parent / "shard.json").read_text())
    record["files"][path.name] = {"bytes": path.stat().st_size, "crc32": checksum(path)}
    if path.stem in record["columns"]:
        record["columns"][path.stem] = values.dtype.str
    (path.parent / "shard.json").write_text(json.dumps(record))
    manifest = json.loads((path.parent.parent / "dataset.json").read_text())
    manifest["shards"] = [
        record if shard["split"] == record["split"] else shard for shard in manifest["shards"]
    ]
    (path.parent.parent / "dataset.json").write_text(json.dumps(manifest))


def test_show_reads_no_column(dataset):
    for path in dataset.rglob("*"):
        if path.name.startswith(("observation.", "action.")):
            path.unlink()
    info = atarirb.show(dataset)
    assert (info.steps, info.name, info.rewards_clipped) == (155, "Game/1", True)
    assert "clipped to {-1, 0, 1}: no other value occurs" in str(info)


def test_show_tells_what_frames_take(pristine, codec):
    info = atarirb.show(pristine)
    files = list(pristine.glob("*/observation.*"))
    assert info.frame_disk_bytes == sum(path.stat().st_size for path in files)
    assert info.frame_bytes == 155 * 12
    assert info.frame_ratio == info.frame_bytes / info.frame_disk_bytes
    assert (
        f"codec {codec}: {info.frame_disk_bytes:,} bytes for 1,860, {info.frame_ratio:.1f}x smaller"
        in str(info)
    )
    assert f"on disk   {info.bytes:,} bytes, {info.bytes / 155:,.0f} a step" in str(info)


def test_a_writer_takes_runs_in_any_order(tmp_path):
    values = np.arange(40, dtype=np.int32).reshape(10, 4)
    writer = NpyWriter(tmp_path / "a.npy", values.shape, values.dtype)
    for first, stop in [(4, 7), (7, 10), (1, 4), (0, 1)]:
        writer.write(values[first:stop], first)
    done = writer.close()
    assert done.crc32 == checksum(tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), values)
    mapped = map_npy(tmp_path / "a.npy", values.shape, values.dtype)
    np.testing.assert_array_equal(mapped, values)
    assert mapped.ctypes.data % 64 == 0
    assert not mapped.flags.writeable
    np.testing.assert_array_equal(NpyRows(tmp_path / "a.npy", values.shape, values.dtype)[3:8], values[3:8])


def test_a_writer_that_was_not_given_every_row_does_not_finish(tmp_path):
    writer = NpyWriter(tmp_path / "a.npy", (3,), np.dtype(np.int32))
    writer.write(np.zeros(1, np.int32), 0)
    with pytest.raises(AssertionError, match="a.npy"):
        writer.close()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (5,), (70, 2, 2)])
def test_a_header_is_numpys_own(tmp_path, shape):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    assert (tmp_path / "a.npy").read_bytes().startswith(header(shape, np.dtype(np.uint8)))
    assert map_npy(tmp_path / "a.npy", shape, np.uint8).shape == shape


def test_a_file_that_the_system_does_not_map_is_an_error_with_its_path(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(3))
    with open(path, "r+b") as file:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            with pytest.raises(PermissionError) as error:
                map_file(path, descriptor, 10)
        finally:
            os.close(descriptor)
        assert (error.value.errno, error.value.filename) == (errno.EACCES, str(path))
        mapped = map_file(path, file.fileno(), 10)
    assert mapped.tobytes() == path.read_bytes()[:10]
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        mapped.flags.writeable = True


def limit_of_maps():
    limit = pathlib.Path("/proc/sys/vm/max_map_count")
    return int(limit.read_text()) if limit.exists() else 1 << 62


@pytest.mark.skipif(limit_of_maps() > 200_000, reason="no limit on maps, or one that is far off")
def test_an_error_for_want_of_maps_says_what_the_limit_is_and_what_to_do(tmp_path, python):
    path, limit = tmp_path / "a.npy", limit_of_maps()
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    code = """
        import os, resource, sys
        from atarirb.store.mapping import map_file

        descriptor = os.open(sys.argv[1], os.O_RDONLY)

        def until_refused(size):
            kept = []
            try:
                while len(kept) < 300_000:
                    kept.append(map_file(sys.argv[1], descriptor, size))
            except OSError as error:
                print(error.errno, error.filename, error)

        until_refused(131)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 34, -1))
        until_refused(1 << 32)
    """
    maps, space = python(code, path).splitlines()
    assert maps.startswith(f"{errno.ENOMEM} {path} ") and space.startswith(f"{errno.ENOMEM} {path} ")
    assert re.search(rf"no room to map 131 more bytes: this process has [\d,]+ maps, .* is {limit:,};", maps)
    assert f"open fewer datasets at a time, or raise it with 'sysctl -w vm.max_map_count={4 * limit}'" in maps
    assert "the address space is used up or limited (ulimit -v); open fewer datasets at a time" in space


def test_a_header_of_another_writer_is_read_and_compared(tmp_path):
    values = np.arange(6, dtype=np.int32).reshape(3, 2)
    path = tmp_path / "a.npy"
    text = b"{'shape':(3,2),'fortran_order':False,'descr':'<i4'}".ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values.tobytes())
    np.testing.assert_array_equal(map_npy(path, (3, 2), np.int32), values)
    long = text[:-1].ljust(4_000) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(long).to_bytes(2, "little") + long + values.tobytes())
    np.testing.assert_array_equal(map_npy(path, (3, 2), np.int32), values)
    np.save(path, values)
    for read in (map_npy, check_npy):
        with pytest.raises(DatasetError, match=r"holds int32\[3, 2\], expected int32\[2, 3\]"):
            read(path, (2, 3), np.int32)
        with pytest.raises(DatasetError, match=r"holds int32\[3, 2\], expected float32\[3, 2\]"):
            read(path, (3, 2), np.float32)


def resident(name):
    """Bytes that this process has of the files of a name that it has mapped; None if it has mapped none."""
    with open("/proc/self/smaps") as file:
        parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", file.read(), flags=re.MULTILINE)
    found = [part for part in parts if part.split("\n", 1)[0].endswith(f"/{name}")]
    return sum(int(part.split("\nRss:")[1].split()[0]) for part in found) * 1024 if found else None


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux")
def test_an_episode_table_takes_no_memory_until_it_is_read(dataset):
    expected = np.load(dataset / "episodes.npy")
    opened = Dataset(dataset)
    assert resident("episodes.npy") == 0
    np.testing.assert_array_equal(opened.episodes, expected)
    assert resident("episodes.npy") > 0
    let_go(opened.episodes["start"][1:])
    assert resident("episodes.npy") == 0
    np.testing.assert_array_equal(opened.episodes, expected)
    let_go(expected)  # of no file: nothing is done to it
    np.testing.assert_array_equal(opened.episodes, expected)
    rows = opened.episodes[1:3]
    del opened
    np.testing.assert_array_equal(rows, expected[1:3])
    del rows
    assert resident("episodes.npy") is None


def test_a_table_that_was_replaced_is_read_on(dataset):
    opened = Dataset(dataset)
    expected = np.load(dataset / "episodes.npy")
    content = (dataset / "episodes.npy").read_bytes()[:-1] + b"\x07"
    put_manifest(dataset, opened.manifest, content)
    assert {path.name for path in dataset.glob("episodes*")} == {"episodes.1.npy"}
    put_manifest(dataset, read_manifest(dataset), content[:-1] + b"\x06")
    assert {path.name for path in dataset.glob("episodes*")} == {"episodes.npy"}
    np.testing.assert_array_equal(opened.episodes, expected)


@pytest.mark.parametrize(
    ("field", "value", "sound"), [("final", 155, True), ("final", 157, False), ("final", 154, False)]
)
def test_a_final_frame_that_is_not_there_is_refused_at_open(tmp_path, codec, field, value, sound):
    shards.write(tmp_path / "data", [[(100, 1, True), (55, 1, True)]], codec=codec)
    table = np.load(tmp_path / "data/episodes.npy")
    table[field][1] = value
    np.save(tmp_path / "data/episodes.npy", table)
    if sound:
        assert Dataset(tmp_path / "data").episodes["final"].tolist() == [155, value]
        return
    with pytest.raises(DatasetError, match="episodes.npy: damaged"):
        Dataset(tmp_path / "data")


def test_each_row_of_a_long_episode_table_is_checked(tmp_path):
    """Tables are checked a piece at a time: rows at the seams too."""
    make_sparse(tmp_path / "data", shards=2, steps=20_000, episode=4)
    table = np.load(tmp_path / "data/episodes.npy")
    assert len(Dataset(tmp_path / "data").episodes) == 10_000
    for row in (1, 4_095, 4_096, 4_097, 8_191, 8_192, 9_999):
        for field, value in [("start", 1), ("length", 1), ("final", 3)]:
            bad = table.copy()
            bad[field][row] += value
            np.save(tmp_path / "data/episodes.npy", bad)
            with pytest.raises(DatasetError, match="its episodes do not cover the 40,000 steps"):
                Dataset(tmp_path / "data")


def test_a_dataset_is_read_on_when_the_working_directory_changes(dataset, tmp_path, monkeypatch):
    monkeypatch.chdir(dataset.parent)
    steps = np.arange(155)
    with atarirb.open("data") as reader, atarirb.open(dataset) as other:
        monkeypatch.chdir("/")
        for found, expected in zip(reader.locate(steps), other.locate(steps), strict=True):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(reader[:]["observation"], other[:]["observation"])


def test_a_column_that_is_gone_when_it_is_asked_for_is_an_error(dataset):
    opened = Dataset(dataset)
    (dataset / "00001/segments.npy").unlink()
    with pytest.raises(DatasetError, match=r"00001/segments.npy: missing, though the manifest lists it"):
        opened.slot_of(np.arange(155))


def test_an_ingest_error_survives_pickling():
    error = atarirb.errors.IngestError("words", {3: atarirb.errors.LogError("why")})
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), str(again.failures[3])) == ("words", "why")


def test_every_error_is_also_a_builtin():
    from atarirb import errors

    family = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(family) > 10
    for error in family:
        assert issubclass(error, AtarirbError)
        others = [base for base in error.__bases__ if issubclass(base, Exception)]
        others = [base for base in others if base is not AtarirbError]
        assert error is AtarirbError or [base.__module__ for base in others] == ["builtins"]
