"""RL Unplugged's episodes: every step against the play, odd ends, and damage."""

import dataclasses
import gzip
import hashlib
import io
import itertools
import pickle
import shutil
import signal
import struct
import sys
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atarirb
from atarirb import sources
from atarirb.errors import ArgumentError, IngestError, LogError, MissingPackageError, SourceNotFoundError
from atarirb.sources import png, tfrecord
from atarirb.sources.rlds import RldsLogs
from atarirb.sources.tfrecord import Example, Records
from benchmarks.probes import probe
from tests import rlds, truth


@dataclasses.dataclass(frozen=True)
class Played:
    """One episode as it was played; `over`: by a terminal."""

    frames: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    unclipped: np.ndarray
    over: bool
    checkpoint: int
    episode: int
    last: np.ndarray | None = None  # a frame after the last action

    def __len__(self):
        return len(self.action)

    def record(self, **others):
        """The record of it; with a row for the last frame, if there is one."""
        frames, action, reward, unclipped = self.frames, self.action, self.reward, self.unclipped
        others = {"clipped_episode_return": ("float", [reward.sum()])} | others
        if self.last is not None:
            frames = np.concatenate([frames, self.last[None]])
            action, reward, unclipped = (np.append(rows, 1) for rows in (action, reward, unclipped))
        numbers = {"over": self.over, "checkpoint": self.checkpoint, "episode": self.episode}
        return rlds.example(rlds.features(frames, action, reward, unclipped, **numbers, **others))


def sample(run, count):
    """The first episodes of a sample run, by the play's own record and the rings it was logged to."""
    played = np.load(truth.SAMPLES / run / "truth.npz")
    stop = int(np.flatnonzero(played["terminal"])[count - 1]) + 1
    frames = np.empty((stop, 84, 84), np.uint8)
    for split in (2, 1, 0):  # each overwrites what it holds too

        def load(name, split=split):
            file = truth.SAMPLES / run / f"replay_logs/{name}_ckpt.{split}.gz"
            return np.load(io.BytesIO(gzip.decompress(file.read_bytes())))

        ring, adds = load("$store$_observation"), played["add_id"][:stop]
        inside = (adds < load("add_count")) & (adds >= load("add_count") - len(ring))
        frames[inside] = ring[adds[inside] % len(ring)]
    assert [zlib.crc32(frame) for frame in frames] == played["frame_crc32"][:stop].tolist()
    ends = np.flatnonzero(played["terminal"][:stop]) + 1
    rng = np.random.default_rng(0)
    for number, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        steps = slice(start, end)
        reward = played["reward"][steps]
        unclipped = reward * rng.integers(1, 900, len(reward)).astype(np.float32)
        yield Played(frames[steps], played["action"][steps], reward, unclipped, True, 0, number)


@pytest.fixture(scope="module")
def play():
    """Six episodes in three files, of checkpoints 0, 1 and 3; the second one of file 1 is cut."""
    episodes = list(sample("Asterix/2", 6))
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (3, 7)]
    numbered = [
        dataclasses.replace(
            episode, checkpoint=checkpoint, episode=number, over=(checkpoint, number) != (1, 1)
        )
        for episode, (checkpoint, number) in zip(episodes, places, strict=True)
    ]
    return {k: [episode for episode in numbered if episode.checkpoint == k] for k in (0, 1, 3)}


@pytest.fixture(scope="module")
def pristine(play, tmp_path_factory):
    directory = tmp_path_factory.mktemp("rlu") / "atari_episodes_ordered" / "Asterix"
    for shard, episodes in play.items():
        rlds.write(directory, shard, [episode.record() for episode in episodes])
    return directory


@pytest.fixture
def files(pristine, tmp_path):
    """The files, to be spoilt."""
    shutil.copytree(pristine, tmp_path / "Asterix")
    return tmp_path / "Asterix"


def of(shard, run=1):
    return f"run_{run}-{shard:05d}-of-00050"


