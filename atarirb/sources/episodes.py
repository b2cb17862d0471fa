"""What is known of a file of RL Unplugged's episodes (see `atarirb.sources.rlds`) but for their frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import zstandard

from atarirb import timeline
from atarirb.errors import LogError
from atarirb.sources.tfrecord import Example, Records

#: The columns of numbers, and their dtypes.
SMALL = {
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
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
        """Steps in all."""
        return int(self.stops[-1])

    def column(self, name: str) -> np.ndarray:
        """Return one of `SMALL`, [rows]."""
        return np.frombuffer(zstandard.decompress(self.small[name]), SMALL[name])

    def matched(self, records: Records) -> Iterator[tuple[int, int, bytes, str]]:
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
class Episode:
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


def known_of(records: Records) -> Known:
    """Read a file's episodes.

    Raises:
        LogError: The file is damaged, or a record is not what it must be.
    """
    episodes = [
        _episode(Example(data, _record_name(records.name, number))) for number, data in enumerate(records)
    ]
    last_is_step = _last_is_step(episodes)
    steps = np.array([episode.steps(last_is_step) for episode in episodes], np.int64)
    if not steps.any():
        raise LogError(f"{records.name}: holds no step in {len(episodes):,} records")
    stops = np.cumsum(steps)
    small = {}
    for column, dtype in SMALL.items():
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
    return Known(
        stops=stops,
        small=small,
        finals=np.array([row for row, _ in lasts], np.int64),
        shown_last=[png for _, png in lasts],
        head="cut" if first["checkpoint_idx"] > 0 and first["episode_idx"] == 0 else "start",
    )


def _last_is_step(episodes: Sequence[Episode]) -> bool:
    """Tell whether last rows of discount 0 are steps in a file, by those returns that tell."""
    told = {answer: episode for episode in episodes if (answer := episode.last_is_step) is not None}
    if len(told) == 2:
        raise LogError(
            f"{told[True].name}: its clipped_episode_return counts the last reward, that of "
            f"{told[False].name} does not; expected one or the other in a file"
        )
    return False not in told


def _episode(example: Example) -> Episode:
    """Check one record's features."""
    columns = {column: example.array(feature, kind) for column, (feature, kind) in _FEATURES.items()}
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
    return Episode(
        name=example.name,
        columns={column: values.astype(SMALL[column]) for column, values in columns.items()},
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


def pngs_of(data: bytes, name: str, steps: int) -> Sequence[bytes]:
    """Return a record's observations, as PNG.

    Raises:
        LogError: They are fewer than its steps.
    """
    pngs = Example(data, name).values("observations", "bytes")
    if len(pngs) < steps:
        raise _changed(name)
    return pngs
