"""Ingest, convert and map by the workers of an executor: threads, processes, Dask; also where they die."""

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import atarirb
from atarirb import cli, cluster, errors, jobs, sources, threads
from atarirb.errors import (
    ArgumentError,
    AtarirbError,
    ExecutorError,
    FunctionError,
    IngestError,
    LogError,
    MapError,
)
from atarirb.ingestion import copying
from atarirb.ingestion.copying import Job
from atarirb.ingestion.plan import make_plan
from atarirb.store import attempts, building
from tests.conftest import ROOT
from tests.logs import record

distributed = pytest.importorskip("distributed")

LENGTHS = [30, 45, 20, 60, 33, 50]
SPLITS = 6
KINDS = ("threads", "processes", "dask")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Return a log of six splits."""
    directory = tmp_path_factory.mktemp("log") / "Game/1"
    record(directory, LENGTHS, 50)
    return directory


@pytest.fixture(scope="module")
def expected(log, codec, tmp_path_factory):
    """Return the dataset that threads of this process make of it."""
    out = tmp_path_factory.mktemp("expected") / codec
    atarirb.ingest(log, out, codec=codec)
    return out


@pytest.fixture(scope="module")
def processes():
    with new_processes() as pool:
        yield pool


@pytest.fixture(scope="module")
def dask():
    with cluster.connected("local", 2) as executor:
        yield executor


@pytest.fixture(params=KINDS)
def executor(request):
    if request.param == "threads":
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            yield pool
    else:
        yield request.getfixturevalue(request.param)


def new_processes(workers=2, **options):
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=context, **options)


def digest(directory):
    """Every file of a dataset, by name; nothing half-written may be among them."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def shards_in(directory):
    return {path.name for path in directory.glob("[0-9]*")}


# What workers elsewhere do.


def gate(folder, split):
    """Have this process wait in the middle of a split: until the gate is open, or it is to leave off."""
    folder = pathlib.Path(folder)
    copy = Job._copy

    def waiting(job, column, writer, dtype, **options):
        if column == "observation" and job.split == split:
            (folder / f"pid-{os.getpid()}").touch()
            wait_for(lambda: (folder / "open").exists(), options["stopped"])
        return copy(job, column, writer, dtype, **options)

    Job._copy = waiting


def wait_for(condition, stopped=None):
    """Wait until something is so, a minute at the most; leave off as a job does."""
    end = time.monotonic() + 60
    while not (found := condition()):
        if stopped is not None and stopped.is_set():
            raise jobs.Stopped
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def waiting_process(folder):
    """Wait until a process is at the gate, and return its number."""
    return int(wait_for(lambda: [path.name for path in folder.glob("pid-*")])[0].partition("-")[2])


