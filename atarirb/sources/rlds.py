"""RL Unplugged's episodes of Atari, the public copy of the replay logs: GZIP TFRecords, PNG frames.

What follows was read in TensorFlow Datasets (TFDS: ``rl_unplugged/atari_utils.py``, ``rlu_common.py``,
``rlu_atari``, ``rlu_atari_checkpoints`` and ``.._ordered``), ``rl_unplugged/atari.py`` of
google-deepmind/deepmind-research and ``labs/offline_rl/rlu_tfds`` of google/dopamine. The files of
``gs://rl_unplugged/<set>/``::

    <Game>/run_<r>-<k>-of-<n>      r from 1 to 5, k and n of five digits

    atari_episodes_ordered   n 50    file k is checkpoint k of the run, a million steps; episodes in the order
                                     of play. Carnival, Gravitar and StarGunner have 49 files, in which k
                                     and the checkpoint may differ
    atari_episodes_v2        n 100   shuffled: episodes of all checkpoints in each file
    atari_episodes                   shuffled; TFDS does not read it. Any n is taken here

One record is one episode, a ``tf.train.Example`` of N rows, compared and stored as::

    observations                N x PNG      84 x 84, grey                        observation
    actions                     int64[N]     index into the game's minimal set    action
    clipped_rewards             float32[N]   clipped to [-1, 1]                   reward
    unclipped_rewards           float32[N]                                        unclipped_reward
    discounts                   float32[N]   0 at a terminal                      logged_discount
    checkpoint_idx              int64                                             checkpoint_idx
    episode_idx                 int64        from 0 in each checkpoint            episode_idx
    clipped_episode_return      float32      sum of the clipped rewards           is compared
    episode_return              float32      sum of the unclipped rewards         is not read

The last two columns are the same in all steps of an episode. ``reward`` is what the replay logs hold. Others
report that the unclipped rewards are clipped as well, and release 1.3.0 of ``rlu_atari`` dropped "redundant
clipped reward fields"; both are kept here as they are.

What the sources leave open, and what is done:

- *The last row.* TFDS says that these data are the DQN replay logs', whose rows are what was seen, the action
  taken then, its reward, and whether the game was over after it; the frame after the last action was never
  stored. ``atari.py`` too calls reward and discount those "after a_t". But TFDS, and Dopamine with it, takes
  a last row of discount 0 for the terminal state: an observation, with an action and a reward that mean
  nothing. Where its reward is not 0, the episode's return decides: it is the sum with that reward, or
  without. With it, the rows of the file are steps. Without it, its last rows of discount 0 are final
  observations, and the steps before them terminals. Where no episode of a file decides, its rows are steps;
  a file that says both is refused.
- *An end without a discount of 0* (the edge of a checkpoint, perhaps the time limit) is a cut, never a
  terminal: what came after is not known, and the last row is in no transition but as an observation.
- *The 27,000-step cap* is a terminal in the replay logs. Here it is one where the discount is 0, and known by
  the episode's length as there; else a cut.
- *Whether an episode at the edge of two checkpoints is whole.* The first one of a checkpoint but the run's
  first may be the rest of one that began before. Where it begins a file, its head is cut; if it was whole
  after all, that costs its first few steps as stacks. In the shuffled sets it may lie anywhere, and is taken
  for whole: one episode in a checkpoint at the most.

Each file is a split; files may be missing, and the numbers of the splits are the k there are. In a shuffled
set files and records keep their order. So steps are in the order of play within each episode only, and a
range of steps or splits is no period of the run: ``checkpoint_idx`` and ``episode_idx`` tell that.

Not read: the set ``atari``, single transitions in files of the same names (its records lack these features),
and what TFDS prepares of the above (``rlu_atari-train.tfrecord-...``).

RL Unplugged: https://arxiv.org/abs/2006.13888
"""

from __future__ import annotations

import concurrent.futures
import io
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from atarirb.errors import ArgumentError, LogError, SourceNotFoundError
from atarirb.sources import episodes, png, tfrecord
from atarirb.sources.gzipped import CHUNK_BYTES, GZIP_MAGIC
from atarirb.sources.logs import FINAL, Column, Stream, Survey
from atarirb.sources.stored import StoredLogs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from atarirb.sources.folder import Folder

_FILE = re.compile(r"run_(?P<run>\d+)-(?P<shard>\d{5})-of-(?P<shards>\d{5})")
_RUN = re.compile(r"run_(?P<run>\d+)")

_FRAME = Column(shape=(84, 84), dtype=np.dtype(np.uint8))
_CHUNK = CHUNK_BYTES // (84 * 84)


