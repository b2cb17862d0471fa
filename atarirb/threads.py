"""Work on the rows of a batch, spread over a few threads.

Kernels run without the GIL, so plain threads do. They belong to the process: a child made by fork
has none of them and makes its own. Callers may be many threads themselves; each also does a part.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np

from atarirb.errors import ArgumentError

#: Rows are spread only if the work moves at least this many bytes; waking a thread takes a while.
_WORTH_BYTES = 1 << 19


class _Part:
    """A helper's part in some work: to join in while there is something left to do."""

    def __init__(self, work: Callable[[np.ndarray], None], ticket: np.ndarray):
        self._work: Callable[[np.ndarray], None] | None = work
        self._ticket = ticket
        self._claim = threading.Lock()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def join_in(self) -> None:
        """Do what is left, unless the part was called off."""
        if not self._claim.acquire(blocking=False):
            return
        assert self._work is not None
        try:
            self._work(self._ticket)
        except BaseException as error:
            self._work = None
            self._done.put(error)
        else:
            self._work = None  # or its arrays would live until the next part comes
            self._done.put(None)

    def end(self) -> BaseException | None:
        """Call the part off if it has not begun; otherwise wait for it, and return its error."""
        if self._claim.acquire(blocking=False):
            self._work = None
            return None
        return self._done.get()


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

    def give(self, part: _Part, helpers: int) -> None:
        """Hand a part to a crew of so many threads."""
        if self._size < helpers:
            with self._lock:
                while self._size < helpers:
                    self._size += 1
                    name = f"atarirb-{self._size}"
                    threading.Thread(target=_serve, args=(self._parts,), name=name, daemon=True).start()
        self._parts.put(part)


def _serve(parts: queue.SimpleQueue[_Part]) -> None:
    while True:
        parts.get().join_in()


_crew = _Crew()
_here = threading.local()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def count() -> int:
    """Return how many threads work on a batch: ``ATARIRB_THREADS``, or one per core, 8 at most.

    Where `limited` holds, that is the default instead.
    """
    chosen = os.environ.get("ATARIRB_THREADS")
    if not chosen:
        return getattr(_here, "limit", None) or min(cores(), 8)
    if not chosen.isdecimal() or int(chosen) < 1:
        raise ArgumentError(f"ATARIRB_THREADS is {chosen!r}, expected an integer of 1 or more")
    return int(chosen)


@contextlib.contextmanager
def limited(limit: int) -> Iterator[None]:
    """Have no more than so many threads work on what this one gathers, unless ``ATARIRB_THREADS`` says."""
    before = getattr(_here, "limit", None)
    _here.limit = limit
    try:
        yield
    finally:
        _here.limit = before


def spread(work: Callable[[np.ndarray], None], size: int) -> None:
    """Have some work done by this thread and, if it is worth it, by others that join in.

    Nobody is given a fixed share: each takes the next few rows until none are left, so a helper that
    is slow to wake costs nothing, and one that never woke is called off.

    Args:
        work: Called with a ticket, int64[1], the next row to do, by several threads at once; a kernel
            that takes rows by it (see `atarirb.kernels`).
        size: Bytes that the work moves.
    """
    ticket = np.zeros(1, np.int64)
    helpers = count() - 1 if size >= _WORTH_BYTES else 0
    parts = [_Part(work, ticket) for _ in range(helpers)]
    for part in parts:
        _crew.give(part, helpers)
    try:
        work(ticket)
    finally:
        errors = [part.end() for part in parts]
    for error in errors:
        if error is not None:
            raise error
