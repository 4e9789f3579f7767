"""What stands behind the attention of a layer: a dense MLP, or a router, its experts and what every token takes."""

from pipesim.deployment import ParallelPlan
from pipesim.families.shared import Tensor, gated_mlp, gemm
from pipesim.ops import Compute, Experts, SideStream, SmallKernels, StageOp
from pipesim.profiles.model import STORAGE_BYTES, MixtureOfExperts, ModelProfile
from pipesim.workload import Batch


def dense_tensors(model: ModelProfile) -> list[Tensor]:
    """Returns the tensors of a dense MLP."""
    return [Tensor("dense_mlp", 3 * model.hidden_size * model.dense_intermediate, True)]


def expert_tensors(model: ModelProfile, moe: MixtureOfExperts) -> list[Tensor]:
    """Returns the tensors of router, shared experts and routed experts."""
    hidden = model.hidden_size
    return [
        Tensor("router", hidden * moe.experts, False),
        Tensor("shared_expert", 3 * hidden * moe.shared_columns, True),
        Tensor("routed_experts", moe.experts * 3 * hidden * moe.expert_intermediate, True),
    ]


def dense_mlp(model: ModelProfile, batch: Batch, tp: int) -> list[StageOp]:
    """Returns the operations of a dense MLP on one rank."""
    return gated_mlp("mlp", model, model.precision.dense_mlp, batch.tokens, model.dense_intermediate / tp)


def mixture(model: ModelProfile, moe: MixtureOfExperts, batch: Batch, plan: ParallelPlan) -> list[StageOp]:
    """Returns the operations of router and experts on one rank."""
    hidden, storage = model.hidden_size, model.precision.routed_experts
    columns = moe.expert_intermediate / plan.moe_tp
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
        gemm("router", "dense", model.precision.router, batch.tokens, moe.experts, hidden),
        SmallKernels("top_k", "experts", 1),
        experts,
        *_shared_expert(model, batch, experts, moe.shared_columns / plan.tp),
    ]


def _shared_expert(model: ModelProfile, batch: Batch, experts: Experts, columns: float) -> list[StageOp]:
    """The expert that every token takes; captured, on a second stream (SGLang `forward_normal_dual_stream`)."""
    if not columns:
        return []
    ops = gated_mlp("shared_expert", model, model.precision.shared_expert, batch.tokens, columns)
    if batch.captured:
        ops = [SideStream("shared_expert", experts, tuple(op for op in ops if isinstance(op, Compute)))]
    return [*ops, SmallKernels("add_shared", "dense", 1)]
