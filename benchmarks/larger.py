"""Batches of data that are larger than memory, raw and packed.

Each codec's dataset is read in a fresh process, which opens it, takes a batch (so that kernels and templates
are there), forgets all that is cached of the files, and then has only an eighth of the raw frames' size for
the cache of files, by a memory cgroup: so raw frames mostly come from the disk, as a run of 353 GB does with
44 GB left to the cache, while packed ones fit. It then reads all files once, draws batches until what is
cached no longer depends on that, and is timed. Where no cgroup can be made, raw frames are dropped from the
cache before each batch instead, and packed ones are not. "Cold" is with nothing cached before each batch, for
both codecs.

Raw frames are read in three ways: as the reader does, whose maps are read where they are touched, without
reading ahead; with those of a batch announced before (MADV_WILLNEED of each step's two frames); and with
those read before into nowhere by threads (pread), so that the disk has many reads in flight.

    python -m benchmarks.larger batches DATASET CGROUP_PROCS|none cold|evict|limit BATCHES
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import paging
from benchmarks.field import B
from benchmarks.measure import Row
from benchmarks.probes import probe
from benchmarks.workload import Workload, cache, size

#: Part of the raw frames that fits the cache.
PART = 1 / 8
#: Less leaves no room for the process itself.
_LEAST = 48 << 20
_PREADERS = 16
_ASIS, _ANNOUNCED, _READ = "raw, as it is", "raw, announced", f"raw, {_PREADERS} threads read first"


def measure(workload: Workload) -> tuple[list[Row], str]:
    """Measure batches with too little memory for raw frames, and with none of them cached.

    Returns:
        The rows, and what is to be known of how they were measured.
    """
    paths = {codec: workload.single_dataset(codec) for codec in ("packed", "raw")}
    megabytes = {codec: size(path) / 1e6 for codec, path in paths.items()}
    room = max(int(size(paths["raw"]) * PART), _LEAST)
    batches, rounds = (3, 1) if workload.quick else (40, 3)
    scarce: dict[str, list[dict[str, float]]] = {codec: [] for codec in paths}
    cold: dict[str, list[dict[str, float]]] = {codec: [] for codec in paths}
    what, note = f"get({B}), {room / 1e6:,.0f} MB of cache", _LIMITED
    for _ in range(rounds):
        for codec, path in paths.items():
            with paging.limited(room) as group:
                if group is None:
                    what, note = f"get({B}), raw uncached", _EVICTED
                mode = "limit" if group is not None else "evict" if codec == "raw" else "cached"
                scarce[codec].append(_probe(path, group, mode, batches))
            cold[codec].append(_probe(path, None, "cold", batches // 4 + 1))
    for path in paths.values():
        cache(path)
    given = note.format(
        room=f"{room / 1e6:,.0f} MB", **{key: f"{mb:,.0f} MB" for key, mb in megabytes.items()}
    )
    return [*_table(what, scarce, "<= 0.1"), *_table(f"get({B}), cold", cold)], f"{given} {_COLD}"


_LIMITED = (
    "{room} of cache: each codec's process, when it had opened its dataset and taken a batch, was put into a "
    "memory cgroup of that many bytes, an eighth of the raw dataset's {raw}; the packed one has {packed}. "
    "What was read from the disk is what the system counted for the process."
)
_EVICTED = (
    "Raw uncached: no memory cgroup could be made here, so the raw dataset's {raw} were dropped from the "
    "cache before each batch, and the packed one's {packed} were not."
)
_COLD = (
    "Cold: all files dropped from the cache before each batch, for both; the templates stay in the process."
)


def _probe(dataset: Path, group: Path | None, mode: str, batches: int) -> dict[str, float]:
    return probe("batches", dataset, group or "none", mode, batches, module="benchmarks.larger")


def _table(what: str, answers: dict[str, list[dict[str, float]]], bar: str = "") -> list[Row]:
    def median(codec: str, name: str) -> float:
        return statistics.median(answer[name] for answer in answers[codec])

    pairs = list(zip(answers["packed"], answers["raw"], strict=True))
    found = [
        Row(
            what=what,
            ours=median("packed", "packed"),
            unit="ms",
            rival=name,
            theirs=median("raw", name),
            ratio=statistics.median(mine["packed"] / other[name] for mine, other in pairs),
            bar=bar,
        )
        for name in (_ASIS, _ANNOUNCED, _READ)
    ]
    read = Row(
        what=f"{what}: read from disk",
        ours=median("packed", "packed, MB"),
        unit="MB",
        rival=_ASIS,
        theirs=median("raw", f"{_ASIS}, MB"),
    )
    return [*found, read]


def batches(path: str, group: str, mode: str, count: str) -> dict[str, float]:
    """Time batches of a dataset of one shard, which only has what it is given of the cache.

    Args:
        path: The dataset.
        group: File of the cgroup's processes, or "none".
        mode: "limit" by that, all dropped before each batch ("cold" or "evict"), or "cached".
        count: Batches of each way of reading.

    Returns:
        Of each way, milliseconds of a batch, the median, and megabytes read from the disk, the mean.
    """
    import atarirb

    directory = Path(path).resolve()
    reader = atarirb.open(directory)
    n = len(reader)
    rng = np.random.default_rng()
    reader.get(rng.integers(0, n, B))
    calls = _ways(reader, directory)
    paging.forget(directory)
    if mode == "limit":
        paging.join(Path(group))
    if mode in ("limit", "cached"):
        cache(directory)
        for number in range(20 * len(calls)):
            list(calls.values())[number % len(calls)](rng.integers(0, n, B))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    read = dict.fromkeys(calls, 0)
    for _ in range(int(count)):
        for name, call in calls.items():
            index = rng.integers(0, n, B)
            if mode in ("cold", "evict"):
                paging.forget(directory)
            before = paging.disk_bytes()
            start = time.perf_counter()
            call(index)
            seconds[name].append(time.perf_counter() - start)
            read[name] += paging.disk_bytes() - before
    medians = {name: 1e3 * statistics.median(times) for name, times in seconds.items()}
    return {**medians, **{f"{name}, MB": total / int(count) / 1e6 for name, total in read.items()}}


def _ways(reader: Any, directory: Path) -> dict[str, Callable[[np.ndarray], Any]]:
    """Return the ways in which batches of a dataset are read."""
    if reader.info.codec == "packed":
        return {"packed": reader.get}
    (path,) = directory.rglob("observation.npy")
    frame = int(np.prod(reader.info.frame_shape))
    head = path.stat().st_size - len(reader) * frame
    base, descriptor = paging.address(path), os.open(path, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    pool = concurrent.futures.ThreadPoolExecutor(_PREADERS)

    def announced(index: np.ndarray) -> Any:
        paging.announce((base + head + index * frame).tolist(), 2 * frame)
        return reader.get(index)

    def fetch(offsets: list[int]) -> None:
        for offset in offsets:
            os.pread(descriptor, 2 * frame, offset)

    def read(index: np.ndarray) -> Any:
        offsets = (head + index * frame).tolist()
        list(pool.map(fetch, (offsets[first::_PREADERS] for first in range(_PREADERS))))
        return reader.get(index)

    return {_ASIS: reader.get, _ANNOUNCED: announced, _READ: read}


if __name__ == "__main__":
    print(json.dumps({"batches": batches}[sys.argv[1]](*sys.argv[2:])))
