"""SGLang's memory: its static share, KV pool, chunk and captured batch sizes, by version.

Read from SGLang 0.5.10.post1, 0.5.14 and 0.5.23; each function names the file it follows, as in 0.5.23. Before there
was arg_groups/memory_hook.py its rules stood in srt/server_args.py `_handle_gpu_memory_settings`.
"""

from math import floor, inf
from typing import NamedTuple

from pipesim.cost.memory import forward_bytes, kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment
from pipesim.engines.share import MARGIN, MemoryShare, by_version
from pipesim.profiles.model import GqaAttention

MIB, GIB = 2**20, 2**30
MAX_PREFILL_TOKENS = 16384
"""Most prompt tokens of one launch, however large a chunk (srt/server_args.py `max_prefill_tokens`)."""
PREFILL_SIZES = (
    *range(4, 33, 4),
    *range(48, 257, 16),
    *range(288, 513, 32),
    *range(576, 1025, 64),
    *range(1280, 4097, 256),
    *range(4608, MAX_PREFILL_TOKENS + 1, 512),
)
"""Tokens of captured prefill (arg_groups/cuda_graph_hook.py `generate_prefill_cuda_graph_batch_sizes`)."""


class MemoryClass(NamedTuple):
    """Defaults for GPUs of less than some memory (arg_groups/memory_hook.py `handle_gpu_memory_settings`)."""

    below: float
    """Memory [B]."""
    chunked_prefill_size: int
    captured_below_tp4: int
    captured_from_tp4: int


class Rules(NamedTuple):
    """What differs between versions."""

    classes: tuple[MemoryClass, ...]
    graphs_reserved_always: bool = False
    """Whether memory for decode graphs is kept free even if none are captured, and for all sizes of the class."""
    uncaptured_prefill: frozenset[str] = frozenset({"pp", "dcp", "images"})
    """What keeps prefill from being captured: stages, decode context parallelism, a vision tower before grouped
    attention (of those before a latent, Kimi K2.6's is captured: configs/model_config.py) or any, …"""
    draft: float = 0.0
    """Kept free for a draft model [MiB]."""
    images: float = 0.0
    """Kept off the KV pool of a multimodal model (`SGLANG_VLM_CACHE_SIZE_MB`) [MiB]."""


_LARGE = (
    MemoryClass(60 * GIB, 4096, 32, 160),
    MemoryClass(160 * GIB, 8192, 256, 512),
    MemoryClass(inf, 16384, 512, 512),
)
_EARLY = (MemoryClass(20 * GIB, 2048, 8, 8), MemoryClass(35 * GIB, 2048, 24, 80), *_LARGE)
_LATE = (MemoryClass(20 * GIB, 2048, 8, 8), MemoryClass(35 * GIB, 4096, 48, 160), *_LARGE)
_PIECES = frozenset({"pp", "dcp", "images", "vision", "dp_attention"})
VERSIONS = (
    ((0, 5, 10), Rules(_EARLY, True, _PIECES | {"draft"}, draft=4096)),
    ((0, 5, 14), Rules(_EARLY, True, _PIECES)),
    ((0, 5, 23), Rules(_LATE, images=100)),
)
"""Rules by the first version that they were read in; older versions are taken to follow the first."""


def memory_class(deployment: Deployment) -> MemoryClass:
    """Returns SGLang's defaults for the box's GPUs."""
    classes = by_version(VERSIONS, deployment.engine).classes
    return next(entry for entry in classes if deployment.hardware.gpu.memory < entry.below)


def chunked_prefill_size(deployment: Deployment) -> int:
    """Returns the prefill budget of one launch [tokens]."""
    return deployment.engine.chunked_prefill_size or memory_class(deployment).chunked_prefill_size


def _largest_by_default(deployment: Deployment) -> int:
    defaults = memory_class(deployment)
    return defaults.captured_below_tp4 if deployment.plan.tp < 4 else defaults.captured_from_tp4


