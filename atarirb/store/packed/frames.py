"""The frames of all shards of a packed dataset: mapped, and decoded as they are asked for."""

from __future__ import annotations

import math
import mmap
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from atarirb import kernels, threads
from atarirb.errors import DatasetError
from atarirb.store.npy import map_npy
from atarirb.store.packed import layout, libzstd, plain
from atarirb.store.raw import as_bytes, as_pixels, firsts


class Frames:
    """The frames of all shards of a dataset. The face is that of `atarirb.store.raw.Frames`.

    A shard's templates are read when a frame of it is first asked for.

    Args:
        directories: The shards, in step order.
        steps: Steps of each.
        finals: Final frames of each, behind those of its steps.
        shape: Shape of a frame.
        dtype: Of its values.

    Attributes:
        shape, dtype: The same.

    Raises:
        DatasetError: A file is missing, or of another size or kind than it must be.
    """

    def __init__(
        self,
        directories: Sequence[pathlib.Path],
        steps: Sequence[int],
        finals: Sequence[int],
        shape: tuple[int, ...],
        dtype: np.dtype,
    ):
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._directories = list(directories)
        self._steps = list(steps)
        self._firsts = firsts(steps, finals)
        shards = np.arange(len(steps))
        runs = 2 if any(finals) else 1  # the final frames of each shard are a run of their own
        self._shards = np.tile(shards, runs)
        self._locals = np.concatenate([np.zeros(len(steps), np.int64), np.array(steps, np.int64)])
        self._locals = self._locals[: len(self._shards)]
        self._size = layout.frame_bytes(shape, self.dtype)
        record = layout.record_dtype(self._size)
        self._indexes = [
            map_npy(directory / layout.INDEX, (layout.records(count + more),), record)
            for directory, count, more in zip(directories, steps, finals, strict=True)
        ]
        self._packs = [
            _map_pack(directory / layout.PACK, index)
            for directory, index in zip(directories, self._indexes, strict=True)
        ]
        self._templates: dict[int, np.ndarray] = {}
        self._loaded: set[int] = set()  # the shards whose templates the decoder has
        self._missing = len(steps)
        blank = np.zeros(math.prod(shape), self.dtype)  # what stands where there is no frame
        # The kernels read little-endian numbers, and move values of these sizes.
        able = kernels.compiles() and np.little_endian and self.dtype.itemsize in (1, 2, 4, 8)
        library = libzstd.library()
        self._decoder = _Compiled(self, library, blank) if able and library else _Plain(self, blank)

    def frames(self, ticket: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        """Gather frames; see `atarirb.store.raw.Frames`.

        Raises:
            DatasetError: A block is damaged.
        """
        self.load(index)
        self._check(self._decoder.frames(ticket, index, as_bytes(out)))

    def pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> None:
        """Gather two frames per row, as `frames` does."""
        self.load(index, next_index)
        self._check(self._decoder.pairs(ticket, index, next_index, as_bytes(out), as_bytes(next_out)))

    def stacks(
        self, ticket: np.ndarray, index: np.ndarray, newest: np.ndarray, first: np.ndarray, out: np.ndarray
    ) -> None:
        """Gather stacks; see `atarirb.store.raw.Frames`."""
        if self._missing:
            self.load(newest, *_before(index, newest, first, out.shape[-1]))
        self._check(self._decoder.stacks(ticket, index, newest, first, as_pixels(out)))

    def stack_pairs(
        self,
        ticket: np.ndarray,
        index: np.ndarray,
        next_index: np.ndarray,
        next_newest: np.ndarray,
        first: np.ndarray,
        out: np.ndarray,
        next_out: np.ndarray,
    ) -> None:
        """Gather two stacks per row, as `stacks` does."""
        if self._missing:
            depth = out.shape[-1]
            self.load(index, *_before(index, index, first, depth))
            self.load(next_newest, *_before(next_index, next_newest, first, depth))
        self._check(
            self._decoder.stack_pairs(
                ticket, index, next_index, next_newest, first, as_pixels(out), as_pixels(next_out)
            )
        )

    def let_go(self) -> None:
        """Drop what was read of the blocks from this process's memory; the system may still have it."""
        for pack in self._packs:
            mapped = pack.base.obj if isinstance(pack.base, memoryview) else None
            if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)

    def load(self, *frames: np.ndarray) -> None:
        """Read the templates of the shards that these frames are in, where that is not done yet."""
        if not self._missing:
            return
        asked = np.concatenate(frames)
        runs = np.unique(np.searchsorted(self._firsts, asked[asked >= 0], side="right") - 1)
        for shard in np.unique(self._shards[runs]).tolist():
            if shard not in self._loaded:
                content = layout.read_dictionary(self._directories[shard] / layout.DICTIONARY, self._size)
                # No lock, which a child forked meanwhile would find held for ever: whichever thread
                # comes first has its templates used by all.
                self._decoder.load(shard, self._templates.setdefault(shard, content))
                self._loaded.add(shard)
        self._missing = len(self._directories) - len(self._loaded)

    def _check(self, failed: int) -> None:
        """Raise the error for a frame that could not be decoded; -1 for none."""
        if failed < 0:
            return
        shard, number = self.locate(failed)
        steps = self._steps[shard]
        what = f"step {number:,}" if number < steps else f"final frame {number - steps:,}"
        raise DatasetError(
            f"{self._directories[shard] / layout.PACK}: the block of the shard's {what} is damaged; "
            f"'atarirb verify --deep' tells what else is; a shard made anew from its source would mend it"
        )

    def locate(self, frame: int) -> tuple[int, int]:
        """Return the shard that a frame is in, and its number there."""
        run = int(np.searchsorted(self._firsts, frame, side="right")) - 1
        return int(self._shards[run]), int(self._locals[run] + frame - self._firsts[run])

    def blocks(self, frames: np.ndarray) -> Iterator[tuple[int, int, memoryview]]:
        """Yield of each frame, int64[B], none of them -1, its shard, its number there and its block.

        A block that the index leads to where there is none is given as an empty one.
        """
        run = np.searchsorted(self._firsts, frames, side="right") - 1
        shards, numbers = self._shards[run], self._locals[run] + frames - self._firsts[run]
        begins, ends = np.zeros(len(frames), np.uint64), np.zeros(len(frames), np.uint64)
        for shard in np.unique(shards):
            here = shards == shard
            group, place = np.divmod(numbers[here], layout.GROUP)
            records = self._indexes[shard][group]
            after = np.cumsum(records["length"], axis=1, dtype=np.uint64)[np.arange(len(group)), place]
            ends[here] = records["offset"] + after
            begins[here] = ends[here] - records["length"][np.arange(len(group)), place]
        views = [memoryview(pack) for pack in self._packs]
        for shard, number, begin, end in zip(
            shards.tolist(), numbers.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            view = views[shard]
            yield shard, number, view[begin:end] if end <= len(view) else view[:0]


class InOrder:
    """The frames of one shard, decoded by slices. The face is that of `atarirb.store.raw.InOrder`.

    Each slice raises the DatasetError of the first frame in it that it could not decode.
    """

    def __init__(
        self, directory: pathlib.Path, steps: int, finals: int, shape: tuple[int, ...], dtype: np.dtype
    ):
        self._frames = Frames([directory], [steps], [finals], shape, dtype)
        self._count = steps + finals
        self._frames.load(np.arange(min(self._count, 1)))  # or the error would come again with each slice

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rows: slice) -> np.ndarray:
        index = np.arange(*rows.indices(self._count))
        out = np.empty((len(index), *self._frames.shape), self._frames.dtype)
        threads.spread(lambda ticket: self._frames.frames(ticket, index, out), out.nbytes)
        self._frames.let_go()
        return out


