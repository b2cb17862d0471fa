"""Rm: datasets are removed."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from atarirb import home
from atarirb.errors import ArgumentError, BusyError, DatasetNotFoundError
from atarirb.store import building, inventory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """A dataset that was removed, or would be.

    Attributes:
        name: As it was named.
        path: Its directory.
        what: "dataset", "recording", "unfinished" or "damaged"; or "remains" of a removal that was stopped.
        bytes: Bytes freed.
    """

    name: str
    path: str
    what: str
    bytes: int


def rm(*names: str | os.PathLike[str], dry_run: bool = False) -> tuple[Removed, ...]:
    """Remove datasets, with all that is half-written in them; of a recording its journals too.

    Each loses its name first and is deleted then. If that is stopped, the same call goes on with it, as
    `atarirb.prune` does. A reader that is open goes on with what it has mapped.

    Nothing but a dataset is removed: a directory that holds any other file, or a link, is refused, and so is
    a link to a dataset. All that are named are looked at before the first is removed.

    Args:
        *names: Datasets, by name in the home or by path.
        dry_run: Only tell what would be removed.

    Returns:
        What was removed.

    Raises:
        DatasetNotFoundError: There is none of that name.
        ArgumentError: It is a link, or holds other files; the message names them.
        BusyError: Another process is writing it.
        PermissionError: It may not be removed.
    """
    if not names:
        raise ArgumentError("no dataset is named, expected one or more")
    planned = {}
    for name in names:
        directory, remains = _found(name)
        if directory is not None:
            planned[os.path.abspath(directory)] = _checked(name, directory)
        planned |= {
            str(path): Removed(
                name=os.fspath(name), path=str(path), what="remains", bytes=inventory.size(path)
            )
            for path in remains
        }
    if dry_run:
        return tuple(planned.values())
    return tuple(_remove(one) for one in planned.values())


def _found(name: str | os.PathLike[str]) -> tuple[pathlib.Path | None, list[pathlib.Path]]:
    """Find a dataset's directory, and what removals of it that were stopped left beside it."""
    text, missing = os.fspath(name), None
    if not text:
        raise ArgumentError("'' names no dataset")
    try:
        places = [home.locate(text)]
        if not os.path.lexists(places[0]):
            missing = DatasetNotFoundError(f"no dataset at {text!r}: there is nothing")
    except DatasetNotFoundError as error:
        places, missing = [pathlib.Path(text), home.place(text)], error
    places = [pathlib.Path(os.path.abspath(place)) for place in places]
    remains = [path for place in places for path in inventory.aside(place.parent, place.name)]
    if missing and not remains:
        raise missing
    return (None if missing else places[0]), remains


def _checked(name: str | os.PathLike[str], directory: pathlib.Path) -> Removed:
    found = inventory.take(directory)
    inventory.check_removable(found)
    if any(building.is_locked(directory / work) for work in found.work):
        raise BusyError(f"{directory}: another process is writing this dataset; nothing was removed")
    whole = "damaged" if found.damage else "dataset" if found.manifest else "unfinished"
    return Removed(
        name=os.fspath(name),
        path=str(directory),
        what="recording" if found.is_recording else whole,
        bytes=found.bytes,
    )


def _remove(one: Removed) -> Removed:
    directory = pathlib.Path(one.path)
    freed = (inventory.delete if one.what == "remains" else inventory.remove)(directory)
    if directory.parent.parent == home.home():
        inventory.remove_if_empty(directory.parent)
    return dataclasses.replace(one, bytes=freed)
