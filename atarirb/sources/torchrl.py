"""Snapshots of a ring buffer that TorchRL has unpacked: the folders of its ``AtariDQNExperienceReplay``.

Its preprocessing (``torchrl/data/datasets/atari_dqn.py``) makes one folder for each split,
``<Game>/<run>/<k>/``, of the rows as they are in the log, in the order of the file::

    data/observation.memmap        one row more than the log's file, which was never written and means nothing
    data/action.memmap
    data/next/reward.memmap        of the same step as the action, as in the log
    data/next/terminated.memmap    the log's terminal
    data/<other>.memmap            an extra column
    add_count.memmap, invalid_range.memmap

A memmap is the array's bytes in C order alone; shape and dtype are in the ``meta.json`` of its folder.
Further files (``processed.json``, ``dataset_id/``) are not read.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Callable, Iterator

import numpy as np

from atarirb.errors import LogError
from atarirb.sources.files import FileLogs
from atarirb.sources.folder import Folder
from atarirb.sources.gzipped import RawStream

_END = ".memmap"
_META = "meta.json"
#: Where the columns are that are not in ``data/``.
_PLACES = {
    "reward": f"data/next/reward{_END}",
    "terminal": f"data/next/terminated{_END}",
    "add_count": f"add_count{_END}",
    "invalid_range": f"invalid_range{_END}",
}
_MOST_META = 1 << 20


class TorchRLLogs(FileLogs):
    """The replay logs of one run as TorchRL keeps them.

    Args:
        folder: The run's directory.
        splits: The directories of the splits that are wanted of it, by their names: numbers.

    Raises:
        LogError: Two directories are of the same split.
    """

    layout = "torchrl"

    def __init__(self, folder: Folder, splits: list[str]):
        files: dict[int, dict[str, str]] = {}
        sizes: dict[str, int] = {}
        for split in splits:
            found = _listing(folder.below(split))
            columns = {name: place for name, place in _PLACES.items() if place in found}
            for place in found:
                if posixpath.dirname(place) == "data":
                    columns[posixpath.basename(place).removesuffix(_END)] = place
            if int(split) in files:
                raise LogError(f"{folder.path} has two directories for split {int(split)}")
            files[int(split)] = {name: folder.at(f"{split}/{place}") for name, place in columns.items()}
            sizes |= {folder.at(f"{split}/{place}"): found[place] for place in columns.values()}
        super().__init__(folder.filesystem, folder.path, files, sizes)

    def file_name(self, split: int, column: str) -> str:
        """Say how the file of a column is called, or would be: for messages."""
        return f"{split}/{_PLACES.get(column, f'data/{column}{_END}')}"

    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> RawStream:
        """Open a column of a split.

        Raises:
            LogError: The split has no such column, or the file or its description cannot be read.
        """
        path, name = self._path(split, column), self.file_name(split, column)
        shape, dtype = self._described(split, path, name)
        spare = 1 if column == "observation" else 0
        if spare and (not shape or not shape[0]):
            raise LogError(f"{name}: {dtype}{list(shape)}, expected frames, and a row that follows them")
        shape = (shape[0] - spare, *shape[1:]) if spare else shape
        expected = math.prod(shape) * dtype.itemsize + spare * math.prod(shape[1:]) * dtype.itemsize
        if self._sizes[path] != expected:
            raise LogError(
                f"{name}: has {self._sizes[path]:,} bytes, expected {expected:,} as its {_META} says"
            )
        return RawStream(self._open(split, path), name, shape, dtype, spare=spare, on_bytes=on_bytes)

    def _mark(self, split: int, path: str) -> str:
        with self._open(split, path) as file:
            return f"{self._sizes[path]}:{self._changed(path, file)}"

    def _described(self, split: int, path: str, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Read shape and dtype of a memmap."""
        folder, file = posixpath.split(path)
        meta = f"{posixpath.dirname(name)}/{_META}"
        try:
            with self._open(split, posixpath.join(folder, _META)) as opened:
                entry = json.loads(opened.read(_MOST_META))[file.removesuffix(_END)]
            shape = tuple(int(side) for side in entry["shape"])
            dtype = np.dtype(entry["dtype"].removeprefix("torch."))
            if dtype.isbuiltin != 1:  # other packages register more, by names that torch has, too
                raise TypeError(f"{entry['dtype']} is none of NumPy's dtypes")
        except FileNotFoundError:
            raise LogError(f"there is no {meta} in {self.directory}, which describes {name}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogError(
                f"{meta}: no description of {name} that can be read: {type(error).__name__}: {error}"
            ) from error
        if min(shape, default=0) < 0 or dtype.hasobject:
            raise LogError(f"{meta}: {name} is {dtype}{list(shape)}, which cannot be")
        return shape, dtype


def find(folder: Folder, run: int | None) -> Iterator[TorchRLLogs]:
    """Recognise a run's directory, or that of one split of it.

    Args:
        folder: The directory.
        run: None, or the number of the run whose directory this is.

    Yields:
        The logs.

    Raises:
        ArgumentError: The directory is of another run.
        LogError: Two directories are of the same split.
    """
    if _is_split(folder) and folder.name.isdecimal():
        folder.parent.check_run(run)
        yield TorchRLLogs(folder.parent, [folder.name])
    elif folder.numbered and _is_split(folder.below(folder.numbered[0])):
        folder.check_run(run)
        yield TorchRLLogs(folder, folder.numbered)


def _is_split(folder: Folder) -> bool:
    if not folder.holds("data"):
        return False
    return _META in folder.files and any(name.endswith(_END) for name in folder.below("data").files)


def _listing(split: Folder) -> dict[str, int]:
    """List a split's memmaps: their bytes, by path below it."""
    found = dict(split.files)
    if split.holds("data"):
        data = split.below("data")
        found |= {f"data/{name}": size for name, size in data.files.items()}
        if data.holds("next"):
            found |= {f"data/next/{name}": size for name, size in data.below("next").files.items()}
    return {name: size for name, size in found.items() if name.endswith(_END)}
