"""Work on the rows of a batch, spread over a few threads.

Kernels run without the GIL, so plain threads do. They belong to the process: a child made by fork
has none of them and makes its own. Callers may be many threads themselves; each also does a part.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import queue
import threading
from collections.abc import Callable

import numpy as np

from atarirb.errors import ArgumentError

#: Rows are spread only if the work moves at least this many bytes; waking a thread takes a while.
_WORTH_BYTES = 1 << 19


class _Crew:
    """The threads of this process, made when first needed.

    They wait on one queue for parts of work. That is all of an executor that is needed here, and a
    batch takes a fraction of a millisecond, of which an executor's futures would be a good part.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._parts: queue.SimpleQueue[_Part] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._size = 0

    def give(self, part: _Part) -> None:
        """Have a part done by some thread."""
        if self._size < count():
            with self._lock:
                while self._size < count():
                    self._size += 1
                    name = f"atarirb-{self._size}"
                    threading.Thread(target=_serve, args=(self._parts,), name=name, daemon=True).start()
        self._parts.put(part)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of some work; `done` gets None or the error when they are done."""

    work: Callable[..., None]
    arrays: list[np.ndarray]
    done: queue.SimpleQueue[BaseException | None]


def _serve(parts: queue.SimpleQueue[_Part]) -> None:
    while True:
        part = parts.get()
        try:
            part.work(*part.arrays)
        except BaseException as error:
            part.done.put(error)
        else:
            part.done.put(None)
        del part  # or the arrays would live until the next part comes


_crew = _Crew()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count() -> int:
    """Return how many threads work on a batch: ``ATARIRB_THREADS``, or one per core, 8 at most."""
    chosen = os.environ.get("ATARIRB_THREADS")
    if not chosen:
        return min(cores(), 8)
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ArgumentError(f"ATARIRB_THREADS is {chosen!r}, expected an integer of 1 or more")
    return int(chosen)


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
    edges = [rows * part // parts for part in range(parts + 1)]
    slices = [slice(low, high) for low, high in itertools.pairwise(edges)]
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for part in slices[1:]:
        _crew.give(_Part(work, [array[part] for array in arrays], done))
    try:
        work(*[array[slices[0]] for array in arrays])
    finally:
        errors = [done.get() for _ in slices[1:]]
    for error in errors:
        if error is not None:
            raise error
