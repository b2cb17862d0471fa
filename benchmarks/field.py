"""What is timed in `benchmarks.sampling`: our batches, and plain NumPy that moves as many bytes.

Every method makes a contestant for `benchmarks.measure.race`, whose calls each have steps of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import atarirb
from benchmarks.measure import Contestant

#: Steps of a batch.
B = 256
#: Slices of a batch, and their length.
SLICES, LENGTH = 16, 64


class Field:
    """What the contestants share: readers whose pages are all mapped, and the same frames as one array."""

    def __init__(self, path: Path):
        self.path = path
        self.reader = atarirb.open(path)
        self.stacked = atarirb.open(path, frame_stack=4)
        n = self.n = len(self.reader)
        self.frames = np.empty((n, *self.reader.get(0)["observation"].shape), np.uint8)
        self.action = np.empty(n, np.int32)
        self.reward = np.empty(n, np.float32)
        self.terminal = np.empty(n, np.uint8)
        for low in range(0, n, B):
            part = slice(low, low + B)
            batch = self.reader.get(part)
            self.frames[part] = batch["observation"]
            self.action[part] = batch["action"]
            self.reward[part] = batch["next"]["reward"]
            self.terminal[part] = batch["next"]["terminated"]
            self.stacked.get(part)

    def steps(self, seed: int) -> np.ndarray:
        """Draw int64[B] steps that have one before and one after them."""
        return np.random.default_rng(seed).integers(3, self.n - 1, B)

    def take(self, mode: str) -> Contestant:
        """Make the floor of pairs."""
        outs = [np.empty((B, *self.frames.shape[1:]), np.uint8) for _ in range(2)]

        def contestant(seed: int) -> Any:
            index = self.steps(seed)
            pair = (index, index + 1)
            return lambda: [
                np.take(self.frames, at, axis=0, out=out, mode=mode)
                for at, out in zip(pair, outs, strict=True)
            ]

        return contestant

    def take_runs(self, mode: str) -> Contestant:
        """Make the floor of slices."""
        out = np.empty((SLICES * (LENGTH + 1), *self.frames.shape[1:]), np.uint8)

        def contestant(seed: int) -> Any:
            starts = np.random.default_rng(seed).integers(0, self.n - LENGTH, SLICES)
            index = (starts[:, None] + np.arange(LENGTH + 1)).reshape(-1)
            return lambda: np.take(self.frames, index, axis=0, out=out, mode=mode)

        return contestant

    def get(self, reader: atarirb.Reader) -> Contestant:
        """Make our own batch by index."""

        def contestant(seed: int) -> Any:
            index = self.steps(seed)
            return lambda: reader.get(index)

        return contestant

    def sample(self, seed: int) -> Any:
        """Make our own batch by key."""
        return lambda: self.reader.sample(seed, B)
