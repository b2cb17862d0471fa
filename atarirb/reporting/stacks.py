"""The section that shows what is stacked into an observation, and into the next one."""

from __future__ import annotations

import numpy as np

import atarirb
from atarirb.markup import Markup, element, number
from atarirb.reader import Reader
from atarirb.reporting import pictures, pieces, summary
from atarirb.store.dataset import Dataset

_STACK = 4


def section(dataset: Dataset) -> list[Markup]:
    """Show stacks within an episode, at its start, and at a terminal."""
    if not len(dataset.episodes):
        return [pieces.paragraph("There are no episodes.")]
    if not pictures.is_picture(dataset.frames.shape, dataset.frames.dtype):
        return pieces.no_pictures(dataset)
    parts = [
        pieces.paragraph(
            f"With frame_stack={_STACK} an observation is the frame of its step and the {_STACK - 1} before "
            f"it, newest last, and the next observation the same one step on (here n_step=1, gamma=0.99). "
            f"A stack never reaches into another episode: what would be there is zeros."
        )
    ]
    with atarirb.open(dataset.directory, frame_stack=_STACK, n_step=1, gamma=0.99) as reader:
        for title, step, first in _cases(dataset.episodes):
            parts.append(_stack(reader, title, step, first))
    return parts


def _cases(episodes: np.ndarray) -> list[tuple[str, int, int]]:
    """Choose steps to explain stacks at: of each what it shows, the step, and its episode's first one."""
    found: dict[str, tuple[int, int]] = {}
    wanted: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for _, rows in summary.chunks(episodes):
        wanted = {
            "Within an episode": (rows["length"] >= 2 * _STACK, rows["start"] + rows["length"] // 2),
            "Right after an episode's start": (~rows["head_cut"] & (rows["length"] >= 3), rows["start"] + 1),
            "At a terminal": (
                rows["terminal"] & ((rows["length"] >= _STACK) | ~rows["head_cut"]),
                rows["start"] + rows["length"] - 1,
            ),
        }
        for title, (fits, step) in wanted.items():
            if title not in found and fits.any():
                place = int(np.argmax(fits))
                found[title] = int(step[place]), int(rows["start"][place])
        if len(found) == len(wanted):
            break
    return [(title, *found[title]) for title in wanted if title in found]


def _stack(reader: Reader, title: str, step: int, first: int) -> Markup:
    """Draw an observation and the next one, each frame beneath the step it is of."""
    batch = reader[[step]]
    following = batch["next"]
    shown = [np.moveaxis(stack[0], -1, 0) for stack in (batch["observation"], following["observation"])]
    images = pictures.stills(np.concatenate(shown))
    terminal = bool(following["terminated"][0])
    columns = range(step - _STACK + 1, step + 2)
    cells = {}
    for row, offset in enumerate((0, 1)):
        for place in range(_STACK):
            at = columns[place + offset]
            zeros = at < first or (row == 1 and terminal)
            said = "zeros" if zeros else f"step {at:,}"
            image = element(
                "img",
                src=images[row * _STACK + place],
                alt="black: zeros" if zeros else f"the frame of step {at:,}",
            )
            cells[row, place + offset] = element("td", image, element("small", said))
    heads = [
        element("th", "t" if at == step else f"t {'-' if at < step else '+'} {abs(at - step)}", scope="col")
        for at in columns
    ]
    groups = [
        element(
            "tbody",
            element("tr", element("th", name, colspan=len(columns), scope="rowgroup")),
            element("tr", *(cells.get((row, column), element("td")) for column in range(len(columns)))),
        )
        for row, name in enumerate(("observation", "next observation"))
    ]
    values = (
        f"action {batch['action'][0]}, next.reward {number(float(following['reward'][0]))}, next.discount "
        f"{number(float(following['discount'][0]))}, next.terminated {terminal}"
    )
    return element(
        "figure",
        element("h3", title),
        element(
            "figcaption", f"t = step {step:,}, {step - first:,} after its episode's first known one: {values}"
        ),
        element(
            "table",
            element("thead", element("tr", *heads)),
            *groups,
            class_="stack",
        ),
    )
