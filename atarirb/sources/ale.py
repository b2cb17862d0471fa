"""Atari games themselves: played through ale-py, seen as the agent that collected the logs saw them.

Each emulator frame repeats the frame before's action with probability 0.25; a step holds one action for
four frames. What is seen is the maximum over the last two of them, grey, 84x84 by area interpolation.
An action is an index into the game's minimal set, in the catalog's order. An episode ends at game over,
never at a lost life, or is cut off after 27,000 steps; it begins without no-ops and without a press of
fire.

Source: the Arcade Learning Environment and sticky actions, https://arxiv.org/abs/1709.06009.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atarirb import arguments, catalog
from atarirb.errors import ArgumentError, ClosedError, MissingPackageError
from atarirb.threads import cores

#: Seeds are from 0 to below this: the emulator keeps them as int32, and -1 means the clock.
SEEDS = 2**31

FRAME_SKIP = 4


class Outcome(NamedTuple):
    """What one round of all environments came to.

    Attributes:
        observation: uint8[count, 84, 84], what is seen now; after an episode's last step, its final frame.
        reward: float32[count], as the game scores it, not clipped.
        terminated: bool[count], the game is over.
        truncated: bool[count], the cap of steps was reached and the game is not over.
        played: bool[count], the environment made a step. The others did not take their action: they were
            between two episodes, and nothing of the above but a beginning's observation means anything.
        begun: bool[count], a new episode begins: `observation` is its first one.
    """

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    played: np.ndarray
    begun: np.ndarray


class Games:
    """Environments of one game, stepped together by threads of the emulator's own.

    An environment whose episode has ended begins another by itself, which takes it a round or two, in which
    it plays no step. What was handed out never changes. All that happens is a function of the seeds and the
    actions.

    Attributes:
        actions: The number of actions of the game's minimal set.
        count: The number of environments.
    """

    def __init__(
        self, game: str, count: int, *, threads: int | None = None, time_limit: int = catalog.TIME_LIMIT
    ):
        """Load the game.

        Args:
            game: Its name in the catalog, or the id of any run of it.
            count: Number of environments.
            threads: That step them; one per core by default.
            time_limit: Steps after which an episode is truncated.

        Raises:
            UnknownGameError: The catalog has no such game.
            MissingPackageError: ale-py or gymnasium is not installed.
            ArgumentError: A number is not an integer of 1 or more.
        """
        entry = catalog.game(game)
        self.actions = len(entry.minimal_actions)
        self.count = arguments.positive("count", count)
        threads = min(self.count, arguments.positive("threads", cores() if threads is None else threads))
        self._time_limit = arguments.positive("time_limit", time_limit, most=2**28)
        try:
            import ale_py
            from ale_py.vector_env import AtariVectorEnv
        except ImportError as error:
            raise MissingPackageError.needed("ale-py", purpose="playing", extra="play") from error
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
        self._emulators = AtariVectorEnv(
            entry.rom,
            self.count,
            num_threads=threads,
            stack_num=1,
            frameskip=FRAME_SKIP,
            repeat_action_probability=0.25,
            # The emulator's own cap would break off within a step and lose its last frame: it is one frame
            # later than ours, and ends the step after the last one, which is not played.
            max_num_frames_per_episode=FRAME_SKIP * self._time_limit + 1,
            noop_max=0,
            use_fire_reset=False,
            episodic_life=False,
            reward_clipping=False,
        )
        self._steps: np.ndarray | None = None
        self._in_flight = False
        self._closed = False

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Load the game anew in every environment and begin an episode.

        Args:
            seeds: int[count], 0 to 2**31 - 1.

        Returns:
            uint8[count, 84, 84], the first observations.

        Raises:
            ArgumentError: A seed is out of range, or there are not as many as environments.
            ClosedError: The games are closed.
        """
        self._check_ready()
        given = _integers("seeds", seeds, self.count, SEEDS)
        observation, _ = self._emulators.reset(seed=given)
        self._steps = np.zeros(self.count, np.int64)
        self._over = np.zeros(self.count, bool)  # the episode has ended, for the emulator too
        self._capped = np.zeros(self.count, bool)  # it was truncated, which the emulator has yet to see
        return observation[:, 0].copy()

    def step(self, actions: np.ndarray) -> Outcome:
        """Play a round: `send` and `receive`."""
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """Start a round of all environments and do not wait.

        Args:
            actions: int[count], indices into the minimal set.

        Raises:
            ArgumentError: An action is out of range or missing, or the games were not reset.
            ClosedError: The games are closed.
        """
        self._check_ready()
        if self._steps is None:
            raise ArgumentError("the games have no episode yet: reset them first")
        self._emulators.send(_integers("actions", actions, self.count, self.actions))
        self._in_flight = True

    def receive(self) -> Outcome:
        """Wait for the round that `send` started.

        Raises:
            ArgumentError: None was started.
        """
        if not self._in_flight or self._steps is None:
            raise ArgumentError("no round is under way: send actions first")
        observation, reward, over, cut, _ = self._emulators.recv()
        self._in_flight = False
        begun = self._over
        played = ~begun & ~self._capped
        self._steps[played] += 1
        self._steps[begun] = 0
        terminated = np.asarray(over, bool) & played
        truncated = (self._steps >= self._time_limit) & played & ~terminated
        self._over = (np.asarray(over, bool) | np.asarray(cut, bool)) & ~begun
        self._capped = truncated
        return Outcome(
            observation[:, 0].copy(), np.asarray(reward, np.float32), terminated, truncated, played, begun
        )

    def close(self) -> None:
        """Give the emulators' threads and memory back; later calls do nothing."""
        if not self._closed:
            self._closed, self._in_flight = True, False
            # A round under way is dropped, not waited for: an interrupt may have come after it was taken.
            del self._emulators

    def _check_ready(self) -> None:
        if self._closed:
            raise ClosedError("the games are closed; load them again")
        if self._in_flight:
            raise ArgumentError("a round is under way: receive it first")


def _integers(what: str, given: np.ndarray, count: int, most: int) -> np.ndarray:
    # Checked here, for the emulator's threads never answer an action that the game has not.
    array = np.asarray(given)
    if array.shape != (count,):
        raise ArgumentError(f"{what} of shape {array.shape}, expected one for each of {count} environments")
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= most:
        raise ArgumentError(f"{what} are {array.tolist()}, expected integers from 0 to {most - 1:,}")
    return array.astype(np.int64)
