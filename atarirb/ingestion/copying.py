"""Copying one split of a log into a shard, in little memory whatever its size."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np

from atarirb import sources, timeline
from atarirb.errors import LogError
from atarirb.ingestion.plan import Plan
from atarirb.sources.original import COLUMNS as SOURCE_COLUMNS
from atarirb.store import manifest as store
from atarirb.store.files import FileRecord, sync_directory
from atarirb.store.npy import NpyWriter, header


class Stopped(Exception):
    """The ingest is ending; leave off."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One split to copy into a shard."""

    logs: sources.OriginalLogs
    kind: ModuleType
    work: pathlib.Path
    directory: pathlib.Path
    portion: timeline.Portion
    plan: Plan

    def holds(self, record: store.ShardRecord | None) -> bool:
        """Tell whether a shard that is there already has the steps this job would copy."""
        portion = self.portion
        return (
            record is not None
            and record.source == self.plan.marks[portion.split]
            and (record.adds, record.steps) == (portion.adds, portion.steps)
            and set(self.kind.files()) <= set(record.files)
            and all(
                _size(self.directory / record.directory / name) == file.bytes
                for name, file in record.files.items()
            )
        )

    def correct_head(self, record: store.ShardRecord) -> None:
        """Write anew how a shard that is there stands to the split before it.

        That alone can change when a neighbour can be read that could not be, or the other way round.
        """
        store.write_record(
            self.directory / record.directory, dataclasses.replace(record, head=self.portion.head)
        )

    def disk_bytes(self) -> int:
        """Count the bytes its shard will take, at the most."""
        frame = self.plan.columns["observation"]
        steps = self.portion.steps
        small = [((), dtype) for dtype in store.COLUMNS.values()]
        small += [(column.shape, column.dtype) for column in self.plan.extra.values()]
        return self.kind.disk_bytes(steps, frame.shape, frame.dtype) + sum(
            len(header((steps, *shape), dtype)) + steps * dtype.itemsize * math.prod(shape)
            for shape, dtype in small
        )

    def run(self, on_bytes: Callable[[int], None], stopped: threading.Event) -> None:
        """Copy all columns, and give the shard its name when it is whole and on the disk."""
        name = store.shard_name(self.portion.split)
        partial = self.work / name
        partial.mkdir()
        steps = self.portion.steps
        frame = self.plan.columns["observation"]
        clipped = True
        files: dict[str, FileRecord] = {}

        def see(column: str, rows: np.ndarray) -> None:
            nonlocal clipped
            if column == "reward" and clipped:
                clipped = bool(np.isin(rows, (-1, 0, 1)).all())

        plain = {column: ((), store.COLUMNS[column]) for column in SOURCE_COLUMNS[:-1]}
        plain |= {column: (described.shape, described.dtype) for column, described in self.plan.extra.items()}
        for column, (shape, dtype) in plain.items():
            writer = NpyWriter(partial / f"{column}.npy", (steps, *shape), dtype)
            self._copy(column, writer, dtype, see, on_bytes, stopped)
            files[f"{column}.npy"] = writer.close()
        frames = self.kind.Writer(partial, steps, frame.shape, frame.dtype)
        self._copy("observation", frames, frame.dtype, see, on_bytes, stopped)
        files |= frames.close()
        files["slot.npy"] = self._write_slots(partial)
        record = store.ShardRecord(
            split=self.portion.split,
            steps=steps,
            adds=self.portion.adds,
            capacity=self.plan.surveys[self.portion.split].window.capacity,
            head=self.portion.head,
            clipped=clipped,
            files=dict(sorted(files.items())),
            source=self.plan.marks[self.portion.split],
        )
        store.write_record(partial, record)
        final = self.directory / name
        if final.exists():  # of a source that has changed since
            os.rename(final, self.work / f"{name}.old")
        os.rename(partial, final)
        sync_directory(self.directory)

    def _copy(
        self,
        column: str,
        writer: NpyWriter,
        dtype: np.dtype,
        see: Callable[[str, np.ndarray], None],
        on_bytes: Callable[[int], None],
        stopped: threading.Event,
    ) -> None:
        """Copy a column's steps, showing each run of them to `see`; check that its padding is zero."""
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
                        see(column, kept)
        except BaseException:
            writer.abandon()
            raise

    def _write_slots(self, partial: pathlib.Path) -> FileRecord:
        dtype = store.COLUMNS["slot"]
        writer = NpyWriter(partial / "slot.npy", (self.portion.steps,), dtype)
        for slot, step, length in self.portion.segments.tolist():
            writer.write(np.arange(slot, slot + length, dtype=dtype), step)
        return writer.close()


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


def _size(path: pathlib.Path) -> int:
    return path.stat().st_size if path.exists() else -1
