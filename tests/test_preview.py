"""Preview: the pictures are read back, pixel by pixel, and compared with the dataset."""

from __future__ import annotations

import gzip
import io
import itertools
import pathlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atarirb
from atarirb.catalog import ACTIONS
from atarirb.errors import (
    ArgumentError,
    ClosedError,
    DatasetNotFoundError,
    MissingPackageError,
    StepIndexError,
)
from atarirb.sheet import as_pictures, overview

Image = pytest.importorskip("PIL.Image")
ImageDraw = pytest.importorskip("PIL.ImageDraw")
ImageFont = pytest.importorskip("PIL.ImageFont")

SAMPLES = pathlib.Path(__file__).parent / "data" / "samples"
SIDE = 168

# Colours are 0xRRGGBB, as pictures are once they are read.
PAPER, INK, GREY, YELLOW, PINK = 0xFFFFFF, 0x222222, 0x888888, 0xFFDD11, 0xFF88BB
BARS = {"start": 0x119944, "terminal": 0xCC2222, "time limit": 0x7744CC, "cut": 0xEE7700}

LENGTHS = (23, 1, 90, 7)  # the last episode is cut by the log's end
REWARDS = {3: 1.0, 5: -1.0, 24 + 40: 1.0, 24 + 41: 1.0, 24 + 60: -1.0}


def write_log(directory, frames, lengths, rewards, *, cut):
    """Write episodes as one split of a replay log: three zero rows before each, and room at the end."""
    total = sum(lengths) + 3 * len(lengths)
    capacity = total + 5
    columns = {
        "observation": np.zeros((capacity, *frames.shape[1:]), frames.dtype),
        "action": np.zeros(capacity, np.int32),
        "reward": np.zeros(capacity, np.float32),
        "terminal": np.zeros(capacity, np.uint8),
    }
    slot = step = 0
    for length in lengths:
        slot += 3
        here = slice(slot, slot + length)
        columns["observation"][here] = frames[step : step + length]
        columns["action"][here] = np.arange(step, step + length) % 6
        columns["reward"][here] = [rewards.get(t, 0.0) for t in range(step, step + length)]
        slot, step = slot + length, step + length
        columns["terminal"][slot - 1] = 1
    columns["terminal"][slot - 1] = not cut
    files = {f"$store$_{name}": values for name, values in columns.items()}
    files["add_count"] = np.array(total)
    files["invalid_range"] = (total - 1 + np.arange(5)) % capacity
    directory.mkdir(parents=True)
    for name, values in files.items():
        with gzip.open(directory / f"{name}_ckpt.0.gz", "wb", compresslevel=1) as file:
            np.save(file, values)


def make(directory, frames, lengths, rewards=None, *, name="Pong/1", cut=False):
    """Make a dataset; action t of it is t % 6."""
    write_log(directory / "logs", frames, lengths, rewards or {}, cut=cut)
    atarirb.ingest(directory / "logs", directory / "data", name=name)
    return directory / "data"


def colour_of(step):
    """A colour that belongs to one step, and to nothing else of a picture."""
    return step << 8 | 77


