"""Readers in many threads, in child processes, and where no compiled code can be kept."""

import importlib.util
import json
import os
import pathlib
import pickle
import shutil
import sys
import threading
import time
import weakref

import pytest

import atarirb
from atarirb import threads
from tests import truth

OPTIONS = {"frame_stack": 4, "n_step": 3, "columns": ("return_to_go",)}


# Threads of our own.

LARGE = 1 << 20


class Rows:
    """Work on rows by a ticket, as a kernel does it, with a note of who did which."""

    def __init__(self, count, pause=0.0):
        self.count, self.pause = count, pause
        self.lock = threading.Lock()
        self.done_by = {}

    def __call__(self, ticket):
        while (row := self.take(ticket)) < self.count:
            time.sleep(self.pause)
            self.do(row)
            assert row not in self.done_by
            self.done_by[row] = threading.get_ident()

    def take(self, ticket):
        with self.lock:
            ticket[0] += 1
            return int(ticket[0]) - 1

    def do(self, row):
        pass


def test_all_rows_are_worked_on_once_by_several_threads(monkeypatch):
    monkeypatch.setenv("ATARIRB_THREADS", "3")
    work = Rows(30, pause=0.01)
    threads.spread(work, LARGE)
    assert set(work.done_by) == set(range(30))
    assert len(set(work.done_by.values())) == 3


@pytest.mark.parametrize(("chosen", "size"), [("1", LARGE), ("8", 100)], ids=["one thread", "little work"])
def test_the_caller_works_alone_if_that_is_wanted_or_quicker(monkeypatch, chosen, size):
    monkeypatch.setenv("ATARIRB_THREADS", chosen)
    work = Rows(30, pause=0.001)
    threads.spread(work, size)
    assert set(work.done_by.values()) == {threading.get_ident()}


def test_nobody_waits_for_a_helper_that_did_not_begin(monkeypatch):
    """The only helper is busy elsewhere; the caller does its rows alone, and the helper none of them."""
    monkeypatch.setenv("ATARIRB_THREADS", "2")
    monkeypatch.setattr(threads, "_crew", threads._Crew())
    release, busy = threading.Event(), threading.Semaphore(0)

    class Long(Rows):
        def do(self, row):
            busy.release()
            release.wait(20)

    caller = threading.Thread(target=threads.spread, args=(Long(2), LARGE))
    caller.start()
    for _ in range(2):  # the helper, and the thread that called it
        assert busy.acquire(timeout=20)
    work = Rows(30)
    threads.spread(work, LARGE)
    assert set(work.done_by.values()) == {threading.get_ident()}
    release.set()
    caller.join()


@pytest.mark.parametrize("where", ["caller", "helper"])
def test_an_error_in_any_thread_is_raised_and_the_next_call_works(monkeypatch, where):
    monkeypatch.setenv("ATARIRB_THREADS", "4")

    class Failing(Rows):
        def do(self, row):
            if (threading.current_thread() is threading.main_thread()) == (where == "caller"):
                raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        threads.spread(Failing(40, pause=0.005), LARGE)
    work = Rows(30)
    threads.spread(work, LARGE)
    assert set(work.done_by) == set(range(30))


@pytest.mark.parametrize("pause", [0, 0.001])
def test_threads_keep_no_work_alive(monkeypatch, pause):
    monkeypatch.setenv("ATARIRB_THREADS", "4")
    work = Rows(30, pause=pause)
    gone = weakref.ref(work)
    threads.spread(work, LARGE)
    del work
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert gone() is None


# Readers.


@pytest.fixture(scope="module")
def expected(pong):
    return truth.sample_digests(atarirb.open(pong, **OPTIONS))


