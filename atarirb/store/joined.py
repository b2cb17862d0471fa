"""Several opened datasets read as one: their steps one after the other, in one index space.

The steps of all datasets are numbered 0 .. N-1, dataset by dataset. In the numbering of frames those of
the steps come first, and the final frames of all follow, dataset by dataset. No file is mapped twice, and
where all frames are kept in one way a batch is one kernel call, however many datasets there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from atarirb import kernels
from atarirb.errors import ArgumentError
from atarirb.store.codecs import CODECS
from atarirb.store.dataset import Dataset, OnDemand


class Joined:
    """Datasets in one index space, to be gathered from like one `Dataset`.

    Args:
        datasets: One or more, with frames of one shape and dtype; they must stay open.

    Attributes:
        datasets: The same.
        firsts: int64[R + 1], first step of each dataset, and the steps in all.
        offsets: int64[shards + 1], first step of each dataset's shards, and the steps in all.
        splits: int64[shards], source split of each shard in its dataset.
        frames: The frames of all.
        described: Shape of a row and dtype of each column by name that every dataset has alike.
        columns: Maps of each of these by name, one per shard, in the dtypes they are stored in.
        places: What kernels need of each: uintp[shards], addresses, and int64[shards], bytes of a row.

    Raises:
        ArgumentError: There is none, or their frames differ in shape or dtype.
    """

    def __init__(self, datasets: Sequence[Dataset]):
        self.datasets = tuple(datasets)
        if not self.datasets:
            raise ArgumentError("there is no dataset to read; expected one or more")
        _check_alike(self.datasets)
        steps = [int(dataset.offsets[-1]) for dataset in self.datasets]
        finals = [dataset.manifest.frames - dataset.manifest.steps for dataset in self.datasets]
        self.firsts = np.concatenate([[0], np.cumsum(steps, dtype=np.int64)])
        final_firsts = self.firsts[-1] + np.concatenate([[0], np.cumsum(finals, dtype=np.int64)])
        #: What turns a dataset's own number of a step, and of a final frame, into that of all.
        self._shifts = self.firsts[:-1], final_firsts[:-1] - steps
        shifted = [
            dataset.offsets[:-1] + first
            for dataset, first in zip(self.datasets, self.firsts[:-1], strict=True)
        ]
        self.offsets = np.concatenate([*shifted, self.firsts[-1:]])
        self.splits = np.concatenate([dataset.splits for dataset in self.datasets])
        self.described = {
            name: described
            for name, described in self.datasets[0].described.items()
            if all(dataset.described.get(name) == described for dataset in self.datasets)
        }
        self.columns = OnDemand(self.described, partial(_columns, self.datasets))
        self.places = OnDemand(self.described, partial(_places, self.datasets))
        self.frames = _frames(self.datasets, np.concatenate([self.firsts[:-1], final_firsts]))

    def run_of(self, index: np.ndarray) -> np.ndarray:
        """Say which dataset each step is of, as int64[B]; -1 for -1."""
        return np.searchsorted(self.firsts, index, side="right") - 1

    def split_of(self, index: np.ndarray) -> np.ndarray:
        """Find the source split of each step in its dataset, as int64[B]."""
        return self.splits[np.searchsorted(self.offsets, index, side="right") - 1]

    def slot_of(self, index: np.ndarray) -> np.ndarray:
        """Find the row in its dataset's source files of each step, as int64[B].

        Raises:
            DatasetError, OSError: As of `Dataset.slot_of`.
        """
        run = self.run_of(index)
        slot = np.empty(len(index), np.int64)
        for number in np.unique(run).tolist():
            here = run == number
            slot[here] = self.datasets[number].slot_of(index[here] - self.firsts[number])
        return slot

    def frame_numbers(self, run: int | np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Turn a dataset's own numbers of frames, as those of `EPISODE`'s ``final``, into those of all.

        Args:
            run: Of which dataset: one number for all, or int64[B].
            numbers: int64[B]; -1 stays.

        Returns:
            int64[B].
        """
        steps, finals = (shift[run] for shift in self._shifts)
        final = numbers >= np.diff(self.firsts)[run]
        return np.where(numbers < 0, numbers, numbers + np.where(final, finals, steps))


