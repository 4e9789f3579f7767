"""What each GPU has to hold."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipesim.deployment import Deployment
from pipesim.families import Section, Tensor, family_of
from pipesim.profiles.model import STORAGE_BYTES, GqaAttention, ModelProfile
from pipesim.program import stage_sections


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes on one GPU of a stage before the KV cache."""

    weights: float
    """Text tensors of this rank."""
    extra_weights: float
    """Vision tower and absorbed copies, loaded by every rank."""
    context: float
    """CUDA context, libraries, communicators."""

    @property
    def total(self) -> float:
        """Everything that is not KV cache or workspace [B]."""
        return self.weights + self.extra_weights + self.context


def weight_bytes(deployment: Deployment, stage: int) -> float:
    """Returns the text weights [B] on each GPU of one stage: sharded tensors divided over TP, replicated ones whole.

    Expert parallelism shares out whole experts in place of columns: the same bytes. Attention split by request holds
    the tensors of attention and the embedding whole (SGLang models/deepseek_v2.py).
    """
    model, plan = deployment.model, deployment.plan
    family = family_of(model)
    total = 0.0
    for run in stage_sections(deployment, stage):
        for tensor in family.tensors(model, run.section):
            ranks = plan.attention_tp if tensor.by_request else plan.tp
            padded = tensor.precision == "routed_experts" and model.precision.routed_experts == "mxfp4"
            size = model.precision.bytes_per_parameter(tensor.precision) * (_padding(deployment) if padded else 1.0)
            total += run.times * size * tensor.on_rank(ranks)
    return total


def _padding(deployment: Deployment) -> float:
    """Returns the factor by which MXFP4 experts grow when they are loaded.

    Each rank's columns are filled up to a multiple of 128, the hidden size to one of 256 (vLLM
    model_executor/layers/fused_moe/oracle/mxfp4.py, SGLang layers/quantization/mxfp4.py, for Marlin and TensorRT-LLM).
    """
    moe, hidden = deployment.model.moe, deployment.model.hidden_size
    columns = moe.expert_intermediate // deployment.plan.moe_tp if moe else 128
    return -(-columns // 128) * 128 / columns * (-(-hidden // 256) * 256 / hidden)


def model_bytes(model: ModelProfile) -> float:
    """Returns the text weights [B] of the whole model, each tensor once."""
    return sum(
        model.precision.bytes_per_parameter(tensor.precision) * tensor.parameters * times
        for tensor, times in _tensors(model)
    )


def parameters(model: ModelProfile) -> int:
    """Returns the parameters of the text model, each tensor once."""
    return sum(tensor.parameters * times for tensor, times in _tensors(model))


def active_parameters(model: ModelProfile) -> int:
    """Returns the parameters that one token meets: top_k of the routed experts, all of the rest.

    Without the embedding, of which it takes one row, unless the head is the same matrix.
    """
    moe = model.moe
    looked_up = 0 if model.tied_embeddings else model.vocab_size * model.hidden_size
    return -looked_up + sum(
        tensor.parameters * times * moe.top_k // moe.experts
        if moe is not None and tensor.precision == "routed_experts"
        else tensor.parameters * times
        for tensor, times in _tensors(model)
    )


def _tensors(model: ModelProfile) -> Iterator[tuple[Tensor, int]]:
    """Yields every kind of tensor with how many times the model holds it."""
    sections: list[tuple[Section, int]] = [("embedding", 1), *model.layer_kinds().items(), ("head", 1)]
    tensors = family_of(model).tensors
    for section, times in sections:
        for tensor in tensors(model, section):
            yield tensor, times


def absorbed_copy_bytes(deployment: Deployment, stage: int) -> float:
    """Returns the copies of kv_b_proj [B] that absorbed attention keeps beside the original (w_kc, w_vc)."""
    attention, ranks = deployment.model.attention, deployment.plan.attention_tp
    if isinstance(attention, GqaAttention):
        return 0.0
    per_layer = attention.heads * attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.v_head_dim)
    return STORAGE_BYTES["bf16"] * per_layer / ranks * deployment.layers[stage]


def rank_memory(deployment: Deployment, stage: int) -> RankMemory:
    """Returns what each GPU of one stage holds besides KV cache."""
    vision = 0.0 if deployment.engine.language_only else deployment.model.vision_tower
    extra = vision + absorbed_copy_bytes(deployment, stage)
    return RankMemory(weight_bytes(deployment, stage), extra, deployment.hardware.memory_reserve.context)


def kv_bytes_per_token(deployment: Deployment, stage: int) -> float:
    """Returns the KV cache [B] per token on each GPU of one stage, averaged over its GPUs.

    The latent of MLA is replicated over TP, KV heads are dealt out. Where attention is split by request a token lies on
    one rank only, and decode context parallelism deals the tokens of a request out over its ranks. A layer with a
    window keeps no more than the window of each request (vLLM's hybrid KV cache manager, SGLang's SWA pool), which is
    left out.
    """
    model, plan = deployment.model, deployment.plan
    kinds = model.layer_kinds(deployment.first_layer(stage), deployment.layers[stage])
    windowed = kinds["window_dense_layer"] + kinds["window_expert_layer"]
    layers = deployment.layers[stage] - windowed or deployment.layers[stage]
    per_layer = model.attention.kv_bytes_on_rank(plan.attention_tp, model.precision.kv_cache)
    return per_layer * layers / plan.kv_shards


HELD_AT_ONCE = 5
"""Hidden states that a layer holds in 16 bits: residual, norm, outputs of sublayer, shared experts and AllReduce."""
SPARSE_HEADS = 64
"""Query heads that sparse attention kernels are padded to (vLLM v1/attention/backends/mla/flashmla_sparse.py)."""


def forward_bytes(deployment: Deployment, tokens: int) -> float:
    """Returns the activations [B] at the peak of one eager forward of some tokens on one GPU.

    The residual stream, and the larger of attention (queries, expanded keys and values, outputs) and the MLP: of
    experts, each token's top_k rows of the hidden size or of both projections, whichever is wider, and of the
    activation between them (vLLM model_executor/layers/fused_moe/fused_moe.py: caches 1 and 3 share memory).
    """
    model, plan = deployment.model, deployment.plan
    attention, moe, hidden = model.attention, model.moe, model.hidden_size
    heads = attention.heads / plan.attention_tp
    if isinstance(attention, GqaAttention):
        attend = (2 * heads + 2 * attention.kv_heads_on_rank(plan.attention_tp)) * attention.head_dim
    elif attention.index_heads:
        attend = max(heads, SPARSE_HEADS) * (attention.kv_elements + attention.kv_lora_rank)
    else:
        attend = heads * (2 * (attention.qk_nope_head_dim + attention.v_head_dim) + attention.qk_rope_head_dim)
    mlp = 3 * model.dense_columns / plan.tp
    if moe is not None:
        columns = moe.expert_intermediate / plan.moe_tp
        mlp = max(mlp, moe.top_k * (max(2 * columns, hidden) + columns))
    return STORAGE_BYTES["bf16"] * tokens * (HELD_AT_ONCE * hidden + max(attend, mlp))
