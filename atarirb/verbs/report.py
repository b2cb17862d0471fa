"""Report: a dataset as a page, to be looked at in a browser."""

from __future__ import annotations

import operator
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from atarirb import home
from atarirb.arguments import positive
from atarirb.errors import ArgumentError, MissingPackageError, StepIndexError
from atarirb.reporting import pictures
from atarirb.reporting.page import page
from atarirb.sheet import replace
from atarirb.store.dataset import Dataset

#: Episodes that may be asked for, and frames of each.
_MOST_EPISODES, _MOST_FRAMES = 20, 600


def report(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    episodes: Sequence[int] = (),
    frames: int = 240,
) -> pathlib.Path:
    """Write a page about a dataset: one HTML file that holds all it shows, of 5 MB at the most.

    It has the facts, returns and lengths over time, actions and rewards counted over all steps, holes and
    cuts on a time line, some episodes frame by frame, and how observations are stacked. The columns are read
    once or twice, a bounded number of rows at a time; of the frames only those shown are read. The same
    dataset gives the same bytes.

    Args:
        path: The dataset's directory, or its name in the home (`atarirb.home`).
        out: The page's file, or a directory for it; by default ``Pong-1-report.html`` for ``"Pong/1"``, in
            the current directory. A file that is there is replaced.
        episodes: Numbers of episodes to show beside the best, the median and the last whole one; negative
            ones count from the end. Up to 20.
        frames: Frames shown of an episode, at the most; of longer ones every n-th step is. 2 to 600.
            There are fewer where the images would be too large for the page.

    Returns:
        The path written.

    Raises:
        StepIndexError: There is no such episode.
        ArgumentError: `frames` or `episodes` cannot be; `out` does not end in ``.html``, or its directory
            does not exist.
        DatasetNotFoundError: There is no dataset at `path`.
        DatasetError: A file of it is damaged.
        MissingPackageError: pillow is not installed, and the observations are pictures.
    """
    frames = positive("frames", frames, most=_MOST_FRAMES)
    if frames < 2:
        raise ArgumentError("frames is 1, expected 2 or more: the first and the last of an episode")
    dataset = Dataset(home.locate(path))
    numbers = _numbers(episodes, len(dataset.episodes), dataset.manifest.name)
    target = _target(dataset.manifest.name, out)
    if len(dataset.episodes) and pictures.is_picture(dataset.frames.shape, dataset.frames.dtype):
        try:
            import PIL.Image  # noqa: F401  its absence is told before anything is read
        except ImportError:
            raise MissingPackageError.needed("pillow", purpose="report", extra="preview") from None
    text = page(dataset, episodes=numbers, frames=frames)
    return replace(target, text.encode())


def _numbers(episodes: Any, count: int, name: str) -> list[int]:
    try:
        numbers = [operator.index(number) for number in episodes]
    except TypeError:
        raise ArgumentError(f"episodes is {episodes!r:.80}, expected integers") from None
    if len(numbers) > _MOST_EPISODES:
        raise ArgumentError(f"episodes are {len(numbers):,}, and a page shows {_MOST_EPISODES} at the most")
    for number in numbers:
        if not -count <= number < count:
            there = f"has episodes 0 to {count - 1:,}" if count else "has none"
            raise StepIndexError(f"episode {number:,} is out of range: {name} {there}")
    return list(dict.fromkeys(number % count for number in numbers))


def _target(name: str, out: str | os.PathLike[str] | None) -> pathlib.Path:
    target = pathlib.Path("" if out is None else out)
    if target.is_dir():
        target /= f"{name.replace('/', '-')}-report.html"
    if target.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"out is {str(target)!r}, expected a name that ends in .html")
    if not target.parent.is_dir():
        raise ArgumentError(f"no directory {str(target.parent)!r} to put {target.name} in; make it first")
    return target
