"""Final frames: what is shown after an episode's last step, where that is known."""

import numpy as np
import pytest

import atarirb
from tests import shards, truth

EPISODES = [
    [(5, 1, True), (1, 2, True), (7, 1, False)],
    [(4, 2, False), (3, 1, True)],
    [(1, 1, True)],
    [(6, 2, True), (9, 0, False)],
]


@pytest.fixture(scope="module")
def recorded(codec, tmp_path_factory):
    path = tmp_path_factory.mktemp("final") / "data"
    return path, shards.write(path, EPISODES, codec=codec)


def expected_next(episode, step, n_step, frame_stack, final):
    """The stack n steps on: that after the last step, or zeros, where the episode ends on the way."""
    length = len(episode.frames)
    at = min(step + n_step, length)
    blank = np.zeros_like(episode.frames[0])
    shows_final = episode.final is not None and (episode.terminal != 1 or final == "stored")
    if at == length and not shows_final:
        return np.stack([blank] * frame_stack, -1)
    played = [*episode.frames, *([episode.final] if episode.final is not None else [])]
    return np.stack([played[k] if k >= 0 else blank for k in range(at - frame_stack + 1, at + 1)], -1)


@pytest.mark.parametrize("final", ["zeros", "stored"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("frame_stack", [1, 3, 4, 8])
def test_the_next_observation_is_the_final_one_where_it_is_known(recorded, final, n_step, frame_stack):
    path, episodes = recorded
    with atarirb.open(path, frame_stack=frame_stack, n_step=n_step, final=final) as reader:
        batch = reader[:]
        starts = reader.episodes["start"]
        for number, episode in enumerate(episodes):
            for step in range(len(episode.frames)):
                row = starts[number] + step
                expected = expected_next(episode, step, n_step, frame_stack, final)
                found = batch["next"]["observation"][row].reshape(expected.shape)
                np.testing.assert_array_equal(found, expected, err_msg=f"episode {number}, step {step}")
                over = step + n_step >= len(episode.frames)
                assert batch["next"]["terminated"][row] == (over and episode.terminal == 1)
                assert batch["next"]["truncated"][row] == (over and episode.terminal != 1)
        for length in (1, 3, 6):
            drawn = reader.sample_slices(3, 200, length, strict_length=False)
            mask = drawn.pop("mask")
            truth.assert_same(truth.pick(drawn, mask), reader[drawn["index"][mask]])


def test_a_truncated_step_is_valid_where_its_final_frame_is_known(recorded):
    path, episodes = recorded
    with atarirb.open(path) as reader:
        lost = sum(episode.terminal != 1 and episode.final is None for episode in episodes)
        assert reader.valid_steps == len(reader) - lost
        assert reader.info.truncated_episodes == 2
        assert reader.info.cut_episodes == lost == 2
        assert (reader.episodes["final"] >= len(reader)).sum() == 5
        assert reader.episodes["final"].max() == len(reader) + 4


def test_verify_finds_final_frames_that_follow_no_end(recorded, tmp_path):
    import shutil

    from tests.test_store import put

    path, _ = recorded
    assert atarirb.verify(path, deep=True).ok
    for steps, words in [
        ([4, 6], "a final frame follows a step that is not its episode's last"),
        ([5, 4], "its steps do not rise"),
        ([4, 13], "its steps do not rise"),
        ([4, 4], "its steps do not rise"),
    ]:
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        shutil.copytree(path, tmp_path / "data")
        put(tmp_path / "data/00000/final.npy", np.array(steps))
        (problem,) = atarirb.verify(tmp_path / "data", deep=True).problems
        assert words in problem and str(tmp_path) in problem
