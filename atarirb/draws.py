"""Random words from a key: a pure function, the same on every machine.

A key becomes the key of a Philox4x64-10 counter stream (Salmon et al. 2011,
https://doi.org/10.1145/2063384.2063405), whose words are drawn raw: NumPy promises that the words
stay the same for ever, not that the distributions over them do. No global generator is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from atarirb.errors import KeyTypeError


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
