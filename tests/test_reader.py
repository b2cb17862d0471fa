"""Readers: what may be asked, what is refused and with which words, and what they hold."""

import os
import pathlib
import pickle

import numpy as np
import pytest

import atarirb
from atarirb.errors import (
    ArgumentError,
    AtarirbError,
    ClosedError,
    ColumnError,
    KeyTypeError,
    StepIndexError,
    StepIndexTypeError,
)
from atarirb.store.dataset import Dataset
from tests import truth

COLUMNS = ("timestep", "episode", "return_to_go", "action_full", "split", "wide", "pair")


@pytest.fixture(scope="module")
def reader(small):
    return atarirb.open(small[0], frame_stack=2, n_step=2, columns=COLUMNS)


@pytest.fixture(scope="module")
def count(small):
    return len(small[1])


# What it holds.


def test_its_length_is_the_number_of_steps(reader, count):
    assert len(reader) == count == reader.info.steps


def test_its_episodes_are_those_played(small, reader):
    steps, table = small[1], reader.episodes
    members = [np.flatnonzero(steps.episode == number) for number in range(steps.episode[-1] + 1)]
    assert table["start"].tolist() == [rows[0] for rows in members]
    assert table["length"].tolist() == [len(rows) for rows in members]
    assert table["terminal"].tolist() == [bool(steps.terminal[rows[-1]]) for rows in members]
    assert table["head_cut"].tolist() == [bool(steps.head_cut[rows[0]]) for rows in members]
    np.testing.assert_allclose(table["return"], [steps.reward[rows].sum() for rows in members], rtol=1e-5)


def test_its_episodes_cannot_be_written_to(reader):
    with pytest.raises(ValueError, match="read-only"):
        reader.episodes["start"] = 0


def test_leaves_have_the_promised_shapes_and_dtypes(reader):
    expected = {
        "observation": ((5, 4, 3, 2), "uint8"),
        "action": ((5,), "int32"),
        "index": ((5,), "int64"),
        "done": ((5,), "bool"),
        "terminated": ((5,), "bool"),
        "truncated": ((5,), "bool"),
        "next.observation": ((5, 4, 3, 2), "uint8"),
        "next.reward": ((5,), "float32"),
        "next.discount": ((5,), "float32"),
        "next.done": ((5,), "bool"),
        "next.terminated": ((5,), "bool"),
        "next.truncated": ((5,), "bool"),
        "timestep": ((5,), "int32"),
        "episode": ((5,), "int32"),
        "return_to_go": ((5,), "float32"),
        "action_full": ((5,), "int32"),
        "split": ((5,), "int32"),
        "wide": ((5,), "int64"),
        "pair": ((5, 2), "float32"),
    }
    for batch in (reader[:5], reader.sample(1, 5)):
        assert {name: (leaf.shape, str(leaf.dtype)) for name, leaf in truth.leaves(batch)} == expected


def test_one_frame_has_no_axis_of_stacks(small):
    batch = atarirb.open(small[0])[:5]
    assert batch["observation"].shape == batch["next"]["observation"].shape == (5, 4, 3)


def test_optional_columns_are_given_on_request_only(small):
    batch = atarirb.open(small[0], columns="episode")[:5]
    assert not {"timestep", "return_to_go", "wide"} & set(batch)
    assert "episode" in batch


def test_extra_columns_of_the_log_are_given_as_logged(small, reader):
    batch = reader[:]
    np.testing.assert_array_equal(batch["wide"], small[1].number)
    np.testing.assert_array_equal(batch["pair"], np.repeat(small[1].number, 2).reshape(-1, 2))


def test_the_consoles_actions_are_the_games_own(reader):
    batch = reader[:]
    minimal = np.array([0, 1, 3, 4, 11, 12])  # noop, fire, right, left, right and fire, left and fire
    np.testing.assert_array_equal(batch["action_full"], minimal[batch["action"]])


def test_the_observations_own_flags_are_false(reader):
    batch = reader[:]
    for name in ("done", "terminated", "truncated"):
        assert not batch[name].any()


def test_at_a_terminal_there_is_no_next_observation_and_no_discount(small):
    batch = atarirb.open(small[0])[small[1].terminal]
    assert not batch["next"]["observation"].any()
    assert not batch["next"]["discount"].any()
    assert batch["next"]["terminated"].all()


