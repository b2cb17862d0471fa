"""Download: datasets of runs that are somewhere else, by name, into the home."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
from collections.abc import Iterable
from typing import Literal, overload

from atarirb import catalog, home, sources
from atarirb.arguments import positive
from atarirb.errors import ArgumentError, AtarirbError, DownloadError, LogError, UnknownGameError
from atarirb.info import DatasetInfo, ranges
from atarirb.ingestion.copying import shard_bytes
from atarirb.sources import collection
from atarirb.store import building, codecs
from atarirb.verbs.ingest import ingest, wanted_splits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a download would do.

    Attributes:
        name: The run's id.
        source: Where its logs are.
        path: The dataset's directory.
        splits: Splits that would be fetched.
        held: Splits that are there already; they are fetched again only where the logs have changed.
        files: Files to fetch.
        fetch_bytes: Their bytes.
        disk_bytes: Room that the new shards need, rather too much than too little: what the codec says of
            so many bytes of logs, with every split as long as the first one and every row of it a step.
        free_bytes: Room that the disk has.
    """

    name: str
    source: str
    path: str
    splits: tuple[int, ...]
    held: tuple[int, ...]
    files: int
    fetch_bytes: int
    disk_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        there = f"; there already: {ranges(self.held)}" if self.held else ""
        return (
            f"{self.name}  {self.source} -> {self.path}\n"
            f"fetch     {len(self.splits)} split(s): {ranges(self.splits)}{there}\n"
            f"          {self.files:,} files, {self.fetch_bytes:,} bytes\n"
            f"disk      {self.disk_bytes:,} bytes at the most, by the logs' bytes and the rows of one split; "
            f"{self.free_bytes:,} free"
        )


@overload
def download(
    name: str | Iterable[str],
    *,
    source: str | os.PathLike[str] | None = ...,
    splits: Iterable[int] | None = ...,
    workers: int | None = ...,
    codec: str = ...,
    keep_source: str | os.PathLike[str] | None = ...,
    dry_run: Literal[False] = ...,
    progress: bool = ...,
) -> tuple[DatasetInfo, ...]: ...


@overload
def download(
    name: str | Iterable[str],
    *,
    source: str | os.PathLike[str] | None = ...,
    splits: Iterable[int] | None = ...,
    workers: int | None = ...,
    codec: str = ...,
    keep_source: str | os.PathLike[str] | None = ...,
    dry_run: Literal[True],
    progress: bool = ...,
) -> tuple[Estimate, ...]: ...


