"""The benchmarks run, on little data; their figures are not looked at."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import atarirb
from benchmarks import __main__ as everything
from benchmarks import codec, feed, ingest, measure, packed, paging, recording, report, sampling, variants
from benchmarks.workload import Workload, make_sparse

#: What the tables of each measurement say, among other things.
SAYS = {
    "sampling": "sample_slices(int, 16, 64)",
    "packed": "decode, two threads",
    "feed": "open 4 runs and mix them",
    "codec": "templates evenly spaced",
    "ingest": "peak memory",
    "stores": "bytes that came twice after a kill",
    "recording": "record Breakout",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    pytest.importorskip("ale_py.vector_env")
    return tmp_path_factory.mktemp("bench")


@pytest.mark.parametrize("name", list(everything.MEASUREMENTS))
def test_each_measurement_runs_on_little_data(name, root, capsys):
    if name in ("packed", "codec"):
        libzstd = pytest.importorskip("atarirb.store.packed.libzstd")
        if libzstd.library() is None:
            pytest.skip("no libzstd that can be called directly")
    assert everything.main([name, "--quick", "--root", str(root)]) == 0
    assert SAYS[name] in capsys.readouterr().out
    content = json.loads((root / f"quick-{name}.json").read_text())
    assert content["quick"] and content["machine"]["packages"]["numpy"] == np.__version__
    assert all(row["ours"] is None or row["ours"] >= 0 for row in content["rows"])
    assert any(row["bar"] for row in content["rows"])
    assert not any((root / "quick/scratch").glob("*"))
    assert not (root / "quick/sparse").exists()


def test_names_are_checked(capsys):
    with pytest.raises(SystemExit):
        everything.main(["samplin"])
    assert "no measurement samplin; there are sampling, packed" in capsys.readouterr().err


def test_workload_is_made_once(root):
    workload = Workload(root / "quick", quick=True)
    assert len({path.name for path in (workload.logs() / "replay_logs").glob("add_count*")}) >= 20
    assert len(list((workload.single() / "replay_logs").glob("add_count*"))) == 1
    for make in (workload.dataset, lambda: workload.single_dataset("packed")):
        before = (make() / "dataset.json").stat().st_mtime_ns
        assert (make() / "dataset.json").stat().st_mtime_ns == before


def test_logs_of_all_capacities_are_of_one_play(root):
    workload = Workload(root / "quick", quick=True)
    with atarirb.open(workload.dataset()) as many, atarirb.open(workload.single_dataset("raw")) as single:
        rows = np.arange(0, len(single), 97)
        ours, theirs = single.get(rows), many.get(rows)
    np.testing.assert_array_equal(ours["observation"], theirs["observation"])
    np.testing.assert_array_equal(ours["action"], theirs["action"])


def test_variants_change_the_codec_and_leave_it_as_it_was(tmp_path):
    rng = np.random.default_rng(0)
    frames = np.repeat(rng.integers(0, 4, (40, 84, 84), np.uint8), 20, axis=0)
    frames[:, :8, :8] = rng.integers(0, 255, (800, 8, 8))
    before = variants.pack(frames, tmp_path / "before")
    sizes = {}
    for number, (name, change) in enumerate(variants.variants(len(frames)).items()):
        with change:
            sizes[name] = variants.pack(frames, tmp_path / str(number)).pack_bytes
    assert sizes[variants.ASIS] == before.pack_bytes
    assert len(set(sizes.values())) > len(sizes) / 2
    assert sizes[variants.CONTENT] == before.pack_bytes + 4 * len(frames)
    assert sizes[variants.USUAL] > sizes[variants.CONTENT]
    assert variants.pack(frames, tmp_path / "after").pack_bytes == before.pack_bytes


def test_files_forgotten_are_read_from_the_disk_again(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    with open(path) as file:
        os.fsync(file.fileno())
    mapped = np.memmap(path, np.uint8, "r")
    assert paging.address(path) == mapped.ctypes.data
    mapped.sum()
    before = paging.disk_bytes()
    paging.forget(tmp_path)
    assert mapped.sum() == 0
    if paging.disk_bytes() == before:
        pytest.skip("this file system has no disk below it, or does not count")
    assert paging.disk_bytes() - before >= 1 << 20


@pytest.mark.parametrize("module", [sampling, packed, feed, codec, ingest, recording])
def test_arguments_are_refused_in_words(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["--quik"])
    assert "--quick" in capsys.readouterr().err


def test_sparse_dataset_takes_no_room(tmp_path):
    make_sparse(tmp_path / "sparse", shards=2, steps=10_000)
    with atarirb.open(tmp_path / "sparse") as reader:
        assert len(reader) == 20_000 and len(reader.episodes) == 20
        assert not reader.sample(0, 8)["observation"].any()
    files = [path.stat() for path in (tmp_path / "sparse").rglob("*.npy")]
    assert sum(file.st_size for file in files) > 20_000 * 7056
    assert sum(file.st_blocks * 512 for file in files) < 1_000_000


@pytest.mark.parametrize(
    ("ours", "ratio", "bar", "ok"),
    [(5, None, "< 5", False), (5, None, "<= 5", True), (5, 0.7, "<= 0.7", True), (5, 4, ">= 5", False)],
)
def test_bar_judges_the_ratio_where_there_is_one(ours, ratio, bar, ok):
    assert measure.Row(what="x", ours=ours, unit="ms", ratio=ratio, bar=bar).ok is ok


def test_no_bar_no_verdict():
    assert measure.Row(what="x", ours=1, unit="ms").ok is None


def test_missed_bar_fails_a_full_run_only(tmp_path, capsys):
    rows = [measure.Row(what="slow thing", ours=2, unit="s", bar="< 1")]
    assert measure.finish("T", rows, tmp_path / "t.json", quick=True) == 0
    assert measure.finish("T", rows, tmp_path / "t.json", quick=False) == 1
    captured = capsys.readouterr()
    assert "1 bar missed: slow thing" in captured.err and "**FAILED**" in captured.out


def test_race_takes_turns_and_gives_each_call_its_own_seed():
    seeds = []

    def contestant(seed):
        seeds.append(seed)
        return lambda: None

    times = measure.race({"a": contestant, "b": contestant}, rounds=4, calls=3)
    assert len(seeds) == len(set(seeds)) and times.ms("a") >= 0
    assert times.row("what", "a", "b", bar="< 1e9").ok


def test_report_fills_the_markers_again_and_again(tmp_path, capsys):
    rows = [measure.Row(what="thing", ours=1, unit="ms", rival="other", theirs=2, ratio=0.5, bar="< 1")]
    measure.finish("T", rows, tmp_path / "t.json", quick=False)
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        assert report.main([str(tmp_path / "t.json"), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\nT, on ") and text.endswith(f"{report.END}\nafter\n")
    assert text.count("| thing | 1 ms | other") == 1 and "old" not in text
    capsys.readouterr()


def test_report_has_grids_and_notes(tmp_path, capsys):
    grid = measure.Grid(title="By game", head=["game", "B"], cells=[["Pong", "47"]])
    measure.finish("T", [], tmp_path / "t.json", quick=False, grids=[grid], notes=["A note."])
    written = report.markdown([tmp_path / "t.json"])
    printed = capsys.readouterr().out
    for text in (written, printed):
        assert "By game:\n\n| game | B  |\n|------|----|\n| Pong | 47 |\n\nA note.\n" in text


def test_report_leaves_a_file_without_markers(tmp_path, capsys):
    measure.finish("T", [], tmp_path / "t.json", quick=False)
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n")
    assert report.main([str(tmp_path / "t.json"), "--readme", str(readme)]) == 0
    assert readme.read_text() == "nothing\n"
    assert report.BEGIN in capsys.readouterr().err