def test_at_a_cut_get_tells_so_and_shows_no_frame_of_what_comes_after(small):
    steps = small[1]
    ends = [step for step in range(len(steps)) if not steps.follows(step) and not steps.terminal[step]]
    batch = atarirb.open(small[0])[ends]
    assert len(ends) == 3
    assert batch["next"]["truncated"].all()
    assert not batch["next"]["terminated"].any()
    assert not batch["next"]["observation"].any()
    np.testing.assert_allclose(batch["next"]["discount"], 0.99)


@pytest.mark.parametrize(("rewards", "clipped"), [([1, 0, -1, 0], True), ([1, 0, 5, 0], False)])
def test_it_tells_whether_rewards_are_clipped(tmp_path, rewards, clipped):
    path, _ = truth.dataset(tmp_path, [4], capacity=20, rewards=rewards)
    info = atarirb.open(path).info
    assert info.rewards_clipped is clipped
    assert ("clipped to {-1, 0, 1}" in str(info)) is clipped
    assert "clipped" in atarirb.Reader.episodes.__doc__


# By index.


def test_all_ways_to_name_the_same_steps_agree(reader, count):
    wanted = range(3, 40, 4)
    mask = np.zeros(count, bool)
    mask[wanted] = True
    expected = reader.get(np.array(wanted))
    for indices in (
        slice(3, 40, 4),
        wanted,
        list(wanted),
        tuple(wanted),
        mask,
        mask.tolist(),
        np.array(wanted, np.int8),
        np.array(wanted, np.uint64),
        np.array(wanted) - count,
        range(3 - count, 40 - count, 4),
        [np.int32(step) for step in wanted],
        slice(3 - count, 40 - count, 4),
    ):
        truth.assert_same(reader[indices], expected)


def test_one_by_one_gives_the_rows_of_a_batch(reader, count):
    batch = reader[:]
    for step in range(count):
        truth.assert_same(reader[step], truth.pick(batch, step))


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.array, lambda value: np.array(value, np.int16)])
def test_a_single_step_has_no_batch_axis(reader, kind):
    one = reader[kind(7)]
    assert one["observation"].shape == (4, 3, 2)
    assert one["action"].shape == one["next"]["reward"].shape == ()
    assert one["index"] == 7
    assert one["pair"].shape == (2,)


def test_negative_steps_count_from_the_end(reader, count):
    assert reader[-1]["index"] == count - 1
    assert reader[-count]["index"] == 0
    assert reader[[-2, 0, -1]]["index"].tolist() == [count - 2, 0, count - 1]
    assert reader[-3:]["index"].tolist() == [count - 3, count - 2, count - 1]


def test_slices_step_backwards_too(reader):
    assert reader[5:2:-1]["index"].tolist() == [5, 4, 3]


def test_repeats_are_kept(reader):
    batch = reader[[5, 1, 5, 5]]
    assert batch["index"].tolist() == [5, 1, 5, 5]
    np.testing.assert_array_equal(batch["observation"][0], batch["observation"][3])


@pytest.mark.parametrize("nothing", [[], slice(0, 0), range(0), np.array([], int), np.array([])])
def test_nothing_gives_an_empty_batch(reader, nothing):
    batch = reader[nothing]
    assert batch["observation"].shape == (0, 4, 3, 2)
    assert {len(leaf) for _, leaf in truth.leaves(batch)} == {0}


def test_a_mask_that_is_all_false_gives_an_empty_batch(reader, count):
    assert len(reader[np.zeros(count, bool)]["action"]) == 0


def test_jax_arrays_of_indices_are_taken(reader):
    jax = pytest.importorskip("jax")
    truth.assert_same(reader[jax.numpy.array([4, 2])], reader[[4, 2]])


def test_steps_are_found_in_the_source_files(small, reader):
    split, slot = reader.locate([9, 0, -1])
    assert split.tolist() == small[1].split[[9, 0, -1]].tolist()
    assert slot.tolist() == small[1].slot[[9, 0, -1]].tolist()
    assert split.dtype == slot.dtype == np.int64
    assert reader.locate(9) == (small[1].split[9], small[1].slot[9])


@pytest.mark.parametrize(
    "indices",
    [113, -114, [0, 113], [0, -114], np.array([2**63], np.uint64), 2**63 - 1, -(2**63), range(110, 115)],
)
def test_steps_out_of_range_are_named(reader, count, indices):
    assert count == 113
    last = indices[-1] if isinstance(indices, (list, np.ndarray)) else indices
    last = "11[34]" if isinstance(indices, range) else last
    with pytest.raises(StepIndexError, match=rf"^step {last} is out of range: there are 113 steps$"):
        reader[indices]


