"""Batches as JAX arrays.

`index` stays a NumPy int64 array on the host, and so does every other leaf of 64 bits while JAX's
64-bit mode is off: JAX would cut such values down to 32 bits without a word.

On a CPU, JAX takes NumPy's memory as it is, without a copy, and keeps a reference to it; the
memory of a batch is therefore never used again before the last array over it is gone
(`atarirb.buffers`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atarirb.errors import KeyTypeError, MissingPackageError


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingPackageError.needed("jax", purpose="output='jax'", extra="jax") from error
    return jax


def require() -> None:
    """Check that jax is installed.

    Raises:
        MissingPackageError: It is not.
    """
    _jax()


def key_words(key: Any) -> np.ndarray:
    """Return the words of a typed or raw PRNG key, as a NumPy array.

    Raises:
        KeyTypeError: It is being traced, so it has no value yet.
    """
    jax = _jax()
    if isinstance(key, jax.core.Tracer):
        raise KeyTypeError(
            "unusable key: it is traced, inside jit or the like; batches are drawn on the host, outside"
        )
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return np.asarray(key)


def put(batch: dict[str, Any], device: Any = None) -> dict[str, Any]:
    """Turn a batch's NumPy arrays into JAX arrays.

    Args:
        batch: A nested dict of NumPy arrays.
        device: A `jax.Device`, a `jax.sharding.Sharding`, or None for JAX's default.

    Returns:
        The same tree.
    """
    jax = _jax()
    wide = jax.config.jax_enable_x64

    def stays(name: str, leaf: np.ndarray) -> bool:
        return name == "index" or (not wide and leaf.dtype.itemsize > 4 and leaf.dtype.kind in "iuf")

    host = {name: leaf for name, leaf in batch.items() if isinstance(leaf, np.ndarray) and stays(name, leaf)}
    moved = {name: leaf for name, leaf in batch.items() if name not in host}
    moved = jax.device_put(moved, device) if device is not None else jax.device_put(moved)
    return {name: host[name] if name in host else moved[name] for name in batch}


def describe_device(device: Any) -> Any:
    """Turn a device into something that can be pickled; other placements are left as they are."""
    if device is not None and isinstance(device, _jax().Device):
        return ("device", device.platform, device.id)
    return device


def find_device(description: Any) -> Any:
    """Undo `describe_device`."""
    if isinstance(description, tuple) and description[:1] == ("device",):
        _, platform, number = description
        return next(device for device in _jax().devices(platform) if device.id == number)
    return description
