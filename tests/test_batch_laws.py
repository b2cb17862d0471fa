"""Batches of random logs, lost windows and splits left out, compared with loops over the play."""

import contextlib
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import atarirb
from tests import truth

GAMMAS = st.sampled_from([0.9, 0.99, 1.0])


@st.composite
def logs(draw):
    """Arguments of `truth.dataset`."""
    return {
        "lengths": draw(st.lists(st.integers(1, 12), min_size=1, max_size=12)),
        "capacity": draw(st.integers(8, 40)),
        "stack": draw(st.sampled_from([4, 4, 4, 1, 2])),
        "seed": draw(st.integers(0, 1000)),
        "unfinished": draw(st.booleans()),
        "drop": draw(st.sets(st.integers(0, 5), max_size=2)),
        "codec": draw(st.sampled_from(["packed", "raw"])),
    }


@contextlib.contextmanager
def opened(log, **options):
    with tempfile.TemporaryDirectory() as directory:
        try:
            path, steps = truth.dataset(pathlib.Path(directory), **log)
        except truth.Undecidable:
            reject()
        with atarirb.open(path, **options) as reader:
            yield reader, steps


@settings(max_examples=60)
@given(logs())
def test_the_dataset_is_the_play(log):
    with opened(log, columns=("episode", "split")) as (reader, steps):
        batch = reader[:]
    np.testing.assert_array_equal(batch["observation"], steps.frames)
    np.testing.assert_array_equal(batch["action"], steps.action)
    np.testing.assert_array_equal(batch["next"]["reward"], steps.reward)
    np.testing.assert_array_equal(batch["episode"], steps.episode)
    np.testing.assert_array_equal(batch["split"], steps.split)


@settings(max_examples=60)
@given(logs(), st.integers(1, 10), GAMMAS)
def test_what_follows_a_step_is_what_a_walk_over_the_episode_finds(log, n_step, gamma):
    with opened(log, n_step=n_step, gamma=gamma) as (reader, steps):
        found = reader[:]["next"]
    walks = [truth.transition(steps, step, n_step, gamma) for step in range(len(steps))]
    np.testing.assert_allclose(found["reward"], [walk.reward for walk in walks], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["discount"], [walk.discount for walk in walks], rtol=1e-6)
    assert found["terminated"].tolist() == [walk.terminated for walk in walks]
    assert found["truncated"].tolist() == [walk.truncated for walk in walks]
    assert found["done"].tolist() == [walk.terminated or walk.truncated for walk in walks]


@settings(max_examples=60)
@given(logs(), st.integers(1, 5), st.integers(1, 10))
def test_observations_are_stacks_of_the_episodes_own_frames(log, frame_stack, n_step):
    with opened(log, frame_stack=frame_stack, n_step=n_step) as (reader, steps):
        batch = reader[:]
    for step in range(len(steps)):
        following = truth.transition(steps, step, n_step, 1).next_step
        np.testing.assert_array_equal(batch["observation"][step], truth.observation(steps, step, frame_stack))
        np.testing.assert_array_equal(
            batch["next"]["observation"][step], truth.observation(steps, following, frame_stack)
        )


@settings(max_examples=40)
@given(logs(), GAMMAS)
def test_return_to_go_is_the_sum_up_to_the_episodes_end(log, gamma):
    columns = {"return_to_go": gamma, "undiscounted_return_to_go": 1}
    with opened(log, gamma=gamma, columns=columns, n_step=3) as (reader, steps):
        batch = reader[:]
    for name, discount in columns.items():
        expected = [truth.return_to_go(steps, step, discount) for step in range(len(steps))]
        assert batch[name].dtype == np.float32
        np.testing.assert_allclose(batch[name], expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(logs())
def test_timestep_counts_from_the_episodes_first_known_step(log):
    with opened(log, columns=("timestep",)) as (reader, steps):
        found = reader[:]["timestep"]
    assert found.tolist() == [step - steps.first(step) for step in range(len(steps))]


@settings(max_examples=40)
@given(logs())
def test_steps_are_located_in_the_source_files(log):
    with opened(log) as (reader, steps):
        split, slot = reader.locate(slice(None))
    np.testing.assert_array_equal(split, steps.split)
    np.testing.assert_array_equal(slot, steps.slot)


@settings(max_examples=60)
@given(logs(), st.integers(1, 5), st.integers(1, 10))
def test_valid_steps_and_no_others_are_sampled(log, frame_stack, n_step):
    with opened(log, frame_stack=frame_stack, n_step=n_step) as (reader, steps):
        valid = [step for step in range(len(steps)) if truth.is_valid(steps, step, frame_stack, n_step)]
        assert reader.valid_steps == len(valid)
        if valid:
            batch = reader.sample(1, 40 * len(valid))
            assert sorted(set(batch["index"].tolist())) == valid
            assert not batch["next"]["truncated"].any()
        else:
            with pytest.raises(ValueError, match="no step .* is valid"):
                reader.sample(1, 1)


@settings(max_examples=40)
@given(logs(), st.integers(1, 5), st.integers(1, 10))
def test_a_sample_is_what_its_indices_say(log, frame_stack, n_step):
    columns = ("timestep", "episode", "return_to_go", "split", "action_full")
    with opened(log, frame_stack=frame_stack, n_step=n_step, columns=columns) as (reader, _):
        if reader.valid_steps:
            batch = reader.sample(5, 30)
            truth.assert_same(batch, reader[batch["index"]])


@settings(max_examples=40)
@given(logs(), st.data())
def test_get_answers_in_the_order_asked_for(log, data):
    with opened(log, frame_stack=3, n_step=2, columns=("episode",)) as (reader, steps):
        if not len(steps):
            return
        index = np.array(data.draw(st.lists(st.integers(-len(steps), len(steps) - 1), min_size=1)))
        order = np.array(data.draw(st.permutations(range(len(index)))))
        batch = reader[index]
        truth.assert_same(truth.pick(batch, order), reader[index[order]])
        truth.assert_same(batch, truth.pick(reader[:], index))


@settings(max_examples=60)
@given(logs(), st.integers(1, 8), st.integers(1, 5), st.integers(1, 10), st.booleans())
def test_slices_are_the_legal_ones_and_all_of_them(log, length, frame_stack, n_step, strict):
    with opened(log, frame_stack=frame_stack, n_step=n_step) as (reader, steps):
        legal = truth.slices(steps, length, frame_stack, n_step, strict=strict)
        for weighting in ("starts", "episodes"):
            if legal:
                batch = reader.sample_slices(
                    2, 100 * len(legal), length, strict_length=strict, weighting=weighting
                )
                rows = zip(batch["index"], batch["mask"], strict=True)
                assert {tuple(index[mask].tolist()) for index, mask in rows} == legal
            else:
                with pytest.raises(ValueError, match="valid steps in a row"):
                    reader.sample_slices(2, 1, length, strict_length=strict, weighting=weighting)


@settings(max_examples=60)
@given(logs(), st.integers(1, 8), st.integers(1, 5), st.integers(1, 10), st.booleans())
def test_what_a_slice_holds_is_what_get_says_of_its_steps(log, length, frame_stack, n_step, strict):
    columns = ("timestep", "episode", "return_to_go", "split", "action_full")
    with opened(log, frame_stack=frame_stack, n_step=n_step, columns=columns) as (reader, steps):
        if truth.slices(steps, length, frame_stack, n_step, strict=strict):
            batch = reader.sample_slices(3, 20, length, strict_length=strict)
            mask = batch.pop("mask")
            truth.assert_same(truth.pick(batch, mask), reader[batch["index"][mask]])
