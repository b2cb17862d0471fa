"""Which steps and slices are legal, compared with a loop over the steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atarirb.errors import ArgumentError
from atarirb.index import EpisodeIndex
from tests.truth import surprise, words_of

EPISODES = st.lists(
    st.tuples(st.integers(1, 12), st.booleans(), st.booleans()), min_size=1, max_size=7
)  # steps, ends by a terminal, head is cut


def none(episodes):
    """No final frame."""
    return np.full(len(episodes), -1)


def index_of(episodes):
    lengths, terminal_end, head_cut = zip(*episodes, strict=True)
    return EpisodeIndex(np.cumsum([0, *lengths]), np.array(terminal_end), np.array(head_cut), none(lengths))


def runs_of_valid_steps(episodes, frame_stack, n_step):
    runs, first = [], 0
    for length, terminal_end, head_cut in episodes:
        run = []
        for at in range(length):
            has_stack = at >= frame_stack - 1 or not head_cut
            has_next = at + n_step < length or terminal_end
            if has_stack and has_next:
                run.append(first + at)
        runs.append(run)
        first += length
    return runs


def drawn(legal):
    """Every step that the least and the greatest word of each number gives, in the numbers' order."""
    words = np.array([words_of(number, legal.total) for number in range(legal.total)], np.uint64)
    steps = legal.draw(words.reshape(-1)).reshape(-1, 2)
    np.testing.assert_array_equal(steps[:, 0], steps[:, 1])
    return steps[:, 0].tolist()


@settings(max_examples=150)
@given(EPISODES, st.integers(1, 5), st.integers(1, 10))
def test_each_valid_step_is_drawn_by_an_equal_share_of_words_and_no_other_step_is(
    episodes, frame_stack, n_step
):
    legal = index_of(episodes).valid(frame_stack, n_step)
    expected = [step for run in runs_of_valid_steps(episodes, frame_stack, n_step) for step in run]
    assert legal.total == len(expected)
    if expected:
        assert drawn(legal) == expected


@settings(max_examples=150)
@given(EPISODES, st.integers(1, 5), st.integers(1, 10), st.integers(1, 8))
def test_slices_start_wherever_enough_valid_steps_follow_and_nowhere_else(
    episodes, frame_stack, n_step, length
):
    index = index_of(episodes)
    runs = runs_of_valid_steps(episodes, frame_stack, n_step)
    expected = [step for run in runs for step in run if step + length - 1 in run]
    valid = index.valid(frame_stack, n_step)
    if expected:
        assert drawn(index.slice_starts(valid, length, strict=True)) == expected
    else:
        with pytest.raises(ArgumentError):
            index.slice_starts(valid, length, strict=True)


@settings(max_examples=100)
@given(EPISODES, st.integers(1, 5), st.integers(1, 10), st.integers(1, 8))
def test_short_runs_give_one_start_each_if_length_is_not_strict(episodes, frame_stack, n_step, length):
    index = index_of(episodes)
    expected = []
    for run in runs_of_valid_steps(episodes, frame_stack, n_step):
        expected += [step for step in run if step + length - 1 in run] or run[:1]
    valid = index.valid(frame_stack, n_step)
    if expected:
        assert drawn(index.slice_starts(valid, length, strict=False)) == expected
    else:
        with pytest.raises(ArgumentError):
            index.slice_starts(valid, length, strict=False)


@settings(max_examples=50)
@given(EPISODES)
def test_every_terminal_is_valid_exactly_once_unless_its_frames_are_lost(episodes):
    terminals, stop = [], 0
    for length, terminal_end, _ in episodes:
        stop += length
        terminals += [stop - 1] * terminal_end
    legal = index_of(episodes).valid(1, 1)
    steps = drawn(legal) if legal.total else []
    assert [steps.count(terminal) for terminal in terminals] == [1] * len(terminals)


@settings(max_examples=50)
@given(EPISODES)
def test_each_step_belongs_to_the_episode_that_it_was_played_in(episodes):
    expected = [number for number, (length, *_) in enumerate(episodes) for _ in range(length)]
    index = index_of(episodes)
    assert index.steps == len(expected)
    assert index.episode_of(np.arange(index.steps)).tolist() == expected


def test_an_error_names_the_longest_run_of_valid_steps():
    index = index_of([(5, True, False), (9, False, False), (3, True, True)])
    with pytest.raises(ArgumentError, match=r"no episode has 10 valid steps in a row; the longest run has 8"):
        index.slice_starts(index.valid(1, 1), 10, strict=True)


