"""Snapshots of a ring buffer in files of one column each, gzipped or not, on any file system."""

from __future__ import annotations

import io
import pathlib
import posixpath
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from atarirb.errors import LogError
from atarirb.sources import transfer
from atarirb.sources.gzipped import GZIP_MAGIC, NpyStream
from atarirb.sources.logs import RingLogs
from atarirb.sources.spool import Spool

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class FileLogs(RingLogs):
    """Replay logs whose columns are ``.npy`` files, one for each column of a split.

    Args:
        filesystem: Where they are.
        directory: Their directory.
        files: Paths of each split's files, by column.
        sizes: Bytes of each file, by path.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        directory: str,
        files: Mapping[int, Mapping[str, str]],
        sizes: Mapping[str, int],
    ):
        super().__init__(directory, files)
        self._filesystem = filesystem
        self._sizes = sizes
        self._spool: Spool | None = None

    def fetch_to(self, directory: pathlib.Path, keep: pathlib.Path | None) -> Spool | None:
        """Keep what comes from a remote store; nothing has to come of local files."""
        if not transfer.is_local(self._filesystem):
            self._spool = Spool(directory, self._filesystem, self.root or self.directory, keep)
        return self._spool

    def held(self, split: int) -> int:
        """Count the bytes of a split's files that have come."""
        return (
            sum(self._spool.held(split, path) for path in self._files[split].values()) if self._spool else 0
        )

    def release(self, split: int) -> None:
        """Remove what came of a split."""
        if self._spool:
            self._spool.release(split)

    def _open(self, split: int, path: str) -> io.IOBase:
        if self._spool:
            return self._spool.open(split, path)
        return transfer.open_file(self._filesystem, path)

    def _changed(self, path: str, file: io.IOBase) -> str:
        if transfer.is_local(self._filesystem):
            return self._filesystem.modified(path).isoformat()
        return file.version.tag

    def size(self, split: int) -> int:
        """Return the bytes of a split's files."""
        return sum(self._sizes[path] for path in self._files[split].values())

    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's files do, by column.

        Of a gzip stream its size and last 8 bytes, the checksum and length of what it holds. Of a
        file that came decompressed its size and time of change.
        """
        marks = {}
        for name, path in sorted(self._files[split].items()):
            size = self._sizes[path]
            with self._open(split, path) as file:
                if file.read(2) == GZIP_MAGIC:
                    file.seek(max(0, size - 8))
                    mark = file.read(8).hex()
                else:
                    mark = self._changed(path, file)
            marks[name] = f"{size}:{mark}"
        return marks

    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> NpyStream:
        """Open a column of a split.

        Raises:
            LogError: The split has no such column, or the file cannot be read.
        """
        path = self._files[split].get(column)
        if path is None:
            raise LogError(
                f"split {split} has no {self.file_name(split, column)} in {self.directory}; "
                f"it has {', '.join(sorted(self._files[split]))}"
            )
        return NpyStream(self._open(split, path), posixpath.basename(path), on_bytes)
