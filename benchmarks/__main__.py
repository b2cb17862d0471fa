"""Make the data, measure all, and write the tables into the README.

Bars that are missed are told on stderr and marked in the tables; each measurement alone exits with 1 then.
With names, only those are measured; the tables are made of these and of what was measured before. With
`--quick` all runs on little data, no bar counts, and the tables are printed only.

    python -m benchmarks [sampling packed feed codec ingest stores recording] [--quick] [--root FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import codec, feed, ingest, packed, recording, report, sampling, stores
from benchmarks.workload import ROOT

#: By name, in the order of the tables.
MEASUREMENTS = {
    "sampling": sampling,
    "packed": packed,
    "feed": feed,
    "codec": codec,
    "ingest": ingest,
    "stores": stores,
    "recording": recording,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="little data; no bar counts, nothing written")
    parser.add_argument("--root", type=Path, default=ROOT, help="the data's folder (%(default)s)")
    args = parser.parse_args(argv)
    if unknown := set(args.names) - set(MEASUREMENTS):
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    paths = {name: args.root / f"{'quick-' if args.quick else ''}{name}.json" for name in MEASUREMENTS}
    for name in args.names or MEASUREMENTS:
        options = ["--root", str(args.root), "--json", str(paths[name]), *["--quick"] * args.quick]
        MEASUREMENTS[name].main(options)
        print(flush=True)
    files = [path for path in paths.values() if path.exists()]
    if args.quick:
        print(report.markdown(files))
        return 0
    return report.main([str(path) for path in files])


if __name__ == "__main__":
    sys.exit(main())
