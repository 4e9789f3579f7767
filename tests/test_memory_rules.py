"""Memory as the engine of that version counts it: published pools, rules by version, the share that a server starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipesim.cost.memory import kv_bytes_per_token, rank_memory, weight_bytes
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, sglang_memory, vllm_memory
from pipesim.engines.base import settle
from pipesim.errors import InfeasibleDeployment, UsageError
from pipesim.launch.write import launch, one_line
from pipesim.planning.question import PlanQuestion
from pipesim.planning.search import search
from pipesim.prediction import deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload
from tests.conftest import BOX, KIMI, RunCli

GIB, MIB = 2**30, 2**20
DATA = Path(__file__).parent / "data" / "configs"
GLM = {
    "gpu_memory_utilization": 0.865,
    "max_running_requests": 64,
    "chunked_prefill_size": 8192,
    "kv_cache_dtype": "fp8",
}
K26 = {
    "gpu_memory_utilization": 0.94,
    "max_running_requests": 128,
    "chunked_prefill_size": 8192,
    "kv_cache_dtype": "fp8",
}


def settled(model: str, box: str | HardwareProfile, plan: ParallelPlan, **flags: object) -> Deployment:
    path = DATA / f"{model}.json"
    profile = load_model(str(path) if path.is_file() else model)
    hardware = load_hardware(box) if isinstance(box, str) else box
    settings = EngineSettings(**flags)  # type: ignore[arg-type]
    return settle(profile, hardware, plan, settings, ENGINES[settings.name])


def pool(deployment: Deployment) -> int:
    return ENGINES[deployment.engine.name].kv_capacity_tokens(deployment)


# --- published pools; those of one row each that a constant rests on are marked


@pytest.mark.parametrize(
    ("model", "box", "plan", "flags", "published"),
    [
        # vllm#21348, of 2025-07; the SGLang row gives the H100's context
        ("qwen3-235b-a22b-fp8", "h100-sxm-x4", ParallelPlan(4), {"name": "vllm", "version": "0.9.2"}, 178_880),
        ("qwen3-235b-a22b-fp8", "h100-sxm-x4", ParallelPlan(4), {"mem_fraction_static": 0.93}, 367_404),
        # vllm#6746: gives KEPT_BY_ALLOCATOR
        ("llama-3.1-405b-fp8", "h100-sxm-x8", ParallelPlan(8), {"name": "vllm", "version": "0.5.3"}, 79_392),
        # a vLLM 0.20 log; the second gives CONTEXT_PARALLEL
        ("glm-5.1-nvfp4", "rtx-pro-6000-x8", ParallelPlan(8), dict(name="vllm", version="0.20.0", **GLM), 341_504),
        (
            "glm-5.1-nvfp4",
            "rtx-pro-6000-x8",
            ParallelPlan(8, dcp=4),
            dict(name="vllm", version="0.20.0", **GLM),
            1_271_040,
        ),
        # rtx6kpro wiki, models/kimi-k26.md: gives BUFFERS_PER_PEER
        ("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(8), dict(name="vllm", version="0.20.0", **K26), 437_264),
        ("qwen2.5-14b", "rtx-4090-x2", ParallelPlan(2), {"name": "vllm", "gpu_memory_utilization": 0.98}, 81_536),
    ],
)
def test_a_published_kv_pool_is_met(
    model: str, box: str, plan: ParallelPlan, flags: dict[str, object], published: int
) -> None:
    assert pool(settled(model, box, plan, **flags)) == pytest.approx(published, rel=0.08)


def test_a_stage_of_a_published_pair_of_unlike_gpus_keeps_what_it_kept() -> None:
    """Qwen3-Coder-30B-A3B-FP8, layers 16,32, on an RTX 5070 Ti of 16 GB and a larger card: 3.18 GiB (vllm#34076)."""
    card = BOX.gpu.model_copy(update={"memory": 16_303.0 * MIB})
    box = BOX.model_copy(update={"gpu": card, "gpus": 2})
    profile = load_model("qwen3-30b-a3b")
    stored = dict.fromkeys(("routed_experts", "attention"), "fp8-block")
    profile = profile.model_copy(
        update={"precision": profile.precision.model_copy(update=stored), "text_weights": None}
    )
    settings = EngineSettings(name="vllm", version="0.15.0")
    split = settle(profile, box, ParallelPlan(1, 2, (16, 32)), settings, ENGINES["vllm"])
    default = replace(split, memory_share=0.9)  # as the first card had it: the second one's layers do not fit on it
    assert vllm_memory.pool_bytes(default, 0) / GIB == pytest.approx(3.18, rel=0.15)


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1"])
def test_gpt_oss_120b_fills_an_h100_and_does_not_start_at_nine_tenths(version: str) -> None:
    """Loaded, its padded MXFP4 experts take 64.4 to 66.0 GiB in published logs."""
    flags = {"name": "vllm", "version": version, "gpu_memory_utilization": 0.9}
    split = settled("gpt-oss-120b", "h100-sxm-x1", ParallelPlan(), **flags)
    assert 64.4 < weight_bytes(split, 0) / GIB < 66.0
    assert pool(split) < 1


def test_weights_of_several_forms_are_counted_as_stored() -> None:
    """Llama-3.1-405B-FP8 keeps attention and two layers in 16 bits: 57.75 GiB a GPU (vllm#6746)."""
    split = settled("llama-3.1-405b-fp8", "h100-sxm-x8", ParallelPlan(8), name="vllm")
    assert weight_bytes(split, 0) / GIB == pytest.approx(57.75, rel=0.02)


def test_sparse_attention_keeps_an_indexer_beside_the_latent() -> None:
    """GLM-5.1: 19.55 GiB hold 341,504 tokens, 55.67 GiB of weights a GPU (a vLLM 0.20 log)."""
    split = settled("glm-5.1-nvfp4", "rtx-pro-6000-x8", ParallelPlan(8), name="vllm", **GLM)
    assert kv_bytes_per_token(split, 0) == 78 * (512 + 16 + 2 * 64 + 128 + 4)
    assert kv_bytes_per_token(split, 0) * 341_504 / GIB == pytest.approx(19.55, abs=0.005)
    held = rank_memory(split, 0)
    assert (held.weights + held.extra_weights) / GIB == pytest.approx(55.67, rel=0.005)
    plain = settled("glm-5.1-nvfp4", "rtx-pro-6000-x8", ParallelPlan(8), name="vllm", kv_cache_dtype="bf16")
    assert kv_bytes_per_token(plain, 0) == 78 * (2 * 576 + 132)


# --- SGLang


def test_a_model_without_a_vision_tower_has_the_pool_of_the_plain_rule() -> None:
    assert pool(settled("kimi-k2-thinking", "rtx-pro-6000-x8", ParallelPlan(2, 4))) == 377_923


def test_attention_by_request_costs_graphs_memory() -> None:
    split = settled("deepseek-v3", "h200-sxm-x8", ParallelPlan(8, dp_attention=True))
    without = 2 * 512 + 1.5 * 1024
    assert sglang_memory.graph_reserve(split) == without + 512 * 8 * 4.5
    assert pool(split) == pytest.approx(1.79e6, rel=0.001)


def test_sglang_cuts_the_share_of_a_vision_model() -> None:
    """0.95, and a tenth less for what MoonViT is larger than ViT-L/14."""
    cut = 0.95 * (1 - 0.1 * (27 * 1152**2 / (24 * 1024**2) - 1))
    thinking = settled("kimi-k2-thinking", "rtx-pro-6000-x8", ParallelPlan(2, 4))
    k26 = settled("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(2, 4))
    assert sglang_memory.default_fraction(k26) == pytest.approx(cut * sglang_memory.default_fraction(thinking))
    text_alone = settled("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(2, 4), language_only=True)
    assert sglang_memory.default_fraction(text_alone) == sglang_memory.default_fraction(thinking)
    assert rank_memory(k26, 0).extra_weights - rank_memory(text_alone, 0).extra_weights == KIMI.vision_tower


@pytest.mark.parametrize(("tp", "pp", "short"), [(8, 1, 0.13), (2, 4, 1.8), (1, 8, 2.6)])
def test_the_default_of_kimi_k26_would_not_start_and_gives_way(tp: int, pp: int, short: float) -> None:
    split = settled("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(tp, pp))
    default = sglang_memory.default_fraction(split)
    stated = settled("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(tp, pp), mem_fraction_static=default)
    lacking = (1 - pool(stated)) * max(kv_bytes_per_token(stated, stage) for stage in range(pp))
    assert lacking / GIB == pytest.approx(short, abs=0.06)
    assert f"--mem-fraction-static {default:.4g}, would not start" in split.memory_note
    assert pool(split) > 200_000


def test_a_default_that_holds_too_little_gives_way_as_well() -> None:
    plan, load = ParallelPlan(4, 2), Workload(concurrency=8, num_prompts=32, input_len=512, output_len=256)
    assert pool(settled("kimi-k2.6", "rtx-pro-6000-x8", plan)) == 118
    split = deploy(KIMI, BOX, plan, EngineSettings(), load)
    assert "leaves 118 tokens of KV cache, too few for this load" in split.memory_note
    assert pool(split) >= 8 * 768


def test_a_default_that_does_is_kept_and_no_note_is_made() -> None:
    load = Workload(concurrency=8, num_prompts=32, input_len=512, output_len=256)
    split = deploy(load_model("qwen3-32b"), load_hardware("h100-sxm-x8"), ParallelPlan(2), EngineSettings(), load)
    assert split.memory_share == sglang_memory.default_fraction(split)
    assert split.memory_note == ""


@pytest.mark.parametrize(
    ("version", "chunk", "captured"), [("0.5.10.post1", 2048, 24), ("0.5.14", 2048, 24), (None, 4096, 48)]
)
def test_small_cards_have_other_defaults_since_0_5_23(version: str | None, chunk: int, captured: int) -> None:
    split = settled("qwen3-32b", "rtx-5090-x8", ParallelPlan(2), version=version)
    assert sglang_memory.chunked_prefill_size(split) == chunk
    assert sglang_memory.largest_captured(split) == captured


@pytest.mark.parametrize(
    ("version", "plan", "model", "tokens"),
    [
        (None, ParallelPlan(8), "kimi-k2.6", 8192),
        ("0.5.14", ParallelPlan(8), "kimi-k2.6", 0),
        (None, ParallelPlan(2, 4), "kimi-k2.6", 0),
        (None, ParallelPlan(8, dcp=2), "kimi-k2.6", 0),
        (None, ParallelPlan(8, dp_attention=True), "kimi-k2-thinking", 8192),
        ("0.5.14", ParallelPlan(8, dp_attention=True), "kimi-k2-thinking", 0),
        (None, ParallelPlan(2), "qwen3-32b", 8192),
    ],
)
def test_prefill_is_captured_where_the_version_does_so(
    version: str | None, plan: ParallelPlan, model: str, tokens: int
) -> None:
    split = settled(model, "rtx-pro-6000-x8", plan, version=version)
    assert sglang_memory.captured_prefill_tokens(split) == tokens


# --- vLLM


@pytest.mark.parametrize(
    ("box", "version", "tokens", "sequences", "share"),
    [
        ("h100-sxm-x8", None, 8192, 1024, 0.92),
        ("h100-sxm-x8", "0.11.0", 8192, 1024, 0.9),
        ("h100-sxm-x8", "0.5.3", 512, 256, 0.9),
        ("a100-sxm-x8", None, 2048, 256, 0.92),
        ("b200-sxm-x8", None, 16384, 1024, 0.92),
        ("b200-sxm-x8", "0.20.1", 8192, 1024, 0.92),
        ("rtx-4090-x8", None, 2048, 256, 0.92),
    ],
)
def test_vllm_has_defaults_by_gpu_and_version(
    box: str, version: str | None, tokens: int, sequences: int, share: float
) -> None:
    split = settled("qwen3-30b-a3b", box, ParallelPlan(4), name="vllm", version=version)
    assert (vllm_memory.token_budget(split), vllm_memory.max_num_seqs(split)) == (tokens, sequences)
    assert vllm_memory.default_utilization(split) == share


def test_the_dry_run_of_the_sampler_takes_memory_by_max_num_seqs() -> None:
    few, many = (
        settled("qwen3-32b", "h100-sxm-x8", ParallelPlan(2), name="vllm", max_running_requests=n) for n in (64, 1024)
    )
    lost = (pool(few) - pool(many)) * kv_bytes_per_token(few, 0)
    words = 151_936
    assert 960 * words * 4 < lost < 960 * words * 20


# --- every launch line starts


def test_an_answer_says_what_share_it_assumes_and_puts_it_into_the_line(run_cli: RunCli) -> None:
    load = ["--concurrency", 4, "--num-prompts", 8, "--input-len", 64, "--output-len", 16, "--seeds", 1]
    ran = run_cli("predict", "--tp", 2, "--pp", 4, *load, "--launch", "--json")
    assert (ran.code, ran.err) == (0, "")
    (note,) = [text for text in ran.json["notes"] if "own default" in text]
    share = ran.json["deployment"]["memory_share"]
    assert f"--mem-fraction-static {share:.4g}" in ran.json["launch"]
    assert f"{share:.4g} is assumed" in note
    assert "2 GiB" in note


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_stated_share_is_taken_as_it_is(run_cli: RunCli, engine: str) -> None:
    flag = ENGINES[engine].share.flag
    ran = run_cli("predict", "--tp", 8, "--engine", engine, flag, 0.7, "--json")
    assert (ran.code, ran.err) == (1, "")
    assert f"{flag} 0.7 as stated" in ran.json["reasons"][0]


def test_vllm_is_told_of_shorter_requests_where_the_models_own_do_not_fit() -> None:
    short = settled("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(8), name="vllm")
    assert pool(short) < KIMI.max_positions
    (line,) = launch(short).lines
    length = int(line.words[line.words.index("--max-model-len") + 1])
    assert 0.9 * pool(short) < length < pool(short)
    assert "--max-model-len" not in one_line(
        launch(settled("kimi-k2.6", "rtx-pro-6000-x8", ParallelPlan(1, 8), name="vllm")).lines[0]
    )


# --- block quantisation


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(("model", "columns"), [("minimax-m2", 192), ("qwen3-235b-a22b-fp8", 192)])
def test_ranks_that_would_cut_an_fp8_block_are_refused_with_the_engines_reason(
    engine: str, model: str, columns: int
) -> None:
    with pytest.raises(UsageError, match=f"{columns} is not divisible by weight quantization block_n = 128"):
        settled(model, "h100-sxm-x8", ParallelPlan(8), name=engine)
    assert pool(settled(model, "h100-sxm-x8", ParallelPlan(8, ep=8), name=engine)) > 0
    assert pool(settled(model, "h100-sxm-x8", ParallelPlan(4), name=engine)) > 0


def test_every_place_of_a_plan_of_minimax_m2_starts() -> None:
    """Pure TP8 of its FP8 blocks does not, TP8 with EP and TP4 do (vLLM recipes, MiniMax pages)."""
    load = Workload(concurrency=16, num_prompts=16, input_len=1024, output_len=16)
    question = PlanQuestion(load_model("minimax-m2"), (load_hardware("h100-sxm-x8"),), load, ("vllm",), seeds=1)
    found = search(question)
    places = {(p.deployment.plan.tp, p.deployment.plan.ep) for p in found.plans}
    assert (8, 8) in places
    assert all((1536 // (tp // ep)) % 128 == 0 for tp, ep in places)
    assert all(plan.deployment.engine.kv_cache_dtype == "auto" for plan in found.plans)
    for plan in found.plans:
        assert pool(plan.deployment) >= load.tokens_per_request


# --- bad input


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine-version", "latest"], "--engine-version: 'latest' was given, a release such as 0.5.23"),
        (["--mem-fraction-static", 1.0], "--mem-fraction-static: 1.0 was given, a number between 0 and 1"),
        (["--mem-fraction-static", "nan"], "--mem-fraction-static: nan was given, a number between 0 and 1"),
        (["--engine", "vllm", "--gpu-memory-utilization", 1.2], "--gpu-memory-utilization: 1.2 was given"),
        (["--engine", "vllm", "--language-only"], "--language-only with --engine: 'vllm' was given"),
    ],
)
def test_a_value_that_no_engine_takes_is_one_message(run_cli: RunCli, flags: list[object], said: str) -> None:
    ran = run_cli("predict", "--tp", 8, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_block_that_no_kernel_takes_is_refused_by_key(run_cli: RunCli, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    text = (DATA / "qwen3-235b-a22b-fp8.json").read_text(encoding="utf-8")
    config.write_text(text.replace("128,\n   128", "100,\n   100"), encoding="utf-8")
    ran = run_cli("predict", "--model", config, "--hardware", "h100-sxm-x8", "--tp", 4)
    assert ran.code == 2
    assert "quantization_config.weight_block_size" in ran.err
    assert "[128, 128], the blocks that the engines' FP8 kernels take" in ran.err


def test_what_no_share_could_hold_is_infeasible_and_says_so() -> None:
    with pytest.raises(InfeasibleDeployment, match="the largest that is safe"):
        deploy(KIMI, BOX, ParallelPlan(4), EngineSettings())
