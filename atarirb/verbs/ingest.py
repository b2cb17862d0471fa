"""Ingest: replay logs become a dataset.

The way of it: survey every split (small files and headers only), place the splits on the axis of
adds and plan which of their rows are steps (`atarirb.timeline`), copy each split's columns into a
shard, and write the episode table and the manifest (`atarirb.store.building`).
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor

from atarirb import jobs, sources
from atarirb.arguments import positive
from atarirb.errors import ArgumentError, DiskSpaceError, IngestError, SourceChangedError
from atarirb.info import DatasetInfo
from atarirb.ingestion.copying import Job
from atarirb.ingestion.plan import Plan, make_plan
from atarirb.sources.spool import Spool
from atarirb.store import building, codecs
from atarirb.store import manifest as store
from atarirb.threads import cores
from atarirb.verbs.progress import meter

_log = logging.getLogger(__name__)

#: Splits surveyed at a time where that is waiting for a network.
_SURVEYED = 8
#: Most times it is begun when a file of a store is another one than it was when it was begun.
_AFRESH = 3


def ingest(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    run: int | None = None,
    splits: Iterable[int] | None = None,
    partial: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    codec: str = codecs.DEFAULT,
    name: str | None = None,
    keep_source: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Turn replay logs into a dataset.

    They may be laid out as in the public bucket or as one of the copies that people keep, or be plain arrays
    in files: `atarirb.sources` lists the layouts. Which one it is is seen by looking.

    An interrupted ingest goes on by the same call. Splits that are already in the dataset stay, and
    are not read again unless their source files changed; so `splits` can be added bit by bit.

    Args:
        source: The run's directory or its ``replay_logs``; a game's, where `run` chooses; an ``.npz``; or of
            RL Unplugged's episodes ``<Game>/run_<r>``. A path, or the URI of a remote store.
        out: The dataset's directory; made if need be.
        run: The number of the run, where several stand together.
        splits: Numbers of the splits wanted; None for all.
        partial: The run went on after the last split that is here. A run's last split may begin anywhere in
            its ring buffer, and in a copy without ``add_count`` nothing may tell where; all others were
            written when the buffer was full.
        workers: Splits copied at a time; None for one per core.
        executor: Who copies them instead of threads of this process: a `concurrent.futures.Executor`, as a
            `ProcessPoolExecutor`, or ``client.get_executor()`` of a Dask cluster. Its workers must see
            `source` and `out` under the same paths.
        codec: How frames are kept.
        name: The run's id, as ``"Pong/1"``; by default as the layout tells: mostly the last two parts of the
            run's path.
        keep_source: Directory in which a remote source's files are kept as they came, by the paths they have
            below `source`: a later ingest may name it instead. A file that is there and whole does not come
            again. None for below `out`, only until their shard is there.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        What the dataset is.

    Raises:
        SourceNotFoundError: There are no replay logs at `source`.
        SourceDeniedError: The store refuses to show them.
        TransferError: The store cannot be reached. What came is kept for the next call.
        IngestError: Some splits failed; it lists them and why. The others are kept, and a second
            call does only what is missing.
        DiskSpaceError: The disk has too little room; nothing was written.
        ExecutorError: In an IngestError's `failures`: the worker of a split died, or does not see `out`.
        BusyError: Another process is writing this dataset.
        ArgumentError: An unknown split or codec, several runs of which none is chosen, or `out` holds
            another dataset.
        LogError: The source's files contradict each other by their names alone.
    """
    splits = None if splits is None else _numbers(splits)
    for left in reversed(range(_AFRESH)):
        logs = sources.find(source, run, partial=partial)
        try:
            return ingest_logs(
                logs,
                out,
                name=name or logs.name or sources.run_name(source),
                splits=splits,
                workers=workers,
                executor=executor,
                codec=codec,
                keep_source=keep_source,
                progress=progress,
            )
        except (IngestError, SourceChangedError) as error:
            failures = error.failures.values() if isinstance(error, IngestError) else [error]
            if not left or not any(isinstance(failure, SourceChangedError) for failure in failures):
                raise
            _log.info("beginning afresh: %s", error)
    raise AssertionError


