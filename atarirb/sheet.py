"""Contact sheets: frames as a picture, to see with one's own eyes what a dataset holds.

A contact sheet has frames in reading order, each with its step, reward and action beneath. What no
frame can show stands in the gutters between them::

    START       green          the episode's true beginning
    CUT         orange, torn   what came before, or after, is not in the dataset
    TERMINAL    red            the game was over
    TIME LIMIT  violet         the 27,000-step cap ended the episode
    ··· n ···   grey           n steps are left out; if some were rewarded, with the sum

Rewards above 0 are on yellow, those below on pink; a frame with one has an edge of that colour. A GIF
has the same cells, one after the other and twice as large.
"""

from __future__ import annotations

import io
import itertools
import operator
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atarirb import catalog, kernels
from atarirb.arguments import positive
from atarirb.batch import gather
from atarirb.errors import ArgumentError, MissingPackageError, StepIndexError
from atarirb.store.dataset import Dataset

if TYPE_CHECKING:
    from PIL import Image

_SIDE = 168  # pixels that a frame's longer side is scaled to, about
_COLUMNS, _WIDTH = 10, 2_000  # of a sheet, at the most
_MOST = 2_000  # frames; programs that show pictures refuse much larger ones
_GIF_MS, _GIF_REST_MS = (70, 70, 60), 1_000  # GIF counts hundredths of a second; the three make 15 a second

# All but the frames is in colours of 16 levels a channel, which leaves the frames most of a GIF's 256.
_PAPER, _INK, _FAINT = "#fff", "#222", "#888"
_GAIN, _LOSS = "#fd1", "#f8b"


class _Mark(NamedTuple):
    """What stands in a gutter, and what the heading says of it. `torn`: -1 on its left, 1 on its right."""

    label: str
    ground: str
    ink: str = _PAPER
    said: str = ""
    torn: int = 0
    bar: bool = True


_START = _Mark("START", "#194", said="begins at its start")
_CUT_HEAD = _Mark("CUT", "#e70", said="beginning cut off (step 0 is the first one known)", torn=-1)
_TERMINAL = _Mark("TERMINAL", "#c22", said="ends by a terminal")
_TIME_LIMIT = _Mark("TIME LIMIT", "#74c", said=f"ends by the time limit of {catalog.TIME_LIMIT:,} steps")
_TRUNCATED = _Mark("TRUNCATED", "#e70", said="broken off; what came next is known")
_CUT_TAIL = _Mark("CUT", "#e70", said="end cut off", torn=1)


class _Cell(NamedTuple):
    """A frame, uint8[H, W, 3], and what stands around it."""

    frame: np.ndarray
    step: int
    action: str
    reward: float
    before: _Mark | None
    after: _Mark | None


