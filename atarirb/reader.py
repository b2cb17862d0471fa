"""The reader: a dataset's steps by index, drawn at random, or in slices."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from atarirb import catalog, draws
from atarirb.batch import OPTIONAL, Batch, Recipe, gather, slices, transitions
from atarirb.errors import (
    ArgumentError,
    ClosedError,
    ColumnError,
    DatasetNotFoundError,
    StepIndexError,
    StepIndexTypeError,
    UnknownGameError,
)
from atarirb.index import EpisodeIndex, Legal
from atarirb.info import DatasetInfo, describe
from atarirb.store.dataset import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a reader makes its batches; see `open` for each."""

    frame_stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    columns: tuple[str, ...] = ()
    output: str = "numpy"
    device: Any = None
    time_limit: str = "terminated"

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame_stack", positive("frame_stack", self.frame_stack))
        object.__setattr__(self, "n_step", positive("n_step", self.n_step))
        object.__setattr__(self, "columns", tuple(self.columns))
        if not 0 <= self.gamma <= 1:
            raise ArgumentError(f"gamma is {self.gamma!r}, expected a number from 0 to 1")
        _one_of("output", self.output, ("numpy", "jax"))
        _one_of("time_limit", self.time_limit, ("terminated", "truncated"))
        if self.device is not None and self.output != "jax":
            raise ArgumentError("device= goes with output='jax'; NumPy arrays are on the host")


def open(  # the name in atarirb's namespace, as gzip.open
    path: str | os.PathLike[str],
    *,
    frame_stack: int = 1,
    n_step: int = 1,
    gamma: float = 0.99,
    columns: Sequence[str] = (),
    output: str = "numpy",
    device: Any = None,
    time_limit: str = "terminated",
) -> Reader:
    """Open a dataset for reading. Only maps are made: no frame is read, no accelerator touched.

    Args:
        path: The dataset's directory.
        frame_stack: Frames per observation; more than 1 appends an axis, newest last.
        n_step: Steps between an observation and the next one.
        gamma: Discount per step, of n-step rewards and of `return_to_go`.
        columns: More columns for each batch: "timestep", "episode", "return_to_go", "action_full",
            "split", or one of the dataset's extra ones; see `atarirb.batch`.
        output: "numpy" or "jax".
        device: A `jax.Device` or `jax.sharding.Sharding` to put JAX arrays on.
        time_limit: What the end of an episode of exactly 27,000 steps is. The logs have a terminal
            there, though the game went on: "terminated" leaves it so; "truncated" makes it a cut.

    Returns:
        A `Reader`, also a context manager.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: A file of it is missing, too short or of another kind than the manifest says.
        ArgumentError: An option cannot be.
        ColumnError: A column is unknown.
        MissingPackageError: JAX arrays are wanted, and jax is not installed.
    """
    options = Options(
        frame_stack=frame_stack,
        n_step=n_step,
        gamma=gamma,
        columns=(columns,) if isinstance(columns, str) else tuple(columns),
        output=output,
        device=device,
        time_limit=time_limit,
    )
    return Reader(path, options)


