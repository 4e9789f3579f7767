"""Model families: which tensors a layer holds and which operations a batch makes of it, per tensor-parallel rank.

A family is two functions and a row in `FAMILIES`, keyed by HF `architectures[0]`.
Sizes follow SGLang's models/deepseek_v2.py: what it shards over TP is divided here, what it replicates is not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipesim.errors import ProfileError
from pipesim.ops import Category, Collective, Compute, Experts, LatentDecode, SideStream, SmallKernels, StageOp, Work
from pipesim.profiles.model import STORAGE_BYTES, MlaAttention, ModelProfile
from pipesim.workload import Batch, DecodeStep, MixedStep, PrefillChunk

Section = Literal["embedding", "receive", "dense_layer", "expert_layer", "head", "draft"]


class Tensor(NamedTuple):
    """Parameters of one kind in one section of the model."""

    precision: str
    """Field of the model profile's `precision`."""
    parameters: int
    sharded: bool
    """Divided over the tensor-parallel ranks, or held whole by each."""


@dataclass(frozen=True)
class Family:
    """What one model architecture consists of and does."""

    tensors: Callable[[ModelProfile, Section], list[Tensor]]
    operations: Callable[[ModelProfile, Section, Batch, int], list[StageOp]]


def family_of(model: ModelProfile) -> Family:
    """Returns the family of a model. Raises ProfileError for an architecture without one."""
    if model.architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ProfileError(f"model profile {model.name}", "architecture", f'"{model.architecture}"', f"one of {known}")
    return FAMILIES[model.architecture]


def _deepseek_tensors(model: ModelProfile, section: Section) -> list[Tensor]:
    hidden, moe = model.hidden_size, model.moe
    if section == "receive":
        return []
    if section == "embedding":
        return [Tensor("embedding", model.vocab_size * hidden, True)]
    if section == "head":
        head = [] if model.tied_embeddings else [Tensor("lm_head", model.vocab_size * hidden, True)]
        return [*head, Tensor("activations", hidden, False)]
    tensors = [*_mla_tensors(model.attention, hidden), Tensor("activations", 2 * hidden, False)]
    if section in {"dense_layer", "draft"}:
        return [*tensors, Tensor("dense_mlp", 3 * hidden * model.dense_intermediate, True)]
    expert = 3 * hidden * moe.expert_intermediate
    return [
        *tensors,
        Tensor("router", hidden * moe.experts, False),
        Tensor("shared_expert", moe.shared_experts * expert, True),
        Tensor("routed_experts", moe.experts * expert, True),
    ]


def _mla_tensors(attention: MlaAttention, hidden: int) -> list[Tensor]:
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    down = hidden * (attention.q_lora_rank + attention.kv_lora_rank + attention.qk_rope_head_dim)
    up = attention.heads * (
        attention.q_lora_rank * query
        + attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.v_head_dim)
        + attention.v_head_dim * hidden
    )
    norms = attention.q_lora_rank + attention.kv_lora_rank
    return [Tensor("attention", down + norms, False), Tensor("attention", up, True)]


def _deepseek_operations(model: ModelProfile, section: Section, batch: Batch, tp: int) -> list[StageOp]:
    if section == "draft":
        return _draft(model, batch, tp)
    if section == "embedding":
        ops: list[StageOp] = [SmallKernels("embedding", "dense", 2), *_all_reduce(model, batch.tokens, tp)]
    elif section == "head":
        ops = _head(model, batch.sampled, tp)
    else:
        ops = [SmallKernels("input_norm", "attention", 1), *_mla(model, batch, tp)]
        ops += [*_all_reduce(model, batch.tokens, tp), SmallKernels("post_attention_norm", "dense", 1)]
        ops += _dense_mlp(model, batch, tp) if section == "dense_layer" else _mixture(model, batch, tp)
        ops += _all_reduce(model, batch.tokens, tp)
    return ops


def _draft(model: ModelProfile, batch: Batch, tp: int) -> list[StageOp]:
    """One draft token for every request: a dense layer of the model's width and its head (EAGLE, arXiv:2401.15077)."""
    if not isinstance(batch, DecodeStep):
        return []
    single = batch._replace(queries=1)
    layer = _deepseek_operations(model, "dense_layer", single, tp)
    return [*layer, *_deepseek_operations(model, "head", single, tp)]


def _gemm(name: str, category: Category, storage: str, m: int, n: float, k: float) -> Compute:
    flops = 2.0 * m * n * k
    return Compute(name, category, f"gemm_{storage}", Work(flops, STORAGE_BYTES[storage] * n * k + 2.0 * m * (n + k)))


def _all_reduce(model: ModelProfile, tokens: int, tp: int) -> list[StageOp]:
    size = STORAGE_BYTES[model.precision.activations] * tokens * model.hidden_size
    return [Collective("all_reduce", "all_reduce", tp, size)] if tp > 1 else []


def _head(model: ModelProfile, rows: int, tp: int) -> list[StageOp]:
    if not rows:
        return []
    storage = model.precision.embedding if model.tied_embeddings else model.precision.lm_head
    ops: list[StageOp] = [
        SmallKernels("final_norm", "dense", 1),
        _gemm("lm_head", "dense", storage, rows, model.vocab_size / tp, model.hidden_size),
    ]
    if tp > 1:
        ops.append(Collective("all_gather", "all_reduce", tp, 2.0 * rows * model.vocab_size))
    return [*ops, SmallKernels("sampling", "dense", 6)]


