"""Batches as TensorDicts, and a reader as the storage of TorchRL's replay buffers.

    from torchrl.data import SliceSampler, TensorDictReplayBuffer
    from atarirb.outputs.tensordict import Storage

    storage = Storage(atarirb.open("data/Pong/1", frame_stack=4))
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=256)
    buffer.sample()

    sampler = SliceSampler(slice_len=64, cache_values=True)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=1024)

Entries are named as in a batch (`atarirb.batch`), which is TorchRL's TED form. What is one number a step and
meets a network's values - reward, discount, return_to_go, done, terminated, truncated - has an axis of 1 at
the end, as TorchRL wants it: [B, 1].

Batches drawn by the reader itself come faster, slices above all, whose frames are gathered once:
``to_tensordict(reader.sample_slices(key, 16, 64))``.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from atarirb.arguments import as_index, check_same
from atarirb.errors import ArgumentError, MissingPackageError
from atarirb.outputs.torch import tensor

#: Entries of one number a step that get an axis of 1.
_VALUES = frozenset(("reward", "discount", "return_to_go", "done", "terminated", "truncated"))

#: Rows that a column is read by.
_ROWS = 1 << 20
_FRAME_ROWS = 1 << 12


def _tensordict() -> Any:
    try:
        import tensordict
    except ImportError as error:
        raise MissingPackageError.needed("tensordict", purpose="a TensorDict", extra="torchrl") from error
    return tensordict


def to_tensordict(batch: dict[str, Any]) -> Any:
    """Turn a batch into a TensorDict in TED form, without a copy.

    Args:
        batch: A batch of a reader whose output is "numpy" or "torch".

    Returns:
        A TensorDict of batch size [B], that of slices [n, L], that of a single step [].

    Raises:
        MissingPackageError: tensordict is not installed.
        ArgumentError: The batch is of other arrays, or has a column of a dtype that PyTorch lacks.
    """
    tensordict = _tensordict()
    return tensordict.TensorDict(_entries(batch), batch_size=tuple(batch["action"].shape))


def _entries(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _entries(leaf) if isinstance(leaf, dict) else _entry(name, leaf) for name, leaf in batch.items()
    }


def _entry(name: str, leaf: Any) -> Any:
    import torch

    if not isinstance(leaf, (np.ndarray, torch.Tensor)):
        kind = type(leaf).__module__.partition(".")[0]
        raise ArgumentError(f"{name} is an array of {kind}; open the reader with output='numpy' or 'torch'")
    values = tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
    if isinstance(values, np.ndarray):
        raise ArgumentError(f"{name} is of dtype {leaf.dtype}, which PyTorch lacks; leave it out of columns=")
    return values.unsqueeze(-1) if name in _VALUES else values


class _Storage:
    """The valid steps of a reader as a storage of TorchRL's replay buffers: read only.

    Row i is the i-th valid step, in the order of play; `steps` tells which one. So every row may be sampled,
    neighbours of one episode are consecutive steps, and what `select` gives makes a smaller storage.

    A row has the entries of `to_tensordict`, and beside them or other than them:

        index              int64[B]    the row
        episode            int32[B]    the episode
        steps_to_next_obs  int64[B, 1] if n_step > 1: the steps that the reward sums, by which TorchRL's
                           losses discount. Not more than what is left of the episode
        next.truncated     bool[B, 1]  True too at an episode's last row, if it does not end by a terminal:
        next.done          the row after it is of another episode. Its next observation is known

    With slice samplers use ``cache_values=True``: the rows never change, and finding the ends of
    episodes among 50M rows takes seconds each time. Their default, ``traj_key="episode"``, is best.
    ``end_key=("next", "done")`` works too, but with n_step > 1 the last n rows of an episode are each
    done, so that slices end before them.

    ``storage[:]`` reads nothing: it gives all rows as `_Rows`, of which single entries can be asked, as slice
    samplers do. `get` gives TensorDicts.

    Args:
        reader: A reader, output "numpy" or "torch". A device of its own is where the TensorDicts are;
            samplers work on the host.

    Raises:
        MissingPackageError: torchrl is not installed.
        ArgumentError: The reader has another output, or no valid step.
    """

    initialized = True

    def __init__(self, reader: Any):
        from torchrl.data.replay_buffers.storages import Storage

        if reader._options.output not in ("numpy", "torch"):
            raise ArgumentError(
                f"a storage needs a reader with output='numpy' or 'torch', not {reader._options.output!r}"
            )
        if not reader.valid_steps:
            raise ArgumentError("a storage needs valid steps, and this reader has none")
        self._reader = reader
        self._described = reader._fingerprint()
        self._known = frozenset(self._signals(*(np.zeros(0, np.int64),) * 2))
        # That of TensorStorage would want all rows as one tensor.
        Storage.__init__(self, reader.valid_steps)

    @property
    def device(self) -> Any:
        """Where rows are counted: the host."""
        import torch

        return torch.device("cpu")

    def __len__(self) -> int:
        """Return the number of rows: the reader's valid steps."""
        return self._reader.valid_steps

    @property
    def shape(self) -> Any:
        """The number of rows, as a `torch.Size`."""
        import torch

        return torch.Size([len(self)])

    _total_shape = shape

    # Reading.

    def steps(self, rows: Any) -> np.ndarray:
        """Return the steps in the dataset that rows are.

        Args:
            rows: As for `get`.

        Returns:
            int64, of the index' shape.
        """
        flat, shape = self._rows(rows)
        return self._reader._valid.at(flat).reshape(shape)

    def get(self, index: Any) -> Any:
        """Read rows.

        Args:
            index: An int, slice, range, sequence, array or tensor of ints, of any shape, or a mask over
                all rows; also a tuple of one of these.

        Returns:
            A TensorDict of the index' shape.

        Raises:
            StepIndexError, StepIndexTypeError, ArgumentError: As for `atarirb.reader.Reader.get`.
        """
        rows, shape = self._rows(index)
        steps = self._reader._valid.at(rows)
        data = to_tensordict(self._reader.get(steps))
        data.set("index", tensor(rows))
        for name, values in self._signals(rows, steps).items():
            data.set(name, values.to(data["action"].device))
        if shape == rows.shape:
            return data
        return data.reshape(shape) if shape else data[0]

    def _rows(self, index: Any) -> tuple[np.ndarray, tuple[int, ...]]:
        """Turn an index into rows, int64[B], and the shape they are to have."""
        if isinstance(index, tuple):
            if len(index) != 1:
                raise ArgumentError(f"a storage has one axis, and {len(index)} indices were given")
            (index,) = index
        if hasattr(index, "cpu"):  # a tensor
            index = index.cpu().numpy()
        shape = None
        if isinstance(index, np.ndarray) and index.dtype != np.bool_:
            shape, index = index.shape, index.reshape(-1)
        rows, single = as_index(index, len(self), noun="row")
        return rows, () if single else rows.shape if shape is None else shape

    def __getitem__(self, index: Any) -> Any:
        # Slice samplers ask in these two ways, for a key or two of all rows, or of those they return.
        if isinstance(index, slice) and index == slice(None):
            return _Rows(self, None)
        if isinstance(index, tuple) and len(index) == 1:
            return _Rows(self, self._rows(index)[0])
        return self.get(index)

    def __iter__(self) -> Iterator[Any]:
        """Give the rows, each as a TensorDict of batch size []."""
        return (self.get(row) for row in range(len(self)))

    def contains(self, item: Any) -> Any:
        """Tell whether there are rows of these numbers: a bool, or a tensor of them for a tensor."""
        found = (-len(self) <= item) & (item < len(self))
        return found if hasattr(found, "shape") else bool(found)

    def _signals(self, rows: np.ndarray, steps: np.ndarray) -> dict[Any, Any]:
        """Work out the entries that are known without reading a column."""
        index, valid = self._reader._index, self._reader._valid
        n_step = self._reader._options.n_step
        episode = index.episode_of(steps)
        left = index.starts[episode + 1] - steps
        over, ends = left <= n_step, index.terminal_end[episode]
        last = rows == valid.cumulative[episode + 1] - 1
        terminated, truncated = over & ends, (over | last) & ~ends
        signals = {
            "episode": tensor(episode.astype(np.int32)),
            ("next", "terminated"): tensor(terminated[:, None]),
            ("next", "truncated"): tensor(truncated[:, None]),
            ("next", "done"): tensor((terminated | truncated)[:, None]),
        }
        if n_step > 1:
            signals["steps_to_next_obs"] = tensor(np.minimum(left, n_step)[:, None])
        return signals

    # What a storage of its own rows could do.

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Refuse to write.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            "this storage shows a dataset and is read only; to record play of your own use "
            "atarirb.Recorder, or a second replay buffer beside this one"
        )

    def _empty(self) -> None:
        self.set(None, None)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` compares: what the dataset and the steps are, no data."""
        return {"dataset": self._described}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a checkpoint was made over these steps.

        Raises:
            StateError: It was made over others; the message names what differs.
        """
        check_same("rows", self._described, state_dict.get("dataset"))

    def dumps(self, path: Any) -> None:
        """Write `state_dict` to a directory."""
        path = pathlib.Path(path)
        path.mkdir(parents=True, exist_ok=True)
        (path / "storage.json").write_text(json.dumps(self.state_dict()) + "\n")

    def loads(self, path: Any) -> None:
        """Check what `dumps` wrote, as `load_state_dict` does."""
        self.load_state_dict(json.loads((pathlib.Path(path) / "storage.json").read_text()))

    def __reduce__(self) -> tuple[Any, ...]:
        return _storage, (self._reader,)

    def __repr__(self) -> str:
        return f"Storage({self._reader!r}, {len(self):,} rows)"


class _Rows:
    """Rows of a storage, of which nothing is read until an entry is asked for.

    Args:
        storage: The storage.
        rows: int64[B], or None for all of them.
    """

    def __init__(self, storage: _Storage, rows: np.ndarray | None):
        self._storage = storage
        self._rows = rows

    def __len__(self) -> int:
        return len(self._storage) if self._rows is None else len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Read one entry of the rows, by its name.

        Raises:
            KeyError: There is no such entry.
        """
        name = key[0] if isinstance(key, tuple) and len(key) == 1 else key
        if name == "index":
            return tensor(self._numbers(0, len(self)))
        first = self._read(name, 0, 1)
        whole = first.new_empty((len(self), *first.shape[1:]))
        chunk = _ROWS if name in self._storage._known else _FRAME_ROWS
        for start in range(0, len(self), chunk):
            stop = min(start + chunk, len(self))
            whole[start:stop] = self._read(name, start, stop)
        return whole

    def get(self, key: Any, default: Any = None) -> Any:
        """Read one entry of the rows; `default` if there is no such."""
        try:
            return self[key]
        except KeyError:
            return default

    def to_tensordict(self) -> Any:
        """Read the rows whole, as a TensorDict."""
        return self._storage.get(slice(None) if self._rows is None else self._rows)

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {self._storage!r}; to_tensordict() reads them>"

    def _numbers(self, start: int, stop: int) -> np.ndarray:
        """Return the `start`-th to `stop`-th of the rows, int64."""
        return np.arange(start, min(stop, len(self))) if self._rows is None else self._rows[start:stop]

    def _read(self, name: Any, start: int, stop: int) -> Any:
        storage, rows = self._storage, self._numbers(start, stop)
        if name not in storage._known:
            return storage.get(rows)[name]
        return storage._signals(rows, storage._reader._valid.at(rows))[name]


def _storage(reader: Any) -> Any:
    return __getattr__("Storage")(reader)


def __getattr__(name: str) -> Any:
    """Make the class `Storage` when it is asked for: it is a TorchRL one, which takes seconds to import."""
    if name != "Storage":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from torchrl.data.replay_buffers.storages import TensorStorage
    except ImportError as error:
        raise MissingPackageError.needed("torchrl", purpose="a replay buffer", extra="torchrl") from error
    # Of TensorStorage, for only of TorchRL's own classes replay buffers know that what `get` gives needs no
    # stacking.
    made = type(name, (_Storage, TensorStorage), {"__module__": __name__, "__doc__": _Storage.__doc__})
    return globals().setdefault(name, made)
