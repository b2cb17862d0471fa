"""Frames kept as PNG, decoded by a few threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from atarirb import threads
from atarirb.errors import LogError, MissingPackageError


def decode(pngs: Sequence[bytes], numbers: np.ndarray, out: np.ndarray, name: str) -> None:
    """Decode some PNGs, on a few threads.

    Args:
        pngs: The PNGs.
        numbers: int64[K], which.
        out: [K, *frame], of the shape and dtype that frames must have.
        name: What they are of, for messages.

    Raises:
        LogError: One is damaged, or another kind of frame.
    """
    decode_one = decoder()
    shape, dtype = out.shape[1:], out.dtype
    waiting = iter(range(len(numbers)))  # shared: each thread takes the next, with the GIL held

    def work(_: np.ndarray) -> None:
        for row in waiting:
            number = int(numbers[row])
            try:
                frame = decode_one(pngs[number])
            except (ValueError, RuntimeError) as error:
                raise LogError(
                    f"{name}: observation {number:,} is no PNG that can be read: {error}"
                ) from error
            if frame.shape != shape or frame.dtype != dtype:
                raise LogError(
                    f"{name}: observation {number:,} is {frame.dtype}{list(frame.shape)}, expected "
                    f"{dtype}{list(shape)}"
                )
            out[row] = frame

    threads.spread(work, out.nbytes)


def decoder() -> Callable[[bytes], np.ndarray]:
    """Return a function that decodes a PNG, without holding the GIL, and is strict about damage."""
    try:
        from imagecodecs import png_decode
    except ImportError as error:
        raise MissingPackageError.needed(
            "imagecodecs", purpose="reading RL Unplugged", extra="rlds"
        ) from error
    return png_decode
