"""libzstd by function pointer, for kernels that decompress without returning to Python.

The library is looked for in the zstandard package, whose cffi module carries one and exports its
functions, and then on the system. Neither is a documented interface, so what is found is tried out on
first use, on blocks made through zstandard's documented API, and passed over if it does not answer as
that does. Without one, and with ``ATARIRB_ZSTD=python``, frames are decoded through the documented API
(`atarirb.store.packed.plain`), which gives the same bytes in about five times the time.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.machinery
import importlib.util
import logging
import os
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import zstandard

from atarirb.errors import ArgumentError
from atarirb.store.packed import layout

_log = logging.getLogger(__name__)

# From zstd.h: the parameter ZSTD_d_format and its value magicless; how dictionaries are given.
_D_FORMAT, _MAGICLESS = 1000, 1
_BY_REFERENCE, _RAW_CONTENT = 1, 1


class _CustomMemory(ctypes.Structure):
    _fields_ = [("alloc", ctypes.c_void_p), ("free", ctypes.c_void_p), ("opaque", ctypes.c_void_p)]


class Library:
    """One libzstd.

    Args:
        path: Of the shared library.

    Attributes:
        path: The same.
        decompress: Address of ``ZSTD_decompress_usingDDict``.

    Raises:
        OSError: It cannot be loaded.
        AttributeError: It lacks a function.
    """

    def __init__(self, path: str):
        self.path = path
        library = ctypes.CDLL(path)
        self._create_context = library.ZSTD_createDCtx
        self._free_context = library.ZSTD_freeDCtx
        self._set_parameter = library.ZSTD_DCtx_setParameter
        self._create_dictionary = library.ZSTD_createDDict_advanced
        self._free_dictionary = library.ZSTD_freeDDict
        self._is_error = library.ZSTD_isError
        self._create_context.restype = self._create_dictionary.restype = ctypes.c_void_p
        self._free_context.argtypes = self._free_dictionary.argtypes = [ctypes.c_void_p]
        self._set_parameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        self._set_parameter.restype = ctypes.c_size_t
        self._is_error.argtypes = [ctypes.c_size_t]
        self._create_dictionary.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, _CustomMemory,
        ]  # fmt: skip
        function = library.ZSTD_decompress_usingDDict
        function.restype = ctypes.c_size_t
        function.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
        ]  # fmt: skip
        self._decompress = function
        self.decompress = ctypes.cast(function, ctypes.c_void_p).value or 0
        self._local = threading.local()

    def context(self) -> int:
        """Return the address of this thread's decompression context."""
        held = getattr(self._local, "context", None)
        if held is None:
            held = self._local.context = self._new_context()
        return held.address

    def _new_context(self) -> Held:
        address = self._create_context()
        if not address:
            raise MemoryError("no memory for a zstd context")
        held = Held(address, self._free_context)
        if self._is_error(self._set_parameter(address, _D_FORMAT, _MAGICLESS)):
            raise OSError(f"{self.path}: knows no magicless frames")
        return held

    def dictionary(self, content: np.ndarray) -> Held:
        """Make a dictionary of raw content, uint8[n], which must be kept alive with it."""
        address = self._create_dictionary(
            content.ctypes.data, content.nbytes, _BY_REFERENCE, _RAW_CONTENT, _CustomMemory()
        )
        if not address:
            raise MemoryError("no memory for a zstd dictionary")
        return Held(address, self._free_dictionary)

    def decode(self, block: bytes, size: int, dictionary: int) -> bytes | None:
        """Decompress one block, as the kernels do; None if that fails."""
        out = ctypes.create_string_buffer(size + 1)
        count = self._decompress(self.context(), out, size, block, len(block), dictionary)
        return None if self._is_error(count) else out.raw[:count]


class Held:
    """A thing of the library's, freed with this object."""

    def __init__(self, address: int, free: ctypes._NamedFuncPointer):
        self.address = address
        weakref.finalize(self, free, address).atexit = False


def library() -> Library | None:
    """Return the library in use; None where frames are decoded through zstandard's documented API.

    Raises:
        ArgumentError: ``ATARIRB_ZSTD`` is neither "library" nor "python".
    """
    chosen = os.environ.get("ATARIRB_ZSTD") or "library"
    if chosen not in ("library", "python"):
        raise ArgumentError(f"ATARIRB_ZSTD is {chosen!r}, expected 'library' or 'python'")
    return _found() if chosen == "library" else None


@functools.cache
def _found() -> Library | None:
    for path in _candidates():
        try:
            candidate = Library(path)
            failure = trial(candidate)
        except (OSError, AttributeError) as error:
            failure = str(error)
        if failure is None:
            return candidate
        _log.info("%s: not used: %s", path, failure)
    _log.info("no libzstd that can be called directly; frames are decoded through the zstandard package")
    return None


def _candidates() -> Iterator[str]:
    package = os.path.dirname(zstandard.__file__)
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = os.path.join(package, f"_cffi{suffix}")
        if os.path.exists(path):
            yield path
    system = ctypes.util.find_library("zstd")
    if system:
        yield system


def trial(candidate: Library) -> str | None:
    """Try a library out on blocks made through the documented API; say what is wrong with it, if anything."""
    random = np.random.default_rng(0)
    # The dictionary begins like one of zstd's own format, which it must not be taken for.
    content = np.append(np.array([0x37, 0xA4, 0x30, 0xEC], np.uint8), random.integers(0, 4, 5000, np.uint8))
    dictionary = candidate.dictionary(content)
    compressor = zstandard.ZstdCompressor(
        dict_data=layout.raw_dictionary(content.tobytes()),
        compression_params=zstandard.ZstdCompressionParameters(
            **layout.PARAMETERS,
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            write_content_size=False,
            write_dict_id=False,
        ),
    )
    for first, size in [(0, 1), (40, 3000), (900, 4000), (0, 5004)]:
        frame = content[first : first + size].copy()
        frame[:: size // 7 + 1] ^= 5
        block = compressor.compress(frame.tobytes())
        if candidate.decode(block, size, dictionary.address) != frame.tobytes():
            return "it decodes a block to other bytes than it was made of"
        if candidate.decode(block, size - 1, dictionary.address) is not None:
            return "it decodes a block into too little room"
        if candidate.decode(block[:-1], size, dictionary.address) is not None:
            return "it takes a block that is cut short"
    return None
