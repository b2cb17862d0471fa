"""What must be measured in a process of its own: peak memory, imports, a first batch.

`probe` runs one of the functions below in a fresh interpreter and returns its answer. Peak memory is Linux's
VmHWM, the high-water mark of this process' own resident memory. (`ru_maxrss` is not: after fork and exec it
begins at what the parent had.) Nothing is imported here that the measured code does not import anyway.

    python -m benchmarks.probes first_batch build/bench/data/Seaquest/1
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_READ = 1 << 20


def probe(
    name: str, *args: object, env: dict[str, str] | None = None, module: str = "benchmarks.probes"
) -> dict[str, Any]:
    """Run a function of this module in a fresh interpreter.

    Args:
        name: Its name.
        *args: Its arguments, given as text.
        env: Additions to the environment.
        module: Another module that, run as this one is, prints what the function returns.

    Returns:
        Its answer, and `process_s`, the seconds from the process' start to its end.

    Raises:
        RuntimeError: It failed; the message holds what it wrote.
    """
    start = time.perf_counter()
    done = subprocess.run(
        command(name, *args, module=module),
        cwd=Path(__file__).parents[1],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"the probe {name} failed:\n{done.stderr}")
    return {**json.loads(done.stdout.splitlines()[-1]), "process_s": took}


def command(name: object, *args: object, module: str = "benchmarks.probes") -> list[str]:
    """Return the command that runs a function of this module."""
    return [sys.executable, "-m", module, *map(str, (name, *args))]


def memory(field: str) -> float:
    """Return a figure of this process' memory in MB (10**6 bytes).

    VmRSS is what it has now, RssAnon what of that is no file's, VmHWM the peak.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise OSError(f"/proc/self/status has no {field}")


def _import_kernels() -> None:
    """Import what packing imports when it begins."""
    from atarirb import kernels

    kernels.active()


def first_batch(path: str) -> dict[str, float]:
    """Import atarirb, open a dataset and draw a batch of 256."""
    start = time.perf_counter()
    import atarirb

    reader = atarirb.open(path)
    opened = time.perf_counter()
    reader.sample(0, 256)
    return {"open_s": opened - start, "seconds": time.perf_counter() - start}


def opening(path: str) -> dict[str, float]:
    """Open a dataset; the memory is what it takes beside the imports."""
    import atarirb

    open_dataset, before = atarirb.open, memory("VmRSS")
    start = time.perf_counter()
    reader = open_dataset(path)
    took = time.perf_counter() - start
    assert len(reader)
    return {"seconds": took, "mb": memory("VmRSS") - before}


