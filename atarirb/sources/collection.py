"""Where the logs of many runs are: a directory, here or afar, that holds ``<Game>/<run>``.

As the public bucket did, which refuses everyone since about April 2025: another one is named by an argument,
or by ``$ATARIRB_SOURCE``.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator

from atarirb import catalog, home, sources
from atarirb.errors import MissingPackageError, SourceDeniedError, SourceNotFoundError
from atarirb.sources import failures, stores, transfer

VARIABLE = "ATARIRB_SOURCE"


def chosen(source: str | os.PathLike[str] | None) -> str:
    """Return the source that is meant: the one named, that of the environment, or the public bucket."""
    text = os.fspath(source or os.environ.get(VARIABLE) or catalog.PUBLIC_SOURCE)
    return text.rstrip("/") or "/"


def address(source: str, name: str) -> str:
    """Return the path or URI of a run, or of a game."""
    return f"{source.rstrip('/')}/{name}"


def find(source: str, name: str) -> sources.Logs:
    """Find the logs of a run.

    Raises:
        SourceNotFoundError: There are none.
        SourceDeniedError: The source refuses to show them.
        TransferError: It cannot be reached.
        MissingPackageError, ArgumentError: As for `atarirb.sources.find`.
    """
    with _explained(source, name):
        return sources.find(address(source, name))


def games(source: str) -> list[str]:
    """List the games of the catalog that a source has directories of.

    Raises:
        As for `find`.
    """
    return [name for name in _directories(source, "") if name in catalog.games()]


def runs(source: str, game: str) -> list[str]:
    """List the ids of a game's runs: of all directories of the game's.

    Raises:
        As for `find`.
    """
    names = [name for name in _directories(source, game) if home.is_name(f"{game}/{name}")]
    return [
        f"{game}/{name}" for name in sorted(names, key=lambda name: (not name.isdecimal(), len(name), name))
    ]


def _directories(source: str, name: str) -> list[str]:
    place = address(source, name) if name else source
    with _explained(source, name):
        filesystem, path = stores.locate(place)

        def listed() -> list[str]:
            if not filesystem.isdir(path):
                raise SourceNotFoundError(f"no replay logs at {path!r}: there is no such directory")
            return sorted(
                posixpath.basename(entry["name"].rstrip("/"))
                for entry in filesystem.ls(path, detail=True)
                if entry["type"] != "file" and filesystem.isdir(entry["name"])
            )

        return listed() if transfer.is_local(filesystem) else failures.patiently(listed, place)


@contextlib.contextmanager
def _explained(source: str, name: str) -> Iterator[None]:
    """Say of the public bucket what became of it, whatever it answers."""
    try:
        yield
    except MissingPackageError as error:
        if catalog.is_public(source):  # which would be installed in vain
            raise MissingPackageError(f"{error}. But {_withdrawn(name)}") from None
        raise
    except (SourceDeniedError, SourceNotFoundError) as error:
        if catalog.is_public(source):
            what = f"{address(source, name)} cannot be had: {_withdrawn(name)}"
            raise SourceNotFoundError(what) from error
        raise


def _withdrawn(name: str) -> str:
    """Say what became of the public bucket, and what to do."""
    run = name if home.is_name(name) else f"{name or 'Pong'}/1"
    return (
        f"the public bucket was withdrawn, and has refused everyone since about April 2025. If you have a "
        f"copy of the logs, make a dataset of it with\n"
        f"  atarirb ingest COPY/{run} {home.place(run)}\n"
        f"or name another place that has <Game>/<run>, by --source or {VARIABLE}:\n"
        f"  atarirb download {name or run} --source URI"
    )
