"""Where replay logs come from: one module per layout, all with the face of `Logs`."""

from __future__ import annotations

import os
import pathlib

from atarirb import catalog
from atarirb.errors import SourceNotFoundError
from atarirb.sources import failures, stores, transfer
from atarirb.sources.logs import COLUMNS, FINAL, Column, Logs, RingLogs, Survey
from atarirb.sources.original import OriginalLogs

__all__ = ["COLUMNS", "FINAL", "Column", "Logs", "RingLogs", "Survey", "find", "run_name"]


def find(source: str | os.PathLike[str]) -> Logs:
    """Find the replay logs at a path or URI: a run's directory or its ``replay_logs``.

    Raises:
        SourceNotFoundError: There are none; the message says what was expected.
        SourceDeniedError: The store refuses to show them.
        TransferError: The store cannot be reached.
        MissingPackageError: A package is needed to reach such a URI.
        ArgumentError: No file system is known for the URI.
    """
    text = os.fspath(source)
    try:
        filesystem, path = stores.locate(text)
        if transfer.is_local(filesystem):
            return OriginalLogs(filesystem, path)
        logs = failures.patiently(lambda: OriginalLogs(filesystem, path), text, transfer.tries(filesystem))
        logs.root = path
        return logs
    except SourceNotFoundError as error:
        if "no such directory" in str(error):
            raise SourceNotFoundError(f"{error}{catalog.hint(run_name(text))}") from None
        raise


def run_name(source: str | os.PathLike[str]) -> str:
    """Return the id a source's path names: ``"Pong/1"`` for ``logs/Pong/1/replay_logs``."""
    text = os.fspath(source)
    path = text if "://" in text else os.path.abspath(text)
    parts = [part for part in pathlib.PurePosixPath(path).parts if part not in ("/", ".")]
    if parts and parts[-1] == "replay_logs":
        parts.pop()
    return "/".join(parts[-2:])
