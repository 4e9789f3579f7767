"""A model: its shapes, how its tensors are stored, and how its router spreads tokens."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pipesim.profiles.base import Frozen, Source
from pipesim.units import Bytes, Fraction

STORAGE_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4-g32": 0.5 + 2 / 32}
"""Bytes per parameter. int4-g32: four bits and one BF16 scale per group of 32 (compressed-tensors pack-quantized)."""

Storage = Literal["bf16", "fp8", "int4-g32"]


class MlaAttention(Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one latent of KV for all heads."""

    kind: Literal["mla"]
    heads: int = Field(ge=1)
    q_lora_rank: int = Field(ge=1)
    kv_lora_rank: int = Field(ge=1)
    qk_nope_head_dim: int = Field(ge=1)
    qk_rope_head_dim: int = Field(ge=1)
    v_head_dim: int = Field(ge=1)

    @property
    def kv_elements(self) -> int:
        """Elements in the KV cache per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim


class MixtureOfExperts(Frozen):
    """The routed experts of a layer and the expert that every token takes."""

    experts: int = Field(ge=1)
    top_k: int = Field(ge=1)
    expert_intermediate: int = Field(ge=1)
    shared_experts: int = Field(ge=0)
    dense_layers_first: int = Field(ge=0)
    """Layers before the first one with experts."""
    routing_skew: float = Field(ge=0, le=4)
    """Exponent of the power law over experts by rank; 0 is uniform routing."""
    routing_source: str

    @model_validator(mode="after")
    def _check_top_k(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}; at most the {self.experts} experts is wanted")
        return self


class Precision(Frozen):
    """How each kind of tensor is stored."""

    routed_experts: Storage
    shared_expert: Storage
    attention: Storage
    dense_mlp: Storage
    router: Storage
    embedding: Storage
    lm_head: Storage
    activations: Literal["bf16", "fp8"]
    kv_cache: Literal["bf16", "fp8"]


class ModelProfile(Frozen):
    """A decoder-only language model."""

    schema_version: Literal[1]
    name: str
    hf_id: str
    architecture: str
    """HF architectures[0]: chooses the family that says which operations a layer has."""
    layers: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    max_positions: int = Field(ge=1)
    dense_intermediate: int = Field(ge=1)
    tied_embeddings: bool
    attention: MlaAttention
    moe: MixtureOfExperts
    precision: Precision
    vision_tower: Bytes
    """Vision weights that every rank of every stage loads."""
    text_weights_tolerance: Fraction = 0.01
    """How far the computed text weights may lie from `text_weights`."""
    text_weights: Bytes = Field(ge=1e6)
    """Published sum of the text tensors: the shapes above must add up to it."""
    source: str
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        for key, source in (("source", self.source), ("moe.routing_source", self.moe.routing_source)):
            if source not in self.sources:
                raise ValueError(f'{key} names "{source}"; one of {sorted(self.sources)} is wanted')
        if self.moe.dense_layers_first > self.layers:
            raise ValueError(
                f"moe.dense_layers_first is {self.moe.dense_layers_first}; at most the {self.layers} layers is wanted"
            )
        return self

    def with_kv_cache(self, storage: Storage) -> Self:
        """Returns the same model with its KV cache stored in another format."""
        return self.model_copy(update={"precision": self.precision.model_copy(update={"kv_cache": storage})})

    def __repr__(self) -> str:
        return f"ModelProfile({self.name!r})"
