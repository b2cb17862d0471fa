"""Where a run has steps and where they are missing, and where episodes are cut, on one line.

The line is that of the log's add numbers (see `atarirb.store.manifest`), so a hole is as wide as what is
missing in it, where the log has these numbers. Within a shard steps are spaced evenly: rows of padding are
too few to be seen.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from atarirb.markup import Markup, element, table
from atarirb.reporting import charts, pieces, summary
from atarirb.store.dataset import Dataset
from atarirb.store.manifest import Manifest

_WIDTH, _LEFT, _RIGHT = 1000, 150, 16
_TOP, _LANE, _BOTTOM = 6, 30, 42
_MARK = 18

#: What is marked, and the class it is drawn as.
KINDS = {
    "beginning cut": "cut",
    "end cut": "cut",
    "truncated": "truncated",
    "ended by the time limit": "limit",
}

_UNCOUNTED = (
    "The log does not count its rows, so how many are missing is not known: where nothing proves that a "
    "split continues the one before, a hole of one split is taken to be there."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hole:
    """Steps that are missing between two shards.

    Attributes:
        before: Split of the shard before it.
        after: Split of the shard after it.
        first: First add number that is missing.
        stop: The first one that is there again.
    """

    before: int
    after: int
    first: int
    stop: int


def section(dataset: Dataset) -> list[Markup]:
    """Show shards, holes and cuts on a line, and holes and shards as tables."""
    manifest = dataset.manifest
    if not manifest.steps:
        return [pieces.paragraph("There are no steps.")]
    marked = marks(dataset.episodes)
    missing = holes(manifest)
    said = ", ".join(f"{kind} {count:,}" for kind, (count, _) in marked.items())
    parts = [
        pieces.paragraph(
            f"Splits: {len(manifest.shards):,}. Holes between them: {len(missing):,}. Episodes: {said}."
        ),
        draw(manifest, marked),
    ]
    if missing:
        key = [
            pieces.key("shard0", "a split of the source files"),
            pieces.key("hole", "a hole: steps that are in no file"),
        ]
        parts.append(element("p", *key, class_="key"))
        rows = [
            (
                f"between splits {hole.before:,} and {hole.after:,}",
                f"{hole.first:,}",
                f"{hole.stop:,}",
                f"{hole.stop - hole.first:,}",
            )
            for hole in missing[: pieces.MOST_ROWS]
        ]
        if not all("add_count" in shard.source for shard in manifest.shards):
            parts.append(pieces.paragraph(_UNCOUNTED))
        head = ("hole", "first row missing", "first row after it", "rows missing")
        parts += pieces.left_out(len(missing), "holes")
        parts.append(pieces.scrolled(table(rows, head=head, class_="figures"), "Holes"))
    rows = [
        (
            f"{shard.split:,}",
            f"{first:,}",
            f"{shard.steps:,}",
            {"start": "begins an episode", "continues": "continues the split before"}.get(
                shard.head, "is cut off"
            ),
            f"{shard.bytes:,}",
        )
        for first, shard in zip(dataset.offsets.tolist(), manifest.shards[: pieces.MOST_ROWS], strict=False)
    ]
    shards = pieces.scrolled(
        table(rows, head=("split", "first step", "steps", "its first step", "bytes"), class_="figures"),
        "Splits",
    )
    parts.append(
        pieces.details("The splits as rows", *pieces.left_out(len(manifest.shards), "splits"), shards)
    )
    return parts


def holes(manifest: Manifest) -> list[Hole]:
    """Find the holes between shards."""
    return [
        Hole(before=before.split, after=after.split, first=before.adds[1], stop=after.adds[0])
        for before, after in itertools.pairwise(manifest.shards)
        if before.adds[1] != after.adds[0]
    ]


def marks(episodes: np.ndarray) -> dict[str, tuple[int, np.ndarray]]:
    """Find what is marked.

    Args:
        episodes: EPISODE[E].

    Returns:
        Of each of `KINDS` how many there are, and int64[K], the steps before which they are, of those that
        are so near that none can be told from the next only one.
    """
    steps = int(episodes["start"][-1] + episodes["length"][-1]) if len(episodes) else 0
    grain = max(1, steps // (2 * _WIDTH))
    found: dict[str, tuple[int, np.ndarray]] = {kind: (0, np.zeros(0, np.int64)) for kind in KINDS}
    for _, rows in summary.chunks(episodes):
        stop, final = rows["start"] + rows["length"], rows["final"] >= 0
        here = {
            "beginning cut": rows["start"][rows["head_cut"]],
            "end cut": stop[~rows["terminal"] & ~final],
            "truncated": stop[~rows["terminal"] & final],
            "ended by the time limit": stop[rows["time_limit"]],
        }
        for kind, (count, at) in found.items():
            every = np.concatenate([at, here[kind]])
            _, apart = np.unique(every // grain, return_index=True)
            found[kind] = count + len(here[kind]), every[apart]
    return found


def draw(manifest: Manifest, marked: dict[str, tuple[int, np.ndarray]]) -> Markup:
    """Draw the line of a dataset that has steps, and what `marks` found."""
    shards = [shard for shard in manifest.shards if shard.steps]
    first, stop = shards[0].adds[0], max(shard.adds[1] for shard in shards)
    covered = sum(shard.adds[1] - shard.adds[0] for shard in shards)
    unit = "step" if covered == manifest.steps else "row of the log in the order of play, padding included"
    axis = charts.Axis.over(unit, first, stop, whole=True)
    kinds = [kind for kind, (count, _) in marked.items() if count]
    bottom = _TOP + _LANE * (1 + len(kinds))

    def at(add: float) -> float:
        return axis.at(add, _LEFT, _WIDTH - _RIGHT)

    drawn: list[Markup] = []
    grid = "".join(f"M{at(tick):.1f} {_TOP}V{bottom + 4}" for tick in axis.ticks)
    drawn.append(charts.path("grid", grid))
    drawn.append(_label("splits", 0))
    for shade in (0, 1):
        boxes = [_box(at(shard.adds[0]), at(shard.adds[1])) for shard in shards[shade::2]]
        drawn.append(charts.path(f"shard{shade}", _joined(boxes)))
    drawn.append(
        charts.path("hole", _joined([_box(at(hole.first), at(hole.stop)) for hole in holes(manifest)]))
    )
    for shard in shards:
        left, right = at(shard.adds[0]), at(shard.adds[1])
        if right - left > 7 * len(str(shard.split)):
            drawn.append(
                charts.text(str(shard.split), (left + right) / 2, _TOP + 19, "middle", class_="split")
            )
    offsets = np.cumsum([0, *(shard.steps for shard in shards)])
    adds = np.array([shard.adds for shard in shards])
    for lane, kind in enumerate(kinds, 1):
        count, steps = marked[kind]
        drawn.append(_label(f"{kind}: {count:,}", lane))
        # What ends a shard's last episode is drawn at its end, not at the next one's beginning.
        before = kind != "beginning cut"
        number = np.searchsorted(offsets, steps, side="left" if before else "right") - 1
        part = (steps - offsets[number]) / np.diff(offsets)[number]
        places = adds[number, 0] + part * (adds[number, 1] - adds[number, 0])
        top = _TOP + lane * _LANE + (_LANE - _MARK) // 2
        lines = [f"M{at(place):.1f} {top}v{_MARK}" for place in places.tolist()]
        drawn.append(charts.path(f"mark {KINDS[kind]}", _joined(lines)))
    for tick in axis.ticks:
        drawn.append(charts.text(axis.spell(tick), at(tick), bottom + 18, "middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    drawn.append(charts.text(axis.title, middle, bottom + _BOTTOM - 6, "middle", class_="axis"))
    said = [f"{count:,} {kind}" for kind, (count, _) in marked.items()]
    return element(
        "div",
        charts.svg(
            *drawn,
            size=(_WIDTH, bottom + _BOTTOM),
            title="Time line of the run",
            description=f"{len(shards):,} splits, {manifest.holes:,} holes; {', '.join(said)}.",
            class_="chart wide",
        ),
        class_="scrolled",
        tabindex="0",
        role="group",
        aria_label="Time line, scrolls sideways where the screen is narrow",
    )


def _label(words: str, lane: int) -> Markup:
    return charts.text(words, _LEFT - 10, _TOP + lane * _LANE + _LANE / 2 + 4, "end")


def _box(left: float, right: float) -> str:
    width = max(right - left, 0.5)
    return f"M{left:.1f} {_TOP + 3}h{width:.1f}v{_LANE - 6}h-{width:.1f}z"


def _joined(parts: Sequence[str]) -> str:
    return "".join(dict.fromkeys(parts))
