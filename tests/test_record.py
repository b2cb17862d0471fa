"""The verb `record`: games played and kept, as a dataset or as replay logs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import atarirb
from atarirb.errors import ArgumentError, UnknownGameError
from atarirb.recording import recorder as module
from atarirb.sources.ale import Games
from tests.test_recorder import contents

pytest.importorskip("ale_py")
pytest.importorskip("gymnasium")

ROOT = pathlib.Path(__file__).parents[1]


def in_turn(actions, rng):
    """A policy without chance: what it does depends on the episode's steps alone."""
    made = iter(range(10**9))
    return lambda observation: next(made) // 3 % actions


def run(*arguments, **options):
    command = [sys.executable, "-m", "atarirb", "record", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_SHARD", 400)


def test_a_recording_is_what_the_games_showed(tmp_path, small_shards):
    """Played again by a loop of its own, environment by environment."""
    path = tmp_path / "Breakout/me"
    info = atarirb.record("Breakout", path, steps=1500, policy=in_turn, environments=2, seed=5)
    assert (info.name, info.steps, info.codec) == ("Breakout/me", 1500, "packed")
    groups = [Games("Breakout", 1) for _ in range(2)]  # as many as there are, in turns
    shown, acts, open_episodes, ended, steps = [], [], [[], []], [], 0
    for games, source in zip(groups, np.random.SeedSequence([5, 0]).spawn(2), strict=True):
        shown.append(games.reset(source.spawn(1)[0].generate_state(1) >> 1)[0])
        acts.append(in_turn(games.actions, None))
    while steps < 1500:
        for number, games in enumerate(groups):
            action = acts[number](None)
            outcome = games.step(np.array([action]))
            if outcome.begun[0]:
                acts[number] = in_turn(games.actions, None)
            elif steps < 1500:
                steps += 1
                row = (shown[number], action, outcome.reward[0], outcome.observation[0])
                open_episodes[number].append(row)
                if outcome.terminated[0]:
                    ended.append((open_episodes[number], True))
                    open_episodes[number] = []
            if steps < 1500 or outcome.played[0]:
                shown[number] = outcome.observation[0]
    for games in groups:
        games.close()
    ended += [(rows, False) for rows in open_episodes if rows]
    rows = [row for episode, _ in ended for row in episode]
    assert len(ended) > 4
    with atarirb.open(path, final="stored", columns=["reward_unclipped"]) as reader:
        batch = reader[:]
        np.testing.assert_array_equal(batch["observation"], [row[0] for row in rows])
        np.testing.assert_array_equal(batch["action"], [row[1] for row in rows])
        np.testing.assert_array_equal(batch["reward_unclipped"], [row[2] for row in rows])
        np.testing.assert_array_equal(batch["next"]["reward"], np.sign([row[2] for row in rows]))
        np.testing.assert_array_equal(batch["next"]["observation"], [row[3] for row in rows])
        np.testing.assert_array_equal(reader.episodes["length"], [len(episode) for episode, _ in ended])
        np.testing.assert_array_equal(reader.episodes["terminal"], [over for _, over in ended])
        assert reader.valid_steps == 1500
    assert len(json.loads((path / "dataset.json").read_text())["shards"]) > 1
    assert atarirb.verify(path, deep=True).ok


def test_the_same_arguments_give_the_same_bytes(tmp_path, small_shards):
    for name in ("a", "b"):
        atarirb.record("Breakout", tmp_path / name, steps=1200, environments=3, seed=7, name="Breakout/x")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    before = contents(tmp_path / "a")
    atarirb.record("Breakout", tmp_path / "a", steps=1200, environments=3, seed=7, name="Breakout/x")
    assert contents(tmp_path / "a") == before
    atarirb.record("Breakout", tmp_path / "c", steps=1200, environments=3, seed=8, name="Breakout/x")
    assert contents(tmp_path / "c") != before
    info = atarirb.record("Breakout", tmp_path / "a", steps=1500, environments=3, seed=7, name="Breakout/x")
    assert info.steps == 1500
    with atarirb.open(tmp_path / "a") as reader, atarirb.open(tmp_path / "b") as other:
        np.testing.assert_array_equal(reader[:1200]["observation"], other[:]["observation"])


def test_a_cap_truncates_with_the_frame_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr("atarirb.verbs.record.Games", lambda game, count: Games(game, count, time_limit=50))
    atarirb.record("Pong", tmp_path / "data", steps=300, environments=2)
    with atarirb.open(tmp_path / "data") as reader:
        assert reader.episodes["length"].tolist() == [50] * 6
        assert not reader.episodes["terminal"].any()
        assert (reader.episodes["final"] >= 0).all()
        last = reader.get([49])["next"]
        assert last["truncated"].all()
        assert last["observation"].any()
        assert reader.valid_steps == 300


def wait_for_steps(path, child):
    deadline = time.time() + 60
    while sum(file.stat().st_size for file in path.glob(".recording/*-*")) < 300_000:
        assert child.poll() is None, child.stderr.read()
        assert time.time() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_recording_keeps_its_steps_and_goes_on(tmp_path, how):
    path = tmp_path / "Breakout/me"
    arguments = ("Breakout", "--steps", 10**6, "--out", path, "--environments", 2)
    child = run(*arguments, start_new_session=True)
    wait_for_steps(path, child)
    os.killpg(child.pid, how)
    _, words = child.communicate(timeout=60)
    if how == signal.SIGINT:
        assert child.returncode == 130
        assert words == "interrupted; every step is kept, and the same command goes on from here\n"
        info = atarirb.show(path)
        assert info.cut_episodes == 0
        assert 1 <= info.truncated_episodes <= 2
    with atarirb.Recorder(
        path, environments=2, clip_rewards=True,
        note={"game": "Breakout", "seed": 0, "environments": 2, "policy": "random"},
    ) as recorder:  # fmt: skip
        kept = recorder.steps
    assert kept > 300
    with atarirb.open(path) as reader:
        before = reader[:]["observation"]
    info = atarirb.record("Breakout", path, steps=kept + 200, environments=2)
    assert info.steps == kept + 200
    assert info.cut_episodes in ((1, 2) if how == signal.SIGKILL else (0,))  # some are between two
    with atarirb.open(path) as reader:
        np.testing.assert_array_equal(reader[:kept]["observation"], before)
    assert atarirb.verify(path, deep=True).ok


def test_replay_logs_are_read_back_by_the_rules(tmp_path):
    run_directory = tmp_path / "Breakout/1"
    options = {"steps": 1500, "environments": 2, "seed": 3}
    info = atarirb.record("Breakout", run_directory, replay_logs=True, capacity=400, **options)
    assert str(info).startswith("Breakout/1  (")
    assert "replay logs of 1,500 steps in" in str(info)
    assert sorted(path.name for path in run_directory.iterdir()) == ["recording.json", "replay_logs"]
    atarirb.record("Breakout", tmp_path / "data", name="Breakout/1", **options)
    got = atarirb.ingest(run_directory, tmp_path / "ingested")
    with atarirb.open(tmp_path / "ingested") as reader, atarirb.open(tmp_path / "data") as played:
        assert len(reader) == 1500 or got.holes
        batch, truth = reader[:], played[:]
        # The logs' steps are the play's, in order; windows that were never written are left out.
        at, done = 0, truth["next"]["done"]
        for row in range(len(reader)):
            while not (
                np.array_equal(batch["observation"][row], truth["observation"][at])
                and batch["action"][row] == truth["action"][at]
                and batch["next"]["reward"][row] == truth["next"]["reward"][at]
            ):
                at += 1
            if row + 1 < len(reader) and not batch["next"]["truncated"][row]:
                assert batch["next"]["terminated"][row] == done[at]
            at += 1
    again = atarirb.record("Breakout", run_directory, replay_logs=True, capacity=400, **options)
    assert again == info
    with pytest.raises(ArgumentError, match="holds replay logs of .*'capacity': 400.*, expected .*500"):
        atarirb.record("Breakout", run_directory, replay_logs=True, capacity=500, **options)
    other = tmp_path / "twin/Breakout/1"
    atarirb.record("Breakout", other, replay_logs=True, capacity=400, **options)
    assert contents(other) == contents(run_directory)


def test_replay_logs_look_like_the_samples(tmp_path):
    """Names, headers and dtypes are those of the logs that Dopamine's own buffer wrote."""
    import gzip

    sample = ROOT / "tests/data/samples/Pong/1/replay_logs"
    atarirb.record("Pong", tmp_path / "Pong/1", steps=2300, capacity=2000, replay_logs=True, environments=2)
    ours = tmp_path / "Pong/1/replay_logs"
    assert {path.name for path in ours.iterdir()} <= {path.name for path in sample.iterdir()}
    for path in ours.glob("*_ckpt.0.gz"):
        mine, theirs = (gzip.decompress((place / path.name).read_bytes()) for place in (ours, sample))
        begin = mine.index(b"\n") + 1
        assert mine[:begin] == theirs[: theirs.index(b"\n") + 1], path.name
        assert len(mine) == len(theirs)
        if path.name.startswith(("add_count", "invalid_range")):
            assert mine == theirs


def test_wrong_arguments_are_refused(tmp_path):
    with pytest.raises(UnknownGameError, match="did you mean 'Pong'"):
        atarirb.record("Pnog", tmp_path / "x", steps=10)
    for options, words in [
        ({"steps": 0}, "steps is 0"),
        ({"steps": 10, "environments": 0}, "environments is 0"),
        ({"steps": 10, "policy": "nowhere:policy"}, "module 'nowhere' cannot be imported"),
        ({"steps": 10, "codec": "mp4"}, "codec is 'mp4'"),
        ({"steps": 10, "replay_logs": True, "capacity": 0}, "capacity is 0"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            atarirb.record("Pong", tmp_path / "x", **options)
    assert not (tmp_path / "x").exists()
    atarirb.record("Pong", tmp_path / "data", steps=10, environments=1)
    for options in ({"seed": 1}, {"policy": in_turn}, {"environments": 2}):
        with pytest.raises(ArgumentError, match="is a recording with note"):
            atarirb.record("Pong", tmp_path / "data", **{"steps": 20, "environments": 1, **options})
