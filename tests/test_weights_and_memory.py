"""What each GPU holds: published byte counts, shards that add up to the model, and SGLang's rules for what is left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.cost.memory import kv_bytes_per_token, model_bytes, rank_memory, weight_bytes
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, vllm
from pipesim.engines.base import settle
from pipesim.engines.sglang import layer_partition, max_running_requests, micro_batch_cap
from pipesim.engines.sglang_memory import (
    captured_sizes,
    default_fraction,
    kv_capacity_tokens,
    largest_captured,
)
from pipesim.families import Section, family_of
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import STORAGE_BYTES, ModelProfile
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import DecodeStep

GIB, MIB = 2**30, 2**20
BOX, KIMI = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
WALL = BOX.model_copy(update={"gpus": 1024})
"""As many of the box's GPUs as any split asks for."""

HIDDEN, EXPERT = 7168, 3 * 7168 * 2048
ATTENTION = 7168 * (1536 + 512 + 64) + 64 * (1536 * 192 + 512 * 256 + 128 * 7168)
"""q_a, kv_a with its rotary key; q_b, kv_b and o over 64 heads."""
CORRECTION_BIAS = 4 * 384
"""The router's FP32 correction bias of one layer [B]: in the published sums, too small for the model to carry."""

PUBLISHED_GIB = {
    (8, 1): [70.95],
    (4, 2): [67.75, 72.12],
    (2, 4): [65.75, 68.76, 68.76, 74.44],
    (1, 8): [57.92, 63.94, 63.94, 73.08, 73.08, 73.08, 73.08, 75.27],
}


def deployment(
    tp: int,
    pp: int,
    settings: EngineSettings | None = None,
    *,
    layers: tuple[int, ...] | None = None,
    model: ModelProfile = KIMI,
    box: HardwareProfile = BOX,
) -> Deployment:
    settings = settings or EngineSettings()
    return settle(model, box, ParallelPlan(tp, pp, layers), settings, ENGINES[settings.name])


def stored(section: Section, kinds: set[str] | None = None) -> float:
    """Bytes of some kinds of tensor in one section of Kimi K2.6."""
    return sum(
        tensor.parameters * STORAGE_BYTES[getattr(KIMI.precision, tensor.precision)]
        for tensor in family_of(KIMI).tensors(KIMI, section)
        if kinds is None or tensor.precision in kinds
    )


# --- weights


@pytest.mark.parametrize(("tp", "pp"), PUBLISHED_GIB)
def test_weights_per_gpu_are_the_published_ones(tp: int, pp: int) -> None:
    split = deployment(tp, pp)
    gibibytes = [weight_bytes(split, stage) / GIB for stage in range(pp)]
    assert gibibytes == pytest.approx(PUBLISHED_GIB[tp, pp], rel=0.001)


@pytest.mark.parametrize(
    ("tp", "pp", "published"),
    [
        (4, 2, [70.06, 69.81]),
        (2, 4, [65.75, 68.76, 73.35, 69.86]),
        (1, 8, [57.92, 63.94, *[73.08] * 5, 66.13]),
    ],
)
def test_the_stages_of_vllm_take_the_published_weights(tp: int, pp: int, published: list[float]) -> None:
    split = deployment(tp, pp, EngineSettings(name="vllm"))
    assert [weight_bytes(split, stage) / GIB for stage in range(pp)] == pytest.approx(published, rel=0.001)


def test_the_whole_model_is_the_published_checkpoint() -> None:
    assert KIMI.text_weights == 594_205_351_936
    assert model_bytes(KIMI) == pytest.approx(KIMI.text_weights, abs=60 * CORRECTION_BIAS)


def test_an_int4_expert_with_its_scales_takes_its_published_bytes() -> None:
    assert EXPERT == 44_040_192
    assert EXPERT * STORAGE_BYTES["int4-g32"] == 24_772_608
    assert stored("expert_layer", {"routed_experts"}) == 384 * 24_772_608 == 9_512_681_472


def test_a_layer_takes_its_published_bytes() -> None:
    assert stored("expert_layer") == pytest.approx(9_808_545_280, abs=CORRECTION_BIAS)
    assert stored("dense_layer") == 995_000_320


def test_embedding_and_head_take_their_published_bytes() -> None:
    assert stored("embedding") == 163_840 * HIDDEN * 2 == 2_348_810_240
    assert stored("head", {"lm_head"}) == 2_348_810_240


