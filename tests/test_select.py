"""Drawing from some episodes only."""

import pickle

import numpy as np
import pytest

import atarirb
from atarirb.errors import ArgumentError, StepIndexError, StepIndexTypeError
from tests.logs import record


@pytest.fixture(scope="module")
def reader(codec, tmp_path_factory):
    directory = tmp_path_factory.mktemp("select")
    record(directory / "Game/1", [5, 9, 3, 12, 7, 8, 20], 60)
    atarirb.ingest(directory / "Game/1", directory / "data", codec=codec)
    with atarirb.open(directory / "data", columns=["episode"]) as reader:
        yield reader


def test_draws_come_from_the_selected_episodes_and_reach_all_their_steps(reader):
    some = reader.select([5, 1])
    assert some.selected.tolist() == [1, 5]
    batch = some.sample(0, 2000)
    assert set(batch["episode"]) == {1, 5}
    rows = reader.episodes[[1, 5]]
    expected = np.concatenate([np.arange(row["start"], row["start"] + row["length"]) for row in rows])
    assert sorted(set(batch["index"])) == expected.tolist()
    assert some.valid_steps == len(expected)
    slices = some.sample_slices(0, 500, 8, weighting="episodes")
    assert set(slices["episode"].reshape(-1)) == {1, 5}
    assert set(reader.sample_slices(0, 500, 8)["episode"].reshape(-1)) > {1, 5}


def test_steps_and_episodes_keep_their_numbers(reader):
    some = reader.select(reader.episodes["length"] > 8)
    assert len(some) == len(reader)
    np.testing.assert_array_equal(some.get([3, 1])["observation"], reader.get([3, 1])["observation"])
    np.testing.assert_array_equal(some.locate([3, 1]), reader.locate([3, 1]))
    np.testing.assert_array_equal(some.episodes, reader.episodes)


def test_a_selection_of_a_selection_is_what_both_have(reader):
    some = reader.select([1, 2, 3]).select([3, 4, -1])
    assert some.selected.tolist() == [3]


def test_selecting_all_changes_no_draw(reader):
    everything = reader.select(slice(None))
    np.testing.assert_array_equal(everything.sample(3, 50)["index"], reader.sample(3, 50)["index"])


def test_a_selection_is_pickled_with_its_reader(reader):
    some = reader.select([2, 4])
    again = pickle.loads(pickle.dumps(some))
    assert again.selected.tolist() == [2, 4]
    np.testing.assert_array_equal(again.sample(3, 50)["index"], some.sample(3, 50)["index"])


def test_a_selection_of_nothing_or_of_what_is_not_there(reader):
    with pytest.raises(ArgumentError, match="no episode is selected of the"):
        reader.select([])
    with pytest.raises(ArgumentError, match="no episode is selected of the 2"):
        reader.select([1, 2]).select([3])
    with pytest.raises(StepIndexError, match="episode 99 is out of range: there are"):
        reader.select([99])
    with pytest.raises(StepIndexTypeError, match="episodes are indexed by integers"):
        reader.select([0.5])
    with pytest.raises(ArgumentError, match="a mask of 2 values, expected one per episode"):
        reader.select([True, False])
