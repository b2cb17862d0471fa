"""Work on the rows of a batch, spread over a few threads.

Kernels run without the GIL, so plain threads do. They belong to the process: a child made by fork
has none of them and makes its own. Callers may be many threads themselves; each also does a part.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable

import numpy as np

#: Rows are spread only if the work moves at least this many bytes; waking a thread takes a while.
_WORTH_BYTES = 1 << 19

_executor: concurrent.futures.ThreadPoolExecutor | None = None


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count() -> int:
    """Return how many threads work on a batch: ``ATARIRB_THREADS``, or one per core, 8 at most."""
    chosen = os.environ.get("ATARIRB_THREADS")
    return max(1, int(chosen)) if chosen else min(cores(), 8)


def _forget() -> None:
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_forget)


def spread(work: Callable[..., None], *arrays: np.ndarray) -> None:
    """Call ``work(*parts)`` for parts of the arrays' rows that together are all of them.

    Args:
        work: Called once per part, possibly in several threads at once.
        *arrays: Arrays of equal length; those of the last one tell how much work there is.
    """
    global _executor
    rows = len(arrays[0])
    parts = min(count(), rows) if arrays[-1].nbytes >= _WORTH_BYTES else 1
    if parts <= 1:
        work(*arrays)
        return
    if _executor is None:
        _executor = concurrent.futures.ThreadPoolExecutor(count(), thread_name_prefix="atarirb")
    edges = [rows * part // parts for part in range(parts + 1)]
    slices = [slice(low, high) for low, high in zip(edges, edges[1:], strict=False)]
    futures = [_executor.submit(work, *[array[part] for array in arrays]) for part in slices[1:]]
    try:
        work(*[array[slices[0]] for array in arrays])
    finally:
        concurrent.futures.wait(futures)
    for future in futures:
        future.result()
