"""What readers and mixtures share: the options, and batches drawn at random or epoch by epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from atarirb import draws, outputs
from atarirb.arguments import one_of, positive
from atarirb.batch import Batch, Data, Recipe, slices, transitions
from atarirb.errors import ArgumentError, ClosedError
from atarirb.index import EpisodeIndex, Legal
from atarirb.loader import Batches
from atarirb.windows import windows

#: Lengths of slices whose starts are remembered.
_MOST_LENGTHS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How batches are made; see `atarirb.open` for each."""

    frame_stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    columns: tuple[str, ...] = ()
    output: str = "numpy"
    device: Any = None
    pin_memory: bool = False
    windows: bool = False
    time_limit: str = "terminated"
    final: str = "zeros"

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame_stack", positive("frame_stack", self.frame_stack, most=1 << 16))
        object.__setattr__(self, "n_step", positive("n_step", self.n_step, most=1 << 16))
        object.__setattr__(self, "columns", tuple(self.columns))
        if not isinstance(self.gamma, (int, float, np.number)) or not 0 <= self.gamma <= 1:
            raise ArgumentError(f"gamma is {self.gamma!r}, expected a number from 0 to 1")
        one_of("output", self.output, outputs.NAMES)
        one_of("time_limit", self.time_limit, ("terminated", "truncated"))
        one_of("final", self.final, ("zeros", "stored"))
        if self.device is not None and self.output == "numpy":
            raise ArgumentError(
                "device= goes with output='jax' or output='torch'; NumPy arrays are on the host"
            )
        if self.pin_memory and self.output != "torch":
            raise ArgumentError("pin_memory=True goes with output='torch'")

    @property
    def placement(self) -> dict[str, Any]:
        """Where batches go: arguments of an output's `check` and `put`."""
        return {"device": self.device} | ({"pin": True} if self.pin_memory else {})


def check_output(options: Options) -> None:
    """Check that what the arrays are made with is installed, and can put them where they are wanted.

    Raises:
        MissingPackageError: It is not installed.
        ArgumentError: `device` is none of its devices, or memory cannot be pinned.
    """
    library = outputs.module(options.output)
    if library:
        library.check(**options.placement)


def pack_options(options: Options) -> Options:
    """Make options ready to be pickled: a device may not be."""
    library = outputs.module(options.output)
    if not library or options.device is None:
        return options
    return dataclasses.replace(options, device=library.pack_device(options.device))


def unpack_options(options: Options) -> Options:
    """Undo `pack_options`, with the devices of this process."""
    library = outputs.module(options.output)
    if not library or options.device is None:
        return options
    return dataclasses.replace(options, device=library.unpack_device(options.device))