def embed(batch):
    return {"observation": batch["observation"][:, 1:] // 2, "mean": batch["observation"].mean((1, 2))}


def fails_late(batch):
    if batch["index"][0] > 100:
        raise ValueError("too late")
    return embed(batch)


def waits(folder, parent, batch):
    """Wait at the gate in another process than the parent, in the third shard."""
    if os.getpid() != parent and 100 <= batch["index"][0] < 120:
        (pathlib.Path(folder) / f"pid-{os.getpid()}").touch()
        wait_for(lambda: (pathlib.Path(folder) / "open").exists())
    return embed(batch)


# Same bytes.


def test_ingest_by_an_executor_makes_the_same(log, expected, codec, executor, tmp_path):
    info = atarirb.ingest(log, tmp_path / "out", codec=codec, executor=executor)
    assert info.splits == tuple(range(SPLITS))
    assert digest(tmp_path / "out") == digest(expected)


def test_convert_and_map_by_an_executor_make_the_same(expected, codec, executor, tmp_path):
    other = {"packed": "raw", "raw": "packed"}[codec]
    atarirb.convert(expected, tmp_path / "a", codec=other)
    atarirb.convert(expected, tmp_path / "b", codec=other, executor=executor)
    assert digest(tmp_path / "b") == digest(tmp_path / "a")
    with atarirb.open(expected, columns=("timestep",)) as reader:
        atarirb.map(reader, embed, tmp_path / "c", batch_size=16)
        atarirb.map(reader, embed, tmp_path / "d", batch_size=16, executor=executor)
    assert digest(tmp_path / "d") == digest(tmp_path / "c")


def test_a_relative_path_is_the_caller_s(log, expected, codec, processes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(log, "logs/Game/1")
    atarirb.ingest("logs/Game/1", "out", codec=codec, executor=processes)
    assert digest(tmp_path / "out") == digest(expected)


def test_a_source_by_uri_is_opened_again_by_the_workers(log, expected, codec, processes, tmp_path):
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", log.parent.parent)
    uri = f"zip://Game/1::file://{archive}"
    atarirb.ingest(uri, tmp_path / "out", codec=codec, executor=processes, name="Game/1")
    assert digest(tmp_path / "out") == digest(expected)


def test_a_second_call_does_nothing_and_adds_what_is_missing(log, expected, codec, processes, tmp_path):
    atarirb.ingest(log, tmp_path / "out", codec=codec, executor=processes, splits=[0, 3])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("0*/*")}
    atarirb.ingest(log, tmp_path / "out", codec=codec, executor=processes)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert digest(tmp_path / "out") == digest(expected)


def test_a_job_is_small_and_does_not_grow_with_the_log(tmp_path):
    sizes = {}
    for splits in (4, 51):
        lengths = [47] * (splits - 1) + [1]  # with its padding each fills a split
        record(tmp_path / f"{splits}/Game/1", lengths, 50)
        logs = sources.find(tmp_path / f"{splits}/Game/1")
        plan = make_plan(logs, logs.splits, 1)
        sizes[splits] = [
            len(pickle.dumps(Job.of(logs, plan, portion, codec="raw", directory=tmp_path, threads=1)))
            for portion in plan.portions
        ]
    assert {splits: len(of) for splits, of in sizes.items()} == {4: 4, 51: 51}
    assert max(sizes[51]) < 3_000
    assert max(sizes[51]) < max(sizes[4]) + 20  # a split's number has a digit more


def test_a_mapped_job_is_small(expected, processes, tmp_path, monkeypatch):
    sent = []
    submit = processes.submit
    monkeypatch.setattr(processes, "submit", lambda *a: (sent.append(len(pickle.dumps(a))), submit(*a))[1])
    with atarirb.open(expected) as reader:
        atarirb.map(reader, embed, tmp_path / "out", executor=processes)
    assert len(sent) >= SPLITS and max(sent) < 10_000


def test_a_worker_gathers_in_one_thread_unless_told(monkeypatch):
    monkeypatch.delenv("ATARIRB_THREADS", raising=False)
    before = threads.count()
    with threads.limited(1):
        assert threads.count() == 1
        monkeypatch.setenv("ATARIRB_THREADS", "3")
        assert threads.count() == 3
        monkeypatch.delenv("ATARIRB_THREADS")
    assert threads.count() == before


# What cannot be.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"executor": "dask"}, "executor is 'dask', expected a concurrent.futures.Executor.*get_executor"),
        ({"executor": concurrent.futures.Executor(), "workers": 2}, "workers is 2, and there is an executor"),
    ],
)
def test_wrong_arguments(log, expected, codec, tmp_path, options, words):
    with pytest.raises(ArgumentError, match=words):
        atarirb.ingest(log, tmp_path / "out", **options)
    with pytest.raises(ArgumentError, match=words):
        atarirb.convert(expected, tmp_path / "out", codec=codec, **options)
    with atarirb.open(expected) as reader, pytest.raises(ArgumentError, match=words):
        atarirb.map(reader, embed, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_function_that_cannot_be_sent_is_refused_before_anything_runs(expected, processes, tmp_path):
    called = []
    with atarirb.open(expected) as reader:
        with pytest.raises(
            ArgumentError, match="fn is <function .*lambda.*cannot be sent.*top level of a mo"
        ):
            atarirb.map(reader, lambda batch: called.append(batch), tmp_path / "out", executor=processes)
        assert not called and not (tmp_path / "out").exists()
        atarirb.map(reader, embed, tmp_path / "out", executor=processes)  # the pool is as good as before


def test_dask_and_threads_take_any_function(expected, dask, tmp_path):
    half = 2
    with atarirb.open(expected) as reader, concurrent.futures.ThreadPoolExecutor(1) as pool:
        for name, executor in (("a", None), ("b", dask), ("c", pool)):
            made = atarirb.map(
                reader,
                lambda batch: {"observation": batch["observation"] // half},
                tmp_path / name,
                executor=executor,
            )
            assert made.steps == len(reader)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == digest(tmp_path / "c")


def test_an_executor_that_was_shut_down(log, expected, tmp_path):
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(
        IngestError, match="cannot schedule new futures.*\n(.*\n)*Run the same command"
    ) as caught:
        atarirb.ingest(log, tmp_path / "out", executor=pool)
    assert {type(error) for error in caught.value.failures.values()} == {ExecutorError}
    assert not (tmp_path / "out").exists()
    with atarirb.open(expected) as reader:
        with pytest.raises(ExecutorError, match="the executor's workers do not answer: RuntimeError"):
            atarirb.map(reader, embed, tmp_path / "out", executor=pool)


class Changing(concurrent.futures.ThreadPoolExecutor):
    """Runs the calls of jobs with some of their arguments changed."""

    def __init__(self, change):
        super().__init__(2)
        self.change = change

    def submit(self, call, version, run, *rest):
        return super().submit(call, *self.change(version, run), *rest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda version, run: (version, attempts.Run(run.work / "other", run.name)),
            "not seen by the worker on",
        ),
        (
            lambda version, run: (version, attempts.Run(run.work, "run-other")),
            "must be on a disk that all share",
        ),
        (lambda version, run: ("0.0.0", run), "expected 0.0.0; install the same there"),
    ],
    ids=["no such directory", "another machine's directory", "another version"],
)
def test_workers_of_another_machine_that_do_not_share_the_disk(log, tmp_path, change, words):
    with Changing(change) as pool, pytest.raises(IngestError, match=words) as caught:
        atarirb.ingest(log, tmp_path / "out", executor=pool)
    assert set(caught.value.failures) == set(range(SPLITS))
    assert {type(error) for error in caught.value.failures.values()} == {ExecutorError}
    assert not (tmp_path / "out").exists()


