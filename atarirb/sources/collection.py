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
from atarirb.errors import AtarirbError, MissingPackageError, SourceNotFoundError

VARIABLE = "ATARIRB_SOURCE"
#: Packages whose errors tell that a store could not be read.
_STORES = frozenset(
    ("gcsfs", "google", "s3fs", "botocore", "aiobotocore", "aiohttp", "requests", "urllib3", "adlfs", "azure")
)
_REFUSED = (401, 403, 404)


def chosen(source: str | os.PathLike[str] | None) -> str:
    """Return the source that is meant: the one named, that of the environment, or the public bucket."""
    text = os.fspath(source or os.environ.get(VARIABLE) or catalog.PUBLIC_SOURCE)
    return text.rstrip("/") or "/"


def is_public(source: str) -> bool:
    """Tell whether a source is the public bucket."""
    uri = f"gs{source[3:]}" if source.startswith("gcs://") else source
    return f"{uri}/".startswith(f"{catalog.PUBLIC_SOURCE}/")


def address(source: str, name: str) -> str:
    """Return the path or URI of a run, or of a game."""
    return f"{source.rstrip('/')}/{name}"


def find(source: str, name: str) -> sources.Logs:
    """Find the logs of a run.

    Raises:
        SourceNotFoundError: There are none, or the source refuses, or cannot be reached.
        MissingPackageError, ArgumentError: As for `atarirb.sources.find`.
    """
    with _explained(source, name):
        return sources.find(address(source, name))


def games(source: str) -> list[str]:
    """List the games of the catalog that a source has directories of.

    Raises:
        SourceNotFoundError, MissingPackageError, ArgumentError: As for `find`.
    """
    return [name for name in _directories(source, "") if name in catalog.games()]


def runs(source: str, game: str) -> list[str]:
    """List the ids of a game's runs: of all directories of the game's.

    Raises:
        SourceNotFoundError, MissingPackageError, ArgumentError: As for `find`.
    """
    names = [name for name in _directories(source, game) if home.is_name(f"{game}/{name}")]
    return [
        f"{game}/{name}" for name in sorted(names, key=lambda name: (not name.isdecimal(), len(name), name))
    ]


def _directories(source: str, name: str) -> list[str]:
    with _explained(source, name):
        filesystem, path = sources.reach(address(source, name) if name else source)
        filesystem.invalidate_cache()
        if not filesystem.isdir(path):
            raise SourceNotFoundError(f"no replay logs at {path!r}: there is no such directory")
        return sorted(
            posixpath.basename(entry["name"].rstrip("/"))
            for entry in filesystem.ls(path, detail=True)
            if entry["type"] != "file" and filesystem.isdir(entry["name"])
        )


@contextlib.contextmanager
def _explained(source: str, name: str) -> Iterator[None]:
    """Make errors of stores ones that say what to do."""
    try:
        yield
    except Exception as error:
        if is_public(source) and isinstance(error, MissingPackageError):  # which would be installed in vain
            raise MissingPackageError(f"{error}. But {_withdrawn(name)}") from None
        if is_public(source) and _is_refusal(error):
            what = f"{address(source, name)} cannot be had ({_said(error)}): {_withdrawn(name)}"
            raise SourceNotFoundError(what) from error
        package = type(error).__module__.partition(".")[0]
        if isinstance(error, AtarirbError) or not (isinstance(error, OSError) or package in _STORES):
            raise
        raise SourceNotFoundError(
            f"{address(source, name)}: cannot be read: {_said(error)}; name another source with --source or "
            f"{VARIABLE}"
        ) from error


def _is_refusal(error: Exception) -> bool:
    """Tell whether a store answered, and denied that there is anything, or that it may be read."""
    status = getattr(error, "code", None) or getattr(error, "status", None)
    # gcsfs raises OSError("Forbidden: ...") for 403, FileNotFoundError for 404, its HttpError for 401, and
    # says of a directory that it may not see that it is none.
    return (
        isinstance(error, (FileNotFoundError, PermissionError))
        or str(status) in map(str, _REFUSED)
        or (isinstance(error, OSError) and str(error).startswith("Forbidden"))
    )


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


def _said(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).partition("\n")[0] or type(error).__name__
