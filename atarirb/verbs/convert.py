"""Convert: a dataset becomes one that keeps its frames by another codec.

All that a reader gives stays as it was: the columns, segments and episodes are the same files, and the
frames the same values (`atarirb.verbs.remaking`).
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from concurrent.futures import Executor

from atarirb import home, jobs
from atarirb.arguments import positive
from atarirb.errors import ConvertError, DatasetError
from atarirb.info import DatasetInfo, describe
from atarirb.store import building, codecs
from atarirb.store.episodes import read_tables
from atarirb.store.npy import header
from atarirb.threads import cores
from atarirb.verbs import remaking


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    codec: str,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: bool = False,
) -> DatasetInfo:
    """Make a dataset of another one, with its frames kept by another codec.

    An interrupted convert goes on by the same call, and ends with the same bytes.

    Args:
        source: The dataset to read: its directory, or its name in the home (`atarirb.home`).
        out: The new dataset's directory; made if need be.
        codec: How frames are to be kept: "packed" or "raw". If they already are, "raw" gives a checked
            copy, and "packed" packs them anew.
        workers: Shards converted at a time; None for one per core.
        executor: Who converts them instead of threads of this process; see `atarirb.ingest`.
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
    jobs.check_executor(executor, workers)
    kind = codecs.codec(codec)
    origin, directory = home.locate(source), pathlib.Path(out)
    manifest, episodes = read_tables(origin)
    remaking.refuse_same(origin, directory, "converted")
    if manifest.codec not in codecs.CODECS:
        raise DatasetError(
            f"{origin}: frames kept as {manifest.codec!r}, this atarirb reads {', '.join(codecs.CODECS)}"
        )
    with building.exclusive(directory) as work:
        held = building.held(
            directory, manifest.name, manifest.layout, kind.NAME, mapped=building.mapped(manifest.shards[0])
        )
        building.refuse_strange(directory, held, [shard.split for shard in manifest.shards], origin)
        shards = remaking.make_shards(
            "convert",
            [
                remaking.Job(
                    origin=origin.absolute(),
                    directory=directory,
                    frame=manifest.frame,
                    shard=shard,
                    codec=manifest.codec,
                    wanted=kind.NAME,
                    threads=1 if executor is not None else max(1, threads // len(manifest.shards)),
                )
                for shard in manifest.shards
            ],
            held,
            work,
            threads=threads,
            executor=executor,
            unit="B",
            progress=progress,
            error=ConvertError,
            advice="Mend that dataset, from its source,",
        )
        made = dataclasses.replace(manifest, codec=kind.NAME, parameters=kind.PARAMETERS, shards=shards)
        building.put_manifest(directory, made, header(episodes.shape, episodes.dtype) + episodes.tobytes())
    return describe(out, made, episodes)
