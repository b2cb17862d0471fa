"""Fixtures that several modules of tests share."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests import truth

settings.register_profile("atarirb", deadline=None)  # the first example may compile a kernel
settings.load_profile("atarirb")

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="session", params=["packed", "raw"])
def codec(request):
    """Return how the frames of a dataset are kept: each test of one runs for each."""
    return request.param


@pytest.fixture(scope="session")
def pong(codec, tmp_path_factory):
    """Return the path of a dataset of real frames: the sample run Pong/1."""
    out = tmp_path_factory.mktemp("pong") / "1"
    truth.ingest(truth.SAMPLES / "Pong" / "1", out, codec=codec)
    return out


@pytest.fixture(scope="session")
def small(codec, tmp_path_factory):
    """Return a small dataset of short episodes with two holes: its path and its steps.

    Its episodes have 1, 30, 5, 7, 1, 7, 20, 1, 14, 6, 3, 4, 5 and 9 steps. Numbers 4, 9 and 13 have
    no terminal; of numbers 5 and 10 the beginning is lost.
    """
    lengths = [1, 30, 5, 7, 30, 5, 4, 20, 20, 1, 14, 7, 7, 7, 5, 4, 5, 9]
    return truth.dataset(
        tmp_path_factory.mktemp("small"),
        lengths,
        codec=codec,
        capacity=30,
        unfinished=True,
        drop=(2, 6),
        extra={"wide": ((), "int64"), "pair": ((2,), "float32")},
    )


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Return a function that runs code in a new interpreter and returns what it printed."""

    def run(code: str, *arguments: object, root: pathlib.Path = ROOT, **environment: object) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATARIRB_")}
        result = subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(code), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=100,
            env=inherited
            | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
            | {name: str(value) for name, value in environment.items()},
            check=False,
        )
        assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    return run
