"""Who plays: the policies of a recording, by name.

A policy is called at the start of each episode with the number of actions of the game's minimal set and
with the episode's own generator, and returns what acts in that episode::

    def cautious(actions: int, rng: np.random.Generator):
        def act(observation: np.ndarray) -> int:  # uint8[84, 84], what is seen now
            return int(rng.integers(actions)) if observation.mean() > 60 else 0

        return act

So what it remembers lasts one episode, and where it depends on nothing but its arguments and what it was
shown, play is a function of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from atarirb import loading

#: Chooses an index into the minimal set, given the observation uint8[84, 84].
Act: TypeAlias = Callable[[np.ndarray], int]

#: Given the number of actions and the episode's generator, returns what acts in the episode.
Policy: TypeAlias = Callable[[int, np.random.Generator], Act]

_BLOCK = 1024


def random(actions: int, rng: np.random.Generator) -> Act:
    """Act uniformly at random."""

    def draws() -> Iterator[int]:
        while True:
            # In blocks: a draw for each step would take longer than all else that is done for it.
            yield from rng.integers(actions, size=_BLOCK).tolist()

    drawn = draws()
    return lambda observation: next(drawn)


def load(name: str) -> Policy:
    """Find a policy by its name.

    Args:
        name: ``random``, or ``module:function``; see `atarirb.loading`.

    Raises:
        ArgumentError: There is no such policy; the message says what is wrong.
    """
    if name == "random":
        return random
    return loading.load(
        "policy", name, takes="the number of actions and a generator", spelt="'random' or 'module:function'"
    )
