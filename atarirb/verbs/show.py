"""Show: what a dataset is."""

from __future__ import annotations

import os
import pathlib

import numpy as np

from atarirb.info import DatasetInfo, describe
from atarirb.store.manifest import EPISODE, EPISODES, read_manifest
from atarirb.store.npy import map_npy


def show(path: str | os.PathLike[str]) -> DatasetInfo:
    """Sum a dataset up from its manifest and episode table alone.

    Args:
        path: The dataset's directory.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: The manifest or the episode table is damaged.
    """
    directory = pathlib.Path(path)
    manifest = read_manifest(directory)
    episodes = np.array(map_npy(directory / EPISODES, (manifest.episodes,), EPISODE))
    return describe(path, manifest, episodes)
