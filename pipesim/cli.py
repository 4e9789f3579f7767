"""The command line. stdout is the answer, stderr all else; exit 0 yes, 1 no, 2 usage or a bad file."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from pipesim import report
from pipesim.deployment import AllReduceChoice, EngineName, EngineSettings, KvCacheDtype, ParallelPlan
from pipesim.errors import InfeasibleDeployment, PipesimError, UsageError
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.store import SCHEMAS, available, find, json_schema, load_hardware, load_model
from pipesim.units import parse_quantity
from pipesim.validate import SEEDS, load_runs, validate
from pipesim.workload import Workload

DEFAULT_MODEL, DEFAULT_HARDWARE = "kimi-k2.6", "rtx-pro-6000-x8"
DEFAULT_SEEDS = 5
WAVES = 4
"""Requests per user where --num-prompts is not given."""

app = typer.Typer(
    help="Which parallelism split should serve this language model on these GPUs, and why?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
profiles_app = typer.Typer(help="List, show and describe hardware and model profiles.", no_args_is_help=True)
app.add_typer(profiles_app, name="profiles")

Model = Annotated[str, typer.Option("--model", "--model-path", help="Model profile: a name or a .toml file.")]
Hardware = Annotated[str, typer.Option("--hardware", help="Hardware profile: a name or a .toml file.")]
Engine = Annotated[EngineName, typer.Option("--engine", help="Serving engine.")]
Tp = Annotated[int, typer.Option("--tp", "--tp-size", "--tensor-parallel-size", help="Tensor-parallel degree.")]
Pp = Annotated[int, typer.Option("--pp", "--pp-size", "--pipeline-parallel-size", help="Pipeline stages.")]
Partition = Annotated[
    str | None, typer.Option("--layer-partition", help='Layers of each stage, such as "15,15,15,16".')
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "--max-concurrency", help="Users of the closed loop.")
]
Rate = Annotated[float | None, typer.Option("--request-rate", help="Open loop: Poisson arrivals per second.")]
NumPrompts = Annotated[int | None, typer.Option("--num-prompts", help="Requests in all [default: 4 per user].")]
InputLen = Annotated[int, typer.Option("--input-len", "--isl", "--random-input-len", help="Prompt tokens.")]
OutputLen = Annotated[int, typer.Option("--output-len", "--osl", "--random-output-len", help="Generated tokens.")]
RangeRatio = Annotated[float, typer.Option("--random-range-ratio", help="Lengths uniform in [L(1-r), L(1+r)].")]
ContextLen = Annotated[int, typer.Option("--context-len", help="Tokens in the KV cache before the prompt.")]
Spacing = Annotated[str, typer.Option("--submit-spacing", help="Mean gap between the users' first requests.")]
Cap = Annotated[int | None, typer.Option("--pp-max-micro-batch-size", help="Most requests in one micro-batch slot.")]
Depth = Annotated[int, typer.Option("--pp-async-batch-depth", help="Slots beyond one per stage.")]
MaxRunning = Annotated[
    int | None, typer.Option("--max-running-requests", "--max-num-seqs", help="Most requests in the server.")
]
Chunk = Annotated[
    int | None, typer.Option("--chunked-prefill-size", "--max-num-batched-tokens", help="Prompt tokens of one launch.")
]
MemFraction = Annotated[
    float | None,
    typer.Option(
        "--mem-fraction-static",
        help="SGLang's share of free memory for weights and KV cache; not vLLM's --gpu-memory-utilization.",
    ),
]
Utilization = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", help="vLLM's share of all GPU memory [default: 0.9].")
]
Async = Annotated[bool, typer.Option("--async-scheduling/--no-async-scheduling", help="vLLM's scheduler runs ahead.")]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="The same as --no-cuda-graph, in vLLM's words.")]
Graph = Annotated[
    bool, typer.Option("--cuda-graph/--no-cuda-graph", help="Captured decode, or kernels launched eagerly.")
]
KvDtype = Annotated[KvCacheDtype, typer.Option("--kv-cache-dtype", help="Storage of the KV cache.")]
PeerAccess = Annotated[
    bool, typer.Option("--p2p/--no-p2p", help="Peer access between GPUs, or staging through the host.")
]
AllReduce = Annotated[
    AllReduceChoice,
    typer.Option("--allreduce", help="AllReduce implementation; auto is the engine's own rule."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="First seed of lengths and arrivals.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs with different seeds.")]
DetailName = Annotated[
    Literal["pass", "stage", "op"], typer.Option("--detail", help="Grain of the events; same results.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Paths = Annotated[
    list[Path] | None, typer.Argument(help="Files of measured runs [default: all that ship with pipesim].")
]


@app.command()
def predict(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    hardware: Hardware = DEFAULT_HARDWARE,
    engine: Engine = "sglang",
    tp: Tp = 1,
    pp: Pp = 1,
    layer_partition: Partition = None,
    concurrency: Concurrency = None,
    request_rate: Rate = None,
    num_prompts: NumPrompts = None,
    input_len: InputLen = 512,
    output_len: OutputLen = 256,
    random_range_ratio: RangeRatio = 0.0,
    context_len: ContextLen = 0,
    submit_spacing: Spacing = "0.2ms",
    pp_max_micro_batch_size: Cap = None,
    pp_async_batch_depth: Depth = 0,
    max_running_requests: MaxRunning = None,
    chunked_prefill_size: Chunk = None,
    mem_fraction_static: MemFraction = None,
    gpu_memory_utilization: Utilization = None,
    async_scheduling: Async = True,
    cuda_graph: Graph = True,
    enforce_eager: Eager = False,
    kv_cache_dtype: KvDtype = "auto",
    p2p: PeerAccess = True,
    allreduce: AllReduce = "auto",
    seed: Seed = 0,
    seeds: Seeds = DEFAULT_SEEDS,
    detail: DetailName = "pass",
    as_json: Json = False,
) -> None:
    """Predict tok/s, latencies, bubbles and per-GPU load of one TP×PP split.

    Example: pipesim predict --tp 2 --pp 4 --concurrency 64
    """
    users = 32 if concurrency is None else concurrency
    workload = Workload(
        concurrency=users,
        num_prompts=WAVES * users if num_prompts is None else num_prompts,
        input_len=input_len,
        output_len=output_len,
        random_range_ratio=random_range_ratio,
        context_len=context_len,
        spacing_s=_quantity("--submit-spacing", submit_spacing, "s"),
        request_rate=request_rate,
    )
    settings = EngineSettings(
        name=engine,
        cuda_graph=cuda_graph and not enforce_eager,
        pp_max_micro_batch_size=pp_max_micro_batch_size,
        pp_async_batch_depth=pp_async_batch_depth,
        max_running_requests=max_running_requests,
        chunked_prefill_size=chunked_prefill_size,
        mem_fraction_static=mem_fraction_static,
        peer_access=p2p,
        allreduce=allreduce,
        kv_cache_dtype=kv_cache_dtype,
        gpu_memory_utilization=gpu_memory_utilization,
        async_scheduling=async_scheduling,
    )
    plan = ParallelPlan(tp, pp, _partition(layer_partition))
    try:
        deployment = deploy(load_model(model), load_hardware(hardware), plan, settings)
        prediction = Predictor(deployment).predict(workload, seeds, detail, seed)
    except InfeasibleDeployment as refusal:
        if as_json:
            _print_json(report.infeasible_json(refusal.reasons))
        else:
            print(f"{plan} does not fit.", *refusal.reasons, sep="\n")
        raise typer.Exit(1) from None
    if as_json:
        _print_json(report.predict_json(prediction))
    else:
        print(report.predict_text(prediction, _defaults_used(context, users)))


@app.command("validate")
def validate_command(
    paths: Paths = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs with different seeds.")] = SEEDS,
    as_json: Json = False,
    output_format: Annotated[Literal["text", "markdown"], typer.Option("--format", help="Form of the table.")] = "text",
) -> None:
    """Compare predictions with measured runs; exit 1 when one is out of its tolerance."""
    files = load_runs(paths or [])
    validation = validate(files, seeds, _progress(sum(len(file.run) for file in files)))
    if as_json:
        _print_json(report.validate_json(validation))
    else:
        print(report.validate_markdown(validation) if output_format == "markdown" else report.validate_text(validation))
    if not validation.ok:
        raise typer.Exit(1)


@profiles_app.command("list")
def profiles_list() -> None:
    """List the profiles that a name would find."""
    for kind in SCHEMAS:
        for name, path in available(kind).items():
            print(f"{kind:<9} {name:<24} {path}")


@profiles_app.command("show")
def profiles_show(name: Annotated[str, typer.Argument(help="Name or .toml file of a profile.")]) -> None:
    """Check a profile and print its file, with the source of every constant."""
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
    _print_json(json_schema(kind))


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


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _quantity(flag: str, given: str, unit: str) -> float:
    try:
        return parse_quantity(given, unit)
    except ValueError as error:
        raise PipesimError(f"{flag}: {error}") from None


def _partition(given: str | None) -> tuple[int, ...] | None:
    if given is None:
        return None
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError:
        raise UsageError("--layer-partition", given, 'whole numbers with commas such as "15,15,15,16"') from None


def _defaults_used(context: typer.Context, users: int) -> list[str]:
    """Returns in words what a user did not say and pipesim assumed."""
    words = {
        "model": DEFAULT_MODEL,
        "hardware": DEFAULT_HARDWARE,
        "cuda_graph": "CUDA graphs",
        "concurrency": f"{users} users in closed loop",
        "submit_spacing": "submitted 0.2 ms apart",
        "num_prompts": f"{WAVES} requests per user",
        "input_len": "512 in",
        "output_len": "256 out",
    }
    return [text for name, text in words.items() if _is_default(context, name)]


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT"


def _progress(total: int) -> Any:
    """Returns a function that shows on a terminal which run is being predicted."""
    done = 0

    def show(name: str) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r\033[Kpredicting {done}/{total} {name}", end=end, file=sys.stderr, flush=True)

    return show
