"""The reader: a dataset's steps by index, drawn at random, or in slices."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atarirb import catalog, home, markup, selection
from atarirb.arguments import as_index
from atarirb.batch import OPTIONAL, Batch, Recipe, gather
from atarirb.errors import ArgumentError, ColumnError, DatasetNotFoundError, UnknownGameError
from atarirb.index import EpisodeIndex
from atarirb.info import DatasetInfo, describe, facts
from atarirb.sampler import Options, Sampler, check_output, pack_options, unpack_options
from atarirb.selection import Selection
from atarirb.store.dataset import Dataset
from atarirb.store.manifest import TELL_TRUNCATION
from atarirb.store.mapping import let_go

if TYPE_CHECKING:
    from atarirb.sheet import Picture


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
    windows: bool = False,
    time_limit: str = "terminated",
    final: str = "zeros",
) -> Reader:
    """Open a dataset for reading. Only maps are made: no frame is read, no accelerator touched.

    Args:
        path: The dataset's directory, or its name in the home of datasets, as ``"Pong/1"`` (`atarirb.home`).
        frame_stack: Frames per observation; more than 1 appends an axis, newest last.
        n_step: Steps between an observation and the next one.
        gamma: Discount per step, of n-step rewards and of `return_to_go`.
        columns: More columns for each batch: "timestep", "episode", "return_to_go",
            "undiscounted_return_to_go", "action_full", "split", or the dataset's extra ones; see
            `atarirb.batch`.
        output: "numpy", "jax" or "torch".
        device: Where to put the arrays: a `jax.Device` or `jax.sharding.Sharding`, also one over several
            processes; or what `torch.device` takes.
        pin_memory: Torch tensors that stay on the host are in pinned memory, and those that go to a device
            go by way of it.
        windows: Transitions come with each frame once instead of as two stacks, for accelerators that are far
            away: see `atarirb.windows`. Slices stay as they are.
        time_limit: What the end of an episode of exactly 27,000 steps is. The logs have a terminal
            there, though the game went on: "terminated" leaves it so; "truncated" makes it a cut. Recordings,
            and arrays that were given with `truncated`, know which it was, and are not changed.
        final: The next observation at a terminal: "zeros", or "stored": the frame after the last
            action, where the dataset has it. Logs never do, recordings mostly, arrays if they were given.

    Returns:
        A `Reader`, also a context manager.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: A file of it is missing, too short or of another kind than the manifest says.
        ArgumentError: An option cannot be.
        ColumnError: A column is unknown.
        MissingPackageError: JAX arrays or torch tensors are wanted, and jax or torch is not installed.
    """
    options = Options(
        frame_stack=frame_stack,
        n_step=n_step,
        gamma=gamma,
        columns=_names(columns),
        output=output,
        device=device,
        pin_memory=pin_memory,
        windows=windows,
        time_limit=time_limit,
        final=final,
    )
    return Reader(home.locate(path), options)


class Reader(Sampler):
    """Batches from a dataset. Made by `open`.

    A reader holds no state that its answers depend on: it may be used from many threads, after a fork, and be
    pickled (it is opened again by its path).
    """

    _dataset: Dataset | None

    def __init__(self, path: str | os.PathLike[str], options: Options):
        self._path = os.fspath(path)
        self._absolute = os.path.abspath(path)  # the working directory may change
        self._name = f"the reader of {self._path!r}"
        self._options = options
        check_output(options)
        self._dataset = _open_dataset(self._path)
        self._dataset.episodes.flags.writeable = False
        self._recipe = _recipe(options, self._dataset)
        self._info = describe(self._path, self._dataset.manifest, self._dataset.episodes)
        self._draw_from(selection.whole(self._dataset.episodes))

    def _draw_from(self, selected: Selection) -> None:
        dataset = self._opened()
        self._selection = selected
        self._index = EpisodeIndex.of(
            selected.episodes,
            time_limit_terminates=self._options.time_limit == "terminated"
            or dataset.manifest.layout in TELL_TRUNCATION,
            terminals_show_final=self._options.final == "stored",
        )
        let_go(dataset.episodes)  # it was read for the index, and may not be asked for again
        valid = self._index.valid(self._options.frame_stack, self._options.n_step)
        self._valid = valid if selected.chosen.all() else valid.only(selected.chosen)
        self._slice_starts = {}

    def _narrowed(self, selected: Selection) -> Reader:
        other = Reader.__new__(Reader)
        other.__dict__.update(self.__dict__)
        other._draw_from(selected)
        return other

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
        Where a selection's edge cuts an episode, each piece has a row.
        """
        self._opened()
        return self._selection.episodes

    @property
    def selected(self) -> np.ndarray:
        """The numbers of the episodes that draws come from, int64[K]: all, or those of `select`."""
        return np.flatnonzero(self._selection.chosen)

    def select(
        self,
        episodes: Any = None,
        *,
        splits: Any = None,
        steps: slice | range | None = None,
        top: float | None = None,
        fraction: float | None = None,
        key: Any = None,
    ) -> Reader:
        """Draw from a part only, as ``reader.select(reader.episodes["return"] > 10)``.

        Of several conditions, `episodes`, `splits` and `steps` say together what is left, in any order;
        `top` chooses of that, and `fraction` of what `top` left.

        Args:
            episodes: Numbers of episodes, or a mask over `episodes`; as for `get`.
            splits: One split of the source files, or several: the steps that came from them.
            steps: Neighbouring steps, as ``slice(0, 1_000_000)`` or ``range(1_000_000)``; negative ones count
                from the end.
            top: This part of the whole episodes, those with the highest ``return``; of equal ones the
                earlier. Episodes with a cut head or end have no known return and are left out. The number of
                episodes is rounded, and at least one.
            fraction: A random part of the steps, in whole episodes: the episodes are taken in an order that
                `key` chooses until they have this part of all their steps.
            key: As for `sample`; with `fraction`.

        Returns:
            A reader whose draws come from that part of this one's. It shares all maps: nothing is copied, and
            draws are as fast. Steps keep their numbers, so `get`, `locate` and `len` go over the whole
            dataset; episodes too, but where an edge of `splits` or `steps` cuts an episode: `episodes` then
            has a row for each piece. A cut there is one like any other: no batch looks over it.

        Raises:
            StepIndexError, StepIndexTypeError, ArgumentError: As for `get`; also if nothing is left, or
                there is no such split.
            KeyTypeError: The key cannot be used.
        """
        dataset = self._opened()
        ranges = []
        if splits is not None:
            ranges.append(_ranges_of(dataset, splits))
        if steps is not None:
            ranges.append(selection.step_range(steps, len(self)))
        return self._narrowed(
            selection.narrowed(
                self._selection,
                episodes=episodes,
                ranges=ranges,
                top=top,
                fraction=fraction,
                key=key,
                rewards=self._rewards,
            )
        )

    def _rewards(self, steps: np.ndarray) -> np.ndarray:
        return gather(self._opened(), "reward", steps)

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
        batch = self._gather(index)
        return self._output(_first(batch) if single else batch)

    __getitem__ = get

    def preview(
        self,
        episode: int | None = None,
        *,
        steps: Any = None,
        start: int | None = None,
        frames: int = 60,
        every: int | None = None,
    ) -> Picture:
        """Draw an episode, or some steps, as a contact sheet: see `atarirb.sheet`.

        Args:
            episode: Number of an episode in `episodes`; negative ones count from the end. None for the first
                of `selected` that has both its beginning and its terminal.
            steps: Steps to show instead, in this order: as for `get`, or a batch, for the steps in it. The
                frames are those of the steps themselves, whatever the stack.
            start: First step shown of the episode, as for `atarirb.preview`.
            frames: Frames shown, at the most.
            every: Show one step of so many of the episode.

        Returns:
            A picture that a notebook shows, with ``save("sheet.png")``, and Pillow's image as ``image``.

        Raises:
            StepIndexError, StepIndexTypeError: There is no such episode or step.
            ArgumentError: An argument cannot be, or the frames are of a shape that is no picture.
            MissingPackageError: pillow is not installed.
        """
        from atarirb import sheet

        dataset, episodes = self._opened(), self.episodes
        if steps is not None:
            if (episode, start, every) != (None, None, None):
                raise ArgumentError("steps= says what is shown; episode, start and every go without it")
            return sheet.of_steps(dataset, episodes, self._steps_of(steps), frames=frames)
        if not len(episodes):
            raise ArgumentError(f"{self._info.name} has no episodes: there is nothing to show")
        if episode is None:
            number = sheet.first_whole(episodes, self._selection.chosen)
        else:
            number = sheet.within("episode", episode, len(episodes), self._info.name)
        return sheet.of_episode(dataset, episodes, number, start=start, frames=frames, every=every)

    def _steps_of(self, steps: Any) -> np.ndarray:
        """Turn steps, or a batch of them, into int64[B]."""
        if not isinstance(steps, Mapping):
            return as_index(steps, len(self))[0]
        if "index" not in steps:
            raise ArgumentError("steps is a dict without 'index', expected a batch, or indices")
        if "run" in steps:
            raise ArgumentError(
                "this batch is of several runs; choose the rows of one, and give their indices"
            )
        index = np.asarray(steps["index"]).reshape(-1)
        return as_index(index[index >= 0], len(self))[0]  # slices and last batches are filled up with -1

    def close(self) -> None:
        """Let go of the maps; batches handed out stay good. Closing twice is harmless."""
        super().close()
        # The table is a map, too.
        self._selection = dataclasses.replace(self._selection, episodes=self._selection.episodes[:0].copy())

    def _fingerprint(self) -> dict[str, Any]:
        return self._identity(self._opened())

    def _identity(self, dataset: Dataset) -> dict[str, Any]:
        """Make the fingerprint, also when closed, given the dataset."""
        options = self._options
        return {
            "dataset": dataset.manifest.fingerprint,
            "selection": self._selection.fingerprint,
            **{name: getattr(options, name) for name in ("frame_stack", "n_step", "time_limit", "final")},
            "gamma": float(options.gamma),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._absolute, pack_options(self._options), self._selection.packed())

    def __repr__(self) -> str:
        changed = "".join(f", {option}" for option in self._changed())
        closed = "" if self._dataset else ", closed"
        return f"<atarirb.Reader {self._info.name}: {self._info.steps:,} steps{closed}{changed}>"

    def _repr_html_(self) -> str:
        rows = {
            "options": ", ".join(self._changed()) or "as by default",
            "steps to draw": f"{self._valid.total:,}",
        }
        closed = "" if self._dataset else ", closed"
        return markup.table(
            (rows | facts(self._info)).items(), caption=f"Reader of {self._info.name}{closed}"
        )

    def _changed(self) -> list[str]:
        """Write the options that are not as by default."""
        return [
            f"{field.name}={getattr(self._options, field.name)!r}"
            for field in dataclasses.fields(self._options)
            if getattr(self._options, field.name) != field.default
        ]


