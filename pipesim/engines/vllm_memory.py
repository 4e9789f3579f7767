"""vLLM's memory: its share of a GPU, KV pool, token budget, limit of sequences and captured batch sizes.

Read from vLLM 0.33.0; each function names the file it follows.
"""

from pipesim.cost.memory import kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment

GIB = 2**30
LARGE_GPU = 70 * GIB
LARGE_GPU_BUDGET, SMALL_GPU_BUDGET = 8192, 2048
LARGE_GPU_SEQUENCES, SMALL_GPU_SEQUENCES = 1024, 256
MOST_CAPTURED = 512
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
WORKSPACE_PER_TOKEN_AND_CHANNEL = 52.0
"""Bytes of activations and graph pools per budgeted token and hidden channel: Kimi K2.6 on TP8 with 96 GB GPUs, FP8 KV
and utilization 0.94 leaves 437,264 tokens (rtx6kpro wiki, models/kimi-k26.md): 3.0 GiB at 8,192 tokens of 7,168."""


def token_budget(deployment: Deployment) -> int:
    """Returns the tokens of one step, `max_num_batched_tokens` (engine/arg_utils.py)."""
    large = deployment.hardware.gpu.memory >= LARGE_GPU
    return deployment.engine.chunked_prefill_size or (LARGE_GPU_BUDGET if large else SMALL_GPU_BUDGET)


def max_num_seqs(deployment: Deployment) -> int:
    """Returns the most running requests, over all stages together (engine/arg_utils.py)."""
    large = deployment.hardware.gpu.memory >= LARGE_GPU
    return deployment.engine.max_running_requests or (LARGE_GPU_SEQUENCES if large else SMALL_GPU_SEQUENCES)


def captured_sizes(deployment: Deployment) -> list[int]:
    """Returns the batch sizes that have a CUDA graph (config/vllm.py): none when eager is enforced."""
    if not deployment.engine.cuda_graph:
        return []
    largest = min(2 * max_num_seqs(deployment), MOST_CAPTURED)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, MOST_CAPTURED + 1, 16)]
    return [size for size in sizes if size <= largest]


def kv_capacity_tokens(deployment: Deployment) -> int:
    """Returns the tokens of the KV cache: the smallest worker's (v1/core/kv_cache_planning.py); 0 or less if none."""
    utilization = deployment.engine.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION
    usable = deployment.hardware.gpu.memory * utilization
    workspace = WORKSPACE_PER_TOKEN_AND_CHANNEL * token_budget(deployment) * deployment.model.hidden_size
    return min(
        int((usable - workspace - rank_memory(deployment, stage).total) // kv_bytes_per_token(deployment, stage))
        for stage in range(deployment.plan.pp)
    )
