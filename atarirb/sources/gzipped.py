"""Streaming of one gzipped ``.npy``, row by row, in little memory.

A column of the logs is one gzip stream that holds one ``.npy``. Its trailer's length is modulo
2**32 and useless for columns of 7 GB, so the shape is taken from the ``.npy`` header, and the end
of the stream is always read: a file cut short, even inside its trailer, is an error and never a
shorter column. Objects that were already decompressed on their way here (some stores do that) are
recognised by their first bytes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import math
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from zlib_ng import gzip_ng, zlib_ng

from atarirb.errors import LogError
from atarirb.npyheader import MAGIC, read_header

#: Bytes of decoded rows held at a time.
CHUNK_BYTES = 4 << 20

GZIP_MAGIC = b"\x1f\x8b"
_MOST_ROW_BYTES = 1 << 28
_MOST_VALUES = 1 << 16


class NpyStream:
    """The rows of one column, from first to last, once.

    Args:
        raw: The file's bytes, opened for reading; closed with the stream.
        name: The file's name, for messages.
        on_bytes: Called with the count of compressed bytes after each read of the file.

    Attributes:
        shape: The array's shape.
        dtype: The array's dtype.

    Raises:
        LogError: It is neither gzip nor npy, or its header cannot be used.
    """

    def __init__(self, raw: io.IOBase, name: str, on_bytes: Callable[[int], None] | None = None):
        self.name = name
        self._raw = raw
        counted = Counted(raw, on_bytes)
        try:
            magic = counted.peek(len(MAGIC))
            if magic.startswith(GZIP_MAGIC):
                self._file: io.IOBase = gzip_ng.GzipNGFile(fileobj=counted, mode="rb")
            elif magic == MAGIC:
                self._file = counted
            else:
                raise LogError(f"{name}: neither gzip nor npy; it begins with {magic!r}")
            self.shape, self.dtype = self._header()
        except BaseException:
            raw.close()
            raise

    def _header(self) -> tuple[tuple[int, ...], np.dtype]:
        with reading(self.name):
            try:
                shape, dtype = read_header(self._file)
            except ValueError as error:
                raise LogError(f"{self.name}: {error}") from error
        if math.prod(shape[1:]) * dtype.itemsize > _MOST_ROW_BYTES:
            raise LogError(f"{self.name}: rows of shape {shape[1:]} are larger than any frame")
        return shape, dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ``(first row, rows)`` to the end; `rows` is overwritten by a later one.

        While the caller has one chunk, a thread decompresses the next.

        Raises:
            LogError: The file is damaged, cut short or longer than its header says.
        """
        total = self.shape[0]
        per_chunk = max(1, min(total, CHUNK_BYTES // max(1, self.row_bytes)))
        firsts = range(0, total, per_chunk)
        buffers = [np.empty((per_chunk, *self.shape[1:]), self.dtype) for _ in firsts[:2]]

        def read(number: int) -> np.ndarray:
            first = firsts[number]
            rows = buffers[number % 2][: min(per_chunk, total - first)]
            self._fill(rows, first)
            return rows

        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="atarirb-gunzip") as thread:
            ahead = thread.submit(read, 0) if firsts else None
            for number, first in enumerate(firsts):
                assert ahead is not None
                rows = ahead.result()
                ahead = thread.submit(read, number + 1) if number + 1 < len(firsts) else None
                yield first, rows
        self._finish()

    def scalar(self) -> np.ndarray:
        """Read a small array whole, of any shape."""
        if math.prod(self.shape) > _MOST_VALUES:
            raise LogError(f"{self.name}: holds an array of shape {self.shape}, expected a few values")
        values = np.empty(self.shape, self.dtype)
        self._fill(values, 0)
        self._finish()
        return values

    def _fill(self, rows: np.ndarray, first: int) -> None:
        view = memoryview(rows.reshape(-1).view(np.uint8))
        done = 0
        with reading(self.name):
            while done < len(view):
                count = self._file.readinto(view[done:])
                if not count:
                    row = first + done // max(1, self.row_bytes)
                    raise LogError(
                        f"{self.name}: ends at row {row:,}, expected {self.shape} rows of {self.dtype}"
                    )
                done += count

    def _finish(self) -> None:
        """Read the end of the stream, where gzip keeps its checksum."""
        with reading(self.name):
            if self._file.read(1):
                raise LogError(f"{self.name}: longer than its header says, {self.shape} of {self.dtype}")

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()
        self._raw.close()

    def __enter__(self) -> NpyStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RawStream(NpyStream):
    """The rows of one column whose file is their bytes alone, in C order.

    Args:
        raw: As of `NpyStream`.
        name: Likewise.
        shape: The array's shape.
        dtype: The array's dtype.
        spare: Rows that follow it in the file and are none of it.
        on_bytes: As of `NpyStream`.
    """

    def __init__(
        self,
        raw: io.IOBase,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        *,
        spare: int = 0,
        on_bytes: Callable[[int], None] | None = None,
    ):
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self._raw = raw
        self._spare = spare
        self._file = Counted(raw, on_bytes)

    def _finish(self) -> None:
        if self._spare:
            self._fill(np.empty((self._spare, *self.shape[1:]), self.dtype), self.shape[0])
        super()._finish()


class Counted(io.RawIOBase):
    """A file that reports what is read from it and can show its first bytes beforehand."""

    def __init__(self, raw: io.IOBase, on_bytes: Callable[[int], None] | None):
        self._inner = raw
        self._on_bytes = on_bytes
        self._head = b""

    def readable(self) -> bool:
        return True

    def peek(self, count: int) -> bytes:
        self._head = self._inner.read(count)
        return self._head

    def readinto(self, buffer: memoryview) -> int:
        head = self._head
        if head:
            count = min(len(head), len(buffer))
            buffer[:count] = head[:count]
            self._head = head[count:]
        else:
            data = self._inner.read(len(buffer))
            count = len(data)
            buffer[:count] = data
        if self._on_bytes and count:
            self._on_bytes(count)
        return count


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what a decompressor raises into a `LogError` that names the file."""
    try:
        yield
    except EOFError as error:
        raise LogError(f"{name}: cut short: {error}") from error
    except (gzip_ng.BadGzipFile, zlib_ng.error, zlib.error) as error:
        # A damaged gzip header is BadGzipFile (an OSError), damaged data zlib's error.
        raise LogError(f"{name}: damaged: {error}") from error
