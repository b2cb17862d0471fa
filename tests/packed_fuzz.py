"""Damage of every kind to packed shards, by both decoders: an error or the right frame, never a wrong one.

Run in a process of its own, which a fault of a decoder would end:

    python -m tests.packed_fuzz DIRECTORY pack|index|dictionary|forged|shapes
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import zstandard

from atarirb.errors import DatasetError
from atarirb.store.packed import Frames, Writer, layout, sampled
from atarirb.store.packed.writing import _Encoder
from tests import truth

DECODERS = ("library", "python")


def sample_frames(count: int) -> np.ndarray:
    """Real frames, uint8[count, 84, 84]."""
    import gzip

    path = truth.SAMPLES / "Breakout/1/replay_logs/$store$_observation_ckpt.1.gz"
    with gzip.open(path) as file:
        return np.lib.format.read_array(file)[5 : 5 + count].copy()


def write(directory: pathlib.Path, frames: np.ndarray, threads: int = 1, runs=None) -> pathlib.Path:
    """Write a shard of frames, in runs (first, stop) or as a whole."""
    directory.mkdir(parents=True)
    shape, dtype = frames.shape[1:], frames.dtype
    samples = frames[sampled(len(frames), shape, dtype)]
    writer = Writer(directory, len(frames), shape, dtype, samples=samples, threads=threads)
    try:
        for first, stop in [(0, len(frames))] if runs is None else runs:
            writer.write(frames[first:stop], first)
    except BaseException:
        writer.abandon()
        raise
    writer.close()
    return directory


def opened(directory: pathlib.Path, frames: np.ndarray, decoder: str) -> Frames:
    """Open a shard to be decoded in one of the two ways."""
    with mock.patch.dict(os.environ, ATARIRB_ZSTD=decoder):
        return Frames([directory], [len(frames)], [0], frames.shape[1:], frames.dtype)


def decoded(shard: Frames, index) -> np.ndarray:
    """Decode frames."""
    out = np.full((len(index), *shard.shape), 99).astype(shard.dtype)
    shard.frames(np.zeros(1, np.int64), np.asarray(index, np.int64), out)
    return out


class Fuzz:
    """One shard and the answers that both decoders give of it."""

    def __init__(self, directory: pathlib.Path, frames: np.ndarray):
        self.directory, self.frames = directory, frames
        self.files = {name: (directory / name).read_bytes() for name in layout.files()}
        self.now = dict(self.files)
        self.counts = {"refused at open": 0, "refused": 0, "right": 0}

    def put(self, **files: bytes) -> None:
        """Replace files, named without their beginning; leave the others as they were."""
        for name in layout.files():
            kind = name.removeprefix("observation.").removesuffix(".npy")
            data = files.get(kind, self.files[name])
            if data != self.now[name]:
                (self.directory / name).write_bytes(data)
                self.now[name] = data

    def check(self, index, *, differ: bool = False) -> None:
        """Open anew and ask for frames, one by one, of each decoder: an error, or the right one.

        Both must give the same, unless they may `differ` in which of the two it is.
        """
        answers = []
        for decoder in DECODERS:
            try:
                shard = opened(self.directory, self.frames, decoder)
            except DatasetError as error:
                assert self.directory.name in str(error), error
                answers.append(re.sub("0x[0-9a-f]+", "", str(error)))  # as in numpy's words on a header
                self.counts["refused at open"] += 1
                continue
            answers.append([self.ask(shard, frame) for frame in index])
        assert answers[0] == answers[1] or differ, answers

    def ask(self, shard: Frames, frame: int) -> str:
        """Ask for one frame."""
        try:
            found = decoded(shard, [frame])[0]
        except DatasetError as error:
            words = str(error)
            assert self.directory.name in words, words
            assert f"step {frame:,} is damaged" in words or "templates are damaged" in words, words
            self.counts["refused"] += 1
            return words
        assert found.tobytes() == self.frames[frame].tobytes(), f"frame {frame} is wrong"
        self.counts["right"] += 1
        return "right"


def flips(data: bytes, all_bits: Callable[[int], bool]) -> Iterator[tuple[int, bytes]]:
    """Flip a bit of each byte, one at a time, and all of some."""
    for at in range(len(data)):
        for bit in range(8) if all_bits(at) else (at % 8,):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            yield at, bytes(damaged)


def pack(directory: pathlib.Path) -> dict[str, int]:
    """Every byte of the blocks; they are mapped, so the shards need not be opened again."""
    frames = sample_frames(200)
    fuzz = Fuzz(write(directory / "00003", frames), frames)
    data = fuzz.files[layout.PACK]
    index = np.load(directory / "00003" / layout.INDEX)
    ends = np.cumsum(index["length"].reshape(-1)[: len(frames)].astype(np.int64))
    assert ends[-1] == len(data)
    shards = [opened(fuzz.directory, frames, decoder) for decoder in DECODERS]
    with open(fuzz.directory / layout.PACK, "r+b", buffering=0) as file:
        for at, damaged in flips(data, lambda at: at % 67 == 0 or at < 150):
            os.pwrite(file.fileno(), damaged[at : at + 1], at)
            frame = int(np.searchsorted(ends, at, side="right"))
            answers = [fuzz.ask(shard, frame) for shard in shards]
            assert answers[0] == answers[1] != "right", (at, answers)
            others = np.delete(np.arange(len(frames)), frame)
            others = others if at % 16 == 0 else others[max(0, frame - 3) : frame + 3]
            assert np.array_equal(decoded(shards[0], others), frames[others])
            if at % 200 == 0:
                assert np.array_equal(decoded(shards[1], others), frames[others])
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert np.array_equal(decoded(shards[0], range(len(frames))), frames)
    return fuzz.counts


def index(directory: pathlib.Path) -> dict[str, int]:
    """Every byte of the index; truncations; and entries that lead anywhere."""
    frames = sample_frames(70)
    fuzz = Fuzz(write(directory / "00003", frames), frames)
    data, blocks = fuzz.files[layout.INDEX], fuzz.files[layout.PACK]
    some = [0, 1, 7, 30, 31, 32, 33, 62, 63, 64, 65, 69]  # of each record, the first ones and the last
    for _, damaged in flips(data, lambda at: at % 11 == 0):
        fuzz.put(idx=damaged)
        fuzz.check(some)
    for size in range(len(data)):
        fuzz.put(idx=data[:size])
        fuzz.check([0, 69])
    for size in range(len(blocks)):
        fuzz.put(pack=blocks[:size])
        fuzz.check([0, 69])
    fuzz.put(pack=blocks + b"\0")
    fuzz.check([0, 69])
    assert fuzz.counts["right"] > 1000 and fuzz.counts["refused"] > 100, fuzz.counts

    fuzz.put()
    records = np.load(directory / "00003" / layout.INDEX)
    head = data[: len(data) - records.nbytes]
    most = np.iinfo(np.uint16).max

    def forged(change) -> None:
        """Ask by an index that was changed; the last end is made to fit the file again."""
        changed = records.copy()
        change(changed)
        for fits in (False, True):
            if fits:
                last = int(changed[-1]["length"].sum(dtype=np.uint64))
                changed["offset"][-1] = (len(blocks) - last) % 2**64
            fuzz.put(idx=head + changed.tobytes())
            fuzz.check(some)

    def turned(changed):
        changed[:] = changed[::-1].copy()

    def offsets_turned(changed):
        changed["offset"] = changed["offset"][::-1].copy()

    for change in (turned, offsets_turned):
        forged(change)
    for offset in [len(blocks), len(blocks) + 1, len(blocks) - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63]:
        for record in range(3):
            forged(lambda changed: changed["offset"].__setitem__(record, offset))  # noqa: B023
    for offset in (2**64 - 1, 2**64 - 20, 2**64 - most, 2**64 - 2**20):
        for record in range(3):
            forged(lambda changed: changed["offset"].__setitem__(record, offset))  # noqa: B023
    for length in (0, 1, 4, 5, most):
        for record, place in ((0, 0), (0, 31), (1, 7), (2, 5), (2, 31)):
            forged(lambda changed: changed["length"].__setitem__((record, place), length))  # noqa: B023
        forged(lambda changed: changed["length"].__setitem__(slice(None), length))  # noqa: B023
    return fuzz.counts


def dictionary(directory: pathlib.Path) -> dict[str, int]:
    """Every byte of the templates' file, every truncation, and other templates."""
    frames = sample_frames(70)
    fuzz = Fuzz(write(directory / "00003", frames), frames)
    data = fuzz.files[layout.DICTIONARY]
    some = [0, 1, 35, 69]
    for _, damaged in flips(data, lambda at: at % 13 == 0 or at < 20):
        fuzz.put(dict=damaged)
        fuzz.check(some)
    assert fuzz.counts["right"] < 0.02 * fuzz.counts["refused"], fuzz.counts  # bits that mean nothing
    fuzz.counts["right"] = 0
    for size in range(len(data)):
        fuzz.put(dict=data[:size])
        fuzz.check(some)
    assert fuzz.counts["right"] == 0, fuzz.counts
    content = zstandard.ZstdDecompressor().decompress(data)
    whole = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(write_checksum=True)
    )
    for other in (
        b"", content[:7056], content[7056:], content + content, content[:-1], content[::-1],
        bytes(len(content)), content[7056:] + content[:7056],
    ):  # fmt: skip
        fuzz.put(dict=whole.compress(other))
        fuzz.check(some)
    assert fuzz.counts["right"] == 0, fuzz.counts
    return fuzz.counts


