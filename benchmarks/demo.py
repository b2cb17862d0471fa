"""The whole way in a minute: play, logs, datasets, batches, and a look at an episode.

Run as ``make demo``, or ``python -m benchmarks.demo``. The game is played here, and the logs are the sample
run of the tests: nothing is downloaded.
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
    recorded, ingested = _OUT / "Breakout/me", _OUT / "Breakout/1"
    _say("Record: 8 games of Breakout at a time, by a policy that watches the ball")
    policy = "benchmarks.policies:paddle"
    arguments = [
        "Breakout",
        "--steps",
        "6000",
        "--policy",
        policy,
        "--environments",
        "8",
        "--out",
        str(recorded),
    ]
    if status := cli.main(["record", *arguments]):
        return status
    _say(f"Ingest {_LOGS.relative_to(_ROOT)}: 8 splits, two lost windows, stale rows at the end")
    if status := cli.main(["ingest", str(_LOGS), str(ingested)]):
        return status

    options = {"frame_stack": 4, "n_step": 3, "columns": ["timestep", "reward_unclipped"]}
    with atarirb.open(recorded, **options) as reader:
        _say("Transitions of the play: reader.sample(0, 256), frame_stack=4, n_step=3")
        _print_tree(reader.sample(0, 256))
        _say("Slices: reader.sample_slices(0, 16, 64, strict_length=False)")
        _print_tree(reader.sample_slices(0, 16, 64, strict_length=False))
    with atarirb.open(ingested) as reader:
        split, slot = reader.locate(1234)
        _say(f"Step 1234 of the logs' dataset came from split {split}, row {slot}")

    _say("Rates on this machine")
    cli.main(["bench", str(recorded), "--seconds", "0.5"])
    _say("Contact sheet of an episode")
    return cli.main(["preview", str(recorded), "--out", str(_OUT / "Breakout-me.png")])


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
