"""Small charts as SVG, which the page's style sheet colours.

Places on the sheet are in units of the view box; the page scales it to the width there is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from atarirb.markup import Markup, element, number
from atarirb.reporting.summary import Bin

_WIDTH, _HEIGHT = 440, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 44


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows.

    Attributes:
        title: What is measured, with its unit.
        ticks: Round numbers, rising; the first and the last are the axis's ends.
    """

    title: str
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, title: str, low: float, high: float, *, whole: bool = False) -> Axis:
        """Make the axis that holds all from `low` to `high`; `whole`: its ticks are whole numbers."""
        if not high > low:
            low, high = min(low, 0.0), max(high, 0.0, low + 1)
        rough = (high - low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
        step = max(step, 1.0) if whole else step
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(title=title, ticks=tuple(place * step for place in range(first, last + 1)))

    def at(self, value: float, first: float, last: float) -> float:
        """Say where a value is, between the places of the two ends."""
        low, high = self.ticks[0], self.ticks[-1]
        return first + (value - low) / (high - low) * (last - first)

    def spell(self, tick: float) -> str:
        """Write a tick: ``20M`` where the numbers are in millions."""
        largest = max(abs(self.ticks[0]), abs(self.ticks[-1]))
        step = self.ticks[1] - self.ticks[0]
        for size, letter in ((1e6, "M"), (1e3, "k")):
            if largest >= 10 * size or (largest >= size and step >= size):
                return f"{tick / size:.6g}{letter}" if tick else "0"
        return f"{tick:,.6g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """The part of a chart that is within its axes."""

    x: Axis
    y: Axis

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Turn values into a place."""
        return self.x.at(x, _LEFT, _WIDTH - _RIGHT), self.y.at(y, _HEIGHT - _BOTTOM, _TOP)

    def draw(self, *marks: str, title: str, description: str) -> Markup:
        """Draw the axes, and marks within them."""
        grid, labels = [], []
        left, bottom, right = _LEFT, _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for tick in self.y.ticks:
            _, y = self.place(self.x.ticks[0], tick)
            grid.append(f"M{left} {_short(y)}H{right}")
            labels.append(text(self.y.spell(tick), left - 6, y + 4, "end"))
        for tick in self.x.ticks:
            x, _ = self.place(tick, self.y.ticks[0])
            grid.append(f"M{_short(x)} {bottom}v4")
            labels.append(text(self.x.spell(tick), x, bottom + 17, "middle"))
        labels.append(text(self.x.title, (left + right) / 2, _HEIGHT - 6, "middle", class_="axis"))
        labels.append(
            text(
                self.y.title, 12, (_TOP + bottom) / 2, "middle", class_="axis",
                transform=f"rotate(-90 12 {_short((_TOP + bottom) / 2)})",
            )
        )  # fmt: skip
        return svg(
            path("grid", "".join(grid)), *marks, *labels,
            size=(_WIDTH, _HEIGHT), title=title, description=description,
        )  # fmt: skip


def svg(*content: str, size: tuple[int, int], title: str, description: str, class_: str = "chart") -> Markup:
    """Make a picture that is read out as its title and description."""
    label = f"{title}. {description}" if description else title
    return element(
        "svg", *content,
        viewBox=f"0 0 {size[0]} {size[1]}", role="img", aria_label=label, class_=class_,
    )  # fmt: skip


def text(words: str, x: float, y: float, anchor: str, **attributes: str) -> Markup:
    """Write words; `anchor` is "start", "middle" or "end"."""
    return element("text", words, x=float(x), y=float(y), text_anchor=anchor, **attributes)


def path(class_: str, data: str) -> Markup:
    """Draw a path."""
    return element("path", d=data, class_=class_)


def dots(frame: Frame, x: np.ndarray, y: np.ndarray) -> Markup:
    """Draw a dot for each pair of values."""
    places = (frame.place(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True))
    return path("dots", "".join(f"M{_short(a)} {_short(b)}h0" for a, b in places))


def crosses(frame: Frame, x: np.ndarray, y: np.ndarray) -> Markup:
    """Draw a small cross for each pair of values."""
    places = (frame.place(*pair) for pair in zip(x.tolist(), y.tolist(), strict=True))
    return path("crosses", "".join(f"M{_short(a - 2.5)} {_short(b - 2.5)}l5 5m0-5l-5 5" for a, b in places))


def band(frame: Frame, bins: Sequence[Bin], name: str) -> list[Markup]:
    """Draw the quartiles of bins: a band with the median in it; nothing where a bin is empty."""
    areas, lines = [], []
    end = None  # of the bin before, if it has a median
    for each in bins:
        if not each.quartiles:
            end = None
            continue
        low, middle, high = each.quartiles[name]
        left, bottom = frame.place(each.low, low)
        right, top = frame.place(each.high, high)
        _, line = frame.place(each.low, middle)
        areas.append(f"M{_short(left)} {_short(bottom)}H{_short(right)}V{_short(top)}H{_short(left)}z")
        begin = f"M{_short(left)} {_short(line)}" if end != each.low else f"V{_short(line)}"
        lines.append(f"{begin}H{_short(right)}")
        end = each.high
    return [path("band", "".join(areas)), path("median", "".join(lines))]


def bar(part: float) -> Markup:
    """Draw a bar as wide as a part, 0 to 1, of the table's cell it is in."""
    rect = element("rect", x="0", y="0", width=max(100.0 * part, 0.4 if part else 0.0), height="10")
    return element(
        "svg", rect, viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar", aria_hidden="true"
    )


def spread(values: np.ndarray) -> str:
    """Describe values, one or more, in words."""
    low, middle, high = (number(float(value)) for value in (values.min(), np.median(values), values.max()))
    return f"{low} to {high}, median {middle}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