# Errors come back as what they are.


def every_error():
    found, todo = [], [AtarirbError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return sorted(found, key=lambda kind: kind.__name__)


def plain_dumps(value):
    """Pickle without what other packages, Dask's among them, have taught pickle."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.dispatch_table = {}
    pickler.dump(value)
    return buffer.getvalue()


@pytest.mark.parametrize("dumps", [pickle.dumps, plain_dumps])
@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_is_the_same_out_of_a_pickle(kind, dumps):
    if issubclass(kind, errors._Failures):
        made = kind("two failed", {3: LogError("split 3"), 4: OSError(28, "full", "file")})
    elif issubclass(kind, OSError):
        made = kind(28, "no room")
    else:
        made = kind("what, where, why")
    made.add_note("a note")
    same = pickle.loads(dumps(made))
    assert type(same) is kind and str(same) == str(made) and same.__notes__ == ["a note"]
    if issubclass(kind, errors._Failures):
        assert {split: (type(e), str(e)) for split, e in same.failures.items()} == {
            split: (type(e), str(e)) for split, e in made.failures.items()
        }
    if issubclass(kind, OSError) and not issubclass(kind, errors._Failures):
        assert same.errno == 28
    missing = errors.MissingPackageError.needed("x", purpose="y", extra="z")
    assert str(pickle.loads(dumps(missing))) == str(missing)


def test_one_damaged_split_fails_alone(log, expected, codec, executor, tmp_path):
    shutil.copytree(log, tmp_path / "Game/1")
    path = tmp_path / "Game/1/replay_logs/$store$_observation_ckpt.2.gz"
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    with pytest.raises(IngestError, match=r"1 of 6 splits of .*\n.*observation_ckpt.2.gz: cut") as caught:
        atarirb.ingest(tmp_path / "Game/1", tmp_path / "out", codec=codec, executor=executor)
    assert [(split, type(error)) for split, error in caught.value.failures.items()] == [(2, LogError)]
    assert shards_in(tmp_path / "out") == {f"{split:05d}" for split in (0, 1, 3, 4, 5)}
    assert not (tmp_path / "out/.ingest").exists()
    path.write_bytes(data)
    atarirb.ingest(tmp_path / "Game/1", tmp_path / "out", codec=codec, executor=executor)
    assert digest(tmp_path / "out") == digest(expected)


def test_what_a_function_raised_is_known(expected, processes, tmp_path):
    with atarirb.open(expected) as reader:
        with pytest.raises(MapError, match="failed: ValueError: too late") as caught:
            atarirb.map(reader, fails_late, tmp_path / "out", executor=processes)
    error = next(iter(caught.value.failures.values()))
    assert type(error) is FunctionError and type(error.__cause__) is ValueError
    assert shards_in(tmp_path / "out")


class Unpicklable(OSError):
    def __init__(self, one, two):
        super().__init__(one)


def odd(kind):
    def broken(job, *_, **__):
        raise Unpicklable("no", "way") if kind == "disk" else TypeError("a bug")

    Job._copy = broken


def test_errors_that_cannot_be_sent_are_told_and_bugs_are_raised(log, tmp_path):
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(Unpicklable("no", "way")))
    with new_processes(1, initializer=odd, initargs=("disk",)) as pool:
        with pytest.raises(IngestError, match="split 0: Unpicklable: no"):
            atarirb.ingest(log, tmp_path / "out", executor=pool)
    with new_processes(1, initializer=odd, initargs=("bug",)) as pool:
        with pytest.raises(TypeError, match="a bug") as caught:
            atarirb.ingest(log, tmp_path / "out", executor=pool)
    assert "in broken" in caught.value.__notes__[0]
    assert not (tmp_path / "out").exists()


# Workers that die.


def test_a_worker_of_a_pool_that_dies_is_told_and_the_others_shards_are_kept(log, expected, codec, tmp_path):
    folder, out = tmp_path / "gate", tmp_path / "out"
    folder.mkdir()
    with new_processes(2, initializer=gate, initargs=(folder, 2)) as pool, in_thread() as thread:
        future = thread.submit(atarirb.ingest, log, out, codec=codec, executor=pool)
        process = waiting_process(folder)
        wait_for(lambda: len(shards_in(out)) == SPLITS - 1)  # all others
        assert list((out / ".ingest").glob("run-*.2.*/00002"))
        os.kill(process, signal.SIGKILL)
        with pytest.raises(
            IngestError,
            match=r"1 of 6 splits of .*\n  split 2: the executor's worker failed, or its process died: "
            r"BrokenProcessPool.*\nThe other 5 are kept. Run the same command again",
        ) as caught:
            future.result()
    assert type(caught.value.failures[2]) is ExecutorError
    assert {path.name for path in out.iterdir()} == {f"{split:05d}" for split in (0, 1, 3, 4, 5)}
    with new_processes(1) as pool:
        atarirb.ingest(log, out, codec=codec, executor=pool)
    assert digest(out) == digest(expected)


@contextlib.contextmanager
def in_thread():
    """Give a thread that is waited for."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool


def test_dask_gives_the_split_of_a_worker_that_dies_to_another(log, expected, codec, tmp_path):
    folder, out = tmp_path / "gate", tmp_path / "out"
    folder.mkdir()
    with cluster.connected("local", 2) as executor, in_thread() as thread:
        executor._client.run(gate, folder, 2)
        future = thread.submit(atarirb.ingest, log, out, codec=codec, executor=executor)
        os.kill(waiting_process(folder), signal.SIGKILL)
        (folder / "open").touch()  # the other worker has a gate, too
        future.result()
    assert digest(out) == digest(expected)


def test_dask_gives_up_on_a_split_that_kills_its_workers(log, expected, codec, tmp_path):
    out = tmp_path / "out"
    import dask

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        with cluster.connected("local", 2) as executor, in_thread() as thread:
            folder = tmp_path / "gate"
            folder.mkdir()
            executor._client.run(gate, folder, 2)
            future = thread.submit(atarirb.ingest, log, out, codec=codec, executor=executor)
            process = waiting_process(folder)
            wait_for(lambda: len(shards_in(out)) == SPLITS - 1)
            os.kill(process, signal.SIGKILL)
            with pytest.raises(IngestError, match="split 2: the executor's worker failed.*KilledWorker"):
                future.result()
    atarirb.ingest(log, out, codec=codec)
    assert digest(out) == digest(expected)


def test_a_scheduler_that_dies_is_told_and_finished_shards_are_kept(log, expected, codec, tmp_path):
    folder, out, file = tmp_path / "gate", tmp_path / "out", tmp_path / "scheduler.json"
    folder.mkdir()
    common = ["--scheduler-file", str(file), "--dashboard-address", "127.0.0.1:0"]
    with contextlib.ExitStack() as stack:
        scheduler, _ = (
            stack.enter_context(
                killed([sys.executable, "-m", f"distributed.cli.dask_{name}", *common, *more], tmp_path)
            )
            for name, more in [
                ("scheduler", ["--host", "127.0.0.1", "--port", "0"]),
                ("worker", ["--nthreads", "2", "--no-nanny"]),
            ]
        )
        address = wait_for(lambda: address_in(file))
        with cluster.connected(address) as executor, in_thread() as thread:
            executor._client.run(gate, folder, 2)
            future = thread.submit(atarirb.ingest, log, out, codec=codec, executor=executor)
            waiting_process(folder)
            wait_for(lambda: len(shards_in(out)) == SPLITS - 1)
            scheduler.kill()
            with pytest.raises(IngestError, match="split 2: the executor's worker failed.*CancelledError"):
                future.result()
    atarirb.ingest(log, out, codec=codec)
    assert digest(out) == digest(expected)


def address_in(file):
    with contextlib.suppress(OSError, ValueError):  # it is not there yet, or not whole
        return json.loads(file.read_text())["address"]


@contextlib.contextmanager
def killed(command, folder):
    """Run a command that is killed at the end."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


class Twice(concurrent.futures.Executor):
    """Runs every call twice at the same time, as where a worker is taken for dead and is not."""

    def __init__(self, pool):
        self.pool = pool
        self.lost = []

    def submit(self, *call):
        answer = concurrent.futures.Future()
        both = [self.pool.submit(*call) for _ in range(2)]
        self.lost += both
        lock = threading.Lock()

        def first(future):
            with lock:
                if not answer.done():
                    answer.set_result(future.result())

        for future in both:
            future.add_done_callback(first)
        return answer


def test_two_attempts_at_one_shard_at_once(log, expected, codec, tmp_path, monkeypatch):
    meet = threading.Barrier(2, timeout=60)
    copy = copying.Job._copy

    def meeting(job, column, *arguments, **options):
        meet.wait() if column == "observation" else None
        return copy(job, column, *arguments, **options)

    monkeypatch.setattr(copying.Job, "_copy", meeting)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # each split's two attempts, then the next one's
        executor = Twice(pool)
        atarirb.ingest(log, tmp_path / "out", codec=codec, executor=executor)
        concurrent.futures.wait(executor.lost)
    assert len(executor.lost) == 2 * SPLITS
    assert digest(tmp_path / "out") == digest(expected)
    assert not (tmp_path / "out/.ingest").exists()


def test_one_who_was_left_behind_disturbs_nobody_and_clears_up(log, expected, codec, tmp_path, monkeypatch):
    """A worker is in mid-shard when its caller ends, and while another finishes the work."""
    monkeypatch.setattr(jobs, "_PATIENCE", 0.0)
    copy, arrived, leave = copying.Job._copy, threading.Event(), threading.Event()

    def waiting(job, column, *arguments, **options):
        if column == "observation" and job.split == 2 and not arrived.is_set():
            arrived.set()
            assert leave.wait(60)
        return copy(job, column, *arguments, **options)

    monkeypatch.setattr(copying.Job, "_copy", waiting)
    out = tmp_path / "out"
    with concurrent.futures.ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        stack.callback(leave.set)
        with pytest.raises(KeyboardInterrupt), interrupted_when(arrived.is_set):
            atarirb.ingest(log, out, codec=codec, executor=pool)
        wait_for(lambda: len(list((out / ".ingest").iterdir())) == 1)  # the other thread has left off
        (left,) = (out / ".ingest").iterdir()
        assert attempts.is_live(left) and "00002" not in shards_in(out)
        atarirb.ingest(log, out, codec=codec)
        assert left.exists()
    assert not (out / ".ingest").exists()
    assert digest(out) == digest(expected)


@contextlib.contextmanager
def interrupted_when(condition):
    """Interrupt the main thread when something is so, as Ctrl-C does."""

    def interrupt():
        wait_for(condition)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_what_dead_workers_left_is_cleared_by_the_next_run(log, expected, codec, tmp_path):
    """The caller and its workers are killed in mid-shard, all at once."""
    folder, out = tmp_path / "gate", tmp_path / "out"
    folder.mkdir()
    code = f"""
import atarirb
from tests.test_executors import gate, new_processes
if __name__ == "__main__":
    with new_processes(2, initializer=gate, initargs=({str(folder)!r}, 2)) as pool:
        atarirb.ingest({str(log)!r}, {str(out)!r}, codec={codec!r}, executor=pool)
"""
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
    )
    with process:
        waiting_process(folder)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert list((out / ".ingest").glob("run-*.2.*/00002"))
    atarirb.ingest(log, out, codec=codec)
    assert digest(out) == digest(expected)


def test_a_forked_child_that_lives_longer_holds_no_lock(log, tmp_path):
    code = f"""
import os, pathlib, signal
from atarirb.store import building
with building.exclusive(pathlib.Path({str(tmp_path / "out")!r})):
    child = os.fork()
    if not child:
        signal.pause()
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE
    )
    child = int(done.stdout.readline())
    done.stdout.close()
    try:
        assert done.wait(60) == -signal.SIGKILL
        assert (tmp_path / "out/.ingest/lock").exists()
        wait_for(lambda: not locked(tmp_path / "out/.ingest"))  # the child lets go when it first runs
        atarirb.ingest(log, tmp_path / "out")
    finally:
        os.kill(child, signal.SIGKILL)
    assert atarirb.verify(tmp_path / "out").ok


