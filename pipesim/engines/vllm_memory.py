"""vLLM's memory: its share of a GPU, KV pool, token budget, limit of sequences and captured batch sizes, by version.

Read from vLLM 0.5.3, 0.9.2, 0.11.0, 0.20.0 and 0.33.0; each function names the file it follows, as in 0.33.0.
"""

from math import floor, inf
from typing import NamedTuple

from pipesim.cost.memory import forward_bytes, kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment
from pipesim.engines.share import MARGIN, MemoryShare, by_version
from pipesim.profiles.model import GqaAttention

MIB, GIB = 2**20, 2**30
MOST_CAPTURED, CAPTURES_MORE = 512, (0, 29)
"""Tokens of the largest step that has a CUDA graph, and the first version known to capture twice that on data centre
Blackwell (config/vllm.py; 0.22.0 does not)."""
DRIVER_RESERVED, DRIVER_RESERVED_SHARE = 300 * MIB, 0.003
"""What `nvidia-smi` counts and CUDA does not, beside a share of the memory: by PyTorch's out-of-memory messages 357 MiB
(RTX 4090), 494 (RTX 5090), 510 (H100), 638 (RTX PRO 6000), 729 (B200); ± 150 MiB."""
BUFFERS, BUFFERS_PER_PEER = 0.6 * GIB, 0.14 * GIB
"""Input buffers, attention and cuBLAS workspaces, kernels' modules; and what NCCL adds per further rank on first use.
The first is what a stage without sampler left over (vllm#34076), the second what Kimi K2.6 on TP8 did (rtx6kpro wiki,
models/kimi-k26.md: 437,264 tokens at 0.94): one published row each, ± 0.3 GiB and ± a half."""
KEPT_BY_ALLOCATOR = 5.8 * GIB
"""Before 0.6.5 the profile counted what PyTorch's allocator kept, not what was in use: what Llama-3.1-405B-FP8 on TP8
of 0.5.3 left over (vllm#6746), one published row, ± a third."""
GRAPH = 1 * MIB
"""Least memory of a captured graph (v1/worker/gpu_model_runner.py `profile_cudagraph_memory`)."""
SORTED_LOGIT, FILTERED_LOGIT = 38.0, 14.0
"""Bytes per logit at the peak of the sampler's dry run: 16-bit and FP32 logits (6), and sorted values (4), positions
(8) and what PyTorch's segmented radix sort needs beside them (20); or, where top-k and top-p are a kernel of their own
(FlashInfer's, which the images carry since, or Triton's), probabilities and noise (8)."""
BIN_COUNTS = 4.0 + 1 / 8
"""Bytes of each request and word that model runner V2 keeps for penalties (v1/worker/gpu/sample/penalties.py)."""
PREFILL_LENGTHS, GATHERED_LENGTHS, INDEXER_LOGITS = 5, 40, 512 * MIB
"""Sparse attention: model lengths of expanded latent and of gathered indexer keys that are reserved, and the indexer's
logits (v1/attention/backends/mla/indexer.py, flashmla_sparse.py, `VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`)."""
CONTEXT_PARALLEL = 1.36 * GIB
"""Workspace of sparse attention with decode context parallelism: what GLM-5.1 on TP8 lost with DCP4, one published row
(a vLLM 0.20 log: 19.55 and 18.19 GiB), ± a half."""


class Budgets(NamedTuple):
    """Defaults for GPUs of less than some memory (engine/arg_utils.py `get_batch_defaults`), of a server."""

    below: float
    """Memory [B]."""
    tokens: int
    sequences: int


class Rules(NamedTuple):
    """What differs between versions."""

    utilization: float
    budgets: tuple[Budgets, ...]
    logit: float = SORTED_LOGIT
    """Bytes per logit of the sampler's dry run."""
    libraries_counted: bool = True
    """Whether NCCL's buffers come out of the share; later they are made before free memory is looked at."""
    graphs_counted: bool = False
    allocator_counted: bool = False
    state: float = 0.0
    """Bytes per logit that the sampler keeps on the last stage."""


_OLD = (Budgets(inf, 512, 256),)
_TWO = (Budgets(70 * GIB, 2048, 256), Budgets(inf, 8192, 1024))
_THREE = (_TWO[0], Budgets(160 * GIB, 8192, 1024), Budgets(inf, 16384, 1024))
VERSIONS = (
    ((0, 5, 3), Rules(0.9, _OLD, allocator_counted=True)),
    ((0, 6, 5), Rules(0.9, (Budgets(inf, 2048, 256),))),
    ((0, 9, 2), Rules(0.9, _TWO)),
    ((0, 11, 0), Rules(0.9, _TWO, FILTERED_LOGIT, False)),
    ((0, 20, 0), Rules(0.92, _TWO, FILTERED_LOGIT, False, True)),
    ((0, 33, 0), Rules(0.92, _THREE, FILTERED_LOGIT, False, True, state=BIN_COUNTS)),
)
"""Rules by the first version that they were read in (0.6.5 by its release notes); older ones follow the first."""


def _budgets(deployment: Deployment) -> Budgets:
    """Returns the defaults for the box's GPUs; an A100 counts as a small one, whatever its memory."""
    gpu, budgets = deployment.hardware.gpu, by_version(VERSIONS, deployment.engine).budgets
    return next(entry for entry in budgets if gpu.memory < entry.below or "a100" in gpu.name.lower())