def digest(directory):
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def check(out, episodes_of, *, head_cut=(), final="zeros"):
    """Every step of a dataset is the play's, by a plain loop."""
    names = ("unclipped_reward", "logged_discount", "checkpoint_idx", "episode_idx")
    with atarirb.open(out, columns=names, final=final) as reader:
        batch = reader[:]
        splits, rows = reader.locate(range(len(reader)))
        table = reader.episodes
    following, step, first = batch["next"], 0, 0
    expected = [(shard, episode) for shard, episodes in episodes_of.items() for episode in episodes]
    assert len(table) == len(expected)
    assert len(splits) == sum(len(episode) for _, episode in expected)
    for number, (shard, episode) in enumerate(expected):
        if number and expected[number - 1][0] != shard:
            first = step
        for t in range(len(episode)):
            last = t == len(episode) - 1
            np.testing.assert_array_equal(batch["observation"][step], episode.frames[t])
            if not last:
                shown = episode.frames[t + 1]
            elif final == "stored" and episode.last is not None:
                shown = episode.last
            else:
                shown = np.zeros((84, 84), np.uint8)
            np.testing.assert_array_equal(following["observation"][step], shown)
            assert batch["action"][step] == episode.action[t]
            assert following["reward"][step] == episode.reward[t]
            assert following["terminated"][step] == (last and episode.over)
            assert following["truncated"][step] == (last and not episode.over)
            assert batch["unclipped_reward"][step] == episode.unclipped[t]
            assert batch["logged_discount"][step] == 1 - (last and episode.over and episode.last is None)
            assert batch["checkpoint_idx"][step] == episode.checkpoint
            assert batch["episode_idx"][step] == episode.episode
            assert (splits[step], rows[step]) == (shard, step - first)
            step += 1
        assert table["length"][number] == len(episode)
        assert table["return"][number] == episode.reward.sum()
        assert table["terminal"][number] == episode.over
        assert table["head_cut"][number] == ((episode.checkpoint, episode.episode) in head_cut)
        assert (table["final"][number] >= 0) == (episode.last is not None)
    assert atarirb.verify(out, deep=True).ok


def fails(files, out, words, *, split=1, kept=2):
    """Ingest fails for one split with these words and its file's name, and keeps the others."""
    with pytest.raises(IngestError, match=words) as caught:
        truth.ingest(files, out)
    assert list(caught.value.failures) == [split]
    assert isinstance(caught.value.failures[split], LogError)
    assert of(split) in str(caught.value)
    assert len(list(out.glob("0*"))) == kept
    assert not (out / f"{split:05d}").exists()


# What is in a dataset.


def test_every_step_is_the_play_and_missing_files_are_missing_splits(play, pristine, tmp_path, codec):
    truth.ingest(pristine, tmp_path / "out", codec=codec)
    check(tmp_path / "out", play, head_cut=[(1, 0)])
    with atarirb.open(tmp_path / "out") as reader:
        assert reader.info.name == "Asterix/1"
        assert reader.info.splits == (0, 1, 3)


def test_a_second_ingest_changes_nothing_and_splits_can_be_added(play, pristine, tmp_path):
    truth.ingest(pristine, tmp_path / "whole")
    truth.ingest(pristine, tmp_path / "bits", splits=[1])
    truth.ingest(pristine, tmp_path / "bits", splits=[0, 3])
    assert digest(tmp_path / "bits") == digest(tmp_path / "whole")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").rglob("observation*")}
    truth.ingest(pristine, tmp_path / "whole")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").rglob("observation*")}


@pytest.mark.parametrize("call", [2, 17, 40])
def test_killed_at_any_write_it_ends_the_same(pristine, tmp_path, call):
    code = f"atarirb.ingest({str(pristine)!r}, {str(tmp_path / 'out')!r}, workers=1)"
    assert truth.run_killed(code, at=call) == -signal.SIGKILL
    truth.ingest(pristine, tmp_path / "out")
    truth.ingest(pristine, tmp_path / "fresh")
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_a_file_that_changed_is_read_anew(play, files, tmp_path):
    truth.ingest(files, tmp_path / "out")
    changed = {**play, 3: [dataclasses.replace(play[3][0], action=play[3][0].action[::-1])]}
    rlds.write(files, 3, [episode.record() for episode in changed[3]])
    truth.ingest(files, tmp_path / "out")
    check(tmp_path / "out", changed, head_cut=[(1, 0)])


def test_files_that_were_decompressed_are_read_too(play, files, tmp_path):
    for file in files.iterdir():
        file.write_bytes(gzip.decompress(file.read_bytes()))
    truth.ingest(files, tmp_path / "out")
    check(tmp_path / "out", play, head_cut=[(1, 0)])


def test_a_shuffled_file_keeps_its_order(play, tmp_path):
    """Its first episode begins one, unless it may be the rest of one of the checkpoint before."""
    shuffled = {0: [play[1][1], play[0][1], play[3][0]], 1: [play[1][0], play[0][0]]}
    for shard, episodes in shuffled.items():
        rlds.write(tmp_path / "Asterix", shard, [episode.record() for episode in episodes], of=100)
    truth.ingest(tmp_path / "Asterix", tmp_path / "out")
    check(tmp_path / "out", shuffled, head_cut=[(1, 0)])