def locked(work):
    try:
        with building.lock(work):
            return False
    except errors.BusyError:
        return True


# Stops, and how far it is.


def test_an_interrupt_cancels_what_has_not_begun_and_goes_on_later(log, expected, codec, tmp_path):
    folder, out = tmp_path / "gate", tmp_path / "out"
    folder.mkdir()
    with new_processes(1, initializer=gate, initargs=(folder, 2)) as pool:
        with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: list(folder.glob("pid-*"))):
            atarirb.ingest(log, out, codec=codec, executor=pool)
        assert {path.name for path in out.iterdir()} == {"00000", "00001"}
        (folder / "open").touch()
        atarirb.ingest(log, out, codec=codec, executor=pool)
    assert digest(out) == digest(expected)


def test_workers_say_how_far_they_are(log, tmp_path, monkeypatch):
    counts = []

    @contextlib.contextmanager
    def meter(what, total, shown):
        counts.append(-total)
        yield counts.append

    monkeypatch.setattr("atarirb.verbs.ingest.meter", meter)
    folder = tmp_path / "gate"
    folder.mkdir()
    with new_processes(1, initializer=gate, initargs=(folder, 0)) as pool, in_thread() as thread:
        future = thread.submit(atarirb.ingest, log, tmp_path / "out", executor=pool)
        waiting_process(folder)
        wait_for(lambda: len(counts) > 1)
        assert 0 < counts[1] < -counts[0]
        (folder / "open").touch()
        future.result()
    assert sum(counts) == 0


