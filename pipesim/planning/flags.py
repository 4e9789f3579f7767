"""A plan in the words of flags: its settings, and the command that asks about it alone."""

from typing import Any

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.planning.search import Plan


def settings_json(engine: EngineSettings, layers: list[int] | None) -> dict[str, Any]:
    """Returns the settings of a plan, by the engine's own names."""
    return {
        "pp_max_micro_batch_size": engine.pp_max_micro_batch_size,
        "pp_async_batch_depth": engine.pp_async_batch_depth,
        "chunked_prefill_size": engine.chunked_prefill_size,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "layer_partition": layers,
        "max_running_requests": engine.max_running_requests,
        "mem_fraction_static": engine.mem_fraction_static,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "cuda_graph": engine.cuda_graph,
        "allreduce": engine.allreduce,
        "p2p": engine.peer_access,
    }


def arguments(plan: Plan) -> list[str]:
    """Returns the flags of `pipesim predict` that ask about this plan."""
    deployment, split, engine = plan.deployment, plan.deployment.plan, plan.deployment.engine
    flags = ["--hardware", deployment.hardware.name, "--engine", engine.name]
    flags += ["--tp", str(split.tp), "--pp", str(split.pp), *_split_flags(split)]
    return flags + plan_flags(deployment)


def plan_flags(deployment: Deployment) -> list[str]:
    """Returns the flags of what a search sets, the share of memory among them where the engine's own would not do."""
    share = ENGINES[deployment.engine.name].share
    assumed = [share.flag, f"{share.of(deployment):.4g}"] if deployment.memory_note else []
    return assumed + setting_flags(deployment.engine, deployment.plan)


def _split_flags(split: ParallelPlan) -> list[str]:
    numbers = (("--ep", split.ep), ("--dcp", split.dcp), ("--replicas", split.replicas))
    flags = [part for flag, value in numbers if value > 1 for part in (flag, str(value))]
    return flags + ["--dp-attention"] * split.dp_attention


def setting_flags(engine: EngineSettings, split: ParallelPlan) -> list[str]:
    """Returns the flags of what a search sets beyond the engine's defaults."""
    given = {
        "--pp-max-micro-batch-size": engine.pp_max_micro_batch_size,
        "--pp-async-batch-depth": engine.pp_async_batch_depth or None,
        "--chunked-prefill-size": engine.chunked_prefill_size,
        "--kv-cache-dtype": None if engine.kv_cache_dtype == "auto" else engine.kv_cache_dtype,
        "--layer-partition": None if split.layer_partition is None else ",".join(map(str, split.layer_partition)),
    }
    return [part for flag, value in given.items() if value is not None for part in (flag, str(value))]
