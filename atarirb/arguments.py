"""Checks of what callers pass, once, at the boundary."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from atarirb.errors import ArgumentError, StateError, StepIndexError, StepIndexTypeError


def positive(name: str, value: Any, *, most: int = 2**63 - 1) -> int:
    """Check that an argument is an integer from 1 to `most`, and return it as an int.

    Raises:
        ArgumentError: It is not.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= most or isinstance(value, bool):
        limit = f"from 1 to {most:,}" if number > most else "of 1 or more"
        raise ArgumentError(f"{name} is {value!r}, expected an integer {limit}")
    return number


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that an argument is one of some words.

    Raises:
        ArgumentError: It is not.
    """
    if value not in choices:
        raise ArgumentError(f"{name} is {value!r}, expected one of {', '.join(map(repr, choices))}")


def check_same(what: str, here: Mapping[str, Any], there: Any) -> None:
    """Check that a saved state is of the same data and settings as those at hand.

    Args:
        what: What the state is of, for messages.
        here: What it must be of, by name.
        there: What it is of.

    Raises:
        StateError: It is of something else: the message names what differs, with both values.
    """
    if not isinstance(there, Mapping):
        raise StateError(f"no state of {what}: it is of {there!r:.80}")
    differing = [
        f"{name} is {here.get(name, 'not given')!r} here, {there.get(name, 'not given')!r} there"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise StateError(f"the state is of other {what}: {'; '.join(differing)}")


def as_index(indices: Any, count: int, *, noun: str = "step") -> tuple[np.ndarray, bool]:
    """Turn what a caller may index by into numbers from 0 to `count` - 1.

    Args:
        indices: An int, slice, range, sequence or array of ints, or a mask bool[count]; negative ones
            count from the end.
        count: How many there are to index.
        noun: What they are, for messages.

    Returns:
        int64[B], in the order asked for, and whether it was a single int.

    Raises:
        StepIndexError: One is out of range.
        StepIndexTypeError: One is not an integer.
        ArgumentError: A mask has another length than `count`, or there is more than one axis.
    """
    if isinstance(indices, slice):
        try:
            return np.arange(*indices.indices(count), dtype=np.int64), False
        except TypeError as error:
            raise StepIndexTypeError(f"{indices}: {error}") from error
        except ValueError as error:
            raise ArgumentError(f"{indices}: {error}") from error
    if isinstance(indices, range) and indices:
        ends = np.array([indices[0], indices[-1]])  # of objects, if they are beyond 64 bits
        _check_range(ends, count, noun)
        array = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    else:
        try:
            array = np.asarray(indices)
        except ValueError as error:  # rows of unequal length
            raise StepIndexTypeError(f"{noun}s are indexed by integers: {error}") from error
    if array.ndim > 1:
        raise ArgumentError(f"indices of shape {array.shape}, expected one axis")
    if array.dtype == np.bool_ and array.ndim == 1:
        if len(array) != count:
            raise ArgumentError(f"a mask of {len(array):,} values, expected one per {noun}: {count:,}")
        return np.flatnonzero(array), False
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, np.int64), False
    if array.dtype.kind == "f" and isinstance(indices, (list, tuple)):
        array = np.array(indices, np.object_)  # NumPy makes floats of ints of which some need 64 bits
    flat = array.reshape(-1)
    if array.dtype == np.object_ and all(type(value) is int for value in flat):
        _check_range(flat, count, noun)
    if array.dtype.kind not in "iu":
        what = repr(indices) if array.ndim == 0 else f"{np.asarray(indices).dtype} values"
        raise StepIndexTypeError(f"{noun}s are indexed by integers, got {what[:80]}")
    _check_range(flat, count, noun)
    index = flat.astype(np.int64)  # a copy, so that what is handed out is no one else's
    index[index < 0] += count
    return index, array.ndim == 0


def _check_range(index: np.ndarray, count: int, noun: str) -> None:
    unsigned = index.dtype.kind == "u"
    outside = index >= count if unsigned else (index >= count) | (index < -count)
    if outside.any():
        raise StepIndexError(f"{noun} {index[outside][0]} is out of range: there are {count:,} {noun}s")
