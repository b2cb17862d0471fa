"""The sections on actions and rewards: how often each is, over all steps."""

from __future__ import annotations

import numpy as np

from atarirb import catalog
from atarirb.markup import Markup, number, table
from atarirb.reporting import charts, counts, pieces
from atarirb.reporting.counts import Counts
from atarirb.store.dataset import Dataset

#: Where a recorder keeps rewards as the game scored them, if it clips them.
_UNCLIPPED = "reward_unclipped"


def actions(dataset: Dataset) -> list[Markup]:
    """Show how often each action is."""
    names = catalog.action_names(dataset.manifest.name)
    found = counts.count(dataset.columns["action"])
    if found.values is None:
        return [pieces.paragraph("There are too many actions to name."), *_histogram("action", found)]
    seen = dict(zip(found.values.tolist(), found.counts.tolist(), strict=True))
    if not seen:
        return [pieces.paragraph("There are no steps.")]
    rows = sorted({*seen, *range(len(names))})
    total, most = sum(seen.values()), max(seen.values())
    said = "Of each action, how many steps have it, over all steps."
    if not names:
        said += " The game is not in the catalog, so its actions have no names."
    lines = []
    for action in rows[: pieces.MOST_ROWS]:
        count = seen.get(action, 0)
        none = f"none of the game's {len(names)}" if names else ""
        name = names[action] if 0 <= action < len(names) else none
        lines.append((f"{action}", name, charts.bar(count / most), f"{count:,}", _share(count, total)))
    return [
        pieces.paragraph(said),
        *pieces.left_out(len(rows), "actions"),
        table(lines, head=("action", "name", "", "steps", "share"), class_="bars"),
    ]


def rewards(dataset: Dataset) -> list[Markup]:
    """Show how often each reward is, also as the game scored it, where that is known."""
    clipped, parts = dataset.manifest.rewards_clipped, []
    said = {"reward": "The rewards that batches have" + (", clipped to -1, 0 or 1." if clipped else ".")}
    shape, dtype = dataset.described.get(_UNCLIPPED, ((), np.dtype(object)))
    if not shape and dtype.kind in "iuf":
        said[_UNCLIPPED] = f"The extra column {_UNCLIPPED}: the rewards before they were clipped."
    for name, words in said.items():
        parts += [pieces.paragraph(words), *_histogram(name, counts.count(dataset.columns[name]))]
    return parts


def _histogram(name: str, found: Counts) -> list[Markup]:
    """Show how often values occur, over all steps."""
    total = int(found.counts.sum()) + found.odd
    if not total:
        return [pieces.paragraph("There are no steps.")]
    if found.values is None:
        most = int(found.counts.max())
        lines = [
            (
                f"{number(low)} to {number(high)}",
                charts.bar(count / most),
                f"{count:,}",
                _share(count, total),
            )
            for low, high, count in zip(found.edges, found.edges[1:], found.counts.tolist(), strict=False)
        ]
        said = (
            f"There are more than {counts.MOST_VALUES:,} values, so they are binned, into {len(lines)} bins."
        )
        if found.odd:
            said += f" {found.odd:,} are not finite, and are in none."
        return [pieces.paragraph(said), table(lines, head=(name, "", "steps", "share"), class_="bars")]
    seen = list(zip(found.values.tolist(), found.counts.tolist(), strict=True))
    zeros = sum(count for value, count in seen if not value)
    most = max((count for value, count in seen if value), default=0)
    dwarfs = most > 0 and zeros > 10 * most
    longest = most if dwarfs else max(most, zeros)
    lines = [
        (
            number(value) if np.isfinite(value) else str(value),
            charts.bar(count / longest) if value or not dwarfs else "",
            f"{count:,}",
            _share(count, total),
        )
        for value, count in seen[: pieces.MOST_ROWS]
    ]
    said = [pieces.paragraph("The zeros have no bar: it would dwarf the others.")] if dwarfs else []
    return [
        *said,
        *pieces.left_out(len(seen), "values"),
        table(lines, head=(name, "", "steps", "share"), class_="bars"),
    ]


def _share(count: int, total: int) -> str:
    part = 100 * count / total
    return f"{part:.2f} %" if part >= 0.01 or not count else "< 0.01 %"
