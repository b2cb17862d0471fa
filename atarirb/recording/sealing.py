"""From journals to a shard."""

from __future__ import annotations

import itertools
import pathlib
import shutil
from collections.abc import Iterator, Sequence

import numpy as np

from atarirb.recording.journal import JournalRows
from atarirb.store import codecs, shards
from atarirb.store import manifest as store

_CHUNK = 256


def write_shard(
    work: pathlib.Path,
    directory: pathlib.Path,
    before: store.ShardRecord | None,
    journals: Sequence[JournalRows],
    *,
    codec: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    source: dict[str, str],
    threads: int,
) -> store.ShardRecord:
    """Make a shard of episodes.

    Args:
        work: Directory of things half-written.
        directory: The dataset's.
        before: The shard before it, if there is one.
        journals: The episodes, in their order.
        codec: How frames are kept.
        shape: Shape of a frame.
        dtype: Of its values.
        source: What its record is to say of where it comes from.
        threads: That compress.

    Returns:
        Its record.
    """
    split, first = (before.split + 1, before.adds[1]) if before else (0, 0)
    partial = work / store.shard_name(split)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shard = shards.ShardWriter(work, split)
        steps = sum(journal.steps for journal in journals)
        ends = np.cumsum([journal.steps for journal in journals])
        finals = ends[[journal.final for journal in journals]] - 1
        rows = np.concatenate([journal.rows[: journal.steps] for journal in journals])
        shard.column("terminal", np.concatenate([journal.terminal() for journal in journals]))
        for column in rows.dtype.names or ():
            shard.column(column, np.ascontiguousarray(rows[column]))
        kind = codecs.codec(codec)
        count = steps + len(finals)
        samples = _sample(journals, kind.sampled(count, shape, dtype), shape, dtype)
        frames = kind.Writer(shard.directory, count, shape, dtype, samples=samples, threads=threads)
        try:
            everything = _in_order(journals)
            for begin in range(0, count, _CHUNK):
                frames.write(np.stack(list(itertools.islice(everything, _CHUNK))), begin)
        except BaseException:
            frames.abandon()
            raise
        shard.keep(frames.close())
        record = shard.finish(
            segments=np.array([[0, first]], np.int64),
            finals=finals.astype(np.int64),
            steps=steps,
            adds=(first, first + steps),
            capacity=2**62,
            head="start",
            clipped=shards.clipped(rows["reward"]),
            source=source,
        )
        shards.place(work, directory, record)
        return record
    except BaseException:  # a full disk needs the room
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _in_order(journals: Sequence[JournalRows]) -> Iterator[np.ndarray]:
    """Read the frames of all steps, then the final ones."""
    finals = []
    for journal in journals:
        frames = journal.frames()
        yield from itertools.islice(frames, journal.steps)
        finals += frames
    yield from finals


def _sample(
    journals: Sequence[JournalRows], wanted: np.ndarray, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Read some frames, numbered as they come in order."""
    samples = np.empty((len(wanted), *shape), dtype)
    if len(wanted):
        picked = iter(wanted.tolist())
        place, soon = 0, next(picked)
        for number, frame in enumerate(_in_order(journals)):
            if number == soon:
                samples[place] = frame
                place, soon = place + 1, next(picked, -1)
    return samples
