"""The options that ask a question: which deployment under which load. Every command that asks shares them."""

import os
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pipesim import engine_options as engine_flags
from pipesim.deployment import Balancer, Deployment, ParallelPlan
from pipesim.engine_settings import DEFAULT_SMOOTH_FACTOR, EngineName, EngineSettings, storage_of_kv_cache
from pipesim.errors import PipesimError, UsageError
from pipesim.fitting import deploy
from pipesim.loads import WAVES, Like, load_of
from pipesim.profiles.store import load_hardware, load_model
from pipesim.units import parse_quantity
from pipesim.workload import Workload

DEFAULT_MODEL, DEFAULT_HARDWARE = "kimi-k2.6", "rtx-pro-6000-x8"
DEFAULT_ENGINE: EngineName = "sglang"
PARTITION_VARIABLE, PARTITION_EXAMPLE = "_PP_LAYER_PARTITION", "15,15,15,16"

Model = Annotated[
    str, typer.Option("--model", "--model-path", help="Model: a profile's name or .toml file, or a config.json.")
]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware", help="Box: a name such as h100-sxm-x8, rtx-4090-x2 or h100-sxm-2x8 (two nodes), or a .toml file."
    ),
]
Engine = Annotated[EngineName, typer.Option("--engine", help="Serving engine.")]
AnyEngine = Annotated[
    Literal["sglang", "vllm", "rebatch", "any"],
    typer.Option("--engine", help="Serving engine, or any for the better one."),
]
Tp = Annotated[int, typer.Option("--tp", "--tp-size", "--tensor-parallel-size", help="Tensor-parallel degree.")]
Pp = Annotated[int, typer.Option("--pp", "--pp-size", "--pipeline-parallel-size", help="Pipeline stages.")]
Ep = Annotated[
    int, typer.Option("--ep", "--ep-size", "--expert-parallel-size", help="Ranks of a stage that share out experts.")
]
EpAll = Annotated[bool, typer.Option("--enable-expert-parallel", help="The same as --ep with --tp's value (vLLM).")]
DpAttention = Annotated[
    bool, typer.Option("--dp-attention", "--enable-dp-attention", help="Each rank attends for its own requests.")
]
Dcp = Annotated[
    int, typer.Option("--dcp", "--decode-context-parallel-size", help="Ranks that share out a request's KV cache.")
]
Replicas = Annotated[int, typer.Option("--replicas", help="Equal servers behind a balancer, on GPUs of their own.")]
BalancerChoice = Annotated[Balancer, typer.Option("--balancer", help="How requests are dealt to replicas.")]
Partition = Annotated[
    str | None, typer.Option("--layer-partition", help='Layers of each stage, such as "15,15,15,16".')
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", "--max-concurrency", help="Users of the closed loop; open: most requests in server."),
]
Rate = Annotated[float | None, typer.Option("--request-rate", help="Open loop: arrivals per second, or inf.")]
NumPrompts = Annotated[
    int | None, typer.Option("--num-prompts", help="Requests in all, all of them measured (default: --steady).")
]
LikeName = Annotated[
    Like | None,
    typer.Option(
        "--like",
        help="Load with a benchmark tool's defaults and its meaning of the range ratio, or a kind of traffic.",
    ),
]
InputLen = Annotated[
    int | None, typer.Option("--input-len", "--isl", "--random-input-len", help="Mean prompt tokens (default: 512).")
]
OutputLen = Annotated[
    int | None,
    typer.Option("--output-len", "--osl", "--random-output-len", help="Mean output tokens (default: 256)."),
]
RangeRatio = Annotated[
    float | None,
    typer.Option(
        "--random-range-ratio",
        help="Lengths uniform from L(1-r) to L(1+r), as vLLM's tool has it (default: 0.5); with --like sglang-bench "
        "from rL to L, where 1 is fixed.",
    ),
]
IgnoreEos = Annotated[
    bool | None,
    typer.Option("--ignore-eos/--no-ignore-eos", help="The client fixes answers' lengths, or they end by themselves."),
]
Steady = Annotated[
    bool | None,
    typer.Option(
        "--steady/--whole-run",
        help="Measure a closed loop between its opening wave and its end, or all of it (default with --num-prompts).",
    ),
]
ContextLen = Annotated[int, typer.Option("--context-len", help="Tokens in the KV cache before the prompt.")]
Spacing = Annotated[
    str | None,
    typer.Option(
        "--submit-spacing",
        help="Mean gap between the users' first requests (default: 0.2 ms; with --steady over the time of a request).",
    ),
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Open loop: a trace's arrivals and lengths, in CSV or JSON lines.")
]
PrefixCache = Annotated[
    bool, typer.Option("--prefix-cache", help="Prompt blocks seen before in the trace (hash_ids) are in the KV cache.")
]
HitRate = Annotated[
    float, typer.Option("--prefix-cache-hit-rate", help="Share of every prompt that is in the KV cache already.")
]
Burstiness = Annotated[
    float,
    typer.Option("--burstiness", help="Shape of the gamma gaps between arrivals; 1 is Poisson, less is burstier."),
]
Duration = Annotated[
    str | None, typer.Option("--duration", help='Open loop: requests are sent until then, such as "60 s".')
]
WarmUp = Annotated[int, typer.Option("--warm-up", help="First requests to end that the metrics leave out.")]


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
    fixed: dict[str, Any] = field(default_factory=dict)
    """Of a command that searches: the values of what it would search that a person gave all the same."""

    def deploy(self) -> Deployment:
        """Returns the deployment asked about. Raises PipesimError."""
        return deploy(load_model(self.model), load_hardware(self.hardware), self.plan, self.settings, self.workload)


