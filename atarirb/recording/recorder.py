"""The recorder: a dataset that grows while one's own agent plays.

The way of it: each step goes to the journal of its episode (`atarirb.recording.journal`), in
``<dataset>/.recording/``. Episodes that have ended wait there until they are enough for a shard; then
they become one, in the order in which they ended, and the dataset can be read up to there. Shards are
small at first and grow, so that a recording can soon be looked at and a long one does not consist of
crumbs.

    <dataset>/.recording/
        recording.json      what is recorded, see `Settings`
        open-<e>            the journal of the episode that environment e is in
        ended-<k>           that of the k-th episode that has ended, until it is in a shard
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from atarirb import sources
from atarirb.arguments import one_of, positive
from atarirb.batch import RESERVED
from atarirb.errors import ArgumentError, ClosedError, DatasetError
from atarirb.recording.journal import STEP, TERMINAL, TRUNCATED, Journal, JournalRows, mend
from atarirb.store import building, codecs, shards
from atarirb.store import manifest as store
from atarirb.store.files import write_file
from atarirb.threads import cores

_log = logging.getLogger(__name__)

WORK = ".recording"
_SETTINGS = "recording.json"
_OPEN, _ENDED = "open-", "ended-"
_UNCLIPPED = "reward_unclipped"
#: Steps of the first shard at the least; each later one has at least a quarter of those before it.
_FIRST_SHARD = 10_000
_MOST_SHARD = 1_000_000
_CHUNK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What must stay the same as long as a recording grows.

    Attributes:
        name: The run's id.
        codec: How frames are kept.
        shape: Shape of a frame.
        dtype: Of its values.
        extra: dtypes of the extra columns by name, in the order of their names.
        clip_rewards: Rewards are clipped to {-1, 0, 1}.
        note: Whatever the caller wants to be the same.
    """

    name: str
    codec: str
    shape: tuple[int, ...]
    dtype: str
    extra: dict[str, str]
    clip_rewards: bool
    note: dict[str, Any]


