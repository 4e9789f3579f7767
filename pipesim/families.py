"""Model families: which tensors a layer holds and which operations a batch makes of it, per tensor-parallel rank.

A family is two functions and a row in `FAMILIES`, keyed by HF `architectures[0]`.
Sizes follow SGLang's models/deepseek_v2.py: what it shards over TP is divided here, what it replicates is not.

With attention split by request (`dp_attention`) each rank runs attention on its own rows with all heads; an all-gather
before and a reduce-scatter behind the MLP or the experts take the place of the two AllReduces (SGLang
layers/communicator.py). The reduce-scatter moves the bytes of an all-gather backwards and is priced as one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipesim.deployment import ParallelPlan
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
    by_request: bool = False
    """Held whole by each, too, where attention is split by request."""


@dataclass(frozen=True)
class Family:
    """What one model architecture consists of and does."""

    tensors: Callable[[ModelProfile, Section], list[Tensor]]
    operations: Callable[[ModelProfile, Section, Batch, ParallelPlan], list[StageOp]]


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
        return [Tensor("embedding", model.vocab_size * hidden, True, by_request=True)]
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
    return [Tensor("attention", down + norms, False), Tensor("attention", up, True, by_request=True)]


def _deepseek_operations(model: ModelProfile, section: Section, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    own, gathered = batch_on_rank(batch, plan.attention_dp), padded_over_ranks(batch, plan.attention_dp)
    if section == "embedding":
        reduced = _all_reduce(model, batch.tokens, plan.attention_tp)
        return [SmallKernels("embedding", "dense", 2), *reduced]
    if section == "head":
        return _head(model, gathered.sampled, plan)
    ops: list[StageOp] = [SmallKernels("input_norm", "attention", 1), *_mla(model, own, plan)]
    ops += [*_all_reduce(model, batch.tokens, plan.attention_tp), SmallKernels("post_attention_norm", "dense", 1)]
    exchange = _exchange(model, gathered.tokens, plan) if plan.dp_attention else []
    mlp = _dense_mlp(model, gathered, plan.tp) if section == "dense_layer" else _mixture(model, gathered, plan)
    ops += [*exchange, *mlp, *exchange]
    return ops if plan.dp_attention else [*ops, *_all_reduce(model, batch.tokens, plan.tp)]


def batch_on_rank(batch: Batch, ranks: int) -> Batch:
    """Returns the part of a batch that the fullest of some ranks attends for when its requests are dealt evenly."""
    if ranks == 1:
        return batch
    if isinstance(batch, MixedStep):
        return batch._replace(decode=_decode_share(batch.decode, ranks), prefill=_prefill_share(batch.prefill, ranks))
    return _decode_share(batch, ranks) if isinstance(batch, DecodeStep) else _prefill_share(batch, ranks)


def _decode_share(batch: DecodeStep, ranks: int) -> DecodeStep:
    return batch._replace(requests=-(-batch.requests // ranks), rows=-(-batch.rows // ranks))


def _prefill_share(batch: PrefillChunk, ranks: int) -> PrefillChunk:
    return batch._replace(
        tokens=-(-batch.tokens // ranks),
        requests=-(-batch.requests // ranks),
        attended=-(-batch.attended // ranks),
        finished=-(-batch.finished // ranks),
        context=-(-batch.context // ranks),
    )


def padded_over_ranks(batch: Batch, ranks: int) -> Batch:
    """Returns a batch padded so that some ranks have equally many rows of it: as many as the fullest."""
    if isinstance(batch, DecodeStep):
        return batch._replace(rows=-(-batch.rows // ranks) * ranks)
    return batch._replace(tokens=-(-batch.tokens // ranks) * ranks) if isinstance(batch, PrefillChunk) else batch


def _exchange(model: ModelProfile, tokens: int, plan: ParallelPlan) -> list[StageOp]:
    """All rows to every rank, or all ranks' sums back to the row's own: the same bytes either way."""
    size = STORAGE_BYTES[model.precision.activations] * tokens * model.hidden_size
    return [Collective("all_gather", "all_reduce", plan.tp, size)]


def _gemm(name: str, category: Category, storage: str, m: int, n: float, k: float) -> Compute:
    flops = 2.0 * m * n * k
    return Compute(name, category, f"gemm_{storage}", Work(flops, STORAGE_BYTES[storage] * n * k + 2.0 * m * (n + k)))


def _all_reduce(model: ModelProfile, tokens: int, tp: int) -> list[StageOp]:
    size = STORAGE_BYTES[model.precision.activations] * tokens * model.hidden_size
    return [Collective("all_reduce", "all_reduce", tp, size)] if tp > 1 else []


def _head(model: ModelProfile, rows: int, plan: ParallelPlan) -> list[StageOp]:
    if not rows:
        return []
    tp = plan.tp
    storage = model.precision.embedding if model.tied_embeddings else model.precision.lm_head
    ops: list[StageOp] = [
        SmallKernels("final_norm", "dense", 1),
        *(_exchange(model, rows, plan) if plan.dp_attention else []),
        _gemm("lm_head", "dense", storage, rows, model.vocab_size / tp, model.hidden_size),
    ]
    if tp > 1:
        ops.append(Collective("all_gather", "all_reduce", tp, 2.0 * rows * model.vocab_size))
    return [*ops, SmallKernels("sampling", "dense", 6)]


def _mla(model: ModelProfile, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    attention, tokens = model.attention, batch.tokens
    storage, hidden = model.precision.attention, model.hidden_size
    heads = attention.heads // plan.attention_tp
    query = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    down = attention.q_lora_rank + attention.kv_elements
    ops: list[StageOp] = [
        _gemm("qkv_a_proj", "attention", storage, tokens, down, hidden),
        SmallKernels("q_a_norm, kv_a_norm, rope, kv_write", "attention", 4),
        _gemm("q_b_proj", "attention", storage, tokens, heads * query, attention.q_lora_rank),
    ]
    for part in (batch.decode, batch.prefill) if isinstance(batch, MixedStep) else (batch,):
        if isinstance(part, DecodeStep) or part.absorbed:
            ops += _absorbed_attention(model, part, heads, plan.dcp)
        else:
            expanded = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
            ops += [
                _gemm("kv_b_proj", "attention", storage, part.tokens + part.context, expanded, attention.kv_lora_rank),
                _prefill_attention(model, part, heads),
            ]
    return [*ops, _gemm("o_proj", "attention", storage, tokens, hidden, heads * attention.v_head_dim)]


def _absorbed_attention(model: ModelProfile, batch: DecodeStep | PrefillChunk, heads: int, dcp: int) -> list[StageOp]:
    """Attention over the latent, W_UK and W_UV absorbed into query and output (arXiv:2405.04434, section 2.1)."""
    attention, tokens = model.attention, batch.tokens
    weights = STORAGE_BYTES[model.precision.attention] * heads * attention.kv_lora_rank

    def absorb(name: str, dim: int) -> Compute:
        work = Work(2.0 * tokens * heads * attention.kv_lora_rank * dim, weights * dim)
        return Compute(name, "attention", "mla_absorb", work)

    return [
        absorb("absorb_w_uk", attention.qk_nope_head_dim),
        *_latent_attention(model, batch, heads, dcp),
        absorb("absorb_w_uv", attention.v_head_dim),
    ]


def _latent_attention(model: ModelProfile, batch: DecodeStep | PrefillChunk, heads: int, dcp: int) -> list[StageOp]:
    attention, element = model.attention, STORAGE_BYTES[model.precision.kv_cache]
    if isinstance(batch, DecodeStep):
        return _latent_decode(model, batch, heads, dcp)
    flops = 2.0 * heads * (attention.kv_elements + attention.kv_lora_rank) * batch.attended
    read = batch.attended / batch.tokens * batch.requests
    return [Compute("mla_prefill", "attention", "mla_prefill", Work(flops, element * attention.kv_elements * read))]


def _latent_decode(model: ModelProfile, batch: DecodeStep, heads: int, dcp: int) -> list[StageOp]:
    """Decode attention; with context parallelism over 1/dcp of the KV, for the heads of all ranks that share it.

    The queries of all heads are gathered before; the outputs are weighted by their log-sum-exps, gathered in FP32, and
    reduce-scattered behind it (vLLM v1/attention/ops/common.py `cp_lse_ag_out_rs`).
    """
    attention, element = model.attention, STORAGE_BYTES[model.precision.kv_cache]
    latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
    if dcp == 1:
        return [LatentDecode(batch.requests, batch.kv_tokens, heads, latent, rope, element)]
    activation = STORAGE_BYTES[model.precision.activations]
    per_element = float(batch.tokens * heads * dcp)
    return [
        Collective("all_gather", "all_reduce", dcp, activation * per_element * attention.kv_elements),
        LatentDecode(batch.requests, -(-batch.kv_tokens // dcp), heads * dcp, latent, rope, element),
        Collective("all_gather", "all_reduce", dcp, 4.0 * per_element * dcp),
        Collective("all_gather", "all_reduce", dcp, activation * per_element * latent),
    ]


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


def _mixture(model: ModelProfile, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    moe, hidden = model.moe, model.hidden_size
    columns = moe.expert_intermediate / plan.moe_tp
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
        ranks=plan.ep,
    )
    return [
        _gemm("router", "dense", model.precision.router, batch.tokens, moe.experts, hidden),
        SmallKernels("top_k", "experts", 1),
        experts,
        *_shared_expert(model, batch, experts, moe.shared_experts * moe.expert_intermediate / plan.tp),
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
