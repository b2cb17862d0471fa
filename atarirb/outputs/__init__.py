"""Batches as other libraries' arrays; each module imports its library when it is first used.

`jax` and `torch` make a reader's batches: what ``atarirb.open(output=...)`` names. `tensordict` and
`grain` show a reader to TorchRL's replay buffers and to Grain's pipelines.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import types
from typing import Any

import numpy as np

from atarirb.index import Legal

#: What batches can be given as.
NAMES = ("numpy", "jax", "torch")

#: Options of a reader that change no value of a batch.
_PLACES = frozenset(("output", "device", "pin_memory"))


def module(name: str) -> types.ModuleType | None:
    """Return the module that puts batches into arrays of another library; None for NumPy's own.

    Args:
        name: One of `NAMES`.

    Returns:
        A module that has `check`, `put`, `pack_device` and `unpack_device`.
    """
    return None if name == "numpy" else importlib.import_module(f"{__name__}.{name}")


def steps_at(legal: Legal, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the `numbers`-th of the legal steps, int64[B] from 0 on.

    Returns:
        The steps, int64[B], and their episodes, int64[B].
    """
    episode = np.searchsorted(legal.cumulative, numbers, side="right") - 1
    return legal.first[episode] + numbers - legal.cumulative[episode], episode


def describe(reader: Any, legal: Legal) -> str:
    """Name a dataset, what its batches are made with, and some of its steps, on one line.

    Readers of the same dataset give the same line wherever it lies, and others another one: checkpoints
    are compared by it.
    """
    options = reader._options
    changed = [
        f", {field.name}={getattr(options, field.name)!r}"
        for field in dataclasses.fields(options)
        if field.name not in _PLACES and getattr(options, field.name) != field.default
    ]
    runs = np.concatenate([legal.first, legal.cumulative]).astype("<i8")
    digest = hashlib.blake2b(runs.tobytes(), digest_size=8).hexdigest()
    return f"{reader.info.name}, {legal.total:,} of {reader.info.steps:,} steps ({digest}){''.join(changed)}"