def _ranges_of(dataset: Dataset, splits: Any) -> np.ndarray:
    """Return the ranges of steps, int64[K, 2], that came from these splits."""
    there = [shard.split for shard in dataset.manifest.shards]
    try:
        wanted = np.atleast_1d(np.asarray(splits))
    except ValueError:  # rows of unequal length
        wanted = np.zeros((0, 0))
    if wanted.ndim > 1 or wanted.dtype.kind not in "iu":
        raise ArgumentError(f"splits is {splits!r:.80}, expected one number or several")
    if missing := sorted(set(wanted.tolist()) - set(there)):
        raise ArgumentError(f"no split {missing[0]} in this dataset; it has {there!r:.200}")
    kept = np.isin(there, wanted)
    changes = np.flatnonzero(np.diff(kept, prepend=False, append=False))
    return dataset.offsets[changes].reshape(-1, 2)


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
        console_actions = np.full((1, catalog.CONSOLE_ACTIONS), -1, np.int32)
        console_actions[0, : len(game.minimal_actions)] = game.minimal_actions
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


def _reopen(path: str, options: Options, selected: tuple[list[int], bytes] | None) -> Reader:
    reader = Reader(path, unpack_options(options))
    if selected is None:
        return reader
    return reader._narrowed(selection.unpacked(selected, reader._selection, reader._rewards))
