"""The ways to keep frames, by name; see `atarirb.store.raw` for what a codec is."""

from __future__ import annotations

from types import ModuleType

from atarirb.errors import ArgumentError
from atarirb.store import packed, raw

CODECS: dict[str, ModuleType] = {packed.NAME: packed, raw.NAME: raw}
DEFAULT = packed.NAME


def codec(name: str) -> ModuleType:
    """Look a codec up.

    Raises:
        ArgumentError: There is none of that name.
    """
    try:
        return CODECS[name]
    except KeyError:
        raise ArgumentError(f"unknown codec {name!r}; there are {', '.join(CODECS)}") from None
