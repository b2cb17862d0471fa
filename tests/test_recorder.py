"""Recording one's own play: what was added is what is read, whatever happens meanwhile."""

import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atarirb
from atarirb.errors import ArgumentError, BusyError, ClosedError, DatasetError, DatasetNotFoundError
from atarirb.recording import journal
from atarirb.recording import recorder as module
from tests import truth

SHAPE = (5, 4)


@dataclass
class Episode:
    """What was played: `end` is "terminal", "truncated" or "" (broken off); `final` may be None."""

    frames: list
    actions: list
    rewards: list
    end: str = ""
    final: np.ndarray | None = None
    lives: list = field(default_factory=list)

    def __len__(self):
        return len(self.frames)


def make_episode(rng, length, end, final):
    return Episode(
        frames=list(rng.integers(1, 255, (length, *SHAPE), np.uint8)),
        actions=rng.integers(0, 6, length).tolist(),
        rewards=rng.integers(-3, 4, length).tolist(),
        end=end,
        final=rng.integers(1, 255, SHAPE, np.uint8) if final else None,
        lives=rng.integers(0, 5, length).tolist(),
    )


def add(recorder, episode, *, environment=0, steps=None, extra=False):
    """Add the first `steps` steps of an episode, or all."""
    for step in range(len(episode) if steps is None else steps):
        last = step == len(episode) - 1
        more = {"lives": episode.lives[step]} if extra else {}
        recorder.add(
            episode.frames[step],
            episode.actions[step],
            episode.rewards[step],
            last and episode.end == "terminal",
            last and episode.end == "truncated",
            final_observation=episode.final if last and episode.end else None,
            environment=environment,
            **more,
        )


def stacked(episode, at, depth):
    """Show frame `at` of an episode, the final one included, and those before it, newest last."""
    shown = [*episode.frames, episode.final]
    return np.stack(
        [shown[t] if t >= 0 else np.zeros(SHAPE, np.uint8) for t in range(at - depth + 1, at + 1)], axis=-1
    )


def expected(episodes, depth, n_step, gamma, final):
    """Work every transition out by a plain loop, episode by episode."""
    rows = []
    for episode in episodes:
        for t in range(len(episode)):
            ahead = min(n_step, len(episode) - t)
            over = t + ahead == len(episode)
            known = episode.final is not None and (episode.end != "terminal" or final == "stored")
            blank = np.zeros((*SHAPE, depth), np.uint8)
            rows.append(
                {
                    "observation": stacked(episode, t, depth),
                    "action": episode.actions[t],
                    "reward": sum(gamma**j * episode.rewards[t + j] for j in range(ahead)),
                    "terminated": over and episode.end == "terminal",
                    "truncated": over and episode.end != "terminal",
                    "discount": 0.0 if over and episode.end == "terminal" else gamma**ahead,
                    "next": stacked(episode, t + ahead, depth) if not over or known else blank,
                    "valid": not over or episode.end == "terminal" or episode.final is not None,
                }
            )
    return rows


def check(path, episodes, depth=1, n_step=1, gamma=0.9, final="zeros"):
    rows = expected(episodes, depth, n_step, gamma, final)
    with atarirb.open(path, frame_stack=depth, n_step=n_step, gamma=gamma, final=final) as reader:
        assert len(reader) == len(rows)
        batch = reader[:]
        stack = (lambda o: o) if depth > 1 else (lambda o: o[..., 0])
        for name, values in [
            ("observation", batch["observation"]),
            ("next", batch["next"]["observation"]),
        ]:
            np.testing.assert_array_equal(values, [stack(row[name]) for row in rows], err_msg=name)
        np.testing.assert_array_equal(batch["action"], [row["action"] for row in rows])
        for name in ("terminated", "truncated"):
            np.testing.assert_array_equal(batch["next"][name], [row[name] for row in rows], err_msg=name)
        for name in ("reward", "discount"):
            np.testing.assert_allclose(batch["next"][name], [row[name] for row in rows], rtol=1e-6)
        valid = np.flatnonzero([row["valid"] for row in rows])
        assert reader.valid_steps == len(valid)
        if len(valid):
            drawn = reader.sample(0, 50 * len(valid))["index"]
            assert set(drawn.tolist()) == set(valid.tolist())
        check_slices(reader, episodes, rows, n_step)
        return batch


