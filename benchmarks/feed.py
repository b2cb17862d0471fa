"""How well a training loop is fed: whether it waits, and for what, beside what people use today.

The training step is `benchmarks.learner`'s, an update of a small Q-network by 256 transitions, as deep as
makes it take 10 ms here when it is fed one batch in memory again and again. XLA's threads and those that
make batches share this machine's cores: where an accelerator computes, they do not. A loop's waiting is
the time inside `next`; its length is that of all steps, and has in it what else batches cost: cores, the
GIL, memory that is given back. A few steps go before, so that all is steady.

    waiting, prefetch=2: part of a loop that waits for each step, and of one that does not   <= 3 %
    `set_state` to batch 10^9                                                                < 10 ms
    a sample of 1 % of the steps, against one of all                                         <= 1.2
    opening 300 runs of 51 M steps and mixing them, in a fresh process                       < 5 s, < 2 GB
    a sample of those, against one of a single such run                                      <= 1.5

The 300 runs are one run under 300 names: 51 shards of a million steps, whose frames and columns are holes
in files. For the process each name is a run of its own, with maps and episodes of its own: only the
system's cache holds its pages once. Runs are drawn from in turn with the single one, in three states:
right after opening; with columns mapped, as they are after a while, and frames never touched; and steps
that were drawn before.

Without a bar: the same loop fed by TorchRL's reader and by flashbax, which holds all in memory.

    python -m benchmarks.feed [--quick] [--json FILE]
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import atarirb
from benchmarks import learner
from benchmarks.field import LENGTH, SLICES, B
from benchmarks.learner import Learner, Transitions, transitions
from benchmarks.measure import Contestant, Row, Times, finish, race
from benchmarks.probes import probe
from benchmarks.rivals import FlashbaxReplay, TorchRLReplay
from benchmarks.workload import Workload, command_line

STEP_MS = 10
RUNS = 300
PREFETCH = 2
_JUMP = 10**9
#: Steps of a loop in a round.
_STEPS = 32
#: Steps that go before: a loop that does not wait for them is soon as far ahead as JAX lets it be, 32 steps.
_LEAD = {True: 3, False: 64}
#: Batches drawn before, which come again: too many for the processor's caches.
_AGAIN = 20
#: Keys, each of which is drawn with in one race alone: what another one drew would be mapped.
_KEYS = itertools.count()


class Loop:
    """A training loop, as a contestant: each call makes some steps, after others that do not count.

    Args:
        trained: The learner, which all loops of a race share.
        take: Returns the next batch.
        waits: It waits for each step, as one does that reads the loss.
        steps: Steps of a call.
        step: Begins a step with it; by default it is a batch of atarirb's.
    """

    def __init__(
        self,
        trained: Learner,
        take: Callable[[], Any],
        *,
        waits: bool = True,
        steps: int = _STEPS,
        step: Callable[[Any], Any] | None = None,
    ):
        self._trained, self._take, self._waits, self._steps = trained, take, waits, steps
        self._lead = min(_LEAD[waits], 2 * steps)
        self._step = (lambda batch: trained(transitions(batch))) if step is None else step
        self._shares: list[float] = []

    def __call__(self, _: int) -> Callable[[], None]:
        self._trained.wait()  # for what another loop began
        self._run(self._lead)
        return self._counted

    def share(self, rounds: int) -> float:
        """Return the part of its time that it waited for data: the median of so many rounds, in %."""
        return 100 * statistics.median(self._shares[-rounds:])

    def _counted(self) -> None:
        start = time.perf_counter()
        waited = self._run(self._steps)
        self._shares.append(waited / (time.perf_counter() - start))

    def _run(self, steps: int) -> float:
        waited, batch = 0.0, None
        for _ in range(steps):
            start = time.perf_counter()
            drawn = self._take()
            waited += time.perf_counter() - start
            batch = drawn  # the one before goes here, where nobody waits for data
            self._step(batch)
            if self._waits:
                self._trained.wait()
        return waited


def learners(workload: Workload) -> dict[int, tuple[Learner, Transitions]]:
    """Make a learner for single frames and one for stacks of 4, and a batch in memory for each."""
    made = {}
    for stack in (1, 4):
        with atarirb.open(workload.dataset(), frame_stack=stack, output="jax") as reader:
            example = transitions(reader.sample(0, _size(workload)))
        trained = Learner(1, example) if workload.quick else learner.calibrated(STEP_MS, example)
        made[stack] = trained, example
    return made


def _size(workload: Workload) -> int:
    return 32 if workload.quick else B


def waiting(workload: Workload, trained: Learner, example: Transitions, stack: int) -> list[Row]:
    """Measure how long training loops wait for batches."""
    what = f"the step alone, {trained.depth} layers, frame_stack={stack}"
    rows = [Row(what=what, ours=learner.step_ms(trained, example), unit="ms")]
    for codec in ("raw", "packed"):
        with contextlib.ExitStack() as opened:
            reader = opened.enter_context(
                atarirb.open(workload.dataset(codec), frame_stack=stack, output="jax")
            )
            feeds = {
                depth: opened.enter_context(reader.batches(_size(workload), key=0, prefetch=depth))
                for depth in (PREFETCH, 0)
            }
            for waits in (True, False):
                what = f"{codec}, frame_stack={stack}{'' if waits else ', steps not waited for'}"
                rows += _waiting(what, trained, example, feeds, waits=waits, quick=workload.quick)
    return rows


def _waiting(
    what: str,
    trained: Learner,
    example: Transitions,
    feeds: dict[int, Iterator[Any]],
    *,
    waits: bool,
    quick: bool,
) -> list[Row]:
    rounds, steps = (1, 2) if quick else (7 if waits else 5, _STEPS)
    memory, ahead, now = "one batch in memory", f"prefetch={PREFETCH}", "prefetch=0"
    options = {"waits": waits, "steps": steps}
    loops = {
        memory: Loop(trained, lambda: example, step=trained, **options),
        ahead: Loop(trained, lambda: next(feeds[PREFETCH]), **options),
        now: Loop(trained, lambda: next(feeds[0]), **options),
    }
    times = race(loops, rounds=rounds)

    def length(loop: str, rival: str) -> Row:
        return Row(
            what=f"loop, {loop}, {what}",
            ours=times.ms(loop) / steps,
            unit="ms",
            rival=rival,
            theirs=times.ms(rival) / steps,
            ratio=times.ratio(loop, rival),
        )

    return [
        Row(
            what=f"waiting, {ahead}, {what}",
            ours=loops[ahead].share(rounds),
            unit="%",
            rival=now,
            theirs=loops[now].share(rounds),
            bar="<= 3",
        ),
        length(ahead, memory),
        length(now, memory),
    ]


def jumps(workload: Workload, rounds: int) -> list[Row]:
    """Measure going to a batch far away, while batches are made ahead."""
    with atarirb.open(workload.dataset()) as reader:
        size = _size(workload)
        with (
            reader.batches(size, key=0, prefetch=PREFETCH) as ahead,
            reader.batches(size, key=0, prefetch=0) as now,
        ):
            state = ahead.get_state()

            def jump(seed: int) -> Callable[[], Any]:
                epoch, number = divmod(_JUMP + seed, ahead.batches_per_epoch)
                next(ahead)
                return lambda: ahead.set_state({**state, "epoch": epoch, "batch": number})

            def after(seed: int) -> Callable[[], Any]:
                jump(seed)()
                return lambda: next(ahead)

            times = race(
                {"jump": jump, "after": after, "now": lambda _: lambda: next(now)}, rounds=rounds, calls=5
            )
    return [
        Row(what="set_state to batch 10^9", ours=times.ms("jump"), unit="ms", bar="< 10"),
        Row(
            what=f"the next batch after it, prefetch={PREFETCH}",
            ours=times.ms("after"),
            unit="ms",
            rival="any batch, prefetch=0",
            theirs=times.ms("now"),
            ratio=times.ratio("after", "now"),
        ),
    ]


def parts(reader: atarirb.Reader, of: str, rounds: int, draw: Callable[[Any], Contestant]) -> list[Row]:
    """Measure samples of a hundredth of the steps, chosen in two ways."""
    mask = np.zeros(len(reader.episodes), np.bool_)
    mask[:: 100 if len(mask) >= 100 else len(mask)] = True
    ways = {"fraction=0.01": reader.select(fraction=0.01, key=0), "a mask": reader.select(mask)}
    whole = "a sample of all"
    times = race(
        {whole: draw(reader)} | {way: draw(part) for way, part in ways.items()}, rounds=rounds, calls=5
    )
    return [times.row(f"sample(int, {B}), 1 % of {of} by {way}", way, whole, bar="<= 1.2") for way in ways]


def _sample(sampler: Any, rows: int = B) -> Contestant:
    def contestant(_: int) -> Callable[[], Any]:
        key = next(_KEYS)
        return lambda: sampler.sample(key, rows)

    return contestant


def _slices(sampler: Any) -> Contestant:
    def contestant(_: int) -> Callable[[], Any]:
        key = next(_KEYS)
        return lambda: sampler.sample_slices(key, SLICES, LENGTH)

    return contestant


def many(workload: Workload, rounds: int) -> list[Row]:
    """Measure opening and drawing from a mixture of many runs."""
    runs = 4 if workload.quick else RUNS
    sparse = workload.sparse()
    try:
        with workload.scratch("runs") as folder:
            for number in range(runs):
                (folder / str(number)).symlink_to(sparse)
            return [*_opening(folder, runs, workload), *_drawing(sparse, folder, runs, rounds)]
    finally:
        shutil.rmtree(sparse)


def _opening(folder: Path, runs: int, workload: Workload) -> list[Row]:
    found = [probe("opening_runs", folder) for _ in range(1 if workload.quick else 3)]
    what = f"open {runs} runs and mix them"
    last = found[-1]
    return [
        Row(what=what, ours=statistics.median(run["seconds"] for run in found), unit="s", bar="< 5"),
        Row(what=f"{what}: memory", ours=max(run["peak_mb"] for run in found), unit="MB", bar="< 2000"),
        Row(
            what=f"{what}: files open",
            ours=last["descriptors"],
            unit="",
            rival="ulimit -n",
            theirs=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        ),
        Row(
            what=f"{what}: maps",
            ours=last["maps"],
            unit="",
            rival="vm.max_map_count",
            theirs=int(Path("/proc/sys/vm/max_map_count").read_text()),
            ratio=last["maps"] / int(Path("/proc/sys/vm/max_map_count").read_text()),
        ),
    ]


def _drawing(sparse: Path, folder: Path, runs: int, rounds: int) -> list[Row]:
    single = atarirb.open(sparse)
    readers = {path.name: atarirb.open(path) for path in sorted(folder.iterdir())}
    mixture, stacked = atarirb.mix(readers), atarirb.mix(readers, stacked=True)
    try:
        what, one = f"{runs} runs", "one run"
        rows = B // runs * runs or runs

        def turns(mixed: Contestant, alone: Contestant, calls: int = 5) -> Times:
            return race({what: mixed, one: alone}, rounds=rounds, calls=calls)

        fresh = race({what: _sample(mixture), one: _sample(single)}, rounds=rounds // 4 + 1, calls=3)
        for reader in (single, *readers.values()):
            _touch_columns(reader)
        drawn = turns(_sample(mixture), _sample(single))
        again = turns(_again(mixture), _again(single))
        order = turns(*(_next(sampler) for sampler in (mixture, single)))
        slices = turns(*(_slices(sampler) for sampler in (mixture, single)), calls=2)
        apart = turns(_sample(stacked, rows), _sample(single, rows), calls=3)
        return [
            drawn.row(f"sample(int, {B}), {what}", what, one, bar="<= 1.5"),
            again.row(f"sample(int, {B}), {what}, steps drawn before", what, one),
            fresh.row(f"sample(int, {B}), {what}, right after opening", what, one),
            order.row(f"a batch of batches({B}), {what}", what, one),
            slices.row(f"sample_slices(int, {SLICES}, {LENGTH}), {what}", what, one),
            apart.row(f"sample(int, {rows}), {what}, stacked", what, one),
            *parts(single, f"{len(single) / 1e6:.0f} M steps, drawn before", rounds, _again),
        ]
    finally:
        for sampler in (mixture, stacked, single, *readers.values()):
            sampler.close()


def _touch_columns(reader: atarirb.Reader) -> None:
    """Have the columns that batches need mapped whole, as they are in a process that has run a while."""
    for name in ("action", "reward"):
        for column in reader._opened().columns[name]:
            column[:: 1 << 12].max()


def _again(sampler: Any) -> Contestant:
    keys = list(itertools.islice(_KEYS, _AGAIN))
    for key in keys:
        sampler.sample(key, B)
    turn = itertools.cycle(keys)

    def contestant(_: int) -> Callable[[], Any]:
        key = next(turn)
        return lambda: sampler.sample(key, B)

    return contestant


def _next(sampler: Any) -> Contestant:
    batches = sampler.batches(B, key=0, prefetch=0)
    return lambda _: lambda: next(batches)


def side_by_side(workload: Workload, trained: Learner, example: Transitions) -> list[Row]:
    """Measure the same training loop, fed by atarirb and by others."""
    batch_size, (rounds, steps) = _size(workload), (1, 2) if workload.quick else (7, _STEPS)
    alone, name = "the step alone", "atarirb"
    with contextlib.ExitStack() as opened:
        reader = opened.enter_context(atarirb.open(workload.dataset(), output="jax"))
        feed = opened.enter_context(reader.batches(batch_size, key=0, prefetch=PREFETCH))
        loops = {
            alone: Loop(trained, lambda: example, step=trained, steps=steps),
            name: Loop(trained, lambda: next(feed), steps=steps),
        }
        rivals, absent = {}, []
        for package, make in (("torchrl", _torchrl_loops), ("flashbax", _flashbax_loops)):
            if importlib.util.find_spec(package):
                rivals[package] = make(workload, trained, batch_size, steps)
                loops |= rivals[package]
            else:
                absent.append(package)
        times = race(loops, rounds=rounds, rest=0.02)

    def rate(loop: str) -> float:
        return 1e3 * steps / times.ms(loop)

    def row(rival: str) -> Row:
        return Row(
            what=f"training steps of {batch_size} pairs, fed by atarirb",
            ours=rate(name),
            unit="/s",
            rival=rival,
            theirs=rate(rival),
            ratio=times.ratio(rival, name),  # of rates, ours / theirs
        )

    best = [min(found, key=times.ms) for found in rivals.values()]
    return [
        row(alone),
        *map(row, best),
        *(Row(what=row(alone).what, ours=None, unit="/s", rival=f"{one}: not installed") for one in absent),
    ]


def _torchrl_loops(workload: Workload, trained: Learner, batch_size: int, steps: int) -> dict[str, Loop]:
    """Make loops fed by TorchRL's reader: with its prefetching or not, with one thread or its default."""
    import torch

    log = workload.logs()
    replay = TorchRLReplay(log, workload.root / "torchrl" / log.parent.parent.name)
    if not replay.is_preprocessed():
        replay.preprocess()
    loops = {}
    for prefetch in (0, PREFETCH):
        take = replay.pairs(batch_size, prefetch=prefetch, gamma=learner.GAMMA)
        for threads in {1, torch.get_num_threads()}:

            def set_and_take(take: Any = take, threads: int = threads) -> Transitions:
                torch.set_num_threads(threads)
                return take()

            loops[f"TorchRL, prefetch={prefetch or None}, threads: {threads}"] = Loop(
                trained, set_and_take, step=trained, steps=steps
            )
    return loops


