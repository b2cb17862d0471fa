"""The system's cache of files: how much of it a process has, and what is in it.

Linux only. How a process' part of the cache is limited depends on what is allowed: by a memory cgroup of
either version where one can be made (that takes root), or not at all.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.workload import drop

_CGROUPS = Path("/sys/fs/cgroup")
# From sys/mman.h.
_WILLNEED, _DONTNEED = 3, 4
_PAGE = os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def limited(size: int) -> Iterator[Path | None]:
    """Make a memory cgroup for a child process.

    Args:
        size: Bytes that what the processes in it bring into memory may take, the files' cache included.

    Yields:
        The file that takes the process' number, or None where no cgroup can be made.
    """
    group = _make(size)
    try:
        yield group and group / "cgroup.procs"
    finally:
        if group:
            group.rmdir()


def _make(size: int) -> Path | None:
    for parent, limit in ((_CGROUPS / "memory", "memory.limit_in_bytes"), (_CGROUPS, "memory.max")):
        group = parent / f"atarirb-benchmark-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(size))
                return group
        except OSError:
            pass
        group.rmdir()
    return None


def join(procs: Path) -> None:
    """Put this process into a cgroup: what it has in memory already does not count there."""
    procs.write_text(str(os.getpid()))


def forget(directory: Path) -> None:
    """Have none of a dataset's files in memory, neither in this process' maps nor in the system's cache."""
    libc = _libc()
    for begin, end, path in _maps():
        if path.startswith(f"{directory}/"):
            libc.madvise(begin, end - begin, _DONTNEED)
    drop(directory)


def address(path: Path) -> int:
    """Return where this process has mapped a file's first byte."""
    return next(begin for begin, _, name in _maps() if name == str(path))


def announce(addresses: list[int], size: int) -> None:
    """Ask for pieces of mapped files, `size` bytes from each address on, without waiting for them."""
    madvise = _libc().madvise
    for begin in addresses:
        first = begin & -_PAGE
        madvise(first, begin + size - first, _WILLNEED)


def disk_bytes() -> int:
    """Return the bytes that this process has had read from the disk."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise OSError("/proc/self/io has no read_bytes")


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return libc


def _maps() -> Iterator[tuple[int, int, str]]:
    """Yield address, end and path of this process' maps of files from their beginning on."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, offset, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith("/") and int(offset, 16) == 0:
            begin, end = (int(part, 16) for part in addresses.split("-"))
            yield begin, end, path[0]
