"""The packed codec: what it writes, what both decoders answer, and what damage does."""

import ctypes
import importlib.util
import json
import pathlib
import shutil
import tempfile
import threading
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import atarirb
from atarirb.errors import ArgumentError, DatasetError
from atarirb.store.packed import Frames, Writer, layout, libzstd, sampled
from tests import shards, truth
from tests.packed_fuzz import DECODERS, decoded, opened, sample_frames, write
from tests.test_ingest import digest

needs_numba = pytest.mark.skipif(not importlib.util.find_spec("numba"), reason="numba is not installed")


# Damage.


@pytest.mark.parametrize("kind", ["pack", "index", "dictionary", "forged", "shapes"])
def test_damage_of_every_kind_is_an_error_or_does_not_show(kind, python, tmp_path):
    code = """
        import faulthandler, json, pathlib, sys, warnings
        faulthandler.enable()
        warnings.simplefilter("error")
        from tests import packed_fuzz
        print(json.dumps(getattr(packed_fuzz, sys.argv[2])(pathlib.Path(sys.argv[1]))))
    """
    counts = json.loads(python(code, tmp_path, kind))
    assert sum(counts.values()) > 300


@pytest.fixture
def damaged(tmp_path):
    """A dataset with one damaged block: its path, and the step whose it is."""
    shards.write(tmp_path / "data", [[(40, 1, False)], [(50, 1, True)]], codec="packed")
    index = np.load(tmp_path / "data/00001/observation.idx.npy")
    path = tmp_path / "data/00001/observation.pack"
    data = bytearray(path.read_bytes())
    data[int(index["length"].reshape(-1)[:7].sum()) + 9] ^= 4
    path.write_bytes(data)
    return tmp_path / "data"


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("frame_stack", [1, 4, 3])
def test_a_batch_with_a_damaged_frame_is_refused_and_others_are_not(
    damaged, decoder, frame_stack, monkeypatch
):
    monkeypatch.setenv("ATARIRB_ZSTD", decoder)
    words = (
        r"00001/observation.pack: the block of the shard's step 7 is damaged; 'atarirb verify --deep' tells"
    )
    with atarirb.open(damaged, frame_stack=frame_stack) as reader:
        shown = range(46, 47 + frame_stack)  # as the next observation, as the newest frame, and further back
        for step in range(len(reader)):
            if step in shown:
                with pytest.raises(DatasetError, match=words):
                    reader[step]
            else:
                reader[step]
        with pytest.raises(DatasetError, match=words):
            reader[:]
        with pytest.raises(DatasetError, match=words):
            reader.sample_slices(0, 64, 20)
        good = [step for step in range(len(reader)) if step not in shown]
        with atarirb.open(damaged, frame_stack=frame_stack) as again:
            truth.assert_same(again[good], truth.pick(reader[good], slice(None)))


def test_verify_deep_names_the_damaged_frames_of_each_shard_and_goes_on(damaged):
    assert not atarirb.verify(damaged).ok
    problems = atarirb.verify(damaged, deep=True).problems
    assert len(problems) == 2
    assert "00001/observation.pack: checksum" in problems[0]
    assert problems[1].endswith("00001/observation.pack: the block of the shard's step 7 is damaged")

    path = damaged / "00000/observation.pack"
    path.write_bytes(bytes(path.stat().st_size))
    (damaged / "00001/observation.pack").unlink()
    problems = atarirb.verify(damaged, deep=True).problems
    steps = [problem for problem in problems if "the block of the shard's step" in problem]
    assert [problem.split()[-3] for problem in steps] == ["0", "1", "2", "3", "4"]
    assert f"{damaged / '00000'}: 35 more of its 40 frames are damaged" in problems
    assert any("00001/observation.pack: missing" in problem for problem in problems)


def test_verify_deep_finds_a_damaged_final_frame(tmp_path):
    shards.write(tmp_path / "data", [[(40, 1, True), (3, 2, True)]], codec="packed")
    path = tmp_path / "data/00000/observation.pack"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    problems = atarirb.verify(tmp_path / "data", deep=True).problems
    assert problems[-1].endswith("the block of the shard's final frame 1 is damaged")


