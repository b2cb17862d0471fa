"""Timing, rows of results, and the tables made of them.

Contestants take turns call by call (`race`), so that a machine that becomes slower or faster does so for all
of them. A ratio is the median of the ratios within each round, and always ours / theirs.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_OPERATORS = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
_PACKAGES = (
    "numpy",
    "numba",
    "zstandard",
    "zlib-ng",
    "isal",
    "ale-py",
    "jax",
    "flax",
    "flashbax",
    "torch",
    "torchrl",
    "distributed",
)
_WARMUP = 3

#: Makes, from a seed, a call that is ready to be timed.
Contestant = Callable[[int], Callable[[], Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One result.

    Attributes:
        what: What was measured.
        ours: Our figure; None if this row only tells of a rival.
        unit: Unit of both figures.
        rival: What it is compared with.
        theirs: The rival's figure; None if there is none.
        ratio: ours / theirs, by rounds.
        bar: What the ratio must be, or our own figure where there is no ratio: "<= 0.7". Empty: no bar.
        ok: Whether it is; None without a bar.
    """

    what: str
    ours: float | None
    unit: str
    rival: str = ""
    theirs: float | None = None
    ratio: float | None = None
    bar: str = ""
    ok: bool | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        judged = self.ours if self.ratio is None else self.ratio
        if self.bar and judged is not None:
            sign, limit = self.bar.split()
            object.__setattr__(self, "ok", bool(_OPERATORS[sign](judged, float(limit))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """A table of another make than that of rows.

    Attributes:
        title: What is in it.
        head: Names of the columns.
        cells: Text, line by line.
    """

    title: str
    head: Sequence[str]
    cells: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        """Lay it out as Markdown, under its title."""
        return [f"{self.title}:", "", *lay_out([self.head, *self.cells])]


class Times:
    """Seconds a call, one figure for each contestant and round."""

    def __init__(self, seconds: Mapping[str, Sequence[float]]):
        self._seconds = seconds

    def ms(self, name: str) -> float:
        """Return a contestant's median in milliseconds."""
        return 1e3 * statistics.median(self._seconds[name])

    def ratio(self, name: str, rival: str) -> float:
        """Return the median over the rounds of one contestant's time over another's."""
        pairs = zip(self._seconds[name], self._seconds[rival], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def row(self, what: str, ours: str, rival: str, *, bar: str = "") -> Row:
        """Make the row that compares two contestants."""
        return Row(
            what=what,
            ours=self.ms(ours),
            unit="ms",
            rival=rival,
            theirs=self.ms(rival),
            ratio=self.ratio(ours, rival),
            bar=bar,
        )


def race(contestants: Mapping[str, Contestant], *, rounds: int, calls: int = 1, rest: float = 0) -> Times:
    """Time calls in turn.

    What a call returns is dropped inside the time, since giving memory back is a part of the work. Every call
    gets a seed of its own.

    Args:
        contestants: By name.
        rounds: Rounds that count; a few more warm up.
        calls: Calls of each contestant in a round, one after the other; the round's figure is their median.
        rest: Seconds of sleep before each contestant's calls, for what the one before leaves running:
            OpenMP's threads, which torch uses, go on spinning for some milliseconds.
    """
    seeds = itertools.count()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(-_WARMUP, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(rest)
            took = []
            for _ in range(calls):
                call = contestants[name](next(seeds))
                start = time.perf_counter()
                call()
                took.append(time.perf_counter() - start)
            if number >= 0:
                seconds[name].append(statistics.median(took))
    return Times(seconds)


def machine() -> dict[str, Any]:
    """Describe where the figures come from."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": versions,
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def finish(
    title: str,
    rows: Sequence[Row],
    path: Path | None,
    *,
    quick: bool,
    grids: Sequence[Grid] = (),
    notes: Sequence[str] = (),
) -> int:
    """Print the tables and notes, write the JSON file if one is wanted.

    Returns:
        The exit status: 1 if a bar is missed, but never of a quick run, which measures nothing.
    """
    print("\n".join(text(rows, grids, notes)))
    content = {
        "title": title,
        "quick": quick,
        "machine": machine(),
        "rows": [vars(row) for row in rows],
        "grids": [vars(grid) for grid in grids],
        "notes": list(notes),
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
    missed = [row.what for row in rows if row.ok is False]
    if missed:
        print(f"{len(missed)} bar{'s' * (len(missed) > 1)} missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed and not quick else 0


def text(rows: Sequence[Row], grids: Sequence[Grid] = (), notes: Sequence[str] = ()) -> list[str]:
    """Lay all of a measurement out as Markdown, which is read as well on a terminal."""
    lines = table(rows)
    for grid in grids:
        lines += ["", *grid.lines()]
    for note in notes:
        lines += ["", *textwrap.wrap(note, 118)]
    return lines


def table(rows: Sequence[Row]) -> list[str]:
    """Lay rows out as a Markdown table."""
    cells = [["what", "ours", "rival or floor", "its figure", "ratio", "bar", ""]]
    for row in rows:
        cells.append(
            [
                row.what,
                figure(row.ours, row.unit),
                row.rival,
                figure(row.theirs, row.unit),
                figure(row.ratio),
                f"{row.bar} {row.unit if row.ratio is None else ''}".strip() if row.bar else "",
                {True: "ok", False: "**FAILED**", None: ""}[row.ok],
            ]
        )
    return lay_out(cells)


def lay_out(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lay lines of text out as a Markdown table; the first one is its head."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def figure(value: float | None, unit: str = "") -> str:
    """Write a figure to three places."""
    if value is None:
        return ""
    written = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{written} {unit}".rstrip()
