"""The compiled kernels do what their plain twins do, on any shards, and touch nothing else."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atarirb import draws, kernels
from atarirb.index import EpisodeIndex
from atarirb.kernels import reference

compiled = pytest.importorskip(
    "atarirb.kernels.compiled", reason="numba is not installed", exc_type=ImportError
)

unpacking = pytest.importorskip("atarirb.kernels.unpacking", exc_type=ImportError)

DTYPES = [np.uint8, np.uint16, np.float32]
CANARY = 0xA5


def random_bits(rng, shape, dtype):
    """Any bytes at all; for floats no NaN, so that == compares them."""
    if np.dtype(dtype).kind == "f":
        return rng.normal(size=shape).astype(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@st.composite
def shards(draw):
    """Shards of frames, some of them empty, as kernels get them; and a generator for the rest."""
    steps = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(sum))
    pixels = draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    maps = [random_bits(rng, (count, pixels), dtype) for count in steps]
    return Shards(maps, draw(st.integers(0, 12)), rng)


class Shards:
    def __init__(self, maps, rows, rng):
        self.maps, self.rng = maps, rng
        self.pixels, self.dtype = maps[0].shape[1], maps[0].dtype
        self.bases = kernels.addresses(maps)
        self.offsets = np.cumsum([0, *map(len, maps)])
        self.steps = int(self.offsets[-1])
        self.index = self.indices(rows)
        self.next_index = self.indices(rows)
        self.first = rng.integers(0, self.steps, rows)
        self.newest, self.next_newest = self.newest_of(self.index), self.newest_of(self.next_index)

    def indices(self, rows):
        """Steps, and -1 about every fifth time."""
        return np.where(self.rng.random(rows) < 0.2, -1, self.rng.integers(0, self.steps, rows))

    def newest_of(self, index):
        """The frames of these steps; sometimes any other, as that after an episode's end, or none."""
        other = self.rng.random(len(index)) < 0.2
        return np.where(other & (index >= 0), self.indices(len(index)), index)


