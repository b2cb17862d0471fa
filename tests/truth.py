"""What a dataset must hold and what its batches must be, worked out by plain loops over the play itself."""

from __future__ import annotations

import hashlib
import math
import pathlib
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import atarirb
from atarirb.recording.ring_log import RingLog

SAMPLES = pathlib.Path(__file__).parent / "data" / "samples"


class Undecidable(Exception):
    """The log's files do not tell how many windows were lost before the last one."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a dataset, one row each, as the player knows them."""

    frames: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    episode: np.ndarray  # number of the step's episode in the dataset
    head_cut: np.ndarray  # the beginning of the step's episode is lost
    split: np.ndarray
    slot: np.ndarray
    number: np.ndarray  # the step in the play, lost ones counted

    def __len__(self) -> int:
        return len(self.action)

    def first(self, step: int) -> int:
        """Find the first step of a step's episode."""
        return int(np.flatnonzero(self.episode == self.episode[step])[0])

    def follows(self, step: int) -> bool:
        """Tell whether the step after `step` is in the dataset and of the same episode."""
        return step + 1 < len(self) and self.episode[step + 1] == self.episode[step]


def play(
    directory: pathlib.Path,
    lengths: Sequence[int],
    *,
    capacity: int,
    stack: int = 4,
    seed: int = 0,
    frame_shape: tuple[int, ...] = (4, 3),
    frame_dtype: Any = np.uint8,
    unfinished: bool = False,
    rewards: Any = None,
    extra: Mapping[str, tuple[tuple[int, ...], Any]] | None = None,
    drop: Collection[int] = (),
) -> tuple[Steps, list[int]]:
    """Log episodes of these lengths, random in all else.

    Args:
        directory: The run's directory.
        lengths: Steps of each episode.
        capacity: Slots of the log's buffer.
        stack: Frames the writer stacks.
        seed: Of frames, actions and rewards.
        frame_shape: Shape of a frame; no pixel is 0.
        frame_dtype: Its dtype.
        unfinished: The last episode has no terminal.
        rewards: Rewards of all steps; normal variates by default.
        extra: Extra columns, name -> (shape, dtype); each value is the step's number in the play.
        drop: Splits that will not be ingested; the first one is if no other is left.

    Returns:
        What a dataset must hold, and the splits to make it from.

    Raises:
        Undecidable: Windows were lost before the last file, whose count is modulo the capacity: all
            before it, or more than one.
    """
    rng = np.random.default_rng(seed)
    count = sum(lengths)
    frames = rng.integers(1, 256, (count, *frame_shape)).astype(frame_dtype)
    action = rng.integers(0, 6, count).astype(np.int32)
    reward = np.asarray(rng.normal(size=count) if rewards is None else rewards, np.float32)
    first = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    terminal = np.append(first[1:] != first[:-1], not unfinished)
    garbage = {"observation": 77, "action": 5, "reward": np.nan, "terminal": 1}
    with RingLog(
        directory,
        capacity,
        frame_shape=frame_shape,
        frame_dtype=frame_dtype,
        stack=stack,
        extra=extra,
        garbage=garbage,
    ) as log:
        for step in range(count):
            more = {name: np.full(shape, step, dtype) for name, (shape, dtype) in (extra or {}).items()}
            log.add(frames[step], action[step], reward[step], terminal[step], **more)

    before = log.windows[-2].stop if len(log.windows) > 1 else -capacity
    if log.add_count - before >= 2 * capacity:
        raise Undecidable
    add = log.add_id
    split = np.full(log.add_count, -1)  # of every add: the first file that holds it
    for window in reversed(log.windows):
        split[window.start : window.stop] = window.split
    dumped = split >= 0
    splits = [window.split for window in log.windows if window.split not in drop] or [0]
    kept = np.flatnonzero(np.isin(split[add], splits))
    joined = (np.diff(kept, prepend=-9) == 1) & (first[kept] != kept)
    # Before a true beginning the file shows padding, or the log begins there.
    known = (first[kept] == kept) & ((add[kept] == 0) | dumped[add[kept] - 1])
    episode = np.cumsum(~joined) - 1
    steps = Steps(
        frames=frames[kept],
        action=action[kept],
        reward=reward[kept],
        terminal=terminal[kept],
        episode=episode,
        head_cut=~known[~joined][episode],
        split=split[add[kept]],
        slot=add[kept] % capacity,
        number=kept,
    )
    return steps, splits


def ingest(source: pathlib.Path, out: pathlib.Path, **options: Any) -> None:
    """Ingest without waiting for the disk, which is most of the time that a small log takes."""
    with mock.patch("os.fsync"):
        atarirb.ingest(source, out, workers=1, **options)


def dataset(
    directory: pathlib.Path, lengths: Sequence[int], *, codec: str = "packed", **options: Any
) -> tuple[pathlib.Path, Steps]:
    """Log episodes as `play` does and make a dataset of them; return its path and its steps."""
    steps, splits = play(directory / "Pong" / "1", lengths, **options)
    ingest(directory / "Pong" / "1", directory / "data", splits=splits, codec=codec)
    return directory / "data", steps


