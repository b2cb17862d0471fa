"""Batches as JAX arrays: the same values, none cut down, put where they are wanted."""

import json
import pickle
import sys

import numpy as np
import pytest

import atarirb
from atarirb.errors import ArgumentError, MissingPackageError
from tests import truth

jax = pytest.importorskip("jax")

COLUMNS = ("timestep", "episode", "return_to_go", "split", "wide", "pair")
CALLS = {
    "get": lambda reader: reader[[5, 1, 5, -1]],
    "one": lambda reader: reader[7],
    "sample": lambda reader: reader.sample(3, 20),
    "slices": lambda reader: reader.sample_slices(3, 5, 4),
    "padded slices": lambda reader: reader.sample_slices(3, 50, 12, strict_length=False),
}


@pytest.fixture(params=CALLS)
def batches(request, small):
    """Return what a call gives as NumPy arrays and as JAX arrays."""
    options = {"frame_stack": 3, "n_step": 2, "columns": COLUMNS}
    call = CALLS[request.param]
    return [call(atarirb.open(small[0], output=output, **options)) for output in ("numpy", "jax")]


def test_values_are_those_of_numpy(batches):
    plain, moved = batches
    truth.assert_same(moved, plain)


def test_leaves_are_jax_arrays_except_those_of_64_bits(batches):
    for name, leaf in jax.tree_util.tree_leaves_with_path(batches[1]):
        wide = jax.tree_util.keystr(name) in ("['index']", "['wide']")
        assert isinstance(leaf, jax.Array) != wide, name


def test_index_stays_on_the_host_as_int64(batches):
    index = batches[1]["index"]
    assert isinstance(index, (np.ndarray, np.generic))
    assert index.dtype == np.int64


def test_a_batch_is_a_tree_that_jit_takes(batches):
    batch = batches[1]
    index = batch.pop("index")
    total = jax.jit(lambda batch: batch["next"]["reward"].sum() + batch["observation"].sum())(batch)
    assert np.isfinite(total)
    batch["index"] = index


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float64"])
def test_wide_frames_are_not_cut_down(tmp_path, dtype):
    path, steps = truth.dataset(tmp_path, [5, 4], capacity=30, frame_dtype=dtype)
    batch = atarirb.open(path, output="jax")[:]
    for name, leaf in (("observation", batch["observation"]), ("next", batch["next"]["observation"])):
        assert np.asarray(leaf).dtype == dtype, name
    np.testing.assert_array_equal(batch["observation"], steps.frames)


@pytest.fixture
def wide_types():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.usefixtures("wide_types")
def test_index_stays_on_the_host_with_wide_types_on_too(small):
    reader = atarirb.open(small[0], columns=("wide",), output="jax")
    batch, one = reader.sample(1, 9), reader[3]
    assert isinstance(batch["index"], np.ndarray)
    assert isinstance(batch["wide"], jax.Array)
    assert batch["wide"].dtype == np.int64
    assert isinstance(one["index"], (np.ndarray, np.generic))


def test_a_device_is_where_the_arrays_are(small):
    device = jax.devices("cpu")[0]
    reader = atarirb.open(small[0], output="jax", device=device)
    assert reader.sample(1, 9)["next"]["reward"].devices() == {device}


def test_a_device_goes_with_jax_arrays_only(small):
    with pytest.raises(ArgumentError, match=r"device= goes with output='jax'"):
        atarirb.open(small[0], device=jax.devices("cpu")[0])


@pytest.mark.parametrize("device", ["cpu", 0, object])
def test_what_is_no_device_is_refused_when_opening(small, device):
    with pytest.raises(ArgumentError, match="device"):
        atarirb.open(small[0], output="jax", device=device)


def test_a_reader_with_a_device_is_pickled(small):
    reader = atarirb.open(small[0], output="jax", device=jax.devices("cpu")[0])
    again = pickle.loads(pickle.dumps(reader))
    assert again.sample(1, 9)["action"].devices() == {jax.devices("cpu")[0]}
    truth.assert_same(again.sample(1, 9), reader.sample(1, 9))