def find(folder: Folder, run: int | None) -> Iterator[RldsLogs]:
    """Recognise the episodes in a directory; yields the logs, if there are any, and raises as `RldsLogs`."""
    if any(_FILE.fullmatch(name) for name in folder.files):
        yield RldsLogs(folder.filesystem, folder.path, run)


def names_run(path: str) -> bool:
    """Tell whether a path is, by its name, a run's among several, or one of its files."""
    name = posixpath.basename(path.rstrip("/"))
    return bool(_RUN.fullmatch(name) or _FILE.fullmatch(name))


class RldsLogs(StoredLogs):
    """The episodes of one run in RL Unplugged's files.

    Args:
        filesystem: Where they are.
        path: A game's directory; or ``<Game>/run_<r>``, as the names of a run's files begin; or one file.
        run: The run's number, if the directory has several and the path names none.

    Raises:
        SourceNotFoundError: There are no such files.
        ArgumentError: There are several runs and none is named, or not that one.
        LogError: The files are of two sets.
        MissingPackageError: A package is missing that reading them takes.
    """

    layout = "rlds"
    ordered = True

    def __init__(self, filesystem: AbstractFileSystem, path: str, run: int | None = None):
        directory, named = _split_path(path)
        runs: dict[int, dict[int, tuple[str, int]]] = {}
        counts: dict[int, set[int]] = {}
        for name, size in _listing(filesystem, directory):
            if match := _FILE.fullmatch(posixpath.basename(name)):
                number, shard = int(match["run"]), int(match["shard"])
                runs.setdefault(number, {})[shard] = name, size
                counts.setdefault(number, set()).add(int(match["shards"]))
        if not runs:
            raise SourceNotFoundError(
                f"no episodes of RL Unplugged at {path!r}: expected files named run_1-00000-of-00050 there"
            )
        self.directory = posixpath.dirname(next(iter(next(iter(runs.values())).values()))[0])
        run = named if run is None else run
        chosen = min(runs) if run is None and len(runs) == 1 else run
        if chosen not in runs:
            asked = "run= names none" if chosen is None else f"not of run {chosen}"
            raise ArgumentError(
                f"{self.directory} holds the episodes of run {', '.join(map(str, sorted(runs)))}, {asked}"
            )
        if len(counts[chosen]) > 1:
            sets = " and ".join(f"-of-{count:05d}" for count in sorted(counts[chosen]))
            raise LogError(f"{self.directory}: run {chosen} has files named {sets}: those of two sets")
        tfrecord.check_packages()
        png.decoder()
        self.name = f"{posixpath.basename(self.directory)}/{chosen}"
        self._filesystem = filesystem
        self._files = runs[chosen]
        self.splits = tuple(sorted(self._files))
        self._known: dict[int, episodes.Known] = {}

    def paths(self, split: int) -> list[str]:
        """List the path of a split's file."""
        return [self._files[split][0]]

    def size(self, split: int) -> int:
        """Return the bytes of a split's file."""
        return self._files[split][1]

    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's file does: its size, and of a gzip stream its last 8 bytes."""
        path, size = self._files[split]
        with self._raw(split) as file:
            if file.read(2) != GZIP_MAGIC:
                return {"episodes": f"{size}:{self._changed(path, file)}"}
            file.seek(max(0, size - 8))
            return {"episodes": f"{size}:{file.read(8).hex()}"}

    def survey(self, split: int) -> Survey:
        """Read a split's episodes, all but their frames, which are not decoded.

        Raises:
            LogError: The file or a record of it is damaged, or not what it must be.
        """
        with self._records(split) as records:
            known = self._known[split] = episodes.known_of(records)
        columns = {name: Column(shape=(), dtype=dtype) for name, dtype in episodes.SMALL.items()}
        return Survey(
            rows=known.rows,
            columns=columns | {"observation": _FRAME},
            head=known.head,
            finals=known.finals,
        )

    def stream(self, split: int, column: str, on_bytes: Callable[[int], None] | None = None) -> Stream:
        """Open a column of a split; the small ones are known from its survey, and take no bytes.

        Raises:
            LogError: The split has no such column, or the file is damaged or has changed since.
        """
        known = self._known_of(split)
        name = self._file_name(split)
        if column == "observation":
            return _Frames(self._records(split, on_bytes), known)
        if column == FINAL:
            count = len(known.shown_last)
            return _Values(name, _FRAME, count, _decoded(known.shown_last, count, name))
        if column not in episodes.SMALL:
            known_columns = ", ".join((*episodes.SMALL, "observation"))
            raise LogError(f"{name}: has no column {column}; it has {known_columns}")
        values = known.column(column)
        return _Values(name, Column(shape=(), dtype=values.dtype), len(values), [(0, values)])

    def take(
        self, split: int, column: str, rows: np.ndarray, check: Callable[[], None] = lambda: None
    ) -> np.ndarray:
        """Read some rows of a column, as `Logs.take` does; no other frames are decoded."""
        if column != "observation":
            return super().take(split, column, rows, check)
        known = self._known_of(split)
        taken = np.empty((len(rows), *_FRAME.shape), _FRAME.dtype)
        low = 0
        with self._records(split) as records:
            for first, stop, data, name in known.matched(records):
                check()
                high = int(np.searchsorted(rows, stop))
                if high > low:
                    pngs = episodes.pngs_of(data, name, stop - first)
                    png.decode(pngs, rows[low:high] - first, taken[low:high], name)
                low = high
                if low == len(rows):
                    break
        return taken

    def _known_of(self, split: int) -> episodes.Known:
        if split not in self._known:
            self.survey(split)
        return self._known[split]

    def _records(self, split: int, on_bytes: Callable[[int], None] | None = None) -> tfrecord.Records:
        """Open a split's file to read it through."""
        return tfrecord.Records(self._raw(split), self._file_name(split), on_bytes)

    def _raw(self, split: int) -> io.IOBase:
        return self._open(split, self._files[split][0])

    def _file_name(self, split: int) -> str:
        return posixpath.basename(self._files[split][0])


