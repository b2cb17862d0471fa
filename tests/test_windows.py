"""Windows hold each frame once, and unpacked they are the reader's own batches."""

import numpy as np
import pytest

import atarirb
from atarirb import windows
from tests import shards, truth

#: Of each episode the steps, what it ends by (1: a terminal, 2: truncated, 0: cut), and whether the frame
#: after it is known.
EPISODES = [
    [(5, 1, True), (1, 2, True), (7, 1, False)],
    [(4, 2, False), (3, 1, True)],
    [(1, 1, True)],
    [(2, 1, False), (6, 2, True), (9, 0, False)],
]
COLUMNS = ("timestep", "episode", "return_to_go", "split")
DEPTHS, STEPS = (1, 2, 3, 4), (1, 2, 3, 6)


@pytest.fixture(scope="module")
def recorded(codec, tmp_path_factory):
    """Return the path of a dataset with final frames, and its episodes as they were played."""
    path = tmp_path_factory.mktemp("windows") / "data"
    return path, shards.write(path, EPISODES, codec=codec)


def gather(reader, index):
    return windows.windows(reader._dataset, reader._index, reader._recipe, np.asarray(index, np.int64))


def shown(episode, at, depth):
    """The frames of the stack at one of an episode's steps, or after its last one, zeros before its first."""
    played = [*episode.frames, *([episode.final] if episode.final is not None else [])]
    return [played[k] if k >= 0 else np.zeros_like(played[0]) for k in range(at - depth + 1, at + 1)]


@pytest.mark.parametrize("final", ["zeros", "stored"])
@pytest.mark.parametrize("n_step", STEPS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_window_holds_the_frames_that_were_played(recorded, depth, n_step, final):
    path, episodes = recorded
    reader = atarirb.open(path, frame_stack=depth, n_step=n_step, final=final)
    batch = gather(reader, np.arange(len(reader)))
    most = min(depth, n_step)
    assert batch["window"].shape == (len(reader), depth + most, *episodes[0].frames.shape[1:])
    row = 0
    for episode in episodes:
        for step in range(len(episode.frames)):
            ahead = min(n_step, len(episode.frames) - step)
            over = step + ahead == len(episode.frames)
            known = episode.final is not None and (episode.terminal != 1 or final == "stored")
            window, shift = batch["window"][row], batch["shift"][row]
            np.testing.assert_array_equal(window[:depth], shown(episode, step, depth))
            if over and not known:
                assert not shift.any()
            else:
                assert shift.tolist() == [k + 1 == min(ahead, depth) for k in range(most)]
                begin = min(ahead, depth)
                following = window[begin : begin + depth]
                np.testing.assert_array_equal(following, shown(episode, step + ahead, depth))
                assert not window[begin + depth :].any()
            row += 1
    assert row == len(reader)


@pytest.mark.parametrize("final", ["zeros", "stored"])
@pytest.mark.parametrize("n_step", STEPS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_unpacked_windows_are_the_batch_of_the_reader(recorded, depth, n_step, final):
    output = pytest.importorskip("atarirb.outputs.jax")
    jax = pytest.importorskip("jax")
    options = {"frame_stack": depth, "n_step": n_step, "columns": COLUMNS}
    reader = atarirb.open(recorded[0], final=final, **options)
    index = [*range(len(reader)), 3, 3, 0]
    batch = output.put(gather(reader, index))
    host = batch.pop("index")
    truth.assert_same(jax.jit(output.unpack)(batch) | {"index": host}, reader.get(index))


@pytest.mark.parametrize("n_step", [1, 3])
def test_unpacked_windows_of_cut_heads_are_the_batch_of_the_reader(small, n_step):
    output = pytest.importorskip("atarirb.outputs.jax")
    pytest.importorskip("jax")
    reader = atarirb.open(small[0], frame_stack=4, n_step=n_step, columns=("wide", "pair"))
    assert reader.episodes["head_cut"].any()
    batch = output.put(gather(reader, np.arange(len(reader))))
    truth.assert_same(output.unpack(batch), reader[:])


def test_a_window_of_neighbours_has_five_frames_where_two_stacks_have_eight(recorded):
    reader = atarirb.open(recorded[0], frame_stack=4)
    window, batch = gather(reader, [2, 9])["window"], reader.get([2, 9])
    assert 8 * window.nbytes == 5 * (batch["observation"].nbytes + batch["next"]["observation"].nbytes)


# As an option of readers.


def assert_unpacked(unpack, batch, expected):
    """Check that a batch of windows is, unpacked inside jit, a plain reader's."""
    batch = dict(batch)
    index = batch.pop("index")
    assert "observation" not in batch and "observation" not in batch["next"]
    truth.assert_same(dict(unpack(batch)) | {"index": index}, expected)


@pytest.fixture(scope="module")
def unpack():
    jax = pytest.importorskip("jax")
    return jax.jit(pytest.importorskip("atarirb.outputs.jax").unpack)


@pytest.mark.parametrize(("depth", "n_step"), [(1, 1), (4, 1), (4, 3), (3, 5)])
def test_all_transitions_of_a_reader_come_as_windows(recorded, unpack, depth, n_step):
    options = {"frame_stack": depth, "n_step": n_step, "columns": COLUMNS, "output": "jax", "final": "stored"}
    plain = atarirb.open(recorded[0], **options)
    reader = atarirb.open(recorded[0], windows=True, **options)
    assert_unpacked(unpack, reader.sample(3, 50), plain.sample(3, 50))
    assert_unpacked(unpack, reader[[4, 4, -1]], plain[[4, 4, -1]])
    assert_unpacked(unpack, reader[5], plain[5])
    truth.assert_same(reader.sample_slices(3, 9, 2), plain.sample_slices(3, 9, 2))
    part, whole = reader.select(steps=slice(2, 9)), plain.select(steps=slice(2, 9))
    assert_unpacked(unpack, part[:], whole[:])
    arguments = {"key": 1, "epochs": 1, "drop_remainder": False, "shard": (0, 1)}
    for batch, expected in zip(reader.batches(7, **arguments), plain.batches(7, **arguments), strict=True):
        assert_unpacked(unpack, batch, expected)
    state = plain.batches(7, key=1).get_state()
    reader.batches(7, key=1).set_state(state)  # the rows are the same ones


@pytest.mark.parametrize("way", [{}, {"weights": {"a": 1, "b": 3}}, {"stacked": True}], ids=str)
def test_a_mixture_comes_as_windows(recorded, small, unpack, way):
    def mixed(**more):
        options = {"frame_stack": 4, "n_step": 3, "columns": COLUMNS, "output": "jax"} | more
        parts = {
            "a": atarirb.open(recorded[0], final="stored", **options),
            "b": atarirb.open(small[0], **options),
        }
        return atarirb.mix(parts, **way)

    plain, windowed = mixed(), mixed(windows=True)
    assert_unpacked(unpack, windowed.sample(3, 60), plain.sample(3, 60))
    arguments = {"key": 1, "epochs": 1, "replacement": "weights" in way}
    for batch, expected in zip(windowed.batches(8, **arguments), plain.batches(8, **arguments), strict=True):
        assert_unpacked(unpack, batch, expected)
    batch = windowed.sample_slices(3, 8, 5, strict_length=False)
    truth.assert_same(batch, plain.sample_slices(3, 8, 5, strict_length=False))
