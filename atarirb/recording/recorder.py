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
import json
import operator
import os
import pathlib
import shutil
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from atarirb import sources
from atarirb.arguments import one_of, positive
from atarirb.batch import RESERVED
from atarirb.errors import ArgumentError, ClosedError, DatasetError
from atarirb.recording import sealing
from atarirb.recording.journal import FINAL, STEP, TERMINAL, TRUNCATED, Journal, JournalRows, mend
from atarirb.store import building, codecs
from atarirb.store import manifest as store
from atarirb.store.files import write_file
from atarirb.threads import cores

_SETTINGS = "recording.json"
_OPEN, _ENDED = "open-", "ended-"
_UNCLIPPED = "reward_unclipped"
_MOST_REWARD = float(np.finfo(np.float32).max)
#: Names that an extra column cannot be given by.
_TAKEN = (_UNCLIPPED, "self", "environment", "final_observation")
#: Steps of the first shard made in the background; a later one has a quarter of those before, up to the most.
_FIRST_SHARD = 25_000
_MOST_SHARD = 1_000_000


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
        self._named = name is not None
        self._pid = os.getpid()
        self._wanted = {
            "name": name or sources.run_name(path),
            "codec": codec,
            "clip_rewards": bool(clip_rewards),
            "extra": _extra(extra, clip_rewards),
            "note": _plain(note or {}),
        }
        self._row = np.dtype([("action", "<i4"), ("reward", "<f4"), *self._wanted["extra"].items()])
        self._lock = threading.RLock()
        self._stack = contextlib.ExitStack()
        self._closed = False
        self._journals: dict[int, Journal] = {}
        self._sealing: tuple[concurrent.futures.Future[None], int] | None = None
        self._failure: Exception | None = None  # of the background, to be raised by the next call
        self._sealer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="atarirb-record")
        self._work = self._directory / building.RECORDING
        self._stack.enter_context(building.claimed(self._directory, building.RECORDING))
        try:
            self._settings = self._read_settings()
            self._recover()
        except BaseException:
            self._stack.close()
            raise

    @property
    def steps(self) -> int:
        """Steps recorded, those of episodes under way included."""
        with self._lock:
            under_way = sum(journal.steps for journal in self._journals.values())
            return self._sealed_steps + self._ended_steps + under_way

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
            OSError: The disk is full, for example, now or when a shard was made in the background; the step
                was not recorded, and what was is kept.
            ClosedError: The recorder is closed, or is another process's.
        """
        with self._lock:
            number = self._check_open(environment)
            row = self._values(action, reward, extra)
            ends = bool(terminated) or bool(truncated)
            if final_observation is not None and not ends:
                raise ArgumentError("final_observation goes with the last step of an episode")
            frame = self._frame("observation", observation)
            final = None if final_observation is None else self._frame("final_observation", final_observation)
            kind = TERMINAL if terminated else TRUNCATED if truncated else STEP
            journal = self._journals.get(number)
            if journal is not None and journal.kind != STEP:  # an error or an interrupt came before its end
                self._end(number, None)
                journal = None
            if journal is None:
                journal = self._journals[number] = Journal(self._work / f"{_OPEN}{number}", self._row)
            journal.step(kind, frame, row)
            if ends:
                self._end(number, final)

    def truncate(self, environment: int = 0, *, final_observation: np.ndarray | None = None) -> None:
        """Break the episode of an environment off after its last step; nothing if there is none.

        Args:
            environment: Which of the environments.
            final_observation: What is seen now.

        Raises:
            ArgumentError, ClosedError: As for `add`.
        """
        with self._lock:
            number = self._check_open(environment)
            if number in self._journals:
                final = final_observation
                self._end(number, None if final is None else self._frame("final_observation", final))

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
            if os.getpid() != self._pid:  # forked: the files are another process's
                return
            try:
                for environment in sorted(self._journals):
                    self._end(environment, None)
                self._wait()
                self._seal(cores())
                self._wait()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Close the files and the lock, but not while a shard is being made, however often interrupted."""
        while self._sealing is not None:
            try:
                concurrent.futures.wait([self._sealing[0]])
            except KeyboardInterrupt:
                continue
            break
        try:
            self._sealer.shutdown(wait=False)
            for journal in self._journals.values():
                journal.close()
        finally:
            self._stack.close()

    @property
    def _is_dataset(self) -> bool:
        return (self._directory / store.MANIFEST).exists()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What it checks.

    def _check_open(self, environment: int) -> int:
        """Raise what there is to raise before any work; return the environment's number."""
        if self._closed or os.getpid() != self._pid:
            raise ClosedError(f"the recorder of {self._directory} is closed; make a new one to go on")
        try:
            number = int(operator.index(environment))
        except TypeError:
            number = -1
        if not 0 <= number < self._environments:
            raise ArgumentError(
                f"environment {environment}, expected 0 to {self._environments - 1}; environments= says how "
                f"many there are"
            )
        if self._sealing is not None and self._sealing[0].done():
            self._wait()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        return number

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
        # By Python's own numbers: NumPy's would take longer than most else that is done for a step.
        if not _is_index(action):
            raise ArgumentError(f"action is {action!r:.80}, expected an index into the game's minimal set")
        if not _is_reward(reward):
            raise ArgumentError(f"reward is {reward!r:.80}, expected a finite number")
        values: tuple[Any, ...] = (action, reward)
        if self._wanted["clip_rewards"]:
            extra = {**extra, _UNCLIPPED: reward}
            values = (action, (reward > 0) - (reward < 0))
        try:
            row = np.array((*values, *(extra[name] for name in self._wanted["extra"])), self._row)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"values {extra}, expected {self._wanted['extra']}: {error}") from error
        for name in wanted:
            if row[name].dtype.kind in "iub" and row[name] != extra[name]:
                raise ArgumentError(f"{name} is {extra[name]!r}, expected {row[name].dtype}")
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
            if self._is_dataset or _shard_places(self._directory):
                raise ArgumentError(f"{self._directory} holds a dataset that was not recorded there")
            if (self._directory / building.WORK).exists():
                raise ArgumentError(f"{self._directory} holds the beginning of an ingest, a convert or a map")
            return None
        try:
            content = json.loads(path.read_bytes())
            settings = Settings(**{**content, "shape": tuple(content["shape"])})
        except (ValueError, TypeError, KeyError) as error:
            raise DatasetError(f"{path}: damaged: {error}") from error
        for field, value in self._wanted.items():
            found = getattr(settings, field)
            if found != value and (field != "name" or self._named):
                raise ArgumentError(
                    f"{self._directory} is a recording with {field} {found!r}, not {value!r}; go on with "
                    f"that, or name another directory"
                )
        return settings

    # From journals to shards.

    def _recover(self) -> None:
        """Take stock of what is there: shards, journals of episodes that ended, and of one cut off."""
        self._shards = [_record(path) for path in _shard_places(self._directory)]
        if self._is_dataset:
            there = {shard.directory for shard in self._shards}
            for shard in store.read_manifest(self._directory).shards:
                if shard.directory not in there:
                    place = self._directory / shard.directory
                    raise DatasetError(f"{place}: missing, though the manifest lists it")
        self._sealed_steps = sum(shard.steps for shard in self._shards)
        first = self._last_sealed + 1
        for path in self._work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name.startswith(_ENDED) and _number(path, _ENDED) < first:
                path.unlink()  # it is in a shard
        self._next_episode = max([first, *(number + 1 for number in self._ended())])
        self._ended_steps = 0
        for kind, number in [(_ENDED, number) for number in self._ended()] + [
            (_OPEN, number) for number in _numbers(self._work, _OPEN)
        ]:
            path = self._work / f"{kind}{number}"
            rows = self._rows(path)
            if not rows.steps:
                path.unlink()
            elif kind == _ENDED:
                self._ended_steps += rows.steps
            else:
                mend(path, rows.bytes)
                self._file_away(path, rows.steps)
        if self._shards and not self._is_current():
            self._write_manifest()

    def _rows(self, path: pathlib.Path) -> JournalRows:
        assert self._settings is not None
        return JournalRows(path, self._row, self._settings.shape, np.dtype(self._settings.dtype))

    def _end(self, environment: int, final: np.ndarray | None) -> None:
        """Take an episode that has come to its end in; again, where an interrupt came between."""
        journal = self._journals[environment]
        if final is not None and journal.steps and journal.kind != FINAL:
            journal.final(final)
        if journal.kind == STEP:
            journal.kind = TRUNCATED  # nothing more is added to it
        if journal.path.exists():
            if journal.steps:
                self._file_away(journal.path, journal.steps)
            else:
                journal.path.unlink()
        journal.close()
        del self._journals[environment]
        self._seal_if_enough()

    def _file_away(self, path: pathlib.Path, steps: int) -> None:
        number = self._next_episode
        self._next_episode += 1  # first: no other episode must ever get this one's name
        os.rename(path, self._work / f"{_ENDED}{number}")
        self._ended_steps += steps

    def _ended(self) -> list[int]:
        """List the episodes that have ended and are in no shard, by the files there are."""
        return _numbers(self._work, _ENDED)

    @property
    def _last_sealed(self) -> int:
        return max((int(shard.source["last_episode"]) for shard in self._shards), default=-1)

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
        episodes = self._ended()
        if not episodes:
            return
        self._sealing = self._sealer.submit(self._make_shard, episodes, threads), self._ended_steps
        # Counted at once, so that where shards end does not depend on how long it takes to make them.
        self._sealed_steps += self._ended_steps
        self._ended_steps = 0

    def _wait(self) -> None:
        """Wait for the shard that is being made; if that fails, its episodes wait for the next one."""
        if self._sealing is None:
            return
        future, steps = self._sealing
        try:
            future.result()
        except Exception:
            made = sum(shard.steps for shard in self._shards)
            if made < self._sealed_steps:  # the shard itself, not only the manifest, could not be made
                self._sealed_steps = made
                self._ended_steps += steps
            self._sealing = None
            raise
        self._sealing = None

    def _make_shard(self, episodes: list[int], threads: int) -> None:
        """Make a shard of episodes, tell of it in the manifest, and let their journals go."""
        assert self._settings is not None
        new = [number for number in episodes if number > self._last_sealed]
        if new:  # or what failed before was the manifest
            record = sealing.write_shard(
                self._work,
                self._directory,
                self._shards[-1] if self._shards else None,
                [self._rows(self._work / f"{_ENDED}{number}") for number in new],
                codec=self._settings.codec,
                shape=self._settings.shape,
                dtype=np.dtype(self._settings.dtype),
                source={"last_episode": str(new[-1])},
                threads=threads,
            )
            self._shards.append(record)
        self._write_manifest()
        for number in episodes:
            (self._work / f"{_ENDED}{number}").unlink(missing_ok=True)

    def _write_manifest(self) -> None:
        assert self._settings is not None
        settings = self._settings
        building.finish(
            self._directory,
            tuple(self._shards),
            name=settings.name,
            layout=store.RECORDED,
            codec=settings.codec,
            frame=store.ColumnRecord(shape=settings.shape, dtype=settings.dtype),
            extra={
                column: store.ColumnRecord(shape=(), dtype=dtype) for column, dtype in settings.extra.items()
            },
            writer_stack=1,
        )

    def _is_current(self) -> bool:
        return self._is_dataset and store.read_manifest(self._directory).shards == tuple(self._shards)


