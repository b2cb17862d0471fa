"""RL Unplugged's episodes of Atari, the public copy of the replay logs: GZIP TFRecords, PNG frames.

Files, of ``gs://rl_unplugged/<set>/`` (``rlu_common.filename`` of TensorFlow Datasets, TFDS)::

    <Game>/run_<r>-<k>-of-<n>      k and n of five digits, r from 1 to 5

    <set>                    n     order
    atari_episodes_ordered   50    file k is checkpoint k of the run, a million steps; episodes in the order
                                   of play (49 files of Carnival, Gravitar and StarGunner)
    atari_episodes           50    shuffled
    atari_episodes_v2        100   shuffled

One record is one episode, a ``tf.train.Example`` of N steps (`atari_utils.py` of TFDS; all are required)::

    observations                N x PNG      84 x 84, grey
    actions                     int64[N]     index into the game's minimal actions
    clipped_rewards             float32[N]   clipped to [-1, 1]           -> reward
    unclipped_rewards           float32[N]                                -> unclipped_reward
    discounts                   float32[N]   0 at a terminal              -> logged_discount
    checkpoint_idx              int64        million of the run           -> checkpoint_idx
    episode_idx                 int64        counted in its checkpoint    -> episode_idx
    clipped_episode_return, episode_return   float32, sums of the rewards

The last four columns are extra ones, the indices the same in all steps of an episode. ``reward`` is what
the replay logs hold. Others found the unclipped rewards to be clipped as well; TFDS later dropped the
clipped ones as redundant. Both are kept as they are, and ``episode_return`` is not: it is their sum.

What the sources leave open, and what is done here:

- *The last row.* The data are the DQN replay logs' (TFDS says so), whose rows are what was seen, the action
  taken then, its reward, and whether the game was over after it; the frame after the last action was never
  stored. ``rl_unplugged/atari.py`` calls reward and discount those "after a_t". But TFDS, and with it
  ``tfds_atari_utils.py`` of Dopamine, takes a last row of discount 0 for the terminal state itself: an
  observation, and no step. An episode's return decides where its last reward is not zero: it is the sum
  with that reward, or without. The first makes the rows of the file steps; the second makes its last rows,
  where the discount is 0, final observations, and the steps before them terminals. Where no episode of a
  file decides, its rows are steps. A file that says both is refused.
- *An end without a discount of 0* (the edge of a checkpoint, perhaps the time limit) is a cut, never a
  terminal: what came after is not known, and the last row is in no transition but as an observation.
- *The 27,000-step cap*, stored as a terminal in the replay logs. Here it is one where the discount is 0, and
  `atarirb.open` knows such an episode by its length; else a cut.
- *Whether an episode at the edge of two checkpoints is in both, in two pieces.* The first episode of a
  checkpoint but the run's first may be such a rest: where it begins a file, its head is cut, which costs its
  first few steps as stacks if it was whole after all. In the shuffled sets it may lie anywhere, and is
  taken for whole: one episode in a checkpoint at the most.

Each file is a split, and files may be missing: the numbers of the splits are the k there are. In a shuffled
set files and records keep their order, so steps are in the order of play within each episode only, and a
range of steps or splits is no period of the run: ``checkpoint_idx`` and ``episode_idx`` tell that.

Data that TFDS has prepared (``rlu_atari-train.tfrecord-...``) are other files, and not read.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import zstandard

from atarirb import threads, timeline
from atarirb.errors import ArgumentError, LogError, MissingPackageError, SourceNotFoundError
from atarirb.sources import tfrecord
from atarirb.sources.gzipped import CHUNK_BYTES, GZIP_MAGIC
from atarirb.sources.logs import FINAL, Column, Logs, Stream, Survey
from atarirb.sources.tfrecord import Example

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_FILE = re.compile(r"run_(?P<run>\d+)-(?P<shard>\d{5})-of-(?P<shards>\d{5})")
_RUN = re.compile(r"run_(?P<run>\d+)")

_FRAME = Column(shape=(84, 84), dtype=np.dtype(np.uint8))
_CHUNK = CHUNK_BYTES // (84 * 84)
_SMALL = {
    "terminal": np.dtype(np.uint8),
    "action": np.dtype(np.int32),
    "reward": np.dtype(np.float32),
    "unclipped_reward": np.dtype(np.float32),
    "logged_discount": np.dtype(np.float32),
    "checkpoint_idx": np.dtype(np.int32),
    "episode_idx": np.dtype(np.int32),
}
_INDICES = ("checkpoint_idx", "episode_idx")
#: The features of steps that are numbers, by column.
_FEATURES = {
    "action": ("actions", "int64"),
    "reward": ("clipped_rewards", "float"),
    "unclipped_reward": ("unclipped_rewards", "float"),
    "logged_discount": ("discounts", "float"),
}
#: What ``terminal`` is where an episode ends.
_TERMINAL, _CUT = 1, 2


class RldsLogs(Logs):
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
        _png_decode()
        self.name = f"{posixpath.basename(self.directory)}/{chosen}"
        self._filesystem = filesystem
        self._files = runs[chosen]
        self.splits = tuple(sorted(self._files))
        self._known: dict[int, _Known] = {}

    def size(self, split: int) -> int:
        """Return the bytes of a split's file."""
        return self._files[split][1]

    def fingerprint(self, split: int) -> dict[str, str]:
        """Return what changes when a split's file does: its size, and of a gzip stream its last 8 bytes."""
        path, size = self._files[split]
        with self._filesystem.open(path, "rb") as file:
            if file.read(2) != GZIP_MAGIC:
                return {"episodes": f"{size}:{self._filesystem.modified(path).isoformat()}"}
            file.seek(max(0, size - 8))
            return {"episodes": f"{size}:{file.read(8).hex()}"}

    def survey(self, split: int) -> Survey:
        """Read a split's episodes, all but their frames, which are not decoded.

        Raises:
            LogError: The file or a record of it is damaged, or not what it must be.
        """
        with self._open(split) as records:
            known = self._known[split] = _known(records)
        columns = {name: Column(shape=(), dtype=dtype) for name, dtype in _SMALL.items()}
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
        name = posixpath.basename(self._files[split][0])
        if column == "observation":
            return _Frames(self._open(split, on_bytes), known)
        if column == FINAL:
            return _Values(
                name, _FRAME, len(known.shown_last), _decoded(known.shown_last, len(known.shown_last), name)
            )
        if column not in _SMALL:
            raise LogError(f"{name}: has no column {column}; it has {', '.join((*_SMALL, 'observation'))}")
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
        with self._open(split) as records:
            for first, stop, data, name in known.matched(records):
                check()
                high = int(np.searchsorted(rows, stop))
                if high > low:
                    _decode(_pngs(data, name, stop - first), rows[low:high] - first, taken[low:high], name)
                low = high
                if low == len(rows):
                    break
        return taken

    def _known_of(self, split: int) -> _Known:
        if split not in self._known:
            self.survey(split)
        return self._known[split]

    def _open(self, split: int, on_bytes: Callable[[int], None] | None = None) -> tfrecord.Records:
        """Open a split's file: the one place where that is done to read it through."""
        path = self._files[split][0]
        return tfrecord.Records(self._filesystem.open(path, "rb"), posixpath.basename(path), on_bytes)


