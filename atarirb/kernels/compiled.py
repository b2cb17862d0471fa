"""The kernels compiled by numba; `reference` says what each does.

Frames are copied by ``memcpy`` between addresses, so a kernel does not depend on how many shards
there are: a tuple or list of arrays would, and array assignment is several times slower besides.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from atarirb.kernels import reference
from atarirb.kernels.jit import kernel


@intrinsic
def _pointer(_, address):
    """Turn an address into a void pointer, for `carray`."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), codegen


@intrinsic
def _copy(_, target, source, size):
    """Copy `size` bytes from one address to another."""

    def codegen(context, builder, signature, args):
        target, source, size = args
        pointers = (builder.inttoptr(value, cgutils.voidptr_t) for value in (target, source))
        cgutils.raw_memcpy(builder, *pointers, size, 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), codegen


@intrinsic
def _clear(_, target, size):
    """Set `size` bytes at an address to zero."""

    def codegen(context, builder, signature, args):
        cgutils.memset(builder, builder.inttoptr(args[0], cgutils.voidptr_t), args[1], 0)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp), codegen


@intrinsic
def _prefetch(_, address):
    """Ask the processor to fetch the cache line at an address, without waiting for it."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], cgutils.voidptr_t)
        number = ir.IntType(32)
        prefetch = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number]),
            "llvm.prefetch.p0",
        )
        read, keep, data = number(0), number(3), number(1)
        builder.call(prefetch, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(types.uintp), codegen


@kernel
def _route(sorted_firsts, value):
    """Find the last i with sorted_firsts[i] <= value, which is at least sorted_firsts[0].

    Without branches: the outcome of each comparison is a coin toss, and a wrongly predicted branch
    costs more than the rest of the loop.
    """
    low, count = 0, len(sorted_firsts)
    while count > 1:
        half = count >> 1
        low += half * (sorted_firsts[low + half] <= value)
        count -= half
    return low


@kernel
def _route_all(sorted_firsts, values, out):
    """Find for each value what `_route` finds; 0 for those below sorted_firsts[0].

    All search in step, so that their waits for memory overlap: the episodes of many runs fit no cache.
    """
    out[:] = 0
    count = len(sorted_firsts)
    while count > 1:
        half = count >> 1
        for row in range(len(values)):
            out[row] += half * (sorted_firsts[out[row] + half] <= values[row])
        count -= half


@kernel
def _shard_of(offsets, step, guess):
    """Find a step's shard, which mostly is the one guessed."""
    if offsets[guess] <= step < offsets[guess + 1]:
        return guess
    return _route(offsets, step)


@kernel
def _row_of(bases, offsets, shard, step, row_bytes):
    """Find the address of a step's row in its shard."""
    return bases[shard] + np.uintp((step - offsets[shard]) * row_bytes)


@kernel
def _place(bases, offsets, step, row_bytes):
    """Find the address of a step's row."""
    return _row_of(bases, offsets, _route(offsets, step), step, row_bytes)


# The processor itself fetches ahead, but only within a page, and not to where the next row will be.
_AHEAD = 1024


@kernel
def _expect(bases, offsets, step, row_bytes, rows):
    """Prefetch here and there what will be copied next; returns its shard."""
    if step < 0:
        return 0
    shard = _route(offsets, step)
    address = _row_of(bases, offsets, shard, step, row_bytes)
    for ahead in range(0, row_bytes * rows, _AHEAD):
        _prefetch(address + np.uintp(ahead))
    return shard


@kernel
def _fetch(bases, offsets, step, guess, row_bytes, target):
    """Copy a step's row; returns its shard."""
    if step < 0:
        _clear(target, np.uintp(row_bytes))
        return guess
    shard = _shard_of(offsets, step, guess)
    _copy(target, _row_of(bases, offsets, shard, step, row_bytes), np.uintp(row_bytes))
    return shard


@intrinsic
def _add(_, address, amount):
    """Add to the int64 at an address, in one step for all threads, and return what it was."""

    def codegen(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "monotonic")

    return types.int64(types.uintp, types.int64), codegen


