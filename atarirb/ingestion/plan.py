"""Before anything is copied: which rows of which split are steps, and which splits cannot be read.

Every split of snapshots of a ring buffer is surveyed, also those that are not wanted, since each tells of
its neighbours where the joins, the holes and the padding are. Of a source in the order of play only those
are that are wanted: they stand for themselves.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from atarirb import sources, timeline
from atarirb.batch import RESERVED
from atarirb.errors import LogError
from atarirb.jobs import caught
from atarirb.sources import COLUMNS as SOURCE_COLUMNS
from atarirb.sources.failures import stopped_by


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
        return extra_columns(next(iter(self.surveys.values())))

    @property
    def writer_stack(self) -> int:
        """Frames the log's writer stacked: one less is the rows of padding before each episode."""
        window = next(iter(self.surveys.values())).window
        return window.stack if window else 1


def extra_columns(survey: sources.Survey) -> dict[str, sources.Column]:
    """Return the columns that not every log has."""
    return {name: column for name, column in survey.columns.items() if name not in SOURCE_COLUMNS}


def make_plan(logs: sources.Logs, wanted: Sequence[int], threads: int) -> Plan:
    """Survey the splits of a log that must be, and plan what each gives."""
    splits = wanted if logs.ordered else logs.splits
    surveys: dict[int, sources.Survey] = {}
    marks: dict[int, dict[str, str]] = {}
    failures: dict[int, Exception] = {}
    stopped = threading.Event()

    def survey(split: int) -> tuple[sources.Survey, dict[str, str]]:
        with stopped_by(stopped):
            return logs.survey(split), logs.fingerprint(split)

    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        for split, answer in zip(splits, pool.map(caught(survey), splits), strict=True):
            if isinstance(answer, Exception):
                failures[split] = answer
            else:
                surveys[split], marks[split] = answer
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
    for split, reason in _misfits(surveys):
        failures[split] = LogError(reason)
        del surveys[split]
    if isinstance(logs, sources.RingLogs):
        windows = [survey.window for survey in surveys.values() if survey.window]
        stops, misplaced = timeline.place(windows, logs)
        portions, contradictory = timeline.plan(windows, stops, logs)
        failures |= misplaced | contradictory
    else:
        portions = _in_order(surveys)
    return Plan(portions=portions, surveys=surveys, marks=marks, failures=failures)


def _in_order(surveys: Mapping[int, sources.Survey]) -> list[timeline.Portion]:
    """Plan splits whose rows are all steps, in the order of play."""
    portions, first, before = [], 0, -1
    for split, survey in surveys.items():
        head = survey.head
        if head == "continues" and split != before + 1:  # the split that it goes on from is not here
            head, first = "cut", first + 1
        before = split
        stop = first + survey.rows
        portions.append(
            timeline.Portion(
                split=split,
                adds=(first, stop),
                head=head,
                steps=survey.rows,
                segments=np.array([[0, 0, survey.rows]], np.int64),
                padding=np.zeros((0, 2), np.int64),
            )
        )
        first = stop
    return portions


def _misfits(surveys: Mapping[int, sources.Survey]) -> list[tuple[int, str]]:
    """List the splits that are not like most others, wherever they stand, and say in what they differ."""
    alike: dict[str, list[int]] = {}
    for split, survey in surveys.items():
        buffer = f"{survey.rows} {survey.window.stack}" if survey.window else ""
        alike.setdefault(f"{buffer} {survey.columns}", []).append(split)
    usual = max(alike.values(), key=len)[0] if alike else -1
    reasons = ((split, _misfit(split, survey, usual, surveys[usual])) for split, survey in surveys.items())
    return [(split, reason) for split, reason in reasons if reason]


def _misfit(split: int, survey: sources.Survey, other: int, usual: sources.Survey) -> str | None:
    """Say in what a split differs from the usual one, if it must not."""
    if survey.window and usual.window:
        if survey.rows != usual.rows:
            return f"split {split} has {survey.rows:,} rows, expected {usual.rows:,} as split {other}"
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
