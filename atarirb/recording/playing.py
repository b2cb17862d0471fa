"""Playing games with a policy, each step into a recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from atarirb.recording.policies import Act, Policy
from atarirb.recording.recorder import Recorder
from atarirb.sources.ale import Games


def play(
    groups: Sequence[Games],
    policy: Policy,
    recorder: Recorder,
    steps: int,
    *,
    seed: int,
    on_steps: Callable[[int], None] | None = None,
) -> None:
    """Play until so many steps are recorded, those that are there already included.

    What is recorded is a function of the game, the policy, the seed, the numbers of environments and of how
    many steps were there before.

    Args:
        groups: The environments, one group after the other; the recorder has as many. They play in turns,
            a round each: while one group's round is recorded, the emulators of the others are at work.
        policy: Who plays.
        recorder: Where to.
        steps: Steps wanted in all. The episodes under way then are truncated, also when interrupted.
        seed: Of the emulators and of the policy.
        on_steps: Called with the count of steps recorded since the last call.
    """
    before = recorder.steps
    if before >= steps:
        return
    source = np.random.SeedSequence([seed, before])
    firsts = np.cumsum([0, *(games.count for games in groups)]).tolist()
    players = [
        _Players(games, first, policy, child)
        for games, first, child in zip(groups, firsts, source.spawn(len(groups)), strict=False)
    ]
    try:
        for each in players:
            each.start()
        while True:
            for each in players:
                recorded = recorder.steps
                for _ in each.round(recorder):
                    if recorder.steps == steps:
                        break
                if on_steps:
                    on_steps(recorder.steps - recorded)
                if recorder.steps == steps:
                    return
    finally:
        for each in players:
            each.truncate(recorder)


class _Players:
    """A group of environments, and who plays in each.

    Args:
        games: The environments.
        first: Number of the first of them in the recorder.
        policy: Who plays.
        source: Of all that is random.
    """

    def __init__(self, games: Games, first: int, policy: Policy, source: np.random.SeedSequence):
        self._games = games
        self._first = first
        self._policy = policy
        emulators, *self._sources = source.spawn(games.count + 1)
        self._shown = list(games.reset(emulators.generate_state(games.count) >> 1))
        self._acts = [self._begin(number) for number in range(games.count)]
        self._busy: int | None = None  # the environment whose step is being recorded

    def _begin(self, number: int) -> Act:
        """Begin an episode of the policy, with a generator of its own."""
        (child,) = self._sources[number].spawn(1)
        return self._policy(self._games.actions, np.random.Generator(np.random.Philox(child)))

    def start(self) -> None:
        """Send the first actions."""
        acting = zip(self._acts, self._shown, strict=True)
        self._actions = np.array([act(observation) for act, observation in acting])
        self._games.send(self._actions)

    def round(self, recorder: Recorder) -> Iterator[int]:
        """Wait for a round, start the next one, and record the steps of this, yielding after each."""
        outcome = self._games.receive()
        rows = zip(*(values.tolist() for values in outcome[1:]), self._actions.tolist(), strict=True)
        following = np.zeros(self._games.count, np.int64)
        for number in np.flatnonzero(outcome.begun):
            self._acts[number] = self._begin(number)
        goes_on = outcome.begun | (outcome.played & ~outcome.terminated & ~outcome.truncated)
        for number in np.flatnonzero(goes_on):
            following[number] = self._acts[number](outcome.observation[number])
        self._actions = following
        self._games.send(following)
        for number, (reward, terminated, truncated, played, _, action) in enumerate(rows):
            observation = outcome.observation[number]
            if played:
                self._busy = number
                recorder.add(
                    self._shown[number],
                    action,
                    reward,
                    terminated,
                    truncated,
                    final_observation=observation if terminated or truncated else None,
                    environment=self._first + number,
                )
            self._shown[number] = observation
            self._busy = None
            if played:
                yield number

    def truncate(self, recorder: Recorder) -> None:
        """Break off what is under way: what each environment shows is the final frame of its episode.

        But not that of one whose step may or may not have been recorded when an interrupt came.
        """
        for number, observation in enumerate(self._shown):
            final = None if number == self._busy else observation
            recorder.truncate(self._first + number, final_observation=final)