def test_a_layer_has_the_parameters_of_the_published_shapes() -> None:
    parameters: dict[str, int] = {}
    for tensor in family_of(KIMI).tensors(KIMI, "expert_layer"):
        parameters[tensor.precision] = parameters.get(tensor.precision, 0) + tensor.parameters
    assert parameters == {
        "attention": ATTENTION + 1536 + 512,  # with the norms of the two latents
        "activations": 2 * HIDDEN,  # the two norms
        "router": HIDDEN * 384,
        "shared_expert": EXPERT,
        "routed_experts": 384 * EXPERT,
    }
    assert stored("expert_layer", {"attention"}) == pytest.approx(202.2e6, rel=0.001)


def test_the_model_has_a_trillion_parameters_and_32_billion_of_them_work_on_a_token() -> None:
    total = active = 0.0
    times: dict[Section, int] = {"embedding": 1, "dense_layer": 1, "expert_layer": 60, "head": 1}
    for section, layers in times.items():
        for tensor in family_of(KIMI).tensors(KIMI, section):
            share = 8 / 384 if tensor.precision == "routed_experts" else float(section != "embedding")
            total += layers * tensor.parameters
            active += layers * tensor.parameters * share
    assert total == pytest.approx(1026.4e9, rel=0.0005)
    assert active == pytest.approx(31.7e9, rel=0.005)


def replicated_bytes(split: Deployment, stage: int) -> float:
    """What every tensor-parallel rank holds whole: q_a, kv_a, the router and the norms, from the published shapes."""
    layers = split.layers[stage]
    dense = KIMI.layer_kinds(split.first_layer(stage), layers)["dense_layer"]
    per_layer = 7168 * (1536 + 512 + 64) + 1536 + 512 + 2 * HIDDEN
    final_norm = HIDDEN if stage == split.plan.pp - 1 else 0
    return 2.0 * (layers * per_layer + (layers - dense) * HIDDEN * 384 + final_norm)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 61))
def test_the_gpus_of_all_stages_hold_the_model_once_and_the_replicated_parts_once_each(tp: int, pp: int) -> None:
    split = deployment(tp, pp, box=WALL)
    held = sum(tp * weight_bytes(split, stage) for stage in range(pp))
    copies = sum((tp - 1) * replicated_bytes(split, stage) for stage in range(pp))
    assert held - copies == pytest.approx(model_bytes(KIMI), rel=1e-12)


@given(st.sampled_from([2, 4, 8]), st.integers(1, 61))
def test_the_shards_and_the_replicated_parts_of_a_stage_sum_to_the_stage(tp: int, pp: int) -> None:
    shards, whole = deployment(tp, pp, box=WALL), deployment(1, pp, box=WALL)
    for stage in range(pp):
        replicated = replicated_bytes(whole, stage)
        sharded = tp * (weight_bytes(shards, stage) - replicated)
        assert sharded + replicated == pytest.approx(weight_bytes(whole, stage), rel=1e-12)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 8))
def test_every_rank_loads_the_vision_tower_and_its_absorbed_copies(tp: int, pp: int) -> None:
    split = deployment(tp, pp, box=WALL)
    for stage, layers in enumerate(split.layers):
        copies = 2 * 64 * 512 * (128 + 128) * layers / tp
        assert rank_memory(split, stage).extra_weights == 942_278_624 + copies


# --- layer partition


@pytest.mark.parametrize(
    ("stages", "layers"),
    [
        (2, (30, 31)),
        (3, (20, 20, 21)),
        (4, (15, 15, 15, 16)),
        (5, (12, 12, 12, 12, 13)),
        (6, (10, 10, 10, 10, 10, 11)),
        (7, (8, 8, 9, 9, 9, 9, 9)),
        (8, (7, 7, 7, 8, 8, 8, 8, 8)),
    ],
)
def test_sglang_splits_61_layers_as_it_does(stages: int, layers: tuple[int, ...]) -> None:
    assert layer_partition(61, stages) == layers
    assert deployment(1, stages, box=WALL).layers == layers


@pytest.mark.parametrize(
    ("stages", "layers"),
    [
        (2, (31, 30)),
        (3, (20, 21, 20)),
        (4, (15, 15, 16, 15)),
        (5, (12, 12, 12, 13, 12)),
        (6, (10, 10, 10, 10, 11, 10)),
        (7, (8, 9, 9, 9, 9, 9, 8)),
        (8, (7, 7, 8, 8, 8, 8, 8, 7)),
    ],
)
def test_vllm_splits_61_layers_as_it_does(stages: int, layers: tuple[int, ...]) -> None:
    assert vllm.layer_partition(61, stages) == layers


