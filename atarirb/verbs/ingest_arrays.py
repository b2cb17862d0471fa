"""Plain arrays become a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from atarirb import sources
from atarirb.arguments import one_of
from atarirb.errors import ArgumentError
from atarirb.info import DatasetInfo
from atarirb.sources.arrays import ArrayLogs, Sliced
from atarirb.sources.logs import FINAL
from atarirb.store import codecs
from atarirb.verbs.ingest import ingest_logs


def ingest_arrays(
    out: str | os.PathLike[str],
    *,
    observation: Any,
    action: Any,
    reward: Any,
    terminal: Any,
    truncated: Any = None,
    final_observation: Any = None,
    extra: Mapping[str, Any] | None = None,
    head: str = "start",
    name: str | None = None,
    codec: str = codecs.DEFAULT,
    workers: int | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Turn arrays, one row a step in the order of play, into a dataset.

    An array is anything that has a shape and can be sliced: NumPy's, a memory map, a dataset of h5py or
    zarr. A few megabytes of rows are read at a time, so they may be larger than memory. Frames are kept as
    they are, of any shape and dtype: (84, 84), (1, 84, 84), (210, 160, 3). Pass single frames, not stacks of
    them: readers stack by ``frame_stack=``, without keeping each frame several times.

    Steps that are neither terminal nor truncated are followed by the next row; the last row, if it is
    neither, by nothing that is known: its episode is cut there.

    An interrupted call goes on by the same call. What is in the dataset already stays where the arrays are
    the same: that is told by the CRC-32 of all their rows, which takes a pass over them.

    Args:
        out: The dataset's directory; made if need be.
        observation: [N, ...], what was seen.
        action: int[N], 0 or more, what was done then.
        reward: float[N], what came of it.
        terminal: bool or int[N], 0 or 1: the game was over after it.
        truncated: bool or int[N], 0 or 1: the episode ended there though the game went on. With it, the
            27,000-step cap is known as in recordings; without it, as in the logs (see ``time_limit`` of
            `atarirb.open`). A step that is both is terminal.
        final_observation: [F, ...], the frames after last steps of episodes, in their order: either one for
            each step that is terminal or truncated, or one for each that is truncated and not terminal. A
            truncated step without one is in no batch, for its next observation is not known.
        extra: More columns, [N, ...], by name.
        head: How the first row stands: "start", it begins an episode; "cut", the beginning is lost.
        name: The run's id, as ``"Pong/1"``; by default the last two parts of `out`.
        codec: How frames are kept.
        workers: Parts of a million rows copied at a time; None for one per core.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        What the dataset is. `locate` gives ``divmod(row, 1_000_000)``.

    Raises:
        LogError: An array is of another length, shape or dtype than it must be, or of ends that are neither 0
            nor 1.
        IngestError: A part failed, as where a reward is not finite; it lists them and why. The others
            are kept.
        DiskSpaceError: The disk has too little room; nothing was written.
        BusyError: Another process is writing this dataset.
        ArgumentError: An unknown codec or `head`, or `out` holds another dataset.
    """
    one_of("head", head, ("start", "cut"))
    arrays = {"observation": observation, "action": action, "reward": reward, "terminal": terminal}
    for column in extra or {}:
        if column in (*arrays, "truncated", FINAL) or not column.isidentifier():
            raise ArgumentError(f"an extra column may not be called {column!r}")
    arrays |= {"truncated": truncated, FINAL: final_observation, **(extra or {})}
    columns = {column: Sliced(column, values) for column, values in arrays.items() if values is not None}
    return ingest_logs(
        ArrayLogs("arrays", columns, head=head),
        out,
        name=name or sources.run_name(out),
        codec=codec,
        workers=workers,
        progress=progress,
    )
