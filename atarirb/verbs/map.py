"""Map: a function over a dataset's steps makes a dataset of other observations, or of more columns.

What TorchRL calls preprocessing: crops, embeddings, other dtypes, values that a model gives. Steps,
episodes, segments and the other columns stay as they are; shards are made one by one
(`atarirb.verbs.remaking`).

What made a mapped shard is in its record, among its sources: ``atarirb.map`` says how the function was
called and what it returned, ``atarirb.map.of`` is the CRC-32 of the records of the shards it was made of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np
from zlib_ng import zlib_ng

from atarirb import jobs
from atarirb.arguments import positive
from atarirb.batch import Batch
from atarirb.errors import ArgumentError, FunctionError, MapError
from atarirb.info import DatasetInfo, describe
from atarirb.jobs import Stopper
from atarirb.reader import Reader
from atarirb.store import building, codecs, raw
from atarirb.store import manifest as store
from atarirb.store.npy import NpyWriter, header
from atarirb.store.shards import ShardWriter
from atarirb.threads import cores
from atarirb.verbs import remaking
from atarirb.verbs.calling import OBSERVATION, Function, described, spell

_OF = f"{building.MAPPED}.of"


def map(  # the name in atarirb's namespace
    reader: Reader,
    fn: Callable[[Batch], Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    batch_size: int = 256,
    workers: int | None = None,
    executor: Executor | None = None,
    codec: str | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Make a dataset of another one by a function of its steps.

    The function is given a dict of B rows, as NumPy arrays, or as JAX ones of a reader that gives those::

        observation  [B, *frame] or [B, *frame, S], stacked as the reader stacks
        action       int32[B]
        reward       float32[B], as logged
        terminal     uint8[B], see `atarirb.store.manifest`
        index        int64[B], the step in the dataset; always NumPy
        final        bool[B], the row is no step, but the frame after the last one of an episode
        ...          the reader's `columns`

    and returns a dict of arrays of B rows, of any shape and dtype: an `observation`, which becomes that of
    the new dataset, and columns, which are added to it or replace its extra ones of the same names. Without
    `observation` the frames stay as they are. The first call says which names, shapes and dtypes there are.

    B is always `batch_size`, so that a jitted function is compiled once; where a shard ends sooner, its last
    row is repeated, and what comes of that is dropped. A row's result must depend on that row alone. The
    order of calls is that of the steps in a shard; the packed codec has some frames of each shard mapped
    beforehand, to see what they are like.

    Where a reader of the new dataset shows zeros, as before an episode's beginning and at a terminal, they
    are zeros of the new shape, not what the function makes of zeros.

    If the function returns observations, the final frames that recordings have are mapped too, in rows
    where `final` is True. Their `observation` is what the reader shows as the next one, `index` the step
    that they followed, all else zero; the columns returned for them are dropped.

    An interrupted map goes on by the same call, and ends with the same bytes. That it is the same is known of
    all but the function itself: of that, only what it returns can be compared. After changing it, name
    another directory.

    Args:
        reader: The dataset, and how its batches are made: `frame_stack`, `columns` and `output` apply.
        fn: The function.
        out: The new dataset's directory; made if need be.
        batch_size: B.
        workers: Shards mapped at a time, each by a thread that calls the function; None for one per core,
            or for JAX arrays one.
        executor: Who maps them instead of threads of this process; see `atarirb.ingest`. The function must be
            one that can be sent there: for a `ProcessPoolExecutor` at the top level of a module.
        codec: How frames are to be kept: "packed" or "raw"; None for raw where the function returns
            floating-point ones, else for the dataset's.
        progress: Show steps, rate and time left on stderr, if that is a terminal.

    Returns:
        What the new dataset is.

    Raises:
        MapError: The function failed on its first batch, and nothing was written; or some shards failed: it
            lists them and why. The others are kept, and a second call does only what is missing.
        ExecutorError: No worker of the executor answers, or none sees the dataset.
        ArgumentError: The function returned what cannot be a dataset, or it cannot be sent to the executor's
            workers; the reader has a selection, an option cannot be, or `out` is the reader's dataset or
            holds something else.
        DatasetError: A frame is damaged.
        ClosedError: The reader is closed.
        DiskSpaceError: The disk has too little room; nothing was written.
        BusyError: Another process is writing the new dataset.
    """
    size = positive("batch_size", batch_size)
    _check_reader(reader)
    if not callable(fn):
        raise ArgumentError(f"fn is {fn!r}, expected a function of a batch")
    threads = cores() if reader._options.output == "numpy" else 1
    threads = threads if workers is None else positive("workers", workers)
    jobs.check_executor(executor, workers)
    dataset = reader._dataset
    assert dataset is not None  # it was looked at above
    manifest, directory = dataset.manifest, pathlib.Path(out)
    remaking.refuse_same(dataset.directory, directory, "mapped")
    named = None if codec is None else codecs.codec(codec)
    if executor is not None:
        jobs.check_sent(executor, fn=fn, reader=reader)
    call = Function.of(reader, fn, size)
    outputs, tried = _try(call)
    frame = outputs.get(OBSERVATION, manifest.frame)
    mapped_floats = OBSERVATION in outputs and np.dtype(frame.dtype).kind in "fc"
    writes = named or (raw if mapped_floats else codecs.codec(manifest.codec))
    packed = 0 if tried is None or writes is raw else remaking.packed_bytes(tried, manifest.frames)
    how = _how(reader, size, outputs)
    with building.exclusive(directory) as work:
        held = building.held(directory, manifest.name, manifest.layout, writes.NAME, mapped=how)
        building.refuse_strange(
            directory, held, [shard.split for shard in manifest.shards], dataset.directory
        )
        planned = [
            _Job(
                origin=dataset.directory.absolute(),
                directory=directory,
                frame=manifest.frame,
                shard=shard,
                codec=manifest.codec,
                wanted=writes.NAME,
                threads=1 if executor is not None else max(1, cores() // min(threads, len(manifest.shards))),
                number=number,
                call=call,
                outputs=outputs,
                marks={building.MAPPED: how, _OF: _of(reader, number)},
                packed=packed * (shard.steps + shard.finals) // manifest.frames,
            )
            for number, shard in enumerate(manifest.shards)
        ]
        shards = remaking.make_shards(
            "map",
            planned,
            held,
            work,
            threads=threads,
            executor=executor,
            unit="step",
            progress=progress,
            error=MapError,
            advice="Mend the function, or that dataset from its source,",
        )
        columns = {name: output for name, output in outputs.items() if name != OBSERVATION}
        made = dataclasses.replace(
            manifest,
            codec=writes.NAME,
            parameters=writes.PARAMETERS,
            frame=frame,
            extra=manifest.extra | columns,
            shards=shards,
        )
        table = header(dataset.episodes.shape, dataset.episodes.dtype) + dataset.episodes.tobytes()
        building.put_manifest(directory, made, table)
    return describe(out, made, dataset.episodes)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Job(remaking.Job):
    """One shard to map.

    Attributes:
        number: Which of the dataset's it is.
        call: Gives its rows.
        outputs: Shape of a row and dtype of each array that the function returns.
        marks: What the new shard's record says of the map.
        packed: Bytes that the shard's mapped frames would take, about, packed as a stream.
    """

    number: int
    call: Function
    outputs: dict[str, store.ColumnRecord]
    marks: dict[str, str]
    packed: int

    @property
    def amount(self) -> int:
        return self.frames if self._maps_frames else self.shard.steps

    @property
    def frames_stay(self) -> bool:
        return not self._maps_frames and self.reads is self.writes

    @property
    def made(self) -> frozenset[str]:
        return super().made | {f"{name}.npy" for name in self._columns}

    def expected(self, record: store.ShardRecord) -> store.ShardRecord:
        added = self._columns
        kept = {name: dtype for name, dtype in self.shard.columns.items() if name not in added}
        return dataclasses.replace(
            self.shard,
            source=self.shard.source | self.marks,
            columns=dict(sorted((kept | {name: record.columns.get(name, "") for name in added}).items())),
        )

    def disk_bytes(self) -> int:
        added = sum(
            len(header((self.shard.steps, *column.shape), np.dtype(column.dtype)))
            + self.shard.steps * column.bytes
            for column in self._columns.values()
        )
        if not self._maps_frames:
            return added + super().disk_bytes()
        copied = sum(file.bytes for file in self.copied.values())
        shape, dtype = self._mapped
        return added + copied + self.writes.disk_bytes(self.frames, shape, dtype, self.packed)

    def run(self, place: pathlib.Path, on_done: Callable[[int], None], stopped: Stopper) -> store.ShardRecord:
        shard = ShardWriter(place, self.split)
        self.copy(shard, _uncounted, stopped)
        if not self._maps_frames:
            self.keep_frames(shard, _uncounted, stopped)
        self._map(shard, on_done, stopped)
        record = self.expected(dataclasses.replace(self.shard, columns=shard.columns))
        return shard.seal(dataclasses.replace(record, files=shard.files))

    def _map(self, shard: ShardWriter, on_steps: Callable[[int], None], stopped: Stopper) -> None:
        """Write what the function makes of the shard's rows."""
        scalars: dict[str, np.ndarray] = {}
        writers: dict[str, NpyWriter] = {}
        with contextlib.ExitStack() as stack:
            for name, column in self._columns.items():
                full, dtype = (self.shard.steps, *column.shape), np.dtype(column.dtype)
                if column.shape:
                    writers[name] = shard.wide_column(name, full, dtype)
                    stack.callback(writers[name].abandon)
                else:  # which dtype it needs is known when all is seen
                    scalars[name] = np.empty(full, dtype)
            frames = self._frames_writer(shard.directory, stopped) if self._maps_frames else None
            if frames is not None:
                stack.callback(frames.abandon)
            checked = _Checked(self)
            for first in range(0, self.amount, self.call.size):
                remaking.check(stopped)
                stop = min(first + self.call.size, self.amount)
                checked.read(stop)
                rows = self._returned(np.arange(first, stop))
                if frames is not None:
                    frames.write(rows[OBSERVATION], first)
                steps = max(0, min(stop, self.shard.steps) - first)
                for name, values in scalars.items():
                    values[first : first + steps] = rows[name][:steps]
                for name, writer in writers.items():
                    writer.write(rows[name][:steps], first)
                on_steps(stop - first)
            checked.finish()
            for name, values in scalars.items():
                shard.column(name, values)
            shard.keep({f"{name}.npy": writer.close() for name, writer in writers.items()})
            if frames is not None:
                shard.keep(frames.close())
            stack.pop_all()

    def _frames_writer(self, directory: pathlib.Path, stopped: Stopper) -> Any:
        """Begin the mapped frames, having mapped those that the codec wants to see before all others."""
        shape, dtype = self._mapped
        wanted = self.writes.sampled(self.frames, shape, dtype)
        samples = np.empty((len(wanted), *shape), dtype)
        for first in range(0, len(wanted), self.call.size):
            remaking.check(stopped)
            stop = min(first + self.call.size, len(wanted))
            samples[first:stop] = self._returned(wanted[first:stop])[OBSERVATION]
        return self.writes.Writer(directory, self.frames, shape, dtype, samples=samples, threads=self.threads)

    def _returned(self, frames: np.ndarray) -> dict[str, np.ndarray]:
        return self.call.rows(self.number, frames, self.outputs)

    @property
    def _maps_frames(self) -> bool:
        return OBSERVATION in self.outputs

    @property
    def _columns(self) -> dict[str, store.ColumnRecord]:
        return {name: output for name, output in self.outputs.items() if name != OBSERVATION}

    @property
    def _mapped(self) -> tuple[tuple[int, ...], np.dtype]:
        return self.outputs[OBSERVATION].shape, np.dtype(self.outputs[OBSERVATION].dtype)


class _Checked:
    """Reads the file of a shard's raw frames a little ahead of them, and checks it.

    What the frames are taken from is a map, which is not checked, and which the system does not read ahead.
    """

    def __init__(self, job: _Job):
        self._frames, self._frame_bytes = job.frames, job.frame.bytes
        self._read = self._bytes = 0
        self._pieces: Iterator[bytes] = iter(())
        if job._maps_frames and job.reads is raw:
            (name,) = raw.files()
            self._bytes = job.shard.files[name].bytes
            self._pieces = remaking.pieces(job.place / name, job.shard.files[name])

    def read(self, stop: int) -> None:
        """Read up to frame `stop`."""
        while self._read < self._bytes - (self._frames - stop) * self._frame_bytes:
            self._read += len(next(self._pieces))

    def finish(self) -> None:
        """Read what is left; raise DatasetError if the file is not what it was when it was made."""
        for _ in self._pieces:
            pass


def _check_reader(reader: Reader) -> None:
    if not isinstance(reader, Reader):
        raise ArgumentError(f"reader is {reader!r}, expected what atarirb.open returns")
    if len(reader.selected) != len(reader.episodes):
        raise ArgumentError(
            f"the reader has a selection: {len(reader.selected):,} of {len(reader.episodes):,} episodes; a "
            f"dataset is mapped whole, and steps and episodes keep their numbers, so select from the new one"
        )
    if not len(reader):
        raise ArgumentError(f"{reader!r} has no steps to map")


def _try(call: Function) -> tuple[dict[str, store.ColumnRecord], np.ndarray | None]:
    """Call the function on the first batch: return what it gives, and its observations, if there are some."""
    shards = call.dataset.manifest.shards
    number, shard = next((number, shard) for number, shard in enumerate(shards) if shard.steps)
    try:
        rows = call.rows(number, np.arange(min(call.size, shard.steps)))
    except FunctionError as error:
        raise MapError(f"{error}; nothing was written", {shard.split: error}) from error
    return described(rows), rows.get(OBSERVATION)


def _how(reader: Reader, size: int, outputs: Mapping[str, store.ColumnRecord]) -> str:
    """Say how the function is called and what it returns: all that can be known of a map."""
    options = reader._options
    given = [f"frame_stack={options.frame_stack}", f"columns={','.join(options.columns)}"]
    if "return_to_go" in options.columns:
        given.append(f"gamma={float(options.gamma)}")
    given += [f"output={options.output}", f"batch_size={size}"]
    returned = [f"{name} {spell(output)}" for name, output in outputs.items()]
    return f"({', '.join(given)}) -> {', '.join(returned)}"


def _of(reader: Reader, number: int) -> str:
    """Return the CRC-32 of the records of all shards that a mapped one depends on.

    A stack may reach into those before its own; only what a step will yet bring, into those behind.
    """
    shards = reader._dataset.manifest.shards
    if not {"return_to_go", "undiscounted_return_to_go"} & set(reader._options.columns):
        shards = shards[: number + 1]
    content = json.dumps([dataclasses.asdict(shard) for shard in shards], sort_keys=True)
    return f"{zlib_ng.crc32(content.encode()):08x}"


def _uncounted(_: int) -> None:
    pass
