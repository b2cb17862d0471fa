"""The data that is measured on, made where it is not there yet.

A workload's folder, `build/bench` by default::

    logs/<game>/1             play in about 50 splits, as many as a real run has (its 51 have a million rows)
    big/<game>/1              the same play in splits of 110,000 rows
    single/<game>/1           the first of those alone
    data/<game>/1             `logs`, as a dataset of raw frames
    many-packed/<game>/1      the same, packed
    single-raw/<game>/1       `single`, as a dataset of raw frames
    single-packed/<game>/1    the same, packed
    sparse                    while it is measured: a dataset of a real run's size that takes no room
    codec/<game>/<policy>     play recorded for the codec's measurement
    quick                     the same of little data

Play is `atarirb.record`'s, always of as many environments, so that it does not depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import atarirb

ROOT = Path(__file__).parents[1] / "build" / "bench"
GAME = "Seaquest"
#: Games played at the same time.
ENVIRONMENTS = 8


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
        return 2_000 if self.quick else 120_000

    def logs(self) -> Path:
        """Return the log of about 50 splits."""
        return self._play("logs", capacity=100 if self.quick else 2_400)

    def single(self) -> Path:
        """Return the log of one large split."""
        big = self._play("big", capacity=1_500 if self.quick else 110_000)
        single = self.root / "single" / GAME / "1"
        if not single.exists():
            files = single.with_name(".partial") / "replay_logs"
            shutil.rmtree(files.parent, ignore_errors=True)
            files.mkdir(parents=True)
            for path in (big / "replay_logs").glob("*_ckpt.0.gz"):
                os.link(path, files / path.name)
            files.parent.rename(single)
        return single

    def dataset(self, codec: str = "raw") -> Path:
        """Return the dataset of `logs`, cached as it is right after ingest."""
        return self._ingest(self.logs(), "data" if codec == "raw" else f"many-{codec}", codec)

    def single_dataset(self, codec: str) -> Path:
        """Return the dataset of `single`, cached as it is right after ingest."""
        return self._ingest(self.single(), f"single-{codec}", codec)

    def recording(self, game: str, policy: str, steps: int) -> Path:
        """Return the dataset of a game's play by a policy."""
        out = self.root / "codec" / game / policy.rpartition(":")[2]
        atarirb.record(game, out, steps=steps, policy=policy, environments=ENVIRONMENTS)
        return out

    def sparse(self) -> Path:
        """Make a dataset of a real run's size of files that are all hole; the caller removes it."""
        out = self.root / "sparse"
        shutil.rmtree(out, ignore_errors=True)
        make_sparse(out, shards=3 if self.quick else 51)
        return out

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """Give an empty folder, and remove it."""
        out = self.root / "scratch" / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        try:
            yield out
        finally:
            shutil.rmtree(out)

    def _play(self, name: str, *, capacity: int) -> Path:
        out = self.root / name / GAME / "1"
        atarirb.record(
            GAME,
            out,
            steps=self.steps,
            environments=ENVIRONMENTS,
            replay_logs=True,
            capacity=capacity,
            progress=not self.quick,
        )
        return out

    def _ingest(self, log: Path, name: str, codec: str) -> Path:
        out = self.root / name / GAME / "1"
        atarirb.ingest(log, out, codec=codec)
        cache(out)
        return out


def files(directory: Path) -> list[Path]:
    """Return the files of a dataset, or of a log."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def size(directory: Path) -> int:
    """Return the bytes of all files of a dataset, or of a log."""
    return sum(path.stat().st_size for path in files(directory))


def drop(directory: Path) -> None:
    """Have none of the files of a dataset in the system's cache, but for pages that are mapped."""
    if hasattr(os, "posix_fadvise"):
        for path in files(directory):
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cache(directory: Path) -> None:
    """Have the files of a dataset in the system's cache, read from first to last.

    They are dropped first: what was read here and there lies in single pages, and is slower to gather from
    than what was written or read in order, which the system keeps in larger pieces.
    """
    drop(directory)
    for path in files(directory):
        with open(path, "rb", buffering=0) as file:
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
    """Write a dataset of raw zeros whose files have their full length and take no room.

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

    stored = store.COLUMNS | dict.fromkeys(("action", "reward"), np.dtype(np.int8))  # as ingest does
    columns = {name: ((), dtype) for name, dtype in stored.items()}
    columns["observation"] = ((84, 84), np.dtype(np.uint8))
    records = []
    for split in range(shards):
        found = {}
        shard = directory / store.shard_name(split)
        shard.mkdir(parents=True)
        for name, (shape, dtype) in columns.items():
            head = header((steps, *shape), dtype)
            length = len(head) + steps * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            with open(shard / f"{name}.npy", "wb") as file:
                file.write(head)
                file.truncate(length)
            found[f"{name}.npy"] = FileRecord(bytes=length, crc32="0" * 8)
        np.save(shard / store.SEGMENTS, np.zeros((1, 2), np.int64))
        found[store.SEGMENTS] = FileRecord(bytes=(shard / store.SEGMENTS).stat().st_size, crc32="0" * 8)
        records.append(
            store.ShardRecord(
                split=split,
                steps=steps,
                finals=0,
                segments=1,
                columns={name: dtype.str for name, dtype in stored.items()},
                adds=(split * steps, (split + 1) * steps),
                capacity=steps,
                head="start",
                clipped=True,
                files=found,
                source={},
            )
        )
    table = np.zeros(shards * steps // episode, store.EPISODE)
    table["start"] = np.arange(len(table)) * episode
    table["length"] = episode
    table["terminal"] = True
    table["final"] = -1
    episodes = directory / store.EPISODES[0]
    np.save(episodes, table)
    made = store.Manifest(
        name=f"{GAME}/1",
        layout="original",
        codec="raw",
        parameters={},
        frame=store.ColumnRecord(shape=(84, 84), dtype="|u1"),
        extra={},
        writer_stack=4,
        steps=shards * steps,
        rewards_clipped=True,
        episodes=len(table),
        episodes_name=episodes.name,
        episodes_file=FileRecord(bytes=episodes.stat().st_size, crc32="0" * 8),
        shards=tuple(records),
    )
    store.write_manifest(directory, made)
