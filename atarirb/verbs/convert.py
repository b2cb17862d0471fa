"""Convert: a dataset becomes one that keeps its frames by another codec.

All that a reader gives stays as it was: the columns, segments and episodes are the same files, checked
while they are copied, and the frames the same values. Shards are made one by one as in ingest
(`atarirb.store.building`), so a stopped convert goes on by the same command.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import numpy as np
import zstandard
from zlib_ng import zlib_ng

from atarirb import jobs
from atarirb.arguments import positive
from atarirb.errors import ArgumentError, ConvertError, DatasetError
from atarirb.info import DatasetInfo, describe
from atarirb.store import building, codecs, raw
from atarirb.store import manifest as store
from atarirb.store.episodes import read_tables
from atarirb.store.files import FileRecord
from atarirb.store.npy import PlacedFile, header
from atarirb.store.shards import ShardWriter
from atarirb.threads import cores
from atarirb.verbs.progress import meter

#: Bytes of frames read at a time, and of files.
_CHUNK_BYTES = 4 << 20
#: Frames compressed to estimate what all will take.
_TRIED = 512


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    codec: str,
    workers: int | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Make a dataset of another one, with its frames kept by another codec.

    An interrupted convert goes on by the same call, and ends with the same bytes.

    Args:
        source: The dataset to read.
        out: The new dataset's directory; made if need be.
        codec: How frames are to be kept: "packed" or "raw". If they already are, "raw" gives a checked
            copy, and "packed" packs them anew.
        workers: Shards converted at a time; None for one per core.
        progress: Show bytes, rate and time left on stderr, if that is a terminal.

    Returns:
        What the new dataset is.

    Raises:
        DatasetNotFoundError: There is no dataset at `source`.
        DatasetError: Its manifest or episode table is damaged.
        ConvertError: Some shards failed; it lists them and why. The others are kept, and a second call
            does only what is missing.
        DiskSpaceError: The disk has too little room; nothing was written.
        BusyError: Another process is writing the new dataset.
        ArgumentError: An unknown codec, or `out` is `source` or holds another dataset.
    """
    threads = cores() if workers is None else positive("workers", workers)
    kind = codecs.codec(codec)
    origin, directory = pathlib.Path(source), pathlib.Path(out)
    manifest, episodes = read_tables(origin)
    if origin.resolve() == directory.resolve():
        raise ArgumentError(f"{directory} is the dataset to be converted; name another directory for the new")
    reads = codecs.CODECS.get(manifest.codec)
    if reads is None:
        raise DatasetError(
            f"{origin}: frames kept as {manifest.codec!r}, this atarirb reads {', '.join(codecs.CODECS)}"
        )
    table = header(episodes.shape, episodes.dtype) + episodes.tobytes()
    with building.exclusive(directory) as work:
        held = building.held(directory, manifest.name, manifest.layout, kind.NAME)
        building.refuse_strange(directory, held, [shard.split for shard in manifest.shards], origin)
        share = max(1, threads // len(manifest.shards))
        planned = [
            _Job(origin, work, directory, manifest, shard, reads, kind, share) for shard in manifest.shards
        ]
        todo = [job for job in planned if not job.holds(held.get(job.shard.split))]
        needed = sum(job.disk_bytes() for job in todo)
        building.check_space(directory, needed, "choose another disk")
        if todo:
            (directory / store.MANIFEST).unlink(missing_ok=True)
        total = sum(job.frames * manifest.frame.bytes for job in todo)
        with meter("convert", total, progress and bool(todo)) as on_bytes:
            failures = jobs.run({job.shard.split: job.run for job in todo}, threads, on_bytes)
        if failures:
            raise _failed(failures, len(planned) - len(failures), origin)
        records = [store.read_record(directory / shard.directory) for shard in manifest.shards]
        shards = tuple(record for record in records if record is not None)
        made = dataclasses.replace(manifest, codec=kind.NAME, parameters=kind.PARAMETERS, shards=shards)
        building.put_manifest(directory, made, table)
    return describe(out, made, episodes)


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """One shard to convert, by so many threads."""

    origin: pathlib.Path
    work: pathlib.Path
    directory: pathlib.Path
    manifest: store.Manifest
    shard: store.ShardRecord
    reads: ModuleType
    writes: ModuleType
    threads: int

    @property
    def frames(self) -> int:
        return self.shard.steps + self.shard.finals

    @property
    def _place(self) -> pathlib.Path:
        return self.origin / self.shard.directory

    @property
    def _copied(self) -> dict[str, FileRecord]:
        """The files that stay as they are."""
        if self.reads is self.writes is raw:
            return self.shard.files
        frames = self.shard.frame_files
        return {name: file for name, file in self.shard.files.items() if name not in frames}

    def holds(self, record: store.ShardRecord | None) -> bool:
        """Tell whether a shard that is there already is the one this job would make."""
        if record is None or dataclasses.replace(record, files=self.shard.files) != self.shard:
            return False
        made = {name: record.files.get(name) for name in record.files if name not in self.writes.files()}
        kept = {name: file for name, file in self._copied.items() if name not in self.writes.files()}
        return (
            made == kept
            and set(self.writes.files()) <= set(record.files)
            and building.is_whole(self.directory, record)
        )

    def disk_bytes(self) -> int:
        """Estimate the bytes its shard will take, rather too many than too few."""
        copied = sum(file.bytes for file in self._copied.values())
        if self.reads is self.writes is raw:
            return copied
        shape, dtype = self._frame
        return copied + self.writes.disk_bytes(self.frames, shape, dtype, self._packed_bytes())

    def run(self, on_bytes: Callable[[int], None], stopped: threading.Event) -> None:
        """Copy the files that stay, make those of the frames, and give the shard its name."""
        shard = ShardWriter(self.work, self.directory, self.shard.split)
        for name, record in self._copied.items():
            file = PlacedFile(shard.directory / name)
            try:
                at = 0
                for data in _pieces(self._place / name, record):
                    if stopped.is_set():
                        raise jobs.Stopped
                    file.put(data, at)
                    at += len(data)
                    if name in self.writes.files():
                        on_bytes(len(data))
            except BaseException:
                file.abandon()
                raise
            shard.keep({name: file.finish(record.bytes)})
        if not set(self.writes.files()) <= set(self._copied):
            shard.keep(self._convert(shard.directory, on_bytes, stopped))
        shard.seal(dataclasses.replace(self.shard, files=shard.files))

    def _convert(
        self, directory: pathlib.Path, on_bytes: Callable[[int], None], stopped: threading.Event
    ) -> dict[str, FileRecord]:
        """Decode the shard's frames and keep them anew."""
        shape, dtype = self._frame
        rows = self._rows()
        wanted = self.writes.sampled(self.frames, shape, dtype).tolist()
        samples = np.empty((len(wanted), *shape), dtype)
        for place, frame in enumerate(wanted):
            if stopped.is_set():
                raise jobs.Stopped
            samples[place] = rows[frame : frame + 1][0]
        writer = self.writes.Writer(
            directory, self.frames, shape, dtype, samples=samples, threads=self.threads
        )
        try:
            for first, frames in self._chunks(rows):
                if stopped.is_set():
                    raise jobs.Stopped
                writer.write(frames, first)
                on_bytes(frames.nbytes)
        except BaseException:
            writer.abandon()
            raise
        return writer.close()

    def _chunks(self, rows: raw.InOrder) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number of the first frame, and frames, in their order; check raw ones' file by and by."""
        shape, dtype = self._frame
        crc = zlib_ng.crc32(header((self.frames, *shape), dtype))
        count = max(1, _CHUNK_BYTES // max(1, self.manifest.frame.bytes))
        for first in range(0, self.frames, count):
            frames = rows[first : first + count]
            crc = zlib_ng.crc32(frames.reshape(-1).view(np.uint8), crc)
            yield first, frames
        if self.reads is raw:
            (name,) = raw.files()
            _compare(self._place / name, f"{crc:08x}", self.shard.files[name])

    def _rows(self) -> raw.InOrder:
        return self.reads.InOrder(self._place, self.shard.steps, self.shard.finals, *self._frame)

    @property
    def _frame(self) -> tuple[tuple[int, ...], np.dtype]:
        return self.manifest.frame.shape, np.dtype(self.manifest.frame.dtype)

    def _packed_bytes(self) -> int:
        """Estimate what the frames would take, packed as a stream."""
        if self.reads is not raw:
            return self.shard.frame_bytes
        first = max(0, self.frames // 2 - _TRIED // 2)
        try:
            tried = self._rows()[first : first + _TRIED]
        except (DatasetError, OSError):
            return 0  # it will fail, in words
        packed = zstandard.ZstdCompressor(level=3).compress(tried.tobytes())
        return len(packed) * self.frames // max(1, len(tried))


def _pieces(path: pathlib.Path, record: FileRecord) -> Iterator[bytes]:
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


def _compare(path: pathlib.Path, found: str, record: FileRecord) -> None:
    if found != record.crc32:
        raise DatasetError(f"{path}: checksum {found}, expected {record.crc32}; its bytes have changed")


def _failed(failures: Mapping[int, Exception], others: int, origin: pathlib.Path) -> ConvertError:
    lines, kept = jobs.listed(failures, others)
    return ConvertError(
        f"{len(failures)} of {len(failures) + others} shards of {origin} failed:\n{lines}\n"
        f"{kept}Mend that dataset, from its source, and run the same command again.",
        failures,
    )
