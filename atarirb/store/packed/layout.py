"""The files of a packed shard, one by one; `atarirb.store.packed` says what is in them."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import zstandard
from zlib_ng import zlib_ng

from atarirb.errors import DatasetError
from atarirb.store.files import FileRecord
from atarirb.store.npy import PlacedFile, header

NAME = "packed"
PACK = "observation.pack"
INDEX = "observation.idx.npy"
DICTIONARY = "observation.dict"

#: Frames of one record of the index.
GROUP = 32
#: Bytes of the checksum that ends a block.
CHECK_BYTES = 4
#: The most that the second byte of a zstd frame, the size of its window, may be: what zstd takes unasked.
MOST_WINDOW = 17 << 3
#: Most templates of a shard: more make it smaller still, but each reader holds those of every shard.
MOST_TEMPLATES = 1024
#: Most bytes of them.
MOST_TEMPLATE_BYTES = 8 << 20
#: Frames for each template: in a small shard, more templates would cost more than they save.
FRAMES_PER_TEMPLATE = 32

#: How blocks are compressed. `benchmarks/codec.py` measures what these choices give.
PARAMETERS = {
    "strategy": int(zstandard.STRATEGY_LAZY),
    "search_log": 4,
    "min_match": 6,
    "target_length": 16,
    "window_log": 22,
}
_DICTIONARY_LEVEL = 12
#: Candidates to choose templates from, where twice their number would be less.
_FEW_CANDIDATES = 512


def files() -> tuple[str, ...]:
    """Return the names of a shard's frame files."""
    return (PACK, INDEX, DICTIONARY)


def frame_bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the bytes of one frame."""
    return math.prod(shape) * np.dtype(dtype).itemsize


def most_block_bytes(frame: int) -> int:
    """Return the bytes that the block of a frame of so many bytes has at the most (zstd's own bound)."""
    return frame + (frame >> 8) + 128 + CHECK_BYTES


def record_dtype(frame: int) -> np.dtype:
    """Return the index's record for frames of so many bytes."""
    length = "<u2" if frame <= 1 << 15 else "<u4"
    return np.dtype([("offset", "<u8"), ("length", length, (GROUP,))])


def records(frames: int) -> int:
    """Return how many records the index of so many frames has."""
    return -(-frames // GROUP)


def disk_bytes(frames: int, shape: tuple[int, ...], dtype: np.dtype, source: int) -> int:
    """Return what a shard's frames will hardly exceed: twice their source, or what zstd takes at the most."""
    size = frame_bytes(shape, dtype)
    record = record_dtype(size)
    index = len(header((records(frames),), record)) + records(frames) * record.itemsize
    return min(2 * source, (frames + templates(frames, size)) * most_block_bytes(size)) + index


def templates(frames: int, size: int) -> int:
    """Return how many templates a shard of so many frames, of so many bytes each, has at the most."""
    most = max(1, min(MOST_TEMPLATES, MOST_TEMPLATE_BYTES // max(1, size)))
    return min(most, -(-frames // FRAMES_PER_TEMPLATE))


def sampled(frames: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return which frames the templates are chosen from, int64[P], rising and evenly spaced."""
    size = frame_bytes(shape, dtype)
    few = min(_FEW_CANDIDATES, MOST_TEMPLATE_BYTES // max(1, size))
    candidates = min(frames, max(2 * templates(frames, size), few))
    return np.linspace(0, frames - 1, candidates).astype(np.int64) if frames else np.zeros(0, np.int64)


def raw_dictionary(content: bytes | np.ndarray) -> zstandard.ZstdCompressionDict:
    """Make zstd's dictionary of the templates' bytes."""
    return zstandard.ZstdCompressionDict(content, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def write_dictionary(path: pathlib.Path, content: bytes) -> FileRecord:
    """Write the templates' bytes."""
    window = max(zstandard.WINDOWLOG_MIN, len(content).bit_length())  # each template may refer to all others
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _DICTIONARY_LEVEL, window_log=window, write_checksum=True
    )
    data = zstandard.ZstdCompressor(compression_params=parameters).compress(content)
    file = PlacedFile(path)
    try:
        file.put(data, 0)
    except BaseException:
        file.abandon()
        raise
    return file.finish(len(data))


def read_dictionary(path: pathlib.Path, frame: int) -> np.ndarray:
    """Read the templates' bytes, uint8[templates * frame bytes].

    Raises:
        DatasetError: They are missing or damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing, though the manifest lists it") from None
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= MOST_TEMPLATES * frame or (frame and size % frame):
            raise zstandard.ZstdError(f"{size} bytes of templates, which have {frame} each")
        content = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise DatasetError(f"{path}: the shard's templates are damaged: {error}") from error
    return np.frombuffer(content, np.uint8)


def start_value(content: bytes | np.ndarray) -> int:
    """Return the checksum that a shard's blocks begin with."""
    return zlib_ng.crc32(content)


def check_value(block: bytes | memoryview, number: int, start: int) -> int:
    """Return the checksum of the zstd frame of frame `number` of a shard."""
    return zlib_ng.crc32(block, zlib_ng.crc32(number.to_bytes(8, "little"), start))