@given(st.data(), st.integers(1, 200))
def test_stages_differ_by_at_most_one_layer_and_the_last_ones_get_the_extra(data: st.DataObject, layers: int) -> None:
    stages = data.draw(st.integers(1, layers))
    partition = layer_partition(layers, stages)
    assert len(partition) == stages
    assert sum(partition) == layers
    assert list(partition) == sorted(partition)
    assert partition[-1] - partition[0] <= 1


def test_a_person_may_choose_the_partition() -> None:
    assert deployment(2, 4, layers=(16, 15, 15, 15)).layers == (16, 15, 15, 15)


# --- KV cache


def test_a_token_takes_70272_bytes_of_bf16_kv_cache_in_61_layers() -> None:
    assert kv_bytes_per_token(deployment(8, 1), 0) == 70_272


def test_an_fp8_kv_cache_takes_half() -> None:
    precision = KIMI.precision.model_copy(update={"kv_cache": "fp8"})
    fp8 = deployment(8, 1, model=KIMI.model_copy(update={"precision": precision}))
    assert kv_bytes_per_token(fp8, 0) == 35_136
    assert kv_capacity_tokens(fp8) == pytest.approx(2 * kv_capacity_tokens(deployment(8, 1)), abs=1)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 61))
def test_every_tp_rank_holds_the_whole_latent_and_every_stage_that_of_its_layers(tp: int, pp: int) -> None:
    split = deployment(tp, pp, box=WALL)
    assert [kv_bytes_per_token(split, stage) for stage in range(pp)] == [1152 * layers for layers in split.layers]


@pytest.mark.parametrize(("tp", "pp"), PUBLISHED_GIB)
def test_the_kv_cache_fills_what_the_fullest_gpu_has_left_and_no_more(tp: int, pp: int) -> None:
    split = deployment(tp, pp, EngineSettings(mem_fraction_static=0.85))
    before = BOX.gpu.memory - BOX.memory_reserve.context
    free = min(
        before - rank_memory(split, stage).weights - rank_memory(split, stage).extra_weights for stage in range(pp)
    )
    left = free - 0.15 * before - 100 * MIB  # for images (mem_cache/kv_cache_configurator.py, SGLANG_VLM_CACHE_SIZE_MB)
    deepest = 1152 * max(split.layers)
    assert kv_capacity_tokens(split) * deepest <= left < (kv_capacity_tokens(split) + 1) * deepest


def test_the_deepest_stage_binds_the_kv_cache_even_where_another_gpu_is_the_fullest() -> None:
    light_start = KIMI.model_copy(update={"moe": KIMI.moe.model_copy(update={"dense_layers_first": 3})})
    even = deployment(1, 8, layers=(8, 8, 8, 8, 8, 7, 7, 7), model=light_start)
    deep = deployment(1, 8, layers=(9, 8, 8, 8, 7, 7, 7, 7), model=light_start)
    fullest = [max(rank_memory(split, stage).total for stage in range(8)) for split in (even, deep)]
    assert fullest == [rank_memory(even, 1).total, rank_memory(deep, 1).total]
    assert rank_memory(deep, 0).total < rank_memory(deep, 1).total == rank_memory(even, 1).total
    assert kv_capacity_tokens(deep) == pytest.approx(kv_capacity_tokens(even) * 8 / 9, abs=1)


def test_the_fullest_gpu_binds_the_kv_cache_however_empty_the_others_are() -> None:
    heavy_end = deployment(1, 8, layers=(7, 7, 7, 7, 8, 8, 8, 9))
    lighter = deployment(1, 8, layers=(1, 8, 8, 8, 9, 9, 9, 9))
    assert rank_memory(heavy_end, 7).total == rank_memory(lighter, 7).total
    assert kv_capacity_tokens(heavy_end) == kv_capacity_tokens(lighter)


@given(st.integers(0, 64), st.sampled_from([0.8, 0.85, 0.9]))
def test_more_memory_is_more_kv_cache_by_the_static_share(gibibytes: int, share: float) -> None:
    gpu = BOX.gpu.model_copy(update={"memory": BOX.gpu.memory + gibibytes * GIB})
    bigger = deployment(8, 1, EngineSettings(mem_fraction_static=share), box=BOX.model_copy(update={"gpu": gpu}))
    now = deployment(8, 1, EngineSettings(mem_fraction_static=share))
    gained = kv_capacity_tokens(bigger) - kv_capacity_tokens(now)
    assert gained == pytest.approx(share * gibibytes * GIB / 70_272, abs=1)


