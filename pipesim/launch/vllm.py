"""How vLLM is launched: its flags as pipesim's, and the other way round.

Flags as in vLLM 0.33.0 (engine/arg_utils.py, entrypoints/common/cli_args.py) and older names of the same.
"""

import json
from typing import Any

from pipesim.deployment import Deployment
from pipesim.engines.vllm_memory import kv_capacity_tokens
from pipesim.launch import common
from pipesim.launch.base import (
    Dialect,
    Launch,
    Reading,
    changes_unless,
    json_object,
    keeps,
    number,
    partition,
    plain,
    sets,
    sets_when,
    truth,
    whole,
)

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


def _optimization(reading: Reading, flag: str, text: str) -> None:
    """-O: level 0 neither compiles nor captures (config/vllm.py)."""
    if text.strip() == "0":
        reading.set("cuda_graph", flag, False)
    else:
        changes_unless({"2", "3"}, "pipesim compiles and captures as vLLM does by default")(reading, flag, text)


def _chunked(reading: Reading, flag: str, text: str) -> None:
    if truth(flag, text):
        reading.ignore(flag)
    else:
        reading.refuse(flag, "", "prompts in one piece; pipesim cuts them by the budget of a step")


RULES = {
    "model": common.model,
    "tensor-parallel-size": sets("tp", whole),
    "pipeline-parallel-size": sets("pp", whole),
    "decode-context-parallel-size": sets("dcp", whole),
    "enable-expert-parallel": keeps("expert_parallel", truth),
    "data-parallel-size": keeps("dp", whole),
    "prefill-schedule-interval": sets("prefill_schedule_interval", whole),
    "max-num-seqs": keeps("sequences", whole),
    "max-num-active-seqs": keeps("active", whole),
    "max-num-batched-tokens": sets("chunked_prefill_size", whole),
    "enable-chunked-prefill": _chunked,
    "gpu-memory-utilization": sets("gpu_memory_utilization", number),
    "enforce-eager": sets_when(True, "cuda_graph", False),
    "compilation-config": _compilation,
    "optimization-level": _optimization,
    "async-scheduling": sets("async_scheduling", truth),
    "disable-custom-all-reduce": sets_when(True, "allreduce", "nccl"),
    "kv-cache-dtype": common.kv_cache_dtype,
    "quantization": common.quantization,
    "dtype": common.DTYPE,
    "nnodes": common.several_boxes,
    "prefill-context-parallel-size": changes_unless({"1"}, "this kind of parallelism is not modelled"),
    "cpu-offload-gb": changes_unless({"0", "0.0"}, "weights outside GPU memory are not modelled"),
    "num-scheduler-steps": changes_unless({"1"}, "it changes which tokens a step takes"),
    "scheduling-policy": changes_unless({"fcfs"}, "pipesim admits requests in the order in which they came"),
    "speculative-config": keeps("draft", json_object),
    "spec-method": keeps("draft_method", plain),
    "speculative-model": keeps("draft_method", plain),
    "spec-tokens": keeps("draft_tokens", whole),
    "num-speculative-tokens": keeps("draft_tokens", whole),
}


VARIABLES = common.VARIABLES | {
    PARTITION_VARIABLE: sets("layer_partition", partition),
    "VLLM_ENABLE_PCIE_ALLREDUCE": common.one_shot,
}


def finish(reading: Reading) -> None:
    """Settles experts by rank, data parallelism, the limit of requests and drafts."""
    raw, flags = reading.raw, reading.flags
    if raw.get("expert_parallel") and flags.get("tp", 1) > 1:
        reading.set("ep", "--enable-expert-parallel", flags["tp"])
    elif "expert_parallel" in raw:
        reading.ignore("--enable-expert-parallel")
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
    return None if room >= deployment.model.max_positions else max(1, int(0.95 * room))


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
        "--enable-expert-parallel": plan.ep > 1,
        "--decode-context-parallel-size": None if plan.dcp == 1 else plan.dcp,
        "--max-num-seqs": engine.max_running_requests,
        "--max-num-batched-tokens": engine.chunked_prefill_size,
        "--gpu-memory-utilization": common.memory_share(deployment),
        "--max-model-len": served_length(deployment),
        "--prefill-schedule-interval": engine.stated.get("prefill_schedule_interval"),
        "--enforce-eager": not engine.cuda_graph,
        "--no-async-scheduling": engine.async_scheduling is False,
        "--kv-cache-dtype": {"auto": None, "bf16": "bfloat16", "fp8": "fp8"}[engine.kv_cache_dtype],
        "--disable-custom-all-reduce": engine.allreduce == "nccl",
        "--speculative-config": json.dumps(draft) if engine.draft_tokens else None,
    }
    words = ["vllm", "serve", deployment.model.hf_id, *common.flag_words(flags)]
    notes = common.shared_notes(deployment, "over NVLink, and over PCIe between two GPUs")
    if engine.cap_decodes_per_step:
        notes.append("A cap on decodes per step is a proposal to vLLM; no release has a flag for it.")
    return common.launch(common.replicas(deployment, environment, words, DEFAULT_PORT), notes)


DIALECT = Dialect(
    name="vllm",
    title="vLLM",
    program="vllm",
    modules=(
        "vllm.entrypoints.openai.api_server",
        "vllm.entrypoints.api_server",
        "vllm.entrypoints.launchers.api_server.entry",
        "vllm.entrypoints.grpc_server",
    ),
    scripts=("api_server.py",),
    partition_variable=PARTITION_VARIABLE,
    vocabulary_file="vllm_flags.toml",
    rules=RULES,
    variables=VARIABLES,
    json_flags=frozenset({"speculative-config", "compilation-config"}),
    finish=finish,
    write=write,
)
"""vLLM's row in the table of dialects."""
