"""The section on episodes: their returns and lengths, over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atarirb.markup import Markup, element, number, table
from atarirb.reporting import charts, pieces, summary
from atarirb.store.dataset import Dataset


def section(dataset: Dataset) -> list[Markup]:
    """Show returns and lengths over time: each episode, or where there are many quartiles of bins."""
    episodes, manifest = dataset.episodes, dataset.manifest
    if not len(episodes):
        return [pieces.paragraph("There are no episodes.")]
    of_whole = {
        name: np.concatenate([rows[name][summary.whole(rows)] for _, rows in summary.chunks(episodes)])
        for name in summary.FIGURES
    }
    count = len(of_whole["length"])
    rewards = "clipped rewards, so it is not the game's score" if manifest.rewards_clipped else "rewards"
    parts = [
        pieces.paragraph(
            f"Of {len(episodes):,} episodes {count:,} are whole: known from their beginning to a terminal or "
            f"the time limit. A return is an undiscounted sum of {rewards}; a step is an action of the "
            f"agent, and an episode stands at its first step."
        )
    ]
    if count:
        rows = [(name, *map(number, _five(values))) for name, values in of_whole.items()]
        head = ("", "least", "lower quartile", "median", "upper quartile", "greatest", "mean")
        parts.append(
            pieces.scrolled(
                table(rows, head=head, caption="Whole episodes", class_="figures"), "Whole episodes"
            )
        )
    few = len(episodes) <= summary.MOST_DOTS
    by = {"step": manifest.steps, "episode": len(episodes)}
    binned = {} if few else {axis: summary.bins(episodes, manifest.steps, axis) for axis in by}
    if few:
        key = [pieces.key("dots", "a whole episode")]
        if count < len(episodes):
            key.append(pieces.key("crosses", "one that is cut or truncated: what is known of it"))
    else:
        key = [pieces.key("median", "median"), pieces.key("band", "lower to upper quartile")]
        parts.append(
            pieces.paragraph(
                f"There are more than {summary.MOST_DOTS:,} episodes, so they are binned: each axis into "
                f"{summary.BINS} parts of equal width, and of the whole episodes in each part the quartiles "
                f"are drawn. The other {len(episodes) - count:,} episodes are left out."
            )
        )
    if len(key) > 1:
        parts.append(element("p", *key, class_="key"))
    drawn = [
        _over_time(episodes, of_whole[name], name, axis, end, binned.get(axis))
        for name in summary.FIGURES
        for axis, end in by.items()
    ]
    parts.append(element("div", *drawn, class_="charts"))
    if few:
        parts.append(pieces.details("Every episode as a row", _episode_rows(episodes)))
    else:
        parts += [
            pieces.details(f"The bins by {axis} as rows", _bin_rows(found)) for axis, found in binned.items()
        ]
    return parts


def _five(values: np.ndarray) -> list[float]:
    return [*np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist(), float(values.mean())]


def _over_time(
    episodes: np.ndarray,
    of_whole: np.ndarray,
    name: str,
    by: str,
    end: int,
    binned: list[summary.Bin] | None,
) -> Markup:
    """Draw returns or lengths by step or by episode."""
    across = charts.Axis.over("first step of the episode" if by == "step" else "episode", 0, end, whole=True)
    said = f"Of the whole ones: {charts.spread(of_whole)}." if len(of_whole) else "No episode is whole."
    up = "return" if name == "return" else "length, steps"
    if binned is None:
        values = np.array(episodes[name])
        places = episodes["start"] if by == "step" else np.arange(len(episodes))
        full = summary.whole(episodes)
    else:
        values = np.array([value for each in binned for value in each.quartiles.get(name, ())])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    low = min(low, 0.0) if name == "length" else low
    frame = charts.Frame(x=across, y=charts.Axis.over(up, low, high, whole=name == "length"))
    if binned is None:
        here = np.isfinite(values)
        marks = [
            charts.crosses(frame, places[here & ~full], values[here & ~full]),
            charts.dots(frame, places[here & full], values[here & full]),
        ]
    else:
        marks = charts.band(frame, binned, name)
    title = f"{name.capitalize()} by {by}"
    return element("figure", element("figcaption", title), frame.draw(*marks, title=title, description=said))


def _episode_rows(episodes: np.ndarray) -> Markup:
    rows = [
        (
            f"{place:,}",
            f"{row['start']:,}",
            f"{row['length']:,}",
            number(row["return"]),
            "cut" if row["head_cut"] else "whole",
            pieces.end_of(row),
        )
        for place, row in enumerate(episodes)
    ]
    head = ("episode", "first step", "length", "return", "beginning", "end")
    return pieces.scrolled(table(rows, head=head, class_="figures"), "Episodes")


def _bin_rows(bins: Sequence[summary.Bin]) -> Markup:
    head = ["from", "to before", "whole episodes"]
    head += [f"{name}, {which}" for name in summary.FIGURES for which in ("lower", "median", "upper")]
    rows = [
        (
            f"{each.low:,}",
            f"{each.high:,}",
            f"{each.whole:,}",
            *(
                number(value)
                for name in summary.FIGURES
                for value in each.quartiles.get(name, (float("nan"),) * 3)
            ),
        )
        for each in bins
    ]
    return pieces.scrolled(table(rows, head=head, class_="figures"), "Bins")
