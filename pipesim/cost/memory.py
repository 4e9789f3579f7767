"""What each GPU has to hold."""

from dataclasses import dataclass

from pipesim.deployment import Deployment
from pipesim.families import Section, family_of
from pipesim.profiles.model import STORAGE_BYTES, ModelProfile
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
            storage = getattr(model.precision, tensor.precision)
            ranks = plan.attention_tp if tensor.by_request else plan.tp
            share = tensor.parameters / ranks if tensor.sharded else tensor.parameters
            total += run.times * STORAGE_BYTES[storage] * share
    return total


def model_bytes(model: ModelProfile) -> float:
    """Returns the text weights [B] of the whole model, each tensor once."""
    dense = model.moe.dense_layers_first
    times: dict[Section, int] = {"embedding": 1, "dense_layer": dense, "expert_layer": model.layers - dense, "head": 1}
    tensors = family_of(model).tensors
    return sum(
        (
            count * STORAGE_BYTES[getattr(model.precision, tensor.precision)] * tensor.parameters
            for section, count in times.items()
            for tensor in tensors(model, section)
        ),
        start=0.0,
    )


def absorbed_copy_bytes(deployment: Deployment, stage: int) -> float:
    """Returns the copies of kv_b_proj [B] that absorbed attention keeps beside the original (w_kc, w_vc)."""
    attention, ranks = deployment.model.attention, deployment.plan.attention_tp
    per_layer = attention.heads * attention.kv_lora_rank * (attention.qk_nope_head_dim + attention.v_head_dim)
    return STORAGE_BYTES[deployment.model.precision.attention] * per_layer / ranks * deployment.layers[stage]


def rank_memory(deployment: Deployment, stage: int) -> RankMemory:
    """Returns what each GPU of one stage holds besides KV cache."""
    extra = deployment.model.vision_tower + absorbed_copy_bytes(deployment, stage)
    return RankMemory(weight_bytes(deployment, stage), extra, deployment.hardware.memory_reserve.context)


def kv_bytes_per_token(deployment: Deployment, stage: int) -> float:
    """Returns the KV cache [B] per token on each GPU of one stage, averaged over its GPUs.

    The latent of MLA is replicated over TP. Where attention is split by request a token lies on one rank only, and
    decode context parallelism deals the tokens of a request out over its ranks.
    """
    model, shards = deployment.model, deployment.plan.kv_shards
    return STORAGE_BYTES[model.precision.kv_cache] * model.attention.kv_elements * deployment.layers[stage] / shards