def test_batches_do_not_look_over_ends(play, pristine, tmp_path):
    """Stacks and next observations of drawn steps, by a plain loop over each episode's own frames."""
    truth.ingest(pristine, tmp_path / "out")
    episodes = [episode for shard in play.values() for episode in shard]
    starts = np.cumsum([0, *map(len, episodes)])
    with atarirb.open(tmp_path / "out", frame_stack=4, n_step=3, gamma=0.9) as reader:
        batch = reader.sample(3, 300)
    for row, step in enumerate(batch["index"]):
        number = int(np.searchsorted(starts, step, side="right")) - 1
        episode, t = episodes[number], step - starts[number]
        padded = np.concatenate([np.zeros((3, 84, 84), np.uint8), episode.frames])
        np.testing.assert_array_equal(batch["observation"][row], np.moveaxis(padded[t : t + 4], 0, -1))
        stop = min(t + 3, len(episode))
        np.testing.assert_allclose(
            batch["next"]["reward"][row], sum(0.9**j * r for j, r in enumerate(episode.reward[t:stop])), 1e-6
        )
        over = stop == len(episode) and (episode.over or t + 3 > len(episode))
        assert batch["next"]["terminated"][row] == over
        assert not over or episode.over
        if not over:
            assert stop < len(episode)
            np.testing.assert_array_equal(
                batch["next"]["observation"][row], np.moveaxis(padded[stop : stop + 4], 0, -1)
            )


# The last row.


def test_returns_that_count_the_last_reward_make_last_rows_steps(tmp_path):
    episodes = {0: list(sample("Pong/1", 2))}
    assert [episode.reward[-1] for episode in episodes[0]] == [-1, -1]
    rlds.write(tmp_path / "Pong", 0, [episode.record() for episode in episodes[0]])
    truth.ingest(tmp_path / "Pong", tmp_path / "out")
    check(tmp_path / "out", episodes)


def test_returns_that_do_not_make_last_rows_final_observations(play, tmp_path, codec):
    """One episode tells it of the whole file, also of one that is nothing but its last frame."""
    frames = [np.full((84, 84), value, np.uint8) for value in (7, 8, 9)]
    first, second = (dataclasses.replace(e, over=True, last=f) for e, f in zip(play[0], frames, strict=False))
    alone = rlds.example(rlds.features(frames[2:], [0], [0], [0], over=True, checkpoint=0, episode=2))
    silent = first.record(clipped_rewards=("float", [*first.reward, 0]))
    cut = play[1][1]
    rlds.write(tmp_path / "Asterix", 0, [silent, second.record(), alone, cut.record()])
    truth.ingest(tmp_path / "Asterix", tmp_path / "out", codec=codec)
    check(tmp_path / "out", {0: [first, second, cut]}, final="stored")
    check(tmp_path / "out", {0: [first, second, cut]})


def test_a_return_that_fits_neither_tells_nothing(play, tmp_path):
    episode = dataclasses.replace(play[0][0], reward=np.ones(len(play[0][0]), np.float32))
    record = episode.record(clipped_episode_return=("float", [1000]))
    rlds.write(tmp_path / "Asterix", 0, [record])
    truth.ingest(tmp_path / "Asterix", tmp_path / "out")
    check(tmp_path / "out", {0: [episode]})


def test_returns_that_disagree_are_refused(play, files, tmp_path):
    ones = np.ones(len(play[1][0]), np.float32)
    counted = dataclasses.replace(play[1][0], reward=ones).record()
    uncounted = dataclasses.replace(play[1][0], reward=ones).record(
        clipped_episode_return=("float", [len(ones) - 1])
    )
    rlds.write(files, 1, [counted, play[1][2].record(), uncounted])
    fails(files, tmp_path / "out", "record 0: .* counts the last reward, that of .*record 2 does not")