def test_an_error_proposes_shorter_slices_only_where_there_are_some():
    index = index_of([(3, False, False)])
    with pytest.raises(ArgumentError, match="strict_length=False"):
        index.slice_starts(index.valid(1, 1), 4, strict=True)
    with pytest.raises(ArgumentError, match=r"longest run has 0$"):
        index.slice_starts(index.valid(1, 3), 4, strict=False)


def test_a_dataset_without_steps_has_none_that_is_valid():
    index = EpisodeIndex(np.zeros(1), np.zeros(0), np.zeros(0), np.zeros(0))
    assert index.steps == 0
    assert index.valid(4, 3).total == 0


@pytest.mark.parametrize("length", [1, 4, 12])
def test_starts_are_drawn_uniformly(length):
    index = index_of(
        [(3, True, False), (12, True, False), (1, True, False), (17, False, True), (40, True, False)]
    )
    legal = index.slice_starts(index.valid(2, 2), length, strict=True)
    words = np.random.Philox(key=length).random_raw(100 * legal.total)
    counts = np.bincount(legal.draw(words), minlength=index.steps)
    starts = drawn(legal)
    assert counts.sum() == counts[starts].sum()
    assert abs(surprise(counts[starts])) < 4


@pytest.mark.parametrize("length", [1, 4, 12])
def test_episodes_are_drawn_uniformly_and_so_are_the_starts_inside(length):
    episodes = [(3, True, False), (12, True, False), (1, True, False), (17, False, True), (40, True, False)]
    index = index_of(episodes)
    legal = index.slice_starts(index.valid(2, 2), length, strict=True)
    words = np.random.Philox(key=length).random_raw(2 * 200 * legal.total).reshape(-1, 2)
    counts = np.bincount(legal.draw_by_episode(words), minlength=index.steps)
    starts = drawn(legal)
    episode = index.episode_of(np.array(starts))
    assert counts.sum() == counts[starts].sum()
    law = 1 / np.bincount(episode)[episode]
    assert abs(surprise(counts[starts], law)) < 4


HUGE = 1 << 33
MILLION = 1_000_003


@pytest.fixture(scope="module")
def huge():
    """Return an index of 2**33 steps, in episodes of a million; no such dataset is on the disk."""
    starts = np.append(np.arange(0, HUGE, MILLION), HUGE)
    return EpisodeIndex(starts, np.ones(len(starts) - 1), np.zeros(len(starts) - 1), none(starts[1:]))


def test_draws_from_a_huge_dataset_are_even_over_all_of_it(huge):
    steps = huge.valid(4, 1).draw(np.random.Philox(key=5).random_raw(64_000))
    counts = np.bincount(steps // (HUGE // 64), minlength=64)
    assert len(counts) == 64
    assert abs(surprise(counts)) < 4


def test_draws_from_a_huge_dataset_have_all_low_bits(huge):
    steps = huge.valid(4, 1).draw(np.random.Philox(key=6).random_raw(64_000))
    assert abs(surprise(np.bincount(steps % 64, minlength=64))) < 4


def test_draws_of_episodes_of_a_huge_dataset_are_even_over_all_of_it(huge):
    words = np.random.Philox(key=7).random_raw(2 * 64_000).reshape(-1, 2)
    counts = np.bincount(huge.valid(4, 1).draw_by_episode(words) // (HUGE // 64), minlength=64)
    assert len(counts) == 64
    assert abs(surprise(counts)) < 4


def test_the_first_and_the_last_step_of_a_huge_dataset_are_reached(huge):
    legal = huge.valid(4, 1)
    assert legal.total == HUGE
    assert legal.draw(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0, HUGE - 1]


def test_steps_beyond_32_bits_are_told_apart(huge):
    numbers = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, HUGE - 2]
    words = np.array([words_of(number, HUGE)[0] for number in numbers], np.uint64)
    assert huge.valid(1, 1).draw(words).tolist() == numbers
    assert huge.episode_of(np.array(numbers)).tolist() == [number // MILLION for number in numbers]


def test_slices_of_a_huge_dataset_reach_the_last_start_of_the_last_episode(huge):
    legal = huge.slice_starts(huge.valid(1, 1), 1000, strict=True)
    assert legal.draw(np.array([2**64 - 1], np.uint64)).tolist() == [HUGE - 1000]
