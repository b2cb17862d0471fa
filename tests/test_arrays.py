"""Plain arrays in the order of play: a dataset of them is what a plain loop over the arrays says."""

import gzip
import io
import json
import logging
import pickle
import shutil
import zipfile
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atarirb
from atarirb import sources
from atarirb.errors import ArgumentError, IngestError, LogError
from atarirb.sources import arrays as module
from tests import truth
from tests.test_cli import run as command
from tests.test_ingest import digest

#: Steps of each episode, and how it ends: 1 terminal, 2 truncated, 0 cut (the last one).
EPISODES = [(5, 1), (1, 2), (9, 2), (1, 1), (30, 1), (2, 2), (14, 1), (40, 2), (3, 1), (8, 0)]


@dataclass(frozen=True, kw_only=True)
class Play:
    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    end: np.ndarray  # 1 terminal, 2 truncated
    final: np.ndarray  # one frame for each end

    @property
    def arrays(self):
        columns = {"observation": self.observation, "action": self.action, "reward": self.reward}
        return columns | {
            "terminal": self.end == 1,
            "truncated": self.end == 2,
            "final_observation": self.final,
        }


def play(episodes=EPISODES, *, shape=(4, 3), dtype=np.uint8, seed=0):
    rng = np.random.default_rng(seed)
    steps = sum(length for length, _ in episodes)
    end = np.zeros(steps, np.uint8)
    end[np.cumsum([length for length, _ in episodes]) - 1] = [code for _, code in episodes]
    ends = int((end > 0).sum())
    return Play(
        observation=rng.integers(1, 256, (steps, *shape)).astype(dtype),
        action=rng.integers(0, 6, steps),
        reward=rng.normal(size=steps).astype(np.float32),
        end=end,
        final=rng.integers(1, 256, (ends, *shape)).astype(dtype),
    )


@pytest.fixture(scope="module")
def played():
    return play()


def ingest_arrays(*arguments, **options):
    with mock.patch("os.fsync"):
        return atarirb.ingest_arrays(*arguments, **{"workers": 2, "codec": "raw", **options})


def ingest(*arguments, **options):
    with mock.patch("os.fsync"):
        return atarirb.ingest(*arguments, **{"workers": 1, "codec": "raw", **options})


def expected(played, step, *, stack=1, n_step=1, gamma=0.99, shown=(2,), final="zeros", cut_before=()):
    """Walk over the arrays: the stacks at a step and n on, the reward, how it ended; whether it is valid."""
    end, frames = played.end, played.observation
    first = step
    while first and not end[first - 1] and first not in cut_before:
        first -= 1
    reward, m, last = 0.0, 0, False
    while m < n_step and not last:
        reward += gamma**m * played.reward[step + m]
        last = bool(end[step + m]) or step + m + 1 == len(end) or step + m + 1 in cut_before
        m += 1
    code = end[step + m - 1] if last else 0
    blank = np.zeros_like(frames[0])
    history = [blank] * stack + list(frames[first : step + m])
    after = [*history, frames[step + m]] if not last else None
    show = code and code in shown and (code == 2 or final == "stored")
    if show:
        after = [*history, played.final[(end[: step + m - 1] > 0).sum()]]
    now = ([blank] * stack + list(frames[first : step + 1]))[-stack:]
    following = after[-stack:] if after else [blank] * stack
    cut = last and (code == 0 or (code == 2 and 2 not in shown))
    valid = not cut and not (first in cut_before and step - first < stack - 1)
    return {
        "observation": np.stack(now, -1),
        "action": played.action[step],
        "reward": reward,
        "discount": 0.0 if code == 1 else gamma**m,
        "terminated": code == 1,
        "truncated": last and code != 1,
        "next_observation": np.stack(following, -1),
    }, valid


