"""Datasets made of another one, shard by shard: what convert and map share.

Files that stay as they are, the columns, segments and episodes among them, are copied and checked on
the way. Shards are made one by one as in ingest (`atarirb.store.building`), so stopped work goes on by
the same call.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from types import ModuleType

import numpy as np
import zstandard
from zlib_ng import zlib_ng

from atarirb import jobs
from atarirb.errors import ArgumentError, ConvertError, DatasetError, MapError
from atarirb.jobs import Stopped, Stopper
from atarirb.store import building, codecs, raw
from atarirb.store import manifest as store
from atarirb.store.files import FileRecord
from atarirb.store.npy import PlacedFile, header
from atarirb.store.shards import ShardWriter
from atarirb.verbs.progress import meter

#: Bytes of frames read at a time, and of files.
_CHUNK_BYTES = 4 << 20
#: Frames compressed to estimate what all will take.
_TRIED = 512


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One shard to make of another dataset's, with the same frames: copied, or kept anew.

    Attributes:
        origin: The other dataset's directory, absolute.
        directory: The new dataset's.
        frame: Shape and dtype of its frames.
        shard: Its shard's record.
        codec: How its frames are kept.
        wanted: How the new ones are to be.
        threads: That compress.
    """

    origin: pathlib.Path
    directory: pathlib.Path
    frame: store.ColumnRecord
    shard: store.ShardRecord
    codec: str
    wanted: str
    threads: int

    @property
    def split(self) -> int:
        """Number of the shard."""
        return self.shard.split

    @property
    def reads(self) -> ModuleType:
        """The codec of the frames."""
        return codecs.codec(self.codec)

    @property
    def writes(self) -> ModuleType:
        """That of the new ones."""
        return codecs.codec(self.wanted)

    @property
    def frames(self) -> int:
        """Frames of the shard: one a step, and the final ones."""
        return self.shard.steps + self.shard.finals

    @property
    def amount(self) -> int:
        """What `run` counts in all: bytes of frames."""
        return self.frames * self.frame.bytes

    @property
    def frames_stay(self) -> bool:
        """Whether the frames' files are copied. Packed ones are not: packing may have changed."""
        return self.reads is self.writes is raw

    @property
    def made(self) -> frozenset[str]:
        """Names of the files that are made rather than copied."""
        return frozenset(() if self.frames_stay else self.writes.files())

    @property
    def copied(self) -> dict[str, FileRecord]:
        """The files that stay as they are."""
        frames = () if self.frames_stay else self.shard.frame_files
        return {
            name: file
            for name, file in self.shard.files.items()
            if name not in frames and name not in self.made
        }

    def expected(self, record: store.ShardRecord) -> store.ShardRecord:
        """Say what a shard's record would be if this job had made it, but for its files."""
        return self.shard

    def holds(self, record: store.ShardRecord | None) -> bool:
        """Tell whether a shard that is there already is the one this job would make."""
        if record is None or dataclasses.replace(self.expected(record), files=record.files) != record:
            return False
        rest = {name: file for name, file in record.files.items() if name not in self.made}
        return (
            rest == self.copied
            and self.made <= set(record.files)
            and building.is_whole(self.directory, record)
        )

    def disk_bytes(self) -> int:
        """Estimate the bytes its shard will take, rather too many than too few."""
        copied = sum(file.bytes for file in self.copied.values())
        if self.frames_stay:
            return copied
        return copied + self.writes.disk_bytes(self.frames, *self._frame, self._packed_bytes())

    def run(self, place: pathlib.Path, on_done: Callable[[int], None], stopped: Stopper) -> store.ShardRecord:
        """Copy the files that stay and make the others, into a shard below a directory."""
        shard = ShardWriter(place, self.split)
        self.copy(shard, on_done, stopped)
        self.keep_frames(shard, on_done, stopped)
        return shard.seal(dataclasses.replace(self.expected(self.shard), files=shard.files))

    def done(self) -> None:
        """Let go of nothing: what it needed is another dataset's."""

    def copy(self, shard: ShardWriter, on_bytes: Callable[[int], None], stopped: Stopper) -> None:
        """Copy the files that stay; count the bytes of frames."""
        for name, record in self.copied.items():
            file = PlacedFile(shard.directory / name)
            try:
                at = 0
                for data in pieces(self.place / name, record):
                    check(stopped)
                    file.put(data, at)
                    at += len(data)
                    if name in self.shard.frame_files:
                        on_bytes(len(data))
            except BaseException:
                file.abandon()
                raise
            shard.keep({name: file.finish(record.bytes)})

    def keep_frames(self, shard: ShardWriter, on_bytes: Callable[[int], None], stopped: Stopper) -> None:
        """Decode the frames and keep them anew, unless they stay as they are; count their bytes."""
        if self.frames_stay:
            return
        shape, dtype = self._frame
        rows = self._rows()
        wanted = self.writes.sampled(self.frames, shape, dtype).tolist()
        samples = np.empty((len(wanted), *shape), dtype)
        for place, frame in enumerate(wanted):
            check(stopped)
            samples[place] = rows[frame : frame + 1][0]
        writer = self.writes.Writer(
            shard.directory, self.frames, shape, dtype, samples=samples, threads=self.threads
        )
        try:
            for first, frames in self._chunks(rows):
                check(stopped)
                writer.write(frames, first)
                on_bytes(frames.nbytes)
        except BaseException:
            writer.abandon()
            raise
        shard.keep(writer.close())

    @property
    def place(self) -> pathlib.Path:
        """The directory of the other dataset's shard."""
        return self.origin / self.shard.directory

    def _chunks(self, rows: raw.InOrder) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of the first frame, and frames, in their order; check raw ones' file by and by."""
        shape, dtype = self._frame
        crc = zlib_ng.crc32(header((self.frames, *shape), dtype))
        count = max(1, _CHUNK_BYTES // max(1, self.frame.bytes))
        for first in range(0, self.frames, count):
            frames = rows[first : first + count]
            crc = zlib_ng.crc32(frames.reshape(-1).view(np.uint8), crc)
            yield first, frames
        if self.reads is raw:
            (name,) = raw.files()
            _compare(self.place / name, f"{crc:08x}", self.shard.files[name])

    def _rows(self) -> raw.InOrder:
        return self.reads.InOrder(self.place, self.shard.steps, self.shard.finals, *self._frame)

    @property
    def _frame(self) -> tuple[tuple[int, ...], np.dtype]:
        return self.frame.shape, np.dtype(self.frame.dtype)

    def _packed_bytes(self) -> int:
        """Estimate what the frames would take, packed as a stream."""
        if self.reads is not raw:
            return self.shard.frame_bytes
        first = max(0, self.frames // 2 - _TRIED // 2)
        try:
            return packed_bytes(self._rows()[first : first + _TRIED], self.frames)
        except (DatasetError, OSError):
            return 0  # it will fail, in words


def refuse_same(origin: pathlib.Path, directory: pathlib.Path, what: str) -> None:
    """Refuse to make a dataset where the one is that it is made of.

    Raises:
        ArgumentError: Both are the same directory.
    """
    if origin.resolve() == directory.resolve():
        raise ArgumentError(f"{directory} is the dataset to be {what}; name another directory for the new")


def make_shards(
    verb: str,
    planned: Sequence[Job],
    held: Mapping[int, store.ShardRecord],
    work: pathlib.Path,
    *,
    threads: int,
    executor: Executor | None,
    unit: str,
    progress: bool,
    error: type[ConvertError | MapError],
    advice: str,
) -> tuple[store.ShardRecord, ...]:
    """Make the shards that are not there yet.

    Args:
        verb: The work's name.
        planned: All of them, in step order.
        held: Records of those that are there, by split.
        work: Directory of things half-written.
        threads: Jobs at a time.
        executor: Who is to run them instead of threads.
        unit: What the jobs count.
        progress: Show how far it has come on stderr, if that is a terminal.
        error: What to raise if some fail.
        advice: What to do then.

    Returns:
        The records of all.

    Raises:
        DiskSpaceError: The disk has too little room; nothing was written.
        ConvertError, MapError: Some failed; the others are kept.
    """
    directory, origin = planned[0].directory, planned[0].origin
    todo = [job for job in planned if not job.holds(held.get(job.shard.split))]
    building.check_space(directory, sum(job.disk_bytes() for job in todo), "choose another disk")
    if todo:  # what is there so far is a dataset only again when it is whole
        (directory / store.MANIFEST).unlink(missing_ok=True)
    total = sum(job.amount for job in todo)
    with meter(verb, total, progress and bool(todo), unit) as on_done:
        failures = jobs.run(todo, directory, work, workers=threads, executor=executor, on_done=on_done)
    if failures:
        advice = f"{advice} and run the same command again."
        raise error(
            f"{len(failures)} of {len(planned)} shards of {origin} failed:\n"
            f"{jobs.listed(failures, len(planned) - len(failures), advice)}",
            failures,
        ) from failures[min(failures)]
    records = [store.read_record(directory / job.shard.directory) for job in planned]
    return tuple(record for record in records if record is not None)


def pieces(path: pathlib.Path, record: FileRecord) -> Iterator[bytes]:
    """Yield a file's bytes, checking that they are those of its record.

    Raises:
        DatasetError: They are not, or it is missing.
    """
    crc, size = 0, 0
    try:
        with open(path, "rb", buffering=0) as file:
            while data := file.read(_CHUNK_BYTES):
                crc, size = zlib_ng.crc32(data, crc), size + len(data)
                yield data
    except FileNotFoundError:
        raise DatasetError(f"{path}: missing, though the manifest lists it") from None
    if size != record.bytes:
        raise DatasetError(f"{path}: {size:,} bytes, expected {record.bytes:,}; it is damaged")
    _compare(path, f"{crc:08x}", record)


def packed_bytes(tried: np.ndarray, frames: int) -> int:
    """Estimate from some frames what so many would take, packed as a stream."""
    packed = zstandard.ZstdCompressor(level=3).compress(tried.tobytes())
    return len(packed) * frames // max(1, len(tried))


def check(stopped: Stopper) -> None:
    """Leave off if the work is ending."""
    if stopped.is_set():
        raise Stopped


def _compare(path: pathlib.Path, found: str, record: FileRecord) -> None:
    if found != record.crc32:
        raise DatasetError(f"{path}: checksum {found}, expected {record.crc32}; its bytes have changed")