def recognised(filesystem: AbstractFileSystem, path: str) -> bool:
    """Tell by one listing whether a path is that of RL Unplugged's files."""
    directory, run = _split_path(path)
    names = (posixpath.basename(name) for name, _ in _listing(filesystem, directory))
    matches = (match for name in names if (match := _FILE.fullmatch(name)))
    return any(run is None or int(match["run"]) == run for match in matches)


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


# What is known of a file when its frames have not been decoded.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Known:
    """A file's episodes but for their frames.

    Attributes:
        stops: int64[R], the rows up to the end of each record.
        small: The small columns, compressed: a run has 50 files of a million steps, all known at once.
        finals: int64[F], the rows after which there is a final observation.
        shown_last: Those, as PNG.
        head: How the first row stands to what was before it.
    """

    stops: np.ndarray
    small: dict[str, bytes]
    finals: np.ndarray
    shown_last: list[bytes]
    head: timeline.Head

    @property
    def rows(self) -> int:
        return int(self.stops[-1])

    def column(self, name: str) -> np.ndarray:
        return np.frombuffer(zstandard.decompress(self.small[name]), _SMALL[name])

    def matched(self, records: tfrecord.Records) -> Iterator[tuple[int, int, bytes, str]]:
        """Yield each record's rows [first, stop), its data, and what to call it.

        Raises:
            LogError: There are more or fewer than there were.
        """
        number = -1
        for number, data in enumerate(records):
            if number == len(self.stops):
                break
            first = int(self.stops[number - 1]) if number else 0
            yield first, int(self.stops[number]), data, _record_name(records.name, number)
        if number + 1 != len(self.stops):
            raise _changed(records.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Episode:
    """One record, checked.

    Attributes:
        name: What to call it.
        columns: [N] of each numeric feature, by column.
        indices: Its numbers, by column.
        clipped_return: The sum of its rewards, says its writer.
        shown_last: The last observation, as PNG.
    """

    name: str
    columns: dict[str, np.ndarray]
    indices: dict[str, int]
    clipped_return: float
    shown_last: bytes

    def __len__(self) -> int:
        return len(self.columns["action"])

    @property
    def over(self) -> bool:
        """The discount of the last row is 0."""
        return bool(self.columns["logged_discount"][-1] == 0)

    @property
    def last_is_step(self) -> bool | None:
        """Whether a last row of discount 0 is a step, by the return; None if that does not tell."""
        rewards = self.columns["reward"].astype(np.float64)
        total, last = rewards.sum(), rewards[-1]
        if not self.over or last == 0:
            return None
        return {total: True, total - last: False}.get(self.clipped_return)

    def steps(self, last_is_step: bool) -> int:
        """Count its steps."""
        return len(self) - (self.over and not last_is_step)


def _known(records: tfrecord.Records) -> _Known:
    """Read a file's episodes."""
    episodes = [
        _episode(Example(data, _record_name(records.name, number))) for number, data in enumerate(records)
    ]
    last_is_step = _last_is_step(episodes)
    steps = np.array([episode.steps(last_is_step) for episode in episodes], np.int64)
    if not steps.any():
        raise LogError(f"{records.name}: holds no step in {len(episodes):,} records")
    stops = np.cumsum(steps)
    small = {}
    for column, dtype in _SMALL.items():
        if column == "terminal":
            values = np.zeros(stops[-1], dtype)
            ends = np.array([_TERMINAL if episode.over else _CUT for episode in episodes], dtype)
            values[stops[steps > 0] - 1] = ends[steps > 0]
        elif column in _INDICES:
            values = np.repeat(np.array([episode.indices[column] for episode in episodes], dtype), steps)
        else:
            kept = zip(episodes, steps, strict=True)
            values = np.concatenate([episode.columns[column][:count] for episode, count in kept])
        small[column] = zstandard.compress(values.tobytes(), 1)
    lasts = [
        (stop - 1, episode.shown_last)
        for episode, count, stop in zip(episodes, steps, stops, strict=True)
        if 0 < count < len(episode)
    ]
    first = episodes[int(np.argmax(steps > 0))].indices
    return _Known(
        stops=stops,
        small=small,
        finals=np.array([row for row, _ in lasts], np.int64),
        shown_last=[png for _, png in lasts],
        head="cut" if first["checkpoint_idx"] > 0 and first["episode_idx"] == 0 else "start",
    )


def _last_is_step(episodes: Sequence[_Episode]) -> bool:
    """Tell whether last rows of discount 0 are steps in a file, by those returns that tell."""
    told = {answer: episode for episode in episodes if (answer := episode.last_is_step) is not None}
    if len(told) == 2:
        raise LogError(
            f"{told[True].name}: its clipped_episode_return counts the last reward, that of "
            f"{told[False].name} does not; expected one or the other in a file"
        )
    return False not in told


def _episode(example: Example) -> _Episode:
    """Check one record's features."""
    columns = {}
    for column, (feature, kind) in _FEATURES.items():
        columns[column] = example.array(feature, kind)
    observations = example.values("observations", "bytes")
    count = len(columns["action"])
    if not count:
        raise LogError(f"{example.name}: an episode of no steps")
    lengths = {feature: len(columns[column]) for column, (feature, _) in _FEATURES.items()}
    for feature, length in (lengths | {"observations": len(observations)}).items():
        if length != count:
            raise LogError(f"{example.name}: {length:,} {feature}, expected {count:,} as actions")
    _check(example.name, "actions", columns["action"], lambda rows: (rows < 0) | (rows >= 2**31))
    for column in ("reward", "unclipped_reward"):
        _check(example.name, _FEATURES[column][0], columns[column], lambda rows: ~np.isfinite(rows))
    early = np.flatnonzero(columns["logged_discount"][:-1] == 0)
    if len(early):
        raise LogError(
            f"{example.name}: the discount is 0 at step {early[0]:,} of {count:,}, expected that of the last "
            f"at most"
        )
    return _Episode(
        name=example.name,
        columns={column: values.astype(_SMALL[column]) for column, values in columns.items()},
        indices={index: _one(example, index, "int64") for index in _INDICES},
        clipped_return=_one(example, "clipped_episode_return", "float"),
        shown_last=observations[count - 1],
    )


def _check(name: str, feature: str, rows: np.ndarray, test: Callable[[np.ndarray], np.ndarray]) -> None:
    bad = test(rows)
    if bad.any():
        step = int(np.argmax(bad))
        raise LogError(f"{name}: {feature} holds {rows[step]} at step {step:,}; it is damaged")


def _one(example: Example, feature: str, kind: str) -> int | float:
    """Return the only value of a feature."""
    values = example.array(feature, kind)
    if len(values) != 1:
        raise LogError(f"{example.name}: {len(values):,} values of {feature}, expected 1")
    value = values[0].item()
    if kind == "int64" and not 0 <= value < 2**31:
        raise LogError(f"{example.name}: {feature} is {value}, expected 0 to 2**31 - 1")
    return value


def _record_name(file: str, number: int) -> str:
    return f"{file}, record {number}"


def _changed(name: str) -> LogError:
    return LogError(f"{name}: has changed since it was surveyed; run the same command again")


# Frames.


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

    def __init__(self, records: tfrecord.Records, known: _Known):
        super().__init__(records.name, _FRAME, known.rows, self._episodes(known))
        self._records = records

    def _episodes(self, known: _Known) -> Iterator[tuple[int, np.ndarray]]:
        buffers = _buffers()
        for first, stop, data, name in known.matched(self._records):
            for low, rows in _decoded(_pngs(data, name, stop - first), stop - first, name, buffers):
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


def _pngs(data: bytes, name: str, steps: int) -> Sequence[bytes]:
    """Return a record's observations, as PNG."""
    pngs = Example(data, name).values("observations", "bytes")
    if len(pngs) < steps:
        raise _changed(name)
    return pngs


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
        _decode(pngs, numbers, rows, name)
        yield first, rows


def _decode(pngs: Sequence[bytes], numbers: np.ndarray, out: np.ndarray, name: str) -> None:
    """Decode some PNGs, on a few threads.

    Args:
        pngs: The PNGs.
        numbers: int64[K], which.
        out: uint8[K, 84, 84].
        name: What they are of, for messages.
    """
    decode = _png_decode()
    waiting = iter(range(len(numbers)))  # shared: each thread takes the next

    def work(_: np.ndarray) -> None:
        for row in waiting:
            number = int(numbers[row])
            try:
                frame = decode(pngs[number])
            except (ValueError, RuntimeError) as error:
                raise LogError(
                    f"{name}: observation {number:,} is no PNG that can be read: {error}"
                ) from error
            if frame.shape != _FRAME.shape or frame.dtype != _FRAME.dtype:
                raise LogError(
                    f"{name}: observation {number:,} is {frame.dtype}{list(frame.shape)}, expected "
                    f"{_FRAME.dtype}{list(_FRAME.shape)}"
                )
            out[row] = frame

    threads.spread(work, out.nbytes)


def _png_decode() -> Callable[[bytes], np.ndarray]:
    """Return a function that decodes a PNG, without holding the GIL, and is strict about damage."""
    try:
        from imagecodecs import png_decode
    except ImportError as error:
        raise MissingPackageError.needed(
            "imagecodecs", purpose="reading RL Unplugged", extra="rlds"
        ) from error
    return png_decode
