"""An opened dataset: its manifest, its episode table, and maps of its columns."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from atarirb import kernels
from atarirb.errors import DatasetError
from atarirb.store.codecs import CODECS
from atarirb.store.episodes import read_episodes
from atarirb.store.manifest import COLUMNS, read_manifest
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
        columns: Maps of each column by name, one per shard.

    Raises:
        DatasetNotFoundError: There is no dataset there.
        DatasetError: A file is missing or is not what the manifest says.
    """

    def __init__(self, directory: str | os.PathLike[str]):
        self.directory = pathlib.Path(directory)
        self.manifest = manifest = read_manifest(self.directory)
        if manifest.codec not in CODECS:
            raise DatasetError(
                f"{self.directory}: frames kept as {manifest.codec!r}, this atarirb reads {', '.join(CODECS)}"
            )
        shards = [self.directory / shard.directory for shard in manifest.shards]
        steps = [shard.steps for shard in manifest.shards]
        self._splits = np.array([shard.split for shard in manifest.shards], np.int64)
        self.offsets = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
        if self.offsets[-1] != manifest.steps:
            raise DatasetError(
                f"{self.directory}: the manifest says {manifest.steps:,} steps, its shards have "
                f"{self.offsets[-1]:,}"
            )
        self.episodes = read_episodes(self.directory, manifest)
        described = {name: ((), dtype) for name, dtype in COLUMNS.items()}
        described |= {name: (record.shape, np.dtype(record.dtype)) for name, record in manifest.extra.items()}
        self.columns = {
            name: [
                map_npy(shard / f"{name}.npy", (count, *shape), dtype)
                for shard, count in zip(shards, steps, strict=True)
            ]
            for name, (shape, dtype) in described.items()
        }
        self.frames = CODECS[manifest.codec].Frames(
            shards, steps, manifest.frame.shape, np.dtype(manifest.frame.dtype)
        )
        self.addresses = {name: kernels.addresses(maps) for name, maps in self.columns.items()}

    def split_of(self, index: np.ndarray) -> np.ndarray:
        """Find the source split of each step, as int64[B]."""
        return self._splits[np.searchsorted(self.offsets, index, side="right") - 1]