def layer_is_there(layer):
    module = {"omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue"}[layer]
    try:
        importlib.import_module(f"numba.np.ufunc.{module}")
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("layer", ["workqueue", "omp", "tbb"])
def test_threads_get_the_right_data_at_once_under_every_threading_layer_of_numba(pong, python, layer):
    pytest.importorskip("numba")
    if not layer_is_there(layer):
        pytest.skip(f"numba has no {layer} layer here")
    code = """
        import sys, threading, time
        import numba
        import numpy as np
        import atarirb

        @numba.njit(parallel=True)
        def parallel(count):
            total = 0
            for number in numba.prange(count):
                total += number
            return total

        assert parallel(10) == 45
        assert numba.threading_layer() == sys.argv[2], numba.threading_layer()
        reader = atarirb.open(sys.argv[1], frame_stack=4)

        whole = atarirb.open(sys.argv[1])[:]
        frames = np.concatenate([np.zeros((3, 84, 84), np.uint8), whole["observation"]])
        action, reward, terminal = whole["action"], whole["next"]["reward"], whole["next"]["terminated"]
        first = np.repeat(reader.episodes["start"], reader.episodes["length"])
        end = time.monotonic() + 0.8
        failures, rounds = [], []

        def check(index, batch):
            assert (batch["index"] == index).all()
            for back in range(4):
                there = (index - back >= first[index])[:, None, None]
                shown = np.where(there, frames[index - back + 3], 0)
                assert (batch["observation"][..., 3 - back] == shown).all()
            assert (batch["action"] == action[index]).all()
            assert (batch["next"]["reward"] == reward[index]).all()
            assert (batch["next"]["terminated"] == terminal[index]).all()

        def work(seed):
            rng = np.random.default_rng(seed)
            try:
                while time.monotonic() < end:
                    index = rng.integers(0, len(reader), 24)
                    check(index, reader.get(index))
                    rounds.append(seed)
            except BaseException as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            parallel(100)  # numba's own threads are busy meanwhile
            time.sleep(0.001)
        print(failures, len(set(rounds)))
    """
    output = python(code, pong, layer, NUMBA_THREADING_LAYER=layer, ATARIRB_THREADS=4)
    assert output == "[] 16\n"


CHILD = """
    import json, multiprocessing, sys, threading, warnings
    import atarirb
    from tests import truth

    path, method, busy = sys.argv[1], sys.argv[2], int(sys.argv[3])
    reader = atarirb.open(path, frame_stack=4, n_step=3, columns=("return_to_go",))
    truth.sample_digests(reader)
    done = threading.Event()

    def work(seed):
        while not done.is_set():
            reader.sample(seed, 64)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(busy)]
    for thread in threads:
        thread.start()
    context = multiprocessing.get_context(method)
    reports = []
    for _ in range(6 if busy else 1):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=truth.send_digests, args=(reader, sender))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of forking a process that has threads: that is the point
            child.start()
        reports.append(receiver.recv() if receiver.poll(40) else "nothing came")
        child.join(10)
        reports[-1] = [child.exitcode, reports[-1]]
    done.set()
    for thread in threads:
        thread.join()
    print(json.dumps(reports))
"""


def start_methods():
    return ["spawn"] if sys.platform == "win32" else ["fork", "forkserver", "spawn"]


@pytest.mark.parametrize("method", start_methods())
def test_children_sample_the_same_after_their_parent_has_sampled(pong, python, expected, method):
    assert json.loads(python(CHILD, pong, method, 0)) == [[0, expected]]


@pytest.mark.skipif("fork" not in start_methods(), reason="needs fork")
def test_children_forked_while_threads_are_sampling_sample_too(pong, python, expected):
    assert json.loads(python(CHILD, pong, "fork", 4)) == [[0, expected]] * 6


def test_a_pickled_reader_is_small_and_samples_the_same_in_another_process(pong, python, expected, tmp_path):
    data = pickle.dumps(atarirb.open(pong, **OPTIONS))
    assert len(data) < 10_000
    (tmp_path / "reader").write_bytes(data)
    code = """
        import json, pathlib, pickle, sys
        from tests import truth
        print(json.dumps(truth.sample_digests(pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()))))
    """
    assert json.loads(python(code, tmp_path / "reader")) == expected


def test_kernels_work_where_compiled_code_cannot_be_kept(pong, python, expected, tmp_path):
    """As in a read-only installation: neither the package, nor the user, nor numba has a directory."""
    pytest.importorskip("numba")
    package = pathlib.Path(atarirb.__file__).parent
    shutil.copytree(package, tmp_path / "atarirb", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [tmp_path / "atarirb", *(tmp_path / "atarirb").glob("*/")]:
        (folder / "__pycache__").touch()  # a file, in which no directory can be made
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "below"
    code = """
        import json, sys
        import atarirb
        from atarirb.kernels import compiled
        from tests import truth
        reader = atarirb.open(sys.argv[1], frame_stack=4, n_step=3, columns=("return_to_go",))
        kept = [value.stats.cache_path for value in vars(compiled).values() if hasattr(value, "stats")]
        print(json.dumps([atarirb.__file__, kept, truth.sample_digests(reader)]))
    """
    root = pathlib.Path(__file__).parent.parent
    output = python(
        code,
        pong,
        root=f"{tmp_path}{os.pathsep}{root}",
        PYTHONDONTWRITEBYTECODE=1,
        NUMBA_CACHE_DIR=nowhere,
        HOME=nowhere,
        XDG_CACHE_HOME=nowhere,
    )
    file, kept, digests = json.loads(output)
    assert file.startswith(str(tmp_path))
    assert set(kept) == {None}
    assert digests == expected
