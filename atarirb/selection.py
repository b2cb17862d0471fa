"""Parts of a dataset to draw from, without a copy of anything.

A selection is the episode table as its reader sees it, and which of its episodes are drawn from. Where
the part's edge lies inside an episode, the episode is cut there, as if the log ended: the table has a row
for each piece, and no draw looks over the edge.
"""

from __future__ import annotations

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atarirb import draws
from atarirb.arguments import as_index
from atarirb.errors import ArgumentError


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Selection:
    """A part of a dataset.

    Attributes:
        edges: int64[K], rising: steps before which an episode is cut, though the dataset goes on there.
        episodes: EPISODE[E], the table with episodes cut so.
        chosen: bool[E], the episodes that are drawn from.
    """

    edges: np.ndarray
    episodes: np.ndarray
    chosen: np.ndarray

    @property
    def all(self) -> bool:
        """Whether it is the whole dataset, as it is."""
        return not len(self.edges) and bool(self.chosen.all())

    @property
    def fingerprint(self) -> str:
        """Tell it from others of the same dataset: "all", or a hash."""
        if self.all:
            return "all"
        content = self.edges.astype("<i8").tobytes() + np.packbits(self.chosen).tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def packed(self) -> tuple[list[int], bytes] | None:
        """Return what `unpacked` makes it of again; None for all."""
        if self.all:
            return None
        return self.edges.tolist(), zlib.compress(np.packbits(self.chosen).tobytes())


def whole(episodes: np.ndarray) -> Selection:
    """Select all of a dataset, given its table."""
    return Selection(edges=np.zeros(0, np.int64), episodes=episodes, chosen=np.ones(len(episodes), np.bool_))


def unpacked(
    content: tuple[list[int], bytes], of: Selection, rewards: Callable[..., np.ndarray]
) -> Selection:
    """Make a selection again of what `Selection.packed` returned.

    Args:
        content: That.
        of: All of the dataset.
        rewards: As for `narrowed`.
    """
    edges = np.array(content[0], np.int64)
    table = _cut(of.episodes, edges, rewards)
    bits = np.frombuffer(zlib.decompress(content[1]), np.uint8)
    return Selection(
        edges=edges, episodes=table, chosen=np.unpackbits(bits, count=len(table)).astype(np.bool_)
    )


def narrowed(
    of: Selection,
    *,
    episodes: Any,
    ranges: Sequence[np.ndarray],
    top: float | None,
    fraction: float | None,
    key: Any,
    rewards: Callable[[np.ndarray], np.ndarray],
) -> Selection:
    """Select a part of a selection; see `atarirb.Reader.select`.

    Args:
        of: What from.
        episodes: Indices of episodes or a mask, or None for all.
        ranges: int64[K, 2] each: rising ranges [first, stop) of steps, of which a step must be in one.
        top: Part of the whole episodes, those of the highest returns.
        fraction: Part of the steps.
        key: Chooses that part.
        rewards: Returns the rewards, float32[B], of steps, int64[B].

    Raises:
        StepIndexError, StepIndexTypeError, ArgumentError: As of `Reader.select`.
    """
    chosen = of.chosen
    if episodes is not None:
        named = np.zeros(len(chosen), np.bool_)
        named[as_index(episodes, len(chosen), noun="episode")[0]] = True
        chosen = chosen & named
    table, edges = of.episodes, of.edges
    for kept in ranges:
        steps = int(table["length"].sum())
        new = np.unique(kept[(kept > 0) & (kept < steps)])
        pieces = _cut(table, new, rewards)
        parent = np.searchsorted(table["start"], pieces["start"], side="right") - 1
        inside = np.searchsorted(kept.reshape(-1), pieces["start"], side="right") % 2 == 1
        chosen = chosen[parent] & inside
        # Only where an episode was cut is there an edge; elsewhere one ends there anyhow.
        edges = np.union1d(edges, np.setdiff1d(pieces["start"], table["start"]))
        table = pieces
    if not chosen.any():
        raise ArgumentError(f"no episode is selected of the {of.chosen.sum():,} there are")
    if top is not None:
        chosen = _best(table, chosen, _part("top", top))
    if fraction is not None:
        chosen = _some(table, chosen, _part("fraction", fraction), key)
    elif key is not None:
        raise ArgumentError("key= goes with fraction=, of which it chooses the episodes")
    return Selection(edges=edges.astype(np.int64), episodes=table, chosen=chosen)


