"""Atari games behind the logs' preprocessing, against a plain loop over the emulator."""

import sys

import numpy as np
import pytest

from atarirb import catalog
from atarirb.errors import ArgumentError, ClosedError, MissingPackageError, UnknownGameError
from atarirb.sources.ale import Games

ale_py = pytest.importorskip("ale_py")
pytest.importorskip("gymnasium")


@pytest.fixture
def games():
    """Return a function that loads games, closed when the test ends."""
    made = []

    def load(*arguments, **options):
        made.append(Games(*arguments, **options))
        return made[-1]

    yield load
    for each in made:
        each.close()


def random_actions(game, steps, seed):
    return np.random.default_rng(seed).integers(len(catalog.game(game).minimal_actions), size=steps)


def emulate(game, seed, actions):
    """Play by a plain loop; return the observations, one more than steps, the rewards, and if it is over."""
    cv2 = pytest.importorskip("cv2")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.25)
    ale.loadROM(ale_py.roms.get_rom_path(catalog.game(game).rom))
    ale.reset_game()
    legal = ale.getMinimalActionSet()
    shown = [cv2.resize(ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)]
    rewards = []
    for action in actions:
        reward, screens = 0, []
        for _ in range(4):
            reward += ale.act(legal[action])
            if ale.game_over():
                return shown, [*rewards, reward], True
            screens.append(ale.getScreenGrayscale())
        shown.append(cv2.resize(np.maximum(*screens[-2:]), (84, 84), interpolation=cv2.INTER_AREA))
        rewards.append(reward)
    return shown, rewards, False


@pytest.mark.parametrize("game", ["Seaquest", "Breakout"])
def test_play_is_that_of_a_plain_loop(games, game):
    seeds, plans = np.array([5, 6]), [random_actions(game, 300, seed) for seed in (1, 2)]
    expected = [emulate(game, seed, plan) for seed, plan in zip(seeds.tolist(), plans, strict=True)]
    steps = min(len(rewards) for _, rewards, _ in expected)
    assert any(over for _, _, over in expected) == (game == "Breakout")
    played = games(game, 2)
    observations = [played.reset(seeds)]
    copies = [observations[0].copy()]
    for step in range(steps):
        outcome = played.step(np.array([plan[step] for plan in plans]))
        observations.append(outcome.observation)
        copies.append(outcome.observation.copy())
        assert outcome.played.all()
        assert not outcome.begun.any()
        for number, (shown, rewards, over) in enumerate(expected):
            assert outcome.reward[number] == rewards[step]
            assert outcome.terminated[number] == (over and step == len(rewards) - 1)
            if not outcome.terminated[number]:
                np.testing.assert_array_equal(observations[step][number], shown[step])
    assert [part.dtype for part in outcome] == [np.uint8, np.float32, bool, bool, bool, bool]
    assert not outcome.truncated.any()
    np.testing.assert_array_equal(observations, copies)  # what was handed out did not change


def test_an_environment_begins_anew_by_itself(games):
    """After a game over in one round, after a truncation in two, in which nothing is played."""
    played = games("Breakout", 4, time_limit=150)
    played.reset(np.arange(4))
    rng = np.random.default_rng(0)
    steps, since, gaps, ended = np.zeros(4, int), np.zeros(4, int), set(), {}
    for _ in range(700):
        outcome = played.step(rng.integers(4, size=4))
        assert not (outcome.played & outcome.begun).any()
        for number in range(4):
            if outcome.played[number]:
                steps[number] += 1
                assert since[number] == 0
            if outcome.terminated[number] or outcome.truncated[number]:
                assert not (outcome.terminated[number] and outcome.truncated[number])
                assert outcome.truncated[number] == (steps[number] == 150 and not outcome.terminated[number])
                ended[number] = "over" if outcome.terminated[number] else "cut"
                since[number] = 1
            elif outcome.begun[number]:
                gaps.add((ended[number], int(since[number])))
                steps[number], since[number] = 0, 0
            elif since[number]:
                since[number] += 1
    assert gaps == {("over", 1), ("cut", 2)}


