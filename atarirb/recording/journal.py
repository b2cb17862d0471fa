"""The journal of one episode: every step on file as soon as it is made.

A file of records, one after the other, each written by one call::

    4   uint32, bytes of what follows but the checksum
    1   kind: 0 a step, 1 a step with a terminal, 2 a step after which the episode was truncated,
        3 the frame after the last step
        the row of the small columns, as in the journal's `row` dtype; zeros of kind 3
        the frame's bytes, each xor that of the record before (the first as it is), as one zstd frame
    4   uint32, CRC-32 of all before it

All numbers are little-endian. What a killed process was writing fails its checksum, or its length, and
is left out with all after it. What the process wrote before stays, also when it is killed; a power cut
may take what the system had not yet put on the disk.
"""

from __future__ import annotations

import array
import errno
import itertools
import os
import pathlib
import struct
from collections.abc import Iterator

import numpy as np
import zstandard
from zlib_ng import zlib_ng

STEP, TERMINAL, TRUNCATED, FINAL = range(4)

_LEVEL = -3  # frames differ little from those before: a better one would take longer and save nothing
_WORD = struct.Struct("<I")
#: No record is longer: a length beyond it is damage.
_MOST = 1 << 28


class Journal:
    """A journal that is being written.

    Args:
        path: The file to make.
        row: dtype of the small columns, packed.

    Attributes:
        path: The same.
        steps: Steps in it.
        kind: Kind of its last record; STEP while it is empty.
    """

    def __init__(self, path: pathlib.Path, row: np.dtype):
        self.path = path
        self.steps = 0
        self.kind = STEP
        self._row = row
        self._before = np.zeros(0, np.uint8)
        self._size = 0
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115

    def step(self, kind: int, frame: np.ndarray, row: np.ndarray) -> None:
        """Add a step: its frame, and the row of its small columns."""
        self._add(kind, row.tobytes(), frame)
        self.steps += 1

    def final(self, frame: np.ndarray) -> None:
        """Add the frame after the last step."""
        self._add(FINAL, bytes(self._row.itemsize), frame)

    def _add(self, kind: int, row: bytes, frame: np.ndarray) -> None:
        # What an error or an interrupt left half-done, or done and not counted, must have nothing behind it.
        if self._file.tell() != self._size:
            self._file.truncate(self._size)
            self._file.seek(self._size)
        pixels = np.frombuffer(frame.tobytes(), np.uint8)
        change = pixels ^ self._before if len(self._before) else pixels
        content = bytes([kind]) + row + self._compressor.compress(change)
        record = _WORD.pack(len(content)) + content
        record += _WORD.pack(zlib_ng.crc32(record))
        if self._file.write(record) != len(record):  # a full disk may take a part
            raise OSError(errno.ENOSPC, f"{self.path}: {os.strerror(errno.ENOSPC)}")
        self._before, self._size, self.kind = pixels, self._size + len(record), kind

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class JournalRows:
    """The records of a journal, as far as they are whole.

    Args:
        path: The file.
        row: dtype of the small columns.
        shape: Shape of a frame.
        dtype: Of its values.

    Attributes:
        kinds: uint8[records].
        rows: row[records], the small columns.
        steps: Records that are steps.
        final: There is a final frame.
        bytes: Bytes of the whole records.
    """

    def __init__(self, path: pathlib.Path, row: np.dtype, shape: tuple[int, ...], dtype: np.dtype):
        self._path = path
        self._shape = shape
        self._dtype = dtype
        kinds, rows = bytearray(), bytearray()
        self._ends = array.array("q", [0])  # where each record ends, after where the first begins
        data = path.read_bytes()
        for begin, end in _records(data):
            kinds.append(data[begin + _WORD.size])
            rows += data[begin + _WORD.size + 1 : begin + _WORD.size + 1 + row.itemsize]
            self._ends.append(end)
        self.bytes = self._ends[-1]
        self.kinds = np.frombuffer(bytes(kinds), np.uint8)
        self.rows = np.frombuffer(bytes(rows), row)
        self.steps = int((self.kinds != FINAL).sum())
        self.final = self.steps < len(self.kinds)

    def terminal(self) -> np.ndarray:
        """Return the column ``terminal``, uint8[steps]; an episode that did not end is truncated."""
        terminal = np.zeros(self.steps, np.uint8)
        terminal[-1:] = TERMINAL if self.kinds[self.steps - 1] == TERMINAL else TRUNCATED
        return terminal

    def frames(self) -> Iterator[np.ndarray]:
        """Read the frames of all records."""
        decompress = zstandard.ZstdDecompressor().decompress
        skipped = _WORD.size + 1 + self.rows.itemsize
        data = memoryview(self._path.read_bytes())
        pixels = None
        for begin, end in itertools.pairwise(self._ends):
            change = np.frombuffer(decompress(data[begin + skipped : end - _WORD.size]), np.uint8)
            pixels = change if pixels is None else pixels ^ change
            yield pixels.view(self._dtype).reshape(self._shape)


def mend(path: pathlib.Path, size: int) -> None:
    """Cut a journal off after its whole records."""
    if path.stat().st_size != size:
        os.truncate(path, size)


def _records(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each of the whole records from the beginning on begins and ends."""
    view, begin = memoryview(data), 0
    while begin + _WORD.size <= len(data):
        (length,) = _WORD.unpack_from(data, begin)
        check = begin + _WORD.size + length
        end = check + _WORD.size
        if not 0 < length <= _MOST or end > len(data):
            return
        if zlib_ng.crc32(view[begin:check]) != _WORD.unpack_from(data, check)[0]:
            return
        yield begin, end
        begin = end
