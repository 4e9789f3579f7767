"""What SGLang and vLLM share when they are launched: NCCL's variables, storage names, replicas, drafts."""

import re
from collections.abc import Sequence
from typing import Any

from pipesim.deployment import Deployment
from pipesim.engine_settings import KV_CACHE_DTYPES
from pipesim.engines import ENGINES
from pipesim.launch.base import Launch, LaunchLine, Reading, Rule, changes_unless, truth, whole

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The GPU of each rank, in the order of ranks."""
DRAFT_MODEL = "DRAFT_MODEL"
"""Stands for a draft model that the person has to name."""
CHECKPOINT_FORMATS = {"awq", "awq-marlin", "gptq", "gptq-marlin", "compressed-tensors"}
CHECKPOINT_FORMATS |= {"mxfp4", "moe-wna16", "auto-round"}
"""Values of --quantization that name how a checkpoint is stored, which its model profile says too."""


def peer_access(reading: Reading, variable: str, text: str) -> None:
    """NCCL_P2P_DISABLE."""
    if text.strip() not in {"", "0"}:
        reading.set("p2p", variable, False)


def peer_level(reading: Reading, variable: str, text: str) -> None:
    """NCCL_P2P_LEVEL: LOC is never (NCCL's documentation); other levels say how far, which the box's curves know."""
    reading.set_if(text.strip().upper() in {"LOC", "0"}, "p2p", variable, False)


def kv_cache_dtype(reading: Reading, flag: str, text: str) -> None:
    """--kv-cache-dtype of either engine."""
    name = text.strip().lower()
    if name not in KV_CACHE_DTYPES:
        close = " (counted as fp8)" if name.startswith("fp8") else ""
        reading.refuse(flag, text, f"pipesim stores a KV cache as bf16 or fp8{close}")
        if not close:
            return
    if (storage := KV_CACHE_DTYPES.get(name, "fp8")) != "auto":
        reading.set("kv_cache_dtype", flag, storage)


def quantization(reading: Reading, flag: str, text: str) -> None:
    """--quantization: one that a checkpoint is stored in changes nothing, one made at loading does."""
    value = text.strip().lower().replace("_", "-")
    stored = value.startswith("modelopt") or value in CHECKPOINT_FORMATS or value in {"", "none"}
    stored = stored or value in str(reading.raw.get("model", "")).lower()
    why = "weights requantised while loading; pipesim takes storage from the model profile"
    reading.refuse_if(not stored, flag, text, why)


def several_boxes(reading: Reading, flag: str, text: str) -> None:
    """--nnodes."""
    why = "the hardware profile has to describe all boxes together and the links between them"
    reading.refuse_if(whole(flag, text) > 1, flag, text, why)


def model(reading: Reading, flag: str, text: str) -> None:
    """--model-path, --model or the first word."""
    reading.raw["model"] = reading.once("model", flag, text)


def refuse_draft(reading: Reading, flag: str, tokens: int | None) -> None:
    """Notes speculation: what pipesim needs to know of it is not on the line."""
    numbers = "one number for each draft token" if tokens is None else f"{tokens} numbers"
    why = f"how often each draft token is accepted is not on the line: add --speculative-acceptance with {numbers}"
    reading.refuse(flag, "" if tokens is None else f"{tokens} draft tokens", why)


def one_shot(reading: Reading, variable: str, text: str) -> None:
    """The switches of patched builds for one-shot AllReduce over PCIe."""
    if truth(variable, text):
        reading.set("allreduce", variable, "pcie-oneshot")


VARIABLES: dict[str, Rule] = {"NCCL_P2P_DISABLE": peer_access, "NCCL_P2P_LEVEL": peer_level}
RULES: dict[str, Rule] = {
    "kv-cache-dtype": kv_cache_dtype,
    "quantization": quantization,
    "dtype": changes_unless({"auto", "bfloat16", "bf16", "float16", "half"}, "pipesim computes in 16 bits"),
    "nnodes": several_boxes,
}
"""Flags of both engines."""
NCCL_TUNING = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NTHREADS", "NCCL_BUFFSIZE")
NCCL_TUNING_CHANGES = changes_unless({""}, "the hardware profile's collectives were measured under NCCL's own choice")
RELEVANT_VARIABLE = re.compile(r"(NCCL|SGLANG|SGL|VLLM|CUDA|TORCH|PYTORCH)_\w+")
"""Variables worth a mention when they change nothing; others may hold secrets and are nobody's business."""


def flag_words(flags: dict[str, Any]) -> list[str]:
    """Returns flags as words; a value of None leaves a flag out, True and False are with and without."""
    words = []
    for flag, value in flags.items():
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def memory_share(deployment: Deployment) -> str:
    """Returns the share of memory that a deployment was settled with, for the flag that sets it."""
    share = ENGINES[deployment.engine.name].share
    return str(share.stated(deployment.engine) or f"{share.of(deployment):.4g}")


def shared_environment(deployment: Deployment, partition_variable: str) -> dict[str, str]:
    """Returns the environment of settings that no flag holds."""
    plan = deployment.plan
    stated = {} if plan.layer_partition is None else {partition_variable: ",".join(map(str, plan.layer_partition))}
    return stated | ({} if deployment.engine.peer_access is not False else {"NCCL_P2P_DISABLE": "1"})


def shared_notes(deployment: Deployment) -> list[str]:
    """Returns what the flags of either engine leave open."""
    engine, plan = deployment.engine, deployment.plan
    notes = ["Add --trust-remote-code if the model's repository brings code of its own."]
    if plan.replicas > 1:
        notes.append(f"One server per replica, on GPUs of its own; a {plan.balancer} balancer goes in front of them.")
    if engine.draft_tokens:
        notes.append(f"Put the draft model's name or path in the place of {DRAFT_MODEL}.")
    if engine.allreduce == "custom":
        where = "over NVLink, and over PCIe between two GPUs"
        notes.append(f"No flag forces the engine's own AllReduce: it takes it {where}.")
    if engine.allreduce == "pcie-oneshot":
        notes.append("One-shot AllReduce over PCIe needs a build with that patch; releases do not have it.")
    return notes


def launch(
    deployment: Deployment, environment: dict[str, str], words: list[str], port: int, notes: Sequence[str]
) -> Launch:
    """Returns one line per replica, on GPUs and a port of its own; a single server keeps both defaults.

    `notes` are what the flags of this engine alone leave open.
    """
    plan, notes = deployment.plan, (*shared_notes(deployment), *notes)
    if plan.replicas == 1 and not plan.placement:
        return Launch((LaunchLine(environment, words),), notes)
    lines = []
    gpus = plan.placement or range(plan.gpus)
    for replica in range(plan.replicas):
        own = gpus[replica * plan.gpus_per_replica : (replica + 1) * plan.gpus_per_replica]
        shown = {VISIBLE: ",".join(map(str, own))} | environment
        lines.append(LaunchLine(shown, words if plan.replicas == 1 else [*words, "--port", str(port + replica)]))
    return Launch(tuple(lines), notes)
