"""The inner loops: `compiled` by numba, and `reference`, the same in plain NumPy.

Both modules have the same functions with the same arguments. `reference` is the specification, what
tests compare with, and what runs without numba or with ``ATARIRB_NUMBA=0``.

Kernels take arrays, integers and ``out``; they neither allocate results nor validate. A batch is
one call over all shards: ``bases[s]`` is the address of shard s's first row and ``offsets`` (int64
[shards + 1]) the index of its first step; an index is routed to its shard by binary search. An
index of -1 asks for nothing: its row becomes zeros.

They are compiled at their first call, never at import, without the GIL, and never with numba's own
threads: two Python threads inside a parallel kernel abort the process under its workqueue layer.
Those that move frames take a ``ticket`` instead, int64[1] with the next row to do: each thread that
calls the kernel takes the next few rows until none are left (`atarirb.threads`).
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from types import ModuleType

import numpy as np


@functools.cache
def active() -> ModuleType:
    """Return the module of kernels in use."""
    if os.environ.get("ATARIRB_NUMBA", "1") != "0" and importlib.util.find_spec("numba"):
        from atarirb.kernels import compiled

        return compiled
    from atarirb.kernels import reference

    return reference


def compiles() -> bool:
    """Tell whether the kernels in use are compiled."""
    return active().__name__.endswith(".compiled")


def ticket() -> np.ndarray:
    """Return a ticket for all rows, for a kernel that one thread alone will call."""
    return np.zeros(1, np.int64)


def addresses(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the address of each array's data, as uintp[len(arrays)]; they must be kept alive."""
    return np.array([array.ctypes.data for array in arrays], np.uintp)