def solid(count, shape=(84, 84)):
    """Frames of one colour each, which tells the step."""
    frames = np.array([[step >> 8, step & 255, 77] for step in range(count)], np.uint8)
    return np.broadcast_to(frames[:, None, None], (count, *shape, 3))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Four episodes of solid frames."""
    return make(tmp_path_factory.mktemp("plain"), solid(sum(LENGTHS)), LENGTHS, REWARDS, cut=True)


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    """One split from the middle of a run: it begins and ends within an episode."""
    out = tmp_path_factory.mktemp("middle") / "data"
    atarirb.ingest(SAMPLES / "Pong" / "1", out, splits=[2])
    return out


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """One episode of 27,000 steps of solid frames."""
    frames = solid(27_000, (2, 2))
    return make(tmp_path_factory.mktemp("endless"), frames, (27_000,), {500: 1.0, 26_999: 7.5})


def packed(rgb):
    """Turn uint8[..., 3], or a Pillow image, into int32[...], 0xRRGGBB."""
    rgb = np.asarray(rgb.convert("RGB") if isinstance(rgb, Image.Image) else rgb).astype(np.int32)
    return rgb[..., 0] << 16 | rgb[..., 1] << 8 | rgb[..., 2]


def read(path):
    with Image.open(path) as image:
        return packed(image)


def drawn(dataset, directory, **options):
    return read(atarirb.preview(dataset, directory, **options))


def enlarged(frame, scale):
    """How a frame [H, W], [H, W, 1] or [H, W, 3] must look."""
    rgb = np.broadcast_to(frame.reshape(*frame.shape[:2], -1), (*frame.shape[:2], 3))
    return packed(rgb).repeat(scale, 0).repeat(scale, 1)


def box(picture, colour):
    """The rectangle (left, top, right, bottom) that holds a colour, or None."""
    rows, columns = np.nonzero(picture == colour)
    if not len(rows):
        return None
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def shown(picture, side=SIDE):
    """The boxes of the solid frames in a picture, by step, each checked to be full."""
    colours, counts = np.unique(picture[picture & 255 == 77], return_counts=True)
    found = {int(colour) >> 8: box(picture, colour) for colour in colours[counts > side * side // 2]}
    for step, (left, top, right, bottom) in found.items():
        assert (right - left, bottom - top) == (side, side)
        assert (picture[top:bottom, left:right] == colour_of(step)).all()
    return found


def in_reading_order(boxes):
    return sorted(boxes, key=lambda step: (boxes[step][1], boxes[step][0]))


def bars(picture):
    return {name for name, colour in BARS.items() if box(picture, colour)}


def has_text(picture, place, text, size=15, ink=INK, ground=PAPER):
    """Whether a text stands, to the pixel, in the caption of the frame at `place`."""
    image = Image.new("RGB", (200, 40), f"#{ground:06x}")
    ImageDraw.Draw(image).text((10, 10), text, f"#{ink:06x}", ImageFont.load_default(size))
    letters = packed(image.point(lambda level: round(level / 17) * 17))
    rows, columns = np.nonzero(letters != ground)
    letters = letters[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    left, _, right, bottom = place
    windows = np.lib.stride_tricks.sliding_window_view(
        picture[bottom : bottom + 4 * size, left:right], letters.shape
    )
    return bool((windows == letters).all(axis=(-1, -2)).any())


# Frames.


def test_a_sheet_shows_every_frame_of_an_episode_in_order(plain, tmp_path):
    boxes = shown(drawn(plain, tmp_path, episode=0))
    order = in_reading_order(boxes)
    assert order == list(range(23))
    rows = [len(list(row)) for _, row in itertools.groupby(order, lambda step: boxes[step][1])]
    assert rows == [10, 10, 3]


def test_the_frames_are_those_of_the_reader(plain, middle, tmp_path):
    options = {"episode": 2, "start": 30, "frames": 20}
    picture = drawn(middle, tmp_path, **options)
    boxes = shown(drawn(plain, tmp_path, **options))  # equal shapes, so equal places
    with atarirb.open(middle) as reader:
        first = int(reader.episodes["start"][2]) + 30
        frames = reader[first : first + 20]["observation"]
    assert len(np.unique(frames.reshape(20, -1), axis=0)) > 10
    for frame, step in zip(frames, in_reading_order(boxes), strict=True):
        left, top, right, bottom = boxes[step]
        np.testing.assert_array_equal(picture[top:bottom, left:right], enlarged(frame, 2))


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 1), (4, 6, 3), (84, 84, 3), (210, 160, 3), (1, 1)])
def test_a_frame_of_any_size_is_upright_and_enlarged_by_whole_pixels(shape, tmp_path):
    frame = np.random.default_rng(0).integers(1, 31, shape, np.uint8)  # darker than all else
    picture = drawn(make(tmp_path, frame[None], (1,), name="Own/1"), tmp_path)
    rows, columns = np.nonzero((picture & 255 < 31) & (picture >> 16 < 31) & (picture >> 8 & 255 < 31))
    found = picture[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    scale = {6: 28, 84: 2, 210: 1, 1: 168}[max(shape[:2])]
    np.testing.assert_array_equal(found, enlarged(frame, scale))


def test_frames_of_other_dtypes_are_scaled_together(tmp_path):
    values = np.array([-2.0, 0.0, 2.0], np.float32)
    picture = drawn(make(tmp_path, np.broadcast_to(values[:, None, None], (3, 84, 84)), (3,)), tmp_path)
    start = box(picture, BARS["start"])
    for place, grey in enumerate([0x000000, 0x808080, 0xFFFFFF]):
        assert picture[start[1] + 84, start[2] + 84 + place * 200] == grey


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 7, 255], np.uint8), [0, 7, 255]),
        (np.array([False, True]), [0, 255]),
        (np.array([-5, 0, 5], np.int64), [0, 128, 255]),
        (np.array([3.0, 3.0], np.float16), [0, 0]),
        (np.array([np.nan, 1.0, 2.0, np.inf, -np.inf]), [0, 0, 255, 0, 0]),
        (np.array([np.nan, np.inf]), [0, 0]),
    ],
)
def test_values_become_0_to_255(values, expected):
    pictures = as_pictures(values[:, None, None])
    assert pictures.dtype == np.uint8
    assert pictures.shape == (len(values), 1, 1, 3)
    assert pictures[:, 0, 0].tolist() == [[value] * 3 for value in expected]


# Which steps.


@given(length=st.integers(1, 3000), frames=st.integers(1, 200), ends=st.integers(1, 10))
def test_an_overview_has_both_ends_and_even_gaps(length, frames, ends):
    steps = overview(length, frames, ends=ends)
    assert len(steps) == min(length, frames)
    assert (np.diff(steps) > 0).all()
    assert steps[0] == 0
    assert steps[-1] == (length - 1 if frames > 1 else 0)
    end = min(ends, frames // 4, length)
    assert steps[:end].tolist() == list(range(end))
    assert steps[len(steps) - end :].tolist() == list(range(length - end, length))
    if length > frames >= 4 * ends:
        gaps = np.diff(steps[ends - 1 : len(steps) - ends + 1])
        assert gaps.max() - gaps.min() <= 1


def test_a_long_episode_shows_its_first_and_last_steps(plain, tmp_path):
    order = in_reading_order(shown(drawn(plain, tmp_path, episode=2, frames=40)))
    assert order[:10] == list(range(24, 34))
    assert order[-10:] == list(range(104, 114))
    assert order == (24 + overview(90, 40, ends=10)).tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": 85}, range(85, 90)),
        ({"start": -3}, range(87, 90)),
        ({"start": 2, "frames": 4}, range(2, 6)),
        ({"every": 20}, range(0, 90, 20)),
        ({"start": 7, "every": 30, "frames": 2}, range(7, 67, 30)),
        ({"every": 1, "frames": 3}, range(3)),
        ({"frames": 1}, range(1)),
        ({"frames": np.int64(10**12)}, range(90)),
    ],
)
def test_start_and_every_choose_steps(plain, tmp_path, options, expected):
    order = in_reading_order(shown(drawn(plain, tmp_path, episode=2, **options)))
    assert order == [24 + step for step in expected]


def test_by_default_the_first_whole_episode_is_shown(middle, plain, tmp_path):
    with atarirb.open(middle) as reader:
        assert reader.episodes["head_cut"][0]
    assert atarirb.preview(middle, tmp_path, frames=1).name == "Pong-1-episode-1.png"
    assert atarirb.preview(plain, tmp_path, frames=1).name == "Pong-1-episode-0.png"
    assert atarirb.preview(plain, tmp_path, frames=1, episode=-1).name == "Pong-1-episode-3.png"


# Marks.


@pytest.mark.parametrize(("episode", "first", "last"), [(0, 0, 22), (1, 23, 23), (2, 24, 113)])
def test_a_whole_episode_stands_between_start_and_terminal(plain, tmp_path, episode, first, last):
    picture = drawn(plain, tmp_path, episode=episode)
    assert bars(picture) == {"start", "terminal"}
    start, terminal = box(picture, BARS["start"]), box(picture, BARS["terminal"])
    head, tail = box(picture, colour_of(first)), box(picture, colour_of(last))
    assert 0 <= head[0] - start[2] < 10
    assert 0 <= terminal[0] - tail[2] < 10
    assert (start[1], start[3]) == (head[1], head[3])
    assert (terminal[1], terminal[3]) == (tail[1], tail[3])


def test_a_cut_end_is_marked_after_the_last_step(plain, tmp_path):
    picture = drawn(plain, tmp_path, episode=3)
    assert bars(picture) == {"start", "cut"}
    cut, tail = box(picture, BARS["cut"]), box(picture, colour_of(sum(LENGTHS) - 1))
    assert 0 <= cut[0] - tail[2] < 10
    assert (cut[1], cut[3]) == (tail[1], tail[3])


def test_a_lost_beginning_is_marked_before_the_first_step(middle, tmp_path):
    picture = drawn(middle, tmp_path, episode=0)
    assert bars(picture) == {"cut", "terminal"}
    cut, terminal = box(picture, BARS["cut"]), box(picture, BARS["terminal"])
    assert cut[2] < 50
    assert cut[1] < terminal[1]
    picture = drawn(middle, tmp_path, episode=-1)
    assert bars(picture) == {"start", "cut"}
    assert box(picture, BARS["cut"])[1] > box(picture, BARS["start"])[1]


def test_the_torn_edge_of_a_cut_is_away_from_the_frames(plain, middle, tmp_path):
    for data, episode, near, far in ((middle, 0, -1, 0), (plain, 3, 0, -1)):
        picture = drawn(data, tmp_path, episode=episode)
        left, top, right, bottom = box(picture, BARS["cut"])
        bar = picture[top:bottom, left:right] == BARS["cut"]
        assert bar[:, near].all()
        assert 0 < bar[:, far].mean() < 0.5


def test_the_time_limit_is_not_marked_as_a_terminal(endless, tmp_path):
    picture = drawn(endless, tmp_path)
    assert bars(picture) == {"start", "time limit"}
    steps = shown(picture)
    assert in_reading_order(steps) == overview(27_000, 60, ends=10).tolist()
    assert 0 <= box(picture, BARS["time limit"])[0] - steps[26_999][2] < 10


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": 1}, {"terminal"}),
        ({"frames": 1}, {"start"}),
        ({"start": 5, "frames": 5}, set()),
        ({"start": -1}, {"terminal"}),
    ],
)
def test_an_end_that_is_not_shown_has_no_bar(plain, tmp_path, options, expected):
    assert bars(drawn(plain, tmp_path, episode=0, **options)) == expected


def gutter_before(picture, place):
    left, top, _, bottom = place
    return picture[top:bottom, left - 28 : left - 4]


def test_steps_left_out_are_marked_where_they_are(plain, tmp_path):
    picture = drawn(plain, tmp_path, episode=2, frames=40)
    boxes = shown(picture)
    for before, after in itertools.pairwise(in_reading_order(boxes)):
        marked = (gutter_before(picture, boxes[after]) != PAPER).any()
        assert marked == (after - before > 1), (before, after)


def test_steps_left_out_at_the_ends_are_marked(plain, tmp_path):
    picture = drawn(plain, tmp_path, episode=2, start=10, frames=2)
    boxes = shown(picture)
    assert (gutter_before(picture, boxes[34]) != PAPER).any()
    assert (gutter_before(picture, boxes[35]) == PAPER).all()
    beyond = (boxes[35][2] + 32, *boxes[35][1:])
    assert (gutter_before(picture, beyond) != PAPER).any()


@pytest.mark.parametrize(
    ("start", "stop", "ground"), [(35, 50, YELLOW), (55, 65, PINK), (42, 50, None), (39, 41, YELLOW)]
)
def test_the_mark_of_steps_left_out_tells_their_reward(plain, tmp_path, start, stop, ground):
    picture = drawn(plain, tmp_path, episode=2, start=start, every=stop - start, frames=2)
    gutter = gutter_before(picture, box(picture, colour_of(24 + stop)))
    assert {colour for colour in (YELLOW, PINK) if box(gutter, colour)} == ({ground} if ground else set())


# Captions.


def test_rewards_other_than_zero_are_highlighted(plain, tmp_path):
    picture = drawn(plain, tmp_path, episode=0)
    for step, (left, top, right, bottom) in shown(picture).items():
        edge = {3: YELLOW, 5: PINK}.get(step, PAPER)
        around = ((top - 1, left + 50), (bottom, right - 1), (top + 20, left - 3), (top, right + 2))
        if step not in (0, 22):  # whose bars are there
            assert {int(picture[place]) for place in around} == {edge}
        caption = picture[bottom + 5 : bottom + 60, left:right]
        assert [box(caption, colour) is not None for colour in (YELLOW, PINK)] == [step == 3, step == 5]


def test_captions_give_step_action_and_reward(plain, tmp_path):
    picture = drawn(plain, tmp_path, episode=0)
    names = ["0 NOOP", "1 FIRE", "2 RIGHT", "3 LEFT", "4 RIGHTFIRE", "5 LEFTFIRE"]
    boxes = shown(picture)
    for step, place in boxes.items():
        assert has_text(picture, place, f"step {step}")
        assert not has_text(picture, place, f"step {step + 1}")
        assert has_text(picture, place, names[step % 6])
    assert has_text(picture, boxes[3], "+1", 14, ground=YELLOW)
    assert has_text(picture, boxes[5], "-1", 14, ground=PINK)
    assert has_text(picture, boxes[4], "0", 14, ink=GREY)


def test_large_numbers_are_written_out(endless, tmp_path):
    picture = drawn(endless, tmp_path, start=-2)
    place = box(picture, colour_of(26_999))
    assert has_text(picture, place, "+7.5", 14, ground=YELLOW)
    assert has_text(picture, place, "step 26,999")


def test_a_game_that_is_not_in_the_catalog_has_numbers_for_actions(tmp_path):
    picture = drawn(make(tmp_path, solid(6), (6,), name="Own/1"), tmp_path)
    place = box(picture, colour_of(4))
    assert has_text(picture, place, "4")
    assert not has_text(picture, place, "4 RIGHTFIRE")


def test_action_names_are_those_of_the_console():
    ale_py = pytest.importorskip("ale_py")
    assert list(ACTIONS) == [ale_py.Action(number).name for number in range(18)]


# Animations.


def test_an_animation_has_every_frame_in_order(plain, tmp_path):
    durations = []
    with Image.open(atarirb.preview(plain, tmp_path, episode=0, gif=True)) as image:
        assert (image.format, image.n_frames, image.info["loop"]) == ("GIF", 23, 0)
        for step in range(23):
            image.seek(step)
            durations.append(image.info["duration"])
            picture = packed(image)
            assert list(shown(picture, 2 * SIDE)) == [step]
            assert bars(picture) == {name for name, at in (("start", 0), ("terminal", 22)) if at == step}
            assert (box(picture, YELLOW) is not None) == (step == 3)
            assert has_text(picture, box(picture, colour_of(step)), f"step {step}", 30)
    assert np.mean(durations[:21]) == pytest.approx(1000 / 15)
    assert durations[-1] == 1000


def test_an_animation_keeps_real_frames_exactly(plain, middle, tmp_path):
    options = {"episode": 2, "start": 30, "frames": 6, "gif": True}
    with Image.open(atarirb.preview(plain, tmp_path, **options)) as image:
        left, top, right, bottom = box(packed(image), colour_of(24 + 30))
    with atarirb.open(middle) as reader:
        first = int(reader.episodes["start"][2]) + 30
        frames = reader[first : first + 6]["observation"]
    with Image.open(atarirb.preview(middle, tmp_path, **options)) as image:
        assert image.n_frames == 6
        for place, frame in enumerate(frames):
            image.seek(place)
            np.testing.assert_array_equal(packed(image)[top:bottom, left:right], enlarged(frame, 4))


def test_an_animation_may_have_one_frame(plain, tmp_path):
    with Image.open(atarirb.preview(plain, tmp_path, episode=1, gif=True)) as image:
        assert image.n_frames == 1
        assert bars(packed(image)) == {"start", "terminal"}


# Files.


def test_the_default_name_is_in_the_current_directory(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert atarirb.preview(plain, episode=1) == pathlib.Path("Pong-1-episode-1.png")
    assert atarirb.preview(plain, episode=1, gif=True) == pathlib.Path("Pong-1-episode-1.gif")
    assert {path.name for path in tmp_path.iterdir()} == {"Pong-1-episode-1.gif", "Pong-1-episode-1.png"}


def test_the_path_written_is_returned_and_what_was_there_replaced(plain, tmp_path):
    out = tmp_path / "sheet.png"
    out.write_bytes(b"old")
    assert atarirb.preview(plain, str(out), episode=1) == out
    assert shown(read(out)).keys() == {23}
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


def test_the_same_call_makes_the_same_bytes(plain, tmp_path):
    first, second = (atarirb.preview(plain, tmp_path / name, episode=1) for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()


def test_a_failure_leaves_nothing_behind(plain, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    out = tmp_path / "sheet.png"
    out.write_bytes(b"old")
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        atarirb.preview(plain, out, episode=1)
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
    assert out.read_bytes() == b"old"


# Errors.


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"episode": 4}, StepIndexError, "episode 4 is out of range: Pong/1 has episodes 0 to 3"),
        ({"episode": -5}, StepIndexError, "episode -5 is out of range"),
        ({"episode": "first"}, ArgumentError, "episode is 'first', expected an integer"),
        ({"episode": 3, "start": 7}, StepIndexError, "step 7 is out of range: episode 3 has steps 0 to 6"),
        ({"frames": 0}, ArgumentError, "frames is 0, expected an integer of 1 or more"),
        ({"frames": 2.5}, ArgumentError, r"frames is 2\.5, expected"),
        ({"every": 0}, ArgumentError, "every is 0, expected"),
    ],
)
def test_arguments_that_cannot_be(plain, tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        atarirb.preview(plain, tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("out", "options", "words"),
    [
        ("missing/sheet.png", {}, r"no directory .*missing' to put sheet\.png in; make it first"),
        ("sheet.jpg", {}, r"sheet\.jpg', expected a name that ends in \.png for a sheet"),
        ("sheet.gif", {}, "gif=True makes an animation"),
        ("sheet.png", {"gif": True}, r"expected a name that ends in \.gif"),
    ],
)
def test_places_that_cannot_be_written(plain, tmp_path, out, options, words):
    with pytest.raises(ArgumentError, match=words):
        atarirb.preview(plain, tmp_path / out, **options)
    assert not list(tmp_path.iterdir())


def test_too_many_frames(endless, tmp_path):
    with pytest.raises(ArgumentError, match="frames is 2,001, and a picture holds 2,000 at the most"):
        atarirb.preview(endless, tmp_path, frames=2001)


@pytest.mark.parametrize("shape", [(5,), (4, 4, 2), (4, 4, 3, 1)])
def test_frames_that_are_no_pictures(tmp_path, shape):
    data = make(tmp_path, np.ones((3, *shape), np.uint8), (3,))
    with pytest.raises(ArgumentError, match=r"frames of Pong/1 are uint8\[.*a preview shows .* \[H, W, 3\]"):
        atarirb.preview(data, tmp_path)


def test_a_dataset_without_episodes(plain, tmp_path, monkeypatch):
    from atarirb.store.dataset import Dataset

    def emptied(path):
        dataset = Dataset(path)
        dataset.episodes = dataset.episodes[:0]
        return dataset

    monkeypatch.setattr("atarirb.verbs.preview.Dataset", emptied)
    with pytest.raises(ArgumentError, match="has no episodes: there is nothing to show"):
        atarirb.preview(plain, tmp_path)


def test_a_dataset_that_is_not_there(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no dataset at"):
        atarirb.preview(tmp_path / "none", tmp_path)


def test_without_pillow_the_extra_is_named(plain, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"preview needs pillow.*atarirb\[preview\]"):
        atarirb.preview(plain, tmp_path)
    assert not list(tmp_path.iterdir())


# Pictures of a reader.


def pixels(picture):
    """What a notebook shows of a picture."""
    with Image.open(io.BytesIO(picture._repr_png_())) as image:
        return packed(image)


def test_a_reader_draws_an_episode_as_the_verb_does(plain, tmp_path):
    with atarirb.open(plain, frame_stack=4) as reader:
        for options in (
            {},
            {"episode": 2, "frames": 40},
            {"episode": -1},
            {"episode": 2, "start": 9, "every": 7},
        ):
            np.testing.assert_array_equal(
                pixels(reader.preview(**options)), drawn(plain, tmp_path, **options), err_msg=str(options)
            )


def test_a_picture_can_be_saved(plain, tmp_path):
    with atarirb.open(plain) as reader:
        picture = reader.preview(episode=1)
    path = picture.save(tmp_path / "sheet.png")
    assert path == tmp_path / "sheet.png"
    assert path.read_bytes() == picture._repr_png_()
    assert [each.name for each in tmp_path.iterdir()] == ["sheet.png"]
    assert repr(picture) == f"<atarirb.Picture, {picture.image.width} x {picture.image.height}>"
    with pytest.raises(ArgumentError, match=r"sheet\.jpg', expected a name that ends in \.png"):
        picture.save(tmp_path / "sheet.jpg")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([30, 7, 100], [30, 7, 100]),
        (range(20, 40), list(range(20, 40))),
        (slice(110, None, 5), [110, 115, 120]),
        (-1, [120]),
        ({"index": np.array([[3, 4, 5], [60, -1, -1]])}, [3, 4, 5, 60]),
    ],
)
def test_steps_are_shown_in_the_order_asked_for(plain, steps, expected):
    with atarirb.open(plain) as reader:
        picture = pixels(reader.preview(steps=steps))
    boxes = shown(picture)
    assert in_reading_order(boxes) == expected
    for step, place in boxes.items():
        assert has_text(picture, place, f"step {step}")
        reward = REWARDS.get(step, 0)
        assert (
            box(picture[place[1] - 3 : place[3] + 3, place[0] - 3 : place[2] + 3], YELLOW) is not None
        ) == (reward > 0)


def test_a_batch_is_shown_by_its_steps(plain):
    with atarirb.open(plain, frame_stack=4) as reader:
        batch = reader.sample_slices(0, 3, 10, strict_length=False)
        boxes = shown(pixels(reader.preview(steps=batch)))
    index = batch["index"]
    assert sorted(boxes) == sorted(set(index[index >= 0].tolist()))


def test_steps_that_begin_or_end_an_episode_are_marked(plain):
    with atarirb.open(plain) as reader:
        assert bars(pixels(reader.preview(steps=[5, 6]))) == set()
        assert bars(pixels(reader.preview(steps=[0, 6]))) == {"start"}
        picture = pixels(reader.preview(steps=[22, 23]))  # of two episodes; one gutter is between them
        assert bars(picture) == {"terminal"}
        assert bars(pixels(reader.preview(steps=[6, 24]))) == {"start"}
        assert bars(pixels(reader.preview(steps=[120]))) == {"cut"}
        in_rows = pixels(reader.preview(steps=[*range(14, 23), 22, 24]))  # the last one begins a row
        assert bars(in_rows) == {"start", "terminal"}


def test_of_many_steps_the_first_are_shown(plain):
    with atarirb.open(plain) as reader:
        assert in_reading_order(shown(pixels(reader.preview(steps=slice(None), frames=7)))) == list(range(7))
        assert len(shown(pixels(reader.preview(steps=slice(None))))) == 60


def test_a_selection_shows_its_own_episodes(plain):
    with atarirb.open(plain) as reader:
        part = reader.select([2])
        assert in_reading_order(shown(pixels(part.preview(frames=90)))) == list(range(24, 114))
        piece = reader.select(steps=slice(30, 40))
        number = int(piece.selected[0])
        picture = pixels(piece.preview(episode=number))
        assert in_reading_order(shown(picture)) == list(range(30, 40))
        assert bars(picture) == {"cut"}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"episode": 4}, StepIndexError, "episode 4 is out of range: Pong/1 has episodes 0 to 3"),
        ({"steps": [121]}, StepIndexError, "step 121 is out of range"),
        ({"steps": []}, ArgumentError, "steps has none; expected one or more"),
        ({"steps": [1], "episode": 0}, ArgumentError, "episode, start and every go without it"),
        ({"steps": {"action": 0}}, ArgumentError, "a dict without 'index'"),
        ({"steps": {"index": [0], "run": [0]}}, ArgumentError, "this batch is of several runs"),
        ({"frames": 0}, ArgumentError, "frames is 0"),
    ],
)
def test_a_reader_refuses_what_cannot_be(plain, options, error, words):
    with atarirb.open(plain) as reader, pytest.raises(error, match=words):
        reader.preview(**options)


def test_a_closed_reader_draws_nothing(plain):
    reader = atarirb.open(plain)
    reader.close()
    with pytest.raises(ClosedError):
        reader.preview()