def forged(directory: pathlib.Path) -> dict[str, int]:
    """Blocks in others' places, of other shards, and blocks with a right checksum that are wrong inside."""
    frames = sample_frames(140)
    mine = Fuzz(write(directory / "00003", frames[:70]), frames[:70])
    theirs = Fuzz(write(directory / "00004", frames[70:]), frames[70:])
    data, other = mine.files[layout.PACK], theirs.files[layout.PACK]
    records = np.load(directory / "00003" / layout.INDEX)
    lengths = records["length"].reshape(-1)[:70].astype(np.int64)
    ends = np.cumsum(lengths)
    parts = [data[end - size : end] for end, size in zip(ends.tolist(), lengths.tolist(), strict=True)]
    head = mine.files[layout.INDEX][: -records.nbytes]
    content = zstandard.ZstdDecompressor().decompress(mine.files[layout.DICTIONARY])

    def put(blocks: list[bytes]) -> None:
        changed = np.zeros_like(records)
        flat = np.zeros(3 * 32, np.uint16)
        flat[:70] = [len(block) for block in blocks]
        changed["length"] = flat.reshape(3, 32)
        totals = changed["length"].sum(1, dtype=np.uint64)
        changed["offset"] = np.cumsum(totals) - totals
        mine.put(idx=head + changed.tobytes(), pack=b"".join(blocks))

    put(parts)
    mine.check(range(70))
    assert mine.counts["right"] == 140
    for a, b in ((0, 1), (3, 40), (31, 32), (68, 69)):
        swapped = list(parts)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        put(swapped)
        mine.check([a, b])
    assert mine.counts["refused"] == 16 and mine.counts["right"] == 140
    mine.put(pack=other[: len(data)].ljust(len(data), b"\0"))
    mine.check(range(70))
    mine.put(pack=other, idx=theirs.files[layout.INDEX])
    mine.check(range(70))
    mine.put(dict=theirs.files[layout.DICTIONARY])
    mine.check(range(70))
    assert mine.counts["right"] == 140, mine.counts

    encoder, start = _Encoder(content), layout.start_value(content)
    encoder.encode(frames[:1], 0)
    compress = encoder._local.compressor.compress
    plain = zstandard.ZstdCompressor(level=3).compress
    frame = frames[7].tobytes()

    def signed(block: bytes) -> bytes:
        return block + layout.check_value(block, 7, start).to_bytes(4, "little")

    whole = compress(frame)
    assert signed(whole) == parts[7]
    bad = {
        "empty": b"",
        "too few": compress(frame[:-1]),
        "too many": compress(frame + b"\0"),
        "far too many": compress(frame * 9),
        "none": compress(b""),
        "cut": whole[:-1],
        "longer": whole + b"\0",
        "twice": whole + whole,
        "with a magic number": plain(frame),
        "a skippable frame": b"\x50\x2a\x4d\x18\x04\0\0\0abcd",
        "zeros": bytes(64),
        "ones": b"\xff" * 64,
    }
    for what, block in bad.items():
        put([*parts[:7], signed(block), *parts[8:]])
        before = mine.counts["refused"]
        mine.check([7])
        assert mine.counts["refused"] == before + 2, what
        mine.check([6, 8])
    # Nobody writes two zstd frames for one of a game's; zstd's own function would take them.
    put([*parts[:7], signed(compress(frame[:100]) + compress(frame[100:])), *parts[8:]])
    mine.check([7], differ=True)
    # Any damage with a right checksum: what comes out is not known, but both decoders must survive it and
    # agree, as far as both give something.
    rng = np.random.default_rng(0)
    for _ in range(1500):
        block = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            block[int(rng.integers(len(block)))] = int(rng.integers(256))
        put([*parts[:7], signed(bytes(block)), *parts[8:]])
        answers = []
        for decoder in DECODERS:
            try:
                answers.append(decoded(opened(mine.directory, mine.frames, decoder), [7]).tobytes())
            except DatasetError as error:
                answers.append(str(error))
        assert answers[0] == answers[1], (bytes(block).hex(), whole.hex(), answers[0][:200], answers[1][:200])
    return mine.counts