def step_range(steps: Any, count: int) -> np.ndarray:
    """Turn a slice or a range of neighbouring steps into int64[1, 2]: [first, stop).

    Raises:
        StepIndexError: A range has steps that are not there.
        ArgumentError: It is something else, or goes in other steps than 1.
    """
    if not isinstance(steps, (slice, range)):
        raise ArgumentError(f"steps is {steps!r:.80}, expected a slice or a range")
    if steps.step not in (None, 1):
        raise ArgumentError(f"steps is {steps}, expected neighbours: a step of 1")
    if isinstance(steps, slice):
        try:
            first, stop, _ = steps.indices(count)
        except TypeError as error:
            raise ArgumentError(f"steps is {steps}: {error}") from error
    else:
        ends = as_index([steps[0], steps[-1]] if steps else [], count)[0].tolist()
        first, stop = (ends[0], ends[1] + 1) if ends else (0, 0)
        if first > stop:
            raise ArgumentError(f"steps is {steps}, which goes on past the end at the beginning")
    return np.array([[first, max(first, stop)]], np.int64)


def _cut(table: np.ndarray, edges: np.ndarray, rewards: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Cut the episodes of a table before these steps; a row for each piece."""
    edges = np.setdiff1d(edges, table["start"])
    if not len(edges):
        return table
    starts = np.union1d(table["start"], edges)
    parent = np.searchsorted(table["start"], starts, side="right") - 1
    pieces = table[parent]
    pieces["start"] = starts
    pieces["length"] = np.diff(np.append(starts, table["length"].sum()))
    is_first = np.isin(starts, table["start"])
    is_last = np.append(is_first[1:], True)
    pieces["head_cut"] |= ~is_first
    pieces["terminal"] &= is_last
    pieces["time_limit"] &= is_last
    pieces["final"] = np.where(is_last, pieces["final"], -1)
    for row in np.flatnonzero(~(is_first & is_last)):
        first = pieces["start"][row]
        steps = np.arange(first, first + pieces["length"][row])
        pieces["return"][row] = rewards(steps).sum(dtype=np.float64)
    return pieces


def _part(name: str, value: Any) -> float:
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not 0 < value <= 1:
        raise ArgumentError(
            f"{name} is {value!r}, expected a number above 0, up to 1: a part of what there is"
        )
    return float(value)


def _best(table: np.ndarray, chosen: np.ndarray, part: float) -> np.ndarray:
    """Choose the episodes of the highest returns; earlier ones come first where they are equal."""
    known = ~table["head_cut"] & (table["terminal"] | (table["final"] >= 0))
    candidates = np.flatnonzero(chosen & known)
    if not len(candidates):
        raise ArgumentError("top= ranks whole episodes, and all of these are cut")
    ranked = candidates[np.argsort(-table["return"][candidates], kind="stable")]
    best = np.zeros(len(table), np.bool_)
    best[ranked[: max(1, round(part * len(ranked)))]] = True
    return best


def _some(table: np.ndarray, chosen: np.ndarray, part: float, key: Any) -> np.ndarray:
    """Choose whole episodes in the order of a key, the fewest that have this part of the steps."""
    if key is None:
        raise ArgumentError("fraction= needs a key=, which chooses the part")
    candidates = np.flatnonzero(chosen)
    order = candidates[draws.order(key, len(candidates))(np.arange(len(candidates)))]
    held = np.cumsum(table["length"][order])
    # Divided, three steps of thirty are 0.1 of them; multiplied, 0.07 of a hundred would be more than seven.
    count = int(np.searchsorted(held / held[-1], part, side="left")) + 1
    some = np.zeros(len(table), np.bool_)
    some[order[:count]] = True
    return some
