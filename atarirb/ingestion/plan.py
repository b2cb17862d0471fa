"""Before anything is copied: which rows of which split are steps, and which splits cannot be read.

Every split of the log is surveyed, also those that are not wanted, since each tells of its
neighbours where the joins, the holes and the padding are.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Mapping

from atarirb import sources, timeline
from atarirb.batch import RESERVED
from atarirb.errors import AtarirbError, LogError
from atarirb.sources.original import COLUMNS as SOURCE_COLUMNS
from atarirb.store.manifest import ShardRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known of all splits before any is copied.

    Attributes:
        portions: What each readable split gives, in step order.
        surveys: What was learned of each, by split.
        marks: Fingerprints of each split's files, by split.
        failures: Why the others cannot be read, by split.
    """

    portions: list[timeline.Portion]
    surveys: dict[int, sources.Survey]
    marks: dict[int, dict[str, str]]
    failures: dict[int, Exception]

    @property
    def columns(self) -> dict[str, sources.Column]:
        return next(iter(self.surveys.values())).columns

    @property
    def extra(self) -> dict[str, sources.Column]:
        return {name: column for name, column in self.columns.items() if name not in SOURCE_COLUMNS}


def make_plan(logs: sources.OriginalLogs, held: Mapping[int, ShardRecord], threads: int) -> Plan:
    """Survey every split of the log, also unwanted ones: each tells of its neighbours."""
    surveys: dict[int, sources.Survey] = {}
    failures: dict[int, Exception] = {}
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        for split, answer in zip(logs.splits, pool.map(caught(logs.survey), logs.splits), strict=True):
            if isinstance(answer, Exception):
                failures[split] = answer
            else:
                surveys[split] = answer
    finally:
        pool.shutdown(cancel_futures=True)
    first = next(iter(surveys.values()), None)
    for split, survey in list(surveys.items()):
        if reason := _misfit(split, survey, first):
            failures[split] = LogError(reason)
            del surveys[split]
    marks = {split: logs.fingerprint(split) for split in surveys}
    windows = [survey.window for survey in surveys.values()]
    stops, misplaced = timeline.place(windows, logs, _known_stops(windows, held, marks))
    portions, contradictory = timeline.plan(windows, stops, logs)
    failures |= misplaced | contradictory
    return Plan(portions=portions, surveys=surveys, marks=marks, failures=failures)


def _misfit(split: int, survey: sources.Survey, first: sources.Survey) -> str | None:
    """Say in what a split differs from the log's first one, if it must not."""
    if survey.window.capacity != first.window.capacity:
        return (
            f"split {split} has {survey.window.capacity:,} rows, expected "
            f"{first.window.capacity:,} as split {first.window.split}"
        )
    if survey.window.stack != first.window.stack:
        return (
            f"split {split} was written with a stack of {survey.window.stack}, expected "
            f"{first.window.stack} as split {first.window.split}"
        )
    for name in sorted({*survey.columns, *first.columns}):
        found, expected = survey.columns.get(name), first.columns.get(name)
        if found != expected:
            return (
                f"split {split}: column {name} is {_spell(found)}, expected {_spell(expected)} "
                f"as in split {first.window.split}"
            )
        if name not in SOURCE_COLUMNS and name in RESERVED:
            return f"split {split}: an extra column may not be called {name}"
    return None


def _spell(column: sources.Column | None) -> str:
    return "missing" if column is None else f"{column.dtype}{list(column.shape)} a row"


def _known_stops(
    windows: list[timeline.Window],
    held: Mapping[int, ShardRecord],
    marks: Mapping[int, dict[str, str]],
) -> dict[int, int]:
    """Find the add counts that need not be worked out again.

    Placing the last split can mean comparing all its frames; that is spared if neither it nor the
    split before it changed since it was done.
    """
    known = {}
    for before, window in itertools.pairwise(windows):
        pair = [held.get(before.split), held.get(window.split)]
        if all(record and record.source == marks[record.split] for record in pair):
            known[window.split] = pair[1].adds[1]
    return known


def caught(function: Callable) -> Callable:
    """Make a function return the error it would raise of a log or a disk."""

    def call(*args: object) -> object:
        try:
            return function(*args)
        except (AtarirbError, OSError) as error:
            return error

    return call
