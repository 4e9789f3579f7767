"""The options that ask a question: which deployment under which load. Every command that asks shares them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from pipesim.deployment import AllReduceChoice, Deployment, EngineName, EngineSettings, KvCacheDtype, ParallelPlan
from pipesim.errors import PipesimError, UsageError
from pipesim.prediction import deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.units import parse_quantity
from pipesim.workload import Workload

DEFAULT_MODEL, DEFAULT_HARDWARE = "kimi-k2.6", "rtx-pro-6000-x8"
DEFAULT_USERS = 32
WAVES = 4
"""Requests per user where --num-prompts is not given."""

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
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Version of the engine that runs.")]
Async = Annotated[bool, typer.Option("--async-scheduling/--no-async-scheduling", help="vLLM's scheduler runs ahead.")]
Acceptance = Annotated[
    str | None,
    typer.Option("--speculative-acceptance", help='Acceptance of each draft token, such as "0.7,0.6,0.5".'),
]
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


@dataclass(frozen=True)
class Question:
    """What a person asks about."""

    model: str
    hardware: str
    plan: ParallelPlan
    settings: EngineSettings
    workload: Workload
    defaults: tuple[str, ...]
    """In words, what was not said and is assumed."""

    def deploy(self) -> Deployment:
        """Returns the deployment asked about. Raises PipesimError."""
        return deploy(load_model(self.model), load_hardware(self.hardware), self.plan, self.settings)


def question(
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
    engine_version: EngineVersion = None,
    speculative_acceptance: Acceptance = None,
    cuda_graph: Graph = True,
    enforce_eager: Eager = False,
    kv_cache_dtype: KvDtype = "auto",
    p2p: PeerAccess = True,
    allreduce: AllReduce = "auto",
) -> Question:
    """Returns the question that the options ask. Raises UsageError for a value that no box could meet."""
    users = DEFAULT_USERS if concurrency is None else concurrency
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
        version=engine_version,
        speculative_acceptance=_acceptance(speculative_acceptance),
    )
    plan = ParallelPlan(tp, pp, _partition(layer_partition))
    return Question(model, hardware, plan, settings, workload, tuple(_defaults_used(context, users)))


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose first parameter, a `Question`, is replaced by the options of `question`."""
    shared = inspect.signature(question).parameters
    own = list(inspect.signature(command).parameters.values())[1:]
    hints = get_type_hints(question, include_extras=True) | get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def ask(**given: Any) -> None:
        asked = question(**{name: given.pop(name) for name in shared})
        command(asked, **given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*shared.values(), *own)]
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
    return ask


def _quantity(flag: str, given: str, unit: str) -> float:
    try:
        return parse_quantity(given, unit)
    except ValueError as error:
        raise PipesimError(f"{flag}: {error}") from None


def _acceptance(given: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in given.split(",")) if given else ()
    except ValueError:
        raise UsageError("--speculative-acceptance", given, 'numbers with commas such as "0.7,0.6,0.5"') from None


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