def test_the_time_limit_is_a_terminal_only_where_the_discount_says_so(tmp_path):
    """Two episodes of 27,000 steps go through a process that may hold little of their 381 MB of frames."""
    frame = rlds.png(np.full((84, 84), 3, np.uint8))
    zeros = np.zeros(27_000, np.float32)
    records = [
        rlds.example(
            rlds.features([frame] * 27_000, zeros, zeros, zeros, over=over, checkpoint=0, episode=over)
        )
        for over in (False, True)
    ]
    rlds.write(tmp_path / "Pong", 0, records)
    done = probe("ingest", tmp_path / "Pong", tmp_path / "out", 0, "packed")
    assert done["steps"] == 54_000
    assert done["peak_mb"] < 300
    with atarirb.open(tmp_path / "out") as reader:
        assert reader.episodes["terminal"].tolist() == [False, True]
        assert reader.episodes["time_limit"].tolist() == [True, True]


# Damage.


@pytest.mark.parametrize("part", [0.1, 0.5, -8, -1])
def test_a_file_cut_short_fails_its_split(files, tmp_path, part):
    data = (files / of(1)).read_bytes()
    (files / of(1)).write_bytes(data[: int(part * len(data)) if part > 0 else part])
    fails(files, tmp_path / "out", "cut short|damaged")


def test_an_empty_file_fails_its_split(files, tmp_path):
    (files / of(1)).write_bytes(b"")
    fails(files, tmp_path / "out", "is empty")


def test_a_flipped_byte_fails_its_split(files, tmp_path):
    data = bytearray((files / of(1)).read_bytes())
    data[len(data) // 2] ^= 4
    (files / of(1)).write_bytes(data)
    fails(files, tmp_path / "out", "damaged")


@pytest.mark.parametrize(("at", "what"), [(0, "length"), (9, "length"), (5000, "data"), (-2, "data")])
def test_a_wrong_crc_fails_its_split(files, tmp_path, at, what):
    data = bytearray(gzip.decompress((files / of(1)).read_bytes()))
    data[at] ^= 1
    (files / of(1)).write_bytes(gzip.compress(data))
    record = 2 if at < 0 else 0
    fails(files, tmp_path / "out", f"damaged.*record {record} has a {what} of CRC 0x")


def test_another_file_fails_its_split(files, tmp_path):
    (files / of(1)).write_bytes(b"<html>no such object</html>")
    fails(files, tmp_path / "out", "damaged, or no TFRecord file: record 0")


REQUIRED = [*rlds.features([], [], [], [], over=False, checkpoint=0, episode=0)]
REQUIRED.remove("episode_return")  # the sum of unclipped rewards, and not read


@pytest.mark.parametrize(
    ("others", "words"),
    [
        *(({name: None}, f"has no feature {name}; it has ") for name in REQUIRED),
        ({"actions": ("float", [1.0] * 203)}, "feature actions is a float_list, expected int64_list"),
        ({"actions": ("int64", [0] * 202)}, "203 clipped_rewards, expected 202 as actions"),
        ({"observations": ("bytes", [b""] * 204)}, "204 observations, expected 203 as actions"),
        ({"observations": ("bytes", [b"GIF89a"] * 203)}, r"observation \d+ is no PNG that can be read"),
        ({"actions": ("int64", [0] * 202 + [-1])}, "actions holds -1 at step 202"),
        ({"actions": ("int64", [2**31] * 203)}, "actions holds 2147483648 at step 0"),
        ({"clipped_rewards": ("float", [0] * 202 + [np.nan])}, "clipped_rewards holds nan at step 202"),
        ({"unclipped_rewards": ("float", [np.inf] * 203)}, "unclipped_rewards holds inf at step 0"),
        ({"discounts": ("float", [1, 0] + [1] * 201)}, "the discount is 0 at step 1 of 203"),
        ({"episode_idx": ("int64", [1, 2])}, "2 values of episode_idx, expected 1"),
        ({"checkpoint_idx": ("int64", [-1])}, "checkpoint_idx is -1, expected 0 to"),
    ],
)
def test_a_wrong_feature_fails_its_split(play, files, tmp_path, others, words):
    records = [play[1][0].record(), play[1][1].record(**others), play[1][2].record()]
    assert len(play[1][1]) == 203
    rlds.write(files, 1, records)
    fails(files, tmp_path / "out", f"record 1: {words}")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (np.zeros((84, 80), np.uint8), r"observation 5 is uint8\[84, 80\], expected uint8\[84, 84\]"),
        (np.zeros((84, 84, 3), np.uint8), r"observation 5 is uint8\[84, 84, 3\]"),
        (np.zeros((84, 84), np.uint16), r"observation 5 is uint16\[84, 84\]"),
        (None, "observation 5 is no PNG that can be read"),
    ],
)
def test_a_frame_that_is_none_fails_its_split(play, files, tmp_path, frame, words):
    """Also a PNG that was cut short before it was written."""
    pngs = [rlds.png(shown) for shown in play[1][0].frames]
    pngs[5] = pngs[5][:-40] if frame is None else cv2.imencode(".png", frame)[1].tobytes()
    rlds.write(files, 1, [play[1][0].record(observations=("bytes", pngs))])
    fails(files, tmp_path / "out", f"record 0: {words}")


