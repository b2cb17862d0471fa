"""Turn measured figures into Markdown, and put it into the README.

The tables go between the lines `<!-- benchmarks -->` and `<!-- /benchmarks -->`; a file without them is left
as it is.

    python -m benchmarks.report build/bench/sampling.json build/bench/ingest.json [--readme README.md]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import Grid, Row, text

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def markdown(files: Sequence[Path]) -> str:
    """Make the tables of measurements.

    Args:
        files: What `benchmarks.measure.finish` wrote.

    Returns:
        The tables and notes of each, under a line that says on what it was measured.
    """
    parts = []
    for path in files:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [Row(**{key: value for key, value in row.items() if key != "ok"}) for row in content["rows"]]
        grids = [Grid(**grid) for grid in content["grids"]]
        quick = " **Little data: these figures mean nothing.**" if content["quick"] else ""
        parts += [
            f"{content['title']}, on {_machine(content['machine'])}.{quick}",
            "",
            *text(rows, grids, content["notes"]),
            "",
        ]
    parts += ["A ratio is ours / theirs, the median over rounds in which all took turns."]
    return "\n".join(parts)


def _machine(found: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    return f"{found['cpu']}, {found['cores']} cores, {found['system']}, Python {found['python']} ({packages})"


def insert(old: str, tables: str) -> str | None:
    """Put tables between the markers of a text; None if it has none."""
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return None
    return f"{before}{begin}\n{tables}\n{end}{after}"


def write(files: Sequence[Path], readme: Path) -> bool:
    """Put the tables of measurements into a file.

    Returns:
        Whether the file has the markers.
    """
    old = readme.read_text(encoding="utf-8") if readme.exists() else ""
    new = insert(old, markdown(files))
    if new is None:
        return False
    readme.write_text(new, encoding="utf-8")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description="Write the tables.")
    parser.add_argument("files", type=Path, nargs="+", help="JSON files of the measurements")
    parser.add_argument("--readme", type=Path, default=README, help="where the tables go (%(default)s)")
    args = parser.parse_args(argv)
    if write(args.files, args.readme):
        print(f"{args.readme}: tables written")
    else:
        print(f"{args.readme}: no {BEGIN} and {END} in it, nothing written", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
