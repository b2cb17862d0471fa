"""Random words, numbers and orders from a key: pure functions, the same on every machine.

A key becomes the key of a Philox4x64-10 counter stream (Salmon et al. 2011,
https://doi.org/10.1145/2063384.2063405), whose words are drawn raw: NumPy promises that the words
stay the same for ever, not that the distributions over them do. No global generator is used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atarirb import kernels
from atarirb.errors import KeyTypeError

#: Words that an order takes.
ORDER_WORDS = 24
#: Numbers up to which an order is of few: they need more rounds to be mixed, and cost no time.
_FEW = 1 << 12


def words(key: Any, count: int) -> np.ndarray:
    """Return the first `count` words of a key's stream.

    Args:
        key: A JAX PRNG key (typed, or raw uint32 words), an int, a `numpy.random.SeedSequence`,
            or a `numpy.random.Generator`, of which four words are drawn: it moves on.
        count: How many words.

    Returns:
        uint64[count].

    Raises:
        KeyTypeError: The key is of no such kind.
    """
    # Given as `key=`, the same two words would cost a second sequence, seeded by the system.
    return np.random.Philox(_seed_sequence(key)).random_raw(count)


def derived(root: tuple[int, ...], *numbers: int) -> np.random.SeedSequence:
    """Make one of a key's many keys.

    Args:
        root: What `root` made of the key.
        numbers: Which one: integers from 0 to 2**64 - 1.
    """
    halves = (half for number in numbers for half in (number & 0xFFFFFFFF, number >> 32))
    return np.random.SeedSequence([*root, *halves])


def root(key: Any) -> tuple[int, ...]:
    """Return the 32-bit words that a key's many keys are `derived` from; a `Generator` moves on.

    Raises:
        KeyTypeError: As of `words`.
    """
    return tuple(_seed_sequence(key).generate_state(8, np.uint32).tolist())


def below(words: np.ndarray, counts: int | np.ndarray) -> np.ndarray:
    """Turn uint64[B] words into int64[B] numbers from 0 up to, not including, `counts`, one or int64[B]."""
    out = np.empty(len(words), np.int64)
    if not isinstance(counts, np.ndarray):
        counts = np.full(len(words), counts, np.int64)
    kernels.active().below(words, counts, out)
    return out


def order(key: Any, size: int) -> Order:
    """Return the order of `size` numbers that a key chooses; the key as for `words`."""
    return Order(words(key, ORDER_WORDS), size)


class Order:
    """The numbers from 0 to `size` - 1 in an order that a key chooses: a bijection, held in no memory.

    Args:
        keys: uint64[`ORDER_WORDS`], random words.
        size: How many numbers, from 1 to 2**62.
    """

    def __init__(self, keys: np.ndarray, size: int):
        rows = math.isqrt(size - 1) + 1
        columns = -(-size // rows)
        # Of an odd table only the even permutations would be reached.
        columns += columns % 2
        self._size = size
        self._sides = np.array([rows, columns], np.int64)
        self._keys = keys[: ORDER_WORDS if size <= _FEW else 8]

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at places, int64[B]; -1 for -1."""
        out = np.empty(len(places), np.int64)
        kernels.active().permute(places, self._size, self._sides, self._keys, out)
        return out


def _seed_sequence(key: Any) -> np.random.SeedSequence:
    """Turn a key into what makes Philox's two words of key, by ``generate_state(2, uint64)``."""
    if isinstance(key, np.random.Generator):
        drawn = np.asarray(key.bit_generator.random_raw(4), np.uint64)
        return np.random.SeedSequence([int(word) for word in drawn])
    if isinstance(key, (int, np.integer)) and not isinstance(key, (bool, np.bool_)):
        if key < 0:
            raise KeyTypeError(f"key {key} is negative; expected an int of 0 or more")
        return np.random.SeedSequence(int(key))
    if isinstance(key, np.random.SeedSequence):
        return key
    return np.random.SeedSequence(_entropy(key))


def _entropy(key: Any) -> list[int]:
    """Return the 32-bit words of a JAX key."""
    if type(key).__module__.partition(".")[0] in ("jax", "jaxlib"):
        from atarirb.outputs import jax as output

        key = output.key_words(key)
    if not isinstance(key, np.ndarray) or key.dtype != np.uint32 or key.shape not in ((2,), (4,)):
        what = f"{key.dtype}{list(key.shape)}" if isinstance(key, np.ndarray) else repr(key)[:80]
        raise KeyTypeError(
            f"unusable key {what}; expected a JAX PRNG key (one, not a batch of them), an int, a "
            f"numpy.random.SeedSequence or a numpy.random.Generator"
        )
    return [int(word) for word in key]
