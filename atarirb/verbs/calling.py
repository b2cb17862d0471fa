"""A caller's function over batches of steps: what it is given of a dataset, and what it must return.

`atarirb.verbs.map.map` says what is in a batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atarirb import batch as batches
from atarirb.batch import RESERVED, Batch, gather
from atarirb.buffers import pool
from atarirb.errors import ArgumentError, FunctionError
from atarirb.reader import Reader
from atarirb.store import manifest as store
from atarirb.store.dataset import Dataset
from atarirb.store.episodes import final_steps
from atarirb.threads import spread

OBSERVATION = "observation"


@dataclasses.dataclass(frozen=True, eq=False)
class Function:
    """A function, called on `size` rows of a dataset at a time.

    Attributes:
        reader: How batches are made.
        dataset: The reader's dataset.
        finals: int64[F] of each shard: its steps after which a final frame is kept.
        fn: The caller's function.
        size: Rows of a batch.
    """

    reader: Reader
    dataset: Dataset
    finals: list[np.ndarray]
    fn: Callable[[Batch], Mapping[str, Any]]
    size: int

    @classmethod
    def of(cls, reader: Reader, fn: Callable[[Batch], Mapping[str, Any]], size: int) -> Function:
        """Prepare a function to be called on an open reader's rows."""
        dataset = reader._opened()
        return cls(reader, dataset, final_steps(dataset.directory, dataset.manifest.shards), fn, size)

    def __reduce__(self) -> tuple[Any, ...]:  # where it is sent, the reader opens its dataset
        return Function.of, (self.reader, self.fn, self.size)

    def rows(
        self, number: int, frames: np.ndarray, expected: Mapping[str, store.ColumnRecord] | None = None
    ) -> dict[str, np.ndarray]:
        """Call the function on frames of a shard.

        Args:
            number: Which shard.
            frames: int64[K], 1 <= K <= size, numbers in the shard: those of steps, then the final ones.
            expected: What it returns, if that is known.

        Returns:
            By name, arrays of K rows, C-contiguous.

        Raises:
            FunctionError: It failed.
            ArgumentError: It returned no arrays of `size` rows that a dataset could keep, or others than
                expected.
            DatasetError: A frame is damaged.
        """
        batch = self._batch(number, frames[np.minimum(np.arange(self.size), len(frames) - 1)])
        steps = batch["index"]
        where = f"fn, given {self.size:,} rows from step {steps[0]:,} to {steps[-1]:,},"
        try:
            found = self.fn(batch)
            if isinstance(found, Mapping):
                found = {name: np.asarray(values) for name, values in found.items()}
        except Exception as error:
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise FunctionError(f"{where} failed: {what}") from error
        if not isinstance(found, Mapping) or not found:
            what = "an empty dict" if isinstance(found, Mapping) else f"a {type(found).__name__}"
            raise ArgumentError(f"{where} returned {what}, expected a dict of arrays by name")
        for name, values in found.items():
            self._check(where, name, values)
        rows = {
            name: np.ascontiguousarray(values[: len(frames)], values.dtype.newbyteorder("="))
            for name, values in found.items()
        }
        if expected is not None:
            _compare(where, described(rows), expected)
        return rows

    def _batch(self, number: int, frames: np.ndarray) -> Batch:
        dataset, episodes, recipe = self.dataset, self.reader._index, self.reader._recipe
        shard = dataset.manifest.shards[number]
        final = frames >= shard.steps
        index = dataset.offsets[number] + frames
        index[final] = dataset.offsets[number] + self.finals[number][frames[final] - shard.steps]
        before = dataset.manifest.steps + sum(other.finals for other in dataset.manifest.shards[:number])
        newest = np.where(final, before + frames - shard.steps, index)
        stack = (recipe.frame_stack,) if recipe.frame_stack > 1 else ()
        observation = pool.empty((len(frames), *dataset.frames.shape, *stack), dataset.frames.dtype)
        first = episodes.starts[episodes.episode_of(index)]

        def work(ticket: np.ndarray) -> None:
            if stack:
                dataset.frames.stacks(ticket, index + final, newest, first, observation)
            else:
                dataset.frames.frames(ticket, newest, observation)

        spread(work, observation.nbytes)
        steps = np.where(final, -1, index)
        batch: Batch = {OBSERVATION: observation}
        batch |= {name: gather(dataset, name, steps) for name in store.COLUMNS}
        batch |= {"index": index, "final": final} | batches.columns_of(dataset, episodes, recipe, steps)
        return self.reader._output(batch)

    def _check(self, where: str, name: Any, values: np.ndarray) -> None:
        """Refuse an array that cannot become a dataset's."""
        known = name == OBSERVATION or name in self.dataset.manifest.extra
        if not known and (not isinstance(name, str) or not name.isidentifier() or name in RESERVED):
            raise ArgumentError(
                f"{where} returned {name!r}, which no column may be called; expected {OBSERVATION!r}, or "
                f"names other than {', '.join(sorted(RESERVED - {OBSERVATION}))}"
            )
        if values.dtype.kind not in "biufc":
            raise ArgumentError(
                f"{where} returned {name} of dtype {values.dtype}, expected numbers of one of NumPy's own "
                f"dtypes; convert it, as to float16 or float32"
            )
        if values.shape[:1] != (self.size,) or not values.size:
            raise ArgumentError(
                f"{where} returned {name} of shape {list(values.shape)}, expected {self.size:,} rows: one "
                f"for each that it was given, of a value or more"
            )


def described(rows: Mapping[str, np.ndarray]) -> dict[str, store.ColumnRecord]:
    """Return shape of a row and dtype of arrays, by name, sorted."""
    return {
        name: store.ColumnRecord(shape=values.shape[1:], dtype=values.dtype.str)
        for name, values in sorted(rows.items())
    }


def spell(output: store.ColumnRecord | None) -> str:
    """Say what shape of a row and dtype an array has; None for no array."""
    return f"{np.dtype(output.dtype)}{list(output.shape)}" if output else "nothing"


def _compare(
    where: str, found: Mapping[str, store.ColumnRecord], expected: Mapping[str, store.ColumnRecord]
) -> None:
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            raise ArgumentError(
                f"{where} returned as {name} {spell(found.get(name))}, expected "
                f"{spell(expected.get(name))} a row, as from its first call"
            )