class _Grouped:
    """Frames of datasets that no one call gathers: each group of them is asked for its rows.

    The face is that of `atarirb.store.raw.Frames`.

    Args:
        groups: The frames of each group of datasets.
        starts: int64[2R + 1], first frame of each dataset's steps, then of each one's final frames, and the
            end.
        of: int64[R], the group of each dataset.
        shifts: int64[2R], what to add to a number of the frames from `starts` on to have its group's.
    """

    def __init__(self, groups: Sequence[Any], starts: np.ndarray, of: np.ndarray, shifts: np.ndarray):
        self.shape: tuple[int, ...] = groups[0].shape
        self.dtype: np.dtype = groups[0].dtype
        self._groups = groups
        self._starts = starts
        self._of = of
        self._shifts = shifts

    def frames(self, ticket: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        """Gather frames; see `atarirb.store.raw.Frames`."""
        if _take_all(ticket, len(index)):
            self._frames(index, out)

    def pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> None:
        """Gather two frames per row, as `frames` does."""
        if _take_all(ticket, len(index)):
            self._frames(index, out)
            self._frames(next_index, next_out)

    def stacks(
        self, ticket: np.ndarray, index: np.ndarray, newest: np.ndarray, first: np.ndarray, out: np.ndarray
    ) -> None:
        """Gather stacks; see `atarirb.store.raw.Frames`."""
        if _take_all(ticket, len(index)):
            self._stacks(index, newest, first, out)

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
        """Gather two stacks per row, as `stacks` does."""
        if _take_all(ticket, len(index)):
            self._stacks(index, index, first, out)
            self._stacks(next_index, next_newest, first, next_out)

    def _frames(self, index: np.ndarray, out: np.ndarray) -> None:
        for frames, rows, entry in self._rows(index, out):
            part = np.empty((len(rows), *out.shape[1:]), out.dtype)
            frames.frames(kernels.ticket(), index[rows] + self._shifts[entry], part)
            out[rows] = part

    def _stacks(self, index: np.ndarray, newest: np.ndarray, first: np.ndarray, out: np.ndarray) -> None:
        for frames, rows, entry in self._rows(newest, out):
            part = np.empty((len(rows), *out.shape[1:]), out.dtype)
            # A stack is of the dataset that its newest frame is of; a step may be one past its last.
            shift = self._shifts[entry % len(self._of)]
            step, frame = index[rows] + shift, newest[rows] + self._shifts[entry]
            frames.stacks(kernels.ticket(), step, frame, first[rows] + shift, part)
            out[rows] = part

    def _rows(self, shown: np.ndarray, out: np.ndarray) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
        """Yield of each group its frames, the rows that show one of them, and where in `starts` these are.

        The rows that show none become zeros.
        """
        out[shown < 0] = 0
        entry = np.searchsorted(self._starts, shown, side="right") - 1
        group = np.where(shown < 0, -1, self._of[entry % len(self._of)])
        for number, frames in enumerate(self._groups):
            rows = np.flatnonzero(group == number)
            if len(rows):
                yield frames, rows, entry[rows]


def _frames(datasets: Sequence[Dataset], starts: np.ndarray) -> Any:
    """Read the frames of all datasets as those of one; `starts` as for `_Grouped`."""
    groups: list[Any] = []
    members: list[list[int]] = []  # the datasets of each group
    for codec in dict.fromkeys(dataset.manifest.codec for dataset in datasets):
        alike = [number for number, dataset in enumerate(datasets) if dataset.manifest.codec == codec]
        parts = [datasets[number].frames for number in alike]
        joined = CODECS[codec].Frames.joined(parts)
        groups += [joined] if joined else parts
        members += [alike] if joined else [[number] for number in alike]
    if len(groups) == 1:
        return groups[0]
    of = np.empty(len(datasets), np.int64)
    shifts = -starts[:-1]
    for group, numbers in enumerate(members):
        of[numbers] = group
        entries = np.array([*numbers, *(number + len(datasets) for number in numbers)])
        counts = np.diff(starts)[entries]
        shifts[entries] += np.cumsum(counts) - counts
    return _Grouped(groups, starts, of, shifts)


def _take_all(ticket: np.ndarray, rows: int) -> bool:
    """Take all rows for this caller; False if another has them."""
    taken = int(ticket[0])
    ticket[0] = max(rows, taken)
    return taken < rows


def _check_alike(datasets: Sequence[Dataset]) -> None:
    usual = datasets[0]
    for number, dataset in enumerate(datasets):
        if _frame(dataset) != _frame(usual):
            raise ArgumentError(
                f"dataset {number}, {str(dataset.directory)!r}, has frames of {_frame(dataset)}, dataset 0, "
                f"{str(usual.directory)!r}, of {_frame(usual)}; to be read as one they must have frames "
                f"of one shape and dtype"
            )


def _frame(dataset: Dataset) -> str:
    return f"{dataset.frames.dtype}{list(dataset.frames.shape)}"


def _columns(datasets: Sequence[Dataset], name: str) -> list[np.ndarray]:
    return [column for dataset in datasets for column in dataset.columns[name]]


def _places(datasets: Sequence[Dataset], name: str) -> tuple[np.ndarray, np.ndarray]:
    bases, widths = zip(*(dataset.places[name] for dataset in datasets), strict=True)
    return np.concatenate(bases), np.concatenate(widths)