# Rows taken at a time: few enough that threads end together, enough that they seldom meet.
_ROWS = 8


@kernel
def _take_rows(ticket, rows):
    """Take the next so many rows to do; returns the first of them."""
    return _add(np.uintp(ticket.ctypes.data), rows)


@kernel
def frames(ticket, bases, offsets, index, out):
    row_bytes, rows = out.shape[1], len(index)
    target = np.uintp(out.ctypes.data)
    shard = 0
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            shard = _fetch(bases, offsets, index[row], shard, row_bytes, target + np.uintp(row * row_bytes))
        taken = _take_rows(ticket, _ROWS)


@kernel
def pairs(ticket, bases, offsets, index, next_index, out, next_out):
    row_bytes, rows = out.shape[1], len(index)
    target, next_target = np.uintp(out.ctypes.data), np.uintp(next_out.ctypes.data)
    expected = 0
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            # A row's two frames are neighbours on disk: they are fetched together.
            shard = expected
            if row + 1 < rows:
                expected = _expect(bases, offsets, index[row + 1], row_bytes, 2)
            at = np.uintp(row * row_bytes)
            shard = _fetch(bases, offsets, index[row], shard, row_bytes, target + at)
            _fetch(bases, offsets, next_index[row], shard, row_bytes, next_target + at)
        taken = _take_rows(ticket, _ROWS)


@kernel
def _shown(bases, offsets, step, first, row_bytes, blank):
    """Find the address of a stacked frame, or of the blank one before the episode's first."""
    if step < first:
        return blank
    return _place(bases, offsets, step, row_bytes)


@kernel
def interleave_4(a0, a1, a2, a3, out):
    """Interleave four frames of bytes by whole 32-bit words (little-endian: newest byte highest)."""
    pixels = len(out)
    f0 = carray(_pointer(a0), (pixels,), np.uint8)
    f1 = carray(_pointer(a1), (pixels,), np.uint8)
    f2 = carray(_pointer(a2), (pixels,), np.uint8)
    f3 = carray(_pointer(a3), (pixels,), np.uint8)
    for p in range(pixels):
        out[p] = (
            np.uint32(f0[p])
            | (np.uint32(f1[p]) << np.uint32(8))
            | (np.uint32(f2[p]) << np.uint32(16))
            | (np.uint32(f3[p]) << np.uint32(24))
        )


@kernel
def interleave(source, back, out):
    """Put a frame where it belongs in a stack: `back` frames before the newest."""
    pixels, depth = out.shape
    frame = carray(_pointer(source), (pixels,), out.dtype)
    for p in range(pixels):
        out[p, depth - 1 - back] = frame[p]


@kernel
def _stack_of_4(bases, offsets, step, newest, first, blank, out):
    pixels = len(out)
    none = np.uintp(blank.ctypes.data)
    if newest < 0:
        out[:] = 0
        return
    interleave_4(
        _shown(bases, offsets, step - 3, first, pixels, none),
        _shown(bases, offsets, step - 2, first, pixels, none),
        _shown(bases, offsets, step - 1, first, pixels, none),
        _place(bases, offsets, newest, pixels),
        out,
    )


@kernel
def _stack_of_any(bases, offsets, step, newest, first, blank, out):
    pixels, depth = out.shape
    none = np.uintp(blank.ctypes.data)
    for back in range(depth):
        source = none
        if newest >= 0 and back == 0:
            source = _place(bases, offsets, newest, pixels * out.itemsize)
        elif newest >= 0:
            source = _shown(bases, offsets, step - back, first, pixels * out.itemsize, none)
        interleave(source, back, out)


@kernel
def _stack(bases, offsets, step, newest, first, blank, out):
    """Gather a stack into a row of words, [P], or of pixels, [P, S]: numba compiles the branch that it is."""
    if out.ndim == 1:
        _stack_of_4(bases, offsets, step, newest, first, blank, out)
    else:
        _stack_of_any(bases, offsets, step, newest, first, blank, out)


