"""One object of a remote store, read in order over a network that may fail.

An object is fetched by ranges of some hundred kilobytes to a few megabytes, two of them under way at a time,
so that what is there can be worked on while more comes in. A connection that is dropped, or answers that it
is busy, is tried again after a growing, jittered delay, from the byte where it stopped, and given up when
nothing has come for as many tries as there are `DELAYS`.

Every answer says which *version* of the object it is of: a GCS generation, an ETag, or a time of change
(`Version`). One that is of another version than the first was raises `SourceChangedError`: the parts of two
are never joined. What was read whole is compared with the size and the CRC-32C or MD5 that the store tells.

A server without ranges sends the whole object, of which what is not wanted is dropped. The file
systems that `atarirb.sources.stores` makes have a `fetch`; of any other of fsspec's, ``cat_file`` and
``info`` are used.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import collections
import contextlib
import dataclasses
import email.utils
import functools
import hashlib
import io
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from atarirb.errors import AtarirbError, SourceChangedError, TransferError
from atarirb.jobs import Stopped
from atarirb.sources.failures import Refused, checking, wait

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

#: Seconds without a byte after which an answer is given up.
STALLED = 60.0
#: Requests under way at a time, over all objects.
REQUESTS = 16
#: Bytes of the first range: enough for the head of a small file, which may be all that is wanted.
HEAD_BYTES = 64 << 10
#: Bytes of a further range: a part of the object, within these bounds.
LEAST_BYTES, MOST_BYTES, PARTS = 256 << 10, 4 << 20, 64

_AHEAD = 2
_POLL = 0.1
_slots = threading.BoundedSemaphore(REQUESTS)


def is_local(filesystem: AbstractFileSystem) -> bool:
    """Tell whether a file system's files are this machine's."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(filesystem, LocalFileSystem)


def tries(filesystem: AbstractFileSystem) -> int:
    """Return how often to ask one that may have retries of its own, as ours have."""
    return 1 if hasattr(filesystem, "fetch") else 3


def where(filesystem: AbstractFileSystem, path: str) -> str:
    """Name an object as its URI."""
    return filesystem.unstrip_protocol(path)


def open_file(filesystem: AbstractFileSystem, path: str) -> io.RawIOBase:
    """Open a file for reading, from its beginning to its end.

    Local files are opened as they are. Seeking in one of a remote store begins a new transfer; only what is
    read from beginning to end without is compared with the store's checksum.

    Raises:
        SourceNotFoundError: There is no such file.
        SourceDeniedError: The store refuses to show it.
        TransferError: The store cannot be reached.
        SourceChangedError: While reading: it is another object now.
    """
    return filesystem.open(path, "rb") if is_local(filesystem) else _RemoteFile(filesystem, path)


def changed(filesystem: AbstractFileSystem, path: str, file: io.IOBase) -> str:
    """Say when a file that is open was changed last, or which version of it the store has."""
    return filesystem.modified(path).isoformat() if is_local(filesystem) else file.version.tag


@dataclasses.dataclass(frozen=True, kw_only=True)
class Version:
    """What a store says of an object.

    Attributes:
        size: Its bytes; None where it does not say.
        tag: What changes with its content; empty where nothing does but the size.
        crc32c: CRC-32C of its content, in base64; empty where it does not say.
        md5: MD5 of it, likewise.
    """

    size: int | None
    tag: str
    crc32c: str = ""
    md5: str = ""

    def same(self, other: Version) -> bool:
        """Tell whether two answers are of the same content."""
        return self.tag == other.tag and (None in (self.size, other.size) or self.size == other.size)

    @classmethod
    def of_headers(cls, headers: Any, size: int | None) -> Version:
        """Read the headers of an answer by HTTP: of Google Cloud Storage, or any server."""
        sums = dict.fromkeys(("crc32c", "md5"), "")
        for field in headers.getall("X-Goog-Hash", []):
            for part in field.split(","):
                name, _, value = part.strip().partition("=")
                sums[name] = value
        md5 = sums["md5"]
        if "Content-Range" not in headers:  # RFC 1864: else it is of the part
            md5 = md5 or headers.get("Content-MD5", "")
        etag, changed = headers.get("ETag", ""), headers.get("Last-Modified", "")
        tag = headers.get("X-Goog-Generation", "") or etag.removeprefix("W/") or changed
        return cls(size=size, tag=tag, crc32c=sums["crc32c"], md5=md5)

    @classmethod
    def of_info(cls, info: dict[str, Any]) -> Version:
        """Read what fsspec's ``info`` tells of a file."""
        names = (
            "generation",
            "VersionId",
            "ETag",
            "etag",
            "mtime",
            "LastModified",
            "last_modified",
            "created",
        )
        tag = next((str(info[name]) for name in names if info.get(name) not in (None, "", "null")), "")
        md5 = info.get("content_settings", {}).get("content_md5") or b""  # Azure's
        return cls(size=info.get("size"), tag=tag, md5=base64.b64encode(bytes(md5)).decode())


