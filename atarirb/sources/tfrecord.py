"""TFRecord files of ``tf.train.Example``, read without TensorFlow.

A file is a sequence of records, mostly inside one gzip stream, nothing before, between or after them::

    uint64   length n of the data, little-endian as all here
    uint32   masked CRC-32C of the 8 bytes of the length
    n bytes  data: a serialized ``tf.train.Example``
    uint32   masked CRC-32C of the data

where masked is ``((crc >> 15 | crc << 17) + 0xa282ead8) mod 2**32``
(https://www.tensorflow.org/tutorials/load_data/tfrecord). An example is a map from names to lists of
bytes, of float32 or of int64 (``tensorflow/core/example/{example,feature}.proto``); its messages are
described here at run time, in a pool of their own, so that TensorFlow may be imported beside.
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from zlib_ng import gzip_ng

from atarirb.errors import LogError, MissingPackageError
from atarirb.sources.gzipped import GZIP_MAGIC, Counted, reading

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK = 0xA282EAD8
#: No message of protobuf is larger.
_MOST_BYTES = 2**31 - 1
_READ_BYTES = 1 << 18


class Records:
    """The records of one file, from first to last, once.

    Args:
        raw: The file's bytes, opened for reading; closed with this.
        name: The file's name, for messages.
        on_bytes: Called with the count of the file's bytes after each read.

    Raises:
        LogError: The file is empty.
        MissingPackageError: google-crc32c is not installed.
    """

    def __init__(self, raw: io.IOBase, name: str, on_bytes: Callable[[int], None] | None = None):
        self.name = name
        self._raw = raw
        try:
            self._crc = _crc32c()
            counted = Counted(raw, on_bytes)
            head = counted.peek(_LENGTH.size + _CRC.size)
            if not head:
                raise LogError(f"{name}: is empty")
            if head.startswith(GZIP_MAGIC) and not self._is_length(head):
                self._file: io.IOBase = gzip_ng.GzipNGFile(fileobj=counted, mode="rb")
            else:
                self._file = io.BufferedReader(counted, _READ_BYTES)
        except BaseException:
            raw.close()
            raise

    def __iter__(self) -> Iterator[bytes]:
        """Yield each record's data.

        Raises:
            LogError: The file is damaged or cut short.
        """
        number = 0
        while head := self._read(_LENGTH.size + _CRC.size, number, at_end=True):
            (length,) = _LENGTH.unpack_from(head)
            self._check(head[: _LENGTH.size], head[_LENGTH.size :], number, "length")
            if length > _MOST_BYTES:
                raise LogError(f"{self.name}: record {number} has {length:,} bytes, more than any example")
            data = self._read(length, number)
            self._check(data, self._read(_CRC.size, number), number, "data")
            yield data
            number += 1

    def _is_length(self, head: bytes) -> bool:
        """Tell whether a file begins with a record, whose length may look like gzip by chance."""
        return head[_LENGTH.size :] == _CRC.pack(masked(self._crc(head[: _LENGTH.size])))

    def _read(self, count: int, number: int, *, at_end: bool = False) -> bytes:
        """Read so many bytes; none, if the file may end here and does."""
        with reading(self.name):
            data = self._file.read(count)
        if len(data) < count and not (at_end and not data):
            raise LogError(
                f"{self.name}: cut short in record {number}: {len(data):,} bytes left, expected {count:,}"
            )
        return data

    def _check(self, data: bytes, stored: bytes, number: int, what: str) -> None:
        (expected,) = _CRC.unpack(stored)
        found = masked(self._crc(data))
        if found != expected:
            raise LogError(
                f"{self.name}: damaged, or no TFRecord file: record {number} has a {what} of CRC "
                f"{found:#010x}, expected {expected:#010x}"
            )

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()
        self._raw.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def masked(crc: int) -> int:
    """Mask a CRC-32C as TFRecord files store it: CRCs of data that holds CRCs are weak."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class Example:
    """One ``tf.train.Example``.

    Args:
        data: A record's data.
        name: What to call it in messages.

    Raises:
        LogError: It is none.
        MissingPackageError: protobuf is not installed.
    """

    def __init__(self, data: bytes, name: str):
        example = _example_class()
        from google.protobuf.message import DecodeError

        self.name = name
        try:
            self._message = example.FromString(data)
        except DecodeError as error:
            raise LogError(f"{name}: not a tf.train.Example: {error}") from error

    def values(self, feature: str, kind: str) -> Any:
        """Return a feature's list.

        Args:
            feature: Its name.
            kind: ``"bytes"``, ``"float"`` or ``"int64"``.

        Returns:
            A sequence; of float32 or int64 one that `numpy.array` copies quickly.

        Raises:
            LogError: There is no such feature, or it is of another kind.
        """
        features = self._message.features.feature
        if feature not in features:
            raise LogError(
                f"{self.name}: has no feature {feature}; it has {', '.join(sorted(features)) or 'none'}"
            )
        found = features[feature].WhichOneof("kind")
        if found is None:  # an empty list may be written as none at all
            return []
        if found != f"{kind}_list":
            raise LogError(f"{self.name}: feature {feature} is a {found}, expected {kind}_list")
        return getattr(features[feature], found).value

    def array(self, feature: str, kind: str) -> np.ndarray:
        """Copy a list of numbers into an array, float32[N] or int64[N]; errors as of `values`."""
        return np.array(self.values(feature, kind), np.float32 if kind == "float" else np.int64)


def check_packages() -> None:
    """Raise MissingPackageError if a package is missing that reading takes."""
    _crc32c()
    _example_class()


def _crc32c() -> Callable[[bytes], int]:
    try:
        import google_crc32c
    except ImportError as error:
        raise MissingPackageError.needed(
            "google-crc32c", purpose="reading TFRecords", extra="rlds"
        ) from error
    return google_crc32c.value


@functools.cache
def _example_class() -> Any:
    """Make the class of ``tf.train.Example``."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingPackageError.needed("protobuf", purpose="reading TFRecords", extra="rlds") from error
    package = "tensorflow"
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package=package, syntax="proto3")

    def add(message: Any, name: str, number: int, of: int | str, **more: Any) -> None:
        described = {"type": of} if isinstance(of, int) else {"type": field.TYPE_MESSAGE, "type_name": of}
        message.field.add(name=name, number=number, **described, **({"label": field.LABEL_OPTIONAL} | more))

    lists = {"Bytes": field.TYPE_BYTES, "Float": field.TYPE_FLOAT, "Int64": field.TYPE_INT64}
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, scalar) in enumerate(lists.items(), 1):
        add(file.message_type.add(name=f"{kind}List"), "value", 1, scalar, label=field.LABEL_REPEATED)
        add(feature, f"{kind.lower()}_list", number, f".{package}.{kind}List", oneof_index=0)
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, field.TYPE_STRING)
    add(entry, "value", 2, f".{package}.Feature")
    add(features, "feature", 1, f".{package}.Features.FeatureEntry", label=field.LABEL_REPEATED)
    add(file.message_type.add(name="Example"), "features", 1, f".{package}.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Example"))
