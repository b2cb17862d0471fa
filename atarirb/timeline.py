"""What is real in a replay log, and in which order: pure rules, no input or output.

A log is a set of files, each a snapshot of one ring buffer of C slots. Every row the agent's
buffer ever took has a number, its *add*, counted from 0 over the whole run; add n sits in slot
``n mod C``. The rules (of Dopamine's ``circular_replay_buffer.py`` and batch_rl's
``logged_replay_buffer.py``, which wrote the public logs, https://arxiv.org/abs/1907.04543):

1. A file with ``add_count`` A is the *window* of adds ``max(0, A - C) .. A - 1``. So slot C-1 of a
   full file (A mod C = C-1) holds the step *before* slot 0, and in the first file it holds nothing.
2. Windows that follow each other without a gap join; a gap is a *hole* (a window that was never
   written): the steps either side of it are not neighbours.
3. The last file's ``add_count`` was written modulo C. Its true value is the smallest one above the
   previous file's, if the rows both windows hold are equal; if they differ a window was lost
   between them and it is C larger. Rows held twice count once, as the earlier file's.
4. Before an episode's first step the buffer adds ``stack - 1`` all-zero rows, the *padding*: the
   rows after a terminal in add order, and adds 0, 1, ... of the run.
5. After a hole, leading all-zero rows (``stack - 1`` at most) are padding and the next row begins
   an episode; without any, the first row continues an episode whose beginning is lost.
6. Without ``add_count`` two files join only where the data prove it: an earlier file that ends in a
   terminal goes on in exactly the padding that is still owed, or rows that both must hold are equal.

`place` applies 1-3 and 6, `plan` applies 4 and 5. What they must see of the rows themselves they
ask a `Rows` for, so that nothing is read that need not be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from atarirb.errors import LogError

#: How a split's first step stands to the step before it in the log. "start": it begins an
#: episode; "continues": it follows the previous split's last step; "cut": what was before is lost.
Head = Literal["start", "continues", "cut"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """What the small files of one split say.

    Attributes:
        split: The split's number (the files' suffix).
        capacity: C, the rows of each column.
        stack: Frames the writer stacked; ``stack - 1`` rows of padding precede an episode.
        add_count: As written; None if there is no such file.
        cursor: Slot of the next add, if known (from add_count or invalid_range).
        terminals: int64[T], slots with a terminal, rising.
        odd_terminals: int64[...], those of them whose value is not 1.
    """

    split: int
    capacity: int
    stack: int
    add_count: int | None
    cursor: int | None
    terminals: np.ndarray
    odd_terminals: np.ndarray

    @property
    def padding(self) -> int:
        """Rows of padding before each episode."""
        return self.stack - 1


class Rows(Protocol):
    """What the rules must see of the rows themselves."""

    def leading_zeros(self, split: int, slots: Sequence[int]) -> int:
        """Count how many of `slots`, from the first on, are zero in all four columns."""

    def equal(self, earlier: int, later: int, slots: Sequence[tuple[int, int]]) -> bool:
        """Tell whether the two splits hold the same rows in `slots`, ranges [start, stop)."""

    def equal_tail(self, earlier: int, later: int) -> int:
        """Count the equal rows of the two splits, backwards from slot C-2."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Portion:
    """What one split gives to the dataset.

    Attributes:
        split: The split's number.
        adds: (first, stop), the adds that are this split's own, padding included.
        head: How the first step stands to what was before it.
        steps: How many steps there are.
        segments: int64[K, 3], runs of steps as (first slot, first step, length), in step order.
        padding: int64[M, 2], runs of rows that must be zero, as (first slot, length).
    """

    split: int
    adds: tuple[int, int]
    head: Head
    steps: int
    segments: np.ndarray
    padding: np.ndarray


def place(windows: Sequence[Window], rows: Rows) -> tuple[dict[int, int], dict[int, LogError]]:
    """Find the true add_count of every window.

    Args:
        windows: The splits of one log, by rising split number.
        rows: Answers what must be seen of the rows.

    Returns:
        The add count A of each window, by split: it holds adds ``max(0, A - C) .. A - 1``. And why
        the other ones cannot be placed: their count contradicts the window before, or rows that
        must be seen cannot be read. Those are then as good as missing.
    """
    stops: dict[int, int] = {}
    failures: dict[int, LogError] = {}
    previous: tuple[Window, int] | None = None
    for window in windows:
        last = window is windows[-1]
        try:
            if window.add_count is not None:
                stop = _place_counted(window, window.add_count, previous, rows, last=last)
            else:
                stop = _place_uncounted(window, previous, rows, last=last)
        except LogError as error:
            failures[window.split] = error
            continue
        stops[window.split] = stop
        previous = (window, stop)
    return stops, failures


