"""The benchmarks run, on little data; their figures are not looked at."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import __main__ as everything
from benchmarks import ingest, measure, report, sampling
from benchmarks.workload import Workload, make_sparse


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    return tmp_path_factory.mktemp("bench")


def test_everything_runs_on_little_data(root, capsys):
    assert everything.main(["--quick", "--root", str(root)]) == 0
    printed = capsys.readouterr().out
    assert "sample_slices(int, 16, 64)" in printed and "peak memory" in printed
    for name in ("sampling", "ingest"):
        content = json.loads((root / f"quick-{name}.json").read_text())
        assert content["quick"] and content["machine"]["packages"]["numpy"] == np.__version__
        assert all(row["ours"] is None or row["ours"] > 0 for row in content["rows"] if not row["rival"])
    left = sorted(path.name for path in (root / "quick").iterdir())
    assert left == ["big", "data", "logs", "scratch", "single", *(["torchrl"] if "torchrl" in left else [])]
    assert not any((root / "quick/scratch").iterdir())


def test_workload_is_made_once(root):
    workload = Workload(root / "quick", quick=True)
    assert len({path.name for path in (workload.logs() / "replay_logs").glob("add_count*")}) >= 20
    assert len(list((workload.single() / "replay_logs").glob("add_count*"))) == 1
    before = (workload.dataset() / "dataset.json").stat().st_mtime_ns
    assert (workload.dataset() / "dataset.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("module", [sampling, ingest])
def test_arguments_are_refused_in_words(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["--quik"])
    assert "--quick" in capsys.readouterr().err


def test_sparse_dataset_takes_no_room(tmp_path):
    import atarirb

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


def test_report_leaves_a_file_without_markers(tmp_path, capsys):
    measure.finish("T", [], tmp_path / "t.json", quick=False)
    readme = tmp_path / "README.md"
    readme.write_text("nothing\n")
    assert report.main([str(tmp_path / "t.json"), "--readme", str(readme)]) == 0
    assert readme.read_text() == "nothing\n"
    assert report.BEGIN in capsys.readouterr().err
