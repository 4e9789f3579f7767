"""The decoder that all families are: embedding, layers of attention and MLP or experts, norm and head.

With attention split by request (`dp_attention`) each rank runs attention on its own rows with all heads; an all-gather
before and a reduce-scatter behind the MLP or the experts take the place of the two AllReduces (SGLang
layers/communicator.py). The reduce-scatter moves the bytes of an all-gather backwards and is priced as one.
"""

from pipesim.deployment import ParallelPlan
from pipesim.families.feed_forward import dense_mlp, dense_tensors, expert_tensors, mixture
from pipesim.families.grouped import grouped_attention, grouped_tensors
from pipesim.families.latent import latent_attention, latent_tensors
from pipesim.families.shared import (
    Section,
    Tensor,
    all_reduce,
    batch_on_rank,
    drafted,
    exchange,
    gemm,
    padded_over_ranks,
)
from pipesim.ops import Collective, SmallKernels, StageOp
from pipesim.profiles.model import GqaAttention, ModelProfile
from pipesim.workload import Batch


def decoder_tensors(model: ModelProfile, section: Section) -> list[Tensor]:
    """Returns the tensors of one section."""
    hidden, attention = model.hidden_size, model.attention
    if section == "receive":
        return []
    if section == "embedding":
        return [Tensor("embedding", model.vocab_size * hidden, True, by_request=True)]
    if section == "head":
        head = [] if model.tied_embeddings else [Tensor("lm_head", model.vocab_size * hidden, True)]
        return [*head, Tensor("activations", hidden, False)]
    own = (
        grouped_tensors(attention, hidden) if isinstance(attention, GqaAttention) else latent_tensors(attention, hidden)
    )
    tensors = [*own, Tensor("activations", 2 * hidden, False)]
    if model.moe is not None and section in {"expert_layer", "window_expert_layer"}:
        return [*tensors, *expert_tensors(model, model.moe)]
    return [*tensors, *dense_tensors(model)]


def decoder_operations(model: ModelProfile, section: Section, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    """Returns the operations of one section on one rank of a stage."""
    own, gathered = batch_on_rank(batch, plan.attention_dp), padded_over_ranks(batch, plan.attention_dp)
    if section == "embedding":
        return [SmallKernels("embedding", "dense", 2), *all_reduce(model, batch.tokens, plan.attention_tp)]
    if section == "head":
        return _head(model, gathered.sampled, plan)
    ops: list[StageOp] = [SmallKernels("input_norm", "attention", 1), *_attention(model, section, own, plan)]
    ops += [*all_reduce(model, batch.tokens, plan.attention_tp), SmallKernels("post_attention_norm", "dense", 1)]
    around = exchange(model, gathered.tokens, plan) if plan.dp_attention else []
    if model.moe is not None and section in {"expert_layer", "window_expert_layer", "draft"}:
        mlp = mixture(model, model.moe, gathered, plan)
    else:
        mlp = dense_mlp(model, gathered, plan.tp)
    ops += [*around, *mlp, *around]
    ops += [] if plan.dp_attention else all_reduce(model, batch.tokens, plan.tp)
    return [*ops, *_head(model, drafted(gathered), plan)] if section == "draft" else ops


def _attention(model: ModelProfile, section: Section, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    attention = model.attention
    if isinstance(attention, GqaAttention):
        window = attention.sliding_window if section in {"window_dense_layer", "window_expert_layer"} else 0
        return grouped_attention(model, attention, batch, plan, window)
    return latent_attention(model, attention, batch, plan)


def _head(model: ModelProfile, rows: int, plan: ParallelPlan) -> list[StageOp]:
    if not rows:
        return []
    tp = plan.tp
    storage = model.precision.embedding if model.tied_embeddings else model.precision.lm_head
    ops: list[StageOp] = [
        SmallKernels("final_norm", "dense", 1),
        *(exchange(model, rows, plan) if plan.dp_attention else []),
        gemm("lm_head", "dense", storage, rows, model.vocab_size / tp, model.hidden_size),
    ]
    if tp > 1:
        ops.append(Collective("all_gather", "all_reduce", tp, 2.0 * rows * model.vocab_size))
    return [*ops, SmallKernels("sampling", "dense", 6)]
