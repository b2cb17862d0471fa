"""Show: what a dataset is."""

from __future__ import annotations

import os

from atarirb import home
from atarirb.info import DatasetInfo, describe
from atarirb.store.episodes import read_tables


def show(path: str | os.PathLike[str]) -> DatasetInfo:
    """Sum a dataset up from its manifest and episode table alone.

    Args:
        path: The dataset's directory, or its name in the home (`atarirb.home`).

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: The manifest or the episode table is damaged.
    """
    directory = home.locate(path)
    return describe(directory, *read_tables(directory))
