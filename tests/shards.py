"""Datasets written shard by shard, as a recorder does it: with truncated episodes and final frames."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from atarirb.store import building
from atarirb.store.codecs import CODECS
from atarirb.store.manifest import ColumnRecord
from atarirb.store.shards import ShardWriter, clipped, place


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One episode: its steps, how it ended (0 not, 1 by a terminal, 2 truncated), and what came then."""

    frames: np.ndarray
    terminal: int
    final: np.ndarray | None


def write(
    directory: pathlib.Path,
    shards: Sequence[Sequence[tuple[int, int, bool]]],
    *,
    codec: str,
    frame_shape: tuple[int, ...] = (4, 3),
    frame_dtype: Any = np.uint8,
    seed: int = 0,
) -> list[Episode]:
    """Write a dataset of random play.

    Args:
        directory: The dataset's directory.
        shards: Of each its episodes: steps, how it ended, and whether it has a final frame.
        codec: How frames are kept.
        frame_shape: Shape of a frame; no pixel is 0.
        frame_dtype: Its dtype.
        seed: Of all that is random.

    Returns:
        The episodes.
    """
    rng = np.random.default_rng(seed)
    work = directory / "work"
    work.mkdir(parents=True)
    records, episodes, first = [], [], 0

    def frames_of(count: int) -> np.ndarray:
        return rng.integers(1, 256, (count, *frame_shape)).astype(frame_dtype)

    with mock.patch("os.fsync"):
        for split, wanted in enumerate(shards):
            mine = [
                Episode(frames=frames_of(length), terminal=end, final=frames_of(1)[0] if final else None)
                for length, end, final in wanted
            ]
            steps = sum(length for length, *_ in wanted)
            ends = np.cumsum([length for length, *_ in wanted], dtype=np.int64) - 1
            terminal = np.zeros(steps, np.uint8)
            terminal[ends] = [end for _, end, _ in wanted]
            finals = ends[[final for *_, final in wanted]]
            shard = ShardWriter(work, split)
            rewards = rng.integers(-1, 2, steps).astype(np.float32)
            shard.column("action", rng.integers(0, 6, steps).astype(np.int32))
            shard.column("reward", rewards)
            shard.column("terminal", terminal)
            shown = [
                *(episode.frames for episode in mine),
                *(e.final[None] for e in mine if e.final is not None),
            ]
            frames = np.concatenate([np.zeros((0, *frame_shape), frame_dtype), *shown])
            dtype = frames.dtype
            samples = frames[CODECS[codec].sampled(len(frames), frame_shape, dtype)]
            writer = CODECS[codec].Writer(shard.directory, len(frames), frame_shape, dtype, samples=samples)
            writer.write(frames, 0)
            shard.keep(writer.close())
            record = shard.finish(
                segments=np.array([[0, first]]),
                finals=finals,
                steps=steps,
                adds=(first, first + steps),
                capacity=2**62,
                head="start",
                clipped=clipped(rewards),
                source={"last_episode": str(len(episodes) + len(mine) - 1)},
            )
            place(work, directory, record)
            records.append(record)
            episodes += mine
            first += steps
        building.finish(
            directory,
            records,
            name="Pong/1",
            layout="recording",
            codec=codec,
            frame=ColumnRecord(shape=frame_shape, dtype=np.dtype(frame_dtype).str),
            extra={},
            writer_stack=1,
        )
    work.rmdir()
    return episodes
