"""How kernels are compiled: one place for the flags."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from numba import njit

_log = logging.getLogger(__name__)


def kernel(function: Callable) -> Callable:
    """Compile at the first call, without the GIL, and keep the code on disk where that is possible."""
    flags = functools.partial(njit, nogil=True, error_model="numpy")
    try:
        return flags(cache=True)(function)
    except RuntimeError as error:  # no directory of numba's cache can be written
        _log.info("kernels are not cached: %s", error)
        return flags(function)