class Sampler:
    """Draws from the valid steps of one or several datasets.

    It holds no state that its answers depend on: it may be used from many threads, after a fork, and be
    pickled.
    """

    _name: str
    _options: Options
    _dataset: Data | None
    _index: EpisodeIndex
    _recipe: Recipe
    _valid: Legal
    _slice_starts: dict[tuple[int, bool], Legal]

    @property
    def valid_steps(self) -> int:
        """How many steps `sample` draws from."""
        return self._valid.total

    def sample(self, key: Any, n: int) -> Batch:
        """Draw transitions uniformly over the valid steps, with replacement.

        Args:
            key: A JAX PRNG key, an int, a `numpy.random.SeedSequence` or a `Generator`; the same key
                gives the same batch for every output, number of threads and machine.
            n: How many.

        Returns:
            A batch as described in `atarirb.batch`, B = n.

        Raises:
            KeyTypeError: The key cannot be used.
            ArgumentError: n < 1, or no step is valid.
            BatchSizeError: The batch would be larger than this machine's memory.
        """
        n = positive("n", n)
        self._opened()
        return self._output(self._gather(self._draw(key, n, self._legal(None))))

    def sample_slices(
        self, key: Any, n: int, length: int, *, strict_length: bool = True, weighting: str = "starts"
    ) -> Batch:
        """Draw slices: `length` consecutive valid steps of one episode each.

        Args:
            key: As for `sample`.
            n: How many slices.
            length: L, steps of a slice.
            strict_length: False: episodes with fewer valid steps are drawn too, whole, and padded;
                ``mask`` tells the padding.
            weighting: "starts": every legal start is as likely as any other, so episodes count by
                their length. "episodes": every episode that has a legal start is as likely as any
                other, then every start in it.

        Returns:
            A batch with leaves [n, L, ...] and ``mask`` bool[n, L]; see `atarirb.batch`.

        Raises:
            KeyTypeError: The key cannot be used.
            ArgumentError: n < 1, L < 1, or no episode is long enough; the message names the longest.
        """
        n, length = positive("n", n), positive("length", length)
        one_of("weighting", weighting, ("starts", "episodes"))
        self._opened()
        legal = self._legal(length, strict=strict_length)
        starts = self._draw(key, n, legal, by_episode=weighting == "episodes")
        return self._output(self._gather(starts, length))

    def batches(
        self,
        batch_size: int,
        *,
        key: Any,
        slice_len: int | None = None,
        strict_length: bool = True,
        replacement: bool = False,
        epochs: int | None = None,
        drop_remainder: bool = True,
        prefetch: int = 2,
        transform: Callable[[Batch], Batch] | None = None,
        shard: tuple[int, int] | None = None,
    ) -> Batches:
        """Iterate over batches, made ahead by threads: every valid step, or slice, once an epoch.

        The order of an epoch is a bijection that the key chooses: it takes no memory, and to go to any
        batch takes no time. Batch i of epoch e depends on nothing but the key, e and i.

        Args:
            batch_size: Rows of a batch, of all hosts together.
            key: As for `sample`; a `Generator` moves on once.
            slice_len: L for batches of slices, drawn over all legal starts; None for transitions.
            strict_length: As for `sample_slices`.
            replacement: Draw each batch anew, as `sample` does; an epoch then is as many batches.
            epochs: How many; None: without end.
            drop_remainder: Leave out what is left of an epoch when no whole batch is. False: the last
                batch is short. On several hosts and devices, it is filled up with rows of index -1
                instead, and all batches have a ``mask`` bool[B], False for these.
            prefetch: Batches made ahead, by as many threads (not more than cores). 0: none, in the caller's.
                Those threads do not see what is set for the caller's thread alone, as by
                ``with jax.default_device(...)``: `device` says it for all.
            transform: Called with each batch, of NumPy arrays, before it goes to a device; what it returns,
                a nested dict of NumPy arrays, is handed out. Several threads may call it at once, and not
                in the batches' order.
            shard: (i, n): this is host i of n, and gets the i-th part of each batch. By default the whole;
                with a `Sharding` over several processes as `device`, the rows that this one's devices hold,
                and batches are global arrays.

        Returns:
            An iterator and context manager, with `get_state` and `set_state`; see
            `atarirb.loader.Batches`.

        Raises:
            KeyTypeError: The key cannot be used.
            ArgumentError: An argument cannot be; there are fewer rows than a batch has; `batch_size` does not
                divide by n.
        """
        return Batches(
            self,
            batch_size,
            key=key,
            slice_len=slice_len,
            strict_length=strict_length,
            replacement=replacement,
            epochs=epochs,
            drop_remainder=drop_remainder,
            prefetch=prefetch,
            transform=transform,
            shard=shard,
        )

    # For `atarirb.loader`, and what a mixture does in another way.

    def _legal(self, slice_len: int | None, *, strict: bool = True) -> Legal:
        """Return what is drawn from: valid steps, or starts of slices."""
        if slice_len is None:
            if not self._valid.total:
                raise ArgumentError(
                    f"no step to draw from is valid for frame_stack={self._options.frame_stack} "
                    f"and n_step={self._options.n_step}"
                )
            return self._valid
        legal = self._slice_starts.get((slice_len, strict))
        if legal is None:
            legal = self._index.slice_starts(self._valid, slice_len, strict=strict)
            if len(self._slice_starts) >= _MOST_LENGTHS:
                self._slice_starts.clear()
            self._slice_starts[slice_len, strict] = legal
        return legal

    def _draw(self, key: Any, n: int, legal: Legal, *, by_episode: bool = False) -> np.ndarray:
        """Draw n of the legal steps, with replacement."""
        if by_episode:
            return legal.draw_by_episode(draws.words(key, 2 * n).reshape(n, 2))
        return legal.draw(draws.words(key, n))

    def _epoch(self, key: Any, legal: Legal, places: np.ndarray, batch_size: int) -> np.ndarray:
        """Find the legal steps at places, int64[B], of the order that a key gives an epoch; -1 for -1."""
        return legal.at(draws.order(key, legal.total)(places))

    def _epoch_rows(self, legal: Legal, batch_size: int, replacement: bool) -> int:
        """Return the rows of an epoch."""
        return legal.total

    def _part(self, batch_size: int, host: int, hosts: int) -> np.ndarray:
        """Return which rows of a batch are a host's, int64[batch_size / hosts]."""
        if batch_size % hosts:
            raise ArgumentError(f"batch_size {batch_size:,} does not divide by {hosts} hosts")
        share = batch_size // hosts
        return np.arange(host * share, (host + 1) * share)

    def _gather(self, steps: np.ndarray, slice_len: int | None = None) -> Batch:
        """Make the batch, of NumPy arrays, of steps or starts of slices, int64[B]; zeros for -1."""
        if slice_len is None:
            make = windows if self._options.windows else transitions
            return make(self._opened(), self._index, self._recipe, steps)
        return slices(self._opened(), self._index, self._recipe, self._valid, steps, slice_len)

    def _output(self, batch: Batch, rows: int | None = None) -> Batch:
        """Hand a batch out as the arrays wanted; `rows`: those of all hosts, of which this is a part."""
        library = outputs.module(self._options.output)
        if not library:
            return batch
        part = {} if rows is None else {"rows": rows}
        return library.put(batch, **self._options.placement, **part)

    def _fingerprint(self) -> dict[str, Any]:
        """Say what batches depend on, beside the arguments of `batches`."""
        raise NotImplementedError

    # Its life.

    def close(self) -> None:
        """Let go of the maps; batches handed out stay good. Closing twice is harmless."""
        self._dataset = None

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> Data:
        dataset = self._dataset
        if dataset is None:
            raise ClosedError(f"{self._name} is closed; open it again")
        return dataset
