"""What the importers of measured runs share: the files they read, and how runs are given back."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.commands.shared import emit_document, note
from pipesim.errors import PipesimError
from pipesim.profiles.store import document_of
from pipesim.runs import deployment_of, workload_of

if TYPE_CHECKING:
    from pipesim.importers.run_files import Imported

Files = Annotated[list[Path], typer.Argument(help="Files as the tool wrote them.", show_default=False)]


def give_back(
    imported: "Imported", files: Iterable[Path], refused: Iterable[PipesimError], output: Path | None, as_json: bool
) -> None:
    """Prints or writes imported runs; says on stderr what was assumed, what was refused, what cannot be predicted."""
    complaints = [str(error) for error in refused]
    for complaint in complaints:
        note(f"left out: {complaint}")
    for line in imported.lines:
        note(line)
    for run in imported.runs.run:
        try:
            workload_of(run)
            deployment_of(run)
        except PipesimError as error:
            note(f"{run.id}: cannot be predicted as it stands: {error}")
    comment = f"Measured runs, imported from {', '.join(path.name for path in files)}."
    emit_document(
        document_of(imported.runs), "runs", comment, output, as_json, notes=list(imported.lines), left_out=complaints
    )
