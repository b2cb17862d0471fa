"""Plain arrays, one row a step in the order of play: in memory, in files of a column each, or an ``.npz``.

The columns, N rows each; in files they may also bear their other names::

    observation        (N, ...)  any dtype   the frame, alone: not a stack    observations
    action             (N,)      integer     0 or more                        actions
    reward             (N,)      float                                        rewards
    terminal           (N,)      0 or 1      the game was over after the      terminals, terminated,
                                             step                             terminations, done, dones
    truncated          (N,)      0 or 1      the episode ended there, though  truncations, timeout, timeouts
                                             the game was not over; optional
    final_observation  (F, ...)  as above    frames after last steps of       final_observations
                                             episodes; optional
    <other>            (N, ...)  any dtype   an extra column

An *end* is a step that is terminal or truncated. F is either the number of all ends, or of those that are
truncated and not terminal: then there is one row for each of these, in their order. Where a step is both
terminal and truncated, it is terminal; but where the column is called ``done``, which many fill with either,
it is truncated. The last row need not be an end: then its episode is cut there.

Files named ``next_observation`` or ``next_observations`` are not read: what they hold is the next row. Nor is
a directory whose path ends in two numbers taken for arrays: it is a split in the layout of d4rl-atari.

The arrays are given out in splits of `SPLIT_ROWS` rows, so that they can be copied in parallel, and what is
done stays done; columns that can only be read from their beginning, as gzipped ones, are one split. Row r of
split k is row ``k * SPLIT_ROWS + r`` of the arrays.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import os
import posixpath
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from zlib_ng import zlib_ng

from atarirb import timeline
from atarirb.errors import LogError
from atarirb.npyheader import MAGIC
from atarirb.sources import snapshots, transfer
from atarirb.sources.folder import Folder
from atarirb.sources.gzipped import CHUNK_BYTES, GZIP_MAGIC, NpyStream
from atarirb.sources.logs import COLUMNS, FINAL, Column, Logs, Stream, Survey, check_column

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

#: Most rows of a split.
SPLIT_ROWS = 1_000_000
#: Rows of padding before an episode in a ring buffer, and terminals that are looked at for them.
_PADDING = 3
_ENDS_SEEN = 16
#: Rows of an array taken at a time.
_TAKEN = 256
#: Rows looked at to tell stacks from frames.
_STACKS_SEEN = 8

_TRUNCATED = "truncated"
_NAMES = {
    "observation": ("observation", "observations"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminal": ("terminal", "terminals", "terminated", "terminations", "done", "dones"),
    _TRUNCATED: (_TRUNCATED, "truncations", "timeout", "timeouts"),
    FINAL: (FINAL, "final_observations"),
}
_DONE = ("done", "dones")
_NOT_READ = ("next_observation", "next_observations")
_COLUMN_OF = {name: column for column, names in _NAMES.items() for name in names}


class Rows(Protocol):
    """A column's rows, wherever they are.

    Attributes:
        name: What it is called, for messages.
        shape: Shape of all rows.
        dtype: Their dtype.
        divisible: Rows can be read from any on; else only from the first.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    divisible: bool

    def bytes(self, first: int, stop: int) -> int:
        """Return the bytes read for rows [first, stop)."""

    def mark(self, first: int, stop: int) -> str:
        """Return what changes when rows [first, stop) do."""

    def read(self, first: int, stop: int, on_bytes: Callable[[int], None] | None) -> Stream:
        """Open rows [first, stop)."""


