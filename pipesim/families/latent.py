"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434). Sizes follow SGLang's models/deepseek_v2.py.

What it shards over TP is divided here, what it replicates is not.
"""

from pipesim.deployment import ParallelPlan
from pipesim.families.shared import Tensor, context_parallel, gemm, parts_of
from pipesim.ops import Compute, LatentDecode, SmallKernels, StageOp, Work
from pipesim.profiles.model import STORAGE_BYTES, MlaAttention, ModelProfile
from pipesim.workload import Batch, DecodeStep, PrefillChunk


def latent_tensors(attention: MlaAttention, hidden: int) -> list[Tensor]:
    """Returns the attention tensors of a layer: down projections whole on every rank, the rest by head."""
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    down = hidden * (attention.q_lora_rank + attention.kv_lora_rank + attention.qk_rope_head_dim)
    up = attention.heads * (
        (attention.q_lora_rank or hidden) * query
        + attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.v_head_dim)
        + attention.v_head_dim * hidden
    )
    norms = attention.q_lora_rank + attention.kv_lora_rank
    index = attention.index_heads * (attention.q_lora_rank * attention.index_head_dim + hidden)
    index += hidden * attention.index_head_dim if attention.index_heads else 0
    return [Tensor("attention", down + norms + index, False), Tensor("attention", up, True, by_request=True)]


def latent_attention(model: ModelProfile, attention: MlaAttention, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    """Returns the operations of a layer's attention on one rank, up to its output projection."""
    tokens, storage, hidden = batch.tokens, model.precision.attention, model.hidden_size
    heads = attention.heads // plan.attention_tp
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    down = attention.q_lora_rank + attention.kv_elements
    ops: list[StageOp] = [
        gemm("qkv_a_proj", "attention", storage, tokens, down, hidden),
        SmallKernels("q_a_norm, kv_a_norm, rope, kv_write", "attention", 4),
        gemm("q_b_proj", "attention", storage, tokens, heads * query, attention.q_lora_rank or hidden),
    ]
    for part in parts_of(batch):
        if isinstance(part, DecodeStep) or part.absorbed:
            ops += _absorbed_attention(model, attention, part, heads, plan.dcp)
        else:
            expanded = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
            ops += [
                gemm("kv_b_proj", "attention", storage, part.tokens + part.context, expanded, attention.kv_lora_rank),
                _prefill_attention(attention, part, heads),
            ]
    return [*ops, gemm("o_proj", "attention", storage, tokens, hidden, heads * attention.v_head_dim)]


def _absorbed_attention(
    model: ModelProfile, attention: MlaAttention, batch: DecodeStep | PrefillChunk, heads: int, dcp: int
) -> list[StageOp]:
    """Attention over the latent, W_UK and W_UV absorbed into query and output (arXiv:2405.04434, section 2.1)."""
    tokens = batch.tokens
    weights = STORAGE_BYTES["bf16"] * heads * attention.kv_lora_rank

    def absorb(name: str, dim: int) -> Compute:
        work = Work(2.0 * tokens * heads * attention.kv_lora_rank * dim, weights * dim)
        return Compute(name, "attention", "mla_absorb", work)

    return [
        absorb("absorb_w_uk", attention.qk_nope_head_dim),
        *_attention_over_latent(model, attention, batch, heads, dcp),
        absorb("absorb_w_uv", attention.v_head_dim),
    ]


def _attention_over_latent(
    model: ModelProfile, attention: MlaAttention, batch: DecodeStep | PrefillChunk, heads: int, dcp: int
) -> list[StageOp]:
    if isinstance(batch, DecodeStep):
        return _latent_decode(model, attention, batch, heads, dcp)
    element, keys = STORAGE_BYTES[model.precision.kv_cache], batch.context + batch.tokens
    latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    work = absorbed_prefill_work(heads, latent, rope, batch.tokens, batch.attended, keys, element)
    return [Compute("mla_prefill", "attention", "mla_prefill_absorbed", work)]


def _latent_decode(
    model: ModelProfile, attention: MlaAttention, batch: DecodeStep, heads: int, dcp: int
) -> list[StageOp]:
    element = STORAGE_BYTES[model.precision.kv_cache]
    latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    attend = LatentDecode(
        batch.requests, -(-batch.kv_tokens // dcp), heads * dcp, latent, rope, element, queries=batch.queries
    )
    return context_parallel(model, [attend], dcp, batch.tokens * heads * dcp, (attention.kv_elements, latent))


def _prefill_attention(attention: MlaAttention, batch: PrefillChunk, heads: int) -> Compute:
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    keys = batch.context + batch.tokens
    work = expanded_prefill_work(heads, query, attention.v_head_dim, batch.tokens, batch.attended, keys)
    return Compute("mla_prefill", "attention", "mla_prefill", work)


def expanded_prefill_work(
    heads: int, query: int, value: int, tokens: float, attended: float, keys: float, element: float = 2.0
) -> Work:
    """Returns the work of prefill attention over keys and values that each head has of its own, `keys` tokens of them.

    `attended` pairs; queries and outputs of `tokens`, keys and values of `keys`, `element` bytes each.
    """
    return Work(2.0 * heads * (query + value) * attended, element * heads * (query + value) * (tokens + keys))


def absorbed_prefill_work(
    heads: int, latent: int, rope: int, tokens: float, attended: float, keys: float, element: float = 2.0
) -> Work:
    """Returns the work of prefill attention over the latent itself, which all heads share: no keys of their own.

    Scores over latent + rope dimensions, values over latent (arXiv:2405.04434, section 2.1); queries and outputs in 16
    bits, the latent of `keys` tokens in `element` bytes.
    """
    flops = 2.0 * heads * (2 * latent + rope) * attended
    return Work(flops, 2.0 * heads * (2 * latent + rope) * tokens + element * (latent + rope) * keys)
