"""The notebooks run from the top, find what they say they find, and are committed as they were run."""

from pathlib import Path

import nbformat
import pytest

from notebooks.execute import executed, stripped
from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_last_cell_asserts_what_it_found(path: Path) -> None:
    cells = [cell for cell in executed(path).cells if cell.cell_type == "code"]
    assert "assert " in cells[-1].source
    assert all(cell.execution_count == number for number, cell in enumerate(cells, start=1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_has_its_outputs_and_nothing_that_changes_with_every_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert nbformat.writes(stripped(notebook)) + "\n" == text
    assert any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert len(text) < 600_000
    assert "/tmp/" not in text
