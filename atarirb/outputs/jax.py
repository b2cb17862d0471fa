"""Batches as JAX arrays.

`index` stays a NumPy int64 array on the host, and so does every other leaf of 64 bits while JAX's
64-bit mode is off: JAX would cut such values down to 32 bits without a word.

On a CPU, JAX takes NumPy's memory as it is, without a copy, and keeps a reference to it; the
memory of a batch is therefore never used again before the last array over it is gone
(`atarirb.buffers`).
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from atarirb.errors import ArgumentError, KeyTypeError, MissingPackageError


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise MissingPackageError.needed("jax", purpose="output='jax'", extra="jax") from error
    return jax


def check(device: Any) -> None:
    """Check that jax is installed and that batches can be put on `device`. Touches no accelerator.

    Raises:
        MissingPackageError: jax is not installed.
        ArgumentError: `device` is neither a device nor a sharding.
    """
    jax = _jax()
    if device is not None and not isinstance(device, (jax.Device, jax.sharding.Sharding)):
        raise ArgumentError(f"device is {device!r}, expected a jax.Device or a jax.sharding.Sharding")


def key_words(key: Any) -> np.ndarray:
    """Return the words of a typed or raw PRNG key, as a NumPy array.

    Raises:
        KeyTypeError: It is no array, or is being traced and so has no value yet.
    """
    jax = _jax()
    if not isinstance(key, jax.Array):
        raise KeyTypeError(f"unusable key {key!r}: it is of jax, but no array")
    if jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    try:
        return np.asarray(key)
    except jax.errors.TracerArrayConversionError:
        raise KeyTypeError(
            "unusable key: it is traced, inside jit or the like; batches are drawn on the host, outside"
        ) from None


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
    moved = jax.device_put(_movable(batch, wide), device)
    return _merged(batch, moved)


def _stays(name: str, leaf: np.ndarray, wide: bool) -> bool:
    """Tell whether a leaf must stay on the host to keep its values."""
    return name == "index" or (not wide and leaf.dtype.itemsize > 4 and leaf.dtype.kind in "iuf")


def _movable(batch: dict[str, Any], wide: bool) -> dict[str, Any]:
    """Return the tree of the leaves that need not stay."""
    return {
        name: _movable(leaf, wide) if isinstance(leaf, dict) else leaf
        for name, leaf in batch.items()
        if isinstance(leaf, dict) or not _stays(name, leaf, wide)
    }


def _merged(batch: dict[str, Any], moved: dict[str, Any]) -> dict[str, Any]:
    """Put the leaves that moved in the place of those of `batch`, in its order."""
    return {
        name: _merged(leaf, moved[name]) if isinstance(leaf, dict) else moved.get(name, leaf)
        for name, leaf in batch.items()
    }


def pack_device(device: Any) -> bytes:
    """Pickle a device or a sharding: devices themselves cannot be, so they go by platform and number."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return (value.platform, value.id) if isinstance(value, _jax().Device) else None

    file = io.BytesIO()
    Pickler(file).dump(device)
    return file.getvalue()


def unpack_device(data: bytes) -> Any:
    """Undo `pack_device`, with the devices of this process."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, name: Any) -> Any:
            platform, number = name
            return next(device for device in _jax().devices(platform) if device.id == number)

    return Unpickler(io.BytesIO(data)).load()
