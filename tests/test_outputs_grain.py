"""A reader as a data source of Grain's pipelines: every record once, in Grain's order, from any state."""

import itertools
import json
import pathlib
import pickle

import numpy as np
import pytest

import atarirb
from atarirb.errors import ArgumentError, ClosedError, StepIndexError, StepIndexTypeError
from atarirb.outputs.grain import Source
from tests import truth

grain = pytest.importorskip("grain")

CASES = {"transitions": None, "slices": 4}


@pytest.fixture(scope="module")
def reader(small):
    return atarirb.open(small[0], frame_stack=3, n_step=2, columns=["episode", "return_to_go", "pair"])


@pytest.fixture(params=CASES)
def source(reader, request):
    return Source(reader, CASES[request.param])


@pytest.fixture
def records(small, source):
    """The steps of each record, by a walk over the play: tuples of one, or of a slice's steps."""
    return sorted(truth.slices(small[1], source._slice_len or 1, 3, 2))


def numbers(batches):
    """The steps of the records of batches, as tuples."""
    found = []
    for batch in batches:
        index = batch["index"]
        found += map(tuple, index.reshape(len(index), -1).tolist())
    return found


def assert_same_batches(found, expected):
    for batch, other in itertools.zip_longest(found, expected):
        truth.assert_same(batch, other)


# The source by itself.


def test_records_are_the_valid_steps_or_the_legal_slices_in_order(source, records):
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == len(records)
    found = list(source)
    assert [tuple(record["index"].reshape(-1).tolist()) for record in found] == records
    assert numbers([source.get(slice(None))]) == records


