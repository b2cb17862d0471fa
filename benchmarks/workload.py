"""The data that is measured on, made where it is not there yet.

A workload's folder, `build/bench` by default::

    logs/<game>/1      play in about 50 splits, as many as a real run has (its 51 are of a million rows each)
    big/<game>/1       the same play in splits of 100,000 rows
    single/<game>/1    the first of those alone
    data/<game>/1      `logs`, as a dataset
    sparse             while it is measured: a dataset of a real run's size that takes no room
    quick              the same of little data
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import atarirb
from benchmarks.play import play

ROOT = Path(__file__).parents[1] / "build" / "bench"
GAME = "Seaquest"


@dataclasses.dataclass(frozen=True)
class Workload:
    """Logs and datasets of one game's play.

    Attributes:
        root: The folder of all.
        quick: Little data, to see that all runs; figures from it mean nothing.
    """

    root: Path = ROOT
    quick: bool = False

    @property
    def steps(self) -> int:
        """Steps played."""
        return 2_000 if self.quick else 110_000

    def logs(self) -> Path:
        """Return the log of about 50 splits."""
        return self._play("logs", capacity=100 if self.quick else 2_200)

    def single(self) -> Path:
        """Return the log of one large split."""
        big = self._play("big", capacity=1_500 if self.quick else 100_000)
        single = self.root / "single" / GAME / "1"
        if not single.exists():
            files = single.with_name(".partial") / "replay_logs"
            files.mkdir(parents=True)
            for path in (big / "replay_logs").glob("*_ckpt.0.gz"):
                os.link(path, files / path.name)
            files.parent.rename(single)
        return single

    def dataset(self) -> Path:
        """Return the dataset of `logs`, cached as it is right after ingest."""
        out = self.root / "data" / GAME / "1"
        atarirb.ingest(self.logs(), out)
        cache(out)
        return out

    def sparse(self) -> Path:
        """Make a dataset of a real run's size of files that are all hole; the caller removes it."""
        out = self.root / "sparse"
        shutil.rmtree(out, ignore_errors=True)
        make_sparse(out, shards=3 if self.quick else 51)
        return out

    def scratch(self, name: str) -> Path:
        """Return an empty folder, which the caller removes."""
        out = self.root / "scratch" / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        return out

    def _play(self, name: str, *, capacity: int) -> Path:
        out = self.root / name / GAME / "1"
        play(GAME, self.steps, out, capacity=capacity, progress=not self.quick)
        return out


def cache(directory: Path) -> None:
    """Have the files of a dataset in the system's cache, read from first to last.

    They are dropped first: what was read here and there lies in single pages, and is slower to gather from
    than what was written or read in order, which the system keeps in larger pieces.
    """
    for path in sorted(directory.rglob("*.npy")):
        with open(path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(1 << 22):
                pass


def command_line(prog: str, description: str, argv: Sequence[str] | None) -> tuple[Workload, Path | None]:
    """Read the arguments that every measurement takes: on what, and where the figures go."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=description)
    parser.add_argument("--quick", action="store_true", help="little data; no bar counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--root", type=Path, default=ROOT, help="the data's folder (%(default)s)")
    args = parser.parse_args(argv)
    root = args.root.resolve()
    return Workload(root / "quick" if args.quick else root, quick=args.quick), args.json


def make_sparse(directory: Path, *, shards: int, steps: int = 1_000_000, episode: int = 1_000) -> None:
    """Write a dataset of zeros whose files have their full length and take no room.

    Args:
        directory: Where to.
        shards: How many.
        steps: Steps of each.
        episode: Steps of each episode.
    """
    import numpy as np

    from atarirb.store import manifest as store
    from atarirb.store.files import FileRecord
    from atarirb.store.npy import header

    columns = {name: ((), dtype) for name, dtype in store.COLUMNS.items()}
    columns["observation"] = ((84, 84), np.dtype(np.uint8))
    records = []
    for split in range(shards):
        files = {}
        shard = directory / f"{split:05d}"
        shard.mkdir(parents=True)
        for name, (shape, dtype) in columns.items():
            head = header((steps, *shape), dtype)
            size = len(head) + steps * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            with open(shard / f"{name}.npy", "wb") as file:
                file.write(head)
                file.truncate(size)
            files[f"{name}.npy"] = FileRecord(bytes=size, crc32="0" * 8)
        records.append(
            store.ShardRecord(
                split=split,
                steps=steps,
                adds=(split * steps, (split + 1) * steps),
                capacity=steps,
                head="start",
                clipped=True,
                files=files,
                source={},
            )
        )
    table = np.zeros(shards * steps // episode, store.EPISODE)
    table["start"] = np.arange(len(table)) * episode
    table["length"] = episode
    table["terminal"] = True
    np.save(directory / store.EPISODES, table)
    made = store.Manifest(
        name=f"{GAME}/1",
        layout="original",
        codec="raw",
        frame=store.ColumnRecord(shape=(84, 84), dtype="|u1"),
        extra={},
        writer_stack=4,
        steps=shards * steps,
        rewards_clipped=True,
        episodes=len(table),
        episodes_file=FileRecord(bytes=(directory / store.EPISODES).stat().st_size, crc32="0" * 8),
        shards=tuple(records),
    )
    store.write_manifest(directory, made)
