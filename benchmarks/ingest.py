"""How fast and in how little memory logs become a dataset.

A log of one split of 100,000 rows (705 MB of frames) is ingested, and preprocessed by TorchRL, each time in a
fresh process; both read the same gzip files from the page cache and write to the same disk. TorchRL leaves
its files to be written later, ours are on the disk when it ends (fsync). Imports are not timed, but their
memory counts.

    frames a second, against TorchRL's preprocessing              >= 5
    peak memory, against TorchRL's                                <= 0.05
    peak memory                                                   < 300 MB

Without a bar: the same log in about 50 splits, where workers share the work; decompressing the observations
to nowhere, with each library there is, beside which all else that ingest does shows; what of the memory
is imports alone.

    python -m benchmarks.ingest [--quick] [--json FILE]
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Row, finish
from benchmarks.probes import probe
from benchmarks.workload import GAME, Workload, command_line

#: Libraries that read gzip, by their module; ours is zlib-ng.
LIBRARIES = {"gzip": "gzip", "isal": "isal.igzip", "zlib-ng": "zlib_ng.gzip_ng"}
_OURS, _DEFAULT, _MANY, _TORCHRL = "ingest, 1 worker", "ingest", "ingest, many splits", "TorchRL"


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there
        return False


def _ingest(workload: Workload, log: Path, workers: int) -> dict[str, float]:
    out = workload.scratch("ingest")
    os.sync()  # what an earlier run has left to be written would slow this one
    try:
        return probe("ingest", log, out / "data", workers)
    finally:
        shutil.rmtree(out)


def _torchrl(workload: Workload, log: Path) -> dict[str, float]:
    out = workload.scratch("torchrl")
    os.sync()
    try:
        return probe("torchrl", log, out)
    finally:
        shutil.rmtree(out)


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
    contestants[_OURS] = functools.partial(_ingest, workload, single, 1)
    contestants[_DEFAULT] = functools.partial(_ingest, workload, single, 0)
    contestants[_MANY] = functools.partial(_ingest, workload, many, 0)
    if torchrl:
        contestants[_TORCHRL] = functools.partial(_torchrl, workload, single)
    runs = Runs()
    names = list(contestants)
    for first in range(1 if workload.quick else len(names)):
        # Another one begins each time: the first to fill memory that was free for long pays for it.
        for name in names[first:] + names[:first]:
            runs.add(name, contestants[name]())
    return _rates(runs, libraries, torchrl) + _memory(runs, torchrl)


def _rates(runs: Runs, libraries: Sequence[str], torchrl: bool) -> list[Row]:
    steps = {name: runs.median(name, "steps") for name in (_OURS, _DEFAULT, _MANY)}
    frames = steps[_OURS]

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
    for name in (_OURS, _DEFAULT, _MANY):
        if torchrl:
            rows.append(row(name, _TORCHRL, ">= 5" if name != _MANY else ""))
        rows.append(row(name, "zlib-ng"))
    for name in libraries:
        rate = frames / runs.median(name)
        what, rival = "decompressing alone", f"{name}"
        rows.append(Row(what=what, ours=None, unit="frames/s", rival=rival, theirs=rate))
    if not torchrl:
        rows.append(Row(what=_OURS, ours=None, unit="frames/s", rival="TorchRL: not installed"))
    return rows


def _memory(runs: Runs, torchrl: bool) -> list[Row]:
    rows = []
    for name in (_OURS, _DEFAULT, _MANY):
        peak = runs.peak(name)
        if torchrl and name != _MANY:
            theirs = runs.peak(_TORCHRL)
            rows.append(
                Row(
                    what=f"{name}, peak memory",
                    ours=peak,
                    unit="MB",
                    rival=_TORCHRL,
                    theirs=theirs,
                    ratio=peak / theirs,
                    bar="<= 0.05",
                )
            )
        rows.append(Row(what=f"{name}, peak memory", ours=peak, unit="MB", bar="< 300"))
    imports = runs.peak(_OURS, "imports_mb")
    theirs = runs.peak(_TORCHRL, "imports_mb") if torchrl else None
    ratio = imports / theirs if theirs else None
    rival = _TORCHRL if torchrl else ""
    what = "imports alone, memory"
    rows.append(Row(what=what, ours=imports, unit="MB", rival=rival, theirs=theirs, ratio=ratio))
    over = runs.peak(_OURS) - imports
    theirs = runs.peak(_TORCHRL) - theirs if theirs else None
    ratio = over / theirs if theirs else None
    what = "peak memory over imports"
    return [*rows, Row(what=what, ours=over, unit="MB", rival=rival, theirs=theirs, ratio=ratio)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.ingest", "Measure how logs become a dataset.", argv)
    return finish(f"Ingest of {GAME}", measure(workload), path, quick=workload.quick)


if __name__ == "__main__":
    sys.exit(main())
