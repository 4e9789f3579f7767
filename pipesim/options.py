"""The options that ask a question: which deployment under which load. Every command that asks shares them."""

import os
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.errors import UsageError
from pipesim.fitting import deploy
from pipesim.flags import Option, flag, made, options_of, parse_numbers
from pipesim.loads import WAVES, LoadFlags, load_of
from pipesim.profiles.names import DEFAULT_HARDWARE, DEFAULT_MODEL
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload

DEFAULT_ENGINE: EngineName = "sglang"
PARTITION_VARIABLE, PARTITION_EXAMPLE = "_PP_LAYER_PARTITION", "15,15,15,16"


@dataclass(frozen=True)
class Further:
    """What a person says besides the fields of a plan, a load and an engine."""

    model: str = flag(
        DEFAULT_MODEL, "Model: a profile's name or .toml file, or a config.json.", "--model", "--model-path"
    )
    hardware: str = flag(
        DEFAULT_HARDWARE, "Box: a name such as h100-sxm-x8, rtx-4090-x2 or h100-sxm-2x8 (two nodes), or a .toml file."
    )
    enable_expert_parallel: bool = flag(False, "The same as --ep with --tp's value (vLLM).")
    enforce_eager: bool = flag(False, "The same as --no-cuda-graph, in vLLM's words.")


FIRST = ("model", "hardware", "engine")
LAST: tuple[str, ...] = ("placement", "p2p", "allreduce")
LAST += ("trace", "prefix_cache", "prefix_cache_hit_rate", "burstiness", "duration", "warm_up")
"""Options that come before and after the others, which matters to the rows of a grid."""


def _in_order() -> dict[str, Option]:
    """Returns every option by name, in the order of a grid's axes: the last varies fastest."""
    every = [option for owner in (ParallelPlan, Further, LoadFlags, EngineSettings) for option in options_of(owner)]
    places = {name: place for names, side in ((FIRST, -99), (LAST, 1)) for place, name in enumerate(names, side)}
    return {option.name: option for option in sorted(every, key=lambda option: places.get(option.name, 0))}


OPTIONS = _in_order()


def hint_of(option: Option, kind: Any = None) -> Any:
    """Returns what Typer makes an option of a command of; of another type than its own where one is given."""
    said = typer.Option(*option.words, help=option.said.help, metavar=option.said.metavar)
    return Annotated[option.kind if kind is None else kind, said]


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


def question(context: typer.Context, **given: Any) -> Question:
    """Returns the question that options ask, by the names of `OPTIONS`; those left out have their defaults.

    Raises:
        UsageError: for a value that no box could meet.
    """
    given = {name: option.default for name, option in OPTIONS.items()} | given
    engine, tp, pp = given["engine"], given["tp"], given["pp"]
    workload = load_of([name for name in context.params if not _is_default(context, name)], made(LoadFlags, given))
    given["cuda_graph"] &= not given["enforce_eager"]
    settings = made(EngineSettings, given)
    given["ep"] = _expert_groups(given["ep"], given["enable_expert_parallel"], tp)
    given["layer_partition"], of_environment = _layers(given["layer_partition"], engine, pp)
    defaults = (*_defaults_used(context, workload), *of_environment)
    return Question(given["model"], given["hardware"], made(ParallelPlan, given), settings, workload, defaults)


def _expert_groups(ep: int, all_ranks: bool, tp: int) -> int:
    if all_ranks and ep not in {1, tp}:
        raise UsageError("--ep with --enable-expert-parallel", ep, f"{tp}, which is what vLLM's flag means, or no --ep")
    return tp if all_ranks else ep


def _layers(said: str | None, engine: EngineName, pp: int) -> tuple[str | None, list[str]]:
    """Returns the layers of each stage and in words where they come from, if not from the flag.

    The engine's own environment variable counts as it does for the engine's server, which has no such flag.
    """
    variable, set_there = "", ""
    if any(name.endswith(PARTITION_VARIABLE) for name in os.environ):
        from pipesim.launch import DIALECTS  # noqa: PLC0415 - few have such a variable set

        variable = DIALECTS[engine].partition_variable if engine in DIALECTS else ""
        set_there = os.environ.get(variable, "").strip()
    if said is not None or not set_there or pp == 1:
        return said, []
    layers = parse_numbers(f"environment variable {variable}", set_there, PARTITION_EXAMPLE)
    if len(layers) != pp:
        raise UsageError(f"environment variable {variable}", set_there, f"layers of {pp} stages, or --layer-partition")
    return set_there, [f"layers {','.join(map(str, layers))} by {variable}"]


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
