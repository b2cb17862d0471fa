"""Batches of transitions and slices, gathered from a dataset as nested dicts of NumPy arrays.

The names are those of TorchRL's TED form. A batch of B transitions::

    observation   [B, *frame] or [B, *frame, S], newest last
    action        int32[B]
    index         int64[B]     the step in the dataset
    done, terminated, truncated    bool[B], of the observation itself: False
    next
      observation   as above, n steps on; after an episode's end the final frame of a truncated one,
                    where it is known, and of a terminated one, if that is wanted; else zeros
      reward        float32[B]   sum of gamma**j r[t+j], j < m, where m is n or what is left of the episode
      discount      float32[B]   gamma**m; 0 at a terminal
      terminated    bool[B]      a terminal is among the m steps
      truncated     bool[B]      the episode ends with the m steps, and not by a terminal: it was
                                 truncated, or is cut, and then the next observation is not known
      done          bool[B]      one of the two

and the columns asked for, of the step itself:

  timestep      int32[B]     steps since the episode's first known one
  episode       int32[B]     its number in the reader's table of episodes
  return_to_go  float32[B]   sum of gamma**j r[t+j] over all that is left of the episode, slices or not;
                             NaN where the episode is cut, since what came then is not known
  undiscounted_return_to_go  float32[B], the same with a discount of 1
  action_full   int32[B]     the action's number among the console's 18
  split         int32[B]     the source files it comes from

and the dataset's extra columns. A batch of a mixture also says of each row, as ``run`` int32[B], which of
its runs it is of; ``index`` and ``episode`` are numbers in that run.

A batch of n slices has leaves [n, L, ...] and ``mask`` bool[n, L]: False where an episode was
shorter. There ``index`` is -1, the other leaves are zero, and the observations are to be ignored.
``observation`` and ``next.observation`` of slices are views into the same frames.

Frames before a known beginning of an episode are zeros, as Dopamine shows them. They are zeros
before a cut head too, but such a step is not valid and no draw returns it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from atarirb import kernels, threads
from atarirb.buffers import pool
from atarirb.errors import DatasetError
from atarirb.index import EpisodeIndex, Legal
from atarirb.store.dataset import Dataset
from atarirb.store.joined import Joined

#: The columns given only on request, extra columns of the dataset beside.
OPTIONAL = (
    "timestep",
    "episode",
    "return_to_go",
    "undiscounted_return_to_go",
    "action_full",
    "split",
)

#: Names that no extra column of a log may have.
RESERVED = frozenset(
    (*OPTIONAL, "observation", "action", "reward", "terminal", "segments", "final", "index", "next",
     "mask", "done", "terminated", "truncated", "discount", "run")
)  # fmt: skip

Batch = dict[str, Any]
Data = Dataset | Joined


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How batches are made.

    Attributes:
        frame_stack: Frames per observation.
        powers: float64[n_step + 1], powers of gamma.
        columns: The optional columns wanted.
        console_actions: int32[runs, 18], the console's action of each logged one in each run's game, -1
            where the game has fewer; None if ``action_full`` is not wanted.
    """

    frame_stack: int
    powers: np.ndarray
    columns: tuple[str, ...]
    console_actions: np.ndarray | None

    @property
    def n_step(self) -> int:
        """Steps between an observation and the next one."""
        return len(self.powers) - 1


def transitions(dataset: Data, episodes: EpisodeIndex, recipe: Recipe, index: np.ndarray) -> Batch:
    """Gather the transitions of steps `index`, int64[B]; rows of zeros for -1."""
    rows = len(index)
    shape = _observation_shape(dataset, recipe)
    observation = pool.empty((rows, *shape), dataset.frames.dtype)
    next_observation = pool.empty((rows, *shape), dataset.frames.dtype)
    step = empty_steps(rows)
    describe(dataset, episodes, recipe, index, step)

    def work(ticket: np.ndarray) -> None:
        if recipe.frame_stack == 1:
            dataset.frames.pairs(ticket, index, step["next_newest"], observation, next_observation)
        else:
            dataset.frames.stack_pairs(
                ticket, index, step["next_index"], step["next_newest"], step["first"],
                observation, next_observation,
            )  # fmt: skip

    threads.spread(work, 2 * observation.nbytes)
    batch = assemble(step, index, observation, next_observation)
    batch |= columns_of(dataset, episodes, recipe, index)
    return batch


def slices(
    dataset: Data, episodes: EpisodeIndex, recipe: Recipe, valid: Legal, starts: np.ndarray, length: int
) -> Batch:
    """Gather slices of consecutive valid steps.

    Args:
        dataset: Where from.
        episodes: Its episodes.
        recipe: How.
        valid: The valid steps; a slice ends with its episode's last one, if that comes sooner.
        starts: int64[n], first step of each slice.
        length: L, steps of a slice.
    """
    shape = _observation_shape(dataset, recipe)
    count, span = len(starts), length + recipe.n_step
    frames = pool.empty((count * span, *shape), dataset.frames.dtype)
    index, mask = np.empty((count, length), np.int64), np.empty((count, length), np.bool_)
    shown, newest, first = (np.empty((count, span), np.int64) for _ in range(3))
    kernels.active().slice_rows(
        starts, episodes.starts, valid.first, valid.cumulative, episodes.final, recipe.n_step,
        index, mask, shown, newest, first,
    )  # fmt: skip
    shown, newest, first = shown.reshape(-1), newest.reshape(-1), first.reshape(-1)

    def work(ticket: np.ndarray) -> None:
        if recipe.frame_stack == 1:
            dataset.frames.frames(ticket, newest, frames)
        else:
            dataset.frames.stacks(ticket, shown, newest, first, frames)

    threads.spread(work, frames.nbytes)
    frames = frames.reshape(count, span, *shape)

    flat = index.reshape(-1)
    step = empty_steps(len(flat))
    describe(dataset, episodes, recipe, flat, step)
    step = {name: values.reshape(index.shape) for name, values in step.items()}
    batch = assemble(step, index, frames[:, :length], frames[:, recipe.n_step :])
    for name, values in columns_of(dataset, episodes, recipe, flat).items():
        batch[name] = values.reshape(*index.shape, *values.shape[1:])
    batch["mask"] = mask
    return batch


