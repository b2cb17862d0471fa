"""Pieces that several sections of the page are made of."""

from __future__ import annotations

import numpy as np

from atarirb import catalog
from atarirb.markup import Markup, element, join
from atarirb.reporting import charts
from atarirb.store.dataset import Dataset

#: Rows of a table that has one for each of something of which there may be very many.
MOST_ROWS = 500


def paragraph(words: str) -> Markup:
    """Make a paragraph of text."""
    return element("p", words)


def details(title: str, *content: Markup) -> Markup:
    """Hide content until it is asked for."""
    return element("details", element("summary", title), *content)


def scrolled(content: Markup, label: str) -> Markup:
    """Let what is too wide for the screen be scrolled, with keys too."""
    return element("div", content, class_="scrolled", tabindex="0", role="group", aria_label=label)


def key(class_: str, words: str) -> Markup:
    """Explain how something is drawn."""
    data = {"dots": "M10 7h0", "crosses": "M7 4l6 6m0-6l-6 6", "median": "M0 7h20"}.get(
        class_, "M0 1h20v12h-20z"
    )
    return join(
        [
            element(
                "svg", charts.path(class_, data), viewBox="0 0 20 14", class_="sample", aria_hidden="true"
            ),
            f" {words} ",
        ]
    )


def left_out(rows: int, what: str) -> list[Markup]:
    """Say that a table does not have all rows, if it does not."""
    if rows <= MOST_ROWS:
        return []
    return [paragraph(f"The first {MOST_ROWS:,} of {rows:,} {what} are listed.")]


def end_of(row: np.void) -> str:
    """Say how an episode, a row of EPISODE, ends."""
    if row["time_limit"]:
        return f"ended by the time limit of {catalog.TIME_LIMIT:,} steps"
    if row["terminal"]:
        return "ends by a terminal"
    return "truncated" if row["final"] >= 0 else "end cut off"


def no_pictures(dataset: Dataset) -> list[Markup]:
    """Say why no frames are shown."""
    shape = " x ".join(map(str, dataset.frames.shape)) or "a single number"
    return [
        paragraph(
            f"Observations are {dataset.frames.dtype}, {shape}, which are no pictures: 8-bit grey levels or "
            f"colours are. So none are shown."
        )
    ]
