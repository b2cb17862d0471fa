"""What came from a store, kept for as long as it is needed: nothing is fetched twice.

A split's files are read several times: their heads when it is surveyed, then whole, and the frames twice by
a codec that chooses templates first. So what comes is written to a file as it comes, and read from there; a
reader that is ahead of it has more fetched. Of each file there are::

    .<name>.partial     its bytes so far, from the first on; renamed to <name> when all are there and right
    .<name>.version     which object they are of (`Version`), as JSON; written before the first byte

A process that was killed leaves both, and the next one goes on there if the store still has that version.
Where another process is just fetching the same file, it is read without being kept.

They are in a directory below the dataset's, one for each split. All but their heads goes when its shard is
there, and the rest at the end; or, where the files shall be kept (``keep``), they are below that directory by
the paths they have below the source's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import logging
import os
import pathlib
import posixpath
import shutil
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from atarirb.errors import SourceChangedError, TransferError
from atarirb.sources import transfer
from atarirb.sources.failures import checking
from atarirb.sources.transfer import Sums, Transfer, Version, fetch, open_file, where

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

_READ_BYTES = 1 << 20
#: Of a file whose checksum the store does not tell: gzip has one of its content at its end.
_TAIL_BYTES = 1 << 10


class Spool:
    """The files of a source that came so far.

    Args:
        directory: Where they are; made if need be.
        filesystem: Where they come from.
        source: The source's directory there.
        keep: Where they shall stay, or None: they go with `release`.

    Attributes:
        keep: As given.
        on_bytes: Called with the count of bytes after each that came; None for nothing.
    """

    def __init__(
        self, directory: pathlib.Path, filesystem: AbstractFileSystem, source: str, keep: pathlib.Path | None
    ):
        self.on_bytes: Callable[[int], None] | None = None
        self._directory, self.keep = directory, keep
        self._filesystem, self._source = filesystem, source.rstrip("/")
        self._files: dict[str, _File] = {}
        self._splits: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:  # another process opens its files itself
        return self.__dict__ | {"on_bytes": None, "_files": {}, "_splits": {}, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock = threading.Lock()

    def open(self, split: int, path: str) -> io.RawIOBase:
        """Open a file of a split for reading; raises as `transfer.open_file`."""
        with self._lock:
            if path not in self._files:
                self._files[path] = _File(
                    self, self._filesystem, path, self._place(split, path), self.keep is not None
                )
                self._splits.setdefault(split, []).append(path)
            file = self._files[path]
        return file.open()

    def held(self, split: int, path: str) -> int:
        """Count the bytes of a file that are there, as far as one can tell without asking the store."""
        place = self._place(split, path)
        for there in (place, _partial(place)):
            with contextlib.suppress(OSError):
                return there.stat().st_size
        return 0

    def release(self, split: int) -> None:
        """Remove what came of a split, but for the heads of its files; its readers read on.

        The heads are a part of thousands, and what the next call needs to see that the shard is still right.
        """
        with self._lock:
            files = [self._files.pop(path) for path in self._splits.pop(split, [])]
        for file in files:
            file.call_off()
            if self.keep is None:
                file.cut()

    def tidy(self) -> None:
        """Leave off fetching, and remove directories in which nothing is."""
        for file in list(self._files.values()):
            file.call_off()
        for directory in [*self._directory.glob("*"), self._directory]:
            with contextlib.suppress(OSError):
                directory.rmdir()

    def remove(self) -> None:
        """Remove all that shall not be kept, and what came in part."""
        for file in list(self._files.values()):
            file.call_off(forget=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _of(self, split: int) -> pathlib.Path:
        return self._directory / f"{split:05d}"

    def _place(self, split: int, path: str) -> pathlib.Path:
        below = path.removeprefix(f"{self._source}/")
        if below == path:
            below = posixpath.basename(path)
        if self.keep is None:
            return self._of(split) / below.replace("%", "%25").replace("/", "%2F")
        return self.keep / below

    def came(self, count: int) -> None:
        """Tell how many bytes have come."""
        if self.on_bytes is not None:
            self.on_bytes(count)


def _partial(place: pathlib.Path) -> pathlib.Path:
    return place.with_name(f".{place.name}.partial")


class _File:
    """One file that comes or has come. All is done under its lock, by whichever reader needs it."""

    def __init__(
        self,
        spool: Spool,
        filesystem: AbstractFileSystem,
        path: str,
        place: pathlib.Path,
        kept: bool,
    ):
        self.version: Version | None = None
        self.lock = threading.RLock()
        self._spool, self._filesystem, self._path = spool, filesystem, path
        self._place, self._partial = place, _partial(place)
        self._record = place.with_name(f".{place.name}.version")
        self._kept = kept
        self._whole = False
        self._extent = 0
        self._descriptor = -1
        self._readers = 0
        self._transfer: Transfer | None = None

    def open(self) -> io.RawIOBase:
        with self.lock:
            self._readers += 1
            reader = _Reader(self)
            try:
                if self._readers == 1 and not self._begin():
                    reader.close()
                    return open_file(self._filesystem, self._path)
                if not self._extent and not self._whole:
                    self.more(reader.check)  # what is wrong with it is told when it is opened
            except BaseException:
                reader.close()
                raise
            return reader

    def close(self) -> None:
        """Count a reader off; what is on its way then is for the next one."""
        with self.lock:
            self._readers -= 1
            if not self._readers:
                self._end()

    def read(self, at: int, buffer: memoryview, check: Callable[[], None]) -> int:
        """Read bytes, and have them fetched if they are not there yet."""
        with self.lock:
            while at == self._extent and not self._whole:
                self.more(check)
            if at > self._extent and not self._whole:  # far ahead: the end, of which a fingerprint is made
                stop = min(at + len(buffer), self.size(at + len(buffer)))
                data, _ = (
                    fetch(self._filesystem, self._path, at, stop, self.version) if at < stop else (b"", 0)
                )
                buffer[: len(data)] = data
                return len(data)
            count = max(0, min(len(buffer), self._extent - at))
            return os.preadv(self._descriptor, [buffer[:count]], at)

    def size(self, otherwise: int) -> int:
        size = self.version.size if self.version else None
        return otherwise if size is None else size

    def more(self, check: Callable[[], None]) -> None:
        """Fetch more and keep it; what is wrong with all of it is found out at its end."""
        if self._transfer is None:
            self._transfer = Transfer(self._filesystem, self._path, first=self._extent, version=self.version)
        data = self._transfer.take(check)
        if self.version is None:
            assert self._transfer.version is not None
            self.version = self._transfer.version
            self._note()
        if not data:
            self._finish()
            return
        view = memoryview(data)
        while view:
            view = view[os.pwrite(self._descriptor, view, self._extent + len(data) - len(view)) :]
        self._extent += len(data)
        self._spool.came(len(data))

    def _begin(self) -> bool:
        """Open what is there of it, if the store still has it; tell whether it is ours to write."""
        if self._whole:
            with contextlib.suppress(FileNotFoundError):
                self._descriptor = os.open(self._place, os.O_RDONLY)
                return True
            self._whole, self._extent = False, 0
        self._place.parent.mkdir(parents=True, exist_ok=True)
        if self.version is None and self._take_whole():
            return True
        descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        there, noted = os.fstat(descriptor).st_size, self._noted()
        if self.version is not None:  # opened before: only another process can have changed what is there
            good = noted is not None and noted.same(self.version) and there >= self._extent
            self._extent = self._extent if good else 0
        else:
            good = there > 0 and noted is not None and self._current(noted)
            self._extent = there if good else 0
        os.ftruncate(descriptor, self._extent)
        return True

    def _take_whole(self) -> bool:
        """Take a file that came whole before, if it is what the store has."""
        try:
            descriptor = os.open(self._place, os.O_RDONLY)
        except FileNotFoundError:
            return False
        size = os.fstat(descriptor).st_size
        self.version, noted = None, self._noted()
        _, version = fetch(self._filesystem, self._path, 0, 1)
        good = version.size in (None, size)
        if good and noted is not None:
            good = noted.same(version)
        elif good:  # of an earlier ingest, or put there by someone
            sums = Sums(version)
            if sums.known:
                good = not self._fault(descriptor, sums)
            else:
                first = max(0, size - _TAIL_BYTES)
                tail, _ = fetch(self._filesystem, self._path, first, size, version)
                good = tail == os.pread(descriptor, _TAIL_BYTES, first)
        if not good:
            os.close(descriptor)
            self._place.unlink()
            return False
        self.version, self._descriptor, self._extent, self._whole = version, descriptor, size, True
        return True

    def _current(self, noted: Version) -> bool:
        """Ask whether the store still has what is there in part."""
        _, version = fetch(self._filesystem, self._path, 0, 1)
        if not noted.same(version) or not (version.tag or version.crc32c or version.md5):
            _log.info("%s: is another file now; it begins afresh", where(self._filesystem, self._path))
            return False
        self.version = version
        return True

    def _finish(self) -> None:
        """Check what is all there now, and give it its name."""
        assert self.version is not None
        name = where(self._filesystem, self._path)
        if self.version.size not in (None, self._extent):
            raise TransferError(f"{name}: {self._extent:,} bytes came, expected {self.version.size:,}")
        if fault := self._fault(self._descriptor, Sums(self.version)):
            os.ftruncate(self._descriptor, 0)
            self._extent = 0
            raise SourceChangedError(f"{name}: came damaged, or was put together from two: {fault}")
        os.rename(self._partial, self._place)
        if self._kept:
            self._record.unlink(missing_ok=True)
        self._whole = True

    def _fault(self, descriptor: int, sums: Sums) -> str:
        at = 0
        while sums.known and (data := os.pread(descriptor, _READ_BYTES, at)):
            sums.update(data)
            at += len(data)
        return sums.fault()

    def _note(self) -> None:
        assert self.version is not None
        temporary = self._record.with_name(f"{self._record.name}.new")
        noted = {"source": where(self._filesystem, self._path), **dataclasses.asdict(self.version)}
        temporary.write_text(json.dumps(noted))
        os.replace(temporary, self._record)

    def _noted(self) -> Version | None:
        try:
            noted = json.loads(self._record.read_text())
            source = noted.pop("source")
            return Version(**noted) if source == where(self._filesystem, self._path) else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def call_off(self, *, forget: bool = False) -> None:
        """Leave off fetching; forget what came in part, if it shall not be gone on with."""
        with self.lock:
            if self._transfer is not None:
                self._transfer.close()
                self._transfer = None
            if forget and not self._whole:
                for path in (self._partial, self._record):
                    path.unlink(missing_ok=True)

    def cut(self) -> None:
        """Leave only the head of what came."""
        with self.lock:
            there = self._place if self._whole else self._partial
            try:
                if there.stat().st_size <= transfer.HEAD_BYTES:
                    return
                with open(there, "rb") as file:
                    head = file.read(transfer.HEAD_BYTES)
            except FileNotFoundError:  # another process was as far
                return
            temporary = self._partial.with_name(f"{self._partial.name}.new")
            temporary.write_bytes(head)
            self._place.unlink(missing_ok=True)
            os.replace(temporary, self._partial)

    def _end(self) -> None:
        owned = self._descriptor >= 0
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if not self._extent and not self._whole and owned:
            for path in (self._partial, self._record):
                path.unlink(missing_ok=True)


class _Reader(io.RawIOBase):
    """A file that comes, read from here."""

    def __init__(self, file: _File):
        self._file, self._at = file, 0
        self.check = checking()

    @property
    def version(self) -> Version:
        """The version that is read."""
        assert self._file.version is not None
        return self._file.version

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size(0)}[whence]
        self._at = offset + base
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        count = self._file.read(self._at, memoryview(buffer).cast("B"), self.check)
        self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()
