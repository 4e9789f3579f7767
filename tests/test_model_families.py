"""Every shipped model adds up: to what was published, over TP ranks, over PP stages, and in FLOPs."""

import math

import pytest

from pipesim.cost.experts import distinct_experts
from pipesim.cost.memory import active_parameters, kv_bytes_per_token, model_bytes, parameters, weight_bytes
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.base import settle
from pipesim.errors import UsageError
from pipesim.families import FAMILIES, family_of
from pipesim.ops import Compute, Experts, SideStream
from pipesim.profiles.model import STORAGE_BYTES, GqaAttention, ModelProfile
from pipesim.profiles.store import available, load_model
from pipesim.workload import DecodeStep
from tests.conftest import BOX

MODELS = {name: load_model(name) for name in available("model")}

PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.3-70b-instruct-awq": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-coder-30b-a3b-awq": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "minimax-m2": 228_689_748_992,
    "deepseek-v3": 671e9,
    "deepseek-r1": 671e9,
    "kimi-k2.6": 1_026_407_202_816,
    "kimi-k2.5": 1_026_407_202_816,
    "kimi-k2-thinking": 1_026_407_202_816,
    "kimi-k2-instruct": 1_026_407_202_816,
}
"""Of the text model: safetensors metadata on the model pages; DeepSeek-V3, arXiv:2412.19437; Kimi: its shapes."""

CHECKPOINT_BYTES = {
    "llama-3.1-8b": 16_060_522_496,
    "llama-3.1-70b": 141_107_412_992,
    "mixtral-8x7b": 93_405_585_408,
    "qwen3-30b-a3b": 61_064_245_248,
    "qwen3-235b-a22b": 470_187_269_120,
    "gpt-oss-120b": 60.8 * 2**30,
    "kimi-k2.6": 594_205_351_936,
    "kimi-k2.5": 594_205_351_936,
}
"""Checkpoints without vision tower and draft layers: safetensors index; gpt-oss: model card (arXiv:2508.10925)."""

