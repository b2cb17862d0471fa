"""Laws of the timeline: whatever was played, the dataset is what was logged of it, in order."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import atarirb
from atarirb import timeline
from atarirb.errors import IngestError, LogError
from tests.logs import record


def dataset_of(play_args, tmp, *, remove=(), placed=False, **ingest):
    play = record(tmp / "Game/1", **play_args)
    if placed:
        assume(is_placed(play))
    for pattern in remove:
        for file in (tmp / "Game/1/replay_logs").glob(pattern):
            file.unlink()
    atarirb.ingest(tmp / "Game/1", tmp / "out", workers=1, **ingest)
    return play, atarirb.open(tmp / "out")


def check(play, reader, *, all_joins):
    """The dataset is the logged play; joins follow in the play, and if `all_joins` nothing else is cut."""
    logged = np.flatnonzero(play.logged)
    batch = reader[:]
    np.testing.assert_array_equal(batch["observation"], play.frames[logged])
    np.testing.assert_array_equal(batch["action"], play.action[logged])
    np.testing.assert_array_equal(batch["next"]["reward"], play.reward[logged])
    np.testing.assert_array_equal(batch["next"]["terminated"], play.terminal[logged])
    for row, step in enumerate(logged):
        joined = not batch["next"]["terminated"][row] and not batch["next"]["truncated"][row]
        follows = row + 1 < len(logged) and logged[row + 1] == step + 1 and not play.terminal[step]
        if joined:
            assert follows
            np.testing.assert_array_equal(batch["next"]["observation"][row], play.frames[step + 1])
        else:
            assert not (follows and all_joins)
            assert not batch["next"]["observation"][row].any()
    for episode in reader.episodes:
        if not episode["head_cut"]:
            assert play.first[logged[episode["start"]]]


def is_placed(play):
    """Nothing tells a file that stands alone, and wrapped, from one that did not, if it begins with zeros."""
    return play.windows[0][0] == 0 or len(play.windows) > 1


plays = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(1, 12), min_size=1, max_size=14),
        "capacity": st.integers(10, 40),
        "stack": st.integers(1, 5),
        "horizon": st.integers(1, 3),
        "unfinished": st.integers(0, 6),
        "seed": st.integers(0, 3),
    }
)


@settings(max_examples=60, deadline=None)
@given(plays)
def test_any_log_becomes_what_was_played(args):
    with tempfile.TemporaryDirectory() as tmp:
        play, reader = dataset_of(args, Path(tmp), placed=True)
        check(play, reader, all_joins=True)
        for episode in reader.episodes:  # a true beginning is known unless the log lost what was added before
            step = np.flatnonzero(play.logged)[episode["start"]]
            if episode["head_cut"] and play.first[step]:
                before = play.add[step] - 1
                assert before >= 0 and not any(first <= before < stop for first, stop in play.windows)
        assert atarirb.verify(Path(tmp) / "out", deep=True).ok


@settings(max_examples=25, deadline=None)
@given(plays)
def test_a_log_without_add_count_is_never_joined_wrongly(args):
    # A file alone with five entries of invalid_range is taken for one of a stack of 4, as in the public logs.
    assume(args["horizon"] == 1 or args["stack"] + args["horizon"] != 5)
    with tempfile.TemporaryDirectory() as tmp:
        try:
            play, reader = dataset_of(args, Path(tmp), remove=["add_count*"])
        except IngestError as error:  # loud where nothing tells; that is right too
            assert "where its ring begins is not known" in str(error)
            return
        assume(is_placed(play) and play.windows[0][0] == 0)
        check(play, reader, all_joins=False)


@settings(max_examples=25, deadline=None)
@given(plays, st.data())
def test_chosen_splits_give_their_part_and_cut_at_its_edges(args, data):
    with tempfile.TemporaryDirectory() as tmp:
        _, reader = dataset_of(args, Path(tmp), placed=True)
        splits, slots = reader.locate(range(len(reader)))
        chosen = data.draw(st.sets(st.sampled_from(sorted(set(reader.info.splits))), min_size=1))
        atarirb.ingest(Path(tmp) / "Game/1", Path(tmp) / "part", splits=chosen)
        with atarirb.open(Path(tmp) / "part") as part:
            kept = np.isin(splits, sorted(chosen))
            here = part.locate(range(len(part)))
            np.testing.assert_array_equal(here, (splits[kept], slots[kept]))
            whole, some = reader.get(kept), part[:]
            np.testing.assert_array_equal(some["observation"], whole["observation"])
            edge = np.append(np.diff(np.flatnonzero(kept)) != 1, True)
            for row in range(len(part)):
                cut = whole["next"]["truncated"][row] or (edge[row] and not whole["next"]["terminated"][row])
                assert some["next"]["truncated"][row] == cut


@settings(max_examples=15, deadline=None)
@given(plays, st.data())
def test_a_missing_split_is_a_hole(args, data):
    with tempfile.TemporaryDirectory() as tmp:
        play = record(Path(tmp) / "Game/1", **args)
        files = Path(tmp) / "Game/1/replay_logs"
        splits = sorted({int(file.name.split(".")[-2]) for file in files.iterdir()})
        if len(splits) < 2 or len(set(play.windows)) < len(play.windows):
            return  # a second dump of the first window, alone, cannot be told from a later one
        gone = data.draw(st.sampled_from(splits[:-1]))
        # The last count is modulo the capacity: whether a window was lost before it, only the rows tell that
        # the file before it has too.
        between = play.windows[-1][1] - play.windows[-2][1]
        assume(gone != splits[-2] or between <= args["capacity"])
        for file in files.glob(f"*_ckpt.{gone}.gz"):
            file.unlink()
        atarirb.ingest(Path(tmp) / "Game/1", Path(tmp) / "out", workers=1)
        with atarirb.open(Path(tmp) / "out") as reader:
            batch = reader[:]
        rows = {frame.tobytes(): step for step, frame in enumerate(play.frames)}
        steps = np.array([rows[frame.tobytes()] for frame in batch["observation"]])
        assert (np.diff(steps) > 0).all()
        goes_on = ~batch["next"]["truncated"] & ~batch["next"]["terminated"]
        np.testing.assert_array_equal(batch["next"]["observation"][goes_on], play.frames[steps[goes_on] + 1])


def test_without_add_count_the_horizon_is_told_by_the_files_before_the_last(tmp_path):
    args = {"lengths": [30, 40], "capacity": 60, "horizon": 2, "unfinished": 80}
    play, reader = dataset_of(args, tmp_path, remove=["add_count*"])
    check(play, reader, all_joins=False)


def test_without_add_count_a_file_alone_of_an_unknown_horizon_is_refused(tmp_path):
    with pytest.raises(IngestError, match="where its ring begins is not known"):
        dataset_of(
            {"lengths": [], "capacity": 60, "horizon": 2, "unfinished": 20}, tmp_path, remove=["add_count*"]
        )


def test_without_any_count_a_few_equal_rows_prove_nothing(tmp_path):
    args = {"lengths": [26], "capacity": 30, "unfinished": 25}
    with pytest.raises(IngestError, match="where its ring begins is not known"):
        dataset_of(args, tmp_path, remove=["add_count*", "invalid_range*"])


def test_a_last_file_that_repeats_a_lost_one_does_not_follow_an_older_one(tmp_path):
    play = record(tmp_path / "Game/1", [], 21, unfinished=59)
    assert play.windows[-1] == play.windows[-2]
    for split in (1, 2):
        for file in (tmp_path / "Game/1/replay_logs").glob(f"*_ckpt.{split}.gz"):
            file.unlink()
    info = atarirb.ingest(tmp_path / "Game/1", tmp_path / "out")
    assert (info.splits, info.holes, info.cut_episodes) == ((0, 3), 1, 2)


def test_a_log_dumped_again_with_nothing_added_counts_once(tmp_path):
    # 3 + 17 adds: the last file is dumped at the very add that dumped the one before.
    play, reader = dataset_of({"lengths": [], "capacity": 21, "unfinished": 17}, tmp_path)
    assert len(list((tmp_path / "Game/1/replay_logs").glob("add_count*"))) == 2
    check(play, reader, all_joins=True)


def test_a_file_alone_whose_first_window_was_lost_is_known_by_its_missing_padding(tmp_path):
    play, reader = dataset_of({"lengths": [1, 1, 1], "capacity": 10}, tmp_path)
    assert play.windows == [(2, 12)]
    check(play, reader, all_joins=True)


def test_a_last_file_whose_count_is_zero_is_full(tmp_path):
    play, reader = dataset_of({"lengths": [], "capacity": 21, "unfinished": 17 + 22}, tmp_path)
    check(play, reader, all_joins=True)


def test_extra_columns_are_carried_along(tmp_path):
    args = {
        "lengths": [5, 9, 12],
        "capacity": 15,
        "extra": {"logits": ((3,), np.float64), "lives": ((), np.int8)},
    }
    play, reader = dataset_of(args, tmp_path)
    assert reader.info.extra_columns == ("lives", "logits")
    with atarirb.open(tmp_path / "out", columns=["lives", "logits"]) as reader:
        batch = reader[:]
    for name, values in play.extra.items():
        assert batch[name].dtype == values.dtype
        np.testing.assert_array_equal(batch[name], values[play.logged])


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((2, 3, 3), np.uint8), ((5,), np.float32), ((7, 1), ">u2"), ((3,), np.float16), ((2,), np.complex128)],
)
def test_frames_of_any_shape_and_dtype(tmp_path, shape, dtype):
    args = {"lengths": [5, 9], "capacity": 15, "frame_shape": shape, "frame_dtype": dtype}
    play, reader = dataset_of(args, tmp_path)
    assert reader[0]["observation"].shape == shape
    check(play, reader, all_joins=True)
    with atarirb.open(tmp_path / "out", frame_stack=2) as reader:
        batch = reader.get([1, 0])
        np.testing.assert_array_equal(batch["observation"][0], np.stack(play.frames[:2], axis=-1))
        np.testing.assert_array_equal(batch["observation"][1][..., 0], np.zeros(shape, dtype))


class NoRows:
    """A log of which nothing may be looked at."""

    def leading_zeros(self, *_):
        raise AssertionError("looked at the rows")

    equal = equal_tail = leading_zeros


def window(split, add_count, capacity=100, terminals=()):
    return timeline.Window(
        split=split,
        capacity=capacity,
        stack=4,
        add_count=add_count,
        cursor=add_count % capacity,
        terminals=np.array(terminals, np.int64),
        odd_terminals=np.zeros(0, np.int64),
    )


def test_consecutive_full_windows_need_no_look_at_the_rows():
    windows = [window(0, 99), window(1, 199), window(2, 299)]
    stops, failures = timeline.place(windows, NoRows())
    assert (stops, failures) == ({0: 99, 1: 199, 2: 299}, {})
    portions, failures = timeline.plan(windows, stops, NoRows())
    assert not failures
    assert [portion.adds for portion in portions] == [(0, 99), (99, 199), (199, 299)]
    assert [portion.head for portion in portions] == ["start", "continues", "continues"]
    assert portions[0].segments.tolist() == [[3, 0, 96]]
    assert portions[1].segments.tolist() == [[99, 0, 1], [0, 1, 99]]


def test_padding_may_straddle_a_border():
    windows = [window(0, 99, terminals=[97]), window(1, 199)]
    stops, _ = timeline.place(windows, NoRows())
    first, second = timeline.plan(windows, stops, NoRows())[0]
    assert first.padding.tolist() == [[0, 3], [98, 1]]
    assert second.padding.tolist() == [[99, 1], [0, 1]]
    assert second.head == "start"
    assert second.segments.tolist() == [[1, 0, 98]]


def test_counts_that_fall_are_refused():
    _, failures = timeline.place([window(0, 99), window(1, 99), window(2, 199)], NoRows())
    assert list(failures) == [1]
    assert "expected more than the 99 of split 0" in str(failures[1])


def test_a_terminal_inside_the_padding_is_refused():
    windows = [window(0, 99, terminals=[50, 52])]
    portions, failures = timeline.plan(windows, {0: 99}, NoRows())
    assert not portions
    assert isinstance(failures[0], LogError)
    assert "slot 52: marked terminal" in str(failures[0])


def test_padding_that_is_not_zero_is_refused(tmp_path):
    import gzip
    import io

    record(tmp_path / "Game/1", lengths=[4, 30], capacity=20)
    path = tmp_path / "Game/1/replay_logs/$store$_action_ckpt.0.gz"
    actions = np.load(io.BytesIO(gzip.decompress(path.read_bytes())))
    actions[8] = 1  # adds 0-2 are padding, 3-6 the first episode, 7-9 padding
    buffer = io.BytesIO()
    np.save(buffer, actions)
    path.write_bytes(gzip.compress(buffer.getvalue()))
    with pytest.raises(IngestError, match=r"\$store\$_action_ckpt.0.gz: row 8 must be padding"):
        atarirb.ingest(tmp_path / "Game/1", tmp_path / "out")