def _flashbax_loops(workload: Workload, trained: Learner, batch_size: int, steps: int) -> dict[str, Loop]:
    """Make loops fed by flashbax: by a call of its own, and inside the step's."""
    import jax

    with atarirb.open(workload.dataset()) as reader:
        replay = FlashbaxReplay(reader, batch_size, gamma=learner.GAMMA)
    keys = iter(jax.random.split(jax.random.key(0), 1 << 14))
    sample = jax.jit(replay.pairs)
    both = jax.jit(lambda state, held, key: trained.update(state, replay.pairs(held, key)), donate_argnums=0)
    return {
        "flashbax, a call to sample": Loop(
            trained, lambda: sample(replay.state, next(keys)), step=trained, steps=steps
        ),
        "flashbax, sampled in the step": Loop(
            trained,
            lambda: next(keys),
            steps=steps,
            step=lambda key: trained.through(both, replay.state, key),
        ),
    }


def measure(workload: Workload) -> list[Row]:
    """Measure all."""
    rounds = 2 if workload.quick else 21
    if absent := learner.missing():
        rows = [Row(what="training loops", ours=None, unit="ms", rival=f"{', '.join(absent)}: not installed")]
    else:
        made = learners(workload)
        rows = [
            row
            for stack, (trained, example) in made.items()
            for row in waiting(workload, trained, example, stack)
        ]
        rows += side_by_side(workload, *made[1])
    gc.collect()
    with atarirb.open(workload.dataset()) as reader:
        for first in range(0, len(reader), B):
            reader.get(slice(first, first + B))  # all pages are mapped
        rows += parts(reader, f"{len(reader):,} steps", rounds, _sample)
    return [*rows, *jumps(workload, rounds), *many(workload, rounds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.feed", "Measure how well a training loop is fed.", argv)
    return finish("Feeding a training loop", measure(workload), path, quick=workload.quick, notes=_NOTES)


_NOTES = (
    "Waiting: time inside next, of the whole loop's. The runs that are mixed are one run of holes in files, "
    "opened under many names; its frames were not touched before, but for steps drawn before. The hundredth "
    "of the smaller dataset fits the processor's cache, all of it does not; of the larger one, as many "
    "frames of either are drawn again and again.",
)

if __name__ == "__main__":
    sys.exit(main())
