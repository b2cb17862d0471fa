"""Slices: consecutive valid steps of one episode each."""

import numpy as np
import pytest

import atarirb
from atarirb.errors import ArgumentError, ClosedError, KeyTypeError
from tests import truth


@pytest.fixture(scope="module")
def reader(small):
    return atarirb.open(small[0], columns=("timestep", "episode", "return_to_go", "wide", "pair"))


@pytest.fixture(scope="module")
def stacked(small):
    return atarirb.open(small[0], frame_stack=3, n_step=2)


def test_leaves_have_an_axis_of_slices_and_one_of_steps(reader):
    batch = reader.sample_slices(1, 6, 4)
    expected = {
        "observation": ((6, 4, 4, 3), "uint8"),
        "action": ((6, 4), "int32"),
        "index": ((6, 4), "int64"),
        "done": ((6, 4), "bool"),
        "terminated": ((6, 4), "bool"),
        "truncated": ((6, 4), "bool"),
        "mask": ((6, 4), "bool"),
        "next.observation": ((6, 4, 4, 3), "uint8"),
        "next.reward": ((6, 4), "float32"),
        "next.discount": ((6, 4), "float32"),
        "next.done": ((6, 4), "bool"),
        "next.terminated": ((6, 4), "bool"),
        "next.truncated": ((6, 4), "bool"),
        "timestep": ((6, 4), "int32"),
        "episode": ((6, 4), "int32"),
        "return_to_go": ((6, 4), "float32"),
        "wide": ((6, 4), "int64"),
        "pair": ((6, 4, 2), "float32"),
    }
    assert {name: (leaf.shape, str(leaf.dtype)) for name, leaf in truth.leaves(batch)} == expected


def test_stacks_are_the_last_axis(stacked):
    batch = stacked.sample_slices(1, 6, 4)
    assert batch["observation"].shape == batch["next"]["observation"].shape == (6, 4, 4, 3, 3)


def test_steps_of_a_slice_follow_each_other(reader):
    batch = reader.sample_slices(1, 200, 5)
    assert (np.diff(batch["index"], axis=1) == 1).all()
    assert (np.diff(batch["timestep"], axis=1) == 1).all()
    assert (batch["episode"] == batch["episode"][:, :1]).all()


def test_a_slice_has_a_terminal_at_its_last_step_only(reader):
    terminated = reader.sample_slices(1, 500, 5)["next"]["terminated"]
    assert not terminated[:, :-1].any()
    assert terminated[:, -1].any()


def test_no_slice_is_truncated(stacked):
    assert not stacked.sample_slices(1, 500, 3)["next"]["truncated"].any()


def test_every_terminal_is_the_end_of_some_slice(small, reader):
    batch = reader.sample_slices(1, 3000, 1)
    ends = set(batch["index"][batch["next"]["terminated"]].tolist())
    assert ends == set(np.flatnonzero(small[1].terminal).tolist())


def test_the_next_observation_is_the_following_one(reader):
    batch = reader.sample_slices(1, 50, 5)
    np.testing.assert_array_equal(batch["observation"][:, 1:], batch["next"]["observation"][:, :-1])


def test_both_observations_share_their_frames(reader):
    batch = reader.sample_slices(1, 50, 5)
    assert np.shares_memory(batch["observation"], batch["next"]["observation"])


def test_strict_slices_have_no_padding(reader):
    assert reader.sample_slices(1, 300, 6)["mask"].all()


def test_padding_comes_last_and_holds_nothing(reader):
    batch = reader.sample_slices(1, 300, 6, strict_length=False)
    mask = batch.pop("mask")
    assert mask[:, 0].all()
    assert not mask.all()
    assert (mask[:, 1:] <= mask[:, :-1]).all()
    for name, leaf in truth.leaves(batch):
        if not name.endswith("observation"):
            assert (leaf[~mask] == (-1 if name == "index" else 0)).all(), name


def test_without_strict_length_short_episodes_are_drawn_whole(small, reader):
    batch = reader.sample_slices(1, 3000, 20, strict_length=False)
    found = {tuple(index[mask].tolist()) for index, mask in zip(batch["index"], batch["mask"], strict=True)}
    assert found == truth.slices(small[1], 20, 1, 1, strict=False)


