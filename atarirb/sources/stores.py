"""From a path or URI to a file system of fsspec and a path in it, of a store that answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from atarirb.errors import (
    ArgumentError,
    AtarirbError,
    MissingPackageError,
    SourceDeniedError,
    SourceNotFoundError,
)
from atarirb.sources import failures, transfer

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_GCS, _WEB, _S3 = ("gs://", "gcs://"), ("http://", "https://"), ("s3://", "s3a://")


def locate(source: str) -> tuple[AbstractFileSystem, str]:
    """Find the directory that a path or URI names.

    Buckets of Google Cloud Storage are asked anonymously first, and with the credentials that gcsfs finds
    only if that is refused. What fsspec is configured to, as an endpoint for S3, is used.

    Raises:
        MissingPackageError: A package is needed to reach such a URI.
        ArgumentError: No file system is known for it, or it cannot be one.
        SourceNotFoundError: A remote store has no such directory.
        SourceDeniedError: It refuses to show it.
        TransferError: It cannot be reached.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    if "://" not in source:  # a plain path may hold any character, also those that mean something in a URI
        return LocalFileSystem(), os.path.abspath(source)
    try:
        if source.startswith(_GCS):
            return _bucket(source)
        if source.startswith(_WEB):
            return _site(source)
        if source.startswith(_S3):
            from atarirb.sources.s3 import Store

            filesystem, path = Store(), Store._strip_protocol(source)
        else:
            filesystem, path = url_to_fs(source)
    except ImportError as error:
        for schemes, package, extra in (
            (_GCS, "gcsfs", "gcs"),
            (_WEB, "aiohttp", "http"),
            (_S3, "s3fs", "s3"),
        ):
            if source.startswith(schemes):
                raise MissingPackageError.needed(package, purpose=source, extra=extra) from error
        raise MissingPackageError(f"{source}: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"{source}: {error}") from error
    except AtarirbError:
        raise
    except OSError as error:  # some connect when they are made
        raise failures.named(error, source) from error
    if not transfer.is_local(filesystem):
        _reach(filesystem, path, source)
    return filesystem, path


def _bucket(source: str) -> tuple[AbstractFileSystem, str]:
    import fsspec.config

    from atarirb.sources.gcs import Bucket

    path = Bucket._strip_protocol(source).rstrip("/")
    configured = any("token" in fsspec.config.conf.get(name, {}) for name in Bucket.protocol)
    filesystem = Bucket() if configured else Bucket(token="anon")
    try:
        _reach(filesystem, path, source)
    except SourceDeniedError:
        if configured:
            raise
        filesystem = Bucket(skip_instance_cache=True)  # credentials may be there that were not
        if filesystem.credentials.credentials is None:  # it finds none
            raise
        _reach(filesystem, path, source)
    return filesystem, path


def _site(source: str) -> tuple[AbstractFileSystem, str]:
    from atarirb.sources.web import Site, unquoted

    if "?" in source or "#" in source:
        raise ArgumentError(
            f"{source}: a directory's URL has no query; where ? or # are of its name, write %3F or %23"
        )
    filesystem, path = Site(), unquoted(source.rstrip("/"))
    try:
        _reach(filesystem, path, source)
    except (SourceNotFoundError, SourceDeniedError) as error:
        raise type(error)(
            f"{error}. By HTTP, a directory is found by the index page that its server shows: if there is "
            f"none, copy the files to a disk and ingest them there"
        ) from error
    return filesystem, path


def _reach(filesystem: AbstractFileSystem, path: str, source: str) -> None:
    """List a directory, which shows whether the store answers; what it listed before counts no more."""
    filesystem.invalidate_cache()
    try:
        failures.patiently(lambda: filesystem.ls(path, detail=False), source, transfer.tries(filesystem))
    except SourceNotFoundError as error:
        if str(error).endswith("no such file or directory"):
            raise SourceNotFoundError(f"no replay logs at {source!r}: there is no such directory") from error
        raise
