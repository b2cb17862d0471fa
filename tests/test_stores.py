"""Logs in remote stores: every store gives what the disk gives, whatever the network does to it."""

import contextlib
import gzip
import hashlib
import io
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import threading

import fsspec
import numpy as np
import pytest

import atarirb
from atarirb import sources
from atarirb.errors import (
    ArgumentError,
    DiskSpaceError,
    IngestError,
    SourceChangedError,
    SourceDeniedError,
    SourceNotFoundError,
    TransferError,
)
from atarirb.sources import failures, stores, transfer
from atarirb.verbs import ingest as module
from benchmarks.probes import probe
from tests import servers, truth
from tests.conftest import ROOT
from tests.logs import record
from tests.servers import BUCKET, Fault

FRAMES = "$store$_observation_ckpt."
STORES = ["gcs", "http"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A directory that stores have a copy of: Game/1 has four splits, whose frames come in several ranges."""
    directory = tmp_path_factory.mktemp("root")
    record(directory / "Game/1", [30, 45, 20, 60], 50, frame_shape=(24, 24))
    return directory


@pytest.fixture(scope="module")
def local(root, tmp_path_factory):
    """The dataset that the copy on disk gives."""
    out = tmp_path_factory.mktemp("local") / "out"
    truth.ingest(root / "Game/1", out)
    return digest(out)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Ranges are small and delays none; returns those that would have been waited."""
    waited = []
    monkeypatch.setattr(failures, "pause", lambda seconds, check: (waited.append(seconds), check()))

    async def doze(seconds):
        waited.append(seconds)

    monkeypatch.setattr(failures, "doze", doze)
    monkeypatch.setattr(transfer, "HEAD_BYTES", 10 << 10)
    monkeypatch.setattr(transfer, "LEAST_BYTES", 4 << 10)
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # no credentials are looked for on a machine of Google's
    monkeypatch.setenv("CLOUDSDK_CONFIG", os.devnull)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    return waited


@pytest.fixture(scope="module")
def google(root):
    """The URL of a server of Google Cloud Storage's API that has a copy."""
    with servers.google(root) as url:
        os.environ.pop("STORAGE_EMULATOR_HOST", None)
        yield url


@pytest.fixture(params=STORES)
def store(request, tmp_path, root, monkeypatch):
    """A store with a copy of its own: its server, the run's URI, and what replaces a file there."""
    with _store(request.param, request, tmp_path, root, monkeypatch) as found:
        yield found


@contextlib.contextmanager
def _store(kind, request, tmp_path, root, monkeypatch):
    if kind == "gcs":
        upstream = request.getfixturevalue("google")
        with servers.relay(upstream, page=3) as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            before = {}

            def replace(name, data):
                path = f"Game/1/replay_logs/{name}"
                before.setdefault(path, (root / path).read_bytes() if (root / path).exists() else None)
                servers.upload(upstream, path, data)

            yield server, f"gs://{BUCKET}/Game/1", replace
            for path, data in before.items():
                servers.upload(upstream, path, data) if data else servers.remove(upstream, path)
    else:
        shutil.copytree(root, tmp_path / "site")
        with servers.files(tmp_path / "site") as server:
            yield (
                server,
                f"{server.url}/Game/1",
                lambda name, data: (tmp_path / "site/Game/1/replay_logs" / name).write_bytes(data),
            )


def digest(directory):
    """Every file of a dataset, by name."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def size(root):
    return sum(path.stat().st_size for path in (root / "Game/1").rglob("*") if path.is_file())


def frames(root, split, shift=0):
    """The file of a split's frames; with a shift, as another play's, whose frames are brighter."""
    data = (root / f"Game/1/replay_logs/{FRAMES}{split}.gz").read_bytes()
    if not shift:
        return data
    values = np.load(io.BytesIO(gzip.decompress(data)))
    buffer = io.BytesIO()
    np.save(buffer, np.where(values.any(axis=(1, 2), keepdims=True), values + np.uint8(shift), values))
    return gzip.compress(buffer.getvalue())


# Every store.


@pytest.mark.parametrize("codec", ["packed", "raw"])
def test_a_store_gives_what_the_disk_gives_and_each_byte_comes_once(store, root, tmp_path, codec):
    server, uri, _ = store
    info = atarirb.ingest(uri, tmp_path / "out", codec=codec)
    assert (info.name, info.splits) == ("Game/1", (0, 1, 2, 3))
    truth.ingest(root / "Game/1", tmp_path / "local", codec=codec)
    assert digest(tmp_path / "out") == digest(tmp_path / "local")
    assert not (tmp_path / "out/.source").exists()
    tails = 8 * 4  # the fingerprints of files that are longer than their first range
    assert size(root) <= server.sent <= size(root) + tails
    assert all(request.headers.get("Authorization") is None for request in server.requests)


@pytest.mark.parametrize("options", [{"ranges": False}, {"head": False}, {"marks": False}, {"sums": True}])
def test_web_servers_of_all_kinds(root, local, tmp_path, options):
    with servers.files(root, **options) as server:
        atarirb.ingest(f"{server.url}/Game/1/", tmp_path / "out")
    assert digest(tmp_path / "out") == local


def test_any_file_system_of_fsspec(root, local, tmp_path):
    fsspec.filesystem("memory").put(f"{root}/", "/stores/", recursive=True)
    atarirb.ingest("memory://stores/Game/1/replay_logs", tmp_path / "out")
    assert digest(tmp_path / "out") == local
    fsspec.filesystem("memory").rm("/stores", recursive=True)


def test_an_s3_store(root, local, tmp_path, monkeypatch):
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with servers.s3(root) as server:
        monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": server.url})
        server.fault = lambda r: (
            Fault(reset_at=2000) if r.media and FRAMES in r.name and r.number == 0 else None
        )
        atarirb.ingest(f"s3://{BUCKET}/Game/1", tmp_path / "out")
        assert digest(tmp_path / "out") == local
        with pytest.raises(SourceNotFoundError, match="s3://logs/Gome/1'?: there is no such directory"):
            atarirb.ingest(f"s3://{BUCKET}/Gome/1", tmp_path / "none")


@pytest.mark.parametrize("kind", [*STORES, "memory", "file"])
def test_names_with_unusual_characters_survive(kind, root, google, tmp_path, monkeypatch):
    odd = "a [b] #c ?d $e %41 é/My Game/1"
    path = f"odd/{odd}/replay_logs"
    shutil.copytree(root / "Game/1/replay_logs", tmp_path / "root" / path)
    if kind == "gcs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", google)
        for file in (tmp_path / "root" / path).iterdir():
            servers.upload(google, f"{path}/{file.name}", file.read_bytes())
    if kind == "memory":
        for file in (tmp_path / "root" / path).iterdir():
            fsspec.filesystem("memory").pipe_file(f"/{path}/{file.name}", file.read_bytes())
    with servers.files(tmp_path / "root") as server:
        quoted = odd.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
        uri = {
            "gcs": f"gs://{BUCKET}/odd/{odd}",
            "http": f"{server.url}/odd/{quoted}",
            "memory": f"memory://odd/{odd}",
            "file": f"file://{tmp_path}/root/odd/{odd}",
        }[kind]
        info = atarirb.ingest(uri, tmp_path / "out")
    assert (info.name, info.steps) == ("My Game/1", 155)


def test_files_that_a_store_has_decompressed_are_read_too(store, root, tmp_path):
    """Of these only the store's checksum could tell that a byte is wrong."""
    _, uri, replace = store
    for path in (root / "Game/1/replay_logs").iterdir():
        replace(path.name, gzip.decompress(path.read_bytes()))
    atarirb.ingest(uri, tmp_path / "out")
    assert atarirb.verify(tmp_path / "out", deep=True).ok
    assert atarirb.show(tmp_path / "out").steps == 155


def test_what_is_new_in_a_store_is_seen_at_once(store, root, tmp_path):
    _, uri, replace = store
    atarirb.ingest(uri, tmp_path / "out", splits=[0])
    with pytest.raises(ArgumentError, match="no split 4"):
        atarirb.ingest(uri, tmp_path / "out", splits=[4])
    replace(f"{FRAMES}4.gz", frames(root, 3))
    with pytest.raises(IngestError, match=r"split 4 has no \$store\$_terminal"):
        atarirb.ingest(uri, tmp_path / "out", splits=[4])


def test_a_file_is_opened_and_sought_in_like_any_other(store, root, tmp_path):
    _, uri, _ = store
    filesystem, directory = stores.locate(uri)
    data = frames(root, 1)
    with transfer.open_file(filesystem, f"{directory}/replay_logs/{FRAMES}1.gz") as file:
        assert file.read(5) == data[:5]
        file.seek(-9, os.SEEK_END)
        assert file.read() == data[-9:]
        file.seek(3000)
        assert file.tell() == 3000
        assert b"".join(iter(lambda: file.read(1700), b"")) == data[3000:]
    with pytest.raises(SourceNotFoundError, match="nothing.gz: there is no such file"):
        transfer.open_file(filesystem, f"{directory}/nothing.gz")
    (tmp_path / "file").write_bytes(data)
    with transfer.open_file(fsspec.filesystem("file"), str(tmp_path / "file")) as file:
        assert file.read() == data


def test_logs_of_a_store_are_pickled_small_and_read_elsewhere(store):
    _, uri, _ = store
    logs = sources.find(uri)
    twin = pickle.loads(pickle.dumps(logs))
    assert twin.survey(3).window.add_count == logs.survey(3).window.add_count


# What networks do.


FAULTS = {
    "dropped": Fault(drop_at=1500),
    "reset": Fault(reset_at=1500),
    "reset at once": Fault(reset_at=0),
    "short": Fault(short_at=700),
    "busy": Fault(429, {"Retry-After": "7"}),
    "unavailable": Fault(503),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_failures_that_pass_are_passed_over(store, root, local, tmp_path, hasty, fault):
    """Each file of frames fails at its head, and at every other range behind."""
    server, uri, _ = store
    seen = []

    def fail(request):
        if not request.media or FRAMES not in request.name or "-" not in request.headers.get("Range", ""):
            return None
        seen.append(request)
        mine = [other for other in seen if (other.name, other.first) == (request.name, request.first)]
        return FAULTS[fault] if len(mine) == 1 and request.first % 8192 < 5000 else None

    server.fault = fail
    atarirb.ingest(uri, tmp_path / "out")
    assert digest(tmp_path / "out") == local
    assert len(hasty) >= 4
    if fault == "busy":
        assert set(hasty) == {7.0}
    if fault == "dropped":
        assert server.sent < size(root) + 100  # what came before is not asked for again


def test_a_server_without_ranges_that_drops_connections(root, local, tmp_path):
    with servers.files(root, ranges=False) as server:
        server.fault = lambda r: Fault(reset_at=9000) if FRAMES in r.name and r.number == 0 else None
        atarirb.ingest(f"{server.url}/Game/1", tmp_path / "out")
    assert digest(tmp_path / "out") == local


def test_listings_are_tried_again_too(store, local, tmp_path):
    server, uri, _ = store
    server.fault = lambda r: Fault(503) if not r.media and r.number == 0 else None
    atarirb.ingest(uri, tmp_path / "out")
    assert digest(tmp_path / "out") == local


def test_failures_that_stay_are_given_up_and_what_came_is_kept(store, root, local, tmp_path, hasty):
    server, uri, _ = store
    server.fault = lambda r: Fault(503) if f"{FRAMES}0" in r.name and r.first > 10_000 else None
    with pytest.raises(IngestError, match=r"observation_ckpt\.0\.gz: cannot be reached.*503") as caught:
        atarirb.ingest(uri, tmp_path / "out")
    assert list(caught.value.failures) == [0]
    assert isinstance(caught.value.failures[0], TransferError)
    bases = list(failures.DELAYS)
    assert len(hasty) == len(bases)
    assert all(base / 2 <= delay <= base for base, delay in zip(bases, hasty, strict=True))
    (partial,) = (tmp_path / "out/.source/00000").glob(f"*{FRAMES}0.gz.partial")
    came = partial.stat().st_size
    assert came > 8000
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *(f"{split:05d}" for split in (1, 2, 3)),
        ".source",
    }
    server.fault, server.sent = lambda _: None, 0
    before = len(server.requests)
    atarirb.ingest(uri, tmp_path / "out")
    assert digest(tmp_path / "out") == local
    again = [request for request in server.requests[before:] if request.media and ".1." in request.name]
    assert {request.headers["Range"] for request in again if FRAMES not in request.name} == {"bytes=0-0"}
    assert sum(FRAMES in request.name for request in again) == 2  # the same, and the end
    # The small columns of the others came for the survey; of split 0 only what was missing.
    assert (
        sum(1 for r in server.media(f"{FRAMES}0") if r.first == 0 and r.headers["Range"] == "bytes=0-0") == 1
    )
    assert max((r.first for r in server.media(f"{FRAMES}0")), default=0) >= came
    assert not [r for r in server.media(f"{FRAMES}0")[-3:] if 1 <= r.first < came]


def test_an_object_that_changes_meanwhile_starts_afresh(store, root, tmp_path):
    """It is replaced when half of it is there: what is made is what the store has at the end."""
    server, uri, replace = store
    other = frames(root, 1, shift=1)
    turned = []

    def change(request):
        if f"{FRAMES}1" in request.name and request.media and request.first > 8000 and not turned:
            turned.append(request)
            replace(f"{FRAMES}1.gz", other)

    server.after = change
    atarirb.ingest(uri, tmp_path / "out", splits=[1])
    assert turned
    shutil.copytree(root / "Game", tmp_path / "Game")
    (tmp_path / f"Game/1/replay_logs/{FRAMES}1.gz").write_bytes(other)
    truth.ingest(tmp_path / "Game/1", tmp_path / "fresh", splits=[1])
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_an_object_that_never_stays_the_same_is_given_up(store, root, tmp_path):
    server, uri, replace = store
    turns = []

    def change(request):
        if f"{FRAMES}1" in request.name and request.media and request.first > 8000:
            turns.append(request)
            replace(f"{FRAMES}1.gz", frames(root, 1, shift=len(turns)))

    server.after = change
    with pytest.raises(IngestError, match=r"observation_ckpt\.1\.gz: changed while it was read") as caught:
        atarirb.ingest(uri, tmp_path / "out")
    assert isinstance(caught.value.failures[1], SourceChangedError)
    assert 3 <= len(turns) < 20


def test_a_part_that_was_left_is_not_trusted_when_the_object_has_changed(store, root, tmp_path):
    server, uri, replace = store
    server.fault = lambda r: Fault(404) if f"{FRAMES}1" in r.name and r.first > 10_000 else None
    with pytest.raises(IngestError, match="there is no such file"):
        atarirb.ingest(uri, tmp_path / "out", splits=[1])
    assert list((tmp_path / "out/.source").rglob(".*.partial"))
    server.fault = lambda _: None
    other = frames(root, 1, shift=1)
    replace(f"{FRAMES}1.gz", other)
    atarirb.ingest(uri, tmp_path / "out", splits=[1])
    shutil.copytree(root / "Game", tmp_path / "Game")
    (tmp_path / f"Game/1/replay_logs/{FRAMES}1.gz").write_bytes(other)
    truth.ingest(tmp_path / "Game/1", tmp_path / "fresh", splits=[1])
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


def test_a_byte_that_flips_on_its_way_is_found_by_the_stores_checksum(
    google, root, tmp_path, monkeypatch, request
):
    """The file is no gzip, which has a checksum of its own."""
    with _store("gcs", request, tmp_path, root, monkeypatch) as (server, uri, replace):
        plain = gzip.decompress(frames(root, 1))
        replace(f"{FRAMES}1.gz", plain)
        spoilt = []

        def flip(request):
            if f"{FRAMES}1" in request.name and request.first > 8000 and not spoilt:
                first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
                spoilt.append(bytes([plain[first] ^ 1]) + plain[first + 1 : last + 1])
                return Fault(body=spoilt[0])
            return None

        server.fault = flip
        atarirb.ingest(uri, tmp_path / "out")
    assert spoilt
    atarirb.ingest(root / "Game/1", tmp_path / "local")
    with atarirb.open(tmp_path / "out") as ours, atarirb.open(tmp_path / "local") as others:
        truth.assert_same(ours.get(range(len(ours))), others.get(range(len(others))))


@pytest.mark.parametrize("part", ["10 %", "its trailer", "a flipped byte"])
def test_a_damaged_file_in_a_store_fails_its_split_and_is_mended_there(store, root, local, tmp_path, part):
    server, uri, replace = store
    data = frames(root, 1)
    cut = {"10 %": len(data) // 10, "its trailer": -8, "a flipped byte": len(data)}
    spoilt = bytearray(data[: cut[part]])
    if part == "a flipped byte":
        spoilt[len(data) // 2] ^= 0x55
    replace(f"{FRAMES}1.gz", bytes(spoilt))
    with pytest.raises(IngestError, match=r"observation_ckpt\.1\.gz: ") as caught:
        atarirb.ingest(uri, tmp_path / "out")
    assert list(caught.value.failures) == [1]
    assert (tmp_path / "out/00002").exists()
    replace(f"{FRAMES}1.gz", data)
    before = len(server.media(FRAMES))
    atarirb.ingest(uri, tmp_path / "out")
    again = server.media(FRAMES)[before:]
    # The last two are compared, to see whether a window was lost between them; of the others the heads do.
    assert not [r for r in again if r.name[-4] in "0" and 0 < r.first < len(frames(root, 0)) - 9]
    assert digest(tmp_path / "out") == local


# Refusals.


def refuse(server, status):
    server.fault = lambda _: Fault(status)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_the_public_bucket_was_withdrawn(google, tmp_path, monkeypatch, capfd, status):
    from atarirb.cli import main

    with servers.relay(google) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        refuse(server, status)
        uri = "gs://atari-replay-datasets/dqn/Pong/1"
        words = "withdrawn: since about April 2025.*atarirb ingest DIRECTORY OUT.*another source"
        kind = SourceNotFoundError if status == 404 else SourceDeniedError
        with pytest.raises(kind, match=words):
            atarirb.ingest(uri, tmp_path / "a/out")
        assert main(["ingest", uri, str(tmp_path / "a/out")]) == 1
    printed = capfd.readouterr()
    assert "withdrawn" in printed.err
    assert "Traceback" not in printed.err
    assert not printed.out
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    ("status", "words"), [(401, "refuses access"), (403, "refuses access"), (404, "no such")]
)
def test_other_stores_that_refuse(kind, root, google, tmp_path, monkeypatch, request, status, words):
    with _store(kind, request, tmp_path, root, monkeypatch) as (server, uri, _):
        refuse(server, status)
        error = SourceNotFoundError if status == 404 else SourceDeniedError
        with pytest.raises(error, match=f"{words}") as caught:
            atarirb.ingest(uri, tmp_path / "out")
    assert uri in str(caught.value)
    assert ("index page" in str(caught.value)) == (kind == "http")
    assert not (tmp_path / "out").exists()
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_credentials_are_used_only_where_a_bucket_refuses_everyone(google, local, tmp_path, monkeypatch):
    from gcsfs.credentials import GoogleCredentials
    from google.oauth2.credentials import Credentials

    looked = []

    def found(credentials):
        looked.append(credentials)
        credentials.credentials = Credentials("secret")

    monkeypatch.setattr(GoogleCredentials, "_connect_google_default", found)
    with servers.relay(google) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        atarirb.ingest(f"gs://{BUCKET}/Game/1", tmp_path / "open")
        assert not looked
        server.fault = lambda r: None if r.headers.get("Authorization") == "Bearer secret" else Fault(401)
        atarirb.ingest(f"gs://{BUCKET}/Game/1", tmp_path / "closed")
        assert looked
    assert digest(tmp_path / "open") == digest(tmp_path / "closed") == local


def test_a_refusal_in_mid_way_leaves_whole_shards_only(store, local, tmp_path):
    server, uri, _ = store
    server.fault = lambda r: Fault(403) if r.media and ".1.gz" in r.name else None
    with pytest.raises(IngestError, match=r"1\.gz: the store refuses access") as caught:
        atarirb.ingest(uri, tmp_path / "out")
    assert isinstance(caught.value.failures[1], SourceDeniedError)
    server.fault = lambda r: Fault(403) if r.media else None
    with pytest.raises(IngestError):
        atarirb.ingest(uri, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("scheme", ["gs", "http"])
def test_no_network_is_a_named_error(tmp_path, monkeypatch, scheme, hasty):
    def lost(*_, **__):
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", lost)
    with pytest.raises(TransferError, match="cannot be reached.*name resolution.*look at the network"):
        atarirb.ingest(f"{scheme}://nowhere.invalid/Game/1", tmp_path / "out")
    assert len(hasty) == 3
    assert not (tmp_path / "out").exists()


def test_a_closed_port_is_a_named_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(TransferError, match=f"127.0.0.1:{port}.*cannot be reached"):
        atarirb.ingest(f"http://127.0.0.1:{port}/Game/1", tmp_path / "out")


def test_a_web_server_without_index_pages(root, tmp_path):
    with servers.files(root, index=False) as server:
        with pytest.raises(SourceDeniedError, match="index page that its server shows.*copy the files"):
            atarirb.ingest(f"{server.url}/Game/1", tmp_path / "out")
        with pytest.raises(SourceNotFoundError, match="index page"):
            atarirb.ingest(f"{server.url}/Game/2", tmp_path / "out")
        with pytest.raises(ArgumentError, match="no query.*%3F or %23"):
            atarirb.ingest(f"{server.url}/Game/1?x=1", tmp_path / "out")


def test_a_store_that_holds_no_logs_says_what_is_expected(store, tmp_path):
    _, uri, _ = store
    with pytest.raises(SourceNotFoundError, match="it holds the runs 1: name one of them"):
        atarirb.ingest(uri.removesuffix("/1"), tmp_path / "out")


class HttpError(Exception):
    """As gcsfs raises it."""

    def __init__(self, code):
        super().__init__("gone wrong")
        self.code = code


class ClientError(Exception):
    """As botocore raises it."""

    def __init__(self, status):
        super().__init__("gone wrong")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": "SlowDown"}}


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "again", "kind"),
    [
        (ConnectionResetError(104, "reset"), True, TransferError),
        (TimeoutError(), True, TransferError),
        (socket.gaierror(-2, "unknown"), True, TransferError),
        (HttpError("503"), True, TransferError),
        (HttpError(429), True, TransferError),
        (HttpError(401), False, SourceDeniedError),
        (OSError("Forbidden: b/x\nno"), False, SourceDeniedError),
        (FileNotFoundError("x"), False, SourceNotFoundError),
        (PermissionError("x"), False, SourceDeniedError),
        (caused(OSError(16, "Please reduce your request rate"), ClientError(503)), True, TransferError),
        (caused(PermissionError("x"), ClientError(403)), False, SourceDeniedError),
        (failures.Refused(408), True, TransferError),
        (failures.Refused(501), False, TransferError),
        (failures.Refused(410), False, SourceNotFoundError),
        (ValueError("nonsense"), False, TransferError),
    ],
)
def test_what_is_tried_again_and_what_it_is_called(error, again, kind):
    assert failures.is_transient(error) == again
    found = failures.named(error, "s3://bucket/x")
    assert type(found) is kind
    assert "s3://bucket/x" in str(found)


# Stops, and what is kept.


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A run of one split whose frames take 3 MB."""
    directory = tmp_path_factory.mktemp("large")
    record(directory / "Game/1", [200, 150, 60], 450, frame_shape=(84, 84))
    return directory


def start(uri, out, *options, code=None):
    """Ingest by a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen(
        [sys.executable, "-m", "atarirb", "ingest", "-q", uri, str(out), *options],
        env=environment | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("codec", ["packed", "raw"])
@pytest.mark.parametrize("keep", [False, True])
def test_killed_in_mid_way_it_goes_on_there(large, tmp_path, codec, keep):
    """One split: by the second call at most a tenth of it comes again, and the dataset is the same."""
    options = ["--codec", codec, *(["--keep-source", str(tmp_path / "keep")] if keep else [])]
    with servers.files(large) as server:
        first = start(f"{server.url}/Game/1", tmp_path / "out", *options)
        half = size(large) // 2
        server.after = lambda _: os.kill(first.pid, signal.SIGKILL) if server.sent > half else None
        first.communicate(timeout=60)
        assert first.returncode == -signal.SIGKILL
        server.after = lambda _: None
        assert half < server.sent < size(large)
        second = start(f"{server.url}/Game/1", tmp_path / "out", *options)
        assert second.communicate(timeout=60)[1] == ""
        assert second.returncode == 0
        assert server.sent < 1.1 * size(large) + (512 << 10)  # two ranges of the least size were on their way
    truth.ingest(large / "Game/1", tmp_path / "local", codec=codec)
    assert digest(tmp_path / "out") == digest(tmp_path / "local")
    if keep:
        assert digest(tmp_path / "keep") == digest(large / "Game/1")


def test_an_interrupt_does_not_wait_for_the_network(large, tmp_path):
    """The server says nothing any more; the process ends all the same, and goes on from there."""
    silent, ended = threading.Event(), threading.Event()

    def hang(request):
        if FRAMES in request.name and request.first > 1 << 20:
            silent.set()
            ended.wait(60)

    with servers.files(large) as server:
        server.fault = hang
        process = start(f"{server.url}/Game/1", tmp_path / "out")
        try:
            assert silent.wait(60)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
            ended.set()
        assert process.returncode == 130
        assert "interrupted; the same command goes on from here" in errors
        assert "Traceback" not in errors
        assert [path.name for path in (tmp_path / "out").iterdir()] == [".source"]
        server.fault = lambda _: None
        atarirb.ingest(f"{server.url}/Game/1", tmp_path / "out")
    truth.ingest(large / "Game/1", tmp_path / "local")
    assert digest(tmp_path / "out") == digest(tmp_path / "local")


def test_files_are_kept_as_they_came_and_do_not_come_again(store, root, local, tmp_path):
    server, uri, replace = store
    atarirb.ingest(uri, tmp_path / "out", keep_source=tmp_path / "logs/Game/1")
    assert digest(tmp_path / "logs/Game/1") == digest(root / "Game/1")
    atarirb.ingest(tmp_path / "logs/Game/1", tmp_path / "again")
    assert digest(tmp_path / "out") == digest(tmp_path / "again") == local
    server.sent = 0
    atarirb.ingest(uri, tmp_path / "third", keep_source=tmp_path / "logs/Game/1")
    assert digest(tmp_path / "third") == local
    assert server.sent < size(root) / 8
    # One that is another one in the store now is not trusted.
    other = frames(root, 1, shift=1)
    replace(f"{FRAMES}1.gz", other)
    atarirb.ingest(uri, tmp_path / "fourth", keep_source=tmp_path / "logs/Game/1")
    assert (tmp_path / f"logs/Game/1/replay_logs/{FRAMES}1.gz").read_bytes() == other
    assert digest(tmp_path / "fourth") != local


def test_only_what_was_wanted_is_kept(store, root, tmp_path):
    _, uri, _ = store
    atarirb.ingest(uri, tmp_path / "out", splits=[1], keep_source=tmp_path / "keep")
    names = {path.name for path in (tmp_path / "keep/replay_logs").iterdir()}
    assert f"{FRAMES}1.gz" in names
    assert not [name for name in names if name.startswith(".") or f"{FRAMES}0" in name]
    for name in names:
        assert (tmp_path / "keep/replay_logs" / name).read_bytes() == (
            root / "Game/1/replay_logs" / name
        ).read_bytes()


def test_there_is_nothing_to_keep_of_local_logs(root, tmp_path):
    with pytest.raises(ArgumentError, match="keep_source: .* nothing to keep"):
        atarirb.ingest(root / "Game/1", tmp_path / "out", keep_source=tmp_path / "keep")
    assert not (tmp_path / "out").exists()


def test_the_disk_must_have_room_for_what_comes_too(store, root, tmp_path, monkeypatch):
    _, uri, _ = store
    needed = []
    monkeypatch.setattr(
        module.building, "check_space", lambda directory, count, *_: needed.append((directory, count))
    )
    atarirb.ingest(root / "Game/1", tmp_path / "local", workers=1)
    atarirb.ingest(uri, tmp_path / "out", workers=1)
    atarirb.ingest(uri, tmp_path / "kept", workers=1, keep_source=tmp_path / "keep")
    (_, local), (_, spooled), (_, kept) = needed
    assert 0.7 * len(frames(root, 0)) < spooled - local < size(root) / 3
    assert spooled - local < kept - local <= size(root)


def test_a_disk_that_is_too_small_is_known_before_much_has_come(store, root, tmp_path, monkeypatch):
    server, uri, _ = store
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1000, 900, 100))
    with pytest.raises(
        DiskSpaceError, match=r"needs [\d,]+ bytes, its disk has 100 free; nothing was written"
    ):
        atarirb.ingest(uri, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert server.sent < 0.8 * size(root)  # what the plan needs: small columns, heads, the last two


def test_progress_counts_what_came_before(store, root, tmp_path, monkeypatch, capfd):
    server, uri, _ = store
    server.fault = lambda r: Fault(404) if f"{FRAMES}1" in r.name and r.first > 20_000 else None
    with pytest.raises(IngestError):
        atarirb.ingest(uri, tmp_path / "out", splits=[1], progress=True)
    assert capfd.readouterr() == ("", "")  # not a terminal
    server.fault = lambda _: None
    bars = {}

    @contextlib.contextmanager
    def meter(what, total, shown, unit="B", done=0):
        bars[what] = [total, done]

        def on_done(count):
            bars[what][1] += count

        yield on_done

    monkeypatch.setattr(module, "meter", meter)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    logs = sources.find(root / "Game/1")
    atarirb.ingest(uri, tmp_path / "out", splits=[1], progress=True)
    total = logs.size(1)
    assert bars["fetch"] == [total, total]
    assert 0.9 * total < bars["ingest"][1] <= total  # of two small files the survey needed all


@pytest.mark.parametrize("codec", ["packed", "raw"])
def test_memory_does_not_grow_with_what_comes(tmp_path, codec):
    """Frames that no gzip makes smaller, 60 MB of them."""
    rows = 8_500
    rng = np.random.default_rng(0)
    files = tmp_path / "Game/1/replay_logs"
    files.mkdir(parents=True)
    servers.write_log(files, rng.integers(0, 256, (rows, 84, 84), np.uint8))
    with servers.files(tmp_path) as server:
        done = probe("ingest", f"{server.url}/Game/1", tmp_path / "out", 0, codec)
    assert done["steps"] == rows - 4
    assert done["peak_mb"] < 300


def test_a_store_that_connects_at_once_is_named_where_it_cannot(tmp_path):
    with pytest.raises(TransferError, match="ftp://127.0.0.1:1/x: cannot be reached"):
        atarirb.ingest("ftp://127.0.0.1:1/x", tmp_path / "out")
    assert not (tmp_path / "out").exists()
