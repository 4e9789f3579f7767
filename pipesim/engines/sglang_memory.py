"""SGLang's memory: its static share, KV pool, chunk and captured batch sizes.

Read from SGLang 0.5.10.post1 and 0.5.23; each function names the file it follows.
"""

from math import inf
from typing import NamedTuple

from pipesim.cost.memory import kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment

MIB, GIB = 2**20, 2**30
MAX_PREFILL_TOKENS = 16384
"""Most prompt tokens of one launch, however large a chunk (srt/server_args.py `max_prefill_tokens`)."""


class MemoryClass(NamedTuple):
    """Defaults for GPUs of less than some memory (srt/server_args.py `_handle_gpu_memory_settings`)."""

    below: float
    """Memory [B]."""
    chunked_prefill_size: int
    captured_below_tp4: int
    captured_from_tp4: int


MEMORY_CLASSES = (
    MemoryClass(20 * GIB, 2048, 8, 8),
    MemoryClass(35 * GIB, 2048, 24, 80),
    MemoryClass(60 * GIB, 4096, 32, 160),
    MemoryClass(160 * GIB, 8192, 256, 512),
    MemoryClass(inf, 16384, 512, 512),
)


def memory_class(deployment: Deployment) -> MemoryClass:
    """Returns SGLang's defaults for the box's GPUs."""
    return next(entry for entry in MEMORY_CLASSES if deployment.hardware.gpu.memory < entry.below)


def chunked_prefill_size(deployment: Deployment) -> int:
    """Returns the prefill budget of one launch [tokens]."""
    return deployment.engine.chunked_prefill_size or memory_class(deployment).chunked_prefill_size


def largest_captured(deployment: Deployment) -> int:
    """Returns the largest captured decode batch of an attention rank, 0 without CUDA graphs."""
    if not deployment.engine.cuda_graph:
        return 0
    defaults = memory_class(deployment)
    largest = defaults.captured_below_tp4 if deployment.plan.tp < 4 else defaults.captured_from_tp4
    running = deployment.engine.max_running_requests
    return min(largest, -(-running // deployment.plan.attention_dp)) if running else largest


def captured_sizes(largest: int) -> list[int]:
    """Returns the decode batch sizes that have a CUDA graph (arg_groups/cuda_graph_hook.py)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4097, 32)]
    return sorted({size for size in sizes if size < largest} | {largest}) if largest else []


def captured_batches(deployment: Deployment) -> list[int]:
    """Returns the captured batch sizes of a stage: ranks that attend for their own requests are padded alike."""
    return [deployment.plan.attention_dp * size for size in captured_sizes(largest_captured(deployment))]


def prefill_budget(deployment: Deployment) -> int:
    """Returns the most prompt tokens of one launch: a chunk, and never more than the limit of any launch."""
    return min(chunked_prefill_size(deployment), MAX_PREFILL_TOKENS)


def mem_fraction_static(deployment: Deployment) -> float:
    """Returns the share of free memory for weights and KV cache (srt/server_args.py `_handle_gpu_memory_settings`).

    The further cut for vision models (`adjust_mem_fraction_for_vlm`) is left out: with it PP8 of Kimi K2.6 would not
    start, and the founding box ran PP8.
    """
    if deployment.engine.mem_fraction_static is not None:
        return deployment.engine.mem_fraction_static
    memory = deployment.hardware.gpu.memory / MIB
    reserved = 512 + 1.5 * max(chunked_prefill_size(deployment), 2048)
    reserved += 2 * largest_captured(deployment) + deployment.plan.gpus_per_replica / 8 * 1024
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((memory - reserved) / memory, 3)


def kv_capacity_tokens(deployment: Deployment) -> int:
    """Returns the tokens of the KV cache (model_executor: `_profile_available_bytes`, `_apply_token_constraints`).

    The fullest GPU and the deepest stage both bind, even where they are different ones. At most 0 when nothing is left.
    """
    stages = range(deployment.plan.pp)
    ranks = [rank_memory(deployment, stage) for stage in stages]
    before = deployment.hardware.gpu.memory - ranks[0].context
    free = min(before - rank.weights - rank.extra_weights for rank in ranks)
    slack = before * (1.0 - mem_fraction_static(deployment))
    return int((free - slack) // max(kv_bytes_per_token(deployment, stage) for stage in stages))
