"""Snapshots of a ring buffer in files of one column each, gzipped or not, on any file system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from atarirb.errors import LogError
from atarirb.sources.gzipped import GZIP_MAGIC, NpyStream
from atarirb.sources.logs import RingLogs
from atarirb.sources.stored import StoredLogs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class FileLogs(RingLogs, StoredLogs):
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

    def part(self, split: int) -> FileLogs:
        """Return the same logs without the paths and sizes of other splits' files."""
        part = cast(FileLogs, super().part(split))
        part._sizes = {path: self._sizes[path] for path in self._files[split].values()}
        return part

    def paths(self, split: int) -> list[str]:
        """List the paths of a split's files."""
        return list(self._files[split].values())

    def size(self, split: int) -> int:
        """Return the bytes of a split's files."""
        return sum(self._sizes[path] for path in self._files[split].values())

    def files(self, split: int) -> int:
        """Return the number of a split's files."""
        return len(self._files[split])

    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's files do, by column.

        Of a gzip stream its size and last 8 bytes, the checksum and length of what it holds. Of a
        file that came decompressed its size and time of change.
        """
        return {name: self._mark(split, path) for name, path in sorted(self._files[split].items())}

    def _mark(self, split: int, path: str) -> str:
        size = self._sizes[path]
        with self._open(split, path) as file:
            if file.read(2) == GZIP_MAGIC:
                file.seek(max(0, size - 8))
                return f"{size}:{file.read(8).hex()}"
            return f"{size}:{self._changed(path, file)}"

    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> NpyStream:
        """Open a column of a split.

        Raises:
            LogError: The split has no such column, or the file cannot be read.
        """
        path = self._path(split, column)
        return NpyStream(self._open(split, path), self.file_name(split, column), on_bytes)

    def _path(self, split: int, column: str) -> str:
        path = self._files[split].get(column)
        if path is None:
            raise LogError(
                f"split {split} has no {self.file_name(split, column)} in {self.directory}; "
                f"it has {', '.join(sorted(self._files[split])) or 'nothing'}"
            )
        return path
