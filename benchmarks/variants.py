"""The packed codec as it is and as it might be: the real code with other parameters, and what they give."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import zstandard

from atarirb.kernels.jit import kernel
from atarirb.kernels.unpacking import _call, crc32
from atarirb.store import packed
from atarirb.store.packed import layout, libzstd, templates, writing
from benchmarks.measure import Contestant

#: Frames decoded in one call.
CALL = 1024

#: zstd's strategies that are tried, by their names there.
STRATEGIES = {
    "greedy": int(zstandard.STRATEGY_GREEDY),
    "lazy": int(zstandard.STRATEGY_LAZY),
    "lazy2": int(zstandard.STRATEGY_LAZY2),
}
_SEARCHES = [("greedy", 4), ("lazy", 3), ("lazy", 4), ("lazy", 5), ("lazy", 6), ("lazy2", 4), ("lazy2", 6)]

ASIS = "as it is"
NO_CHECK = "no check"
CRC = "CRC-32 of the block (as it is)"
CONTENT = "zstd's checksum of the content"
USUAL = "usual frames: magic number, content size"


def _parameters(**changed: int) -> AbstractContextManager[Any]:
    return mock.patch.dict(layout.PARAMETERS, changed)


def _level(level: int) -> AbstractContextManager[Any]:
    """Search as one of zstd's levels does; tables and window stay as they are."""
    found = zstandard.ZstdCompressionParameters.from_level(level)
    names = ("strategy", "search_log", "min_match", "target_length")
    return _parameters(**{name: getattr(found, name) for name in names})


def _evenly(candidates: np.ndarray, count: int, compressed: object) -> np.ndarray:
    return np.unique(np.linspace(0, len(candidates) - 1, min(count, len(candidates))).astype(np.int64))