def test_verify_deep_says_once_that_templates_are_damaged(damaged):
    path = damaged / "00000/observation.dict"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    problems = atarirb.verify(damaged, deep=True).problems
    assert (
        sum("00000/observation.dict: the shard's templates are damaged" in problem for problem in problems)
        == 1
    )
    with atarirb.open(damaged) as reader:
        with pytest.raises(DatasetError, match="00000/observation.dict: the shard's templates are damaged"):
            reader[3]
        reader[45]  # the other shard's are good


# Opening.


def test_opening_decodes_nothing(pong, codec, tmp_path):
    if codec != "packed":
        pytest.skip("of the packed codec")
    shutil.copytree(pong, tmp_path / "data")
    for path in tmp_path.glob("data/*/observation.dict"):
        path.unlink()
    with atarirb.open(tmp_path / "data") as reader:
        assert len(reader.locate(slice(None))[0]) == len(reader)
        with pytest.raises(
            DatasetError, match="00000/observation.dict: missing, though the manifest lists it"
        ):
            reader[0]


@needs_numba
def test_which_decoder_is_used(tmp_path, monkeypatch):
    frames = np.arange(120, dtype=np.uint8).reshape(40, 3)
    place = write(tmp_path / "a", frames)
    assert type(opened(place, frames, "library")._decoder).__name__ == "_Compiled"
    assert type(opened(place, frames, "python")._decoder).__name__ == "_Plain"
    monkeypatch.setattr(libzstd, "_found", lambda: None)
    assert type(opened(place, frames, "library")._decoder).__name__ == "_Plain"
    with pytest.raises(ArgumentError, match="ATARIRB_ZSTD is 'nonsense', expected 'library' or 'python'"):
        opened(place, frames, "nonsense")


# The library.


class Wrong(libzstd.Library):
    """A library that answers otherwise."""

    def decode(self, block, size, dictionary):
        return self.answer(super().decode(block, size, dictionary), size)


@pytest.fixture
def path_of_library():
    if libzstd._found() is None:
        pytest.skip("there is no libzstd that can be called directly")
    return libzstd._found().path


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda found, size: found, None),
        (lambda found, size: found and found[::-1], "to other bytes than it was made of"),
        (lambda found, size: found and found[:-1], "to other bytes than it was made of"),
        (lambda found, size: None, "to other bytes than it was made of"),
        (lambda found, size: found or bytes(size), "into too little room"),
        (lambda found, size: bytes(size) if found is None and size in (1, 3000) else found, "is cut short"),
    ],
)
def test_a_library_that_does_not_answer_right_is_passed_over(path_of_library, answer, words):
    library = Wrong(path_of_library)
    library.answer = answer
    found = libzstd.trial(library)
    assert (found is None) if words is None else (words in found)


def test_what_is_no_libzstd_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "_cffi.so").write_bytes(b"nothing")
    libc = ctypes.CDLL(None)._name or "libc.so.6"
    monkeypatch.setattr(libzstd, "_candidates", lambda: iter([str(tmp_path / "_cffi.so"), libc, "libc.so.6"]))
    assert libzstd._found.__wrapped__() is None


# Writing.


