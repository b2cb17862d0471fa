r"""The original layout: Dopamine's replay checkpoints, as in the public bucket.

``<Game>/<run>/replay_logs/<name>_ckpt.<k>.gz``, one set of files per split k::

    $store$_observation   (C, ...)  any dtype       the frame
    $store$_action        (C,)      integer         index into the game's minimal actions
    $store$_reward        (C,)      float           clipped by the collecting agent
    $store$_terminal      (C,)      0 or 1          game over, or the 27,000-step cap
    $store$_<other>       (C, ...)  any dtype       an extra column
    add_count             ()        integer         adds made before the dump (see `atarirb.timeline`)
    invalid_range         (stack + horizon,)        ((cursor - horizon) + 0, 1, ...) mod C

``$store$_`` is literal. Other files may stand beside them (``episode_end_indices``, ``sum_tree``:
pickles of other set-ups); they are never opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from atarirb import timeline
from atarirb.errors import LogError, SourceNotFoundError
from atarirb.sources.gzipped import GZIP_MAGIC, NpyStream

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: The columns every split must have, smallest rows first.
COLUMNS = ("terminal", "action", "reward", "observation")

_FILE = re.compile(r"(?P<store>\$store\$_)?(?P<name>.+)_ckpt\.(?P<split>\d+)\.gz")
_DEFAULT_STACK = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """Shape of one row, and dtype, of a column."""

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survey:
    """What was learned of one split without reading its frames.

    Attributes:
        window: What the timeline needs.
        columns: The split's columns by name, extra ones included.
    """

    window: timeline.Window
    columns: dict[str, Column]


class OriginalLogs:
    """The replay logs of one run in the original layout.

    Args:
        filesystem: Where they are.
        directory: The run's directory or its ``replay_logs``.

    Attributes:
        splits: The numbers of the splits there are, rising.

    Raises:
        SourceNotFoundError: There is no such directory, or no log in it.
    """

    layout = "original"

    def __init__(self, filesystem: AbstractFileSystem, directory: str):
        self._filesystem = filesystem
        self.directory = _find_logs(filesystem, directory)
        self._files: dict[int, dict[str, str]] = {}
        self._sizes: dict[str, int] = {}
        for entry in filesystem.ls(self.directory, detail=True):
            match = _FILE.fullmatch(posixpath.basename(entry["name"]))
            if match and (match["store"] or match["name"] in ("add_count", "invalid_range")):
                split, name = int(match["split"]), match["name"]
                if name in self._files.setdefault(split, {}):
                    raise LogError(f"{self.directory} has two files of {name} for split {split}")
                self._files[split][name] = entry["name"]
                self._sizes[entry["name"]] = entry["size"]
        self.splits = tuple(sorted(self._files))
        #: True where the log counts its adds; then every split must.
        self.counted = any("add_count" in files for files in self._files.values())

    def size(self, split: int) -> int:
        """Return the bytes of a split's files."""
        return sum(self._sizes[path] for path in self._files[split].values())

    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's files do, by column.

        Of a gzip stream its size and last 8 bytes, the checksum and length of what it holds. Of a
        file that came decompressed its size and time of change.
        """
        marks = {}
        for name, path in sorted(self._files[split].items()):
            size = self._sizes[path]
            with self._filesystem.open(path, "rb") as file:
                if file.read(2) == GZIP_MAGIC:
                    file.seek(max(0, size - 8))
                    mark = file.read(8).hex()
                else:
                    mark = self._filesystem.modified(path).isoformat()
            marks[name] = f"{size}:{mark}"
        return marks

    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> NpyStream:
        """Open a column of a split.

        Raises:
            LogError: The split has no such column, or the file cannot be read.
        """
        path = self._files[split].get(column)
        if path is None:
            name = column if column in ("add_count", "invalid_range") else f"$store$_{column}"
            raise LogError(
                f"split {split} has no {name}_ckpt.{split}.gz in {self.directory}; "
                f"it has {', '.join(sorted(self._files[split]))}"
            )
        return NpyStream(self._filesystem.open(path, "rb"), posixpath.basename(path), on_bytes)

    def survey(self, split: int) -> Survey:
        """Read a split's small files and the headers of all.

        Raises:
            LogError: A column is missing, damaged, or of another shape than it must be.
        """
        files = self._files[split]
        extra = sorted(set(files) - {*COLUMNS, "add_count", "invalid_range"})
        columns: dict[str, Column] = {}
        capacity = -1
        for name in (*COLUMNS, *extra):
            with self.stream(split, name) as stream:
                if not stream.shape:
                    raise LogError(f"{stream.name}: holds a single value, expected rows")
                if capacity < 0:
                    capacity = stream.shape[0]
                if stream.shape[0] != capacity:
                    raise LogError(
                        f"{stream.name}: has {stream.shape[0]:,} rows, expected {capacity:,} "
                        f"as $store$_{COLUMNS[0]}_ckpt.{split}.gz"
                    )
                _check_column(stream, name)
                columns[name] = Column(shape=stream.shape[1:], dtype=stream.dtype.newbyteorder("="))
        if capacity == 0 or capacity >= 2**31:
            raise LogError(f"split {split} has {capacity:,} rows, expected 1 to 2**31 - 1")
        terminals, odd = self._terminals(split)
        count = self._integers(split, "add_count") if self.counted else None
        invalid = self._integers(split, "invalid_range") if "invalid_range" in files else None
        add_count = None if count is None else int(count[0])
        stack, cursor = self._stack_and_cursor(split, capacity, add_count, invalid)
        window = timeline.Window(
            split=split,
            capacity=capacity,
            stack=stack,
            add_count=add_count,
            cursor=cursor,
            terminals=terminals,
            odd_terminals=odd,
        )
        return Survey(window=window, columns=columns)

    def _terminals(self, split: int) -> tuple[np.ndarray, np.ndarray]:
        found, odd = [], []
        with self.stream(split, "terminal") as stream:
            for first, rows in stream.chunks():
                slots = np.flatnonzero(rows)
                found.append(first + slots)
                odd.append(first + slots[rows[slots] != 1])
        return np.concatenate(found), np.concatenate(odd)

    def _stack_and_cursor(
        self, split: int, capacity: int, add_count: int | None, invalid: np.ndarray | None
    ) -> tuple[int, int | None]:
        """Work out the writer's stack and the slot of its next add, None if nothing tells it.

        ``invalid_range`` has stack + horizon entries, the first of them at ``cursor - horizon``.
        """
        if invalid is None:
            return _DEFAULT_STACK, None if add_count is None else add_count % capacity
        first = int(invalid[0]) % capacity
        if add_count is not None:
            cursor = add_count % capacity
        elif split != self.splits[-1]:
            cursor = capacity - 1  # where all files but the last were dumped
        else:
            horizon = self._horizon(capacity)
            if horizon is None and len(invalid) == _DEFAULT_STACK + 1:
                horizon = 1
            if horizon is None:
                return _DEFAULT_STACK, None
            cursor = (first + horizon) % capacity
        horizon = (cursor - first) % capacity
        stack = len(invalid) - horizon
        if not 1 <= stack <= len(invalid):
            raise LogError(
                f"invalid_range_ckpt.{split}.gz: begins with {invalid[0]}, expected a slot a few before "
                f"the cursor {cursor}"
            )
        return stack, cursor

    def _horizon(self, capacity: int) -> int | None:
        """Find the writer's horizon by a file that is not the last, which was dumped at C-1."""
        for split in self.splits[:-1]:
            with contextlib.suppress(LogError):
                return (capacity - 1 - int(self._integers(split, "invalid_range")[0])) % capacity
        return None

    def _integers(self, split: int, name: str) -> np.ndarray:
        with self.stream(split, name) as stream:
            if stream.dtype.kind not in "iu" or len(stream.shape) > 1 or 0 in stream.shape:
                raise LogError(f"{stream.name}: {stream.dtype}{stream.shape}, expected integers")
            values = stream.scalar().reshape(-1)
        if values.min() < 0:
            raise LogError(f"{stream.name}: holds {values.min()}, expected no negative number")
        return values.astype(np.int64)

    # What the timeline asks of the rows (`timeline.Rows`).

    def leading_zeros(self, split: int, slots: Sequence[int]) -> int:
        """Count how many of `slots`, from the first on, are zero in all four columns."""
        zeros = len(slots)
        for column in COLUMNS:  # the frames last, and only if the small columns leave a doubt
            if zeros == 0:
                break
            with self.stream(split, column) as stream:
                rows = _pick(stream, slots[:zeros])
            zero = [not row.any() for row in rows]
            zeros = zero.index(False) if False in zero else len(zero)
        return zeros

    def equal(self, earlier: int, later: int, slots: Sequence[tuple[int, int]]) -> bool:
        """Tell whether two splits hold the same rows in `slots`, in all four columns.

        Where the earlier file is damaged, what can be read of it decides.
        """
        compared = False
        for column in COLUMNS:
            for first, rows, others in self._pairs(earlier, later, column):
                for start, stop in slots:
                    lo, hi = max(start, first) - first, min(stop, first + len(rows)) - first
                    if lo < hi:
                        if _as_bytes(rows[lo:hi]) != _as_bytes(others[lo:hi]):
                            return False
                        compared = True
        return compared

    def equal_tail(self, earlier: int, later: int) -> int:
        """Count the equal rows of two splits, in all four columns, backwards from slot C-2."""
        with self.stream(later, COLUMNS[0]) as stream:
            tail = stream.shape[0] - 1  # the last slot holds another add, whatever the cursor
        first_equal = 0
        for column in COLUMNS:
            for first, rows, others in self._pairs(earlier, later, column):
                same = rows.reshape(len(rows), -1) == others.reshape(len(rows), -1)
                different = first + np.flatnonzero(~same.all(axis=1))
                different = different[different < tail]
                if len(different):
                    first_equal = max(first_equal, int(different[-1]) + 1)
        return tail - first_equal

    def _pairs(self, earlier: int, later: int, column: str) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Stream one column of two splits side by side, as far as the earlier one can be read."""
        try:
            here = self.stream(earlier, column)
        except LogError:
            return
        with here, self.stream(later, column) as there:
            before = here.chunks()
            for first, others in there.chunks():
                try:
                    _, rows = next(before)
                except LogError:
                    return
                yield first, rows, others


def _find_logs(filesystem: AbstractFileSystem, directory: str) -> str:
    """Return the directory that holds the files: this one or its ``replay_logs``."""
    if not filesystem.isdir(directory):
        raise SourceNotFoundError(f"no replay logs at {directory!r}: there is no such directory")
    for candidate in (directory, posixpath.join(directory, "replay_logs")):
        if filesystem.isdir(candidate):
            names = [posixpath.basename(path) for path in filesystem.ls(candidate, detail=False)]
            if any(_FILE.fullmatch(name) for name in names):
                return candidate
    entries = [posixpath.basename(path.rstrip("/")) for path in filesystem.ls(directory, detail=False)]
    runs = [
        name for name in sorted(entries) if filesystem.isdir(posixpath.join(directory, name, "replay_logs"))
    ]
    hint = (
        f"it holds the runs {', '.join(runs)}: name one of them"
        if runs
        else f"found {', '.join(sorted(entries)[:5]) or 'an empty directory'}"
    )
    raise SourceNotFoundError(
        f"no replay logs at {directory!r}: expected files named "
        f"$store$_observation_ckpt.<k>.gz there or in its replay_logs; {hint}"
    )


def _check_column(stream: NpyStream, name: str) -> None:
    kinds = {"action": "iu", "reward": "f", "terminal": "iub"}
    if name in kinds and (len(stream.shape) != 1 or stream.dtype.kind not in kinds[name]):
        raise LogError(
            f"{stream.name}: {stream.dtype}{stream.shape}, expected one "
            f"{'float' if kinds[name] == 'f' else 'integer'} a row"
        )
    if stream.dtype.kind == "V":
        raise LogError(f"{stream.name}: rows of dtype {stream.dtype}, expected plain values")
    if name == "observation" and (len(stream.shape) < 2 or stream.row_bytes == 0):
        raise LogError(f"{stream.name}: {stream.dtype}{stream.shape}, expected one frame a row")


def _pick(stream: NpyStream, slots: Sequence[int]) -> list[np.ndarray]:
    """Read some rows of a stream; reads no further than the last of them."""
    found: dict[int, np.ndarray] = {}
    for first, rows in stream.chunks():
        for slot in slots:
            if first <= slot < first + len(rows):
                found[slot] = rows[slot - first].copy()
        if len(found) == len(set(slots)):
            break
    return [found[slot] for slot in slots]


def _as_bytes(rows: np.ndarray) -> memoryview:
    native = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
    return memoryview(native.reshape(-1).view(np.uint8))
