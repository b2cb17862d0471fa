"""Datasets: which there are in the home, and which runs a source has."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import os
import pathlib
from collections.abc import Iterator

from atarirb import home
from atarirb.errors import LogError, SourceNotFoundError
from atarirb.sources import collection
from atarirb.store import building, codecs, inventory
from atarirb.store import manifest as store

#: Runs looked at in parallel: over a network each listing waits.
_AT_A_TIME = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalDataset:
    """A dataset in the home, or the beginning of one.

    Attributes:
        name: What `atarirb.open` finds it by.
        path: Its directory.
        state: "ready"; "unfinished", where a download or the like was stopped, or nothing of a recording
            is in a shard: it has no manifest, and cannot be opened; or "damaged".
        writing: A process is writing it.
        recording: A recorder made it, and may go on.
        steps: Steps in its shards.
        episodes: Its episodes; None if it is not ready.
        splits: Numbers of its shards.
        codec: How its frames are kept; None if that is not known.
        bytes: Bytes of all its files, those half-written included.
        changed: When its manifest was written, or else its directory changed: UTC, as 2026-01-31T12:00:00Z.
        used: When its first shard was made, or mapped by a reader, as far as the file system keeps that:
            mostly to the day, and not at all with ``noatime``.
        problem: What is damaged.
    """

    name: str
    path: str
    state: str
    writing: bool
    recording: bool
    steps: int
    episodes: int | None
    splits: tuple[int, ...]
    codec: str | None
    bytes: int
    changed: str
    used: str
    problem: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceRun:
    """A run that a source has.

    Attributes:
        name: Its id.
        source: Its path or URI.
        layout: How its logs are laid out.
        splits: Numbers of its splits.
        bytes: Bytes of its files.
        local: Which of its splits are in the home.
        problem: Why it cannot be read; then there are no splits.
    """

    name: str
    source: str
    layout: str
    splits: tuple[int, ...]
    bytes: int
    local: tuple[int, ...]
    problem: str


def datasets() -> tuple[LocalDataset, ...]:
    """List the datasets in the home (`atarirb.home`), by name; also unfinished ones and recordings.

    Nothing is locked or changed: it may be called while others read, write or remove them.
    """
    found = (_local(name, directory) for name, directory in places())
    return tuple(one for one in found if one is not None)


def places(*, links: bool = True) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield the name and path of every directory in the home where a dataset may be, by name.

    Args:
        links: Also those that are links, or below one.
    """
    for game in _directories(home.home(), links):
        for run in _directories(game, links):
            yield f"{game.name}/{run.name}", run


def source_runs(
    source: str | os.PathLike[str] | None = None, *, game: str | None = None
) -> tuple[SourceRun, ...]:
    """List the runs that a source has, by directory listings alone.

    Args:
        source: As for `atarirb.download`.
        game: Only this game's; None for all of the catalog.

    Raises:
        SourceNotFoundError: The source refuses, cannot be reached, or is not there.
        MissingPackageError: A package is needed to reach such a URI.
    """
    place = collection.chosen(source)
    games = collection.games(place) if game is None else [game]
    with concurrent.futures.ThreadPoolExecutor(_AT_A_TIME) as pool:
        names = [name for runs in pool.map(lambda game: collection.runs(place, game), games) for name in runs]
        return tuple(pool.map(lambda name: _remote(place, name), names))


def _local(name: str, directory: pathlib.Path) -> LocalDataset | None:
    found = inventory.take(directory)
    if not found.is_ours:
        return None
    manifest, shards = found.manifest, found.shards
    kept = {file for shard in shards for file in shard.files}
    codec = next((name for name, kind in codecs.CODECS.items() if shards and {*kind.files()} <= kept), None)
    first = directory / shards[0].directory / "action.npy" if shards else None  # every reader maps it
    return LocalDataset(
        name=name,
        path=str(directory),
        state="damaged" if found.damage else "ready" if manifest else "unfinished",
        writing=any(building.is_locked(directory / work) for work in found.work),
        recording=found.is_recording,
        steps=sum(shard.steps for shard in shards),
        episodes=manifest.episodes if manifest else None,
        splits=tuple(shard.split for shard in shards),
        codec=manifest.codec if manifest else codec,
        bytes=found.bytes,
        changed=_time(directory / store.MANIFEST if manifest else directory, "st_mtime"),
        used=_time(first, "st_atime"),
        problem=found.damage,
    )


def _remote(source: str, name: str) -> SourceRun:
    local: tuple[int, ...] = ()
    directory = home.place(name)
    if directory.is_dir():
        local = tuple(shard.split for shard in inventory.take(directory).shards)
    layout, splits, size, problem = "", (), 0, ""
    try:
        logs = collection.find(source, name)
        layout, splits = logs.layout, tuple(logs.splits)
        size = sum(logs.size(split) for split in splits)
    except (SourceNotFoundError, LogError) as error:
        problem = str(error)
    return SourceRun(
        name=name,
        source=collection.address(source, name),
        layout=layout,
        splits=splits,
        bytes=size,
        local=tuple(split for split in local if split in splits),
        problem=problem,
    )


def _directories(directory: pathlib.Path, links: bool) -> list[pathlib.Path]:
    try:
        found = [path for path in directory.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        (path for path in found if links or not path.is_symlink()),
        key=lambda path: (
            not path.name.isdecimal(),
            len(path.name) if path.name.isdecimal() else 0,
            path.name,
        ),
    )


def _time(path: pathlib.Path | None, which: str) -> str:
    """Return one of a file's times; empty if it has none."""
    try:
        seconds = getattr(path.stat(), which) if path else None
    except FileNotFoundError:
        seconds = None
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
