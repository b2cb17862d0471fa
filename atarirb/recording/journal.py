"""The journal of one episode: every step on file as soon as it is made.

A file of records, one after the other, each written by one call::

    4   uint32, bytes of what follows but the checksum
    1   kind: 0 a step, 1 a step with a terminal, 2 a step after which the episode was truncated,
        3 the frame after the last step
        the row of the small columns, as in the journal's `row` dtype; zeros of kind 3
        the frame's bytes, as one zstd frame
    4   uint32, CRC-32 of all before it

All numbers are little-endian. What a killed process was writing fails its checksum, or its length, and
is left out with all after it. What the process wrote before stays, also when it is killed; a power cut
may take what the system had not yet put on the disk.
"""

from __future__ import annotations

import errno
import os
import pathlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import zstandard
from zlib_ng import zlib_ng

STEP, TERMINAL, TRUNCATED, FINAL = range(4)

_LEVEL = 1
_WORD = struct.Struct("<I")
#: No record is longer: a length beyond it is damage.
_MOST = 1 << 28


class Journal:
    """A journal that is being written.

    Args:
        path: The file; what is in it already is kept, if it is whole.
        row: dtype of the small columns, packed.
    """

    def __init__(self, path: pathlib.Path, row: np.dtype):
        self.path = path
        self._row = row
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def step(self, kind: int, frame: np.ndarray, row: np.ndarray) -> None:
        """Add a step: its frame, and the row of its small columns."""
        self._add(kind, row.tobytes(), frame)

    def final(self, frame: np.ndarray) -> None:
        """Add the frame after the last step."""
        self._add(FINAL, bytes(self._row.itemsize), frame)

    def _add(self, kind: int, row: bytes, frame: np.ndarray) -> None:
        content = bytes([kind]) + row + self._compressor.compress(np.ascontiguousarray(frame).view(np.uint8))
        record = _WORD.pack(len(content)) + content
        record += _WORD.pack(zlib_ng.crc32(record))
        size = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(record) != len(record):  # a full disk may take a part
                raise OSError(errno.ENOSPC, f"{self.path}: {os.strerror(errno.ENOSPC)}")
        except OSError:
            os.ftruncate(self._file.fileno(), size)  # or what is added later could not be read
            raise

    def close(self) -> None:
        """Close the file; it can be opened again and gone on with."""
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
        self._begins: list[tuple[int, int]] = []
        kinds, rows = bytearray(), bytearray()
        self.bytes = 0
        with open(path, "rb") as file:
            for content in _records(file):
                kinds.append(content[0])
                rows += content[1 : 1 + row.itemsize]
                begin = self.bytes + _WORD.size + 1 + row.itemsize
                self.bytes += len(content) + 2 * _WORD.size
                self._begins.append((begin, self.bytes - _WORD.size))
        self.kinds = np.frombuffer(bytes(kinds), np.uint8)
        self.rows = np.frombuffer(bytes(rows), row)
        self.steps = int((self.kinds != FINAL).sum())
        self.final = self.steps < len(self.kinds)

    @property
    def ended(self) -> bool:
        """Whether the episode has come to its end."""
        return len(self.kinds) > 0 and self.kinds[-1] != STEP

    def terminal(self) -> np.ndarray:
        """Return the column ``terminal``, uint8[steps]; an episode that did not end is truncated."""
        terminal = np.zeros(self.steps, np.uint8)
        terminal[-1:] = TERMINAL if self.kinds[self.steps - 1] == TERMINAL else TRUNCATED
        return terminal

    def frames(self, numbers: np.ndarray) -> Iterator[np.ndarray]:
        """Read the frames of records, int64[B]."""
        decompressor = zstandard.ZstdDecompressor()
        with open(self._path, "rb") as file:
            for number in numbers.tolist():
                begin, end = self._begins[number]
                if file.tell() != begin:
                    file.seek(begin)
                data = decompressor.decompress(file.read(end - begin))
                yield np.frombuffer(data, self._dtype).reshape(self._shape)


def mend(path: pathlib.Path, size: int) -> None:
    """Cut a journal off after its whole records."""
    if path.stat().st_size != size:
        os.truncate(path, size)


def _records(file: Any) -> Iterator[bytes]:
    """Yield the contents of the whole records from the beginning on."""
    while True:
        head = file.read(_WORD.size)
        if len(head) < _WORD.size:
            return
        length = _WORD.unpack(head)[0]
        if not 0 < length <= _MOST:
            return
        content, check = file.read(length), file.read(_WORD.size)
        if len(check) < _WORD.size or zlib_ng.crc32(content, zlib_ng.crc32(head)) != _WORD.unpack(check)[0]:
            return
        yield content
