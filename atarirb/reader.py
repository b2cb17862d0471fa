"""The reader: a dataset's steps by index, drawn at random, or in slices."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from atarirb import catalog, draws, outputs
from atarirb.arguments import as_index, one_of, positive
from atarirb.batch import OPTIONAL, Batch, Recipe, slices, transitions
from atarirb.errors import (
    ArgumentError,
    ClosedError,
    ColumnError,
    DatasetNotFoundError,
    UnknownGameError,
)
from atarirb.index import EpisodeIndex, Legal
from atarirb.info import DatasetInfo, describe
from atarirb.store.dataset import Dataset
from atarirb.store.manifest import RECORDED

#: Lengths of slices whose starts are remembered.
_MOST_LENGTHS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How a reader makes its batches; see `open` for each."""

    frame_stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    columns: tuple[str, ...] = ()
    output: str = "numpy"
    device: Any = None
    pin_memory: bool = False
    time_limit: str = "terminated"
    final: str = "zeros"

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame_stack", positive("frame_stack", self.frame_stack, most=1 << 16))
        object.__setattr__(self, "n_step", positive("n_step", self.n_step, most=1 << 16))
        object.__setattr__(self, "columns", tuple(self.columns))
        if not isinstance(self.gamma, (int, float, np.number)) or not 0 <= self.gamma <= 1:
            raise ArgumentError(f"gamma is {self.gamma!r}, expected a number from 0 to 1")
        one_of("output", self.output, outputs.NAMES)
        one_of("time_limit", self.time_limit, ("terminated", "truncated"))
        one_of("final", self.final, ("zeros", "stored"))
        if self.device is not None and self.output == "numpy":
            raise ArgumentError(
                "device= goes with output='jax' or output='torch'; NumPy arrays are on the host"
            )
        if self.pin_memory and self.output != "torch":
            raise ArgumentError("pin_memory=True goes with output='torch'")

    @property
    def placement(self) -> dict[str, Any]:
        """Where batches go: arguments of an output's `check` and `put`."""
        return {"device": self.device} | ({"pin": True} if self.pin_memory else {})


def open(  # the name in atarirb's namespace, as gzip.open
    path: str | os.PathLike[str],
    *,
    frame_stack: int = 1,
    n_step: int = 1,
    gamma: float = 0.99,
    columns: Sequence[str] = (),
    output: str = "numpy",
    device: Any = None,
    pin_memory: bool = False,
    time_limit: str = "terminated",
    final: str = "zeros",
) -> Reader:
    """Open a dataset for reading. Only maps are made: no frame is read, no accelerator touched.

    Args:
        path: The dataset's directory.
        frame_stack: Frames per observation; more than 1 appends an axis, newest last.
        n_step: Steps between an observation and the next one.
        gamma: Discount per step, of n-step rewards and of `return_to_go`.
        columns: More columns for each batch: "timestep", "episode", "return_to_go", "action_full",
            "split", or one of the dataset's extra ones; see `atarirb.batch`.
        output: "numpy", "jax" or "torch".
        device: A `jax.Device` or `jax.sharding.Sharding` to put JAX arrays on; for PyTorch what
            `torch.device` takes.
        pin_memory: PyTorch tensors come from pinned memory, so that they are copied to `device` beside the
            caller's work.
        time_limit: What the end of an episode of exactly 27,000 steps is. The logs have a terminal
            there, though the game went on: "terminated" leaves it so; "truncated" makes it a cut. Recordings
            know which it was, and are not changed.
        final: The next observation at a terminal: "zeros", or "stored": the frame after the last
            action, where the dataset has it. Logs never do, recordings mostly.

    Returns:
        A `Reader`, also a context manager.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: A file of it is missing, too short or of another kind than the manifest says.
        ArgumentError: An option cannot be.
        ColumnError: A column is unknown.
        MissingPackageError: `output` needs a package that is not installed.
    """
    options = Options(
        frame_stack=frame_stack,
        n_step=n_step,
        gamma=gamma,
        columns=_names(columns),
        output=output,
        device=device,
        pin_memory=pin_memory,
        time_limit=time_limit,
        final=final,
    )
    return Reader(path, options)