def plan(
    windows: Sequence[Window], stops: Mapping[int, int], rows: Rows
) -> tuple[list[Portion], dict[int, LogError]]:
    """Say which rows of every split are steps, and in which order.

    Args:
        windows: As for `place`.
        stops: Its answer; windows that are not in it are left out.
        rows: Answers what must be seen of the rows.

    Returns:
        What each split gives, by rising split. And why the other ones give nothing: a row that must
        be padding is marked terminal, a terminal is neither 0 nor 1, or rows cannot be read.
    """
    portions = []
    failures: dict[int, LogError] = {}
    end = 0  # adds below this one are accounted for
    padding = (0, 0)  # the last run of padding, as adds; it may reach into the next window
    for window in windows:
        if window.split not in stops:
            continue
        stop = stops[window.split]
        try:
            portion, padding = _plan_window(window, stop, end, padding, rows)
        except LogError as error:
            failures[window.split] = error
            continue
        portions.append(portion)
        end = stop
    return portions, failures


def _plan_window(
    window: Window, stop: int, end: int, padding: tuple[int, int], rows: Rows
) -> tuple[Portion, tuple[int, int]]:
    """Rules 4 and 5 for one window; also returns its last run of padding."""
    start = max(0, stop - window.capacity)
    own = max(start, end)
    terminals = _to_adds(window.terminals, start, stop, window.capacity)
    terminals = terminals[terminals >= own]
    if own > end:
        slots = [add % window.capacity for add in range(own, min(own + window.padding, stop))]
        zeros = rows.leading_zeros(window.split, slots)
        head: Head = "start" if zeros else "cut"
        padding = (own, own + zeros)
    else:
        if own == 0:
            padding = (0, window.padding)
        head = "start" if padding[1] >= own else "continues"
    runs = [padding] if padding[1] > own else []
    runs += [(add + 1, add + 1 + window.padding) for add in terminals.tolist()]
    _check_terminals(window, runs, terminals, start, own, stop)
    return _portion(window, (own, stop), head, runs), runs[-1] if len(terminals) else padding


def _place_counted(
    window: Window, count: int, previous: tuple[Window, int] | None, rows: Rows, *, last: bool
) -> int:
    """Rules 1-3, for a window with an add_count."""
    capacity = window.capacity
    if previous is None:
        if count >= capacity:
            return count
        # Only a first file can hold fewer adds than slots, and then it begins with the run's padding;
        # any other one is the last, its count modulo C.
        padding = min(count, window.padding)
        first = window.split == 0 and count > 0
        if first and last:
            first = rows.leading_zeros(0, range(padding)) == padding
        return count if first else count + max(1, window.split) * capacity
    before, stop_before = previous
    if count > stop_before:
        shared = _shared_slots(count, stop_before, before, capacity)
        if shared and not rows.equal(before.split, window.split, shared):
            raise LogError(
                f"splits {before.split} and {window.split} overlap by their add_counts "
                f"({stop_before} and {count}, capacity {capacity}) but hold different rows there"
            )
        return count
    if not last or count >= capacity:
        raise LogError(
            f"add_count of split {window.split} is {count}, expected more than the {stop_before} of "
            f"split {before.split}: the files are not of one run, or are out of order"
        )
    return _place_after(window, count, before, stop_before, rows)


def _place_uncounted(window: Window, previous: tuple[Window, int] | None, rows: Rows, *, last: bool) -> int:
    """Rule 6, for a window without an add_count."""
    capacity, padding = window.capacity, window.padding
    # All files but the last were dumped at C-1, the last one anywhere.
    known = window.cursor is not None or not last
    cursor = capacity - 1 if window.cursor is None else window.cursor
    if previous is None:
        if not known:
            raise _unknown_cursor(window)
        first = window.split == 0 and rows.leading_zeros(0, range(padding)) == padding
        return cursor or capacity if first else cursor + max(1, window.split) * capacity
    before, stop_before = previous
    if not known:
        shared = rows.equal_tail(before.split, window.split)
        if window.stack <= shared < capacity - 1:
            cursor, known = capacity - 1 - shared, True
        elif shared:  # too few to tell: they could be equal by chance
            raise _unknown_cursor(window)
    if known:
        stop = _place_after(window, cursor, before, stop_before, rows)
        if stop - capacity != stop_before:  # rows that both hold have decided
            return stop
    stop = stop_before + capacity
    terminals = _to_adds(before.terminals, max(0, stop_before - capacity), stop_before, capacity)
    owed = int(terminals[-1]) + 1 + padding - stop_before if len(terminals) else 0
    if owed > 0 and window.split == before.split + 1 and stop % capacity == cursor:
        slots = [add % capacity for add in range(stop_before, stop)][:owed]
        if rows.leading_zeros(window.split, slots) == owed:
            return stop
    if not known:
        raise _unknown_cursor(window)
    return stop + capacity  # not proven: a hole


