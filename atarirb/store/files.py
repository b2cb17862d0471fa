"""Files written so that nothing half-written ever bears a final name."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from zlib_ng import zlib_ng


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileRecord:
    """What the manifest keeps of a file.

    Attributes:
        bytes: Its length.
        crc32: CRC-32 of its bytes, as 8 hexadecimal digits.
    """

    bytes: int
    crc32: str


def write_file(path: pathlib.Path, data: bytes) -> FileRecord:
    """Write a small file under a temporary name, flush it to the disk and rename it."""
    temporary = path.with_name(f".{path.name}.partial")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_directory(path.parent)
    return record_of(data)


def record_of(data: bytes) -> FileRecord:
    """Describe a file of these bytes."""
    return FileRecord(bytes=len(data), crc32=f"{zlib_ng.crc32(data):08x}")


def checksum(path: pathlib.Path, chunk_bytes: int = 4 << 20) -> str:
    """Return the CRC-32 of a file's bytes, as in `FileRecord`."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(chunk_bytes))
        while count := file.readinto(buffer):
            crc = zlib_ng.crc32(buffer[:count], crc)
    return f"{crc:08x}"


def sync_directory(path: pathlib.Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
