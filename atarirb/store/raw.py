"""The raw codec: every frame as it is, one row of ``observation.npy`` per frame.

A codec is a module with the names below; `atarirb.store.codecs` lists them. Readers and writers
know nothing else of how frames are kept.

    NAME                                as the manifest calls it
    PARAMETERS                          what its files are made with, for the manifest
    files()                             names of a shard's frame files
    disk_bytes(frames, shape, dtype, source)
                                        bytes they take, about, of frames that were `source` bytes packed
    sampled(frames, shape, dtype)       the frames that its writer wants to see before all others
    Writer(directory, frames, shape, dtype, samples=, threads=)
                                        write(rows, at); close() -> {name: FileRecord}; abandon()
    Frames(directories, steps, finals, shape, dtype)
                                        the frames of all shards: frames, pairs, stacks, stack_pairs
    Frames.joined(parts)                those of several datasets in one, over the same maps: the steps' of
                                        all parts, then the final ones; None if each must be asked itself
    InOrder(directory, steps, finals, shape, dtype)
                                        those of one shard, read by slices and not kept
"""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from atarirb import kernels
from atarirb.store.files import FileRecord
from atarirb.store.npy import NpyRows, NpyWriter, check_npy, header, map_npy

NAME = "raw"
PARAMETERS: dict[str, int] = {}
_FILE = "observation.npy"


def files() -> tuple[str, ...]:
    """Return the names of a shard's frame files."""
    return (_FILE,)


def disk_bytes(frames: int, shape: tuple[int, ...], dtype: np.dtype, source: int) -> int:
    """Return the bytes a shard's frames take."""
    full = (frames, *shape)
    return len(header(full, dtype)) + math.prod(full) * dtype.itemsize


def sampled(frames: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return which frames the writer wants to see beforehand: none."""
    return np.zeros(0, np.int64)


class Writer:
    """Writes the frames of one shard, in runs that may come in any order."""

    def __init__(
        self,
        directory: pathlib.Path,
        frames: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        *,
        samples: np.ndarray,
        threads: int = 1,
    ):
        self._file = NpyWriter(directory / _FILE, (frames, *shape), dtype)
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
        finals: Final frames of each, behind those of its steps.
        shape: Shape of a frame.
        dtype: Of its values.

    Attributes:
        shape, dtype: The same.

    Raises:
        DatasetError: A file is missing, of another size, shape or dtype.
    """

    def __init__(
        self,
        directories: Sequence[str | os.PathLike[str]],
        steps: Sequence[int],
        finals: Sequence[int],
        shape: tuple[int, ...],
        dtype: np.dtype,
    ):
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._held: Sequence[object] = [  # what keeps the maps alive
            map_npy(f"{directory}/{_FILE}", (count + more, *shape), dtype, random=True)
            for directory, count, more in zip(directories, steps, finals, strict=True)
        ]
        self._shards = len(steps)
        bases = kernels.addresses(self._held)
        self._offsets = firsts(steps, finals)
        if any(finals):  # to the kernels, the final frames of each shard are a shard of their own
            row_bytes = math.prod(shape) * self.dtype.itemsize
            bases = np.append(bases, bases + np.array(steps, np.uintp) * np.uintp(row_bytes))
        self._bases = bases
        self._blank = np.zeros(math.prod(shape), dtype)  # what stands where there is no frame

    @classmethod
    def joined(cls, parts: Sequence[Frames]) -> Frames:
        """Read several datasets' frames as those of one, over the same maps.

        Args:
            parts: One or more, all of one shape and dtype.

        Returns:
            Their frames: those of the steps of all parts, then their final ones, each part by part.
        """
        self = cls.__new__(cls)
        self.shape, self.dtype, self._blank = parts[0].shape, parts[0].dtype, parts[0]._blank
        self._held = tuple(parts)
        self._shards = sum(part._shards for part in parts)
        self._offsets, order = join_firsts([(part._offsets, part._shards) for part in parts])
        self._bases = np.concatenate([part._bases for part in parts])[order]
        return self

    def frames(self, ticket: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        """Gather frame ``index[i]`` into ``out[i]``; zeros for -1.

        Args:
            ticket: int64[1], the next row to do; several threads may call with the same one.
            index: int64[B].
            out: [B, *shape], C-contiguous.
        """
        kernels.active().frames(ticket, self._bases, self._offsets, index, as_bytes(out))

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
            ticket, self._bases, self._offsets, index, next_index, as_bytes(out), as_bytes(next_out)
        )

    def stacks(
        self, ticket: np.ndarray, index: np.ndarray, newest: np.ndarray, first: np.ndarray, out: np.ndarray
    ) -> None:
        """Gather the frames of steps ``index[i] - S + 1 .. index[i] - 1`` and frame ``newest[i]`` after them.

        Args:
            ticket: As for `frames`.
            index: int64[B].
            newest: int64[B], mostly `index`; -1 gives zeros.
            first: int64[B], frames before this one are zeros (its episode's first step).
            out: [B, *shape, S], C-contiguous.
        """
        kernels.active().stacks(
            ticket, self._bases, self._offsets, index, newest, first, self._blank, as_pixels(out)
        )

    def stack_pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        next_newest: np.ndarray,
        first: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> None:
        """Gather two stacks per row, as `stacks` does; the newest frame of the first is its step's."""
        kernels.active().stack_pairs(
            ticket,
            self._bases,
            self._offsets,
            index,
            next_index,
            next_newest,
            first,
            self._blank,
            as_pixels(out),
            as_pixels(next_out),
        )


class InOrder:
    """The frames of one shard, read by slices and not kept: mapped ones would count as memory in use.

    Args:
        directory: The shard.
        steps: Its steps.
        finals: Its final frames, behind those of its steps.
        shape: Shape of a frame.
        dtype: Of its values.

    Raises:
        DatasetError: A file is missing, or of another size or kind than it must be.
    """

    def __init__(
        self, directory: pathlib.Path, steps: int, finals: int, shape: tuple[int, ...], dtype: np.dtype
    ):
        full = (steps + finals, *shape)
        check_npy(directory / _FILE, full, dtype)
        self._rows = NpyRows(directory / _FILE, full, dtype)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._rows[rows]


def firsts(steps: Sequence[int], finals: Sequence[int]) -> np.ndarray:
    """Number each shard's first frame, then each one's first final frame if there are any, and the end.

    Args:
        steps: Steps of each shard.
        finals: Final frames of each.

    Returns:
        int64[shards + 1], or int64[2 * shards + 1].
    """
    counts = [*steps, *finals] if any(finals) else steps
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def join_firsts(parts: Sequence[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Number the first frames of several datasets' shards in one, as `firsts` does for those of one.

    Args:
        parts: Of each dataset what `firsts` gave, and its shards.

    Returns:
        The firsts, int64[V + 1], and int64[V], in which order the parts' V entries come in it.
    """
    final = np.concatenate([np.arange(len(offsets) - 1) >= shards for offsets, shards in parts])
    order = np.argsort(final, kind="stable")
    counts = np.concatenate([np.diff(offsets) for offsets, _ in parts])[order]
    return np.concatenate([[0], np.cumsum(counts)]), order


def as_bytes(out: np.ndarray) -> np.ndarray:
    """View [B, ...] as uint8[B, bytes]."""
    return out.reshape(len(out), math.prod(out.shape[1:])).view(np.uint8)


def as_pixels(out: np.ndarray) -> np.ndarray:
    """View [B, ..., S] as [B, pixels, S]."""
    return out.reshape(len(out), math.prod(out.shape[1:-1]), out.shape[-1])
