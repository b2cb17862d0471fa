"""Batches with each frame once, for accelerators: two stacks of nearly the same frames take longer to send.

An observation and the one n steps on share S - n of their S frames. A window is the frames of both, in
the order of play, each once; `atarirb.outputs.jax.unpack` makes the two stacks of it, inside jit. A
batch of B windows is one of transitions (see `atarirb.batch`) but for the observations::

    window   [B, S + K, *frame], K = min(n, S): the observation's frames, oldest first, then those of the
             next observation that are not among them
    shift    bool[B, K]     [:, k]: the next observation's frames begin k + 1 after the observation's;
             where all are False, it is zeros

Frames are whole, one after the other, so they are copied, or decoded, straight to where they belong: a
stack's frames lie pixel by pixel. On a CPU, where JAX takes NumPy's memory as it is, turning the frames
into stacks costs about what is saved. Where an episode ends within n steps, the next observation begins
sooner, and the window's last frames, which nothing shows, are zeros.
"""

from __future__ import annotations

import numpy as np

from atarirb import threads
from atarirb.batch import Batch, Data, Recipe, assemble, columns_of, describe, empty_steps
from atarirb.buffers import pool
from atarirb.index import EpisodeIndex


def windows(dataset: Data, episodes: EpisodeIndex, recipe: Recipe, index: np.ndarray) -> Batch:
    """Gather the transitions of steps `index`, int64[B], as windows."""
    step = empty_steps(len(index))
    describe(dataset, episodes, recipe, index, step)
    numbers, shift = _frames(step, index, recipe)
    window = pool.empty((*numbers.shape, *dataset.frames.shape), dataset.frames.dtype)
    flat = window.reshape(numbers.size, *dataset.frames.shape)
    numbers = numbers.reshape(-1)
    threads.spread(lambda ticket: dataset.frames.frames(ticket, numbers, flat), window.nbytes)
    batch = assemble(step, index, window, window)
    del batch["observation"], batch["next"]["observation"]
    return {"window": window, "shift": shift} | batch | columns_of(dataset, episodes, recipe, index)


def _frames(step: dict[str, np.ndarray], index: np.ndarray, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Say which frames windows hold, int64[B, S + K], -1 for zeros; and their shifts, bool[B, K]."""
    depth, most = recipe.frame_stack, min(recipe.n_step, recipe.frame_stack)
    ahead = (step["next_index"] - index)[:, None]  # steps to the next observation
    begin = np.minimum(ahead, depth)  # frames from the observation's first to that of the next one
    place = np.arange(depth + most)
    # Of stacks that do not meet, the frames between are left out.
    back = depth - 1 - place + np.where(place < depth, 0, begin - ahead)
    frame = index[:, None] - back
    frame = np.where(place == begin + depth - 1, step["next_newest"][:, None], frame)
    nothing = (index[:, None] - back < step["first"][:, None]) | (place >= begin + depth)
    shift = (np.arange(most) == begin - 1) & (step["next_newest"] >= 0)[:, None]
    return np.where(nothing, -1, frame), shift