# What batches must be.


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What follows a step."""

    reward: float
    discount: float
    terminated: bool
    truncated: bool
    next_step: int | None


def transition(steps: Steps, step: int, n_step: int, gamma: float) -> Transition:
    """Walk n steps on, as far as the episode goes."""
    reward, discount = 0.0, 1.0
    for at in range(step, step + n_step):
        reward += discount * float(steps.reward[at])
        discount *= gamma
        if steps.terminal[at]:
            return Transition(reward=reward, discount=0, terminated=True, truncated=False, next_step=None)
        if not steps.follows(at):
            return Transition(
                reward=reward, discount=discount, terminated=False, truncated=True, next_step=None
            )
    return Transition(
        reward=reward, discount=discount, terminated=False, truncated=False, next_step=step + n_step
    )


def return_to_go(steps: Steps, step: int, gamma: float) -> float:
    """Add the discounted rewards up to the episode's end; NaN where that is lost."""
    total, weight = float(steps.reward[step]), 1.0
    while steps.follows(step):
        step, weight = step + 1, weight * gamma
        total += weight * float(steps.reward[step])
    return total if steps.terminal[step] else math.nan


def observation(steps: Steps, step: int | None, frame_stack: int) -> np.ndarray:
    """Stack a step's frame and those before it in its episode, newest last; all zeros for None."""
    blank = np.zeros_like(steps.frames[0])
    shown = []
    for at in range((step or 0) - frame_stack + 1, (step or 0) + 1):
        inside = step is not None and at >= 0 and steps.episode[at] == steps.episode[step]
        shown.append(steps.frames[at] if inside else blank)
    return shown[0] if frame_stack == 1 else np.stack(shown, axis=-1)


def is_valid(steps: Steps, step: int, frame_stack: int, n_step: int) -> bool:
    """Tell whether a step has all it needs."""
    lost_frames = steps.head_cut[step] and step - steps.first(step) < frame_stack - 1
    return not lost_frames and not transition(steps, step, n_step, 1).truncated


def slices(
    steps: Steps, length: int, frame_stack: int, n_step: int, *, strict: bool = True
) -> set[tuple[int, ...]]:
    """Find all legal slices; if not strict, also the whole of what is valid where that is shorter."""
    found = set()
    for episode in range(int(steps.episode[-1]) + 1 if len(steps) else 0):
        members = np.flatnonzero(steps.episode == episode).tolist()
        valid = [step for step in members if is_valid(steps, step, frame_stack, n_step)]
        if not strict and 0 < len(valid) < length:
            found.add(tuple(valid))
        for start in members:
            wanted = tuple(range(start, start + length))
            if all(step in valid for step in wanted):
                found.add(wanted)
    return found


# Helps to compare.


def leaves(batch: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Walk over a batch's leaves by name, as NumPy arrays."""
    for name in sorted(batch):
        if isinstance(batch[name], Mapping):
            yield from leaves(batch[name], f"{prefix}{name}.")
        else:
            yield prefix + name, np.asarray(batch[name])


def pick(batch: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Take rows of every leaf."""
    return {
        name: pick(leaf, rows) if isinstance(leaf, Mapping) else np.asarray(leaf)[rows]
        for name, leaf in batch.items()
    }


def assert_same(batch: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Check that two batches have the same leaves: names, dtypes, shapes, values."""
    found, expected = dict(leaves(batch)), dict(leaves(other))
    assert list(found) == list(expected)
    for name, values in found.items():
        assert values.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(values, expected[name], strict=True, err_msg=name)


def digest(batch: Mapping[str, Any]) -> str:
    """Hash a batch: names, dtypes, shapes and values of its leaves."""
    sha = hashlib.sha256()
    for name, values in leaves(batch):
        little = values.astype(values.dtype.newbyteorder("<"))
        sha.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        sha.update(little.tobytes())
    return sha.hexdigest()


def surprise(counts: np.ndarray, law: np.ndarray | float = 1.0) -> float:
    """Return by how many standard deviations counts' chi-square is above what the law predicts."""
    weights = np.broadcast_to(np.asarray(law, np.float64), counts.shape)
    expected = counts.sum() * weights / weights.sum()
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def words_of(number: int, total: int) -> np.ndarray:
    """Return the least and the greatest 64-bit word of the `number`-th of `total` equal parts."""
    least = -(-(number << 64) // total)
    greatest = -(-((number + 1) << 64) // total) - 1
    return np.array([least, greatest], np.uint64)


# What child processes run.


def run_killed(code: str, *, at: int) -> int:
    """Run code in a process that is killed at its n-th call that changes the disk; return its exit status."""
    script = f"""
import os, signal
import atarirb
count = 0
def dying(function):
    def call(*arguments, **options):
        global count
        count += 1
        if count == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
for name in ("pwrite", "replace", "rename", "fsync"):
    setattr(os, name, dying(getattr(os, name)))
{code}
"""
    return subprocess.run([sys.executable, "-c", script], check=False).returncode


def sample_digests(reader: Any) -> list[str]:
    """Draw in every way there is, with fixed keys."""
    return [
        digest(reader.sample(7, 64)),
        digest(reader.sample_slices(8, 16, 5)),
        digest(reader.sample_slices(9, 16, 5, weighting="episodes")),
    ]


def send_digests(reader: Any, connection: Any) -> None:
    """Send `sample_digests` back to the parent process."""
    connection.send(sample_digests(reader))
    connection.close()
