"""Plain ``.npy`` files: written row by row in any order, and mapped.

Every column of a shard, raw frames included, is one C-contiguous ``.npy`` of format 1.0 whose data
begin at a multiple of 64 bytes, so ``numpy.load(..., mmap_mode="r")`` reads it with no atarirb at
hand and its rows can be given to kernels as they are.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import io
import math
import os
import pathlib

import numpy as np
from numpy.lib import format as npy
from zlib_ng import zlib_ng

from atarirb.errors import DatasetError
from atarirb.npyheader import MAGIC, read_header
from atarirb.store.files import FileRecord
from atarirb.store.mapping import map_file

#: Bytes after which a file being written is flushed in the background.
_FLUSH_BYTES = 32 << 20

_VERSION_1 = MAGIC + bytes([1, 0])
#: Bytes read of a file to see its header; longer ones are parsed.
_HEADER_BYTES = 1024


def header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Return the bytes before the data: magic, version and description, padded to 64."""
    file = io.BytesIO()
    description = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(file, description)
    return file.getvalue()


class PlacedFile:
    """A file that is written piece by piece, each at its own place.

    Its checksum is kept while writing: pieces that touch are joined as they come, the rest at the end.

    Args:
        path: The file to make.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._runs: list[list[int]] = []  # [first byte, bytes, crc], in the order written
        self._unflushed = 0
        self._flusher: concurrent.futures.ThreadPoolExecutor | None = None
        self._flush: concurrent.futures.Future[None] | None = None
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115

    def put(self, data: bytes | memoryview, at: int) -> None:
        """Write bytes from byte `at` on."""
        run = self._runs[-1] if self._runs else None
        if run and run[0] + run[1] == at:
            run[1:] = run[1] + len(data), zlib_ng.crc32(data, run[2])
        else:
            self._runs.append([at, len(data), zlib_ng.crc32(data)])
        self._unflushed += len(data)
        while data:
            count = os.pwrite(self._file.fileno(), data, at)
            data, at = data[count:], at + count
        if self._unflushed >= _FLUSH_BYTES and (self._flush is None or self._flush.done()):
            # The disk works while more is being made ready, rather than all at the end.
            if self._flusher is None:
                self._flusher = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="atarirb-flush")
            self._flush = self._flusher.submit(os.fsync, self._file.fileno())
            self._unflushed = 0

    def finish(self, expected: int) -> FileRecord:
        """Check that every one of so many bytes was written, flush the file to the disk and describe it."""
        self._end_flush()
        with self._file:
            total, crc = 0, 0
            for first, length, run_crc in sorted(self._runs):
                if first != total:
                    raise AssertionError(f"{self.path}: byte {total} was not written, {first} was")
                crc = zlib_ng.crc32_combine(crc, run_crc, length)
                total += length
            if total != expected or os.fstat(self._file.fileno()).st_size != expected:
                raise AssertionError(f"{self.path}: {total} bytes written, expected {expected}")
            os.fsync(self._file.fileno())
        return FileRecord(bytes=total, crc32=f"{crc:08x}")

    def abandon(self) -> None:
        """Close the file as it is."""
        with contextlib.suppress(OSError):
            self._end_flush()
        self._file.close()

    def _end_flush(self) -> None:
        if self._flusher is not None:
            self._flusher.shutdown()
            assert self._flush is not None
            self._flush.result()


class NpyWriter:
    """Write an array whose rows come in runs, each run at its own place.

    Args:
        path: The file to make.
        shape: Of the whole array.
        dtype: Of its values.
    """

    def __init__(self, path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype):
        self.dtype = np.dtype(dtype)
        self._header = header(shape, self.dtype)
        self._row_bytes = self.dtype.itemsize * math.prod(shape[1:])
        self._bytes = len(self._header) + shape[0] * self._row_bytes
        self._file = PlacedFile(path)
        self.abandon = self._file.abandon
        try:
            self._file.put(self._header, 0)
        except BaseException:
            self.abandon()
            raise

    def write(self, rows: np.ndarray, at: int) -> None:
        """Write `rows`, C-contiguous and of the array's dtype, as rows `at`, `at` + 1, ..."""
        if len(rows):
            data = memoryview(rows.reshape(-1).view(np.uint8))
            self._file.put(data, len(self._header) + at * self._row_bytes)

    def close(self) -> FileRecord:
        """Check that every row was written, flush the file to the disk and describe it."""
        return self._file.finish(self._bytes)


