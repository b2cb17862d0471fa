"""Ingest: replay logs become a dataset.

The way of it: survey every split (small files and headers only), place the splits on the axis of
adds and plan which of their rows are steps (`atarirb.timeline`), copy each split's columns into a
shard, and write the episode table and the manifest.

Nothing half-written bears a final name. A shard grows in ``<dataset>/.ingest/`` and is renamed
when it is whole and on the disk; the manifest comes last. So an ingest that was stopped, killed
included, goes on where it was by the same command, and ends with the same bytes.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import logging
import operator
import os
import pathlib
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType

from atarirb import sources
from atarirb.arguments import positive
from atarirb.errors import ArgumentError, BusyError, DiskSpaceError, IngestError
from atarirb.info import DatasetInfo, describe
from atarirb.ingestion.copying import Job
from atarirb.ingestion.plan import Plan, caught, make_plan
from atarirb.store import codecs
from atarirb.store import manifest as store
from atarirb.store.episodes import column_rows, episode_table
from atarirb.store.files import record_of, write_file
from atarirb.store.npy import header
from atarirb.threads import cores
from atarirb.verbs.progress import meter

_log = logging.getLogger(__name__)

_WORK = ".ingest"
_LOCK = "lock"


def ingest(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    splits: Iterable[int] | None = None,
    workers: int | None = None,
    codec: str = codecs.DEFAULT,
    name: str | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Turn replay logs into a dataset.

    An interrupted ingest goes on by the same call. Splits that are already in the dataset stay, and
    are not read again unless their source files changed; so `splits` can be added bit by bit.

    Args:
        source: The run's directory or its ``replay_logs``.
        out: The dataset's directory; made if need be.
        splits: Numbers of the splits wanted; None for all.
        workers: Splits copied at a time; None for one per core.
        codec: How frames are kept.
        name: The run's id, as ``"Pong/1"``; by default the last two parts of the source's path.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        What the dataset is.

    Raises:
        SourceNotFoundError: There are no replay logs at `source`.
        IngestError: Some splits failed; it lists them and why. The others are kept, and a second
            call does only what is missing.
        DiskSpaceError: The disk has too little room; nothing was written.
        BusyError: Another process is writing this dataset.
        ArgumentError: An unknown split or codec, or `out` holds another dataset.
    """
    threads = cores() if workers is None else positive("workers", workers)
    kind = codecs.codec(codec)
    logs = sources.find(source)
    name = name or sources.run_name(source)
    directory = pathlib.Path(out)
    wanted = _wanted(logs, splits)
    with _exclusive(directory) as work:
        held = _held(directory, name, logs, kind)
        wanted = sorted({*wanted, *held})  # what is there must still be what the log says
        plan = make_plan(logs, threads)
        failures = {split: error for split, error in plan.failures.items() if split in wanted}
        jobs = [
            Job(logs, kind, work, directory, portion, plan)
            for portion in plan.portions
            if portion.split in wanted
        ]
        todo = [job for job in jobs if not job.holds(held.get(job.portion.split))]
        moved = [job for job in jobs if job not in todo and held[job.portion.split].head != job.portion.head]
        _check_space(directory, sum(job.disk_bytes() for job in todo))
        if todo or moved:  # what is there so far is a dataset only again when it is whole
            (directory / store.MANIFEST).unlink(missing_ok=True)
        for job in moved:
            job.correct_head(held[job.portion.split])
        failures |= _run(todo, threads, logs, progress)
        if failures:
            raise _failed(failures, [split for split in wanted if split not in failures], logs)
        info = _finish(directory, name, logs, kind, plan)
    return info


def _wanted(logs: sources.OriginalLogs, splits: Iterable[int] | None) -> list[int]:
    if splits is None:
        return list(logs.splits)
    try:
        wanted = sorted({operator.index(split) for split in splits})
    except TypeError:
        raise ArgumentError(f"splits is {splits!r}, expected numbers of splits") from None
    unknown = [split for split in wanted if split not in logs.splits]
    if unknown or not wanted:
        raise ArgumentError(
            f"no split {', '.join(map(str, unknown)) or 'named'}; {logs.directory} has "
            f"{', '.join(map(str, logs.splits))}"
        )
    return wanted


