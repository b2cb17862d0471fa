r"""Snapshots of a ring buffer in files named by column and split: the public logs and copies of them.

A copy differs from the original in the names alone, so each layout is one pattern in `LAYOUTS`: to read
another one, add its pattern. The columns, by their names there::

    observation      (C, ...)  any dtype       the frame
    action           (C,)      integer         index into the game's minimal actions
    reward           (C,)      float           clipped by the collecting agent
    terminal         (C,)      0 or 1          game over, or the 27,000-step cap
    $store$_<other>  (C, ...)  any dtype       an extra column, in the original layout alone
    add_count        ()        integer         adds made before the dump (see `atarirb.timeline`)
    invalid_range    (stack + horizon,)        ((cursor - horizon) + 0, 1, ...) mod C

The names were read in Dopamine's ``circular_replay_buffer.py``, in ``offline_env.py`` of takuseno/d4rl-atari,
and in the scripts that download the files for mila-iqia/SGI (``download_replay_dataset.sh``),
dojeon-ai/SimTPR (``download_atari_replay_dataset.sh``) and dojeon-ai/Atari-PB
(``download_pretrain_dataset.sh``). Most copies lack the two counters, and many the splits between: then
only those borders are joined that the rows themselves prove.

A file may be named ``x.gz``, ``x.npy.gz``, ``x.npy`` or ``x``, whether it is gzipped or not. Other files
may stand beside them (``episode_end_indices``, ``sum_tree``: pickles of other set-ups); they are never
opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from atarirb.errors import ArgumentError, LogError
from atarirb.sources.files import FileLogs
from atarirb.sources.folder import Folder

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_COLUMN = "(?P<column>observation|action|reward|terminal|add_count|invalid_range)"
_END = r"(?:\.npy)?(?:\.gz)?"
_STORE = "$store$_"

#: By layout, what a file's path is within the directory that it is recognised in. Of the groups, `column`,
#: `tail` (what follows it) and either `split` or `number` must be there; `run` where files of several runs
#: stand together.
LAYOUTS = {
    # <Game>/<run>/replay_logs/, or the run's directory
    "original": re.compile(
        rf"(?P<column>\$store\$_.+|add_count|invalid_range)(?P<tail>_ckpt\.(?P<split>\d+){_END})"
    ),
    # <Game>/<run>/; d4rl-atari and d3rlpy call a split an epoch
    "d4rl-atari": re.compile(rf"(?P<split>\d+)/{_COLUMN}(?P<tail>{_END})"),
    # <Game>/; a number is a split of run 1, or <run>01: split 1 of that run; SimTPR has the former alone
    "sgi": re.compile(rf"{_COLUMN}(?P<tail>_(?P<number>\d+){_END})"),
    # <Game>/
    "atari-pb": re.compile(rf"{_COLUMN}(?P<tail>_(?P<run>\d+)_(?P<split>\d+){_END})"),
}


class SnapshotLogs(FileLogs):
    """The replay logs of one run in one of `LAYOUTS`.

    Args:
        filesystem: Where they are.
        directory: The directory that the paths are relative to.
        layout: Which layout.
        found: The match of each file's path, and its bytes.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        directory: str,
        layout: str,
        found: Mapping[re.Match[str], int],
    ):
        self.layout = layout
        files: dict[int, dict[str, str]] = {}
        sizes: dict[str, int] = {}
        # Of each split what its files' paths have before the column and behind it.
        self._around: dict[int, tuple[str, str]] = {}
        for match, size in found.items():
            split, name = _run_and_split(match)[1], match["column"].removeprefix(_STORE)
            path = f"{directory.rstrip('/')}/{match.string}"
            if name in files.setdefault(split, {}):
                if len(match.groupdict().get("number") or "") == 3:
                    continue  # split 1 of run 1 bears both of its names
                raise LogError(f"{directory} has two files of {name} for split {split}")
            files[split][name] = path
            sizes[path] = size
            self._around.setdefault(split, (match.string[: match.start("column")], match["tail"]))
        super().__init__(filesystem, directory, files, sizes)

    def part(self, split: int) -> SnapshotLogs:
        """Return the same logs without what is known of other splits' files."""
        part = cast(SnapshotLogs, super().part(split))
        part._around = {split: self._around[split]} if split in self._around else {}
        return part

    def expect(self, splits: Iterable[int]) -> None:
        """Count splits in that have a directory, even if there is no file in it."""
        self._files = {**{split: {} for split in splits}, **self._files}
        self.splits = tuple(sorted(self._files))

    def file_name(self, split: int, column: str) -> str:
        """Say how the file of a column is called, or would be: for messages."""
        before, behind = self._around.get(split, (f"{split}/", ".gz"))
        stored = self.layout == "original" and column not in ("add_count", "invalid_range")
        return f"{before}{_STORE if stored else ''}{column}{behind}"