def test_a_box_without_room_has_no_kv_cache() -> None:
    assert kv_capacity_tokens(deployment(1, 4)) < 1


@pytest.mark.parametrize(
    ("tp", "pp", "flags", "share"),
    [
        (8, 1, EngineSettings(), 0.833),
        (1, 8, EngineSettings(), 0.854),
        (8, 1, EngineSettings(cuda_graph=False), 0.859),
        (1, 8, EngineSettings(chunked_prefill_size=2048, max_running_requests=64), 0.895),
        (1, 8, EngineSettings(chunked_prefill_size=16384), 0.728),
    ],
)
def test_the_static_share_leaves_sglangs_reserve(tp: int, pp: int, flags: EngineSettings, share: float) -> None:
    """The reserve is max(512 + 1.5·chunk + GPUs/8·1024 + graphs, 10240) MiB of 97,887.

    Graphs: 2 MiB for each request of the largest decode, and 1.5 GiB for prefill of latent attention without PP.
    """
    assert default_fraction(deployment(tp, pp, flags, model=load_model("kimi-k2-thinking"))) == share


# --- captured graphs and slots


def test_sglang_captures_the_sizes_it_lists() -> None:
    small = [1, 2, 4, 8, 12]
    by_eight = list(range(16, 257, 8))
    by_sixteen = list(range(272, 497, 16))
    assert captured_sizes(256) == small + by_eight
    assert captured_sizes(512) == [*small, *by_eight, *by_sixteen, 512]
    assert captured_sizes(576) == [*small, *by_eight, *by_sixteen, 512, 544, 576]
    assert captured_sizes(0) == []


@given(st.integers(1, 600))
def test_the_largest_captured_size_is_the_limit_itself(limit: int) -> None:
    sizes = captured_sizes(limit)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == limit
    assert set(sizes[:-1]) <= set(captured_sizes(4096))


@pytest.mark.parametrize(
    ("tp", "pp", "flags", "largest"),
    [
        (1, 8, EngineSettings(), 256),
        (2, 4, EngineSettings(), 256),
        (4, 2, EngineSettings(), 512),
        (8, 1, EngineSettings(), 512),
        (8, 1, EngineSettings(max_running_requests=50), 50),
        (8, 1, EngineSettings(cuda_graph=False), 0),
    ],
)
def test_a_96_gib_gpu_captures_256_below_tp4_and_512_from_there(
    tp: int, pp: int, flags: EngineSettings, largest: int
) -> None:
    assert largest_captured(deployment(tp, pp, flags)) == largest


@given(st.integers(1, 600), st.integers(1, 10**6), st.sampled_from([(8, 1), (2, 4), (1, 8)]))
def test_a_decode_step_is_padded_to_the_next_captured_size_and_eager_beyond_the_last(
    requests: int, kv_tokens: int, plan: tuple[int, int]
) -> None:
    split = deployment(*plan)
    step = ENGINES["sglang"].decode_batch(split, requests, kv_tokens)
    fitting = [size for size in captured_sizes(largest_captured(split)) if size >= requests]
    assert isinstance(step, DecodeStep)
    assert step.requests == requests
    assert (step.rows, step.captured) == ((min(fitting), True) if fitting else (requests, False))


@pytest.mark.parametrize(
    ("pp", "depth", "running", "cap"),
    [(8, 0, 64, 8), (4, 0, 64, 16), (4, 2, 64, 16), (8, 8, 64, 8), (8, 0, 7, 1), (4, 0, 70, 17)],
)
def test_a_slot_takes_its_share_by_stages_not_by_slots(pp: int, depth: int, running: int, cap: int) -> None:
    split = deployment(1, pp, EngineSettings(max_running_requests=running, pp_async_batch_depth=depth), box=WALL)
    assert micro_batch_cap(split, 500_000) == cap


def test_a_stated_cap_is_the_cap() -> None:
    split = deployment(1, 8, EngineSettings(max_running_requests=64, pp_max_micro_batch_size=64))
    assert micro_batch_cap(split, 500_000) == 64


def test_without_any_flag_a_slot_of_pp4_holds_512_requests() -> None:
    assert micro_batch_cap(deployment(2, 4), 300_000) == 512


@pytest.mark.parametrize(
    ("capacity", "running"), [(300_000, 2048), (1_500_000, 2929), (10_000_000, 4096), (3_000, 1500), (1, 1)]
)
def test_requests_in_the_server_follow_the_kv_cache_within_sglangs_limits(capacity: int, running: int) -> None:
    assert max_running_requests(deployment(8, 1), capacity) == running
