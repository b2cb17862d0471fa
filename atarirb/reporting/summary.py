"""What is said of the episodes: which are whole, which are shown, and their figures in bins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

#: Up to so many episodes, each is a dot and a row; of more, bins are shown.
MOST_DOTS = 1_000
#: Bins of a chart.
BINS = 100

_CHUNK = 1 << 16
FIGURES = ("return", "length")


def whole(episodes: np.ndarray) -> np.ndarray:
    """Tell of episodes, EPISODE[E], whether they are whole, bool[E].

    That is, played from their beginning to a terminal or the time limit: only of these the return and the
    length are known.
    """
    return (episodes["terminal"] | episodes["time_limit"]) & ~episodes["head_cut"]


def chunks(episodes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield episodes, EPISODE[E], a bounded number at a time, each with the number of its first."""
    for first in range(0, len(episodes), _CHUNK):
        yield first, np.array(episodes[first : first + _CHUNK])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bin:
    """A stretch of a chart's horizontal axis.

    Attributes:
        low: Where it begins, a step or an episode.
        high: Where it ends; not in it.
        whole: Whole episodes that begin in it.
        quartiles: Of their returns and lengths, by name: lower quartile, median, upper quartile, interpolated
            linearly; empty if there are none.
    """

    low: int
    high: int
    whole: int
    quartiles: dict[str, tuple[float, float, float]]


def bins(episodes: np.ndarray, steps: int, by: str, *, most: int = BINS) -> list[Bin]:
    """Put episodes, EPISODE[E], into bins of equal width.

    Args:
        episodes: The episodes, in order.
        steps: Steps of all of them.
        by: "step", by their first steps, or "episode", by their numbers.
        most: Bins, at the most.
    """
    end = steps if by == "step" else len(episodes)
    edges = np.unique(np.linspace(0, end, min(most, max(end, 1)) + 1).astype(np.int64))
    places = np.searchsorted(episodes["start"], edges) if by == "step" else edges
    found = []
    for low, high, first, stop in zip(edges, edges[1:], places, places[1:], strict=False):
        rows = np.array(episodes[first:stop])
        rows = rows[whole(rows)]
        quartiles = {}
        if len(rows):
            quartiles = {name: tuple(np.quantile(rows[name], (0.25, 0.5, 0.75)).tolist()) for name in FIGURES}
        found.append(Bin(low=int(low), high=int(high), whole=len(rows), quartiles=quartiles))
    return found


def chosen(episodes: np.ndarray, more: Sequence[int] = ()) -> dict[int, str]:
    """Choose the episodes to show: the best, the median and the last of the whole ones, and some more.

    The best is the first with the highest return. The median is the first with the return that is in the
    middle when they are sorted, the lower of two. If none is whole, all take part, by what is known of them.

    Args:
        episodes: EPISODE[E].
        more: Numbers of others.

    Returns:
        By number, why; in that order.
    """
    picked: dict[int, list[str]] = {}
    if len(episodes):
        numbers = np.concatenate([first + np.flatnonzero(whole(rows)) for first, rows in chunks(episodes)])
        if not len(numbers):
            numbers = np.arange(len(episodes))
        returns = np.nan_to_num(episodes["return"][numbers], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        middle = np.sort(returns)[(len(returns) - 1) // 2]
        places = {
            "best": np.argmax(returns),
            "median": np.argmax(returns == middle),
            "last": len(numbers) - 1,
        }
        for why, place in places.items():
            picked.setdefault(int(numbers[place]), []).append(why)
    for number in more:
        picked.setdefault(number, []).append("asked for")
    return {number: ", ".join(reasons) for number, reasons in picked.items()}
