"""The notebooks run from top to bottom, each in a kernel of its own, as their readers run them."""

from __future__ import annotations

import os
import pathlib

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    """Return a notebook and its cells of code."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    return notebook, [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
def test_a_notebook_is_kept_without_what_a_run_left_in_it(path):
    notebook, cells = read(path)
    nbformat.validate(notebook)
    assert not any(cell.outputs for cell in cells)
    assert {cell.execution_count for cell in cells} == {None}


@each_notebook
@pytest.mark.timeout(600)
def test_a_notebook_runs(path, tmp_path):
    notebook, cells = read(path)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "IPYTHONDIR": str(tmp_path),  # nobody's own settings and start-up files
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    client = nbclient.NotebookClient(
        notebook, startup_timeout=300, timeout=550, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute(env=environment)

    assert all(cell.execution_count for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert any(output.output_type == "stream" and output.name == "stdout" for output in outputs)
    assert "".join(output.text for output in outputs if output.get("name") == "stderr") == ""  # no warnings
