"""Verify: whether a dataset's files are what they were when it was made."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from atarirb import home
from atarirb.errors import AtarirbError, DatasetError
from atarirb.store import raw
from atarirb.store.codecs import CODECS
from atarirb.store.dataset import Dataset
from atarirb.store.episodes import column_rows, episode_table, final_steps
from atarirb.store.files import FileRecord, checksum
from atarirb.store.manifest import (
    COLUMNS,
    FINALS,
    SEGMENTS,
    TRUNCATED,
    Manifest,
    ShardRecord,
    read_manifest,
    read_record,
)
from atarirb.store.npy import NpyRows, map_npy
from atarirb.verbs.progress import meter

_ROWS = 1 << 20
#: Bytes of frames decoded at a time.
_CHUNK_BYTES = 4 << 20
#: Damaged frames of a shard that are named.
_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What `verify` found.

    Attributes:
        path: The dataset's directory.
        files: Files looked at.
        bytes: Their bytes.
        deep: Whether every invariant was checked too.
        problems: What is wrong, one sentence each; empty if all is well.
    """

    path: str
    files: int
    bytes: int
    deep: bool
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        how = "sizes, checksums and invariants" if self.deep else "sizes and checksums"
        if self.ok:
            return f"{self.path}: sound; {self.files} files, {self.bytes:,} bytes, {how}"
        return f"{self.path}: {len(self.problems)} problem(s)\n" + "\n".join(
            f"  {problem}" for problem in self.problems
        )


def verify(path: str | os.PathLike[str], *, deep: bool = False, progress: bool = False) -> Report:
    """Check a dataset's files against its manifest.

    Args:
        path: The dataset's directory, or its name in the home (`atarirb.home`).
        deep: Check also what must hold of the values: every frame can be decoded, terminals are 0, 1
            or 2, rewards finite, source rows in the order of the ring buffer with exactly the padding
            left out, final frames at the ends of episodes, the episode table what the columns say.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        A report of all problems; it raises none of them.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: The manifest itself cannot be read.
    """
    directory = home.locate(path)
    manifest = read_manifest(directory)
    files = {directory / manifest.episodes_name: manifest.episodes_file}
    for shard in manifest.shards:
        files |= {directory / shard.directory / name: record for name, record in shard.files.items()}
    problems: list[str] = []
    with meter("verify", manifest.bytes, progress) as on_bytes:
        for file, record in files.items():
            problems += _check_file(file, record)
            on_bytes(record.bytes)
    for shard in manifest.shards:
        if read_record(directory / shard.directory) != shard:
            problems.append(f"{directory / shard.directory}: shard.json is not what the manifest says")
    if not problems:
        problems += _check_values(directory, manifest, deep=deep)
    if deep:  # also where checksums differ: that tells which frames are lost, and which are not
        problems += _check_frames(directory, manifest, progress)
    problems = list(dict.fromkeys(problems))
    if problems and read_manifest(directory) != manifest:  # it grew, or was made anew, meanwhile
        return verify(directory, deep=deep, progress=progress)
    return Report(
        path=os.fspath(directory), files=len(files), bytes=manifest.bytes, deep=deep, problems=tuple(problems)
    )


def _check_file(file: pathlib.Path, record: FileRecord) -> Iterator[str]:
    if not file.is_file():
        yield f"{file}: missing"
    elif file.stat().st_size != record.bytes:
        yield f"{file}: {file.stat().st_size:,} bytes, expected {record.bytes:,}"
    elif (found := checksum(file)) != record.crc32:
        yield f"{file}: checksum {found}, expected {record.crc32}; its bytes have changed"


def _check_values(directory: pathlib.Path, manifest: Manifest, *, deep: bool) -> Iterator[str]:
    try:
        dataset = Dataset(directory)
    except AtarirbError as error:
        yield str(error)
        return
    if not deep:
        return
    columns = {name: column_rows(directory, manifest.shards, name) for name in COLUMNS}
    wrong: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
        "terminal": ("none of 0, 1 and 2", lambda rows: rows > TRUNCATED),
        "reward": ("not a finite number", lambda rows: ~np.isfinite(rows)),
        "action": ("negative", lambda rows: rows < 0),
    }
    for number, shard in enumerate(manifest.shards):
        for name, (what, test) in wrong.items():
            for first in range(0, shard.steps, _ROWS):
                bad = test(columns[name][number][first : first + _ROWS])
                if bad.any():
                    row = first + int(np.argmax(bad))
                    yield f"{columns[name][number].path}: the {name} of row {row} is {what}"
                    break
        yield from _check_segments(directory, shard, manifest.writer_stack - 1, columns["terminal"][number])
    for before, after in itertools.pairwise(manifest.shards):
        if before.adds[1] > after.adds[0]:
            yield f"{directory}: shards {before.directory} and {after.directory} hold the same adds"
    try:
        finals = final_steps(directory, manifest.shards)
        for shard, steps in zip(manifest.shards, finals, strict=True):
            if (np.diff(steps) <= 0).any() or ((steps < 0) | (steps >= shard.steps)).any():
                raise DatasetError(
                    f"{directory / shard.directory / FINALS}: its steps do not rise from 0 to "
                    f"{shard.steps - 1:,} at the most"
                )
        table = episode_table(manifest.shards, columns["terminal"], columns["reward"], finals)
    except DatasetError as error:
        yield f"{directory}: {error}" if str(directory) not in str(error) else str(error)
    else:
        if not np.array_equal(table, dataset.episodes):
            yield f"{directory / manifest.episodes_name}: is not what the columns say"
    clipped = all(shard.clipped for shard in manifest.shards)
    if clipped != manifest.rewards_clipped:
        yield f"{directory}: rewards_clipped is {manifest.rewards_clipped}, in its shards {clipped}"


