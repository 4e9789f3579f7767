"""Files of public models as their owners wrote them: sizes as published, what they leave unsaid, and what is refused.

Published counts are those of the model cards and of the safetensors metadata on the models' pages.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pipesim.cost.memory import active_parameters, model_bytes, parameters
from pipesim.profiles.architectures import ARCHITECTURES, GROUPED_DENSE, LATENT
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_model
from tests.conftest import RunCli


def shapes(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, columns: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "architectures": [name],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": columns,
        "vocab_size": vocab,
        "max_position_embeddings": 131072,
        **more,
    }


def within(name: str, model_type: str, text: dict[str, Any], **more: Any) -> dict[str, Any]:
    inner = {key: value for key, value in text.items() if key != "architectures"}
    return {"architectures": [name], "text_config": inner | {"model_type": model_type}, "vision_config": {}, **more}


def read(folder: Path, config: dict[str, Any], beside: dict[str, Any] | None = None) -> ModelProfile:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if beside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(beside), encoding="utf-8")
    return load_model(str(folder / "config.json"))


LLAMA_70B = shapes("LlamaForCausalLM", 80, 8192, 64, 8, 28672, 128256)
LLAMA_4 = {"head_dim": 128, "num_experts_per_tok": 1, "tie_word_embeddings": False}
DEEPSEEK = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}
DEEPSEEK_V3 = DEEPSEEK | {"q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128}
EXPERTS = {"num_experts": 64, "num_experts_per_tok": 8}

PUBLISHED: dict[str, tuple[dict[str, Any], float, float | None]] = {
    "Llama-4-Scout-17B-16E": (
        within(
            "Llama4ForConditionalGeneration",
            "llama4_text",
            {"num_hidden_layers": 48, "interleave_moe_layer_step": 1, "num_local_experts": 16, **LLAMA_4},
        ),
        107.8,
        17,
    ),
    "Llama-4-Maverick-17B-128E": (
        within(
            "Llama4ForConditionalGeneration",
            "llama4_text",
            {"num_hidden_layers": 48, "interleave_moe_layer_step": 2, "num_local_experts": 128, **LLAMA_4},
        ),
        400.7,
        17,
    ),
    "gemma-3-4b-it": (
        within(
            "Gemma3ForConditionalGeneration",
            "gemma3_text",
            {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024},
        ),
        3.88,
        None,
    ),
    "gemma-7b": (shapes("GemmaForCausalLM", 28, 3072, 16, 16, 24576, 256000, head_dim=256), 8.54, None),
    "Mistral-Small-3.1-24B": (
        within(
            "Mistral3ForConditionalGeneration",
            "mistral",
            {
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "num_hidden_layers": 40,
                "head_dim": 128,
                "vocab_size": 131072,
                "sliding_window": None,
            },
        ),
        23.57,
        None,
    ),
    "llava-1.5-7b": (within("LlavaForConditionalGeneration", "llama", {"vocab_size": 32064}), 6.74, None),
    "Qwen2.5-VL-72B": (shapes("Qwen2_5_VLForConditionalGeneration", 80, 8192, 64, 8, 29568, 152064), 72.7, None),
    "GLM-4.5V": (
        within(
            "Glm4vMoeForConditionalGeneration",
            "glm4v_moe_text",
            shapes("", 46, 4096, 96, 8, 10944, 151552, head_dim=128)
            | {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8}
            | {"moe_intermediate_size": 1408, "first_k_dense_replace": 1},
        ),
        106.85,
        12,
    ),
    "DeepSeek-V3.2": (shapes("DeepseekV32ForCausalLM", 61, 7168, 128, 128, 18432, 129280, **DEEPSEEK_V3), 671, 37),
    "GLM-5": (
        shapes("GlmMoeDsaForCausalLM", 78, 6144, 64, 64, 12288, 154880)
        | DEEPSEEK
        | {"q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256},
        744,
        40,
    ),
    "OLMoE-1B-7B": (shapes("OlmoeForCausalLM", 16, 2048, 16, 16, 1024, 50304, **EXPERTS), 6.92, None),
    "Phi-3.5-MoE": (
        shapes("PhiMoEForCausalLM", 32, 4096, 32, 8, 6400, 32064, num_local_experts=16, num_experts_per_tok=2),
        41.9,
        6.6,
    ),
    "Hunyuan-A13B": (
        shapes("HunYuanMoEV1ForCausalLM", 32, 4096, 32, 8, 3072, 128167, tie_word_embeddings=True)
        | {"num_experts": 64, "moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32, "num_shared_expert": [1] * 32}
        | {"attention_head_dim": 128},
        80.4,
        13,
    ),
    "ERNIE-4.5-300B-A47B": (
        shapes("Ernie4_5_MoeForCausalLM", 54, 8192, 64, 8, 28672, 103424)
        | {"moe_num_experts": 64, "moe_k": 8, "moe_intermediate_size": 3584, "moe_layer_start_index": 3},
        299.5,
        47,
    ),
    "Ling-flash-2.0": (
        shapes("BailingMoeV2ForCausalLM", 32, 4096, 32, 4, 9216, 157184, head_dim=128, num_shared_experts=1)
        | {"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024, "first_k_dense_replace": 1},
        103,
        None,
    ),
    "granite-3.1-8b": (
        shapes("GraniteForCausalLM", 40, 4096, 32, 8, 12800, 49155, tie_word_embeddings=True),
        8.17,
        None,
    ),
    "command-r-plus": (shapes("CohereForCausalLM", 64, 12288, 96, 8, 33792, 256000), 103.8, None),
    "OLMo-2-32B": (shapes("Olmo2ForCausalLM", 64, 5120, 40, 8, 27648, 100352), 32.2, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_public_models_are_those_published(name: str, tmp_path: Path) -> None:
    config, total, active = PUBLISHED[name]
    model = read(tmp_path, config)
    assert parameters(model) / 1e9 == pytest.approx(total, rel=0.012)
    if active is not None:
        assert active_parameters(model) / 1e9 == pytest.approx(active, rel=0.08)


def test_a_quantisation_written_beside_the_file_counts(tmp_path: Path) -> None:
    """ModelOpt's hf_quant_config.json, as beside DeepSeek-R1 in NVFP4: 394 GB on its page."""
    spared = ["lm_head", *(f"model.layers.{layer}.self_attn*" for layer in range(61))]
    beside = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": spared}}
    config = shapes("DeepseekV3ForCausalLM", 61, 7168, 128, 128, 18432, 129280, **DEEPSEEK_V3)
    model = read(tmp_path, config, beside)
    assert model_bytes(model) / 1e9 == pytest.approx(394, rel=0.01)
    assert model.precision.kv_cache == "fp8"


