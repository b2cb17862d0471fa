"""Batches as JAX arrays.

`index` stays a NumPy int64 array on the host, and so does every other leaf of 64 bits while JAX's
64-bit mode is off: JAX would cut such values down to 32 bits without a word.

A sharding may span the devices of several processes (`jax.distributed`). Then the leaves become global
arrays, of which each process holds the rows of its own devices, and makes them from its own NumPy
arrays: of the whole batch, the same in every process, or of its part alone. Processes do not talk to
each other for it, so they may be at different batches. What stays on the host is that of the NumPy
arrays: the whole batch's, or the part's.

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


def rows_of(sharding: Any, rows: int) -> tuple[int, int]:
    """Tell which rows of a global batch this process's devices hold.

    Args:
        sharding: A `jax.sharding.Sharding` that partitions the leading axis, or none.
        rows: Rows of the global batch.

    Returns:
        The first of the rows, and the one after the last; all rows where the devices are all of this
        process, or each holds all.

    Raises:
        ArgumentError: The sharding partitions other axes than the leading one, the rows do not divide
            over it, they are not one run of neighbours, or none of its devices is of this process.
    """
    devices = len(sharding.device_set)
    try:
        sharding.check_compatible_aval((rows,))
    except ValueError as error:
        raise ArgumentError(
            f"{sharding} partitions more than the rows of a batch; expected a sharding of the leading axis "
            f"alone, as of PartitionSpec('rows')"
        ) from error
    shards = devices // sharding.shard_shape((devices,))[0]
    if rows % shards:
        raise ArgumentError(
            f"a batch of {rows:,} rows does not divide over the {shards:,} shards of {sharding}; "
            f"make it a multiple of {shards:,} rows"
        )
    held = sharding.addressable_devices_indices_map((rows,))
    parts = sorted({where.indices(rows)[:2] for (where,) in held.values()})
    if not parts:
        raise ArgumentError(f"none of the devices of {sharding} is of this process, so it needs no batches")
    first, stop = parts[0][0], parts[-1][1]
    if sum(high - low for low, high in parts) != stop - first:
        found = ", ".join(f"{low:,} to {high - 1:,}" for low, high in parts)
        raise ArgumentError(
            f"this process's devices hold rows {found} of {rows:,}, expected one run of neighbours; order "
            f"the devices of the mesh by process, as jax.devices() does"
        )
    return first, stop


def put(batch: dict[str, Any], device: Any = None, *, rows: int | None = None) -> dict[str, Any]:
    """Turn a batch's NumPy arrays into JAX arrays.

    Args:
        batch: A nested dict of NumPy arrays.
        device: A `jax.Device`, a `jax.sharding.Sharding`, or None for JAX's default.
        rows: Rows of the global batch, if `batch` holds only this process's part of it: those that
            `rows_of` tells. None: `batch` is whole, and if `device` spans processes, the same in each.

    Returns:
        The same tree. Where `device` spans processes its arrays are global, but the leaves that stay on
        the host have the rows of `batch`.

    Raises:
        ArgumentError: A leaf does not divide over the sharding, has fewer axes than it partitions, or
            has other rows than this process's part.
    """
    jax = _jax()
    movable = _movable(batch, jax.config.jax_enable_x64)
    spans = isinstance(device, jax.sharding.Sharding) and not device.is_fully_addressable
    first = 0
    if rows is not None:
        first, stop = rows_of(device, rows) if spans else (0, rows)
        _check_rows(movable, first, stop, rows)
    if spans:
        if rows is None:
            _check_fit(movable, device)
        # Not device_put: that has the processes compare their arrays, and so wait for each other.
        moved = jax.tree_util.tree_map(lambda leaf: _global(leaf, device, first, rows), movable)
    else:
        try:
            moved = jax.device_put(movable, device)
        except ValueError:
            if isinstance(device, jax.sharding.Sharding):
                _check_fit(movable, device)
            raise
    return _merged(batch, moved)


def unpack(batch: dict[str, Any]) -> dict[str, Any]:
    """Make both observations of a batch of windows; see `atarirb.windows`. To be called inside jit.

    Args:
        batch: A batch of windows as JAX arrays: ``window`` [B, S + K, *frame] and ``shift`` bool[B, K]; of a
            stacked mixture [R, B / R, ...], and of a single step without B.

    Returns:
        The batch of transitions that it stands for: ``observation`` and ``next.observation``
        [B, *frame, S], or [B, *frame] if S is 1, in the place of ``window`` and ``shift``.
    """
    jnp = _jax().numpy
    rest = dict(batch)
    shift = rest.pop("shift")
    window = jnp.moveaxis(rest.pop("window"), shift.ndim - 1, -1)
    most = shift.shape[-1]
    depth = window.shape[-1] - most
    observation, following = window[..., :depth], jnp.zeros_like(window[..., :depth])
    for begin in range(1, most + 1):
        here = shift[..., begin - 1].reshape(*shift.shape[:-1], *[1] * (window.ndim - shift.ndim + 1))
        following = jnp.where(here, window[..., begin : begin + depth], following)
    if depth == 1:
        observation, following = observation[..., 0], following[..., 0]
    return rest | {"observation": observation, "next": batch["next"] | {"observation": following}}


def _global(leaf: np.ndarray, sharding: Any, first: int, rows: int | None) -> Any:
    """Make a global array of which `leaf` has the rows from `first` on; all of them if `rows` is None."""
    shape = leaf.shape if rows is None else (rows, *leaf.shape[1:])

    def part(where: tuple[slice, ...]) -> np.ndarray:
        if first:
            low, high, _ = where[0].indices(rows)
            where = (slice(low - first, high - first), *where[1:])
        return leaf[where]

    return _jax().make_array_from_callback(shape, sharding, part)


def _check_rows(tree: dict[str, Any], first: int, stop: int, rows: int) -> None:
    """Check that every leaf has this process's rows of a global batch."""
    for path, leaf in _jax().tree_util.tree_leaves_with_path(tree):
        if leaf.shape[:1] != (stop - first,):
            name = _jax().tree_util.keystr(path)
            raise ArgumentError(
                f"leaf {name} has shape {leaf.shape}, expected {stop - first:,} rows: "
                f"this process's, from {first:,} on, of a global batch of {rows:,}"
            )


def _check_fit(tree: dict[str, Any], sharding: Any) -> None:
    """Check that every leaf has the axes that a sharding partitions, and divides over it."""
    for path, leaf in _jax().tree_util.tree_leaves_with_path(tree):
        name = _jax().tree_util.keystr(path)
        try:
            sharding.check_compatible_aval(leaf.shape)
        except ValueError as error:
            raise ArgumentError(
                f"leaf {name} has shape {leaf.shape}, fewer axes than {sharding} partitions; "
                f"PartitionSpec('rows') is for all leaves of a batch, PartitionSpec() for a single row too"
            ) from error
        try:
            sharding.shard_shape(leaf.shape)
        except ValueError as error:
            raise ArgumentError(
                f"leaf {name} has shape {leaf.shape}, which does not divide: {error}"
            ) from error


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
