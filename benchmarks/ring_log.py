"""Write replay logs in the original layout, as the collecting agent's own buffer did.

An independent, plain writer to make logs for tests and benchmarks. It shares no code with the reader.

The buffer has C slots (`capacity`); add number n, counted from 0, sits in slot n mod C. Before an episode's
first step `stack - 1` all-zero rows are added. After each step, not after each row, the buffer is dumped if
A mod C = C-1, where A is the number of adds so far. An episode's first step adds `stack` rows at once, so A
can pass C-1 between two checks: that window is never written, and the file numbers go on as if it had never
been. `close` dumps what is there one last time with add_count := A mod C.

A dump with number k is one set of files `<directory>/replay_logs/<name>_ckpt.<k>.gz`, each one gzip stream
of one `.npy` (format 1.0, C order):

    $store$_observation   frame_dtype [C, *frame_shape]
    $store$_action        int32 [C]
    $store$_reward        float32 [C]
    $store$_terminal      uint8 [C]
    $store$_<extra>       its dtype [C, *its shape]
    add_count             int64 []
    invalid_range         int64 [stack + horizon], (cursor - horizon + i) mod C

Slots that no add has reached hold garbage: what `np.empty` gave, or the values of `garbage`.
"""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Window:
    """One dump: files with suffix `split` hold the adds start .. stop-1."""

    split: int
    start: int
    stop: int


class RingLog:
    """Log steps through a ring buffer that is dumped each time it is nearly full.

    A context manager: leaving the block without an error closes the log.
    """

    def __init__(
        self,
        directory: str | Path,
        capacity: int,
        *,
        frame_shape: tuple[int, ...] = (84, 84),
        frame_dtype: Any = np.uint8,
        stack: int = 4,
        horizon: int = 1,
        extra: Mapping[str, tuple[tuple[int, ...], Any]] | None = None,
        garbage: Mapping[str, Any] | None = None,
        compresslevel: int = 1,
    ):
        """Make the buffer and the folder.

        Args:
            directory: The run's folder; the files go to `replay_logs` in it.
            capacity: Slots C of the buffer, at least `stack + horizon`.
            frame_shape: Shape of one observation.
            frame_dtype: Type of one observation.
            stack: Frame stack; `stack - 1` padding rows are added before an episode.
            horizon: n-step horizon; it only shows in `invalid_range`.
            extra: More columns, name -> (shape, dtype) of one row.
            garbage: Column name -> value of the slots never written, e.g. `{"reward": np.nan}`. Columns
                without one keep what `np.empty` gave.
            compresslevel: gzip level, 1-9. The public logs are at 9.

        Raises:
            ValueError: If the buffer is too small, or `extra` or `garbage` names a column it may not.
        """
        if stack < 1 or horizon < 1 or capacity < stack + horizon:
            raise ValueError(
                f"expected stack >= 1, horizon >= 1 and capacity >= stack + horizon, "
                f"found stack={stack}, horizon={horizon}, capacity={capacity}"
            )
        columns = {
            "observation": (tuple(frame_shape), frame_dtype),
            "action": ((), np.int32),
            "reward": ((), np.float32),
            "terminal": ((), np.uint8),
        }
        clash = sorted(set(columns) & set(extra or {}))
        if clash:
            raise ValueError(f"extra columns need names of their own, found {clash}")
        columns |= dict(extra or {})
        unknown = sorted(set(garbage or {}) - set(columns))
        if unknown:
            raise ValueError(f"garbage is for the columns {sorted(columns)}, found {unknown}")
        self.directory = Path(directory)
        self.capacity = capacity
        self.stack = stack
        self.horizon = horizon
        self.compresslevel = compresslevel
        self.add_count = 0
        self.windows: list[Window] = []
        self._closed = False
        self._add_ids = array("q")
        self._store = {name: np.empty((capacity, *shape), dtype) for name, (shape, dtype) in columns.items()}
        for name, value in (garbage or {}).items():
            self._store[name][...] = value
        self._files = self.directory / "replay_logs"
        self._files.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> RingLog:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()

    @property
    def cursor(self) -> int:
        """The slot that the next add goes to."""
        return self.add_count % self.capacity

    @property
    def add_id(self) -> np.ndarray:
        """Return each step's add number, int64[steps], in time order; padding rows are not steps."""
        return np.array(self._add_ids, np.int64)

    @property
    def logged(self) -> np.ndarray:
        """Return for each step whether a file written so far holds it, bool[steps]."""
        ids = self.add_id
        logged = np.zeros(len(ids), bool)
        for window in self.windows:
            # Add numbers rise with time, so a window is one slice of the steps.
            first, last = np.searchsorted(ids, (window.start, window.stop))
            logged[first:last] = True
        return logged

    def add(self, observation: Any, action: int, reward: float, terminal: bool, **extra: Any) -> None:
        """Log one real step: what was seen, what was done on it and what came of that.

        Args:
            observation: frame_dtype[*frame_shape].
            action: Index of the action.
            reward: Reward, already clipped.
            terminal: Whether the episode ended with this step.
            **extra: One value for each extra column.

        Raises:
            ValueError: If the log is closed, or values are missing or too many.
        """
        if self._closed:
            raise ValueError("the log is closed; make a new RingLog to write on")
        row = {"observation": observation, "action": action, "reward": reward, "terminal": terminal, **extra}
        if row.keys() != self._store.keys():
            raise ValueError(f"expected the columns {sorted(self._store)}, found {sorted(row)}")
        # As in the original, the slot before the cursor decides; at cursor 0 it is the last slot.
        if self.add_count == 0 or self._store["terminal"][self.cursor - 1] == 1:
            zeros = dict.fromkeys(self._store, 0)
            for _ in range(self.stack - 1):
                self._put(zeros)
        self._add_ids.append(self.add_count)
        self._put(row)
        if self.cursor == self.capacity - 1:
            self._dump(self.add_count)

    def close(self) -> None:
        """Dump the last, partial window with add_count := A mod C; later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._dump(self.cursor)
        self._store = {}

    def _put(self, row: Mapping[str, Any]) -> None:
        slot = self.cursor
        for name, column in self._store.items():
            column[slot] = row[name]
        self.add_count += 1

    def _dump(self, add_count: int) -> None:
        split = len(self.windows)
        cursor = self.cursor
        for name, column in self._store.items():
            self._write(f"$store$_{name}", split, column)
        self._write("add_count", split, np.array(add_count, np.int64))
        invalid = [(cursor - self.horizon + i) % self.capacity for i in range(self.stack + self.horizon)]
        self._write("invalid_range", split, np.array(invalid, np.int64))
        self.windows.append(
            Window(split=split, start=max(0, self.add_count - self.capacity), stop=self.add_count)
        )

    def _write(self, name: str, split: int, values: np.ndarray) -> None:
        path = self._files / f"{name}_ckpt.{split}.gz"
        # No time stamp: the same play gives the same bytes.
        with gzip.GzipFile(path, "wb", compresslevel=self.compresslevel, mtime=0) as file:
            npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(values))
            # By pieces of the buffer itself, for a whole copy of it would double the memory.
            data = memoryview(values.reshape(-1).view(np.uint8))
            for start in range(0, len(data), CHUNK_BYTES):
                file.write(data[start : start + CHUNK_BYTES])
