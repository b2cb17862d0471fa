"""Policies by name."""

import numpy as np
import pytest

from atarirb.errors import ArgumentError
from atarirb.recording import policies
from benchmarks import policies as more

FRAME = np.zeros((84, 84), np.uint8)


def acts(policy, actions=6, seed=0, steps=3000):
    act = policy(actions, np.random.default_rng(seed))
    return [act(FRAME) for _ in range(steps)]


@pytest.mark.parametrize("policy", [policies.random, more.persistent, more.paddle])
def test_play_is_a_function_of_the_seed(policy):
    chosen = acts(policy)
    assert chosen == acts(policy)
    assert chosen != acts(policy, seed=1)
    assert all(type(action) is int for action in chosen)
    assert set(chosen) == set(range(6))


def test_random_is_uniform():
    counts = np.bincount(acts(policies.random, 4, steps=8000), minlength=4)
    assert (abs(counts - 2000) < 200).all()


def test_persistent_holds_an_action_for_a_while():
    changes = np.count_nonzero(np.diff(acts(more.persistent, 18, steps=20_000)))
    assert 6 < 20_000 / changes < 11


def test_a_policy_is_found_by_its_name(tmp_path, monkeypatch):
    assert policies.load("random") is policies.random
    assert policies.load("benchmarks.policies:paddle") is more.paddle
    monkeypatch.setattr("sys.path", ["/elsewhere"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_player.py").write_text(
        "class Agent:\n    @staticmethod\n    def act(actions, rng):\n        return lambda observation: 1\n"
    )
    assert acts(policies.load("my_own_player:Agent.act"), steps=2) == [1, 1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("greedy", "expected 'random' or 'module:function'"),
        ("", "expected 'random' or 'module:function'"),
        ("a:", "expected 'random' or 'module:function'"),
        (":f", "expected 'random' or 'module:function'"),
        ("a/b.py:f", "expected 'random' or 'module:function'"),
        ("no_such_thing:f", "module 'no_such_thing' cannot be imported: No module named"),
        ("atarirb.nothing:f", "module 'atarirb.nothing' cannot be imported: No module named"),
        ("benchmarks.policies:padle", "'benchmarks.policies' has no 'padle'"),
        ("benchmarks.policies:HOLD", "is of type int, expected a function"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name, message):
    with pytest.raises(ArgumentError, match=message):
        policies.load(name)


@pytest.mark.parametrize(("game", "steps", "least"), [("Pong", 150, -1), ("Breakout", 250, 8)])
def test_paddle_meets_the_ball(game, steps, least):
    pytest.importorskip("ale_py")
    pytest.importorskip("gymnasium")
    from atarirb.sources.ale import Games

    games = Games(game, 2)
    shown = games.reset(np.array([0, 1]))
    players = [more.paddle(games.actions, np.random.default_rng(seed)) for seed in (0, 1)]
    score = 0.0
    for _ in range(steps):
        chosen = np.array([act(frame) for act, frame in zip(players, shown, strict=True)])
        outcome = games.step(chosen)
        shown = outcome.observation
        score += outcome.reward[outcome.played].sum()
        for number in np.flatnonzero(outcome.begun):
            players[number] = more.paddle(games.actions, np.random.default_rng(number))
    games.close()
    assert score >= least  # random play: -4 and 5
