"""A model: its shapes, how its tensors are stored, and how its router spreads tokens."""

from collections import Counter
from functools import lru_cache
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipesim.profiles.base import Frozen, Source
from pipesim.units import Bytes, Fraction

STORAGE_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0 + 4 / 128**2,
    "int8": 1.0,
    "int4": 0.5,
    "int4-g32": 0.5 + 2 / 32,
    "int4-g64": 0.5 + 2 / 64,
    "int4-g128": 0.5 + 2 / 128,
    "int4-g128-zp": 0.5 + 2.5 / 128,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
"""Bytes per parameter with its scales. int4-gN: four bits and one 16-bit scale per group of N (compressed-tensors
pack-quantized, GPTQ), -zp: a four-bit zero point beside it (AWQ); int4: one scale per column, which is nothing;
fp8-block: one FP32 scale per 128 × 128 block (DeepSeek-V3); nvfp4: one FP8 scale per 16; mxfp4: one E8M0 scale per 32
(OCP MX)."""

Storage = Literal[
    "bf16",
    "fp8",
    "fp8-block",
    "int8",
    "int4",
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "int4-g128-zp",
    "nvfp4",
    "mxfp4",
]

LayerKind = Literal["dense_layer", "expert_layer", "window_dense_layer", "window_expert_layer"]
"""What a layer is made of: an MLP or experts, behind attention to everything before or to a window of it."""


class MlaAttention(Frozen):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one latent of KV for all heads."""

    kind: Literal["mla"]
    heads: int = Field(ge=1)
    q_lora_rank: int = Field(ge=0)
    """0 where queries are projected straight from the hidden state (DeepSeek-V2-Lite)."""
    kv_lora_rank: int = Field(ge=1)
    qk_nope_head_dim: int = Field(ge=1)
    qk_rope_head_dim: int = Field(ge=1)
    v_head_dim: int = Field(ge=1)
    index_heads: int = Field(default=0, ge=0)
    """Heads of the indexer that picks the tokens to attend to (DeepSeek-V3.2, GLM-5); 0: attention is dense."""
    index_head_dim: int = Field(default=0, ge=0)

    @property
    def kv_elements(self) -> int:
        """Elements in the KV cache per token and layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_bytes_on_rank(self, ranks: int, storage: str) -> float:
        """Returns the KV cache [B] per token and layer on each of some tensor-parallel ranks: all hold the latent.

        With an indexer FP8 holds the latent alone, four FP32 scales and the rotary key in 16 bits, and beside it an
        FP8 key of the indexer with its scale (vLLM v1/kv_cache_interface.py, SGLang mem_cache/kv_cache_configurator.py
        `calculate_mla_kv_cache_dim`).
        """
        plain = STORAGE_BYTES[storage] * self.kv_elements
        if not self.index_heads:
            return plain
        packed = self.kv_lora_rank + 16 + 2 * self.qk_rope_head_dim if storage == "fp8" else plain
        return packed + self.index_head_dim + 4