class Picture:
    """A contact sheet. A notebook shows it where it is the value of a cell. Made by `Reader.preview`.

    Attributes:
        image: The same, as Pillow's.
    """

    def __init__(self, image: Image.Image):
        self.image = image

    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Write it as a PNG, over what was there; return the path."""
        target = pathlib.Path(path)
        if target.suffix.lower() != ".png":
            raise ArgumentError(f"path is {str(target)!r}, expected a name that ends in .png")
        return replace(target, self._repr_png_())

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.image.save(data, "PNG")
        return data.getvalue()

    def __repr__(self) -> str:
        return f"<atarirb.Picture, {self.image.width} x {self.image.height}>"


def of_episode(
    dataset: Dataset,
    episodes: np.ndarray,
    number: int,
    *,
    start: int | None = None,
    frames: int = 60,
    every: int | None = None,
) -> Picture:
    """Draw an episode.

    Args:
        dataset: The dataset.
        episodes: EPISODE[E]: its own table, or of a part of it.
        number: Which of them.
        start: As for `atarirb.preview`, like what follows.
        frames: Frames shown, at the most.
        every: Show one step of so many.
    """
    frames, every = _counts(frames, every)
    look, row = _look(dataset, unit=1), episodes[number]
    length = int(row["length"])
    if start is None and every is None:
        steps = overview(length, frames, ends=look.columns)
    else:
        steps = _from(start, length, number, frames, every)
    return Picture(look.page(_cells(dataset, row, steps), _heading(dataset, number, row, len(steps))))


def animation(dataset: Dataset, number: int, *, start: int | None, frames: int, every: int | None) -> bytes:
    """Make an animated GIF of an episode; arguments are those of `of_episode`."""
    frames, every = _counts(frames, every)
    look, row = _look(dataset, unit=2), dataset.episodes[number]
    cells = _cells(dataset, row, _from(start, int(row["length"]), number, frames, every))
    # Median cut (0) without dither (0) keeps every colour of a picture that has 256 or fewer.
    pictures = [look.page([cell]).quantize(256, method=0, dither=0) for cell in cells]
    times = [*itertools.islice(itertools.cycle(_GIF_MS), len(cells) - 1), _GIF_REST_MS]
    data = io.BytesIO()
    pictures[0].save(data, "GIF", save_all=True, append_images=pictures[1:], duration=times, loop=0)
    return data.getvalue()


def of_steps(dataset: Dataset, episodes: np.ndarray, index: np.ndarray, *, frames: int = 60) -> Picture:
    """Draw steps of a dataset, int64[B], in their order; of more than `frames` the first ones."""
    frames, _ = _counts(frames, None)
    if not len(index):
        raise ArgumentError("steps has none; expected one or more to show")
    look, shown = _look(dataset, unit=1), index[:frames]
    rows = episodes[np.searchsorted(episodes["start"], shown, side="right") - 1]
    rewards = gather(dataset, "reward", shown).astype(np.float64).tolist()
    names = _action_names(dataset, shown)
    pixels = as_pictures(_frames(dataset, shown))
    cells: list[_Cell] = []
    for place, (step, row) in enumerate(zip(shown.tolist(), rows, strict=True)):
        head, tail = _edges(row)
        before = head if step == row["start"] else None
        if place % look.columns and cells[-1].after:  # which stands in the same gutter
            before = None
        after = tail if step == row["start"] + row["length"] - 1 else None
        cells.append(_Cell(pixels[place], step, names[place], rewards[place], before, after))
    left_out = "" if len(shown) == len(index) else f", the first of {len(index):,}"
    heading = (
        f"{dataset.manifest.name}, {len(shown):,} steps",
        f"in the order asked for{left_out}",
        "each with its number in the dataset, reward and action",
    )
    return Picture(look.page(cells, heading))


def first_whole(episodes: np.ndarray, chosen: np.ndarray | None = None) -> int:
    """Find the first episode that has both its beginning and its terminal; the first one if none has.

    Args:
        episodes: EPISODE[E], one or more.
        chosen: bool[E], those that are asked of, one or more; None for all.
    """
    there = np.ones(len(episodes), np.bool_) if chosen is None else chosen
    fit = episodes["terminal"] & ~episodes["head_cut"] & there
    return int(np.argmax(fit if fit.any() else there))


def replace(target: pathlib.Path, data: bytes) -> pathlib.Path:
    """Write a file that is whole, or what was there before; return its path."""
    temporary = target.with_name(f".{target.name}.partial")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def overview(length: int, frames: int, *, ends: int) -> np.ndarray:
    """Choose the steps that show an episode, int64[min(length, frames)]: all, or its ends and some between.

    An end is `ends` steps, or fewer where the two would be more than half of all. The gaps between
    them differ by one step at the most.
    """
    if length <= frames:
        return np.arange(length)
    head, tail = min(ends, (frames + 3) // 4), min(ends, (frames + 2) // 4)
    count, inside = frames - head - tail, length - head - tail
    between = head - 1 + np.arange(1, count + 1) * (inside + 1) // (count + 1)
    return np.concatenate([np.arange(head), between, np.arange(length - tail, length)])


def as_pictures(frames: np.ndarray) -> np.ndarray:
    """Turn frames [B, H, W], [B, H, W, 1] or [B, H, W, 3] of any dtype into uint8[B, H, W, 3].

    Other dtypes than uint8 are scaled: the least finite value of all to 0, the greatest to 255.
    """
    if frames.dtype != np.uint8:
        values = np.nan_to_num(frames.astype(np.float64), nan=np.nan, posinf=np.nan, neginf=np.nan)
        low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
        unit = (values - low) / ((high - low) or 1)
        frames = np.rint(255 * np.nan_to_num(unit)).astype(np.uint8)
    return np.broadcast_to(frames.reshape(*frames.shape[:3], -1), (*frames.shape[:3], 3))


def within(what: str, value: Any, count: int, whole: str) -> int:
    """Check the number of one of `count` things; negative ones count from the end."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{what} is {value!r}, expected an integer") from None
    if not -count <= number < count:
        raise StepIndexError(f"{what} {number:,} is out of range: {whole} has {what}s 0 to {count - 1:,}")
    return number % count


