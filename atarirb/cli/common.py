"""What the verbs of the command line share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from typing import Any


def splits(text: str) -> list[int]:
    """Read ``0-9,12``."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or (dash and int(high) < int(low)):
            raise argparse.ArgumentTypeError(f"{part!r} is no split or range of splits, as in 0-9,12")
        found += range(int(low), int(high if dash else low) + 1)
    return found


def print_result(options: argparse.Namespace, result: Any, *, text: str | None = None) -> None:
    """Print a result: as JSON, as text, or with -q not at all."""
    if options.json:
        print(json.dumps(_plain(result), indent=1))
    elif not options.quiet:
        print(result if text is None else text)
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """Make of a result what JSON can say; null of what it has no word for."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
