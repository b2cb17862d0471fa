"""What goes wrong between here and a store: what to try again, how long to wait, what to say of the rest."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import itertools
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from atarirb import catalog
from atarirb.errors import AtarirbError, SourceDeniedError, SourceNotFoundError, TransferError
from atarirb.jobs import Stopped

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

#: Seconds to wait before each further try, less up to half of it by chance; as many tries are made.
DELAYS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
#: Most seconds waited because a store says so.
MOST_DELAY = 60.0

#: Calls of what asks for a listing or the like: what is not there, or no network, shall be known soon.
_TRIES = 4
_POLL = 0.1
_chance = random.SystemRandom()
_stop: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("stop", default=None)

#: Packages whose errors without a status are of the network.
_LIBRARIES = {"aiohttp", "aiobotocore", "botocore", "google", "requests", "urllib3", "socket", "ssl"}


@contextlib.contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """Let what is opened by this thread meanwhile raise `Stopped` in its waits once the event is set."""
    token = _stop.set(event)
    try:
        yield
    finally:
        _stop.reset(token)


class Refused(Exception):
    """A server's answer is an error.

    Attributes:
        status: The status by HTTP.
        retry_after: Seconds after which it wants to be asked again; None where it does not say.
    """

    def __init__(self, status: int, reason: str = "", retry_after: float | None = None):
        super().__init__(f"{status} {reason}".strip())
        self.status = status
        self.retry_after = retry_after


async def persist(call: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Await what `call` returns, and again a few times if that fails as it may the next time not."""
    for count in itertools.count(1):
        try:
            return await call()
        except Exception as error:
            if count >= _TRIES or not is_transient(error):
                raise
            await doze(_delay(error, count))
    raise AssertionError


def patiently(call: Callable[[], _Answer], name: str, tries: int = _TRIES) -> _Answer:
    """Call something that asks a store, and again if that fails as it may the next time not.

    Args:
        call: What to call.
        name: Of what is asked for, for messages.
        tries: Most calls.

    Raises:
        SourceNotFoundError: There is no such thing.
        SourceDeniedError: The store refuses to show it.
        TransferError: The store cannot be reached.
    """
    check = checking()
    for count in range(1, tries + 1):
        try:
            return call()
        except (AtarirbError, Stopped):
            raise
        except Exception as error:
            wait(error, count, name, check, most=tries - 1)
    raise AssertionError


def checking() -> Callable[[], None]:
    """Return what raises `Stopped` once the event of `stopped_by` is set."""
    event = _stop.get()

    def check() -> None:
        if event is not None and event.is_set():
            raise Stopped

    return check


def wait(error: Exception, count: int, name: str, check: Callable[[], None], most: int | None = None) -> None:
    """Wait before a further try, or raise what `error` comes to if there shall be none.

    Args:
        error: Why the try before failed.
        count: Tries that failed, one after the other.
        name: Of what is read, for messages.
        check: May raise, to leave off.
        most: Most further tries; None for as many as there are `DELAYS`.
    """
    if not isinstance(error, OSError) and not is_transient(error) and status(error) is None:
        raise error  # a fault of a program, no answer of a store
    if count > (len(DELAYS) if most is None else most) or not is_transient(error):
        raise named(error, name) from error
    delay = _delay(error, count)
    _log.info("%s: %s; trying again in %.1f s", name, _spell(error), delay)
    pause(delay, check)


def _delay(error: Exception, count: int) -> float:
    delay = DELAYS[min(count, len(DELAYS)) - 1] * _chance.uniform(0.5, 1)
    asked = next((found.retry_after for found in _chain(error) if getattr(found, "retry_after", None)), 0)
    return max(delay, min(asked, MOST_DELAY))


async def doze(seconds: float) -> None:
    """Do nothing for a while."""
    await asyncio.sleep(seconds)


def pause(seconds: float, check: Callable[[], None]) -> None:
    """Do nothing for a while, and leave off when `check` raises."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        check()
        time.sleep(min(left, _POLL))


def status(error: BaseException) -> int | None:
    """Find the HTTP status that an error of some library tells of, if any."""
    for found in _chain(error):
        if type(found).__module__ == "aiohttp.http_exceptions":
            continue  # an answer that broke off: its "code" is no server's
        response = getattr(found, "response", None)
        if isinstance(response, dict):  # botocore's
            response = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        response = getattr(response, "status_code", response)  # requests'
        for value in (getattr(found, "status", None), getattr(found, "code", None), response):
            if str(value).isdecimal() and 100 <= int(value) < 600:
                return int(value)
        if isinstance(found, OSError) and str(found).startswith("Forbidden"):  # gcsfs'
            return 403
    return None


def is_transient(error: BaseException) -> bool:
    """Tell whether the same request may well succeed a little later."""
    if (code := status(error)) is not None:
        return code in (408, 425, 429) or (code >= 500 and code not in (501, 505))
    if isinstance(error, (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError)):
        return False
    if any(
        "Certificate" in type(found).__name__ or "InvalidURL" in type(found).__name__
        for found in _chain(error)
    ):
        return False
    if isinstance(error, (TimeoutError, ConnectionError, EOFError, asyncio.IncompleteReadError)):
        return True
    if isinstance(error, concurrent.futures.CancelledError):
        return True
    return type(error).__module__.partition(".")[0] in _LIBRARIES


def named(error: Exception, name: str) -> AtarirbError:
    """Turn what a library raises into an error of ours that names what was asked for."""
    code = status(error)
    missing = code in (404, 410) or isinstance(error, FileNotFoundError)
    denied = code in (401, 403) or isinstance(error, PermissionError)
    if missing or denied:
        kind = SourceDeniedError if denied else SourceNotFoundError
        if catalog.is_public(name):
            return kind(f"{name}: {_WITHDRAWN}")
        if denied:
            return kind(
                f"{name}: the store refuses access ({f'status {code}' if code else _spell(error)}); look at "
                f"your credentials for it, or name a copy that can be read"
            )
        return kind(f"{name}: there is no such file or directory")
    if is_transient(error):
        return TransferError(
            f"{name}: cannot be reached or read, tried several times: {_spell(error)}; look at the network, "
            f"and run the same command again: it goes on from here"
        )
    return TransferError(f"{name}: cannot be read: {_spell(error)}")


_WITHDRAWN = (
    "the public bucket was withdrawn: since about April 2025 it refuses everyone. If you have a copy of the "
    "logs, ingest that: atarirb ingest DIRECTORY OUT, where DIRECTORY is the run's, as <Game>/<run>; or name "
    "another source that holds it, as gs://BUCKET/PATH, s3://BUCKET/PATH or https://HOST/PATH"
)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _spell(error: BaseException) -> str:
    """Say what an error says, in one line, or its kind if that is nothing."""
    return " ".join(str(error).split())[:300] or type(error).__name__
