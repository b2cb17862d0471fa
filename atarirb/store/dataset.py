"""An opened dataset: its manifest, its episode table, and maps of its columns."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from atarirb import kernels
from atarirb.errors import DatasetError
from atarirb.store.codecs import CODECS
from atarirb.store.episodes import read_tables
from atarirb.store.manifest import COLUMNS, SEGMENTS, ShardRecord, stored_dtype
from atarirb.store.npy import check_npy, map_npy

K = TypeVar("K")
T = TypeVar("T")

#: The columns that are mapped at opening. Each map counts, of those that the system allows a process: others
#: are mapped when they are first asked for.
MAPPED = ("action", "reward")


class Dataset:
    """The maps of a dataset; nothing is read until it is asked for.

    Args:
        directory: The dataset's directory.

    Attributes:
        manifest: What it holds.
        episodes: EPISODE[E].
        offsets: int64[shards + 1], first step of each shard, and the steps in all.
        firsts: int64[2], first step, 0, and the steps in all; see `atarirb.store.joined.Joined`.
        splits: int64[shards], source split of each shard.
        frames: The codec's frames of all shards.
        described: Shape of a row and dtype of each column by name, as it is handed out.
        columns: Maps of each column by name, one per shard, in the dtypes they are stored in.
        places: What kernels need of each column: uintp[shards], addresses, and int64[shards], bytes of a row.

    Raises:
        DatasetNotFoundError: There is no dataset there.
        DatasetError: A file is missing or is not what the manifest says.
        OSError: There is no room for a map.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = pathlib.Path(directory)
        manifest, self.episodes = read_tables(self.directory)
        self.manifest = manifest
        if manifest.codec not in CODECS:
            raise DatasetError(
                f"{self.directory}: frames kept as {manifest.codec!r}, this atarirb reads {', '.join(CODECS)}"
            )
        root = os.path.abspath(directory)  # the working directory may change
        shards = [os.path.join(root, shard.directory) for shard in manifest.shards]
        steps = [shard.steps for shard in manifest.shards]
        finals = [shard.finals for shard in manifest.shards]
        self.splits = np.array([shard.split for shard in manifest.shards], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
        self.firsts = self.offsets[[0, -1]]
        if self.offsets[-1] != manifest.steps:
            raise DatasetError(
                f"{self.directory}: the manifest says {manifest.steps:,} steps, its shards have "
                f"{self.offsets[-1]:,}"
            )
        self.described = {name: ((), dtype) for name, dtype in COLUMNS.items()}
        self.described |= {
            name: (record.shape, np.dtype(record.dtype)) for name, record in manifest.extra.items()
        }
        files = list(zip(shards, manifest.shards, strict=True))
        self.columns = OnDemand(self.described, partial(_column, files, self.described, map_npy))
        self.places = OnDemand(self.described, partial(_places, self.columns))
        for name in self.described:
            if name in MAPPED:
                self.places[name]
            else:
                _column(files, self.described, check_npy, name)
        for shard, record in files:
            check_npy(f"{shard}/{SEGMENTS}", (record.segments, 2), np.dtype(np.int64))
        self._segments = OnDemand(range(len(files)), partial(_segments, files))
        self.frames = CODECS[manifest.codec].Frames(
            shards,
            steps,
            finals,
            manifest.frame.shape,
            np.dtype(manifest.frame.dtype),
        )

    def run_of(self, index: np.ndarray) -> np.ndarray:
        """Say which dataset each step is of, as int64[B]: this one, number 0."""
        return np.zeros(len(index), np.int64)

    def split_of(self, index: np.ndarray) -> np.ndarray:
        """Find the source split of each step, as int64[B]."""
        return self.splits[np.searchsorted(self.offsets, index, side="right") - 1]

    def slot_of(self, index: np.ndarray) -> np.ndarray:
        """Find the row in the source files of each step, as int64[B].

        Raises:
            DatasetError: A file of segments was removed or replaced since the dataset was opened.
            OSError: There is no room for a map.
        """
        shard = np.searchsorted(self.offsets, index, side="right") - 1
        step = index - self.offsets[shard]
        slot = np.empty(len(index), np.int64)
        for number in np.unique(shard).tolist():
            here = shard == number
            segments = self._segments[number]
            segment = segments[np.searchsorted(segments[:, 0], step[here], side="right") - 1]
            slot[here] = segment[:, 1] + step[here] - segment[:, 0]
        return slot


class OnDemand(Mapping[K, T]):
    """Values by key, each made when it is first asked for and kept.

    Args:
        keys: All keys.
        make: Makes the value of one; threads that ask at once may both call it, and get the same one.
    """

    def __init__(self, keys: Collection[K], make: Callable[[K], T]):
        self._keys = keys
        self._make = make
        self._made: dict[K, T] = {}

    def __getitem__(self, key: K) -> T:
        made = self._made.get(key)
        if made is None:
            if key not in self._keys:
                raise KeyError(key)
            made = self._made.setdefault(key, self._make(key))
        return made

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


# Functions of what they need, not methods: a dataset that its own attributes referred to would not be
# freed, and its maps with it, when it is let go of, but at some time later.


def _column(
    files: Sequence[tuple[str, ShardRecord]],
    described: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    take: Callable[[str, tuple[int, ...], np.dtype], T],
    name: str,
) -> list[T]:
    """Map a column of each shard, or check it."""
    shape, dtype = described[name]
    return [
        take(f"{shard}/{name}.npy", (record.steps, *shape), stored_dtype(record, name, dtype))
        for shard, record in files
    ]


def _places(columns: Mapping[str, list[np.ndarray]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Say where a column is: addresses, and bytes of a row."""
    maps = columns[name]
    widths = [map.dtype.itemsize * math.prod(map.shape[1:]) for map in maps]
    return kernels.addresses(maps), np.array(widths, np.int64)


def _segments(files: Sequence[tuple[str, ShardRecord]], number: int) -> np.ndarray:
    """Map where a shard's steps were in the source files."""
    shard, record = files[number]
    return map_npy(f"{shard}/{SEGMENTS}", (record.segments, 2), np.dtype(np.int64))