@pytest.fixture(scope="module")
def two_devices(small, python):
    """Use devices and shardings in a process that has two devices; return what came of it."""
    code = """
        import json, pickle, sys
        import jax
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
        import atarirb
        from atarirb.outputs.jax import put, rows_of
        from tests import truth

        path = sys.argv[1]
        expected = truth.digest(atarirb.open(path).sample(1, 16))
        expected_slices = truth.digest(atarirb.open(path).sample_slices(1, 16, 3))
        first, second = jax.devices()
        rows = NamedSharding(Mesh(np.array([first, second]), "rows"), PartitionSpec("rows"))
        report = {}
        for name, device in {
            "device": second, "one device": SingleDeviceSharding(second), "sharding": rows
        }.items():
            report[name] = found = {}
            reader = atarirb.open(path, output="jax", device=device)
            batch = reader.sample(1, 16)
            leaves = [leaf for leaf in jax.tree.leaves(batch) if isinstance(leaf, jax.Array)]
            found["leaves"] = len(leaves)
            found["devices"] = sorted({device.id for leaf in leaves for device in leaf.devices()})
            shards = [shard for leaf in leaves for shard in leaf.addressable_shards]
            found["rows"] = sorted({len(shard.data) for shard in shards})
            found["index"] = type(batch["index"]).__name__
            found["same"] = truth.digest(batch) == expected
            found["slices"] = truth.digest(reader.sample_slices(1, 16, 3)) == expected_slices
            try:
                again = pickle.loads(pickle.dumps(reader)).sample(1, 16)
                found["pickled"] = all(
                    leaf.sharding == other.sharding
                    for leaf, other in zip(jax.tree.leaves(again), jax.tree.leaves(batch))
                    if isinstance(leaf, jax.Array)
                ) and truth.digest(again) == expected
            except Exception as error:
                found["pickled"] = repr(error)
        report["rows"] = [rows_of(rows, 16), rows_of(SingleDeviceSharding(second), 15)]
        report["errors"] = errors = {}
        whole = atarirb.open(path).get(range(16))
        columns = NamedSharding(Mesh(np.array([[first, second]]), ("rows", "columns")),
                                PartitionSpec("rows", "columns"))
        for name, call in {
            "rows_of": lambda: rows_of(rows, 15),
            "rows of columns": lambda: rows_of(columns, 16),
            "rows": lambda: put(whole, rows, rows=32),
            "rows of a device": lambda: put(whole, second, rows=32),
            "sharding": lambda: atarirb.open(path, output="jax", device=rows).sample(1, 15),
            "columns": lambda: atarirb.open(path, output="jax", device=columns).sample(1, 16),
            "single": lambda: atarirb.open(path, output="jax", device=rows)[3],
        }.items():
            try:
                errors[name] = repr(call())
            except atarirb.errors.ArgumentError as error:
                errors[name] = str(error)
        report["whole"] = truth.digest(put(whole, rows, rows=16)) == truth.digest(whole)
        print(json.dumps(report))
    """
    return json.loads(python(code, small[0], XLA_FLAGS="--xla_force_host_platform_device_count=2"))


@pytest.mark.parametrize(
    ("placement", "devices", "rows"), [("device", [1], 16), ("one device", [1], 16), ("sharding", [0, 1], 8)]
)
def test_arrays_are_put_where_they_are_wanted(two_devices, placement, devices, rows):
    found = two_devices[placement]
    assert found["leaves"] == 11
    assert found["devices"] == devices
    assert found["rows"] == [rows]
    assert found["index"] == "ndarray"


@pytest.mark.parametrize("placement", ["device", "one device", "sharding"])
def test_values_do_not_depend_on_the_placement(two_devices, placement):
    assert two_devices[placement]["same"]
    assert two_devices[placement]["slices"]


@pytest.mark.parametrize("placement", ["device", "one device", "sharding"])
def test_a_reader_is_pickled_with_its_placement(two_devices, placement):
    assert two_devices[placement]["pickled"] is True


def test_one_process_holds_all_rows_of_a_batch(two_devices):
    assert two_devices["rows"] == [[0, 16], [0, 15]]
    assert two_devices["whole"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("rows_of", "a batch of 15 rows does not divide over the 2 shards"),
        ("rows of columns", "partitions more than the rows of a batch"),
        ("rows", "has shape (16,), expected 32 rows"),
        ("rows of a device", "has shape (16,), expected 32 rows"),
        ("sharding", "leaf ['action'] has shape (15,), which does not divide"),
        ("columns", "leaf ['action'] has shape (16,), fewer axes than"),
        ("single", "leaf ['action'] has shape (), fewer axes than"),
    ],
)
def test_a_batch_that_does_not_fit_its_sharding_is_refused(two_devices, call, words):
    assert words in two_devices["errors"][call]


def test_opening_touches_no_accelerator(small, python):
    code = """
        import sys
        import atarirb
        reader = atarirb.open(sys.argv[1], output="jax")
        from jax._src import xla_bridge
        print(len(reader), xla_bridge.backends_are_initialized())
    """
    assert python(code, small[0]) == "113 False\n"


def test_a_missing_jax_is_named_with_the_extra_that_installs_it(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingPackageError, match=r"needs jax, .*pip install 'atarirb\[jax\]'") as caught:
        atarirb.open(small[0], output="jax")
    assert isinstance(caught.value, ImportError)


def test_numpy_output_needs_no_jax(small, python):
    code = """
        import sys
        sys.modules["jax"] = None
        import atarirb
        print(len(atarirb.open(sys.argv[1]).sample(1, 9)["action"]))
    """
    assert python(code, small[0]) == "9\n"
