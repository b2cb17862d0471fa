"""What the packed codec's choices give: room and time, over eight games, and what was not chosen.

Each game, some easy to compress and some hard, is played for 20,000 steps: half at random, half by another
policy (`benchmarks.policies`: `paddle` in Pong and Breakout, `persistent` in the others). All frames of it
become one shard, by the real code with the parameter in question changed (`benchmarks.variants`).

    bytes of the shard and its columns, against gzip -9 of the log's, mean of the games' ratios      <= 1

gzip is the solid stream that the logs are, all frames in order, and each column, by zlib itself (zlib-ng's
is up to a tenth smaller, in Pong). Time in is the processor's, of one thread, and has the choice of templates
in it; time out is of the compiled kernel on one thread, frames in random order, all variants of a game in
turn. What checks and kinds of zstd frames cost is measured in a loop of its own, which does nothing but
decode and check.

    python -m benchmarks.codec [--quick] [--json FILE]
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from tqdm import tqdm

import atarirb
from benchmarks import variants
from benchmarks.measure import Grid, Row, figure, finish, race
from benchmarks.workload import Workload, command_line

_PLAYERS = {"Pong": "paddle", "Breakout": "paddle"}
GAMES = ("Pong", "Breakout", "Seaquest", "Asterix", "SpaceInvaders", "Enduro", "Krull", "YarsRevenge")
#: The public logs: runs, steps of each, and bytes of all (as their bucket had them).
_RUNS, _RUN_STEPS, _LOG_BYTES = 300, 50_000_000, 3.1e12
#: The columns as the logs have them.
_COLUMNS = (("action", np.int32), ("reward", np.float32), ("terminal", np.uint8))
#: Bytes a step that those columns take in a dataset: each one's values fit int8.
_COLUMN_BYTES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """What a variant comes to in a game.

    Attributes:
        total: Bytes a step, of all files.
        pack: Bytes a frame, of the blocks alone.
        us_in: Microseconds of processor time to pack a frame; nan: not measured.
        us_out: To decode one.
    """

    total: float
    pack: float
    us_in: float
    us_out: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Game:
    """What was measured in a game.

    Attributes:
        raw: Bytes of a frame.
        gzip: Bytes a step of the log, and of its frames alone.
        variants: The codec as it is, and others.
        bare: Decoding and checking alone.
    """

    raw: int
    gzip: float
    gzip_frames: float
    variants: dict[str, Figures]
    bare: dict[str, Figures]


def measure(workload: Workload) -> dict[str, Game]:
    """Measure all games."""
    games = GAMES[:3:2] if workload.quick else GAMES
    bar = tqdm(games, desc="codec", disable=None if not workload.quick else True)
    return {game: measure_game(workload, game) for game in bar}


def measure_game(workload: Workload, game: str) -> Game:
    """Measure one game."""
    frames, columns = play(workload, game)
    count = len(frames)
    shards: dict[str, variants.Shard] = {}
    with workload.scratch("codec") as scratch:
        variants.pack(frames[:64], scratch / "warm-up")
        for number, (name, change) in enumerate(variants.variants(count).items()):
            with change:
                shards[name] = variants.pack(frames, scratch / str(number))
        asis = variants.Bare(shards[variants.ASIS])
        bare = {
            variants.NO_CHECK: asis.decoding(checked=False),
            variants.CRC: asis.decoding(checked=True),
            variants.CONTENT: variants.Bare(shards[variants.CONTENT]).decoding(checked=False),
            variants.USUAL: variants.Bare(shards[variants.USUAL], usual=True).decoding(checked=False),
        }
        own = {name: shard for name, shard in shards.items() if name not in bare}
        contestants = {name: variants.decoding(shard, frames) for name, shard in own.items()}
        times = race({**contestants, **bare}, rounds=3 if workload.quick else 15, calls=3)

    def figures(name: str, shard: variants.Shard, dropped: int = 0) -> Figures:
        return Figures(
            total=shard.bytes / count + _COLUMN_BYTES - dropped,
            pack=shard.pack_bytes / count - dropped,
            us_in=1e6 * shard.seconds / count,
            us_out=1e3 * times.ms(name) / variants.CALL,
        )

    # Blocks have the codec's checksum in all shards; what is without it is smaller by that.
    check = variants.layout.CHECK_BYTES
    gzip_frames = _gzip(frames) / count
    return Game(
        raw=frames[0].nbytes,
        gzip=gzip_frames + sum(map(_gzip, columns)) / count,
        gzip_frames=gzip_frames,
        variants={name: figures(name, shard) for name, shard in own.items()},
        bare={
            variants.NO_CHECK: dataclasses.replace(
                figures(variants.NO_CHECK, shards[variants.ASIS], check), us_in=math.nan
            ),
            variants.CRC: figures(variants.CRC, shards[variants.ASIS]),
            variants.CONTENT: figures(variants.CONTENT, shards[variants.CONTENT], check),
            variants.USUAL: figures(variants.USUAL, shards[variants.USUAL], check),
        },
    )


def play(workload: Workload, game: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a game's frames, uint8[N, 84, 84], and the columns as a log has them."""
    steps = 300 if workload.quick else 10_000
    policies = ("random", f"benchmarks.policies:{_PLAYERS.get(game, 'persistent')}")
    frames, columns = [], []
    for policy in policies:
        with atarirb.open(workload.recording(game, policy, steps)) as reader:
            for first in range(0, len(reader), 1000):
                batch = reader.get(slice(first, first + 1000))
                frames.append(batch["observation"])
                following = batch["next"]
                columns.append((batch["action"], following["reward"], following["done"]))
    kept = [
        np.concatenate(column).astype(dtype)
        for column, (_, dtype) in zip(zip(*columns, strict=True), _COLUMNS, strict=True)
    ]
    return np.concatenate(frames), kept


