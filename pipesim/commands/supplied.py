"""What the importers of measured runs share: the options that say what a file does not, and how runs are given back."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipesim.commands.shared import emit_document, note
from pipesim.engine_settings import EngineName
from pipesim.errors import PipesimError
from pipesim.importers.supplied import DEFAULT_TOLERANCE, Supplied
from pipesim.measured import Role
from pipesim.options import DEFAULT_HARDWARE, DEFAULT_MODEL
from pipesim.profiles.store import document_of
from pipesim.runs import deployment_of, workload_of

if TYPE_CHECKING:
    from pipesim.importers.run_files import Imported

Files = Annotated[list[Path], typer.Argument(help="Files as the tool wrote them.", show_default=False)]

UNSAID = "where the file does not say"
Model = Annotated[
    str | None,
    typer.Option("--model", "--model-path", help=f"Model profile (default: the file's own, or {DEFAULT_MODEL})."),
]
Hardware = Annotated[
    str | None, typer.Option("--hardware", help=f"Hardware profile (default: the file's own, or {DEFAULT_HARDWARE}).")
]
Engine = Annotated[EngineName | None, typer.Option("--engine", help=f"Serving engine, {UNSAID}.")]
Tp = Annotated[int | None, typer.Option("--tp", "--tp-size", min=1, help=f"Tensor-parallel degree, {UNSAID}.")]
Pp = Annotated[int | None, typer.Option("--pp", "--pp-size", min=1, help=f"Pipeline stages, {UNSAID}.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "--max-concurrency", "--batch-size", min=1, help=f"Users, {UNSAID}.")
]
NumPrompts = Annotated[int | None, typer.Option("--num-prompts", min=1, help=f"Requests in all, {UNSAID}.")]
InputLen = Annotated[int | None, typer.Option("--input-len", min=1, help=f"Prompt tokens, {UNSAID}.")]
OutputLen = Annotated[int | None, typer.Option("--output-len", min=1, help=f"Generated tokens, {UNSAID}.")]
RangeRatio = Annotated[
    float | None,
    typer.Option("--random-range-ratio", min=0, max=1, help=f"Lengths uniform in L(1-r) to L(1+r), {UNSAID}."),
]
RoleName = Annotated[
    Role | None, typer.Option("--role", help="Judged, used to fit, or only shown (default: validation).")
]
Tolerance = Annotated[float, typer.Option("--tolerance", help="Largest relative error of a good prediction.")]
Prefix = Annotated[str | None, typer.Option("--id", help="How ids of runs begin (default: the file's name).")]


def supplied(
    model: Model = None,
    hardware: Hardware = None,
    engine: Engine = None,
    tp: Tp = None,
    pp: Pp = None,
    concurrency: Concurrency = None,
    num_prompts: NumPrompts = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    random_range_ratio: RangeRatio = None,
    role: RoleName = None,
    tolerance: Tolerance = DEFAULT_TOLERANCE,
    prefix: Prefix = None,
) -> Supplied:
    """Returns what the options say of runs. Raises UsageError."""
    workload = {
        "concurrency": concurrency,
        "num_prompts": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "random_range_ratio": random_range_ratio,
    }
    return Supplied(
        default_model=DEFAULT_MODEL,
        default_hardware=DEFAULT_HARDWARE,
        model=model,
        hardware=hardware,
        engine=engine,
        tp=tp,
        pp=pp,
        role=role,
        tolerance=tolerance,
        prefix=prefix,
        workload={name: value for name, value in workload.items() if value is not None},
    )


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
