"""Map: what a plain loop over the reader gives, whatever stops it; columns, finals, JAX, and who may not."""

import dataclasses
import os
import pathlib
import shutil
import signal
import threading
import time
from unittest import mock

import numpy as np
import pytest

import atarirb
from atarirb import cli
from atarirb.errors import (
    ArgumentError,
    BusyError,
    ClosedError,
    DatasetNotFoundError,
    DiskSpaceError,
    FunctionError,
    MapError,
)
from atarirb.store import building
from atarirb.verbs import map as module
from tests import shards, truth
from tests.logs import record
from tests.test_convert import spoil
from tests.test_final import EPISODES
from tests.test_ingest import FRAMES, digest

CODECS = ("packed", "raw")
WEIGHTS = np.random.default_rng(3).normal(size=(4 * 3 * 4, 5)).astype(np.float32)


def crop(batch):
    """Of frames [4, 3], the two rows in the middle."""
    return {"observation": batch["observation"][:, 1:3]}


def embed(batch):
    """Of stacks [4, 3, 4], float16[5]: sums in float64, so that no order of adding them shows."""
    flat = np.asarray(batch["observation"], np.float64).reshape(len(batch["observation"]), -1)
    return {"observation": (flat @ WEIGHTS / 1000).astype(np.float16)}


def value(batch):
    """Columns only: one that int8 can hold, one that it cannot, and three numbers a step."""
    mean = batch["observation"].mean((1, 2)).astype(np.float32)
    three = np.stack([batch["reward"], mean, batch["index"].astype(np.float32)], 1)
    return {"odd": batch["action"].astype(np.int64) % 2, "mean": mean, "three": three}


def mapped(reader, fn, out, **options):
    """Map without waiting for the disk."""
    with mock.patch("os.fsync"):
        return atarirb.map(reader, fn, out, **options)


