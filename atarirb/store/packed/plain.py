"""Decoding packed frames through zstandard's documented API: slow, obvious, and the specification.

It is what runs where no libzstd can be called directly, or no numba is there, or with
``ATARIRB_ZSTD=python``; tests compare the kernels of `atarirb.kernels.unpacking` with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import zstandard

from atarirb.store.packed import layout


class Decoder:
    """Decodes frames one by one. Each function returns the first frame that it could not decode, or -1.

    Args:
        blocks: Given numbers of frames, yields of each its shard, its number there and its block.
        size: Bytes of a frame.
        blank: [pixels], zeros of the frames' dtype.
    """

    def __init__(
        self,
        blocks: Callable[[np.ndarray], Iterable[tuple[int, int, memoryview]]],
        size: int,
        blank: np.ndarray,
    ):
        self._blocks = blocks
        self._size = size
        self._blank = blank
        self._dictionaries: dict[int, tuple[zstandard.ZstdCompressionDict | None, int]] = {}
        self._local = threading.local()

    def load(self, shard: int, content: np.ndarray) -> None:
        """Take the templates of a shard in."""
        dictionary = layout.raw_dictionary(content.tobytes()) if len(content) else None
        self._dictionaries[shard] = dictionary, layout.start_value(content)

    def decode(self, shard: int, number: int, block: memoryview) -> bytes | None:
        """Decode the block of a frame; None if it is damaged."""
        block, check = block[: -layout.CHECK_BYTES], block[-layout.CHECK_BYTES :]
        start = self._dictionaries[shard][1]
        if not block or layout.check_value(block, number, start) != int.from_bytes(check, "little"):
            return None
        if len(block) < 2 or block[0] != 0 or block[1] > layout.MOST_WINDOW:
            return None  # a size that the block names itself might be any
        try:
            data = self._decompressor(shard).decompress(
                block, max_output_size=self._size, allow_extra_data=False
            )
        except zstandard.ZstdError:
            return None
        return data if len(data) == self._size else None

    def _decompressor(self, shard: int) -> zstandard.ZstdDecompressor:
        """Return this thread's decompressor for a shard: they are not to be shared."""
        held: dict[int, zstandard.ZstdDecompressor] = self._local.__dict__
        if shard not in held:
            held[shard] = zstandard.ZstdDecompressor(
                dict_data=self._dictionaries[shard][0], format=zstandard.FORMAT_ZSTD1_MAGICLESS
            )
        return held[shard]

    def frames(self, ticket: np.ndarray, index: np.ndarray, out: np.ndarray) -> int:
        """Decode frame ``index[i]`` into ``out[i]``, uint8[B, frame bytes]; zeros for -1."""
        failed = -1
        for rows in _rows(ticket, len(index)):
            failed = _first(failed, self._put(index[rows], out[rows]))
        return failed

    def pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> int:
        """Decode two frames per row, as `frames` does."""
        failed = -1
        for rows in _rows(ticket, len(index)):
            failed = _first(failed, self._put(index[rows], out[rows]))
            failed = _first(failed, self._put(next_index[rows], next_out[rows]))
        return failed

    def stacks(
        self, ticket: np.ndarray, index: np.ndarray, newest: np.ndarray, first: np.ndarray, out: np.ndarray
    ) -> int:
        """Decode stacks, as `atarirb.kernels.reference.stacks` gathers them; out is [B, pixels, S]."""
        failed = -1
        for rows in _rows(ticket, len(index)):
            failed = _first(failed, self._stack((index[rows], newest[rows], first[rows], out[rows])))
        return failed

    def stack_pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        next_newest: np.ndarray,
        first: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> int:
        """Decode two stacks per row, as `stacks` does; the newest frame of the first is its step's."""
        failed = -1
        for rows in _rows(ticket, len(index)):
            now = index[rows], index[rows], first[rows], out[rows]
            then = next_index[rows], next_newest[rows], first[rows], next_out[rows]
            failed = _first(failed, self._stack(now, then))
        return failed

    def _put(self, frames: np.ndarray, out: np.ndarray) -> int:
        """Decode frames into rows."""
        out[frames < 0] = 0
        there = np.flatnonzero(frames >= 0)
        failed = -1
        for row, found in zip(there, self._blocks(frames[there]), strict=True):
            data = self.decode(*found)
            if data is None:
                failed = _first(failed, int(frames[row]))
            else:
                out[row] = np.frombuffer(data, np.uint8)
        return failed

    def _stack(self, *stacks: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]) -> int:
        """Decode stacks, each frame of them once.

        Args:
            *stacks: index, newest, first and out, as for `stacks`.
        """
        seen = []
        for index, newest, first, out in stacks:
            depth = out.shape[2]
            frames = index[:, None] - np.arange(depth - 1, -1, -1)
            frames = np.where(frames < first[:, None], -1, frames)
            frames[:, -1] = newest
            seen.append(np.where(newest[:, None] < 0, -1, frames))
        wanted = np.unique(seen)
        decoded = np.empty((len(wanted), self._size), np.uint8)
        failed = self._put(wanted, decoded)
        pixels = decoded.view(self._blank.dtype)
        for frames, (*_, out) in zip(seen, stacks, strict=True):
            for back in range(frames.shape[1]):
                out[:, :, back] = pixels[np.searchsorted(wanted, frames[:, back])]
        return failed


# Rows done at a time: neighbours share frames, which are decoded once for all of these.
_TAKEN = 256


def _first(failed: int, other: int) -> int:
    return other if failed < 0 else failed


def _rows(ticket: np.ndarray, count: int) -> Iterator[slice]:
    """Yield the rows that this caller is to do: all that are left, some after the other.

    No other thread gets any: two would wait for the interpreter more than they would gain.
    """
    first = int(ticket[0])
    ticket[0] = max(count, first)
    for row in range(first, count, _TAKEN):
        yield slice(row, min(row + _TAKEN, count))
