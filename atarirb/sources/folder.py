"""A directory of a source, listed once when it is first asked for."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING

from atarirb.errors import ArgumentError, LogError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class Folder:
    """A directory on any file system.

    Listing one can take many requests where it holds thousands of objects, so nothing is listed twice, and
    no directory below it before someone looks for something there.

    Args:
        filesystem: Where it is.
        path: Its path there, without the protocol.
    """

    def __init__(self, filesystem: AbstractFileSystem, path: str):
        self.filesystem = filesystem
        self.path = path.rstrip("/") or "/"
        self._below: dict[str, Folder] = {}

    @property
    def name(self) -> str:
        """The last part of its path."""
        return posixpath.basename(self.path)

    @functools.cached_property
    def _entries(self) -> dict[str, tuple[bool, int]]:
        entries = {}
        for entry in self.filesystem.ls(self.path, detail=True):
            name = posixpath.basename(entry["name"].rstrip("/"))
            if entry["name"].rstrip("/") != self.path.rstrip("/"):  # stores may list a directory in itself
                is_folder = entry["type"] == "directory"
                if entry["type"] == "other":  # a link, whose aim counts
                    is_folder = self.filesystem.isdir(entry["name"])
                entries[name] = (is_folder, entry["size"] or 0)
        return dict(sorted(entries.items()))

    @property
    def files(self) -> dict[str, int]:
        """Bytes of the files in it, by name, sorted."""
        return {name: size for name, (is_folder, size) in self._entries.items() if not is_folder}

    @property
    def folders(self) -> list[str]:
        """Names of the directories in it, sorted."""
        return [name for name, (is_folder, _) in self._entries.items() if is_folder]

    @property
    def numbered(self) -> list[str]:
        """Names of the directories in it that are numbers, rising."""
        return sorted((name for name in self.folders if name.isdecimal()), key=int)

    def at(self, name: str) -> str:
        """Return the path of what has this name in it."""
        return posixpath.join(self.path, name)

    def below(self, name: str) -> Folder:
        """Return a directory in it."""
        if name not in self._below:
            self._below[name] = Folder(self.filesystem, self.at(name))
        return self._below[name]

    def holds(self, name: str) -> bool:
        """Tell whether there is a directory of this name in it."""
        return name in self.folders

    @functools.cached_property
    def parent(self) -> Folder:
        """The directory it is in."""
        return Folder(self.filesystem, posixpath.dirname(self.path))

    def check_run(self, run: int | None) -> None:
        """Refuse the number of another run than the one this directory is of.

        Raises:
            ArgumentError: It is.
        """
        if run is not None and self.name != str(run):
            raise ArgumentError(f"run is {run}, but {self.path} holds one run: leave it out")

    def mixed(self, found: Iterable[tuple[str, str]]) -> LogError:
        """Make the error that there are files of several layouts, given each's name and directory."""
        layouts = " and ".join(f"{layout} ({directory})" for layout, directory in found)
        return LogError(
            f"{self.path} holds files of several layouts: {layouts}; give each a directory of its own"
        )