def plain(reader, fn):
    """Call the function for one step after the other."""
    rows = []
    for step in range(len(reader)):
        batch = {name: np.asarray(leaf)[None] for name, leaf in reader[step].items() if name != "next"}
        batch["reward"] = np.asarray(reader[step]["next"]["reward"])[None]
        rows.append({name: np.asarray(leaf)[0] for name, leaf in fn(batch).items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.fixture(scope="module")
def source(codec, tmp_path_factory):
    """A dataset of five shards, of 30, 45, 20, 60, 33 and 50 steps an episode, and its logs beside it."""
    directory = tmp_path_factory.mktemp("map")
    extra = {"wide": ((), "int64"), "pair": ((2,), "float32")}
    record(directory / "Game/1", [30, 45, 20, 60, 33, 50], 50, extra=extra, frame_shape=(4, 3))
    truth.ingest(directory / "Game/1", directory / "data", codec=codec)
    return directory / "data"


@pytest.fixture
def copy(source, tmp_path):
    """The same, to be spoilt."""
    shutil.copytree(source, tmp_path / "copy")
    return tmp_path / "copy"


# What it makes.


@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_a_crop_is_what_a_plain_loop_gives(small, codec, batch_size, tmp_path):
    path, steps = small
    with atarirb.open(path) as reader:
        info = mapped(reader, crop, tmp_path / "out", batch_size=batch_size)
        expected = plain(reader, crop)["observation"]
    assert (info.frame_shape, info.frame_dtype, info.codec) == ((2, 3), "uint8", codec)
    assert info == atarirb.show(tmp_path / "out")
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    np.testing.assert_array_equal(expected, steps.frames[:, 1:3])
    with atarirb.open(tmp_path / "out") as reader:
        np.testing.assert_array_equal(reader[:]["observation"], expected, strict=True)


def test_all_but_the_observations_stays(small, tmp_path):
    path, _ = small
    with atarirb.open(path) as reader:
        mapped(reader, crop, tmp_path / "out")
    options = {"n_step": 3, "columns": ("return_to_go", "timestep", "episode", "split", "wide", "pair")}
    with atarirb.open(path, **options) as reader, atarirb.open(tmp_path / "out", **options) as made:
        np.testing.assert_array_equal(made.episodes, reader.episodes)
        np.testing.assert_array_equal(made.locate(slice(None)), reader.locate(slice(None)))
        for before, after in ((reader[:], made[:]), (reader.sample(3, 99), made.sample(3, 99))):
            for batch in (before, after):
                del batch["observation"], batch["next"]["observation"]
            truth.assert_same(after, before)


@pytest.mark.parametrize("wanted", [None, *CODECS])
def test_stacks_become_float16_embeddings(small, wanted, tmp_path):
    path, steps = small
    with atarirb.open(path, frame_stack=4) as reader:
        info = mapped(reader, embed, tmp_path / "out", codec=wanted, batch_size=16)
        expected = plain(reader, embed)["observation"]
    stacks = np.stack([truth.observation(steps, step, 4) for step in range(len(steps))])
    np.testing.assert_array_equal(expected, embed({"observation": stacks})["observation"])
    assert (info.frame_shape, info.frame_dtype, info.codec) == ((5,), "float16", wanted or "raw")
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    with atarirb.open(tmp_path / "out") as reader:
        np.testing.assert_array_equal(reader[:]["observation"], expected, strict=True)


def test_a_mapped_dataset_is_read_as_any_other(small, tmp_path):
    path, steps = small
    with atarirb.open(path) as reader:
        mapped(reader, crop, tmp_path / "out")
    cropped = dataclasses.replace(steps, frames=steps.frames[:, 1:3])
    with atarirb.open(tmp_path / "out", frame_stack=3, n_step=2) as reader:
        batch = reader.sample(0, 50)
        assert batch["observation"].shape == (50, 2, 3, 3)
        for row, step in enumerate(batch["index"].tolist()):
            after = truth.transition(cropped, step, 2, 0.99).next_step
            np.testing.assert_array_equal(batch["observation"][row], truth.observation(cropped, step, 3))
            np.testing.assert_array_equal(
                batch["next"]["observation"][row], truth.observation(cropped, after, 3)
            )
        slices = reader.sample_slices(1, 9, 4)
        truth.assert_same(truth.pick(slices, slices.pop("mask")), reader[slices["index"].reshape(-1)])


@pytest.mark.parametrize(
    ("to", "shape", "dtype"),
    [
        (lambda frames: frames[:, 0, 0].astype(np.int32), (), "int32"),
        (lambda frames: frames.astype(np.complex128), (4, 3), "complex128"),
        (lambda frames: frames.astype(">f4") / 2, (4, 3), "float32"),
        (lambda frames: frames > 99, (4, 3), "bool"),
        (lambda frames: frames.transpose(0, 2, 1), (3, 4), "uint8"),
        (lambda frames: np.repeat(frames.reshape(-1, 12), 5000, 1), (60000,), "uint8"),
    ],
)
def test_observations_of_any_shape_and_dtype(small, codec, to, shape, dtype, tmp_path):
    path, steps = small
    with atarirb.open(path) as reader:
        info = mapped(reader, lambda batch: {"observation": to(batch["observation"])}, tmp_path / "out")
        assert info.codec == ("raw" if dtype in ("float32", "complex128") else codec)
    assert (info.frame_shape, info.frame_dtype) == (shape, dtype)
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    with atarirb.open(tmp_path / "out") as reader:
        np.testing.assert_array_equal(reader[:]["observation"], to(steps.frames))


def test_columns_are_added_and_frames_stay(small, codec, tmp_path):
    path, _ = small
    with atarirb.open(path) as reader:
        info = mapped(reader, value, tmp_path / "out", batch_size=16)
        expected = plain(reader, value)
    assert info.extra_columns == ("pair", "wide", "mean", "odd", "three")
    assert info.codec == codec
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    for file in (*path.glob("0*/observation*"), *path.glob("0*/pair.npy"), *path.glob("0*/segments.npy")):
        assert (tmp_path / "out" / file.relative_to(path)).read_bytes() == file.read_bytes()
    stored = [np.load(file) for file in sorted((tmp_path / "out").glob("0*/odd.npy"))]
    assert {rows.dtype for rows in stored} == {np.dtype(np.int8)}
    np.testing.assert_array_equal(np.concatenate(stored), expected["odd"])
    with atarirb.open(path, columns=("wide", "pair")) as reader:
        before = reader[:]
    with atarirb.open(tmp_path / "out", columns=("wide", "pair", "odd", "mean", "three")) as reader:
        batch = reader[:]
        found = {name: batch.pop(name) for name in expected}
    truth.assert_same(found, expected)
    truth.assert_same(batch, before)


def test_observations_and_columns_at_once_and_a_column_replaced(small, tmp_path):
    path, _ = small

    def both(batch):
        return crop(batch) | {"wide": np.stack([batch["wide"], batch["timestep"]], 1).astype(np.int16)}

    with atarirb.open(path, columns=("wide", "timestep")) as reader:
        info = mapped(reader, both, tmp_path / "out", batch_size=16)
        expected = plain(reader, both)
    assert info.extra_columns == ("pair", "wide")
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    with atarirb.open(tmp_path / "out", columns=("wide",)) as reader:
        batch = reader[:]
    for name in expected:
        np.testing.assert_array_equal(batch[name], expected[name], strict=True)


@pytest.mark.parametrize("wanted", CODECS)
def test_frames_that_stay_may_be_kept_by_another_codec(small, wanted, tmp_path):
    path, _ = small
    with atarirb.open(path) as reader:
        mapped(reader, value, tmp_path / "out", codec=wanted)
    with mock.patch("os.fsync"):
        atarirb.convert(path, tmp_path / "converted", codec=wanted)
    for file in (tmp_path / "converted").glob("0*/*.npy"):
        assert (tmp_path / "out" / file.relative_to(tmp_path / "converted")).read_bytes() == file.read_bytes()
    assert atarirb.verify(tmp_path / "out", deep=True).ok


# What the function is given.


def test_the_function_is_given_what_the_reader_gives_in_order_and_full(small, tmp_path):
    path, steps = small
    columns = ("timestep", "episode", "return_to_go", "split", "wide", "pair")
    given = []

    def look(batch):
        given.append(batch)
        return {"seen": batch["index"]}

    with atarirb.open(path, frame_stack=3, n_step=5, columns=columns, time_limit="truncated") as reader:
        mapped(reader, look, tmp_path / "out", batch_size=8, workers=1)
        whole = reader[:]
    counts = np.bincount(steps.split)
    counts = counts[counts > 0]
    assert len(given) == 1 + sum(-(-count // 8) for count in counts)  # the first one twice
    truth.assert_same(given[0], given[1])
    at = 0
    batches = iter(given[1:])
    for count in counts:
        for first in range(0, count, 8):
            wanted = at + np.minimum(first + np.arange(8), count - 1)
            truth.assert_same(
                next(batches),
                {
                    "observation": whole["observation"][wanted],
                    "action": steps.action[wanted],
                    "reward": steps.reward[wanted],
                    "terminal": steps.terminal[wanted].astype(np.uint8),
                    "index": wanted,
                    "final": np.zeros(8, np.bool_),
                }
                | {name: whole[name][wanted] for name in columns},
            )
        at += count
    with atarirb.open(tmp_path / "out", columns="seen") as reader:
        np.testing.assert_array_equal(reader[:]["seen"], np.arange(len(steps)))


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("batch_size", [4, 64])
def test_final_frames_are_mapped_with_the_frames_before_them(codec, frame_stack, batch_size, tmp_path):
    episodes = shards.write(tmp_path / "data", EPISODES, codec=codec)
    given = []

    def flatten(batch):
        given.append(batch)
        return {"observation": batch["observation"].reshape(batch_size, -1) ^ 1, "n": batch["index"] + 1}

    with atarirb.open(tmp_path / "data", frame_stack=frame_stack, final="stored") as reader:
        mapped(reader, flatten, tmp_path / "out", batch_size=batch_size, workers=1, codec="raw")
        before, table = reader[:], reader.episodes
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    finals = {}
    for batch in given:
        for row in np.flatnonzero(batch["final"]):
            assert not any(batch[name][row] for name in ("action", "reward", "terminal"))
            finals[int(batch["index"][row])] = batch["observation"][row]
    ends = table["start"] + table["length"] - 1
    assert sorted(finals) == [end for end, e in zip(ends, episodes, strict=True) if e.final is not None]
    for end, shown in finals.items():
        np.testing.assert_array_equal(shown, before["next"]["observation"][end])
    with atarirb.open(tmp_path / "out", columns="n", final="stored") as reader:
        after = reader[:]
        np.testing.assert_array_equal(reader.episodes, table)
    np.testing.assert_array_equal(after["n"], np.arange(len(before["index"])) + 1)
    for step in range(len(before["index"])):
        found, expected = (batch["next"]["observation"][step] for batch in (after, before))
        blank = step in ends and step not in finals
        np.testing.assert_array_equal(found, 0 if blank else expected.reshape(-1) ^ 1)


@pytest.mark.parametrize("wanted", CODECS)
def test_a_recording_is_mapped_final_frames_and_all(codec, wanted, tmp_path):
    rng = np.random.default_rng(0)
    lost = []
    with mock.patch("os.fsync"), atarirb.Recorder(tmp_path / "me", codec=codec) as recorder:
        for length, over in ((40, True), (30, False), (50, True), (20, False)):
            frames = rng.integers(1, 255, (length + 1, 4, 3)).astype(np.uint8)
            for step in range(length):
                last = step == length - 1
                recorder.add(
                    frames[step], step % 6, 0.5, last and over, last and not over,
                    final_observation=frames[-1] if last else None,
                )  # fmt: skip
            lost.append(frames[-1])
            recorder.commit()
    with atarirb.open(tmp_path / "me", final="stored") as reader:
        mapped(reader, crop, tmp_path / "out", codec=wanted, batch_size=16)
        ends = reader.episodes["start"] + reader.episodes["length"] - 1
        mapped(reader, value, tmp_path / "more", codec=wanted, batch_size=16)
    with atarirb.open(tmp_path / "out", final="stored") as reader:
        np.testing.assert_array_equal(reader[ends]["next"]["observation"], np.stack(lost)[:, 1:3])
        assert reader.info.truncated_episodes == 2
    with atarirb.open(tmp_path / "more", final="stored") as reader:
        np.testing.assert_array_equal(reader[ends]["next"]["observation"], np.stack(lost))
    for path in ("out", "more"):
        assert atarirb.verify(tmp_path / path, deep=True).ok


def test_a_jitted_function_is_compiled_once(small, tmp_path):
    jax = pytest.importorskip("jax")
    path, _ = small
    traced = []

    @jax.jit
    def mean(batch):
        traced.append({name: type(leaf) for name, leaf in batch.items()})
        return {
            "observation": batch["observation"].mean((1, 2)),
            "half": batch["reward"].astype(jax.numpy.float16) / 2,
            "split": batch["split"],
        }

    def call(batch):
        assert isinstance(batch["observation"], jax.Array) and isinstance(batch["final"], jax.Array)
        assert isinstance(batch["index"], np.ndarray) and batch["index"].dtype == np.int64
        callers.append(threading.current_thread())
        made = mean(batch)
        return {"observation": made["observation"], "half": made["half"], "from_split": made["split"]}

    callers = []
    with atarirb.open(path, frame_stack=2, columns=("split",), output="jax") as reader:
        info = mapped(reader, call, tmp_path / "out", batch_size=32)
        whole = reader[:]
    assert len(traced) == 1
    assert len(callers) > 4 and len(set(callers[1:])) == 1
    assert (info.frame_shape, info.frame_dtype) == ((2,), "float32")
    with atarirb.open(tmp_path / "out", columns=("half", "from_split")) as reader:
        batch = reader[:]
    expected = np.asarray(whole["observation"]).mean((1, 2), dtype=np.float32)
    np.testing.assert_allclose(batch["observation"], expected, rtol=1e-6)
    np.testing.assert_array_equal(batch["half"], np.asarray(whole["next"]["reward"]).astype(np.float16) / 2)
    np.testing.assert_array_equal(batch["from_split"], whole["split"], strict=True)


def test_bfloat16_is_refused_in_words(small, tmp_path):
    jax = pytest.importorskip("jax")

    def brief(batch):
        return {"observation": batch["observation"].astype(jax.numpy.bfloat16)}

    with atarirb.open(small[0], output="jax") as reader:
        with pytest.raises(ArgumentError, match="returned observation of dtype bfloat16, expected numbers"):
            atarirb.map(reader, brief, tmp_path / "out")


# Once again, and after a stop.


def test_the_bytes_do_not_depend_on_workers_and_a_second_map_changes_nothing(source, tmp_path):
    out = tmp_path / "out"
    calls = []

    def counted(batch):
        calls.append(1)
        return crop(batch) | value(batch)

    with atarirb.open(source) as reader:
        first = mapped(reader, counted, out, batch_size=16, workers=1)
        for workers in (None, 3):
            mapped(reader, counted, tmp_path / str(workers), batch_size=16, workers=workers)
            assert digest(tmp_path / str(workers)) == digest(out)
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
        calls.clear()
        assert mapped(reader, counted, out, batch_size=16) == first
    assert len(calls) == 1
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("call", [3, 30, 77, 130])
def test_killed_at_any_write_it_ends_the_same(source, tmp_path, call):
    def code(out):
        return f"""
from tests.test_map import crop, value
reader = atarirb.open({str(source)!r})
fn = lambda batch: crop(batch) | value(batch)
atarirb.map(reader, fn, {str(out)!r}, batch_size=16, workers=1)
"""

    assert truth.run_killed(code(tmp_path / "out"), at=call) == -signal.SIGKILL
    assert not (tmp_path / "out/dataset.json").exists()
    with pytest.raises(DatasetNotFoundError, match="its making did not finish"):
        atarirb.open(tmp_path / "out")
    with atarirb.open(source) as reader:
        for out in ("out", "whole"):
            mapped(reader, lambda batch: crop(batch) | value(batch), tmp_path / out, batch_size=16)
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_an_interrupt_leaves_whole_shards_only_and_is_taken_up_again(source, tmp_path):
    def interrupted(batch):
        if (batch["index"] == 120).any():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return crop(batch)

    with atarirb.open(source) as reader:
        with pytest.raises(KeyboardInterrupt):
            mapped(reader, interrupted, tmp_path / "out", batch_size=16, workers=1, codec="raw")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"00000", "00001"}
        mapped(reader, crop, tmp_path / "out", batch_size=16, codec="raw")
        mapped(reader, crop, tmp_path / "whole", batch_size=16, codec="raw")
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")


def test_a_function_that_fails_on_one_shard_loses_no_other(source, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def failing(batch):
        if (batch["index"] == 120).any():
            raise ZeroDivisionError("no such thing")
        return crop(batch)

    with atarirb.open(source) as reader:
        split = int(reader.locate(120)[0])
        count = len(reader.info.splits)
        with pytest.raises(
            MapError, match=rf"1 of {count} shards of .* failed:\n  split {split}: "
        ) as caught:
            mapped(reader, failing, out, batch_size=16)
        assert "from step" in str(caught.value) and "failed: ZeroDivisionError: no such thing" in str(
            caught.value
        )
        assert f"The other {count - 1} are kept. Mend the function" in str(caught.value)
        failure = caught.value.failures[split]
        assert list(caught.value.failures) == [split] and isinstance(failure, FunctionError)
        assert isinstance(failure.__cause__, ZeroDivisionError)
        assert failure.__cause__.__traceback__.tb_next.tb_frame.f_code.co_name == "failing"
        assert caught.value.__cause__ is failure
        assert {path.name for path in out.iterdir()} == {
            f"{number:05d}" for number in reader.info.splits if number != split
        }
        done, run = [], module._Job.run
        monkeypatch.setattr(
            module._Job, "run", lambda job, *a: (done.append(job.shard.split), run(job, *a))[1]
        )
        mapped(reader, crop, out, batch_size=16)
        assert done == [split]
        mapped(reader, crop, tmp_path / "whole", batch_size=16)
    assert digest(out) == digest(tmp_path / "whole")


def test_a_function_that_fails_at_once_leaves_nothing(source, tmp_path):
    with atarirb.open(source) as reader:
        with pytest.raises(
            MapError, match=r"step 0 to 42, failed: KeyError: 'pixels'; nothing was written"
        ) as caught:
            atarirb.map(reader, lambda batch: batch["pixels"], tmp_path / "out")
        assert isinstance(caught.value.failures[0].__cause__, KeyError)
    assert not (tmp_path / "out").exists()


def test_damage_fails_its_shard(copy, codec, tmp_path):
    spoil(copy / "00002" / FRAMES[codec])
    words = "00002/observation.pack: the block of" if codec == "packed" else "00002/observation.npy: checksum"
    with atarirb.open(copy) as reader:
        for fn in (crop, value):
            with pytest.raises(MapError, match=f"split 2: .*{words if fn is crop else '00002/observation'}"):
                mapped(reader, fn, tmp_path / fn.__name__)
        spoil(copy / "00002" / FRAMES[codec])
        spoil(copy / "00001/pair.npy")
        with pytest.raises(MapError, match="split 1: .*00001/pair.npy: checksum .* its bytes have changed"):
            mapped(reader, crop, tmp_path / "other")
        spoil(copy / "00001/pair.npy")
        mapped(reader, crop, tmp_path / "crop")
    assert atarirb.verify(tmp_path / "crop", deep=True).ok


def test_a_source_that_grew_has_only_the_new_shards_mapped(source, codec, tmp_path, monkeypatch):
    done, run = [], module._Job.run
    monkeypatch.setattr(module._Job, "run", lambda job, *a: (done.append(job.shard.split), run(job, *a))[1])
    for splits in ([0, 1, 2], None):
        truth.ingest(source.parent / "Game/1", tmp_path / "data", codec=codec, splits=splits)
        with atarirb.open(tmp_path / "data", frame_stack=4) as reader:
            mapped(reader, embed, tmp_path / "out", workers=1)
        with atarirb.open(tmp_path / "data", columns="return_to_go") as reader:
            mapped(reader, lambda batch: {"to_go": batch["return_to_go"]}, tmp_path / "to_go", workers=1)
    assert done == [0, 1, 2, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    with atarirb.open(source, frame_stack=4) as reader:
        mapped(reader, embed, tmp_path / "whole")
    assert digest(tmp_path / "out") == digest(tmp_path / "whole")
    with atarirb.open(source, columns="return_to_go") as reader:
        with atarirb.open(tmp_path / "to_go", columns="to_go") as made:
            np.testing.assert_array_equal(made[:]["to_go"], reader[:]["return_to_go"])


def test_a_mapped_dataset_is_converted_and_mapped_again(source, codec, tmp_path):
    other = {"packed": "raw", "raw": "packed"}[codec]
    with atarirb.open(source) as reader:
        mapped(reader, lambda batch: crop(batch) | value(batch), tmp_path / "a", codec=codec)
        mapped(reader, lambda batch: crop(batch) | value(batch), tmp_path / "b", codec=other)
    with mock.patch("os.fsync"):
        atarirb.convert(tmp_path / "a", tmp_path / "c", codec=other)
        atarirb.convert(tmp_path / "a", tmp_path / "c", codec=other)
    assert digest(tmp_path / "c") == digest(tmp_path / "b")
    with atarirb.open(tmp_path / "a", columns="mean") as reader:
        less = mapped(
            reader, lambda b: {"observation": b["observation"][:, 0], "mean": b["mean"] + 1}, tmp_path / "d"
        )
        expected = reader[:]
    assert less.frame_shape == (3,)
    with atarirb.open(tmp_path / "d", columns="mean") as reader:
        np.testing.assert_array_equal(reader[:]["observation"], expected["observation"][:, 0])
        np.testing.assert_array_equal(reader[:]["mean"], expected["mean"] + 1)
    assert atarirb.verify(tmp_path / "d", deep=True).ok


# What is refused.


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda b: b["observation"], "returned a ndarray, expected a dict of arrays by name"),
        (lambda b: {}, "returned an empty dict, expected a dict of arrays by name"),
        (lambda b: None, "returned a NoneType, expected a dict"),
        (
            lambda b: {"observation": b["observation"][:-1]},
            r"observation of shape \[7, 4, 3\], expected 8 rows",
        ),
        (lambda b: {"mean": b["observation"].mean()}, r"mean of shape \[\], expected 8 rows"),
        (
            lambda b: {"mean": b["observation"][:, :0]},
            r"mean of shape \[8, 0, 3\], expected .* of a value or more",
        ),
        (
            lambda b: {"action": b["action"]},
            "returned 'action', which no column may be called; expected 'obs",
        ),
        (lambda b: {"return_to_go": b["reward"]}, "returned 'return_to_go', which no column"),
        (lambda b: {"next": {"observation": b["observation"]}}, "returned 'next', which no column"),
        (lambda b: {"a/b": b["reward"]}, "returned 'a/b', which no column"),
        (lambda b: {"observation.x": b["reward"]}, "returned 'observation.x', which no column"),
        (lambda b: {3: b["reward"]}, "returned 3, which no column"),
        (lambda b: {"words": np.array(["no"] * 8)}, "returned words of dtype <U2, expected numbers"),
        (lambda b: {"things": np.array([None] * 8)}, "returned things of dtype object, expected numbers"),
    ],
)
def test_what_cannot_be_a_dataset_is_refused_before_the_first_byte(source, returned, words, tmp_path):
    with atarirb.open(source) as reader:
        with pytest.raises(ArgumentError, match=f"fn, given 8 rows from step 0 to 7, .*{words}"):
            atarirb.map(reader, returned, tmp_path / "out", batch_size=8)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (
            lambda made: made | {"observation": made["observation"][:, :1]},
            r"observation uint8\[1, 3\], .*\[2, 3\]",
        ),
        (
            lambda made: made | {"odd": made["odd"].astype(np.int32)},
            r"odd int32\[\], expected int64\[\] a row",
        ),
        (lambda made: made | {"new": made["odd"]}, r"new int64\[\], expected nothing a row"),
        (lambda made: {"odd": made["odd"]}, r"observation nothing, expected uint8\[2, 3\] a row"),
    ],
)
def test_a_later_batch_of_another_kind_fails_its_shard(source, later, words, tmp_path):
    def changing(batch):
        made = crop(batch) | {"odd": value(batch)["odd"]}
        return later(made) if (batch["index"] == 101).any() else made

    with atarirb.open(source) as reader:
        with pytest.raises(
            MapError, match=rf"split 2: fn, given 7 rows from step \d+ to \d+, returned as {words}"
        ):
            mapped(reader, changing, tmp_path / "out", batch_size=7, codec="raw")
    assert (tmp_path / "out/00001").exists()


