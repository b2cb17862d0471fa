"""Making a dataset's directory: one writer at a time, room enough, and the manifest last.

Nothing half-written bears a final name. A shard grows in a directory of its own below the dataset's
(`atarirb.store.attempts`), whoever writes it, and is renamed when it is whole and on the disk, by the one
process that holds the dataset's lock; the manifest comes last. So work that was stopped, killed included,
goes on where it was by the same command, and ends with the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import logging
import os
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from atarirb.errors import ArgumentError, BusyError, DiskSpaceError
from atarirb.info import DatasetInfo, describe
from atarirb.store import attempts, codecs
from atarirb.store import manifest as store
from atarirb.store.episodes import column_rows, episode_table, final_steps
from atarirb.store.files import record_of, write_file
from atarirb.store.npy import header

_log = logging.getLogger(__name__)

#: Where ingest, convert and map put what is half-written, below the dataset's directory.
WORK = ".ingest"
#: Where the files of a remote source are until their shard is there.
SOURCE = ".source"
#: Where a recorder does.
RECORDING = ".recording"
_LOCK = "lock"
#: How often a lock that is taken is asked for again, and after how many seconds.
_TRIES, _PAUSE = 10, 0.01
#: Locks that this process holds. A child made by fork lets go of them: it may live longer.
_locks: set[IO[bytes]] = set()


def _let_go() -> None:
    for file in _locks:
        file.close()
    _locks.clear()


os.register_at_fork(after_in_child=_let_go)
#: What the sources of a mapped shard's record say of the map: how it was made; no column has such a name.
MAPPED = "atarirb.map"


@contextlib.contextmanager
def exclusive(directory: pathlib.Path, name: str = WORK) -> Iterator[pathlib.Path]:
    """Claim a directory as `claimed` does; clear away what stopped work left in it, and what this leaves."""
    with claimed(directory, name) as work:
        clear(work)
        try:
            yield work
        finally:
            clear(work)


@contextlib.contextmanager
def claimed(directory: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """Make a dataset's directory and hold its lock; leave no empty directories where nothing was written.

    Args:
        directory: The dataset's directory.
        name: Of the directory of things half-written, which the lock is in.

    Yields:
        The directory of things half-written.

    Raises:
        BusyError: Another process is writing this dataset.
        ArgumentError: No directory can be made there.
    """
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    work = directory / name
    with lock(work):
        try:
            yield work
        finally:
            (work / _LOCK).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                work.rmdir()
                for path in made:
                    path.rmdir()


@contextlib.contextmanager
def lock(work: pathlib.Path) -> Iterator[None]:
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
        with contextlib.ExitStack() as stack:
            stack.enter_context(file)
            try:
                _flock(file)
            except OSError as error:
                raise BusyError(f"{work.parent}: another process is writing this dataset") from error
            _locks.add(file)
            stack.callback(_locks.discard, file)
            try:
                there = os.stat(work / _LOCK)
            except FileNotFoundError:
                continue
            # One that ended meanwhile took its lock file with it, and what we hold is nobody's.
            if os.path.samestat(os.fstat(file.fileno()), there):
                yield
                return
    raise ArgumentError(f"{work.parent}: no directory can be made there")


def _flock(file: IO[bytes]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
        time.sleep(_PAUSE)  # one who looks whether it is taken (`is_locked`) has it for an instant


def is_lock(name: str) -> bool:
    """Tell whether a file in a directory of things half-written is its lock."""
    return name == _LOCK


def is_locked(work: pathlib.Path) -> bool:
    """Tell whether a process holds the lock of a directory of things half-written, and make nothing."""
    try:
        with open(work / _LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (BlockingIOError, PermissionError):  # another user's: nothing of it is ours to touch
        return True
    return False


@contextlib.contextmanager
def at_rest(directory: pathlib.Path) -> Iterator[None]:
    """Keep everybody from writing in a dataset's directory, which may be renamed meanwhile.

    A recorder's lock is taken only where there is a recording: elsewhere a recorder begins none beside what
    is there, and a directory of one, left by a kill, would make this a recording to all others.

    Raises:
        BusyError: Another process is writing this dataset.
    """
    with contextlib.ExitStack() as stack:
        for work in (directory / WORK, directory / RECORDING):
            if work.name == RECORDING and not work.exists():
                continue
            stack.enter_context(lock(work))
            stack.callback(_unlock, work, os.stat(work / _LOCK))
        yield


def _unlock(work: pathlib.Path, mine: os.stat_result) -> None:
    """Remove a lock's file that is held, and its directory if that is empty, unless they were moved away."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(work / _LOCK), mine):  # else another's, who began anew under this name
            (work / _LOCK).unlink()
            work.rmdir()


def clear(work: pathlib.Path) -> None:
    """Remove all that is in a directory of things half-written, but its lock.

    A worker of another process that still writes there keeps its attempt. With the file of its run gone, it
    finds out that nobody wants it, and removes it itself (`atarirb.store.attempts`).
    """
    for path in sorted(work.iterdir(), key=pathlib.Path.is_dir):  # files first
        if path.name == _LOCK or attempts.is_live(path):
            continue
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def mapped(shard: store.ShardRecord) -> str:
    """Say how a shard was mapped; empty for one that was not."""
    return shard.source.get(MAPPED, "")


