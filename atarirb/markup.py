"""HTML and SVG as text: every string is escaped, but those that are marked up already."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

#: Elements that have no content, and no end.
_VOID = frozenset(("br", "img", "input", "link", "meta"))


class Markup(str):
    """Text in which nothing is left to escape."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | float | bool | None) -> Markup:
    """Make an element.

    Args:
        name: The tag's name.
        content: What is in it; plain strings are escaped.
        attributes: ``class_`` and ``data_step`` are named class and data-step. True gives a name alone,
            None and False nothing.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(_spell(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{name}{written}>" if name in _VOID else f"<{name}{written}>{join(content)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Markup:
    """Put parts one after the other; plain strings are escaped."""
    return Markup(between.join(part if isinstance(part, Markup) else html.escape(part) for part in parts))


def table(
    rows: Iterable[Sequence[str]], *, head: Sequence[str] = (), caption: str = "", class_: str | None = None
) -> Markup:
    """Make a table; the first cell of a row is its heading."""
    lines = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in rest))
        for first, *rest in rows
    ]
    return element(
        "table",
        *([element("caption", caption)] if caption else []),
        *(
            [element("thead", element("tr", *(element("th", cell, scope="col") for cell in head)))]
            if head
            else []
        ),
        element("tbody", *lines),
        class_=class_,
    )


def number(value: float) -> str:
    """Write a number: ``12,345``, ``0.125``."""
    plain = float(value).is_integer() or abs(value) >= 1000
    return f"{value:,.0f}" if plain else f"{value:,.4g}"


def _spell(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
