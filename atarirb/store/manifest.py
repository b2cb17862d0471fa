"""``dataset.json`` and ``shard.json``: what a dataset holds, format version 2.

A dataset is a directory::

    dataset.json    the manifest, written last: a directory without it is not a dataset
    episodes.npy    one row per episode, see `EPISODE`; where it was replaced, episodes.1.npy
    00000/          one shard per split, named by its number
        shard.json  its own record, the same as in the manifest
        action.npy  reward.npy  terminal.npy  <extra columns>.npy
        segments.npy, and final.npy if it has final frames
        observation.npy, or the files of another codec

All shards' steps, one after the other, are the dataset's index space 0 .. N-1. Columns, one row a step:

    action    int32    index into the game's minimal action set
    reward    float32  as logged, so clipped to {-1, 0, 1} where the collecting agent clipped
    terminal  uint8    1 at game over and, in logs, at the 27,000-step cap; 2 where the episode was
                       truncated: the next step is of another one

A scalar column whose values in a shard all fit is stored as int8 there; ``columns`` of the shard's
record tells the stored dtypes. ``segments.npy``, int64[K, 2], says where the steps were in the source
files: from step ``[k, 0]`` of the shard on they were in the rows from ``[k, 1]`` on.

The frame after an episode's last action is in no log, but in recordings. Where it is known, it is kept
behind the frames of the shard's steps: the frame files hold ``steps + finals`` frames, and the k-th of
``final.npy``, int64[finals], rising, is the shard's step that frame ``steps + k`` followed. In a
dataset's numbering of frames, those of the steps are 0 .. N-1, and the final ones follow, shard by shard.

``adds`` of a shard are the run's add numbers that it accounts for (see `atarirb.timeline`): two
shards are neighbours if one's end is the other's beginning. ``head`` says how the shard's first
step stands to the step before it in the log: "start" of an episode, "continues", or "cut".
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import operator
import pathlib
from typing import Any, TypeVar, get_type_hints

import numpy as np

from atarirb.errors import DatasetError, DatasetNotFoundError
from atarirb.store.files import FileRecord, write_file

T = TypeVar("T")

FORMAT_VERSION = 2
MANIFEST = "dataset.json"
RECORD = "shard.json"
#: Names of the episode table: the other one, where it replaces one that may be in use.
EPISODES = ("episodes.npy", "episodes.1.npy")

SEGMENTS = "segments.npy"
FINALS = "final.npy"
#: What the names of all files of frames begin with, and of no other file.
FRAME_FILES = "observation."

#: The columns of every shard beside the frames, and the dtypes they are handed out in.
COLUMNS = {
    "action": np.dtype(np.int32),
    "reward": np.dtype(np.float32),
    "terminal": np.dtype(np.uint8),
}

#: The layout of what was recorded and is in no log.
RECORDED = "recording"
#: The layouts that tell a truncated episode from one that is over, also at the 27,000-step cap.
TELL_TRUNCATION = (RECORDED, "arrays, truncated")

#: What ``terminal`` is where an episode was truncated.
TRUNCATED = 2

#: One episode: consecutive steps of one life of the game.
#:   start       first step
#:   length      steps
#:   return      undiscounted sum of the logged rewards, which in the public logs are clipped
#:   head_cut    its beginning is lost
#:   terminal    it ended by a terminal; False: it was truncated, or is cut
#:   time_limit  it has exactly the 27,000 steps of the cap, and ended there
#:   final       number of the frame after its last step; -1: not known. An episode without a terminal
#:               is truncated if it has one and cut if it has none: what came after is not known
EPISODE = np.dtype(
    [
        ("start", "<i8"),
        ("length", "<i8"),
        ("return", "<f8"),
        ("head_cut", "?"),
        ("terminal", "?"),
        ("time_limit", "?"),
        ("final", "<i8"),
    ]
)


def shard_name(split: int) -> str:
    """Return the name of the directory of a split's shard."""
    return f"{split:05d}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnRecord:
    """Shape of one row, and dtype, of a column."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What the manifest keeps of a shard.

    Attributes:
        split: Number of the split it was made from; its directory's name.
        steps: Steps it holds.
        finals: Final frames it holds.
        segments: Rows of ``segments.npy``.
        columns: Dtypes that its columns are stored in, by name.
        adds: (first, stop) add numbers it accounts for.
        capacity: Rows of the ring buffer that the source files are a snapshot of; 0: their rows are in the
            order of play.
        head: "start", "continues" or "cut".
        clipped: All its rewards are -1, 0 or 1.
        files: Its files.
        source: Fingerprints of the source files, by column.
    """

    split: int
    steps: int
    finals: int
    segments: int
    columns: dict[str, str]
    adds: tuple[int, int]
    capacity: int
    head: str
    clipped: bool
    files: dict[str, FileRecord]
    source: dict[str, str]

    @property
    def directory(self) -> str:
        """Name of the shard's directory."""
        return shard_name(self.split)

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def frame_files(self) -> dict[str, FileRecord]:
        """Those of its files that keep the frames, whatever the codec."""
        return {name: file for name, file in self.files.items() if name.startswith(FRAME_FILES)}

    @property
    def frame_bytes(self) -> int:
        """Bytes of those."""
        return sum(file.bytes for file in self.frame_files.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a dataset holds.

    Attributes:
        name: The run's id, as ``"Pong/1"``.
        layout: Layout of the source files.
        codec: How frames are kept.
        parameters: What the codec's files were made with; reading needs none of it.
        frame: Shape and dtype of a frame.
        extra: Extra columns by name.
        writer_stack: Frames the log's writer stacked.
        steps: Steps in all.
        rewards_clipped: All rewards are -1, 0 or 1: clipped by the collecting agent.
        episodes: Rows of the episode table.
        episodes_name: Name of its file.
        episodes_file: That file.
        shards: The shards, in step order.
        format_version: Of this description.
    """

    name: str
    layout: str
    codec: str
    parameters: dict[str, int]
    frame: ColumnRecord
    extra: dict[str, ColumnRecord]
    writer_stack: int
    steps: int
    rewards_clipped: bool
    episodes: int
    episodes_name: str
    episodes_file: FileRecord
    shards: tuple[ShardRecord, ...]
    format_version: int = FORMAT_VERSION

    @property
    def holes(self) -> int:
        """Places between shards where steps of the run are missing."""
        pairs = itertools.pairwise(self.shards)
        return sum(before.adds[1] != after.adds[0] for before, after in pairs)

    @property
    def frames(self) -> int:
        """Frames in all: one a step, and the final ones."""
        return self.steps + sum(shard.finals for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """A hash of the steps it holds, whatever the codec: of all but the files of the frames."""
        shards = [
            (shard.split, shard.steps, shard.finals, sorted(
                (name, file.crc32) for name, file in shard.files.items() if name not in shard.frame_files
            ))
            for shard in self.shards
        ]  # fmt: skip
        columns = {name: dataclasses.asdict(column) for name, column in self.extra.items()}
        content = [self.name, dataclasses.asdict(self.frame), columns, self.episodes_file.crc32, shards]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def bytes(self) -> int:
        """Bytes of all shards and the episode table."""
        return self.episodes_file.bytes + sum(shard.bytes for shard in self.shards)


def stored_dtype(shard: ShardRecord, column: str, dtype: np.dtype) -> np.dtype:
    """Return what a column is stored as in a shard.

    Args:
        shard: The shard's record.
        column: Name of the column.
        dtype: What it is handed out as.

    Raises:
        DatasetError: It is neither `dtype` nor int8: the kernels rely on that.
    """
    stored = np.dtype(shard.columns.get(column, "V"))
    if stored not in (dtype, np.int8):
        raise DatasetError(
            f"{shard.directory}: damaged: column {column} is stored as {stored}, expected {dtype} or int8"
        )
    return stored


def write_manifest(directory: pathlib.Path, manifest: Manifest) -> None:
    """Write ``dataset.json``; from then on the directory is a dataset."""
    write_file(directory / MANIFEST, _dump(manifest))


def write_record(directory: pathlib.Path, record: ShardRecord) -> None:
    """Write ``shard.json`` into a shard's directory."""
    write_file(directory / RECORD, _dump(record))


def read_manifest(directory: pathlib.Path) -> Manifest:
    """Read the manifest of the dataset in a directory.

    Raises:
        DatasetNotFoundError: The directory is missing or holds no dataset.
        DatasetError: The manifest is damaged, or of a later format.
    """
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DatasetNotFoundError(_what_is_there(directory)) from None
    try:
        content = json.loads(data)
        version = content.get("format_version")
    except (ValueError, AttributeError) as error:
        raise DatasetError(f"{path}: not a manifest: {error}") from error
    if version != FORMAT_VERSION:
        raise DatasetError(
            f"{path}: format version {version}, this atarirb reads version {FORMAT_VERSION}; make the "
            f"dataset anew from its source, in another directory"
        )
    try:
        manifest = _typed(
            Manifest,
            {
                **content,
                "frame": _column(content["frame"]),
                "extra": {name: _column(entry) for name, entry in content["extra"].items()},
                "episodes_file": _typed(FileRecord, content["episodes_file"]),
                "shards": tuple(_record(entry) for entry in content["shards"]),
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(f"{path}: damaged: {type(error).__name__}: {error}") from error
    if manifest.episodes_name not in EPISODES:
        raise DatasetError(f"{path}: damaged: its episode table is {manifest.episodes_name!r}")
    if not manifest.shards:
        raise DatasetError(f"{path}: damaged: it lists no shards")
    return manifest


def read_record(directory: pathlib.Path) -> ShardRecord | None:
    """Read a shard's own record; None if there is no finished shard in the directory."""
    try:
        return _record(json.loads((directory / RECORD).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _what_is_there(directory: pathlib.Path) -> str:
    """Say why a directory is not a dataset, and what to do."""
    if not directory.is_dir():
        return (
            f"no dataset at {str(directory)!r}: there is no such directory; make one of replay logs with\n"
            f"  atarirb ingest REPLAY_LOGS {directory}"
        )
    if (
        any(path.suffix == ".gz" for path in directory.glob("*_ckpt.*"))
        or (directory / "replay_logs").is_dir()
    ):
        return (
            f"no dataset at {str(directory)!r}: these are replay logs; make a dataset of them with\n"
            f"  atarirb ingest {directory} DATASET"
        )
    if (directory / ".recording").is_dir():
        return (
            f"no dataset at {str(directory)!r} yet: it is a recording of which no episodes are in a shard; "
            f"a recorder that goes on with it makes one, also on being closed"
        )
    if any(read_record(path) for path in directory.glob("[0-9]*")) or (directory / ".ingest").is_dir():
        return (
            f"no dataset at {str(directory)!r}: its making did not finish; the same 'atarirb download', "
            f"'atarirb ingest', 'atarirb convert' or 'atarirb map' command goes on with it"
        )
    return (
        f"no dataset at {str(directory)!r}: there is no {MANIFEST} in it; make one with\n"
        f"  atarirb ingest REPLAY_LOGS {directory}"
    )


def _dump(record: Manifest | ShardRecord) -> bytes:
    return (json.dumps(dataclasses.asdict(record), indent=1) + "\n").encode()


def _column(entry: dict[str, Any]) -> ColumnRecord:
    np.dtype(entry["dtype"])  # raises TypeError for what is none
    shape = tuple(map(operator.index, entry["shape"]))
    if min(shape, default=0) < 0:
        raise ValueError(f"shape is {shape}")
    return _typed(ColumnRecord, {**entry, "shape": shape})


def _record(entry: dict[str, Any]) -> ShardRecord:
    files = {name: _typed(FileRecord, record) for name, record in entry["files"].items()}
    first, stop = map(operator.index, entry["adds"])
    for dtype in entry["columns"].values():
        np.dtype(dtype)
    if entry["head"] not in ("start", "continues", "cut") or entry["capacity"] < 0:
        raise ValueError(f"head is {entry['head']!r}, capacity {entry['capacity']!r}")
    return _typed(ShardRecord, {**entry, "adds": (first, stop), "files": files})


def _typed(kind: type[T], content: dict[str, Any]) -> T:
    """Make a record, refusing values that are not of their field's plain type."""
    record = kind(**content)
    for name, hint in _plain_fields(kind):
        value = getattr(record, name)
        if type(value) is not hint:
            raise TypeError(f"{name} is {value!r}")
        if hint is int and not 0 <= value < 2**63:
            raise ValueError(f"{name} is {value}")
    return record


@functools.cache
def _plain_fields(kind: type) -> tuple[tuple[str, type], ...]:
    """Return the fields of a record that are of a plain type, and which."""
    return tuple((name, hint) for name, hint in get_type_hints(kind).items() if hint in (int, str, bool))
