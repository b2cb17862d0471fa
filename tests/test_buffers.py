"""Memory of batches: used again, but never while anything refers to it."""

import gc
import threading

import numpy as np
import pytest

import atarirb
from atarirb.buffers import Pool
from tests import truth

LARGE = (1 << 18,)


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("shape", [(3,), (100, 7), (1 << 17,), (33, 84, 84), (64, 84, 84, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_arrays_are_contiguous_and_writable(shape, dtype):
    array = Pool().empty(shape, np.dtype(dtype))
    assert (array.shape, array.dtype) == (shape, dtype)
    assert array.flags.c_contiguous
    array[...] = 7
    assert (array == 7).all()


def test_large_arrays_are_aligned_to_cache_lines():
    pool = Pool()
    arrays = [pool.empty((rows, 84, 84), np.uint8) for rows in range(10, 40)]
    assert {address(array) % 64 for array in arrays} == {0}


@pytest.mark.parametrize("shape", [(0,), (0, 84, 84), (5, 0)])
def test_empty_arrays_can_be_had(shape):
    assert Pool().empty(shape, np.uint8).shape == shape


def test_memory_is_used_again_after_the_last_reference():
    pool = Pool()
    array = pool.empty(LARGE, np.uint8)
    place = address(array)
    del array
    again = pool.empty(LARGE, np.uint8)
    assert address(again) == place


def test_memory_of_one_shape_and_dtype_serves_another():
    pool = Pool()
    array = pool.empty((1024, 256), np.uint8)
    place = address(array)
    del array
    assert address(pool.empty((65536,), np.float32)) == place


@pytest.mark.parametrize(
    "view_of",
    [
        lambda array: array[5:9],
        lambda array: array.reshape(2, -1)[1],
        lambda array: array.view(np.uint32),
        lambda array: array[::-1][:1],
        lambda array: memoryview(array),
        lambda array: np.asarray(memoryview(array)[10:20]),
        lambda array: {"deep": [array[:1]]},
    ],
    ids=["slice", "reshape", "dtype", "reversed", "memoryview", "through a memoryview", "container"],
)
def test_memory_is_not_used_again_while_a_view_is_alive(view_of):
    pool = Pool()
    array = pool.empty(LARGE, np.uint8)
    place, view = address(array), view_of(array)
    del array
    gc.collect()
    others = [pool.empty(LARGE, np.uint8) for _ in range(4)]
    assert place not in map(address, others)
    del view
    assert place in [address(pool.empty(LARGE, np.uint8))]


def test_memory_is_not_used_again_while_a_jax_array_is_alive():
    jax = pytest.importorskip("jax")
    pool = Pool()
    array = pool.empty(LARGE, np.uint8)
    array[:] = np.arange(LARGE[0]) % 251
    copy, place = array.copy(), address(array)
    held = jax.device_put(array, jax.devices("cpu")[0])
    held.block_until_ready()
    shares = held.unsafe_buffer_pointer() == place
    del array
    gc.collect()
    for _ in range(4):
        other = pool.empty(LARGE, np.uint8)
        assert not shares or address(other) != place
        other[:] = 0
    np.testing.assert_array_equal(held, copy)
    assert shares, "jax made a copy, so this has shown nothing"


def test_memory_of_a_reference_cycle_is_used_again_once_it_is_collected():
    pool = Pool()
    array = pool.empty(LARGE, np.uint8)
    place = address(array)
    cycle = [array]
    cycle.append(cycle)
    del array, cycle
    gc.collect()
    assert address(pool.empty(LARGE, np.uint8)) == place


def test_no_more_idle_memory_is_kept_than_allowed():
    pool = Pool(idle_bytes=3 * LARGE[0])
    arrays = [pool.empty(LARGE, np.uint8) for _ in range(10)]
    places = {address(array) for array in arrays}
    assert len(places) == 10
    del arrays
    gc.collect()
    assert len(pool._blocks) == 3


def test_what_has_been_idle_longest_makes_room_for_other_sizes():
    pool = Pool(idle_bytes=3 * LARGE[0])
    old = [pool.empty(LARGE, np.uint8) for _ in range(3)]
    del old
    other = pool.empty((2 * LARGE[0],), np.uint8)
    place = address(other)
    del other
    assert address(pool.empty((2 * LARGE[0],), np.uint8)) == place


def test_threads_never_get_the_same_memory():
    pool = Pool()
    failures = []

    def work(number):
        kept = []
        for turn in range(300):
            array = pool.empty((1 << 16,), np.uint8)
            array[:] = number
            kept.append(array)
            if turn % 3 == 0:
                kept.pop(0)
            if len(kept) > 6:
                failures.extend(number for array in kept if (array != number).any())
                kept.clear()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("writer", ["child", "parent"])
def test_a_forked_process_and_its_parent_do_not_write_to_each_others_arrays(python, writer):
    code = """
        import os, sys
        import numpy as np
        from atarirb.buffers import Pool

        pool = Pool()
        array = pool.empty((1 << 18,), np.uint8)
        array[:] = 1
        wait, go = os.pipe()
        child = os.fork()
        if child == 0:
            if sys.argv[1] == "child":
                array[:] = 2
                os._exit(0)
            os.read(wait, 1)
            os._exit(int(array.max()))
        if sys.argv[1] == "parent":
            array[:] = 2
        os.write(go, b".")
        _, status = os.waitpid(child, 0)
        print(int(array.max()) if sys.argv[1] == "child" else os.waitstatus_to_exitcode(status))
    """
    assert python(code, writer) == "1\n"


@pytest.mark.parametrize("output", ["numpy", "jax"])
def test_batches_that_are_kept_never_change(pong, output):
    if output == "jax":
        pytest.importorskip("jax")
    with atarirb.open(pong, frame_stack=4, output=output) as reader:
        kept = [(batch, truth.digest(batch)) for batch in (reader.sample(key, 8) for key in range(50))]
        kept += [
            (batch, truth.digest(batch)) for batch in (reader.sample_slices(key, 2, 8) for key in range(50))
        ]
        for key in range(50):
            reader.sample(key, 8)  # these are not kept: their memory goes round
    assert [truth.digest(batch) for batch, _ in kept] == [before for _, before in kept]


def test_batches_that_are_let_go_use_the_same_memory(pong):
    with atarirb.open(pong, frame_stack=4) as reader:
        places = {address(reader.sample(key, 8)["observation"]) for key in range(20)}
    assert len(places) <= 4


def test_batches_stay_good_after_their_reader_is_closed(pong):
    with atarirb.open(pong) as reader:
        batch = reader.sample(1, 16)
        before = truth.digest(batch)
    del reader
    gc.collect()
    assert truth.digest(batch) == before
