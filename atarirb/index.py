"""Which steps are legal to draw, as a function of the episode table alone.

A step is *valid* for (frame_stack S, n_step n) if it has all it needs: its stack does not reach
before a cut head (before a true beginning missing frames are zeros), and its next observation, n
steps on, is in the same episode, or the episode ends on the way by a terminal, or by a truncation
whose final frame is known. So the valid steps
of an episode are one run of neighbours, and an index over them is two numbers per episode.

A slice of length L is L consecutive valid steps of one episode.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from atarirb import draws, kernels
from atarirb.errors import ArgumentError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Legal:
    """A set of steps: of each episode a run of neighbours.

    Attributes:
        first: int64[E], first legal step of each episode.
        cumulative: int64[E + 1], legal steps before each episode, and in all.
    """

    first: np.ndarray
    cumulative: np.ndarray

    @property
    def total(self) -> int:
        """How many legal steps there are."""
        return int(self.cumulative[-1])

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """int64[E], legal steps of each episode."""
        return np.diff(self.cumulative)

    @functools.cached_property
    def nonempty(self) -> np.ndarray:
        """int64[K], the episodes that have legal steps."""
        return np.flatnonzero(self.counts)

    @classmethod
    def joined(cls, parts: Sequence[Legal], offsets: np.ndarray) -> Legal:
        """Put the legal steps of several datasets one after the other.

        Args:
            parts: Of each.
            offsets: int64[parts], what to add to the numbers of each one's steps.
        """
        firsts = [part.first + offset for part, offset in zip(parts, offsets, strict=True)]
        before = np.cumsum([0, *(part.total for part in parts)])
        cumulative = [part.cumulative[:-1] + count for part, count in zip(parts, before[:-1], strict=True)]
        return cls(first=np.concatenate(firsts), cumulative=np.concatenate([*cumulative, before[-1:]]))

    def only(self, episodes: np.ndarray) -> Legal:
        """Keep the legal steps of some episodes, bool[E]."""
        return _legal(self.first, np.where(episodes, self.counts, 0))

    def draw(self, words: np.ndarray) -> np.ndarray:
        """Turn uint64[B] random words into int64[B] steps, uniform over all legal ones."""
        return self.at(draws.below(words, self.total))

    def draw_by_episode(self, words: np.ndarray) -> np.ndarray:
        """Turn uint64[B, 2] random words into int64[B] steps: uniform episodes, then steps."""
        episode = self.nonempty[draws.below(words[:, 0], len(self.nonempty))]
        return self.first[episode] + draws.below(words[:, 1], self.counts[episode])

    def at(self, numbers: np.ndarray) -> np.ndarray:
        """Find the legal steps numbered so, int64[B], counted over all in their order; -1 for -1."""
        out = np.empty(len(numbers), np.int64)
        kernels.active().at(numbers, self.cumulative, self.first, out)
        return out


class EpisodeIndex:
    """The episodes of a dataset, as the kernels and the draws need them.

    Args:
        starts: int64[E + 1], first step of each episode, and the steps in all.
        terminal_end: bool[E], it ends by a terminal.
        head_cut: bool[E], its beginning is lost.
        final: int64[E], number of the frame to show after its last step; -1 for none. An episode
            that ends without a terminal, but with such a frame, was truncated.
        ended: bool[E], it is known to end there; by default those with a terminal or a final frame.
    """

    def __init__(
        self,
        starts: np.ndarray,
        terminal_end: np.ndarray,
        head_cut: np.ndarray,
        final: np.ndarray,
        ended: np.ndarray | None = None,
    ):
        self.starts = np.ascontiguousarray(starts, np.int64)
        self.terminal_end = np.ascontiguousarray(terminal_end, np.bool_)
        self.head_cut = np.ascontiguousarray(head_cut, np.bool_)
        self.final = np.ascontiguousarray(final, np.int64)
        self.ended = self.terminal_end | (self.final >= 0) if ended is None else ended

    @classmethod
    def of(
        cls, episodes: np.ndarray, *, time_limit_terminates: bool = True, terminals_show_final: bool = False
    ) -> EpisodeIndex:
        """Make the index of an episode table.

        Args:
            episodes: EPISODE[E].
            time_limit_terminates: The 27,000-step cap counts as a terminal, as it was logged.
            terminals_show_final: The frame after a terminal is shown, where it is known.
        """
        ends = episodes["terminal"]
        if not time_limit_terminates:
            ends = ends & ~episodes["time_limit"]
        steps = episodes["length"].sum()
        final = episodes["final"] if terminals_show_final else np.where(ends, -1, episodes["final"])
        known = episodes["terminal"] | (episodes["final"] >= 0)
        return cls(np.append(episodes["start"], steps), ends, episodes["head_cut"], final, known)

    @classmethod
    def joined(cls, parts: Sequence[EpisodeIndex], finals: Sequence[np.ndarray]) -> EpisodeIndex:
        """Make one index of several datasets', one after the other.

        Args:
            parts: Their indices.
            finals: int64[E] of each, its `final` in the numbering of frames of all.
        """
        offsets = np.cumsum([0, *(part.steps for part in parts)])
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
        return cls(
            np.concatenate([*starts, offsets[-1:]]),
            np.concatenate([part.terminal_end for part in parts]),
            np.concatenate([part.head_cut for part in parts]),
            np.concatenate(finals),
            np.concatenate([part.ended for part in parts]),
        )

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self.starts[-1])

    def valid(self, frame_stack: int, n_step: int) -> Legal:
        """Find the valid steps."""
        first = self.starts[:-1] + self.head_cut * (frame_stack - 1)
        known = self.terminal_end | (self.final >= 0)  # what comes after the last step
        stop = self.starts[1:] - ~known * np.int64(n_step)
        return _legal(first, np.maximum(stop - first, 0))

    def slice_starts(self, valid: Legal, length: int, *, strict: bool) -> Legal:
        """Find the steps at which a slice may start.

        Args:
            valid: The valid steps.
            length: Steps of a slice.
            strict: False: an episode with fewer valid steps gives one start, its first valid step.

        Raises:
            ArgumentError: There are none; the message names the longest run of valid steps.
        """
        counts = valid.counts
        starts = np.maximum(counts - (length - 1), 0 if strict else np.minimum(counts, 1))
        legal = _legal(valid.first, starts)
        if legal.total == 0:
            longest = int(counts.max(initial=0))
            raise ArgumentError(
                f"no episode has {length:,} valid steps in a row; the longest run has {longest:,}"
                + ("; strict_length=False gives shorter ones, padded" if longest else "")
            )
        return legal

    def episode_of(self, index: np.ndarray) -> np.ndarray:
        """Find the episode of each step."""
        return np.searchsorted(self.starts, index, side="right") - 1


def _legal(first: np.ndarray, counts: np.ndarray) -> Legal:
    cumulative = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=cumulative[1:])
    return Legal(first=np.ascontiguousarray(first, np.int64), cumulative=cumulative)
