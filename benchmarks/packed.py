"""What packed frames cost beside raw ones, and what they save.

The data are one split of ALE play of 110,000 rows, ingested by both codecs, all of it in the system's cache
and touched before, but where it says otherwise. Every call gets steps of its own.

    bytes of the dataset, its templates, index and columns included, against the log's gzip files   <= 1.1
    get(256), so up to 512 frames, against raw                                                      <= 5
    decoding on one thread, in random order                                                     <= 2.0 us
    decoding on two threads, frames a second against one                                            >= 1.7
    get(256) with too little memory for raw frames (see `benchmarks.larger`), against raw           <= 0.1

Without a bar: stacks and slices; what decoding through the zstandard package's documented interface costs
(`ATARIRB_ZSTD=python`); templates of as many shards as a real run has, which no cache of the processor holds;
opening, a first batch in a fresh process, a first batch of about 50 shards, all of whose templates are read.

    python -m benchmarks.packed [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import atarirb
from atarirb import threads
from atarirb.store import packed
from benchmarks import larger
from benchmarks.field import LENGTH, SLICES, B
from benchmarks.measure import Contestant, Row, Times, finish, race
from benchmarks.probes import memory, probe
from benchmarks.workload import GAME, Workload, command_line, size

#: Frames decoded in one call.
_FRAMES = 1024
#: Shards of a real run.
_SHARDS = 51


def sizes(workload: Workload) -> list[Row]:
    """Measure what is on the disk."""
    dataset = workload.single_dataset("packed")
    with atarirb.open(dataset) as reader:
        steps = len(reader)
    rows = []
    for rival, other, bar in (
        ("the log's gzip files", workload.single(), "<= 1.1"),
        ("raw", workload.single_dataset("raw"), ""),
    ):
        ours, theirs = size(dataset), size(other)
        rows.append(
            Row(
                what="dataset, bytes a step",
                ours=ours / steps,
                unit="B",
                rival=rival,
                theirs=theirs / steps,
                ratio=ours / theirs,
                bar=bar,
            )
        )
    return rows


def batches(workload: Workload, rounds: int) -> list[Row]:
    """Measure warm batches, both codecs in turn."""
    raw, fast = workload.single_dataset("raw"), workload.single_dataset("packed")
    slow = "packed, ATARIRB_ZSTD=python"
    rows = []
    kinds: list[tuple[str, str, dict[str, Any], Callable[[atarirb.Reader], Contestant]]] = [
        (f"get({B})", "<= 5", {}, _get),
        (f"get({B}), frame_stack=4", "", {"frame_stack": 4}, _get),
        (f"sample_slices(int, {SLICES}, {LENGTH})", "", {}, _slices),
    ]
    for what, bar, options, contestant in kinds:
        readers = {"raw": atarirb.open(raw, **options), "packed": atarirb.open(fast, **options)}
        with _environment(ATARIRB_ZSTD="python"):
            readers[slow] = atarirb.open(fast, **options)
        for reader in readers.values():
            _touch(reader)
        times = race({name: contestant(reader) for name, reader in readers.items()}, rounds=rounds, calls=5)
        rows += [
            times.row(what, "packed", "raw", bar=bar),
            times.row(f"{what}, ATARIRB_ZSTD=python", slow, "raw"),
        ]
    return rows


def _get(reader: atarirb.Reader) -> Contestant:
    def contestant(seed: int) -> Any:
        index = np.random.default_rng(seed).integers(0, len(reader), B)
        return lambda: reader.get(index)

    return contestant


def _slices(reader: atarirb.Reader) -> Contestant:
    return lambda seed: lambda: reader.sample_slices(seed, SLICES, LENGTH)


def _touch(reader: atarirb.Reader) -> None:
    for low in range(0, len(reader), 1024):
        reader.get(slice(low, low + 1024))


def decoding(workload: Workload, rounds: int) -> list[Row]:
    """Measure the decoding of frames in random order, on a thread or two, of one shard and of many."""
    (shard,) = (path.parent for path in workload.single_dataset("packed").rglob("observation.pack"))
    with atarirb.open(shard.parent) as reader:
        n, shape = len(reader), reader.info.frame_shape
    one = _Decoding([shard], [n], shape)
    # As many as a real run has: the same blocks, but templates of their own.
    before = memory("RssAnon")
    many = _Decoding([shard] * _SHARDS, [n] * _SHARDS, shape)
    held = memory("RssAnon") - before
    alone, both, of_many = "one thread", "two threads", "51 shards"
    with _environment(ATARIRB_THREADS="2"):
        times = race({alone: one.alone, both: one.spread}, rounds=rounds, calls=5)
        # By itself, for its templates take the place of the others' in the processor's cache.
        beside = race({alone: one.alone, of_many: many.alone}, rounds=rounds, calls=5)
    rate = _rate(times, both)
    return [
        Row(what="decode, one thread", ours=1e6 / _rate(times, alone), unit="us/frame", bar="<= 2"),
        Row(
            what="decode, two threads",
            ours=rate,
            unit="frames/s",
            rival=alone,
            theirs=_rate(times, alone),
            ratio=times.ratio(alone, both),
            bar=">= 1.7",
        ),
        Row(
            what=f"decode, one thread, templates of {_SHARDS} shards",
            ours=1e6 / _rate(beside, of_many),
            unit="us/frame",
            rival="of one, in turns with it",
            theirs=1e6 / _rate(beside, alone),
            ratio=beside.ratio(of_many, alone),
        ),
        Row(what=f"templates of {_SHARDS} shards, memory", ours=held, unit="MB"),
    ]


def _rate(times: Times, name: str) -> float:
    return 1e3 * _FRAMES / times.ms(name)


class _Decoding:
    """Decodes frames of some shards, in calls for `race`."""

    def __init__(self, shards: Sequence[Path], steps: Sequence[int], shape: tuple[int, ...]):
        self._frames = packed.Frames(shards, steps, [0] * len(steps), shape, np.dtype(np.uint8))
        self._n = sum(steps)
        self._out = np.empty((_FRAMES, *shape), np.uint8)
        touched = np.arange(0, self._n, 16)  # some of each page of blocks
        for first in range(0, len(touched), _FRAMES):
            self._frames.frames(np.zeros(1, np.int64), touched[first : first + _FRAMES], self._out)

    def alone(self, seed: int) -> Callable[[], None]:
        """Decode on this thread."""
        index = self._index(seed)
        return lambda: self._frames.frames(np.zeros(1, np.int64), index, self._out)

    def spread(self, seed: int) -> Callable[[], None]:
        """Decode on all threads."""
        index = self._index(seed)
        return lambda: threads.spread(
            lambda ticket: self._frames.frames(ticket, index, self._out), self._out.nbytes
        )

    def _index(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, self._n, _FRAMES)


def opening(workload: Workload) -> list[Row]:
    """Measure opening, and first batches."""
    one, many = workload.single_dataset("packed"), workload.dataset("packed")
    with atarirb.open(many) as reader:
        shards = len(reader.info.splits)
    times = race(
        {
            "one": lambda _: lambda: atarirb.open(one),
            "many": lambda _: lambda: atarirb.open(many),
            "first": lambda seed: lambda: atarirb.open(many).sample(seed, B),
        },
        rounds=3 if workload.quick else 11,
    )
    probe("first_batch", one)  # caches the kernels
    fresh = [probe("first_batch", one)["seconds"] for _ in range(1 if workload.quick else 5)]
    return [
        Row(what="open, 1 shard", ours=times.ms("one"), unit="ms"),
        Row(what=f"open, {shards} shards", ours=times.ms("many"), unit="ms"),
        Row(what=f"open and first batch, {shards} shards", ours=times.ms("first"), unit="ms"),
        Row(what="import, open, first batch, 1 shard", ours=statistics.median(fresh), unit="s", bar="< 2"),
    ]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def measure(workload: Workload) -> tuple[list[Row], str]:
    """Measure all; return the rows, and a note on them."""
    rounds = 3 if workload.quick else 31
    scarce, note = larger.measure(workload)  # first: what this process has mapped cannot leave the cache
    rows = [
        *sizes(workload),
        *batches(workload, rounds),
        *decoding(workload, rounds),
        *opening(workload),
        *scarce,
    ]
    return rows, note


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.packed", "Measure what packed frames cost.", argv)
    rows, note = measure(workload)
    return finish(f"Packed frames of {GAME}", rows, path, quick=workload.quick, notes=[note])


if __name__ == "__main__":
    sys.exit(main())