def held(
    directory: pathlib.Path, name: str, layout: str, codec: str, *, mapped: str = ""
) -> dict[int, store.ShardRecord]:
    """Read the records of the shards already there, by split.

    Args:
        directory: The dataset's directory.
        name: The run's id.
        layout: Layout of the source.
        codec: How frames are kept.
        mapped: How shards are mapped; empty for not.

    Raises:
        ArgumentError: The directory holds another dataset.
    """
    if (directory / RECORDING).exists():
        raise ArgumentError(f"{directory} holds a recording; name another directory, or remove that one")
    if (directory / store.MANIFEST).exists():
        there = store.read_manifest(directory)
        if (there.name, there.layout, there.codec) != (name, layout, codec):
            raise ArgumentError(
                f"{directory} holds {there.name} ({there.layout}) with codec {there.codec}, not {name} "
                f"({layout}) with {codec}; name another directory, or remove that one"
            )
    records = {}
    for path in sorted(directory.glob("[0-9]*")):
        record = store.read_record(path)
        if record is not None and record.directory == path.name:
            records[record.split] = record
            if (there := record.source.get(MAPPED, "")) != mapped:
                raise ArgumentError(
                    f"{directory} holds {_mapping(there)}, not {_mapping(mapped)}; name another directory, "
                    f"or remove that one"
                )
    return records


def _mapping(mapped: str) -> str:
    return f"steps mapped by {mapped}" if mapped else "steps as they were played"


def is_whole(directory: pathlib.Path, record: store.ShardRecord) -> bool:
    """Tell whether all files of a shard are there, of their length."""
    return all(
        path.is_file() and path.stat().st_size == file.bytes
        for path, file in ((directory / record.directory / name, file) for name, file in record.files.items())
    )


def refuse_strange(
    directory: pathlib.Path, records: Mapping[int, store.ShardRecord], known: Sequence[int], source: object
) -> None:
    """Refuse a directory with shards of splits that its source does not have.

    Raises:
        ArgumentError: There are some.
    """
    strange = sorted(set(records) - set(known))
    if strange:
        raise ArgumentError(
            f"{directory} holds split(s) {', '.join(map(str, strange))}, which {source} does not have; "
            f"name another directory, or remove that one"
        )


def nearest(directory: pathlib.Path) -> pathlib.Path:
    """Return a directory that need not be there yet, or the nearest one above it that is."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def check_space(
    directory: pathlib.Path, needed: int, otherwise: str = "choose fewer splits, or another disk"
) -> None:
    """Refuse to begin what the disk has no room for.

    Args:
        directory: Where it would be written.
        needed: Bytes.
        otherwise: What else could be done.

    Raises:
        DiskSpaceError: It needs more than is free.
    """
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise DiskSpaceError(
            errno.ENOSPC,
            f"{directory} needs {needed:,} bytes, its disk has {free:,} free; nothing was written "
            f"({otherwise})",
        )


def finish(
    directory: pathlib.Path,
    shards: Sequence[store.ShardRecord],
    *,
    name: str,
    layout: str,
    codec: str,
    frame: store.ColumnRecord,
    extra: Mapping[str, store.ColumnRecord],
    writer_stack: int,
) -> DatasetInfo:
    """Write the episode table and the manifest of shards that are there, whichever is not there yet.

    Args:
        directory: The dataset's directory.
        shards: Records of its shards, in step order.
        name: See `store.Manifest`, as for all that follow.
        layout: Layout of the source files.
        codec: How frames are kept.
        frame: Shape and dtype of a frame.
        extra: Extra columns by name.
        writer_stack: Frames the log's writer stacked.

    Returns:
        What the dataset is.
    """
    shards = tuple(shards)
    terminals, rewards = (column_rows(directory, shards, column) for column in ("terminal", "reward"))
    table = episode_table(shards, terminals, rewards, final_steps(directory, shards))
    content = header(table.shape, table.dtype) + table.tobytes()
    made = store.Manifest(
        name=name,
        layout=layout,
        codec=codec,
        parameters=codecs.codec(codec).PARAMETERS,
        frame=frame,
        extra=dict(extra),
        writer_stack=writer_stack,
        steps=sum(shard.steps for shard in shards),
        rewards_clipped=all(shard.clipped for shard in shards),
        episodes=len(table),
        episodes_name=store.EPISODES[0],
        episodes_file=record_of(content),
        shards=shards,
    )
    put_manifest(directory, made, content)
    return describe(directory, made, table)


def put_manifest(directory: pathlib.Path, manifest: store.Manifest, episodes: bytes) -> None:
    """Write the bytes of the episode table and the manifest, whichever is not there yet.

    A table that replaces another gets another name, and the old one goes last, so that at any moment the
    manifest that is there has its table: one who reads meanwhile finds the one or the other.
    """
    before = store.read_manifest(directory) if (directory / store.MANIFEST).exists() else None
    place = before.episodes_name if before else store.EPISODES[0]
    if not (directory / place).exists() or (directory / place).read_bytes() != episodes:
        if before:
            place = store.EPISODES[place == store.EPISODES[0]]
        write_file(directory / place, episodes)
    manifest = dataclasses.replace(manifest, episodes_name=place)
    if before != manifest:
        store.write_manifest(directory, manifest)
    for other in set(store.EPISODES) - {place}:
        (directory / other).unlink(missing_ok=True)
    _log.info("%s: %d steps", directory, manifest.steps)
