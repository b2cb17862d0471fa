"""Maps of files that keep no descriptor: thousands may be held where 1,024 files may be open.

Python's own maps keep a copy of the descriptor for as long as they live; from Python 3.13 on
``trackfd=False`` would do without.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pathlib
from typing import Any

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class _Map:
    """Pages of a file, unmapped with the last array over them, whose ``base`` this is."""

    __slots__ = ("address", "size")

    def __init__(self, address: int, size: int):
        self.address = address
        self.size = size

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "typestr": "|u1", "shape": (self.size,), "data": (self.address, True)}

    def advise(self, advice: str) -> None:
        """Tell the system how the pages are used, where it knows such advice."""
        if hasattr(mmap, advice):
            _libc.madvise(self.address, self.size, getattr(mmap, advice))

    def __del__(self, unmap: Any = _libc.munmap) -> None:  # at exit, names of the module may be gone
        unmap(self.address, self.size)


def map_file(path: str | os.PathLike[str], descriptor: int, size: int, *, random: bool = False) -> np.ndarray:
    """Map a file read-only.

    Args:
        path: The file's, for errors.
        descriptor: Of the file, open for reading; it may be closed afterwards.
        size: The file's bytes, one or more.
        random: It is read in no order: without this advice the system reads ahead at every miss,
            which makes random reads of a file larger than memory many times slower.

    Returns:
        uint8[size], not writeable.

    Raises:
        OSError: The system refuses.
    """
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, _no_room(size) if code == errno.ENOMEM else os.strerror(code), os.fspath(path))
    mapped = _Map(address, size)
    if random:
        mapped.advise("MADV_RANDOM")
    return np.asarray(mapped)


def let_go(array: np.ndarray) -> None:
    """Drop what was read of a mapped file from this process's memory; the system may still have it.

    Args:
        array: Over a map, or over memory, to which nothing is done.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, _Map):
        base.advise("MADV_DONTNEED")


def _no_room(size: int) -> str:
    """Say why a file could not be mapped for want of room, and what to do."""
    words = f"no room to map {size:,} more bytes"
    try:
        limit = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
        with open("/proc/self/maps", "rb") as file:
            held = sum(1 for _ in file)
    except (OSError, ValueError):  # not Linux
        return f"{words}: open fewer datasets at a time"
    if held < limit - 8:
        return f"{words}: the address space is used up or limited (ulimit -v); open fewer datasets at a time"
    return (
        f"{words}: this process has {held:,} maps, and the system's limit (vm.max_map_count) is {limit:,}; "
        f"open fewer datasets at a time, or raise it with 'sysctl -w vm.max_map_count={4 * limit}'"
    )
