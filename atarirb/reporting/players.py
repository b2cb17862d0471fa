"""The section of episodes that can be stepped through, frame by frame."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from atarirb import catalog
from atarirb.markup import Markup, element, number
from atarirb.reporting import charts, pictures, pieces, summary
from atarirb.store.dataset import Dataset

#: Bytes that the images of all episodes have together, before they are written as text.
_IMAGE_BYTES = 2_000_000
#: Pixels that a frame's longer side is scaled to, about.
_SIDE = 336


def section(dataset: Dataset, more: Sequence[int], frames: int) -> list[Markup]:
    """Show episodes: those that `summary.chosen` chooses, and `more`."""
    if not len(dataset.episodes):
        return [pieces.paragraph("There are no episodes.")]
    if not pictures.is_picture(dataset.frames.shape, dataset.frames.dtype):
        return pieces.no_pictures(dataset)
    chosen = summary.chosen(dataset.episodes, more)
    said = "The whole episodes of the highest and of the median return, and the last one"
    if not any(summary.whole(rows).any() for _, rows in summary.chunks(dataset.episodes)):
        said = (
            "No episode is whole. Of all, those of the highest and of the median sum of the rewards that are "
            "known, and the last one"
        )
    if len(more):
        said += "; and those that were asked for"
    most_bytes = _IMAGE_BYTES // len(chosen)
    return [
        pieces.paragraph(
            f"{said}. Where scripts run, buttons, the slider and the arrow keys step through the frames; "
            f"where not, they are in reading order."
        ),
        *(_episode(dataset, place, why, frames, most_bytes) for place, why in chosen.items()),
    ]


def _episode(dataset: Dataset, place: int, why: str, frames: int, most_bytes: int) -> Markup:
    row = dataset.episodes[place]
    length, first = int(row["length"]), int(row["start"])
    sheet = pictures.sheet(dataset, row, frames=frames, most_bytes=most_bytes)
    shown = "every step"
    if sheet.every > 1:
        shown = f"every {_ordinal(sheet.every)} step, and the last one"
    if row["final"] >= 0:
        shown += ", and the frame after the last action"
    summed = " A reward is the sum since the frame shown before." if sheet.every > 1 else ""
    smaller = f" Frames are shown at 1/{sheet.factor} of their size." if sheet.factor > 1 else ""
    known = "return" if summary.whole(row) else "sum of the rewards that are known"
    beginning = "beginning cut off" if row["head_cut"] else "begins at its start"
    return element(
        "article",
        element("h3", f"Episode {place:,}: {why}"),
        pieces.paragraph(
            f"{length:,} steps, {first:,} to {first + length - 1:,} of the dataset; {beginning}; "
            f"{pieces.end_of(row)}; {known} {number(row['return'])}. Shown: {shown}, {len(sheet.steps):,} "
            f"frames.{summed}{smaller}"
        ),
        _player(sheet, row, f"Episode {place:,}", shown, catalog.action_names(dataset.manifest.name)),
    )


def _player(sheet: pictures.Sheet, row: np.void, label: str, shown: str, names: Sequence[str]) -> Markup:
    """Make what steps through a sheet; without script, the sheet itself is seen."""
    width, height = sheet.size
    count = len(sheet.steps)
    image = element(
        "img",
        src=sheet.image,
        width=sheet.columns * width,
        height=-(-count // sheet.columns) * height,
        alt=f"{label}: {count:,} frames in reading order, {shown}",
    )
    # As JSON in a script: "<" is all that HTML reads in one.
    values = Markup(json.dumps(_values(sheet, row, names)).replace("<", "\\u003c"))
    return element(
        "figure",
        element("div", image, class_="screen"),
        _controls(sheet, label),
        element("script", values, type="application/json"),
        class_="player",
        tabindex="0",
        role="group",
        aria_label=label,
        data_columns=sheet.columns,
        data_width=width,
        data_height=height,
        data_scale=max(1, _SIDE // max(width, height)),
    )


def _values(sheet: pictures.Sheet, row: np.void, names: Sequence[str]) -> dict[str, Any]:
    """Say of each frame what is shown beside it."""
    start = "beginning cut off" if row["head_cut"] else "start of the episode"
    end, last = pieces.end_of(row), int(row["length"]) - 1
    marks = []
    for step in sheet.steps.tolist():
        said = [start] if step == 0 else []
        said += ["after the last action"] if step > last else []
        said += [end] if step >= last else []
        marks.append("; ".join(said))
    return {
        "step": sheet.steps.tolist(),
        "action": [
            "none" if step > last else _name(action, names)
            for step, action in zip(sheet.steps.tolist(), sheet.action.tolist(), strict=True)
        ],
        "reward": [_signed(value) for value in sheet.reward.tolist()],
        "total": [number(value) for value in sheet.total.tolist()],
        "mark": marks,
        "first": int(row["start"]),
        "last": last,
    }


def _controls(sheet: pictures.Sheet, label: str) -> Markup:
    """Make what is of no use without script, and hidden then."""
    buttons = [
        element("button", words, type="button", data_move=move, aria_label=said)
        for words, move, said in (
            ("|<", "first", "First frame"),
            ("<", "back", "One frame back"),
            ("Play", "play", "Play"),
            (">", "on", "One frame on"),
            (">|", "last", "Last frame"),
        )
    ]
    slider = element(
        "input",
        type="range", min=0, max=len(sheet.steps) - 1, value=0, step=1, aria_label=f"{label}: frame",
    )  # fmt: skip
    fields = {
        "step": "step",
        "index": "step of the dataset",
        "action": "action",
        "reward": "reward",
        "total": "return so far",
    }
    listed = [
        part
        for field, title in fields.items()
        for part in (element("dt", title), element("dd", data_field=field))
    ]
    return element(
        "div",
        element("div", *buttons, class_="buttons"),
        slider,
        _strip(sheet.reward),
        element("dl", *listed),
        element("p", class_="marked", data_field="mark"),
        class_="controls",
        hidden=True,
    )


def _strip(rewards: np.ndarray) -> Markup:
    """Mark the rewards along the slider: those above 0 above its line, those below beneath."""
    end = max(len(rewards) - 1, 1)
    gains = [f"M{1000 * at / end:.0f} 7V1" for at in np.flatnonzero(rewards > 0).tolist()]
    losses = [f"M{1000 * at / end:.0f} 7V13" for at in np.flatnonzero(rewards < 0).tolist()]
    return element(
        "svg",
        charts.path("grid", "M0 7H1000"),
        charts.path("gain", "".join(gains)),
        charts.path("loss", "".join(losses)),
        viewBox="0 0 1000 14",
        preserveAspectRatio="none",
        class_="strip",
        role="img",
        aria_label=f"Frames with a reward above 0: {len(gains):,}, below 0: {len(losses):,}",
    )


def _name(action: int, names: Sequence[str]) -> str:
    return f"{action} {names[action]}" if 0 <= action < len(names) else str(action)


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def _ordinal(count: int) -> str:
    last = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{last}"
