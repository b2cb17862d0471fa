"""The order of an epoch: a bijection that a key chooses, as good as a random one, held in no memory."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest

from atarirb import draws, kernels
from atarirb.kernels import reference
from tests import truth


def order(key, size):
    """All numbers below `size` in the order that a key chooses."""
    return draws.order(key, size)(np.arange(size))


def is_bijection(numbers):
    """Tell whether these are 0 to len - 1, each once."""
    seen = np.zeros(len(numbers), np.bool_)
    if numbers.min() < 0 or numbers.max() >= len(numbers):
        return False
    seen[numbers] = True
    return bool(seen.all())


# Bijections.


def test_every_number_comes_once_for_every_size_up_to_ten_thousand():
    sizes = range(1, 10_001) if kernels.compiles() else [*range(1, 100), 4096, 4097]
    failed = [size for size in sizes if not is_bijection(order(size, size))]
    assert not failed


@pytest.mark.parametrize(
    "size", [2**16 - 1, 2**16, 2**16 + 1, 999**2 - 1, 999**2, 999**2 + 1, 2**20 + 7, 2_999_999]
)
def test_every_number_comes_once_for_large_sizes(size):
    """Around squares, where the table of a size has another shape than that of the next one."""
    if not kernels.compiles():
        pytest.skip("takes minutes without numba")
    assert is_bijection(order(3, size))


@pytest.mark.parametrize("size", [*range(1, 40), 97, 1000, 4096, 4097, 2**33 + 1, 2**47])
def test_orders_are_the_same_without_numba(size, monkeypatch):
    places = np.unique(np.linspace(0, size - 1, 200).astype(np.int64))
    compiled = draws.order(size, size)(places)
    monkeypatch.setattr(kernels, "active", lambda: reference)
    np.testing.assert_array_equal(draws.order(size, size)(places), compiled)
    if size <= 200:
        assert is_bijection(compiled)


# They must stay the same for ever: every epoch follows from them.
GOLDEN = {
    (0, 1): [0],
    (0, 2): [1, 0],
    (1, 5): [2, 1, 4, 0, 3],
    (7, 12): [10, 1, 9, 5, 11],
    (7, 4096): [2681, 545, 1842, 1533, 707],
    (7, 4097): [582, 1472, 325, 1583, 686],
    (7, 50_000_000): [40712629, 93452, 5439360, 42753526, 39945236],
    (2**100, 2**47): [12832194690915, 43791376823091, 87964637405927, 68413061833427, 107158454887931],
}


def test_orders_stay_the_same():
    found = {(key, size): draws.order(key, size)(np.arange(min(size, 5))).tolist() for key, size in GOLDEN}
    assert found == GOLDEN


def test_a_place_of_no_number_gives_no_number():
    assert draws.order(1, 9)(np.array([-1, 3, -1])).tolist() == [-1, int(order(1, 9)[3]), -1]
    assert len(draws.order(1, 9)(np.zeros(0, np.int64))) == 0


def test_places_may_be_asked_for_in_any_order_and_often():
    whole = order(4, 1000)
    places = np.random.default_rng(0).integers(0, 1000, 500)
    np.testing.assert_array_equal(draws.order(4, 1000)(places), whole[places])


# Memory.


def test_an_order_of_any_size_takes_no_memory():
    order(1, 100)
    tracemalloc.start()
    try:
        largest = draws.order(5, 2**47)
        assert tracemalloc.get_traced_memory()[1] < 10_000
        places = np.arange(2**47 - 1000, 2**47)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        largest(places)
        assert tracemalloc.get_traced_memory()[1] - before < 5 * places.nbytes
    finally:
        tracemalloc.stop()


# Laws.


@pytest.mark.parametrize(("size", "keys"), [(2, 4000), (3, 6000), (4, 12_000), (5, 24_000)])
def test_all_orders_of_few_numbers_are_as_likely_as_each_other(size, keys):
    words = np.random.default_rng(size).integers(0, 2**64, (keys, draws.ORDER_WORDS), np.uint64)
    numbers = {permutation: number for number, permutation in enumerate(itertools.permutations(range(size)))}
    places, counts = np.arange(size), np.zeros(math.factorial(size))
    for mine in words:
        counts[numbers[tuple(draws.Order(mine, size)(places).tolist())]] += 1
    assert counts.min() > 0
    assert abs(truth.surprise(counts)) < 4


SIZES = [13, 25, 97, 1000, 4096, 4097, 99**2]


@pytest.fixture(scope="module", params=SIZES)
def orders(request):
    """The orders of one size that 300 keys choose, int64[300, size]."""
    if not kernels.compiles():
        pytest.skip("takes minutes without numba")
    return np.stack([order(key, request.param) for key in range(300)])


def counted(values, size, parts):
    """Count values below `size` in so many parts of the range, and say how much each is expected to get."""
    law = np.bincount(np.arange(size) * parts // size, minlength=parts)
    return np.bincount(np.asarray(values).reshape(-1) * parts // size, minlength=parts), law


def test_a_number_is_as_likely_at_any_place(orders):
    size = orders.shape[1]
    parts = min(size, 8)
    place, number = np.arange(size) * parts // size, orders * parts // size
    counts = np.bincount((place * parts + number).reshape(-1), minlength=parts * parts)
    widths = np.bincount(place, minlength=parts)
    # Rows and columns of the table are given, so it has (parts - 1)**2 degrees of freedom.
    expected = len(orders) * np.outer(widths, widths).reshape(-1) / size
    freedom = (parts - 1) ** 2
    chi_square = ((counts - expected) ** 2 / expected).sum() * (size - 1) / size
    assert abs(chi_square - freedom) / math.sqrt(2 * freedom) < 4


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_place_shows_any_number_as_likely(orders, place):
    counts, law = counted(orders[:, place], orders.shape[1], 10)
    assert abs(truth.surprise(counts, law)) < 4


@pytest.mark.parametrize("apart", [1, 2, 7])
def test_numbers_at_neighbouring_places_are_any_distance_apart(orders, apart):
    size = orders.shape[1]
    distances = (orders[:, apart:] - orders[:, :-apart]) % size - 1
    counts, law = counted(distances, size - 1, 12)
    assert abs(truth.surprise(counts, law)) < 4


@pytest.mark.parametrize("apart", [1, 2, 7])
def test_neighbouring_numbers_are_at_places_any_distance_apart(orders, apart):
    size = orders.shape[1]
    places = np.argsort(orders, axis=1)
    distances = (places[:, apart:] - places[:, :-apart]) % size - 1
    counts, law = counted(distances, size - 1, 12)
    assert abs(truth.surprise(counts, law)) < 4


def test_half_of_the_neighbours_rise(orders):
    """Ascents of a random order: (N - 1) / 2 in the mean, (N + 1) / 12 their variance."""
    keys, size = orders.shape
    ascents = (np.diff(orders, axis=1) > 0).sum(axis=1)
    mean, variance = (size - 1) / 2, (size + 1) / 12
    assert abs(ascents.mean() - mean) / math.sqrt(variance / keys) < 4
    spread = (ascents - mean) ** 2 / variance
    assert abs(spread.mean() - 1) / (spread.std() / math.sqrt(keys)) < 4


def test_orders_of_different_keys_have_nothing_in_common(orders):
    """Of two random orders, as of one and the numbers themselves, one place in the mean shows the same."""
    pairs = [*itertools.pairwise(orders), *((one, np.arange(len(one))) for one in orders)]
    same = np.array([(one == other).sum() for one, other in pairs])
    assert abs(same.mean() - 1) * math.sqrt(len(same)) < 4
    assert abs(same.var() - 1) < 0.5


def test_half_of_the_orders_are_even(orders):
    """Cycles of an order tell its parity, and their mean number is 1 + 1/2 + ... + 1/N."""
    size = orders.shape[1]
    cycles = np.array([count_cycles(one) for one in orders[:100]])
    harmonic = (1 / np.arange(1, size + 1)).sum()
    variance = harmonic - (1 / np.arange(1, size + 1) ** 2).sum()
    assert abs(cycles.mean() - harmonic) / math.sqrt(variance / len(cycles)) < 4
    assert abs(((size - cycles) % 2).mean() - 0.5) < 4 * 0.5 / math.sqrt(len(cycles))


def count_cycles(numbers):
    follow, seen, cycles = numbers.tolist(), bytearray(len(numbers)), 0
    for begin in range(len(follow)):
        cycles += not seen[begin]
        while not seen[begin]:
            seen[begin] = 1
            begin = follow[begin]
    return cycles


@pytest.mark.parametrize("size", [2**33 + 1, 10**12, 2**47])
def test_orders_of_huge_sizes_are_even_over_all_of_it_and_have_all_low_bits(size):
    rows = 100_000 if kernels.compiles() else 1000
    parts = 64 if kernels.compiles() else 8
    for first in (0, size // 3, size - rows):
        numbers = draws.order(first, size)(np.arange(first, first + rows))
        assert len(np.unique(numbers)) == rows
        assert 0 <= numbers.min() <= numbers.max() < size
        assert abs(truth.surprise(np.bincount((numbers // (size // parts)) % parts))) < 4
        assert abs(truth.surprise(np.bincount(numbers % parts))) < 4
        distances = np.diff(numbers) % size
        assert abs(truth.surprise(np.bincount((distances // (size // parts)) % parts))) < 4
        assert abs(truth.surprise(np.bincount(distances % parts))) < 4
