"""The episode table: where each episode begins and how it ends.

An episode is cut wherever the next step in the dataset does not follow the last one in the play:
at a hole in the log, at the edge of a selection of splits, at the log's end. In recordings it can also
be truncated: then, too, the game went on, but the frame after the last action is known.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from atarirb.catalog import TIME_LIMIT
from atarirb.errors import DatasetError
from atarirb.store import mapping
from atarirb.store.manifest import (
    COLUMNS,
    EPISODE,
    FINALS,
    Manifest,
    ShardRecord,
    read_manifest,
    stored_dtype,
)
from atarirb.store.npy import NpyRows, map_npy

_ROWS = 1 << 20
#: Episodes checked at a time.
_CHECKED = 1 << 12


class Rows(Protocol):
    """An array, or what gives its rows when sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def read_tables(directory: pathlib.Path) -> tuple[Manifest, np.ndarray]:
    """Read a dataset's manifest and its episode table, also while a recorder replaces them.

    Returns:
        The manifest, and EPISODE[E].

    Raises:
        DatasetNotFoundError: There is no dataset.
        DatasetError: As of `read_manifest` and `read_episodes`.
    """
    while True:
        manifest = read_manifest(directory)
        try:
            return manifest, read_episodes(directory, manifest)
        except DatasetError:
            if read_manifest(directory) == manifest:
                raise


def read_episodes(directory: pathlib.Path, manifest: Manifest) -> np.ndarray:
    """Map a dataset's episode table. It stays what it is: one that replaces it is another file.

    Returns:
        EPISODE[E], not writeable; none of it is in this process's memory until it is read.

    Raises:
        DatasetError: It is missing, of another size, or does not cover every step once: the kernels
            rely on that.
    """
    path = directory / manifest.episodes_name
    table = map_npy(path, (manifest.episodes,), EPISODE)
    sound = _covers(table, manifest.steps, manifest.frames)
    mapping.let_go(table)
    if not sound:
        raise DatasetError(
            f"{path}: damaged: its episodes do not cover the {manifest.steps:,} steps, each once"
        )
    return table


def _covers(table: np.ndarray, steps: int, frames: int) -> bool:
    """Tell whether episodes cover so many steps, each once, and show final frames that there are."""
    if not len(table) or not steps:
        return len(table) == steps
    if table["start"][0] != 0:
        return False
    for first in range(0, len(table), _CHECKED):  # large arrays would come as fresh pages, which are slow
        rows = table[first : first + _CHECKED]
        start, length, final = (np.ascontiguousarray(rows[name]) for name in ("start", "length", "final"))
        stop = np.append(table["start"][first + 1 : first + 1 + len(rows)], steps)[: len(rows)]
        # They rise, from 0 to the steps in all: so no difference can wrap.
        if (start >= stop).any() or (length != stop - start).any():
            return False
        if ((final != -1) & ((final < steps) | (final >= frames))).any():
            return False
    return True


def column_rows(directory: pathlib.Path, shards: Sequence[ShardRecord], column: str) -> list[NpyRows]:
    """Give a usual column's rows of each shard, to be read a bounded number at a time."""
    return [
        NpyRows(
            directory / shard.directory / f"{column}.npy",
            (shard.steps,),
            stored_dtype(shard, column, COLUMNS[column]),
        )
        for shard in shards
    ]


def final_steps(directory: pathlib.Path, shards: Sequence[ShardRecord]) -> list[np.ndarray]:
    """Read of each shard the steps after which a final frame is kept, as int64[F]."""
    return [
        np.array(map_npy(directory / shard.directory / FINALS, (shard.finals,), np.dtype(np.int64)))
        if shard.finals
        else np.zeros(0, np.int64)
        for shard in shards
    ]


def episode_table(
    shards: Sequence[ShardRecord],
    terminals: Sequence[Rows],
    rewards: Sequence[Rows],
    finals: Sequence[np.ndarray],
) -> np.ndarray:
    """Work the table out from the shards' columns.

    Args:
        shards: Records, in step order.
        terminals: uint8[steps] of each; sliced a bounded number of rows at a time.
        rewards: float32[steps] of each, likewise.
        finals: int64[F] of each: the steps after which a final frame is kept.

    Returns:
        EPISODE[E], in step order; the episodes cover every step once.
    """
    boundaries = []  # (first step of an episode, its head is cut)
    ends: list[np.ndarray] = []  # the last steps of episodes
    over: list[np.ndarray] = []  # whether that is by a terminal
    offset = 0
    stop_before = None
    for shard, terminal in zip(shards, terminals, strict=True):
        if shard.steps:
            joined = shard.head == "continues" and shard.adds[0] == stop_before
            if not joined:
                boundaries.append((offset, shard.head != "start"))
            for first in range(0, shard.steps, _ROWS):
                rows = terminal[first : first + _ROWS]
                last = np.flatnonzero(rows)
                ends.append(offset + first + last)
                over.append(rows[last] == 1)
        offset += shard.steps
        stop_before = shard.adds[1]
    if not offset:
        return np.zeros(0, EPISODE)
    end = np.concatenate(ends)
    terminated = end[np.concatenate(over)]
    starts = np.concatenate([end[end + 1 < offset] + 1, [first for first, _ in boundaries]])
    starts = np.unique(starts.astype(np.int64))
    table = np.zeros(len(starts), EPISODE)
    table["start"] = starts
    table["length"] = np.diff(np.append(starts, offset))
    table["head_cut"] = np.isin(starts, [first for first, cut in boundaries if cut])
    last_step = starts + table["length"] - 1
    table["terminal"] = np.isin(last_step, terminated)
    table["time_limit"] = np.isin(last_step, end) & ~table["head_cut"] & (table["length"] == TIME_LIMIT)
    _add_finals(table, shards, finals, last_step)
    _add_returns(table, rewards)
    return table


def _add_finals(
    table: np.ndarray, shards: Sequence[ShardRecord], finals: Sequence[np.ndarray], last_step: np.ndarray
) -> None:
    """Number the final frames, which follow those of all steps, and give each to its episode."""
    table["final"] = -1
    offsets = np.cumsum([0, *(shard.steps for shard in shards)])
    after = np.concatenate([steps + offset for steps, offset in zip(finals, offsets[:-1], strict=True)])
    episode = np.searchsorted(last_step, after)
    if (episode >= len(table)).any() or (last_step[episode] != after).any():
        raise DatasetError("a final frame follows a step that is not its episode's last")
    table["final"][episode] = offsets[-1] + np.arange(len(after))


def _add_returns(table: np.ndarray, rewards: Sequence[Rows]) -> None:
    """Sum the rewards of each episode, a bounded number of rows at a time."""
    offset = 0
    for reward in rewards:
        for first in range(0, len(reward), _ROWS):
            rows = np.asarray(reward[first : first + _ROWS], np.float64)
            lo = offset + first
            inside = np.searchsorted(table["start"], lo, side="right") - 1
            last = np.searchsorted(table["start"], lo + len(rows), side="left")
            starts = np.maximum(table["start"][inside:last] - lo, 0)
            table["return"][inside:last] += np.add.reduceat(rows, starts)
        offset += len(reward)
