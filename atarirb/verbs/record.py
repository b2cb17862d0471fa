"""Record: play a game and record the play, as a dataset or as replay logs."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import pathlib
import shutil
from typing import Any

from tqdm import tqdm

from atarirb import catalog, sources
from atarirb.arguments import positive
from atarirb.errors import ArgumentError
from atarirb.info import DatasetInfo
from atarirb.reader import open as open_reader
from atarirb.recording import policies
from atarirb.recording.playing import play
from atarirb.recording.recorder import Recorder
from atarirb.recording.ring_log import RingLog
from atarirb.sources.ale import Games
from atarirb.store import building, codecs
from atarirb.store.files import write_file
from atarirb.threads import cores
from atarirb.verbs.show import show

_SETTINGS = "recording.json"
_CHUNK = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogsInfo:
    """What recorded replay logs are.

    Attributes:
        path: The run's directory.
        name: The run's id.
        steps: Steps played; the logs lack those of windows that the buffer never wrote.
        splits: Sets of files.
        bytes: Their bytes.
    """

    path: str
    name: str
    steps: int
    splits: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name}  ({self.path})\n"
            f"replay logs of {self.steps:,} steps in {self.splits} split(s), {self.bytes:,} bytes"
        )


def record(
    game: str,
    out: str | os.PathLike[str],
    *,
    steps: int,
    policy: str | policies.Policy = "random",
    seed: int = 0,
    environments: int | None = None,
    codec: str = codecs.DEFAULT,
    name: str | None = None,
    replay_logs: bool = False,
    capacity: int = 1_000_000,
    progress: bool = False,
) -> DatasetInfo | LogsInfo:
    """Play a game with the logs' preprocessing and record it.

    Sticky actions with probability 0.25, four frames a step, the maximum over the last two, grey, 84x84 by
    area interpolation, the minimal action set. The 27,000-step cap and the end of the recording truncate an
    episode; the frame after its last step is kept, as after a terminal. Rewards are clipped to {-1, 0, 1};
    the extra column ``reward_unclipped`` has them as the game scores them.

    The same arguments give the same bytes. A recording that was stopped, killed included, keeps every step
    and goes on by the same call; with more `steps`, a finished one does.

    Args:
        game: Its name in the catalog, as ``"Pong"``.
        out: The dataset's directory.
        steps: Steps in all (four frames each), over all environments.
        policy: "random", "module:function", or such a function; see `atarirb.recording.policies`.
        seed: Of the emulators and the policy.
        environments: Games played at the same time; None for four per core. Their number is part of what
            makes the play what it is.
        codec: How frames are kept.
        name: The run's id; by default the last two parts of `out`.
        replay_logs: Write replay logs in the original layout to ``<out>/replay_logs`` instead of a dataset,
            as the collecting agent's buffer would have: truncations are terminals there, and the frames
            after the last steps and the unclipped rewards are not kept.
        capacity: Rows of the logs' files.
        progress: Show steps, rate and time left on stderr, if that is a terminal.

    Returns:
        What the dataset or the logs are.

    Raises:
        UnknownGameError: The catalog has no such game.
        MissingPackageError: ale-py is not installed.
        ArgumentError: An argument cannot be, or `out` holds something else.
        BusyError: Another process is recording there.
    """
    title = catalog.game(game).name
    steps = positive("steps", steps)
    count = 4 * cores() if environments is None else positive("environments", environments)
    acting = policies.load(policy) if isinstance(policy, str) else policy
    if operator.index(seed) < 0:
        raise ArgumentError(f"seed is {seed}, expected 0 or more")
    note = {"game": title, "seed": operator.index(seed), "environments": count, "policy": _spell(policy)}
    directory = pathlib.Path(out)
    if replay_logs:
        return _record_logs(directory, title, steps, acting, note, positive("capacity", capacity), progress)
    return _record(directory, name, codec, title, steps, acting, note, progress)


def _record(
    directory: pathlib.Path,
    name: str | None,
    codec: str,
    game: str,
    steps: int,
    policy: policies.Policy,
    note: dict[str, Any],
    progress: bool,
) -> DatasetInfo:
    count = note["environments"]
    with Recorder(
        directory, name=name, environments=count, clip_rewards=True, codec=codec, note=note
    ) as recorder:
        if recorder.steps < steps:
            # Two groups where that can be: one plays while the other's steps are recorded.
            groups = [Games(game, size) for size in (count - count // 2, count // 2) if size]
            bar = tqdm(
                total=steps,
                initial=recorder.steps,
                desc="record",
                unit="step",
                disable=None if progress else True,
            )
            try:
                play(groups, policy, recorder, steps, seed=note["seed"], on_steps=bar.update)
            finally:
                bar.close()
                for games in groups:
                    games.close()
    return show(directory)


def _record_logs(
    directory: pathlib.Path,
    game: str,
    steps: int,
    policy: policies.Policy,
    note: dict[str, Any],
    capacity: int,
    progress: bool,
) -> LogsInfo:
    """Record a dataset beside the logs, write the logs from it, and leave those alone."""
    logs, settings = directory / "replay_logs", directory / _SETTINGS
    wanted = {**note, "steps": steps, "capacity": capacity}
    found = json.loads(settings.read_bytes()) if settings.exists() else None
    if found != (wanted if found or logs.exists() else None):
        raise ArgumentError(
            f"{directory} holds replay logs of {found or 'unknown play'}, expected {wanted}; name another "
            f"directory, or remove that one"
        )
    with building.claimed(directory, ".play") as work:
        if not logs.exists():
            name = sources.run_name(directory)
            _record(work / "data", name, "packed", game, steps, policy, note, progress)
            shutil.rmtree(work / "logs", ignore_errors=True)
            _write_logs(work / "data", work / "logs", capacity, progress)
            write_file(settings, (json.dumps(wanted) + "\n").encode())
            os.rename(work / "logs/replay_logs", logs)
        for name in ("data", "logs"):
            shutil.rmtree(work / name, ignore_errors=True)
    files = list(logs.iterdir())
    return LogsInfo(
        path=os.fspath(directory),
        name=sources.run_name(directory),
        steps=steps,
        splits=len(list(logs.glob("add_count_ckpt.*.gz"))),
        bytes=sum(file.stat().st_size for file in files),
    )


def _write_logs(dataset: pathlib.Path, directory: pathlib.Path, capacity: int, progress: bool) -> None:
    """Write a dataset's steps as the collecting agent's buffer would have, truncations as terminals."""
    with open_reader(dataset) as reader, RingLog(directory, capacity, compresslevel=9) as log:
        disable = None if progress else True
        with tqdm(total=len(reader), desc="write logs", unit="step", disable=disable) as bar:
            for first in range(0, len(reader), _CHUNK):
                batch = reader[first : first + _CHUNK]
                reward, done = batch["next"]["reward"], batch["next"]["done"]
                for row in zip(batch["observation"], batch["action"], reward, done, strict=True):
                    log.add(*row)
                bar.update(len(reward))


def _spell(policy: str | policies.Policy) -> str:
    """Name a policy; one of another name does not go on with its recording."""
    if isinstance(policy, str):
        return policy
    return f"{policy.__module__}:{getattr(policy, '__qualname__', type(policy).__qualname__)}"
