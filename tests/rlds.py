"""RL Unplugged's files, written by hand: protobuf's wire format, TFRecord's framing, PNG by Pillow."""

from __future__ import annotations

import gzip
import io
import pathlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

KINDS = {"bytes": 1, "float": 2, "int64": 3}


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """CRC-32C, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _crc_field(data: bytes) -> bytes:
    crc = crc32c(data)
    rotated = crc >> 15 | crc << 17 & 0xFFFFFFFF
    return struct.pack("<I", (rotated + 0xA282EAD8) % 2**32)


def framed(records: Sequence[bytes]) -> bytes:
    """Put records one after the other as a TFRecord file has them."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, _crc_field(length), record, _crc_field(record)]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    value %= 2**64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def example(features: dict[str, tuple[str, Sequence[Any]]]) -> bytes:
    """Serialize a ``tf.train.Example`` of lists, name -> (kind, values)."""
    entries = []
    for name, (kind, values) in features.items():
        if kind == "bytes":
            listed = b"".join(_field(1, value) for value in values)
        elif kind == "float":
            listed = _field(1, np.asarray(values, "<f4").tobytes())
        else:
            listed = _field(1, b"".join(_varint(int(value)) for value in values))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, _field(KINDS[kind], listed))))
    return _field(1, b"".join(entries))


def png(frame: np.ndarray) -> bytes:
    """Write a PNG."""
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "PNG")
    return file.getvalue()


def features(
    frames: np.ndarray | Sequence[bytes],
    action: Sequence[int],
    reward: Sequence[float],
    unclipped: Sequence[float],
    *,
    over: bool,
    checkpoint: int,
    episode: int,
    **others: Any,
) -> dict[str, tuple[str, Sequence[Any]]]:
    """Make one episode's features; `others` replace some, or take them out by None."""
    discounts = np.ones(len(action), np.float32)
    discounts[-1:] = 0 if over else 1
    made = {
        "observations": ("bytes", [png(f) if isinstance(f, np.ndarray) else f for f in frames]),
        "actions": ("int64", action),
        "clipped_rewards": ("float", reward),
        "unclipped_rewards": ("float", unclipped),
        "discounts": ("float", discounts),
        "checkpoint_idx": ("int64", [checkpoint]),
        "episode_idx": ("int64", [episode]),
        "episode_return": ("float", [np.sum(unclipped)]),
        "clipped_episode_return": ("float", [np.sum(reward)]),
    } | others
    return {name: value for name, value in made.items() if value is not None}


def write(
    directory: pathlib.Path, shard: int, records: Sequence[bytes], *, run: int = 1, of: int = 50
) -> None:
    """Write one file."""
    directory.mkdir(parents=True, exist_ok=True)
    data = gzip.compress(framed(records), 6, mtime=0)
    (directory / f"run_{run}-{shard:05d}-of-{of:05d}").write_bytes(data)
