"""Copying one split of a log into a shard, in little memory whatever its size."""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Protocol

import numpy as np

from atarirb import sources, timeline
from atarirb.errors import LogError, SourceChangedError
from atarirb.ingestion.plan import Plan, extra_columns
from atarirb.jobs import Stopped, Stopper
from atarirb.sources import COLUMNS as SOURCE_COLUMNS
from atarirb.sources import FINAL
from atarirb.sources.failures import stopped_by
from atarirb.store import building, codecs, shards
from atarirb.store import manifest as store
from atarirb.store.npy import header


class Rows(Protocol):
    """What takes rows, in runs that may come in any order."""

    def write(self, rows: np.ndarray, at: int, /) -> None: ...

    def abandon(self) -> None: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One split to copy into a shard. It is pickled for workers elsewhere: all here is of that split alone.

    Attributes:
        logs: The source.
        codec: How frames are to be kept.
        directory: The dataset's directory.
        portion: Which rows of the split are steps.
        survey: What was learned of it, but for the window.
        mark: Fingerprints of its files.
        threads: That compress.
    """

    logs: sources.Logs
    codec: str
    directory: pathlib.Path
    portion: timeline.Portion
    survey: sources.Survey
    mark: dict[str, str]
    threads: int

    @classmethod
    def of(
        cls,
        logs: sources.Logs,
        plan: Plan,
        portion: timeline.Portion,
        *,
        codec: str,
        directory: pathlib.Path,
        threads: int,
    ) -> Job:
        """Make the job of one portion of a plan."""
        return cls(
            logs=logs.part(portion.split),
            codec=codec,
            directory=directory,
            portion=portion,
            survey=dataclasses.replace(plan.surveys[portion.split], window=None),
            mark=plan.marks[portion.split],
            threads=threads,
        )

    @property
    def split(self) -> int:
        """The split's number."""
        return self.portion.split

    @property
    def amount(self) -> int:
        """What `run` counts in all: bytes of the split's files."""
        return self.logs.size(self.split)

    @property
    def kind(self) -> ModuleType:
        """The codec."""
        return codecs.codec(self.codec)

    @property
    def extra(self) -> dict[str, sources.Column]:
        """The columns that not every log has."""
        return extra_columns(self.survey)

    def holds(self, record: store.ShardRecord | None) -> bool:
        """Tell whether a shard that is there already has the steps this job would copy."""
        portion = self.portion
        return (
            record is not None
            and record.source == self.mark
            and (self.logs.ordered or record.adds == portion.adds)
            and record.steps == portion.steps
            and set(self.kind.files()) <= set(record.files)
            and building.is_whole(self.directory, record)
        )

    @property
    def finals(self) -> np.ndarray:
        """The steps after which a final frame is known, int64[F]."""
        return self.survey.finals

    def placed(self, record: store.ShardRecord) -> bool:
        """Tell whether a shard that is there already stands to the split before it as it must."""
        return (record.head, record.adds) == (self.portion.head, self.portion.adds)

    def correct_place(self, record: store.ShardRecord) -> None:
        """Write anew how a shard that is there stands to the split before it.

        That alone can change when a neighbour can be read that could not be, or the other way round; or when
        one is added to a source in the order of play.
        """
        store.write_record(
            self.directory / record.directory,
            dataclasses.replace(record, head=self.portion.head, adds=self.portion.adds),
        )

    def disk_bytes(self) -> int:
        """Estimate the bytes its shard will take, rather too many than too few."""
        portion = self.portion
        size = self.logs.size(portion.split)
        return shard_bytes(self.kind, self.survey.columns, portion.steps, len(self.finals), size)

    def run(
        self, place: pathlib.Path, on_bytes: Callable[[int], None], stopped: Stopper
    ) -> store.ShardRecord:
        """Copy all columns into a shard below a directory, whole and to the disk."""
        with stopped_by(stopped):
            return self._run(place, on_bytes, stopped)

    def done(self) -> None:
        """Let go of what came from a store, now that the shard is there."""
        self.logs.release(self.split)

    def _run(
        self, place: pathlib.Path, on_bytes: Callable[[int], None], stopped: Stopper
    ) -> store.ShardRecord:
        portion, steps = self.portion, self.portion.steps
        shard = shards.ShardWriter(place, portion.split)
        copy = functools.partial(self._copy, on_bytes=on_bytes, stopped=stopped)
        plain = {column: ((), store.COLUMNS[column]) for column in SOURCE_COLUMNS[:-1]}
        plain |= {column: (described.shape, described.dtype) for column, described in self.extra.items()}
        clipped = True
        for column, (shape, dtype) in plain.items():
            if shape:
                writer = shard.wide_column(column, (steps, *shape), dtype)
                copy(column, writer, dtype)
                shard.keep({f"{column}.npy": writer.close()})
            else:  # a few megabytes at the most: which dtype it needs is known when all is seen
                values = _InMemory(steps, dtype)
                copy(column, values, dtype)
                shard.column(column, values.rows)
                if column == "reward":
                    clipped = shards.clipped(values.rows)
        frame = self.survey.columns["observation"]
        frames = self.kind.Writer(
            shard.directory,
            steps + len(self.finals),
            frame.shape,
            frame.dtype,
            samples=self._samples(stopped),
            threads=self.threads,
        )
        copy("observation", frames, frame.dtype)
        if len(self.finals):
            self._copy_finals(frames, on_bytes, stopped)
        shard.keep(frames.close())
        if self.logs.fingerprint(self.split) != self.mark:
            raise SourceChangedError(
                f"split {self.split} of {self.logs.directory}: its files changed while they were read"
            )
        return shard.finish(
            segments=portion.segments[:, [1, 0]],
            finals=self.finals,
            steps=steps,
            adds=portion.adds,
            capacity=0 if self.logs.ordered else self.survey.rows,
            head=portion.head,
            clipped=clipped,
            source=self.mark,
        )

    def _samples(self, stopped: Stopper) -> np.ndarray:
        """Read the frames that the codec wants to see before all others."""

        def check() -> None:
            if stopped.is_set():
                raise Stopped

        frame, portion = self.survey.columns["observation"], self.portion
        wanted = self.kind.sampled(portion.steps + len(self.finals), frame.shape, frame.dtype)
        samples = np.empty((len(wanted), *frame.shape), frame.dtype)
        if not len(wanted):
            return samples
        steps = wanted[wanted < portion.steps]
        segments = portion.segments[np.argsort(portion.segments[:, 1])]
        segment = segments[np.searchsorted(segments[:, 1], steps, side="right") - 1]
        slots = segment[:, 0] + steps - segment[:, 1]
        order = np.argsort(slots)
        samples[order] = self.logs.take(portion.split, "observation", slots[order], check)
        if len(steps) < len(wanted):
            finals = wanted[len(steps) :] - portion.steps
            samples[len(steps) :] = self.logs.take(portion.split, FINAL, finals, check)
        return samples

    def _copy_finals(self, writer: Rows, on_bytes: Callable[[int], None], stopped: Stopper) -> None:
        """Copy the frames after the last steps of episodes behind those of all steps."""
        dtype = self.survey.columns["observation"].dtype
        try:
            with self.logs.stream(self.portion.split, FINAL, on_bytes) as stream:
                for first, rows in stream.chunks():
                    if stopped.is_set():
                        raise Stopped
                    writer.write(np.ascontiguousarray(rows, dtype), self.portion.steps + first)
        except BaseException:
            writer.abandon()
            raise

    def _copy(
        self,
        column: str,
        writer: Rows,
        dtype: np.dtype,
        *,
        on_bytes: Callable[[int], None],
        stopped: Stopper,
    ) -> None:
        """Copy a column's steps; check that its padding is zero."""
        portion = self.portion
        by_slot = portion.segments[np.argsort(portion.segments[:, 0])]
        padding = portion.padding[np.argsort(portion.padding[:, 0])]
        try:
            with self.logs.stream(portion.split, column, on_bytes) as stream:
                for first, rows in stream.chunks():
                    if stopped.is_set():
                        raise Stopped
                    for _, lo, hi in _inside(padding, first, len(rows)):
                        if column in SOURCE_COLUMNS and rows[lo:hi].any():
                            bad = first + lo + int(np.argmax([row.any() for row in rows[lo:hi]]))
                            raise LogError(
                                f"{stream.name}: row {bad} must be padding before an episode, but is "
                                f"not zero; the file is damaged or of another log"
                            )
                    for run, lo, hi in _inside(by_slot, first, len(rows)):
                        slot, step, _ = by_slot[run]
                        kept = _converted(stream.name, column, rows[lo:hi], dtype, first + lo)
                        writer.write(kept, int(step + first + lo - slot))
        except BaseException:
            writer.abandon()
            raise


