"""Report: what the page says is compared with counts by plain loops, and its pictures with the frames."""

from __future__ import annotations

import base64
import collections
import html.parser
import io
import itertools
import json
import pathlib
import re
import shutil
import statistics
import sys

import numpy as np
import pytest

import atarirb
from atarirb import cli
from atarirb.errors import ArgumentError, DatasetNotFoundError, MissingPackageError, StepIndexError
from atarirb.recording.ring_log import RingLog
from atarirb.reporting import charts, counts, pictures, summary
from atarirb.store.manifest import EPISODE
from tests import shards, truth
from tests.test_preview import make

Image = pytest.importorskip("PIL.Image")

SAMPLES = pathlib.Path(__file__).parent / "data" / "samples"
VOID = {"br", "img", "input", "link", "meta"}


class Node:
    """An element of a page."""

    def __init__(self, name, attributes):
        self.name = name
        self.attributes = dict(attributes)
        self.content = []

    def all(self, name, **attributes):
        """The elements of a name within this one, in order; `class_` is one of its classes."""
        found = []
        for part in self.content:
            if isinstance(part, Node):
                classes = (part.attributes.get("class") or "").split()
                fits = all(
                    value in classes if key == "class_" else part.attributes.get(key) == value
                    for key, value in attributes.items()
                )
                found += [part] if part.name == name and fits else []
                found += part.all(name, **attributes)
        return found

    def one(self, name, **attributes):
        (found,) = self.all(name, **attributes)
        return found

    @property
    def text(self):
        return "".join(part.text if isinstance(part, Node) else part for part in self.content)

    def rows(self):
        """The rows of a table's body."""
        return [
            [cell.text for cell in row.content if isinstance(cell, Node)]
            for body in self.all("tbody")
            for row in body.all("tr")
        ]


class Parser(html.parser.HTMLParser):
    """Reads a page, and fails where an element is not closed."""

    def __init__(self):
        super().__init__()
        self.open = [Node("", [])]

    def handle_starttag(self, name, attributes):
        node = Node(name, attributes)
        self.open[-1].content.append(node)
        if name not in VOID:
            self.open.append(node)

    def handle_endtag(self, name):
        assert self.open.pop().name == name

    def handle_data(self, data):
        self.open[-1].content.append(data)


def read(path):
    parser = Parser()
    parser.feed(path.read_text())
    parser.close()
    (root,) = parser.open
    return root


def reported(dataset, directory, **options):
    return read(atarirb.report(dataset, directory / "page.html", **options))


def section(page, key):
    return page.one("section", id=key)


def facts(page):
    return dict(section(page, "facts").one("table").rows())


def integer(text):
    return int(text.replace(",", ""))


def image(node):
    """The pixels of an image in the page."""
    kind, data = node.attributes["src"].split(",")
    assert re.fullmatch(r"data:image/(webp|png);base64", kind)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def as_rgb(frame):
    return np.broadcast_to(frame.reshape(*frame.shape[:2], -1), (*frame.shape[:2], 3))


