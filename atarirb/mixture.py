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

from atarirb import draws, markup
from atarirb.batch import OPTIONAL, Batch
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
            [R, n / R, ...], in the order of `readers`. An epoch then ends with the last whole batch of the
            smallest run.

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
        if not isinstance(readers, Mapping) or not readers:
            raise ArgumentError(f"readers is {readers!r:.80}, expected one or more by name")
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
        if self._weights is not None:
            self._drawn, self._last_words = _shares(self._weights)
        _check_alike(self._readers)
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

    def _legal(self, slice_len: int | None, *, strict: bool = True) -> Legal:
        legal = super()._legal(slice_len, strict=strict)
        if self._weights is None and not self._stacked:
            return legal
        counts = np.diff(legal.cumulative[self._first_episodes])
        empty = counts == 0
        if self._weights is not None:
            empty &= np.array(self._weights) > 0
        if empty.any():
            what = "step" if slice_len is None else f"slice of {slice_len:,} steps"
            raise ArgumentError(
                f"run {self.runs[np.argmax(empty)]!r} has no valid {what}, and is to have a share of each "
                f"batch; leave it out, or give it a weight of 0"
            )
        return legal

    def _draw(self, key: Any, n: int, legal: Legal, *, by_episode: bool = False) -> np.ndarray:
        if self._weights is None and not self._stacked:
            return super()._draw(key, n, legal, by_episode=by_episode)
        words = draws.words(key, 3 * n).reshape(n, 3)
        if self._weights is None:
            run = np.repeat(np.arange(len(self.runs)), self._share(n))
        else:
            run = self._drawn[np.searchsorted(self._last_words, words[:, 0])]
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
        if not getattr(self._options.device, "is_fully_addressable", True):
            raise ArgumentError(
                "the leading axis of stacked batches is of runs, and device= would split it over processes; "
                "give each process its part of every run by shard=(i, n)"
            )
        counts, share = np.diff(legal.cumulative[self._first_episodes]), self._share(batch_size)
        if counts.min() < share and not replacement:
            raise ArgumentError(
                f"run {self.runs[np.argmin(counts)]!r} has {counts.min():,} to give in an epoch, and its "
                f"share of a batch is {share:,}; choose a smaller batch_size, or replacement=True"
            )
        return int(counts.min()) // share * batch_size

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
        # By the datasets that are held here: the readers may be closed.
        open_parts = zip(self._readers.values(), self._joined().datasets, strict=True)
        parts, own = (
            [part._identity(dataset) for part, dataset in open_parts],
            ("dataset", "selection", *_OWN),
        )
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

    def _repr_html_(self) -> str:
        drawn = ["weight"] if self._weights is not None else []
        rows = []
        for place, (name, reader) in enumerate(self._readers.items()):
            counts = (len(reader.info.splits), reader.info.episodes, reader.info.steps, reader.valid_steps)
            weight = [f"{self._weights[place]:g}"] if self._weights is not None else []
            rows.append((name, reader.info.name, *(f"{count:,}" for count in counts), *weight))
        head = ("run", "dataset", "splits", "episodes", "steps", "steps to draw", *drawn)
        shares = ", an equal share of each run" if self._stacked else ""
        closed = "" if self._dataset else ", closed"
        return markup.table(rows, head=head, caption=f"Mixture{shares}{closed}")


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


def _check_alike(readers: Mapping[str, Reader]) -> None:
    """Check that the frames of all readers are of one kind, and the stored columns that are asked for."""
    (first, reader), *others = readers.items()
    usual = _stored(reader)
    for name, other in others:
        for what, kind in _stored(other).items():
            if kind != usual[what]:
                raise ArgumentError(
                    f"{what} of {first!r} is {usual[what]} and of {name!r} {kind}; to be mixed they must be "
                    f"of one shape and dtype"
                )


def _stored(reader: Reader) -> dict[str, str]:
    """Say of which dtype and shape a row of each stored leaf is."""
    dataset = reader._opened()
    kinds = {"a frame": (dataset.frames.shape, dataset.frames.dtype)}
    wanted = [name for name in reader._options.columns if name not in OPTIONAL]
    kinds |= {f"column {name!r}": dataset.described[name] for name in wanted}
    return {what: f"{dtype}{list(shape)}" for what, (shape, dtype) in kinds.items()}


def _checked(weights: Mapping[str, float], runs: Sequence[str]) -> list[float]:
    """Return the weight of each run."""
    if not isinstance(weights, Mapping) or set(weights) != set(runs):
        raise ArgumentError(
            f"weights is {weights!r:.200}, expected one for each of {', '.join(map(repr, runs)):.200}"
        )
    try:
        found = [float(weights[run]) for run in runs]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"weights are numbers: {error}") from error
    if not all(math.isfinite(weight) and weight >= 0 for weight in found) or not sum(found):
        raise ArgumentError(f"weights is {weights!r:.200}, expected numbers of 0 or more, not all 0")
    return found


def _shares(weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Share the 64-bit words among runs by their weights.

    Returns:
        int64[K], the runs that have a weight, and uint64[K - 1], the last word of each but the last one.
    """
    drawn = np.flatnonzero(weights)
    sums = list(itertools.accumulate(fractions.Fraction(weights[run]) for run in drawn))
    return drawn, np.array([math.ceil(part * 2**64 / sums[-1]) - 1 for part in sums[:-1]], np.uint64)


def _with_runs_apart(batch: Batch, runs: int) -> Batch:
    """Give every leaf a leading axis of runs."""
    return {
        name: _with_runs_apart(leaf, runs)
        if isinstance(leaf, dict)
        else leaf.reshape(runs, len(leaf) // runs, *leaf.shape[1:])
        for name, leaf in batch.items()
    }
