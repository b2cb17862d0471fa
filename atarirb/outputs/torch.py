"""Batches as PyTorch tensors.

On the host a tensor is NumPy's memory as it is, without a copy, and keeps it: the memory of a batch is never
used again before the last array or tensor over it is gone (`atarirb.buffers`). `index` is int64 and stays on
the host, whatever the device. A column of a dtype that PyTorch lacks (text, dates) stays a NumPy array.

`observation` and ``next.observation`` of slices are views into the same frames on a device too: the frames go
there once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from atarirb.errors import ArgumentError, MissingPackageError


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError.needed("torch", purpose="output='torch'", extra="torch") from error
    return torch


def check(device: Any, pin: bool = False) -> None:
    """Check that torch is installed and that batches can be put where they are wanted.

    No accelerator is touched, except to look for CUDA if memory is to be pinned.

    Raises:
        MissingPackageError: torch is not installed.
        ArgumentError: `device` is nothing that `torch.device` takes, or memory is to be pinned and there is
            no CUDA device.
    """
    torch = _torch()
    if device is not None:
        try:
            torch.device(device)
        except (TypeError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ArgumentError(
                f"device is {device!r}, expected what torch.device takes, as 'cuda' or 'cuda:1': {reason}"
            ) from None
    if pin and not torch.cuda.is_available():
        raise ArgumentError("memory is to be pinned, which needs CUDA, and torch finds no CUDA device here")


def put(batch: dict[str, Any], device: Any = None, pin: bool = False) -> dict[str, Any]:
    """Turn a batch's NumPy arrays into PyTorch tensors.

    Args:
        batch: A nested dict of NumPy arrays.
        device: What `torch.device` takes, or None for the host.
        pin: Copy to pinned memory first. From there the copies to `device` run beside the caller's work;
            with no device the pinned tensors are returned.

    Returns:
        The same tree.
    """
    if device is None and not pin:
        return _tree(batch, lambda _, leaf: tensor(leaf))

    def move(values: Any) -> Any:
        if pin:
            values = values.pin_memory()
        return values if device is None else values.to(device, non_blocking=pin)

    wholes: dict[tuple[int, np.dtype], Any] = {}

    def moved(name: str, leaf: np.ndarray) -> Any:
        values, base = tensor(leaf), leaf.base
        if name == "index" or values is leaf:
            return values
        if not isinstance(base, np.ndarray) or not base.flags.c_contiguous or base.nbytes > 2 * leaf.nbytes:
            return move(values)
        # A view: of slices there are two into the same frames, which go once.
        key = (id(base), leaf.dtype)
        if key not in wholes:
            wholes[key] = move(tensor(base.reshape(-1).view(leaf.dtype)))
        strides = [stride // leaf.itemsize for stride in leaf.strides]
        return wholes[key].as_strided(
            leaf.shape, strides, (leaf.ctypes.data - base.ctypes.data) // leaf.itemsize
        )

    return _tree(batch, moved)


def tensor(array: np.ndarray) -> Any:
    """Return a tensor over an array's memory; the array itself where PyTorch lacks its dtype."""
    try:
        return _torch().from_numpy(array)
    except TypeError:
        return array


def _tree(batch: dict[str, Any], change: Callable[[str, np.ndarray], Any]) -> dict[str, Any]:
    """Change every leaf, given its name too."""
    return {
        name: _tree(leaf, change) if isinstance(leaf, dict) else change(name, leaf)
        for name, leaf in batch.items()
    }


def pack_device(device: Any) -> bytes:
    """Pickle a device."""
    return pickle.dumps(device)


def unpack_device(data: bytes) -> Any:
    """Undo `pack_device`."""
    return pickle.loads(data)
