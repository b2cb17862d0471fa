"""Batches as global JAX arrays, of two real processes with four devices each.

Both run `CHILD`, which makes global arrays by each of `WAYS` under each of `SHARDINGS`, and whole epochs in
each of `MODES`, and writes what it holds. It is compared with the batches of one process that has no
devices to share, and with the play.
"""

import contextlib
import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import atarirb
from tests import truth
from tests.conftest import ROOT

pytest.importorskip("jax")

STACK, ROWS = 3, 48
KEY = 5
OPTIONS = {"frame_stack": STACK, "n_step": 2, "columns": ("timestep", "episode", "wide", "pair")}

#: Which rows of a batch each process's devices hold. Of "replicated" and "crossed" each holds all.
HALVES, ALL = [(0, ROWS // 2), (ROWS // 2, ROWS)], [(0, ROWS)] * 2
SHARDINGS = {
    "rows": HALVES,  # over all devices
    "turned": HALVES[::-1],  # the same, the last device first
    "shuffled": HALVES,  # the devices of each process in another order
    "per process": HALVES,  # rows over processes, the same on all devices of one
    "crossed": ALL,  # rows over pairs of devices, one of each process
    "replicated": ALL,
}
#: A mesh in which the devices of the processes take turns: no process's rows are neighbours.
MIXED = "mixed"
#: How a batch is made, and whether each process gathers its own rows only.
WAYS = {"part": True, "part in a thread": True, "sample": False, "whole": False}

#: How epochs are gone through, in batches of so many rows, under so many of the shardings.
MODES = {
    "transitions": {},
    "all transitions": {"drop_remainder": False},
    "all slices": {"slice_len": 4, "drop_remainder": False},
    "replacement": {"replacement": True},
}
SIZE, EPOCHS = 16, 2
SPREAD = ["rows", "turned", "per process", "replicated"]
#: Where the processes go on in the epochs of one process, and it in theirs.
STOP = 5

# Arguments: this process's number, the coordinator's port, the dataset, where to write what is found.
CHILD = """
import json, os, pathlib, pickle, sys, threading, time, traceback

import jax

def fail(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)  # at a usual exit it would wait for the other process

sys.excepthook = fail
number, port, path, out = int(sys.argv[1]), sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4])
ways, options, rows, key, modes, size, epochs, spread, states = json.loads(sys.argv[5])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number, initialization_timeout=30)

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import atarirb
from atarirb.outputs.jax import put, rows_of

devices = np.array(jax.devices())
assert len(devices) == 8 and len(jax.local_devices()) == 4
pairs = devices.reshape(2, 4)

def over(devices, spec, *names):
    return NamedSharding(Mesh(devices, names or ("rows",)), PartitionSpec(*spec))

shardings = {
    "rows": over(devices, ["rows"]),
    "turned": over(devices[::-1], ["rows"]),
    "shuffled": over(pairs[:, [2, 0, 3, 1]].reshape(-1), ["rows"]),
    "per process": over(pairs, ["rows"], "rows", "copies"),
    "crossed": over(pairs.T, ["rows"], "rows", "copies"),
    "replicated": over(devices, []),
    "mixed": over(pairs.T.reshape(-1), ["rows"]),
    "two axes": over(pairs, ["rows", "columns"], "rows", "columns"),
    "the other's": over(pairs[1 - number], ["rows"]),
}
reader = atarirb.open(path, **options)
index = np.array(reader.sample(key, rows)["index"])

def part(sharding):
    low, high = rows_of(sharding, rows)
    return put(reader.get(index[low:high]), sharding, rows=rows)

def part_in_a_thread(sharding):
    found = []
    thread = threading.Thread(target=lambda: found.append(part(sharding)))
    thread.start()
    thread.join()
    return found[0]

def sample(sharding):
    reader = atarirb.open(path, output="jax", device=sharding, **options)
    return pickle.loads(pickle.dumps(reader)).sample(key, rows)

def whole(sharding):
    return put(reader.get(index), sharding)

def make(way, sharding):
    return globals()[way.replace(" ", "_")](sharding)

def held(leaf):
    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    parts = [(shard.index, np.asarray(shard.data)) for shard in leaf.addressable_shards]
    return leaf.shape, [([where.indices(size)[:2] for where, size in zip(index, leaf.shape)], data)
                        for index, data in parts]

def refusal(function, *arguments, **options):
    try:
        return repr(function(*arguments, **options))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def reader_over(name):
    return atarirb.open(path, output="jax", device=shardings[name], **options)

def batches(name, mode, **more):
    return reader_over(name).batches(size, key=key, epochs=epochs, **modes[mode], **more)

report = {"batches": {}, "rows": {}, "sums": {}, "refused": {}, "epochs": {}, "states": {}, "rest": {}}

# One process makes batches while the other one makes none.
turn = out / "turn"
if number == 1:
    until = time.monotonic() + 30
    while not turn.exists() and time.monotonic() < until:
        time.sleep(0.01)
report["turn"] = turn.exists()
for name, sharding in shardings.items():
    if name in ("two axes", "the other's"):
        continue
    for way in ways:
        if name == "mixed" and way.startswith("part"):
            continue
        batch = make(way, sharding)
        report["batches"][name, way] = jax.tree_util.tree_map(held, batch)
        assert all(leaf.sharding == sharding for leaf in jax.tree_util.tree_leaves(batch)
                   if isinstance(leaf, jax.Array))
for name in spread:
    for mode in modes:
        report["epochs"][name, mode], report["states"][name, mode] = [], []
        with batches(name, mode) as iterator:
            for batch in iterator:
                report["epochs"][name, mode].append(jax.tree_util.tree_map(held, batch))
                report["states"][name, mode].append(iterator.get_state())
        with batches(name, mode, prefetch=3) as iterator:
            iterator.set_state(states[mode])
            report["rest"][name, mode] = [jax.tree_util.tree_map(held, batch) for batch in iterator]
gathered = set()

def transform(batch):
    gathered.update((type(leaf), len(leaf)) for leaf in jax.tree_util.tree_leaves(batch))
    return {"mine": batch["action"]}

with batches("rows", "all slices", transform=transform) as iterator:
    report["transformed"] = held(next(iterator)["mine"])
report["gathered"] = gathered
one = put(reader[7], shardings["replicated"])
report["one"] = jax.tree_util.tree_map(lambda leaf: np.asarray(leaf), one)
turn.touch()

for name in shardings:
    report["rows"][name] = refusal(rows_of, shardings[name], rows)
    report["rows"][name, "51"] = refusal(rows_of, shardings[name], 51)
half = reader.get(index[: rows // 2])
report["refused"] = {
    "rows": refusal(put, reader.get(index[:7]), shardings["rows"], rows=rows),
    "divided": refusal(put, reader.get(index[:7]), shardings["rows"]),
    "one": refusal(put, reader[7], shardings["rows"]),
    "one of rows": refusal(put, reader[7], shardings["rows"], rows=rows),
    "axes": refusal(put, reader.get(index), shardings["two axes"]),
    "mixed": refusal(put, half, shardings["mixed"], rows=rows),
}
report["refused batches"] = {
    "shard": refusal(batches, "rows", "transitions", shard=(number, 2)),
    "mixed": refusal(batches, "mixed", "transitions"),
    "axes": refusal(batches, "two axes", "transitions"),
    "the other's": refusal(batches, "the other's", "transitions"),
    "divided": refusal(reader_over("rows").batches, 20, key=key),
}

@jax.jit
def total(batch):
    return {name: batch[name].astype("int32").sum() for name in ("observation", "action", "timestep")}

for way in ways:
    for name in ("rows", "per process"):
        batch = make(way, shardings[name])
        arrays = {name: leaf for name, leaf in batch.items() if name not in ("index", "wide")}
        report["sums"][name, way] = {name: int(value) for name, value in total(arrays).items()}

# Together, step by step, the one slower than the other.
report["epoch sums"] = []
with batches("rows", "transitions") as iterator:
    for batch in iterator:
        time.sleep(0.01 * number)
        arrays = {name: leaf for name, leaf in batch.items() if name not in ("index", "wide")}
        report["epoch sums"].append({name: int(value) for name, value in total(arrays).items()})
(out / f"{number}.pickle").write_bytes(pickle.dumps(report))
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_both(path, out, states):
    """Run the two processes to their ends; return both exit statuses, None where one had to be killed."""
    port = free_port()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    todo = json.dumps([list(WAYS), OPTIONS, ROWS, KEY, MODES, SIZE, EPOCHS, SPREAD, states])
    with contextlib.ExitStack() as stack:
        children = []
        for number in range(2):
            log = stack.enter_context(open(out / f"{number}.log", "w"))
            arguments = [str(number), str(port), str(path), str(out), todo]
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD, *arguments], env=environment, stdout=log, stderr=log
            )
            stack.callback(child.wait)
            stack.callback(child.kill)
            children.append(child)
        until = time.monotonic() + 60
        # One that failed leaves the other waiting.
        while time.monotonic() < until and not any(child.poll() for child in children):
            if all(child.poll() == 0 for child in children):
                break
            time.sleep(0.05)
        return [child.poll() for child in children]


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Return the path of a dataset, and its steps as the player knows them."""
    return truth.dataset(
        tmp_path_factory.mktemp("play"),
        [1, 30, 5, 7, 30, 5, 4, 20, 20],
        codec="raw",
        capacity=30,
        unfinished=True,
        drop=(2,),
        extra={"wide": ((), "int64"), "pair": ((2,), "float32")},
    )


@pytest.fixture(scope="module")
def epochs(play):
    """Return the epochs of one process, as NumPy arrays, and its state after `STOP` batches, of each mode."""
    made, states = {}, {}
    with atarirb.open(play[0], **OPTIONS) as reader:
        for mode, options in MODES.items():
            with reader.batches(SIZE, key=KEY, epochs=EPOCHS, **options) as iterator:
                made[mode] = list(itertools.islice(iterator, STOP))
                states[mode] = json.loads(json.dumps(iterator.get_state()))
                made[mode] += iterator
    return made, states


@pytest.fixture(scope="module")
def found(play, epochs, tmp_path_factory):
    """Return what each of the two processes found."""
    for _ in range(3):  # another program may take the port between its choice and its use
        out = tmp_path_factory.mktemp("found")
        status = run_both(play[0], out, epochs[1])
        logs = [(out / f"{number}.log").read_text() for number in range(2)]
        if not any("Failed to add port" in log or "in use" in log for log in logs):
            break
    assert status == [0, 0], "\n".join(logs)
    return [pickle.loads((out / f"{number}.pickle").read_bytes()) for number in range(2)]


@pytest.fixture(scope="module")
def batch(play):
    """Return the batch of one process, as NumPy arrays."""
    return atarirb.open(play[0], **OPTIONS).sample(KEY, ROWS)


def walk(tree, prefix=""):
    for name, leaf in tree.items():
        if isinstance(leaf, dict):
            yield from walk(leaf, f"{prefix}{name}.")
        else:
            yield prefix + name, leaf


def test_the_one_process_batch_shows_what_was_played(play, batch):
    for row, step in enumerate(batch["index"]):
        shown = truth.observation(play[1], int(step), STACK)
        np.testing.assert_array_equal(batch["observation"][row], shown)


CASES = [(sharding, way) for sharding in SHARDINGS for way in WAYS] + [
    (MIXED, way) for way, own in WAYS.items() if not own
]


@pytest.mark.parametrize(("sharding", "way"), CASES)
@pytest.mark.parametrize("process", [0, 1])
def test_the_devices_of_a_process_hold_the_rows_of_the_one_process_batch(
    found, batch, process, sharding, way
):
    leaves = dict(walk(found[process]["batches"][sharding, way]))
    expected = dict(walk(batch))
    assert leaves.keys() == expected.keys()
    for name, leaf in leaves.items():
        if name in ("index", "wide"):
            first, stop = SHARDINGS[sharding][process] if WAYS[way] else (0, ROWS)
            np.testing.assert_array_equal(leaf, expected[name][first:stop], strict=True)
            continue
        shape, shards = leaf
        assert shape == expected[name].shape
        assert len(shards) == 4
        for where, data in shards:
            rows = tuple(slice(*one) for one in where)
            np.testing.assert_array_equal(data, expected[name][rows], strict=True, err_msg=name)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_every_row_is_on_some_device_and_none_is_where_it_need_not_be(found, sharding, way):
    held = [{where[0] for where, _ in report["batches"][sharding, way]["action"][1]} for report in found]
    for process, parts in enumerate(held):
        first, stop = SHARDINGS[sharding][process]
        assert sorted(row for low, high in parts for row in range(low, high)) == list(range(first, stop))


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_rows_of_tells_the_rows_that_the_devices_hold(found, process, sharding):
    assert found[process]["rows"][sharding] == repr(SHARDINGS[sharding][process])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sharding", ["rows", "per process"])
def test_a_sum_over_all_devices_is_that_of_the_batch(found, batch, sharding, way):
    expected = {
        name: int(batch[name].astype(np.int32).sum()) for name in ("observation", "action", "timestep")
    }
    assert [report["sums"][sharding, way] for report in found] == [expected] * 2


def test_processes_do_not_wait_for_each_other(found):
    """The second one made its first batch when the first one had made all of its own."""
    assert found[1]["turn"]


def test_a_single_row_is_replicated(found, play):
    one = atarirb.open(play[0], **OPTIONS)[7]
    for report in found:
        truth.assert_same(report["one"], one)


def refused(found, *words):
    for report in found:
        for word in ("ArgumentError", *words):
            assert word in report, report


def test_rows_that_are_no_neighbours_are_refused(found):
    words = (
        "hold rows 0 to 5, 12 to 17, 24 to 29, 36 to 41 of 48",
        "order the devices of the mesh by process",
    )
    refused([found[0]["rows"][MIXED]], *words)
    refused([found[1]["rows"][MIXED]], "hold rows 6 to 11, 18 to 23", words[1])
    refused([report["refused"]["mixed"] for report in found], words[1])


@pytest.mark.parametrize(
    ("sharding", "shards"), [("rows", 8), ("per process", 2), ("crossed", 4), (MIXED, 8)]
)
def test_rows_that_do_not_divide_are_refused(found, sharding, shards):
    refused(
        [report["rows"][sharding, "51"] for report in found], f"51 rows does not divide over the {shards} "
    )


def test_a_replicated_batch_may_have_any_number_of_rows(found):
    assert [report["rows"]["replicated", "51"] for report in found] == ["(0, 51)"] * 2


def test_shardings_of_more_than_rows_are_refused(found):
    refused([report["rows"]["two axes"] for report in found], "more than the rows", "PartitionSpec('rows')")
    refused([report["refused"]["axes"] for report in found], "['action'] has shape (48,), fewer axes")


def test_a_process_without_devices_is_told(found):
    refused([report["rows"]["the other's"] for report in found], "none of the devices")


def test_a_part_of_other_rows_is_refused(found):
    refused([found[0]["refused"]["rows"]], "has shape (7,", "expected 24 rows", "from 0 on", "of 48")
    refused([found[1]["refused"]["rows"]], "has shape (7,", "expected 24 rows", "from 24 on", "of 48")
    refused([report["refused"]["one of rows"] for report in found], "expected 24 rows")


def test_batches_that_cannot_be_spread_are_refused(found):
    refused([report["refused"]["divided"] for report in found], "has shape (7,", "does not divide")
    refused([report["refused"]["one"] for report in found], "has shape ()", "fewer axes", "PartitionSpec()")


# Epochs.

every_epoch = pytest.mark.parametrize(("sharding", "mode"), list(itertools.product(SPREAD, MODES)))


def filled_up(mode, batch):
    """Add what batches over several devices have more: rows without a step, and a mask."""
    if "drop_remainder" not in MODES[mode]:
        return batch
    rows = len(batch["index"])
    if "mask" not in batch:
        batch = batch | {"mask": np.ones(rows, np.bool_)}

    def longer(tree):
        return {
            name: longer(leaf)
            if isinstance(leaf, dict)
            else np.pad(leaf, [(0, SIZE - rows)] + [(0, 0)] * (leaf.ndim - 1))
            for name, leaf in tree.items()
        }

    batch = longer(batch)
    batch["index"][rows:] = -1
    return batch


def assert_held(report, sharding, process, expected):
    """Check that a process's devices hold their rows of a batch, and its NumPy arrays the same."""
    leaves, expected = dict(walk(report)), dict(walk(expected))
    assert leaves.keys() == expected.keys()
    first, stop = (row * SIZE // ROWS for row in SHARDINGS[sharding][process])
    for name, leaf in leaves.items():
        if name in ("index", "wide"):
            np.testing.assert_array_equal(leaf, expected[name][first:stop], strict=True)
            continue
        shape, shards = leaf
        assert shape == expected[name].shape
        assert len(shards) == 4
        for where, data in shards:
            rows = tuple(slice(*one) for one in where)
            assert first <= rows[0].start < rows[0].stop <= stop
            np.testing.assert_array_equal(data, expected[name][rows], strict=True, err_msg=name)


@every_epoch
@pytest.mark.parametrize("process", [0, 1])
def test_epochs_over_both_processes_are_those_of_one(found, epochs, process, sharding, mode):
    """The second one began its first when the first one had ended its last."""
    expected = epochs[0][mode]
    assert len(expected[-1]["index"]) < SIZE or "drop_remainder" not in MODES[mode]
    batches = found[process]["epochs"][sharding, mode]
    assert len(batches) == len(expected) > STOP
    for batch, whole in zip(batches, expected, strict=True):
        assert_held(batch, sharding, process, filled_up(mode, whole))


@every_epoch
def test_both_processes_go_on_where_one_stopped(found, epochs, sharding, mode):
    for process, report in enumerate(found):
        rest = report["rest"][sharding, mode]
        assert len(rest) == len(epochs[0][mode]) - STOP
        for batch, whole in zip(rest, epochs[0][mode][STOP:], strict=True):
            assert_held(batch, sharding, process, filled_up(mode, whole))


@every_epoch
def test_one_process_goes_on_where_both_stopped(found, play, epochs, sharding, mode):
    states = [report["states"][sharding, mode] for report in found]
    assert states[0] == states[1]
    assert states[0][STOP - 1] == epochs[1][mode]
    with atarirb.open(play[0], **OPTIONS) as reader:
        for count in (1, 3, len(states[0])):
            with reader.batches(SIZE, key=KEY, epochs=EPOCHS, **MODES[mode]) as iterator:
                iterator.set_state(states[0][count - 1])
                for whole in epochs[0][mode][count:]:
                    truth.assert_same(next(iterator), whole)
                assert next(iterator, None) is None


def test_sums_over_all_devices_are_those_of_the_epoch(found, epochs):
    expected = [
        {name: int(batch[name].astype(np.int32).sum()) for name in ("observation", "action", "timestep")}
        for batch in epochs[0]["transitions"]
    ]
    assert [report["epoch sums"] for report in found] == [expected] * 2


def test_a_transform_gets_this_processs_rows_as_numpy_arrays(found, epochs):
    for process, report in enumerate(found):
        assert report["gathered"] == {(np.ndarray, SIZE // 2)}
        shape, shards = report["transformed"]
        assert shape == (SIZE, 4)
        for (rows, _), data in shards:
            assert rows[0] // (SIZE // 2) == process
            np.testing.assert_array_equal(data, epochs[0]["all slices"][0]["action"][slice(*rows)])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shard", "shard= goes with devices of this process alone"),
        ("mixed", "expected one run of neighbours"),
        ("axes", "more than the rows"),
        ("the other's", "none of the devices"),
        ("divided", "a batch of 20 rows does not divide over the 8 shards"),
    ],
)
def test_batches_that_cannot_be_global_are_refused_at_once(found, name, words):
    refused([report["refused batches"][name] for report in found], words)
