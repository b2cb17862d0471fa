"""How often a column has each value, over all steps, a bounded number of rows at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from atarirb.store import mapping

_ROWS = 1 << 20
#: Distinct values that are counted each; of more, bins are.
MOST_VALUES = 1_000
_BINS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts:
    """Values of a column, and how many steps have each.

    Attributes:
        values: [K], the distinct values, rising, NaN last; or None, where there are too many.
        edges: float64[K + 1], edges of equal bins from the least to the greatest finite value instead; a
            value on an edge is in the bin above it, the greatest in the last.
        counts: int64[K], steps that have the value, or are in the bin.
        odd: Steps in no bin: NaN or infinite.
    """

    values: np.ndarray | None
    edges: np.ndarray | None
    counts: np.ndarray
    odd: int = 0


def count(maps: Sequence[np.ndarray], *, most: int = MOST_VALUES) -> Counts:
    """Count the values of a scalar column.

    Args:
        maps: Its rows, [steps] of each shard; let go of as they are read.
        most: Distinct values to keep apart.
    """
    values, counts = np.zeros(0, maps[0].dtype if len(maps) else np.int64), np.zeros(0, np.int64)
    for rows in _chunks(maps):
        found, how_often = _distinct(rows)
        values, place = np.unique(np.concatenate([values, found]), return_inverse=True)
        merged = np.zeros(len(values), np.int64)
        np.add.at(merged, place, np.concatenate([counts, how_often]))
        counts = merged
        if len(values) > most:
            return _binned(maps)
    return Counts(values=values, edges=None, counts=counts)


def _binned(maps: Sequence[np.ndarray]) -> Counts:
    low, high, odd = np.inf, -np.inf, 0
    for rows in _chunks(maps):
        finite = rows[np.isfinite(rows)]
        odd += len(rows) - len(finite)
        if len(finite):
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    edges = np.linspace(low, high, _BINS + 1)
    counts = np.zeros(_BINS, np.int64)
    for rows in _chunks(maps):
        counts += np.histogram(rows[np.isfinite(rows)].astype(np.float64), edges)[0]
    return Counts(values=None, edges=edges, counts=counts, odd=odd)


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if rows.dtype != np.int8:
        return np.unique(rows, return_counts=True)
    counts = np.bincount(rows.astype(np.int16) + 128, minlength=256)  # much faster than to sort
    there = np.flatnonzero(counts)
    return (there - 128).astype(np.int8), counts[there]


def _chunks(maps: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    for rows in maps:
        for first in range(0, len(rows), _ROWS):
            yield np.asarray(rows[first : first + _ROWS])
        mapping.let_go(rows)
