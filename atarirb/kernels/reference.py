"""The kernels in plain NumPy: slow, obvious, and the specification of `compiled`."""

from __future__ import annotations

import ctypes

import numpy as np


def _row(bases: np.ndarray, offsets: np.ndarray, step: int, size: int, dtype: np.dtype) -> np.ndarray:
    """View the `size` values of one step's row."""
    shard = np.searchsorted(offsets, step, side="right") - 1
    place = int(bases[shard]) + int(step - offsets[shard]) * size * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * (size * np.dtype(dtype).itemsize)).from_address(place)
    return np.frombuffer(raw, dtype)


def _rows(ticket, count):
    """Yield the rows that this caller is to do: one after the other, until none are left."""
    while ticket[0] < count:
        row = ticket[0]
        ticket[0] = row + 1
        yield row


def frames(ticket, bases, offsets, index, out):
    """Gather rows.

    Args:
        ticket: int64[1], the next row to do.
        bases: uintp[shards].
        offsets: int64[shards + 1].
        index: int64[B], -1 for zeros.
        out: uint8[B, row bytes].
    """
    for row in _rows(ticket, len(index)):
        out[row] = _row(bases, offsets, index[row], out.shape[1], np.uint8) if index[row] >= 0 else 0


def pairs(ticket, bases, offsets, index, next_index, out, next_out):
    """Gather two rows each, as `frames`."""
    for row in _rows(ticket, len(index)):
        here = slice(row, row + 1)
        frames(np.zeros(1, np.int64), bases, offsets, index[here], out[here])
        frames(np.zeros(1, np.int64), bases, offsets, next_index[here], next_out[here])


def stacks(ticket, bases, offsets, index, newest, first, blank, out):
    """Gather the frames of the S - 1 steps before each step and a newest one, which is last.

    Args:
        ticket: int64[1], the next row to do.
        bases: uintp[shards].
        offsets: int64[shards + 1].
        index: int64[B], the steps.
        newest: int64[B], the newest frames, mostly the steps'; -1 for zeros.
        first: int64[B], frames before this step are zeros.
        blank: [pixels], zeros of the frames' dtype.
        out: [B, pixels, S].
    """
    depth = out.shape[2]
    for row in _rows(ticket, len(index)):
        for back in range(depth):
            shown = blank
            if newest[row] >= 0 and (back == 0 or index[row] - back >= first[row]):
                frame = index[row] - back if back else newest[row]
                shown = _row(bases, offsets, frame, len(blank), blank.dtype)
            out[row, :, depth - 1 - back] = shown


def stack_pairs(ticket, bases, offsets, index, next_index, next_newest, first, blank, out, next_out):
    """Gather two stacks each, as `stacks`; the newest frame of the first is its step's."""
    for row in _rows(ticket, len(index)):
        here = slice(row, row + 1)
        for steps_of, newest, to in ((index, index, out), (next_index, next_newest, next_out)):
            one = np.zeros(1, np.int64)
            stacks(one, bases, offsets, steps_of[here], newest[here], first[here], blank, to[here])


def _value(bases, widths, offsets, step, dtype):
    """Read one value of a column that shards keep as `dtype` or as int8."""
    shard = np.searchsorted(offsets, step, side="right") - 1
    stored = np.int8 if widths[shard] == 1 else dtype
    return _row(bases, offsets, step, 1, stored)[0]


def steps(
    index, starts, terminal_end, final, powers, offsets,
    action_bases, action_widths, reward_bases, reward_widths,
    first, next_index, next_newest, action, reward, discount, terminated, truncated,
):  # fmt: skip
    """Work out everything about steps but their frames, looking n steps ahead.

    With n = len(powers) - 1 and m the smaller of n and the steps left in the episode, the reward
    is the sum of gamma**j r[t+j] for j < m; the next observation is that of step t+m, if the
    episode has it. If not, the episode ended: by a terminal (discount 0), or it was truncated or cut.

    Args:
        index: int64[B], -1 for zeros.
        starts: int64[E + 1], first step of each episode, and the steps in all.
        terminal_end: bool[E], the episode ends by a terminal.
        final: int64[E], the frame after the episode's last step; -1 for zeros.
        powers: float64[n + 1], powers of gamma.
        offsets: int64[shards + 1].
        action_bases: uintp[shards], of the column's data.
        action_widths: int64[shards], 4 where they are int32, 1 where int8.
        reward_bases: uintp[shards].
        reward_widths: int64[shards], 4 where they are float32, 1 where int8.
        first: int64[B], out: first step of the episode.
        next_index: int64[B], out: the step t+m, which may be one past the episode's last; -1 where
            `index` is.
        next_newest: int64[B], out: frame of the next observation, -1 where there is none.
        action: int32[B], out.
        reward: float32[B], out, summed in float64.
        discount: float32[B], out: gamma**m, 0 at a terminal.
        terminated: bool[B], out: a terminal is among the m steps.
        truncated: bool[B], out: the episode is truncated or cut among them.
    """
    lookahead = len(powers) - 1
    for row, step in enumerate(index):
        if step < 0:
            first[row], next_index[row], next_newest[row], action[row] = 0, -1, -1, 0
            reward[row], discount[row], terminated[row], truncated[row] = 0, 0, False, False
            continue
        episode = np.searchsorted(starts, step, side="right") - 1
        stop = starts[episode + 1]
        ahead = min(lookahead, stop - step)
        total = 0.0
        for j in range(ahead):
            total += powers[j] * float(_value(reward_bases, reward_widths, offsets, step + j, np.float32))
        over = step + ahead == stop
        first[row] = starts[episode]
        next_index[row] = step + ahead
        next_newest[row] = final[episode] if over else step + ahead
        action[row] = _value(action_bases, action_widths, offsets, step, np.int32)
        reward[row] = total
        terminated[row] = over and terminal_end[episode]
        truncated[row] = over and not terminal_end[episode]
        discount[row] = 0.0 if terminated[row] else powers[ahead]


