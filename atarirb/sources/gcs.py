"""Google Cloud Storage, by gcsfs.

gcsfs' own class is used, not the one it registers, which asks over another protocol for the kind of each
bucket first: where that port is not open, as on every emulator, each first access waits for a minute.
"""

from __future__ import annotations

from typing import Any

from gcsfs.core import GCSFileSystem

from atarirb.sources.failures import persist
from atarirb.sources.transfer import Piece, fetch_by_http, range_header, unhurried

#: gcsfs' own without its retries: they wait half a minute where nothing can be reached, and log tracebacks.
_REQUEST = GCSFileSystem._request.__wrapped__


class Bucket(GCSFileSystem):
    """Buckets: gcsfs, without retries of its own within ours, and with ranges as `Transfer` wants them.

    ``STORAGE_EMULATOR_HOST`` is honoured.
    """

    async def _request(self, *arguments: Any, **options: Any) -> Any:
        return await persist(lambda: _REQUEST(self, *arguments, **options))

    async def fetch(self, path: str, piece: Piece) -> None:
        """Fetch a range, inside the event loop."""
        session = await self._set_session()
        # An object that is kept gzipped comes as it is kept: its size and checksums are of that.
        headers = self._get_headers({**range_header(piece), "Accept-Encoding": "gzip"})
        async with session.get(
            self.url(path),
            params=self._get_params({}),
            headers=headers,
            auto_decompress=False,
            timeout=unhurried(),
        ) as answer:
            await fetch_by_http(answer, piece)
