"""Env: what atarirb runs on here; the first thing a report of a fault should hold."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import atarirb
from atarirb import home, kernels, threads
from atarirb.store.packed import libzstd

_PACKAGES = ("numpy", "numba", "jax", "fsspec", "gcsfs", "zlib-ng", "zstandard", "tqdm", "pillow", "ale-py")
_VARIABLES = (
    "ATARIRB_HOME", "ATARIRB_NUMBA", "ATARIRB_SOURCE", "ATARIRB_THREADS", "ATARIRB_ZSTD", "NUMBA_CACHE_DIR"
)  # fmt: skip


def env() -> dict[str, str]:
    """Return the versions, kernels and threads in use, by name. Imports no accelerator library."""
    found = {
        "atarirb": atarirb.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["cores"] = str(threads.cores())
    found["threads"] = str(threads.count())
    found["kernels"] = kernels.active().__name__.rpartition(".")[2]
    library = libzstd.library() if kernels.compiles() else None
    found["packed frames"] = f"decoded by {library.path if library else 'the zstandard package'}"
    found["home"] = str(home.home())
    for variable in _VARIABLES:
        if variable in os.environ:
            found[variable] = os.environ[variable]
    return found
