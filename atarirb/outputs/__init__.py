"""Batches as other libraries' arrays; each module imports its library when it is first used.

`jax` and `torch` make a reader's batches: what ``atarirb.open(output=...)`` names. `tensordict` and
`grain` show a reader to TorchRL's replay buffers and to Grain's pipelines.
"""

from __future__ import annotations

import importlib
import types

#: What batches can be given as.
NAMES = ("numpy", "jax", "torch")


def module(name: str) -> types.ModuleType | None:
    """Return the module that puts batches into arrays of another library; None for NumPy's own.

    Args:
        name: One of `NAMES`.

    Returns:
        A module that has `check`, `put`, `pack_device` and `unpack_device`.
    """
    return None if name == "numpy" else importlib.import_module(f"{__name__}.{name}")
