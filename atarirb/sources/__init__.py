"""Where steps come from: the kinds of sources, each recognised by looking at a listing.

::

    layout        what is looked at                                              module
    original      <Game>/<run>/replay_logs/$store$_observation_ckpt.<k>.gz       snapshots
    d4rl-atari    <Game>/<run>/<k>/observation.gz                                snapshots
    sgi           <Game>/observation_<k>.gz, <Game>/observation_<run>01.gz       snapshots
    atari-pb      <Game>/observation_<run>_<k>.gz                                snapshots
    torchrl       <Game>/<run>/<k>/data/observation.memmap, meta.json            torchrl
    rlds          <Game>/run_<run>-<k>-of-<n>: RL Unplugged's episodes           rlds
    arrays        <directory>/observation.npy, action.npy, ...; or one .npz      arrays

k is the number of the split. All but the last two are snapshots of a ring buffer, of which
`atarirb.timeline` works out the steps; episodes and arrays hold steps in the order of play. Files may be
gzipped or not, whatever their names' ends. Nothing is ever unpickled.

What all have in common is the face of `Logs`. A further layout of snapshots is a further pattern in
`atarirb.sources.snapshots`; a further kind is a module with a function `find`, named in `_KINDS`.
"""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

from atarirb import catalog
from atarirb.arguments import positive
from atarirb.errors import ArgumentError, LogError, SourceNotFoundError
from atarirb.sources import arrays, failures, rlds, snapshots, stores, torchrl, transfer
from atarirb.sources.folder import Folder
from atarirb.sources.logs import COLUMNS, FINAL, Column, Logs, RingLogs, Survey
from atarirb.sources.rlds import RldsLogs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["COLUMNS", "FINAL", "Column", "Logs", "RingLogs", "Survey", "find", "run_name"]

#: Each yields what it recognises in a `Folder`; at the most one of them must.
_KINDS = (snapshots.find, torchrl.find, rlds.find, arrays.find)
#: Directories looked into for runs, where there is nothing else to tell.
_LOOKED_INTO = 20


def find(source: str | os.PathLike[str], run: int | None = None, *, partial: bool = False) -> Logs:
    """Find the steps at a path or URI, in any of the layouts above.

    Args:
        source: A run's directory or its ``replay_logs``; the directory of one split; of a game, where `run`
            chooses; an ``.npz``; or of RL Unplugged's episodes ``<Game>/run_<r>``, or one file.
        run: The number of the run, where several stand together.
        partial: The run went on after the last split that is here: see `RingLogs.partial`.

    Raises:
        SourceNotFoundError: There is nothing; the message says what was expected.
        SourceDeniedError: The store refuses to show it.
        TransferError: The store cannot be reached.
        MissingPackageError: A package is needed to reach such a URI, or to read such files.
        ArgumentError: No file system is known for the URI; or there are several runs and none is chosen,
            or not that one.
        LogError: Files of several layouts stand together, or two are of the same column and split.
    """
    text = os.fspath(source)
    run = None if run is None else positive("run", run)
    try:
        filesystem, path = _locate(text)
        if transfer.is_local(filesystem):
            logs = _found(filesystem, path, run)
        else:
            again = transfer.tries(filesystem)
            logs = failures.patiently(lambda: _found(filesystem, path, run), text, again)
            logs.root = path
    except SourceNotFoundError as error:
        if "no such directory" in str(error):
            raise SourceNotFoundError(f"{error}{catalog.hint(run_name(text))}") from None
        raise
    logs.name = logs.name or run_name(logs.directory)
    if isinstance(logs, RingLogs):
        logs.partial = partial
    elif partial:
        raise ArgumentError(
            "partial is of snapshots of a ring buffer, and these are steps in the order of play: leave it out"
        )
    return logs


def _locate(text: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a path or URI, and the path there."""
    folder, slash, name = text.rpartition("/")
    if slash and rlds.names_run(name):  # mostly the beginning of names, where nothing is
        filesystem, path = stores.locate(folder or "/")
        return filesystem, f"{path.rstrip('/')}/{name}"
    return stores.locate(text)


def _found(filesystem: AbstractFileSystem, path: str, run: int | None) -> Logs:
    """Recognise what is at a path."""
    if filesystem.isdir(path):
        return _only(Folder(filesystem, path), run)
    if rlds.names_run(path):
        return RldsLogs(filesystem, path, run)
    if filesystem.isfile(path):
        return arrays.from_npz(filesystem, path)
    raise SourceNotFoundError(f"no replay logs at {path!r}: there is no such directory")


def _only(folder: Folder, run: int | None) -> Logs:
    """Return what is recognised in a directory, or in that of the run in it, if it is one thing."""
    found = _recognised(folder, run)
    if not found and run is not None and folder.holds(str(run)):
        folder = folder.below(str(run))
        found = _recognised(folder, None)
    if not found:
        raise _nothing(folder)
    if len(found) > 1:
        raise folder.mixed((logs.layout, logs.directory) for logs in found)
    return found[0]


def _recognised(folder: Folder, run: int | None) -> list[Logs]:
    return [logs for kind in _KINDS for logs in kind(folder, run)]


def _nothing(folder: Folder) -> SourceNotFoundError:
    """Say what was expected of a directory, and what it holds."""
    runs = []
    for name in [*folder.numbered, *folder.folders][:_LOOKED_INTO]:
        try:
            if name not in runs and _recognised(folder.below(name), None):
                runs.append(name)
        except (ArgumentError, LogError):  # it is not clear which run or layout, but there is one
            runs.append(name)
    some = [*folder.folders, *folder.files][:5]
    hint = (
        f"it holds the runs {', '.join(runs)}: name one of them"
        if runs
        else f"found {', '.join(some) or 'an empty directory'}"
    )
    return SourceNotFoundError(
        f"no replay logs at {folder.path!r}: expected files named $store$_observation_ckpt.<k>.gz there or "
        f"in its replay_logs, or those of another layout (see atarirb.sources); {hint}"
    )


def run_name(source: str | os.PathLike[str]) -> str:
    """Return the id a source's path names: ``"Pong/1"`` for ``logs/Pong/1/replay_logs``."""
    text = os.fspath(source)
    path = text if "://" in text else os.path.abspath(text)
    parts = [part for part in pathlib.PurePosixPath(path).parts if part not in ("/", ".")]
    if parts and parts[-1] == "replay_logs":
        parts.pop()
    return "/".join(parts[-2:])
