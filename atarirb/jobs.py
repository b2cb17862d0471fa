"""Long work in parallel, one job per shard: by threads of ours, or by the workers of an executor.

A job writes its shard as an attempt (`atarirb.store.attempts`), and what it returns says where. All that
follows is this process' own: it gives whole shards their names as they come, gathers errors, shows how far
the work is, and waits for its end.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import pathlib
import pickle
import shutil
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Protocol

import atarirb
from atarirb import threads
from atarirb.errors import ArgumentError, AtarirbError, ExecutorError
from atarirb.store import attempts, shards
from atarirb.store import manifest as store
from atarirb.store.attempts import Stopped

_log = logging.getLogger(__name__)

#: Seconds between two looks at how far the workers of an executor have come.
_LOOK = 0.5
#: Seconds that those who leave off are waited for, which they do at their next chunk.
_PATIENCE = 10.0


class Stopper(Protocol):
    """Tells a job whether to leave off; a `threading.Event` does."""

    def is_set(self) -> bool: ...


class Job(Protocol):
    """What makes one shard. It is pickled for an executor's workers."""

    @property
    def split(self) -> int:
        """Number of the shard."""

    @property
    def amount(self) -> int:
        """What `run` counts in all."""

    def run(self, place: pathlib.Path, on_done: Callable[[int], None], stopped: Stopper) -> store.ShardRecord:
        """Write the shard, whole and to the disk, below a directory; raise Stopped to leave off."""

    def done(self) -> None:
        """Let go of what it needed, now that the shard has its name: in the caller's process."""


@dataclasses.dataclass(frozen=True)
class _Made:
    """An attempt that came to its end."""

    place: pathlib.Path
    record: store.ShardRecord


@dataclasses.dataclass(frozen=True)
class _Failed:
    """Why one did not.

    Attributes:
        error: What was raised.
        cause: Its cause, which is not pickled with it.
        expected: It is of a log, a dataset or a disk; else it is a bug.
    """

    error: Exception
    cause: BaseException | None = None
    expected: bool = True


def run(
    todo: Sequence[Job],
    directory: pathlib.Path,
    work: pathlib.Path,
    *,
    workers: int,
    executor: Executor | None,
    on_done: Callable[[int], None],
) -> dict[int, Exception]:
    """Run jobs in parallel, and give the shards they make their names.

    Args:
        todo: The jobs, in the order in which they are begun.
        directory: The dataset's directory.
        work: Its directory of things half-written; the caller holds its lock.
        workers: Jobs at a time, in threads of ours.
        executor: Who is to run them instead.
        on_done: Called with the count done since its last call, from any thread.

    Returns:
        The errors of those that failed, by split.
    """
    if not todo:
        return {}
    crew = _Crew(attempts.Run.begin(work), directory, workers, executor, on_done)
    try:
        return crew.run(todo)
    finally:
        crew.end()


