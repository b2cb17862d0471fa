"""Small logs of random play, written as the collecting agent's buffer did, with the truth kept."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from atarirb.recording.ring_log import RingLog


@dataclasses.dataclass(frozen=True, kw_only=True)
class Play:
    """What was played, step by step, and where each step went.

    `logged` are the steps that are in some file, `add` their numbers, the run over; `windows` the adds
    [start, stop) of each file.
    """

    frames: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminal: np.ndarray
    first: np.ndarray  # the step begins an episode
    add: np.ndarray
    logged: np.ndarray
    extra: dict[str, np.ndarray]
    windows: list[tuple[int, int]]


def record(
    directory: pathlib.Path,
    lengths: list[int],
    capacity: int,
    *,
    seed: int = 0,
    frame_shape: tuple[int, ...] = (3, 4),
    frame_dtype: type = np.uint8,
    stack: int = 4,
    horizon: int = 1,
    unfinished: int = 0,
    extra: dict[str, tuple[tuple[int, ...], type]] | None = None,
) -> Play:
    """Log episodes of these lengths, and `unfinished` steps of one more."""
    rng = np.random.default_rng(seed)
    ends = [length - 1 for length in np.cumsum(lengths)] if lengths else []
    steps = int(sum(lengths)) + unfinished
    frames = rng.integers(1, 250, (steps, *frame_shape)).astype(frame_dtype)
    action = rng.integers(0, 6, steps).astype(np.int32)
    reward = rng.integers(-1, 2, steps).astype(np.float32)
    terminal = np.isin(np.arange(steps), ends)
    columns = {
        name: rng.integers(1, 99, (steps, *shape)).astype(dtype)
        for name, (shape, dtype) in (extra or {}).items()
    }
    log = RingLog(
        directory,
        capacity,
        frame_shape=frame_shape,
        frame_dtype=frame_dtype,
        stack=stack,
        horizon=horizon,
        extra=extra,
        garbage={"reward": np.nan, "observation": 251, "terminal": 7},
    )
    with log:
        for t in range(steps):
            more = {name: values[t] for name, values in columns.items()}
            log.add(frames[t], action[t], reward[t], terminal[t], **more)
    return Play(
        frames=frames,
        action=action,
        reward=reward,
        terminal=terminal,
        first=np.append(True, terminal[:-1])[:steps],
        add=np.asarray(log.add_id),
        logged=np.asarray(log.logged),
        extra=columns,
        windows=[(window.start, window.stop) for window in log.windows],
    )