class Recorder:
    """Records episodes into a dataset, step by step. A context manager.

        with atarirb.Recorder("data/Pong/mine") as recorder:
            recorder.add(observation, action, reward, terminated, truncated)

    Every step is on file when `add` returns: a killed process loses none, and a recorder made for the
    same directory goes on. An episode that was under way is cut there; what came after is not known. Of a
    power cut, what is in shards survives.

    Meanwhile the dataset can be read: `atarirb.open` gives what is in shards by then, which is where
    episodes that have ended go, many at a time. `commit` makes a shard at once.

    Calls may come from several threads.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        environments: int = 1,
        clip_rewards: bool = False,
        extra: Mapping[str, Any] | None = None,
        codec: str = codecs.DEFAULT,
        note: Mapping[str, Any] | None = None,
    ):
        """Begin a recording, or go on with one.

        Args:
            path: The dataset's directory; made if need be.
            name: The run's id, as ``"Pong/mine"``; by default the last two parts of `path`.
            environments: How many play at the same time; each has its own episode.
            clip_rewards: Store the sign of each reward, as in the public logs, and the reward itself in the
                extra column ``reward_unclipped``.
            extra: More columns of one number a step, name -> dtype.
            codec: How frames are kept.
            note: What else must be the same when the recording goes on, to be told apart by it.

        Raises:
            ArgumentError: An option cannot be, or `path` holds something else.
            BusyError: Another process is recording there.
        """
        one_of("codec", codec, tuple(codecs.CODECS))
        self._directory = pathlib.Path(path)
        self._environments = positive("environments", environments)
        self._wanted = {
            "name": name or sources.run_name(path),
            "codec": codec,
            "clip_rewards": bool(clip_rewards),
            "extra": _extra(extra, clip_rewards),
            "note": dict(note or {}),
        }
        self._row = np.dtype([("action", "<i4"), ("reward", "<f4"), *self._wanted["extra"].items()])
        self._lock = threading.RLock()
        self._stack = contextlib.ExitStack()
        self._closed = False
        self._journals: dict[int, Journal] = {}
        self._lengths: dict[int, int] = {}  # steps of the episodes under way
        self._sealing: tuple[concurrent.futures.Future[None], list[int], int] | None = None
        self._failure: Exception | None = None  # of the background, to be raised by the next call
        self._sealer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="atarirb-record")
        self._work = self._directory / WORK
        self._stack.enter_context(building.claimed(self._directory, WORK))
        try:
            self._settings = self._read_settings()
            self._recover()
        except BaseException:
            self._stack.close()
            raise

    @property
    def steps(self) -> int:
        """Steps recorded, those of episodes under way included."""
        return self._sealed_steps + self._ended_steps + sum(self._lengths.values())

    def add(
        self,
        observation: np.ndarray,
        action: int,
        reward: float,
        terminated: bool,
        truncated: bool,
        *,
        final_observation: np.ndarray | None = None,
        environment: int = 0,
        **extra: Any,
    ) -> None:
        """Record one step; the names are Gymnasium's.

        Args:
            observation: What was seen, the newest frame alone. The first one given settles shape and dtype.
            action: What was done on it, an index into the game's minimal set.
            reward: What came of it, as the game scores it.
            terminated: The episode ended by it.
            truncated: The episode was broken off after it, though the game goes on.
            final_observation: At an episode's end: what was seen after it. With it a truncated step has
                its true next observation, and can be drawn.
            environment: Which of the environments.
            **extra: One number for each extra column.

        Raises:
            ArgumentError: A value cannot be; nothing was recorded.
            ClosedError: The recorder is closed.
        """
        with self._lock:
            self._check_open(environment)
            frame = self._frame("observation", observation)
            row = self._values(action, reward, extra)
            ends = bool(terminated) or bool(truncated)
            if final_observation is not None and not ends:
                raise ArgumentError("final_observation goes with the last step of an episode")
            final = None if final_observation is None else self._frame("final_observation", final_observation)
            kind = TERMINAL if terminated else TRUNCATED if truncated else STEP
            journal = self._journals.get(environment)
            if journal is None:
                path = self._work / f"{_OPEN}{environment}"
                journal = self._journals[environment] = Journal(path, self._row)
                self._lengths[environment] = 0
            journal.step(kind, frame, row)
            self._lengths[environment] += 1
            if ends:
                self._end(environment, final)

    def truncate(self, environment: int = 0, *, final_observation: np.ndarray | None = None) -> None:
        """Break the episode of an environment off after its last step; nothing if there is none.

        Args:
            environment: Which of the environments.
            final_observation: What is seen now.

        Raises:
            ArgumentError, ClosedError: As for `add`.
        """
        with self._lock:
            self._check_open(environment)
            if environment in self._journals:
                final = (
                    None if final_observation is None else self._frame("final_observation", final_observation)
                )
                self._end(environment, final)

    def commit(self) -> None:
        """Make a shard of the episodes that have ended, so that they can be read now."""
        with self._lock:
            self._check_open(0)
            self._wait()
            self._seal(cores())
            self._wait()

    def close(self) -> None:
        """Break off what is under way and make a shard of all that is left. Closing twice is harmless.

        Raises:
            OSError: The disk is full, for example; nothing is lost, and a recorder made for the same
                directory goes on.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                for environment in sorted(self._journals):
                    self._end(environment, None)
                self._wait()
                self._seal(cores())
                self._wait()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        self._sealer.shutdown()
        for journal in self._journals.values():
            journal.close()
        self._stack.close()

    @property
    def _is_dataset(self) -> bool:
        return (self._directory / store.MANIFEST).exists()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What it checks.

    def _check_open(self, environment: int) -> None:
        if self._closed:
            raise ClosedError(f"the recorder of {self._directory} is closed; make a new one to go on")
        if not 0 <= environment < self._environments:
            raise ArgumentError(
                f"environment {environment}, expected 0 to {self._environments - 1}; environments= says how "
                f"many there are"
            )
        if self._sealing is not None and self._sealing[0].done():
            self._wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _frame(self, name: str, observation: np.ndarray) -> np.ndarray:
        frame = np.asarray(observation)
        if self._settings is None:
            self._settle(frame)
        assert self._settings is not None
        if frame.shape != self._settings.shape or frame.dtype.str != self._settings.dtype:
            raise ArgumentError(
                f"{name} is {frame.dtype}{list(frame.shape)}, expected "
                f"{np.dtype(self._settings.dtype)}{list(self._settings.shape)} as the first one"
            )
        return frame

    def _values(self, action: int, reward: float, extra: Mapping[str, Any]) -> np.ndarray:
        """Make the row of a step's small columns."""
        wanted = self._wanted["extra"].keys() - {_UNCLIPPED}
        if extra.keys() != wanted:
            raise ArgumentError(f"extra columns {sorted(extra)}, expected {sorted(wanted)}")
        values = {"action": action, "reward": reward, **extra}
        if self._wanted["clip_rewards"]:
            values |= {"reward": np.sign(reward), _UNCLIPPED: reward}
        try:
            row = np.array(tuple(values[name] for name in self._row.names or ()), self._row)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"values {values}, expected numbers of {self._row}: {error}") from error
        if row["action"] != action or action < 0:
            raise ArgumentError(f"action is {action!r}, expected an index into the game's minimal set")
        if not np.isfinite(row["reward"]):
            raise ArgumentError(f"reward is {reward!r}, expected a finite number")
        return row

    # Its settings.

    def _settle(self, frame: np.ndarray) -> None:
        if frame.dtype.hasobject or frame.dtype.names or not frame.size:
            raise ArgumentError(f"an observation of {frame.dtype}{list(frame.shape)} cannot be recorded")
        settings = Settings(shape=frame.shape, dtype=frame.dtype.str, **self._wanted)
        write_file(self._work / _SETTINGS, (json.dumps(dataclasses.asdict(settings)) + "\n").encode())
        self._settings = settings

    def _read_settings(self) -> Settings | None:
        """Read what is recorded here, refusing what is not the same as now."""
        path = self._work / _SETTINGS
        if not path.exists():
            if self._is_dataset or any(self._directory.glob("[0-9]*")):
                raise ArgumentError(f"{self._directory} holds a dataset that was not recorded there")
            return None
        try:
            content = json.loads(path.read_bytes())
            settings = Settings(**{**content, "shape": tuple(content["shape"])})
        except (ValueError, TypeError, KeyError) as error:
            raise DatasetError(f"{path}: damaged: {error}") from error
        for field, value in self._wanted.items():
            found = getattr(settings, field)
            if found != value:
                raise ArgumentError(
                    f"{self._directory} is a recording with {field} {found!r}, not {value!r}; go on with "
                    f"that, or name another directory"
                )
        return settings

    # From journals to shards.

    def _recover(self) -> None:
        """Take stock of what is there: shards, journals of episodes that ended, and of one cut off."""
        records = []
        for path in sorted(self._directory.glob("[0-9]*")):
            record = store.read_record(path)
            if record is not None and record.directory == path.name:
                records.append(record)
        self._shards = records
        self._sealed_steps = sum(record.steps for record in records)
        first = max((int(record.source["last_episode"]) + 1 for record in records), default=0)
        for path in self._work.iterdir():
            if path.is_dir():
                building.clear(path)
                path.rmdir()
            elif path.name.startswith(_ENDED) and int(path.name.removeprefix(_ENDED)) < first:
                path.unlink()  # it is in a shard
        ended = sorted(int(path.name.removeprefix(_ENDED)) for path in self._work.glob(f"{_ENDED}*"))
        self._ended = ended
        self._next_episode = max([first, *(number + 1 for number in ended)])
        self._ended_steps = 0
        for number in list(ended):
            self._ended_steps += self._rows(self._work / f"{_ENDED}{number}").steps
        for path in sorted(self._work.glob(f"{_OPEN}*"), key=lambda path: int(path.name.removeprefix(_OPEN))):
            rows = self._rows(path)
            if not rows.steps:
                path.unlink()
                continue
            mend(path, rows.bytes)
            self._file_away(path, rows.steps)
        if self._shards and not self._is_current():
            self._write_manifest()

    def _rows(self, path: pathlib.Path) -> JournalRows:
        assert self._settings is not None
        return JournalRows(path, self._row, self._settings.shape, np.dtype(self._settings.dtype))

    def _end(self, environment: int, final: np.ndarray | None) -> None:
        """Take an episode that has come to its end in."""
        journal = self._journals[environment]
        if final is not None:
            journal.final(final)
        journal.close()
        del self._journals[environment]
        self._file_away(journal.path, self._lengths.pop(environment))
        self._seal_if_enough()

    def _file_away(self, path: pathlib.Path, steps: int) -> None:
        os.rename(path, self._work / f"{_ENDED}{self._next_episode}")
        self._ended.append(self._next_episode)
        self._next_episode += 1
        self._ended_steps += steps

    def _seal_if_enough(self) -> None:
        enough = min(max(_FIRST_SHARD, self._sealed_steps // 4), _MOST_SHARD)
        if self._ended_steps >= enough and not self._closed:
            try:
                self._wait()  # two shards are not made at a time: what waits is on the disk
            except Exception as error:
                self._failure = error  # this step is recorded, and the next call says what went wrong
            else:
                self._seal()

    def _seal(self, threads: int = 1) -> None:
        """Begin to make a shard of the episodes that have ended, by so many threads."""
        if not self._ended:
            return
        # Counted at once, so that where shards end does not depend on how long it takes to make them.
        episodes, steps = self._ended, self._ended_steps
        self._ended, self._ended_steps = [], 0
        self._sealed_steps += steps
        self._sealing = self._sealer.submit(self._make_shard, episodes, threads), episodes, steps

    def _wait(self) -> None:
        """Wait for the shard that is being made; if that fails, its episodes wait for the next one."""
        if self._sealing is None:
            return
        future, episodes, steps = self._sealing
        try:
            future.result()
        except Exception:
            self._ended[:0] = episodes
            self._ended_steps += steps
            self._sealed_steps -= steps
            self._sealing = None
            raise
        self._sealing = None

    def _make_shard(self, episodes: list[int], threads: int) -> None:
        """Make a shard of episodes, tell of it in the manifest, and let their journals go."""
        paths = [self._work / f"{_ENDED}{number}" for number in episodes]
        made = int(self._shards[-1].source["last_episode"]) if self._shards else -1
        if made < episodes[-1]:  # or what failed before was the manifest
            self._shards.append(self._write_shard(paths, episodes[-1], threads))
        self._write_manifest()
        for path in paths:
            path.unlink()

    def _write_shard(self, paths: list[pathlib.Path], last_episode: int, threads: int) -> store.ShardRecord:
        assert self._settings is not None
        journals = [self._rows(path) for path in paths]
        steps = sum(journal.steps for journal in journals)
        first = self._shards[-1].adds[1] if self._shards else 0
        ends = np.cumsum([journal.steps for journal in journals])
        finals = ends[[journal.final for journal in journals]] - 1
        split = self._shards[-1].split + 1 if self._shards else 0
        partial = self._work / store.shard_name(split)
        if partial.exists():
            building.clear(partial)
            partial.rmdir()
        shard = shards.ShardWriter(self._work, self._directory, split)
        rows = np.concatenate([journal.rows[: journal.steps] for journal in journals])
        shard.column("terminal", np.concatenate([journal.terminal() for journal in journals]))
        for column in rows.dtype.names or ():
            shard.column(column, np.ascontiguousarray(rows[column]))
        shape, dtype = self._settings.shape, np.dtype(self._settings.dtype)
        kind = codecs.codec(self._settings.codec)
        count = steps + len(finals)
        samples = _sample(journals, kind.sampled(count, shape, dtype), shape, dtype)
        frames = kind.Writer(shard.directory, count, shape, dtype, samples=samples, threads=threads)
        try:
            everything = _in_order(journals)
            for begin in range(0, count, _CHUNK):
                frames.write(np.stack(list(itertools.islice(everything, _CHUNK))), begin)
        except BaseException:
            frames.abandon()
            raise
        shard.keep(frames.close())
        return shard.finish(
            segments=np.array([[0, first]], np.int64),
            finals=finals.astype(np.int64),
            steps=steps,
            adds=(first, first + steps),
            capacity=2**62,
            head="start",
            clipped=shards.clipped(rows["reward"]),
            source={"last_episode": str(last_episode)},
        )

    def _write_manifest(self) -> None:
        assert self._settings is not None
        settings = self._settings
        building.finish(
            self._directory,
            tuple(self._shards),
            name=settings.name,
            layout="recording",
            codec=settings.codec,
            frame=store.ColumnRecord(shape=settings.shape, dtype=settings.dtype),
            extra={
                column: store.ColumnRecord(shape=(), dtype=dtype) for column, dtype in settings.extra.items()
            },
            writer_stack=1,
        )

    def _is_current(self) -> bool:
        return self._is_dataset and store.read_manifest(self._directory).shards == tuple(self._shards)


def _in_order(journals: list[JournalRows]) -> Iterator[np.ndarray]:
    """Read the frames of all steps, then the final ones."""
    finals = []
    for journal in journals:
        frames = journal.frames()
        yield from itertools.islice(frames, journal.steps)
        finals += frames
    yield from finals


def _sample(
    journals: list[JournalRows], wanted: np.ndarray, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """Read some frames, numbered as they come in order."""
    samples = np.empty((len(wanted), *shape), dtype)
    if len(wanted):
        picked = iter(wanted.tolist())
        place, soon = 0, next(picked)
        for number, frame in enumerate(_in_order(journals)):
            if number == soon:
                samples[place] = frame
                place, soon = place + 1, next(picked, -1)
    return samples


def _extra(extra: Mapping[str, Any] | None, clip_rewards: bool) -> dict[str, str]:
    found = {}
    for name, dtype in (extra or {}).items():
        if name in RESERVED or not name.isidentifier() or name == _UNCLIPPED:
            raise ArgumentError(f"an extra column may not be called {name!r}")
        try:
            found[name] = np.dtype(dtype).str
        except TypeError as error:
            raise ArgumentError(f"extra column {name}: {error}") from None
        if np.dtype(dtype).kind not in "iufb":
            raise ArgumentError(f"extra column {name} is of {np.dtype(dtype)}, expected numbers")
    if clip_rewards:
        found[_UNCLIPPED] = "<f4"
    return dict(sorted(found.items()))