SHAPES: list[tuple[tuple[int, ...], str]] = [
    ((84, 84), "uint8"), ((1,), "uint8"), ((3,), "uint8"), ((5, 7), "uint8"), ((2, 3, 1), "float32"),
    ((9,), "uint16"), ((4, 5), "float32"),
    ((4, 4), "complex128"), ((11,), "bool"), ((210, 160), "uint8"), ((130, 130, 3), "uint8"), ((), "uint8"),
    ((6,), ">i4"),
]  # fmt: skip


def shapes(directory: pathlib.Path) -> dict[str, int]:
    """Frames of any shape and dtype, noise and none, also larger than 32 kB."""
    total = 0
    rng = np.random.default_rng(0)
    for number, (shape, dtype) in enumerate(SHAPES):
        for count in (1, 31, 32, 33):
            for kind in ("noise", "zeros", "alike"):
                bits = rng.integers(0, 2 if dtype == "bool" else 256, (count, *shape))
                bits = np.zeros_like(bits) if kind == "zeros" else bits
                if kind == "alike":
                    bits[:] = bits[0]
                frames = bits.astype(dtype)
                place = write(directory / f"{number}-{count}-{kind}", frames)
                order = rng.permutation(count)
                for decoder in DECODERS:
                    shard = opened(place, frames, decoder)
                    found = decoded(shard, order)
                    assert found.tobytes() == frames[order].tobytes(), (shape, dtype, count, kind, decoder)
                    if len(shape) == 2:
                        check_stacks(shard, frames, rng)
                    total += 1
                for name in layout.files():
                    (place / name).unlink()
                place.rmdir()
    return {"right": total}


def check_stacks(shard: Frames, frames: np.ndarray, rng: np.random.Generator) -> None:
    """Gather stacks of some depths."""
    for depth in (2, 4, 5, 20):
        index = rng.integers(0, len(frames), 7)
        first = rng.integers(0, len(frames), 7)
        first = np.minimum(first, index)
        out = np.full((7, *frames.shape[1:], depth), 7).astype(frames.dtype)
        shard.stacks(np.zeros(1, np.int64), index, index, first, out)
        for row in range(7):
            for back in range(depth):
                at = index[row] - back
                expected = frames[at] if at >= first[row] else np.zeros_like(frames[0])
                assert np.array_equal(out[row, ..., depth - 1 - back], expected)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](pathlib.Path(sys.argv[1]))))