def _picture_shape(dataset: Dataset) -> tuple[int, int]:
    shape, dtype = dataset.frames.shape, dataset.frames.dtype
    if len(shape) not in (2, 3) or shape[2:] not in ((), (1,), (3,)) or dtype.kind not in "buif":
        raise ArgumentError(
            f"frames of {dataset.manifest.name} are {dtype}{list(shape)}; a preview shows numbers "
            f"of shape [H, W], [H, W, 1] or [H, W, 3]"
        )
    return shape[0], shape[1]


def _counts(frames: int, every: int | None) -> tuple[int, int | None]:
    """Check how many frames are wanted, and that there is what draws them."""
    frames, every = positive("frames", frames), every if every is None else positive("every", every)
    try:
        import PIL.ImageFont  # noqa: F401  its absence is told before anything is read
    except ImportError:
        raise MissingPackageError.needed("pillow", purpose="preview", extra="preview") from None
    return frames, every


def _look(dataset: Dataset, *, unit: int) -> _Look:
    return _Look(_picture_shape(dataset), unit=unit)


def _from(start: int | None, length: int, number: int, frames: int, every: int | None) -> np.ndarray:
    """List the steps from one on."""
    first = 0 if start is None else within("step", start, length, f"episode {number}")
    return np.arange(first, length, every or 1)[:frames]


def _edges(row: np.void) -> tuple[_Mark, _Mark]:
    head = _CUT_HEAD if row["head_cut"] else _START
    if row["time_limit"]:
        return head, _TIME_LIMIT
    if row["terminal"]:
        return head, _TERMINAL
    return head, _TRUNCATED if row["final"] >= 0 else _CUT_TAIL


def _cells(dataset: Dataset, row: np.void, steps: np.ndarray) -> list[_Cell]:
    """Gather steps of an episode, and work out what stands between them."""
    index = row["start"] + steps
    frames = _frames(dataset, index)
    rewards = gather(dataset, "reward", row["start"] + np.arange(row["length"])).astype(np.float64)
    borders = itertools.pairwise([-1, *steps.tolist(), int(row["length"])])
    marks = [_gap(rewards[last + 1 : step]) for last, step in borders]
    head, tail = _edges(row)
    marks[0], marks[-1] = marks[0] or head, marks[-1] or tail
    actions = _action_names(dataset, index)
    after = [None] * (len(steps) - 1) + marks[-1:]
    columns = zip(as_pictures(frames), steps, actions, rewards[steps], marks[:-1], after, strict=True)
    return [_Cell(*values) for values in columns]


def _frames(dataset: Dataset, index: np.ndarray) -> np.ndarray:
    if len(index) > _MOST:
        raise ArgumentError(f"frames is {len(index):,}, and a picture holds {_MOST:,} at the most")
    frames = np.empty((len(index), *dataset.frames.shape), dataset.frames.dtype)
    dataset.frames.frames(kernels.ticket(), index, frames)
    return frames


def _action_names(dataset: Dataset, index: np.ndarray) -> list[str]:
    """Name the actions of steps."""
    names = catalog.action_names(dataset.manifest.name)
    return [
        f"{action} {names[action]}" if 0 <= action < len(names) else str(action)
        for action in gather(dataset, "action", index).tolist()
    ]


def _gap(rewards: np.ndarray) -> _Mark | None:
    """Make the mark for steps left out."""
    if not len(rewards):
        return None
    total = f" ({_signed(rewards.sum())})" if rewards.any() else ""
    return _Mark(f"··· {len(rewards):,}{total} ···", *_colours(rewards.sum()), bar=False)


def _heading(dataset: Dataset, number: int, row: np.void, shown: int) -> tuple[str, str, str]:
    length, first = int(row["length"]), int(row["start"])
    clipped = " of clipped rewards" if dataset.manifest.rewards_clipped else ""
    left_out = "" if shown == length else "; ··· n ··· for n left out, with the sum of rewards among them"
    return (
        f"{dataset.manifest.name}, episode {number:,}",
        f"{length:,} steps, {first:,} to {first + length - 1:,} of the dataset  |  "
        f"{', '.join(mark.said for mark in _edges(row))}  |  return {_number(row['return'])}{clipped}",
        f"{shown:,} of {length:,} steps shown, each with its number, reward and action{left_out}",
    )


def _number(value: float) -> str:
    plain = float(value).is_integer() or abs(value) >= 1000
    return f"{value:,.0f}" if plain else f"{value:,.4g}"


def _signed(reward: float) -> str:
    return f"+{_number(reward)}" if reward > 0 else _number(reward)


