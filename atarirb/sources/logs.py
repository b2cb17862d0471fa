"""What all layouts of logs have in common: splits, each with columns of rows.

A source's splits are either *snapshots of a ring buffer*, as the public logs are and copies of them
(`RingLogs`: `atarirb.timeline` works out which rows are steps, and in which order), or they hold
nothing but steps *in the order of play* (`ordered`), and say so where an episode is truncated and
what it showed last.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from atarirb import timeline
from atarirb.errors import LogError

if TYPE_CHECKING:
    from atarirb.sources.spool import Spool

#: The columns every split must have, smallest rows first.
COLUMNS = ("terminal", "action", "reward", "observation")
#: The frames after the last steps of episodes, in their order: a column of ordered sources alone.
FINAL = "final_observation"

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
        rows: Rows of the split's columns.
        columns: The columns by name, extra ones included.
        window: What the timeline needs of a snapshot of a ring buffer; None in an ordered source.
        head: In an ordered source: how the first step stands to what was before it.
        finals: In an ordered source: int64[F], rising, the rows after which `FINAL` has a frame.
    """

    rows: int
    columns: dict[str, Column]
    window: timeline.Window | None = None
    head: timeline.Head = "start"
    finals: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


class Stream(Protocol):
    """The rows of one column of a split, from first to last, once; closed when it is left.

    Attributes:
        name: The file's name, for messages.
        shape: Shape of all rows, their count first.
        dtype: Their dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ``(first row, rows)`` to the end; `rows` may be overwritten by a later one."""

    def scalar(self) -> np.ndarray:
        """Read a small array whole, of any shape."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Logs(abc.ABC):
    """The logs of one run.

    Attributes:
        layout: The name of how they are laid out.
        directory: Where they are, for messages.
        root: The directory that was named, which they are in or below; empty for `directory`.
        splits: The numbers of the splits there are, rising.
        name: The run's id, as ``"Pong/1"``, where the layout tells it; None: it is the end of the path.
        ordered: Every row is a step and they are in the order of play; else splits are snapshots of a
            ring buffer, and the logs are a `RingLogs`.
    """

    layout: str
    directory: str
    splits: tuple[int, ...]
    name: str | None = None
    ordered: bool = False
    root: str = ""

    def fetch_to(self, directory: pathlib.Path, keep: pathlib.Path | None) -> Spool | None:
        """Keep from now on what comes from a remote store, so that it comes once (`atarirb.sources.spool`).

        Args:
            directory: Where, until `release`.
            keep: Where instead, for good, in the layout of the source; or None.

        Returns:
            What is kept; None where nothing has to come.
        """
        return None

    def held(self, split: int) -> int:
        """Count the bytes of a split's files that have come from a remote store."""
        return 0

    def release(self, split: int) -> None:  # noqa: B027
        """Remove what came of a split from a remote store and shall not be kept."""

    @abc.abstractmethod
    def size(self, split: int) -> int:
        """Return the bytes of a split's files."""

    def files(self, split: int) -> int:
        """Return the number of a split's files: one, unless a layout has more."""
        return 1

    @abc.abstractmethod
    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's files do, by column."""

    @abc.abstractmethod
    def survey(self, split: int) -> Survey:
        """Read a split's small columns, and what is known of all.

        Raises:
            LogError: A column is missing, damaged, or of another shape than it must be.
        """

    @abc.abstractmethod
    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> Stream:
        """Open a column of a split.

        Args:
            split: Its number.
            column: The column's name. In an ordered source a terminal is 1 at game over and 2 where an
                episode is truncated or cut.
            on_bytes: Called with the count of bytes after each read of the source. Over all columns that
                comes to `size`.

        Raises:
            LogError: The split has no such column, or the file cannot be read.
        """

    def part(self, split: int) -> Logs:
        """Return the same logs, good for one split alone, that are pickled in few bytes."""
        return self

    def take(
        self, split: int, column: str, rows: np.ndarray, check: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        """Read some rows of a column.

        Args:
            split: The split's number.
            column: The column's name.
            rows: int64[K], not falling.
            check: Called now and then; may raise, to leave off.

        Returns:
            The rows, [K, ...].
        """
        with self.stream(split, column) as stream:
            taken = np.empty((len(rows), *stream.shape[1:]), stream.dtype)
            low = 0
            for first, found in stream.chunks():
                check()
                high = int(np.searchsorted(rows, first + len(found)))
                taken[low:high] = found[rows[low:high] - first]
                low = high
                if low == len(rows):
                    break
        return taken


class RingLogs(Logs, timeline.Rows):
    """Logs whose splits are snapshots of a ring buffer.

    Args:
        directory: Where they are.
        files: Paths of each split's files, by column; ``add_count`` and ``invalid_range`` among them.

    Attributes:
        counted: The log counts its adds; then every split must.
        partial: The run went on after the last split that is here. All but a run's last split were dumped
            when the buffer was full, which tells where the ring begins if nothing else does.
    """

    partial: bool = False

    def __init__(self, directory: str, files: Mapping[int, Mapping[str, str]]):
        self.directory = directory
        self.splits = tuple(sorted(files))
        self._files = files
        self.counted = any("add_count" in columns for columns in files.values())

    def part(self, split: int) -> RingLogs:
        """Return the same logs without the paths of other splits' files."""
        part = copy.copy(self)
        part.splits = (split,)
        part._files = {split: self._files[split]}
        return part

    @abc.abstractmethod
    def file_name(self, split: int, column: str) -> str:
        """Say how the file of a column is called, or would be: for messages."""

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
                        f"as {self.file_name(split, COLUMNS[0])}"
                    )
                check_column(stream, name)
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
        return Survey(rows=capacity, columns=columns, window=window)

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
        full = split != self.splits[-1] or self.partial  # all files but a run's last were dumped at C-1
        if invalid is None:
            cursor = capacity - 1 if full else None
            return _DEFAULT_STACK, cursor if add_count is None else add_count % capacity
        first = int(invalid[0]) % capacity
        if add_count is not None:
            cursor = add_count % capacity
        elif full:
            cursor = capacity - 1
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
                f"{self.file_name(split, 'invalid_range')}: begins with {invalid[0]}, expected a slot a few "
                f"before the cursor {cursor}"
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
            order = np.argsort(slots[:zeros])
            rows = self.take(split, column, np.asarray(slots[:zeros])[order])[np.argsort(order)]
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


class Described(Protocol):
    """What has a name, and rows of a shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


def check_column(stream: Described, name: str) -> None:
    """Refuse a column that cannot be what its name says.

    Raises:
        LogError: It cannot.
    """
    kinds = {"action": "iu", "reward": "f", "terminal": "iub"}
    if name in kinds and (len(stream.shape) != 1 or stream.dtype.kind not in kinds[name]):
        raise LogError(
            f"{stream.name}: {stream.dtype}{stream.shape}, expected one "
            f"{'float' if kinds[name] == 'f' else 'integer'} a row"
        )
    if stream.dtype.kind == "V":
        raise LogError(f"{stream.name}: rows of dtype {stream.dtype}, expected plain values")
    if name == "observation" and (len(stream.shape) < 2 or 0 in stream.shape[1:]):
        raise LogError(f"{stream.name}: {stream.dtype}{stream.shape}, expected one frame a row")


def _as_bytes(rows: np.ndarray) -> memoryview:
    native = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
    return memoryview(native.reshape(-1).view(np.uint8))
