"""Bench: how fast a dataset is read, on this machine and disk."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from atarirb.arguments import positive
from atarirb.errors import ArgumentError
from atarirb.reader import open as open_reader

_SLICES, _LENGTH = 16, 64


def bench(path: str | os.PathLike[str], *, n: int = 256, seconds: float = 1.0) -> dict[str, Any]:
    """Time a dataset's batches.

    Frames not in the page cache come from the disk, so a first run over a large dataset measures
    the disk and a second one less of it.

    Args:
        path: The dataset's directory, or its name in the home (`atarirb.home`).
        n: Transitions of a batch.
        seconds: Spent on each figure, at the least.

    Returns:
        ``open_ms``; and of each kind of batch, by name, ``ms`` (the median of one), ``steps_per_s``
        and ``gb_per_s`` (of frames handed out). ``copy`` is a plain copy of as many bytes as
        ``sample`` hands out: what the memory allows.

    Raises:
        ArgumentError: n < 1, or the dataset is empty.
    """
    n = positive("n", n)
    began = time.perf_counter()
    reader = open_reader(path)
    open_ms = 1e3 * (time.perf_counter() - began)
    if not reader.valid_steps:
        raise ArgumentError(f"{path}: no step can be drawn from it")
    stacked = open_reader(path, frame_stack=4)
    keys = iter(range(1 << 62))
    result: dict[str, Any] = {"dataset": reader.info.name, "steps": len(reader), "open_ms": open_ms}

    def slices() -> Any:
        return reader.sample_slices(next(keys), _SLICES, _LENGTH, strict_length=False)

    kinds: dict[str, tuple[int, Callable[[], Any]]] = {
        f"sample({n})": (n, lambda: reader.sample(next(keys), n)),
        f"sample_slices({_SLICES}, {_LENGTH})": (_SLICES * _LENGTH, slices),
    }
    if stacked.valid_steps:
        kinds[f"sample({n}), frame_stack=4"] = (n, lambda: stacked.sample(next(keys), n))
    source = np.zeros(2 * n * int(np.prod(reader.info.frame_shape)), reader.info.frame_dtype)
    target = np.empty_like(source)
    result["batches"] = {name: _timed(rows, call, seconds) for name, (rows, call) in kinds.items()}
    result["batches"]["copy"] = _timed(n, lambda: np.copyto(target, source), seconds, source.nbytes)
    return result


def _timed(rows: int, call: Callable[[], Any], seconds: float, size: int | None = None) -> dict[str, float]:
    """Time a call until `seconds` are over, after one that warms up."""
    batch = call()
    if size is None:
        size = batch["observation"].nbytes + batch["next"]["observation"].nbytes
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    median = statistics.median(times)
    return {"ms": 1e3 * median, "steps_per_s": rows / median, "gb_per_s": size / median / 1e9}
