"""How fast and in how little memory logs become a dataset.

A log of one split of 110,000 rows (776 MB of frames) is ingested, and preprocessed by TorchRL, each time in a
fresh process; both read the same gzip files from the page cache and write to the same disk. TorchRL leaves
its files to be written later, ours are on the disk when it ends (fsync). Imports are not timed, but their
memory counts. The cluster reads the same log in about 50 splits, as does the one process that it is
compared with; its start is not timed either, but told.

    raw frames a second, against TorchRL's preprocessing          >= 5
    packed frames a second, against the same                      >= 3
    peak memory of raw, against TorchRL's                         <= 0.05
    peak memory                                                   < 300 MB
    a Dask cluster of two workers, against one process            >= 1.6

Without a bar: the same log in about 50 splits, where workers share the work; decompressing the observations
to nowhere, with each library there is, beside which all else that ingest does shows; what of the memory
is imports alone; converting a dataset from one codec to the other.

    python -m benchmarks.ingest [--quick] [--json FILE]
"""

from __future__ import annotations

import functools
import importlib.util
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Row, finish
from benchmarks.probes import probe
from benchmarks.workload import GAME, Workload, command_line

_ROUNDS = 5
#: Libraries that read gzip, by their module; ours is zlib-ng.
LIBRARIES = {"gzip": "gzip", "isal": "isal.igzip", "zlib-ng": "zlib_ng.gzip_ng"}
_TORCHRL = "TorchRL"
_PACK, _UNPACK = "convert raw to packed", "convert packed to raw"
_ALONE, _RAW, _MANY = "ingest to raw, 1 worker", "ingest to raw", "ingest to raw, many splits"
_PACKED_ALONE, _PACKED = "ingest to packed, 1 worker", "ingest to packed"
_PACKED_MANY = "ingest to packed, many splits"
#: How many workers the cluster has, and the names of what it is compared with, by codec.
_WORKERS = 2
_CLUSTER = {
    "raw": "ingest to raw, many splits, Dask, 2 workers",
    "packed": "ingest to packed, many splits, Dask, 2 workers",
}
_ONE = {"raw": "one process, 1 worker, raw", "packed": "one process, 1 worker, packed"}
_CLUSTER_BAR = ">= 1.6"
#: Bars on the ratio to TorchRL's rate, and to its memory.
_RATES = {_ALONE: ">= 5", _RAW: ">= 5", _MANY: "", _PACKED_ALONE: "", _PACKED: ">= 3", _PACKED_MANY: ""}
_MEMORY = {_ALONE: "<= 0.05", _RAW: "<= 0.05", _PACKED_ALONE: "", _PACKED: ""}


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there
        return False


def _ingest(workload: Workload, log: Path, workers: int, codec: str) -> dict[str, float]:
    with workload.scratch("ingest") as out:
        os.sync()  # what an earlier run has left to be written would slow this one
        return probe("ingest", log, out / "data", workers, codec)


def _convert(workload: Workload, source: str, codec: str) -> dict[str, float]:
    dataset = workload.single_dataset(source)
    with workload.scratch("convert") as out:
        os.sync()
        return probe("convert", dataset, out / "data", codec)


def _cluster(workload: Workload, log: Path, codec: str) -> dict[str, float]:
    with workload.scratch("cluster") as out:
        os.sync()
        return probe("ingest_by_dask", log, out / "data", _WORKERS, codec)


def _torchrl(workload: Workload, log: Path) -> dict[str, float]:
    with workload.scratch("torchrl") as out:
        os.sync()
        return probe("torchrl", log, out)


class Runs:
    """The answers of all runs of each contestant, in rounds."""

    def __init__(self) -> None:
        self.answers: dict[str, list[dict[str, float]]] = {}

    def add(self, name: str, answer: dict[str, float]) -> None:
        """Keep an answer."""
        self.answers.setdefault(name, []).append(answer)

    def median(self, name: str, field: str = "seconds") -> float:
        """Return the median of a contestant's figure."""
        return statistics.median(answer[field] for answer in self.answers[name])

    def peak(self, name: str, field: str = "peak_mb") -> float:
        """Return the highest of a contestant's figures."""
        return max(answer[field] for answer in self.answers[name])

    def ratio(self, name: str, rival: str) -> float:
        """Return the median over the rounds of a contestant's time over another's."""
        pairs = zip(self.answers[name], self.answers[rival], strict=True)
        return statistics.median(mine["seconds"] / other["seconds"] for mine, other in pairs)


