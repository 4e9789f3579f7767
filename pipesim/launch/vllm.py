"""How vLLM is launched: its flags as pipesim's, and the other way round.

Flags as in vLLM 0.33.0 (engine/arg_utils.py, entrypoints/common/cli_args.py) and older names of the same.
"""

import json
from typing import Any

from pipesim.deployment import Deployment
from pipesim.engines.vllm_memory import kv_capacity_tokens
from pipesim.launch import common
from pipesim.launch.base import Dialect, Launch, Reading, json_object, partition, sets, truth, whole

PARTITION_VARIABLE = "VLLM_PP_LAYER_PARTITION"
DEFAULT_PORT = 8000
SILENT_COMPILATION = {"cudagraph_mode", "level", "mode", "cache_dir", "debug_dump_path"}
UNCAPTURED = {"NONE", "0"}


def _compilation(reading: Reading, flag: str, text: str) -> None:
    """--compilation-config: pipesim knows of it whether decode is captured."""
    settings = {"level": text} if text.strip().isdigit() else json_object(flag, text)
    mode = str(settings.get("cudagraph_mode", "")).upper()
    eager = mode in UNCAPTURED or str(settings.get("use_cudagraph", "")).lower() in {"false", "0"}
    if eager:
        reading.set("cuda_graph", flag, False)
    elif mode == "PIECEWISE":
        reading.refuse(flag, text, "pipesim captures the decode step as a whole or not at all")
    if other := sorted(set(settings) - SILENT_COMPILATION - {"use_cudagraph"}):
        reading.refuse(flag, text, f"pipesim compiles and captures by vLLM's default rule, not by {', '.join(other)}")
    elif not eager and mode != "PIECEWISE":
        reading.ignore(flag)


def _chunked(reading: Reading, flag: str, text: str) -> None:
    why = "prompts in one piece; pipesim cuts them by the budget of a step"
    reading.refuse_if(not truth(flag, text), flag, "", why)


def _length(reading: Reading, flag: str, text: str) -> None:
    if text.strip() in {"-1", "auto"}:
        reading.ignore(flag)  # what the KV cache holds, or the model's own
    else:
        reading.set("context_length", flag, whole(flag, text))


RULES = common.RULES | {
    "model": common.model,
    "max-model-len": _length,
    "enable-chunked-prefill": _chunked,
    "compilation-config": _compilation,
}


VARIABLES = common.VARIABLES | {
    PARTITION_VARIABLE: sets("layer_partition", partition),
    "VLLM_ENABLE_PCIE_ALLREDUCE": common.one_shot,
}


def finish(reading: Reading) -> None:
    """Settles experts by rank, data parallelism, the limit of requests and drafts."""
    raw, flags = reading.raw, reading.flags
    if "expert_parallel" in raw:
        tp = flags.get("tp", 1)
        reading.set_if(raw["expert_parallel"] and tp > 1, "ep", "--enable-expert-parallel", tp)
    if raw.get("dp", 1) > 1:
        why = "vLLM shares the experts of a MoE out over data-parallel ranks too; pipesim models separate servers only"
        if raw.get("dense"):
            reading.set("replicas", "--data-parallel-size", raw["dp"])
        else:
            reading.refuse("--data-parallel-size", str(raw["dp"]), f"{why}: --replicas {raw['dp']} is the nearest")
    if "active" in raw:
        reading.set("max_running_requests", "--max-num-active-seqs", raw["active"])
    elif "sequences" in raw:
        reading.set("max_running_requests", "--max-num-seqs", raw["sequences"])
    if "draft" in raw or "draft_method" in raw or "draft_tokens" in raw:
        tokens = raw.get("draft", {}).get("num_speculative_tokens", raw.get("draft_tokens"))
        flag = "--speculative-config" if "draft" in raw else "--spec-tokens"
        common.refuse_draft(reading, flag, tokens if isinstance(tokens, int) else None)


def served_length(deployment: Deployment) -> int | None:
    """Returns the longest request to allow where the KV cache cannot hold one of the model's own length.

    vLLM refuses to start there (v1/core/kv_cache_planning.py `_check_enough_kv_cache_memory`). A twentieth is left for
    what the prediction of the KV cache may be off.
    """
    room = kv_capacity_tokens(deployment)
    return deployment.engine.context_length if room >= deployment.positions else max(1, int(0.95 * room))


def write(deployment: Deployment) -> Launch:
    """Returns the commands that start a deployment's servers."""
    plan, engine = deployment.plan, deployment.engine
    environment = common.shared_environment(deployment, PARTITION_VARIABLE)
    if engine.allreduce == "pcie-oneshot":
        environment["VLLM_ENABLE_PCIE_ALLREDUCE"] = "1"
    draft = {"method": "eagle3", "model": common.DRAFT_MODEL, "num_speculative_tokens": engine.draft_tokens}
    flags: dict[str, Any] = {
        "--tensor-parallel-size": plan.tp,
        "--pipeline-parallel-size": plan.pp,
        **DIALECT.stated(deployment),
        "--enable-expert-parallel": plan.ep > 1,
        "--max-num-seqs": engine.max_running_requests,
        "--gpu-memory-utilization": common.memory_share(deployment),
        "--max-model-len": served_length(deployment),
        "--kv-cache-dtype": {"auto": None, "bf16": "bfloat16", "fp8": "fp8"}[engine.kv_cache_dtype],
        "--speculative-config": json.dumps(draft) if engine.draft_tokens else None,
    }
    words = ["vllm", "serve", deployment.model.hf_id, *common.flag_words(flags)]
    notes = []
    if engine.cap_decodes_per_step:
        notes.append("A cap on decodes per step is a proposal to vLLM; no release has a flag for it.")
    return common.launch(deployment, environment, words, DEFAULT_PORT, notes)


DIALECT = Dialect.read("vllm", RULES, PARTITION_VARIABLE, VARIABLES, finish, write)
"""vLLM's row in the table of dialects."""