CUTS = {
    "as a whole": [(0, 320)],
    "one by one": [(at, at + 1) for at in range(320)],
    "in parts": [(0, 100), (100, 101), (101, 320)],
    "with the first one last, as in a full file of a log": [(1, 200), (200, 320), (0, 1)],
    "the first one last, one by one": [*((at, at + 1) for at in range(1, 320)), (0, 1)],
    "in two parts, turned": [(150, 320), (0, 150)],
    "in no order": [(40, 90), (200, 320), (0, 1), (90, 200), (1, 40)],
    "backwards": [(at, at + 1) for at in reversed(range(320))],
    "with nothing between": [(0, 0), (0, 160), (160, 160), (160, 320), (320, 320)],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    frames = sample_frames(320)
    return frames, digest(write(tmp_path_factory.mktemp("whole") / "a", frames))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("runs", CUTS.values(), ids=CUTS)
def test_bytes_do_not_depend_on_runs_or_threads(whole, runs, threads, tmp_path):
    frames, expected = whole
    assert digest(write(tmp_path / "a", frames, threads=threads, runs=runs)) == expected


def test_files_are_as_their_records_say(tmp_path):
    frames = sample_frames(70)
    writer = Writer(tmp_path, 70, (84, 84), frames.dtype, samples=frames[sampled(70, (84, 84), frames.dtype)])
    writer.write(frames[35:], 35)
    writer.write(frames[:35], 0)
    records = writer.close()
    assert set(records) == set(layout.files()) == {path.name for path in tmp_path.iterdir()}
    for name, record in records.items():
        data = (tmp_path / name).read_bytes()
        assert (record.bytes, record.crc32) == (len(data), f"{zlib.crc32(data):08x}")


def test_a_frame_that_was_not_written_is_noticed(tmp_path):
    frames = sample_frames(40)
    writer = Writer(tmp_path, 40, (84, 84), frames.dtype, samples=frames)
    writer.write(frames[:20], 0)
    writer.write(frames[21:], 21)
    with pytest.raises(AssertionError, match="frame 20 was not written"):
        writer.close()


def test_the_layout_is_as_documented(tmp_path):
    """Read by hand, with zlib and zstandard alone."""
    frames = sample_frames(70)
    place = write(tmp_path / "a", frames)
    templates = zstandard.ZstdDecompressor().decompress((place / "observation.dict").read_bytes())
    assert zstandard.get_frame_parameters((place / "observation.dict").read_bytes()).has_checksum
    assert len(templates) == 3 * 7056
    assert {templates[at : at + 7056] for at in range(0, len(templates), 7056)} <= {
        f.tobytes() for f in frames
    }
    raw = zstandard.ZstdCompressionDict(templates, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    index, pack = np.load(place / "observation.idx.npy"), (place / "observation.pack").read_bytes()
    assert index.shape == (3,) and index["length"].shape == (3, 32)
    assert not index["length"][2, 6:].any()
    for number, frame in enumerate(frames):
        record = index[number // 32]
        begin = int(record["offset"]) + int(record["length"][: number % 32].sum())
        block = pack[begin : begin + int(record["length"][number % 32])]
        check = zlib.crc32(block[:-4], zlib.crc32(number.to_bytes(8, "little"), zlib.crc32(templates)))
        assert block[-4:] == check.to_bytes(4, "little")
        assert block[0] == 0 and block[1] <= 136
        decompressor = zstandard.ZstdDecompressor(dict_data=raw)
        found = decompressor.decompress(b"\x28\xb5\x2f\xfd" + block[:-4], max_output_size=7056)
        assert found == frame.tobytes()


def test_a_small_shard_does_not_drown_in_its_templates(tmp_path):
    place = write(tmp_path / "a", sample_frames(300))
    size = {name: (place / name).stat().st_size for name in layout.files()}
    assert size[layout.DICTIONARY] < sum(size.values()) / 3
    assert sum(size.values()) < 300 * 7056 / 20


def test_incompressible_frames_take_hardly_more_than_raw_ones(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (200, 84, 84)).astype(np.uint8)
    place = write(tmp_path / "a", frames)
    taken = sum((place / name).stat().st_size for name in layout.files())
    assert taken < frames.nbytes * (1 + 1 / 32 + 0.01)  # a template for each 32 frames
    assert taken <= layout.disk_bytes(200, (84, 84), frames.dtype, 10**9)


def test_templates_that_begin_as_a_dictionary_of_zstds_own_are_taken_for_what_they_are(tmp_path):
    frames = np.random.default_rng(0).integers(0, 4, (40, 50)).astype(np.uint8)
    frames[:, :4] = 0x37, 0xA4, 0x30, 0xEC
    place = write(tmp_path / "a", frames)
    for decoder in DECODERS:
        np.testing.assert_array_equal(decoded(opened(place, frames, decoder), range(40)), frames)


# Reading.


@st.composite
def parts(draw):
    """Shards, often tiny, some with final frames, and frames wanted of them."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=5))
    sizes.append((draw(st.integers(1, 40)), draw(st.integers(0, 2))))
    return draw(st.permutations(sizes)), draw(st.integers(0, 2**32)), draw(st.integers(1, 9)), draw(DTYPES)


DTYPES = st.sampled_from(["uint8", "uint8", "uint16", "float32", "complex128"])


@needs_numba
@settings(max_examples=40)
@given(parts())
def test_both_decoders_answer_as_frames_in_memory_do(case):
    """A new reader each time, which has to find out of which shards it needs the templates."""
    sizes, seed, depth, dtype = case
    rng = np.random.default_rng(seed)
    all_frames = [rng.integers(1, 9, (steps + finals, 6, 2)).astype(dtype) for steps, finals in sizes]
    steps, finals = zip(*sizes, strict=True)
    # The numbering of a dataset: the steps' frames of all shards first, then the final ones.
    played = np.concatenate([part[:count] for part, count in zip(all_frames, steps, strict=True)])
    after = np.concatenate([part[count:] for part, count in zip(all_frames, steps, strict=True)])
    frames = np.concatenate([played, after])
    rows = 10
    index = rng.integers(0, len(played), rows)
    next_index = rng.integers(0, len(played), rows)
    first = np.maximum(np.minimum(index, next_index) - rng.integers(0, 6, rows), 0)
    other = np.where(rng.random(rows) < 0.5, -1, rng.integers(0, len(frames), rows))
    next_newest = np.where(rng.random(rows) < 0.3, other, next_index)

    def stack(step, newest, start):
        out = np.zeros((6, 2, depth), dtype)
        for back in range(depth if newest >= 0 else 0):
            if back == 0 or step - back >= start:
                out[..., depth - 1 - back] = frames[newest if back == 0 else step - back]
        return out

    with tempfile.TemporaryDirectory() as directory:
        places = [write(pathlib.Path(directory) / f"{k}", part) for k, part in enumerate(all_frames)]
        for decoder in DECODERS:
            for asked in range(4):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("ATARIRB_ZSTD", decoder)
                    shard = Frames(places, steps, finals, (6, 2), np.dtype(dtype))
                ticket = np.zeros(1, np.int64)
                outs = [np.full((rows, 6, 2, depth), 99).astype(dtype) for _ in range(2)]
                flat = [np.full((rows, 6, 2), 99).astype(dtype) for _ in range(2)]
                if asked == 0:
                    shard.frames(ticket, next_newest, flat[0])
                    expected = np.where((next_newest < 0)[:, None, None], 0, frames[next_newest])
                    np.testing.assert_array_equal(flat[0], expected)
                elif asked == 1:
                    shard.pairs(ticket, index, next_newest, *flat)
                    np.testing.assert_array_equal(flat[0], frames[index])
                    expected = np.where((next_newest < 0)[:, None, None], 0, frames[next_newest])
                    np.testing.assert_array_equal(flat[1], expected)
                elif asked == 2:
                    shard.stacks(ticket, next_index, next_newest, first, outs[0])
                    shown = zip(next_index, next_newest, first, strict=True)
                    np.testing.assert_array_equal(outs[0], [stack(*row) for row in shown])
                else:
                    shard.stack_pairs(ticket, index, next_index, next_newest, first, *outs)
                    shown = zip(index, index, first, strict=True)
                    np.testing.assert_array_equal(outs[0], [stack(*row) for row in shown])
                    shown = zip(next_index, next_newest, first, strict=True)
                    np.testing.assert_array_equal(outs[1], [stack(*row) for row in shown])
                assert ticket[0] >= rows


@needs_numba
@settings(max_examples=200)
@given(st.binary(max_size=70), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 7))
def test_the_kernels_checksum_is_zlibs(data, number, start, offset):
    from atarirb.kernels import unpacking

    whole = np.frombuffer(bytes(offset) + data + bytes(1), np.uint8)  # at any alignment
    found = unpacking.crc32(np.uintp(whole.ctypes.data + offset), len(data), number, start)
    assert found == zlib.crc32(data, zlib.crc32(number.to_bytes(8, "little"), start))
    assert found == layout.check_value(data, number, start)


@pytest.mark.parametrize("decoder", DECODERS)
def test_threads_that_ask_first_at_once_all_get_right_frames(pong, codec, decoder, monkeypatch):
    if codec != "packed":
        pytest.skip("of the packed codec")
    monkeypatch.setenv("ATARIRB_ZSTD", decoder)
    with atarirb.open(pong, frame_stack=4) as reader:
        expected = truth.digest(reader[::97])
    for _ in range(5):
        found, barrier = [], threading.Barrier(8)
        with atarirb.open(pong, frame_stack=4) as reader:

            def ask(reader=reader, found=found, barrier=barrier):
                barrier.wait()
                found.append(truth.digest(reader[::97]))

            asking = [threading.Thread(target=ask) for _ in range(8)]
            for thread in asking:
                thread.start()
            for thread in asking:
                thread.join()
        assert found == [expected] * 8