def question(
    context: typer.Context,
    model: Model = DEFAULT_MODEL,
    hardware: Hardware = DEFAULT_HARDWARE,
    engine: Engine = DEFAULT_ENGINE,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    enable_expert_parallel: EpAll = False,
    dp_attention: DpAttention = False,
    dcp: Dcp = 1,
    replicas: Replicas = 1,
    balancer: BalancerChoice = "round-robin",
    layer_partition: Partition = None,
    concurrency: Concurrency = None,
    request_rate: Rate = None,
    num_prompts: NumPrompts = None,
    like: LikeName = None,
    input_len: InputLen = None,
    output_len: OutputLen = None,
    random_range_ratio: RangeRatio = None,
    ignore_eos: IgnoreEos = None,
    steady: Steady = None,
    context_len: ContextLen = 0,
    submit_spacing: Spacing = None,
    pp_max_micro_batch_size: engine_flags.Cap = None,
    pp_async_batch_depth: engine_flags.Depth = 0,
    max_running_requests: engine_flags.MaxRunning = None,
    chunked_prefill_size: engine_flags.Chunk = None,
    context_length: engine_flags.ContextLength = None,
    mem_fraction_static: engine_flags.MemFraction = None,
    gpu_memory_utilization: engine_flags.Utilization = None,
    async_scheduling: engine_flags.Async = None,
    cap_decodes_per_step: engine_flags.CapDecodes = False,
    engine_version: engine_flags.EngineVersion = None,
    language_only: engine_flags.LanguageOnly = False,
    enable_mixed_chunk: engine_flags.MixedChunk = False,
    enable_dynamic_chunking: engine_flags.DynamicChunking = False,
    dynamic_chunking_smooth_factor: engine_flags.SmoothFactor = DEFAULT_SMOOTH_FACTOR,
    prefill_decode_interval: engine_flags.PrefillDecodeInterval = 0,
    prefill_decode_interval_min_bs: engine_flags.PrefillDecodeIntervalMinBs = 0,
    prefill_schedule_interval: engine_flags.PrefillScheduleInterval = 1,
    schedule_conservativeness: engine_flags.Conservativeness = 1.0,
    speculative_acceptance: engine_flags.Acceptance = None,
    cuda_graph: engine_flags.Graph = True,
    enforce_eager: engine_flags.Eager = False,
    kv_cache_dtype: engine_flags.KvDtype = "auto",
    placement: engine_flags.Placement = None,
    p2p: engine_flags.PeerAccess = None,
    allreduce: engine_flags.AllReduce = "auto",
    trace: TraceFile = None,
    prefix_cache: PrefixCache = False,
    prefix_cache_hit_rate: HitRate = 0.0,
    burstiness: Burstiness = 1.0,
    duration: Duration = None,
    warm_up: WarmUp = 0,
) -> Question:
    """Returns the question that the options ask. Raises UsageError for a value that no box could meet."""
    workload = load_of(
        [name for name in context.params if not _is_default(context, name)],
        like,
        trace,
        prefix_cache,
        concurrency=concurrency,
        num_prompts=num_prompts,
        input_len=input_len,
        output_len=output_len,
        random_range_ratio=random_range_ratio,
        ignore_eos=ignore_eos,
        steady=steady,
        context_len=context_len,
        spacing_s=None if submit_spacing is None else parse_flag("--submit-spacing", submit_spacing, "s"),
        request_rate=request_rate,
        burstiness=burstiness,
        duration_s=None if duration is None else parse_flag("--duration", duration, "s"),
        prefix_cache_hit_rate=prefix_cache_hit_rate,
        warm_up=warm_up,
    )
    settings = EngineSettings(
        name=engine,
        cuda_graph=cuda_graph and not enforce_eager,
        pp_max_micro_batch_size=pp_max_micro_batch_size,
        pp_async_batch_depth=pp_async_batch_depth,
        max_running_requests=max_running_requests,
        chunked_prefill_size=chunked_prefill_size,
        context_length=context_length,
        mem_fraction_static=mem_fraction_static,
        peer_access=p2p,
        allreduce=allreduce,
        kv_cache_dtype=storage_of_kv_cache(kv_cache_dtype),
        gpu_memory_utilization=gpu_memory_utilization,
        async_scheduling=async_scheduling,
        cap_decodes_per_step=cap_decodes_per_step,
        language_only=language_only,
        enable_mixed_chunk=enable_mixed_chunk,
        enable_dynamic_chunking=enable_dynamic_chunking,
        dynamic_chunking_smooth_factor=dynamic_chunking_smooth_factor,
        prefill_decode_interval=prefill_decode_interval,
        prefill_decode_interval_min_bs=prefill_decode_interval_min_bs,
        prefill_schedule_interval=prefill_schedule_interval,
        schedule_conservativeness=schedule_conservativeness,
        version=engine_version,
        speculative_acceptance=_acceptance(speculative_acceptance),
    )
    groups = _expert_groups(ep, enable_expert_parallel, tp)
    layers, of_environment = _layers(layer_partition, engine, pp)
    placed = parse_integers("--placement", placement, "0,2,1,3")
    plan = ParallelPlan(tp, pp, layers, groups, dp_attention, dcp, replicas, balancer, placed)
    defaults = (*_defaults_used(context, workload), *of_environment)
    return Question(model, hardware, plan, settings, workload, defaults)