def _mla(model: ModelProfile, batch: Batch, tp: int) -> list[StageOp]:
    attention, tokens = model.attention, batch.tokens
    storage, hidden = model.precision.attention, model.hidden_size
    heads = attention.heads // tp
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    down = attention.q_lora_rank + attention.kv_elements
    ops: list[StageOp] = [
        _gemm("qkv_a_proj", "attention", storage, tokens, down, hidden),
        SmallKernels("q_a_norm, kv_a_norm, rope, kv_write", "attention", 4),
        _gemm("q_b_proj", "attention", storage, tokens, heads * query, attention.q_lora_rank),
    ]
    for part in (batch.decode, batch.prefill) if isinstance(batch, MixedStep) else (batch,):
        if isinstance(part, DecodeStep) or part.absorbed:
            ops += _absorbed_attention(model, part, heads)
        else:
            expanded = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
            ops += [
                _gemm("kv_b_proj", "attention", storage, part.tokens + part.context, expanded, attention.kv_lora_rank),
                _prefill_attention(model, part, heads),
            ]
    return [*ops, _gemm("o_proj", "attention", storage, tokens, hidden, heads * attention.v_head_dim)]


def _absorbed_attention(model: ModelProfile, batch: DecodeStep | PrefillChunk, heads: int) -> list[StageOp]:
    """Attention over the latent, W_UK and W_UV absorbed into query and output (arXiv:2405.04434, section 2.1)."""
    attention, tokens = model.attention, batch.tokens
    weights = STORAGE_BYTES[model.precision.attention] * heads * attention.kv_lora_rank

    def absorb(name: str, dim: int) -> Compute:
        work = Work(2.0 * tokens * heads * attention.kv_lora_rank * dim, weights * dim)
        return Compute(name, "attention", "mla_absorb", work)

    return [
        absorb("absorb_w_uk", attention.qk_nope_head_dim),
        _latent_attention(model, batch, heads),
        absorb("absorb_w_uv", attention.v_head_dim),
    ]


def _latent_attention(model: ModelProfile, batch: DecodeStep | PrefillChunk, heads: int) -> StageOp:
    attention, element = model.attention, STORAGE_BYTES[model.precision.kv_cache]
    if isinstance(batch, DecodeStep):
        latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
        return LatentDecode(batch.requests, batch.kv_tokens, heads * batch.queries, latent, rope, element)
    flops = 2.0 * heads * (attention.kv_elements + attention.kv_lora_rank) * batch.attended
    read = batch.attended / batch.tokens * batch.requests
    return Compute("mla_prefill", "attention", "mla_prefill", Work(flops, element * attention.kv_elements * read))


def _prefill_attention(model: ModelProfile, batch: PrefillChunk, heads: int) -> Compute:
    attention = model.attention
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    flops = 2.0 * heads * (query + attention.v_head_dim) * batch.attended
    traffic = 2.0 * heads * (2 * query + 2 * attention.v_head_dim) * batch.tokens
    return Compute("mla_prefill", "attention", "mla_prefill", Work(flops, traffic))


def _gated_mlp(name: str, model: ModelProfile, storage: str, tokens: int, columns: float) -> list[StageOp]:
    return [
        _gemm(f"{name}_gate_up", "dense", storage, tokens, 2 * columns, model.hidden_size),
        SmallKernels(f"{name}_act", "dense", 1),
        _gemm(f"{name}_down", "dense", storage, tokens, model.hidden_size, columns),
    ]


def _dense_mlp(model: ModelProfile, batch: Batch, tp: int) -> list[StageOp]:
    return _gated_mlp("mlp", model, model.precision.dense_mlp, batch.tokens, model.dense_intermediate / tp)


def _mixture(model: ModelProfile, batch: Batch, tp: int) -> list[StageOp]:
    moe, hidden = model.moe, model.hidden_size
    columns = moe.expert_intermediate / tp
    storage = model.precision.routed_experts
    experts = Experts(
        name="routed_experts",
        kernel=f"moe_{storage}",
        tokens=batch.routed_tokens,
        padding_tokens=batch.expert_padding,
        experts=moe.experts,
        top_k=moe.top_k,
        routing_skew=moe.routing_skew,
        weights_per_expert=3.0 * hidden * columns,
        bytes_per_weight=STORAGE_BYTES[storage],
        bytes_per_token=2.0 * hidden + moe.top_k * (6.0 * hidden + 12.0 * columns),
        launches=6,
    )
    return [
        _gemm("router", "dense", model.precision.router, batch.tokens, moe.experts, hidden),
        SmallKernels("top_k", "experts", 1),
        experts,
        *_shared_expert(model, batch, experts, moe.shared_experts * columns),
        SmallKernels("add_shared", "dense", 1),
    ]


def _shared_expert(model: ModelProfile, batch: Batch, experts: Experts, columns: float) -> list[StageOp]:
    """The expert that every token takes; captured, on a second stream (SGLang `forward_normal_dual_stream`)."""
    if not columns:
        return []
    ops = _gated_mlp("shared_expert", model, model.precision.shared_expert, batch.tokens, columns)
    if not batch.captured:
        return ops
    return [SideStream("shared_expert", experts, tuple(op for op in ops if isinstance(op, Compute)))]


FAMILIES: dict[str, Family] = {"DeepseekV3ForCausalLM": Family(_deepseek_tensors, _deepseek_operations)}
