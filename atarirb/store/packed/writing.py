"""Writing the frames of a packed shard, as they come."""

from __future__ import annotations

import collections
import concurrent.futures
import errno
import os
import pathlib
import threading

import numpy as np
import zstandard

from atarirb.store.files import FileRecord
from atarirb.store.npy import PlacedFile, write_npy
from atarirb.store.packed import layout, templates

#: Frames that a thread compresses at a time.
_PART = 64
#: Bytes copied at a time where blocks must be put in order.
_COPIED = 1 << 24


class Writer:
    """Writes the frames of one shard, in runs that may come in any order.

    The bytes written do not depend on the runs, nor on the number of threads.

    Args:
        directory: The shard.
        frames: How many frames it has.
        shape: Shape of a frame.
        dtype: Of its values.
        samples: The frames that `layout.sampled` names, [P, *shape].
        threads: That compress.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        frames: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        *,
        samples: np.ndarray,
        threads: int = 1,
    ):
        self._directory = directory
        self._frame = layout.frame_bytes(shape, dtype)
        self._lengths = np.zeros(frames, layout.record_dtype(self._frame)["length"].base)
        self._runs: list[tuple[int, int, int]] = []  # (first frame, first byte, bytes), in the order written
        self._end = 0
        self._begun = self._first_written = False
        self._threads = threads
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="atarirb-pack")
        self._under_way: collections.deque[tuple[int, np.ndarray, concurrent.futures.Future]]
        self._under_way = collections.deque()
        self._spare: list[np.ndarray] = []  # memory for parts
        try:
            self._samples = samples.reshape(len(samples), self._frame // dtype.itemsize).view(np.uint8)
            chosen = templates.choose(self._samples, layout.templates(frames, self._frame), self._sizes)
            content = self._samples[chosen].tobytes()
            self._samples = self._samples[:1].copy()
            self._encoder = _Encoder(content)
            # Beside the frames: it takes as long as thousands of them.
            self._dictionary = self._pool.submit(
                layout.write_dictionary, directory / layout.DICTIONARY, content
            )
            self._pack = PlacedFile(directory / layout.PACK)
        except BaseException:
            self._pool.shutdown(cancel_futures=True)
            raise

    def write(self, rows: np.ndarray, at: int) -> None:
        """Write `rows`, C-contiguous, as frames `at`, `at` + 1, ... of the shard."""
        frames = rows.reshape(len(rows), self._frame // rows.dtype.itemsize).view(np.uint8)
        if at == 1 and not self._begun:
            # In a full file of a log the shard's first step is the last row. It is among the samples, and
            # if it is written now, the blocks are in order.
            self._append(self._samples[:1], 0)
            self._first_written = True
        elif at == 0 and self._first_written:
            frames, at = frames[1:], 1
        self._begun = True
        self._append(frames, at)

    def close(self) -> dict[str, FileRecord]:
        """Finish the files and describe them."""
        try:
            return self._finish()
        except BaseException:
            self.abandon()
            raise

    def _finish(self) -> dict[str, FileRecord]:
        self._put(most=0)
        self._pool.shutdown()
        if [run[1] for run in sorted(self._runs)] != [run[1] for run in self._runs]:
            self._put_in_order()
        if not self._lengths.all():
            raise AssertionError(f"{self._directory}: frame {np.argmin(self._lengths)} was not written")
        records = {layout.DICTIONARY: self._dictionary.result(), layout.PACK: self._pack.finish(self._end)}
        index = np.zeros(layout.records(len(self._lengths)), layout.record_dtype(self._frame))
        groups = index["length"].reshape(-1)
        groups[: len(self._lengths)] = self._lengths
        index["length"] = groups.reshape(-1, layout.GROUP)
        totals = index["length"].sum(1, dtype=np.uint64)
        index["offset"] = np.cumsum(totals, dtype=np.uint64) - totals
        return records | {layout.INDEX: write_npy(self._directory / layout.INDEX, index)}

    def abandon(self) -> None:
        """Close the files as they are."""
        self._pool.shutdown(cancel_futures=True)
        self._pack.abandon()

    def _sizes(self, chosen: np.ndarray) -> np.ndarray:
        """Return how many bytes each sample compresses to with some of them as templates, int64[P]."""
        encoder = _Encoder(self._samples[chosen].tobytes())
        parts = range(0, len(self._samples), _PART)
        encoded = self._pool.map(
            lambda first: encoder.encode(self._samples[first : first + _PART], first)[0], parts
        )
        return np.concatenate([*encoded, np.zeros(0, np.int64)])

    def _append(self, frames: np.ndarray, at: int) -> None:
        """Have frames compressed; of what is under way, wait for the oldest if it is much."""
        encode = self._encoder.encode
        for first in range(0, len(frames), _PART):
            rows = frames[first : first + _PART]
            part = self._spare.pop() if self._spare else np.empty((_PART, self._frame), np.uint8)
            part[: len(rows)] = rows  # the caller will use its memory again
            under_way = self._pool.submit(encode, part[: len(rows)], at + first)
            self._under_way.append((at + first, part, under_way))
            self._put(most=2 * self._threads)

    def _put(self, *, most: int) -> None:
        """Put compressed parts on file, in the order in which they came, until few enough are under way."""
        while len(self._under_way) > most:
            at, part, under_way = self._under_way.popleft()
            lengths, data = under_way.result()
            self._spare.append(part)
            self._lengths[at : at + len(lengths)] = lengths
            self._pack.put(data, self._end)
            self._runs.append((at, self._end, len(data)))
            self._end += len(data)

    def _put_in_order(self) -> None:
        """Copy the blocks, which came in another order than the frames', into their order."""
        self._pack.abandon()
        unordered = self._pack.path.with_suffix(".unordered")
        os.rename(self._pack.path, unordered)
        self._pack = PlacedFile(self._pack.path)
        at = 0
        with open(unordered, "rb", buffering=0) as source:
            for _, first, size in sorted(self._runs):
                source.seek(first)
                stop = at + size
                while at < stop:
                    data = source.read(min(stop - at, _COPIED))
                    if not data:
                        raise OSError(errno.EIO, "ends before all that was written", os.fspath(unordered))
                    self._pack.put(data, at)
                    at += len(data)
        unordered.unlink()


