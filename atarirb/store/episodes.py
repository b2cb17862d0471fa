"""The episode table: where each episode begins and how it ends.

An episode is cut wherever the next step in the dataset does not follow the last one in the play:
at a hole in the log, at the edge of a selection of splits, at the log's end.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from atarirb.catalog import TIME_LIMIT
from atarirb.errors import DatasetError
from atarirb.store.manifest import COLUMNS, EPISODE, EPISODES, Manifest, ShardRecord
from atarirb.store.npy import NpyRows, map_npy

_ROWS = 1 << 20


class Rows(Protocol):
    """An array, or what gives its rows when sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> np.ndarray: ...


def read_episodes(directory: pathlib.Path, manifest: Manifest) -> np.ndarray:
    """Read a dataset's episode table.

    Returns:
        EPISODE[E].

    Raises:
        DatasetError: It is missing, of another size, or does not cover every step once: the kernels
            rely on that.
    """
    table = np.array(map_npy(directory / EPISODES, (manifest.episodes,), EPISODE))
    stops = np.cumsum(table["length"])
    covered = stops[-1] if len(stops) else 0
    sound = (table["length"] > 0).all() and (table["start"] == np.append(0, stops)[:-1]).all()
    if not sound or covered != manifest.steps:
        raise DatasetError(
            f"{directory / EPISODES}: damaged: its episodes do not cover the {manifest.steps:,} steps, "
            f"each once"
        )
    return table


def column_rows(directory: pathlib.Path, shards: Sequence[ShardRecord], column: str) -> list[NpyRows]:
    """Give a usual column's rows of each shard, to be read a bounded number at a time."""
    return [
        NpyRows(directory / shard.directory / f"{column}.npy", (shard.steps,), COLUMNS[column])
        for shard in shards
    ]


def episode_table(
    shards: Sequence[ShardRecord], terminals: Sequence[Rows], rewards: Sequence[Rows]
) -> np.ndarray:
    """Work the table out from the shards' columns.

    Args:
        shards: Records, in step order.
        terminals: uint8[steps] of each; sliced a bounded number of rows at a time.
        rewards: float32[steps] of each, likewise.

    Returns:
        EPISODE[E], in step order; the episodes cover every step once.
    """
    boundaries = []  # (first step of an episode, its head is cut)
    ends = []  # steps that are terminal
    offset = 0
    stop_before = None
    for shard, terminal in zip(shards, terminals, strict=True):
        if shard.steps:
            joined = shard.head == "continues" and shard.adds[0] == stop_before
            if not joined:
                boundaries.append((offset, shard.head != "start"))
            ends += [
                offset + first + np.flatnonzero(terminal[first : first + _ROWS])
                for first in range(0, shard.steps, _ROWS)
            ]
        offset += shard.steps
        stop_before = shard.adds[1]
    if not offset:
        return np.zeros(0, EPISODE)
    end = np.concatenate(ends)
    starts = np.concatenate([end[end + 1 < offset] + 1, [first for first, _ in boundaries]])
    starts = np.unique(starts.astype(np.int64))
    table = np.zeros(len(starts), EPISODE)
    table["start"] = starts
    table["length"] = np.diff(np.append(starts, offset))
    table["head_cut"] = np.isin(starts, [first for first, cut in boundaries if cut])
    table["terminal"] = np.isin(starts + table["length"] - 1, end)
    table["time_limit"] = table["terminal"] & ~table["head_cut"] & (table["length"] == TIME_LIMIT)
    _add_returns(table, rewards)
    return table


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
