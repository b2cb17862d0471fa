"""The raw codec: every frame as it is, one row of ``observation.npy`` per step.

A codec is a module with the names below; `atarirb.store.codecs` lists them. Readers and writers
know nothing else of how frames are kept.

    NAME                                     as the manifest calls it
    files()                                  names of a shard's frame files
    disk_bytes(steps, shape, dtype)          bytes a shard needs, at the most
    Writer(directory, steps, shape, dtype)   write(rows, at); close() -> {name: FileRecord}; abandon()
    Frames(directories, steps, shape, dtype) the frames of all shards; pairs, frames, stack_pairs, stacks
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from atarirb import kernels
from atarirb.store.files import FileRecord
from atarirb.store.npy import NpyWriter, header, map_npy

NAME = "raw"
_FILE = "observation.npy"


def files() -> tuple[str, ...]:
    """Return the names of a shard's frame files."""
    return (_FILE,)


def disk_bytes(steps: int, shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the bytes a shard's frames take."""
    full = (steps, *shape)
    return len(header(full, dtype)) + math.prod(full) * dtype.itemsize


class Writer:
    """Writes the frames of one shard, in runs that may come in any order."""

    def __init__(self, directory: pathlib.Path, steps: int, shape: tuple[int, ...], dtype: np.dtype):
        self._file = NpyWriter(directory / _FILE, (steps, *shape), dtype)
        self.write = self._file.write
        self.abandon = self._file.abandon

    def close(self) -> dict[str, FileRecord]:
        """Finish the file and describe it."""
        return {_FILE: self._file.close()}


class Frames:
    """The frames of all shards of a dataset, mapped.

    Args:
        directories: The shards, in step order.
        steps: Steps of each.
        shape: Shape of a frame.
        dtype: Of its values.

    Attributes:
        shape, dtype: The same.

    Raises:
        DatasetError: A file is missing, of another size, shape or dtype.
    """

    def __init__(
        self,
        directories: Sequence[pathlib.Path],
        steps: Sequence[int],
        shape: tuple[int, ...],
        dtype: np.dtype,
    ):
        self.maps = [
            map_npy(directory / _FILE, (count, *shape), dtype, random=True)
            for directory, count in zip(directories, steps, strict=True)
        ]
        self._offsets = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
        self._bases = kernels.addresses(self.maps)
        self._blank = np.zeros(math.prod(shape), dtype)  # what stands where there is no frame
        self.shape = shape
        self.dtype = np.dtype(dtype)

    def frames(self, ticket: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        """Gather frame ``index[i]`` into ``out[i]``; zeros for -1.

        Args:
            ticket: int64[1], the next row to do; several threads may call with the same one.
            index: int64[B].
            out: [B, *shape], C-contiguous.
        """
        kernels.active().frames(ticket, self._bases, self._offsets, index, _as_bytes(out))

    def pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> None:
        """Gather two frames per row, as `frames` does."""
        kernels.active().pairs(
            ticket, self._bases, self._offsets, index, next_index, _as_bytes(out), _as_bytes(next_out)
        )

    def stacks(self, ticket: np.ndarray, index: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
        """Gather the frames ``index[i] - S + 1 .. index[i]``, newest last.

        Args:
            ticket: As for `frames`.
            index: int64[B]; -1 gives zeros.
            first: int64[B], frames before this one are zeros (its episode's first step).
            out: [B, *shape, S], C-contiguous.
        """
        kernels.active().stacks(
            ticket, self._bases, self._offsets, index, first, self._blank, _as_pixels(out)
        )

    def stack_pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        first: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> None:
        """Gather two stacks per row, as `stacks` does."""
        kernels.active().stack_pairs(
            ticket,
            self._bases,
            self._offsets,
            index,
            next_index,
            first,
            self._blank,
            _as_pixels(out),
            _as_pixels(next_out),
        )


def _as_bytes(out: np.ndarray) -> np.ndarray:
    return out.reshape(len(out), math.prod(out.shape[1:])).view(np.uint8)


def _as_pixels(out: np.ndarray) -> np.ndarray:
    return out.reshape(len(out), math.prod(out.shape[1:-1]), out.shape[-1])
