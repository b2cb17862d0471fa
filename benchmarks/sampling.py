"""How fast batches come: against the memory's own speed, and against what people use today.

The data are 120,000 steps of ALE play in about 50 shards of raw frames, all of it in the system's cache, read
in order and touched before. (Packed ones are for `benchmarks.packed`.) The floors are plain NumPy over one
array in memory that holds the same frames, moving as many bytes:

    get(256)               two numpy.take(frames, index, axis=0, out=...)             <= 0.7
    sample(key, 256)       the same two                                               <= 1
    get(256), stack 4      numpy.copyto of both outputs, nothing gathered             <= 2.5
    sample_slices(16, 64)  one numpy.take of as many frames (16 x 65)                 <= 0.7

numpy.take with `out=` copies through a buffer unless mode is "clip"; that one's figures are shown too. Every
call gets steps of its own, so that no cache helps. Beside these:

    opening                                                                           < 50 ms
    import, open and a first batch in a fresh process, kernels cached on disk         < 2 s
    opening 360 GB (51 shards of 1,000,000 steps): time and memory beside imports     < 0.2 s, < 200 MB
    sample(key, 256) against TorchRL's sample(256) of the same log in as many splits  <= 0.01

Without a bar: kernels that cannot be cached, TorchRL with one split and its slices, gathering item by item as
Dopamine does.

    python -m benchmarks.sampling [--quick] [--json FILE]
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atarirb
from benchmarks.field import LENGTH, SLICES, B, Field
from benchmarks.measure import Contestant, Row, finish, race
from benchmarks.probes import probe
from benchmarks.rivals import DopamineGather, TorchRLReplay
from benchmarks.workload import Workload, command_line


def pairs(field: Field, rounds: int) -> list[Row]:
    """Measure batches of pairs."""
    floor, clip = "two numpy.take", 'two numpy.take, mode="clip"'
    contestants = {
        floor: field.take("raise"),
        clip: field.take("clip"),
        "get": field.get(field.reader),
        "sample": field.sample,
    }
    if importlib.util.find_spec("jax"):
        import jax

        def with_jax_key(seed: int) -> Any:
            key = jax.block_until_ready(jax.random.key(seed))
            return lambda: field.reader.sample(key, B)

        contestants["jax"] = with_jax_key
    times = race(contestants, rounds=rounds, calls=10)
    rows = [
        times.row(f"get({B})", "get", floor, bar="<= 0.7"),
        times.row(f"get({B})", "get", clip),
        times.row(f"sample(int, {B})", "sample", floor, bar="<= 1"),
        times.row(f"sample(int, {B})", "sample", clip),
    ]
    return rows + (
        [times.row(f"sample(JAX key, {B})", "jax", floor, bar="<= 1")] if "jax" in contestants else []
    )


def stacks(field: Field, rounds: int) -> list[Row]:
    """Measure batches of stacked pairs."""
    rival, dopamine = "numpy.copyto of both outputs", "item by item, as Dopamine"
    shape = (B, *field.frames.shape[1:], 4)
    sources, targets = ([np.ones(shape, np.uint8) for _ in range(2)] for _ in range(2))
    gather = DopamineGather(field.frames, field.action, field.reward, field.terminal)

    def copy(_: int) -> Any:
        return lambda: [np.copyto(target, source) for target, source in zip(targets, sources, strict=True)]

    def items(seed: int) -> Any:
        index = field.steps(seed)
        return lambda: gather.get(index)

    get = field.get(field.stacked)
    times = race({rival: copy, "get": get}, rounds=rounds, calls=10)
    slow = race({dopamine: items, "get": get}, rounds=rounds // 4 + 1, calls=2)
    return [
        times.row(f"get({B}), frame_stack=4", "get", rival, bar="<= 2.5"),
        slow.row(f"get({B}), frame_stack=4", "get", dopamine),
    ]


def slices(field: Field, rounds: int) -> list[Row]:
    """Measure slices."""
    floor, clip = "numpy.take of the same frames", 'numpy.take, mode="clip"'

    def ours(seed: int) -> Any:
        return lambda: field.reader.sample_slices(seed, SLICES, LENGTH)

    contestants = {floor: field.take_runs("raise"), clip: field.take_runs("clip"), "slices": ours}
    times = race(contestants, rounds=rounds, calls=10)
    what = f"sample_slices(int, {SLICES}, {LENGTH})"
    return [times.row(what, "slices", floor, bar="<= 0.7"), times.row(what, "slices", clip)]


def opening(field: Field, workload: Workload, rounds: int) -> list[Row]:
    """Measure opening, and the first batch of a fresh process."""
    opened = race({"open": lambda _: lambda: atarirb.open(field.path)}, rounds=rounds)
    probe("first_batch", field.path)  # caches the kernels
    fresh = [probe("first_batch", field.path)["seconds"] for _ in range(1 if workload.quick else 5)]
    rows = [
        Row(what="open", ours=opened.ms("open"), unit="ms", bar="< 50"),
        Row(what="import, open, first batch", ours=statistics.median(fresh), unit="s", bar="< 2"),
    ]
    if not workload.quick:
        # The directory cannot be made, and numba may not fall back to another one.
        nowhere = {
            "NUMBA_CACHE_DIR": str(Path(__file__) / "cache"),
            "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
        }
        took = probe("first_batch", field.path, env=nowhere)["seconds"]
        rows.append(Row(what="the same, kernels not cached", ours=took, unit="s"))
    sparse = workload.sparse()
    size = sum(path.stat().st_size for path in sparse.rglob("*.npy"))
    got = [probe("opening", sparse) for _ in range(1 if workload.quick else 3)]
    shutil.rmtree(sparse)
    what = f"open {size / 1e9:,.0f} GB"
    return [
        *rows,
        Row(what=what, ours=statistics.median(run["seconds"] for run in got), unit="s", bar="< 0.2"),
        Row(what=f"{what}, memory", ours=max(run["mb"] for run in got), unit="MB", bar="< 200"),
    ]


def torchrl(field: Field, workload: Workload, rounds: int) -> list[Row]:
    """Measure TorchRL's reader of the same log, and of one that is a single split."""
    what = f"sample(int, {B})"
    if not importlib.util.find_spec("torchrl"):
        return [Row(what=what, ours=None, unit="ms", rival="TorchRL: not installed")]
    import torch

    contestants: dict[str, Contestant] = {"sample": field.sample}
    logs: dict[int, list[str]] = {}
    # Its default, a thread a core, collapses on a busy machine, where its threads wait for each other: the
    # better of that and a single thread counts.
    threads_of_torch = torch.get_num_threads()
    for log in (workload.logs(), workload.single()):
        scratch = workload.root / "torchrl" / log.parent.parent.name
        replay = TorchRLReplay(log, scratch)
        if not replay.is_preprocessed():
            replay.preprocess()
        for _ in range(40):
            replay.sample(workload.steps // 20)
        for threads in {1, threads_of_torch}:
            name = f"TorchRL, {replay.n_splits} split{'s' * (replay.n_splits > 1)}, threads: {threads}"
            contestants[name] = _with_threads(replay, threads)
            logs.setdefault(replay.n_splits, []).append(name)
    times = race(contestants, rounds=rounds, calls=10, rest=0.02)
    torch.set_num_threads(threads_of_torch)
    many, one = (min(names, key=times.ms) for names in logs.values())
    return [
        times.row(what, "sample", many, bar="<= 0.01"),
        times.row(what, "sample", one),
        *_torchrl_slices(field, workload, rounds),
    ]


def _torchrl_slices(field: Field, workload: Workload, rounds: int) -> list[Row]:
    """Measure TorchRL's slices, and those of 5: what two neighbouring stacks of 4 need of it."""
    log = workload.logs()
    replay = TorchRLReplay(log, workload.root / "torchrl" / log.parent.parent.name)
    slices, fives = replay.slices(SLICES, LENGTH), replay.slices(B, 5)
    rival, stacks = f"TorchRL, {SLICES} slices of {LENGTH}", f"TorchRL, {B} slices of 5, not yet stacked"
    times = race(
        {
            rival: lambda _: slices,
            stacks: lambda _: fives,
            "slices": lambda seed: lambda: field.reader.sample_slices(seed, SLICES, LENGTH),
            "stacked": lambda seed: lambda: field.stacked.sample(seed, B),
        },
        rounds=rounds,
        calls=5,
        rest=0.02,
    )
    return [
        times.row(f"sample_slices(int, {SLICES}, {LENGTH})", "slices", rival),
        times.row(f"sample(int, {B}), frame_stack=4", "stacked", stacks),
    ]


def _with_threads(replay: TorchRLReplay, threads: int) -> Contestant:
    import torch

    def contestant(_: int) -> Any:
        torch.set_num_threads(threads)
        return lambda: replay.sample(B)

    return contestant


def measure(workload: Workload) -> list[Row]:
    """Measure all."""
    rounds = 3 if workload.quick else 41
    field = Field(workload.dataset())
    return [
        *pairs(field, rounds),
        *stacks(field, rounds),
        *slices(field, rounds),
        *opening(field, workload, rounds),
        *torchrl(field, workload, rounds // 2),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.sampling", "Measure how fast batches come.", argv)
    return finish("Sampling of raw frames", measure(workload), path, quick=workload.quick)


if __name__ == "__main__":
    sys.exit(main())