def shard_bytes(
    kind: ModuleType, columns: Mapping[str, sources.Column], steps: int, finals: int, source: int
) -> int:
    """Estimate the bytes a shard takes, rather too many than too few.

    Args:
        kind: The codec.
        columns: The source's columns.
        steps: Steps.
        finals: Final frames.
        source: Bytes of the split's files.
    """
    frame = columns["observation"]
    small = [((), dtype) for dtype in store.COLUMNS.values()]
    small += [(column.shape, column.dtype) for name, column in columns.items() if name not in SOURCE_COLUMNS]
    return kind.disk_bytes(steps + finals, frame.shape, frame.dtype, source) + sum(
        len(header((steps, *shape), dtype)) + steps * dtype.itemsize * math.prod(shape)
        for shape, dtype in small
    )


class _InMemory:
    """A writer of rows that keeps them."""

    def __init__(self, rows: int, dtype: np.dtype):
        self.rows = np.empty(rows, dtype)

    def write(self, rows: np.ndarray, at: int) -> None:
        self.rows[at : at + len(rows)] = rows

    def abandon(self) -> None:
        pass


def _inside(runs: np.ndarray, first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Yield (run, start, stop) of the runs' parts among rows [first, first + count).

    Args:
        runs: int64[K, ...], first row first and length last, by rising first row.
        first: First row of the chunk.
        count: Its rows.

    Yields:
        The run's number, and the rows, relative to the chunk.
    """
    begins, ends = runs[:, 0], runs[:, 0] + runs[:, -1]
    low = np.searchsorted(ends, first, side="right")
    high = np.searchsorted(begins, first + count, side="left")
    for run in range(low, high):
        yield run, max(0, int(begins[run]) - first), min(count, int(ends[run]) - first)


def _converted(file: str, column: str, rows: np.ndarray, dtype: np.dtype, first: int) -> np.ndarray:
    """Convert rows to the dtype they are stored in, refusing what no writer of logs puts into a step."""
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is refused below
        kept = np.ascontiguousarray(rows.astype(dtype, copy=False))
    if column == "reward":
        bad = ~np.isfinite(kept)
    elif column == "action":
        bad = (rows < 0) | (rows > np.iinfo(np.int32).max)
    else:
        return kept
    if bad.any():
        row = int(np.argmax(bad))
        raise LogError(
            f"{file}: row {first + row} holds {column} {rows[row]}; it was never written, or is damaged"
        )
    return kept