class Reader:
    """Batches from a dataset. Made by `open`.

    A reader holds no state that its answers depend on: it may be used from many threads, after a fork, and be
    pickled (it is opened again by its path).
    """

    def __init__(self, path: str | os.PathLike[str], options: Options):
        self._path = os.fspath(path)
        self._absolute = os.path.abspath(path)  # the working directory may change
        self._options = options
        self._library = outputs.module(options.output)
        if self._library:
            self._library.check(**options.placement)
        self._dataset: Dataset | None = _open_dataset(self._path)
        self._index = EpisodeIndex.of(
            self._dataset.episodes,
            time_limit_terminates=options.time_limit == "terminated"
            or self._dataset.manifest.layout == RECORDED,
            terminals_show_final=options.final == "stored",
        )
        self._recipe = _recipe(options, self._dataset)
        self._draw_from(np.ones(len(self._dataset.episodes), np.bool_))
        self._info = describe(self._path, self._dataset.manifest, self._dataset.episodes)
        self._dataset.episodes.flags.writeable = False

    def _draw_from(self, selected: np.ndarray) -> None:
        self._selected = selected
        valid = self._index.valid(self._options.frame_stack, self._options.n_step)
        self._valid = valid if selected.all() else valid.only(selected)
        self._slice_starts: dict[tuple[int, bool], Legal] = {}

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
    def selected(self) -> np.ndarray:
        """The numbers of the episodes that draws come from, int64[K]: all, or those of `select`."""
        return np.flatnonzero(self._selected)

    @property
    def valid_steps(self) -> int:
        """How many steps `sample` draws from."""
        return self._valid.total

    def select(self, episodes: Any) -> Reader:
        """Draw from some episodes only, as ``reader.select(reader.episodes["return"] > 10)``.

        Args:
            episodes: Numbers of episodes, or a mask over `episodes`; as for `get`.

        Returns:
            A reader whose draws come from those of this one's episodes. It shares all maps: nothing is
            copied, and draws are as fast. Steps and episodes keep their numbers, so `get`, `locate`
            and `len` are the same.

        Raises:
            StepIndexError, StepIndexTypeError, ArgumentError: As for `get`; also if none is left.
        """
        chosen = np.zeros(len(self.episodes), np.bool_)
        chosen[as_index(episodes, len(chosen), noun="episode")[0]] = True
        chosen &= self._selected
        if not chosen.any():
            raise ArgumentError(f"no episode is selected of the {self._selected.sum():,} there are")
        other = Reader.__new__(Reader)
        other.__dict__.update(self.__dict__)
        other._draw_from(chosen)
        return other

    def locate(self, indices: Any) -> tuple[np.ndarray, np.ndarray]:
        """Find steps in the source files.

        Args:
            indices: As for `get`.

        Returns:
            The number of the split, int64[B], and the row in its files, int64[B]; two numbers for
            a single index.
        """
        dataset = self._opened()
        index, single = as_index(indices, len(self))
        split, slot = dataset.split_of(index), dataset.slot_of(index)
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
        index, single = as_index(indices, len(self))
        batch = transitions(self._opened(), self._index, self._recipe, index)
        return self._output(_first(batch) if single else batch)

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
            BatchSizeError: The batch would be larger than this machine's memory.
        """
        n = positive("n", n)
        dataset = self._opened()
        if not self._valid.total:
            raise ArgumentError(
                f"no step to draw from is valid for frame_stack={self._options.frame_stack} "
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
        one_of("weighting", weighting, ("starts", "episodes"))
        dataset = self._opened()
        legal = self._slice_starts.get((length, strict_length))
        if legal is None:
            legal = self._index.slice_starts(self._valid, length, strict=strict_length)
            if len(self._slice_starts) >= _MOST_LENGTHS:
                self._slice_starts.clear()
            self._slice_starts[length, strict_length] = legal
        if weighting == "starts":
            starts = legal.draw(draws.words(key, n))
        else:
            starts = legal.draw_by_episode(draws.words(key, 2 * n).reshape(n, 2))
        return self._output(slices(dataset, self._index, self._recipe, self._valid, starts, length))

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
            options = dataclasses.replace(options, device=self._library.pack_device(options.device))
        selected = None if self._selected.all() else np.packbits(self._selected)
        return _reopen, (self._absolute, options, selected)

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
        return self._library.put(batch, **self._options.placement) if self._library else batch


def _open_dataset(path: str) -> Dataset:
    try:
        return Dataset(path)
    except DatasetNotFoundError as error:
        if not os.path.isdir(path):
            tail = "/".join(path.rstrip("/").split("/")[-2:])
            raise DatasetNotFoundError(f"{error}{catalog.hint(tail)}") from None
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


def _names(columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str):
        return (columns,)
    try:
        return tuple(columns or ())
    except TypeError:
        raise ArgumentError(f"columns is {columns!r}, expected names") from None


def _first(batch: Batch) -> Batch:
    """Take the first row of every leaf; those of one axis become arrays of none."""
    return {name: _first(leaf) if isinstance(leaf, dict) else leaf[0, ...] for name, leaf in batch.items()}


def _reopen(path: str, options: Options, selected: np.ndarray | None) -> Reader:
    if options.device is not None:
        library = outputs.module(options.output)
        options = dataclasses.replace(options, device=library.unpack_device(options.device))
    reader = Reader(path, options)
    if selected is None:
        return reader
    return reader.select(np.unpackbits(selected, count=len(reader.episodes)).astype(np.bool_))