def _unknown_cursor(window: Window) -> LogError:
    return LogError(
        f"split {window.split} is the last one, and where its ring begins is not known: no add_count or "
        f"invalid_range tells it, nor enough rows that the split before it has too; if the run went on after "
        f"it, say partial=True (--partial), or leave it out with splits="
    )


def _place_after(window: Window, cursor: int, before: Window, stop_before: int, rows: Rows) -> int:
    """Rule 3: the place of a window of which only the cursor is known."""
    capacity = window.capacity
    start_before = max(0, stop_before - before.capacity)
    whole = _slot_ranges(start_before, stop_before, capacity)
    if cursor == stop_before % capacity and rows.equal(before.split, window.split, whole):
        return stop_before  # dumped again with nothing added
    stop = _next_congruent(stop_before, cursor, capacity)
    shared = _shared_slots(stop, stop_before, before, capacity)
    follows = window.split == before.split + 1  # that much is asked where there is nothing to compare
    if shared:
        follows = rows.equal(before.split, window.split, shared)
    return stop if follows else stop + capacity


def _next_congruent(above: int, cursor: int, capacity: int) -> int:
    """Return the smallest number greater than `above` that is `cursor` modulo `capacity`."""
    return above + 1 + (cursor - above - 1) % capacity


def _shared_slots(stop: int, stop_before: int, before: Window, capacity: int) -> list[tuple[int, int]]:
    """List the slot ranges whose adds both windows hold."""
    first = max(0, stop - capacity, stop_before - before.capacity)
    return _slot_ranges(first, stop_before, capacity) if first < stop_before else []


def _slot_ranges(first: int, stop: int, capacity: int) -> list[tuple[int, int]]:
    """Turn adds [first, stop) into slot ranges [start, stop), in rising order of adds."""
    ranges = []
    while first < stop:
        slot = first % capacity
        length = min(stop - first, capacity - slot)
        ranges.append((slot, slot + length))
        first += length
    return ranges


def _to_adds(slots: np.ndarray, start: int, stop: int, capacity: int) -> np.ndarray:
    """Turn slots of the window [start, stop) into rising add numbers; slots never written drop out."""
    adds = start + (np.asarray(slots, np.int64) - start) % capacity
    return np.sort(adds[adds < stop])


def _check_terminals(
    window: Window, runs: list[tuple[int, int]], terminals: np.ndarray, start: int, own: int, stop: int
) -> None:
    """Refuse a terminal where a row of padding must be, and one that is neither 0 nor 1."""
    odd = _to_adds(window.odd_terminals, start, stop, window.capacity)
    odd = odd[odd >= own]
    if len(odd):
        raise LogError(
            f"split {window.split}: the terminal in slot {odd[0] % window.capacity} is neither 0 nor 1"
        )
    if not len(terminals):
        return
    firsts, stops = np.array(runs, np.int64).T
    run = np.searchsorted(firsts, terminals, side="right") - 1
    inside = (run >= 0) & (terminals < stops[run])
    if inside.any():
        slot = int(terminals[inside][0]) % window.capacity
        raise LogError(
            f"split {window.split}, slot {slot}: marked terminal, but it is one of the "
            f"{window.padding} rows of padding that follow the previous terminal"
        )


def _portion(window: Window, adds: tuple[int, int], head: Head, runs: list[tuple[int, int]]) -> Portion:
    """Cut a split's own adds into steps and padding, and turn both into slots."""
    own, stop = adds
    kept, padded = [], []
    at = own
    for run_first, run_stop in runs:
        first, last = max(run_first, own), min(run_stop, stop)
        if first > at:
            kept.append((at, first))
        if last > first:
            padded.append((first, last))
        at = max(at, last)
    if stop > at:
        kept.append((at, stop))
    segments, step = [], 0
    for first, last in kept:
        for slot, slot_stop in _slot_ranges(first, last, window.capacity):
            segments.append((slot, step, slot_stop - slot))
            step += slot_stop - slot
    padding = [
        (slot, slot_stop - slot)
        for first, last in padded
        for slot, slot_stop in _slot_ranges(first, last, window.capacity)
    ]
    return Portion(
        split=window.split,
        adds=adds,
        head=head,
        steps=step,
        segments=np.array(segments, np.int64).reshape(-1, 3),
        padding=np.array(padding, np.int64).reshape(-1, 2),
    )