def ingest_logs(
    logs: sources.Logs,
    out: str | os.PathLike[str],
    *,
    name: str,
    splits: Iterable[int] | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    codec: str = codecs.DEFAULT,
    keep_source: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Turn steps from any source into a dataset: see `ingest`."""
    threads = cores() if workers is None else positive("workers", workers)
    jobs.check_executor(executor, workers)
    kind = codecs.codec(codec)
    directory, keep = pathlib.Path(out), None if keep_source is None else pathlib.Path(keep_source)
    wanted = wanted_splits(logs, splits)
    with building.exclusive(directory) as work, _fetched(logs, directory / building.SOURCE, keep) as spool:
        held = building.held(directory, name, logs.layout, kind.NAME)
        building.refuse_strange(directory, held, logs.splits, logs.directory)
        wanted = sorted({*wanted, *held})  # what is there must still be what the log says
        waits = spool is not None and isinstance(logs, sources.RingLogs)  # it reads little, each of it afar
        plan = make_plan(logs, wanted, max(threads, _SURVEYED) if waits else threads)
        failures = {split: error for split, error in plan.failures.items() if split in wanted}
        planned = [
            Job.of(
                logs,
                plan,
                portion,
                codec=kind.NAME,
                directory=directory,
                threads=1 if executor is not None else max(1, threads // len(wanted)),
            )
            for portion in plan.portions
            if portion.split in wanted
        ]
        todo = [job for job in planned if not job.holds(held.get(job.portion.split))]
        moved = [job for job in planned if job not in todo and not job.placed(held[job.portion.split])]
        fetched = [job.split for job in todo]
        room = sum(job.disk_bytes() for job in todo)
        if spool:
            to_come = [max(0, logs.size(split) - logs.held(split)) for split in fetched]
            room += _source_room(directory, keep, to_come, threads)
        building.check_space(directory, room)
        if todo or moved:  # what is there so far is a dataset only again when it is whole
            (directory / store.MANIFEST).unlink(missing_ok=True)
        for job in moved:
            job.correct_place(held[job.portion.split])
        total, shown = sum(job.amount for job in todo), progress and bool(todo)
        comes = spool is not None and executor is None  # other processes do not say what came to them
        with contextlib.ExitStack() as meters:
            if spool and comes:
                held_bytes = sum(map(logs.held, fetched))
                spool.on_bytes = meters.enter_context(meter("fetch", total, shown, done=held_bytes))
            on_bytes = meters.enter_context(meter("ingest", total, shown))
            failures |= jobs.run(todo, directory, work, workers=threads, executor=executor, on_done=on_bytes)
        if failures:
            raise _failed(failures, [split for split in wanted if split not in failures], logs)
        return _finish(directory, name, logs, kind.NAME, plan)


@contextlib.contextmanager
def _fetched(
    logs: sources.Logs, directory: pathlib.Path, keep: pathlib.Path | None
) -> Iterator[Spool | None]:
    """Have what comes from a remote store kept; after an error for the next call, unless it wrote nothing."""
    fresh = not directory.exists()
    spool = logs.fetch_to(directory, keep)
    if keep is not None and spool is None:
        raise ArgumentError(
            f"keep_source: {logs.directory} is no remote directory of files, there is nothing to keep"
        )
    try:
        yield spool
    except DiskSpaceError:
        if fresh and spool:
            spool.remove()
        raise
    except BaseException:
        if spool:
            spool.tidy()
        raise
    if spool:
        spool.remove()
    elif directory.exists():  # of a source that was remote
        shutil.rmtree(directory)


def _source_room(directory: pathlib.Path, keep: pathlib.Path | None, to_come: list[int], threads: int) -> int:
    """Return the bytes that files to come take at most on the dataset's disk; check another one's room."""
    if keep is None:  # they go with each split that is done
        return sum(sorted(to_come)[-threads:])
    there = building.nearest(keep.absolute())
    if there.stat().st_dev == directory.stat().st_dev:
        return sum(to_come)
    building.check_space(there, sum(to_come))
    return 0


def _numbers(splits: Iterable[int]) -> list[int]:
    try:
        return sorted({operator.index(split) for split in splits})
    except TypeError:
        raise ArgumentError(f"splits is {splits!r}, expected numbers of splits") from None


def wanted_splits(logs: sources.Logs, splits: Iterable[int] | None) -> list[int]:
    """Return the numbers of the splits that are wanted, rising; of all for None.

    Raises:
        ArgumentError: The logs lack one, or none is named.
    """
    if splits is None:
        return list(logs.splits)
    wanted = _numbers(splits)
    unknown = [split for split in wanted if split not in logs.splits]
    if unknown or not wanted:
        raise ArgumentError(
            f"no split {', '.join(map(str, unknown)) or 'named'}; {logs.directory} has "
            f"{', '.join(map(str, logs.splits))}"
        )
    return wanted


def _failed(failures: Mapping[int, Exception], others: list[int], logs: sources.Logs) -> IngestError:
    advice = "Mend the files and run the same command again, or leave these splits out with splits=."
    return IngestError(
        f"{len(failures)} of {len(failures) + len(others)} splits of {logs.directory} failed:\n"
        f"{jobs.listed(failures, len(others), advice)}",
        failures,
    )


def _finish(directory: pathlib.Path, name: str, logs: sources.Logs, codec: str, plan: Plan) -> DatasetInfo:
    """Write the episode table and the manifest of the shards that are there."""
    records = [store.read_record(directory / store.shard_name(portion.split)) for portion in plan.portions]
    return building.finish(
        directory,
        [record for record in records if record is not None],
        name=name,
        layout=logs.layout,
        codec=codec,
        frame=_column_record(plan.columns["observation"]),
        extra={column: _column_record(described) for column, described in plan.extra.items()},
        writer_stack=plan.writer_stack,
    )


def _column_record(column: sources.Column) -> store.ColumnRecord:
    return store.ColumnRecord(shape=column.shape, dtype=column.dtype.str)