def _observation_shape(dataset: Data, recipe: Recipe) -> tuple[int, ...]:
    stack = (recipe.frame_stack,) if recipe.frame_stack > 1 else ()
    return (*dataset.frames.shape, *stack)


def empty_steps(rows: int) -> dict[str, np.ndarray]:
    """Make what the kernel `steps` fills, in its order."""
    return {
        "first": np.empty(rows, np.int64),
        "next_index": np.empty(rows, np.int64),
        "next_newest": np.empty(rows, np.int64),
        "action": np.empty(rows, np.int32),
        "reward": np.empty(rows, np.float32),
        "discount": np.empty(rows, np.float32),
        "terminated": np.empty(rows, np.bool_),
        "truncated": np.empty(rows, np.bool_),
    }


def describe(
    dataset: Data,
    episodes: EpisodeIndex,
    recipe: Recipe,
    index: np.ndarray,
    step: dict[str, np.ndarray],
) -> None:
    """Fill all that the kernel `steps` finds out about steps `index`."""
    kernels.active().steps(
        index, episodes.starts, episodes.terminal_end, episodes.final, recipe.powers, dataset.offsets,
        *dataset.places["action"], *dataset.places["reward"], *step.values(),
    )  # fmt: skip


def assemble(
    step: dict[str, np.ndarray],
    index: np.ndarray,
    observation: np.ndarray,
    next_observation: np.ndarray,
) -> Batch:
    """Put a batch together of what `describe` filled in and the frames."""
    return {
        "observation": observation,
        "action": step["action"],
        "index": index,
        "done": np.zeros(index.shape, np.bool_),
        "terminated": np.zeros(index.shape, np.bool_),
        "truncated": np.zeros(index.shape, np.bool_),
        "next": {
            "observation": next_observation,
            "reward": step["reward"],
            "discount": step["discount"],
            "done": step["terminated"] | step["truncated"],
            "terminated": step["terminated"],
            "truncated": step["truncated"],
        },
    }


def columns_of(
    dataset: Data, episodes: EpisodeIndex, recipe: Recipe, index: np.ndarray
) -> dict[str, np.ndarray]:
    """Make the optional columns of steps `index`, int64[B]; zeros where it is -1."""
    return {name: _column(name, dataset, episodes, recipe, index) for name in recipe.columns}


def _column(
    name: str, dataset: Data, episodes: EpisodeIndex, recipe: Recipe, index: np.ndarray
) -> np.ndarray:
    absent = index < 0
    if name in ("return_to_go", "undiscounted_return_to_go"):
        gamma = float(recipe.powers[1]) if name == "return_to_go" else 1.0
        out = np.empty(len(index), np.float32)
        kernels.active().returns_to_go(
            index, episodes.starts, gamma, dataset.offsets, *dataset.places["reward"], out
        )
        out[~absent & ~episodes.ended[episodes.episode_of(np.maximum(index, 0))]] = np.nan
        return out
    if name == "action_full":
        assert recipe.console_actions is not None
        action = gather(dataset, "action", index)
        of_game = recipe.console_actions[dataset.run_of(np.maximum(index, 0))]
        full = np.take_along_axis(of_game, np.clip(action, 0, of_game.shape[1] - 1)[:, None], axis=1)[:, 0]
        unknown = (action < 0) | (action >= of_game.shape[1]) | (full < 0)
        if unknown.any():
            row = int(np.argmax(unknown))
            count = int((of_game[row] >= 0).sum())
            raise DatasetError(f"action {action[row]} of step {index[row]} is none of the game's {count}")
        return np.where(absent, 0, full).astype(np.int32)
    if name == "split":
        return np.where(absent, 0, dataset.split_of(index)).astype(np.int32)
    if name in ("episode", "timestep"):
        episode = episodes.episode_of(np.maximum(index, 0))
        value = episode if name == "episode" else index - episodes.starts[episode]
        return np.where(absent, 0, value).astype(np.int32)
    return gather(dataset, name, index)


def gather(dataset: Data, name: str, index: np.ndarray) -> np.ndarray:
    """Gather a stored column's rows of steps `index`, int64[B]; zeros where it is -1."""
    shape, dtype = dataset.described[name]
    bases, widths = dataset.places[name]
    full = np.zeros((len(index), *shape), dtype)
    width = widths[np.searchsorted(dataset.offsets, index, side="right") - 1]
    for bytes_of_row in np.unique(width).tolist():
        # Through `frames`, with the rows as bytes: one kernel serves columns of every dtype.
        stored = dtype if bytes_of_row == dtype.itemsize * math.prod(shape) else np.dtype(np.int8)
        values = np.empty((len(index), *shape), stored)
        rows = values.reshape(len(index), math.prod(shape)).view(np.uint8)
        here = (index >= 0) & (width == bytes_of_row)
        kernels.active().frames(kernels.ticket(), bases, dataset.offsets, np.where(here, index, -1), rows)
        full[here] = values[here]
    return full
