"""Epochs: every valid step or slice once, in an order that a key chooses, made ahead, gone on with anywhere.

The order of an epoch is a keyed bijection of its rows (`atarirb.draws.Order`), so an iterator's state is two
numbers, and the batch after any state is made without those before it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import hashlib
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np

from atarirb import draws, threads
from atarirb.arguments import positive
from atarirb.batch import Batch
from atarirb.errors import ArgumentError, ClosedError, StateError
from atarirb.sampler import Sampler

#: Version of what `Batches.get_state` returns.
STATE_VERSION = 1
#: Most rows of an epoch; the order of more would need wider arithmetic.
_MOST_ROWS = 1 << 48
#: Epochs, as many as an endless iterator counts to.
_ENDLESS = 1 << 62

# Numbers under which a key's keys are derived, one for each use.
_ORDERS, _DRAWS = 0, 1


class Batches:
    """An iterator over batches, also a context manager. Made by `batches` of a reader or a mixture.

    Iterating ends after the last epoch; `close`, the end of a ``with`` block, or the end of the object stop
    the threads that make batches ahead. It is for one thread at a time. A child made by fork goes on where
    its parent was.

    What fails while a batch is made ahead is raised by the `next` that would return it, with the traceback
    of where it failed; the next `next` tries that batch again.

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
        self._sampler = sampler
        self._batch_size = positive("batch_size", batch_size)
        self._slice_len = None if slice_len is None else positive("slice_len", slice_len)
        self._replacement = bool(replacement)
        self._epochs = _ENDLESS if epochs is None else positive("epochs", epochs, most=_ENDLESS)
        self._prefetch = _count("prefetch", prefetch)
        if transform is not None and not callable(transform):
            raise ArgumentError(f"transform is {transform!r:.80}, expected a function of a batch")
        self._transform = transform
        self._closed = False
        self._legal = sampler._legal(self._slice_len, strict=bool(strict_length))
        rows = sampler._epoch_rows(self._legal, self._batch_size, self._replacement)
        if rows > _MOST_ROWS:
            raise ArgumentError(f"an epoch of {rows:,} rows; there may be {_MOST_ROWS:,}")
        full, left = divmod(rows, self._batch_size)
        if drop_remainder and not full and not self._replacement:
            what = "steps" if slice_len is None else f"slices of {slice_len} steps"
            raise ArgumentError(
                f"batch_size is {batch_size:,}, and an epoch has {rows:,} {what}; choose a smaller one, "
                f"drop_remainder=False, or replacement=True"
            )
        self._rows = rows
        self.batches_per_epoch = max(1, full + (left > 0 and not drop_remainder))
        self._global, self._part = _part_of(sampler, self._batch_size, shard)
        # Hosts and devices need batches of one shape.
        self._fills = not drop_remainder and (shard is not None or self._global or _is_spread(sampler))
        self._root = draws.root(key)
        self._settings = {
            **sampler._fingerprint(),
            "key": hashlib.sha256(repr(self._root).encode()).hexdigest()[:16],
            "batch_size": self._batch_size,
            "slice_len": self._slice_len,
            "strict_length": bool(strict_length),
            "replacement": self._replacement,
            "drop_remainder": bool(drop_remainder),
        }
        self._position = 0
        self._forget()

    def _forget(self) -> None:
        self._ahead: collections.deque[concurrent.futures.Future[Batch]] = collections.deque()
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
        if self._process != os.getpid():  # a child has no threads
            self._forget()
        if self._position >= self._epochs * self.batches_per_epoch:
            raise StopIteration
        if not self._prefetch:
            batch = self._make(self._position)
        else:
            self._fill(self._prefetch)
            try:
                batch = self._ahead[0].result()
            except Exception:
                self._drop_ahead()
                raise
            self._ahead.popleft()
        self._position += 1
        if self._prefetch:
            self._fill(self._prefetch)
        return batch

    def _fill(self, depth: int) -> None:
        """Have as many batches made ahead, from the position on."""
        end = self._epochs * self.batches_per_epoch
        while len(self._ahead) < depth and self._position + len(self._ahead) < end:
            if self._pool is None:
                workers = min(self._prefetch, threads.count())
                self._pool = concurrent.futures.ThreadPoolExecutor(workers, "atarirb-prefetch")
            self._ahead.append(self._pool.submit(self._make, self._position + len(self._ahead)))

    def _drop_ahead(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()

    def _make(self, position: int) -> Batch:
        epoch, number = divmod(position, self.batches_per_epoch)
        rows, size = self._part, self._batch_size
        if self._replacement:
            key = draws.derived(self._root, _DRAWS, epoch, number)
            steps = self._sampler._draw(key, size, self._legal)[rows]
        else:
            places = number * size + rows
            places = np.where(places < self._rows, places, -1) if self._fills else places[places < self._rows]
            key = draws.derived(self._root, _ORDERS, epoch)
            steps = self._sampler._epoch(key, self._legal, places, size)
        batch = self._sampler._gather(steps, self._slice_len)
        if self._fills and self._slice_len is None:
            batch["mask"] = (steps >= 0).reshape(batch["index"].shape)  # a mixture's may be stacked
        if self._transform is not None:
            batch = self._transform(batch)
        return self._sampler._output(batch, size if self._global else None)

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
            version, of = state["version"], dict(state["of"])
            epoch, number = operator.index(state["epoch"]), operator.index(state["batch"])
        except (TypeError, KeyError, ValueError) as error:
            raise StateError(f"not a state of batches: {state!r:.200}") from error
        if version != STATE_VERSION:
            raise StateError(f"a state of version {version!r}, this atarirb reads version {STATE_VERSION}")
        differing = [
            f"{name} is {self._settings.get(name, 'none')!r} here, {of.get(name, 'none')!r} there"
            for name in {**self._settings, **of}
            if self._settings.get(name) != of.get(name)
        ]
        if differing:
            raise StateError(f"the state is of other batches: {'; '.join(differing)}")
        if not 0 <= number < self.batches_per_epoch or not 0 <= epoch <= self._epochs:
            raise StateError(
                f"the state is at batch {number:,} of epoch {epoch:,}; there are {self.batches_per_epoch:,} "
                f"batches an epoch and {self._epochs:,} epochs"
            )
        self._drop_ahead()
        self._position = epoch * self.batches_per_epoch + number

    # Its life.

    def close(self) -> None:
        """Stop making batches ahead, and wait for what is being made. Closing twice is harmless."""
        self._closed = True
        if self._process == os.getpid():
            self._drop_ahead()
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        epoch, number = divmod(self._position, self.batches_per_epoch)
        return f"<atarirb.Batches at batch {number:,} of {self.batches_per_epoch:,}, epoch {epoch:,}>"


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
    if shard is not None:
        try:
            host, hosts = map(operator.index, shard)
        except (TypeError, ValueError):
            host, hosts = 0, 0
        if not 0 <= host < hosts:
            raise ArgumentError(f"shard is {shard!r}, expected (i, n): host i, from 0, of n")
        return False, sampler._part(batch_size, host, hosts)
    if _is_spread(sampler) and not sampler._options.device.is_fully_addressable:
        from atarirb.outputs import jax

        return True, np.arange(*jax.rows_of(sampler._options.device, batch_size))
    return False, np.arange(batch_size)


def _is_spread(sampler: Sampler) -> bool:
    """Tell whether batches are spread over devices."""
    return sampler._options.output == "jax" and hasattr(sampler._options.device, "is_fully_addressable")
