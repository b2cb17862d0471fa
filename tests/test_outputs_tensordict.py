"""Batches as TensorDicts, and a reader as the storage of TorchRL's replay buffers."""

import pickle
import sys

import numpy as np
import pytest

import atarirb
from atarirb.errors import (
    ArgumentError,
    ClosedError,
    MissingPackageError,
    StateError,
    StepIndexError,
    StepIndexTypeError,
)
from atarirb.outputs import tensordict as output
from tests import shards, truth

torch = pytest.importorskip("torch")
pytest.importorskip("torchrl")
from tensordict import TensorDict  # noqa: E402
from torchrl.data import (  # noqa: E402
    LazyTensorStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
)

VALUES = ("reward", "discount", "return_to_go", "done", "terminated", "truncated")
OPTIONS = [(1, 1), (3, 1), (1, 2), (4, 3)]


def plain(data):
    """Turn a TensorDict into a batch of NumPy arrays, without the axes of 1."""
    return {
        name: plain(leaf)
        if isinstance(leaf, TensorDict)
        else leaf.numpy()[..., 0]
        if name in VALUES
        else leaf.numpy()
        for name, leaf in data.items()
    }


def same(data, other):
    found, expected = (dict(each.flatten_keys().items()) for each in (data, other))
    return found.keys() == expected.keys() and all(
        found[key].dtype == expected[key].dtype and torch.equal(found[key], expected[key]) for key in found
    )


def valid_steps(steps, frame_stack, n_step):
    """The steps that rows must be, by a walk over the play."""
    return [step for step in range(len(steps)) if truth.is_valid(steps, step, frame_stack, n_step)]


@pytest.fixture(scope="module")
def storage(small):
    return output.Storage(atarirb.open(small[0], frame_stack=3, n_step=2, columns=["wide", "pair"]))


@pytest.fixture(scope="module")
def rows(small):
    return valid_steps(small[1], 3, 2)


# Batches.


@pytest.mark.parametrize("source", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("draw", "size"),
    [
        (lambda reader: reader.sample(0, 20), [20]),
        (lambda reader: reader.sample_slices(0, 5, 3), [5, 3]),
        (lambda reader: reader.sample_slices(0, 5, 12, strict_length=False), [5, 12]),
        (lambda reader: reader[7], []),
        (lambda reader: reader[[]], [0]),
    ],
    ids=["transitions", "slices", "padded slices", "one step", "none"],
)
def test_a_batch_becomes_a_tensordict_over_the_same_memory(small, source, draw, size):
    columns = ["return_to_go", "episode", "wide", "pair"]
    batch = draw(atarirb.open(small[0], frame_stack=3, n_step=2, columns=columns, output=source))
    data = output.to_tensordict(batch)
    assert list(data.batch_size) == list(data["next"].batch_size) == size
    truth.assert_same(plain(data), batch)
    for owner, entries in ((data, batch), (data["next"], batch["next"])):
        for name in set(VALUES) & set(entries):
            assert list(owner[name].shape) == [*size, 1], name
    address = torch.as_tensor(batch["observation"]).data_ptr()
    assert data["observation"].data_ptr() == address
    assert data["next", "reward"].data_ptr() == torch.as_tensor(batch["next"]["reward"]).data_ptr()


def test_other_arrays_and_text_are_refused(small, tmp_path):
    pytest.importorskip("jax")
    with pytest.raises(
        ArgumentError, match=r"array of jaxlib; open the reader with output='numpy' or 'torch'"
    ):
        output.to_tensordict(atarirb.open(small[0], output="jax")[:3])
    path, _ = truth.dataset(tmp_path, [5, 4], capacity=30, extra={"text": ((), "S4")})
    with pytest.raises(ArgumentError, match="text is of dtype .S4, which PyTorch lacks"):
        output.to_tensordict(atarirb.open(path, columns="text")[:3])


# Rows.


@pytest.mark.parametrize(("frame_stack", "n_step"), OPTIONS)
def test_rows_are_the_valid_steps_in_the_order_of_play(small, frame_stack, n_step):
    path, steps = small
    reader = atarirb.open(path, frame_stack=frame_stack, n_step=n_step)
    storage = output.Storage(reader)
    expected = valid_steps(steps, frame_stack, n_step)
    assert len(storage) == len(expected)
    assert storage.steps(range(len(storage))).tolist() == expected
    data = storage.get(slice(None))
    assert data["index"].tolist() == list(range(len(expected)))
    assert data["episode"].tolist() == steps.episode[expected].tolist()
    found, batch = plain(data), reader[expected]
    for entries in (found, batch):
        for name in ("index", "episode", "steps_to_next_obs"):
            entries.pop(name, None)
        for name in ("truncated", "done"):
            entries["next"].pop(name)
    truth.assert_same(found, batch)


