"""Write replay logs in the original layout, as the collecting agent's own buffer did.

An independent, plain writer: it shares no code with the reader of logs.

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

Slots that no add has reached hold zeros, or the values of `garbage`.

The buffer lies in unnamed temporary files in the log's directory, one a column, that grow with what was
added and are gone with the process, however it ends: memory stays small for any capacity. A file of the log
is written under a name of its own, `.<name>_ckpt.<k>.gz.partial`, and gets its final name when all files of
the dump are whole, the observations last.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from zlib_ng import gzip_ng

from atarirb.errors import ArgumentError, ClosedError

CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Window:
    """One dump: files with suffix `split` hold the adds start .. stop-1."""

    split: int
    start: int
    stop: int


class _Column:
    """A ring of rows in a temporary file, filled in order."""

    def __init__(self, directory: Path, capacity: int, shape: tuple[int, ...], dtype: Any, garbage: Any):
        self._row = np.zeros(shape, dtype)
        self._garbage = np.zeros(shape, dtype)
        self._garbage[...] = garbage
        self._capacity = capacity
        self._at = 0
        self._held = 0  # rows written, before the ring closes
        # Written, not mapped: a full disk is then an error, where a mapping would end the process, and
        # the pages do not count as this process's memory.
        self._file = tempfile.TemporaryFile(dir=directory, buffering=1 << 20)  # noqa: SIM115

    def put(self, value: Any) -> None:
        """Write the next row."""
        self._row[...] = value
        self._file.write(self._row.tobytes())
        self._at += 1
        self._held = max(self._held, self._at)
        if self._at == self._capacity:
            self._file.seek(0)
            self._at = 0

    def pieces(self) -> Iterator[bytes]:
        """Read all rows as one `.npy`."""
        header = {
            "descr": npy.dtype_to_descr(self._row.dtype),
            "fortran_order": False,
            "shape": (self._capacity, *self._row.shape),
        }
        yield _header(header)
        self._file.seek(0)
        left = self._held * self._row.nbytes
        while left:
            piece = self._file.read(min(CHUNK_BYTES, left))
            left -= len(piece)
            yield piece
        self._file.seek(self._at * self._row.nbytes)
        unwritten = self._capacity - self._held
        some = max(1, CHUNK_BYTES // max(1, self._row.nbytes))
        while unwritten:
            count = min(some, unwritten)
            unwritten -= count
            yield self._garbage.tobytes() * count

    def close(self) -> None:
        """Give the room on the disk back."""
        self._file.close()


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
            garbage: Column name -> value of the slots never written, e.g. `{"reward": np.nan}`; zeros by
                default.
            compresslevel: gzip level, 1-9. The public logs are at 9.

        Raises:
            ArgumentError: If the buffer is too small, or `extra` or `garbage` names a column it may not.
        """
        if stack < 1 or horizon < 1 or capacity < stack + horizon:
            raise ArgumentError(
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
            raise ArgumentError(f"extra columns need names of their own, found {clash}")
        columns |= dict(extra or {})
        unknown = sorted(set(garbage or {}) - set(columns))
        if unknown:
            raise ArgumentError(f"garbage is for the columns {sorted(columns)}, found {unknown}")
        self.directory = Path(directory)
        self.capacity = capacity
        self.stack = stack
        self.horizon = horizon
        self.compresslevel = compresslevel
        self.add_count = 0
        self.windows: list[Window] = []
        self._closed = False
        self._add_ids = array("q")
        self._over = True  # the last step added ended its episode
        self._files = self.directory / "replay_logs"
        self._files.mkdir(parents=True, exist_ok=True)
        self._store = {
            name: _Column(self.directory, capacity, tuple(shape), dtype, (garbage or {}).get(name, 0))
            for name, (shape, dtype) in columns.items()
        }

    def __enter__(self) -> RingLog:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        self._closed = True
        for column in self._store.values():
            column.close()

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
            ClosedError: If the log is closed.
            ArgumentError: If values are missing or too many.
        """
        if self._closed:
            raise ClosedError("the log is closed; make a new RingLog to write on")
        row = {"observation": observation, "action": action, "reward": reward, "terminal": terminal, **extra}
        if row.keys() != self._store.keys():
            raise ArgumentError(f"expected the columns {sorted(self._store)}, found {sorted(row)}")
        if self._over:
            zeros = dict.fromkeys(self._store, 0)
            for _ in range(self.stack - 1):
                self._put(zeros)
        self._add_ids.append(self.add_count)
        self._put(row)
        self._over = terminal == 1
        if self.cursor == self.capacity - 1:
            self._dump(self.add_count)

    def close(self) -> None:
        """Dump the last, partial window with add_count := A mod C; later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._dump(self.cursor)
        for column in self._store.values():
            column.close()

    def _put(self, row: Mapping[str, Any]) -> None:
        for name, column in self._store.items():
            column.put(row[name])
        self.add_count += 1

    def _dump(self, add_count: int) -> None:
        split = len(self.windows)
        cursor = self.cursor
        invalid = [(cursor - self.horizon + i) % self.capacity for i in range(self.stack + self.horizon)]
        contents = {
            "add_count": _scalars(np.array(add_count, np.int64)),
            "invalid_range": _scalars(np.array(invalid, np.int64)),
        }
        for name in reversed(self._store):  # the observations last
            contents[f"$store$_{name}"] = self._store[name].pieces()
        finals = {name: self._files / f"{name}_ckpt.{split}.gz" for name in contents}
        partials = {name: path.with_name(f".{path.name}.partial") for name, path in finals.items()}
        try:
            for name, pieces in contents.items():
                self._write(partials[name], pieces)
            for name, path in finals.items():
                os.replace(partials[name], path)
        except BaseException:
            for path in partials.values():
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        self.windows.append(
            Window(split=split, start=max(0, self.add_count - self.capacity), stop=self.add_count)
        )

    def _write(self, path: Path, pieces: Iterator[bytes]) -> None:
        # No name and no time stamp: the same play gives the same bytes. At level 9 zlib-ng takes 0.4 of
        # the time of Python's gzip, for files of the same size.
        with (
            open(path, "wb") as raw,
            gzip_ng.GzipNGFile("", "wb", compresslevel=self.compresslevel, fileobj=raw, mtime=0) as file,
        ):
            for piece in pieces:
                file.write(piece)


def _header(content: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(file, content)
    return file.getvalue()


def _scalars(values: np.ndarray) -> Iterator[bytes]:
    yield _header(npy.header_data_from_array_1_0(values))
    yield values.tobytes()