class Piece:
    """A range of an object on its way: the event loop puts bytes in, and a thread takes them out.

    Attributes:
        first: Number of its first byte.
        stop: Number of the byte after its last one.
    """

    def __init__(self, first: int, stop: int):
        self.first, self.stop = first, stop
        self.version: Version | None = None
        self.whole = False
        self._changed = threading.Condition()
        self._chunks: collections.deque[bytes] = collections.deque()
        self._held = 0
        self._latest = time.monotonic()
        self._error: BaseException | None = None
        self._ended = False

    # What an answer does.

    def begin(self, version: Version, *, whole: bool = False) -> None:
        """Say which version the answer is of; `whole` if it goes on to the object's end."""
        with self._changed:
            self.version, self.whole = version, whole
            self._latest = time.monotonic()
            self._changed.notify_all()

    def put(self, data: bytes) -> None:
        """Add bytes."""
        with self._changed:
            self._chunks.append(data)
            self._held += len(data)
            self._latest = time.monotonic()
            self._changed.notify_all()

    async def room(self) -> None:
        """Wait until not too much is held: of an answer that goes on and on."""
        while self._held > _AHEAD * MOST_BYTES:
            await asyncio.sleep(0.005)

    def end(self, error: BaseException | None = None) -> None:
        """Say that no more comes, and why if there should."""
        with self._changed:
            if not self._ended:
                self._error, self._ended = error, True
            self._changed.notify_all()

    # What a reader does.

    def take(self, check: Callable[[], None]) -> bytes:
        """Wait for bytes, and return all that are there; none at the end."""
        while True:
            with self._changed:
                if not self._chunks and not self._ended:
                    self._changed.wait(_POLL)
                if self._chunks:
                    data = b"".join(self._chunks)
                    self._chunks.clear()
                    self._held, self._latest = 0, time.monotonic()
                    return data
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    return b""
                if time.monotonic() - self._latest > STALLED:
                    raise TimeoutError(f"nothing came for {STALLED:g} seconds")
            check()


class _Fetching(Protocol):
    """A file system of ours: fetches a range by itself, inside its event loop."""

    async def fetch(self, path: str, piece: Piece) -> None: ...


async def fetch_by_http(answer: Any, piece: Piece) -> None:
    """Put what an answer to a request by HTTP, made with `range_header`, holds into the piece.

    Args:
        answer: aiohttp's ``ClientResponse``, inside its context; not decompressed.
        piece: The range.

    Raises:
        Refused: It is an error, or of another range.
    """
    given, _, total = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    size = int(total) if total.isdecimal() else None
    if answer.status == 416:  # at the object's end, or behind it
        piece.begin(Version.of_headers(answer.headers, size))
        return
    if answer.status >= 400:
        raise Refused(answer.status, answer.reason or "", retry_after(answer))
    skipped = 0
    if answer.status == 206:
        if int(given.partition("-")[0] or -1) != piece.first:
            raise Refused(502, f"the server sent bytes {given}, expected from {piece.first}")
    else:
        size, skipped = answer.content_length, piece.first
    piece.begin(Version.of_headers(answer.headers, size), whole=answer.status != 206)
    async for chunk in answer.content.iter_any():
        kept = chunk[skipped:]
        skipped -= len(chunk) - len(kept)
        if kept:
            piece.put(kept)
            if piece.whole:
                await piece.room()


def unhurried() -> Any:
    """Return aiohttp's time limits for an answer: it may take long, but not keep silent for long."""
    import aiohttp

    return aiohttp.ClientTimeout(total=None, sock_connect=STALLED / 2, sock_read=STALLED)


def range_header(piece: Piece) -> dict[str, str]:
    """Return the header that asks for a range."""
    return {"Range": f"bytes={piece.first}-{piece.stop - 1}"}


def retry_after(answer: Any) -> float | None:
    """Read in how many seconds a server wants to be asked again: it says seconds, or a date."""
    text = answer.headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


async def _fetch_async(filesystem: Any, path: str, piece: Piece) -> None:
    data = await filesystem._cat_file(path, start=piece.first, end=piece.stop)
    filesystem.invalidate_cache()
    piece.begin(Version.of_info(await filesystem._info(path)))
    piece.put(data)