def find(folder: Folder, run: int | None) -> Iterator[SnapshotLogs]:
    """Recognise the snapshots in a directory, in its ``replay_logs``, or in its numbered directories.

    Args:
        folder: The directory: of a run; of a game, where runs stand together; or of one split.
        run: Which run, where there are several.

    Yields:
        The logs, if there are any.

    Raises:
        ArgumentError: Several runs stand together and none is chosen, or there is no such run.
        LogError: There are files of several layouts, two are of the same column and split, or a number is
            that of no split.
    """
    places = [folder]
    if folder.holds("replay_logs"):
        places.append(folder.below("replay_logs"))
    seen = [
        (place, layout, _matches(layout, place.files))
        for place in places
        for layout in layouts_of(place.files)
    ]
    if folder.name.isdecimal() and (found := _in_numbered(folder)):
        seen.append((folder, "d4rl-atari", found))
    elif is_split(folder):
        here = {f"{folder.name}/{name}": size for name, size in folder.files.items()}
        if found := _matches("d4rl-atari", here):
            seen.append((folder.parent, "d4rl-atari", found))
    if len(seen) > 1:
        raise folder.mixed((layout, place.path) for place, layout, _ in seen)
    for place, layout, found in seen:
        logs = _of_run(place, layout, found, run)
        if layout == "d4rl-atari" and place is folder:
            logs.expect(map(int, folder.numbered))
        yield logs


def _in_numbered(folder: Folder) -> dict[re.Match[str], int]:
    """Match the files in numbered directories; the first that is not empty tells if they are splits."""
    found: dict[re.Match[str], int] = {}
    for split in folder.numbered:
        here = folder.below(split)
        more = _matches("d4rl-atari", {f"{split}/{name}": size for name, size in here.files.items()})
        if not found and not more and (here.files or here.folders):
            return {}
        found |= more
    return found


def layouts_of(names: Mapping[str, int]) -> list[str]:
    """Name the layouts that files in one directory, given their bytes, are of."""
    return [layout for layout in LAYOUTS if _matches(layout, names)]


def is_split(folder: Folder) -> bool:
    """Tell whether a directory is that of a split by its path, ``.../<run>/<split>``."""
    return folder.name.isdecimal() and folder.parent.name.isdecimal()


def _matches(layout: str, names: Mapping[str, int]) -> dict[re.Match[str], int]:
    """Match files, given their bytes, with a layout's pattern."""
    pattern = LAYOUTS[layout]
    return {match: size for name, size in names.items() if (match := pattern.fullmatch(name))}


def _of_run(folder: Folder, layout: str, found: Mapping[re.Match[str], int], run: int | None) -> SnapshotLogs:
    """Make the logs of the run that is wanted of the files that were found."""
    runs: dict[int | None, dict[re.Match[str], int]] = {}
    for match, size in found.items():
        try:
            number, _ = _run_and_split(match)
        except ValueError:
            raise LogError(
                f"{folder.path}: {match.string} is of no split known: expected a number below 100, a split "
                f"of run 1, or <run>01, split 1 of that run"
            ) from None
        runs.setdefault(number, {})[match] = size
    if folder.name.isdecimal() and set(runs) == {1} and layout == "sgi":
        runs = {None: runs[1]}  # not a game's directory, but a run's own
    if None in runs:  # its directory is the run's, and may be called by its number
        (folder.parent if folder.name == "replay_logs" else folder).check_run(run)
        return SnapshotLogs(folder.filesystem, folder.path, layout, runs[None])
    chosen = next(iter(runs)) if run is None and len(runs) == 1 else run
    if chosen not in runs:
        asked = "expected run= (--run) to name one" if run is None else f"but not run {run}"
        raise ArgumentError(
            f"{folder.path} holds the runs {', '.join(map(str, sorted(filter(None, runs))))}, {asked}"
        )
    logs = SnapshotLogs(folder.filesystem, folder.path, layout, runs[chosen])
    logs.name = f"{folder.name}/{chosen}"
    return logs


def _run_and_split(match: re.Match[str]) -> tuple[int | None, int]:
    """Say what run and split a file is of; the run is None where the directory is one run's.

    Raises:
        ValueError: Its number is that of no split.
    """
    groups = match.groupdict()
    if number := groups.get("number"):
        if len(number) == 3 and number[0] != "0" and number.endswith("01"):
            return int(number[0]), 1
        if len(number) > 2:
            raise ValueError(number)
        return 1, int(number)
    return (int(groups["run"]) if groups.get("run") else None), int(groups["split"])
