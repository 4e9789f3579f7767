"""Decoders by HF `architectures[0]`: what their layers are made of, and what their files leave unsaid.

The text model inside a multimodal one leaves out every key that its class has as default (transformers
`configuration_utils.PretrainedConfig.to_diff_dict`), so the defaults of those classes stand here.
"""

from collections.abc import Mapping
from typing import Any

LATENT = (
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "DeepseekV32ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "GlmMoeDsaForCausalLM",
    "KimiK2ForCausalLM",
    "KimiK25ForConditionalGeneration",
    "MiniCPM3ForCausalLM",
)
GROUPED_EXPERTS = (
    "BailingMoeForCausalLM",
    "BailingMoeV2ForCausalLM",
    "DeepseekForCausalLM",
    "Dots1ForCausalLM",
    "Ernie4_5_MoeForCausalLM",
    "Glm4MoeForCausalLM",
    "GptOssForCausalLM",
    "GraniteMoeForCausalLM",
    "GraniteMoeSharedForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "Llama4ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MixtralForCausalLM",
    "OlmoeForCausalLM",
    "PhiMoEForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "SolarOpenForCausalLM",
)
GROUPED_DENSE = (
    "BaichuanForCausalLM",
    "Cohere2ForCausalLM",
    "CohereForCausalLM",
    "Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "Glm4ForCausalLM",
    "GlmForCausalLM",
    "GraniteForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "InternLM2ForCausalLM",
    "InternLM3ForCausalLM",
    "LlamaForCausalLM",
    "MiMoForCausalLM",
    "MiniCPMForCausalLM",
    "MistralForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SeedOssForCausalLM",
    "SmolLM3ForCausalLM",
    "SolarForCausalLM",
)
ARCHITECTURES = (*LATENT, *GROUPED_EXPERTS, *GROUPED_DENSE)
"""HF `architectures[0]` that pipesim knows the layers of."""

MODEL_TYPES = {
    "bailing_moe": "BailingMoeForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "glm4v_text": "Glm4ForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "kimi_k25": "KimiK25ForConditionalGeneration",
    "llama": "LlamaForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "ministral3": "MistralForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "phimoe": "PhiMoEForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""By `model_type`: for the text model inside a multimodal one, whose own architecture is another name."""

FLAT_MULTIMODAL = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
}
"""Multimodal models whose files give the text model's keys at the top, beside a `vision_config`."""

TIED_BY_DEFAULT = (
    "Cohere2ForCausalLM",
    "CohereForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "MiniCPM3ForCausalLM",
    "MiniCPMForCausalLM",
    "SmolLM3ForCausalLM",
)

NESTED_DEFAULTS: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "llama4_text": {
        "vocab_size": 202048,
        "hidden_size": 5120,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "interleave_moe_layer_step": 1,
    },
    "mistral": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
    "qwen3": {
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
        "max_position_embeddings": 32768,
    },
}
"""By `model_type`: defaults of transformers' classes (models/*/configuration_*.py)."""

PRICED_OTHERWISE = {
    "Cohere2ForCausalLM": "attention and MLP stand side by side in this model and are priced one behind the other",
    "CohereForCausalLM": "attention and MLP stand side by side in this model and are priced one behind the other",
    "DeepseekV32ForCausalLM": "sparse attention is priced as attention to every token, its indexer left out: contexts "
    "beyond index_topk tokens come out too slow",
    "GlmMoeDsaForCausalLM": "sparse attention is priced as attention to every token, its indexer left out: contexts "
    "beyond index_topk tokens come out too slow",
    "Llama4ForCausalLM": "attention within chunks of attention_chunk_size tokens is priced as attention to every token",
}
"""What a person should know of an architecture whose layers are not quite those that are priced."""

FOREIGN_KEYS = {
    "linear_attn_config": "linear attention",
    "linear_num_value_heads": "linear attention (gated delta net)",
    "hybrid_override_pattern": "Mamba layers",
    "mamba_d_state": "Mamba layers",
    "mamba_d_ssm": "Mamba layers",
    "ssm_state_size": "Mamba layers",
    "state_size": "Mamba layers",
    "attn_layer_period": "Mamba layers",
    "layer_group_size": "linear attention",
    "attn_type_list": "lightning attention",
    "block_configs": "layers that differ one by one (block_configs)",
    "cross_attention_layers": "cross-attention to images",
    "hybrid_layer_pattern": "window layers with other heads than full ones",
    "share_q_dim": "multi-matrix factorisation attention",
    "per_layer_config": "layers that differ one by one (per_layer_config)",
    "zero_expert_num": "zero-computation experts",
}
"""Keys that only models have whose layers pipesim cannot describe, and what those layers are."""

FOREIGN_LAYERS = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "gated_deltanet", "hybrid"}
"""Entries of `layer_types` that are no attention."""


def foreign_layers(config: Mapping[str, Any]) -> str:
    """Returns what a text model has that pipesim cannot describe, empty where it names nothing of the kind."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and (found := {str(kind) for kind in kinds} & FOREIGN_LAYERS):
        return f"layers of {', '.join(sorted(found))}"
    if config.get("use_cla") and config.get("cla_share_factor", 1) != 1:
        return "keys and values shared between layers (use_cla)"
    for key, what in FOREIGN_KEYS.items():
        value = config.get(key)
        if value and not (key == "attn_type_list" and isinstance(value, list) and set(value) == {1}):
            return what
    return ""
