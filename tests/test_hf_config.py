"""A config.json becomes a model: its layers, and how every common quantisation stores them."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipesim.profiles.model import GqaAttention
from pipesim.profiles.store import load_model
from tests.conftest import RunCli

LLAMA = {
    "_name_or_path": "example/Small-Llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
QWEN_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 256,
    "first_k_dense_replace": 1,
}


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


def group(**weights: object) -> dict[str, Any]:
    return {"group_0": {"targets": ["Linear"], "weights": weights}}


QUANTISED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, str]]] = {
    "none": (QWEN_MOE, {}, {"routed_experts": "bf16", "attention": "bf16", "lm_head": "bf16"}),
    "compressed-tensors INT4 of experts only": (
        DEEPSEEK,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": group(num_bits=4, type="int", group_size=32, symmetric=True),
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"],
        },
        {"routed_experts": "int4-g32", "attention": "bf16", "shared_expert": "bf16", "dense_mlp": "bf16"},
    ),
    "compressed-tensors FP8": (
        LLAMA,
        {
            "quant_method": "compressed-tensors",
            "config_groups": group(num_bits=8, type="float", strategy="channel"),
            "ignore": ["lm_head"],
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        },
        {"attention": "fp8", "dense_mlp": "fp8", "lm_head": "bf16", "kv_cache": "fp8"},
    ),
    "compressed-tensors NVFP4": (
        LLAMA,
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "config_groups": group(num_bits=4, type="float", group_size=16),
            "ignore": ["lm_head", "model.layers.0.self_attn.o_proj"],
        },
        {"attention": "nvfp4", "dense_mlp": "nvfp4", "lm_head": "bf16"},
    ),
    "AWQ": (
        QWEN_MOE,
        {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": ["gate"]},
        {"routed_experts": "int4-g128-zp", "attention": "int4-g128-zp", "router": "bf16", "lm_head": "bf16"},
    ),
    "GPTQ": (
        LLAMA,
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
        {"attention": "int4-g128", "dense_mlp": "int4-g128", "lm_head": "bf16"},
    ),
    "GPTQ of 8 bits": (LLAMA, {"quant_method": "gptq", "bits": 8, "group_size": -1}, {"attention": "int8"}),
    "FP8 per block": (
        DEEPSEEK,
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        {"routed_experts": "fp8-block", "attention": "fp8-block", "router": "bf16", "lm_head": "bf16"},
    ),
    "FP8 per tensor": (LLAMA, {"quant_method": "fp8"}, {"attention": "fp8", "dense_mlp": "fp8", "lm_head": "bf16"}),
    "MXFP4 of experts": (
        QWEN_MOE,
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
        {"routed_experts": "mxfp4", "attention": "bf16", "lm_head": "bf16"},
    ),
    "ModelOpt NVFP4": (
        QWEN_MOE,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "model.layers.*.self_attn*"]},
        {"routed_experts": "nvfp4", "attention": "bf16", "router": "bf16"},
    ),
}


@pytest.mark.parametrize("case", QUANTISED)
def test_each_quantisation_is_read_from_the_file(case: str, tmp_path: Path) -> None:
    config, quantised, wanted = QUANTISED[case]
    path = written(tmp_path, config | ({"quantization_config": quantised} if quantised else {}))
    precision = load_model(str(path)).precision.model_dump()
    assert {kind: precision[kind] for kind in wanted} == wanted


def test_a_config_works_directly_wherever_a_model_is_asked_for(run_cli: RunCli, tmp_path: Path) -> None:
    path = written(tmp_path, QWEN_MOE)
    for given in (path, path.parent):
        ran = run_cli("predict", "--model", given, "--tp", 2, "--concurrency", 4, "--num-prompts", 4, "--json")
        assert ran.json["feasible"]
        assert ran.json["deployment"]["model"] == "small-llama"


def test_an_imported_profile_reads_back_as_the_same_model(run_cli: RunCli, tmp_path: Path) -> None:
    path, out = written(tmp_path, DEEPSEEK), tmp_path / "small.toml"
    assert run_cli("import", "hf-config", path, "-o", out).code == 0
    assert load_model(str(out)) == load_model(str(path))


def test_json_gives_the_profile_and_its_sizes(run_cli: RunCli, tmp_path: Path) -> None:
    document = run_cli("import", "hf-config", written(tmp_path, LLAMA), "--json").json
    assert document["kind"] == "model"
    assert document["model"]["layers"] == 4
    per_layer = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1024
    assert document["parameters"] == pytest.approx(4 * per_layer + 2 * 1000 * 512, rel=0.01)


def test_the_text_model_of_a_multimodal_one_is_taken_with_its_vision_tower(tmp_path: Path) -> None:
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": DEEPSEEK | {"model_type": "kimi_k2"},
        "vision_config": {"vt_hidden_size": 64, "vt_num_hidden_layers": 2, "vt_intermediate_size": 128},
    }
    model = load_model(str(written(tmp_path, config)))
    assert model.layers == 4
    assert model.vision_tower > 0


@pytest.mark.parametrize(
    ("config", "window", "every"),
    [
        ({"sliding_window": None}, 0, 0),
        ({"sliding_window": 128}, 128, 0),
        ({"sliding_window": 8192}, 0, 0),
        ({"sliding_window": 128, "use_sliding_window": False}, 0, 0),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2}, 128, 2),
        ({"sliding_window": 128, "layer_types": ["full_attention"] * 4}, 0, 0),
    ],
)
def test_layers_with_a_window_are_told_from_those_without(
    tmp_path: Path, config: dict[str, Any], window: int, every: int
) -> None:
    attention = load_model(str(written(tmp_path, LLAMA | config))).attention
    assert isinstance(attention, GqaAttention)
    assert (attention.sliding_window, attention.full_attention_every) == (window, every)


def test_experts_in_every_second_layer(tmp_path: Path) -> None:
    model = load_model(str(written(tmp_path, QWEN_MOE | {"decoder_sparse_step": 2})))
    assert model.layer_kinds() == {"dense_layer": 2, "expert_layer": 2}


BAD: dict[str, tuple[object, tuple[str, ...]]] = {
    "empty": ("", ("an empty file",)),
    "cut off": ('{"architectures": ["Llama', ("line 1", "a complete config.json")),
    "a list": ("[]", ("an object",)),
    "no key": ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, ("vocab_size", "nothing was given")),
    "a text for a number": (LLAMA | {"hidden_size": "512"}, ("hidden_size", "'512'")),
    "an encoder": ({"architectures": ["BertModel"], "num_hidden_layers": 2}, ("architectures", '"BertModel"')),
    "a vision model": ({"model_type": "clip_vision_model", "hidden_size": 64}, ("architectures",)),
    "an unknown decoder": (LLAMA | {"architectures": ["MambaForCausalLM"]}, ('"MambaForCausalLM"', "FAMILIES")),
    "KV heads that do not divide": (LLAMA | {"num_key_value_heads": 3}, ("num_key_value_heads", "3 beside 8")),
    "no head size": (LLAMA | {"hidden_size": 513}, ("num_attention_heads", "513")),
    "more active experts than there are": (QWEN_MOE | {"num_experts_per_tok": 17}, ("17 beside 16 experts",)),
    "experts missing": (LLAMA | {"architectures": ["MixtralForCausalLM"]}, ("num_experts", "nothing")),
    "an unknown method": (LLAMA | {"quantization_config": {"quant_method": "hqq"}}, ("quant_method", '"hqq"')),
    "three bits": (LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 3}}, ("bits", "3 was given")),
    "no groups": (LLAMA | {"quantization_config": {"quant_method": "compressed-tensors"}}, ("config_groups",)),
    "gaps among dense layers": (QWEN_MOE | {"mlp_only_layers": [2]}, ("mlp_only_layers", "[2]")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_says_too_little_or_too_much_is_refused_by_key(
    case: str, run_cli: RunCli, tmp_path: Path
) -> None:
    config, words = BAD[case]
    path = written(tmp_path, config)
    out = tmp_path / "out.toml"
    ran = run_cli("import", "hf-config", path, "-o", out)
    assert ran.code == 2
    assert "config.json" in ran.err
    assert [word for word in words if word not in ran.err] == []
    assert not out.exists()


def test_a_binary_file_and_a_missing_one_are_refused(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\x80\x81\xff")
    assert "binary" in run_cli("import", "hf-config", tmp_path / "config.json").err
    assert "config.json" in run_cli("import", "hf-config", tmp_path / "nowhere.json").err
