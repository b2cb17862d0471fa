"""Decoding packed frames, compiled: one call a batch, libzstd called by pointer.

The specification is `atarirb.store.packed`; `atarirb.store.packed.plain` does the same through documented
interfaces, and tests compare the two. Each function returns the first frame that it could not decode, or
-1; rows of such frames hold anything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from atarirb.kernels.compiled import (
    _clear,
    _pointer,
    _prefetch,
    _route,
    _take_rows,
    as_unsigned,
    as_words,
    interleave,
    interleave_4,
)
from atarirb.kernels.jit import kernel


class Tables(NamedTuple):
    """Where the frames of all shards are.

    Attributes:
        firsts: int64[V + 1], number of the first frame of each run of frames of one shard.
        shards: int64[V], the run's shard.
        locals: int64[V], number in the shard of the run's first frame.
        packs: uintp[S], addresses of the blocks.
        pack_bytes: int64[S], bytes of all blocks.
        indexes: uintp[S], addresses of the indexes.
        starts: uint32[S], value that the blocks' checksums start with.
        dictionaries: uintp[S], zstd's dictionaries.
    """

    firsts: np.ndarray
    shards: np.ndarray
    locals: np.ndarray
    packs: np.ndarray
    pack_bytes: np.ndarray
    indexes: np.ndarray
    starts: np.ndarray
    dictionaries: np.ndarray


def _crc_tables() -> np.ndarray:
    """Make the tables for CRC-32 by 8 bytes at a time (M. Kounavis and F. Berry 2005, "slicing-by-8")."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, np.uint32(0xEDB88320) ^ (table >> 1), table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(7):
        tables.append(table[tables[-1] & 0xFF] ^ (tables[-1] >> 8))
    return np.array(tables, np.uint32)


_CRC = _crc_tables()


@intrinsic
def _call(_, function, context, target, capacity, source, size, dictionary):
    """Call ``ZSTD_decompress_usingDDict`` at an address; sizes and addresses are 64 bits wide."""

    def codegen(llvm, builder, signature, args):
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * 6)
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(*[types.uintp] * 7), codegen


@intrinsic
def _load(_, address):
    """Load 8 bytes from any address."""

    def codegen(llvm, builder, signature, args):
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        load = builder.load(pointer)
        load.align = 1
        return load

    return types.uint64(types.uintp), codegen


@kernel
def _crc_word(crc, word):
    x = word ^ np.uint64(crc)
    return (
        _CRC[7, x & 0xFF]
        ^ _CRC[6, (x >> 8) & 0xFF]
        ^ _CRC[5, (x >> 16) & 0xFF]
        ^ _CRC[4, (x >> 24) & 0xFF]
        ^ _CRC[3, (x >> 32) & 0xFF]
        ^ _CRC[2, (x >> 40) & 0xFF]
        ^ _CRC[1, (x >> 48) & 0xFF]
        ^ _CRC[0, (x >> 56) & 0xFF]
    )


@kernel
def crc32(address, size, number, start):
    """Go on with a CRC-32 over a number, as 8 little-endian bytes, and `size` bytes at an address."""
    crc = _crc_word(~np.uint32(start), np.uint64(number))
    words = size >> 3
    for word in range(words):
        crc = _crc_word(crc, _load(address + np.uintp(word << 3)))
    rest = carray(_pointer(address), (size,), np.uint8)
    for at in range(words << 3, size):
        crc = _CRC[0, (crc ^ rest[at]) & 0xFF] ^ (crc >> 8)
    return ~np.uint32(crc)


_GROUP_BITS = 5
_CHECK = 4
_MOST_WINDOW = 17 << 3


@kernel
def _locate(tables, width, frame):
    """Find a frame: its shard, its number there, the address of its index record, its place in that."""
    run = _route(tables.firsts, frame)
    shard = tables.shards[run]
    number = tables.locals[run] + frame - tables.firsts[run]
    group = number >> _GROUP_BITS
    record = tables.indexes[shard] + np.uintp(group * (8 + (width << _GROUP_BITS)))
    return shard, number, record, number & ((1 << _GROUP_BITS) - 1)


@kernel
def _block(record, width, place):
    """Read an index record: where a block begins, and its length."""
    offset = carray(_pointer(record), (1,), np.int64)[0]
    if width == 2:
        short = carray(_pointer(record + np.uintp(8)), (1 << _GROUP_BITS,), np.uint16)
        for before in range(place):
            offset += np.int64(short[before])
        return offset, np.int64(short[place])
    long = carray(_pointer(record + np.uintp(8)), (1 << _GROUP_BITS,), np.uint32)
    for before in range(place):
        offset += np.int64(long[before])
    return offset, np.int64(long[place])