def test_the_cap_of_steps_truncates_and_keeps_the_last_frame(games):
    plan = random_actions("Pong", 12, 0)
    whole, capped = games("Pong", 1), games("Pong", 1, time_limit=6)
    np.testing.assert_array_equal(whole.reset(np.array([4])), capped.reset(np.array([4])))
    for step, action in enumerate(plan[:6]):
        expected, outcome = whole.step(np.array([action])), capped.step(np.array([action]))
        np.testing.assert_array_equal(outcome.observation, expected.observation)  # of the last step as well
        assert outcome.truncated[0] == (step == 5)
        assert not outcome.terminated[0]
    idle, begun = capped.step(np.array([0])), capped.step(np.array([0]))
    assert not (idle.played[0] or idle.begun[0])
    assert begun.begun[0]
    assert not begun.played[0]
    assert [capped.step(np.array([0])).truncated[0] for _ in range(6)] == [False] * 5 + [True]


def test_a_game_over_on_the_last_step_terminates(games):
    plan = random_actions("Breakout", 400, 0)
    _, rewards, over = emulate("Breakout", 1, plan)
    assert over
    played = games("Breakout", 1, time_limit=len(rewards))
    played.reset(np.array([1]))
    outcomes = [played.step(plan[step : step + 1]) for step in range(len(rewards))]
    assert outcomes[-1].terminated[0]
    assert not any(outcome.truncated[0] for outcome in outcomes)
    assert played.step(np.array([0])).begun[0]


def test_play_is_a_function_of_seeds_and_actions(games):
    plan = random_actions("Breakout", 3 * 400, 0).reshape(400, 3)
    first, second = games("Breakout", 3), games("Breakout", 3, threads=1)
    for each in (first, second):
        each.reset(np.array([3, 1, 2]))
    for actions in plan:
        for part, expected in zip(second.step(actions), first.step(actions), strict=True):
            np.testing.assert_array_equal(part, expected)


def test_a_round_can_be_started_and_fetched_later(games):
    at_once, later = games("Pong", 3), games("Pong", 3)
    with pytest.raises(ArgumentError, match="reset them first"):
        later.send(np.zeros(3, int))
    for each in (at_once, later):
        each.reset(np.arange(3))
    with pytest.raises(ArgumentError, match="no round is under way"):
        later.receive()
    for actions in random_actions("Pong", 30, 0).reshape(10, 3):
        later.send(actions)
        for part, expected in zip(later.receive(), at_once.step(actions), strict=True):
            np.testing.assert_array_equal(part, expected)
    later.send(actions)
    with pytest.raises(ArgumentError, match="a round is under way: receive it first"):
        later.reset(np.arange(3))


def test_wrong_arguments_are_refused(games):
    played = games("Pong", 2)
    for seed in (-1, 2**31, 0.5):
        with pytest.raises(ArgumentError, match="expected integers from 0 to 2,147,483,647"):
            played.reset(np.array([0, seed]))
    with pytest.raises(ArgumentError, match=r"seeds of shape \(1,\), expected one for each of 2"):
        played.reset(np.array([1]))
    played.reset(np.array([0, 2**31 - 1]))
    with pytest.raises(ArgumentError, match="expected integers from 0 to 5"):
        played.step(np.array([0, 6]))
    with pytest.raises(ArgumentError, match=r"actions of shape \(1,\)"):
        played.step(np.array([0]))
    played.close()
    played.close()
    with pytest.raises(ClosedError, match="load them again"):
        played.step(np.zeros(2, np.int64))
    with pytest.raises(ArgumentError, match="count is 0"):
        Games("Pong", 0)


def test_an_unknown_game_is_answered_with_the_nearest():
    with pytest.raises(UnknownGameError, match="did you mean 'Pong'"):
        Games("Pnog", 1)


@pytest.mark.parametrize("module", ["ale_py", "ale_py.vector_env"])  # the second needs gymnasium
def test_a_missing_package_names_the_extra(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=r"playing needs ale-py.*pip install 'atarirb\[play\]'"):
        Games("Pong", 1)
