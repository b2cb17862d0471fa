"""The frames of all shards of a packed dataset: mapped, and decoded as they are asked for."""

from __future__ import annotations

import math
import os
import pathlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from atarirb import kernels, threads
from atarirb.errors import DatasetError
from atarirb.store.mapping import let_go, map_file
from atarirb.store.npy import map_npy, open_file
from atarirb.store.packed import layout, libzstd, plain
from atarirb.store.raw import as_bytes, as_pixels, firsts, join_firsts


class _Decoded:
    """Frames that are decoded as they are asked for; of which shards, is for a subclass to say.

    A shard's templates are read when a frame of it is first asked for.

    Attributes:
        shape, dtype: Of a frame.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    _firsts: np.ndarray  # int64[V + 1], number of the first frame of each run of frames of one shard
    _shards: np.ndarray  # int64[V], the run's shard
    _locals: np.ndarray  # int64[V], number in the shard of the run's first frame
    _loaded: np.ndarray  # bool[S], the shards whose templates the decoder has
    _missing: int  # how many those are not
    _decoder: _Compiled | _Plain

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

    def load(self, *frames: np.ndarray) -> None:
        """Read the templates of the shards that these frames are in, where that is not done yet."""
        if not self._missing:
            return
        asked = np.concatenate(frames)
        runs = np.unique(np.searchsorted(self._firsts, asked[asked >= 0], side="right") - 1)
        for shard in np.unique(self._shards[runs]).tolist():
            self.load_shard(shard)
        self._missing = int(np.count_nonzero(~self._loaded))

    def load_shard(self, shard: int) -> None:
        """Read a shard's templates, where that is not done yet."""
        if not self._loaded[shard]:
            self._load_shard(shard)
            self._loaded[shard] = True

    def locate(self, frame: int) -> tuple[int, int]:
        """Return the shard that a frame is in, and its number there."""
        run = int(np.searchsorted(self._firsts, frame, side="right")) - 1
        return int(self._shards[run]), int(self._locals[run] + frame - self._firsts[run])

    def _load_shard(self, shard: int) -> None:
        """Have the decoder take a shard's templates in."""
        raise NotImplementedError

    def _damage(self, shard: int, number: int) -> DatasetError:
        """Make the error for a frame that could not be decoded."""
        raise NotImplementedError

    def _check(self, failed: int) -> None:
        """Raise the error for a frame that could not be decoded; -1 for none."""
        if failed >= 0:
            raise self._damage(*self.locate(failed))


class Frames(_Decoded):
    """The frames of all shards of a dataset. The face is that of `atarirb.store.raw.Frames`.

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
        directories: Sequence[str | os.PathLike[str]],
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
            map_npy(f"{directory}/{layout.INDEX}", (layout.records(count + more),), record)
            for directory, count, more in zip(directories, steps, finals, strict=True)
        ]
        self._packs = [
            _map_pack(f"{directory}/{layout.PACK}", index)
            for directory, index in zip(directories, self._indexes, strict=True)
        ]
        self._templates: dict[int, np.ndarray] = {}
        self._loaded = np.zeros(len(steps), np.bool_)
        self._missing = len(steps)
        blank = np.zeros(math.prod(shape), self.dtype)  # what stands where there is no frame
        # The kernels read little-endian numbers, and move values of these sizes.
        able = kernels.compiles() and np.little_endian and self.dtype.itemsize in (1, 2, 4, 8)
        library = libzstd.library()
        if not able or not library:
            self._decoder = _Plain(self, blank)
            return
        self._decoder = _Compiled(
            library,
            blank,
            record["length"].base.itemsize,
            firsts=self._firsts,
            shards=self._shards,
            locals=self._locals,
            packs=kernels.addresses(self._packs),
            pack_bytes=np.array([len(pack) for pack in self._packs], np.int64),
            indexes=kernels.addresses(self._indexes),
            starts=np.zeros(len(steps), np.uint32),
            dictionaries=np.zeros(len(steps), np.uintp),
        )

    @classmethod
    def joined(cls, parts: Sequence[Frames]) -> _Joined | None:
        """Read several datasets' frames as those of one; see `atarirb.store.raw.Frames`.

        Args:
            parts: One or more, all of one shape and dtype.

        Returns:
            Their frames, which share maps and templates with the parts; None where frames are not decoded
            by the kernels.
        """
        compiled = all(isinstance(part._decoder, _Compiled) for part in parts)
        return _Joined(parts) if compiled else None

    def let_go(self) -> None:
        """Drop what was read of the blocks from this process's memory; the system may still have it."""
        for pack in self._packs:
            let_go(pack)

    def _load_shard(self, shard: int) -> None:
        place = pathlib.Path(self._directories[shard], layout.DICTIONARY)
        content = layout.read_dictionary(place, self._size)
        # No lock, which a child forked meanwhile would find held for ever: whichever thread
        # comes first has its templates used by all.
        self._decoder.load(shard, self._templates.setdefault(shard, content))

    def _damage(self, shard: int, number: int) -> DatasetError:
        steps = self._steps[shard]
        what = f"step {number:,}" if number < steps else f"final frame {number - steps:,}"
        return DatasetError(
            f"{self._directories[shard]}/{layout.PACK}: the block of the shard's {what} is damaged; "
            f"'atarirb verify --deep' tells what else is; a shard made anew from its source would mend it"
        )

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


