"""Work on the rows of a batch, spread over a few threads.

Kernels run without the GIL, so plain threads do. They belong to the process: a child made by fork
has none of them and makes its own. Callers may be many threads themselves; each also does a part.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
from collections.abc import Callable

import numpy as np

#: Rows are spread only if the work moves at least this many bytes; waking a thread takes a while.
_WORTH_BYTES = 1 << 19


class _Crew:
    """The threads of this process, made when first needed."""

    def __init__(self) -> None:
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._executor = None

    def executor(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(count(), thread_name_prefix="atarirb")
        return self._executor


_crew = _Crew()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count() -> int:
    """Return how many threads work on a batch: ``ATARIRB_THREADS``, or one per core, 8 at most."""
    chosen = os.environ.get("ATARIRB_THREADS")
    return max(1, int(chosen)) if chosen else min(cores(), 8)


def spread(work: Callable[..., None], *arrays: np.ndarray) -> None:
    """Call ``work(*parts)`` for parts of the arrays' rows that together are all of them.

    Args:
        work: Called once per part, possibly in several threads at once.
        *arrays: Arrays of equal length; those of the last one tell how much work there is.
    """
    rows = len(arrays[0])
    parts = min(count(), rows) if arrays[-1].nbytes >= _WORTH_BYTES else 1
    if parts <= 1:
        work(*arrays)
        return
    executor = _crew.executor()
    edges = [rows * part // parts for part in range(parts + 1)]
    slices = [slice(low, high) for low, high in itertools.pairwise(edges)]
    futures = [executor.submit(work, *[array[part] for array in arrays]) for part in slices[1:]]
    try:
        work(*[array[slices[0]] for array in arrays])
    finally:
        concurrent.futures.wait(futures)
    for future in futures:
        future.result()