def check_slices(reader, episodes, rows, n_step):
    """Every slice of 3 shows what its steps show one by one."""
    starts = np.cumsum([0, *map(len, episodes)])
    valid = [sum(row["valid"] for row in rows[a:b]) for a, b in itertools.pairwise(starts)]
    if max(valid) < 3:
        with pytest.raises(ArgumentError, match="3 valid steps in a row"):
            reader.sample_slices(1, 40, 3)
        return
    batch = reader.sample_slices(1, 40, 3)
    single = reader.get(batch["index"].reshape(-1))
    for part, other in ((batch, single), (batch["next"], single["next"])):
        shown = part["observation"].reshape(other["observation"].shape)
        np.testing.assert_array_equal(shown, other["observation"])
    assert batch["mask"].all()


@pytest.fixture
def quick(monkeypatch):
    """Do not wait for the disk, which is most of the time that small shards take."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


ENDS = st.sampled_from(["terminal", "truncated"])


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plan=st.lists(st.tuples(st.integers(1, 7), ENDS, st.booleans()), min_size=1, max_size=6),
    cut=st.integers(0, 3),
    depth=st.integers(1, 5),
    n_step=st.integers(1, 4),
    final=st.sampled_from(["zeros", "stored"]),
    codec=st.sampled_from(["packed", "raw"]),
    commits=st.sets(st.integers(0, 5)),
)
def test_what_was_added_is_what_is_read(
    tmp_path_factory, plan, cut, depth, n_step, final, codec, commits, quick
):
    rng = np.random.default_rng(len(plan))
    episodes = [make_episode(rng, *each) for each in plan]
    path = tmp_path_factory.mktemp("recorded") / "data"
    with atarirb.Recorder(path, codec=codec) as recorder:
        for number, episode in enumerate(episodes):
            add(recorder, episode)
            if number in commits:
                recorder.commit()
        if cut:
            episodes.append(make_episode(rng, cut, "", False))
            add(recorder, episodes[-1])
        assert recorder.steps == sum(map(len, episodes))
    check(path, episodes, depth, n_step, final=final)
    assert atarirb.verify(path, deep=True).ok
    info = atarirb.show(path)
    kinds = [(episode.end, episode.final is not None) for episode in episodes]
    assert info.truncated_episodes == kinds.count(("truncated", True))
    assert info.cut_episodes == kinds.count(("truncated", False)) + kinds.count(("", False))


def test_environments_each_have_their_episode(tmp_path, quick):
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, length, "terminal", True) for length in (9, 4, 6)]
    with atarirb.Recorder(tmp_path / "data", environments=3) as recorder:
        for step in range(9):
            for environment, episode in enumerate(episodes):
                if step < len(episode):
                    last = step == len(episode) - 1
                    recorder.add(
                        episode.frames[step], episode.actions[step], episode.rewards[step], last, False,
                        final_observation=episode.final if last else None, environment=environment,
                    )  # fmt: skip
    check(tmp_path / "data", [episodes[number] for number in (1, 2, 0)], final="stored")  # as they ended


def test_an_episode_can_be_broken_off_with_what_is_seen_now(tmp_path, quick):
    episode = make_episode(np.random.default_rng(0), 5, "", True)
    with atarirb.Recorder(tmp_path / "data") as recorder:
        recorder.truncate(final_observation=episode.final)  # nothing to break off yet
        add(recorder, episode)
        recorder.truncate(final_observation=episode.final)
        recorder.truncate()
    check(tmp_path / "data", [episode], depth=3)


def test_clipped_rewards_keep_the_unclipped_beside(tmp_path, quick):
    rewards = [0.0, 7.5, -0.25, 1.0, -120.0]
    with atarirb.Recorder(tmp_path / "data", clip_rewards=True, extra={"lives": "int64"}) as recorder:
        for number, reward in enumerate(rewards):
            recorder.add(np.zeros(SHAPE, np.uint8), 0, reward, number == 4, False, lives=10**12 + number)
    with atarirb.open(tmp_path / "data", columns=["reward_unclipped", "lives"]) as reader:
        batch = reader[:]
        assert reader.info.rewards_clipped
    assert batch["next"]["reward"].tolist() == [0, 1, -1, 1, -1]
    assert batch["reward_unclipped"].tolist() == rewards
    assert batch["lives"].tolist() == [10**12 + number for number in range(5)]
    assert batch["lives"].dtype == np.int64


def test_it_is_read_while_it_grows(tmp_path, quick):
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, 6, "terminal", True) for _ in range(5)]
    path = tmp_path / "data"
    with atarirb.Recorder(path) as recorder:
        with pytest.raises(DatasetNotFoundError, match="recording of which no episodes are in a shard"):
            atarirb.open(path)
        add(recorder, episodes[0])
        recorder.commit()
        early = atarirb.open(path, final="stored")
        before = early[:]
        add(recorder, episodes[1])
        add(recorder, episodes[2], steps=3)
        recorder.commit()
        check(path, episodes[:2])
        truth.assert_same(early[:], before)
        with pytest.raises(BusyError):
            atarirb.Recorder(path)
    check(path, [*episodes[:2], Episode(episodes[2].frames[:3], episodes[2].actions, episodes[2].rewards)])
    truth.assert_same(early[:], before)
    early.close()


def test_readers_that_open_while_it_grows_always_find_a_whole_dataset(tmp_path, quick):
    rng = np.random.default_rng(0)
    path, stop, failures, counts = tmp_path / "data", threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                with atarirb.open(path) as reader:
                    counts.append(len(reader))
                    reader.get(len(reader) - 1)
            except Exception as error:
                failures.append(error)

    with atarirb.Recorder(path) as recorder:
        add(recorder, make_episode(rng, 3, "terminal", True))
        recorder.commit()
        thread = threading.Thread(target=read)
        thread.start()
        for _ in range(25):
            add(recorder, make_episode(rng, 3, "terminal", True))
            recorder.commit()
        stop.set()
        thread.join()
    assert not failures
    assert counts == sorted(counts)


def test_shards_grow_with_the_recording(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(module, "_FIRST_SHARD", 10)
    monkeypatch.setattr(module, "_MOST_SHARD", 25)
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, 5, "terminal", False) for _ in range(40)]
    for name in ("once", "again"):
        with atarirb.Recorder(tmp_path / name, name="Game/1") as recorder:
            for episode in episodes:
                add(recorder, episode)
    check(tmp_path / "once", episodes)
    shards = json.loads((tmp_path / "once/dataset.json").read_text())["shards"]
    assert [shard["steps"] for shard in shards] == [*[10] * 5, 15, 20, 25, 25, 25, 25, 15]
    assert contents(tmp_path / "once") == contents(tmp_path / "again")


def contents(path):
    return {
        str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()
    }


def test_a_recorder_goes_on_where_the_one_before_left_off(tmp_path, quick):
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, length, "truncated", True) for length in (4, 7, 2, 9)]
    path = tmp_path / "data"
    for episode in episodes:
        with atarirb.Recorder(path) as recorder:
            add(recorder, episode)
    check(path, episodes, depth=2, n_step=2)
    with atarirb.Recorder(path) as recorder:
        assert recorder.steps == 22
    check(path, episodes)


def record_until_killed(path):
    """Record without end, and say after each step that it was made."""
    recorder = atarirb.Recorder(path, environments=2)
    for step in range(10**6):
        frame = np.full(SHAPE, step % 251, np.uint8)
        recorder.add(frame, step % 6, step % 5, step % 31 == 30, False, environment=step % 2)
        print(step, flush=True)
        if step % 100 == 99:
            recorder.commit()


@pytest.mark.parametrize("at", [1, 60, 99, 100, 237])
def test_a_killed_recording_keeps_every_step(tmp_path, at):
    path = tmp_path / "data"
    code = "import sys; from tests.test_recorder import record_until_killed; record_until_killed(sys.argv[1])"
    child = subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdout=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
    )
    made = -1
    for line in child.stdout:
        made = int(line)
        if made >= at:
            child.send_signal(signal.SIGKILL)
            break
    made = max([made, *(int(line) for line in child.stdout if line.strip().isdecimal())])
    child.wait()
    child.stdout.close()
    with atarirb.Recorder(path, environments=2) as recorder:
        kept = recorder.steps
        assert made + 1 <= kept <= made + 2
    with atarirb.open(path) as reader:
        batch = reader[:]
    assert sorted(batch["observation"][:, 0, 0].tolist()) == sorted(step % 251 for step in range(kept))
    assert atarirb.verify(path, deep=True).ok


def test_a_journal_cut_anywhere_keeps_its_whole_steps(tmp_path, quick):
    episode = make_episode(np.random.default_rng(0), 3, "", True)
    path = tmp_path / "data"
    recorder = atarirb.Recorder(path)
    sizes = [0]
    for step in range(3):
        recorder.add(episode.frames[step], episode.actions[step], episode.rewards[step], False, False)
        sizes.append((path / ".recording/open-0").stat().st_size)
    whole = (path / ".recording/open-0").read_bytes()
    rows = recorder._rows
    for size in range(len(whole) + 1):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:size])
        found = rows(cut)
        assert found.steps == sum(size >= end for end in sizes[1:])
        assert found.bytes == sizes[found.steps]
        shown = list(found.frames())
        assert len(shown) == found.steps
        for frame, kept in zip(shown, episode.frames, strict=False):
            np.testing.assert_array_equal(frame, kept)
    for place in range(len(whole)):  # damage ends what is whole
        cut.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert rows(cut).steps == sum(place >= end for end in sizes[1:])
    recorder.close()
    check(path, [Episode(episode.frames, episode.actions, episode.rewards)])


def test_a_stop_between_a_shard_and_its_journals_repeats_nothing(tmp_path, quick):
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, 5, "terminal", True) for _ in range(3)]
    path = tmp_path / "data"
    recorder = atarirb.Recorder(path)
    for episode in episodes:
        add(recorder, episode)
    journals = {file.name: file.read_bytes() for file in (path / ".recording").glob("ended-*")}
    assert len(journals) == 3
    recorder.close()
    for name, content in journals.items():
        (path / ".recording" / name).write_bytes(content)
    (path / "dataset.json").unlink()
    with atarirb.Recorder(path) as again:
        assert again.steps == 15
    check(path, episodes)


def test_what_goes_wrong_in_the_background_is_raised_and_nothing_is_lost(tmp_path, quick, monkeypatch):
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, 5, "terminal", True) for _ in range(4)]
    path = tmp_path / "data"
    recorder = atarirb.Recorder(path)
    for episode in episodes[:2]:
        add(recorder, episode)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.building, "finish", full)
        with pytest.raises(OSError, match="No space left"):
            recorder.commit()
        with pytest.raises(OSError, match="No space left"):
            recorder.close()
    with atarirb.Recorder(path) as again:
        assert again.steps == 10
        for episode in episodes[2:]:
            add(again, episode)
    check(path, episodes)


def test_wrong_calls_are_refused_and_leave_nothing(tmp_path, quick):
    frame = np.zeros(SHAPE, np.uint8)
    path = tmp_path / "data"
    with atarirb.Recorder(path, extra={"lives": "int8"}) as recorder:
        recorder.add(frame, 0, 0, False, False, lives=3)
        good = {"observation": frame, "action": 0, "reward": 0, "terminated": False, "truncated": False}
        good["lives"] = 3
        for words, changed in [
            ("observation is float64", {"observation": frame * 1.0}),
            (r"observation is uint8\[4\], expected uint8\[5, 4\]", {"observation": frame[0]}),
            ("action is -1", {"action": -1}),
            ("action is 0.5", {"action": 0.5}),
            ("action is array", {"action": np.array([0, 1])}),
            ("action is 'up'", {"action": "up"}),
            ("reward is None", {"reward": None}),
            ("reward is nan", {"reward": np.nan}),
            (r"extra columns \['lives', 'x'\], expected \['lives'\]", {"x": 1}),
            ("final_observation goes with", {"final_observation": frame}),
            ("environment 1, expected 0 to 0", {"environment": 1}),
        ]:
            with pytest.raises(ArgumentError, match=words):
                recorder.add(**{**good, **changed})
        assert recorder.steps == 1
    with pytest.raises(ClosedError, match="make a new one to go on"):
        recorder.add(frame, 0, 0, False, False, lives=3)
    recorder.close()
    for words, options in [
        ("extra", {}),
        ("clip_rewards", {"extra": {"lives": "int8"}, "clip_rewards": True}),
        ("name", {"extra": {"lives": "int8"}, "name": "other/1"}),
        ("codec", {"extra": {"lives": "int8"}, "codec": "raw"}),
    ]:
        with pytest.raises(ArgumentError, match=f"is a recording with {words}"):
            atarirb.Recorder(path, **options)
    for extra in ({"action": "int8"}, {"a b": "int8"}, {"x": "U3"}, {"x": "nonsense"}):
        with pytest.raises(ArgumentError, match="extra column"):
            atarirb.Recorder(tmp_path / "other", extra=extra)
    with pytest.raises(ArgumentError, match="codec is 'mp4'"):
        atarirb.Recorder(tmp_path / "other", codec="mp4")


def test_a_dataset_that_was_not_recorded_is_left_alone(tmp_path, quick):
    path, _ = truth.dataset(tmp_path, [5, 6], capacity=20)
    before = contents(path)
    with pytest.raises(ArgumentError, match="holds a dataset that was not recorded there"):
        atarirb.Recorder(path)
    assert contents(path) == before


def test_a_recorder_that_was_given_nothing_leaves_nothing(tmp_path):
    with atarirb.Recorder(tmp_path / "deep/data"):
        pass
    assert not (tmp_path / "deep").exists()


def test_threads_may_add(tmp_path, quick):
    def play(environment):
        for step in range(200):
            frame = np.full(SHAPE, environment, np.uint8)
            recorder.add(frame, environment, step, step % 20 == 19, False, environment=environment)

    with atarirb.Recorder(tmp_path / "data", environments=4) as recorder:
        threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with atarirb.open(tmp_path / "data") as reader:
        batch = reader[:]
        assert len(reader) == 800
        assert set(reader.episodes["length"]) == {20}
    np.testing.assert_array_equal(batch["observation"][:, 0, 0], batch["action"])


class Full(OSError):
    """A disk that is full."""


def fail_at(monkeypatch, call):
    """Let the `call`-th writing of a record fail, before or after a part of it is on file."""
    calls = iter(range(10**9))
    write = journal.Journal._add

    def failing(self, kind, row, frame):
        if next(calls) == call:
            self._file.write(b"torn")
            raise Full(28, "No space left on device")
        write(self, kind, row, frame)

    monkeypatch.setattr(journal.Journal, "_add", failing)


@pytest.mark.parametrize("call", range(8))
def test_a_record_that_cannot_be_written_takes_no_other_with_it(tmp_path, quick, monkeypatch, call):
    """Whichever it is: the first of an episode, one in its midst, its last or its final frame."""
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, 3, "terminal", True) for _ in range(2)]
    fail_at(monkeypatch, call)
    path = tmp_path / "data"
    kept = []
    with atarirb.Recorder(path) as recorder:
        for episode in episodes:
            for step in range(3):
                last = step == 2
                try:
                    recorder.add(
                        episode.frames[step], episode.actions[step], episode.rewards[step], last, False,
                        final_observation=episode.final if last else None,
                    )  # fmt: skip
                except Full:
                    if call in (3, 7):  # the step was recorded, its final frame was not
                        kept.append(episode.frames[step])
                else:
                    kept.append(episode.frames[step])
    with atarirb.open(path) as reader:
        np.testing.assert_array_equal(reader[:]["observation"], kept)
        ends = reader.episodes["start"] + reader.episodes["length"]
        assert ends.tolist() in ([3, 6], [3, 5], [2, 5], [5], [len(kept)])
    assert atarirb.verify(path, deep=True).ok


def test_an_interrupt_while_a_record_is_written_spoils_no_other(tmp_path, quick, monkeypatch):
    episode = make_episode(np.random.default_rng(0), 4, "terminal", False)
    path = tmp_path / "data"
    with atarirb.Recorder(path) as recorder:
        add(recorder, episode, steps=2)
        file = recorder._journals[0]._file

        class Interrupting:
            def __getattr__(self, name):
                return getattr(file, name)

            def write(self, data):
                file.write(data)
                raise KeyboardInterrupt

        recorder._journals[0]._file = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            recorder.add(episode.frames[3], 0, 0, False, False)
        recorder._journals[0]._file = file
        for step in (2, 3):
            recorder.add(episode.frames[step], episode.actions[step], episode.rewards[step], step == 3, False)
    check(path, [episode])


def test_a_manifest_that_could_not_be_written_repeats_no_step(tmp_path, quick, monkeypatch):
    rng = np.random.default_rng(0)
    episodes = [make_episode(rng, 3, "terminal", True) for _ in range(3)]
    path = tmp_path / "data"
    with atarirb.Recorder(path) as recorder:
        add(recorder, episodes[0])
        with monkeypatch.context() as patch:
            patch.setattr(module.building, "finish", lambda *a, **k: (_ for _ in ()).throw(Full(28, "full")))
            with pytest.raises(Full):
                recorder.commit()
        for episode in episodes[1:]:
            add(recorder, episode)
        assert recorder.steps == 9
    check(path, episodes)
    assert atarirb.verify(path, deep=True).ok


def test_a_shard_that_cannot_be_read_stops_a_recorder(tmp_path, quick):
    path = tmp_path / "data"
    for _ in range(2):
        with atarirb.Recorder(path) as recorder:
            add(recorder, make_episode(np.random.default_rng(0), 3, "terminal", True))
    before = contents(path)
    (path / "00001/shard.json").write_bytes(b"{")
    with pytest.raises(DatasetError, match="00001/shard.json: missing or damaged; put it back"):
        atarirb.Recorder(path)
    (path / "00001").rename(tmp_path / "moved")
    with pytest.raises(DatasetError, match="00001: missing, though the manifest lists it"):
        atarirb.Recorder(path)
    (tmp_path / "moved").rename(path / "00001")
    (path / "00001/shard.json").write_bytes(before["00001/shard.json"])
    assert contents(path) == before


def test_nothing_else_is_made_in_a_recordings_directory(tmp_path, quick):
    steps, _ = truth.play(tmp_path / "Pong/1", [5, 6], capacity=20)
    assert len(steps)
    path = tmp_path / "data"
    with atarirb.Recorder(path, name="Pong/1") as recorder:
        add(recorder, make_episode(np.random.default_rng(0), 3, "terminal", True))
        recorder.commit()
        before = contents(path)
        with pytest.raises(ArgumentError, match="holds a recording; name another"):
            atarirb.ingest(tmp_path / "Pong/1", path)
        atarirb.convert(path, tmp_path / "raw", codec="raw")
        assert contents(path) == before
    with pytest.raises(ArgumentError, match=r"holds Pong/1 \(recording\) with codec raw"):
        atarirb.ingest(tmp_path / "Pong/1", tmp_path / "raw", codec="raw")
    with pytest.raises(ArgumentError, match="not recorded there"):
        atarirb.Recorder(tmp_path / "raw", codec="raw")


@pytest.mark.filterwarnings("ignore:.*fork")  # JAX and Python warn of it where threads are about
def test_a_child_made_by_fork_leaves_the_recording_alone(tmp_path, quick):
    episode = make_episode(np.random.default_rng(0), 4, "terminal", False)
    with atarirb.Recorder(tmp_path / "data") as recorder:
        add(recorder, episode, steps=2)
        pid = os.fork()
        if not pid:
            try:
                recorder.add(episode.frames[0], 0, 0, False, False)
            except ClosedError:
                recorder.close()
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        for step in (2, 3):
            recorder.add(episode.frames[step], episode.actions[step], episode.rewards[step], step == 3, False)
    check(tmp_path / "data", [episode])


def test_a_recording_may_be_moved_and_keeps_its_note(tmp_path, quick):
    note = {"sizes": (1, 2), "of": {"x": 1.5}}
    with atarirb.Recorder(tmp_path / "a/1", note=note) as recorder:
        add(recorder, make_episode(np.random.default_rng(0), 3, "terminal", True))
    (tmp_path / "a").rename(tmp_path / "b")
    with atarirb.Recorder(tmp_path / "b/1", note=note) as recorder:
        assert recorder.steps == 3
    assert atarirb.show(tmp_path / "b/1").name == "a/1"
    with pytest.raises(ArgumentError, match="expected what JSON can hold"):
        atarirb.Recorder(tmp_path / "c", note={"x": np.int64(1)})


def test_values_that_would_not_be_kept_as_they_are_are_refused(tmp_path, quick):
    frame = np.zeros(SHAPE, np.uint8)
    with atarirb.Recorder(tmp_path / "data", clip_rewards=True, extra={"lives": "u1"}) as recorder:
        for words, reward, lives in [
            ("reward is inf", np.inf, 1), ("reward is 1e\\+39", 1e39, 1), ("lives is 1.7", 0, 1.7),
            ("expected {'lives'", 0, 300), ("expected {'lives'", 0, "x"),
        ]:  # fmt: skip
            with pytest.raises(ArgumentError, match=words):
                recorder.add(frame, 0, reward, False, False, lives=lives)
        assert recorder.steps == 0
    for name in ("environment", "self", "final_observation", "reward_unclipped"):
        with pytest.raises(ArgumentError, match="may not be called"):
            atarirb.Recorder(tmp_path / "other", extra={name: "i4"})
