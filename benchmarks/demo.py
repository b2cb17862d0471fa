"""The whole way in a minute: logs to a dataset, batches from it, and a look at an episode.

Run as ``make demo``, or ``python -m benchmarks.demo``. Needs nothing but the sample run of the tests.
"""

from __future__ import annotations

import pathlib
import sys

import atarirb
from atarirb import cli

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_LOGS = _ROOT / "tests/data/samples/Breakout/1"
_OUT = _ROOT / "build/demo"


def main() -> int:
    """Run the demonstration; return the exit status."""
    dataset = _OUT / "Breakout/1"
    _say(f"Ingest {_LOGS.relative_to(_ROOT)}: 8 splits, two lost windows, stale rows at the end")
    if status := cli.main(["ingest", str(_LOGS), str(dataset)]):
        return status

    with atarirb.open(dataset, frame_stack=4, n_step=3, columns=["timestep", "episode"]) as reader:
        _say("Transitions: reader.sample(0, 256), frame_stack=4, n_step=3")
        _print_tree(reader.sample(0, 256))
        _say("Slices: reader.sample_slices(0, 16, 64)")
        _print_tree(reader.sample_slices(0, 16, 64))
        split, slot = reader.locate(1234)
        _say(f"Step 1234 came from split {split}, row {slot} of the logs")

    _say("Rates on this machine")
    cli.main(["bench", str(dataset), "--seconds", "0.5"])
    _say("Contact sheet of an episode")
    return cli.main(["preview", str(dataset), "--out", str(_OUT / "Breakout-1.png")])


def _say(text: str) -> None:
    print(f"\n== {text}")


def _print_tree(batch: dict, indent: str = "  ") -> None:
    for name, leaf in batch.items():
        if isinstance(leaf, dict):
            print(f"{indent}{name}")
            _print_tree(leaf, indent + "  ")
        else:
            print(f"{indent}{name:<{16 - len(indent)}} {leaf.dtype!s:<8} {list(leaf.shape)}")


if __name__ == "__main__":
    sys.exit(main())
