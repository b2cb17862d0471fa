"""What is in a dataset's directory, whole or not: which files are a dataset's, and which are not.

Nothing is removed here but by `remove`, and nothing of a directory that holds anything else than a dataset's
files. Links are never a dataset's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Iterator

from atarirb.errors import ArgumentError, DatasetError, DatasetNotFoundError
from atarirb.store import building, codecs
from atarirb.store import manifest as store
from atarirb.store.files import sync_directory

#: Directories of things half-written, all that is in them included; those of a recorder are data.
_WORK = (building.WORK, building.SOURCE, building.RECORDING)
_EFFECTIVE = os.access in os.supports_effective_ids
_SHARD = re.compile(r"\d{5,}")
_ASIDE = re.compile(r"\..+\.removed-[0-9a-f]{8}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inventory:
    """What was found in a directory.

    Attributes:
        directory: The directory.
        manifest: The dataset's manifest; None if it is not whole.
        damage: Why the manifest cannot be read; empty if it can, or there is none.
        shards: Records of its shards: those in the manifest, or else those that are there.
        bytes: Bytes of all files that are a dataset's.
        work: Names of the directories of things half-written that are there, and their bytes.
        is_recording: A recorder made it, and may go on.
        partial: Files that a stopped write left, beside those they were to replace.
        strange: What is no dataset's, relative to the directory.
        is_ours: There is a dataset, or the beginning of one. A file that only has a manifest's name is none.
    """

    directory: pathlib.Path
    manifest: store.Manifest | None
    damage: str
    shards: tuple[store.ShardRecord, ...]
    bytes: int
    work: dict[str, int]
    is_recording: bool
    partial: tuple[pathlib.Path, ...]
    strange: tuple[str, ...]
    is_ours: bool


def take(directory: pathlib.Path) -> Inventory:
    """Look through a dataset's directory, also while it changes."""
    manifest, damage = None, ""
    try:
        manifest = store.read_manifest(directory)
    except DatasetNotFoundError:
        pass
    except (DatasetError, OSError) as error:
        damage = str(error)
    shards, work, partial, strange, total, shard_places = [], {}, [], [], 0, 0
    listed = {shard.directory: set(shard.files) for shard in manifest.shards} if manifest else {}
    for entry in _entries(directory):
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_directory and entry.name in _WORK:
            size, odd = _all_in(pathlib.Path(entry.path))
            work[entry.name] = size
            strange += [os.path.relpath(path, directory) for path in odd]
            total += size
        elif is_directory and _SHARD.fullmatch(entry.name):
            place = pathlib.Path(entry.path)
            shard_places += 1
            record = None if entry.name in listed else store.read_record(place)
            if record is not None and record.directory == entry.name:
                shards.append(record)
                listed[entry.name] = set(record.files)
            known = _shard_files() | listed.get(entry.name, set())
            for file in _entries(place):
                total += _take_file(file, directory, known, partial, strange)
        else:
            total += _take_file(entry, directory, {store.MANIFEST, *store.EPISODES}, partial, strange)
    return Inventory(
        directory=directory,
        manifest=manifest,
        damage=damage,
        shards=manifest.shards if manifest else tuple(sorted(shards, key=lambda record: record.split)),
        bytes=total,
        work=work,
        is_recording=any(
            not building.is_lock(entry.name) for entry in _entries(directory / building.RECORDING)
        ),
        partial=tuple(partial),
        strange=tuple(sorted(strange)),
        is_ours=bool(manifest or shards or work or (damage and shard_places)),
    )


def _take_file(
    entry: os.DirEntry[str],
    directory: pathlib.Path,
    known: set[str],
    partial: list[pathlib.Path],
    strange: list[str],
) -> int:
    """Return a file's bytes if it is a dataset's, else take it for strange."""
    begun = entry.name.removeprefix(".").removesuffix(".partial")
    is_partial = entry.name == f".{begun}.partial" and begun in known
    if not entry.is_file(follow_symlinks=False) or not (entry.name in known or is_partial):
        strange.append(os.path.relpath(entry.path, directory))
        return 0
    if is_partial:
        partial.append(pathlib.Path(entry.path))
    return _size(entry)


def _shard_files() -> set[str]:
    """Return the names that any shard's files may have, extra columns left out."""
    frames = {name for codec in codecs.CODECS.values() for name in codec.files()}
    columns = {f"{column}.npy" for column in store.COLUMNS}
    return {store.RECORD, store.SEGMENTS, store.FINALS, *frames, *columns}


def _all_in(work: pathlib.Path) -> tuple[int, list[str]]:
    """Sum the bytes of all files in a directory; list what is neither file nor directory, links included."""
    total, odd, places = 0, [], [work]
    while places:
        for entry in _entries(places.pop()):
            if entry.is_dir(follow_symlinks=False):
                places.append(pathlib.Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                total += _size(entry)
            else:
                odd.append(entry.path)
    return total, odd


def _entries(directory: pathlib.Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # it went meanwhile, or is another's
        return


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def check_removable(found: Inventory) -> None:
    """Refuse to remove what is no dataset, or more than one.

    Raises:
        DatasetNotFoundError: There is nothing of a dataset.
        ArgumentError: It is a link, or holds other files.
        PermissionError: It cannot be removed.
    """
    directory = found.directory
    if directory.is_symlink():
        raise ArgumentError(
            f"{directory} is a link to {os.readlink(directory)}; name that, or remove the link yourself"
        )
    if not found.is_ours:
        raise DatasetNotFoundError(f"{directory}: there is no dataset; nothing was removed")
    if found.strange:
        rest = len(found.strange) - 5
        names = ", ".join(found.strange[:5]) + (f" and {rest} more" if rest > 0 else "")
        raise ArgumentError(
            f"{directory} holds what is no dataset's: {names}; move that away first. Nothing was removed"
        )
    for place, _, _ in os.walk(directory):
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=_EFFECTIVE):
            raise PermissionError(f"{place}: nothing may be removed from there; nothing was removed")


def remove(directory: pathlib.Path) -> int:
    """Remove a dataset, whole or not: it loses its name first, so that no half of it ever bears it.

    Returns:
        The bytes freed.

    Raises:
        BusyError: Another process is writing it.
        DatasetNotFoundError, ArgumentError, PermissionError: As of `check_removable`.
    """
    found = take(directory)
    check_removable(found)  # before anything is made in it
    with building.at_rest(directory):
        found = take(directory)
        check_removable(found)
        aside = directory.with_name(f".{directory.name}.removed-{secrets.token_hex(4)}")
        os.rename(directory, aside)
        sync_directory(directory.parent)
        delete(aside)
    return found.bytes


def aside(directory: pathlib.Path, name: str | None = None) -> list[pathlib.Path]:
    """List what removals that were stopped left in a directory: of all names, or of one."""
    beginning = "." if name is None else f".{name}.removed-"
    return sorted(
        pathlib.Path(entry.path)
        for entry in _entries(directory)
        if entry.name.startswith(beginning)
        and _ASIDE.fullmatch(entry.name)
        and entry.is_dir(follow_symlinks=False)
    )


def size(directory: pathlib.Path) -> int:
    """Return the bytes of all files in a directory."""
    return _all_in(directory)[0]


def remove_if_empty(directory: pathlib.Path) -> None:
    """Remove a directory if there is nothing in it."""
    with contextlib.suppress(OSError):
        directory.rmdir()


def delete(directory: pathlib.Path) -> int:
    """Delete a directory, but nothing that links lead to; another process may be doing the same.

    Returns:
        The bytes freed.
    """
    total = size(directory)
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except FileNotFoundError:
            continue
    return total