@kernel
def _stacks(ticket, bases, offsets, index, newest, first, blank, out):
    rows = len(index)
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            _stack(bases, offsets, index[row], newest[row], first[row], blank, out[row])
        taken = _take_rows(ticket, _ROWS)


@kernel
def _stack_pairs(ticket, bases, offsets, index, next_index, next_newest, first, blank, out, next_out):
    rows = len(index)
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            # Neighbours again: the second stack finds its frames in the cache.
            _stack(bases, offsets, index[row], index[row], first[row], blank, out[row])
            _stack(bases, offsets, next_index[row], next_newest[row], first[row], blank, next_out[row])
        taken = _take_rows(ticket, _ROWS)


def as_words(out):
    """View uint8[B, P, 4] as uint32[B, P]; None where that is not what it is."""
    if out.dtype == np.uint8 and out.shape[2] == 4 and np.little_endian:
        return out.view(np.uint32)[:, :, 0]
    return None


def as_unsigned(values):
    """View values of 1, 2, 4 or 8 bytes as unsigned integers: kernels move them, whatever they mean."""
    return values.view(f"u{values.dtype.itemsize}")


def stacks(ticket, bases, offsets, index, newest, first, blank, out):
    words = as_words(out)
    if words is not None:
        _stacks(ticket, bases, offsets, index, newest, first, blank, words)
    elif out.dtype.itemsize <= 8:
        blank, out = as_unsigned(blank), as_unsigned(out)
        _stacks(ticket, bases, offsets, index, newest, first, blank, out)
    else:
        reference.stacks(ticket, bases, offsets, index, newest, first, blank, out)


def stack_pairs(ticket, bases, offsets, index, next_index, next_newest, first, blank, out, next_out):
    frames = (index, next_index, next_newest, first)
    words = as_words(out)
    if words is not None:
        _stack_pairs(ticket, bases, offsets, *frames, blank, words, as_words(next_out))
    elif out.dtype.itemsize <= 8:
        blank, out, following = as_unsigned(blank), as_unsigned(out), as_unsigned(next_out)
        _stack_pairs(ticket, bases, offsets, *frames, blank, out, following)
    else:
        reference.stack_pairs(ticket, bases, offsets, *frames, blank, out, next_out)


@kernel
def _action(address, width):
    if width == 1:
        return np.int32(carray(_pointer(address), (1,), np.int8)[0])
    return carray(_pointer(address), (1,), np.int32)[0]


@kernel
def _reward(address, width):
    if width == 1:
        return np.float64(carray(_pointer(address), (1,), np.int8)[0])
    return np.float64(carray(_pointer(address), (1,), np.float32)[0])


# Rows ahead for which to prefetch: single values lie scattered, and each is a wait for memory.
_SOON = 8


@kernel
def steps(
    index, starts, terminal_end, final, powers, offsets,
    action_bases, action_widths, reward_bases, reward_widths,
    first, next_index, next_newest, action, reward, discount, terminated, truncated,
):  # fmt: skip
    lookahead = len(powers) - 1
    episodes, shards = next_index, next_newest  # until a row's own values are there
    _route_all(starts, index, episodes)
    _route_all(offsets, index, shards)
    for row in range(len(index)):
        soon = row + _SOON
        if soon < len(index) and index[soon] >= 0:
            shard = shards[soon]
            _prefetch(_row_of(action_bases, offsets, shard, index[soon], action_widths[shard]))
            _prefetch(_row_of(reward_bases, offsets, shard, index[soon], reward_widths[shard]))
        step = index[row]
        if step < 0:
            first[row], next_index[row], next_newest[row], action[row] = 0, -1, -1, 0
            reward[row], discount[row], terminated[row], truncated[row] = 0, 0, False, False
            continue
        episode, shard = episodes[row], shards[row]
        stop = starts[episode + 1]
        ahead = min(lookahead, stop - step)
        place = _row_of(action_bases, offsets, shard, step, action_widths[shard])
        action[row] = _action(place, action_widths[shard])
        total = 0.0
        for j in range(ahead):
            shard = _shard_of(offsets, step + j, shard)
            place = _row_of(reward_bases, offsets, shard, step + j, reward_widths[shard])
            total += powers[j] * _reward(place, reward_widths[shard])
        over = step + ahead == stop
        first[row] = starts[episode]
        next_index[row] = step + ahead
        next_newest[row] = final[episode] if over else step + ahead
        reward[row] = total
        terminated[row] = over and terminal_end[episode]
        truncated[row] = over and not terminal_end[episode]
        discount[row] = 0.0 if terminated[row] else powers[ahead]