class _Compiled:
    """Decodes by the kernels, in whatever thread calls."""

    def __init__(self, frames: Frames, library: libzstd.Library, blank: np.ndarray):
        from atarirb.kernels import unpacking

        self._kernels = unpacking
        self._library = library
        self._blank = blank
        self._size = frames._size
        self._width = frames._indexes[0].dtype["length"].base.itemsize if frames._indexes else 2
        self._tables = unpacking.Tables(
            firsts=frames._firsts,
            shards=frames._shards,
            locals=frames._locals,
            packs=kernels.addresses(frames._packs),
            pack_bytes=np.array([len(pack) for pack in frames._packs], np.int64),
            indexes=kernels.addresses(frames._indexes),
            starts=np.zeros(len(frames._packs), np.uint32),
            dictionaries=np.zeros(len(frames._packs), np.uintp),
        )
        self._held: dict[int, libzstd.Held] = {}
        self._local = threading.local()

    def load(self, shard: int, content: np.ndarray) -> None:
        """Take the templates of a shard in, which the caller keeps alive."""
        dictionary = self._held.setdefault(shard, self._library.dictionary(content))
        self._tables.starts[shard] = layout.start_value(content)
        self._tables.dictionaries[shard] = dictionary.address

    def frames(self, ticket, index, out):
        return self._kernels.frames(ticket, self._tables, self._codec(), index, out)

    def pairs(self, ticket, index, next_index, out, next_out):
        return self._kernels.pairs(ticket, self._tables, self._codec(), index, next_index, out, next_out)

    def stacks(self, ticket, index, newest, first, out):
        return self._kernels.stacks(
            ticket, self._tables, self._codec(), index, newest, first, *self._scratch(out), self._blank, out
        )

    def stack_pairs(self, ticket, index, next_index, next_newest, first, out, next_out):
        return self._kernels.stack_pairs(
            ticket, self._tables, self._codec(), index, next_index, next_newest, first,
            *self._scratch(out), self._blank, out, next_out,
        )  # fmt: skip

    def _codec(self) -> tuple[int, int, int, int]:
        return self._library.decompress, self._library.context(), self._size, self._width

    def _scratch(self, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return this thread's frames decoded before, and which they are."""
        depth = out.shape[-1]
        slots = (2 * depth if depth <= 16 else depth + 1) + 1
        held = getattr(self._local, "scratch", None)
        if held is None or len(held[0]) != slots:
            held = np.full(slots, -1, np.int64), np.empty((slots, self._size), np.uint8)
            self._local.scratch = held
        return held


class _Plain:
    """Decodes through zstandard's documented API."""

    def __init__(self, frames: Frames, blank: np.ndarray):
        self._decoder = plain.Decoder(frames.blocks, frames._size, blank)
        self.load = self._decoder.load
        self.frames = self._decoder.frames
        self.pairs = self._decoder.pairs
        self.stacks = self._decoder.stacks
        self.stack_pairs = self._decoder.stack_pairs


def _map_pack(path: pathlib.Path, index: np.ndarray) -> np.ndarray:
    """Map the blocks of a shard, uint8[bytes], checking that there are as many as the index says."""
    expected = int(index[-1]["offset"]) + int(index[-1]["length"].sum(dtype=np.int64)) if len(index) else 0
    try:
        with open(path, "rb", buffering=0) as file:
            found = os.fstat(file.fileno()).st_size
            if found != expected:
                raise DatasetError(f"{path}: {found:,} bytes, expected {expected:,}; it is damaged")
            if not found:
                return np.zeros(0, np.uint8)
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing, though the manifest lists it") from None
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, np.uint8)


def _before(index: np.ndarray, newest: np.ndarray, first: np.ndarray, depth: int) -> list[np.ndarray]:
    """Say which frames stacks of so many show before their newest one, in any order."""
    index, first = index[newest >= 0], first[newest >= 0]
    # A stack reaches over as many shards as it likes, if they are small.
    return [np.unique(np.maximum(first, index - back)) for back in range(1, depth)]