def guarded(shape, dtype):
    """Return an output array in the middle of a larger one, and a check that the rest is as it was."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.full(size + 128, CANARY, np.uint8)

    def check():
        assert (whole[:64] == CANARY).all(), "written before the output"
        assert (whole[64 + size :] == CANARY).all(), "written after the output"

    return whole[64 : 64 + size].view(dtype).reshape(shape), check


def compare(name, arguments, *outputs):
    """Call both twins with outputs of these (shape, dtype) and check that they agree to the bit."""
    found = [guarded(*output) for output in outputs]
    expected = [np.full(shape, 99, dtype) for shape, dtype in outputs]
    takes_rows = name in ("frames", "pairs", "stacks", "stack_pairs")
    for module, outs in ((compiled, [out for out, _ in found]), (reference, expected)):
        ticket = [kernels.ticket()] if takes_rows else []
        getattr(module, name)(*ticket, *arguments, *outs)
        if takes_rows:
            assert ticket[0][0] >= len(outs[0]), "rows were left to do"
    for (out, check), wanted in zip(found, expected, strict=True):
        check()
        np.testing.assert_array_equal(out, wanted, strict=True)
    return expected


@settings(max_examples=60)
@given(shards())
def test_frames_agree(case):
    row_bytes = case.pixels * case.dtype.itemsize
    compare("frames", (case.bases, case.offsets, case.index), ((len(case.index), row_bytes), np.uint8))


@pytest.mark.parametrize("module", [compiled, reference])
def test_each_row_is_done_by_whoever_takes_it_and_no_row_before_the_ticket(module):
    """Callers with one ticket do all rows between them, from where it begins."""
    rows = np.arange(400, dtype=np.uint8)[:, None].repeat(5, axis=1)
    bases, offsets = kernels.addresses([rows]), np.array([0, 400])
    index, out = np.arange(400)[::-1].copy(), np.zeros((400, 5), np.uint8)
    ticket = np.array([100])
    threads = [
        threading.Thread(target=module.frames, args=(ticket, bases, offsets, index, out)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(out[100:], rows[::-1][100:])
    assert not out[:100].any()


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=6),
    st.integers(1, 10),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_slice_rows_agree(episodes, length, n_step, frame_stack):
    lengths, terminal, head_cut = (np.array(part) for part in zip(*episodes, strict=True))
    final = np.where(np.arange(len(lengths)) % 2, lengths.sum() + np.arange(len(lengths)), -1)
    index = EpisodeIndex(np.append(0, np.cumsum(lengths)), terminal, head_cut, final)
    valid = index.valid(frame_stack, n_step)
    runs = [np.arange(first, first + count) for first, count in zip(valid.first, valid.counts, strict=True)]
    starts = np.concatenate(runs)
    arguments = (starts, index.starts, valid.first, valid.cumulative, index.final, n_step)
    shape, span = (len(starts), length), (len(starts), length + n_step)
    compare("slice_rows", arguments, (shape, np.int64), (shape, np.bool_), *[(span, np.int64)] * 3)


@settings(max_examples=60)
@given(shards())
def test_pairs_agree(case):
    output = ((len(case.index), case.pixels * case.dtype.itemsize), np.uint8)
    compare("pairs", (case.bases, case.offsets, case.index, case.next_index), output, output)


@settings(max_examples=120)
@given(shards(), st.integers(1, 6))
def test_stacks_agree(case, depth):
    blank = np.zeros(case.pixels, case.dtype)
    output = ((len(case.index), case.pixels, depth), case.dtype)
    compare("stacks", (case.bases, case.offsets, case.index, case.newest, case.first, blank), output)


@settings(max_examples=120)
@given(shards(), st.integers(1, 6))
def test_stack_pairs_agree(case, depth):
    blank = np.zeros(case.pixels, case.dtype)
    output = ((len(case.index), case.pixels, depth), case.dtype)
    steps = (case.index, case.next_index, case.next_newest, case.first)
    arguments = (case.bases, case.offsets, *steps, blank)
    compare("stack_pairs", arguments, output, output)


@pytest.mark.parametrize("depth", range(1, 7))
@pytest.mark.parametrize("pixels", [84 * 84, 84 * 84 + 5])
def test_stacks_of_large_frames_agree(depth, pixels):
    rng = np.random.default_rng(0)
    case = Shards([random_bits(rng, (count, pixels), np.uint8) for count in (3, 0, 8)], 9, rng)
    output = ((9, pixels, depth), np.uint8)
    arguments = (
        case.bases,
        case.offsets,
        case.index,
        case.next_index,
        case.next_newest,
        case.first,
        np.zeros(pixels, np.uint8),
    )
    compare("stack_pairs", arguments, output, output)


@st.composite
def logs(draw):
    """Columns of actions and rewards over shards, and episodes over them."""
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=6))
    total = sum(lengths)
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    action = rng.integers(0, 18, total).astype(np.int32)
    reward = rng.normal(size=total).astype(np.float32)
    offsets = np.array([0, *cuts, total])
    edges = list(itertools.pairwise(offsets))
    narrow = rng.random((2, len(edges))) < 0.5  # shards that keep a column as int8

    def stored(column, kept):
        # Copies, so that shards are not neighbours in memory.
        dtypes = [np.int8 if small else column.dtype for small in kept]
        return [column[low:high].astype(dtype) for (low, high), dtype in zip(edges, dtypes, strict=True)]

    reward = np.where(np.repeat(narrow[1], np.diff(offsets)), reward.round(), reward)
    return {
        "index": rng.integers(-1, total, draw(st.integers(0, 12))),
        "starts": np.cumsum([0, *lengths]),
        "terminal_end": rng.random(len(lengths)) < 0.6,
        "final": np.where(rng.random(len(lengths)) < 0.5, total + np.arange(len(lengths)), -1),
        "offsets": offsets,
        "actions": stored(action, narrow[0]),
        "rewards": stored(reward, narrow[1]),
    }


def places(arrays):
    """Where kernels find a column: addresses and bytes of a value."""
    return kernels.addresses(arrays), np.array([array.itemsize for array in arrays])


@settings(max_examples=100)
@given(logs(), st.integers(1, 10), st.sampled_from([0.0, 0.9, 0.99, 1.0]))
def test_steps_agree(log, n_step, gamma):
    arguments = (
        log["index"],
        log["starts"],
        log["terminal_end"],
        log["final"],
        gamma ** np.arange(n_step + 1.0),
        log["offsets"],
        *places(log["actions"]),
        *places(log["rewards"]),
    )
    dtypes = [np.int64, np.int64, np.int64, np.int32, np.float32, np.float32, np.bool_, np.bool_]
    compare("steps", arguments, *[((len(log["index"]),), dtype) for dtype in dtypes])


@settings(max_examples=60)
@given(logs(), st.sampled_from([0.0, 0.9, 0.99, 1.0]))
def test_returns_to_go_agree(log, gamma):
    in_order = np.arange(log["starts"][-1])  # where sums are carried on from row to row
    for index in (log["index"], in_order, np.concatenate([in_order[1:], [-1], in_order[:3], log["index"]])):
        arguments = (index, log["starts"], gamma, log["offsets"], *places(log["rewards"]))
        compare("returns_to_go", arguments, ((len(index),), np.float32))


WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]))
COUNTS = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**58)), min_size=1, max_size=6).filter(sum)


@settings(max_examples=150)
@given(st.lists(st.tuples(WORDS, st.one_of(st.integers(1, 5), st.integers(1, 2**62))), max_size=20))
def test_numbers_below_counts_agree_up_to_the_largest_datasets(rows):
    words = np.array([word for word, _ in rows], np.uint64)
    counts = np.array([count for _, count in rows], np.int64)
    compare("below", (words, counts), ((len(rows),), np.int64))


@settings(max_examples=150)
@given(st.data(), COUNTS, st.integers(0, 2**60))
def test_numbered_steps_agree_up_to_the_largest_datasets(data, counts, gap):
    cumulative = np.cumsum([0, *counts])
    first = cumulative[:-1] + gap
    numbers = data.draw(st.lists(st.integers(-1, int(cumulative[-1]) - 1), max_size=20))
    compare("at", (np.array(numbers, np.int64), cumulative, first), ((len(numbers),), np.int64))


@settings(max_examples=150)
@given(st.data(), st.one_of(st.integers(1, 50), st.integers(1, 2**48)), st.integers(0, 2**32))
def test_orders_agree_up_to_the_largest_datasets(data, size, seed):
    order = draws.order(seed, size)
    numbers = data.draw(st.lists(st.integers(-1, size - 1), max_size=20))
    arguments = (np.array(numbers, np.int64), order._size, order._sides, order._keys)
    compare("permute", arguments, ((len(numbers),), np.int64))


def test_the_plain_twin_stacks_newest_last_with_zeros_before_the_first():
    frames = np.arange(1, 13, dtype=np.uint8).reshape(6, 2)
    out = np.full((2, 2, 3), 99, np.uint8)
    reference.stacks(
        kernels.ticket(),
        kernels.addresses([frames]),
        np.array([0, 6]),
        np.array([4, 3]),
        np.array([4, 3]),
        np.array([2, 3]),
        np.zeros(2, np.uint8),
        out,
    )
    assert out.tolist() == [[[5, 7, 9], [6, 8, 10]], [[0, 0, 7], [0, 0, 8]]]


def test_the_plain_twin_shows_the_newest_frame_it_is_told_to_after_those_of_the_steps():
    frames = np.arange(1, 13, dtype=np.uint8).reshape(6, 2)
    out = np.full((2, 2, 3), 99, np.uint8)
    shards = kernels.addresses([frames]), np.array([0, 6])
    steps, newest, first = np.array([3, 3]), np.array([5, -1]), np.array([1, 1])
    reference.stacks(kernels.ticket(), *shards, steps, newest, first, np.zeros(2, np.uint8), out)
    assert out.tolist() == [[[3, 5, 11], [4, 6, 12]], [[0, 0, 0], [0, 0, 0]]]


def test_the_plain_twin_takes_the_high_half_of_the_product():
    words = np.array([0, 2**62, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    out = np.empty(5, np.int64)
    reference.below(words, np.full(5, 4), out)
    assert out.tolist() == [0, 1, 1, 2, 3]


def test_the_plain_twin_numbers_the_legal_steps_of_all_episodes():
    out = np.empty(5, np.int64)
    reference.at(np.array([0, 1, -1, 2, 3]), np.array([0, 1, 1, 4]), np.array([10, 15, 20]), out)
    assert out.tolist() == [10, 20, -1, 21, 22]


def test_kernels_read_nothing_outside_the_shards(python):
    """Frames that fill a page up to its end, and begin one, with forbidden pages all around."""
    code = """
        import ctypes, mmap
        import numpy as np
        from atarirb import kernels
        from atarirb.kernels import compiled

        libc = ctypes.CDLL(None, use_errno=True)
        page = mmap.PAGESIZE
        whole = mmap.mmap(-1, 3 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(whole))
        whole[page : 2 * page] = bytes(index % 251 for index in range(page))
        for outside in (base, base + 2 * page):
            assert libc.mprotect(ctypes.c_void_p(outside), ctypes.c_size_t(page), 0) == 0
        for pixels in (1, 4, 16, 64, 256):
            steps = page // pixels
            bases, offsets = np.array([base + page], np.uintp), np.array([0, steps])
            index = np.array([0, 1, steps - 2, steps - 1, -1])
            first = np.zeros(5, np.int64)
            out, next_out = np.empty((2, 5, pixels), np.uint8)
            compiled.frames(kernels.ticket(), bases, offsets, index, out)
            compiled.pairs(kernels.ticket(), bases, offsets, index, index[::-1].copy(), out, next_out)
            for depth in (1, 2, 3, 4, 5):
                out, next_out = np.empty((2, 5, pixels, depth), np.uint8)
                blank = np.zeros(pixels, np.uint8)
                compiled.stacks(kernels.ticket(), bases, offsets, index, index, first, blank, out)
                turned = index[::-1].copy()
                arguments = (index, turned, turned, first, blank, out, next_out)
                compiled.stack_pairs(kernels.ticket(), bases, offsets, *arguments)
        print("done")
    """
    assert python(code) == "done\n"


def test_importing_the_kernels_compiles_none(python):
    code = """
        from atarirb import kernels
        from atarirb.kernels import compiled, unpacking
        both = [*vars(compiled).values(), *vars(unpacking).values()]
        dispatchers = [value for value in both if hasattr(value, "signatures")]
        print(len(dispatchers) > 5, sum(len(dispatcher.signatures) for dispatcher in dispatchers))
    """
    assert python(code) == "True 0\n"


def test_no_kernel_runs_in_threads_of_numba():
    both = [*vars(compiled).values(), *vars(unpacking).values()]
    dispatchers = [value for value in both if hasattr(value, "targetoptions")]
    assert dispatchers
    for dispatcher in dispatchers:
        assert not dispatcher.targetoptions.get("parallel")
        assert dispatcher.targetoptions.get("nogil")


@pytest.mark.parametrize(("value", "module"), [("0", "reference"), ("1", "compiled"), ("", "compiled")])
def test_an_environment_variable_turns_numba_off(python, value, module):
    code = "from atarirb import kernels; print(kernels.active().__name__)"
    assert python(code, ATARIRB_NUMBA=value) == f"atarirb.kernels.{module}\n"


def test_kernels_are_the_plain_ones_without_numba(python):
    code = "import sys; sys.modules['numba'] = None; from atarirb import kernels; print(kernels.active())"
    assert "atarirb.kernels.reference" in python(code)
