"""Several runs as one: draws over all their steps, by weights, or an equal share of each."""

from __future__ import annotations

import dataclasses
import fractions
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atarirb import draws
from atarirb.batch import Batch
from atarirb.errors import ArgumentError
from atarirb.index import EpisodeIndex, Legal
from atarirb.reader import Reader
from atarirb.sampler import Options, Sampler
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
        self._dataset = joined = Joined([part._opened() for part in parts])
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

    # What it does in another way than a reader.

    def _draw(self, key: Any, n: int, legal: Legal, *, by_episode: bool = False) -> np.ndarray:
        if self._weights is None and not self._stacked:
            return super()._draw(key, n, legal, by_episode=by_episode)
        words = draws.words(key, 3 * n).reshape(n, 3)
        if self._weights is None:
            run = np.repeat(np.arange(len(self.runs)), self._share(n))
        else:
            run = _drawn_runs(words[:, 0], self._weights)
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
        runs, share = len(self.runs), self._share(batch_size)
        before = legal.cumulative[self._first_episodes]
        keys = draws.words(key, runs * draws.ORDER_WORDS).reshape(runs, -1)
        # Each run goes through its own steps; a batch has its share of neighbouring places of each.
        own = (places // batch_size * share + places % share).reshape(runs, -1)
        for run, count in enumerate(np.diff(before).tolist()):
            own[run] = before[run] + draws.Order(keys[run], count)(own[run])
        return legal.at(own.reshape(-1))

    def _epoch_rows(self, legal: Legal, batch_size: int, replacement: bool) -> int:
        if self._weights is not None and not replacement:
            raise ArgumentError(
                "by weights some steps come more often than others, and in an epoch every step comes once: "
                "weights= goes with replacement=True"
            )
        if not self._stacked:
            return super()._epoch_rows(legal, batch_size, replacement)
        counts = np.diff(legal.cumulative[self._first_episodes])
        self._check_each(legal, np.arange(len(self.runs)))
        return int(counts.min()) // self._share(batch_size) * batch_size

    def _part(self, batch_size: int, host: int, hosts: int) -> np.ndarray:
        if not self._stacked:
            return super()._part(batch_size, host, hosts)
        share = self._share(batch_size)
        if share % hosts:
            raise ArgumentError(f"each run's share of {share:,} rows does not divide by {hosts} hosts")
        rows = np.arange(batch_size).reshape(len(self.runs), hosts, share // hosts)
        return rows[:, host].reshape(-1)

    def _share(self, rows: int) -> int:
        """Return the rows of each run in a batch that is stacked."""
        share, left = divmod(rows, len(self.runs))
        if left:
            raise ArgumentError(
                f"{rows:,} rows do not divide by {len(self.runs):,} runs, which each get the same number"
            )
        return share

    def _check_each(self, legal: Legal, runs: np.ndarray) -> None:
        """Check that these runs, which are to be drawn from, have something to draw."""
        empty = runs[np.diff(legal.cumulative[self._first_episodes])[runs] == 0]
        if len(empty):
            raise ArgumentError(f"run {self.runs[empty[0]]!r} has no such step or slice to draw")

    def _gather(self, steps: np.ndarray, slice_len: int | None = None) -> Batch:
        batch = super()._gather(steps, slice_len)
        joined = self._joined()
        index = batch["index"]
        flat = index.reshape(-1)
        here = flat >= 0
        run = np.where(here, joined.run_of(flat), 0)
        batch["index"] = np.where(here, flat - joined.firsts[run], -1).reshape(index.shape)
        batch["run"] = run.astype(np.int32).reshape(index.shape)
        if "episode" in batch:
            own = batch["episode"].reshape(-1) - self._first_episodes[run]
            batch["episode"] = np.where(here, own, 0).astype(np.int32).reshape(index.shape)
        return _with_runs_apart(batch, len(self.runs)) if self._stacked else batch

    def _joined(self) -> Joined:
        dataset = self._opened()
        assert isinstance(dataset, Joined)
        return dataset

    def _fingerprint(self) -> dict[str, Any]:
        parts = [reader._fingerprint() for reader in self._readers.values()]
        own = ("dataset", "selection", *_OWN)
        content = [[name, *(part[key] for key in own)] for name, part in zip(self.runs, parts, strict=True)]
        return {
            "runs": hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16],
            **{name: value for name, value in parts[0].items() if name not in own},
            "weights": None
            if self._weights is None
            else hashlib.sha256(json.dumps(self._weights).encode()).hexdigest()[:16],
            "stacked": self._stacked,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        weights = None if self._weights is None else dict(zip(self.runs, self._weights, strict=True))
        return Mixture, (self._readers, weights, self._stacked)

    def __repr__(self) -> str:
        closed = "" if self._dataset else ", closed"
        return f"<atarirb.Mixture of {len(self.runs):,} runs: {self.valid_steps:,} steps to draw{closed}>"


def _common_options(readers: Mapping[str, Reader]) -> Options:
    """Return the options of all readers, which must agree."""
    (first, reader), *others = readers.items()
    for name, other in others:
        for field in dataclasses.fields(Options):
            mine, theirs = getattr(reader._options, field.name), getattr(other._options, field.name)
            if mine != theirs and field.name not in _OWN:
                raise ArgumentError(
                    f"{field.name} is {mine!r} in the reader of {first!r}, and {theirs!r} in that of {name!r}"
                )
    return reader._options


def _checked(weights: Mapping[str, float], runs: Sequence[str]) -> list[float]:
    """Return the weight of each run."""
    if not isinstance(weights, Mapping) or set(weights) != set(runs):
        raise ArgumentError(f"weights is {weights!r:.200}, expected one for each of {', '.join(runs):.200}")
    try:
        found = [float(weights[run]) for run in runs]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"weights are numbers: {error}") from error
    if not all(math.isfinite(weight) and weight >= 0 for weight in found) or not sum(found):
        raise ArgumentError(f"weights is {weights!r:.200}, expected numbers of 0 or more, not all 0")
    return found


def _drawn_runs(words: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Turn uint64[B] words into int64[B] runs, by their weights."""
    runs = np.flatnonzero(weights)
    sums = list(itertools.accumulate(fractions.Fraction(weights[run]) for run in runs))
    firsts = [math.ceil(part * 2**64 / sums[-1]) for part in sums[:-1]]  # first word of each but the first
    return runs[np.searchsorted(np.array(firsts, np.uint64), words, side="right")]


def _with_runs_apart(batch: Batch, runs: int) -> Batch:
    """Give every leaf a leading axis of runs."""
    return {
        name: _with_runs_apart(leaf, runs)
        if isinstance(leaf, dict)
        else leaf.reshape(runs, len(leaf) // runs, *leaf.shape[1:])
        for name, leaf in batch.items()
    }