def test_wrong_arguments(source, tmp_path):
    before = digest(source)
    with atarirb.open(source) as reader:
        some = reader.select([1, 2])
        count = len(reader.episodes)
        with pytest.raises(
            ArgumentError, match=f"the reader has a selection: 2 of {count} episodes; .*select from"
        ):
            atarirb.map(some, crop, tmp_path / "out")
        with pytest.raises(ArgumentError, match="reader is '.*', expected what atarirb.open returns"):
            atarirb.map(str(source), crop, tmp_path / "out")
        with pytest.raises(ArgumentError, match="fn is 'crop', expected a function of a batch"):
            atarirb.map(reader, "crop", tmp_path / "out")
        with pytest.raises(ArgumentError, match="batch_size is 0"):
            atarirb.map(reader, crop, tmp_path / "out", batch_size=0)
        with pytest.raises(ArgumentError, match="workers is 0"):
            atarirb.map(reader, crop, tmp_path / "out", workers=0)
        with pytest.raises(ArgumentError, match="unknown codec 'mp4'"):
            atarirb.map(reader, crop, tmp_path / "out", codec="mp4")
        with pytest.raises(ArgumentError, match="is the dataset to be mapped; name another directory"):
            atarirb.map(reader, crop, source.parent / "." / "data")
    with pytest.raises(ClosedError):
        atarirb.map(reader, crop, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert digest(source) == before


def test_a_directory_that_holds_something_else_is_refused_and_stays(source, codec, tmp_path):
    game = source.parent / "Game/1"
    shutil.copytree(source, tmp_path / "whole")
    shutil.copytree(source, tmp_path / "parts")
    (tmp_path / "parts/dataset.json").unlink()
    record(tmp_path / "Other/2", [30], 50, frame_shape=(4, 3))
    truth.ingest(tmp_path / "Other/2", tmp_path / "other", codec=codec)
    with atarirb.open(source) as reader:
        mapped(reader, crop, tmp_path / "out", codec=codec)
        before = digest(tmp_path / "out")
        how = (
            r"holds steps mapped by \(frame_stack=1, columns=, output=numpy, batch_size=256\) -> observation "
        )
        for call, words in [
            (
                lambda: atarirb.map(reader, value, tmp_path / "whole"),
                "holds steps as they were played, not steps ",
            ),
            (
                lambda: atarirb.map(reader, value, tmp_path / "parts"),
                "holds steps as they were played, not steps ",
            ),
            (lambda: atarirb.map(reader, crop, tmp_path / "other"), r"holds Other/2 \(original\) with codec"),
            (
                lambda: atarirb.map(reader, value, tmp_path / "out"),
                how + r"uint8\[2, 3\], not .* -> mean float32",
            ),
            (
                lambda: atarirb.map(reader, crop, tmp_path / "out", batch_size=8),
                how + ".*, not .*batch_size=8",
            ),
            (lambda: atarirb.ingest(game, tmp_path / "out", codec=codec), how + ".* not steps as they were"),
            (
                lambda: atarirb.convert(source, tmp_path / "out", codec=codec),
                how + ".* not steps as they were",
            ),
        ]:
            with pytest.raises(ArgumentError, match=words):
                call()
        other = {"packed": "raw", "raw": "packed"}[codec]
        with pytest.raises(ArgumentError, match=f"holds Game/1 .* with codec {codec}, not Game/1"):
            atarirb.map(reader, crop, tmp_path / "out", codec=other)
    truth.ingest(game, tmp_path / "few", codec=codec, splits=[0])
    with atarirb.open(tmp_path / "few") as reader:
        with pytest.raises(ArgumentError, match=r"holds split\(s\) 1, 2, 3, 4, 5, which .*few does not have"):
            atarirb.map(reader, crop, tmp_path / "out", codec=codec)
    assert digest(tmp_path / "out") == before
    assert digest(tmp_path / "whole") == digest(source)


def test_two_writers_of_one_dataset_do_not_meet(source, tmp_path):
    entered, leave = threading.Event(), threading.Event()

    def slow(batch):
        if (tmp_path / "out" / building.WORK).exists():
            entered.set()
            leave.wait(20)
        return crop(batch)

    with atarirb.open(source) as reader:
        thread = threading.Thread(target=atarirb.map, args=(reader, slow, tmp_path / "out"))
        thread.start()
        try:
            assert entered.wait(20)
            with pytest.raises(BusyError, match="another process is writing"):
                atarirb.map(reader, crop, tmp_path / "out")
        finally:
            leave.set()
            thread.join()
    assert atarirb.verify(tmp_path / "out").ok


@pytest.mark.parametrize("wanted", CODECS)
def test_a_full_disk_is_known_before_the_first_byte(source, wanted, tmp_path, monkeypatch):
    with atarirb.open(source) as reader:
        needed = []
        monkeypatch.setattr(building, "check_space", lambda _, count, *__: needed.append(count))
        made = mapped(reader, lambda batch: crop(batch) | value(batch), tmp_path / "out", codec=wanted)
        assert made.bytes * 0.97 < needed[0] < made.bytes * 3
        monkeypatch.undo()
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 900, 100))
        for fn in (crop, value):
            with pytest.raises(DiskSpaceError, match=r"none needs [\d,]+ bytes, its disk has 100 free"):
                atarirb.map(reader, fn, tmp_path / "none", codec=wanted)
    assert not (tmp_path / "none").exists()


