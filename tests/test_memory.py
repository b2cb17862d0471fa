"""What a dataset of a whole run's size costs to open and to draw from."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import atarirb
from benchmarks.workload import make_sparse


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run: 51 splits of a million steps, 360 GB of zeros that take no room."""
    directory = tmp_path_factory.mktemp("sparse")
    make_sparse(directory, shards=51)
    assert sum(path.stat().st_size for path in directory.rglob("*.npy")) > 353e9
    return directory


def test_opening_a_whole_run_takes_little_memory(run):
    script = f"""
import atarirb, pathlib
def resident():
    return int(pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
reader = atarirb.open({str(run)!r}, frame_stack=4)
print(resident())
"""
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert int(answer.stdout) < 200e6


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
def test_three_hundred_runs_are_open_at_once(run, tmp_path):
    """50M steps each: 15 billion steps in one process, within what a system allows by default."""
    limit = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    if limit < 65_530:
        pytest.skip(f"only {limit:,} maps are allowed here")
    script = f"""
import os, pathlib, resource
import numpy as np
from atarirb import kernels
from atarirb.store.dataset import Dataset
from atarirb.store.joined import Joined

def seen():
    status = pathlib.Path("/proc/self/status").read_text()
    with open("/proc/self/maps") as file:
        maps = sum(1 for _ in file)
    files = len(os.listdir("/proc/self/fd"))
    return np.array([int(status.split("VmRSS:")[1].split()[0]) * 1024, maps, files])

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
Dataset({str(tmp_path / "0")!r})
before = seen()
parts = [Dataset(f"{tmp_path}/{{number}}") for number in range(300)]
opened = seen()
joined = Joined(parts)
print(*(opened - before), *(seen() - opened), joined.firsts[-1])
out = np.full((3, 84, 84), 1, np.uint8)
joined.frames.frames(kernels.ticket(), joined.firsts[[0, 150, 300]] - [0, 0, 1], out)
print(out.max())
"""
    for number in range(300):
        (tmp_path / str(number)).symlink_to(run)
    answer = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    memory, maps, files, more_memory, more_maps, more_files, steps, value = map(int, answer.stdout.split())
    assert memory < 200e6
    assert maps < 46_500
    assert (files, more_files) == (0, 0)
    assert more_maps < 10
    assert more_memory < 20e6
    assert (steps, value) == (300 * 51_000_000, 0)


def test_a_whole_run_is_drawn_from_evenly_to_its_end(run):
    with atarirb.open(run) as reader:
        index = np.concatenate([reader.sample(key, 64)["index"] for key in range(40)])
        last = reader.get([-1])
    counts = np.bincount(index // 5_100_000, minlength=10)
    assert counts.min() > 0.6 * counts.mean()
    assert last["index"].tolist() == [50_999_999]
    assert last["next"]["terminated"].tolist() == [True]


def test_a_selection_shares_the_maps_and_is_drawn_from_in_the_same_way(run):
    with atarirb.open(run) as reader:
        some = reader.select(np.arange(len(reader.episodes)) % 100 == 7)
        assert some._dataset is reader._dataset
        assert len(some._valid.cumulative) == len(reader._valid.cumulative)  # the same search per draw
        batch = some.sample(0, 100)
    assert (batch["index"] // 1000 % 100 == 7).all()


def test_files_of_frames_are_not_read_ahead(run):
    if not os.path.exists("/proc/self/smaps"):
        pytest.skip("no smaps here")
    with atarirb.open(run):
        with open("/proc/self/smaps") as file:
            text = file.read()
    flags = [
        part.split("VmFlags:")[1].splitlines()[0].split()
        for part in text.split(str(run))[1:]
        if part.split("\n", 1)[0].endswith("observation.npy")
    ]
    assert len(flags) == 51
    assert all("rr" in flag for flag in flags)