def write_npy(path: pathlib.Path, values: np.ndarray) -> FileRecord:
    """Write an array whole."""
    writer = NpyWriter(path, values.shape, values.dtype)
    try:
        writer.write(np.ascontiguousarray(values), 0)
    except BaseException:
        writer.abandon()
        raise
    return writer.close()


class NpyRows:
    """Rows of a file, read when sliced and not kept, unlike a map's, which count as memory in use.

    Args:
        path: A file that `NpyWriter` wrote.
        shape: Its shape.
        dtype: Its dtype.
    """

    def __init__(self, path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype):
        self.path = path
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._offset = len(header(shape, self.dtype))
        self._row_bytes = self.dtype.itemsize * math.prod(shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"rows {rows}: expected a step of 1")
        out = np.empty((max(0, stop - first), *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self._offset + first * self._row_bytes)
            view = memoryview(out.reshape(-1).view(np.uint8))
            while view:
                count = file.readinto(view)
                if not count:
                    raise DatasetError(f"{self.path}: ends before row {stop:,}")
                view = view[count:]
        return out


def map_npy(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype, *, random: bool = False
) -> np.ndarray:
    """Map a file read-only, checking that it is whole and what it should be.

    Args:
        path: The file.
        shape: The shape it must have.
        dtype: The dtype it must have.
        random: It is read in no order; see `atarirb.store.mapping.map_file`.

    Raises:
        DatasetError: It is missing, shorter or longer than `shape` needs, or of another dtype or shape.
        OSError: It cannot be read or mapped.
    """
    dtype = np.dtype(dtype)
    descriptor = open_file(path)
    try:
        offset, size = _check(path, descriptor, shape, dtype)
        mapped = map_file(path, descriptor, size, random=random)
    finally:
        os.close(descriptor)
    return mapped[offset:].view(dtype).reshape(shape)


def check_npy(path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Check a file as `map_npy` does, and do not map it.

    Raises:
        DatasetError: It is missing, shorter or longer than `shape` needs, or of another dtype or shape.
        OSError: It cannot be read.
    """
    descriptor = open_file(path)
    try:
        _check(path, descriptor, shape, np.dtype(dtype))
    finally:
        os.close(descriptor)


def open_file(path: str | os.PathLike[str]) -> int:
    """Open a dataset's file for reading and return its descriptor.

    Raises:
        DatasetError: It is missing.
        OSError: It cannot be opened.
    """
    try:  # a file object would take as long again, and a large run has hundreds of files
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing, though the manifest lists it") from None


def _check(
    path: str | os.PathLike[str], descriptor: int, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[int, int]:
    """Check an open file; return where its data begin and where they end."""
    found = os.lseek(descriptor, 0, os.SEEK_END)
    start = os.pread(descriptor, _HEADER_BYTES, 0)
    stop = 10 + int.from_bytes(start[8:10], "little")
    text = f"{{'descr': {_descr(dtype)}, 'fortran_order': False, 'shape': {shape}, }}"
    # Headers as numpy writes them are known by their text: parsing takes longer than all the rest.
    if not start.startswith(_VERSION_1) or start[10:stop].rstrip(b" \n") != text.encode():
        stop = _check_description(path, descriptor, shape, dtype)
    size = stop + dtype.itemsize * math.prod(shape)
    if found != size:
        raise DatasetError(f"{path}: {found:,} bytes, expected {size:,}; it is damaged")
    return stop, size


@functools.cache
def _descr(dtype: np.dtype) -> str:
    return repr(npy.dtype_to_descr(dtype))


def _check_description(
    path: str | os.PathLike[str], descriptor: int, shape: tuple[int, ...], dtype: np.dtype
) -> int:
    """Compare a header that is not numpy's to the letter; return where its data begin."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        try:
            found = read_header(file)
        except ValueError as error:
            raise DatasetError(f"{path}: {error}") from error
        if found != (shape, dtype):
            raise DatasetError(f"{path}: holds {found[1]}{list(found[0])}, expected {dtype}{list(shape)}")
        return file.tell()