def _colours(reward: float) -> tuple[str, str]:
    return (_GAIN, _INK) if reward > 0 else (_LOSS, _INK) if reward < 0 else (_PAPER, _FAINT)


class _Look:
    """How cells look; a cell is a gutter, then a frame with a caption beneath. `unit` is 1 on a sheet."""

    def __init__(self, shape: tuple[int, int], *, unit: int):
        from PIL import ImageFont

        self.unit = unit
        self.scale = max(1, round(unit * _SIDE / max(shape)))
        # Room for the longest mark and the longest action, however small the frame is.
        self.height = max(self.scale * shape[0], 120 * unit)
        self.width = max(self.scale * shape[1], 160 * unit)
        self.gutter = 32 * unit
        self.pitch = self.gutter + self.width
        self.columns = max(1, min(_COLUMNS, _WIDTH // self.pitch))
        self.title, self.text, self.small = (ImageFont.load_default(size * unit) for size in (24, 15, 14))

    def page(self, cells: Sequence[_Cell], heading: Sequence[str] = ()) -> Image.Image:
        """Draw cells in rows, under a heading of a title and two lines."""
        from PIL import Image, ImageDraw, ImageOps

        unit, margin, line = self.unit, 8 * self.unit, 24 * self.unit
        columns, height = min(self.columns, len(cells)), self.height + 60 * unit
        lines = list(zip(heading, (self.title, self.text, self.text), (_INK, _INK, _FAINT), strict=False))
        top = margin + (len(lines) * line + 16 * unit if lines else 0)
        width = max([columns * self.pitch, *(int(font.getlength(text)) for text, font, _ in lines)])
        size = (width + self.gutter + 2 * margin, top + -(-len(cells) // columns) * height)
        image = Image.new("RGB", size, _PAPER)
        for place, (text, font, ink) in enumerate(lines, 1):
            ImageDraw.Draw(image).text((margin + self.gutter, margin + place * line), text, ink, font, "ls")
        places = [divmod(place, columns) for place in range(len(cells))]
        corners = [(margin + column * self.pitch, top + row * height) for row, column in places]
        for cell, (x, y) in zip(cells, corners, strict=True):
            self._surround(image, cell, x, y)
        image = image.point(lambda level: round(level / 17) * 17)
        for cell, (x, y) in zip(cells, corners, strict=True):
            frame = Image.fromarray(cell.frame.repeat(self.scale, 0).repeat(self.scale, 1))
            frame = ImageOps.expand(frame, 3 * unit, _colours(cell.reward)[0])
            self._paste(image, frame, x + self.gutter, y, self.width)
        return image

    def _surround(self, image: Image.Image, cell: _Cell, x: int, y: int) -> None:
        """Draw what is around a frame: the gutter begins at `x`, the frame at `y`."""
        from PIL import Image, ImageDraw

        unit, caption = self.unit, y + self.height + 6 * self.unit
        text = f"step {cell.step:,}\n{cell.action}"
        ImageDraw.Draw(image).text((x + self.gutter, caption), text, _INK, self.text, spacing=5 * unit)
        reward = self._label(_signed(cell.reward), *_colours(cell.reward))
        image.paste(reward, (x + self.pitch - reward.width, caption - 2 * unit))
        for mark, left in ((cell.before, x), (cell.after, x + self.pitch)):
            if mark is None:
                continue
            lying = self._label(mark.label, mark.ground, mark.ink, self.height if mark.bar else 0)
            if mark.torn:
                edge, tooth = (-1, 4 * unit) if mark.torn < 0 else (lying.height, -4 * unit)
                zigzag = [(place * 4 * unit, edge + place % 2 * tooth) for place in range(lying.width | 1)]
                ImageDraw.Draw(lying).polygon(zigzag, _PAPER)
            self._paste(image, lying.transpose(Image.Transpose.ROTATE_90), left, y, self.gutter)

    def _label(self, text: str, ground: str, ink: str, width: int = 0) -> Image.Image:
        from PIL import Image, ImageDraw

        width = width or int(self.small.getlength(text)) + 10 * self.unit
        image = Image.new("RGB", (width, 24 * self.unit), ground)
        ImageDraw.Draw(image).text((width // 2, 12 * self.unit), text, ink, self.small, "mm")
        return image

    def _paste(self, image: Image.Image, part: Image.Image, x: int, y: int, width: int) -> None:
        """Paste into the middle of the field at (x, y), of a width and the height of frames."""
        image.paste(part, (x + (width - part.width) // 2, y + (self.height - part.height) // 2))
