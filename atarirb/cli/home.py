"""Verbs of the home of datasets: download, list, rm, prune."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import atarirb
from atarirb.cli.common import print_result, splits
from atarirb.errors import ArgumentError

if TYPE_CHECKING:
    from atarirb.verbs.datasets import LocalDataset, SourceRun
    from atarirb.verbs.prune import Pruning


def add_verbs(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the verbs to a parser, each by `add`."""
    download = add("download", _download, "Make datasets in the home of runs that are somewhere else.")
    download.add_argument(
        "names", nargs="+", metavar="NAME", help="Pong/1, Pong/1-3,5, or Pong: all its runs"
    )
    download.add_argument(
        "--source",
        metavar="URI",
        help="a directory or URI that holds <Game>/<run> (default: $ATARIRB_SOURCE, or the public bucket)",
    )
    download.add_argument("--splits", type=splits, metavar="0-9,12", help="only these splits of each run")
    download.add_argument("--workers", type=int, metavar="N", help="splits at a time (default: one per core)")
    download.add_argument(
        "--codec", default="packed", choices=("packed", "raw"), help="how frames are kept (default: packed)"
    )
    download.add_argument(
        "--keep-source", metavar="DIR", help="keep the files as they came, in DIR/<Game>/<run>"
    )
    download.add_argument("--dry-run", action="store_true", help="only tell what would be fetched")
    download.set_defaults(when_interrupted="; the same command goes on from here")

    listing = add("list", _list, "List the datasets in the home, or the runs that a source has.")
    listing.add_argument(
        "--source",
        nargs="?",
        const="",
        metavar="URI",
        help="what runs are there: a directory or URI that holds <Game>/<run> (default: as for download)",
    )

    rm = add("rm", _rm, "Remove datasets.")
    rm.add_argument("names", nargs="+", metavar="NAME", help="names in the home, or paths")
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask")
    rm.set_defaults(when_interrupted="; the same command goes on from here")

    prune = add("prune", _prune, "Remove what stopped work left in the home.")
    prune.add_argument("--unfinished", action="store_true", help="datasets that were never finished, too")
    prune.add_argument("--dry-run", action="store_true", help="only tell what would be removed")
    prune.set_defaults(when_interrupted="; the same command goes on from here")


def _download(options: argparse.Namespace) -> int:
    results = atarirb.download(
        options.names,
        source=options.source,
        splits=options.splits,
        workers=options.workers,
        codec=options.codec,
        keep_source=options.keep_source,
        dry_run=options.dry_run,
        progress=not options.quiet,
    )
    print_result(options, results, text="\n".join(map(str, results)))
    return 0


def _list(options: argparse.Namespace) -> int:
    if options.source is None:
        found = atarirb.datasets()
        print_result(options, found, text=_local_table(found))
    else:
        runs = atarirb.source_runs(options.source)
        print_result(options, runs, text=_source_table(runs))
    return 0


def _local_table(found: Sequence[LocalDataset]) -> str:
    if not found:
        return f"no datasets in {atarirb.env()['home']}"
    head = ("name", "steps", "episodes", "splits", "codec", "bytes", "changed", "last used", "")
    rows = [
        (
            one.name,
            f"{one.steps:,}",
            "-" if one.episodes is None else f"{one.episodes:,}",
            f"{len(one.splits)}",
            one.codec or "-",
            f"{one.bytes:,}",
            one.changed[:10] or "-",
            one.used[:10] or "-",
            _mark(one),
        )
        for one in found
    ]
    return _table(head, rows, right=(1, 2, 3, 5))


def _mark(one: LocalDataset) -> str:
    if one.writing:
        return "being recorded" if one.recording else "being written"
    if one.state == "unfinished" and one.recording:
        return "recording, no episode in a shard yet"
    return {"ready": "", "damaged": f"damaged: {one.problem}"}.get(one.state, one.state)


def _source_table(runs: Sequence[SourceRun]) -> str:
    if not runs:
        return "no runs of a game in the catalog"
    head = ("name", "layout", "splits", "bytes", "local", "")
    rows = [
        (
            run.name,
            run.layout or "-",
            f"{len(run.splits)}",
            f"{run.bytes:,}",
            f"{len(run.local)} split(s)" if run.local else "-",
            run.problem.partition("\n")[0],
        )
        for run in runs
    ]
    return _table(head, rows, right=(2, 3))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> str:
    """Lay out a table; the columns of numbers are to the right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def _rm(options: argparse.Namespace) -> int:
    planned = atarirb.rm(*options.names, dry_run=True)
    if not options.yes:
        if not sys.stdin.isatty():
            raise ArgumentError("there is no terminal to ask at; -y removes without asking")
        for one in planned:
            print(f"{one.path}  {one.what}, {one.bytes:,} bytes", file=sys.stderr)
        print(f"remove {'it' if len(planned) == 1 else 'these'}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was removed", file=sys.stderr)
            return 1
    removed = atarirb.rm(*options.names)
    print_result(
        options, removed, text="\n".join(f"removed {one.path}, {one.bytes:,} bytes" for one in removed)
    )
    return 0


def _prune(options: argparse.Namespace) -> int:
    done = atarirb.prune(unfinished=options.unfinished, dry_run=options.dry_run)
    for path, reason in done.skipped.items():
        print(f"{path} was left alone: {reason}", file=sys.stderr)
    print_result(options, done, text=_pruning(done, options.dry_run))
    return 0


def _pruning(done: Pruning, dry_run: bool) -> str:
    word = "would remove" if dry_run else "removed"
    lines = [f"{word} {one.path}: {one.what}, {one.bytes:,} bytes" for one in done.removed]
    return "\n".join([*lines, f"{word} {done.bytes:,} bytes in all"])