class _Encoder:
    """Compresses frames with some templates; several threads may use one.

    Args:
        content: The templates' bytes.
    """

    def __init__(self, content: bytes):
        self._start = layout.start_value(content)
        # A table of about as many entries as there are bytes to find, up to what is worth its memory.
        entries = max(12, min(20, len(content).bit_length()))
        self._parameters = zstandard.ZstdCompressionParameters(
            **layout.PARAMETERS,
            hash_log=entries,
            chain_log=entries,
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        )
        self._dictionary = None
        if content:
            self._dictionary = layout.raw_dictionary(content)
            self._dictionary.precompute_compress(compression_params=self._parameters)
        self._local = threading.local()

    def encode(self, frames: np.ndarray, first: int) -> tuple[np.ndarray, bytes]:
        """Compress frames `first`, `first` + 1, ... of a shard.

        Args:
            frames: uint8[B, frame bytes].
            first: Number of the first of them.

        Returns:
            The lengths of their blocks, int64[B], and the blocks end to end.
        """
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:
            compressor = self._local.compressor = zstandard.ZstdCompressor(
                dict_data=self._dictionary, compression_params=self._parameters
            )
        blocks = []
        for number, frame in enumerate(frames, first):
            block = compressor.compress(frame)
            check = layout.check_value(block, number, self._start)
            blocks.append(block + check.to_bytes(layout.CHECK_BYTES, "little"))
        return np.array([len(block) for block in blocks], np.int64), b"".join(blocks)