@contextlib.contextmanager
def _most(count: int, frames: int) -> Iterator[None]:
    """Have so many templates, if there are as many frames."""
    with (
        mock.patch.object(layout, "MOST_TEMPLATES", count),
        mock.patch.object(layout, "FRAMES_PER_TEMPLATE", max(1, frames // count)),
    ):
        yield


def _frame_options(**changed: Any) -> AbstractContextManager[Any]:
    """Make zstd frames of another kind than the codec's."""

    def parameters(**options: Any) -> zstandard.ZstdCompressionParameters:
        return zstandard.ZstdCompressionParameters(**{**options, **changed})

    instead = types.SimpleNamespace(**{**vars(zstandard), "ZstdCompressionParameters": parameters})
    return mock.patch.object(writing, "zstandard", instead)


def variants(frames: int) -> dict[str, AbstractContextManager[Any]]:
    """Return what changes the codec that packs so many frames, by name; one of the searches is its own."""
    searches = {
        f"{name}, search {search}": _parameters(strategy=STRATEGIES[name], search_log=search)
        for name, search in _SEARCHES
    }
    return {
        ASIS: ExitStack(),
        "templates evenly spaced": mock.patch.object(templates, "choose", _evenly),
        "64 templates": _most(64, frames),
        "256 templates": _most(256, frames),
        "1,024 templates": _most(1024, frames),
        **searches,
        "as level 16 (btopt)": _level(16),
        "as level 19 (btultra2)": _level(19),
        CONTENT: _frame_options(write_checksum=True),
        USUAL: _frame_options(format=zstandard.FORMAT_ZSTD1, write_content_size=True),
    }


@dataclasses.dataclass(frozen=True)
class Shard:
    """What packing some frames gave.

    Attributes:
        directory: Where the files are.
        frames: How many they hold.
        shape: Of a frame.
        pack_bytes: Bytes of the blocks.
        bytes: Bytes of all files.
        seconds: Processor time that packing took, the choice of templates included.
    """

    directory: Path
    frames: int
    shape: tuple[int, ...]
    pack_bytes: int
    bytes: int
    seconds: float


def pack(frames: np.ndarray, directory: Path) -> Shard:
    """Pack frames, uint8[N, ...], on one thread, as a shard."""
    directory.mkdir(parents=True)
    shape, dtype = frames.shape[1:], frames.dtype
    start = time.process_time()
    samples = frames[layout.sampled(len(frames), shape, dtype)]
    writer = packed.Writer(directory, len(frames), shape, dtype, samples=samples)
    for first in range(0, len(frames), CALL):
        writer.write(frames[first : first + CALL], first)
    writer.close()
    took = time.process_time() - start
    sizes = {name: (directory / name).stat().st_size for name in layout.files()}
    return Shard(directory, len(frames), shape, sizes[layout.PACK], sum(sizes.values()), took)


def decoding(shard: Shard, frames: np.ndarray) -> Contestant:
    """Decode frames in random order on this thread, by the codec's own reader, which is checked before."""
    reader = packed.Frames([shard.directory], [shard.frames], [0], shard.shape, frames.dtype)
    out = np.empty((CALL, *shard.shape), frames.dtype)

    def decode(index: np.ndarray) -> None:
        reader.frames(np.zeros(1, np.int64), index, out)

    def contestant(seed: int) -> Callable[[], None]:
        index = np.random.default_rng(seed).integers(0, shard.frames, CALL)
        return lambda: decode(index)

    checked = np.random.default_rng(0).integers(0, shard.frames, CALL)
    decode(checked)
    if not np.array_equal(out, frames[checked]):
        raise AssertionError(f"{shard.directory}: decoded to other frames")
    return contestant


@kernel
def _decode(function, context, dictionary, begins, lengths, index, start, checked, out):
    """Decode blocks with nothing of the codec's around it; return how many."""
    size = np.uintp(out.shape[1])
    target = np.uintp(out.ctypes.data)
    done = 0
    for row in range(len(index)):
        number = index[row]
        if checked and crc32(begins[number], lengths[number], number, start) == 0:
            return done
        at = target + np.uintp(row) * size
        count = _call(function, context, at, size, begins[number], np.uintp(lengths[number]), dictionary)
        done += count == size
    return done


class Bare:
    """Decodes the zstd frames of a shard's blocks, with the blocks' checksums or without, and nothing else.

    Args:
        shard: The shard.
        usual: Its zstd frames have a magic number.
    """

    def __init__(self, shard: Shard, *, usual: bool = False):
        library = libzstd.library()
        if library is None:
            raise RuntimeError("no libzstd that can be called directly was found")
        self._pack = np.fromfile(shard.directory / layout.PACK, np.uint8)
        index = np.load(shard.directory / layout.INDEX)
        lengths = index["length"].reshape(-1)[: shard.frames].astype(np.int64)
        self._begins = (self._pack.ctypes.data + np.cumsum(lengths) - lengths).astype(np.uintp)
        self._lengths = lengths - layout.CHECK_BYTES
        frame = layout.frame_bytes(shard.shape, np.dtype(np.uint8))
        self._content = layout.read_dictionary(shard.directory / layout.DICTIONARY, frame)
        self._start = np.uint32(layout.start_value(self._content))
        self._dictionary = library.dictionary(self._content)
        self._context = (
            libzstd.Held(library._create_context(), library._free_context)
            if usual
            else library._new_context()
        )
        self._function = library.decompress
        self._frames = shard.frames
        self._out = np.empty((CALL, frame), np.uint8)

    def decoding(self, *, checked: bool) -> Contestant:
        """Decode in random order; `checked`: compute the blocks' checksums too."""

        def decode(index: np.ndarray) -> int:
            return _decode(
                np.uintp(self._function),
                np.uintp(self._context.address),
                np.uintp(self._dictionary.address),
                self._begins,
                self._lengths,
                index,
                self._start,
                checked,
                self._out,
            )

        def contestant(seed: int) -> Callable[[], int]:
            index = np.random.default_rng(seed).integers(0, self._frames, CALL)
            return lambda: decode(index)

        if decode(np.arange(CALL) % self._frames) != CALL:
            raise AssertionError("not all blocks could be decoded")
        return contestant