ACTIVE = {
    "deepseek-v3": (37e9, "all"),
    "deepseek-r1": (37e9, "all"),
    "kimi-k2.6": (32e9, "no embedding"),
    "kimi-k2.5": (32e9, "no embedding"),
    "kimi-k2-thinking": (32e9, "no embedding"),
    "kimi-k2-instruct": (32e9, "no embedding"),
    "qwen3-30b-a3b": (3.3e9, "all"),
    "qwen3-235b-a22b": (22e9, "all"),
    "glm-4.5": (32e9, "layers"),
    "glm-4.6": (32e9, "layers"),
    "glm-4.5-air": (12e9, "layers"),
    "minimax-m2": (10e9, "layers"),
    "gpt-oss-120b": (5.13e9, "no embedding"),
    "gpt-oss-20b": (3.61e9, "no embedding"),
    "mixtral-8x7b": (12.9e9, "all"),
    "llama-3.1-8b": (8.03e9, "all"),
    "llama-3.1-70b": (70.6e9, "all"),
}
"""Active parameters as published, and what is counted: everything, all but the embedding, or the layers alone.

Technical reports and model cards: arXiv:2412.19437 (DeepSeek-V3), 2507.20534 (Kimi K2), 2505.09388 (Qwen3), 2508.06471
(GLM-4.5, "neither word embeddings nor the output layer"), 2508.10925 (gpt-oss), 2401.04088 (Mixtral)."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_add_up_to_the_published_count(name: str) -> None:
    assert parameters(MODELS[name]) == pytest.approx(PARAMETERS[name], rel=0.001)


@pytest.mark.parametrize("name", CHECKPOINT_BYTES)
def test_weights_add_up_to_the_published_checkpoint(name: str) -> None:
    assert model_bytes(MODELS[name]) == pytest.approx(CHECKPOINT_BYTES[name], rel=0.01)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_published(name: str) -> None:
    (published, counted), model = ACTIVE[name], MODELS[name]
    matrix = model.vocab_size * model.hidden_size
    further = {"all": matrix, "no embedding": 0, "layers": -matrix}[counted]
    assert active_parameters(model) + further == pytest.approx(published, rel=0.02)


def test_every_shipped_model_is_of_a_known_family() -> None:
    assert {model.architecture for model in MODELS.values()} <= set(FAMILIES)
    assert len(MODELS) >= 15


@pytest.mark.parametrize("name", MODELS)
def test_flops_of_a_decode_step_are_twice_the_active_parameters(name: str) -> None:
    """Attention over the KV cache aside, and with experts counted by the rows that they really get."""
    model = MODELS[name]
    step = DecodeStep(requests=1, kv_tokens=64, rows=1, captured=True)
    flops = 0.0
    for section, times in (("embedding", 1), *model.layer_kinds().items(), ("head", 1)):
        for op in family_of(model).operations(model, section, step, ParallelPlan()):
            for kernel in op.kernels if isinstance(op, SideStream) else (op,):
                if isinstance(kernel, Experts):
                    flops += times * 2.0 * kernel.top_k * kernel.weights_per_expert
                elif isinstance(kernel, Compute) and kernel.kernel not in {"gqa_decode"}:
                    flops += times * kernel.work.flops
    assert flops == pytest.approx(2.0 * active_parameters(model), rel=0.01)


def deployed(model: ModelProfile, plan: ParallelPlan) -> object:
    box = BOX.model_copy(update={"gpus": 64})
    return settle(model, box, plan, EngineSettings(), ENGINES["sglang"])


def padding(model: ModelProfile, tp: int) -> float:
    """Bytes that MXFP4 experts take more on all ranks: columns fill up to multiples of 128, the hidden size of 256."""
    moe, hidden = model.moe, model.hidden_size
    if moe is None or model.precision.routed_experts != "mxfp4":
        return 0.0
    columns = moe.expert_intermediate // tp
    more = -(-columns // 128) * 128 * -(-hidden // 256) * 256 - columns * hidden
    return model.layers * moe.experts * 3 * tp * more * STORAGE_BYTES["mxfp4"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_pipeline_stages_hold_the_model_once(name: str, pp: int) -> None:
    model = MODELS[name]
    held = sum(weight_bytes(deployed(model, ParallelPlan(1, pp)), stage) for stage in range(pp))  # type: ignore[arg-type]
    assert held == pytest.approx(model_bytes(model) + padding(model, 1), rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [2, 4, 8, 16])
def test_tensor_parallel_ranks_hold_the_model_and_their_copies(name: str, tp: int) -> None:
    """Sharded tensors once, replicated ones on each, KV heads at least one to a rank."""
    model = MODELS[name]
    attention = model.attention
    copies = 0.0
    for section, times in (("embedding", 1), *model.layer_kinds().items(), ("head", 1)):
        for tensor in family_of(model).tensors(model, section):
            size = times * STORAGE_BYTES[getattr(model.precision, tensor.precision)] * tensor.parameters
            shards = min(tp, tensor.most_shards or tp) if tensor.sharded else 1
            copies += size * (tp / shards - 1)
    if attention.heads % tp or (model.moe and model.moe.shared_columns % tp) or model.dense_columns % tp:
        pytest.skip(f"TP{tp} does not divide {name}")
    if model.precision.routed_experts == "fp8-block" and model.moe and model.moe.expert_intermediate // tp % 128:
        with pytest.raises(UsageError, match="block_n"):
            deployed(model, ParallelPlan(tp))  # type: ignore[arg-type]
        return
    held = tp * weight_bytes(deployed(model, ParallelPlan(tp, 1)), 0)  # type: ignore[arg-type]
    assert held == pytest.approx(model_bytes(model) + copies + padding(model, tp), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("kimi-k2.6", 61 * 1152),
        ("deepseek-v3", 61 * 1152),
        ("qwen3-30b-a3b", 48 * 2048),
        ("llama-3.1-70b", 80 * 4096),
        ("gpt-oss-120b", 18 * 2048),
    ],
)
def test_kv_cache_bytes_per_token(name: str, per_token: int) -> None:
    """Of gpt-oss the 18 layers without a window grow with the context."""
    assert kv_bytes_per_token(deployed(MODELS[name], ParallelPlan()), 0) == per_token  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if isinstance(model.attention, GqaAttention)])
def test_kv_heads_are_dealt_out_until_each_rank_has_one(name: str) -> None:
    model = MODELS[name]
    assert isinstance(model.attention, GqaAttention)
    heads, whole = model.attention.kv_heads, kv_bytes_per_token(deployed(model, ParallelPlan()), 0)  # type: ignore[arg-type]
    for tp in (2, 4, 8):
        ep = tp if model.moe else 1  # so that no block of an expert is cut
        held = kv_bytes_per_token(deployed(model, ParallelPlan(tp, ep=ep)), 0)  # type: ignore[arg-type]
        assert held == whole / min(tp, heads)


def test_a_full_batch_touches_every_expert() -> None:
    for model in MODELS.values():
        if model.moe is not None:
            touched = distinct_experts(1_000_000, model.moe.experts, model.moe.top_k, model.moe.routing_skew)
            assert math.isclose(touched, model.moe.experts, rel_tol=1e-3)
