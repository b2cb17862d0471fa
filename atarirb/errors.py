"""The errors atarirb raises.

Every one is an `AtarirbError` and also the builtin a caller would expect, so both
``except AtarirbError`` and ``except IndexError`` work. A message says what was expected, what was
found, in which file or row, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping


class AtarirbError(Exception):
    """Base of every error raised on purpose by atarirb."""


class ArgumentError(AtarirbError, ValueError):
    """An argument has a value that no call can accept."""


class StepIndexError(AtarirbError, IndexError):
    """A step index lies outside the dataset."""


class StepIndexTypeError(AtarirbError, TypeError):
    """A step index is not an integer (a float, a string, ...)."""


class ColumnError(AtarirbError, KeyError):
    """A column was asked for that this dataset cannot give."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class KeyTypeError(AtarirbError, TypeError):
    """A random key is of a kind that cannot seed a draw."""


class UnknownGameError(AtarirbError, ValueError):
    """A game or dataset id is not in the catalog."""


class SourceNotFoundError(AtarirbError, FileNotFoundError):
    """No replay logs are where they were said to be."""


class SourceDeniedError(AtarirbError, PermissionError):
    """A store refuses to show replay logs."""


class SourceChangedError(AtarirbError, ConnectionError):
    """A file of a store was replaced by another one while it was read."""


class TransferError(AtarirbError, ConnectionError):
    """A file of a store could not be read over the network, however often it was tried."""


class LogError(AtarirbError, ValueError):
    """A replay log is damaged, incomplete or contradicts itself."""


class _Failures:
    """An error of several splits, shards or runs.

    Attributes:
        failures: The error of each that failed, by split number, or of runs by name.
    """

    def __init__(self, message: str, failures: Mapping[int, Exception] | Mapping[str, Exception]):
        super().__init__(message)
        self.failures = dict(failures)

    def __reduce__(self) -> tuple[type, tuple]:  # exceptions are pickled by `args`, which lack the failures
        return type(self), (str(self), self.failures), self.__dict__


class IngestError(_Failures, AtarirbError, RuntimeError):
    """Some splits could not be ingested; the others are kept. `failures` has each one's error."""


class DownloadError(_Failures, AtarirbError, RuntimeError):
    """Some runs could not be downloaded; the others are there. `failures` has each one's error, by name."""


class ConvertError(_Failures, AtarirbError, RuntimeError):
    """Some shards could not be converted; the others are kept. `failures` has each one's error."""


class MapError(_Failures, AtarirbError, RuntimeError):
    """Some shards could not be mapped; the others are kept. `failures` has each one's error."""


class FunctionError(AtarirbError, RuntimeError):
    """A function that was handed in failed; what it raised is the `__cause__`."""


class ExecutorError(AtarirbError, RuntimeError):
    """An executor's workers cannot be reached, cannot do the work, or one died at it."""


class BusyError(AtarirbError, RuntimeError):
    """Another process is writing to the same dataset."""


class DiskSpaceError(AtarirbError, OSError):
    """The disk has too little room for what is about to be written."""


class DatasetNotFoundError(AtarirbError, FileNotFoundError):
    """A directory is missing or holds no dataset."""


class DatasetError(AtarirbError, ValueError):
    """A dataset's files disagree with its manifest."""


class StateError(AtarirbError, ValueError):
    """A saved state is of other batches than those it is given to, or is none."""


class BatchSizeError(MemoryError, AtarirbError):  # its `__new__` makes no others' instances
    """A batch was asked for that is larger than this machine's memory."""


class ClosedError(AtarirbError, ValueError):
    """A reader, a recorder or games were used after `close`."""


class MissingPackageError(AtarirbError, ImportError):
    """An optional package is needed that is not installed."""

    @classmethod
    def needed(cls, package: str, *, purpose: str, extra: str) -> MissingPackageError:
        """Make the error for `package`, naming the extra that installs it."""
        return cls(f"{purpose} needs {package}, which is not installed; pip install 'atarirb[{extra}]'")
