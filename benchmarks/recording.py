"""How fast play is recorded, beside how fast it is played.

`atarirb.record` of random play, with all it does: loading the game, playing, the journals, packing the
shards, the manifest. Its rival is ale-py's own loop, which keeps nothing: its vector environment with the
same preprocessing, as many environments and threads, random actions, from loading the game on. Both run in
turns, each in a fresh process; imports are not timed.

    steps a second of record, against ale-py's loop    >= 0.8

Steps count that an episode took; those in which an environment is reset do not. Breakout has short episodes,
Pong long ones.

    python -m benchmarks.recording [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

from benchmarks.measure import Row, finish
from benchmarks.probes import probe
from benchmarks.workload import Workload, command_line

GAMES = ("Pong", "Breakout", "Seaquest")
_ROUNDS = 3


def measure(workload: Workload) -> list[Row]:
    """Measure all."""
    steps, rounds = (500, 1) if workload.quick else (30_000, _ROUNDS)
    rates: dict[str, list[tuple[float, float]]] = {game: [] for game in GAMES}
    for number in range(rounds):
        for game in GAMES:
            with workload.scratch("recording") as out:
                both = [("record", (game, out / "data", steps)), ("play", (game, steps))]
                answers = {name: probe(name, *args) for name, args in (both[::-1] if number % 2 else both)}
            ours, theirs = (answers[name]["steps"] / answers[name]["seconds"] for name in ("record", "play"))
            rates[game].append((ours, theirs))
    return [_row(game, pairs) for game, pairs in rates.items()]


def _row(game: str, pairs: Sequence[tuple[float, float]]) -> Row:
    ours, theirs = zip(*pairs, strict=True)
    return Row(
        what=f"record {game}",
        ours=statistics.median(ours),
        unit="steps/s",
        rival="ale-py alone, nothing recorded",
        theirs=statistics.median(theirs),
        ratio=statistics.median(mine / other for mine, other in pairs),
        bar=">= 0.8",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.recording", "Measure how fast play is recorded.", argv)
    return finish("Recording", measure(workload), path, quick=workload.quick)


if __name__ == "__main__":
    sys.exit(main())