def test_without_strict_length_slices_may_be_longer_than_any_episode(small, reader):
    batch = reader.sample_slices(1, 500, 100, strict_length=False)
    lengths = {len(rows) for rows in truth.slices(small[1], 100, 1, 1, strict=False)}
    assert set(batch["mask"].sum(axis=1).tolist()) == lengths


def test_slices_of_one_step_are_the_valid_steps(reader):
    assert len(set(reader.sample_slices(1, 3000, 1)["index"][:, 0].tolist())) == reader.valid_steps


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("length", [1, 4, 12])
def test_starts_are_drawn_uniformly(small, stacked, length, strict):
    legal = sorted(truth.slices(small[1], length, 3, 2, strict=strict))
    batch = stacked.sample_slices(length, 200 * len(legal), length, strict_length=strict)
    drawn = [tuple(index[mask].tolist()) for index, mask in zip(batch["index"], batch["mask"], strict=True)]
    numbers = {rows: number for number, rows in enumerate(legal)}
    counts = np.bincount([numbers[rows] for rows in drawn], minlength=len(legal))
    assert abs(truth.surprise(counts)) < 4


@pytest.mark.parametrize("length", [1, 4, 12])
def test_episodes_are_drawn_uniformly_if_they_are_the_weighting(small, stacked, length):
    steps = small[1]
    starts = np.array(sorted(rows[0] for rows in truth.slices(steps, length, 3, 2)))
    episode = steps.episode[starts]
    law = 1 / np.bincount(episode)[episode]  # uniform inside an episode
    drawn = stacked.sample_slices(length, 300 * len(starts), length, weighting="episodes")["index"][:, 0]
    counts = np.bincount(drawn, minlength=len(steps))[starts]
    assert counts.sum() == len(drawn)
    assert abs(truth.surprise(counts, law)) < 4
    assert truth.surprise(counts) > 4  # that law is not the other one


def test_the_same_key_gives_the_same_slices(reader):
    truth.assert_same(reader.sample_slices(3, 9, 4), reader.sample_slices(3, 9, 4))


def test_another_key_gives_other_slices(reader):
    first, second = (reader.sample_slices(key, 20, 4)["index"] for key in (3, 4))
    assert (first != second).any()


def test_the_first_slices_do_not_depend_on_how_many_follow(reader):
    few, many = reader.sample_slices(3, 5, 4), reader.sample_slices(3, 50, 4)
    truth.assert_same(few, truth.pick(many, slice(0, 5)))


@pytest.mark.parametrize("weighting", ["starts", "episodes"])
@pytest.mark.parametrize(("length", "longest"), [(31, 30), (1000, 30)], ids=["one too many", "far too many"])
def test_slices_longer_than_any_episode_are_refused_and_the_longest_named(reader, length, longest, weighting):
    with pytest.raises(
        ArgumentError, match=rf"no episode has {length:,} valid .* longest run has {longest};"
    ):
        reader.sample_slices(1, 2, length, weighting=weighting)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0, "length": 3}, "n is 0, expected an integer of 1 or more"),
        ({"n": -4, "length": 3}, "n is -4"),
        ({"n": 2.0, "length": 3}, "n is 2.0"),
        ({"n": 2, "length": 0}, "length is 0, expected an integer of 1 or more"),
        ({"n": 2, "length": -1}, "length is -1"),
        ({"n": 2, "length": True}, "length is True"),
        ({"n": 2, "length": "3"}, "length is '3'"),
        (
            {"n": 2, "length": 3, "weighting": "steps"},
            "weighting is 'steps', expected one of 'starts', 'episodes'",
        ),
    ],
)
def test_arguments_that_cannot_be_are_named(reader, arguments, words):
    with pytest.raises(ArgumentError, match=words):
        reader.sample_slices(1, **arguments)


def test_an_unusable_key_is_refused(reader):
    with pytest.raises(KeyTypeError):
        reader.sample_slices(None, 2, 3)


def test_a_closed_reader_gives_no_slices(small):
    reader = atarirb.open(small[0])
    reader.sample_slices(1, 2, 3)
    reader.close()
    with pytest.raises(ClosedError, match=r"closed; open it again"):
        reader.sample_slices(1, 2, 3)
