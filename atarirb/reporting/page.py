"""The page of a report: HTML with all that it shows in it, and nothing that is fetched.

Its policy forbids a browser any request. All but the player of episodes works without script; without it,
the frames are shown as contact sheets.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from importlib import resources

import numpy as np

import atarirb
from atarirb.info import describe, facts
from atarirb.markup import Markup, element, table
from atarirb.reporting import histograms, players, returns, stacks, timeline
from atarirb.store.building import RECORDING
from atarirb.store.dataset import Dataset

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
        "episodes": ("Returns and lengths", returns.section(dataset)),
        "actions": ("Actions", histograms.actions(dataset)),
        "rewards": ("Rewards", histograms.rewards(dataset)),
        "timeline": ("Gaps and cuts", timeline.section(dataset)),
        "players": ("Episodes, frame by frame", players.section(dataset, episodes, frames)),
        "stacks": ("What an observation is", stacks.section(dataset)),
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