def test_an_episode_of_no_steps_fails_its_split(play, files, tmp_path):
    empty = rlds.example(rlds.features([], [], [], [], over=True, checkpoint=1, episode=1))
    rlds.write(files, 1, [play[1][0].record(), empty])
    fails(files, tmp_path / "out", "record 1: an episode of no steps")


def test_a_file_of_no_records_fails_its_split(files, tmp_path):
    rlds.write(files, 1, [])
    fails(files, tmp_path / "out", "holds no step in 0 records")


def test_data_that_is_no_example_fails_its_split(files, tmp_path):
    rlds.write(files, 1, [b"\x0a\xff\xff"])
    fails(files, tmp_path / "out", "record 0: not a tf.train.Example")


@pytest.mark.parametrize("changed", ["fewer", "more", "shorter"])
def test_a_file_that_changes_while_it_is_read_is_noticed(play, files, changed):
    logs = sources.find(files)
    logs.survey(1)
    records = [episode.record() for episode in play[1]]
    short = rlds.example(rlds.features(play[1][0].frames[:9], [0] * 9, [0] * 9, [0] * 9, over=True,
                                       checkpoint=1, episode=0))  # fmt: skip
    now = {"fewer": records[:2], "more": [*records, records[0]], "shorter": [short, *records[1:]]}[changed]
    rlds.write(files, 1, now)
    with logs.stream(1, "observation") as stream, pytest.raises(LogError, match="has changed"):
        for _ in stream.chunks():
            pass


# Where they are.


def test_of_several_runs_one_is_named(play, files, tmp_path):
    rlds.write(files, 0, [play[3][0].record()], run=2)
    with pytest.raises(ArgumentError, match="episodes of run 1, 2, run= names none"):
        sources.find(files)
    with pytest.raises(ArgumentError, match="episodes of run 1, 2, not of run 5"):
        RldsLogs(sources.find(files / "run_1")._filesystem, str(files), 5)
    assert RldsLogs(sources.find(files / "run_1")._filesystem, str(files), 2).splits == (0,)
    truth.ingest(files / "run_2", tmp_path / "out")
    check(tmp_path / "out", {0: play[3]})
    with atarirb.open(tmp_path / "out") as reader:
        assert reader.info.name == "Asterix/2"


def test_a_single_file_is_a_source(play, pristine, tmp_path):
    truth.ingest(pristine / of(3), tmp_path / "out")
    check(tmp_path / "out", {3: play[3]})
    with atarirb.open(tmp_path / "out") as reader:
        assert reader.info.name == "Asterix/1"


def test_files_of_two_sets_are_refused(play, files):
    rlds.write(files, 0, [play[0][0].record()], of=100)
    with pytest.raises(LogError, match="files named -of-00050 and -of-00100: those of two sets"):
        sources.find(files)