def _check_frames(directory: pathlib.Path, manifest: Manifest, progress: bool) -> Iterator[str]:
    """Decode every frame; tell of each shard the first few that cannot be, and how many they are."""
    codec, frame = CODECS.get(manifest.codec), manifest.frame
    if codec is None or codec is raw:  # any bytes are frames: their checksum says all there is to say
        return
    count = max(1, _CHUNK_BYTES // max(1, frame.bytes))
    with meter("decode", manifest.frames * frame.bytes, progress) as on_bytes:
        for shard in manifest.shards:
            place, total = directory / shard.directory, shard.steps + shard.finals
            try:
                frames = codec.InOrder(place, shard.steps, shard.finals, frame.shape, np.dtype(frame.dtype))
            except (AtarirbError, OSError) as error:
                yield str(error)
                on_bytes(total * frame.bytes)
                continue
            bad = 0
            for first in range(0, total, count):
                for problem in _damaged(frames, first, min(first + count, total)):
                    bad += 1
                    if bad <= _NAMED:
                        yield problem
                on_bytes(min(count, total - first) * frame.bytes)
            if bad > _NAMED:
                yield f"{place}: {bad - _NAMED:,} more of its {total:,} frames are damaged"


def _damaged(frames: raw.InOrder, first: int, stop: int) -> Iterator[str]:
    """Say which of some frames cannot be decoded: together, if all can be, else one by one."""
    try:
        frames[first:stop]
    except (AtarirbError, OSError) as error:
        if stop - first == 1:
            yield str(error).partition("; 'atarirb")[0]
            return
        middle = (first + stop) // 2
        yield from _damaged(frames, first, middle)
        yield from _damaged(frames, middle, stop)


def _check_segments(
    directory: pathlib.Path, shard: ShardRecord, padding: int, terminals: NpyRows
) -> Iterator[str]:
    """Check that steps follow each other in the ring buffer, save for the padding after a terminal."""
    path = directory / shard.directory / SEGMENTS
    segments = np.array(map_npy(path, (shard.segments, 2), np.dtype(np.int64)))
    starts, slots = segments.T
    if not shard.steps:
        return
    lengths = np.diff(np.append(starts, shard.steps))
    if not len(starts) or starts[0] != 0 or (lengths < 1).any():
        yield f"{path}: its segments do not cover the {shard.steps:,} steps, each once"
        return
    rows = shard.capacity or shard.steps
    if ((slots < 0) | (slots + lengths > rows)).any():
        yield f"{path}: holds a row outside of 0..{rows - 1}"
        return
    first_add, stop_add = shard.adds
    adds = first_add + ((slots - first_add) % shard.capacity if shard.capacity else slots)
    ends = np.concatenate(
        [
            first + np.flatnonzero(terminals[first : first + _ROWS] == 1)
            for first in range(0, shard.steps, _ROWS)
        ]
    )
    if padding:
        inside = np.setdiff1d(ends + 1, np.append(starts, shard.steps))
        if len(inside):
            yield f"{path}: row {inside[0]} does not follow the one before it: there must be padding between"
            return
    over = np.isin(starts + lengths - 1, ends)  # the segment ends with a terminal
    gaps = np.diff(adds) - lengths[:-1]
    bad = gaps != padding * over[:-1]
    if bad.any() or adds[-1] + lengths[-1] > stop_add:
        segment = int(np.argmax(bad)) + 1
        yield f"{path}: segment {segment} does not follow the one before it in the source files"
        return
    if adds[0] - first_add > padding:
        yield f"{path}: begins {adds[0] - first_add} rows late, expected {padding} at the most"
    late = stop_add - adds[-1] - lengths[-1]
    if late > padding * over[-1]:
        yield f"{path}: ends {late} rows early"
