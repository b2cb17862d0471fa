"""Logs that are files of a file system, here or afar: how they are opened, and kept while they are needed."""

from __future__ import annotations

import abc
import io
import pathlib
from typing import TYPE_CHECKING

from atarirb.sources import transfer
from atarirb.sources.logs import Logs
from atarirb.sources.spool import Spool

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class StoredLogs(Logs):
    """Logs whose splits are files."""

    _filesystem: AbstractFileSystem
    _spool: Spool | None = None

    @abc.abstractmethod
    def paths(self, split: int) -> list[str]:
        """List the paths of a split's files."""

    def fetch_to(self, directory: pathlib.Path, keep: pathlib.Path | None) -> Spool | None:
        """Keep what comes from a remote store; nothing has to come of local files."""
        if not transfer.is_local(self._filesystem):
            self._spool = Spool(directory, self._filesystem, self.root or self.directory, keep)
        return self._spool

    def held(self, split: int) -> int:
        """Count the bytes of a split's files that have come."""
        return sum(self._spool.held(split, path) for path in self.paths(split)) if self._spool else 0

    def release(self, split: int) -> None:
        """Remove what came of a split."""
        if self._spool:
            self._spool.release(split)

    def _open(self, split: int, path: str) -> io.IOBase:
        if self._spool:
            return self._spool.open(split, path)
        return transfer.open_file(self._filesystem, path)

    def _changed(self, path: str, file: io.IOBase) -> str:
        return transfer.changed(self._filesystem, path, file)