def sheet_frames(player):
    """The frames of a player's sheet, and what it says of them."""
    columns, width, height = (int(player.attributes[f"data-{key}"]) for key in ("columns", "width", "height"))
    pixels = image(player.one("img"))
    data = json.loads(player.one("script").text)
    places = [divmod(place, columns) for place in range(len(data["step"]))]
    return [
        pixels[row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row, column in places
    ], data


@pytest.fixture(scope="module")
def breakout(tmp_path_factory):
    """Eight splits with two holes, of real frames: its path, and its page."""
    directory = tmp_path_factory.mktemp("breakout")
    truth.ingest(SAMPLES / "Breakout" / "1", directory / "data")
    return directory / "data", reported(directory / "data", directory)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A dataset with truncated episodes and final frames: its path, its page, and its episodes."""
    directory = tmp_path_factory.mktemp("recorded")
    wanted = [[(9, 1, True), (30, 2, True), (1, 1, True)], [(20, 1, False), (12, 0, False)]]
    episodes = shards.write(directory / "data", wanted, codec="packed", frame_shape=(8, 6))
    return directory / "data", reported(directory / "data", directory), episodes


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """More episodes than are drawn one by one: its path, and its page."""
    directory = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(3)
    wanted = [
        [(int(rng.integers(1, 9)), int(rng.choice([1, 1, 1, 2])), bool(rng.integers(2))) for _ in range(600)]
        for _ in range(3)
    ]
    shards.write(directory / "data", wanted, codec="raw", frame_shape=(2, 2))
    return directory / "data", reported(directory / "data", directory)


# Facts.


def test_facts_are_those_of_the_dataset(breakout):
    path, page = breakout
    found, info = facts(page), atarirb.show(path)
    assert found["name"] == page.one("h1").text == "Breakout/1"
    assert found["layout of the source"] == "original"
    assert found["path"] == str(path)
    assert found["steps"] == "7,399"
    assert found["splits"] == "8: 0-7"
    assert found["episodes"] == "36: 4 of them cut, 0 truncated, 0 ended by the time limit"
    assert found["holes in the log"] == "2"
    assert "clipped to {-1, 0, 1}" in found["rewards"]
    assert found["frames"] == "uint8, 84 x 84"
    assert f"{info.frame_disk_bytes:,} bytes for {7399 * 84 * 84:,}" in found["codec"]
    assert f"{info.bytes:,} bytes" in found["on disk"]
    assert found["extra columns"] == found["final frames"] == "none"
    assert "recorded with" not in found


def test_facts_of_a_recording(recorded):
    found = facts(recorded[1])
    assert found["layout of the source"] == "recording"
    assert found["episodes"] == "5: 1 of them cut, 1 truncated, 0 ended by the time limit"
    assert found["final frames"].startswith("3: ")


def test_extra_columns_are_listed_with_their_kind(small, tmp_path):
    assert facts(reported(small[0], tmp_path))["extra columns"] == "pair (float32[2]), wide (int64)"


def test_what_was_recorded_is_said(tmp_path):
    frame = np.zeros((4, 4), np.uint8)
    note = {"game": "Pong", "policy": "<b>mine</b>"}
    with atarirb.Recorder(tmp_path / "Pong/me", clip_rewards=True, note=note) as recorder:
        for step in range(6):
            recorder.add(frame, 1, 2.5 * step, step == 5, False)
    page = reported(tmp_path / "Pong/me", tmp_path)
    assert facts(page)["recorded with"] == "game: Pong, policy: <b>mine</b>"
    reward, unclipped = section(page, "rewards").all("table")
    assert [row[:1] + row[2:3] for row in reward.rows()] == [["0", "1"], ["1", "5"]]
    assert [row[0] for row in unclipped.rows()] == ["0", "2.5", "5", "7.5", "10", "12.5"]


# Episodes.


def episode_list(path):
    """Episodes by a loop over the steps: (first step, rewards, cut at its head, how it ends)."""
    with atarirb.open(path) as reader:
        return [
            (
                int(row["start"]),
                reader[row["start"] : row["start"] + row["length"]]["next"]["reward"].tolist(),
                bool(row["head_cut"]),
                bool(row["terminal"]),
            )
            for row in reader.episodes
        ]


def whole_of(path):
    return [(first, rewards) for first, rewards, cut, terminal in episode_list(path) if terminal and not cut]


def test_figures_of_whole_episodes(breakout):
    path, page = breakout
    (table,) = section(page, "episodes").all("table", class_="figures")[:1]
    for row, values in zip(
        table.rows(),
        ([sum(rewards) for _, rewards in whole_of(path)], [len(rewards) for _, rewards in whole_of(path)]),
        strict=True,
    ):
        quartiles = statistics.quantiles(values, n=4, method="inclusive")
        expected = [min(values), *quartiles, max(values), statistics.mean(values)]
        assert [float(cell.replace(",", "")) for cell in row[1:]] == pytest.approx(expected, rel=1e-3)


def test_every_episode_is_a_row_where_there_are_few(breakout):
    path, page = breakout
    (details,) = section(page, "episodes").all("details")
    expected = [
        [f"{number}", f"{first:,}", f"{len(rewards)}", f"{sum(rewards):g}", "cut" if cut else "whole",
         "ends by a terminal" if terminal else "end cut off"]
        for number, (first, rewards, cut, terminal) in enumerate(episode_list(path))
    ]  # fmt: skip
    assert details.one("table").rows() == expected


def test_every_episode_is_a_dot_or_a_cross_where_there_are_few(breakout):
    path, page = breakout
    figures = section(page, "episodes").all("figure")
    titles = [figure.one("figcaption").text for figure in figures]
    assert titles == ["Return by step", "Return by episode", "Length by step", "Length by episode"]
    whole = len(whole_of(path))
    for figure in figures:
        assert figure.one("path", class_="dots").attributes["d"].count("M") == whole
        crosses = figure.one("path", class_="crosses").attributes["d"].count("M")
        assert crosses == len(episode_list(path)) - whole
    assert "binned" not in section(page, "episodes").text


def test_dots_are_where_their_values_are(breakout):
    path, page = breakout
    figure = section(page, "episodes").all("figure")[0]
    texts = figure.all("text")
    across = [node for node in texts if node.attributes["text-anchor"] == "middle"]
    ticks = {}  # value -> place, of both axes
    for node in texts:
        if re.fullmatch(r"-?[\d.]+k?", node.text):
            value = float(node.text.removesuffix("k")) * (1000 if node.text.endswith("k") else 1)
            key = "x" if node in across else "y"
            at = float(node.attributes[key]) - (4 if key == "y" else 0)
            ticks.setdefault(key, []).append((value, at))
    line = {key: np.polyfit(*zip(*found, strict=True), 1) for key, found in ticks.items()}
    dots = re.findall(r"M([\d.]+) ([\d.]+)h0", figure.one("path", class_="dots").attributes["d"])
    found = [
        (
            (float(x) - line["x"][1]) / line["x"][0],
            (float(y) - line["y"][1]) / line["y"][0],
        )
        for x, y in dots
    ]
    for (x, y), (first, rewards) in zip(found, whole_of(path), strict=True):
        assert abs(x - first) < 8000 / 372
        assert abs(y - sum(rewards)) < 0.05


@pytest.mark.parametrize(("by", "place"), [("step", 0), ("episode", 1)])
def test_many_episodes_are_binned_into_quartiles(many, by, place):
    path, page = many
    part = section(page, "episodes")
    assert "more than 1,000 episodes, so they are binned: each axis into 100 parts" in part.text
    listed = episode_list(path)
    left_out = len(listed) - len(whole_of(path))
    assert f"The other {left_out:,} episodes are left out" in part.text
    rows = part.all("details")[place].one("table").rows()
    assert len(rows) == 100
    low = 0
    for row in rows:
        assert integer(row[0]) == low
        low = integer(row[1])
        inside = [
            rewards
            for number, (first, rewards, cut, terminal) in enumerate(listed)
            if terminal and not cut and integer(row[0]) <= (first if by == "step" else number) < low
        ]
        assert integer(row[2]) == len(inside)
        for cells, values in ((row[3:6], [sum(r) for r in inside]), (row[6:9], [len(r) for r in inside])):
            expected = np.percentile(values, [25, 50, 75]) if values else [np.nan] * 3
            np.testing.assert_allclose([float(cell) for cell in cells], expected, rtol=1e-3)
    assert low == (len(listed) if by == "episode" else sum(len(rewards) for _, rewards, *_ in listed))
    assert not part.all("path", class_="dots")
    assert part.all("path", class_="band")[place + 1].attributes["d"].count("M") == sum(
        row[2] != "0" for row in rows
    )


def table_of(lengths, returns, *, cut=()):
    table = np.zeros(len(lengths), EPISODE)
    table["length"] = lengths
    table["start"] = np.cumsum([0, *lengths[:-1]])
    table["return"] = returns
    table["final"] = -1
    table["terminal"] = ~np.isin(np.arange(len(lengths)), cut)
    return table


@pytest.mark.parametrize(
    ("returns", "cut", "more", "expected"),
    [
        ([1, 5, 3, 5, 2], (), (), {1: "best", 2: "median", 4: "last"}),
        ([9, 5, 3, 5, 2], (0,), (), {1: "best", 2: "median", 4: "last"} | {}),
        ([1, 2, 9], (), (0,), {2: "best, last", 1: "median", 0: "asked for"}),
        ([4], (), (), {0: "best, median, last"}),
        ([4, 6], (0, 1), (), {1: "best, last", 0: "median"}),
        ([4, 4, 4], (2,), (1,), {0: "best, median", 1: "last, asked for"}),
        ([], (), (), {}),
    ],
)
def test_the_best_the_median_and_the_last_whole_episode_are_chosen(returns, cut, more, expected):
    if returns[:1] == [9]:  # of 5, 3, 5, 2: the lower of the two in the middle is 3
        assert sorted(returns[1:])[1] == 3
    assert summary.chosen(table_of([3] * len(returns), returns, cut=cut), more) == expected


# Actions and rewards.


def test_actions_are_counted_over_all_steps(breakout):
    path, page = breakout
    with atarirb.open(path) as reader:
        seen = collections.Counter(reader[:]["action"].tolist())
    names = ["NOOP", "FIRE", "RIGHT", "LEFT"]
    total = sum(seen.values())
    expected = [
        [f"{action}", name, "", f"{seen[action]:,}", f"{100 * seen[action] / total:.2f} %"]
        for action, name in enumerate(names)
    ]
    table = section(page, "actions").one("table")
    assert table.rows() == expected
    widths = [float(bar.attributes["width"]) for bar in table.all("rect")]
    assert widths == pytest.approx([100 * seen[a] / max(seen.values()) for a in range(4)], abs=0.01)


def test_rewards_are_counted_over_all_steps(breakout):
    path, page = breakout
    with atarirb.open(path) as reader:
        seen = collections.Counter(reader[:]["next"]["reward"].tolist())
    part = section(page, "rewards")
    assert [(float(row[0]), integer(row[2])) for row in part.one("table").rows()] == sorted(seen.items())
    assert "zeros have no bar" in part.text
    assert len(part.all("rect")) == len(seen) - 1


def test_actions_of_an_unknown_game_have_no_names(tmp_path):
    data = make(tmp_path, np.full((9, 4, 4), 9, np.uint8), (9,), name="Own/1")
    part = section(reported(data, tmp_path), "actions")
    assert "not in the catalog" in part.text
    assert [row[0] + row[1] for row in part.one("table").rows()] == list("012345")


def test_actions_never_taken_and_actions_that_are_none(tmp_path):
    columns = {"action": [0, 0, 99, 18], "reward": [0.5, -1e9, 0.5, 1e-9]}
    data = write_columns(tmp_path, **columns)
    page = reported(data, tmp_path)
    rows = {row[0]: (row[1], row[3]) for row in section(page, "actions").one("table").rows()}
    assert rows["0"] == ("NOOP", "2")
    assert rows["5"] == ("LEFTFIRE", "0")
    assert rows["99"] == rows["18"] == ("none of the game's 6", "1")
    rewards = [row[0] + " " + row[2] for row in section(page, "rewards").one("table").rows()]
    assert rewards == ["-1,000,000,000 1", "1e-09 1", "0.5 2"]


def write_columns(directory, *, action, reward):
    """Make a dataset of one episode with these actions and rewards."""
    frame = np.full((4, 4), 9, np.uint8)
    with RingLog(directory / "Pong/own", len(action) + 9, frame_shape=frame.shape) as log:
        for step, values in enumerate(zip(action, reward, strict=True)):
            log.add(frame, *values, step == len(action) - 1)
    truth.ingest(directory / "Pong/own", directory / "data")
    return directory / "data"


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.float32])
def test_counts_are_those_of_a_loop(dtype, monkeypatch):
    monkeypatch.setattr(counts, "_ROWS", 7)
    rng = np.random.default_rng(0)
    maps = [rng.integers(-128, 128, rows).astype(dtype) for rows in (0, 40, 1, 23)]
    found = counts.count(maps)
    loop = collections.Counter(value for rows in maps for value in rows.tolist())
    assert list(zip(found.values.tolist(), found.counts.tolist(), strict=True)) == sorted(loop.items())


def test_what_is_not_a_number_is_counted_too(monkeypatch):
    monkeypatch.setattr(counts, "_ROWS", 3)
    found = counts.count(
        [np.array([1, np.nan, np.inf, np.nan, 1], np.float32), np.array([np.nan], np.float32)]
    )
    np.testing.assert_array_equal(found.values, [1, np.inf, np.nan])
    assert found.counts.tolist() == [2, 1, 3]


def test_of_too_many_values_bins_are_counted(monkeypatch):
    monkeypatch.setattr(counts, "_ROWS", 100)
    rng = np.random.default_rng(0)
    maps = [rng.normal(size=rows).astype(np.float32) for rows in (900, 0, 700)]
    maps[0][5:8] = np.nan, np.inf, -np.inf
    found = counts.count(maps)
    assert found.values is None
    assert found.odd == 3
    values = [value for rows in maps for value in rows.tolist() if np.isfinite(value)]
    low, high = min(values), max(values)
    width = (high - low) / 40
    loop = [0] * 40
    for value in values:
        loop[min(39, int((value - low) / width))] += 1
    assert found.counts.tolist() == loop
    assert (found.edges[0], found.edges[-1]) == (low, high)


def test_bins_are_said_to_be_bins(tmp_path):
    rewards = np.random.default_rng(0).normal(size=1200)
    page = reported(write_columns(tmp_path, action=[0] * 1200, reward=rewards), tmp_path)
    part = section(page, "rewards")
    assert "more than 1,000 values, so they are binned, into 40 bins" in part.text
    assert sum(integer(row[2]) for row in part.one("table").rows()) == 1200


# Gaps and cuts.


def test_holes_are_listed_and_drawn(breakout):
    path, page = breakout
    part = section(page, "timeline")
    manifest = json.loads((path / "dataset.json").read_text())
    adds = [shard["adds"] for shard in manifest["shards"]]
    expected = [
        [f"between splits {k} and {k + 1}", f"{stop:,}", f"{start:,}", f"{start - stop:,}"]
        for k, ((_, stop), (start, _)) in enumerate(itertools.pairwise(adds))
        if stop != start
    ]
    assert part.all("table")[0].rows() == expected
    drawing = part.one("svg", class_="wide")
    assert drawing.one("path", class_="hole").attributes["d"].count("M") == len(expected) == 2
    boxes = [drawing.one("path", class_=f"shard{shade}").attributes["d"] for shade in (0, 1)]
    assert sum(box.count("M") for box in boxes) == 8
    # A hole is as wide as what is missing in it.
    left, width = zip(
        *re.findall(r"M([\d.]+) \d+h([\d.]+)", drawing.one("path", class_="hole").attributes["d"]),
        strict=True,
    )
    missing = [integer(row[3]) for row in expected]
    assert float(width[0]) / float(width[1]) == pytest.approx(missing[0] / missing[1], rel=0.01)
    assert float(left[0]) < float(left[1])


def test_holes_of_a_log_that_does_not_count_are_said_to_be_guesses(breakout, tmp_path):
    logs = shutil.copytree(SAMPLES / "Breakout/1/replay_logs", tmp_path / "Breakout/1/replay_logs")
    for file in logs.glob("add_count*"):
        file.unlink()
    truth.ingest(tmp_path / "Breakout/1", tmp_path / "data")
    part = section(reported(tmp_path / "data", tmp_path), "timeline")
    assert part.all("table")[0].rows()
    assert "how many are missing is not known" in part.text
    assert "how many are missing" not in section(breakout[1], "timeline").text


def test_cuts_are_counted_and_drawn(breakout):
    path, page = breakout
    listed = episode_list(path)
    heads = sum(cut for _, _, cut, _ in listed)
    tails = sum(not terminal for *_, terminal in listed)
    part = section(page, "timeline")
    assert f"beginning cut {heads:,}, end cut {tails:,}, truncated 0, ended by the time limit 0." in part.text
    drawn = [mark.attributes["d"].count("M") for mark in part.all("path", class_="mark")]
    assert drawn == [heads, tails]
    labels = [node.text for node in part.all("text")]
    assert f"beginning cut: {heads}" in labels
    assert f"end cut: {tails}" in labels


def test_truncations_and_the_time_limit_are_drawn(tmp_path):
    shards.write(tmp_path / "data", [[(27_000, 1, False), (27_000, 2, True), (5, 2, True)]], codec="raw")
    part = section(reported(tmp_path / "data", tmp_path), "timeline")
    assert "beginning cut 0, end cut 0, truncated 2, ended by the time limit 2." in part.text
    truncated, limit = part.all("path", class_="mark")
    assert "truncated" in truncated.attributes["class"]
    assert "limit" in limit.attributes["class"]
    places = [float(place) for place in re.findall(r"M([\d.]+)", limit.attributes["d"])]
    assert places[1] - 150 == pytest.approx(2 * (places[0] - 150), abs=0.3)


def test_marks_that_cannot_be_told_apart_are_drawn_once(tmp_path):
    shards.write(tmp_path / "data", [[(2, 2, True)] * 9000], codec="raw", frame_shape=(1, 1))
    part = section(reported(tmp_path / "data", tmp_path), "timeline")
    assert "truncated 9,000" in part.text
    assert 500 < part.one("path", class_="mark").attributes["d"].count("M") < 2500


# Episodes, frame by frame.


def test_the_frames_of_a_player_are_those_of_the_reader(breakout):
    path, page = breakout
    players = section(page, "players").all("article")
    ranked = sorted(whole_of(path), key=lambda each: sum(each[1]))
    assert players[0].one("h3").text.endswith("best")
    data = json.loads(players[0].one("script").text)
    assert data["total"][-1] == f"{sum(ranked[-1][1]):g}"
    with atarirb.open(path) as reader:
        for article in players:
            frames, data = sheet_frames(article.one("figure"))
            number = int(re.search(r"Episode (\d+)", article.one("h3").text)[1])
            start, rewards, *_ = episode_list(path)[number]
            assert data["first"] == start
            assert data["last"] == len(rewards) - 1
            assert data["step"][0] == 0
            assert data["step"][-1] == len(rewards) - 1
            steps = [start + step for step in data["step"]]
            for frame, expected in zip(frames, reader[steps]["observation"], strict=True):
                np.testing.assert_array_equal(frame, as_rgb(expected))


def test_a_player_says_action_reward_and_return(breakout):
    path, page = breakout
    names = ["0 NOOP", "1 FIRE", "2 RIGHT", "3 LEFT"]
    with atarirb.open(path) as reader:
        for article in section(page, "players").all("article"):
            data = json.loads(article.one("script").text)
            number = int(re.search(r"Episode (\d+)", article.one("h3").text)[1])
            start, rewards, *_ = episode_list(path)[number]
            before = -1
            for step, action, reward, total in zip(
                data["step"], data["action"], data["reward"], data["total"], strict=True
            ):
                assert action == names[reader[start + step]["action"]]
                assert float(reward) == sum(rewards[before + 1 : step + 1])
                assert float(total) == sum(rewards[: step + 1])
                before = step
            assert data["mark"][0] == "start of the episode"
            assert data["mark"][-1] == "ends by a terminal"
            assert not any(data["mark"][1:-1])


def test_the_final_frame_is_shown_where_it_is_known(recorded):
    _, page, episodes = recorded
    articles = section(page, "players").all("article")
    shown = {int(re.search(r"Episode (\d+)", article.one("h3").text)[1]): article for article in articles}
    known = [number for number in shown if episodes[number].final is not None]
    assert known
    for number in known:
        frames, data = sheet_frames(shown[number].one("figure"))
        np.testing.assert_array_equal(frames[-1], as_rgb(episodes[number].final))
        assert data["action"][-1] == "none"
        assert data["mark"][-1] == "after the last action; ends by a terminal"
        assert data["step"][-1] == data["last"] + 1 == len(episodes[number].frames)
        assert "and the frame after the last action" in shown[number].text


def test_a_long_episode_shows_every_nth_step_and_says_so(breakout, tmp_path):
    path, _ = breakout
    page = reported(path, tmp_path, frames=10, episodes=[-1, 11])
    articles = section(page, "players").all("article")
    for article in articles:
        data = json.loads(article.one("script").text)
        assert 5 <= len(data["step"]) <= 10
        every = data["step"][1]
        assert data["step"] == sorted({*range(0, data["last"] + 1, every), data["last"]})
        assert re.search(rf"every {every}(st|nd|rd|th) step, and the last one", article.text)
        assert "A reward is the sum since the frame shown before" in article.text
    titles = [article.one("h3").text for article in articles]
    assert titles[0] == "Episode 11: best, asked for"
    assert titles[-1] == "Episode 35: asked for"
    assert "end cut off" in articles[-1].text


@pytest.mark.parametrize("length", [1, 2, 3, 7, 239, 240, 241, 27_000])
@pytest.mark.parametrize("most", [2, 3, 240])
def test_steps_shown_are_evenly_spaced(length, most):
    steps, every = pictures.spaced(length, most)
    assert steps.tolist() == sorted({*range(0, length, every), length - 1})
    assert len(steps) <= most
    if every > 1:
        assert len({*range(0, length, every - 1), length - 1}) > most


def test_where_no_episode_is_whole_it_is_said(tmp_path):
    shards.write(tmp_path / "data", [[(5, 0, False)]], codec="raw", frame_shape=(8, 8))
    page = reported(tmp_path / "data", tmp_path)
    assert "no episode is whole" in facts(page)["mean return"]
    assert "Of 1 episodes 0 are whole" in section(page, "episodes").text
    assert "No episode is whole." in section(page, "players").text
    assert json.loads(section(page, "players").one("script").text)["mark"][-1] == "end cut off"
    titles = [node.text for node in section(page, "stacks").all("h3")]
    assert titles == ["Right after an episode's start"]


def test_one_episode_of_one_step(tmp_path):
    shards.write(tmp_path / "data", [[(1, 1, False)]], codec="raw", frame_shape=(8, 8))
    page = reported(tmp_path / "data", tmp_path)
    data = json.loads(section(page, "players").one("script").text)
    assert (data["step"], data["mark"]) == ([0], ["start of the episode; ends by a terminal"])
    assert [node.text for node in section(page, "stacks").all("h3")] == ["At a terminal"]


def test_a_dataset_without_steps(tmp_path):
    shards.write(tmp_path / "data", [[]], codec="raw")
    page = reported(tmp_path / "data", tmp_path)
    assert facts(page)["steps"] == "0"
    for key, words in [
        ("episodes", "There are no episodes."),
        ("actions", "There are no steps."),
        ("rewards", "There are no steps."),
        ("timeline", "There are no steps."),
        ("players", "There are no episodes."),
        ("stacks", "There are no episodes."),
    ]:
        assert words in section(page, key).text
    assert not page.all("img")


@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 1), (8, 6, 3), (210, 160, 3), (1, 300)])
def test_frames_of_any_picture_shape(tmp_path, shape):
    episodes = shards.write(tmp_path / "data", [[(6, 1, True)]], codec="raw", frame_shape=shape)
    page = reported(tmp_path / "data", tmp_path)
    frames, _ = sheet_frames(section(page, "players").one("figure"))
    expected = [*episodes[0].frames, episodes[0].final]
    assert len(frames) == len(expected)
    if max(shape[:2]) <= 256:
        for frame, each in zip(frames, expected, strict=True):
            np.testing.assert_array_equal(frame, as_rgb(each))
    else:
        assert "Frames are shown at 1/2 of their size." in section(page, "players").text
        pairs = [each.astype(float).reshape(1, 150, 2).mean(2) for each in expected]
        for frame, each in zip(frames, pairs, strict=True):
            np.testing.assert_allclose(frame[..., 0], each, atol=0.51)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((7,), np.float32), ((8, 8), np.float16), ((8, 8, 2), np.uint8)]
)
def test_observations_that_are_no_pictures(tmp_path, shape, dtype, monkeypatch):
    shards.write(
        tmp_path / "data", [[(6, 1, True), (4, 2, True)]], codec="raw", frame_shape=shape, frame_dtype=dtype
    )
    monkeypatch.setitem(sys.modules, "PIL", None)  # which is not needed for these
    page = reported(tmp_path / "data", tmp_path)
    assert not page.all("img")
    for key in ("players", "stacks"):
        words = f"{np.dtype(dtype)}, {' x '.join(map(str, shape))}, which are no pictures"
        assert words in section(page, key).text
    assert len(section(page, "episodes").all("svg", class_="chart")) == 4


# Stacks.


def test_stacks_are_those_of_a_batch(breakout):
    path, page = breakout
    figures = section(page, "stacks").all("figure")
    titles = [figure.one("h3").text for figure in figures]
    assert titles == ["Within an episode", "Right after an episode's start", "At a terminal"]
    with atarirb.open(path) as reader:  # no stacks: they are made here, by a loop
        episodes = reader.episodes
        for figure in figures:
            step = integer(re.search(r"t = step ([\d,]+)", figure.text)[1])
            row = episodes[np.searchsorted(episodes["start"], step, side="right") - 1]
            first, last = int(row["start"]), int(row["start"] + row["length"]) - 1
            terminal = step == last
            assert terminal == (figure.one("h3").text == "At a terminal")
            expected = []
            for newest in (step, step + 1):
                for at in range(newest - 3, newest + 1):
                    blank = at < first or (newest > step and terminal)
                    expected.append(("zeros", None) if blank else (f"step {at:,}", at))
            cells = [cell for cell in figure.all("td") if cell.all("img")]
            assert [cell.one("small").text for cell in cells] == [said for said, _ in expected]
            for cell, (said, at) in zip(cells, expected, strict=True):
                frame = np.zeros((84, 84), np.uint8) if at is None else reader[at]["observation"]
                np.testing.assert_array_equal(image(cell.one("img")), as_rgb(frame))
                assert said in cell.one("img").attributes["alt"]
            assert f"next.terminated {terminal}" in figure.text
            assert f"next.discount {0 if terminal else 0.99}" in figure.text


def test_the_frames_of_a_stack_stand_in_the_columns_of_their_steps(breakout):
    for figure in section(breakout[1], "stacks").all("figure"):
        heads = [head.text for head in figure.one("thead").all("th")]
        assert heads == ["t - 3", "t - 2", "t - 1", "t", "t + 1"]
        for body, offset in zip(figure.all("tbody"), (0, 1), strict=True):
            (row,) = [row for row in body.all("tr") if row.all("td")]
            filled = [bool(cell.all("img")) for cell in row.all("td")]
            assert filled == [offset <= column < offset + 4 for column in range(5)]


# The page.


def test_nothing_is_fetched(breakout, recorded, many):
    for _, page, *_ in (breakout, recorded, many):
        policy = page.one("meta", **{"http-equiv": "Content-Security-Policy"}).attributes["content"]
        assert policy.startswith("default-src 'none'")
        pending = [page]
        while pending:
            node = pending.pop()
            pending += [part for part in node.content if isinstance(part, Node)]
            for name in ("src", "href", "srcset", "action", "poster", "data", "xlink:href"):
                assert re.match(r"(data:|#|$)", node.attributes.get(name) or "")
            assert node.name not in ("iframe", "object", "embed", "base", "form")
        for text in (*(n.text for n in page.all("style")), *(n.text for n in page.all("script"))):
            assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch\(|XMLHttp|import\(", text)


def test_what_comes_from_files_is_escaped(tmp_path):
    name = "<script>alert(1)</script>&'\"/1"
    data = make(tmp_path, np.full((9, 4, 4), 9, np.uint8), (9,), name=name)
    manifest = json.loads((data / "dataset.json").read_text())
    manifest["layout"] = "<img src=x onerror=alert(2)>"
    (data / "dataset.json").write_text(json.dumps(manifest))
    odd = tmp_path / "<i>&amp;"
    data.rename(odd)
    page = reported(odd, tmp_path)
    assert page.one("h1").text == name
    assert page.one("title").text == f"{name}: a report"
    assert facts(page)["layout of the source"] == manifest["layout"]
    assert facts(page)["path"] == str(odd)
    assert not page.all("i")
    assert len(page.all("script")) == 2  # the player's values and the page's own
    assert "alert(1)" not in "".join(node.text for node in page.all("script"))


def test_the_values_of_a_player_cannot_end_their_script(breakout, tmp_path, monkeypatch):
    names = ("</script><b>", "<!--", "\u2028", "&lt;")
    monkeypatch.setattr("atarirb.catalog.action_names", lambda name: names)
    page = reported(breakout[0], tmp_path)
    assert len(section(page, "players").all("script")) == len(section(page, "players").all("article"))
    data = json.loads(section(page, "players").all("script")[0].text)
    assert set(data["action"]) == {f"{number} {name}" for number, name in enumerate(names)}
    assert not page.all("b")


def test_everything_has_a_name(breakout):
    _, page = breakout
    assert page.one("html").attributes["lang"] == "en"
    assert all(node.attributes.get("alt") for node in page.all("img"))
    assert all(
        node.attributes.get("aria-label") or node.attributes.get("aria-hidden") for node in page.all("svg")
    )
    assert all(node.attributes.get("aria-label") for node in page.all("button") + page.all("input"))
    identities = {node.attributes["id"] for node in page.all("section")}
    assert {link.attributes["href"] for link in page.one("nav").all("a")} == {f"#{key}" for key in identities}
    assert all(node.attributes["hidden"] is None for node in page.all("div", class_="controls"))


def test_a_page_is_small_however_large_the_frames_are(tmp_path):
    wanted = [[(300, 1, True)] + [(3, 1, False)] * 22]
    shards.write(
        tmp_path / "data", wanted, codec="raw", frame_shape=(300, 300, 3)
    )  # noise: nothing is gained
    path = atarirb.report(tmp_path / "data", tmp_path / "page.html", episodes=range(20), frames=40)
    assert path.stat().st_size < 5_000_000
    articles = section(read(path), "players").all("article")
    assert len(articles) >= 20


def test_the_same_call_makes_the_same_bytes(breakout, tmp_path):
    path, _ = breakout
    first, second = (atarirb.report(path, tmp_path / name) for name in ("a.html", "b.html"))
    assert first.read_bytes() == second.read_bytes()


def test_axes_have_round_ticks_that_hold_the_values():
    for low, high in [
        (0, 1),
        (-21, 21),
        (3, 3),
        (0, 0),
        (12_345, 987_654),
        (-0.3, 0.07),
        (0, 49_999_999),
        (5, 6),
    ]:
        axis = charts.Axis.over("", low, high)
        assert axis.ticks[0] <= low <= high <= axis.ticks[-1]
        assert 2 <= len(axis.ticks) <= 8
        step = axis.ticks[1] - axis.ticks[0]
        assert float(f"{step:.0e}"[0]) in (1, 2, 5)
        np.testing.assert_allclose(np.diff(axis.ticks), step)
        assert len({axis.spell(tick) for tick in axis.ticks}) == len(axis.ticks)
    assert charts.Axis.over("", 0, 3, whole=True).ticks == (0, 1, 2, 3)
    assert charts.Axis.over("", 0, 50_000_000).spell(20_000_000) == "20M"


# Files and errors.


def test_the_default_name_is_in_the_current_directory(breakout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert atarirb.report(breakout[0]) == pathlib.Path("Breakout-1-report.html")
    (tmp_path / "pages").mkdir()
    assert atarirb.report(breakout[0], "pages") == pathlib.Path("pages/Breakout-1-report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Breakout-1-report.html", "pages"]


def test_a_page_that_is_there_is_replaced_whole_or_not_at_all(breakout, tmp_path, monkeypatch):
    out = tmp_path / "page.html"
    out.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        with pytest.raises(OSError, match="disk full"):
            atarirb.report(breakout[0], out)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert out.read_text() == "old"
    atarirb.report(breakout[0], out)
    assert out.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"episodes": [36]}, StepIndexError, "episode 36 is out of range: Breakout/1 has episodes 0 to 35"),
        ({"episodes": [-37]}, StepIndexError, "episode -37 is out of range"),
        ({"episodes": ["a"]}, ArgumentError, r"episodes is \['a'\], expected integers"),
        ({"episodes": 3}, ArgumentError, "episodes is 3, expected integers"),
        ({"episodes": range(21)}, ArgumentError, "episodes are 21, and a page shows 20 at the most"),
        ({"frames": 1}, ArgumentError, "frames is 1, expected 2 or more"),
        ({"frames": 601}, ArgumentError, "frames is 601"),
        ({"out": "page.pdf"}, ArgumentError, r"page\.pdf', expected a name that ends in \.html"),
        (
            {"out": "none/page.html"},
            ArgumentError,
            r"no directory .*none' to put page\.html in; make it first",
        ),
    ],
)
def test_arguments_that_cannot_be(breakout, tmp_path, options, error, words):
    out = tmp_path / options.pop("out", "page.html")
    with pytest.raises(error, match=words):
        atarirb.report(breakout[0], out, **options)
    assert not list(tmp_path.iterdir())


def test_a_dataset_that_is_not_there(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no dataset at"):
        atarirb.report(tmp_path / "none", tmp_path)


def test_without_pillow_the_extra_is_named(breakout, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"report needs pillow.*atarirb\[preview\]"):
        atarirb.report(breakout[0], tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_verb_prints_the_path_and_the_bytes(breakout, tmp_path, capfd):
    out = tmp_path / "page.html"
    assert cli.main(["report", str(breakout[0]), "-o", str(out), "--episode", "3", "--episode", "-1"]) == 0
    assert capfd.readouterr().out == f"{out}\n"
    titles = [node.one("h3").text for node in section(read(out), "players").all("article")]
    assert titles[-2:] == ["Episode 3: asked for", "Episode 35: asked for"]
    assert cli.main(["report", "--json", str(breakout[0]), "-o", str(out)]) == 0
    assert json.loads(capfd.readouterr().out) == {"page": str(out), "bytes": out.stat().st_size}
    assert cli.main(["report", "-q", str(breakout[0]), "-o", str(out)]) == 0
    assert cli.main(["report", str(breakout[0]), "-o", str(out), "--episode", "99"]) == 1
    assert cli.main(["report", str(breakout[0]), "-o", str(out), "--frames", "0"]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "atarirb report: frames is 0" in printed.err


# In a browser.


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_playwright() as running:
        try:
            opened = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory, breakout):
    return atarirb.report(breakout[0], tmp_path_factory.mktemp("page") / "page.html", frames=60)


def opened(browser, path, **options):
    """Open a page; return it and a list of all that goes wrong, or is fetched, from now on."""
    context = browser.new_context(**options)
    tab, trouble = context.new_page(), []
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("request", lambda request: trouble.append(request.url[:80]))
    tab.goto(path.as_uri())
    kept = [words for words in trouble if words != path.as_uri() and not words.startswith("data:")]
    trouble[:] = kept
    return tab, trouble


def test_a_player_steps_by_buttons_slider_and_keys(browser, page_file):
    tab, trouble = opened(browser, page_file)
    data = json.loads(section(read(page_file), "players").all("script")[0].text)
    player = tab.locator(".player").first
    last = len(data["step"]) - 1

    def check(place):
        for field in ("action", "reward", "total", "mark"):
            assert player.locator(f"[data-field={field}]").text_content() == data[field][place]
        assert (
            player.locator("[data-field=step]").text_content().startswith(f"{data['step'][place]:,} of 0 to")
        )
        assert player.locator("input").input_value() == str(place)

    check(0)
    player.get_by_label("One frame on", exact=True).click()
    check(1)
    player.get_by_label("Last frame").click()
    check(last)
    player.get_by_label("One frame on", exact=True).click()
    check(last)
    player.get_by_label("One frame back").click()
    check(last - 1)
    player.get_by_label("First frame").click()
    check(0)
    player.focus()
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("Home", 0)):
        tab.keyboard.press(key)
        check(place)
    tab.keyboard.press("Control+ArrowRight")  # the browser's
    check(0)
    player.locator("input").fill("7")
    check(7)
    player.locator("input").focus()
    tab.keyboard.press("ArrowRight")
    check(8)  # once, not twice
    player.get_by_label("Last frame").click()
    player.get_by_label("Play").click()
    playing = player.locator("input")
    while not 2 < int(playing.input_value()) < 50:
        tab.wait_for_timeout(20)
    player.get_by_label("Stop").click()
    stopped = player.locator("input").input_value()
    assert 2 < int(stopped) < last
    assert trouble == []


def test_a_player_shows_the_frame_it_speaks_of(browser, page_file):
    tab, _ = opened(browser, page_file)
    frames, _ = sheet_frames(section(read(page_file), "players").all("figure", class_="player")[0])
    player = tab.locator(".player").first
    for place in (0, 17, len(frames) - 1):
        player.locator("input").fill(str(place))
        box = player.locator(".screen").bounding_box()
        assert (box["width"], box["height"]) == (336, 336)
        # On whole pixels of the screen, whatever the lines above measure.
        tab.locator(".screen").first.evaluate("node => node.style.cssText += ';position:fixed;top:0;left:0'")
        shot = Image.open(io.BytesIO(tab.screenshot(clip={"x": 0, "y": 0, "width": 336, "height": 336})))
        np.testing.assert_array_equal(np.asarray(shot.convert("RGB"))[2::4, 2::4], frames[place])


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_fits_its_screen_and_is_legible(browser, page_file, width, scheme):
    tab, trouble = opened(browser, page_file, viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (
        [
            int(part)
            for part in re.findall(r"\d+", tab.evaluate(f"getComputedStyle(document.body).{name}"))[:3]
        ]
        for name in ("color", "backgroundColor")
    )
    assert (sum(paper) > sum(ink)) == (scheme == "light")
    assert abs(sum(paper) - sum(ink)) > 500
    assert trouble == []


def test_without_script_the_frames_are_a_contact_sheet(browser, page_file):
    tab, _ = opened(browser, page_file, java_script_enabled=False, viewport={"width": 700, "height": 900})
    sheet = tab.locator(".player img").first
    box = sheet.bounding_box()
    assert 600 < box["width"] < 700  # of 16 frames of 84 pixels: made smaller, not cut off
    assert box["height"] > 100
    assert not tab.locator(".controls").first.is_visible()