def test_a_record_is_what_the_reader_gives(reader, source, records):
    for number in (0, 1, len(source) // 2, -1):
        record = source[number]
        for leaf in (record["index"], record["next"]["reward"]):
            assert isinstance(leaf, np.ndarray)
        expected = reader[list(records[number])]
        if source._slice_len is None:
            expected = truth.pick(expected, 0)
        else:
            assert record.pop("mask").all()
        truth.assert_same(record, expected)


def test_records_read_at_once_are_those_read_one_by_one(source):
    chosen = [5, 1, 5, len(source) - 1]
    batch, listed = source.get(chosen), source._getitems(chosen)
    for place, number in enumerate(chosen):
        truth.assert_same(truth.pick(batch, place), source[number])
        truth.assert_same(listed[place], source[number])


@pytest.mark.parametrize("number", [10_000, -10_000, [0, 10_000]])
def test_numbers_beyond_the_records_are_refused(source, number):
    with pytest.raises(StepIndexError, match="record -?10000 is out of range"):
        source[number]
    with pytest.raises(StepIndexTypeError, match="records are indexed by integers"):
        source[1.5]


def test_what_makes_no_source_is_refused(small, reader):
    with pytest.raises(ArgumentError, match="the longest run has 30"):
        Source(atarirb.open(small[0]), 31)
    with pytest.raises(ArgumentError, match="slice_len is 0"):
        Source(reader, 0)
    with pytest.raises(ArgumentError, match="no step to draw from is valid"):
        Source(atarirb.open(small[0], frame_stack=40).select([5]))
    pytest.importorskip("jax")
    with pytest.raises(ArgumentError, match="output='numpy', not 'jax'"):
        Source(atarirb.open(small[0], output="jax"))


def test_a_closed_reader_says_so(small):
    for length in CASES.values():
        reader = atarirb.open(small[0])
        source = Source(reader, length)
        reader.close()
        with pytest.raises(ClosedError):
            source[0]


def test_a_source_is_pickled_with_its_selection(reader):
    some = Source(reader.select([1, 3, 6]), 4)
    again = pickle.loads(pickle.dumps(some))
    assert repr(again) == repr(some)
    truth.assert_same(again.get(slice(None)), some.get(slice(None)))
    assert set(again.get(slice(None))["episode"].reshape(-1)) == {1, 3, 6}


def test_its_repr_names_the_records_and_no_path(small, codec, tmp_path):
    def of(path=small[0], length=None, chosen=None, **options):
        reader = atarirb.open(path, **options)
        return repr(Source(reader if chosen is None else reader.select(chosen), length))

    moved = tmp_path / "elsewhere"
    moved.symlink_to(small[0])
    assert of(moved) == of() == of(pathlib.Path(small[0]))
    assert str(small[0]) not in of()
    others = [of(length=2), of(length=3), of(chosen=[1, 2]), of(chosen=[1, 3])]
    others += [of(frame_stack=2), of(n_step=2), of(gamma=0.5), of(columns=["pair"]), of(final="stored")]
    assert len({of(), *others}) == 10


# In pipelines.


def pipeline(source, *, seed=3, size=7):
    return grain.MapDataset.source(source).shuffle(seed=seed).batch(size)


def test_an_epoch_has_every_record_once_in_another_order(source, records):
    found = numbers(pipeline(source).to_iter_dataset())
    assert sorted(found) == records
    assert found != records
    assert numbers(pipeline(source)) == found
    assert numbers(pipeline(source, seed=4)) != found


def test_batches_are_those_of_the_same_numbers_read_at_once(source):
    order = grain.MapDataset.range(len(source)).shuffle(seed=3).batch(7)
    assert_same_batches(order.map(source.get).to_iter_dataset(), pipeline(source).to_iter_dataset())


def test_an_iterator_goes_on_from_its_state_bit_for_bit(source):
    dataset = grain.MapDataset.source(source).shuffle(seed=3).repeat(2).batch(7).to_iter_dataset()
    batches = iter(dataset)
    for _ in range(5):
        next(batches)
    state = json.dumps(batches.get_state())
    rest = list(batches)
    again = iter(dataset)
    again.set_state(json.loads(state))
    assert_same_batches(again, rest)
    assert len(rest) > 10


def test_two_processes_share_the_records(source, records):
    halves = [
        numbers(grain.MapDataset.source(source)[shard::2].shuffle(seed=3).batch(7).to_iter_dataset())
        for shard in range(2)
    ]
    assert sorted(halves[0] + halves[1]) == records
    assert abs(len(halves[0]) - len(halves[1])) <= 1


def loader(source, *, shard=0, shards=1, epochs=1):
    sampler = grain.samplers.IndexSampler(
        num_records=len(source),
        shard_options=grain.sharding.ShardOptions(shard_index=shard, shard_count=shards),
        shuffle=True,
        num_epochs=epochs,
        seed=3,
    )
    return grain.DataLoader(
        data_source=source, sampler=sampler, operations=[grain.transforms.Batch(batch_size=5)]
    )


def test_the_data_loader_covers_every_record_over_its_shards(source, records):
    found = [*numbers(loader(source, shard=0, shards=2)), *numbers(loader(source, shard=1, shards=2))]
    assert len(set(found)) == len(found) == len(records) // 2 * 2  # it gives each as many
    assert set(found) <= set(records)


def test_the_data_loader_goes_on_from_its_state_over_the_same_records_only(small, source):
    batches = iter(loader(source, epochs=2))
    for _ in range(5):
        next(batches)
    state = batches.get_state()
    rest = list(batches)
    again = iter(loader(pickle.loads(pickle.dumps(source)), epochs=2))
    again.set_state(state)
    assert_same_batches(again, rest)
    # With as many records, but other ones.
    reader = atarirb.open(small[0], frame_stack=3, n_step=2, gamma=0.5)
    other = iter(loader(Source(reader, source._slice_len), epochs=2))
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        other.set_state(state)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A source over a dataset of packed frames, whatever the other tests run with."""
    path, _ = truth.dataset(tmp_path_factory.mktemp("packed"), [20, 9, 30], capacity=70)
    return Source(atarirb.open(path, frame_stack=2), 4)


@pytest.fixture
def flags():
    """Let Grain read its flags, as it does for worker processes."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    yield
    flags.FLAGS.unparse_flags()


@pytest.mark.usefixtures("flags")
def test_worker_processes_give_what_one_process_gives(packed):
    workers = grain.MultiprocessingOptions(num_workers=2)
    alone = list(pipeline(packed).to_iter_dataset())
    batches = iter(pipeline(packed).to_iter_dataset().mp_prefetch(workers))
    try:
        assert_same_batches(batches, alone)
    finally:
        batches.close()
