"""Epochs: every valid step or slice once, in an order that a key chooses, made ahead, gone on with anywhere.

The order of an epoch is a keyed bijection of its rows (`atarirb.draws.Order`), so an iterator's state is two
numbers, and the batch after any state is made without those before it.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import operator
import os
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from atarirb import draws, threads
from atarirb.arguments import check_same, positive
from atarirb.batch import Batch
from atarirb.errors import ArgumentError, ClosedError, FunctionError, StateError
from atarirb.index import Legal

if TYPE_CHECKING:
    from atarirb.sampler import Sampler

#: Version of what `Batches.get_state` returns.
STATE_VERSION = 1
#: Most rows of an epoch; the order of more would need wider arithmetic.
_MOST_ROWS = 1 << 48
#: Epochs, as many as an endless iterator counts to.
_ENDLESS = 1 << 62

# Numbers under which a key's keys are derived, one for each use.
_ORDERS, _DRAWS = 0, 1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Making:
    """How the batch at a position is made: all that the threads need, so that they keep no iterator alive.

    Attributes:
        sampler: What draws and gathers.
        transform: Called with the batch, if there is one.
        root: What the keys are derived from.
        legal: What is drawn from.
        rows: Rows of an epoch.
        batches_per_epoch: As many.
        batch_size: Rows of a batch, of all hosts.
        part: int64[B], which of them are made here.
        slice_len: L, or None for transitions.
        replacement: Each batch is drawn anew.
        fills: The last batch is filled up, and all have a mask.
        spans: The rows are a part of arrays over several processes.
    """

    sampler: Sampler
    transform: Callable[[Batch], Batch] | None
    root: tuple[int, ...]
    legal: Legal
    rows: int
    batches_per_epoch: int
    batch_size: int
    part: np.ndarray
    slice_len: int | None
    replacement: bool
    fills: bool
    spans: bool

    def __call__(self, position: int) -> Batch:
        epoch, number = divmod(position, self.batches_per_epoch)
        size = self.batch_size
        if self.replacement:
            key = draws.derived(self.root, _DRAWS, epoch, number)
            steps = self.sampler._draw(key, size, self.legal)[self.part]
        else:
            places = number * size + self.part
            inside = places < self.rows
            places = np.where(inside, places, -1) if self.fills else places[inside]
            key = draws.derived(self.root, _ORDERS, epoch)
            steps = self.sampler._epoch(key, self.legal, places, size)
        batch = self.sampler._gather(steps, self.slice_len)
        if self.fills and self.slice_len is None:
            batch["mask"] = batch["index"] >= 0
        if self.transform is not None:
            try:
                batch = self.transform(batch)
            except StopIteration as error:  # which would pass for the end of the batches
                raise FunctionError("transform raised StopIteration") from error
        return self.sampler._output(batch, size if self.spans else None)


class Batches:
    """An iterator over batches, also a context manager. Made by `batches` of a reader or a mixture.

    Iterating ends after the last epoch; that, `close`, the end of a ``with`` block, or the end of the object
    stop the threads that make batches ahead. It is for one thread at a time. A child made by fork goes on
    where its parent was.

    What fails while a batch is made ahead is raised by the `next` that would return it, with the traceback
    of where it failed; the next `next` tries that batch again. One that is interrupted loses no batch either.

    Attributes:
        batches_per_epoch: As many.
    """

    def __init__(
        self,
        sampler: Sampler,
        batch_size: int,
        *,
        key: Any,
        slice_len: int | None,
        strict_length: bool,
        replacement: bool,
        epochs: int | None,
        drop_remainder: bool,
        prefetch: int,
        transform: Callable[[Batch], Batch] | None,
        shard: tuple[int, int] | None,
    ):
        batch_size = positive("batch_size", batch_size)
        slice_len = None if slice_len is None else positive("slice_len", slice_len)
        replacement, drop_remainder = bool(replacement), bool(drop_remainder)
        self._epochs = _ENDLESS if epochs is None else positive("epochs", epochs, most=_ENDLESS)
        self._prefetch = _count("prefetch", prefetch)
        if transform is not None and not callable(transform):
            raise ArgumentError(f"transform is {transform!r:.80}, expected a function of a batch")
        legal = sampler._legal(slice_len, strict=bool(strict_length))
        rows = sampler._epoch_rows(legal, batch_size, replacement)
        if rows > _MOST_ROWS:
            raise ArgumentError(f"an epoch of {rows:,} rows; there may be {_MOST_ROWS:,}")
        full, left = divmod(rows, batch_size)
        if drop_remainder and not full and not replacement:
            what = "steps" if slice_len is None else f"slices of {slice_len} steps"
            raise ArgumentError(
                f"batch_size is {batch_size:,}, and an epoch has {rows:,} {what}; choose a smaller one, "
                f"drop_remainder=False, or replacement=True"
            )
        self.batches_per_epoch = max(1, full + (left > 0 and not drop_remainder))
        spans, part = _part_of(sampler, batch_size, shard)
        root = draws.root(key)
        self._make = _Making(
            sampler=sampler,
            transform=transform,
            root=root,
            legal=legal,
            rows=rows,
            batches_per_epoch=self.batches_per_epoch,
            batch_size=batch_size,
            part=part,
            slice_len=slice_len,
            replacement=replacement,
            # Hosts and devices need batches of one shape.
            fills=not drop_remainder and (shard is not None or spans or _is_spread(sampler)),
            spans=spans,
        )
        self._settings = {
            **sampler._fingerprint(),
            "key": hashlib.sha256(repr(root).encode()).hexdigest()[:16],
            "batch_size": batch_size,
            "slice_len": slice_len,
            "strict_length": bool(strict_length),
            "replacement": replacement,
            "drop_remainder": drop_remainder,
        }
        self._closed = False
        self._position = 0
        self._forget()

    def _forget(self) -> None:
        self._ahead: dict[int, concurrent.futures.Future[Batch]] = {}
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._process = os.getpid()

    # As an iterator.

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """Return the batches of all epochs, those handed out included.

        Raises:
            TypeError: There is no end.
        """
        if self._epochs == _ENDLESS:
            raise TypeError("batches without end have no length; epochs= gives them one")
        return self._epochs * self.batches_per_epoch

    def __next__(self) -> Batch:
        if self._closed:
            raise ClosedError("these batches are closed; make new ones, and set their state")
        position = self._position
        if position >= self._epochs * self.batches_per_epoch:
            self._stop()
            raise StopIteration
        batch = self._made_ahead(position) if self._prefetch else self._make(position)
        # Last, and with no call after it: an interrupt comes before it, and the batch is made again, or when
        # the caller has it.
        self._position = position + 1
        return batch

    def _made_ahead(self, position: int) -> Batch:
        """Wait for the batch at a position, and have those after it made."""
        self._leave_parents()
        self._fill(position)
        try:
            batch = self._ahead[position].result()
        except BaseException:
            if self._ahead[position].done():  # it failed, and not the waiting for it
                del self._ahead[position]
            raise
        self._fill(position + 1)
        del self._ahead[position]
        return batch

    def _fill(self, first: int) -> None:
        """Have the batches from a position on made ahead, those that are not yet."""
        end = self._epochs * self.batches_per_epoch
        for position in range(first, min(first + self._prefetch, end)):
            if position not in self._ahead:
                if self._pool is None:
                    workers = min(self._prefetch, threads.count())
                    self._pool = concurrent.futures.ThreadPoolExecutor(workers, "atarirb-prefetch")
                    weakref.finalize(self, _end, self._pool, self._process).atexit = False
                self._ahead[position] = self._pool.submit(self._make, position)

    def _leave_parents(self) -> None:
        """Forget the parent's threads in a child made by fork, which has none."""
        if self._process != os.getpid():
            self._forget()

    def _stop(self) -> None:
        """Stop making batches ahead, and wait for what is being made."""
        self._leave_parents()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._forget()

    # Its state.

    def get_state(self) -> dict[str, Any]:
        """Say where it is: after the batches handed out, whatever was made ahead.

        Returns:
            A dict that JSON takes, of less than 1 kB: the version, the epoch and the number of the next batch
            in it, and what the batches depend on.
        """
        epoch, number = divmod(self._position, self.batches_per_epoch)
        return {"version": STATE_VERSION, "epoch": epoch, "batch": number, "of": dict(self._settings)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where another iterator was, with the same data and the same arguments.

        What may differ: number of hosts, `epochs`, `prefetch`, `transform`, columns, the arrays' kind and
        device, and the codec of the dataset.

        Args:
            state: What `get_state` returned.

        Raises:
            StateError: It is of other data or arguments, named with both values, or of another version, or is
                no state.
        """
        try:
            version = state["version"]
            if version == STATE_VERSION:
                epoch, number = operator.index(state["epoch"]), operator.index(state["batch"])
                of = dict(state["of"])
        except (TypeError, LookupError, ValueError) as error:
            raise StateError(f"not a state of batches: {state!r:.200}") from error
        if version != STATE_VERSION:
            raise StateError(f"a state of version {version!r}, this atarirb reads version {STATE_VERSION}")
        check_same("batches", self._settings, of)
        position, end = epoch * self.batches_per_epoch + number, self._epochs * self.batches_per_epoch
        if not 0 <= number < self.batches_per_epoch or not 0 <= position <= end:
            raise StateError(
                f"the state is at batch {number:,} of epoch {epoch:,}; there are {self.batches_per_epoch:,} "
                f"batches an epoch and {self._epochs:,} epochs"
            )
        self._leave_parents()
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()
        self._position = position

    # Its life.

    def close(self) -> None:
        """Stop making batches ahead, and wait for what is being made. Closing twice is harmless."""
        self._closed = True
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        epoch, number = divmod(self._position, self.batches_per_epoch)
        return f"<atarirb.Batches at batch {number:,} of {self.batches_per_epoch:,}, epoch {epoch:,}>"


def _end(pool: concurrent.futures.ThreadPoolExecutor, process: int) -> None:
    """End the threads of an iterator that is gone, unless they are the parent's."""
    if process == os.getpid():
        pool.shutdown(wait=False, cancel_futures=True)


def _count(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise ArgumentError(f"{name} is {value!r}, expected an integer of 0 or more")
    return number


def _part_of(sampler: Sampler, batch_size: int, shard: tuple[int, int] | None) -> tuple[bool, np.ndarray]:
    """Find which rows of each batch are made here.

    Returns:
        Whether they become a part of an array over several processes, and int64[rows].
    """
    spans = _is_spread(sampler) and not sampler._options.device.is_fully_addressable
    if shard is not None:
        try:
            host, hosts = map(operator.index, shard)
        except (TypeError, ValueError):
            host, hosts = 0, 0
        if not 0 <= host < hosts:
            raise ArgumentError(f"shard is {shard!r}, expected (i, n): host i, from 0, of n")
        if spans:
            raise ArgumentError(
                f"shard= goes with devices of this process alone; over several, as in "
                f"{sampler._options.device}, these say which rows are made here"
            )
        return False, sampler._part(batch_size, host, hosts)
    if spans:
        from atarirb.outputs import jax

        return True, np.arange(*jax.rows_of(sampler._options.device, batch_size))
    return False, np.arange(batch_size)


def _is_spread(sampler: Sampler) -> bool:
    """Tell whether batches are spread over devices."""
    return sampler._options.output == "jax" and hasattr(sampler._options.device, "is_fully_addressable")
