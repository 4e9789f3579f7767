"""Runs notebooks and writes them back with their outputs: `python notebooks/execute.py [NAME.ipynb …]`, default all."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
KERNEL = "this-interpreter"
LONGEST_CELL_SECONDS = 120


def executed(path: Path) -> nbformat.NotebookNode:
    """Returns a notebook run from the top by this interpreter and the pipesim beside it.

    What changes from run to run (times, ids, names of machines) is taken out, so that differences are of substance.

    Raises:
        CellExecutionError: when a cell raises.
    """
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        write_kernel_spec(os.path.join(folder, KERNEL))  # noqa: PTH118 - it takes a str
        manager = AsyncKernelManager(
            kernel_name=KERNEL,
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[folder], ensure_native_kernel=False),
            **({"transport": "ipc", "ip": os.path.join(folder, "socket")} if os.name == "posix" else {}),  # noqa: PTH118
        )
        client = NotebookClient(
            notebook,
            km=manager,
            timeout=LONGEST_CELL_SECONDS,
            record_timing=False,
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute(env=os.environ | {"PYTHONPATH": str(FOLDER.parent)}, cleanup_kc=True)
    return stripped(notebook)


def stripped(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns a notebook without what differs between two runs that say the same."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.metadata = {}
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
            for output in cell.outputs:
                if "metadata" in output:
                    output.metadata = {}
    return notebook


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Returns outputs with texts of one stream in one piece: where they are cut is a matter of timing."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type == "stream" and joined and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    for notebook_path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(executed(notebook_path.resolve()), notebook_path)
        print(notebook_path)
