"""Several runs as one: draws over all their steps, by weights, or an equal share of each."""

from __future__ import annotations

import dataclasses
import fractions
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from atarirb import draws
from atarirb.arguments import positive
from atarirb.batch import Batch
from atarirb.errors import ArgumentError
from atarirb.index import EpisodeIndex, Legal
from atarirb.loader import Batches
from atarirb.reader import Reader
from atarirb.sampler import Sampler
from atarirb.store.joined import Joined

#: Options that readers of one mixture may have in different ways.
_OWN = frozenset(("time_limit", "final"))


def mix(
    readers: Mapping[str, Reader],
    weights: Mapping[str, float] | None = None,
    *,
    stacked: bool = False,
) -> Mixture:
    """Read several runs as one, of one game or of several.

    Args:
        readers: By name, as ``{"Pong/1": atarirb.open(...), ...}``: any number, each with its selection. They
            agree in all options but `time_limit` and `final`, in the frames' shape and dtype, and in the
            extra columns asked for. ``columns=("action_full",)`` gives the actions of all games the same
            meaning.
        weights: How much of the draws, with replacement, each run gets, in proportion; None: every valid step
            of all runs is as likely as any other.
        stacked: Every run gets the same number of rows of each batch, and leaves have a leading axis of runs:
            [R, n / R, ...], in the order of `readers`.

    Returns:
        A mixture, with `sample`, `sample_slices` and `batches` as a reader has them; of each row ``run``
        int32 says which run it is of, and ``index`` and ``episode`` are numbers in that run.

    Raises:
        ArgumentError: There are no readers, or they do not go together; weights that cannot be.
        ClosedError: A reader is closed.
    """
    return Mixture(readers, weights, stacked)


class Mixture(Sampler):
    """Batches from several runs. Made by `mix`.

    It shares the readers' maps, and goes on when they are closed. Like a reader it may be used from many
    threads, after a fork, and be pickled.

    Attributes:
        runs: The runs' names; ``run`` of a row is a number in it.
    """

    def __init__(self, readers: Mapping[str, Reader], weights: Mapping[str, float] | None, stacked: bool):
        if not readers:
            raise ArgumentError("no readers to mix")
        if unknown := [name for name, reader in readers.items() if not isinstance(reader, Reader)]:
            raise ArgumentError(f"{unknown[0]!r} is {readers[unknown[0]]!r:.80}, expected a reader")
        self._readers = dict(readers)
        self.runs = tuple(self._readers)
        parts = list(self._readers.values())
        self._name = "the mixture"
        self._options = _common_options(self._readers)
        self._stacked = bool(stacked)
        self._weights = None if weights is None else _checked(weights, self.runs)
        if self._stacked and weights is not None:
            raise ArgumentError("weights= and stacked=True: stacked, every run has an equal share")
        self._dataset = joined = Joined([part._opened() for part in parts], names=self.runs)
        finals = [joined.frame_numbers(run, part._index.final) for run, part in enumerate(parts)]
        self._index = EpisodeIndex.joined([part._index for part in parts], finals)
        self._valid = Legal.joined([part._valid for part in parts], joined.firsts[:-1])
        self._slice_starts = {}
        self._first_episodes = np.cumsum([0, *(len(part.episodes) for part in parts)])
        tables = [part._recipe.console_actions for part in parts if part._recipe.console_actions is not None]
        self._recipe = dataclasses.replace(
            parts[0]._recipe, console_actions=np.concatenate(tables) if tables else None
        )

    def __len__(self) -> int:
        """Return the steps of all runs, valid or not."""
        return int(self._opened().firsts[-1])

    @property
    def readers(self) -> dict[str, Reader]:
        """The readers that it was made of, by name."""
        return dict(self._readers)

    def sample(self, key: Any, n: int) -> Batch:
        """Draw transitions; see `Sampler.sample`. By weights, a run is drawn for each row, then a step of it."""
        return super().sample(key, n)

    # What it does in another way than a reader.

    def _draw(self, key: Any, n: int, legal: Legal, *, by_episode: bool = False) -> np.ndarray:
        if self._weights is None and not self._stacked:
            return super()._draw(key, n, legal, by_episode=by_episode)
        words = draws.words(key, 3 * n).reshape(n, 3)
        if self._weights is None:
            run = np.repeat(np.arange(len(self.runs)), self._share(n))
        else:
            run = np.searchsorted(_thresholds(self._weights), words[:, 0], side="right")
        self._check_each(legal, np.unique(run))
        if not by_episode:
            before = legal.cumulative[self._first_episodes]
            return legal.at(before[run] + draws.below(words[:, 1], np.diff(before)[run]))
        before = np.searchsorted(legal.nonempty, self._first_episodes)
        episode = legal.nonempty[before[run] + draws.below(words[:, 1], np.diff(before)[run])]
        return legal.first[episode] + draws.below(words[:, 2], legal.counts[episode])

    def _epoch(self, key: Any, legal: Legal, places: np.ndarray, batch_size: int) -> np.ndarray:
        if not self._stacked:
            return super()._epoch(key, legal, places, batch_size)
        share = self._share(batch_size)
        before = legal.cumulative[self._first_episodes]
        run = places % batch_size // share
        place = places // batch_size * share + places % share
        numbers = np.empty(len(places), np.int64)
        for number in np.unique(run):
            here = run == number
            order = draws.Order(key.spawn(1)[0] if False else _of_run(key, number), int(np.diff(before)[number]))
            numbers[here] = before[number] + order(place[here])
        return legal.at(numbers)