# The command line.


def test_the_command_line_maps(source, tmp_path, capfd):
    out = tmp_path / "out"
    options = ["--frame-stack", "4", "--batch-size", "16", "--columns", "timestep,wide", "--workers", "2"]
    arguments = ["map", str(source), str(out), "--fn", "tests.test_map:embed", *options]
    assert cli.main(arguments) == 0
    printed = capfd.readouterr()
    assert "float16 5, codec raw: " in printed.out and printed.err == ""
    with atarirb.open(source, frame_stack=4, columns=("timestep", "wide")) as reader:
        mapped(reader, embed, tmp_path / "same", batch_size=16)
    assert digest(out) == digest(tmp_path / "same")
    assert cli.main(["map", str(source), str(out), "--fn", "tests.test_map:crop", "--codec", "raw"]) == 2
    assert "holds steps mapped by" in capfd.readouterr().err
    assert cli.main(["map", str(source), str(out), "--fn", "tests.test_map:nothing"]) == 2
    assert "fn 'tests.test_map:nothing': 'tests.test_map' has no 'nothing'" in capfd.readouterr().err
    assert cli.main(["map", str(source), str(out), "--fn", "tests.test_map:WEIGHTS"]) == 2
    assert "expected a function of a batch" in capfd.readouterr().err
    assert cli.main(["map", str(source), str(tmp_path / "no"), "--fn", "tests.test_map:embed"]) == 1
    assert "failed: ValueError: matmul" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["map", str(source), str(out)])


def test_a_path_object_and_a_string_are_the_same(source, tmp_path, capfd):
    with atarirb.open(source) as reader:
        one = mapped(reader, crop, str(tmp_path / "a"), progress=True)
        two = mapped(reader, crop, pathlib.Path(tmp_path / "b"))
    assert one.steps == two.steps
    assert capfd.readouterr() == ("", "")