FP8_GROUP = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}
ODD: dict[str, dict[str, Any]] = {
    "ignore null": {"quant_method": "compressed-tensors", "config_groups": FP8_GROUP, "ignore": None},
    "Quark": {
        "quant_method": "quark",
        "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
        "exclude": ["lm_head"],
    },
    "prefix of a multimodal model": {
        "quant_method": "compressed-tensors",
        "config_groups": FP8_GROUP,
        "ignore": ["language_model.lm_head", "model.language_model.layers.0.mlp.gate"],
    },
    "one algorithm a layer": {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            f"model.layers.{layer}.{module}": {"quant_algo": "FP8"}
            for layer in range(80)
            for module in ("self_attn.o_proj", "mlp.down_proj")
        },
    },
}


@pytest.mark.parametrize("case", ODD)
def test_odd_ways_to_say_fp8_are_understood(case: str, tmp_path: Path) -> None:
    precision = read(tmp_path, LLAMA_70B | {"quantization_config": ODD[case]}).precision
    assert (precision.attention, precision.dense_mlp) == ("fp8", "fp8")
    assert precision.lm_head == ("fp8" if case == "ignore null" else "bf16")


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "Qwen3-Next": ({"architectures": ["Qwen3NextForCausalLM"], "linear_num_value_heads": 32}, "linear attention"),
    "Qwen3.5": (
        within("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", {"layer_types": ["linear_attention"] * 3}),
        "linear_attention",
    ),
    "Nemotron-H": ({"architectures": ["NemotronHForCausalLM"], "hybrid_override_pattern": "M-M*"}, "Mamba layers"),
    "Nemotron-Super": ({"architectures": ["DeciLMForCausalLM"], "block_configs": [{}]}, "differ one by one"),
    "Llama-3.2-Vision": (
        within("MllamaForConditionalGeneration", "mllama_text_model", {"cross_attention_layers": [3, 8]}),
        "cross-attention",
    ),
    "a Llama with layers that are none": (LLAMA_70B | {"layer_types": ["mamba", "full_attention"] * 40}, "mamba"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_of_other_layers_is_refused_with_what_they_are(name: str, run_cli: RunCli, tmp_path: Path) -> None:
    config, words = FOREIGN[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    ran = run_cli("import", "hf-config", path)
    assert ran.code == 2
    assert words in ran.err.replace("\n", " ")


def test_no_architecture_is_of_two_kinds() -> None:
    assert len(set(ARCHITECTURES)) == len(ARCHITECTURES)
    assert not set(LATENT) & set(GROUPED_DENSE)