@pytest.mark.parametrize(("frame_stack", "n_step"), OPTIONS)
def test_episodes_end_where_the_next_row_is_of_another_one(small, frame_stack, n_step):
    path, steps = small
    data = output.Storage(atarirb.open(path, frame_stack=frame_stack, n_step=n_step)).get(slice(None))
    expected = valid_steps(steps, frame_stack, n_step)
    seen = {True: 0, False: 0}
    for row, step in enumerate(expected):
        goes_on = expected[row + 1 : row + 2] and steps.episode[expected[row + 1]] == steps.episode[step]
        terminated = truth.transition(steps, step, n_step, 0.99).terminated
        assert data["next", "terminated"][row].tolist() == [terminated]
        assert data["next", "truncated"][row].tolist() == [not goes_on and not terminated]
        assert data["next", "done"][row].tolist() == [terminated or not goes_on]
        if not goes_on:
            seen[terminated] += 1
    assert min(seen.values()) >= 2, "the episodes do not show both ends"


def test_the_steps_of_a_reward_are_told_for_torchrls_discounts(small):
    path, steps = small
    data = output.Storage(atarirb.open(path, n_step=3, gamma=0.5)).get(slice(None))
    assert "steps_to_next_obs" not in output.Storage(atarirb.open(path)).get(0)
    summed = data["steps_to_next_obs"]
    assert summed.shape == (len(data), 1)
    for row, step in enumerate(valid_steps(steps, 1, 3)):
        episode = np.flatnonzero(steps.episode == steps.episode[step])
        assert summed[row] == min(3, episode[-1] - step + 1)
    alive = ~data["next", "terminated"]
    torch.testing.assert_close(0.5 ** summed[alive].float(), data["next", "discount"][alive])


@pytest.mark.parametrize("n_step", [1, 2])
def test_a_recordings_truncated_episodes_keep_their_last_step(codec, tmp_path, n_step):
    """Its last frame is known, so it is a row, and is truncated by itself."""
    shards.write(
        tmp_path / "data", [[(5, 1, True), (4, 2, True), (3, 2, True)], [(6, 1, False)]], codec=codec
    )
    data = output.Storage(atarirb.open(tmp_path / "data", n_step=n_step)).get(slice(None))
    assert data["episode"].tolist() == [0] * 5 + [1] * 4 + [2] * 3 + [3] * 6
    last = {number: sum([5, 4, 3, 6][: number + 1]) for number in range(4)}
    ends = {number: list(range(stop - n_step, stop)) for number, stop in last.items()}
    assert data["next", "terminated"].flatten().nonzero().flatten().tolist() == ends[0] + ends[3]
    assert data["next", "truncated"].flatten().nonzero().flatten().tolist() == ends[1] + ends[2]


@pytest.mark.parametrize(
    "index",
    [
        *(5, -1, np.int64(3), torch.tensor(4), [5, 1, 5], range(3, 9, 2), slice(2, 7), slice(None), []),
        *(np.array([7, -2]), torch.tensor([[3], [1]]), torch.arange(6).reshape(2, 3), np.zeros((0, 1), int)),
    ],
    ids=repr,
)
def test_rows_are_read_by_every_kind_of_index(small, storage, rows, index):
    places = index if isinstance(index, slice) else np.asarray(index, int)
    expected = np.asarray(rows)[places]
    for given in (index, (index,)):
        data = storage.get(given)
        assert data.batch_size == expected.shape
        np.testing.assert_array_equal(storage.steps(given), expected)
        np.testing.assert_array_equal(data["wide"], small[1].number[expected])


def test_a_mask_picks_rows(storage):
    mask = np.arange(len(storage)) % 3 == 0
    for given in (mask, torch.from_numpy(mask)):
        assert storage.get(given)["index"].tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize(
    ("index", "error"),
    [(10_000, StepIndexError), ([0, -10_000], StepIndexError), (torch.tensor([0.5]), StepIndexTypeError),
     ((1, 2), ArgumentError), ("action", StepIndexTypeError)],
)  # fmt: skip
def test_what_is_no_row_is_refused(storage, index, error):
    with pytest.raises(error):
        storage.get(index)


def test_a_selection_is_a_smaller_storage(small):
    reader = atarirb.open(small[0])
    some = output.Storage(reader.select([1, 3, 6]))
    assert set(some.get(slice(None))["episode"].tolist()) == {1, 3, 6}
    assert len(some) == reader.select([1, 3, 6]).valid_steps


