"""Prune: what stopped work left in the home is removed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator

from atarirb import home
from atarirb.errors import AtarirbError, BusyError
from atarirb.store import building, inventory
from atarirb.verbs.datasets import places


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruned:
    """Something that was removed, or would be.

    Attributes:
        path: The file or directory.
        what: What it is.
        bytes: Bytes freed.
    """

    path: str
    what: str
    bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pruning:
    """What `prune` did.

    Attributes:
        removed: What was removed; with `dry_run`, what would be.
        skipped: Why a dataset was left alone, by path.
        bytes: Bytes freed in all.
    """

    removed: tuple[Pruned, ...]
    skipped: dict[str, str]
    bytes: int


def prune(*, unfinished: bool = False, dry_run: bool = False) -> Pruning:
    """Remove what stopped work left in the home: of ingests and downloads, and of removals.

    Datasets stay what they are. What a recorder left is data, and stays. What another process is writing is
    left alone, and so is a dataset in which there is what is not ours, or that is reached by a link.

    Args:
        unfinished: Also remove datasets that were never finished, with the shards that they have: without
            it, the same download goes on with those.
        dry_run: Only tell what would be removed.

    Returns:
        What was removed, and what was left alone.
    """
    removed: list[Pruned] = []
    skipped: dict[str, str] = {}
    for _, directory in places(links=False):
        try:
            removed += _pruned(directory, unfinished, dry_run)
        except (AtarirbError, OSError) as error:
            skipped[str(directory)] = str(error)
    top = home.home()
    games = [
        path for path in (top.iterdir() if top.is_dir() else ()) if path.is_dir() and not path.is_symlink()
    ]
    for game in games:
        for path in inventory.aside(game):
            try:
                size = inventory.size(path) if dry_run else inventory.delete(path)
                removed.append(Pruned(path=str(path), what="a removal that was stopped", bytes=size))
            except OSError as error:
                skipped[str(path)] = str(error)
        if not dry_run:
            inventory.remove_if_empty(game)
    return Pruning(removed=tuple(removed), skipped=skipped, bytes=sum(one.bytes for one in removed))


def _pruned(directory: pathlib.Path, unfinished: bool, dry_run: bool) -> Iterator[Pruned]:
    """Prune one directory, yielding what is removed from it."""
    found = inventory.take(directory)
    if not found.is_ours:
        return
    if any(building.is_locked(directory / work) for work in found.work):
        raise BusyError(f"{directory}: another process is writing this dataset")
    whole = bool(found.manifest or found.damage or found.is_recording)
    if unfinished and not whole:
        inventory.check_removable(found)
        freed = found.bytes if dry_run else inventory.remove(directory)
        yield Pruned(path=str(directory), what="a dataset that was not finished", bytes=freed)
        return
    left = [directory / name for name in found.work if name != building.RECORDING]
    if not left and not found.partial:
        return
    inventory.check_removable(found)
    with contextlib.ExitStack() as stack:
        if not dry_run:
            stack.enter_context(building.at_rest(directory))
        for path in left:
            if not dry_run and path.name == building.WORK:
                building.clear(path)  # its lock is held, and goes last
            elif not dry_run:
                inventory.delete(path)
            yield Pruned(path=str(path), what="work that was stopped", bytes=found.work[path.name])
        for path in found.partial:
            size = os.stat(path).st_size
            if not dry_run:
                path.unlink()
            yield Pruned(path=str(path), what="a file that was being written", bytes=size)
    if not dry_run:
        inventory.remove_if_empty(directory)