def _split_path(path: str) -> tuple[str, int | None]:
    """Split a path into a directory and the run that it names, if it does."""
    path = path.rstrip("/")
    match = _RUN.fullmatch(posixpath.basename(path))
    return (posixpath.dirname(path), int(match["run"])) if match else (path, None)


def _listing(filesystem: AbstractFileSystem, directory: str) -> Iterator[tuple[str, int]]:
    """Yield the names and sizes of a directory's files; none if it cannot be listed."""
    try:
        entries = filesystem.ls(directory, detail=True)
    except OSError:
        return
    for entry in entries:
        if entry["type"] == "file":
            yield entry["name"], entry["size"]


class _Values:
    """Rows that are made as they are asked for."""

    def __init__(self, name: str, column: Column, rows: int, chunks: Iterable[tuple[int, np.ndarray]]):
        self.name = name
        self.shape = (rows, *column.shape)
        self.dtype = column.dtype
        self._chunks = chunks

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ``(first row, rows)`` to the end; `rows` may be overwritten by a later one."""
        yield from self._chunks

    def scalar(self) -> np.ndarray:
        """Read all rows at once."""
        return np.concatenate(
            [np.zeros((0, *self.shape[1:]), self.dtype), *(rows.copy() for _, rows in self.chunks())]
        )

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Frames(_Values):
    """The observations of a file's steps."""

    def __init__(self, records: tfrecord.Records, known: episodes.Known):
        super().__init__(records.name, _FRAME, known.rows, self._episodes(known))
        self._records = records

    def _episodes(self, known: episodes.Known) -> Iterator[tuple[int, np.ndarray]]:
        buffers = _buffers()
        for first, stop, data, name in known.matched(self._records):
            pngs = episodes.pngs_of(data, name, stop - first)
            for low, rows in _decoded(pngs, stop - first, name, buffers):
                yield first + low, rows

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield ``(first row, rows)`` to the end; `rows` is overwritten by a later one.

        While the caller has one chunk, threads decode the next.

        Raises:
            LogError: The file is damaged, has changed, or holds another kind of frame.
        """
        chunks = super().chunks()
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="atarirb-png") as thread:
            ahead = thread.submit(next, chunks, None)
            while (chunk := ahead.result()) is not None:
                ahead = thread.submit(next, chunks, None)
                yield chunk

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._records.close()


def _buffers() -> Iterator[np.ndarray]:
    """Return two buffers for frames in turn: one that the caller has, one that is being filled."""
    return itertools.cycle([np.empty((_CHUNK, *_FRAME.shape), _FRAME.dtype) for _ in range(2)])


def _decoded(
    pngs: Sequence[bytes], count: int, name: str, buffers: Iterator[np.ndarray] | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the frames of the first `count` PNGs as ``(number of the first, frames)``."""
    buffers = buffers or _buffers()
    for first in range(0, count, _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, count))
        rows = next(buffers)[: len(numbers)]
        png.decode(pngs, numbers, rows, name)
        yield first, rows