def slice_rows(
    starts, episode_starts, valid_first, cumulative, final, n_step, index, mask, shown, newest, first
):  # fmt: skip
    """Say which steps slices have, and which frames they show.

    A slice has the valid steps from its start on, `length` at the most, and shows the frames of these
    and of the `n_step` steps after them, as far as the episode has them; after its end, the final one.

    Args:
        starts: int64[n], valid steps; -1 for a slice without any.
        episode_starts: int64[E + 1], first step of each episode, and the steps in all.
        valid_first: int64[E], first valid step of each episode.
        cumulative: int64[E + 1], valid steps before each episode, and in all.
        final: int64[E], the frame after the episode's last step; -1 for none.
        n_step: Steps between an observation and the next one.
        index: int64[n, length], out: the steps; -1 where there are fewer.
        mask: bool[n, length], out: where there is one.
        shown: int64[n, length + n_step], out: steps of the frames; one past the episode's last after it.
        newest: int64[n, length + n_step], out: the frames; -1 for none.
        first: int64[n, length + n_step], out: first step of the episode.
    """
    length = index.shape[1]
    for row, start in enumerate(starts):
        if start < 0:
            index[row], mask[row], shown[row], newest[row], first[row] = -1, False, 0, -1, 0
            continue
        episode = np.searchsorted(episode_starts, start, side="right") - 1
        valid_stop = valid_first[episode] + cumulative[episode + 1] - cumulative[episode]
        stop = min(start + length, valid_stop)
        for place in range(length):
            mask[row, place] = start + place < stop
            index[row, place] = start + place if start + place < stop else -1
        for place in range(length + n_step):
            step, episode_stop = start + place, episode_starts[episode + 1]
            shown[row, place] = min(step, episode_stop)
            newest[row, place] = step if step < episode_stop else final[episode]
            if step >= stop + n_step:
                newest[row, place] = -1
            first[row, place] = episode_starts[episode]


def returns_to_go(index, starts, gamma, offsets, reward_bases, reward_widths, out):
    """Sum the discounted rewards from each step to its episode's end: G = r + gamma G'.

    Args:
        index: int64[B], -1 for zeros.
        starts: int64[E + 1].
        gamma: The discount per step.
        offsets: int64[shards + 1].
        reward_bases: uintp[shards].
        reward_widths: int64[shards], as for `steps`.
        out: float32[B], summed in float64 from the end backwards.
    """
    for row, step in enumerate(index):
        total = 0.0
        if step >= 0:
            episode = np.searchsorted(starts, step, side="right") - 1
            for later in range(starts[episode + 1] - 1, step - 1, -1):
                reward = _value(reward_bases, reward_widths, offsets, later, np.float32)
                total = float(reward) + gamma * total
        out[row] = total


def below(words, counts, out):
    """Turn random words into numbers below `counts`, each as likely as any other.

    A number is the high half of word x count, so nothing is ever rejected; its bias is below
    count / 2**64.

    Args:
        words: uint64[B], random.
        counts: int64[B], above 0.
        out: int64[B], out.
    """
    for row, word in enumerate(words):
        out[row] = (int(word) * int(counts[row])) >> 64


def at(numbers, cumulative, first, out):
    """Find the legal steps of these numbers, counted over all of them in their order.

    Args:
        numbers: int64[B], below `cumulative[-1]`; -1 gives -1.
        cumulative: int64[E + 1], legal steps before each episode, and in all.
        first: int64[E], first legal step of each episode.
        out: int64[B], out.
    """
    for row, number in enumerate(numbers):
        episode = np.searchsorted(cumulative, number, side="right") - 1
        out[row] = -1 if number < 0 else first[episode] + (number - cumulative[episode])


def _mixed(value, key):
    """Hash a number under a key: the finalizer of SplitMix64 (Steele et al. 2014)."""
    z = int(value) ^ int(key)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def permute(numbers, size, sides, keys, out):
    """Send numbers through a bijection of 0 .. size - 1 that keys choose.

    A Feistel network whose halves are the row and the column of a number in a table, as near to a square
    as can be, that has at least `size` places and hardly more (Black and Rogaway 2002, "Ciphers with
    arbitrary finite domains"): in turn a hash of the one is added to the other, modulo its range. What
    comes out too large is sent through again, which ends, since a bijection walks in cycles.

    Args:
        numbers: int64[B], below `size`; -1 gives -1.
        size: How many numbers there are.
        sides: Rows and columns of the table.
        keys: uint64[rounds], an even number of them.
        out: int64[B], out.
    """
    sides = tuple(map(int, sides))
    for place, asked in enumerate(numbers):
        number = int(asked)
        while number >= 0:
            halves = list(divmod(number, sides[1]))
            for turn, key in enumerate(keys):
                side = turn % 2
                halves[side] += (_mixed(halves[1 - side], key) * sides[side]) >> 64
                halves[side] %= sides[side]
            number = halves[0] * sides[1] + halves[1]
            if number < size:
                break
        out[place] = number