def opening_runs(folder: str) -> dict[str, float]:
    """Open all datasets in a folder and mix them; the memory is the whole process'."""
    import atarirb

    start = time.perf_counter()
    mixture = atarirb.mix({path.name: atarirb.open(path) for path in Path(folder).iterdir()})
    took = time.perf_counter() - start
    assert len(mixture)
    with open("/proc/self/maps", "rb") as maps:
        held = sum(1 for _ in maps)
    return {
        "seconds": took,
        "peak_mb": memory("VmHWM"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": held,
    }


def ingest(log: str, out: str, workers: str, codec: str = "packed") -> dict[str, float]:
    """Make a dataset of a log; `workers` 0 is the default number."""
    import fsspec.core
    import fsspec.implementations.local
    import tqdm

    import atarirb

    assert fsspec.core and tqdm
    if codec == "packed":
        _import_kernels()
    if log.startswith("gs://"):
        import atarirb.sources.gcs

        assert atarirb.sources.gcs
    run, imports = atarirb.ingest, memory("VmHWM")
    start = time.perf_counter()
    info = run(log, out, workers=int(workers) or None, codec=codec)
    took = time.perf_counter() - start
    return {"seconds": took, "steps": info.steps, "imports_mb": imports, "peak_mb": memory("VmHWM")}


def ingest_by_dask(log: str, out: str, workers: str, codec: str) -> dict[str, float]:
    """Make a dataset of a log by a Dask cluster of this machine; its start is timed apart."""
    import fsspec.core
    import fsspec.implementations.local
    import tqdm

    import atarirb
    from atarirb import cluster

    assert fsspec.core and tqdm
    run, begin = atarirb.ingest, time.perf_counter()
    with cluster.connected("local", int(workers)) as executor:
        import distributed

        distributed.default_client().run(_import_worker)
        start = time.perf_counter()
        info = run(log, out, executor=executor, codec=codec)
        took = time.perf_counter() - start
    return {"seconds": took, "steps": info.steps, "start_s": start - begin}


def _import_worker() -> None:
    """Import in a worker what its first job imports."""
    import atarirb.ingestion.copying

    assert atarirb.ingestion.copying
    _import_kernels()


def copied(uri: str, out: str, workers: str, codec: str, place: str) -> dict[str, float]:
    """Copy a log from a bucket to disk, then make a dataset of the copy."""
    from gcsfs.core import GCSFileSystem

    import atarirb

    _import_kernels()
    filesystem = GCSFileSystem(token="anon", endpoint_url=os.environ["STORAGE_EMULATOR_HOST"])
    start = time.perf_counter()
    filesystem.get(uri, place, recursive=True)
    info = atarirb.ingest(place, out, workers=int(workers) or None, codec=codec, name="Seaquest/1")
    took = time.perf_counter() - start
    return {"seconds": took, "steps": info.steps, "peak_mb": memory("VmHWM")}


def convert(source: str, out: str, codec: str) -> dict[str, float]:
    """Make a dataset of another one."""
    import atarirb

    _import_kernels()
    run, imports = atarirb.convert, memory("VmHWM")
    start = time.perf_counter()
    info = run(source, out, codec=codec)
    took = time.perf_counter() - start
    return {"seconds": took, "steps": info.steps, "imports_mb": imports, "peak_mb": memory("VmHWM")}


def record(game: str, out: str, steps: str) -> dict[str, float]:
    """Record random play, by the defaults."""
    import ale_py.vector_env

    import atarirb

    run = atarirb.record
    assert ale_py.vector_env
    _import_kernels()
    start = time.perf_counter()
    info = run(game, out, steps=int(steps))
    took = time.perf_counter() - start
    return {"seconds": took, "steps": info.steps, "peak_mb": memory("VmHWM")}


def play(game: str, steps: str) -> dict[str, float]:
    """Play at random with ale-py's vector environment, as `atarirb.record` does, and keep nothing."""
    import ale_py
    import numpy as np
    from ale_py.vector_env import AtariVectorEnv

    from atarirb import catalog
    from atarirb.threads import cores

    count, wanted = 4 * cores(), int(steps)
    rom = catalog.game(game).rom
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    environments = AtariVectorEnv(
        rom,
        count,
        num_threads=cores(),
        stack_num=1,
        frameskip=4,
        repeat_action_probability=0.25,
        noop_max=0,
        use_fire_reset=False,
        episodic_life=False,
        reward_clipping=False,
    )
    environments.reset(seed=0)
    actions = environments.single_action_space.n
    played, over = 0, np.zeros(count, bool)
    while played < wanted:
        _, _, terminated, truncated, _ = environments.step(rng.integers(actions, size=count))
        played += count - int(over.sum())
        over = terminated | truncated
    took = time.perf_counter() - start
    return {"seconds": took, "steps": played, "peak_mb": memory("VmHWM")}


def torchrl(log: str, scratch: str) -> dict[str, float]:
    """Preprocess a log with TorchRL."""
    from benchmarks.rivals import TorchRLReplay

    replay, imports = TorchRLReplay(log, scratch), memory("VmHWM")
    start = time.perf_counter()
    replay.preprocess()
    took = time.perf_counter() - start
    return {"seconds": took, "imports_mb": imports, "peak_mb": memory("VmHWM")}


def gunzip(path: str, library: str) -> dict[str, float]:
    """Decompress a file to nowhere, a megabyte at a time."""
    if library == "gzip":
        from gzip import open as opened
    elif library == "isal":
        from isal.igzip import open as opened
    else:
        from zlib_ng.gzip_ng import open as opened
    buffer = memoryview(bytearray(_READ))
    start = time.perf_counter()
    size = 0
    with opened(path, "rb") as file:
        while count := file.readinto(buffer):
            size += count
    took = time.perf_counter() - start
    return {"seconds": took, "bytes": size, "peak_mb": memory("VmHWM")}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
