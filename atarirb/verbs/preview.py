"""Preview: one episode as a picture, in a file; `atarirb.sheet` says what is in it."""

from __future__ import annotations

import os
import pathlib

from atarirb import home, sheet
from atarirb.errors import ArgumentError
from atarirb.store.dataset import Dataset


def preview(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    episode: int | None = None,
    start: int | None = None,
    frames: int = 60,
    every: int | None = None,
    gif: bool = False,
) -> pathlib.Path:
    """Draw an episode as a contact sheet (PNG), or as an animation.

    With neither `start` nor `every` a sheet shows the whole episode. If that has more steps than
    `frames`, its first and last ones are shown without a gap, the others evenly spaced.

    Args:
        path: The dataset's directory, or its name in the home (`atarirb.home`).
        out: The picture's file, or a directory for it; by default ``Pong-1-episode-0.png`` for
            episode 0 of ``"Pong/1"``, in the current directory.
        episode: Number of the episode; negative ones count from the end. None for the first that
            has both its beginning and its terminal.
        start: First step shown, counted in the episode; negative ones count from its end.
        frames: Frames shown, at the most.
        every: Show one step of so many, from `start` on.
        gif: Make an animated GIF of the steps from `start` on: 15 a second, with a rest at the end.

    Returns:
        The path written.

    Raises:
        StepIndexError: There is no such episode, or no such step in it.
        ArgumentError: `frames` or `every` is below 1, or the frames are too many for a picture, or
            of a shape that is none; the dataset has no episodes; `out` has another suffix than
            the picture, or its directory does not exist.
        DatasetNotFoundError: There is no dataset at `path`.
        MissingPackageError: pillow is not installed.
    """
    dataset = Dataset(home.locate(path))
    number = _episode(dataset, episode)
    target = _target(dataset, number, out, ".gif" if gif else ".png")
    options = {"start": start, "frames": frames, "every": every}
    if gif:
        return sheet.replace(target, sheet.animation(dataset, number, **options))
    picture = sheet.of_episode(dataset, dataset.episodes, number, **options)
    return sheet.replace(target, picture._repr_png_())


def _episode(dataset: Dataset, episode: int | None) -> int:
    episodes, name = dataset.episodes, dataset.manifest.name
    if not len(episodes):
        raise ArgumentError(f"{name} in {str(dataset.directory)!r} has no episodes: there is nothing to show")
    if episode is None:
        return sheet.first_whole(episodes)
    return sheet.within("episode", episode, len(episodes), name)


def _target(dataset: Dataset, number: int, out: str | os.PathLike[str] | None, suffix: str) -> pathlib.Path:
    target = pathlib.Path("" if out is None else out)
    if target.is_dir():
        target /= f"{dataset.manifest.name.replace('/', '-')}-episode-{number}{suffix}"
    if target.suffix.lower() != suffix:
        kind = "an animation" if suffix == ".gif" else "a sheet (gif=True makes an animation)"
        raise ArgumentError(f"out is {str(target)!r}, expected a name that ends in {suffix} for {kind}")
    if not target.parent.is_dir():
        raise ArgumentError(f"no directory {str(target.parent)!r} to put {target.name} in; make it first")
    return target
