"""Before anything is copied: which rows of which split are steps, and which splits cannot be read.

Every split of the log is surveyed, also those that are not wanted, since each tells of its
neighbours where the joins, the holes and the padding are.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterable

from atarirb import sources, timeline
from atarirb.batch import RESERVED
from atarirb.errors import LogError
from atarirb.jobs import caught
from atarirb.sources.original import COLUMNS as SOURCE_COLUMNS


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


def make_plan(logs: sources.OriginalLogs, threads: int) -> Plan:
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
    usual = _usual(surveys.values())
    for split, survey in list(surveys.items()):
        if reason := _misfit(survey, usual):
            failures[split] = LogError(reason)
            del surveys[split]
    marks = {split: logs.fingerprint(split) for split in surveys}
    windows = [survey.window for survey in surveys.values()]
    stops, misplaced = timeline.place(windows, logs)
    portions, contradictory = timeline.plan(windows, stops, logs)
    failures |= misplaced | contradictory
    return Plan(portions=portions, surveys=surveys, marks=marks, failures=failures)


def _usual(surveys: Iterable[sources.Survey]) -> sources.Survey | None:
    """Return the first of the most splits that are alike: an odd one fails, wherever it stands."""
    alike: dict[str, list[sources.Survey]] = {}
    for survey in surveys:
        window = survey.window
        alike.setdefault(f"{window.capacity} {window.stack} {survey.columns}", []).append(survey)
    return max(alike.values(), key=len)[0] if alike else None


def _misfit(survey: sources.Survey, usual: sources.Survey | None) -> str | None:
    """Say in what a split differs from the usual one, if it must not."""
    usual = usual or survey
    split, other = survey.window.split, usual.window.split
    if survey.window.capacity != usual.window.capacity:
        return (
            f"split {split} has {survey.window.capacity:,} rows, expected "
            f"{usual.window.capacity:,} as split {other}"
        )
    if survey.window.stack != usual.window.stack:
        return (
            f"split {split} was written with a stack of {survey.window.stack}, expected "
            f"{usual.window.stack} as split {other}"
        )
    for name in sorted({*survey.columns, *usual.columns}):
        found, expected = survey.columns.get(name), usual.columns.get(name)
        if found != expected:
            return (
                f"split {split}: column {name} is {_spell(found)}, expected {_spell(expected)} "
                f"as in split {other}"
            )
        if name not in SOURCE_COLUMNS and name in RESERVED:
            return f"split {split}: an extra column may not be called {name}"
    return None


def _spell(column: sources.Column | None) -> str:
    return "missing" if column is None else f"{column.dtype}{list(column.shape)} a row"