def _fetch_blocking(filesystem: AbstractFileSystem, path: str, piece: Piece) -> None:
    data = filesystem.cat_file(path, start=piece.first, end=piece.stop)
    filesystem.invalidate_cache()
    piece.begin(Version.of_info(filesystem.info(path)))
    piece.put(data)


def _begin(filesystem: AbstractFileSystem, path: str, piece: Piece) -> Callable[[], object]:
    """Have a range fetched; return what calls that off."""
    if filesystem.async_impl:
        fetch = (
            filesystem.fetch if hasattr(filesystem, "fetch") else functools.partial(_fetch_async, filesystem)
        )

        async def run() -> None:
            try:
                await fetch(path, piece)
            except BaseException as error:
                piece.end(error)
                if not isinstance(error, Exception):
                    raise
            else:
                piece.end()

        future = asyncio.run_coroutine_threadsafe(run(), filesystem.loop)
        # Not when the coroutine ends: one that is called off early never begins.
        future.add_done_callback(lambda _: _slots.release())
        return future.cancel

    def call() -> None:
        try:
            _fetch_blocking(filesystem, path, piece)
        except BaseException as error:
            piece.end(error)
        else:
            piece.end()
        finally:
            _slots.release()

    # A daemon: one that hangs in a library must not keep the process from ending.
    threading.Thread(target=call, daemon=True, name="atarirb-fetch").start()
    return lambda: None


