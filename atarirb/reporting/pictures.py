"""Frames as images that are part of the page, of a bounded size.

Images are lossless WebP, or PNG where Pillow was built without WebP.
"""

from __future__ import annotations

import base64
import dataclasses
import io

import numpy as np

from atarirb import kernels
from atarirb.batch import gather
from atarirb.store.dataset import Dataset

#: Longest sides of frames, in pixels; larger ones are made smaller by whole factors.
_LONGEST_SHOWN, _LONGEST_STACKED = 256, 128
#: Of frames gathered at a time.
_BYTES = 8 << 20
_COLUMNS = 16


def is_picture(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Tell whether frames can be shown as they are: 8-bit grey levels or colours."""
    return dtype == np.uint8 and len(shape) in (2, 3) and shape[2:] in ((), (1,), (3,)) and 0 not in shape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sheet:
    """Frames of an episode in reading order, as one image.

    Attributes:
        steps: int64[K], steps shown, counted in the episode; its length stands for the final frame.
        every: One step of so many is shown, and the last one.
        image: The image, as a ``data:`` URI.
        columns: Frames in a row.
        size: Width and height of a frame in it.
        factor: How many times as large the dataset's are.
        reward: float64[K], the sum of the rewards since the frame shown before.
        total: float64[K], the sum of the rewards up to there.
        action: int64[K], the actions chosen on seeing the frames; -1 at the final one.
    """

    steps: np.ndarray
    every: int
    image: str
    columns: int
    size: tuple[int, int]
    factor: int
    reward: np.ndarray
    total: np.ndarray
    action: np.ndarray


def sheet(dataset: Dataset, row: np.void, *, frames: int, most_bytes: int) -> Sheet:
    """Make the sheet of an episode.

    Args:
        dataset: Its dataset, with frames that are pictures.
        row: The episode, of EPISODE.
        frames: Frames shown, at the most, 2 or more; one more if the final frame is known.
        most_bytes: Of the image; where it would be larger, fewer frames are shown, and then smaller ones.
    """
    length, longest = int(row["length"]), _LONGEST_SHOWN
    while True:
        steps, every = spaced(length, frames)
        numbers = row["start"] + steps
        if row["final"] >= 0:
            steps, numbers = np.append(steps, length), np.append(numbers, row["final"])
        pixels, factor = _frames(dataset, numbers, longest)
        image = encoded(_tiled(pixels))
        if len(image) <= most_bytes or longest == 1:
            break
        if min(frames, length) > 2:
            frames = max(2, min(frames, length) // 2)
        else:
            longest = max(1, min(longest, max(dataset.frames.shape[:2])) // 2)
    index = row["start"] + np.arange(length)
    rewards = np.append(gather(dataset, "reward", index).astype(np.float64), 0.0)
    total = np.cumsum(rewards)[steps]
    inside = np.where(steps < length, row["start"] + steps, -1)
    action = np.where(inside < 0, -1, gather(dataset, "action", inside))
    return Sheet(
        steps=steps,
        every=every,
        image=uri(image),
        columns=min(_COLUMNS, len(steps)),
        size=(pixels.shape[2], pixels.shape[1]),
        factor=factor,
        reward=np.add.reduceat(rewards, np.append(0, steps[:-1] + 1)),
        total=total,
        action=action,
    )


def spaced(length: int, most: int) -> tuple[np.ndarray, int]:
    """Choose steps of an episode: every n-th and the last one, `most` (2 or more) of them at the most.

    Returns:
        int64[K], the steps, and n.
    """
    every = max(1, -(-(length - 1) // (most - 1)))
    return np.unique(np.append(np.arange(0, length, every), length - 1)), every


def stills(frames: np.ndarray) -> list[str]:
    """Make an image of each frame, uint8[B, H, W], [B, H, W, 1] or [B, H, W, 3], as ``data:`` URIs."""
    pixels = _smaller(frames, max(1, -(-max(frames.shape[1:3]) // _LONGEST_STACKED)))
    return [uri(encoded(each)) for each in pixels]


def encoded(pixels: np.ndarray) -> bytes:
    """Write pixels, uint8[H, W] or [H, W, 3], as a file of an image."""
    from PIL import Image, features

    data = io.BytesIO()
    if features.check("webp"):
        Image.fromarray(pixels).convert("RGB").save(data, "WEBP", lossless=True, quality=60, method=4)
    else:
        Image.fromarray(pixels).save(data, "PNG", optimize=True)
    return data.getvalue()


def uri(image: bytes) -> str:
    """Write an image's file as a ``data:`` URI."""
    kind = "webp" if image[:4] == b"RIFF" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _frames(dataset: Dataset, numbers: np.ndarray, longest: int) -> tuple[np.ndarray, int]:
    """Gather frames, a bounded number of bytes at a time, as [B, H, W] or [B, H, W, 3], made smaller."""
    shape = dataset.frames.shape
    factor = max(1, -(-max(shape[:2]) // longest))
    step = max(1, _BYTES // max(1, int(np.prod(shape))))
    parts = []
    for first in range(0, len(numbers), step):
        some = numbers[first : first + step]
        frames = np.empty((len(some), *shape), dataset.frames.dtype)
        dataset.frames.frames(kernels.ticket(), some, frames)
        parts.append(_smaller(frames, factor))
    return np.concatenate(parts), factor


def _smaller(frames: np.ndarray, factor: int) -> np.ndarray:
    """Take the mean of squares of pixels; drop the axis of a single colour."""
    from PIL import Image

    frames = frames[..., 0] if frames.shape[3:] == (1,) else frames
    if factor == 1:
        return frames
    return np.stack([np.asarray(Image.fromarray(each).reduce(factor)) for each in frames])


def _tiled(pixels: np.ndarray) -> np.ndarray:
    """Put frames into rows of `_COLUMNS`, or fewer; what is left of the last row is black."""
    count, height, width, *colours = pixels.shape
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    sheet = np.zeros((rows, columns, height, width, *colours), np.uint8)
    sheet.reshape(-1, height, width, *colours)[:count] = pixels
    return sheet.swapaxes(1, 2).reshape(rows * height, columns * width, *colours)
