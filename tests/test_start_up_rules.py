"""Servers that start: the engines' own start-up rules, told again from their sources, accept what is printed.

Nothing here uses pipesim's rules of memory: weights are counted from the model's shapes, the rules are those of SGLang
0.5.23 (srt/arg_groups/memory_hook.py, mem_cache/kv_cache_configurator.py, layers/quantization/fp8.py) and vLLM 0.33.0
(engine/arg_utils.py, v1/worker/gpu_worker.py, v1/worker/gpu_model_runner.py, v1/core/kv_cache_planning.py).
"""

import random
import re
from typing import Any

import pytest

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.errors import InfeasibleDeployment, UsageError
from pipesim.launch.write import launch
from pipesim.prediction import deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import GqaAttention, ModelProfile
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload

GIB, MIB = 2**30, 2**20
BITS = {"bf16": 16, "fp8": 8, "fp8-block": 8 + 32 / 128**2, "int4-g32": 4.5, "int4-g128": 4.125, "mxfp4": 4.25}
BITS |= {"int4-g128-zp": 4 + 20 / 128, "nvfp4": 4.5}
BOXES = ("h100-sxm-x8", "rtx-pro-6000-x8", "b200-sxm-x8", "rtx-4090-x8")
MODELS = ("kimi-k2.6", "kimi-k2-thinking", "deepseek-v3", "minimax-m2", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-32b")
MODELS += ("gpt-oss-120b", "gpt-oss-20b", "llama-3.1-70b", "llama-3.1-8b", "glm-4.5-air", "mixtral-8x7b")
SCENARIOS = 200


class RefusedError(Exception):
    """What the engine would stop with."""


def up(value: float, step: int) -> int:
    return -(-int(value) // step) * step


def words_of(line: list[str]) -> dict[str, str]:
    """The flags of a command and their values, an empty text for a switch."""
    found: dict[str, str] = {}
    for at, word in enumerate(line):
        if word.startswith("--"):
            value = line[at + 1] if at + 1 < len(line) and not line[at + 1].startswith("--") else ""
            found[word[2:]] = value
    return found


def layer_bytes(model: ModelProfile, index: int, tp: int, attention_tp: int, ep: int) -> float:
    """Bytes of one layer on one rank."""
    a, p, hidden, moe = model.attention, model.precision, model.hidden_size, model.moe
    if isinstance(a, GqaAttention):
        kv = max(1, a.kv_heads // attention_tp)
        attention = hidden * a.head_dim * (2 * a.heads / attention_tp + 2 * kv)
    else:
        attention = hidden * (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim)
        up_dims = (a.q_lora_rank or hidden) * (a.qk_nope_head_dim + a.qk_rope_head_dim)
        up_dims += a.kv_lora_rank * (a.qk_nope_head_dim + a.v_head_dim) + a.v_head_dim * hidden
        attention += a.heads / attention_tp * up_dims
    total = attention * BITS[p.attention] / 8
    if moe is None or index < moe.dense_layers_first or (index + 1) % moe.every:
        return total + 3 * hidden * model.dense_intermediate / tp * BITS[p.dense_mlp] / 8
    columns, wide = moe.expert_intermediate // (tp // ep), hidden
    if p.routed_experts == "mxfp4":
        columns, wide = up(columns, 128), up(hidden, 256)
    total += moe.experts / ep * 3 * columns * wide * BITS[p.routed_experts] / 8
    shared = moe.shared_intermediate or moe.shared_experts * moe.expert_intermediate
    return total + 3 * hidden * shared / tp * BITS[p.shared_expert] / 8 + hidden * moe.experts * BITS[p.router] / 8


def stage_layers(engine: str, layers: int, pp: int) -> list[int]:
    base, left = divmod(layers, pp)
    if engine == "sglang":
        return [base + (stage >= pp - left) for stage in range(pp)]
    return [base + (pp - 1 - left <= stage < pp - 1) for stage in range(pp)]


def held(model: ModelProfile, engine: str, flags: dict[str, Any]) -> list[float]:
    """Bytes on a rank of each stage before its KV cache: weights, copies for absorbed attention, vision tower."""
    tp, pp, ep, own = flags["tp"], flags["pp"], flags["ep"], flags["tp"] if flags["dp"] == 1 else 1
    counts, first, found = stage_layers(engine, model.layers, pp), 0, []
    a, table = model.attention, model.vocab_size * model.hidden_size
    for stage, count in enumerate(counts):
        total = sum(layer_bytes(model, first + i, tp, own, ep) for i in range(count)) + model.vision_tower
        if not isinstance(a, GqaAttention):
            total += 2 * a.heads / own * a.kv_lora_rank * (a.qk_nope_head_dim + a.v_head_dim) * count
        total += (stage == 0) * table / own * BITS[model.precision.embedding] / 8
        last = stage == pp - 1 and not model.tied_embeddings
        total += last * table / tp * BITS[model.precision.lm_head] / 8
        found.append(total)
        first += count
    return found


def token_bytes(model: ModelProfile, engine: str, flags: dict[str, Any]) -> list[float]:
    """KV cache of a token on a rank of each stage; layers with a window are left out, which hold few."""
    a, own = model.attention, flags["tp"] if flags["dp"] == 1 else 1
    width = 2 * max(1, a.kv_heads // own) * a.head_dim if isinstance(a, GqaAttention) else a.kv_lora_rank + 64
    size = width * (1 if flags["fp8_kv"] else 2) / flags["dp"]
    found, first = [], 0
    every = a.full_attention_every if isinstance(a, GqaAttention) and a.sliding_window else 1
    for count in stage_layers(engine, model.layers, flags["pp"]):
        full = sum((first + i + 1) % every == 0 for i in range(count)) if every else 0
        found.append(size * (full or count))
        first += count
    return found


def check_blocks(model: ModelProfile, flags: dict[str, Any]) -> None:
    """Both engines: a rank's part of an FP8 weight is whole blocks of 128."""
    moe, p = model.moe, model.precision
    if (
        moe is not None
        and p.routed_experts == "fp8-block"
        and moe.expert_intermediate // (flags["tp"] // flags["ep"]) % 128
    ):
        raise RefusedError("block_n")


def sglang(model: ModelProfile, box: HardwareProfile, flags: dict[str, Any], said: dict[str, str]) -> int:
    """The pool that SGLang allocates. Raises RefusedError."""
    check_blocks(model, flags)
    before = box.gpu.memory - box.memory_reserve.context
    fraction = float(said["mem-fraction-static"])
    rest = min(before - size for size in held(model, "sglang", flags)) - before * (1 - fraction)
    rest -= 100 * MIB if model.vision_tower else 0.0
    if rest <= 0:
        raise RefusedError(
            f"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={fraction}"
        )
    tokens = int(rest / max(token_bytes(model, "sglang", flags)))
    if tokens // 2 < 1:
        raise RefusedError("Not enough memory. Please try to increase --mem-fraction-static.")
    return tokens


def vllm(model: ModelProfile, box: HardwareProfile, flags: dict[str, Any], said: dict[str, str]) -> int:
    """The pool that vLLM allocates. Raises RefusedError."""
    check_blocks(model, flags)
    memory, pp, tp, hidden = box.gpu.memory, flags["pp"], flags["tp"], model.hidden_size
    small = memory < 70 * GIB or "a100" in box.gpu.name.lower()
    budget = 2048 if small else 16384 if memory >= 160 * GIB else 8192
    budget = int(said.get("max-num-batched-tokens", budget))
    sequences = int(said.get("max-num-seqs", 256 if small else 1024))
    if budget < sequences and "max-num-seqs" in said:
        raise RefusedError("max_num_batched_tokens must be greater than or equal to max_num_seqs")
    sequences = min(sequences, budget)
    total = memory - (300 * MIB + 0.003 * memory)  # as CUDA counts it
    share = float(said["gpu-memory-utilization"])
    context = box.memory_reserve.context - (memory - total)
    if total - max(0.0, context) < share * total:
        raise RefusedError("Free memory on device on startup is less than desired GPU memory utilization")
    a, moe, own = model.attention, model.moe, tp
    if isinstance(a, GqaAttention):
        attend = a.head_dim * (2 * a.heads / own + 2 * max(1, a.kv_heads // own))
    else:
        attend = a.heads / own * (2 * a.qk_nope_head_dim + 2 * a.v_head_dim + a.qk_rope_head_dim)
    mlp = 3 * model.dense_columns / tp
    if moe is not None:
        columns = moe.expert_intermediate / (tp // flags["ep"])
        mlp = max(mlp, moe.top_k * (columns + max(2 * columns, hidden)))
    forward = 2 * budget * (5 * hidden + max(attend, mlp))
    words = sequences * model.vocab_size
    last = max(forward, 4 * budget * hidden + words * (2 + 4 + 4 + 4)) + words * (4 + 1 / 8)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    graphs = 2 * MIB * sum(size <= min(2 * sequences, 512) for size in sizes)
    fixed = 0.6 * GIB + 0.14 * GIB * (tp - 1) + graphs
    left, per_token = held(model, "vllm", flags), token_bytes(model, "vllm", flags)
    pools = [
        (share * total - fixed - size - (last if stage == pp - 1 else forward)) / per_token[stage]
        for stage, size in enumerate(left)
    ]
    tokens = int(min(pools))
    if tokens < 1:
        raise RefusedError("No available memory for the cache blocks")
    if int(said.get("max-model-len", model.max_positions)) > tokens:
        raise RefusedError("To serve at least one request with the model's max seq len, more KV cache is needed")
    return tokens


RULES = {"sglang": sglang, "vllm": vllm}


def scenario(draw: random.Random) -> tuple[str, str, int, ParallelPlan, EngineSettings, Workload]:
    """A model on some GPUs of a box under a random split, load and flags."""
    engine, tp, pp = draw.choice(list(RULES)), draw.choice([1, 2, 4, 8]), draw.choice([1, 1, 2, 4, 8])
    ep = draw.choice([1, tp])
    by_request = engine == "sglang" and tp > 1 and draw.random() < 0.2
    settings = EngineSettings(
        name=engine,  # type: ignore[arg-type]
        max_running_requests=draw.choice([None, None, 32, 256]),
        chunked_prefill_size=draw.choice([None, None, 2048, 8192]),
        kv_cache_dtype=draw.choice(["auto", "auto", "fp8"]),  # type: ignore[arg-type]
    )
    users = draw.choice([1, 8, 64])
    load = Workload(users, 2 * users, draw.choice([64, 2000, 16_000]), draw.choice([64, 1000]))
    plan = ParallelPlan(tp, pp, ep=ep, dp_attention=by_request)
    return draw.choice(MODELS), draw.choice(BOXES), tp * pp, plan, settings, load


@pytest.mark.parametrize("seed", range(4))
def test_random_scenarios_start_as_printed_and_leave_the_predicted_pool(seed: int) -> None:
    draw, accepted, refused = random.Random(seed), 0, 0
    while accepted < SCENARIOS // 4:
        name, box_name, gpus, plan, settings, load = scenario(draw)
        model, box, rules = load_model(name), load_hardware(box_name), RULES[settings.name]
        flags = {"tp": plan.tp, "pp": plan.pp, "ep": plan.ep, "dp": plan.attention_dp}
        flags["fp8_kv"] = settings.kv_cache_dtype == "fp8" or model.precision.kv_cache == "fp8"
        if gpus > box.gpus:
            continue
        try:
            split = deploy(model, box, plan, settings, load)
        except UsageError:
            continue
        except InfeasibleDeployment as refusal:
            refused += 1
            share = re.findall(
                r"\((--[a-z-]+) ([\d.]+), (?:its own default|the largest that is safe)\)", refusal.reasons[0]
            )
            with pytest.raises(RefusedError):
                rules(model, box, flags, {share[0][0][2:]: share[0][1]})
            continue
        predicted = ENGINES[settings.name].kv_capacity_tokens(split)
        for line in launch(split).lines:
            allocated = rules(model, box, flags, words_of(line.words))
            assert allocated == pytest.approx(predicted, rel=0.03, abs=64), (name, box_name, plan, settings)
        accepted += 1
    assert refused > 5


def test_a_split_that_cuts_blocks_is_refused_by_both() -> None:
    model, box = load_model("minimax-m2"), load_hardware("h100-sxm-x8")
    flags = {"tp": 8, "pp": 1, "ep": 1, "dp": 1, "fp8_kv": False}
    for engine, rules in RULES.items():
        with pytest.raises(RefusedError, match="block_n"):
            rules(model, box, flags, {})
        with pytest.raises(UsageError, match="block_n"):
            deploy(model, box, ParallelPlan(8), EngineSettings(name=engine))  # type: ignore[arg-type]