def largest_captured(deployment: Deployment) -> int:
    """Returns the largest captured decode batch of an attention rank, 0 without CUDA graphs."""
    if not deployment.engine.cuda_graph:
        return 0
    largest, running = _largest_by_default(deployment), deployment.engine.max_running_requests
    return min(largest, -(-running // deployment.plan.attention_dp)) if running else largest


def captured_sizes(largest: int, drafting: bool = False) -> list[int]:
    """Returns the decode batch sizes [requests] that have a CUDA graph (arg_groups/cuda_graph_hook.py)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4097, 32)]
    if drafting:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 4097, 16)]
    return sorted({size for size in sizes if size < largest} | {largest}) if largest else []


def captured_batches(deployment: Deployment) -> list[int]:
    """Returns the captured batch sizes of a stage: ranks that attend for their own requests are padded alike."""
    sizes = captured_sizes(largest_captured(deployment), deployment.engine.draft_tokens > 0)
    return [deployment.plan.attention_dp * size for size in sizes]


def captured_prefill_tokens(deployment: Deployment) -> int:
    """Returns the most prompt tokens of a captured launch, 0 where prefill is not captured.

    Captured by default unless there are pipeline stages or decode context parallelism, for latent attention up to 8,192
    tokens, 2,048 up to 0.5.14 (arg_groups/cuda_graph_hook.py `apply_cuda_graph_compatibility`, memory_hook.py).
    """
    plan, engine, vision = deployment.plan, deployment.engine, deployment.model.vision_tower > 0
    grouped = isinstance(deployment.model.attention, GqaAttention)
    there = {"pp": plan.pp > 1, "dcp": plan.dcp > 1, "dp_attention": plan.dp_attention, "vision": vision}
    there |= {"images": vision and grouped, "draft": engine.draft_tokens > 0}
    if not engine.cuda_graph or any(there[name] for name in by_version(VERSIONS, engine).uncaptured_prefill):
        return 0
    latent = 2048 if engine.version_before((0, 5, 15)) else 8192
    return chunked_prefill_size(deployment) if grouped else min(latent, chunked_prefill_size(deployment))


def prefill_budget(deployment: Deployment) -> int:
    """Returns the most prompt tokens of one launch: a chunk, and on no rank more than the limit of any launch.

    Ranks that attend for their own requests share a chunk (arg_groups/parallel_hook.py).
    """
    ranks = deployment.plan.attention_dp
    return ranks * min(chunked_prefill_size(deployment) // ranks, MAX_PREFILL_TOKENS)


def graph_reserve(deployment: Deployment) -> float:
    """Returns what SGLang keeps free for CUDA graphs [MiB] (arg_groups/memory_hook.py `reserve_for_graph_mb`)."""
    rules, plan = by_version(VERSIONS, deployment.engine), deployment.plan
    largest, running = _largest_by_default(deployment), deployment.engine.max_running_requests
    if running and not rules.graphs_reserved_always:
        largest = min(largest, running)
    reserved = 2.0 * largest if deployment.engine.cuda_graph or rules.graphs_reserved_always else 0.0
    if plan.dp_attention:
        reserved += largest * plan.attention_dp * (4.5 if largest > 300 else 3.0)
    if tokens := captured_prefill_tokens(deployment):
        grouped = isinstance(deployment.model.attention, GqaAttention)
        reserved += 8.0 * sum(size <= tokens for size in PREFILL_SIZES) if grouped else 1536.0
    return reserved


def default_fraction(deployment: Deployment) -> float:
    """Returns SGLang's own `--mem-fraction-static` (arg_groups/memory_hook.py `handle_gpu_memory_settings`)."""
    rules, memory = by_version(VERSIONS, deployment.engine), deployment.hardware.gpu.memory / MIB
    reserved = 512 + 1.5 * max(chunked_prefill_size(deployment), 2048)
    reserved += deployment.plan.gpus_per_replica / 8 * 1024 + graph_reserve(deployment)
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    if deployment.engine.draft_tokens:
        reserved += rules.draft
    return round((memory - reserved) / memory, 3) * _vision_cut(deployment)


def _vision_cut(deployment: Deployment) -> float:
    """Returns the factor on the share of a vision-language model (memory_hook.py `adjust_mem_fraction_for_vlm`).

    0.95, and a tenth less for every time that the tower is as large again as ViT-L/14, within limits.
    """
    model = deployment.model
    if not model.vision_tower or deployment.engine.language_only:
        return 1.0
    size = model.vision_layers * model.vision_width**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (size - 1.0)))


def safe_fraction(deployment: Deployment) -> float:
    """Returns the largest share that leaves room for a chunk's activations, SGLang's own graph reserve and `MARGIN`."""
    before = deployment.hardware.gpu.memory - rank_memory(deployment, 0).context
    kept = forward_bytes(deployment, max(prefill_budget(deployment), 2048)) + graph_reserve(deployment) * MIB
    return floor(1000 * (1.0 - (kept + MARGIN) / before)) / 1000


def kv_capacity_tokens(deployment: Deployment) -> int:
    """Returns the tokens of the KV cache (mem_cache/kv_cache_configurator.py `_profile_available_bytes`).

    The fullest GPU and the deepest stage both bind (`_apply_token_constraints`), even where they are different ones. At
    most 0 when nothing is left.
    """
    stages = range(deployment.plan.pp)
    ranks = [rank_memory(deployment, stage) for stage in stages]
    before = deployment.hardware.gpu.memory - ranks[0].context
    free = min(before - rank.weights - rank.extra_weights for rank in ranks)
    slack = before * (1.0 - SHARE.of(deployment))
    if deployment.model.vision_tower:
        slack += by_version(VERSIONS, deployment.engine).images * MIB
    return int((free - slack) // max(kv_bytes_per_token(deployment, stage) for stage in stages))


SHARE = MemoryShare("mem_fraction_static", default_fraction, safe_fraction)