def _is_index(action: Any) -> bool:
    try:
        return 0 <= int(action) < 2**31 and bool(int(action) == action)
    except (TypeError, ValueError, OverflowError):
        return False


def _is_reward(reward: Any) -> bool:
    try:
        return -_MOST_REWARD <= float(reward) <= _MOST_REWARD
    except (TypeError, ValueError, OverflowError):
        return False


def _numbers(work: pathlib.Path, kind: str) -> list[int]:
    """List the numbers of a kind of journal that is there, rising."""
    paths = work.glob(f"{kind}*")
    return sorted(_number(path, kind) for path in paths if path.name.removeprefix(kind).isdecimal())


def _number(path: pathlib.Path, kind: str) -> int:
    number = path.name.removeprefix(kind)
    return int(number) if number.isdecimal() else -1


def _shard_places(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in directory.glob("[0-9]*") if len(path.name) >= 5 and path.name.isdecimal())


def _record(path: pathlib.Path) -> store.ShardRecord:
    record = store.read_record(path)
    if record is None or "last_episode" not in record.source:
        raise DatasetError(f"{path / store.RECORD}: missing or damaged; put it back, or move {path} away")
    return record


def _plain(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return a note as it will be read again."""
    try:
        return json.loads(json.dumps(dict(note)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"note is {note!r}, expected what JSON can hold: {error}") from None


def _extra(extra: Mapping[str, Any] | None, clip_rewards: bool) -> dict[str, str]:
    found = {}
    for name, dtype in (extra or {}).items():
        if name in RESERVED or not name.isidentifier() or name in _TAKEN:
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
