"""The games of the public replay logs: their ids, ROM names and action sets.

`catalog.json` maps each of the 60 games to its ROM and to its minimal action set, the actions of
the console's 18 that do something in that game. The logs store an action as an index into that
set: action ``i`` of a game is action ``minimal_actions[i]`` of the console.

Source: the Arcade Learning Environment, https://arxiv.org/abs/1709.06009; the logs,
https://arxiv.org/abs/1907.04543.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from importlib import resources

from atarirb.errors import UnknownGameError

#: The console's actions, in their order.
ACTIONS = (
    "NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT", "UPFIRE",
    "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE", "UPRIGHTFIRE", "UPLEFTFIRE", "DOWNRIGHTFIRE", "DOWNLEFTFIRE",
)  # fmt: skip

#: How many they are.
CONSOLE_ACTIONS = len(ACTIONS)

#: Runs published for every game.
RUNS = (1, 2, 3, 4, 5)

#: The bucket that the logs were published in: ``<Game>/<run>/replay_logs``. It refuses everyone.
PUBLIC_SOURCE = "gs://atari-replay-datasets/dqn"

#: Agent steps after which the collecting agent ended an episode (108,000 frames, skip 4).
TIME_LIMIT = 27_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Game:
    """One game of the catalog.

    Attributes:
        name: The name in dataset ids, as in ``"Pong"``.
        rom: The name of its ROM in ale-py, as in ``"pong"``.
        minimal_actions: For each logged action, the console's action (0-17).
    """

    name: str
    rom: str
    minimal_actions: tuple[int, ...]


@functools.cache
def games() -> dict[str, Game]:
    """Return the 60 games of the public logs by name."""
    text = resources.files("atarirb").joinpath("catalog.json").read_text(encoding="utf-8")
    return {
        name: Game(name=name, rom=entry["rom"], minimal_actions=tuple(entry["minimal_actions"]))
        for name, entry in json.loads(text).items()
    }


def action_names(name: str) -> tuple[str, ...]:
    """Name the logged actions of the game that a run's id is of; none if it is not in the catalog."""
    found = games().get(name.partition("/")[0])
    return tuple(ACTIONS[action] for action in found.minimal_actions) if found else ()


def available_datasets() -> list[str]:
    """List the ids of the 300 public runs: ``"AirRaid/1"`` ... ``"Zaxxon/5"``."""
    return [f"{game}/{run}" for game in games() for run in RUNS]


def game(name: str) -> Game:
    """Look a game up by its name, or by the id of any run of it (``"Pong/1"``, ``"Pong/mine"``).

    Raises:
        UnknownGameError: It is not in the catalog; the message names the nearest that is.
    """
    found = games().get(name.partition("/")[0])
    if found is None:
        raise UnknownGameError(f"unknown game {name!r}{suggestion(name)}")
    return found


def hint(path_name: str) -> str:
    """Suggest what may have been meant by the last two parts of a path at which nothing is.

    Returns:
        The end of a sentence, as `suggestion`; empty if they do not look like a misspelt id.
    """
    title, _, run = path_name.partition("/")
    return suggestion(path_name) if run.isdecimal() and title not in games() else ""


def is_public(uri: str) -> bool:
    """Tell whether something is in the bucket that the logs were published in, and which refuses everyone."""
    bucket = PUBLIC_SOURCE.rpartition("/")[0]
    uri = f"gs{uri[3:]}" if uri.startswith("gcs://") else uri
    return f"{uri}/".startswith(f"{bucket}/")


def suggestion(name: str) -> str:
    """Say which catalog id is nearest to `name`, as the end of a sentence; empty if none is near."""
    title, _, run = name.partition("/")
    by_lower = {known.lower(): known for known in games()}
    near = difflib.get_close_matches(title.lower(), by_lower, n=1)
    if not near:
        return ""
    if not run:
        return f"; did you mean {by_lower[near[0]]!r}?"
    known_run = run if run in map(str, RUNS) else RUNS[0]
    return f"; did you mean {f'{by_lower[near[0]]}/{known_run}'!r}? public runs are {RUNS[0]} to {RUNS[-1]}"
