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

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from atarirb.errors import ArgumentError

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
        name: ``random``, or ``module:function``. As with ``python -m``, the module may be in the current
            directory, which stays on the path for what the policy itself imports; the function may be an
            attribute of something, as in ``module:agents.greedy``.

    Raises:
        ArgumentError: The name is spelt otherwise, there is no such module or function, or it cannot be
            called; the message says which.
    """
    if name == "random":
        return random
    module, colon, path = name.partition(":")
    parts = path.split(".")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *parts)):
        raise ArgumentError(f"policy is {name!r}, expected 'random' or 'module:function'")
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"policy {name!r}: module {module!r} cannot be imported: {error}; expected it in {here} or "
            f"installed"
        ) from error
    try:
        policy = functools.reduce(getattr, parts, found)
    except AttributeError as error:
        raise ArgumentError(f"policy {name!r}: {module!r} has no {path!r}: {error}") from error
    if not callable(policy):
        raise ArgumentError(
            f"policy {name!r} is of type {type(policy).__name__}, expected a function of the number of "
            f"actions and a generator"
        )
    return policy