class _Crew:
    """The jobs of one run, on whatever runs them."""

    def __init__(
        self,
        run: attempts.Run,
        directory: pathlib.Path,
        workers: int,
        executor: Executor | None,
        on_done: Callable[[int], None],
    ):
        self._run = run
        self._directory = directory
        self._own = None if executor else ThreadPoolExecutor(workers, thread_name_prefix="atarirb-job")
        self._executor = executor or self._own
        self._on_done = on_done
        self._stopped = threading.Event()
        self._jobs: dict[Future, Job] = {}
        self._placed: set[int] = set()
        self._counted: dict[int, int] = {}
        self._failures: dict[int, Exception] = {}

    def run(self, todo: Sequence[Job]) -> dict[int, Exception]:
        """Run all, and return the errors."""
        for job in todo:
            self._jobs[self._submit(job)] = job
        waiting = set(self._jobs)
        while waiting:
            done, waiting = concurrent.futures.wait(
                waiting, None if self._own else _LOOK, concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                self._take(future)
            if not self._own:
                for split, count in self._run.counted().items():
                    self._count(split, count)
        return self._failures

    def end(self) -> None:
        """Wait until no job writes any more, however often that is interrupted; keep what came to its end.

        Our own threads stop at their next chunk, and are waited for; the futures are, not the threads: an
        interrupted `Thread.join` takes a thread for ended. Others are waited for as long as is reasonable;
        who is later finds that his work is not wanted, and clears it away himself.
        """
        self._stopped.set()
        while True:
            try:
                self._run.end()
                for future in self._jobs:
                    future.cancel()
                if self._own:
                    self._own.shutdown(wait=False)
                    concurrent.futures.wait([future for future in self._jobs if not future.cancelled()])
                else:
                    self._run.settle(_PATIENCE)
                for job in self._jobs.values():
                    if job.split not in self._placed and (made := self._whole(job)):
                        with contextlib.suppress(OSError):  # it is made again by the next call
                            self._place(job, made)
            except KeyboardInterrupt:
                continue
            return

    def _submit(self, job: Job) -> Future:
        signals = (self._on_done, self._stopped) if self._own else ()
        try:
            return self._executor.submit(_attempt, atarirb.__version__, self._run, job, *signals)
        except Exception as error:  # it is broken, or was shut down
            future: Future = Future()
            future.set_exception(error)
            return future

    def _take(self, future: Future) -> None:
        """Take in how a job ended."""
        job = self._jobs[future]
        try:
            answer = future.result()
        except Exception as error:  # no job raises: it is the executor that failed
            answer = self._whole(job) or _Failed(
                ExecutorError(
                    f"the executor's worker failed, or its process died: {_said(error)}; more may be known "
                    f"from the executor's own log"
                ),
                error,
            )
        if isinstance(answer, _Made):
            try:
                self._place(job, answer)
            except OSError as error:
                answer = _Failed(error)
            else:
                _log.info("split %d done", job.split)
                if not self._own:
                    self._count(job.split, job.amount)
        if isinstance(answer, _Failed):
            self._fail(job, answer)

    def _fail(self, job: Job, answer: _Failed) -> None:
        error = answer.error
        if answer.cause is not None and error.__cause__ is None:
            error.__cause__ = answer.cause
        if not answer.expected:
            raise error
        self._failures[job.split] = error
        _log.warning("split %d failed: %s", job.split, error)

    def _count(self, split: int, count: int) -> None:
        """Count what was done of a shard in all: never less than before, where it was begun again."""
        before = self._counted.get(split, 0)
        if count > before:
            self._counted[split] = count
            self._on_done(count - before)

    def _whole(self, job: Job) -> _Made | None:
        """Return an attempt at a shard that is whole, though nobody said so."""
        found = self._run.whole(job.split)
        return _Made(*found) if found else None

    def _place(self, job: Job, made: _Made) -> None:
        shards.place(made.place, self._directory, made.record)
        self._placed.add(made.record.split)
        shutil.rmtree(made.place, ignore_errors=True)
        job.done()


def _attempt(
    version: str,
    run: attempts.Run,
    job: Job,
    on_done: Callable[[int], None] | None = None,
    stopped: Stopper | None = None,
) -> _Made | _Failed:
    """Do a job, in a thread or a process of any machine.

    Args:
        version: The caller's, of atarirb.
        run: What the job is part of.
        job: The job.
        on_done: Given to it, by threads of ours.
        stopped: Likewise. Without, it is told by files (`attempts.Watch`).
    """
    try:
        _check_version(version)
        with run.attempt(job.split) as place:
            if on_done is not None and stopped is not None:
                return _Made(place, job.run(place, on_done, stopped))
            watch = attempts.Watch(run, place)
            with threads.limited(1):  # the other cores have workers of their own
                return _Made(place, job.run(place, watch.on_done, watch))
    except Stopped:
        return _Failed(
            ExecutorError(
                f"the worker on {os.uname().nodename} was not wanted, or does not see what others write into "
                f"{run.work}, which must be on a disk that all share"
            )
        )
    except (AtarirbError, OSError) as error:
        return _Failed(error) if stopped is not None else _portable(error)
    except Exception as error:
        if stopped is not None:
            return _Failed(error, expected=False)
        error.add_note(f"In a worker on {os.uname().nodename}:\n{traceback.format_exc()}")
        return dataclasses.replace(_portable(error), expected=False)


def _portable(error: Exception) -> _Failed:
    """Make of an error what can be sent to another process."""
    cause = error.__cause__
    error.__cause__ = error.__context__ = None  # some ways of pickling take them along, if they can
    if not _returns(error):  # some of other packages can be pickled, but not made again
        kind = OSError if isinstance(error, OSError) else RuntimeError
        error = kind(f"{type(error).__name__}: {error}")
    return _Failed(error, cause if _returns(cause) else None)


def _returns(error: BaseException | None) -> bool:
    """Tell whether an error comes out of a pickle as what went in."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False


def check_executor(executor: Any, workers: int | None) -> None:
    """Refuse what is no executor, and a number of workers beside one.

    Raises:
        ArgumentError: It is so.
    """
    if executor is None:
        return
    if not isinstance(executor, Executor):
        raise ArgumentError(
            f"executor is {executor!r:.200}, expected a concurrent.futures.Executor; of a Dask client that "
            f"is client.get_executor()"
        )
    if workers is not None:
        raise ArgumentError(
            f"workers is {workers}, and there is an executor: it has as many as it has; leave workers out"
        )


def check_sent(executor: Executor, **given: Any) -> None:
    """Have a worker take things that jobs will hold, before anything is done.

    Args:
        executor: Who is to run the jobs.
        **given: The things, by what the caller calls them.

    Raises:
        ArgumentError: One of them cannot be sent.
        ExecutorError: No worker answers, or it does not see what one of them needs.
    """
    for name, value in ({"": None} | given).items():
        try:
            future = executor.submit(_take_in, atarirb.__version__, value)
            try:
                future.result()
            finally:
                future.cancel()
        except ExecutorError:
            raise
        except AtarirbError as error:
            raise ExecutorError(
                f"{name} cannot be used by the executor's workers: {error}\nWhat they work on must be on a "
                f"disk that all of them share, under the same path"
            ) from error
        except Exception as error:
            if not name:
                raise ExecutorError(f"the executor's workers do not answer: {_said(error)}") from error
            raise ArgumentError(
                f"{name} is {value!r:.200}, which cannot be sent to the executor's workers: {_said(error)}; "
                f"expected what pickle can send: a function at the top level of a module that they can import"
            ) from error


def _take_in(version: str, value: Any) -> None:
    _check_version(version)


def _check_version(version: str) -> None:
    if version != atarirb.__version__:
        raise ExecutorError(
            f"the worker on {os.uname().nodename} has atarirb {atarirb.__version__}, expected {version}; "
            f"install the same there"
        )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")


def caught(function: Callable) -> Callable:
    """Make a function return the error it would raise of a log, a dataset or a disk."""

    def call(*args: object) -> object:
        try:
            return function(*args)
        except (AtarirbError, OSError) as error:
            return error

    return call


def listed(failures: Mapping[int, Exception], others: int, advice: str) -> str:
    """Say which splits failed and why, one a line; what is kept; and what to do.

    Args:
        failures: The error of each that failed.
        others: How many did not.
        advice: What to do where it is not only workers that failed.
    """
    lines = "\n".join(f"  split {split}: {error}" for split, error in sorted(failures.items()))
    if all(isinstance(error, ExecutorError) for error in failures.values()):
        advice = "Run the same command again, with workers that can do it."
    return f"{lines}\n{f'The other {others} are kept. ' if others else ''}{advice}"
