"""The command line: ``atarirb VERB ...``, also ``python -m atarirb``.

Results go to stdout; progress, logs and errors to stderr. Exit status: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import atarirb
from atarirb import loading
from atarirb.cli import home
from atarirb.cli.common import print_result as _print
from atarirb.cli.common import splits as _splits
from atarirb.errors import ArgumentError, AtarirbError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=logging.ERROR if options.quiet else logging.WARNING, format="%(levelname)s: %(message)s"
    )
    try:
        return options.run(options)
    except KeyboardInterrupt:
        print(f"interrupted{options.when_interrupted}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ArgumentError as error:
        print(f"atarirb {options.verb}: {error}", file=sys.stderr)
        return 2
    except (AtarirbError, OSError) as error:
        print(f"atarirb {options.verb}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="atarirb", description="Exact, fast batches from logged Atari replay."
    )
    parser.add_argument("--version", action="version", version=f"atarirb {atarirb.__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def add(name: str, run: Any, summary: str, *, reads: bool = True) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=summary, description=summary)
        verb.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
        if reads:
            verb.add_argument("--json", action="store_true", help="print the result as JSON")
        verb.set_defaults(run=run, json=False, when_interrupted="")
        return verb

    ingest = add("ingest", _ingest, "Turn replay logs into a dataset.")
    ingest.add_argument(
        "source",
        help="a run's directory, of the original logs or of a copy in another layout; a game's, with --run; "
        "a directory of arrays (observation.npy, action.npy, reward.npy, terminal.npy), or an .npz of them; "
        "a path, or a URI, as gs://...",
    )
    ingest.add_argument("out", help="the dataset's directory")
    ingest.add_argument(
        "--run", type=int, dest="run_number", metavar="N", help="which run, where several stand together"
    )
    ingest.add_argument(
        "--partial",
        action="store_true",
        help="the run went on after the last split here (for copies without add_count)",
    )
    ingest.add_argument("--splits", type=_splits, metavar="0-9,12", help="only these splits")
    ingest.add_argument("--workers", type=int, metavar="N", help="splits at a time (default: one per core)")
    ingest.add_argument(
        "--codec", default="packed", choices=("packed", "raw"), help="how frames are kept (default: packed)"
    )
    ingest.add_argument("--name", help="the run's id (default: from the source's path)")
    ingest.add_argument(
        "--keep-source", metavar="DIR", help="keep the files of a remote source there, as they came"
    )
    ingest.set_defaults(when_interrupted="; the same command goes on from here")

    _add_dask(ingest)

    record = add("record", _record, "Play a game and record it, as a dataset or as replay logs.")
    record.add_argument("game", help="its name in the catalog, as Pong")
    record.add_argument(
        "--out", required=True, help="the dataset's directory, or with --replay-logs the run's"
    )
    record.add_argument(
        "--steps", type=int, required=True, metavar="N", help="steps in all, four frames each"
    )
    record.add_argument("--policy", default="random", help="random, or module:function (random)")
    record.add_argument("--seed", type=int, default=0, metavar="N", help="of the games and the policy (0)")
    record.add_argument("--environments", type=int, metavar="N", help="games at a time (default: 4 per core)")
    record.add_argument("--codec", choices=("packed", "raw"), default="packed", help="how frames are kept")
    record.add_argument("--name", help="the run's id (default: from the directory)")
    record.add_argument("--replay-logs", action="store_true", help="write the original layout instead")
    record.add_argument(
        "--capacity", type=int, default=1_000_000, metavar="N", help="rows of the logs' files (1000000)"
    )
    record.set_defaults(when_interrupted="; every step is kept, and the same command goes on from here")

    convert = add("convert", _convert, "Make a dataset of another one, with its frames kept otherwise.")
    convert.add_argument("source", help="a dataset's directory, or its name in the home")
    convert.add_argument("out", help="the new dataset's directory")
    convert.add_argument("--codec", required=True, choices=("packed", "raw"), help="how frames are kept")
    convert.add_argument("--workers", type=int, metavar="N", help="shards at a time (default: one per core)")
    _add_dask(convert)
    convert.set_defaults(when_interrupted="; the same command goes on from here")

    map_ = add("map", _map, "Make a dataset of another one by a function of its steps.")
    map_.add_argument("dataset", help="a dataset's directory, or its name in the home")
    map_.add_argument("out", help="the new dataset's directory")
    map_.add_argument(
        "--fn",
        required=True,
        metavar="module:function",
        help="given a batch, returns observations or columns",
    )
    map_.add_argument("--batch-size", type=int, default=256, metavar="B", help="rows of a batch (256)")
    map_.add_argument("--workers", type=int, metavar="N", help="shards at a time (default: one per core)")
    map_.add_argument(
        "--codec",
        choices=("packed", "raw"),
        help="how frames are kept (default: raw for floats, else as now)",
    )
    map_.add_argument("--columns", default="", metavar="A,B", help="more columns for the function")
    map_.add_argument("--frame-stack", type=int, default=1, metavar="S", help="frames per observation (1)")
    _add_dask(map_)
    map_.set_defaults(when_interrupted="; the same command goes on from here")

    show = add("show", _show, "Show what a dataset is.")
    show.add_argument("dataset", help="a dataset's directory, or its name in the home")

    verify = add("verify", _verify, "Check a dataset's files against its manifest.")
    verify.add_argument("dataset", help="a dataset's directory, or its name in the home")
    verify.add_argument(
        "--deep", action="store_true", help="decode every frame, and check what must hold of every value"
    )

    preview = add("preview", _preview, "Draw an episode as a contact sheet.")
    preview.add_argument("dataset", help="a dataset's directory, or its name in the home")
    preview.add_argument("-o", "--out", help="the picture's file")
    preview.add_argument("--episode", type=int, metavar="K", help="which episode")
    preview.add_argument("--start", type=int, metavar="T", help="first step shown, counted in the episode")
    preview.add_argument("--frames", type=int, default=60, metavar="N", help="most frames shown (60)")
    preview.add_argument("--every", type=int, metavar="N", help="show one step of so many")
    preview.add_argument("--gif", action="store_true", help="an animated GIF instead")

    report = add("report", _report, "Write a page about a dataset, to be looked at in a browser.")
    report.add_argument("dataset", help="a dataset's directory, or its name in the home")
    report.add_argument("-o", "--out", help="the page's file (default: Pong-1-report.html)")
    report.add_argument(
        "--episode", type=int, action="append", default=[], metavar="K", help="show this one too; repeatable"
    )
    report.add_argument(
        "--frames", type=int, default=240, metavar="N", help="most frames of an episode (240)"
    )

    bench = add("bench", _bench, "Time a dataset's batches on this machine and disk.")
    bench.add_argument("dataset", help="a dataset's directory, or its name in the home")
    bench.add_argument("-n", type=int, default=256, help="transitions of a batch (256)")
    bench.add_argument("--seconds", type=float, default=1.0, help="spent on each figure (1)")

    home.add_verbs(add)
    add("env", _env, "Show what atarirb runs on here.")
    return parser


def _add_dask(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="have a Dask cluster do it, by its scheduler's address; local: one of this machine's cores",
    )


@contextlib.contextmanager
def _workers(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Give a verb's function the workers that its options name."""
    if options.dask is None:
        yield {"workers": options.workers}
    else:
        from atarirb import cluster

        with cluster.connected(options.dask, options.workers) as executor:
            yield {"executor": executor}


