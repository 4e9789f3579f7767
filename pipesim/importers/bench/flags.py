"""An engine's own arguments, as a benchmark file or a server's log states them, under the names of a run file."""

import re
from collections.abc import Mapping
from typing import Any

from pipesim.engine_settings import KV_CACHE_DTYPES
from pipesim.importers import RefusedError
from pipesim.importers.bench.record import Fields, as_flag, as_number, as_table, shown

PLAN_KEYS = {
    "tp": ("tp_size", "tensor_parallel_size", "tp", "tensor_parallel"),
    "pp": ("pp_size", "pipeline_parallel_size", "pp", "pipeline_parallel"),
    "ep": ("ep_size", "expert_parallel_size", "ep"),
    "dcp": ("dcp_size", "decode_context_parallel_size", "dcp"),
}
"""Degree → names in SGLang's server_args.py, vLLM's engine/arg_utils.py and people's own metadata."""

COUNT_KEYS = {
    "pp_max_micro_batch_size": ("pp_max_micro_batch_size",),
    "pp_async_batch_depth": ("pp_async_batch_depth",),
    "max_running_requests": ("max_running_requests", "max_num_seqs"),
    "chunked_prefill_size": ("chunked_prefill_size", "max_num_batched_tokens"),
}
LEVERS = {"prefill_decode_interval": 0, "prefill_decode_interval_min_bs": 0, "prefill_schedule_interval": 1}
"""When prompts are launched, and the engines' defaults."""
SHARE_KEYS = ("mem_fraction_static", "gpu_memory_utilization")
EAGER_KEYS = ("disable_cuda_graph", "disable_decode_cuda_graph", "enforce_eager")
UNSET = -1
"""An engine's number for "switched off" or "by default"."""
USUAL_DRAFT_TOKENS = 3
"""Draft tokens of a round where an accepted length is stated and the draft's is not."""


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arguments with their names in lower case and underscores: people write them as flags, too."""
    return {re.sub(r"[-. ]", "_", str(key).strip().lstrip("-").lower()): value for key, value in arguments.items()}


def plan_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the split that an engine's arguments state, under the names of `RunPlan`.

    SGLang's data parallelism is DP attention if that is enabled, and equal servers otherwise; newer ones name the
    first `attn_dp_size` (srt/arg_groups/fields/parallel.py).

    Raises:
        RefusedError: for a degree that is no whole number above zero.
    """
    degrees = {name: _count(arguments, keys) for name, keys in PLAN_KEYS.items()}
    plan: dict[str, Any] = {name: degree for name, degree in degrees.items() if degree is not None}
    copies = _count(arguments, ("dp_size", "data_parallel_size", "dp"))
    attention_copies = _count(arguments, ("attn_dp_size",)) or 1
    shared = as_flag(arguments.get("enable_dp_attention", arguments.get("dp_attention")))
    if attention_copies > 1 or (shared and plan.get("tp", 2) > 1):
        plan["dp_attention"] = True
    elif copies and copies > 1:
        plan["replicas"] = copies
    if as_flag(arguments.get("enable_expert_parallel")) and "tp" in plan:
        plan["ep"] = plan["tp"]
    return plan


def engine_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that an engine's arguments state, under the names of `RunEngine`. Raises RefusedError."""
    engine: dict[str, Any] = {
        name: _count(arguments, keys, least=0 if name == "pp_async_batch_depth" else 1)
        for name, keys in COUNT_KEYS.items()
    }
    levers: dict[str, tuple[float | None, float]]
    levers = {name: (_count(arguments, (name,), least=0), default) for name, default in LEVERS.items()}
    levers["schedule_conservativeness"] = as_number(arguments.get("schedule_conservativeness")), 1.0
    engine |= {name: value for name, (value, default) in levers.items() if value != default}
    shares = {name: as_number(arguments.get(name)) for name in SHARE_KEYS}
    engine |= {name: share for name, share in shares.items() if share is not None and 0.0 < share < 1.0}
    engine["kv_cache_dtype"] = KV_CACHE_DTYPES.get(str(arguments.get("kv_cache_dtype")).removeprefix("torch."))
    engine["cuda_graph"] = _captured(arguments)
    engine["async_scheduling"] = as_flag(arguments.get("async_scheduling"))
    engine["allreduce"] = "nccl" if as_flag(arguments.get("disable_custom_all_reduce")) else None
    engine["version"] = Fields(arguments).text("version")
    return {name: value for name, value in engine.items() if value is not None}


def ignores_eos(value: object, depth: int = 6) -> bool | None:
    """Returns whether clients had answers go on past their end, as arguments in a part of a file state it.

    They stand at its top, in an extra request body, or in a list of pairs (aiperf). None when nothing says so.
    """
    entries: list[Any] = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        pair = len(value) == 2 and isinstance(value[0], str)
        entries = [value] if pair else [("", inner) for inner in value if isinstance(inner, dict | list)]
    for key, inner in entries if depth else []:
        (name,) = plain({key: inner})
        if name in {"ignore_eos", "disable_ignore_eos"} and (flag := as_flag(inner)) is not None:
            return flag != (name == "disable_ignore_eos")
        if (found := ignores_eos(inner, depth - 1)) is not None:
            return found
    return None


def _captured(arguments: Mapping[str, Any]) -> bool | None:
    """Returns whether decode replays CUDA graphs; None when nothing says so."""
    backend = as_table(as_table(arguments.get("cuda_graph_config")).get("decode")).get("backend")
    if isinstance(backend, str):
        return backend != "disabled"
    switches = [as_flag(arguments.get(key)) for key in EAGER_KEYS]
    known = [switch for switch in switches if switch is not None]
    return not any(known) if known else None


def _count(arguments: Mapping[str, Any], keys: tuple[str, ...], least: int = 1) -> int | None:
    for key in keys:
        value = arguments.get(key)
        if value is None or value == "" or str(value).lower() == "none":
            continue
        number = as_number(value)
        if number == UNSET:
            continue
        if number is None or not least <= number <= 10**9 or number != int(number):
            raise RefusedError(key, shown(value), f"a whole number of at least {least}")
        return int(number)
    return None


def speculation_of(mean_length: float | None, drafts: object) -> dict[str, Any]:
    """Returns the setting that a measured length states, of so many draft tokens or a usual number of them."""
    acceptance = acceptance_of(mean_length or 0.0, int(as_number(drafts) or USUAL_DRAFT_TOKENS))
    return {"speculative_acceptance": acceptance} if acceptance else {}


def acceptance_of(mean_length: float, drafts: int) -> tuple[float, ...]:
    """Returns equal acceptances p of some draft tokens whose mean accepted length is the one measured.

    Solves 1 + p + p² + … + pⁿ = length for p, n the draft tokens of a round: what `EngineSettings.tokens_per_step`
    sums. Empty for a length of at most 1, which is no speculation.
    """
    if mean_length <= 1.0 or drafts < 1:
        return ()
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        gained = sum(middle**power for power in range(drafts + 1))
        low, high = (middle, high) if gained < mean_length else (low, middle)
    return (round(high, 4),) * drafts
