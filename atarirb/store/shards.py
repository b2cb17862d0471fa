"""Writing one shard: away from the dataset, until it is whole and on the disk."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from atarirb.store import manifest as store
from atarirb.store.files import FileRecord, sync_directory
from atarirb.store.npy import NpyWriter, write_npy


class ShardWriter:
    """One shard that is being written.

    Args:
        work: Directory of things half-written, on the dataset's disk.
        split: Number of the shard.

    Attributes:
        directory: Where its files are, until `place` gives the shard its name.
    """

    def __init__(self, work: pathlib.Path, split: int):
        self.directory = work / store.shard_name(split)
        self.directory.mkdir()
        self._split = split
        self._files: dict[str, FileRecord] = {}
        self._columns: dict[str, str] = {}

    def column(self, name: str, values: np.ndarray) -> None:
        """Write a column, whole; a scalar one in the narrowest dtype that holds it."""
        values = narrowed(values)
        self._columns[name] = values.dtype.str
        self.keep({f"{name}.npy": write_npy(self.directory / f"{name}.npy", values)})

    def wide_column(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> NpyWriter:
        """Begin a column that is written row by row; its file is to be kept by `keep`."""
        self._columns[name] = dtype.str
        return NpyWriter(self.directory / f"{name}.npy", shape, dtype)

    @property
    def files(self) -> dict[str, FileRecord]:
        """The files written so far, by name."""
        return dict(sorted(self._files.items()))

    @property
    def columns(self) -> dict[str, str]:
        """The dtypes of the columns begun so far, by name."""
        return dict(sorted(self._columns.items()))

    def keep(self, files: Mapping[str, FileRecord]) -> None:
        """Take files in that were written into `directory`."""
        self._files |= files

    def finish(
        self,
        *,
        segments: np.ndarray,
        finals: np.ndarray,
        steps: int,
        adds: tuple[int, int],
        capacity: int,
        head: str,
        clipped: bool,
        source: dict[str, str],
    ) -> store.ShardRecord:
        """Write what is left, the record last, and return that.

        Args:
            segments: int64[K, 2], see `atarirb.store.manifest`.
            finals: int64[F], likewise.
            steps: See `store.ShardRecord`, as for all that follow.
            adds: The add numbers it accounts for.
            capacity: Rows of the ring buffer, or 0.
            head: How its first step stands to the one before.
            clipped: All its rewards are -1, 0 or 1.
            source: Fingerprints of the source files.
        """
        for name, values in ((store.SEGMENTS, segments), (store.FINALS, finals)):
            if len(values) or name == store.SEGMENTS:
                self.keep({name: write_npy(self.directory / name, values.astype(np.int64, copy=False))})
        record = store.ShardRecord(
            split=self._split,
            steps=steps,
            finals=len(finals),
            segments=len(segments),
            columns=self.columns,
            adds=adds,
            capacity=capacity,
            head=head,
            clipped=clipped,
            files=self.files,
            source=source,
        )
        return self.seal(record)

    def seal(self, record: store.ShardRecord) -> store.ShardRecord:
        """Write the record of files that are all there, and return it."""
        store.write_record(self.directory, record)
        return record


def place(work: pathlib.Path, directory: pathlib.Path, record: store.ShardRecord) -> None:
    """Give a shard that is whole its name.

    Args:
        work: Where it was written.
        directory: The dataset's directory, whose lock the caller holds.
        record: The shard's.
    """
    final = directory / record.directory
    if final.exists():  # of a source that has changed since, or damaged
        os.rename(final, work / f"{record.directory}.old")
    os.rename(work / record.directory, final)
    sync_directory(directory)


def narrowed(values: np.ndarray) -> np.ndarray:
    """Return a scalar column as int8 if that loses nothing, not even the sign of a zero; else as it is."""
    if values.ndim != 1 or values.dtype.kind not in "iuf" or values.dtype.itemsize == 1:
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        small = values.astype(np.int8)
        widened = small.astype(values.dtype)
    return small if widened.tobytes() == values.tobytes() else values


def clipped(rewards: np.ndarray) -> bool:
    """Tell whether all rewards are -1, 0 or 1."""
    return bool(np.isin(rewards, (-1, 0, 1)).all())
