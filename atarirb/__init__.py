"""Exact, fast batches from logged Atari replay, for JAX and NumPy.

    atarirb.ingest("logs/Pong/1", "data/Pong/1")
    reader = atarirb.open("data/Pong/1", frame_stack=4)
    batch = reader.sample(0, 256)

Importing the package imports none of its parts; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atarirb.catalog import available_datasets
    from atarirb.errors import AtarirbError
    from atarirb.info import DatasetInfo
    from atarirb.loader import Batches
    from atarirb.mixture import Mixture, mix
    from atarirb.reader import Reader, open
    from atarirb.recording.recorder import Recorder
    from atarirb.verbs.bench import bench
    from atarirb.verbs.convert import convert
    from atarirb.verbs.datasets import datasets, source_runs
    from atarirb.verbs.download import download
    from atarirb.verbs.env import env
    from atarirb.verbs.ingest import ingest
    from atarirb.verbs.ingest_arrays import ingest_arrays
    from atarirb.verbs.map import map
    from atarirb.verbs.preview import preview
    from atarirb.verbs.prune import prune
    from atarirb.verbs.record import LogsInfo, record
    from atarirb.verbs.report import report
    from atarirb.verbs.rm import rm
    from atarirb.verbs.show import show
    from atarirb.verbs.verify import verify

__version__ = "0.1.0"

_HOMES = {
    "AtarirbError": "errors",
    "Batches": "loader",
    "DatasetInfo": "info",
    "LogsInfo": "verbs.record",
    "Mixture": "mixture",
    "Reader": "reader",
    "Recorder": "recording.recorder",
    "available_datasets": "catalog",
    "bench": "verbs.bench",
    "convert": "verbs.convert",
    "datasets": "verbs.datasets",
    "download": "verbs.download",
    "env": "verbs.env",
    "ingest": "verbs.ingest",
    "ingest_arrays": "verbs.ingest_arrays",
    "map": "verbs.map",
    "mix": "mixture",
    "open": "reader",
    "preview": "verbs.preview",
    "prune": "verbs.prune",
    "record": "verbs.record",
    "report": "verbs.report",
    "rm": "verbs.rm",
    "show": "verbs.show",
    "source_runs": "verbs.datasets",
    "verify": "verbs.verify",
}

__all__ = [
    "AtarirbError",
    "Batches",
    "DatasetInfo",
    "LogsInfo",
    "Mixture",
    "Reader",
    "Recorder",
    "available_datasets",
    "bench",
    "convert",
    "datasets",
    "download",
    "env",
    "ingest",
    "ingest_arrays",
    "map",
    "mix",
    "open",
    "preview",
    "prune",
    "record",
    "report",
    "rm",
    "show",
    "source_runs",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"atarirb.{_HOMES[name]}"), name)
    if name in ("errors", "catalog"):
        return importlib.import_module(f"atarirb.{name}")
    raise AttributeError(f"module 'atarirb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
