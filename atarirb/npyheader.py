"""The header of an ``.npy``: what is in it, read so that no damage of it leads astray.

A file is the magic, a version, the header's length (2 bytes in version 1.0, 4 in 2.0 and 3.0), a
Python dict as text, and the data, row by row in C order.
"""

from __future__ import annotations

import io
import math
import threading
from typing import Any

import numpy as np
from numpy.lib import format as npy

MAGIC = b"\x93NUMPY"
_MOST_BYTES = 1 << 16
#: NumPy reads the dict with Python's own parser, which up to 3.12 counts its depth for all threads in one
#: place: another that parses meanwhile can make it fail.
_parsing = threading.Lock()


def read_header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Read a header, and no further.

    Args:
        file: Open for reading at its beginning; what reading it raises is passed on.

    Returns:
        Shape and dtype of the array.

    Raises:
        ValueError: It is no header, or one of pickled objects, Fortran order or an impossible shape.
    """
    start = _read(file, 8)
    if len(start) < 8 or not start.startswith(MAGIC):
        raise ValueError(f"not an npy file: it begins with {start[:6]!r}")
    version = (start[6], start[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"npy of unknown version {version[0]}.{version[1]}")
    prefix = _read(file, 2 if version == (1, 0) else 4)
    length = int.from_bytes(prefix, "little")
    if length > _MOST_BYTES:
        raise ValueError(f"not an npy file: its header would have {length:,} bytes")
    text = _read(file, length)
    parse = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    try:
        with _parsing:
            shape, fortran, dtype = parse(io.BytesIO(prefix + text))
    except Exception as error:  # NumPy lets its parser's own errors out, of several kinds
        raise ValueError(f"its npy header is damaged: {error}") from error
    if dtype.hasobject:
        raise ValueError("holds pickled objects, which are never read")
    if fortran and len(shape) > 1:
        raise ValueError("stored in Fortran order, expected C order")
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize >= 2**63:
        raise ValueError(f"its npy header is damaged: shape {shape}")
    return shape, dtype


def _read(file: Any, count: int) -> bytes:
    """Read so many bytes, in as many reads as it takes; fewer at the file's end."""
    data = b""
    while len(data) < count and (more := file.read(count - len(data))):
        data += more
    return data