class GqaAttention(Frozen):
    """Attention whose query heads share heads of keys and values (arXiv:2305.13245); MHA where each has its own."""

    kind: Literal["gqa"]
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    qk_norm: bool = False
    """Whether queries and keys are normalised."""
    sliding_window: int = Field(default=0, ge=0)
    """Tokens that a layer with a window attends to; 0: no layer has one."""
    full_attention_every: int = Field(default=0, ge=0)
    """Every so many layers one attends to everything, the first ones of each round to a window; 0: none does."""

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads is {self.heads}; a multiple of the {self.kv_heads} KV heads is wanted")
        return self

    @property
    def kv_elements(self) -> int:
        """Elements in the KV cache per token and layer, over all KV heads."""
        return 2 * self.kv_heads * self.head_dim

    def kv_heads_on_rank(self, ranks: int) -> int:
        """Returns the KV heads on each of some tensor-parallel ranks, at least one."""
        return max(1, self.kv_heads // ranks)

    def kv_bytes_on_rank(self, ranks: int, storage: str) -> float:
        """Returns the KV cache [B] per token and layer on each of some tensor-parallel ranks."""
        return STORAGE_BYTES[storage] * 2 * self.kv_heads_on_rank(ranks) * self.head_dim


class MixtureOfExperts(Frozen):
    """The routed experts of a layer and the expert that every token takes."""

    experts: int = Field(ge=1)
    top_k: int = Field(ge=1)
    expert_intermediate: int = Field(ge=1)
    shared_experts: int = Field(ge=0)
    dense_layers_first: int = Field(default=0, ge=0)
    """Layers before the first one with experts."""
    every: int = Field(default=1, ge=1)
    """Of the layers behind those, the last of every so many has experts."""
    shared_intermediate: int | None = Field(default=None, ge=1)
    """Columns of all shared experts together; left out, as many as `shared_experts` routed ones have."""
    routing_skew: float = Field(ge=0, le=4)
    """Exponent of the power law over experts by rank; 0 is uniform routing."""
    routing_source: str

    @model_validator(mode="after")
    def _check_top_k(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k is {self.top_k}; at most the {self.experts} experts is wanted")
        return self

    @property
    def shared_columns(self) -> int:
        """Columns of all shared experts together."""
        return self.shared_intermediate or self.shared_experts * self.expert_intermediate

    def in_layer(self, index: int) -> bool:
        """Returns whether a layer has experts."""
        return index >= self.dense_layers_first and (index + 1) % self.every == 0


class Precision(Frozen):
    """How each kind of tensor is stored."""

    routed_experts: Storage = "bf16"
    shared_expert: Storage = "bf16"
    attention: Storage
    dense_mlp: Storage = "bf16"
    router: Storage = "bf16"
    embedding: Storage
    lm_head: Storage
    activations: Literal["bf16", "fp8"]
    kv_cache: Literal["bf16", "fp8"]
    mean_bytes: dict[str, float] = Field(default_factory=dict)
    """Bytes per parameter, by kind, where a checkpoint stores tensors of one kind in several forms."""

    def bytes_per_parameter(self, kind: str) -> float:
        """Returns the bytes that a parameter of a kind of tensor takes, its share of scales with it."""
        return self.mean_bytes.get(kind) or STORAGE_BYTES[getattr(self, kind)]


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
    dense_intermediate: int = Field(default=0, ge=0)
    """Columns of the MLP of a layer without experts; 0 where every layer has them."""
    tied_embeddings: bool
    attention: Annotated[MlaAttention | GqaAttention, Field(discriminator="kind")]
    moe: MixtureOfExperts | None = None
    """Left out for a dense model."""
    precision: Precision
    vision_tower: Bytes = 0.0
    """Vision weights that every rank of every stage loads."""
    vision_layers: int = Field(default=24, ge=1)
    vision_width: int = Field(default=1024, ge=1)
    """`num_hidden_layers` and `hidden_size` of the vision tower; left out, what SGLang takes where they are."""
    text_weights_tolerance: Fraction = 0.01
    """How far the computed text weights may lie from `text_weights`."""
    text_weights: Annotated[Bytes, Field(ge=1e6)] | None = None
    """Published sum of the text tensors: the shapes above must add up to it. Left out where nobody published it."""
    source: str
    sources: dict[str, Source]

    @model_validator(mode="after")
    def _check_sums(self) -> Self:
        named = [("source", self.source)]
        if self.moe is not None:
            named.append(("moe.routing_source", self.moe.routing_source))
        for key, source in named:
            if source not in self.sources:
                raise ValueError(f'{key} names "{source}"; one of {sorted(self.sources)} is wanted')
        if self.moe is not None and self.moe.dense_layers_first > self.layers:
            raise ValueError(
                f"moe.dense_layers_first is {self.moe.dense_layers_first}; at most the {self.layers} layers is wanted"
            )
        if not self.dense_intermediate and {"dense_layer", "window_dense_layer"} & set(self.layer_kinds()):
            raise ValueError("dense_intermediate is 0; the columns of the MLP of its dense layers is wanted")
        return self

    def layer_kinds(self, first: int = 0, count: int | None = None) -> Counter[LayerKind]:
        """Returns how many layers of each kind there are among `count` from the `first`, in the whole model if None."""
        last = self.layers if count is None else first + count
        return Counter(_layer_kinds(self.moe, self.attention, first, last))

    @property
    def dense_columns(self) -> int:
        """Columns of the dense MLPs that the model has; 0 if it has none."""
        return self.dense_intermediate if {"dense_layer", "window_dense_layer"} & set(self.layer_kinds()) else 0

    def with_kv_cache(self, storage: Storage) -> Self:
        """Returns the same model with its KV cache stored in another format."""
        return self.model_copy(update={"precision": self.precision.model_copy(update={"kv_cache": storage})})

    def __repr__(self) -> str:
        return f"ModelProfile({self.name!r})"


@lru_cache(maxsize=4096)  # a search for the best split asks for the layers of thousands of stages
def _layer_kinds(
    moe: MixtureOfExperts | None, attention: MlaAttention | GqaAttention, first: int, last: int
) -> Counter[LayerKind]:
    return Counter(_layer_kind(moe, attention, index) for index in range(first, last))


def _layer_kind(moe: MixtureOfExperts | None, attention: MlaAttention | GqaAttention, index: int) -> LayerKind:
    experts = moe is not None and moe.in_layer(index)
    if isinstance(attention, GqaAttention) and attention.sliding_window:
        every = attention.full_attention_every
        if not every or (index + 1) % every:
            return "window_expert_layer" if experts else "window_dense_layer"
    return "expert_layer" if experts else "dense_layer"