@kernel
def _expect(tables, width, frame):
    """Prefetch what decoding a frame will read first."""
    shard, _, record, place = _locate(tables, width, frame)
    offset, length = _block(record, width, place)
    if offset >= 0 and offset + length <= tables.pack_bytes[shard]:
        address = tables.packs[shard] + np.uintp(offset)
        for ahead in range(0, min(length, 512), 64):
            _prefetch(address + np.uintp(ahead))


@kernel
def _expect_record(tables, width, frame):
    _prefetch(_locate(tables, width, frame)[2])


@kernel
def _decode(tables, codec, frame, target):
    """Decode one frame; False if its block is damaged."""
    function, context, size, width = codec
    shard, number, record, place = _locate(tables, width, frame)
    offset, length = _block(record, width, place)
    if offset < 0 or length <= _CHECK or offset > tables.pack_bytes[shard] - length:
        return False
    address = tables.packs[shard] + np.uintp(offset)
    length -= _CHECK
    check = carray(_pointer(address + np.uintp(length)), (4,), np.uint8)
    expected = (
        np.uint32(check[0])
        | (np.uint32(check[1]) << np.uint32(8))
        | (np.uint32(check[2]) << np.uint32(16))
        | (np.uint32(check[3]) << np.uint32(24))
    )
    if crc32(address, length, number, tables.starts[shard]) != expected:
        return False
    head = carray(_pointer(address), (2,), np.uint8)
    if length < 2 or head[0] != 0 or head[1] > _MOST_WINDOW:
        return False
    count = _call(
        np.uintp(function),
        np.uintp(context),
        target,
        np.uintp(size),
        address,
        np.uintp(length),
        tables.dictionaries[shard],
    )
    return count == size


@kernel
def _decode_or_clear(tables, codec, frame, target):
    if frame < 0:
        _clear(target, np.uintp(codec[2]))
        return True
    return _decode(tables, codec, frame, target)


_ROWS = 8


@kernel
def frames(ticket, tables, codec, index, out):
    """Decode frame ``index[i]`` into ``out[i]``; zeros for -1.

    Args:
        ticket: int64[1], the next row to do.
        tables: `Tables`.
        codec: Address of the function, address of this thread's context, bytes of a frame, bytes of a
            length in the index.
        index: int64[B].
        out: uint8[B, frame bytes].
    """
    rows, size = len(index), codec[2]
    target = np.uintp(out.ctypes.data)
    failed = np.int64(-1)
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            if row + 2 < rows and index[row + 2] >= 0:
                _expect_record(tables, codec[3], index[row + 2])
            if row + 1 < rows and index[row + 1] >= 0:
                _expect(tables, codec[3], index[row + 1])
            if not _decode_or_clear(tables, codec, index[row], target + np.uintp(row * size)) and failed < 0:
                failed = index[row]
        taken = _take_rows(ticket, _ROWS)
    return failed


@kernel
def pairs(ticket, tables, codec, index, next_index, out, next_out):
    """Decode two frames per row, as `frames` does."""
    rows, size = len(index), codec[2]
    target, next_target = np.uintp(out.ctypes.data), np.uintp(next_out.ctypes.data)
    failed = np.int64(-1)
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            if row + 2 < rows and index[row + 2] >= 0:
                _expect_record(tables, codec[3], index[row + 2])
            if row + 1 < rows and index[row + 1] >= 0:
                _expect(tables, codec[3], index[row + 1])
            at = np.uintp(row * size)
            if not _decode_or_clear(tables, codec, index[row], target + at) and failed < 0:
                failed = index[row]
            if not _decode_or_clear(tables, codec, next_index[row], next_target + at) and failed < 0:
                failed = next_index[row]
        taken = _take_rows(ticket, _ROWS)
    return failed


@kernel
def _hold(tables, codec, frame, slot, held, scratch):
    """Have a frame decoded in a slot of the scratch, where it may be already; 0 if it is damaged."""
    address = np.uintp(scratch.ctypes.data) + np.uintp(slot * codec[2])
    if held[slot] != frame:
        held[slot] = -1
        if not _decode(tables, codec, frame, address):
            return np.uintp(0)
        held[slot] = frame
    return address


@kernel
def _shown(tables, codec, back, step, newest, first, held, scratch, blank):
    """Find one frame of a stack, decoded: its address, 0 if it is damaged; and its number."""
    if newest < 0 or (back > 0 and step - back < first):
        return np.uintp(blank.ctypes.data), np.int64(-1)
    frame = step - back if back else newest
    # Neighbours in time have slots of their own; a final frame has the last one.
    slot = len(held) - 1 if frame != step - back else frame % (len(held) - 1)
    return _hold(tables, codec, frame, slot, held, scratch), frame


