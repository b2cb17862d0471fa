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

import numpy as np
import pytest

import atarirb
from atarirb import threads
from tests import truth

OPTIONS = {"frame_stack": 4, "n_step": 3, "columns": ("return_to_go",)}


# Threads of our own.

LARGE = 1 << 20


def test_all_rows_are_worked_on_once_by_several_threads(monkeypatch):
    monkeypatch.setenv("ATARIRB_THREADS", "3")
    rows, used = np.zeros(LARGE, np.uint8), []

    def work(part):
        used.append(threading.get_ident())
        part += 1

    threads.spread(work, rows)
    assert (rows == 1).all()
    assert len(used) == 3


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_few_rows_with_much_work_are_spread_too(monkeypatch, rows):
    monkeypatch.setenv("ATARIRB_THREADS", "4")
    numbers, out = np.arange(rows), np.zeros((rows, LARGE), np.uint8)

    def work(numbers, out):
        out += numbers[:, None].astype(np.uint8) + 1

    threads.spread(work, numbers, out)
    assert (out == np.arange(1, rows + 1)[:, None]).all()


@pytest.mark.parametrize(("chosen", "size"), [("1", LARGE), ("8", 100)], ids=["one thread", "little work"])
def test_the_caller_works_alone_if_that_is_wanted_or_quicker(monkeypatch, chosen, size):
    monkeypatch.setenv("ATARIRB_THREADS", chosen)
    used = []
    threads.spread(lambda part: used.append((threading.get_ident(), len(part))), np.zeros(size, np.uint8))
    assert used == [(threading.get_ident(), size)]


@pytest.mark.parametrize("row", [0, LARGE // 2, LARGE - 1])
def test_an_error_in_any_thread_is_raised_and_the_next_call_works(monkeypatch, row):
    monkeypatch.setenv("ATARIRB_THREADS", "4")

    def work(part):
        if row in part:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        threads.spread(work, np.arange(LARGE))
    done = np.zeros(LARGE, np.uint8)
    threads.spread(lambda part: part.fill(1), done)
    assert done.all()


def test_threads_keep_no_array_alive(monkeypatch):
    monkeypatch.setenv("ATARIRB_THREADS", "4")
    rows = np.zeros(LARGE, np.uint8)
    gone = weakref.ref(rows)
    threads.spread(lambda part: part.fill(1), rows)
    del rows
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
        import pathlib, sys, threading, time
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

        def column(name):
            files = sorted(pathlib.Path(sys.argv[1]).glob(f"*/{name}.npy"))
            return np.concatenate([np.load(file) for file in files])

        frames = np.concatenate([np.zeros((3, 84, 84), np.uint8), column("observation")])
        action, reward, terminal = column("action"), column("reward"), column("terminal") == 1
        first = np.repeat(reader.episodes["start"], reader.episodes["length"])
        end = time.monotonic() + 2
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
