"""Verify: whether a dataset's files are what they were when it was made."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from atarirb.errors import AtarirbError
from atarirb.store.dataset import Dataset
from atarirb.store.episodes import column_rows, episode_table
from atarirb.store.files import FileRecord, checksum
from atarirb.store.manifest import COLUMNS, EPISODES, Manifest, ShardRecord, read_manifest, read_record
from atarirb.store.npy import NpyRows
from atarirb.verbs.progress import meter

_ROWS = 1 << 20


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
        path: The dataset's directory.
        deep: Check also what must hold of the values: terminals are 0 or 1, rewards finite, source
            rows in the order of the ring buffer with exactly the padding left out, the episode table
            what the columns say.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        A report of all problems; it raises none of them.

    Raises:
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: The manifest itself cannot be read.
    """
    directory = pathlib.Path(path)
    manifest = read_manifest(directory)
    files = {directory / EPISODES: manifest.episodes_file}
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
    return Report(
        path=os.fspath(path), files=len(files), bytes=manifest.bytes, deep=deep, problems=tuple(problems)
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
        "terminal": ("neither 0 nor 1", lambda rows: rows > 1),
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
        yield from _check_slots(
            shard, manifest.writer_stack - 1, columns["slot"][number], columns["terminal"][number]
        )
    for before, after in itertools.pairwise(manifest.shards):
        if before.adds[1] > after.adds[0]:
            yield f"{directory}: shards {before.directory} and {after.directory} hold the same adds"
    table = episode_table(manifest.shards, columns["terminal"], columns["reward"])
    if not np.array_equal(table, dataset.episodes):
        yield f"{directory / EPISODES}: is not what the columns say"
    clipped = all(shard.clipped for shard in manifest.shards)
    if clipped != manifest.rewards_clipped:
        yield f"{directory}: rewards_clipped is {manifest.rewards_clipped}, in its shards {clipped}"


def _check_slots(shard: ShardRecord, padding: int, slots: NpyRows, terminals: NpyRows) -> Iterator[str]:
    """Check that steps follow each other in the ring buffer, save for the padding after a terminal."""
    first_add, stop_add = shard.adds
    before = None  # (add, terminal) of the last step of the rows before
    for first in range(0, shard.steps, _ROWS):
        rows = slots[first : first + _ROWS].astype(np.int64)
        if ((rows < 0) | (rows >= shard.capacity)).any():
            yield f"{slots.path}: holds a row outside of 0..{shard.capacity - 1}"
            return
        adds = first_add + (rows - first_add) % shard.capacity
        ends = terminals[first : first + _ROWS] == 1
        if before is not None:
            adds, ends = np.append(before[0], adds), np.append(before[1], ends)
        bad = np.diff(adds) != 1 + padding * ends[:-1]
        if bad.any() or adds[-1] >= stop_add:
            row = first + int(np.argmax(bad)) + (before is None)
            yield f"{slots.path}: row {row} does not follow the one before it in the source files"
            return
        if first == 0 and adds[0] - first_add > padding:
            yield f"{slots.path}: begins {adds[0] - first_add} rows late, expected {padding} at the most"
        before = (adds[-1], ends[-1])
    if before is not None and stop_add - 1 - before[0] > padding * before[1]:
        yield f"{slots.path}: ends {stop_add - 1 - before[0]} rows early"
