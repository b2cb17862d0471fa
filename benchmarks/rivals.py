"""What people use today, behind one small face, for the benchmarks to compare with.

`TorchRLReplay` is TorchRL's `AtariDQNExperienceReplay`. That downloads from a bucket that no longer answers,
so its own preprocessing is called on a local log instead; nothing of it is patched. Its transition is two
single frames, without a frame stack. It takes file order for time order: padding, stale rows and the seam
are sampled like any other.

`FlashbaxReplay` is flashbax's flat buffer, JAX arrays of all steps in memory. It pairs each step with the
one after it, whether of the same episode or not: after an episode's end the discount is 0.

`DopamineGather` gathers as Dopamine's replay buffer does, item by item in Python, written anew from its
description.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def _torchrl_dataset() -> Any:
    try:
        with warnings.catch_warnings():
            # Its modules warn of each other's deprecated parts while they are imported.
            warnings.simplefilter("ignore")
            from torchrl.data.datasets import AtariDQNExperienceReplay
    except ImportError as error:
        raise ImportError(
            f"the TorchRL rival needs torchrl: pip install 'atarirb[bench]' ({error})"
        ) from error
    return AtariDQNExperienceReplay


class TorchRLReplay:
    """Preprocess all splits of a log with TorchRL and sample from them.

    Its time for a batch grows with the number of splits, for it loops over those that the batch touches; a
    real run has 51.

    Settings: one process (`num_procs=0`, its default: one split after the other), and its default uniform
    sampler with replacement, which is the cheapest. No `prefetch`, its default: batches drawn back to back
    come slower with it (it hides the time of a batch behind the caller's own work, it does not shorten it).
    The number of torch threads is left to the caller: the default, one a core, is a little faster than a
    single one, but many times slower where other processes keep the cores busy.
    """

    def __init__(self, log_dir: str | Path, scratch_dir: str | Path):
        """Name the log and where TorchRL's files go.

        Args:
            log_dir: The run's folder, `<Game>/<run>`, with `replay_logs` in it.
            scratch_dir: TorchRL's root; its files go to `<scratch_dir>/<Game>/<run>`.

        Raises:
            ImportError: If torchrl is missing.
            FileNotFoundError: If the log's splits are not 0, 1, 2, ...: TorchRL's storage takes a split's
                number for its position.
        """
        self._dataset = _torchrl_dataset()
        log_dir = Path(log_dir)
        self._id = f"{log_dir.parent.name}/{log_dir.name}"
        self._root = Path(scratch_dir)
        self._files = self._dataset._list_runs(log_dir / "replay_logs")
        found = list(self._files)
        if not found or found != list(range(len(found))):
            raise FileNotFoundError(
                f"expected the splits 0, 1, 2, ... in {log_dir / 'replay_logs'}, found {found}"
            )
        self._replay: Any = None

    @property
    def n_splits(self) -> int:
        """How many splits the log has."""
        return len(self._files)

    def is_preprocessed(self) -> bool:
        """Tell whether `preprocess` has been run to its end, in this process or an earlier one."""
        return (self._root / self._id / "processed.json").exists()

    def preprocess(self) -> None:
        """Turn the gzip files into TorchRL's memory maps: the work of its first use, without the download."""
        path = self._root / self._id
        for split in self._files:
            self._dataset._preproc_run(path / str(split), self._files, split)
        (path / "processed.json").write_text(json.dumps({"processed": None}))
        self._replay = None

    def open(self) -> None:
        """Open what `preprocess` has written, in this process or an earlier one."""
        self._replay = self._opened()

    def _opened(self, **options: Any) -> Any:
        with warnings.catch_warnings():
            # It warns that its download is gone, which is not used here.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self._dataset(self._id, root=self._root, download=False, **options)

    def sample(self, n: int) -> Any:
        """Draw n transitions uniformly with replacement.

        Args:
            n: Transitions in the batch.

        Returns:
            A TensorDict of batch size n: observation uint8[n, 84, 84], action int32[n], ("next",
            "observation"), ("next", "reward"), ("next", "terminated") and the like. Its rows are not in
            the order drawn but grouped by split.
        """
        if self._replay is None:
            self.open()
        return self._replay.sample(n)

    def slices(self, n: int, length: int) -> Callable[[], Any]:
        """Make what draws n slices of `length` steps, by its own slice sampler.

        Returns:
            A function that returns a TensorDict of batch size n * length.
        """
        return self._opened(batch_size=n * length, num_slices=n).sample

    def pairs(self, n: int, *, prefetch: int, gamma: float) -> Callable[[], tuple[Any, ...]]:
        """Make what draws n transitions as JAX arrays, over the same memory where JAX takes it.

        Args:
            n: Transitions in the batch.
            prefetch: Batches made ahead, as its own option; 0: none.
            gamma: Discount.

        Returns:
            A function that returns observation, action, reward, discount and next observation.
        """
        import jax

        replay = self._opened(batch_size=n, prefetch=prefetch or None)

        def take() -> tuple[Any, ...]:
            drawn = replay.sample()
            following = drawn["next"]
            discount = np.float32(gamma) * ~following["terminated"].numpy().reshape(-1)
            arrays = (
                drawn["observation"].numpy(),
                drawn["action"].numpy().reshape(-1),
                following["reward"].numpy().reshape(-1),
                discount,
                following["observation"].numpy(),
            )
            return tuple(jax.device_put(arrays))

        return take


class FlashbaxReplay:
    """All steps of a dataset in a flat buffer of flashbax, filled once.

    Args:
        reader: Where from: of NumPy arrays, and of single frames.
        n: Transitions in a batch.
        gamma: Discount.

    Attributes:
        state: The buffer's state, with all steps.

    Raises:
        ImportError: If flashbax is missing.
    """

    def __init__(self, reader: Any, n: int, *, gamma: float):
        try:
            import flashbax
        except ImportError as error:
            raise ImportError(
                f"the flashbax rival needs flashbax: pip install 'atarirb[bench]' ({error})"
            ) from error
        import jax

        self._gamma = np.float32(gamma)
        self._buffer = flashbax.make_flat_buffer(
            max_length=len(reader), min_length=n, sample_batch_size=n, add_sequences=True
        )
        self.state = self._buffer.init(jax.tree.map(lambda leaf: leaf[0], self._steps(reader, slice(0, 1))))
        add = jax.jit(self._buffer.add, donate_argnums=0)
        for first in range(0, len(reader), 1 << 11):
            self.state = add(self.state, self._steps(reader, slice(first, first + (1 << 11))))

    def pairs(self, state: Any, key: Any) -> tuple[Any, ...]:
        """Draw transitions, as a pure function of the buffer's state and a JAX key.

        Returns:
            Observation, action, reward, discount and next observation.
        """
        pair = self._buffer.sample(state, key).experience
        discount = self._gamma * ~pair.first["over"]
        drawn = pair.first
        return drawn["observation"], drawn["action"], drawn["reward"], discount, pair.second["observation"]

    @staticmethod
    def _steps(reader: Any, rows: slice) -> dict[str, Any]:
        import jax

        batch = reader.get(rows)
        following = batch["next"]
        return jax.device_put(
            {
                "observation": batch["observation"],
                "action": batch["action"],
                "reward": following["reward"],
                "over": following["done"],
            }
        )


class DopamineGather:
    """Gather batches from a ring buffer's columns, one item after the other.

    The columns are in slot order with their padding rows, as in a log's file: the frame stack of an episode's
    first steps reaches into the padding.
    """

    def __init__(
        self,
        observation: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminal: np.ndarray,
        *,
        stack: int = 4,
        n_step: int = 1,
        gamma: float = 0.99,
    ):
        """Take the columns, without copying them.

        Args:
            observation: uint8[C, 84, 84].
            action: int32[C].
            reward: float32[C].
            terminal: uint8[C].
            stack: Frames in a state.
            n_step: Most rewards in a return.
            gamma: Discount.
        """
        self._observation = observation
        self._action = action
        self._reward = reward
        self._terminal = terminal
        self._capacity = len(action)
        self._stack = stack
        self._n_step = n_step
        self._discounts = np.array([gamma**j for j in range(n_step)], np.float32)

    def get(self, indices: Sequence[int]) -> dict[str, np.ndarray]:
        """Gather the transitions that start at the given slots.

        Args:
            indices: B slots that are valid heads.

        Returns:
            state and next_state uint8[B, 84, 84, stack], newest frame last; action and next_action
            int32[B]; reward (the n-step return) and next_reward float32[B]; terminal uint8[B]; indices
            int32[B]. Where terminal is 1, next_state, next_action and next_reward are those of whatever
            row follows.
        """
        size = len(indices)
        shape = (size, *self._observation.shape[1:], self._stack)
        batch = {
            "state": np.empty(shape, self._observation.dtype),
            "action": np.empty(size, self._action.dtype),
            "reward": np.empty(size, self._reward.dtype),
            "next_state": np.empty(shape, self._observation.dtype),
            "next_action": np.empty(size, self._action.dtype),
            "next_reward": np.empty(size, self._reward.dtype),
            "terminal": np.empty(size, self._terminal.dtype),
            "indices": np.empty(size, np.int32),
        }
        for i, index in enumerate(indices):
            steps = [(index + j) % self._capacity for j in range(self._n_step)]
            terminals = self._terminal[steps]
            ended = terminals.any()
            length = int(np.argmax(terminals.astype(bool))) + 1 if ended else self._n_step
            after = (index + length) % self._capacity
            batch["state"][i] = self._state(index)
            batch["action"][i] = self._action[index]
            batch["reward"][i] = np.sum(
                self._discounts[:length] * self._range(self._reward, index, length), axis=0
            )
            batch["next_state"][i] = self._state(after)
            batch["next_action"][i] = self._action[after]
            batch["next_reward"][i] = self._reward[after]
            batch["terminal"][i] = ended
            batch["indices"][i] = index
        return batch

    def _range(self, column: np.ndarray, start: int, length: int) -> np.ndarray:
        start %= self._capacity
        if start + length <= self._capacity:
            return column[start : start + length]
        return column[[(start + j) % self._capacity for j in range(length)]]

    def _state(self, index: int) -> np.ndarray:
        return np.moveaxis(self._range(self._observation, index - self._stack + 1, self._stack), 0, -1)
