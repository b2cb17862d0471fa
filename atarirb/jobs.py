"""Long work in parallel, one job per shard: errors are gathered, and an end is waited for."""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from atarirb.errors import AtarirbError

_log = logging.getLogger(__name__)

#: A job: called with what counts the bytes done, and with the event that tells it to leave off.
Job = Callable[[Callable[[int], None], threading.Event], None]


class Stopped(Exception):
    """The work is ending; leave off."""


def run(jobs: Mapping[int, Job], threads: int, on_bytes: Callable[[int], None]) -> dict[int, Exception]:
    """Run jobs in parallel.

    Args:
        jobs: By split, in the order in which they are begun.
        threads: Jobs at a time.
        on_bytes: Given to each.

    Returns:
        The errors of those that failed, by split.
    """
    failures: dict[int, Exception] = {}
    stopped = threading.Event()
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="atarirb-job")
    futures: dict[concurrent.futures.Future, int] = {}
    try:
        for split, job in jobs.items():
            futures[pool.submit(caught(job), on_bytes, stopped)] = split
        for future in concurrent.futures.as_completed(futures):
            error = future.result()
            if error is not None:
                failures[futures[future]] = error
                _log.warning("split %d failed: %s", futures[future], error)
            else:
                _log.info("split %d done", futures[future])
    finally:
        stopped.set()
        _end(pool, futures)
    return failures


def caught(function: Callable) -> Callable:
    """Make a function return the error it would raise of a log, a dataset or a disk."""

    def call(*args: object) -> object:
        try:
            return function(*args)
        except (AtarirbError, OSError) as error:
            return error

    return call


def listed(failures: Mapping[int, Exception], others: int) -> tuple[str, str]:
    """Say which splits failed and why, one a line; and what is kept."""
    lines = "\n".join(f"  split {split}: {error}" for split, error in sorted(failures.items()))
    return lines, f"The other {others} are kept. " if others else ""


def _end(pool: concurrent.futures.ThreadPoolExecutor, futures: Iterable[concurrent.futures.Future]) -> None:
    """Wait until no job writes any more, however often that is interrupted: each stops at its next chunk.

    The futures are waited for, not the threads: an interrupted `Thread.join` takes a thread for ended.
    """
    pool.shutdown(wait=False, cancel_futures=True)
    while True:
        try:
            concurrent.futures.wait([future for future in futures if not future.cancelled()])
        except KeyboardInterrupt:
            continue
        return
