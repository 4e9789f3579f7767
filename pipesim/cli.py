"""The command line. stdout is the answer, stderr all else; exit 0 yes, 1 no, 2 usage or a bad file."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

import pipesim.commands.import_bench
import pipesim.commands.import_boxes
import pipesim.commands.import_model
import pipesim.commands.import_server_log
import pipesim.commands.launch  # noqa: F401 - each registers its commands
from pipesim import report
from pipesim.asking import asks
from pipesim.commands.forms import explain_forms, predict_forms, validate_forms
from pipesim.commands.plan import plan_command
from pipesim.commands.report import report_command
from pipesim.commands.shared import (
    PICTURES,
    TABLES,
    AnswerFile,
    Json,
    check_answer_file,
    import_app,
    note,
    print_json,
    progress,
    write_answer,
)
from pipesim.commands.sweep import sweep_command
from pipesim.errors import InfeasibleDeployment, PipesimError, UsageError
from pipesim.export import export_trace, parse_window
from pipesim.options import Question
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.store import (
    SCHEMAS,
    available,
    document_of,
    find,
    is_derived,
    json_schema,
    load_hardware,
    load_model,
)
from pipesim.reasons import datasheet_constants
from pipesim.records import RequestRecords
from pipesim.simulation import Detail

DEFAULT_SEEDS, VALIDATION_SEEDS = 5, 20

app = typer.Typer(
    help="Which parallelism split should serve this language model on these GPUs, and why?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
profiles_app = typer.Typer(help="List, show and describe hardware and model profiles.", no_args_is_help=True)
app.add_typer(profiles_app, name="profiles")
app.add_typer(import_app, name="import")
app.command("plan")(plan_command)
app.command("sweep")(sweep_command)
app.command("report")(report_command)

Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="First seed of lengths and arrivals.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs with different seeds.")]
DetailName = Annotated[
    Literal["pass", "stage", "op"], typer.Option("--detail", help="Grain of the events; same results.")
]
Paths = Annotated[
    list[Path] | None, typer.Argument(help="Files of measured runs (default: all that ship with pipesim).")
]


Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse an answer that rests in part on datasheet figures alone.")
]
TraceOut = Annotated[
    Path | None,
    typer.Option("--trace-out", "--perfetto", help="Trace file to write, for Perfetto: one seed, kernel by kernel."),
]
TraceWindow = Annotated[
    str | None, typer.Option("--trace-window", help='Part of the run in the trace, such as "2s:2.5s" (default: all).')
]
Launch = Annotated[bool, typer.Option("--launch", help="Show the command that starts such a server.")]
RequestsFile = Annotated[
    Path | None, typer.Option("--requests", help="CSV file to write: one row per request and seed.")
]


@app.command("predict")
@asks
def predict_command(  # noqa: PLR0913, PLR0917 - each option is a parameter
    asked: Question,
    seed: Seed = 0,
    seeds: Seeds = DEFAULT_SEEDS,
    detail: DetailName = "pass",
    strict: Strict = False,
    requests: RequestsFile = None,
    launch: Launch = False,
    trace_out: TraceOut = None,
    trace_window: TraceWindow = None,
    output: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """Predict tok/s, latencies, bubbles and per-GPU load of one TP×PP split.

    Example: pipesim predict --tp 2 --pp 4 --concurrency 64
    """
    check_answer_file(output, (*TABLES, *PICTURES))
    if trace_window is not None and trace_out is None:
        raise UsageError("--trace-window", trace_window, "it beside --trace-out only")
    window = parse_window(trace_window)
    with RequestRecords(requests) if requests else nullcontext() as records:
        prediction = _predict(asked, seeds, seed, detail, as_json, records)
    if strict:
        _refuse_datasheet(prediction)
    write_answer(output, predict_forms(prediction, seed))
    if trace_out is not None:
        events = export_trace(Predictor(prediction.deployment), asked.workload, seed, trace_out, window)
        note(f"wrote {trace_out}: {events:,} events of seed {seed}, to be opened at https://ui.perfetto.dev")
    if as_json:
        print_json(report.predict_json(prediction) | (_launch_json(prediction) if launch else {}))
        return
    print(report.predict_text(prediction, asked.defaults))
    if launch:
        from pipesim.launch.write import launch_text  # noqa: PLC0415 - only this flag needs it

        print("", launch_text(prediction.deployment), sep="\n")


@app.command("explain")
@asks
def explain_command(
    asked: Question,
    elasticities: Annotated[
        bool, typer.Option("--elasticities", help="Show what each constant does to the answer.")
    ] = False,
    output: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """What would one change buy: each cost at zero, each switch flipped, sorted, with its interval.

    Example: pipesim explain --tp 8 --no-cuda-graph --concurrency 1
    """
    from pipesim.whatif import explain  # noqa: PLC0415 - only this command needs it

    check_answer_file(output, (*TABLES, *PICTURES))
    explanation = explain(_predict(asked, DEFAULT_SEEDS, 0, "pass", as_json), progress())
    write_answer(output, explain_forms(explanation))
    if as_json:
        print_json(report.explain_json(explanation))
    else:
        print(report.explain_text(explanation, elasticities))


@app.command("validate")
def validate_command(
    paths: Paths = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=1000, help="Runs with different seeds.")
    ] = VALIDATION_SEEDS,
    as_json: Json = False,
    output: AnswerFile = None,
    output_format: Annotated[Literal["text", "markdown"], typer.Option("--format", help="Form of the table.")] = "text",
) -> None:
    """Compare predictions with measured runs; exit 1 when one is out of its tolerance."""
    from pipesim.runs import load_runs  # noqa: PLC0415 - only this command needs them
    from pipesim.validation import validate  # noqa: PLC0415
    from pipesim.validation_report import validate_json, validate_markdown, validate_text  # noqa: PLC0415

    check_answer_file(output, (*TABLES, *PICTURES))
    files = load_runs(paths or [])
    validation = validate(files, seeds, progress(sum(len(file.run) for file in files)))
    write_answer(output, validate_forms(validation))
    if as_json:
        print_json(validate_json(validation))
    else:
        print(validate_markdown(validation) if output_format == "markdown" else validate_text(validation))
    if not validation.ok:
        raise typer.Exit(1)


@app.command("calibrate")
def calibrate_command(
    hardware: Annotated[str, typer.Argument(help="Hardware profile: a name, or a .toml file to write in place.")],
    system: Annotated[
        str | None, typer.Option("--system", help="System of the kernel tables, such as rtx_pro_6000_server.")
    ] = None,
    nccl_tests: Annotated[
        list[Path] | None, typer.Option("--nccl-tests", help="Output of nccl-tests on the box, text or -J JSON.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Option("--runs", help="Files of measured runs; those of role calibration are used.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the difference and write nothing.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write a new profile, laid over HARDWARE, to this .toml file.")
    ] = None,
) -> None:
    """Fit a profile's constants to kernel tables, nccl-tests output or whole runs; print the errors.

    Example: pipesim calibrate ./my-box.toml --system rtx_pro_6000_server --nccl-tests all_reduce.txt --dry-run
    """
    from pipesim.calibration.apply import calibrate  # noqa: PLC0415 - only this command needs it

    found = calibrate(hardware, system, nccl_tests or [], runs or [], dry_run, output)
    print(*found.texts, sep="\n")
    if dry_run:
        print("", *found.differences, sep="\n")


@profiles_app.command("list")
def profiles_list() -> None:
    """List the profiles that a name would find."""
    for kind in SCHEMAS:
        for name, path in available(kind).items():
            print(f"{kind:<9} {name:<28} {path}")


@profiles_app.command("show")
def profiles_show(name: Annotated[str, typer.Argument(help="Name or .toml file of a profile.")]) -> None:
    """Check a profile and print its file, with the source of every constant."""
    if is_derived(name):
        import tomlkit  # noqa: PLC0415 - only boxes without a file of their own need it

        print(tomlkit.dumps(document_of(load_hardware(name))), end="")
        return
    kind = next((kind for kind in SCHEMAS if name in available(kind)), None)
    if kind is None and not Path(name).is_file():
        names = ", ".join(sorted(name for kind in SCHEMAS for name in available(kind)))
        raise UsageError("NAME", name, f"a .toml file or one of {names}")
    errors = []
    for candidate in [kind] if kind else list(SCHEMAS):
        try:
            {"hardware": load_hardware, "model": load_model}[candidate](name)
        except PipesimError as error:
            errors.append(error)
            continue
        print(find(candidate, name).read_text(encoding="utf-8"), end="")
        return
    raise errors[0]


@profiles_app.command("schema")
def profiles_schema(kind: Annotated[Literal["hardware", "model"], typer.Argument(help="Kind of profile.")]) -> None:
    """Print the JSON Schema of a kind of profile, for an editor."""
    print_json(json_schema(kind))


def main() -> NoReturn:
    """Runs the command line; bad input ends with one message and exit code 2."""
    try:
        app()
    except PipesimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, InfeasibleDeployment) else 2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)


def _predict(
    asked: Question, seeds: int, seed: int, detail: Detail, as_json: bool, records: RequestRecords | None = None
) -> Prediction:
    """Returns the prediction asked for; one that the box cannot hold is an answer with reasons, and exit code 1."""
    try:
        observe = {} if records is None else {"observe": records.add}
        return Predictor(asked.deploy()).predict(asked.workload, seeds, detail, seed, **observe)
    except InfeasibleDeployment as refusal:
        if as_json:
            print_json(report.infeasible_json(refusal.reasons))
        else:
            print(report.infeasible_text(asked.plan, refusal.reasons))
        raise typer.Exit(1) from None


def _launch_json(prediction: Prediction) -> dict[str, Any]:
    from pipesim.launch.write import launch_json  # noqa: PLC0415 - only one flag needs it

    return launch_json(prediction.deployment)


def _refuse_datasheet(prediction: Prediction) -> None:
    share = prediction.basis["datasheet"]
    if share:
        names = ", ".join(datasheet_constants(prediction)) or "prefill"
        print(
            f"error: --strict: {share:.1%} of the priced time rests on datasheet figures alone ({names})",
            file=sys.stderr,
        )
        raise typer.Exit(1)