def check(path, played, *, steps=None, **how):
    """Compare all steps by index, samples and slices with the loop."""
    stack, n_step = how.get("stack", 1), how.get("n_step", 1)
    steps = np.arange(len(played.end)) if steps is None else steps
    options = {"frame_stack": stack, "n_step": n_step, "final": how.get("final", "zeros")}
    with atarirb.open(path, **options) as reader:
        assert len(reader) == len(steps)
        wanted = [expected(played, step, **how) for step in steps]
        batch = reader[:]

        def compare(batch, rows):
            for row, step in enumerate(rows):
                want, _ = wanted[step]
                shape = want["observation"].shape
                np.testing.assert_array_equal(batch["observation"][row].reshape(shape), want["observation"])
                found = batch["next"]["observation"][row].reshape(shape)
                np.testing.assert_array_equal(found, want["next_observation"], err_msg=f"step {step}")
                assert batch["action"][row] == want["action"]
                np.testing.assert_allclose(batch["next"]["reward"][row], want["reward"], rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(batch["next"]["discount"][row], want["discount"], rtol=1e-6)
                assert batch["next"]["terminated"][row] == want["terminated"], step
                assert batch["next"]["truncated"][row] == want["truncated"], step

        compare(batch, range(len(steps)))
        valid = [number for number, (_, good) in enumerate(wanted) if good]
        assert reader.valid_steps == len(valid)
        sample = reader.sample(3, 300)
        assert set(sample["index"].tolist()) <= set(valid)
        compare(sample, sample["index"])
        slices = reader.sample_slices(4, 20, 3)
        for row in slices["index"]:
            assert (np.diff(row) == 1).all() and set(row.tolist()) <= set(valid)
        compare(truth.pick(slices, slices["mask"]), slices["index"][slices["mask"]])
    assert atarirb.verify(path, deep=True).ok


@pytest.mark.parametrize("how", [{}, {"stack": 3, "n_step": 2}, {"stack": 4, "n_step": 3, "final": "stored"}])
def test_batches_are_what_a_loop_over_the_arrays_says(played, tmp_path, codec, how):
    info = ingest_arrays(tmp_path / "Pong/mine", **played.arrays, codec=codec)
    assert info.name == "Pong/mine" and info.truncated_episodes == 4 and info.cut_episodes == 1
    check(tmp_path / "Pong/mine", played, shown=(1, 2), **how)


@pytest.mark.parametrize("how", [{}, {"stack": 3, "n_step": 2, "final": "stored"}])
@pytest.mark.parametrize("kept", [(), (2,)])
def test_final_frames_may_be_known_of_truncated_ends_alone_or_not_at_all(played, tmp_path, kept, how):
    arrays = played.arrays
    codes = played.end[played.end > 0]
    arrays["final_observation"] = played.final[np.isin(codes, kept)] if kept else None
    ingest_arrays(tmp_path / "out", **arrays)
    check(tmp_path / "out", played, shown=kept, **how)


@pytest.mark.parametrize("rows", [1, 7, 15, 45, 113])
@pytest.mark.parametrize("kept", [(2,), (1, 2)])
def test_parts_of_any_length_join(played, tmp_path, monkeypatch, rows, kept):
    monkeypatch.setattr(module, "SPLIT_ROWS", rows)
    arrays = played.arrays
    arrays["final_observation"] = played.final[np.isin(played.end[played.end > 0], kept)]
    info = ingest_arrays(tmp_path / "out", **arrays)
    assert info.splits == tuple(range(-(-113 // rows))) and info.holes == 0
    check(tmp_path / "out", played, shown=kept, stack=3, n_step=2, final="stored")
    with atarirb.open(tmp_path / "out") as reader:
        split, row = reader.locate(range(113))
    np.testing.assert_array_equal(split * rows + row, np.arange(113))


@given(data=st.data())
@settings(max_examples=25)
def test_any_episodes_in_any_parts(tmp_path_factory, data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    codes = data.draw(st.lists(st.sampled_from([1, 2]), min_size=len(lengths), max_size=len(lengths)))
    codes[-1] = data.draw(st.sampled_from([0, 1, 2]))
    kept = data.draw(st.sampled_from([(), (2,), (1, 2)]))
    played = play(list(zip(lengths, codes, strict=True)), shape=(2, 2))
    final = played.final[np.isin(played.end[played.end > 0], kept)]
    arrays = played.arrays | {"final_observation": final if kept else None}
    out = tmp_path_factory.mktemp("any") / "out"
    with mock.patch.object(module, "SPLIT_ROWS", data.draw(st.integers(1, 40))):
        ingest_arrays(out, **arrays)
    with atarirb.open(out, frame_stack=3, n_step=2) as reader:
        batch = reader[:]
        for step in range(len(played.end)):
            want, _ = expected(played, step, stack=3, n_step=2, shown=kept)
            np.testing.assert_array_equal(batch["observation"][step], want["observation"])
            np.testing.assert_array_equal(batch["next"]["observation"][step], want["next_observation"])
            assert bool(batch["next"]["terminated"][step]) == want["terminated"]
            assert bool(batch["next"]["truncated"][step]) == want["truncated"]
        assert reader.valid_steps == sum(
            expected(played, step, stack=3, n_step=2, shown=kept)[1] for step in range(len(played.end))
        )


def test_without_truncated_ends_are_as_in_logs(played, tmp_path):
    arrays = played.arrays
    ends_by_terminal = Play(**{**vars(played), "end": (played.end > 0).astype(np.uint8)})
    arrays["terminal"] = played.end > 0
    del arrays["truncated"]
    ingest_arrays(tmp_path / "out", **arrays)
    check(tmp_path / "out", ends_by_terminal, shown=(1,), final="stored", stack=3)


@pytest.mark.parametrize("known", [True, False])
def test_the_cap_is_a_terminal_unless_truncation_is_told(tmp_path, known):
    end = np.zeros(27_003, np.uint8)
    end[[26_999, 27_002]] = 1
    arrays = {
        "observation": np.ones((27_003, 1, 1), np.uint8),
        "action": end,
        "reward": np.ones(27_003, "f4"),
    }
    truncated = np.zeros(27_003, bool) if known else None
    ingest_arrays(tmp_path / "out", **arrays, terminal=end, truncated=truncated)
    with atarirb.open(tmp_path / "out", time_limit="truncated") as reader:
        assert reader.episodes["time_limit"].tolist() == [True, False]
        assert bool(reader[26_999]["next"]["terminated"]) == known


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((84, 84), "u1"), ((1, 84, 84), "u1"), ((21, 16, 3), "u1"), ((6,), "f4"), ((2, 5), ">i2")],
)
def test_frames_are_kept_as_they_are(tmp_path, shape, dtype):
    played = play(EPISODES[:4], shape=shape, dtype=dtype)
    ingest_arrays(tmp_path / "out", **played.arrays)
    with atarirb.open(tmp_path / "out") as reader:
        observation = reader[:]["observation"]
    assert observation.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(observation, played.observation)


@pytest.mark.parametrize("order", ["<i2", ">i2"])
def test_arrays_may_lie_in_memory_in_any_way(tmp_path, codec, order):
    played = play(dtype=order)
    arrays = {name: np.repeat(values, 2, axis=0)[::2] for name, values in played.arrays.items()}
    for name in ("observation", "final_observation"):
        arrays[name] = np.asfortranarray(arrays[name])
    ingest_arrays(tmp_path / "out", **arrays, codec=codec)
    check(tmp_path / "out", played, shown=(1, 2), final="stored")


def test_an_episode_whose_beginning_is_lost(played, tmp_path):
    ingest_arrays(tmp_path / "out", **played.arrays, head="cut")
    with atarirb.open(tmp_path / "out", frame_stack=4) as reader:
        assert reader.episodes["head_cut"].tolist() == [True] + [False] * 9
    check(tmp_path / "out", played, shown=(1, 2), stack=4, cut_before=(0,))
    with pytest.raises(ArgumentError, match="head is 'continues', expected one of 'start', 'cut'"):
        ingest_arrays(tmp_path / "out", **played.arrays, head="continues")


class Counting:
    """Something that can be sliced, as a dataset in a file; it counts what is read of it at a time."""

    def __init__(self, values):
        self._values = values
        self.shape = values.shape
        self.most = 0

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        got = self._values[rows]
        self.most = max(self.most, got.nbytes)
        return got

    def __array__(self, *_):
        pytest.fail("converted whole")


def test_what_is_sliced_is_read_a_bounded_number_of_rows_at_a_time(played, tmp_path, codec, monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 200)
    arrays = {name: Counting(values) for name, values in played.arrays.items()}
    ingest_arrays(tmp_path / "out", **arrays, codec=codec)
    assert all(0 < values.most <= 200 for values in arrays.values())
    check(tmp_path / "out", played, shown=(1, 2))


def test_datasets_of_h5py_are_arrays(played, tmp_path, codec):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "play.h5", "w") as file:
        arrays = {
            name: file.create_dataset(name, data=values, chunks=True, compression="gzip")
            for name, values in played.arrays.items()
        }
        ingest_arrays(tmp_path / "out", **arrays, codec=codec)
    check(tmp_path / "out", played, shown=(1, 2))


def test_lists_and_memory_maps_are_arrays(played, tmp_path):
    arrays = {name: values.tolist() for name, values in played.arrays.items()}
    for name in ("observation", "final_observation"):
        np.save(tmp_path / name, played.arrays[name])
        arrays[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    ingest_arrays(tmp_path / "out", **arrays)
    check(tmp_path / "out", played, shown=(1, 2))


def test_extra_columns_come_along(played, tmp_path):
    wide, lives = np.arange(113 * 2, dtype=np.float64).reshape(113, 2), np.arange(113)
    ingest_arrays(tmp_path / "out", **played.arrays, extra={"wide": wide, "lives": lives})
    with atarirb.open(tmp_path / "out", columns=("wide", "lives")) as reader:
        batch = reader[:]
    np.testing.assert_array_equal(batch["wide"], wide)
    np.testing.assert_array_equal(batch["lives"], lives)
    with pytest.raises(ArgumentError, match="an extra column may not be called 'reward'"):
        ingest_arrays(tmp_path / "x", **played.arrays, extra={"reward": lives})
    with pytest.raises(IngestError, match="an extra column may not be called timestep"):
        ingest_arrays(tmp_path / "x", **played.arrays, extra={"timestep": lives})


# Again, and after stops.


def test_the_same_call_goes_on_and_copies_only_what_changed(played, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SPLIT_ROWS", 40)
    first = ingest_arrays(tmp_path / "out", **played.arrays, name="Pong/1")
    copied = []
    run = atarirb.ingestion.copying.Job.run
    monkeypatch.setattr(
        "atarirb.ingestion.copying.Job.run",
        lambda job, *rest: (copied.append(job.portion.split), run(job, *rest))[1],
    )
    assert ingest_arrays(tmp_path / "out", **played.arrays, name="Pong/1") == first
    assert copied == []
    for column, row, splits in [
        ("observation", 50, [1]),
        ("action", 85, [2]),
        ("reward", 39, [0]),
        ("final_observation", 0, [0]),
        ("terminal", 100, [2]),
        ("truncated", 42, [1]),
    ]:
        arrays = played.arrays
        changed = arrays[column].copy()
        changed[row] = not changed[row] if changed.dtype == bool else changed[row] + 1
        arrays[column] = changed
        if column in ("terminal", "truncated"):  # an end more
            arrays["final_observation"] = None
            ingest_arrays(tmp_path / "out", **(played.arrays | {"final_observation": None}), name="Pong/1")
        copied.clear()
        ingest_arrays(tmp_path / "out", **arrays, name="Pong/1")
        assert copied == splits, column
        ingest_arrays(tmp_path / "fresh", **arrays, name="Pong/1")
        assert digest(tmp_path / "out") == digest(tmp_path / "fresh")
        shutil.rmtree(tmp_path / "fresh")
        ingest_arrays(tmp_path / "out", **played.arrays, name="Pong/1")


def test_arrays_that_grew_keep_the_parts_they_had(played, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SPLIT_ROWS", 15)  # the border of the first two is an end
    arrays = {name: values[:100] for name, values in played.arrays.items() if name != "final_observation"}
    ingest_arrays(tmp_path / "out", **arrays, name="Pong/1")
    arrays = {name: values for name, values in played.arrays.items() if name != "final_observation"}
    ingest_arrays(tmp_path / "out", **arrays, name="Pong/1")
    ingest_arrays(tmp_path / "fresh", **arrays, name="Pong/1")
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


@pytest.mark.parametrize("at", [1, 9, 22, 36])
def test_a_killed_ingest_goes_on_to_the_same_bytes(played, tmp_path, at):
    np.savez(tmp_path / "play.npz", **played.arrays)
    ingest_arrays(tmp_path / "whole", **played.arrays, name="Pong/1")
    code = f"""
import numpy as np
from atarirb.sources import arrays
arrays.SPLIT_ROWS = 40
atarirb.ingest_arrays({str(tmp_path / "out")!r}, **np.load({str(tmp_path / "play.npz")!r}), name="Pong/1",
                      codec="raw", workers=1)
"""
    assert truth.run_killed(code, at=at) == -9
    assert truth.run_killed(code, at=10**6) == 0
    check(tmp_path / "out", played, shown=(1, 2))
    assert not (tmp_path / "out/.ingest").exists()


def test_a_part_that_is_left_out_cuts_the_episode(played, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SPLIT_ROWS", 40)
    for name, values in played.arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    info = ingest(tmp_path, tmp_path / "out", splits=[0, 2])
    assert info.holes == 1
    steps = np.r_[0:40, 80:113]
    check(tmp_path / "out", played, steps=steps, shown=(1, 2), stack=3, cut_before=(40, 80))
    ingest(tmp_path, tmp_path / "out")
    check(tmp_path / "out", played, shown=(1, 2), stack=3)


# Files.

ENDS = {
    ".npy": lambda path, values: np.save(path, values),
    ".npy.gz": lambda path, values: path.write_bytes(gzip.compress(npy(values))),
    ".gz": lambda path, values: path.write_bytes(gzip.compress(npy(values))),
}


def npy(values):
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("plural", [False, True])
def test_a_directory_of_files(played, tmp_path, end, plural):
    directory = tmp_path / "Pong" / "mine"
    directory.mkdir(parents=True)
    for name, values in played.arrays.items():
        called = f"{name}s" if plural and name != "truncated" else name
        ENDS[end](directory / f"{called}{end}", values)
    ENDS[end](directory / f"next_observation{end}", played.observation[:2])  # is not read
    (directory / "notes.txt").write_text("other files do not matter")
    info = ingest(directory, tmp_path / "out")
    assert info.name == "Pong/mine" and info.extra_columns == ()
    check(tmp_path / "out", played, shown=(1, 2))
    before = digest(tmp_path / "out")
    with mock.patch("atarirb.ingestion.copying.Job.run", side_effect=AssertionError):
        ingest(directory, tmp_path / "out")
    action = played.action.copy()
    action[7] += 1
    ENDS[end](directory / f"{'actions' if plural else 'action'}{end}", action)
    ingest(directory, tmp_path / "out")
    assert digest(tmp_path / "out") != before
    check(tmp_path / "out", Play(**{**vars(played), "action": action}), shown=(1, 2))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz(played, tmp_path, save, capfd, codec):
    (tmp_path / "Pong").mkdir()
    save(tmp_path / "Pong/mine.npz", **played.arrays, lives=np.arange(113))
    status, out, err = command(
        capfd, "ingest", tmp_path / "Pong/mine.npz", tmp_path / "out", "--codec", codec, "--json"
    )
    assert (status, err) == (0, "")
    assert json.loads(out)["name"] == "Pong/mine"
    check(tmp_path / "out", played, shown=(1, 2), stack=2)


def test_files_on_another_file_system(played, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, values in played.arrays.items():
        memory.pipe(f"/store/Pong/7/{name}.npy", npy(values))
    buffer = io.BytesIO()
    np.savez(buffer, **played.arrays)
    memory.pipe("/store/Pong/8.npz", buffer.getvalue())
    for number, source in (("7", "memory://store/Pong/7"), ("8", "memory://store/Pong/8.npz")):
        assert ingest(source, tmp_path / number).name == f"Pong/{number}"
        check(tmp_path / number, played, shown=(1, 2))


@pytest.mark.parametrize("given", ["done", "terminated"])
def test_done_may_mean_either_end(played, tmp_path, given):
    arrays = {name: values for name, values in played.arrays.items() if name != "terminal"}
    arrays[given] = played.end > 0
    np.savez(tmp_path / "a.npz", **arrays)
    ingest(tmp_path / "a.npz", tmp_path / "out")
    if given == "terminated":  # then a step that is both is terminal
        played = Play(**{**vars(played), "end": (played.end > 0).astype(np.uint8)})
    check(tmp_path / "out", played, shown=(1, 2), final="stored")


def test_a_source_of_arrays_can_be_pickled(played, tmp_path):
    for name, values in played.arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    logs = pickle.loads(pickle.dumps(sources.find(tmp_path)))
    assert len(pickle.dumps(logs)) < 2500
    with logs.stream(0, "observation") as stream:
        np.testing.assert_array_equal(
            np.concatenate([rows for _, rows in stream.chunks()]), played.observation
        )


# What is wrong.


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        ("action", lambda a: a[:-1], "action: has 112 rows, expected 113 as observation"),
        ("action", lambda a: a.astype(float), r"action: float64\(113,\), expected one integer a row"),
        ("action", lambda a: a[:, None], r"action: int64\(113, 1\), expected one integer a row"),
        ("action", lambda a: np.where(a == a[50], -1, a), "action: row .* holds action -1"),
        ("action", lambda a: a + 2**33, "action: row 0 holds action"),
        ("reward", lambda a: np.where(np.arange(113) == 50, np.nan, a), "reward: row 50 holds reward nan"),
        (
            "reward",
            lambda a: np.where(np.arange(113) == 50, 1e300, a.astype(float)),
            "row 50 holds reward 1e",
        ),
        ("reward", lambda a: a.astype(int), r"reward: int64\(113,\), expected one float a row"),
        ("terminal", lambda a: a * 2, "terminal: row 4 holds 2, expected 0 or 1"),
        ("terminal", lambda a: a.astype("f4"), r"terminal: float32\(113,\), expected one integer"),
        ("truncated", lambda a: a * 3, "truncated: row 5 holds 3, expected 0 or 1"),
        ("truncated", lambda a: a[:5], "truncated: has 5 rows, expected 113"),
        ("observation", lambda a: a.reshape(-1), "observation: uint8.*, expected one frame a row"),
        ("observation", lambda a: a.astype(object), "observation: rows of dtype object, expected plain"),
        ("observation", lambda a: a[:0], "has 113 rows, expected 0 as observation"),
        ("observation", lambda a: a[0, 0, 0], "observation: holds a single value, expected rows"),
        (
            "final_observation",
            lambda a: a[:-1],
            "has 8 rows, expected one for each of the 9 ends, or for each of the 4",
        ),
        (
            "final_observation",
            lambda a: a[:, :2],
            r"uint8\[2, 3\] a row, expected uint8\[4, 3\] as observation",
        ),
        ("final_observation", lambda a: a.astype("f4"), r"float32\[4, 3\] a row, expected uint8\[4, 3\]"),
    ],
)
def test_a_fault_is_named(played, tmp_path, column, change, words):
    arrays = played.arrays
    arrays[column] = change(arrays[column])
    with pytest.raises((LogError, IngestError), match=words):
        ingest_arrays(tmp_path / "out", **arrays)
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_arrays_without_rows_are_refused(tmp_path):
    empty = np.zeros(0, np.int32)
    arrays = {"observation": np.zeros((0, 4, 4), "u1"), "action": empty, "reward": empty.astype("f4")}
    with pytest.raises(LogError, match="observation: has no rows"):
        ingest_arrays(tmp_path / "out", **arrays, terminal=empty)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda d: (d / "reward.npy").unlink(), "there is no reward or rewards in .*; it has action"),
        (lambda d: shutil.copy(d / "reward.npy", d / "rewards.npy"), "both reward.npy and rewards.npy"),
        (lambda d: (d / "action.npy").write_bytes(b"junk" * 40), "action.npy: neither gzip nor npy"),
        (
            lambda d: (d / "action.npy").write_bytes((d / "action.npy").read_bytes()[:-9]),
            "action.npy: .*(mmap|size|length)",
        ),
        (lambda d: np.save(d / "action.npy", np.array([{}]), allow_pickle=True), "action.npy: .*bject"),
        (
            lambda d: np.save(d / "observation.npy", np.asfortranarray(np.load(d / "observation.npy"))),
            "observation.npy: stored in Fortran order",
        ),
        (lambda d: (d / "action_1.gz").write_bytes(b""), "files of several layouts: sgi .* and arrays"),
    ],
)
def test_a_fault_of_files_is_named(played, tmp_path, spoil, words):
    for name, values in played.arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    spoil(tmp_path)
    with pytest.raises((LogError, IngestError), match=words):
        ingest(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "flipped", "no zip"])
def test_a_damaged_npz_is_named(played, tmp_path, damage):
    path = tmp_path / "play.npz"
    np.savez_compressed(path, **played.arrays)
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    if damage == "flipped":
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("observation.npy")
        data[info.header_offset + 30 + len("observation.npy") + info.compress_size // 2] ^= 0x55
    path.write_bytes(b"no zip" if damage == "no zip" else data)
    with pytest.raises((LogError, IngestError), match=r"play.npz.*(damaged|cut)"):
        ingest(path, tmp_path / "out")


def test_rows_of_a_ring_buffer_are_not_taken_for_steps(tmp_path):
    file = truth.SAMPLES / "Pong/1/replay_logs/$store$_{}_ckpt.1.gz"
    arrays = {}
    for column in ("observation", "action", "reward", "terminal"):
        with gzip.open(str(file).format(column)) as opened:
            arrays[column] = np.load(opened)
    with pytest.raises(
        IngestError, match="3 blank rows follow each terminal: these are rows of a ring buffer"
    ):
        ingest_arrays(tmp_path / "out", **arrays)


@pytest.mark.parametrize("axis", [1, -1])
def test_stacks_of_frames_are_taken_with_a_hint(tmp_path, caplog, axis):
    played = play(EPISODES[4:6], shape=(10, 10))
    padded = np.concatenate([np.zeros((3, 10, 10), np.uint8), played.observation])
    stacked = np.stack([padded[k : k + len(played.end)] for k in range(4)], axis)
    arrays = played.arrays | {"observation": stacked, "final_observation": None}
    with caplog.at_level(logging.WARNING):
        ingest_arrays(tmp_path / "out", **arrays)
    assert "are stacks of frames: pass single frames" in caplog.text
    caplog.clear()
    colours = played.arrays | {"observation": play(EPISODES[4:6], shape=(10, 10, 3)).observation}
    with caplog.at_level(logging.WARNING):
        ingest_arrays(tmp_path / "colours", **(colours | {"final_observation": None}))
    assert caplog.text == ""


def test_partial_is_not_of_arrays(played, tmp_path):
    np.savez(tmp_path / "a.npz", **played.arrays)
    for name, values in played.arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    for source in (tmp_path, tmp_path / "a.npz"):
        with pytest.raises(ArgumentError, match="partial is of snapshots"):
            ingest(source, tmp_path / "out", partial=True)