def _gzip(array: np.ndarray) -> int:
    """Return what an array takes as gzip -9, by the zlib that the public logs were written with."""
    compressor = zlib.compressobj(9, wbits=31)
    view = memoryview(array).cast("B")
    parts = (view[first : first + (1 << 20)] for first in range(0, len(view), 1 << 20))
    return sum(len(compressor.compress(part)) for part in parts) + len(compressor.flush())


def rows(games: dict[str, Game]) -> list[Row]:
    """Make the row that has a bar."""
    asis = {name: game.variants[variants.ASIS] for name, game in games.items()}
    return [
        Row(
            what=f"bytes a step, mean of {len(games)} games",
            ours=statistics.mean(figures.total for figures in asis.values()),
            unit="B",
            rival="gzip -9",
            theirs=statistics.mean(game.gzip for game in games.values()),
            ratio=statistics.mean(asis[name].total / game.gzip for name, game in games.items()),
            bar="<= 1",
        ),
        Row(
            what="time in, mean",
            ours=statistics.mean(figures.us_in for figures in asis.values()),
            unit="us/frame",
        ),
        Row(
            what="time out, mean",
            ours=statistics.mean(figures.us_out for figures in asis.values()),
            unit="us/frame",
        ),
    ]


def grids(games: dict[str, Game]) -> list[Grid]:
    """Make the tables: each game, and each variant over all games."""
    head = ["game", "gzip -9, B a frame", "packed, B a frame", "all files, B a step", "against gzip -9"]
    head += ["against raw", "us in", "us out"]
    cells = []
    for name, game in games.items():
        own = game.variants[variants.ASIS]
        sizes = [figure(value) for value in (game.gzip_frames, own.pack, own.total, own.total / game.gzip)]
        cells.append([name, *sizes, f"1/{game.raw / own.total:.0f}", figure(own.us_in), figure(own.us_out)])
    return [
        Grid(title="The packed codec, game by game", head=head, cells=cells),
        _compared(
            "What else was tried, means over the games",
            [game.variants for game in games.values()],
            lambda figures: figures.total,
            "all files, B a step",
        ),
        _compared(
            "Checks and kinds of zstd frames, in a loop that only decodes and checks",
            [game.bare for game in games.values()],
            lambda figures: figures.pack,
            "B a frame",
        ),
    ]


def _compared(
    title: str, games: Sequence[dict[str, Figures]], size: Callable[[Figures], float], what: str
) -> Grid:
    cells = []
    for name in games[0]:
        ratios = [size(game[name]) / size(next(iter(game.values()))) for game in games]
        us_in = statistics.mean(game[name].us_in for game in games)
        cells.append(
            [
                name,
                figure(statistics.mean(size(game[name]) for game in games)),
                f"{statistics.mean(ratios):.3f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                "" if math.isnan(us_in) else figure(us_in),
                figure(statistics.mean(game[name].us_out for game in games)),
            ]
        )
    return Grid(
        title=title, head=["variant", what, "ratio to the first", "range", "us in", "us out"], cells=cells
    )


def choices() -> str:
    """Say what the codec is as it is."""
    names = {number: name for name, number in variants.STRATEGIES.items()}
    parameters = variants.layout.PARAMETERS
    strategy = names.get(parameters["strategy"], f"strategy {parameters['strategy']}")
    return (
        f"As it is: {strategy}, search {parameters['search_log']}; one template for "
        f"{variants.layout.FRAMES_PER_TEMPLATE} frames, {variants.layout.MOST_TEMPLATES:,} at most."
    )


def estimate(games: dict[str, Game]) -> str:
    """Say what all public logs would take, and what that rests on."""
    totals = [game.variants[variants.ASIS].total for game in games.values()]
    ratios = [game.variants[variants.ASIS].total / game.gzip for game in games.values()]
    by_ratio = [ratio * _LOG_BYTES / 1e12 for ratio in (statistics.mean(ratios), min(ratios), max(ratios))]
    by_step = [
        total * _RUNS * _RUN_STEPS / 1e12 for total in (statistics.mean(totals), min(totals), max(totals))
    ]
    raw = _RUN_STEPS * next(iter(games.values())).raw / 1e9
    return (
        f"All {_RUNS} runs of the public logs, of {_RUN_STEPS / 1e6:.0f}M steps each: {by_ratio[0]:.1f} TB, "
        f"from the logs' own {_LOG_BYTES / 1e12:.1f} TB and the mean ratio to gzip ({by_ratio[1]:.1f} to "
        f"{by_ratio[2]:.1f} TB with the smallest and the largest); or {by_step[0]:.1f} TB, from the mean of "
        f"bytes a step ({by_step[1]:.1f} to {by_step[2]:.1f} TB). A run of the first kind takes "
        f"{1e3 * by_ratio[0] / _RUNS:.1f} GB, where raw frames take {raw:,.0f} GB. This takes {len(games)} "
        f"games for the 60, play that is random or nearly so for a learning agent's, and shards of "
        f"{'20,000' if len(games) == len(GAMES) else 'a few hundred'} frames for those of a million, which "
        f"share {variants.layout.MOST_TEMPLATES:,} templates."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.codec", "Measure the packed codec's choices.", argv)
    games = measure(workload)
    return finish(
        "The packed codec",
        rows(games),
        path,
        quick=workload.quick,
        grids=grids(games),
        notes=[choices(), estimate(games)],
    )


if __name__ == "__main__":
    sys.exit(main())