# All rows at once, unread.


@pytest.fixture
def gathered(monkeypatch):
    """Count the steps that are gathered, frames included."""
    counts = []
    get = atarirb.Reader.get
    monkeypatch.setattr(
        atarirb.Reader, "get", lambda reader, steps: counts.append(len(steps)) or get(reader, steps)
    )
    return counts


@pytest.mark.parametrize("places", [slice(None), (torch.tensor([5, 0, 99]),)])
def test_entries_of_rows_are_those_of_the_rows_read_whole(storage, places, monkeypatch):
    monkeypatch.setattr(output, "_ROWS", 7)
    monkeypatch.setattr(output, "_FRAME_ROWS", 5)
    view, whole = storage[places], storage.get(places)
    assert len(view) == len(whole)
    for key in whole.keys(include_nested=True, leaves_only=True):
        assert view[key].dtype == whole[key].dtype, key
        torch.testing.assert_close(view[key], whole[key], rtol=0, atol=0)
    assert same(view.to_tensordict(), whole)
    assert view.get("absent") is None
    with pytest.raises(KeyError):
        view["next", "absent"]


def test_finding_episodes_and_ends_gathers_nothing(storage, gathered):
    for key in ("index", "episode", ("next", "done"), ("next", "terminated"), ("next", "truncated")):
        assert len(storage[:][key]) == len(storage)
    repr(storage[:])
    assert gathered == []


@pytest.mark.parametrize("cache", [True, False])
def test_slice_samplers_gather_only_the_rows_they_return(storage, gathered, cache):
    sampler = SliceSampler(slice_len=3, cache_values=cache)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=12)
    for _ in range(3):
        buffer.sample()
    assert gathered == [12] * 3


# TorchRL's buffers.

SAMPLERS = {
    "random": lambda: None,
    "without replacement": SamplerWithoutReplacement,
    "without replacement, whole batches": lambda: SamplerWithoutReplacement(drop_last=True),
    "slices": lambda: SliceSampler(slice_len=3),
    "cached slices": lambda: SliceSampler(num_slices=4, cache_values=True),
    "slices by ends": lambda: SliceSampler(slice_len=3, end_key=("next", "done")),
    "slices of any length": lambda: SliceSampler(slice_len=6, strict_length=False),
    "slices without replacement": lambda: SliceSamplerWithoutReplacement(slice_len=3, strict_length=False),
}


def make(storage, sampler, *, buffer=TensorDictReplayBuffer, seed=3):
    """Make a buffer over a storage, with a sampler of `SAMPLERS` and a seed."""
    return buffer(
        storage=storage,
        sampler=SAMPLERS[sampler](),
        batch_size=12,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("buffer", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_are_those_of_torchrls_own_storage_with_the_same_rows(storage, sampler, buffer):
    own = LazyTensorStorage(len(storage))
    buffers = [make(kept, sampler, buffer=buffer) for kept in (own, storage)]
    buffers[0].extend(storage.get(slice(None)))
    for _ in range(12):
        expected, found = (buffer.sample() for buffer in buffers)
        assert same(found, expected)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samples_are_what_the_reader_gives_for_the_same_steps(storage, sampler):
    sample = make(storage, sampler).sample()
    batch = storage._reader.get(storage.steps(sample["index"].reshape(-1)))
    found = plain(sample)
    for entries in (found, batch):
        for name in ("index", "episode", "steps_to_next_obs"):
            entries.pop(name, None)
        for name in ("truncated", "done"):  # the sampler ends every slice
            entries["next"].pop(name)
    truth.assert_same(found, batch)


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if "slices" in name and "any" not in name])
def test_slices_are_neighbours_of_one_episode(small, storage, sampler):
    legal = truth.slices(small[1], 3, 3, 2)
    if "without" in sampler:  # which takes shorter episodes too
        long = sorted({small[1].episode[start] for start, *_ in legal})
        storage = output.Storage(storage._reader.select(long))
    buffer = make(storage, sampler)
    found = set()
    for _ in range(200):
        found |= set(map(tuple, storage.steps(buffer.sample()["index"].reshape(-1, 3)).tolist()))
    assert found <= legal
    if "ends" not in sampler:  # the last rows of an episode are each done, for n_step is 2
        assert len(found) > 0.8 * len(legal)


def test_an_epoch_without_replacement_has_every_valid_step_once(storage, rows):
    buffer = ReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(), batch_size=7, prefetch=2)
    drawn = np.concatenate([storage.steps(batch["index"]) for batch in buffer])
    assert sorted(drawn.tolist()) == rows
    assert drawn.tolist() != rows


