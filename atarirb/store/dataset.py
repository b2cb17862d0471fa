"""An opened dataset: its manifest, its episode table, and maps of its columns."""

from __future__ import annotations

import math
import os
import pathlib

import numpy as np

from atarirb import kernels
from atarirb.errors import DatasetError
from atarirb.store.codecs import CODECS
from atarirb.store.episodes import read_tables
from atarirb.store.manifest import COLUMNS, SEGMENTS, stored_dtype
from atarirb.store.npy import map_npy


class Dataset:
    """The maps of a dataset; nothing is read until it is asked for.

    Args:
        directory: The dataset's directory.

    Attributes:
        manifest: What it holds.
        episodes: EPISODE[E].
        offsets: int64[shards + 1], first step of each shard, and the steps in all.
        frames: The codec's frames of all shards.
        described: Shape of a row and dtype of each column by name, as it is handed out.
        columns: Maps of each column by name, one per shard, in the dtypes they are stored in.
        places: What kernels need of each column: uintp[shards], addresses, and int64[shards], bytes of a row.

    Raises:
        DatasetNotFoundError: There is no dataset there.
        DatasetError: A file is missing or is not what the manifest says.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = pathlib.Path(directory)
        manifest, self.episodes = read_tables(self.directory)
        self.manifest = manifest
        if manifest.codec not in CODECS:
            raise DatasetError(
                f"{self.directory}: frames kept as {manifest.codec!r}, this atarirb reads {', '.join(CODECS)}"
            )
        shards = [self.directory / shard.directory for shard in manifest.shards]
        steps = [shard.steps for shard in manifest.shards]
        finals = [shard.finals for shard in manifest.shards]
        self._splits = np.array([shard.split for shard in manifest.shards], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
        if self.offsets[-1] != manifest.steps:
            raise DatasetError(
                f"{self.directory}: the manifest says {manifest.steps:,} steps, its shards have "
                f"{self.offsets[-1]:,}"
            )
        self.described = {name: ((), dtype) for name, dtype in COLUMNS.items()}
        self.described |= {
            name: (record.shape, np.dtype(record.dtype)) for name, record in manifest.extra.items()
        }
        self.columns = {
            name: [
                map_npy(shard / f"{name}.npy", (record.steps, *shape), stored_dtype(record, name, dtype))
                for shard, record in zip(shards, manifest.shards, strict=True)
            ]
            for name, (shape, dtype) in self.described.items()
        }
        self._segments = [
            map_npy(shard / SEGMENTS, (record.segments, 2), np.dtype(np.int64))
            for shard, record in zip(shards, manifest.shards, strict=True)
        ]
        self.frames = CODECS[manifest.codec].Frames(
            shards, steps, finals, manifest.frame.shape, np.dtype(manifest.frame.dtype)
        )
        self.places = {
            name: (
                kernels.addresses(maps),
                np.array([map.dtype.itemsize * math.prod(map.shape[1:]) for map in maps], np.int64),
            )
            for name, maps in self.columns.items()
        }

    def split_of(self, index: np.ndarray) -> np.ndarray:
        """Find the source split of each step, as int64[B]."""
        return self._splits[np.searchsorted(self.offsets, index, side="right") - 1]

    def slot_of(self, index: np.ndarray) -> np.ndarray:
        """Find the row in the source files of each step, as int64[B]."""
        shard = np.searchsorted(self.offsets, index, side="right") - 1
        step = index - self.offsets[shard]
        slot = np.empty(len(index), np.int64)
        for number in np.unique(shard):
            here = shard == number
            segments = self._segments[number]
            segment = segments[np.searchsorted(segments[:, 0], step[here], side="right") - 1]
            slot[here] = segment[:, 1] + step[here] - segment[:, 0]
        return slot