def test_an_int_too_large_for_64_bits_is_out_of_range(reader):
    with pytest.raises(IndexError):
        reader[2**70]


@pytest.mark.parametrize(
    ("indices", "named"),
    [
        (1.0, "1.0"),
        (np.float64(1), "1.0"),
        ("1", "'1'"),
        (None, "None"),
        (True, "True"),
        (np.True_, "True"),
        ([1.0, 2.0], "float64 values"),
        (np.array([1.5]), "float64 values"),
        (["a"], "values"),
        ([None], "object values"),
        (slice(1.5), "integers"),
        (np.array([1 + 2j]), "complex128 values"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
    ],
)
def test_what_is_no_integer_is_named(reader, indices, named):
    with pytest.raises(StepIndexTypeError) as caught:
        reader[indices]
    assert named in str(caught.value)


def test_a_mask_of_another_length_is_refused_with_both_lengths(reader):
    with pytest.raises(ArgumentError, match=r"a mask of 3 values, expected one per step: 113"):
        reader[np.array([True, False, True])]


@pytest.mark.parametrize("indices", [[[1, 2], [3, 4]], np.zeros((2, 1, 1), int)])
def test_indices_of_more_than_one_axis_are_refused(reader, indices):
    with pytest.raises(ArgumentError, match=r"indices of shape .*, expected one axis"):
        reader[indices]


def test_errors_of_indices_are_the_builtin_ones_too():
    assert issubclass(StepIndexError, IndexError)
    assert issubclass(StepIndexTypeError, TypeError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ClosedError, ValueError)
    assert issubclass(ColumnError, KeyError)
    assert issubclass(KeyTypeError, TypeError)


def test_what_was_handed_in_is_not_what_is_handed_out(reader):
    index = np.arange(5)
    batch = reader[index]
    batch["index"][:] = 0
    assert index.tolist() == [0, 1, 2, 3, 4]


def test_writing_to_a_batch_changes_no_later_read(reader):
    def spoil(batch):
        for leaf in batch.values():
            if isinstance(leaf, dict):
                spoil(leaf)
            else:
                leaf[...] = 1

    expected = [
        truth.digest(batch) for batch in (reader[:], reader.sample(1, 9), reader.sample_slices(1, 9, 2))
    ]
    for batch in (reader[:], reader.sample(1, 9), reader.sample_slices(1, 9, 2)):
        spoil(batch)
    again = [truth.digest(batch) for batch in (reader[:], reader.sample(1, 9), reader.sample_slices(1, 9, 2))]
    assert again == expected


def test_leaves_of_a_batch_are_contiguous_and_share_no_memory(pong):
    batch = dict(truth.leaves(atarirb.open(pong, frame_stack=4).sample(1, 16)))
    for name, leaf in batch.items():
        assert leaf.flags.c_contiguous, name
        assert not any(np.shares_memory(leaf, other) for mine, other in batch.items() if mine != name), name


# At random.


def test_a_sample_is_uniform_over_the_valid_steps(small, reader):
    steps = small[1]
    valid = [step for step in range(len(steps)) if truth.is_valid(steps, step, 2, 2)]
    counts = np.bincount(reader.sample(11, 200 * len(valid))["index"], minlength=len(steps))
    assert counts[valid].sum() == counts.sum()
    assert abs(truth.surprise(counts[valid])) < 4


def test_a_sample_begins_with_the_smaller_one(reader):
    truth.assert_same(truth.pick(reader.sample(3, 50), slice(0, 5)), reader.sample(3, 5))


@pytest.mark.parametrize("n", [0, -1, 1.0, "4", None, True])
def test_the_size_of_a_sample_must_be_an_integer_of_one_or_more(reader, n):
    with pytest.raises(ArgumentError, match=rf"n is {n!r}, expected an integer"):
        reader.sample(1, n)


def test_numpy_integers_are_sizes(reader):
    assert len(reader.sample(1, np.int32(4))["action"]) == 4


@pytest.mark.parametrize("key", [None, 0.5, "seed", True, [1, 2], np.zeros((4, 2), np.uint32)])
def test_a_key_that_cannot_be_used_is_refused(reader, key):
    with pytest.raises(KeyTypeError, match="unusable key"):
        reader.sample(key, 4)


def test_a_sample_of_no_valid_step_is_refused_with_the_reason(tmp_path):
    path, _ = truth.dataset(tmp_path, [3], capacity=20, unfinished=True)
    with pytest.raises(ArgumentError, match=r"^no step .* is valid for frame_stack=1 and n_step=3$"):
        atarirb.open(path, n_step=3).sample(1, 4)


def test_a_dataset_without_steps_can_be_opened_and_gives_none(codec, tmp_path):
    # The log is dumped when it is nearly full, and again when it ends: that dump has no step of its own.
    truth.play(tmp_path / "Pong" / "1", [16], capacity=20)
    truth.ingest(tmp_path / "Pong" / "1", tmp_path / "data", splits=[1], codec=codec)
    reader = atarirb.open(tmp_path / "data")
    assert len(reader) == 0
    assert reader[:]["observation"].shape == (0, 4, 3)
    with pytest.raises(StepIndexError, match="step 0 is out of range"):
        reader[0]
    with pytest.raises(ArgumentError, match=r"^no step .* is valid"):
        reader.sample(1, 1)
    with pytest.raises(ArgumentError, match="the longest run has 0"):
        reader.sample_slices(1, 1, 1)


# Selections.


def test_a_selection_draws_from_its_episodes_only(small, reader):
    steps, chosen = small[1], [1, 4, 11]
    legal = [step for step in range(len(steps)) if steps.episode[step] in chosen]
    legal = [step for step in legal if truth.is_valid(steps, step, 2, 2)]
    selection = reader.select(chosen)
    assert selection.valid_steps == len(legal)
    assert sorted(set(selection.sample(1, 50 * len(legal))["index"].tolist())) == legal
    for weighting in ("starts", "episodes"):
        drawn = selection.sample_slices(1, 50 * len(legal), 2, weighting=weighting)
        assert set(map(tuple, drawn["index"].tolist())) == {
            rows for rows in truth.slices(steps, 2, 2, 2) if rows[0] in legal
        }


def test_a_selection_gives_the_same_rows_under_the_same_numbers(reader):
    selection = reader.select([3])
    assert len(selection) == len(reader)
    truth.assert_same(selection[:], reader[:])
    batch = selection.sample(1, 10)
    truth.assert_same(batch, reader[batch["index"]])


def test_a_selection_leaves_the_reader_it_came_from_as_it_was(reader):
    before = truth.digest(reader.sample(1, 50))
    reader.select([3]).sample_slices(1, 4, 2)
    assert truth.digest(reader.sample(1, 50)) == before


def test_all_ways_to_select_agree(reader):
    mask = np.zeros(len(reader.episodes), bool)
    mask[[1, 12]] = True
    for episodes in ([1, 12], [12, 1, 1], mask, mask.tolist(), np.array([1, -2]), slice(1, 13, 11)):
        assert reader.select(episodes).selected.tolist() == [1, 12]
    assert reader.selected.tolist() == list(range(14))
    assert reader.select(12).selected.tolist() == [12]


def test_a_selection_of_a_selection_is_what_both_have(reader):
    assert reader.select([1, 2, 3]).select([3, 2, 7]).selected.tolist() == [2, 3]


def test_a_selection_shares_all_maps(small):
    with atarirb.open(small[0]) as reader:
        selection = reader.select([1])
        assert selection.episodes is reader.episodes
    assert selection[0]["index"] == 0  # closing the one does not close the other


def test_a_selection_stays_one_when_it_is_pickled(reader):
    selection = reader.select([1, 12])
    again = pickle.loads(pickle.dumps(selection))
    assert again.selected.tolist() == [1, 12]
    truth.assert_same(again.sample(1, 20), selection.sample(1, 20))


@pytest.mark.parametrize(
    ("episodes", "error", "words"),
    [
        ([14], StepIndexError, "episode 14 is out of range: there are 14 episodes"),
        ([0.5], StepIndexTypeError, "episodes are indexed by integers"),
        ([True], ArgumentError, "a mask of 1 values, expected one per episode: 14"),
        ([], ArgumentError, "no episode is selected of the 14"),
        (np.zeros(14, bool), ArgumentError, "no episode is selected"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(reader, episodes, error, words):
    with pytest.raises(error, match=words):
        reader.select(episodes)


def test_a_selection_without_valid_steps_says_so_when_drawn_from(reader):
    with pytest.raises(ArgumentError, match="no step to draw from is valid"):
        reader.select([4]).sample(1, 1)  # its only step is cut


# The time limit.


@pytest.fixture(scope="module")
def limits(tmp_path_factory):
    """Episodes of 26,999, 27,000 and 27,001 steps, the last without a terminal; then one of 27,000."""
    directory = tmp_path_factory.mktemp("limits")
    lengths = [26_999, 27_000, 27_001, 27_000]
    return truth.dataset(directory, lengths, codec="raw", capacity=40_000, frame_shape=(1,), unfinished=True)


def test_episodes_of_exactly_27000_steps_with_a_terminal_are_flagged(limits):
    reader = atarirb.open(limits[0])
    assert reader.episodes["length"].tolist() == [26_999, 27_000, 27_001, 27_000]
    assert reader.episodes["time_limit"].tolist() == [False, True, False, False]
    assert reader.info.time_limit_episodes == 1


def test_the_time_limit_is_a_terminal_as_logged(limits):
    reader = atarirb.open(limits[0])
    last = reader[26_999 + 27_000 - 1]
    assert last["next"]["terminated"]
    assert not last["next"]["truncated"]
    assert last["next"]["discount"] == 0
    assert reader.valid_steps == len(reader) - 1


def test_the_time_limit_can_be_a_cut(limits):
    reader = atarirb.open(limits[0], time_limit="truncated")
    last = reader[26_999 + 27_000 - 1]
    assert last["next"]["truncated"]
    assert not last["next"]["terminated"]
    assert last["next"]["discount"] == np.float32(0.99)
    assert reader.valid_steps == len(reader) - 2


def test_other_terminals_stay_terminals_where_the_time_limit_is_a_cut(limits):
    reader = atarirb.open(limits[0], time_limit="truncated")
    ends = reader[[26_998, 26_999 + 27_000 + 27_001 - 1]]
    assert ends["next"]["terminated"].all()
    assert not ends["next"]["truncated"].any()


@pytest.mark.parametrize("n_step", [1, 3])
def test_no_slice_reaches_over_a_time_limit_that_is_a_cut(limits, n_step):
    end = 26_999 + 27_000
    reader = atarirb.open(limits[0], n_step=n_step, time_limit="truncated")
    steps = reader.sample_slices(1, 50, 26_990)["index"]
    assert not (np.isin(steps, range(end - n_step, end))).any()
    assert (steps == end - n_step - 1).any()


# Its options.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frame_stack": 0}, "frame_stack is 0, expected an integer of 1 or more"),
        ({"frame_stack": 4.0}, "frame_stack is 4.0"),
        ({"n_step": -1}, "n_step is -1"),
        ({"n_step": True}, "n_step is True"),
        ({"gamma": 1.5}, "gamma is 1.5, expected a number from 0 to 1"),
        ({"gamma": -0.1}, "gamma is -0.1"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"gamma": "0.9"}, "gamma is '0.9'"),
        ({"gamma": None}, "gamma is None"),
        ({"output": "mxnet"}, "output is 'mxnet', expected one of 'numpy', 'jax', 'torch'"),
        ({"time_limit": "no"}, "time_limit is 'no', expected one of 'terminated', 'truncated'"),
        ({"final": "frame"}, "final is 'frame', expected one of 'zeros', 'stored'"),
        ({"device": "cpu"}, "device= goes with output='jax'"),
    ],
)
def test_options_that_cannot_be_are_named(small, options, words):
    with pytest.raises(ArgumentError) as caught:
        atarirb.open(small[0], **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("columns", ["rewards", ("episode", "rewards"), ["observation"]])
def test_an_unknown_column_is_refused_and_the_known_ones_listed(small, columns):
    with pytest.raises(ColumnError) as caught:
        atarirb.open(small[0], columns=columns)
    assert str(caught.value).startswith("unknown column ")
    for known in COLUMNS:
        assert known in str(caught.value)


def test_the_consoles_actions_need_a_known_game(tmp_path):
    truth.play(tmp_path / "Chess" / "1", [4], capacity=20)
    truth.ingest(tmp_path / "Chess" / "1", tmp_path / "data")
    with pytest.raises(ColumnError, match=r"'action_full' needs .* not in the catalog"):
        atarirb.open(tmp_path / "data", columns=("action_full",))


# Its life.


@pytest.mark.parametrize(
    "use",
    [
        len,
        lambda reader: reader[0],
        lambda reader: reader.get([0]),
        lambda reader: reader.sample(1, 2),
        lambda reader: reader.locate(0),
        lambda reader: reader.episodes,
        lambda reader: reader.__enter__(),
    ],
    ids=["len", "[]", "get", "sample", "locate", "episodes", "with"],
)
def test_a_closed_reader_refuses_and_says_what_to_do(small, use):
    reader = atarirb.open(small[0])
    reader.close()
    reader.close()
    with pytest.raises(ClosedError, match=r"the reader of .* is closed; open it again"):
        use(reader)


def test_leaving_its_block_closes_it(small):
    with atarirb.open(small[0]) as reader:
        assert len(reader)
    assert "closed" in repr(reader)
    with pytest.raises(ClosedError):
        reader[0]


def test_it_shows_what_it_is(small):
    shown = repr(atarirb.open(small[0], frame_stack=4))
    assert shown == "<atarirb.Reader Pong/1: 113 steps, frame_stack=4>"


def test_it_is_pickled_as_its_path_and_options(reader):
    data = pickle.dumps(reader)
    assert len(data) < 10_000
    again = pickle.loads(data)
    truth.assert_same(again.sample(5, 20), reader.sample(5, 20))
    assert repr(again) == repr(reader)


def test_it_is_pickled_after_the_working_directory_has_changed(small, tmp_path, monkeypatch):
    monkeypatch.chdir(small[0].parent)
    reader = atarirb.open(small[0].name)
    monkeypatch.chdir(tmp_path)
    assert len(pickle.loads(pickle.dumps(reader))) == len(reader)


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_paths_of_every_kind_are_taken(small, kind):
    assert len(atarirb.open(kind(small[0]))) == 113


# Memory.


def test_columns_are_aligned_and_contiguous(small):
    dataset = Dataset(small[0])
    maps = [array for arrays in dataset.columns.values() for array in arrays]
    assert len(maps) == 5 * 5  # action, reward, terminal and the extra ones, of 5 shards
    for array in maps:
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        assert array.ctypes.data % 64 == 0


def _mappings(path):
    """Yield name and flags of every mapping of a file under `path`, and its address."""
    name, first = None, None
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        parts = line.split()
        if "-" in parts[0]:
            name, first = line.partition("/")[1] + line.partition("/")[2], int(parts[0].split("-")[0], 16)
        elif parts[0] == "VmFlags:" and name and name.startswith(str(path)):
            yield os.path.basename(name), parts[1:], first


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux")
def test_frames_are_mapped_without_read_ahead(codec, tmp_path):
    path, _ = truth.dataset(tmp_path, [12, 30, 20], codec=codec, capacity=30)
    kept = {"packed": "observation.pack", "raw": "observation.npy"}[codec]
    with atarirb.open(path) as reader:
        reader[:]
        found = [flags for name, flags, _ in _mappings(path) if name == kept]
    assert len(found) == len(list(path.glob(f"*/{kept}")))
    assert all("rr" in flags for flags in found)
    assert all("wr" not in flags for flags in found)


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="needs Linux")
def test_closing_lets_go_of_all_maps(codec, tmp_path):
    path, _ = truth.dataset(tmp_path, [12, 30, 20], codec=codec, capacity=30)
    reader = atarirb.open(path)
    reader.sample_slices(1, 2, 3)
    assert list(_mappings(path))
    reader.close()
    assert not list(_mappings(path))


# Importing.


def test_importing_the_package_imports_no_other(python):
    code = """
        import sys
        before = set(sys.modules)
        import atarirb
        heavy = "numpy numba llvmlite jax jaxlib gcsfs fsspec tqdm PIL ale_py torch".split()
        print([name for name in heavy if name in sys.modules and name not in before])
    """
    assert python(code) == "[]\n"


def test_reading_imports_neither_jax_nor_gcsfs(small, python):
    code = """
        import sys
        import atarirb
        atarirb.open(sys.argv[1], frame_stack=4).sample(1, 4)
        print([name for name in ("jax", "jaxlib", "gcsfs", "torch", "PIL", "cv2") if name in sys.modules])
    """
    assert python(code, small[0]) == "[]\n"


def test_opening_compiles_nothing(small, python):
    code = """
        import sys
        import atarirb
        reader = atarirb.open(sys.argv[1], frame_stack=4, n_step=3)
        from atarirb.kernels import compiled, unpacking
        kernels = [*vars(compiled).values(), *vars(unpacking).values()]
        compiled_so_far = [getattr(value, "signatures", ()) for value in kernels]
        print(sum(map(len, compiled_so_far)))
    """
    assert python(code, small[0]) == "0\n"


def test_every_public_name_is_there():
    for name in atarirb.__all__:
        if name in ("bench", "env", "preview", "record", "show", "verify"):
            continue
        assert getattr(atarirb, name) is not None
    assert issubclass(atarirb.errors.ArgumentError, AtarirbError)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        atarirb.nothing  # noqa: B018