class Reader:
    """Batches from a dataset. Made by `open`.

    A reader holds no state that changes: it may be used from many threads, after a fork, and be
    pickled (it is opened again by its path).
    """

    def __init__(self, path: str | os.PathLike[str], options: Options):
        self._path = os.fspath(path)
        self._options = options
        if options.output == "jax":
            from atarirb.outputs import jax as output

            output.require()
        self._dataset: Dataset | None = _open_dataset(self._path)
        self._index = EpisodeIndex.of(
            self._dataset.episodes, time_limit_terminates=options.time_limit == "terminated"
        )
        self._recipe = _recipe(options, self._dataset)
        self._valid = self._index.valid(options.frame_stack, options.n_step)
        self._slice_starts: dict[tuple[int, bool], Legal] = {}
        self._info = describe(self._path, self._dataset.manifest, self._dataset.episodes)
        self._dataset.episodes.flags.writeable = False

    # What it holds.

    def __len__(self) -> int:
        """Return the steps in all, valid or not."""
        return self._opened().manifest.steps

    @property
    def info(self) -> DatasetInfo:
        """What the dataset is, in numbers."""
        return self._info

    @property
    def episodes(self) -> np.ndarray:
        """The episode table, one row each: see `atarirb.store.manifest.EPISODE`.

        Its ``return`` sums the rewards as logged; in the public logs they are clipped to {-1, 0, 1}.
        """
        return self._opened().episodes

    @property
    def valid_steps(self) -> int:
        """How many steps `sample` draws from."""
        return self._valid.total

    def locate(self, indices: Any) -> tuple[np.ndarray, np.ndarray]:
        """Find steps in the source files.

        Args:
            indices: As for `get`.

        Returns:
            The number of the split, int64[B], and the row in its files, int64[B]; two numbers for
            a single index.
        """
        dataset = self._opened()
        index, single = self._steps(indices)
        split, slot = dataset.split_of(index), gather(dataset, "slot", index).astype(np.int64)
        return (split[0], slot[0]) if single else (split, slot)

    # By index.

    def get(self, indices: Any) -> Batch:
        """Gather transitions, in the order asked for, repeats included.

        Args:
            indices: An int, slice, range, sequence or array of ints, or a mask bool[N]; negative
                ones count from the end.

        Returns:
            A batch as described in `atarirb.batch`; for a single int the leaves have no batch axis.
            Steps that are not valid are given too: `next.truncated` tells where a next observation
            is not known.

        Raises:
            StepIndexError: An index is out of range.
            StepIndexTypeError: An index is not an integer.
            ArgumentError: A mask has another length than the dataset, or indices more than one axis.
        """
        index, single = self._steps(indices)
        batch = transitions(self._opened(), self._index, self._recipe, index)
        return self._output(_map(batch, operator.itemgetter(0)) if single else batch)

    __getitem__ = get

    # At random.

    def sample(self, key: Any, n: int) -> Batch:
        """Draw transitions uniformly over the valid steps, with replacement.

        Args:
            key: A JAX PRNG key, an int, a `numpy.random.SeedSequence` or a `Generator`; the same key
                gives the same batch for every output, number of threads and machine.
            n: How many.

        Returns:
            A batch as described in `atarirb.batch`, B = n.

        Raises:
            KeyTypeError: The key cannot be used.
            ArgumentError: n < 1, or no step is valid.
        """
        n = positive("n", n)
        dataset = self._opened()
        if not self._valid.total:
            raise ArgumentError(
                f"no step of the {len(self):,} is valid for frame_stack={self._options.frame_stack} "
                f"and n_step={self._options.n_step}"
            )
        index = self._valid.draw(draws.words(key, n))
        return self._output(transitions(dataset, self._index, self._recipe, index))

    def sample_slices(
        self, key: Any, n: int, length: int, *, strict_length: bool = True, weighting: str = "starts"
    ) -> Batch:
        """Draw slices: `length` consecutive valid steps of one episode each.

        Args:
            key: As for `sample`.
            n: How many slices.
            length: L, steps of a slice.
            strict_length: False: episodes with fewer valid steps are drawn too, whole, and padded;
                ``mask`` tells the padding.
            weighting: "starts": every legal start is as likely as any other, so episodes count by
                their length. "episodes": every episode that has a legal start is as likely as any
                other, then every start in it.

        Returns:
            A batch with leaves [n, L, ...] and ``mask`` bool[n, L]; see `atarirb.batch`.

        Raises:
            KeyTypeError: The key cannot be used.
            ArgumentError: n < 1, L < 1, or no episode is long enough; the message names the longest.
        """
        n, length = positive("n", n), positive("length", length)
        _one_of("weighting", weighting, ("starts", "episodes"))
        dataset = self._opened()
        legal = self._slice_starts.get((length, strict_length))
        if legal is None:
            legal = self._index.slice_starts(self._valid, length, strict=strict_length)
            self._slice_starts[length, strict_length] = legal
        if weighting == "starts":
            starts = legal.draw(draws.words(key, n))
        else:
            starts = legal.draw_by_episode(draws.words(key, 2 * n).reshape(n, 2))
        episode = self._index.episode_of(starts)
        left = self._valid.first[episode] + self._valid.counts[episode] - starts
        lengths = np.minimum(left, length)
        return self._output(slices(dataset, self._index, self._recipe, starts, lengths, length))

    # Its life.

    def close(self) -> None:
        """Let go of the maps; batches handed out stay good. Closing twice is harmless."""
        self._dataset = None

    def __enter__(self) -> Reader:
        self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._options
        if options.device is not None:
            from atarirb.outputs import jax as output

            options = dataclasses.replace(options, device=output.describe_device(options.device))
        return _reopen, (os.path.abspath(self._path), options)

    def __repr__(self) -> str:
        changed = [
            f", {field.name}={getattr(self._options, field.name)!r}"
            for field in dataclasses.fields(self._options)
            if getattr(self._options, field.name) != field.default
        ]
        closed = "" if self._dataset else ", closed"
        return f"<atarirb.Reader {self._info.name}: {self._info.steps:,} steps{closed}{''.join(changed)}>"

    def _opened(self) -> Dataset:
        dataset = self._dataset
        if dataset is None:
            raise ClosedError(f"the reader of {self._path!r} is closed; open it again")
        return dataset

    def _output(self, batch: Batch) -> Batch:
        if self._options.output == "numpy":
            return batch
        from atarirb.outputs import jax as output

        return output.put(batch, self._options.device)

    def _steps(self, indices: Any) -> tuple[np.ndarray, bool]:
        """Turn what a caller may index by into int64[B], and whether it was a single one."""
        count = len(self)
        if isinstance(indices, slice):
            try:
                return np.arange(*indices.indices(count), dtype=np.int64), False
            except TypeError as error:
                raise StepIndexTypeError(f"{indices}: {error}") from error
        if isinstance(indices, range):
            array = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
        else:
            array = np.asarray(indices)
        if array.dtype == np.bool_ and array.ndim == 1:
            if len(array) != count:
                raise ArgumentError(f"a mask of {len(array):,} values, expected one per step: {count:,}")
            return np.flatnonzero(array), False
        if array.size == 0 and array.ndim == 1:
            return np.zeros(0, np.int64), False
        if array.dtype.kind not in "iu":
            what = repr(indices) if array.ndim == 0 else f"{array.dtype} values"
            raise StepIndexTypeError(f"steps are indexed by integers, got {what[:80]}")
        if array.ndim > 1:
            raise ArgumentError(f"indices of shape {array.shape}, expected one axis")
        flat = array.reshape(-1)
        outside = (flat >= count) if array.dtype.kind == "u" else (flat >= count) | (flat < -count)
        if outside.any():
            raise StepIndexError(f"step {flat[outside][0]} is out of range for a dataset of {count:,} steps")
        index = flat.astype(np.int64)
        index[index < 0] += count
        return index, array.ndim == 0


