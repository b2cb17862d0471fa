"""Where replay logs come from: one module per layout, all with the face of `Logs`."""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import TYPE_CHECKING

from atarirb import catalog
from atarirb.errors import ArgumentError, MissingPackageError, SourceNotFoundError
from atarirb.sources.logs import COLUMNS, FINAL, Column, Logs, RingLogs, Survey
from atarirb.sources.original import OriginalLogs
from atarirb.sources.rlds import RldsLogs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["COLUMNS", "FINAL", "Column", "Logs", "RingLogs", "Survey", "find", "reach", "run_name"]


def find(source: str | os.PathLike[str]) -> Logs:
    """Find the replay logs at a path or URI: a run's directory or its ``replay_logs``.

    Or those of RL Unplugged: a game's directory, if it holds one run, or ``<Game>/run_<r>`` in it.

    Raises:
        SourceNotFoundError: There are none; the message says what was expected.
        MissingPackageError: A package is needed to reach such a URI, or to read such files.
        ArgumentError: No file system is known for the URI, or there are several runs.
        LogError: The names of the files contradict each other.
    """
    text = os.fspath(source)
    filesystem, path = reach(text)
    with contextlib.suppress(SourceNotFoundError):
        return RldsLogs(filesystem, path)
    try:
        return OriginalLogs(filesystem, path)
    except SourceNotFoundError as error:
        if "no such directory" in str(error):
            raise SourceNotFoundError(f"{error}{catalog.hint(run_name(text))}") from None
        raise


def reach(text: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises:
        MissingPackageError, ArgumentError: As for `find`.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    if "://" in text:
        try:
            return url_to_fs(text)
        except ImportError as error:
            if text.startswith(("gs://", "gcs://")):
                raise MissingPackageError.needed("gcsfs", purpose=text, extra="gcs") from error
            raise MissingPackageError(f"{text}: {error}") from error
        except ValueError as error:
            raise ArgumentError(f"{text}: {error}") from error
    # A plain path may hold any character, also those that mean something in a URI.
    return LocalFileSystem(), os.path.abspath(text)


def run_name(source: str | os.PathLike[str]) -> str:
    """Return the id a source's path names: ``"Pong/1"`` for ``logs/Pong/1/replay_logs``."""
    text = os.fspath(source)
    path = text if "://" in text else os.path.abspath(text)
    parts = [part for part in pathlib.PurePosixPath(path).parts if part not in ("/", ".")]
    if parts and parts[-1] == "replay_logs":
        parts.pop()
    return "/".join(parts[-2:])