@kernel
def _stack_of_4(tables, codec, step, newest, first, held, scratch, blank, out):
    a3, f3 = _shown(tables, codec, 3, step, newest, first, held, scratch, blank)
    a2, f2 = _shown(tables, codec, 2, step, newest, first, held, scratch, blank)
    a1, f1 = _shown(tables, codec, 1, step, newest, first, held, scratch, blank)
    a0, f0 = _shown(tables, codec, 0, step, newest, first, held, scratch, blank)
    for address, frame in ((a3, f3), (a2, f2), (a1, f1), (a0, f0)):
        if not address:
            return frame
    interleave_4(a3, a2, a1, a0, out)
    return np.int64(-1)


@kernel
def _stack_of_any(tables, codec, step, newest, first, held, scratch, blank, out):
    for back in range(out.shape[1] - 1, -1, -1):
        address, frame = _shown(tables, codec, back, step, newest, first, held, scratch, blank)
        if not address:
            return frame
        interleave(address, back, out)
    return np.int64(-1)


@kernel
def _stack(tables, codec, step, newest, first, held, scratch, blank, out):
    """Decode a stack into a row of words, [P], or of pixels, [P, S]: numba compiles the branch that it is."""
    if out.ndim == 1:
        return _stack_of_4(tables, codec, step, newest, first, held, scratch, blank, out)
    return _stack_of_any(tables, codec, step, newest, first, held, scratch, blank, out)


# Rows of stacks taken at a time: neighbours share frames, which are decoded once for all of these.
_STACK_ROWS = 32


@kernel
def _stacks(ticket, tables, codec, index, newest, first, held, scratch, blank, out):
    rows, failed = len(index), np.int64(-1)
    taken = _take_rows(ticket, _STACK_ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _STACK_ROWS, rows)):
            bad = _stack(tables, codec, index[row], newest[row], first[row], held, scratch, blank, out[row])
            failed = bad if failed < 0 else failed
        taken = _take_rows(ticket, _STACK_ROWS)
    return failed


@kernel
def _stack_pairs(
    ticket, tables, codec, index, next_index, next_newest, first, held, scratch, blank, out, next_out
):  # fmt: skip
    rows, failed = len(index), np.int64(-1)
    taken = _take_rows(ticket, _ROWS)
    while taken < rows:
        for row in range(taken, min(taken + _ROWS, rows)):
            if row + 1 < rows and index[row + 1] >= 0:
                _expect(tables, codec[3], index[row + 1])
            bad = _stack(tables, codec, index[row], index[row], first[row], held, scratch, blank, out[row])
            failed = bad if failed < 0 else failed
            bad = _stack(
                tables, codec, next_index[row], next_newest[row], first[row], held, scratch, blank,
                next_out[row],
            )  # fmt: skip
            failed = bad if failed < 0 else failed
        taken = _take_rows(ticket, _ROWS)
    return failed


def stacks(ticket, tables, codec, index, newest, first, held, scratch, blank, out):
    """Decode stacks of frames, as `atarirb.kernels.reference.stacks` gathers them.

    Args:
        ticket: int64[1], the next row to do.
        tables: `Tables`.
        codec: As for `frames`.
        index: int64[B].
        newest: int64[B].
        first: int64[B].
        held: int64[H], H > S: the frames decoded in `scratch`; -1 for none.
        scratch: uint8[H, frame bytes], this thread's own.
        blank: [pixels], zeros.
        out: [B, pixels, S], of 1, 2, 4 or 8 bytes a pixel.
    """
    words = as_words(out)
    if words is not None:
        return _stacks(ticket, tables, codec, index, newest, first, held, scratch, blank, words)
    return _stacks(
        ticket, tables, codec, index, newest, first, held, scratch, as_unsigned(blank), as_unsigned(out)
    )


def stack_pairs(
    ticket, tables, codec, index, next_index, next_newest, first, held, scratch, blank, out, next_out
):  # fmt: skip
    """Decode two stacks per row, as `stacks` does; the newest frame of the first is its step's."""
    frames_of = (index, next_index, next_newest, first)
    words = as_words(out)
    if words is not None:
        return _stack_pairs(
            ticket, tables, codec, *frames_of, held, scratch, blank, words, as_words(next_out)
        )
    outs = (as_unsigned(out), as_unsigned(next_out))
    return _stack_pairs(ticket, tables, codec, *frames_of, held, scratch, as_unsigned(blank), *outs)
