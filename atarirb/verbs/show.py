"""Show: what a dataset is."""

from __future__ import annotations

import os
import pathlib

from atarirb.info import DatasetInfo, describe
from atarirb.store.episodes import read_tables


def show(path: str | os.PathLike[str]) -> DatasetInfo:
    """Sum a dataset up from its manifest and episode table alone.

    Args:
        path: The dataset's directory.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: The manifest or the episode table is damaged.
    """
    directory = pathlib.Path(path)
    return describe(path, *read_tables(directory))
