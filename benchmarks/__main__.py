"""Make the data, measure all, and write the tables into the README.

Bars that are missed are told on stderr and marked in the tables; each measurement alone exits with 1 then.
With `--quick` all runs on little data, no bar counts, and the tables are printed only.

    python -m benchmarks [--quick] [--root FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import ingest, report, sampling
from benchmarks.workload import ROOT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure all.")
    parser.add_argument("--quick", action="store_true", help="little data; no bar counts, nothing written")
    parser.add_argument("--root", type=Path, default=ROOT, help="the data's folder (%(default)s)")
    args = parser.parse_args(argv)
    files = []
    for measurement in (ingest, sampling):
        name = measurement.__name__.rpartition(".")[2]
        files.append(args.root / f"{'quick-' if args.quick else ''}{name}.json")
        options = ["--root", str(args.root), "--json", str(files[-1]), *["--quick"] * args.quick]
        measurement.main(options)
        print()
    files.reverse()
    if args.quick:
        print(report.markdown(files))
        return 0
    return report.main([str(path) for path in files])


if __name__ == "__main__":
    sys.exit(main())
