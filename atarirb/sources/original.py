r"""The original layout: Dopamine's replay checkpoints, as in the public bucket.

``<Game>/<run>/replay_logs/<name>_ckpt.<k>.gz``, one set of files per split k::

    $store$_observation   (C, ...)  any dtype       the frame
    $store$_action        (C,)      integer         index into the game's minimal actions
    $store$_reward        (C,)      float           clipped by the collecting agent
    $store$_terminal      (C,)      0 or 1          game over, or the 27,000-step cap
    $store$_<other>       (C, ...)  any dtype       an extra column
    add_count             ()        integer         adds made before the dump (see `atarirb.timeline`)
    invalid_range         (stack + horizon,)        ((cursor - horizon) + 0, 1, ...) mod C

``$store$_`` is literal. Other files may stand beside them (``episode_end_indices``, ``sum_tree``:
pickles of other set-ups); they are never opened.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

from atarirb.errors import LogError, SourceNotFoundError
from atarirb.sources.files import FileLogs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_FILE = re.compile(r"(?P<store>\$store\$_)?(?P<name>.+)_ckpt\.(?P<split>\d+)\.gz")


class OriginalLogs(FileLogs):
    """The replay logs of one run in the original layout.

    Args:
        filesystem: Where they are.
        directory: The run's directory or its ``replay_logs``.

    Raises:
        SourceNotFoundError: There is no such directory, or no log in it.
    """

    layout = "original"

    def __init__(self, filesystem: AbstractFileSystem, directory: str):
        directory = _find_logs(filesystem, directory)
        files: dict[int, dict[str, str]] = {}
        sizes: dict[str, int] = {}
        for entry in filesystem.ls(directory, detail=True):
            match = _FILE.fullmatch(posixpath.basename(entry["name"]))
            if match and (match["store"] or match["name"] in ("add_count", "invalid_range")):
                split, name = int(match["split"]), match["name"]
                if name in files.setdefault(split, {}):
                    raise LogError(f"{directory} has two files of {name} for split {split}")
                files[split][name] = entry["name"]
                sizes[entry["name"]] = entry["size"]
        super().__init__(filesystem, directory, files, sizes)

    def file_name(self, split: int, column: str) -> str:
        """Say how the file of a column is called, or would be: for messages."""
        name = column if column in ("add_count", "invalid_range") else f"$store$_{column}"
        return f"{name}_ckpt.{split}.gz"


def _find_logs(filesystem: AbstractFileSystem, directory: str) -> str:
    """Return the directory that holds the files: this one or its ``replay_logs``."""
    if not filesystem.isdir(directory):
        raise SourceNotFoundError(f"no replay logs at {directory!r}: there is no such directory")
    for candidate in (directory, posixpath.join(directory, "replay_logs")):
        if filesystem.isdir(candidate):
            names = [posixpath.basename(path) for path in filesystem.ls(candidate, detail=False)]
            if any(_FILE.fullmatch(name) for name in names):
                return candidate
    entries = [posixpath.basename(path.rstrip("/")) for path in filesystem.ls(directory, detail=False)]
    runs = [
        name for name in sorted(entries) if filesystem.isdir(posixpath.join(directory, name, "replay_logs"))
    ]
    hint = (
        f"it holds the runs {', '.join(runs)}: name one of them"
        if runs
        else f"found {', '.join(sorted(entries)[:5]) or 'an empty directory'}"
    )
    raise SourceNotFoundError(
        f"no replay logs at {directory!r}: expected files named "
        f"$store$_observation_ckpt.<k>.gz there or in its replay_logs; {hint}"
    )