def measure(workload: Workload) -> list[Row]:
    """Measure all."""
    single, many = workload.single(), workload.logs()
    file = single / "replay_logs" / "$store$_observation_ckpt.0.gz"
    libraries = [name for name, module in LIBRARIES.items() if _found(module)]
    torchrl = _found("torchrl")
    contestants = {name: functools.partial(probe, "gunzip", file, name) for name in libraries}
    for name, log, workers, codec in (
        (_ALONE, single, 1, "raw"),
        (_RAW, single, 0, "raw"),
        (_MANY, many, 0, "raw"),
        (_PACKED_ALONE, single, 1, "packed"),
        (_PACKED, single, 0, "packed"),
        (_PACKED_MANY, many, 0, "packed"),
    ):
        contestants[name] = functools.partial(_ingest, workload, log, workers, codec)
    contestants[_PACK] = functools.partial(_convert, workload, "raw", "packed")
    contestants[_UNPACK] = functools.partial(_convert, workload, "packed", "raw")
    dask = _found("distributed")
    if dask:
        for codec, name in _CLUSTER.items():
            contestants[_ONE[codec]] = functools.partial(_ingest, workload, many, 1, codec)
            contestants[name] = functools.partial(_cluster, workload, many, codec)
    if torchrl:
        contestants[_TORCHRL] = functools.partial(_torchrl, workload, single)
    runs = Runs()
    names = list(contestants)
    for number in range(1 if workload.quick else _ROUNDS):
        # Another one begins each time: the first to fill memory that was free for long pays for it.
        first = number * len(names) // _ROUNDS
        for name in names[first:] + names[:first]:
            runs.add(name, contestants[name]())
    return _rates(runs, libraries, torchrl) + _cluster_rows(runs, dask) + _memory(runs, torchrl)


def _rates(runs: Runs, libraries: Sequence[str], torchrl: bool) -> list[Row]:
    steps = {name: runs.median(name, "steps") for name in _RATES}
    frames = steps[_RAW]

    def row(name: str, rival: str, bar: str = "") -> Row:
        return Row(
            what=name,
            ours=steps[name] / runs.median(name),
            unit="frames/s",
            rival=rival,
            theirs=frames / runs.median(rival),
            ratio=steps[name] / frames / runs.ratio(name, rival),
            bar=bar,
        )

    rows = []
    for name, bar in _RATES.items():
        if torchrl:
            rows.append(row(name, _TORCHRL, bar))
        rows.append(row(name, "zlib-ng"))
    for name in (_PACK, _UNPACK):
        rows.append(Row(what=name, ours=runs.median(name, "steps") / runs.median(name), unit="frames/s"))
    for name in libraries:
        rate = frames / runs.median(name)
        what, rival = "decompressing alone", f"{name}"
        rows.append(Row(what=what, ours=None, unit="frames/s", rival=rival, theirs=rate))
    if not torchrl:
        rows.append(Row(what=_RAW, ours=None, unit="frames/s", rival="TorchRL: not installed"))
    return rows


def _cluster_rows(runs: Runs, dask: bool) -> list[Row]:
    if not dask:
        return [Row(what=_CLUSTER["packed"], ours=None, unit="frames/s", rival="Dask: not installed")]
    rows = [
        Row(
            what=name,
            ours=runs.median(name, "steps") / runs.median(name),
            unit="frames/s",
            rival="one process, 1 worker",
            theirs=runs.median(_ONE[codec], "steps") / runs.median(_ONE[codec]),
            ratio=1 / runs.ratio(name, _ONE[codec]),
            bar=_CLUSTER_BAR,
        )
        for codec, name in _CLUSTER.items()
    ]
    start = statistics.median(runs.median(name, "start_s") for name in _CLUSTER.values())
    return [*rows, Row(what="start of a Dask cluster, 2 workers", ours=start, unit="s")]


def _memory(runs: Runs, torchrl: bool) -> list[Row]:
    rows = []
    for name in (*_RATES, _PACK, _UNPACK):
        peak, what = runs.peak(name), f"{name}, peak memory"
        if torchrl and name in _MEMORY:
            theirs = runs.peak(_TORCHRL)
            rows.append(
                Row(
                    what=what,
                    ours=peak,
                    unit="MB",
                    rival=_TORCHRL,
                    theirs=theirs,
                    ratio=peak / theirs,
                    bar=_MEMORY[name],
                )
            )
        rows.append(Row(what=what, ours=peak, unit="MB", bar="< 300"))
    imports = runs.peak(_ALONE, "imports_mb")
    theirs = runs.peak(_TORCHRL, "imports_mb") if torchrl else None
    ratio = imports / theirs if theirs else None
    rival = _TORCHRL if torchrl else ""
    what = "imports alone, memory"
    return [*rows, Row(what=what, ours=imports, unit="MB", rival=rival, theirs=theirs, ratio=ratio)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.ingest", "Measure how logs become a dataset.", argv)
    return finish(f"Ingest of {GAME}", measure(workload), path, quick=workload.quick)


if __name__ == "__main__":
    sys.exit(main())