def download(
    name: str | Iterable[str],
    *,
    source: str | os.PathLike[str] | None = None,
    splits: Iterable[int] | None = None,
    workers: int | None = None,
    codec: str = codecs.DEFAULT,
    keep_source: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: bool = False,
) -> tuple[DatasetInfo, ...] | tuple[Estimate, ...]:
    """Make datasets in the home (`atarirb.home`) of runs that are somewhere else.

    Afterwards ``atarirb.open("Pong/1")`` finds them. An interrupted download goes on by the same call, as
    `atarirb.ingest` does; splits can be added bit by bit.

    Of several runs all are looked up, and the room for them checked, before the first byte is fetched. They
    are fetched one after the other; one that fails does not keep the rest from coming.

    Args:
        name: A run, as ``"Pong/1"``; runs, as ``"Pong/1-3"`` or ``"Pong/1,4"``; or a game, for all its runs
            that the source has. Or several of these.
        source: Directory or URI of any kind that fsspec knows, which holds ``<Game>/<run>``; None for
            ``$ATARIRB_SOURCE``, or without that the public bucket, which was withdrawn in 2025.
        splits: Numbers of the splits wanted of each run; None for all.
        workers: Splits copied at a time; None for one per core.
        codec: How frames are kept.
        keep_source: Directory to keep the files in as they came, as ``<Game>/<run>`` below it: it can be the
            source of later downloads. None to keep none.
        dry_run: Only tell what would be fetched. Nothing is written; of the logs, directories are listed, and
            of each run the small columns of one split read.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        What each dataset is, in the order of the runs; with `dry_run`, an `Estimate` of each.

    Raises:
        UnknownGameError: The catalog has no such game, or the public bucket never had such a run.
        SourceNotFoundError: The source has no such run, refuses, or cannot be reached; nothing was written.
        DownloadError: Of several runs some failed; it lists them and why.
        DiskSpaceError, BusyError, IngestError, ArgumentError: As for `atarirb.ingest`.
        MissingPackageError: A package is needed to reach such a URI.
    """
    place = collection.chosen(source)
    kind = codecs.codec(codec).NAME
    if workers is not None:
        positive("workers", workers)
    splits = None if splits is None else list(splits)
    names = _runs([name] if isinstance(name, str) else list(name), place)
    found = {run: collection.find(place, run) for run in names}
    if dry_run or len(names) > 1:
        estimates = tuple(_estimate(run, logs, place, splits, kind) for run, logs in found.items())
        if dry_run:
            return estimates
        directory = building.nearest(home.home())
        building.check_space(
            directory,
            sum(one.disk_bytes for one in estimates),
            "choose fewer runs or splits, or another home",
        )
    made, failures = [], {}
    for run in names:
        try:
            info = ingest(
                collection.address(place, run),
                home.place(run),
                splits=splits,
                workers=workers,
                codec=kind,
                name=run,
                keep_source=None if keep_source is None else pathlib.Path(keep_source) / run,
                progress=progress,
            )
        except (AtarirbError, OSError) as error:
            if len(names) == 1:
                raise
            failures[run] = error
        else:
            made.append(info)
    if failures:
        lines = "\n".join(f"{run}: {error}" for run, error in failures.items())
        kept = f"The other {len(made)} are there. " if made else ""
        raise DownloadError(
            f"{len(failures)} of {len(names)} runs failed:\n{lines}\n{kept}The same command goes on.",
            failures,
        )
    return tuple(made)


def _runs(names: list[str], source: str) -> list[str]:
    """Spell out which runs are meant, each once."""
    runs: dict[str, None] = {}
    for text in names:
        game, slash, which = text.rstrip("/").partition("/")
        catalog.game(game if not slash else text)
        if not slash:
            known = collection.runs(source, game)
            if not known:
                raise ArgumentError(f"{collection.address(source, game)} holds no runs")
            runs |= dict.fromkeys(known)
            continue
        for part in which.split(","):
            low, dash, high = part.partition("-")
            if dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high):
                runs |= {f"{game}/{number}": None for number in range(int(low), int(high) + 1)}
            elif home.is_name(f"{game}/{part}"):
                runs[f"{game}/{part}"] = None
            else:
                raise ArgumentError(f"{text!r} names no run, expected one as Pong/1 or several as Pong/1-3,5")
    if not runs:
        raise ArgumentError("no run is named, expected one as Pong/1")
    if catalog.is_public(source) and (unknown := set(runs) - set(catalog.available_datasets())):
        raise UnknownGameError(
            f"unknown run {min(unknown)!r}; public runs are {catalog.RUNS[0]} to {catalog.RUNS[-1]}"
        )
    return list(runs)


def _estimate(
    name: str, logs: sources.Logs, source: str, splits: Iterable[int] | None, codec: str
) -> Estimate:
    directory = home.place(name)
    held = building.held(directory, name, logs.layout, codec)
    wanted = wanted_splits(logs, splits)
    here = [split for split in wanted if split in held and building.is_whole(directory, held[split])]
    todo = [split for split in wanted if split not in here]
    disk = 0
    if todo:
        survey = _survey(logs, todo)
        disk = sum(
            shard_bytes(
                codecs.codec(codec), survey.columns, survey.rows, len(survey.finals), logs.size(split)
            )
            for split in todo
        )
    return Estimate(
        name=name,
        source=collection.address(source, name),
        path=str(directory),
        splits=tuple(todo),
        held=tuple(here),
        files=sum(logs.files(split) for split in todo),
        fetch_bytes=sum(logs.size(split) for split in todo),
        disk_bytes=disk,
        free_bytes=shutil.disk_usage(building.nearest(directory)).free,
    )


def _survey(logs: sources.Logs, splits: list[int]) -> sources.Survey:
    """Look into the first of some splits that can be read."""
    for split in splits:
        try:
            return logs.survey(split)
        except LogError as error:
            failure = error
    raise failure