@contextlib.contextmanager
def _exclusive(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """Make the dataset's directory and hold its lock; clear away what a stopped ingest left."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    work = directory / _WORK
    with _lock(work):
        _clear(work)
        try:
            yield work
        finally:
            _clear(work)
            (work / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                work.rmdir()
                for path in made:  # leave no empty directories behind where nothing was written
                    path.rmdir()


@contextlib.contextmanager
def _lock(work: pathlib.Path) -> Iterator[None]:
    """Hold the lock of a directory, which is made if need be."""
    for _ in range(1000):  # others may make and remove it all the while
        try:
            work.mkdir(parents=True, exist_ok=True)
            file = open(work / _LOCK, "wb")  # noqa: SIM115
        except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
            for path in (work, *work.parents):
                if path.is_file():
                    raise ArgumentError(f"{path}: a dataset is a directory, and there is a file") from error
            continue  # another process has just removed the directory, or made it
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BusyError(f"{work.parent}: another process is writing this dataset") from error
            try:
                there = os.stat(work / _LOCK)
            except FileNotFoundError:
                continue
            # One that ended meanwhile took its lock file with it, and what we hold is nobody's.
            if os.path.samestat(os.fstat(file.fileno()), there):
                yield
                return
    raise ArgumentError(f"{work.parent}: no directory can be made there")


def _clear(work: pathlib.Path) -> None:
    for path in work.iterdir():
        if path.name != _LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _held(
    directory: pathlib.Path, name: str, logs: sources.OriginalLogs, kind: ModuleType
) -> dict[int, store.ShardRecord]:
    """Read the records of the shards already there, refusing those of something else."""
    if (directory / store.MANIFEST).exists():
        there = store.read_manifest(directory)
        if (there.name, there.codec) != (name, kind.NAME):
            raise ArgumentError(
                f"{directory} holds {there.name} with codec {there.codec}, not {name} with "
                f"{kind.NAME}; name another directory, or remove that one"
            )
    held = {}
    for path in sorted(directory.glob("[0-9]*")):
        record = store.read_record(path)
        if record is not None and record.directory == path.name:
            held[record.split] = record
    strange = sorted(set(held) - set(logs.splits))
    if strange:
        raise ArgumentError(
            f"{directory} holds split(s) {', '.join(map(str, strange))}, which {logs.directory} does "
            f"not have; name another directory, or remove that one"
        )
    return held


def _check_space(directory: pathlib.Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DiskSpaceError(
            errno.ENOSPC,
            f"{directory} needs {needed:,} bytes, its disk has {free:,} free; nothing was written "
            f"(choose fewer splits, or another disk)",
        )


def _run(jobs: list[Job], threads: int, logs: sources.OriginalLogs, progress: bool) -> dict[int, Exception]:
    """Run jobs in parallel; return the errors of those that failed, by split."""
    failures: dict[int, Exception] = {}
    if not jobs:
        return failures
    stopped = threading.Event()
    with meter("ingest", sum(logs.size(job.portion.split) for job in jobs), progress) as on_bytes:
        pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="atarirb-ingest")
        futures: dict[concurrent.futures.Future, Job] = {}
        try:
            for job in jobs:
                futures[pool.submit(caught(job.run), on_bytes, stopped)] = job
            for future in concurrent.futures.as_completed(futures):
                split = futures[future].portion.split
                error = future.result()
                if error is not None:
                    failures[split] = error
                    _log.warning("split %d failed: %s", split, error)
                else:
                    _log.info("split %d done", split)
        finally:
            stopped.set()
            _end(pool, futures)
    return failures


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


def _failed(failures: Mapping[int, Exception], others: list[int], logs: sources.OriginalLogs) -> IngestError:
    lines = "\n".join(f"  split {split}: {error}" for split, error in sorted(failures.items()))
    keep = f"The other {len(others)} are kept. " if others else ""
    return IngestError(
        f"{len(failures)} of {len(failures) + len(others)} splits of {logs.directory} failed:\n{lines}\n"
        f"{keep}Mend the files and run the same command again, or leave these splits out with splits=.",
        failures,
    )


def _finish(
    directory: pathlib.Path, name: str, logs: sources.OriginalLogs, kind: ModuleType, plan: Plan
) -> DatasetInfo:
    """Write the episode table and the manifest of the shards that are there."""
    records = [store.read_record(directory / store.shard_name(portion.split)) for portion in plan.portions]
    shards = tuple(record for record in records if record is not None)
    terminals, rewards = (column_rows(directory, shards, column) for column in ("terminal", "reward"))
    table = episode_table(shards, terminals, rewards)
    frame = plan.columns["observation"]
    path = directory / store.EPISODES
    content = header(table.shape, table.dtype) + table.tobytes()
    if path.exists() and path.read_bytes() == content:
        episodes_file = record_of(content)
    else:
        (directory / store.MANIFEST).unlink(missing_ok=True)
        episodes_file = write_file(path, content)
    made = store.Manifest(
        name=name,
        layout=logs.layout,
        codec=kind.NAME,
        frame=_column_record(frame),
        extra={column: _column_record(described) for column, described in plan.extra.items()},
        writer_stack=next(iter(plan.surveys.values())).window.stack,
        steps=sum(shard.steps for shard in shards),
        rewards_clipped=all(shard.clipped for shard in shards),
        episodes=len(table),
        episodes_file=episodes_file,
        shards=shards,
    )
    if not (directory / store.MANIFEST).exists() or store.read_manifest(directory) != made:
        store.write_manifest(directory, made)
    _log.info("%s: %d steps", directory, made.steps)
    return describe(directory, made, table)


def _column_record(column: sources.Column) -> store.ColumnRecord:
    return store.ColumnRecord(shape=column.shape, dtype=column.dtype.str)
