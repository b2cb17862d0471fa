"""Functions by name, ``module:function``: how a command line speaks of one."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from atarirb.errors import ArgumentError


def load(what: str, name: str, *, takes: str, spelt: str = "'module:function'") -> Callable[..., Any]:
    """Find a function by its name.

    Args:
        what: What it is to be, for messages.
        name: As with ``python -m``, the module may be in the current directory, which stays on the path for
            what the function itself imports; the function may be an attribute of something, as in
            ``module:agents.greedy``.
        takes: What it is to take, for messages.
        spelt: How a name may be spelt, for messages.

    Raises:
        ArgumentError: The name is spelt otherwise, there is no such module or function, or it cannot be
            called; the message says which.
    """
    module, colon, path = name.partition(":")
    parts = path.split(".")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *parts)):
        raise ArgumentError(f"{what} is {name!r}, expected {spelt}")
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"{what} {name!r}: module {module!r} cannot be imported: {error}; expected it in {here} or "
            f"installed"
        ) from error
    try:
        function = functools.reduce(getattr, parts, found)
    except AttributeError as error:
        raise ArgumentError(f"{what} {name!r}: {module!r} has no {path!r}: {error}") from error
    if not callable(function):
        raise ArgumentError(
            f"{what} {name!r} is of type {type(function).__name__}, expected a function of {takes}"
        )
    return function