def test_a_buffer_is_read_by_index(storage):
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    assert len(buffer) == len(storage)
    assert buffer[[4, 2]]["index"].tolist() == [4, 2]
    assert buffer[3:5]["index"].tolist() == [3, 4]
    assert buffer["episode"].tolist() == storage.get(slice(None))["episode"].tolist()
    assert 3 in storage
    assert len(storage) not in storage
    assert storage.contains(torch.tensor([0, 5000])).tolist() == [True, False]
    assert [row["index"].item() for row in storage] == list(range(len(storage)))


@pytest.mark.parametrize(
    "write",
    [
        lambda buffer: buffer.add(buffer[0]),
        lambda buffer: buffer.extend(buffer[:3]),
        lambda buffer: buffer.empty(),
        lambda buffer: buffer.storage.set(0, buffer[1]),
        lambda buffer: buffer.storage.__setitem__(0, buffer[1]),
    ],
)
def test_writing_is_refused(storage, write):
    with pytest.raises(ArgumentError, match="read only; to record play of your own use atarirb.Recorder"):
        write(TensorDictReplayBuffer(storage=storage, batch_size=4))


# Their life.


def test_a_storage_is_pickled(small):
    reader = atarirb.open(small[0], n_step=2, output="torch").select([1, 3, 6])
    storage = output.Storage(reader)
    again = pickle.loads(pickle.dumps(storage))
    assert type(again) is type(storage) is output.Storage
    assert same(again.get(slice(None)), storage.get(slice(None)))


def test_a_storage_is_unpickled_where_none_has_been_made(small, monkeypatch):
    storage = output.Storage(atarirb.open(small[0], frame_stack=2))
    data = pickle.dumps(storage)
    monkeypatch.delitem(vars(output), "Storage")
    assert same(pickle.loads(data).get([5, 1]), storage.get([5, 1]))


@pytest.mark.parametrize("way", ["state_dict", "dumps"])
def test_a_checkpoint_goes_on_where_it_was_made(storage, tmp_path, way):
    some = output.Storage(storage._reader.select([1, 2, 3]))
    first, second, other = (
        make(rows, "without replacement", seed=seed)
        for seed, rows in enumerate([storage, pickle.loads(pickle.dumps(storage)), some])
    )
    first.sample()
    if way == "state_dict":
        state = first.state_dict()
        second.load_state_dict(state)
        with pytest.raises(StateError, match="the state is of other rows: selection is .*, .all. there"):
            other.load_state_dict(state)
    else:
        first.dumps(tmp_path / "buffer")
        second.loads(tmp_path / "buffer")
        with pytest.raises(StateError, match="the state is of other rows"):
            other.loads(tmp_path / "buffer")
    for _ in range(3):
        assert same(first.sample(), second.sample())


def test_a_storage_of_a_closed_reader_says_so(small):
    reader = atarirb.open(small[0])
    storage = output.Storage(reader)
    reader.close()
    with pytest.raises(ClosedError):
        storage.get(0)


def test_readers_without_rows_or_of_other_outputs_are_refused(small):
    with pytest.raises(ArgumentError, match="no"):
        output.Storage(atarirb.open(small[0], frame_stack=40).select([5]))
    pytest.importorskip("jax")
    with pytest.raises(ArgumentError, match=r"output='numpy' or 'torch', not 'jax'"):
        output.Storage(atarirb.open(small[0], output="jax"))


def test_missing_packages_are_named_with_the_extra_that_installs_them(small, monkeypatch):
    batch = atarirb.open(small[0])[:3]
    monkeypatch.delitem(vars(output), "Storage")
    monkeypatch.setitem(sys.modules, "tensordict", None)
    monkeypatch.setitem(sys.modules, "torchrl.data.replay_buffers.storages", None)
    with pytest.raises(MissingPackageError, match=r"needs tensordict, .*pip install 'atarirb\[torchrl\]'"):
        output.to_tensordict(batch)
    with pytest.raises(MissingPackageError, match=r"needs torchrl, .*pip install 'atarirb\[torchrl\]'"):
        output.Storage  # noqa: B018


def test_the_module_has_no_other_names_made_on_request():
    with pytest.raises(AttributeError, match="no attribute 'Stowage'"):
        output.Stowage  # noqa: B018


def test_samples_of_a_reader_on_a_device_are_there(small):
    storage = output.Storage(atarirb.open(small[0], output="torch", device="meta"))
    for sampler in (None, SamplerWithoutReplacement(), SliceSampler(slice_len=3)):
        sample = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=6).sample()
        assert sample["observation"].device.type == sample["action"].device.type == "meta"
        assert sample["index"].device.type == "cpu"
