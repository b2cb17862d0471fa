"""Playing games with a policy, each step into a recorder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from atarirb.recording.policies import Act, Policy
from atarirb.recording.recorder import Recorder
from atarirb.sources.ale import Games


def play(
    games: Games,
    policy: Policy,
    recorder: Recorder,
    steps: int,
    *,
    seed: int,
    on_steps: Callable[[int], None] | None = None,
) -> None:
    """Play until so many steps are recorded, those that are there already included.

    What is recorded is a function of the game, the policy, the seed, the number of environments and of how
    many steps were there before. While the emulators play a round, the one before it is recorded.

    Args:
        games: The environments; the recorder has as many.
        policy: Who plays.
        recorder: Where to.
        steps: Steps wanted in all. The episodes under way then are truncated, also when interrupted.
        seed: Of the emulators and of the policy.
        on_steps: Called with the count of steps recorded since the last call.
    """
    before = recorder.steps
    if before >= steps:
        return
    sources = np.random.SeedSequence([seed, before]).spawn(games.count + 1)
    shown = list(games.reset(sources[-1].generate_state(games.count) >> 1))
    acts = [_begin(policy, games, source) for source in sources[:-1]]
    busy = None  # the environment whose step is being recorded
    try:
        actions = np.array([act(observation) for act, observation in zip(acts, shown, strict=True)])
        games.send(actions)
        while True:
            outcome = games.receive()
            for number in np.flatnonzero(outcome.begun):
                acts[number] = _begin(policy, games, sources[number])
            playing = outcome.begun | (outcome.played & ~outcome.terminated & ~outcome.truncated)
            following = np.zeros(games.count, np.int64)
            for number in np.flatnonzero(playing):
                following[number] = acts[number](outcome.observation[number])
            games.send(following)
            recorded = recorder.steps
            for number in range(games.count):
                busy = number
                if outcome.played[number]:
                    if recorder.steps == steps:
                        break
                    ends = outcome.terminated[number] or outcome.truncated[number]
                    recorder.add(
                        shown[number],
                        int(actions[number]),
                        float(outcome.reward[number]),
                        bool(outcome.terminated[number]),
                        bool(outcome.truncated[number]),
                        final_observation=outcome.observation[number] if ends else None,
                        environment=number,
                    )
                shown[number] = outcome.observation[number]
                busy = None
            if on_steps:
                on_steps(recorder.steps - recorded)
            if recorder.steps == steps:
                busy = None
                return
            actions = following
    finally:
        # What every environment shows is the final observation of its episode, except that of one whose
        # step may or may not have been recorded when the interrupt came.
        for number in range(games.count):
            recorder.truncate(number, final_observation=None if number == busy else shown[number])


def _begin(policy: Policy, games: Games, source: np.random.SeedSequence) -> Act:
    """Begin an episode of the policy, with a generator of its own."""
    (child,) = source.spawn(1)
    return policy(games.actions, np.random.Generator(np.random.Philox(child)))
