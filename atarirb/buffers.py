"""Memory for batches, used again only when the last array over it is gone.

Fresh memory is handed out by the system page by page, at a fault each, which can cost more than
the copy that fills it. So a batch's block returns to a pool when nothing refers to it any more: not
an array, not a view of one, not a JAX array that shares its memory. An array that was handed out
therefore never changes later.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import math
import mmap
import os
import threading
import weakref

import numpy as np

from atarirb.errors import BatchSizeError

#: Blocks smaller than this are left to NumPy, whose own pool serves them faster.
_SMALL = 1 << 16
_PAGE = 1 << 16


@functools.cache
def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Pool:
    """A pool of blocks of memory.

    Args:
        idle_bytes: Most bytes kept for later; above that, what has been idle longest is freed.
    """

    def __init__(self, idle_bytes: int = 256 << 20):
        self._idle_bytes = idle_bytes
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._blocks: collections.deque[tuple[int, mmap.mmap]] = collections.deque()
        self._idle = 0
        # A lease can end in the middle of any bytecode, one under this lock included.
        self._lock = threading.RLock()
        self._leases: dict[int, weakref.ref] = {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an uninitialised array, C-contiguous and aligned to 64 bytes.

        Raises:
            BatchSizeError: It is larger than this machine's memory.
        """
        dtype = np.dtype(dtype)
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALL:
            return np.empty(shape, dtype)
        if size > _memory():
            raise BatchSizeError(f"a batch has {size:,} bytes, the memory of this machine {_memory():,}")
        size_class = -(-size // _PAGE) * _PAGE
        block = self._take(size_class)
        # Every array over the block refers to this object, and its end is the lease's end.
        lease = (ctypes.c_uint8 * size_class).from_buffer(block)
        number = id(lease)
        self._leases[number] = weakref.ref(
            lease, lambda _, block=block: self._give_back(number, block, size_class)
        )
        return np.frombuffer(lease, np.uint8, count=size).view(dtype).reshape(shape)

    def _take(self, size_class: int) -> mmap.mmap:
        with self._lock:
            for place in range(len(self._blocks) - 1, -1, -1):  # the last one is the likeliest to be cached
                if self._blocks[place][0] == size_class:
                    block = self._blocks[place][1]
                    del self._blocks[place]
                    self._idle -= size_class
                    return block
        # Private: a child made by fork must not see what its parent does with the block later.
        return mmap.mmap(-1, size_class, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _give_back(self, number: int, block: mmap.mmap, size_class: int) -> None:
        with self._lock:
            self._leases.pop(number, None)
            self._blocks.append((size_class, block))
            self._idle += size_class
            while self._idle > self._idle_bytes:  # the longest idle go first
                self._idle -= self._blocks.popleft()[0]


#: The pool of this process.
pool = Pool()
