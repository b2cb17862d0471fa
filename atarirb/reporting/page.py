"""The page of a report: HTML with all that it shows in it, and nothing that is fetched.

Its policy forbids a browser any request. All but the player of episodes works without script; without it,
the frames are shown as contact sheets.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

import atarirb
from atarirb import catalog
from atarirb.info import describe, facts
from atarirb.markup import Markup, element, join, number, table
from atarirb.reporting import charts, counts, pictures, summary, timeline
from atarirb.reporting.counts import Counts
from atarirb.store.building import RECORDING
from atarirb.store.dataset import Dataset

#: Bytes that the images of all episodes have together, before they are written as text.
_IMAGE_BYTES = 2_000_000
_MOST_ROWS = 500
_STACK = 4
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(dataset: Dataset, *, episodes: Sequence[int], frames: int) -> str:
    """Make the page.

    Args:
        dataset: The dataset.
        episodes: Numbers of episodes to show beside the best, the median and the last.
        frames: Frames shown of an episode, at the most.
    """
    sections = {
        "facts": ("Facts", _facts(dataset)),
        "episodes": ("Returns and lengths", _episodes(dataset)),
        "actions": ("Actions", _actions(dataset)),
        "rewards": ("Rewards", _rewards(dataset)),
        "timeline": ("Gaps and cuts", _timeline(dataset)),
        "players": ("Episodes, frame by frame", _players(dataset, episodes, frames)),
        "stacks": ("What an observation is", _stacks(dataset)),
    }
    links = [element("li", element("a", title, href=f"#{key}")) for key, (title, _) in sections.items()]
    files = resources.files("atarirb.reporting")
    name = dataset.manifest.name
    # Markup, not text: a style sheet and a script are not to be escaped, and hold nothing of the dataset's.
    style, script = (Markup(files.joinpath(file).read_text("utf-8")) for file in ("page.css", "player.js"))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{name}: a report"),
        element("style", style),
    )
    body = element(
        "body",
        element(
            "header",
            element("h1", name),
            element(
                "p",
                f"{dataset.manifest.steps:,} steps in {len(dataset.episodes):,} episodes. Made by atarirb "
                f"{atarirb.__version__}.",
            ),
            element("nav", element("ul", *links), aria_label="Sections"),
        ),
        element(
            "main",
            *(
                element("section", element("h2", title), *content, id=key)
                for key, (title, content) in sections.items()
            ),
        ),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _facts(dataset: Dataset) -> list[Markup]:
    manifest = dataset.manifest
    rows = {"name": manifest.name, "layout of the source": manifest.layout}
    rows |= facts(describe(dataset.directory, manifest, dataset.episodes))
    if manifest.extra:
        rows["extra columns"] = ", ".join(
            f"{name} ({np.dtype(column.dtype)}{list(column.shape) if column.shape else ''})"
            for name, column in manifest.extra.items()
        )
    finals = manifest.frames - manifest.steps
    rows["final frames"] = f"{finals:,}: frames after an episode's last action" if finals else "none"
    rows |= _recorded(dataset.directory)
    return [table(rows.items(), class_="facts")]


def _recorded(directory: pathlib.Path) -> dict[str, str]:
    """Say what the recorder noted of a dataset that it made here."""
    try:
        note = json.loads((directory / RECORDING / "recording.json").read_bytes())["note"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if not isinstance(note, dict) or not note:
        return {}
    return {"recorded with": ", ".join(f"{name}: {value}" for name, value in note.items())}


# Returns and lengths.


def _episodes(dataset: Dataset) -> list[Markup]:
    episodes, manifest = dataset.episodes, dataset.manifest
    if not len(episodes):
        return [_paragraph("There are no episodes.")]
    of_whole = {
        name: np.concatenate([rows[name][summary.whole(rows)] for _, rows in summary.chunks(episodes)])
        for name in summary.FIGURES
    }
    count = len(of_whole["length"])
    rewards = "clipped rewards, so it is not the game's score" if manifest.rewards_clipped else "rewards"
    parts = [
        _paragraph(
            f"Of {len(episodes):,} episodes {count:,} are whole: known from their beginning to a terminal or "
            f"the time limit. A return is an undiscounted sum of {rewards}; a step is an action of the agent, "
            f"and an episode stands at its first step."
        )
    ]
    if count:
        rows = [(name, *map(number, _five(values))) for name, values in of_whole.items()]
        head = ("", "least", "lower quartile", "median", "upper quartile", "greatest", "mean")
        parts.append(
            _scrolled(table(rows, head=head, caption="Whole episodes", class_="figures"), "Whole episodes")
        )
    few = len(episodes) <= summary.MOST_DOTS
    by = {"step": manifest.steps, "episode": len(episodes)}
    binned = {} if few else {axis: summary.bins(episodes, manifest.steps, axis) for axis in by}
    if few:
        key = [_key("dots", "a whole episode")]
        if count < len(episodes):
            key.append(_key("crosses", "one that is cut or truncated: what is known of it"))
    else:
        key = [_key("median", "median"), _key("band", "lower to upper quartile")]
        parts.append(
            _paragraph(
                f"There are more than {summary.MOST_DOTS:,} episodes, so they are binned: each axis into "
                f"{summary.BINS} parts of equal width, and of the whole episodes in each part the quartiles "
                f"are drawn. The other {len(episodes) - count:,} episodes are left out."
            )
        )
    if len(key) > 1:
        parts.append(element("p", *key, class_="key"))
    drawn = [
        _over_time(episodes, of_whole[name], name, axis, end, binned.get(axis))
        for name in summary.FIGURES
        for axis, end in by.items()
    ]
    parts.append(element("div", *drawn, class_="charts"))
    if few:
        parts.append(_details("Every episode as a row", _episode_rows(episodes)))
    else:
        parts += [_details(f"The bins by {axis} as rows", _bin_rows(found)) for axis, found in binned.items()]
    return parts


def _five(values: np.ndarray) -> list[float]:
    return [*np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist(), float(values.mean())]


def _over_time(
    episodes: np.ndarray,
    of_whole: np.ndarray,
    name: str,
    by: str,
    end: int,
    binned: list[summary.Bin] | None,
) -> Markup:
    """Draw returns or lengths by step or by episode."""
    across = charts.Axis.over("first step of the episode" if by == "step" else "episode", 0, end, whole=True)
    said = f"Of the whole ones: {charts.spread(of_whole)}." if len(of_whole) else "No episode is whole."
    up = "return" if name == "return" else "length, steps"
    if binned is None:
        values = np.array(episodes[name])
        places = episodes["start"] if by == "step" else np.arange(len(episodes))
        full = summary.whole(episodes)
    else:
        values = np.array([value for each in binned for value in each.quartiles.get(name, ())])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    low = min(low, 0.0) if name == "length" else low
    frame = charts.Frame(x=across, y=charts.Axis.over(up, low, high, whole=name == "length"))
    if binned is None:
        here = np.isfinite(values)
        marks = [
            charts.crosses(frame, places[here & ~full], values[here & ~full]),
            charts.dots(frame, places[here & full], values[here & full]),
        ]
    else:
        marks = charts.band(frame, binned, name)
    title = f"{name.capitalize()} by {by}"
    return element("figure", element("figcaption", title), frame.draw(*marks, title=title, description=said))


def _episode_rows(episodes: np.ndarray) -> Markup:
    rows = [
        (
            f"{place:,}",
            f"{row['start']:,}",
            f"{row['length']:,}",
            number(row["return"]),
            "cut" if row["head_cut"] else "whole",
            _end(row),
        )
        for place, row in enumerate(episodes)
    ]
    head = ("episode", "first step", "length", "return", "beginning", "end")
    return _scrolled(table(rows, head=head, class_="figures"), "Episodes")


def _bin_rows(bins: Sequence[summary.Bin]) -> Markup:
    head = ["from", "to before", "whole episodes"]
    head += [f"{name}, {which}" for name in summary.FIGURES for which in ("lower", "median", "upper")]
    rows = [
        (
            f"{each.low:,}",
            f"{each.high:,}",
            f"{each.whole:,}",
            *(
                number(value)
                for name in summary.FIGURES
                for value in each.quartiles.get(name, (float("nan"),) * 3)
            ),
        )
        for each in bins
    ]
    return _scrolled(table(rows, head=head, class_="figures"), "Bins")


# Actions and rewards.


def _actions(dataset: Dataset) -> list[Markup]:
    names = catalog.action_names(dataset.manifest.name)
    found = counts.count(dataset.columns["action"])
    if found.values is None:
        return [_paragraph("There are too many actions to name."), *_histogram("action", found)]
    seen = dict(zip(found.values.tolist(), found.counts.tolist(), strict=True))
    if not seen:
        return [_paragraph("There are no steps.")]
    rows = sorted({*seen, *range(len(names))})
    total, most = sum(seen.values()), max(seen.values())
    said = "Of each action, how many steps have it, over all steps."
    if not names:
        said += " The game is not in the catalog, so its actions have no names."
    lines = []
    for action in rows[:_MOST_ROWS]:
        count = seen.get(action, 0)
        none = f"none of the game's {len(names)}" if names else ""
        name = names[action] if 0 <= action < len(names) else none
        lines.append((f"{action}", name, charts.bar(count / most), f"{count:,}", _share(count, total)))
    return [
        _paragraph(said),
        *_left_out(len(rows), "actions"),
        table(lines, head=("action", "name", "", "steps", "share"), class_="bars"),
    ]


def _rewards(dataset: Dataset) -> list[Markup]:
    manifest = dataset.manifest
    parts = []
    for name in ("reward", "reward_unclipped"):
        if name == "reward_unclipped" and (
            name not in manifest.extra
            or dataset.described[name][0]
            or dataset.described[name][1].kind not in "iuf"
        ):
            continue
        if name == "reward":
            said = "The rewards that batches have" + (
                ", clipped to -1, 0 or 1 by the agent that collected them."
                if manifest.rewards_clipped
                else "."
            )
        else:
            said = "The extra column reward_unclipped: the rewards as the game scored them."
        parts += [_paragraph(said), *_histogram(name, counts.count(dataset.columns[name]))]
    return parts


def _histogram(name: str, found: Counts) -> list[Markup]:
    """Show how often values occur, over all steps."""
    total = int(found.counts.sum()) + found.odd
    if not total:
        return [_paragraph("There are no steps.")]
    if found.values is None:
        most = int(found.counts.max())
        lines = [
            (
                f"{number(low)} to {number(high)}",
                charts.bar(count / most),
                f"{count:,}",
                _share(count, total),
            )
            for low, high, count in zip(found.edges, found.edges[1:], found.counts.tolist(), strict=False)
        ]
        said = (
            f"There are more than {counts.MOST_VALUES:,} values, so they are binned, into {len(lines)} bins."
        )
        if found.odd:
            said += f" {found.odd:,} are not finite, and are in none."
        return [_paragraph(said), table(lines, head=(name, "", "steps", "share"), class_="bars")]
    seen = list(zip(found.values.tolist(), found.counts.tolist(), strict=True))
    most = max((count for value, count in seen if value), default=0)
    lines = [
        (
            number(value) if np.isfinite(value) else str(value),
            charts.bar(count / most) if value and most else "",
            f"{count:,}",
            _share(count, total),
        )
        for value, count in seen[:_MOST_ROWS]
    ]
    zeros = sum(count for value, count in seen if not value)
    said = [_paragraph("Bars are of those other than 0.")] if zeros and most else []
    return [
        *said,
        *_left_out(len(seen), "values"),
        table(lines, head=(name, "", "steps", "share"), class_="bars"),
    ]


def _share(count: int, total: int) -> str:
    part = 100 * count / total
    return f"{part:.2f} %" if part >= 0.01 or not count else "< 0.01 %"


def _left_out(rows: int, what: str) -> list[Markup]:
    if rows <= _MOST_ROWS:
        return []
    return [_paragraph(f"The first {_MOST_ROWS:,} of {rows:,} {what} are listed.")]


# Gaps and cuts.


def _timeline(dataset: Dataset) -> list[Markup]:
    manifest = dataset.manifest
    if not manifest.steps:
        return [_paragraph("There are no steps.")]
    marked = timeline.marks(dataset.episodes)
    holes = timeline.holes(manifest)
    said = ", ".join(f"{kind}: {count:,}" for kind, (count, _) in marked.items())
    parts = [
        _paragraph(
            f"Splits: {len(manifest.shards):,}. Holes between them: {len(holes):,}. Episodes by kind: {said}."
        ),
        timeline.draw(manifest, marked),
    ]
    if holes:
        key = [
            _key("shard0", "a split of the source files"),
            _key("hole", "a hole: steps that are in no file"),
        ]
        parts.append(element("p", *key, class_="key"))
        rows = [
            (
                f"between splits {hole.before:,} and {hole.after:,}",
                f"{hole.first:,}",
                f"{hole.stop:,}",
                f"{hole.stop - hole.first:,}",
            )
            for hole in holes[:_MOST_ROWS]
        ]
        head = ("hole", "first row missing", "first row after it", "rows missing")
        parts += _left_out(len(holes), "holes")
        parts.append(_scrolled(table(rows, head=head, class_="figures"), "Holes"))
    rows = [
        (
            f"{shard.split:,}",
            f"{first:,}",
            f"{shard.steps:,}",
            {"start": "begins an episode", "continues": "continues the split before"}.get(
                shard.head, "is cut off"
            ),
            f"{shard.bytes:,}",
        )
        for first, shard in zip(dataset.offsets.tolist(), manifest.shards[:_MOST_ROWS], strict=False)
    ]
    shards = _scrolled(
        table(rows, head=("split", "first step", "steps", "its first step", "bytes"), class_="figures"),
        "Splits",
    )
    parts.append(_details("The splits as rows", *_left_out(len(manifest.shards), "splits"), shards))
    return parts


# Episodes, frame by frame.


def _no_pictures(dataset: Dataset) -> list[Markup]:
    shape = " x ".join(map(str, dataset.frames.shape)) or "a single number"
    return [
        _paragraph(
            f"Observations are {dataset.frames.dtype}, {shape}, which are no pictures: 8-bit grey levels or "
            f"colours are. So none are shown."
        )
    ]


def _players(dataset: Dataset, more: Sequence[int], frames: int) -> list[Markup]:
    if not len(dataset.episodes):
        return [_paragraph("There are no episodes.")]
    if not pictures.is_picture(dataset.frames.shape, dataset.frames.dtype):
        return _no_pictures(dataset)
    chosen = summary.chosen(dataset.episodes, more)
    none = (
        ""
        if any(summary.whole(rows).any() for _, rows in summary.chunks(dataset.episodes))
        else (" No episode is whole, so these are chosen among all, by the rewards that are known.")
    )
    share = _IMAGE_BYTES // len(chosen)
    return [
        _paragraph(
            f"The best, the median and the last episode by return, and those that were asked for.{none}"
        ),
        *(_player(dataset, place, why, frames, share) for place, why in chosen.items()),
    ]


def _player(dataset: Dataset, place: int, why: str, frames: int, most_bytes: int) -> Markup:
    row = dataset.episodes[place]
    length, first = int(row["length"]), int(row["start"])
    sheet = pictures.sheet(dataset, row, frames=frames, most_bytes=most_bytes)
    count, final = len(sheet.steps), int(row["final"]) >= 0
    shown = "every step" if sheet.every == 1 else f"every {_ordinal(sheet.every)} step, and the last one"
    if final:
        shown += ", and the frame after the last action"
    smaller = f" Frames are shown at 1/{sheet.factor} of their size." if sheet.factor > 1 else ""
    width, height = sheet.size
    scale = max(1, 336 // max(width, height))
    rows = -(-count // sheet.columns)
    beginning = "beginning cut off" if row["head_cut"] else "begins at its start"
    known = "return" if summary.whole(row) else "rewards that are known"
    names = catalog.action_names(dataset.manifest.name)
    actions = sheet.action.tolist()
    marks = ["" for _ in actions]
    marks[0] = "beginning cut off" if row["head_cut"] else "start of the episode"
    tail = len(marks) - 1
    marks[tail] = f"{marks[0]}; {_end(row)}" if tail == 0 else _end(row)
    data = {
        "step": sheet.steps.tolist(),
        "action": [
            "none: the episode is over" if final and at == tail else _name(action, names)
            for at, action in enumerate(actions)
        ],
        "reward": [_signed(value) for value in sheet.reward.tolist()],
        "total": [number(value) for value in sheet.total.tolist()],
        "mark": marks,
        "first": first,
        "last": length - 1,
    }
    label = f"Episode {place:,}"
    image = element(
        "img",
        src=sheet.image,
        width=sheet.columns * width,
        height=rows * height,
        alt=f"{count:,} frames of episode {place:,}, in reading order: {shown}",
    )
    since = "reward" if sheet.every == 1 else "reward since the frame before"
    outputs = [("step", "step"), ("action", "action"), ("reward", since), ("total", "return so far")]
    controls = element(
        "div",
        element(
            "div",
            *(
                element("button", words, type="button", data_move=move, aria_label=said)
                for words, move, said in (
                    ("|<", "first", "First frame"),
                    ("<", "back", "One frame back"),
                    ("Play", "play", "Play"),
                    (">", "on", "One frame on"),
                    (">|", "last", "Last frame"),
                )
            ),
            class_="buttons",
        ),
        element(
            "input",
            type="range",
            min="0",
            max=str(count - 1),
            value="0",
            step="1",
            aria_label=f"{label}: frame",
        ),
        element(
            "dl",
            *(
                part
                for field, title in outputs
                for part in (element("dt", title), element("dd", data_field=field))
            ),
        ),
        element("p", class_="marked", data_field="mark"),
        class_="controls",
        hidden=True,
    )
    # As JSON in a script: "<" is all that HTML reads in one.
    values = Markup(json.dumps(data, ensure_ascii=True).replace("<", "\\u003c"))
    figure = element(
        "figure",
        element("div", image, class_="screen"),
        controls,
        element("script", values, type="application/json"),
        class_="player",
        tabindex="0",
        role="group",
        aria_label=f"{label}, {why}. Arrow keys step through the frames.",
        data_columns=sheet.columns,
        data_width=width,
        data_height=height,
        data_scale=scale,
    )
    return element(
        "article",
        element("h3", f"{label}: {why}"),
        _paragraph(
            f"{length:,} steps, {first:,} to {first + length - 1:,} of the dataset; {beginning}; {_end(row)}; "
            f"{known} {number(row['return'])}. Shown: {shown}, {count:,} frames.{smaller}"
        ),
        figure,
    )


def _end(row: np.void) -> str:
    if row["time_limit"]:
        return f"ended by the time limit of {catalog.TIME_LIMIT:,} steps"
    if row["terminal"]:
        return "ends by a terminal"
    return "truncated" if row["final"] >= 0 else "end cut off"


def _name(action: int, names: Sequence[str]) -> str:
    return f"{action} {names[action]}" if 0 <= action < len(names) else str(action)


def _signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def _ordinal(count: int) -> str:
    last = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{last}"


# What an observation is.


def _stacks(dataset: Dataset) -> list[Markup]:
    if not len(dataset.episodes):
        return [_paragraph("There are no episodes.")]
    if not pictures.is_picture(dataset.frames.shape, dataset.frames.dtype):
        return _no_pictures(dataset)
    parts = [
        _paragraph(
            f"With frame_stack={_STACK} an observation is the frame of its step and the {_STACK - 1} before it, "
            f"newest last, and the next observation the same one step on. A stack never reaches into another "
            f"episode: what would be there is zeros."
        )
    ]
    with atarirb.open(dataset.directory, frame_stack=_STACK) as reader:
        for title, step, first in _cases(dataset.episodes):
            parts.append(_stack(reader, title, step, first))
    return parts


def _cases(episodes: np.ndarray) -> list[tuple[str, int, int]]:
    """Choose steps to explain stacks at: of each what it shows, the step, and its episode's first one."""
    found: dict[str, tuple[int, int]] = {}
    wanted: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for _, rows in summary.chunks(episodes):
        wanted = {
            "Within an episode": (rows["length"] >= 2 * _STACK, rows["start"] + rows["length"] // 2),
            "Right after an episode's start": (~rows["head_cut"] & (rows["length"] >= 3), rows["start"] + 1),
            "At a terminal": (
                rows["terminal"] & ((rows["length"] >= _STACK) | ~rows["head_cut"]),
                rows["start"] + rows["length"] - 1,
            ),
        }
        for title, (fits, step) in wanted.items():
            if title not in found and fits.any():
                place = int(np.argmax(fits))
                found[title] = int(step[place]), int(rows["start"][place])
        if len(found) == len(wanted):
            break
    return [(title, *found[title]) for title in wanted if title in found]


def _stack(reader: Any, title: str, step: int, first: int) -> Markup:
    """Draw an observation and the next one, each frame beneath the step it is of."""
    batch = reader[[step]]
    following = batch["next"]
    shown = [np.moveaxis(stack[0], -1, 0) for stack in (batch["observation"], following["observation"])]
    images = pictures.stills(np.concatenate(shown))
    terminal = bool(following["terminated"][0])
    columns = range(step - _STACK + 1, step + 2)
    cells = {}
    for row, offset in enumerate((0, 1)):
        for place in range(_STACK):
            at = columns[place + offset]
            zeros = at < first or (row == 1 and terminal)
            said = "zeros" if zeros else f"step {at:,}"
            image = element(
                "img",
                src=images[row * _STACK + place],
                alt="black: zeros" if zeros else f"the frame of step {at:,}",
            )
            cells[row, place + offset] = element("td", image, element("small", said))
    heads = [element("th", "t" if at == step else f"t {at - step:+d}", scope="col") for at in columns]
    lines = [
        element(
            "tr",
            element("th", name, scope="row"),
            *(cells.get((row, column), element("td")) for column in range(len(columns))),
        )
        for row, name in enumerate(("observation", "next observation"))
    ]
    values = (
        f"action {batch['action'][0]}, next.reward {number(float(following['reward'][0]))}, next.discount "
        f"{number(float(following['discount'][0]))}, next.terminated {terminal}"
    )
    return element(
        "figure",
        element("h3", title),
        element(
            "figcaption", f"t = step {step:,}, {step - first:,} after its episode's first known one: {values}"
        ),
        element(
            "table",
            element("thead", element("tr", element("td"), *heads)),
            element("tbody", *lines),
            class_="stack",
        ),
    )


# Pieces.


def _paragraph(words: str) -> Markup:
    return element("p", words)


def _details(title: str, *content: Markup) -> Markup:
    return element("details", element("summary", title), *content)


def _scrolled(content: Markup, label: str) -> Markup:
    """Let what is too wide for the screen be scrolled, with keys too."""
    return element("div", content, class_="scrolled", tabindex="0", role="group", aria_label=label)


def _key(class_: str, words: str) -> Markup:
    """Explain how something is drawn."""
    data = {"dots": "M10 7h0", "crosses": "M7 4l6 6m0-6l-6 6", "median": "M0 7h20"}.get(
        class_, "M0 1h20v12h-20z"
    )
    return join(
        [
            element(
                "svg", charts.path(class_, data), viewBox="0 0 20 14", class_="sample", aria_hidden="true"
            ),
            f" {words} ",
        ]
    )