class Transfer:
    """An object's bytes in order, from one on.

    Args:
        filesystem: Where it is.
        path: Its path there.
        first: Number of the first byte wanted.
        version: The version they must be of; None for the one that is there.
        stop: Number of the byte after the last one wanted; None for all.

    Attributes:
        version: The version they are of; known when the first bytes are.
        at: Number of the next byte.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        path: str,
        *,
        first: int = 0,
        version: Version | None = None,
        stop: int | None = None,
    ):
        self.version, self.at = version, first
        self._filesystem, self._path, self._stop = filesystem, path, stop
        self._next = first
        self._pieces: collections.deque[tuple[Piece, Callable[[], object]]] = collections.deque()
        self._tries = 0
        self._over = False

    def take(self, check: Callable[[], None]) -> bytes:
        """Wait for bytes and return those that are there; none at the end.

        Args:
            check: Called now and then; may raise, to leave off.

        Raises:
            SourceChangedError: There is another object now.
            SourceNotFoundError: There is none any more.
            SourceDeniedError: The store refuses to show it.
            TransferError: The store cannot be reached, whatever was tried.
        """
        while not self._over:
            try:
                data = self._take(check)
            except Exception as error:
                if isinstance(error, (AtarirbError, Stopped)):
                    self.close()
                    raise
                if self._pieces:
                    _, call_off = self._pieces.popleft()
                    call_off()
                self._tries += 1
                wait(error, self._tries, where(self._filesystem, self._path), check)
                continue
            if data:
                self._tries = 0
                return data
        return b""

    def _take(self, check: Callable[[], None]) -> bytes:
        """Take bytes from the first piece; none when it is over."""
        if not self._pieces and self._end is not None and self.at >= self._end:
            self._over = True
            return b""
        self._top_up(check)
        piece, _ = self._pieces[0]
        data = piece.take(check)
        if piece.version is not None:
            if self.version is None:
                self.version = piece.version
            elif not self.version.same(piece.version):
                raise SourceChangedError(
                    f"{where(self._filesystem, self._path)}: changed while it was read; it begins afresh"
                )
        stop = self._end if self._stop is None or self._end is None else min(self._stop, self._end)
        wanted = None if stop is None else max(0, stop - self.at)
        if not piece.whole:
            wanted = piece.stop - self.at if wanted is None else min(wanted, piece.stop - self.at)
        data = data if wanted is None else data[:wanted]
        self.at += len(data)
        if not data:
            if wanted:
                raise ConnectionError(f"the answer ends {wanted:,} bytes too early")
            self._pieces.popleft()
            self._over = piece.whole or stop is None or self.at >= stop
        return data

    @property
    def _end(self) -> int | None:
        return self.version.size if self.version else None

    def _top_up(self, check: Callable[[], None]) -> None:
        """Have the next pieces fetched, as far as there is more to come and others leave room."""
        if not self._pieces:
            self._next = self.at
        if not self._pieces or self._pieces[0][0].first > self.at:  # what a piece that failed still lacked
            while not _slots.acquire(timeout=_POLL):
                check()
            stop = self._pieces[0][0].first if self._pieces else self._stop_of(self.at)
            self._pieces.appendleft(self._begun(self.at, stop))
            self._next = max(self._next, stop)
        if not self._pieces[0][0].first:  # the head, which may be all that is wanted
            return
        while len(self._pieces) < _AHEAD and self._end is not None and not self._pieces[0][0].whole:
            if self._next >= min(self._end, self._stop or self._end) or not _slots.acquire(blocking=False):
                return
            stop = self._stop_of(self._next)
            self._pieces.append(self._begun(self._next, stop))
            self._next = stop

    def _stop_of(self, first: int) -> int:
        size = self._end
        length = max(LEAST_BYTES, min(MOST_BYTES, (size or 0) // PARTS)) if first else HEAD_BYTES
        bounds = [bound for bound in (size, self._stop) if bound is not None and bound > first]
        return min([first + length, *bounds])

    def _begun(self, first: int, stop: int) -> tuple[Piece, Callable[[], object]]:
        """Have a piece fetched, for which there is a slot."""
        piece = Piece(first, stop)
        try:
            return piece, _begin(self._filesystem, self._path, piece)
        except BaseException:
            _slots.release()
            raise

    def close(self) -> None:
        """Call off what is on its way; `take` would begin it anew."""
        while self._pieces:
            _, call_off = self._pieces.popleft()
            call_off()


class Sums:
    """The checksum of an object's content, of the kind that its store tells.

    Args:
        version: What the store tells.
    """

    def __init__(self, version: Version):
        self._expected, self._sum = "", None
        if version.crc32c and (kind := _crc32c()) is not None:
            self._expected, self._sum, self._kind = version.crc32c, kind(), "CRC-32C"
        elif version.md5:
            self._expected, self._sum, self._kind = version.md5, hashlib.md5(usedforsecurity=False), "MD5"

    @property
    def known(self) -> bool:
        """The store tells one that can be worked out here."""
        return self._sum is not None

    def update(self, data: bytes) -> None:
        """Take in the next bytes."""
        if self._sum is not None:
            self._sum.update(data)

    def fault(self) -> str:
        """Say in what the content differs from what it must be; empty if in nothing."""
        if self._sum is None:
            return ""
        found = base64.b64encode(self._sum.digest()).decode()
        if found == self._expected:
            return ""
        return f"its {self._kind} is {found}, expected {self._expected} as the store says"


@functools.cache
def _crc32c() -> Callable[[], Any] | None:
    try:
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c.Checksum


def md5_of_hex(digest: str) -> str:
    """Return the base64 of an MD5 in hexadecimal digits; empty if it is none."""
    try:
        return base64.b64encode(bytes.fromhex(digest)).decode() if len(digest) == 32 else ""
    except (ValueError, binascii.Error):
        return ""


def fetch(
    filesystem: AbstractFileSystem, path: str, first: int, stop: int, version: Version | None = None
) -> tuple[bytes, Version]:
    """Fetch a few bytes of an object, and learn its version; raises as `Transfer.take`."""
    transfer = Transfer(filesystem, path, first=first, stop=stop, version=version)
    try:
        data = b"".join(iter(functools.partial(transfer.take, checking()), b""))
    finally:
        transfer.close()
    assert transfer.version is not None
    return data, transfer.version


class _RemoteFile(io.RawIOBase):
    """An object of a store as a file."""

    def __init__(self, filesystem: AbstractFileSystem, path: str):
        self._filesystem, self._path = filesystem, path
        self._transfer, self._check = Transfer(filesystem, path), checking()
        self._sums: Sums | None = None
        self._rest = memoryview(b"")
        self._fill()  # what is wrong with it is told when it is opened

    @property
    def version(self) -> Version:
        """The version that is read."""
        assert self._transfer.version is not None
        return self._transfer.version

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._transfer.at - len(self._rest)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self.version.size is None:
            raise io.UnsupportedOperation(f"{where(self._filesystem, self._path)}: its size is not known")
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self.version.size or 0}[whence]
        if at != self.tell():
            self._transfer.close()
            self._transfer = Transfer(self._filesystem, self._path, first=at, version=self.version)
            self._rest = memoryview(b"")
            self._sums = None
        return at

    def readinto(self, buffer: memoryview) -> int:
        if not self._rest:
            self._fill()
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def _fill(self) -> None:
        at, data = self._transfer.at, self._transfer.take(self._check)
        if not at:
            self._sums = Sums(self.version)
        if self._sums:
            self._sums.update(data)
            if not data and (fault := self._sums.fault()):
                raise TransferError(f"{where(self._filesystem, self._path)}: came damaged: {fault}")
        self._rest = memoryview(data)

    def close(self) -> None:
        self._transfer.close()
        super().close()