def positive(name: str, value: Any) -> int:
    """Check that an argument is an integer of 1 or more, and return it as an int.

    Raises:
        ArgumentError: It is not.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise ArgumentError(f"{name} is {value!r}, expected an integer of 1 or more")
    return number


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ArgumentError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def _open_dataset(path: str) -> Dataset:
    try:
        return Dataset(path)
    except DatasetNotFoundError as error:
        name = "/".join(path.rstrip("/").split("/")[-2:])
        if not os.path.isdir(path) and name.partition("/")[0] not in catalog.games():
            raise DatasetNotFoundError(f"{error}; {catalog.suggestion(name)}") from None
        raise


def _recipe(options: Options, dataset: Dataset) -> Recipe:
    known = (*OPTIONAL, *dataset.manifest.extra)
    for column in options.columns:
        if column not in known:
            raise ColumnError(f"unknown column {column!r}; on request there are {', '.join(known)}")
    console_actions = None
    if "action_full" in options.columns:
        try:
            game = catalog.game(dataset.manifest.name)
        except UnknownGameError as error:
            raise ColumnError(
                f"column 'action_full' needs the game's action set, and this dataset's game is not "
                f"in the catalog: {error}"
            ) from None
        console_actions = np.array(game.minimal_actions, np.int32)
    return Recipe(
        frame_stack=options.frame_stack,
        powers=float(options.gamma) ** np.arange(options.n_step + 1),
        columns=options.columns,
        console_actions=console_actions,
    )


def _map(batch: Batch, function: Any) -> Batch:
    return {
        name: _map(leaf, function) if isinstance(leaf, dict) else function(leaf)
        for name, leaf in batch.items()
    }


def _reopen(path: str, options: Options) -> Reader:
    if options.device is not None:
        from atarirb.outputs import jax as output

        options = dataclasses.replace(options, device=output.find_device(options.device))
    return Reader(path, options)
