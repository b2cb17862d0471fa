"""A training step that takes about as long as one wants: a small Q-network's update by a batch of pairs.

What is trained does not matter to what feeds it. The network sees every third pixel of every third row, so
that most of a step's time is that of its layers, whose number sets it.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from typing import Any

#: Without these there are no training steps.
NEEDS = ("jax", "flax", "optax")
GAMMA = 0.99
_ACTIONS = 18
_WIDTH = 256
#: Layers of the network from which the time of one is found, and the most there may be.
_TRIED, _MOST = 16, 128

#: observation [B, 84, 84] or [B, 84, 84, S], action [B], reward [B], discount [B], next observation.
Transitions = tuple[Any, Any, Any, Any, Any]


def missing() -> list[str]:
    """Return which of the packages that training steps need are not installed."""
    return [name for name in NEEDS if not importlib.util.find_spec(name)]


def transitions(batch: dict[str, Any]) -> Transitions:
    """Take what a step needs out of a batch of atarirb's."""
    following = batch["next"]
    observations = batch["observation"], following["observation"]
    return observations[0], batch["action"], following["reward"], following["discount"], observations[1]


class Learner:
    """A network that is trained by calls with batches.

    Args:
        depth: Its hidden layers.
        example: Transitions of the shapes that it will be trained with.
    """

    def __init__(self, depth: int, example: Transitions):
        import jax
        import optax

        self.depth = depth
        network, optimizer = _network(depth), optax.adam(1e-4)

        def begun(key: Any, observation: Any) -> tuple[Any, Any]:
            parameters = network.init(key, observation)
            return parameters, optimizer.init(parameters)

        def loss(parameters: Any, batch: Transitions) -> Any:
            observation, action, reward, discount, following = batch
            value = jax.numpy.take_along_axis(network.apply(parameters, observation), action[:, None], 1)
            best = jax.lax.stop_gradient(network.apply(parameters, following).max(1))
            return optax.huber_loss(value[:, 0], reward + discount * best).mean()

        def update(state: Any, batch: Transitions) -> tuple[Any, Any]:
            parameters, moments = state
            value, slope = jax.value_and_grad(loss)(parameters, batch)
            change, moments = optimizer.update(slope, moments)
            return (optax.apply_updates(parameters, change), moments), value

        #: The step as a pure function of the state and a batch.
        self.update = update
        self._jitted = jax.jit(update, donate_argnums=0)
        self._state = jax.jit(begun)(jax.random.key(0), example[0])

    def __call__(self, batch: Transitions) -> Any:
        """Begin a step; returns its loss, which may not be there yet."""
        self._state, loss = self._jitted(self._state, batch)
        return loss

    def through(self, step: Any, *arguments: Any) -> Any:
        """Begin a step by another function: of the state and more, which returns the state and the loss."""
        self._state, loss = step(self._state, *arguments)
        return loss

    def wait(self) -> None:
        """Wait for all steps that were begun."""
        import jax

        jax.block_until_ready(self._state)


def calibrated(milliseconds: float, example: Transitions) -> Learner:
    """Make a learner whose step, fed from memory and waited for, takes about so long."""
    shallow, deep = Learner(0, example), Learner(_TRIED, example)
    least, more = step_ms(shallow, example), step_ms(deep, example)
    depth = round((milliseconds - least) / max((more - least) / _TRIED, 1e-3))
    return Learner(min(max(depth, 0), _MOST), example)


def step_ms(learner: Learner, batch: Transitions, rounds: int = 15) -> float:
    """Time the step of a batch in memory: the median, in milliseconds."""
    took = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        learner(batch)
        learner.wait()
        took.append(1e3 * (time.perf_counter() - start))
    return statistics.median(took[3:])


def _network(depth: int) -> Any:
    import flax.linen as nn
    import jax.numpy as jnp

    class QNetwork(nn.Module):
        """Values of all actions, float32[B, 18]."""

        @nn.compact
        def __call__(self, observation: Any) -> Any:
            seen = observation[:, ::3, ::3]
            if seen.ndim == 3:
                seen = seen[..., None]
            hidden = nn.relu(nn.Conv(16, (4, 4), strides=4, padding="VALID")(seen / jnp.float32(255)))
            hidden = nn.relu(nn.Dense(_WIDTH)(hidden.reshape(len(hidden), -1)))
            for _ in range(depth):
                hidden += nn.relu(nn.Dense(_WIDTH)(hidden))
            return nn.Dense(_ACTIONS)(hidden)

    return QNetwork()