# The command line.


def test_the_command_line_uses_a_cluster_of_its_own(log, expected, codec, tmp_path, capfd):
    arguments = ["--codec", codec, "--dask", "local", "--workers", "2"]
    assert cli.main(["ingest", str(log), str(tmp_path / "out"), *arguments]) == 0
    assert capfd.readouterr().err == ""
    assert digest(tmp_path / "out") == digest(expected)


def test_the_command_line_uses_a_cluster_that_is_there(expected, dask, tmp_path, capfd):
    address = dask._client.scheduler.address
    out, same = tmp_path / "out", tmp_path / "same"
    options = ["--fn", "tests.test_executors:embed", "--dask", address]
    assert cli.main(["map", str(expected), str(out), *options]) == 0
    assert cli.main(["convert", str(out), str(tmp_path / "raw"), "--codec", "raw", "--dask", address]) == 0
    with atarirb.open(expected) as reader:
        atarirb.map(reader, embed, same)
    assert digest(out) == digest(same)
    assert capfd.readouterr().err == ""
    assert dask.submit(os.getpid).result() != os.getpid()  # it is as it was


def test_clusters_that_cannot_be_used(log, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(cluster, "TIMEOUT", 0.5)
    logger = logging.getLogger("distributed")
    before = logger.propagate, list(logger.handlers)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        closed = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        other.close()
        thread = threading.Thread(target=answer_anything, args=(server,))
        thread.start()
        empty = distributed.LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", silence_logs=50)
        with empty:
            for address, status, words in [
                (closed, 1, "no scheduler of a Dask cluster answers there"),
                (f"tcp://127.0.0.1:{server.getsockname()[1]}", 1, "no scheduler of a Dask cluster answers"),
                (empty.scheduler_address, 1, "the Dask cluster has no workers; start one there"),
                ("nonsense", 2, "expected an address, as tcp://host:8786"),
            ]:
                assert cli.main(["ingest", str(log), str(tmp_path / "out"), "--dask", address]) == status
                printed = capfd.readouterr()
                assert words in printed.err and "Traceback" not in printed.err
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    options = ["--dask", closed, "--workers", "2"]
    assert cli.main(["ingest", str(log), str(tmp_path / "out"), *options]) == 2
    assert "workers is 2, and the cluster at" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    assert (logger.propagate, logger.handlers) == before


def answer_anything(server):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_without_dask_the_extra_is_named(log, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.main(["ingest", str(log), str(tmp_path / "out"), "--dask", "local"]) == 1
    assert "pip install 'atarirb[cluster]'" in capfd.readouterr().err


def members(group):
    """Return the processes of a group that run."""
    psutil = pytest.importorskip("psutil")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
    return found


def test_an_interrupt_of_the_command_line_ends_its_cluster(expected, codec, tmp_path):
    folder, out = tmp_path / "gate", tmp_path / "out"
    folder.mkdir()
    (tmp_path / "mine.py").write_text(
        f"import functools, os\nfrom tests.test_executors import waits\n"
        f"fn = functools.partial(waits, {str(folder)!r}, os.getpid())\n"
    )
    command = ["map", expected, out, "--fn", "mine:fn", "--batch-size", "16", "--dask", "local"]
    process = subprocess.Popen(
        [sys.executable, "-m", "atarirb", *map(str, command)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        waiting_process(folder)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to all of them
        (folder / "open").touch()
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "interrupted; the same command goes on from here\n")
    wait_for(lambda: not members(process.pid))
    assert not (out / ".ingest").exists()
    with atarirb.open(expected) as reader:
        fn = functools.partial(waits, folder, os.getpid())
        atarirb.map(reader, fn, out, batch_size=16)
        atarirb.map(reader, fn, tmp_path / "same", batch_size=16)
    assert digest(out) == digest(tmp_path / "same")