@kernel
def slice_rows(
    starts, episode_starts, valid_first, cumulative, final, n_step, index, mask, shown, newest, first
):  # fmt: skip
    length = index.shape[1]
    for row in range(len(starts)):
        start = starts[row]
        if start < 0:
            index[row], mask[row], shown[row], newest[row], first[row] = -1, False, 0, -1, 0
            continue
        episode = _route(episode_starts, start)
        stop = min(start + length, valid_first[episode] + cumulative[episode + 1] - cumulative[episode])
        for place in range(length):
            mask[row, place] = start + place < stop
            index[row, place] = start + place if start + place < stop else -1
        episode_stop = episode_starts[episode + 1]
        for place in range(length + n_step):
            step = start + place
            shown[row, place] = min(step, episode_stop)
            if step >= stop + n_step:
                newest[row, place] = -1
            else:
                newest[row, place] = step if step < episode_stop else final[episode]
            first[row, place] = episode_starts[episode]


@kernel
def returns_to_go(index, starts, gamma, offsets, reward_bases, reward_widths, out):
    total, summed, first, shard = 0.0, np.int64(-1), np.int64(0), 0
    for row in range(len(index) - 1, -1, -1):  # backwards: of a step's sum the one before makes its own
        step = index[row]
        if step < 0:
            out[row] = 0.0
            continue
        if step + 1 != summed or step < first:
            episode = _route(starts, step)
            total, summed, first = 0.0, starts[episode + 1], starts[episode]
            shard = _route(offsets, summed - 1)
        for later in range(summed - 1, step - 1, -1):
            while later < offsets[shard]:  # an episode may reach over several shards
                shard -= 1
            width = reward_widths[shard]
            place = reward_bases[shard] + np.uintp((later - offsets[shard]) * width)
            total = _reward(place, width) + gamma * total
        summed = step
        out[row] = total


@kernel
def _high_product(a, b):
    """Return the high 64 bits of the 128-bit product of two uint64."""
    half = np.uint64(32)
    low = np.uint64(0xFFFFFFFF)
    a_high, a_low = a >> half, a & low
    b_high, b_low = b >> half, b & low
    middle = a_high * b_low + ((a_low * b_low) >> half)
    other = a_low * b_high + (middle & low)
    return a_high * b_high + (middle >> half) + (other >> half)


@kernel
def below(words, counts, out):
    for row in range(len(words)):
        out[row] = np.int64(_high_product(words[row], np.uint64(counts[row])))


@kernel
def at(numbers, cumulative, first, out):
    _route_all(cumulative, numbers, out)
    for row in range(len(numbers)):
        episode = out[row]
        out[row] = first[episode] + (numbers[row] - cumulative[episode]) if numbers[row] >= 0 else -1


@kernel
def _mixed(value, key):
    """Hash a number under a key: the finalizer of SplitMix64."""
    z = np.uint64(value) ^ key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def _turned(part, other, size, key):
    """Add a hash of the one part of a number to the other, modulo its size."""
    part += np.int64(_high_product(_mixed(other, key), np.uint64(size)))
    return part - size if part >= size else part


@kernel
def permute(numbers, size, sides, keys, out):
    rows, columns = sides[0], sides[1]
    for place in range(len(numbers)):
        number = numbers[place]
        while number >= 0:
            row, column = number // columns, number % columns
            for turn in range(0, len(keys), 2):
                row = _turned(row, column, rows, keys[turn])
                column = _turned(column, row, columns, keys[turn + 1])
            number = row * columns + column
            if number < size:
                break
        out[place] = number