def _ingest(options: argparse.Namespace) -> int:
    with _workers(options) as workers:
        info = atarirb.ingest(
            options.source,
            options.out,
            run=options.run_number,
            splits=options.splits,
            partial=options.partial,
            **workers,
            codec=options.codec,
            name=options.name,
            keep_source=options.keep_source,
            progress=not options.quiet,
        )
    _print(options, info)
    return 0


def _record(options: argparse.Namespace) -> int:
    info = atarirb.record(
        options.game,
        options.out,
        steps=options.steps,
        policy=options.policy,
        seed=options.seed,
        environments=options.environments,
        codec=options.codec,
        name=options.name,
        replay_logs=options.replay_logs,
        capacity=options.capacity,
        progress=not options.quiet,
    )
    _print(options, info)
    return 0


def _convert(options: argparse.Namespace) -> int:
    with _workers(options) as workers:
        info = atarirb.convert(
            options.source,
            options.out,
            codec=options.codec,
            **workers,
            progress=not options.quiet,
        )
    _print(options, info)
    return 0


def _map(options: argparse.Namespace) -> int:
    function = loading.load("fn", options.fn, takes="a batch")
    columns = [name for name in options.columns.split(",") if name]
    with (
        atarirb.open(options.dataset, frame_stack=options.frame_stack, columns=columns) as reader,
        _workers(options) as workers,
    ):
        info = atarirb.map(
            reader,
            function,
            options.out,
            batch_size=options.batch_size,
            **workers,
            codec=options.codec,
            progress=not options.quiet,
        )
    _print(options, info)
    return 0


def _show(options: argparse.Namespace) -> int:
    _print(options, atarirb.show(options.dataset))
    return 0


def _verify(options: argparse.Namespace) -> int:
    report = atarirb.verify(options.dataset, deep=options.deep, progress=not options.quiet)
    if options.json or report.ok:
        _print(options, report)
    else:
        print(report, file=sys.stderr)
    return 0 if report.ok else 1


def _preview(options: argparse.Namespace) -> int:
    path = atarirb.preview(
        options.dataset,
        options.out,
        episode=options.episode,
        start=options.start,
        frames=options.frames,
        every=options.every,
        gif=options.gif,
    )
    _print(options, {"picture": str(path)}, text=str(path))
    return 0


def _report(options: argparse.Namespace) -> int:
    path = atarirb.report(options.dataset, options.out, episodes=options.episode, frames=options.frames)
    _print(options, {"page": str(path), "bytes": path.stat().st_size}, text=str(path))
    return 0


def _bench(options: argparse.Namespace) -> int:
    result = atarirb.bench(options.dataset, n=options.n, seconds=options.seconds)
    lines = [f"{result['dataset']}, {result['steps']:,} steps; open {result['open_ms']:.1f} ms"]
    lines += [
        f"{name:<28} {rate['ms']:8.3f} ms {rate['steps_per_s']:>12,.0f} steps/s {rate['gb_per_s']:6.2f} GB/s"
        for name, rate in result["batches"].items()
    ]
    _print(options, result, text="\n".join(lines))
    return 0


def _env(options: argparse.Namespace) -> int:
    found = atarirb.env()
    _print(options, found, text="\n".join(f"{name:<16} {value}" for name, value in found.items()))
    return 0