def test_other_directories_are_other_sources(files, tmp_path):
    assert sources.find(truth.SAMPLES / "Pong/1").layout == "original"
    with pytest.raises(ArgumentError, match="episodes of run 1, not of run 7"):
        sources.find(files / "run_7")
    with pytest.raises(SourceNotFoundError, match="no episodes of RL Unplugged at"):
        sources.find(tmp_path / "run_1")
    with pytest.raises(SourceNotFoundError, match="expected files named run_1-00000-of-00050"):
        RldsLogs(sources.find(files)._filesystem, str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("imagecodecs", "imagecodecs"),
        ("google_crc32c", "google-crc32c"),
        ("google.protobuf", "protobuf"),
    ],
)
def test_a_missing_package_is_named(pristine, monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    tfrecord._example_class.cache_clear()
    with pytest.raises(MissingPackageError, match=rf"needs {name}, .*atarirb\[rlds\]"):
        sources.find(pristine)


# As a source.


def test_bytes_are_counted_once_and_the_whole_of_the_file(pristine):
    logs, counted = sources.find(pristine), []
    survey = logs.survey(1)
    for column in survey.columns:
        with logs.stream(1, column, counted.append) as stream:
            assert sum(len(rows) for _, rows in stream.chunks()) == survey.rows == stream.shape[0]
    assert sum(counted) == logs.size(1) == (pristine / of(1)).stat().st_size


def test_take_decodes_what_is_wanted_alone(play, pristine, monkeypatch):
    logs, decoded = sources.find(pristine), []
    decode = png.decoder()
    monkeypatch.setattr(png, "decoder", lambda: lambda data: decoded.append(1) or decode(data))
    frames = np.concatenate([episode.frames for episode in play[1]])
    wanted = np.array([0, 0, 17, 300, 301, len(frames) - 1])
    np.testing.assert_array_equal(logs.take(1, "observation", wanted), frames[wanted])
    assert len(decoded) == len(wanted)
    action = np.concatenate([episode.action for episode in play[1]])
    np.testing.assert_array_equal(logs.take(1, "action", wanted), action[wanted])


def test_a_source_can_be_pickled(play, pristine):
    logs = sources.find(pristine)
    logs.survey(0)
    other = pickle.loads(pickle.dumps(logs))
    for split in (0, 1):
        with other.stream(split, "observation") as stream:
            frames = np.concatenate([rows.copy() for _, rows in stream.chunks()])
        np.testing.assert_array_equal(frames, np.concatenate([episode.frames for episode in play[split]]))


def test_a_stream_can_be_left_early(pristine):
    with sources.find(pristine).stream(1, "observation") as stream:
        next(stream.chunks())


# The files' format.


def records_of(data):
    with Records(io.BytesIO(data), "file") as records:
        return list(records)


def test_the_crc_is_crc32c():
    assert rlds.crc32c(b"123456789") == 0xE3069283


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.booleans())
def test_records_come_back(records, zipped):
    data = rlds.framed(records)
    assert records_of(gzip.compress(data) if zipped else data) == records


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.data())
def test_no_flipped_bit_and_no_cut_goes_unnoticed(records, data):
    framed = bytearray(rlds.framed(records))
    at = data.draw(st.integers(0, 8 * len(framed) - 1))
    framed[at // 8] ^= 1 << at % 8
    with pytest.raises(LogError, match="file: "):
        records_of(bytes(framed))
    framed[at // 8] ^= 1 << at % 8
    cut = data.draw(st.integers(1, len(framed) - 1))
    ends = np.cumsum([len(record) + 16 for record in records]).tolist()
    if cut in ends:  # nothing of an uncompressed file tells that more was to come
        assert records_of(bytes(framed[:cut])) == records[: ends.index(cut) + 1]
    else:
        with pytest.raises(LogError, match="file: cut short in record"):
            records_of(bytes(framed[:cut]))
    with pytest.raises(LogError):
        records_of(gzip.compress(framed)[:-cut])


def test_a_length_that_looks_like_gzip():
    """The first record of a decompressed file has 0x8b1f bytes, so that it begins as gzip does."""
    record = bytes(0x8B1F)
    assert struct.pack("<Q", len(record)).startswith(b"\x1f\x8b")
    assert records_of(rlds.framed([record])) == [record]


def test_what_another_writer_wrote(tmp_path):
    from tfrecord import TFRecordWriter

    path = tmp_path / "file"
    writer = TFRecordWriter(str(path))
    values = {"bytes": [b"", b"abc"], "float": [1.5, -2.0], "int64": [-1, 2**40]}
    kinds = {"bytes": "byte", "float": "float", "int64": "int"}
    for _ in range(3):
        writer.write({kind: (listed, kinds[kind]) for kind, listed in values.items()})
    writer.close()
    examples = [Example(data, "example") for data in records_of(path.read_bytes())]
    assert len(examples) == 3
    for example in examples:
        assert {kind: list(example.values(kind, kind)) for kind in values} == values


def test_another_reader_reads_the_files_of_these_tests(play, pristine):
    """So that they are what is thought to be RL Unplugged's form."""
    from tfrecord import tfrecord_loader

    found = list(tfrecord_loader(str(pristine / of(1)), None, compression_type="gzip"))
    assert len(found) == len(play[1])
    for features, episode in zip(found, play[1], strict=True):
        np.testing.assert_array_equal(features["actions"], episode.action)
        np.testing.assert_array_equal(features["unclipped_rewards"], episode.unclipped)
        assert features["checkpoint_idx"] == [1]


def test_importing_sources_imports_no_optional_package(python):
    code = """
        import sys, atarirb, atarirb.sources
        print([name for name in ("imagecodecs", "google_crc32c", "google.protobuf") if name in sys.modules])
    """
    assert python(code).strip() == "[]"