def token_budget(deployment: Deployment) -> int:
    """Returns the tokens of one step, `max_num_batched_tokens` (engine/arg_utils.py)."""
    return deployment.engine.chunked_prefill_size or _budgets(deployment).tokens


def max_num_seqs(deployment: Deployment) -> int:
    """Returns the most running requests, over all stages together (engine/arg_utils.py)."""
    default = min(_budgets(deployment).sequences, token_budget(deployment))
    return deployment.engine.max_running_requests or default


def largest_captured(deployment: Deployment) -> int:
    """Returns the most tokens of a step that has a CUDA graph (config/vllm.py), 0 when eager is enforced."""
    engine = deployment.engine
    if not engine.cuda_graph:
        return 0
    blackwell = deployment.hardware.gpu.architecture == "sm_100" and not engine.version_before(CAPTURES_MORE)
    most = 2 * MOST_CAPTURED if blackwell else MOST_CAPTURED
    return min(2 * max_num_seqs(deployment) * (engine.draft_tokens + 1), most, token_budget(deployment))


def captured_sizes(deployment: Deployment) -> list[int]:
    """Returns the decode batch sizes [requests] that have a CUDA graph (config/vllm.py `_set_cudagraph_sizes`).

    The limit is on tokens: with a draft every request brings several, and a larger batch runs kernel by kernel.
    """
    largest = largest_captured(deployment) // (deployment.engine.draft_tokens + 1)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 2 * MOST_CAPTURED + 1, 16), max_num_seqs(deployment)]
    return sorted({size for size in sizes if size <= largest})


def graph_bytes(deployment: Deployment) -> float:
    """Returns the memory of CUDA graphs [B]: every size captured whole and in pieces."""
    return 2.0 * GRAPH * len(captured_sizes(deployment))


def profiled_bytes(deployment: Deployment, stage: int) -> float:
    """Returns the peak of the dry run at start-up [B] (v1/worker/gpu_model_runner.py `profile_run`).

    A forward of the whole token budget, or the sampler over max_num_seqs × vocabulary on the last stage.
    """
    model, tokens = deployment.model, token_budget(deployment)
    peak = forward_bytes(deployment, tokens)
    if stage < deployment.plan.pp - 1:
        return peak
    rules, logits = by_version(VERSIONS, deployment.engine), max_num_seqs(deployment) * model.vocab_size
    sampled = min(max_num_seqs(deployment), tokens) * model.vocab_size
    return max(peak, 4.0 * tokens * model.hidden_size + rules.logit * sampled) + rules.state * logits


def _total(deployment: Deployment) -> float:
    """Returns the memory of a GPU as CUDA counts it [B]."""
    return (1.0 - DRIVER_RESERVED_SHARE) * deployment.hardware.gpu.memory - DRIVER_RESERVED


def _context(deployment: Deployment) -> float:
    """Returns what the CUDA context and the libraries take of it [B]."""
    reserve = deployment.hardware.memory_reserve.context
    return max(0.0, reserve - deployment.hardware.gpu.memory + _total(deployment))


def _fixed_bytes(deployment: Deployment) -> float:
    """Returns what the share holds beside weights, KV cache and activations [B], on every GPU."""
    rules, plan, attention = by_version(VERSIONS, deployment.engine), deployment.plan, deployment.model.attention
    total = BUFFERS + graph_bytes(deployment) * rules.graphs_counted + KEPT_BY_ALLOCATOR * rules.allocator_counted
    if rules.libraries_counted:
        total += _context(deployment)
    else:
        total += BUFFERS_PER_PEER * (plan.tp - 1)
    if not isinstance(attention, GqaAttention) and attention.index_heads:
        latent = PREFILL_LENGTHS * 2.0 * attention.kv_elements + GATHERED_LENGTHS * (attention.index_head_dim + 4)
        total += latent * deployment.model.max_positions + INDEXER_LOGITS + CONTEXT_PARALLEL * (plan.dcp > 1)
    return total


def pool_bytes(deployment: Deployment, stage: int) -> float:
    """Returns what is left for the KV cache on each GPU of a stage [B] (v1/worker/gpu_worker.py)."""
    held = rank_memory(deployment, stage)
    usable = _total(deployment) * SHARE.of(deployment) - _fixed_bytes(deployment)
    return usable - held.weights - held.extra_weights - profiled_bytes(deployment, stage)


def kv_capacity_tokens(deployment: Deployment) -> int:
    """Returns the tokens of the KV cache: the smallest worker's (v1/core/kv_cache_planning.py); 0 or less if none."""
    stages = range(deployment.plan.pp)
    return min(int(pool_bytes(deployment, stage) // kv_bytes_per_token(deployment, stage)) for stage in stages)


def default_utilization(deployment: Deployment) -> float:
    """Returns vLLM's own `--gpu-memory-utilization` (config/cache.py)."""
    return by_version(VERSIONS, deployment.engine).utilization


def safe_utilization(deployment: Deployment) -> float:
    """Returns the largest share that leaves out CUDA's context, graphs where they are not counted, and `MARGIN`."""
    outside = MARGIN + _context(deployment)
    if not by_version(VERSIONS, deployment.engine).graphs_counted:
        outside += graph_bytes(deployment)
    return floor(1000 * (1.0 - outside / _total(deployment))) / 1000


SHARE = MemoryShare("gpu_memory_utilization", default_utilization, safe_utilization)
