"""What a dataset is, in numbers and words, for people and programs."""

from __future__ import annotations

import dataclasses
import math
import os

import numpy as np

from atarirb import markup
from atarirb.store.manifest import Manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What a dataset holds.

    Attributes:
        path: Its directory.
        name: The run's id, as ``"Pong/1"``.
        steps: Steps in all.
        episodes: Episodes in all.
        cut_episodes: Those whose beginning is lost, or of which it is not known what came after.
        truncated_episodes: Those that end without a terminal, but with the frame after their last step.
        time_limit_episodes: Those that the 27,000-step cap ended.
        holes: Places where steps of the run are missing.
        splits: The source splits it was made from.
        frame_shape: Shape of a frame.
        frame_dtype: Its dtype.
        extra_columns: Columns beyond the usual ones.
        codec: How frames are kept.
        bytes: Bytes on disk.
        frame_disk_bytes: Those of them that the frames take.
        frame_bytes: What all frames take as they are handed out.
        rewards_clipped: Every reward is -1, 0 or 1, as in the public logs, whose collecting agent
            clipped them: returns are then not the game's scores.
        return_mean: Mean undiscounted sum of (clipped) rewards over whole episodes; nan if none.
        format_version: Of the files.
    """

    path: str
    name: str
    steps: int
    episodes: int
    cut_episodes: int
    truncated_episodes: int
    time_limit_episodes: int
    holes: int
    splits: tuple[int, ...]
    frame_shape: tuple[int, ...]
    frame_dtype: str
    extra_columns: tuple[str, ...]
    codec: str
    bytes: int
    frame_disk_bytes: int
    frame_bytes: int
    rewards_clipped: bool
    return_mean: float
    format_version: int

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.frame_shape))
        rewards = "clipped to {-1, 0, 1}: no other value occurs" if self.rewards_clipped else "not clipped"
        mean = (
            f"mean return of a whole episode {self.return_mean:,.2f}"
            if math.isfinite(self.return_mean)
            else "no episode is whole"
        )
        extra = f"\nextra     {', '.join(self.extra_columns)}" if self.extra_columns else ""
        return (
            f"{self.name}  ({self.path})\n"
            f"steps     {self.steps:,} in {len(self.splits)} split(s): {ranges(self.splits)}\n"
            f"episodes  {self.episodes:,}, {self.cut_episodes:,} of them cut, "
            f"{self.truncated_episodes:,} truncated, {self.time_limit_episodes:,} ended by the time limit; "
            f"{self.holes} hole(s) in the log\n"
            f"rewards   {rewards}; {mean}\n"
            f"frames    {self.frame_dtype} {shape}, codec {self.codec}: {self.frame_disk_bytes:,} bytes for "
            f"{self.frame_bytes:,}, {self.frame_ratio:.1f}x smaller\n"
            f"on disk   {self.bytes:,} bytes, {self.bytes / max(1, self.steps):,.0f} a step, "
            f"format {self.format_version}{extra}"
        )

    def _repr_html_(self) -> str:
        return markup.table(facts(self).items(), caption=self.name)

    @property
    def frame_ratio(self) -> float:
        """How many times as large the frames are as they are handed out as they are on disk."""
        return self.frame_bytes / max(1, self.frame_disk_bytes)


def describe(path: str | os.PathLike[str], manifest: Manifest, episodes: np.ndarray) -> DatasetInfo:
    """Sum a dataset up.

    Args:
        path: Its directory.
        manifest: Its manifest.
        episodes: EPISODE[E], its episode table.
    """
    known = episodes["terminal"] | (episodes["final"] >= 0)
    whole = (episodes["terminal"] | episodes["time_limit"]) & ~episodes["head_cut"]
    return DatasetInfo(
        path=os.fspath(path),
        name=manifest.name,
        steps=manifest.steps,
        episodes=len(episodes),
        cut_episodes=int((episodes["head_cut"] | ~known).sum()),
        truncated_episodes=int((~episodes["terminal"] & known).sum()),
        time_limit_episodes=int(episodes["time_limit"].sum()),
        holes=manifest.holes,
        splits=tuple(shard.split for shard in manifest.shards),
        frame_shape=manifest.frame.shape,
        frame_dtype=np.dtype(manifest.frame.dtype).name,
        extra_columns=tuple(manifest.extra),
        codec=manifest.codec,
        bytes=manifest.bytes,
        frame_disk_bytes=sum(shard.frame_bytes for shard in manifest.shards),
        frame_bytes=manifest.frames * manifest.frame.bytes,
        rewards_clipped=manifest.rewards_clipped,
        return_mean=float(episodes["return"][whole].mean()) if whole.any() else float("nan"),
        format_version=manifest.format_version,
    )


def facts(info: DatasetInfo) -> dict[str, str]:
    """Say what a dataset is, a fact at a time: what it is of, and in words."""
    shape = " x ".join(map(str, info.frame_shape))
    clipped = "clipped to {-1, 0, 1}: no other value occurs" if info.rewards_clipped else "not clipped"
    return {
        "path": info.path,
        "steps": f"{info.steps:,}",
        "splits": f"{len(info.splits):,}: {ranges(info.splits)}",
        "episodes": (
            f"{info.episodes:,}: {info.cut_episodes:,} of them cut, {info.truncated_episodes:,} truncated, "
            f"{info.time_limit_episodes:,} ended by the time limit"
        ),
        "holes in the log": f"{info.holes:,}",
        "rewards": clipped,
        "mean return": f"{info.return_mean:,.2f}, of the whole episodes"
        if math.isfinite(info.return_mean)
        else "no episode is whole",
        "frames": f"{info.frame_dtype}, {shape}",
        "codec": (
            f"{info.codec}: {info.frame_disk_bytes:,} bytes for {info.frame_bytes:,} of frames, "
            f"{info.frame_ratio:.1f} times smaller"
        ),
        "on disk": f"{info.bytes:,} bytes, {info.bytes / max(1, info.steps):,.0f} a step",
        "extra columns": ", ".join(info.extra_columns) or "none",
        "format": f"version {info.format_version}",
    }


def ranges(numbers: tuple[int, ...]) -> str:
    """Write rising numbers as ranges: ``0-3, 5``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in parts) or "none"
