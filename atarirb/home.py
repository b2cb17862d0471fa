"""Where datasets live: in one directory, by name.

The home is ``$ATARIRB_HOME``, or ``~/.cache/atarirb``. The dataset ``Pong/1`` is its directory ``Pong/1``, so
any directory of datasets kept as ``<game>/<run>`` can be one's home.

All that takes a dataset takes a path or a name: what exists at the path, seen from the current directory, is
meant; if there is nothing, two plain words with a slash between, as ``Pong/1``, are looked up in the home.
"""

from __future__ import annotations

import os
import pathlib

from atarirb import catalog
from atarirb.errors import ArgumentError, DatasetNotFoundError

VARIABLE = "ATARIRB_HOME"
_DEFAULT = "~/.cache/atarirb"


def home() -> pathlib.Path:
    """Return the directory that datasets live in; it need not be there yet.

    Raises:
        ArgumentError: This user has no home directory for it to be in.
    """
    path = os.path.expanduser(os.environ.get(VARIABLE) or _DEFAULT)
    if path.startswith("~"):
        raise ArgumentError(f"{path}: there is no such home directory; set {VARIABLE} to a directory")
    return pathlib.Path(os.path.abspath(path))


def is_name(text: str) -> bool:
    """Tell whether a text has the form of a run's id, as ``Pong/1``."""
    parts = text.rstrip("/").split("/")
    return len(parts) == 2 and all(part and not part.startswith(".") for part in parts)


def place(name: str) -> pathlib.Path:
    """Return the directory of a run in the home."""
    return home() / name.rstrip("/")


def locate(path: str | os.PathLike[str]) -> pathlib.Path:
    """Find a dataset's directory by path or by name.

    Args:
        path: A path, which is returned as it is if there is something, or else a name in the home.

    Raises:
        DatasetNotFoundError: It has the form of a name, and there is nothing here and nothing in the home.
    """
    text = os.fspath(path)
    if os.path.lexists(text) or not is_name(text):
        return pathlib.Path(path)
    there = place(text)
    if os.path.lexists(there):
        return there
    name = text.rstrip("/")
    known = name.partition("/")[0] in catalog.games()
    raise DatasetNotFoundError(
        f"no dataset at {text!r}: there is no such directory, nor {str(there)!r} in the home of "
        f"datasets{catalog.hint(name)}; make one of replay logs with\n  atarirb ingest REPLAY_LOGS {there}"
        + (f"\nor get it with\n  atarirb download {name}" if known else "")
    )
