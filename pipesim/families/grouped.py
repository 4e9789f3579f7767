"""Grouped-query attention (arXiv:2305.13245): several query heads share one head of keys and values.

Engines shard both over TP; where ranks outnumber the KV heads, several ranks hold the same one (SGLang and vLLM
`QKVParallelLinear`).
"""

from pipesim.deployment import ParallelPlan
from pipesim.families.shared import Tensor, context_parallel, gemm, parts_of
from pipesim.ops import Compute, SmallKernels, StageOp, Work
from pipesim.profiles.model import STORAGE_BYTES, GqaAttention, ModelProfile
from pipesim.workload import Batch, DecodeStep, PrefillChunk


def grouped_tensors(attention: GqaAttention, hidden: int) -> list[Tensor]:
    """Returns the attention tensors of a layer: query and output by head, keys and values by KV head."""
    query = 2 * hidden * attention.heads * attention.head_dim
    keys_values = 2 * hidden * attention.kv_heads * attention.head_dim
    return [
        Tensor("attention", query, True, by_request=True),
        Tensor("attention", keys_values, True, by_request=True, most_shards=attention.kv_heads),
    ]


def grouped_attention(
    model: ModelProfile, attention: GqaAttention, batch: Batch, plan: ParallelPlan, window: int
) -> list[StageOp]:
    """Returns the operations of a layer's attention on one rank; a `window` above 0 bounds what a token attends to."""
    storage, hidden = model.precision.attention, model.hidden_size
    heads, kv_heads = attention.heads // plan.attention_tp, attention.kv_heads_on_rank(plan.attention_tp)
    columns = (heads + 2 * kv_heads) * attention.head_dim
    ops: list[StageOp] = [
        gemm("qkv_proj", "attention", storage, batch.tokens, columns, hidden),
        SmallKernels("rope, kv_write", "attention", 4 if attention.qk_norm else 2),
    ]
    for part in parts_of(batch):
        if isinstance(part, DecodeStep):
            attend: list[StageOp] = [_decode(model, attention, part, heads * plan.dcp, kv_heads, window, plan.dcp)]
            rows = part.tokens * heads * plan.dcp
            ops += context_parallel(model, attend, plan.dcp, rows, (attention.head_dim, attention.head_dim))
        else:
            ops.append(_prefill(model, attention, part, heads, kv_heads, window))
    return [*ops, gemm("o_proj", "attention", storage, batch.tokens, hidden, heads * attention.head_dim)]


def _decode(
    model: ModelProfile, attention: GqaAttention, batch: DecodeStep, heads: int, kv_heads: int, window: int, dcp: int
) -> Compute:
    """Every request reads its keys and values once for all query heads of the rank."""
    held = min(batch.kv_tokens, window) if window else batch.kv_tokens
    tokens = batch.requests * -(-held // dcp)
    work = decode_work(attention.head_dim, heads, kv_heads, tokens, STORAGE_BYTES[model.precision.kv_cache])
    return Compute("gqa_decode", "attention", "gqa_decode", work._replace(flops=work.flops * batch.queries), launches=2)


def decode_work(head_dim: int, heads: int, kv_heads: int, kv_tokens: float, element_bytes: float) -> Work:
    """Returns the work of decode attention over `kv_tokens` tokens, summed over requests."""
    cache = 2.0 * kv_heads * head_dim * element_bytes * kv_tokens
    return Work(4.0 * heads * head_dim * kv_tokens, cache)


def _prefill(
    model: ModelProfile, attention: GqaAttention, batch: PrefillChunk, heads: int, kv_heads: int, window: int
) -> Compute:
    attended = min(batch.attended, window * batch.tokens) if window else batch.attended
    own = prefill_work(attention.head_dim, heads, kv_heads, batch.tokens, attended)
    cache = 2.0 * kv_heads * attention.head_dim * STORAGE_BYTES[model.precision.kv_cache] * batch.context
    return Compute("gqa_prefill", "attention", "gqa_prefill", own._replace(bytes=own.bytes + cache))


def prefill_work(head_dim: int, heads: int, kv_heads: int, tokens: float, attended: float) -> Work:
    """Returns the work of prefill attention without a prefix: `attended` pairs, queries to outputs in 16 bits."""
    return Work(4.0 * heads * head_dim * attended, 4.0 * (heads + kv_heads) * head_dim * tokens)
