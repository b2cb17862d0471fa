"""Directories on web servers: files by HTTP, names from the index pages that servers show.

Paths are URLs with nothing quoted, so that names look as on any other store; each request quotes them.
"""

from __future__ import annotations

import asyncio
import html.parser
import urllib.parse
from typing import Any

import yarl
from fsspec.asyn import sync_wrapper
from fsspec.implementations.http import HTTPFileSystem

from atarirb.sources.failures import Refused, persist
from atarirb.sources.transfer import Piece, fetch_by_http, range_header, retry_after, unhurried

_PLAIN = {"Accept-Encoding": "identity"}
_AT_A_TIME = 16


class Site(HTTPFileSystem):
    """A web server's files."""

    def encode_url(self, url: str) -> yarl.URL:
        """Quote a path."""
        return yarl.URL(_quoted(url), encoded=True)

    async def fetch(self, path: str, piece: Piece) -> None:
        """Fetch a range, inside the event loop."""
        async with await self._get(path, range_header(piece)) as answer:
            await fetch_by_http(answer, piece)

    async def _get(self, path: str, headers: dict[str, str], method: str = "GET") -> Any:
        session = await self.set_session()
        options = {"timeout": unhurried(), **self.kwargs}
        headers = {**options.pop("headers", {}), **_PLAIN, **headers}
        return await session.request(
            method, self.encode_url(path), headers=headers, auto_decompress=False, **options
        )

    async def _info(self, url: str, **_: Any) -> dict[str, Any]:
        return await persist(lambda: self._head(url))

    async def _head(self, url: str) -> dict[str, Any]:
        async with await self._get(url, {}, "HEAD") as answer:
            headers, code = answer.headers, answer.status
            size = answer.headers.get("Content-Length")
        if code == 405 or (code < 400 and size is None):  # some servers answer only what they send
            async with await self._get(url, {"Range": "bytes=0-0"}) as answer:
                headers, code = answer.headers, answer.status
                size = headers.get("Content-Range", "").partition("/")[2] or headers.get("Content-Length")
        _refuse(answer, url)
        return {
            "name": url,
            "type": "file",
            "size": int(size) if size and size.isdecimal() else None,
            "ETag": headers.get("ETag", ""),
            "LastModified": headers.get("Last-Modified", ""),
        }

    async def _names(self, directory: str) -> list[str]:
        async with await self._get(f"{directory}/", {}) as answer:
            _refuse(answer, directory)
            if answer.content_type != "text/html":
                raise FileNotFoundError(directory)  # it is a file
            page = _Links(str(answer.url))
            page.feed((await answer.read()).decode(errors="replace"))
        return sorted(page.names)

    async def _ls(self, url: str, detail: bool = True, **_: Any) -> list[Any]:
        """List what the index page of a directory names, each with its size if `detail`."""
        directory = url.rstrip("/")
        names = await persist(lambda: self._names(directory))
        if not detail:
            return [f"{directory}/{name.rstrip('/')}" for name in names]
        places = asyncio.Semaphore(_AT_A_TIME)

        async def described(name: str) -> dict[str, Any]:
            path = f"{directory}/{name.rstrip('/')}"
            if name.endswith("/"):
                return {"name": path, "size": 0, "type": "directory"}
            async with places:
                return await self._info(path)

        return list(await asyncio.gather(*map(described, names)))

    ls = sync_wrapper(_ls)

    async def _isdir(self, path: str) -> bool:
        try:
            await self._ls(path, detail=False)
        except FileNotFoundError:
            return False
        return True

    async def _exists(self, path: str, **_: Any) -> bool:
        try:
            await self._info(path)
        except FileNotFoundError:
            return False
        return True


def _refuse(answer: Any, url: str) -> None:
    if answer.status in (404, 410):
        raise FileNotFoundError(url)
    if answer.status >= 400:
        raise Refused(answer.status, url, retry_after(answer))


def unquoted(url: str) -> str:
    """Return a URL's path as `Site` names it."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{urllib.parse.unquote(path)}"


def _quoted(url: str) -> str:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash or '/'}{urllib.parse.quote(path, safe='/')}"


class _Links(html.parser.HTMLParser):
    """The names of what is directly below a page's directory, those of directories with a slash."""

    def __init__(self, page: str):
        super().__init__()
        self._page = page
        self._directory = urllib.parse.unquote(urllib.parse.urlsplit(page).path)
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        link = dict(attributes).get("href")
        if tag != "a" or not link:
            return
        target = urllib.parse.urlsplit(urllib.parse.urljoin(self._page, link))
        path = urllib.parse.unquote(target.path)
        if target.query or target.netloc != urllib.parse.urlsplit(self._page).netloc:
            return  # the index sorted otherwise, or another server
        name = path.removeprefix(self._directory)
        if path.startswith(self._directory) and name.strip("/") and "/" not in name.rstrip("/"):
            self.names.add(name)
