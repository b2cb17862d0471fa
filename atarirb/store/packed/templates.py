"""Which frames of a shard become its templates.

By coverage, among candidates that are spaced evenly over the shard: half are those that bring the other
candidates nearest to some template (the facility-location greedy of Nemhauser et al. 1978,
https://doi.org/10.1007/BF01588971, by the pixels that differ); then, in two rounds, those that compress
worst with the ones chosen so far, spread over the shard. `benchmarks/codec.py` compares this with even
spacing.

All sums are of integers that float32 holds exactly, so that the choice is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_ROUNDS = 2
#: Of each frame's bytes, so many at the most are compared.
_COMPARED = 1 << 10


def choose(candidates: np.ndarray, count: int, compressed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Choose templates.

    Args:
        candidates: uint8[P, frame bytes].
        count: How many to choose.
        compressed: Given numbers of candidates as templates, returns the bytes that each candidate
            compresses to, int64[P].

    Returns:
        int64[count] rising numbers of candidates, or of all of them if there are not more. There are fewer
        where no other candidate would help.
    """
    if len(candidates) <= count:
        return np.arange(len(candidates))
    chosen = cover(distances(candidates), -(-count // 2))
    for round_ in range(_ROUNDS):
        wanted = (count - len(chosen)) // (_ROUNDS - round_)
        sizes = compressed(chosen)
        sizes[chosen] = -1
        parts = np.array_split(np.arange(len(sizes)), wanted) if wanted else []
        worst = [part[np.argmax(sizes[part])] for part in parts]
        chosen = np.union1d(chosen, [candidate for candidate in worst if sizes[candidate] >= 0])
        chosen = chosen.astype(np.int64)
    return chosen


def distances(frames: np.ndarray) -> np.ndarray:
    """Estimate of each two frames how many bytes differ, of those that are compared.

    Each value at each place has a random sign. Two frames' signs agree where their bytes do, and half the
    time where they do not, so twice the count of those that disagree is the estimate; and all of that is
    one product of matrices.

    Args:
        frames: uint8[P, n].

    Returns:
        float32[P, P], whole numbers.
    """
    compared = frames[:, :: -(-frames.shape[1] // _COMPARED)]
    places = np.arange(compared.shape[1])
    values = np.random.Generator(np.random.Philox(0)).integers(0, 2, (len(places), 256), np.int8) * 2 - 1
    signs = values[places, compared].astype(np.float32)
    return len(places) - signs @ signs.T


def cover(distances: np.ndarray, count: int) -> np.ndarray:
    """Choose the points that bring all others nearest to one of them, greedily, the first of equals.

    Args:
        distances: float32[P, P], whole numbers.
        count: How many to choose, P at the most.

    Returns:
        int64[count], rising.
    """
    nearest = np.full(len(distances), distances.max(initial=0) + 1, np.float32)
    bounds = np.maximum(nearest - distances, 0).sum(1)
    chosen = np.empty(count, np.int64)
    for place in range(count):
        while True:  # a gain only ever shrinks: one that is still the greatest needs no comparing
            best = int(np.argmax(bounds))
            gain = np.maximum(nearest - distances[best], 0).sum()
            if gain == bounds[best]:
                break
            bounds[best] = gain
        chosen[place] = best
        bounds[best] = -1
        nearest = np.minimum(nearest, distances[best])
    return np.sort(chosen)