class _Joined(_Decoded):
    """The frames of several datasets as those of one, by the tables of all; see `Frames.joined`."""

    def __init__(self, parts: Sequence[Frames]):
        self.shape, self.dtype = parts[0].shape, parts[0].dtype
        self._parts = tuple(parts)
        decoders = [part._decoder for part in parts]
        tables = [decoder.tables for decoder in decoders]
        counts = [len(table.packs) for table in tables]
        self._parts_firsts = np.concatenate([[0], np.cumsum(counts)])  # each part's first shard
        self._firsts, order = join_firsts(
            [(table.firsts, count) for table, count in zip(tables, counts, strict=True)]
        )
        shifted = [table.shards + first for table, first in zip(tables, self._parts_firsts, strict=False)]
        self._shards = np.concatenate(shifted)[order]
        self._locals = np.concatenate([table.locals for table in tables])[order]
        self._loaded = np.zeros(sum(counts), np.bool_)
        self._missing = sum(counts)
        self._decoder = _Compiled(
            decoders[0].library,
            decoders[0].blank,
            decoders[0].width,
            firsts=self._firsts,
            shards=self._shards,
            locals=self._locals,
            packs=np.concatenate([table.packs for table in tables]),
            pack_bytes=np.concatenate([table.pack_bytes for table in tables]),
            indexes=np.concatenate([table.indexes for table in tables]),
            starts=np.zeros(sum(counts), np.uint32),
            dictionaries=np.zeros(sum(counts), np.uintp),
        )

    def _load_shard(self, shard: int) -> None:
        part, number = self._part(shard)
        part.load_shard(number)
        ours, theirs = self._decoder.tables, part._decoder.tables
        ours.starts[shard] = theirs.starts[number]
        ours.dictionaries[shard] = theirs.dictionaries[number]

    def _damage(self, shard: int, number: int) -> DatasetError:
        part, shard = self._part(shard)
        return part._damage(shard, number)

    def _part(self, shard: int) -> tuple[Frames, int]:
        """Return the part that a shard is of, and its number there."""
        part = int(np.searchsorted(self._parts_firsts, shard, side="right")) - 1
        return self._parts[part], shard - int(self._parts_firsts[part])


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

    def __init__(self, library: libzstd.Library, blank: np.ndarray, width: int, **tables: np.ndarray):
        from atarirb.kernels import unpacking

        self._kernels = unpacking
        self.tables = unpacking.Tables(**tables)
        self.library = library
        self.blank = blank
        self.width = width  # bytes of a length in the index
        self._size = blank.nbytes
        self._held: dict[int, libzstd.Held] = {}
        self._local = threading.local()

    def load(self, shard: int, content: np.ndarray) -> None:
        """Take the templates of a shard in, which the caller keeps alive."""
        dictionary = self._held.setdefault(shard, self.library.dictionary(content))
        self.tables.starts[shard] = layout.start_value(content)
        self.tables.dictionaries[shard] = dictionary.address

    def frames(self, ticket, index, out):
        return self._kernels.frames(ticket, self.tables, self._codec(), index, out)

    def pairs(self, ticket, index, next_index, out, next_out):
        return self._kernels.pairs(ticket, self.tables, self._codec(), index, next_index, out, next_out)

    def stacks(self, ticket, index, newest, first, out):
        return self._kernels.stacks(
            ticket, self.tables, self._codec(), index, newest, first, *self._scratch(out), self.blank, out
        )

    def stack_pairs(self, ticket, index, next_index, next_newest, first, out, next_out):
        return self._kernels.stack_pairs(
            ticket, self.tables, self._codec(), index, next_index, next_newest, first,
            *self._scratch(out), self.blank, out, next_out,
        )  # fmt: skip

    def _codec(self) -> tuple[int, int, int, int]:
        return self.library.decompress, self.library.context(), self._size, self.width

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


def _map_pack(path: str, index: np.ndarray) -> np.ndarray:
    """Map the blocks of a shard, uint8[bytes], checking that there are as many as the index says."""
    expected = int(index[-1]["offset"]) + int(index[-1]["length"].sum(dtype=np.int64)) if len(index) else 0
    descriptor = open_file(path)
    try:
        found = os.lseek(descriptor, 0, os.SEEK_END)
        if found != expected:
            raise DatasetError(f"{path}: {found:,} bytes, expected {expected:,}; it is damaged")
        return map_file(path, descriptor, found, random=True) if found else np.zeros(0, np.uint8)
    finally:
        os.close(descriptor)


def _before(index: np.ndarray, newest: np.ndarray, first: np.ndarray, depth: int) -> list[np.ndarray]:
    """Say which frames stacks of so many show before their newest one, in any order."""
    index, first = index[newest >= 0], first[newest >= 0]
    # A stack reaches over as many shards as it likes, if they are small.
    return [np.unique(np.maximum(first, index - back)) for back in range(1, depth)]
