"""Policies that reach other places than uniformly random play does, for measurements.

python -m atarirb record Pong ... --policy benchmarks.policies:paddle
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

HOLD = 8


def persistent(actions: int, rng: np.random.Generator) -> Callable[[np.ndarray], int]:
    """Hold a random action for a geometric number of steps, `HOLD` in the mean."""
    held, left = 0, 0

    def act(observation: np.ndarray) -> int:
        nonlocal held, left
        if left == 0:
            held, left = int(rng.integers(actions)), int(rng.geometric(1 / HOLD))
        left -= 1
        return held

    return act


@dataclass(frozen=True, kw_only=True)
class Court:
    """Where things are in the frames of a game of ball and paddle.

    The axis along which the paddle moves is called `along`, the other, on which the ball comes towards
    it, `towards`; both grow with the frame's rows and columns.
    """

    actions: int  # of the minimal set
    mark: tuple[int, int, int]  # a row, a column and the grey that is there in this game alone
    background: int
    field: tuple[slice, slice]  # rows and columns in which only the ball can be
    lane: tuple[slice | int, slice | int]  # the line on which the paddle is
    transposed: bool  # the paddle moves along the columns
    goal: float  # the paddle's place on the axis towards it, counted from the field's beginning
    back: int  # the action that moves it to lower rows or columns
    forth: int

    def ball(self, observation: np.ndarray) -> np.ndarray | None:
        """Find the ball: float64[2], its place along and towards, or None."""
        field = observation[self.field].astype(np.int64) - self.background
        weights = np.abs(field.T if self.transposed else field)
        places = np.argwhere(weights > 30)
        if not len(places) or np.ptp(places, axis=0).max() > 6:
            return None
        return np.average(places, axis=0, weights=weights[tuple(places.T)])

    def paddle(self, observation: np.ndarray) -> float | None:
        """Find the paddle's middle, counted as the ball's place along."""
        places = np.flatnonzero(np.abs(observation[self.lane].astype(np.int64) - self.background) > 30)
        return float(places[0] + places[-1]) / 2 if len(places) else None

    def landing(self, ball: np.ndarray, speed: np.ndarray) -> float:
        """Follow the ball, by way of the walls, to where the paddle has to be."""
        width = self.width - 1
        along = ball[0] + speed[0] * (self.goal - ball[1]) / speed[1]
        folded = along % (2 * width)
        return float(min(folded, 2 * width - folded))

    @property
    def width(self) -> int:
        """Return how far the ball can go along."""
        span = self.field[1 if self.transposed else 0]
        return span.stop - span.start


COURTS = (
    Court(  # Pong: right is up
        actions=6,
        mark=(80, 40, 236),
        background=87,
        field=(slice(15, 77), slice(12, 73)),
        lane=(slice(15, 77), 74),
        transposed=False,
        goal=61,
        back=2,
        forth=3,
    ),
    Court(  # Breakout
        actions=4,
        mark=(40, 0, 142),
        background=0,
        field=(slice(39, 75), slice(5, 79)),
        lane=(76, slice(5, 79)),
        transposed=True,
        goal=37,
        back=3,
        forth=2,
    ),
)


def paddle(actions: int, rng: np.random.Generator) -> Callable[[np.ndarray], int]:
    """Go where the ball will come, in Pong and Breakout; else, and where no ball is seen, `persistent`."""
    otherwise = persistent(actions, rng)
    before: np.ndarray | None = None

    def act(observation: np.ndarray) -> int:
        nonlocal before
        for court in COURTS:
            row, column, grey = court.mark
            if court.actions == actions and observation[row, column] == grey:
                break
        else:
            return otherwise(observation)
        ball, last = court.ball(observation), before
        before = ball
        own = court.paddle(observation)
        if ball is None or own is None:
            return otherwise(observation)
        target = ball[0]
        if last is not None:
            speed = ball - last
            # A ball that goes away comes back from anywhere: the middle is near to most of it.
            target = court.landing(ball, speed) if speed[1] > 0.2 else (ball[0] + court.width / 2) / 2
        if abs(target - own) < 2:
            return 0
        return court.back if target < own else court.forth

    return act