@lru_cache(maxsize=256)
def parse_flag(flag: str, given: str, unit: str) -> float:
    """Returns the SI value of a flag such as "50 ms". Raises PipesimError that names the flag."""
    try:
        return parse_quantity(given, unit)
    except ValueError as error:
        raise PipesimError(f"{flag}: {error}") from None


def _acceptance(given: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in given.split(",")) if given else ()
    except ValueError:
        raise UsageError("--speculative-acceptance", given, 'numbers with commas such as "0.7,0.6,0.5"') from None


def _expert_groups(ep: int, all_ranks: bool, tp: int) -> int:
    if all_ranks and ep not in {1, tp}:
        raise UsageError("--ep with --enable-expert-parallel", ep, f"{tp}, which is what vLLM's flag means, or no --ep")
    return tp if all_ranks else ep


def _layers(flag: str | None, engine: EngineName, pp: int) -> tuple[tuple[int, ...] | None, list[str]]:
    """Returns the layers of each stage and in words where they come from, if not from the flag.

    The engine's own environment variable counts as it does for the engine's server, which has no such flag.
    """
    variable, set_there = "", ""
    if any(name.endswith(PARTITION_VARIABLE) for name in os.environ):
        from pipesim.launch import DIALECTS  # noqa: PLC0415 - few have such a variable set

        variable = DIALECTS[engine].partition_variable if engine in DIALECTS else ""
        set_there = os.environ.get(variable, "").strip()
    if flag is not None or not set_there or pp == 1:
        return parse_integers("--layer-partition", flag, PARTITION_EXAMPLE), []
    layers = parse_integers(f"environment variable {variable}", set_there, PARTITION_EXAMPLE) or ()
    if len(layers) != pp:
        raise UsageError(f"environment variable {variable}", set_there, f"layers of {pp} stages, or --layer-partition")
    return layers, [f"layers {','.join(map(str, layers))} by {variable}"]


def parse_integers(flag: str, given: str | None, example: str) -> tuple[int, ...] | None:
    """Returns a list of whole numbers. Raises UsageError for what is none."""
    if given is None:
        return None
    try:
        return tuple(int(part) for part in given.split(","))
    except ValueError:
        raise UsageError(flag, given, f'whole numbers with commas such as "{example}"') from None


def _defaults_used(context: typer.Context, load: Workload) -> list[str]:
    """Returns in words what a user did not say and pipesim assumed."""
    words = {
        "model": DEFAULT_MODEL,
        "hardware": DEFAULT_HARDWARE,
        "cuda_graph": "CUDA graphs",
    }
    if load.closed_loop:
        words["concurrency"] = f"{load.concurrency} users in closed loop"
        words["submit_spacing"] = "first requests " + ("spread out" if load.steady else "0.2 ms apart")
    if load.steady:
        words["num_prompts"] = f"{WAVES} requests per user, the steady part measured"
    elif load.trace is None and load.duration_s is None:
        words["num_prompts"] = f"{load.num_prompts} requests"
    if load.trace is None:
        words |= {"input_len": f"{load.input_len:,} in", "output_len": f"{load.output_len:,} out"}
        if load.random_range_ratio and not load.like:
            words["random_range_ratio"] = f"lengths ±{load.random_range_ratio:.0%}"
    return [text for name, text in words.items() if _is_default(context, name)]


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "DEFAULT"
