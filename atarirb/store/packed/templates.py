"""Which frames of a shard become its templates.

By coverage, among candidates that are spaced evenly over the shard: half are those that bring the other
candidates nearest to some template (the facility-location greedy of Nemhauser et al. 1978,
https://doi.org/10.1007/BF01588971, on the count of pixels that differ); then, in two rounds, those that
compress worst with the ones chosen so far, spread over the shard. `benchmarks/codec.py` compares this
with even spacing: it saves a tenth, most in games whose frames are hardest to compress.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atarirb import kernels

_ROUNDS = 2
#: Of each frame's bytes, one of so many is compared.
_SPARSE = 5


def choose(candidates: np.ndarray, count: int, compressed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Choose templates.

    Args:
        candidates: uint8[P, frame bytes].
        count: How many to choose.
        compressed: Given numbers of candidates as templates, returns the bytes that each candidate
            compresses to, int64[P].

    Returns:
        int64[count] rising numbers of candidates, or of all of them if there are not more.
    """
    if len(candidates) <= count:
        return np.arange(len(candidates))
    points = np.ascontiguousarray(candidates[:, ::_SPARSE] if candidates.shape[1] > 1000 else candidates)
    chosen = np.empty(-(-count // 2), np.int64)
    kernels.active().cover(points, chosen)
    chosen.sort()
    for round_ in range(_ROUNDS):
        wanted = (count - len(chosen)) // (_ROUNDS - round_)
        sizes = compressed(chosen)
        sizes[chosen] = -1
        parts = np.array_split(np.arange(len(sizes)), wanted) if wanted else []
        worst = np.array([part[np.argmax(sizes[part])] for part in parts], np.int64)
        chosen = np.union1d(chosen, worst[sizes[worst] >= 0])
    return chosen