class ArrayLogs(Logs):
    """Steps in arrays.

    Args:
        directory: What they are called, or where they are, for messages.
        columns: The rows of each column, by its first name above.
        head: "start": the first row begins an episode; "cut": its beginning is lost.
        done: `terminal` is what many call ``done``: see above.

    Raises:
        LogError: A column is missing, or of another shape or dtype than it must be.
    """

    ordered = True

    def __init__(
        self,
        directory: str,
        columns: Mapping[str, Rows],
        *,
        head: timeline.Head = "start",
        done: bool = False,
    ):
        self.directory = directory
        self.layout = "arrays, truncated" if _TRUNCATED in columns else "arrays"
        self._columns = dict(columns)
        self._head = head
        self._done = done
        self._rows = _check(columns, directory)
        divisible = all(column.divisible for column in columns.values())
        count = -(-self._rows // SPLIT_ROWS) if divisible else 1
        self._split_rows = SPLIT_ROWS if divisible else self._rows
        self.splits = tuple(range(count))

    def size(self, split: int) -> int:
        """Return the bytes read for a split."""
        first, stop = self._range(split)
        read = [name for name in self._columns if name not in (_TRUNCATED, FINAL, "terminal")]
        lo, hi = self._finals_of(split)
        finals = self._columns[FINAL].bytes(lo, hi) if hi > lo else 0
        return sum(self._columns[name].bytes(first, stop) for name in read) + finals

    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's rows do, by column.

        Of arrays it is the CRC-32 of all bytes of its rows, of all columns, which takes a pass over them; of
        mapped files and objects their size and time of change; of a gzip stream its size and last 8
        bytes; of a member of an ``.npz`` its CRC-32. Of the ends it is always that of where they are.
        """
        first, stop = self._range(split)
        marks = {
            name: column.mark(first, stop)
            for name, column in sorted(self._columns.items())
            if name not in (_TRUNCATED, FINAL, "terminal")
        }
        at, codes = self._ends_of(split)
        marks["terminal"] = f"{len(at)}:{zlib_ng.crc32(at.tobytes() + codes.tobytes()):08x}"
        lo, hi = self._finals_of(split)
        if hi > lo:
            marks[FINAL] = self._columns[FINAL].mark(lo, hi)
        return marks

    def survey(self, split: int) -> Survey:
        """Look for the ends, and say what is known of a split's columns.

        Raises:
            LogError: An end is neither 0 nor 1; there are more or fewer final frames than ends; or
                blank rows follow all terminals, as in a ring buffer.
        """
        first, stop = self._range(split)
        if split == 0:
            self._check_rows()
        head = self._head if split == 0 else "continues"
        if split and (self._ends[0] == first - 1).any():
            head = "start"
        lo, hi = self._finals_of(split)
        columns = {
            name: Column(shape=column.shape[1:], dtype=column.dtype.newbyteorder("="))
            for name, column in self._columns.items()
            if name not in (_TRUNCATED, FINAL)
        }
        columns["terminal"] = Column(shape=(), dtype=np.dtype(np.uint8))
        return Survey(rows=stop - first, columns=columns, head=head, finals=self._shown[lo:hi] - first)

    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> Stream:
        """Open a column of a split.

        Raises:
            LogError: There is no such column, or its file cannot be read.
        """
        first, stop = self._range(split)
        if column == "terminal":
            at, codes = self._ends_of(split)
            return _Codes(self._columns[column].name, stop - first, at, codes)
        if column not in self._columns:
            raise LogError(f"there is no {column} in {self.directory}; it has {', '.join(self._columns)}")
        if column == FINAL:
            first, stop = self._finals_of(split)
        return self._columns[column].read(first, stop, on_bytes)

    def take(
        self, split: int, column: str, rows: np.ndarray, check: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        """Read some rows of a column, and of an array no others."""
        source = self._columns.get(column)
        array = source.array if isinstance(source, Sliced) and column != "terminal" else None
        if array is None:
            return super().take(split, column, rows, check)
        first, _ = self._finals_of(split) if column == FINAL else self._range(split)
        taken = np.empty((len(rows), *array.shape[1:]), array.dtype)
        for lo in range(0, len(rows), _TAKEN):
            check()
            taken[lo : lo + _TAKEN] = array[first + rows[lo : lo + _TAKEN]]
        return taken

    # Where episodes end.

    @functools.cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The ends, int64[E], rising, and for each 1 or, where it is truncated, 2."""
        terminal = self._flagged("terminal")
        truncated = self._flagged(_TRUNCATED) if _TRUNCATED in self._columns else terminal[:0]
        at = np.union1d(terminal, truncated)
        cut_off = np.isin(at, truncated if self._done else np.setdiff1d(truncated, terminal))
        return at, np.where(cut_off, 2, 1).astype(np.uint8)

    def _flagged(self, name: str) -> np.ndarray:
        """Find the rows where a column is 1."""
        found = [np.zeros(0, np.int64)]
        with self._columns[name].read(0, self._rows, None) as stream:
            for first, rows in stream.chunks():
                at = np.flatnonzero(rows)
                if (odd := rows[at] != 1).any():
                    row = at[odd][0]
                    raise LogError(f"{stream.name}: row {first + row:,} holds {rows[row]}, expected 0 or 1")
                found.append(first + at)
        return np.concatenate(found)

    @functools.cached_property
    def _shown(self) -> np.ndarray:
        """The ends after which there is a final frame, int64[F]."""
        at, codes = self._ends
        if FINAL not in self._columns:
            return at[:0]
        count, truncated = self._columns[FINAL].shape[0], at[codes == 2]
        if count not in (len(at), len(truncated)):
            raise LogError(
                f"{self._columns[FINAL].name}: has {count:,} rows, expected one for each of the {len(at):,} "
                f"ends, or for each of the {len(truncated):,} of them that are truncated"
            )
        return at if count == len(at) else truncated

    def _range(self, split: int) -> tuple[int, int]:
        first = split * self._split_rows
        return first, min(first + self._split_rows, self._rows)

    def _ends_of(self, split: int) -> tuple[np.ndarray, np.ndarray]:
        """Return a split's ends as rows of it, and their codes."""
        first, stop = self._range(split)
        at, codes = self._ends
        lo, hi = np.searchsorted(at, (first, stop))
        return at[lo:hi] - first, codes[lo:hi]

    def _finals_of(self, split: int) -> tuple[int, int]:
        """Return which of the final frames are a split's."""
        lo, hi = np.searchsorted(self._shown, self._range(split))
        return int(lo), int(hi)

    # What the rows must not be.

    def _check_rows(self) -> None:
        if self._follows_padding():
            raise LogError(
                f"{self.directory}: {_PADDING} blank rows follow each terminal: these are rows of a ring "
                f"buffer, not steps in the order of play; let atarirb.ingest read the files they are from "
                f"(a split of the layout d4rl-atari lies in <Game>/<run>/<split>/)"
            )
        if self._is_stacked():
            _log.warning(
                "%s: rows of shape %s are stacks of frames: pass single frames, and read stacks with "
                "frame_stack=, or the dataset is larger than need be and stacks of it are stacks of stacks",
                self._columns["observation"].name,
                self._columns["observation"].shape[1:],
            )

    def _follows_padding(self) -> bool:
        """Tell whether all-zero rows follow the first ends, as before the episodes of a ring buffer."""
        at, codes = self._ends
        at = at[(codes == 1) & (at + _PADDING < self._range(0)[1])][:_ENDS_SEEN]
        rows = np.unique(at[:, None] + np.arange(1, 1 + _PADDING))
        return len(rows) > 0 and not any(self.take(0, column, rows).any() for column in COLUMNS)

    def _is_stacked(self) -> bool:
        """Tell whether neighbouring rows hold the same frames, one place on."""
        shape = self._columns["observation"].shape[1:]
        at, _ = self._ends_of(0)
        rows = np.arange(min(self._range(0)[1], _STACKS_SEEN))
        if len(shape) != 3 or len(rows) < 2 or not (1 < shape[0] <= 8 or 1 < shape[-1] <= 8):
            return False
        frames = self.take(0, "observation", rows)
        within = ~np.isin(rows[:-1], at)
        before, after = frames[:-1][within], frames[1:][within]
        if not before.any() or (before[:, :1] == before).all() or (before[..., :1] == before).all():
            return False  # nothing moves, which is no proof
        return np.array_equal(before[:, 1:], after[:, :-1]) or np.array_equal(
            before[..., 1:], after[..., :-1]
        )


def _check(columns: Mapping[str, Rows], directory: str) -> int:
    """Refuse columns that are not what their names say; return the rows there are."""
    for name in COLUMNS:
        if name not in columns:
            raise LogError(
                f"there is no {' or '.join(_NAMES[name])} in {directory}; it has {', '.join(columns)}"
            )
    frames = columns["observation"]
    for name, column in columns.items():
        if not column.shape:
            raise LogError(f"{column.name}: holds a single value, expected rows")
        check_column(column, {FINAL: "observation", _TRUNCATED: "terminal"}.get(name, name))
        if column.dtype.hasobject:
            raise LogError(f"{column.name}: rows of dtype {column.dtype}, expected plain values")
        if name != FINAL and column.shape[0] != frames.shape[0]:
            raise LogError(
                f"{column.name}: has {column.shape[0]:,} rows, expected {frames.shape[0]:,} as {frames.name}"
            )
    if FINAL in columns:
        final = columns[FINAL]
        if (final.shape[1:], final.dtype) != (frames.shape[1:], frames.dtype):
            raise LogError(
                f"{final.name}: {final.dtype}{list(final.shape[1:])} a row, expected {frames.dtype}"
                f"{list(frames.shape[1:])} as {frames.name}"
            )
    if not frames.shape[0]:
        raise LogError(f"{frames.name}: has no rows")
    return frames.shape[0]


# Where rows are.


class Sliced:
    """Rows of what gives them when it is sliced: an array of NumPy or another library, a dataset of h5py.

    Args:
        name: What it is called, for messages.
        values: What is sliced; a bounded number of rows at a time.
    """

    divisible = True

    def __init__(self, name: str, values: Any):
        if not hasattr(values, "shape"):
            values = np.asarray(values)
        self.name = name
        self._values = values
        self.shape = tuple(int(side) for side in values.shape)
        self.dtype = np.asarray(values[:0]).dtype if self.shape else np.asarray(values).dtype

    @property
    def array(self) -> np.ndarray | None:
        """The values, if they are an array in memory or mapped, of which any rows can be had."""
        return self._values if isinstance(self._values, np.ndarray) else None

    def bytes(self, first: int, stop: int) -> int:
        """Return the bytes of rows [first, stop)."""
        return (stop - first) * math.prod(self.shape[1:]) * self.dtype.itemsize

    def mark(self, first: int, stop: int) -> str:
        """Return the CRC-32 of rows [first, stop), with their shape and dtype."""
        crc = 0
        with self.read(first, stop, None) as stream:
            for _, rows in stream.chunks():
                crc = zlib_ng.crc32(np.ascontiguousarray(rows).reshape(-1).view(np.uint8), crc)
        return f"{self.dtype.str}{[stop - first, *self.shape[1:]]}:{crc:08x}"

    def read(self, first: int, stop: int, on_bytes: Callable[[int], None] | None) -> SlicedStream:
        """Open rows [first, stop)."""
        name = self.name if stop - first == self.shape[0] else f"{self.name}[{first}:{stop}]"
        return SlicedStream(name, self._values, (stop - first, *self.shape[1:]), self.dtype, first, on_bytes)


class SlicedStream:
    """Rows of a slice of `Sliced`: a `Stream`."""

    def __init__(
        self,
        name: str,
        values: Any,
        shape: tuple[int, ...],
        dtype: np.dtype,
        first: int,
        on_bytes: Callable[[int], None] | None,
    ):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self._values = values
        self._first = first
        self._on_bytes = on_bytes

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ``(first row, rows)`` to the end."""
        step = max(1, CHUNK_BYTES // max(1, math.prod(self.shape[1:]) * self.dtype.itemsize))
        for first in range(0, self.shape[0], step):
            stop = min(first + step, self.shape[0])
            rows = np.asarray(self._values[self._first + first : self._first + stop])
            if rows.shape != (stop - first, *self.shape[1:]):
                expected = (stop - first, *self.shape[1:])
                raise LogError(f"{self.name}: gives rows of shape {rows.shape}, expected {expected}")
            yield first, rows
            if self._on_bytes:
                self._on_bytes(rows.nbytes)

    def scalar(self) -> np.ndarray:
        """Read all rows."""
        return np.asarray(self._values[self._first : self._first + self.shape[0]])

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Codes(SlicedStream):
    """The terminals of a split, made of where its ends are."""

    def __init__(self, name: str, rows: int, at: np.ndarray, codes: np.ndarray):
        super().__init__(name, None, (rows,), np.dtype(np.uint8), 0, None)
        self._at = at
        self._codes = codes

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ``(first row, rows)`` to the end."""
        for first in range(0, self.shape[0], CHUNK_BYTES):
            rows = np.zeros(min(CHUNK_BYTES, self.shape[0] - first), np.uint8)
            lo, hi = np.searchsorted(self._at, (first, first + len(rows)))
            rows[self._at[lo:hi] - first] = self._codes[lo:hi]
            yield first, rows

    def scalar(self) -> np.ndarray:
        """Read all rows."""
        return np.concatenate([rows for _, rows in self.chunks()])


class _Mapped(Sliced):
    """Rows of a local ``.npy`` that is not compressed, mapped anew each time they are read."""

    def __init__(self, name: str, path: str):
        self._path = path
        super().__init__(name, self._map())
        self._values = None

    @property
    def array(self) -> np.ndarray | None:
        """The file, mapped."""
        return self._map()

    def _map(self) -> np.ndarray:
        try:
            values = np.load(self._path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise LogError(f"{os.path.basename(self._path)}: {error}") from error
        if values.ndim > 1 and not values.flags.c_contiguous:
            raise LogError(f"{os.path.basename(self._path)}: stored in Fortran order, expected C order")
        return values

    def mark(self, first: int, stop: int) -> str:
        """Return the file's size and time of change; it is of all its rows."""
        status = os.stat(self._path)
        return f"{status.st_size}:{status.st_mtime_ns}"

    def read(self, first: int, stop: int, on_bytes: Callable[[int], None] | None) -> SlicedStream:
        """Open rows [first, stop)."""
        stream = super().read(first, stop, on_bytes)
        stream._values = self._map()
        return stream


class _Streamed:
    """Rows of a file, or of a member of an ``.npz``, that is read from its beginning to its end."""

    divisible = False

    def __init__(self, name: str, size: int, mark: str, opener: Callable[[], io.IOBase]):
        self.name = name
        self._size = size
        self._mark = mark
        self._opener = opener
        with self.read(0, 0, None) as stream:
            self.shape, self.dtype = stream.shape, stream.dtype

    def bytes(self, first: int, stop: int) -> int:
        """Return the bytes of the whole file."""
        return self._size

    def mark(self, first: int, stop: int) -> str:
        """Return what changes when the file does."""
        return self._mark

    def read(self, first: int, stop: int, on_bytes: Callable[[int], None] | None) -> NpyStream:
        """Open all rows."""
        return NpyStream(self._opener(), self.name, on_bytes)


class _Member(io.RawIOBase):
    """A member of an ``.npz``, whose archive is closed with it."""

    def __init__(self, file: io.IOBase, archive: str, name: str):
        self._file = file
        self._where = f"{posixpath.basename(archive)}: {name}"
        with _unzipping(self._where):
            self._archive = zipfile.ZipFile(file)
            self._member = self._archive.open(name)

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        with _unzipping(self._where):
            return self._member.read(count)

    def close(self) -> None:
        self._member.close()
        self._archive.close()
        self._file.close()
        super().close()


@contextlib.contextmanager
def _unzipping(where: str) -> Iterator[None]:
    """Turn what `zipfile` raises into a `LogError` that says where."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise LogError(f"{where}: damaged, or of a kind that is not read: {error}") from error


# How they are found.


def find(folder: Folder, run: int | None) -> Iterator[ArrayLogs]:
    """Recognise a directory of arrays.

    Args:
        folder: The directory.
        run: None, or the number of the run whose directory this is.

    Yields:
        The steps.

    Raises:
        ArgumentError: The directory is of another run.
        LogError: A column is missing, there twice, damaged, or of another shape than it must be; or snapshots
            of a ring buffer are there, too.
    """
    stems = {name: stem for name in folder.files if (stem := _stem(name))}
    if "observation" not in map(_COLUMN_OF.get, stems.values()) or snapshots.is_split(folder):
        return
    if others := snapshots.layouts_of(folder.files):
        raise folder.mixed((layout, folder.path) for layout in (*others, "arrays"))
    folder.check_run(run)
    columns, done = {}, False
    for name, stem, column in _columns_of(stems, folder.path):
        done |= stem in _DONE
        columns[column] = _rows_of(folder, name)
    yield ArrayLogs(folder.path, columns, done=done)


def from_npz(filesystem: AbstractFileSystem, path: str) -> ArrayLogs:
    """Read the arrays of an ``.npz``.

    Raises:
        LogError: It is none; or as of `find`.
    """
    with _open_file(filesystem, path) as file, _unzipping(path):
        members = {info.filename: info for info in zipfile.ZipFile(file).infolist()}
    stems = {name: name.removesuffix(".npy") for name in members}
    columns, done = {}, False
    for name, stem, column in _columns_of(stems, path):
        done |= stem in _DONE
        opener = functools.partial(_open_member, filesystem, path, name)
        mark = f"{members[name].file_size}:{members[name].CRC:08x}"
        columns[column] = _Streamed(stem, members[name].file_size, mark, opener)
    logs = ArrayLogs(path, columns, done=done)
    logs.name = "/".join(path.removesuffix(".npz").split("/")[-2:])
    return logs


def _open_member(filesystem: AbstractFileSystem, path: str, name: str) -> _Member:
    return _Member(_open_file(filesystem, path), path, name)


def _open_file(filesystem: AbstractFileSystem, path: str) -> io.IOBase:
    """Open a file: all that is not mapped is read through here."""
    return transfer.open_file(filesystem, path)


def _stem(name: str) -> str | None:
    """Return a file's name without what says that it is an array; None if nothing does."""
    stem = name.removesuffix(".gz").removesuffix(".npy")
    return stem if stem.isidentifier() and (stem != name or stem in _COLUMN_OF) else None


def _columns_of(stems: Mapping[str, str], where: str) -> Iterator[tuple[str, str, str]]:
    """Yield of each file that is read its name, the name without its end, and its column."""
    seen: dict[str, str] = {}
    for name, stem in stems.items():
        if stem in _NOT_READ:
            continue
        column = _COLUMN_OF.get(stem, stem)
        if column in seen:
            raise LogError(
                f"{where} has both {seen[column]} and {name}, which are both the {column}; remove one"
            )
        seen[column] = name
        yield name, stem, column


def _rows_of(folder: Folder, name: str) -> Rows:
    from fsspec.implementations.local import LocalFileSystem

    filesystem, path, size = folder.filesystem, folder.at(name), folder.files[name]
    with _open_file(filesystem, path) as file:
        magic = file.read(len(MAGIC))
        if magic == MAGIC and isinstance(filesystem, LocalFileSystem):
            return _Mapped(name, path)
        if magic.startswith(GZIP_MAGIC):
            file.seek(max(0, size - 8))
            mark = f"{size}:{file.read(8).hex()}"
        else:
            mark = f"{size}:{transfer.changed(filesystem, path, file)}"
    return _Streamed(name, size, mark, functools.partial(_open_file, filesystem, path))
