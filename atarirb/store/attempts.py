"""Attempts at making a shard: each in a directory of its own, which tells whether somebody writes there.

A job may run in another process, on another machine that sees the same disk, and, where its worker was
taken for dead, twice at the same time. So attempts never meet, and none of them touches the dataset: the
one process that holds its lock (`atarirb.store.building`) gives a whole shard its name. In the directory of
things half-written::

    <run>                   empty; there as long as the run is wanted, so one who works for it looks now and
                            then, and leaves off when it is gone
    <run>.<split>.<random>/ an attempt
        lock                locked by its writer for as long as it lives
        done                how much it has counted so far, in decimal digits
        00002/              the shard
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator

from atarirb.errors import ExecutorError
from atarirb.store import manifest as store

_LOCK = "lock"
_DONE = "done"
#: Seconds between two looks whether a run is still wanted.
_PAUSE = 0.25


class Stopped(Exception):
    """The work is ending; leave off."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One call's work on a dataset's shards, as it is known to all who do it.

    Attributes:
        work: The directory of things half-written, absolute.
        name: No other run's.
    """

    work: pathlib.Path
    name: str

    @classmethod
    def begin(cls, work: pathlib.Path) -> Run:
        """Make it known that a run is wanted."""
        run = cls(work.absolute(), f"run-{secrets.token_hex(8)}")
        (run.work / run.name).touch(exist_ok=False)
        return run

    def end(self) -> None:
        """Make it known that it is no longer."""
        (self.work / self.name).unlink(missing_ok=True)

    def wanted(self) -> bool:
        """Tell whether it is."""
        return (self.work / self.name).exists()

    @contextlib.contextmanager
    def attempt(self, split: int) -> Iterator[pathlib.Path]:
        """Make a directory for an attempt at a shard, and hold its lock; where that fails, remove it.

        Yields:
            The directory.

        Raises:
            Stopped: The run is not, or no longer, wanted.
            ExecutorError: Here is no such directory: another machine's disk.
        """
        with contextlib.suppress(OSError):
            os.listdir(self.work.parent)  # or a network's file system may remember what was not there before
        if not self.work.is_dir():
            raise ExecutorError(
                f"{self.work}: not seen by the worker on {os.uname().nodename}; a dataset that an executor's "
                f"workers write must be on a disk that all of them share, under the same path"
            )
        if not self.wanted():
            raise Stopped
        place = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}.{split}.", dir=self.work))
        try:
            with open(place / _LOCK, "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self.wanted():  # or the attempt may have been taken for a dead one's
                    raise Stopped
                yield place
                if not self.wanted():
                    raise Stopped
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if not self.wanted():
                with contextlib.suppress(OSError):
                    self.work.rmdir()  # the last one out
                if isinstance(error, OSError):
                    raise Stopped from error
            raise

    def whole(self, split: int) -> tuple[pathlib.Path, store.ShardRecord] | None:
        """Return an attempt that came to its end, and its shard's record, if there is one."""
        for place in self.work.glob(f"{self.name}.{split}.*"):
            record = store.read_record(place / store.shard_name(split))
            if record is not None and not is_live(place):
                return place, record
        return None

    def counted(self) -> dict[int, int]:
        """Return how much has been counted of each shard, by the attempt that has come farthest."""
        counts: dict[int, int] = {}
        for place in self.work.glob(f"{self.name}.*"):
            split = int(place.name.split(".")[1])
            with contextlib.suppress(OSError, ValueError):
                counts[split] = max(counts.get(split, 0), int((place / _DONE).read_bytes()))
        return counts

    def settle(self, patience: float) -> None:
        """Wait until nobody writes for this run, but no longer than so many seconds."""
        end = time.monotonic() + patience
        while any(map(is_live, self.work.glob(f"{self.name}.*"))) and time.monotonic() < end:
            time.sleep(0.05)


class Watch:
    """What a job in another process is told, and what it tells: by the files of its attempt.

    Args:
        run: The run.
        place: The attempt's directory.
    """

    def __init__(self, run: Run, place: pathlib.Path):
        self._run = run
        self._place = place
        self._done = 0
        self._gone = False
        self._next = time.monotonic() + _PAUSE

    def on_done(self, count: int) -> None:
        """Count what was done, from any thread."""
        self._done += count

    def is_set(self) -> bool:
        """Tell whether to leave off; now and then say how far it has come."""
        if time.monotonic() >= self._next:
            self._gone = not self._run.wanted()
            with contextlib.suppress(OSError):  # a full disk, say: what is written beside it will tell
                (self._place / _DONE).write_text(str(self._done))
            self._next = time.monotonic() + _PAUSE
        return self._gone


def is_live(place: pathlib.Path) -> bool:
    """Tell whether somebody writes in an attempt's directory."""
    try:
        with open(place / _LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except BlockingIOError:
        return True
    return False
