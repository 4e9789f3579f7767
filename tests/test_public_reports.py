"""What people who run these deployments have reported must come out by flags alone: who wins, and roughly by how much.

Each test names the report and its check. Conditions that a report leaves out are those of the tests' own choice.
"""

import pytest

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import InfeasibleDeployment
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import DecodeStep, Workload
from tests.conftest import BARE, BOX, KIMI, predictor, without_front_end

H100, B200 = load_hardware("h100-sxm-x8"), load_hardware("b200-sxm-x8")
EIGHT = Workload(concurrency=8, num_prompts=8, input_len=64, output_len=256, spacing_s=0.0)


def ask(
    model: str, box: HardwareProfile, load: Workload, plan: ParallelPlan | None = None, **settings: object
) -> Prediction:
    """The prediction of one run of a load."""
    deployment = deploy(
        load_model(model),
        box,
        plan or ParallelPlan(),
        EngineSettings(**settings),  # type: ignore[arg-type]
    )
    return Predictor(deployment).predict(load, seeds=1)


def rate(prediction: Prediction) -> float:
    return prediction.mean("output_tokens_per_s")


def test_r01_all_eight_sequences_in_one_micro_batch_leave_seven_of_eight_stages_waiting() -> None:
    """vllm#28270: utilisation 1/8 at most; one sequence to a micro-batch raises the rate several-fold, below 8 times.

    All eight wait when the scheduler looks: what comes through a front end comes one by one, and the first goes alone.
    Several-fold less what smaller batches lose in weight reads: 2.0 here, since FP8 experts of DeepSeek-R1 are read by
    each micro-batch anew.
    """
    plan = ParallelPlan(1, 8)
    box = without_front_end(B200)
    together = ask("deepseek-r1", box, EIGHT, plan, pp_max_micro_batch_size=8)
    spread = ask("deepseek-r1", box, EIGHT, plan, pp_max_micro_batch_size=1)
    by_vllm = ask("deepseek-r1", box, EIGHT, plan, name="vllm")
    for one in (together, by_vllm):
        assert one.mean("micro_batches_in_flight") == pytest.approx(1.0, abs=0.05)
        assert 1 / 8 <= 1.0 - one.mean("bubble_fraction") <= 1 / 8 + 0.05
    assert 1.9 * rate(together) < rate(spread) < 8 * rate(together)


def test_r02_doubling_the_limit_of_running_requests_helps_pp_more_than_tp() -> None:
    """vllm#27462: --max-num-seqs bounds all micro-batches together, so a stage of PP sees 1/P of it."""
    load = Workload(concurrency=256, num_prompts=256, input_len=256, output_len=256)
    gains = {}
    for plan in (ParallelPlan(4, 1), ParallelPlan(1, 4)):
        few, many = (
            rate(ask("llama-3.1-70b", H100, load, plan, name="vllm", max_running_requests=limit)) for limit in (32, 64)
        )
        gains[plan.pp] = many / few
    assert gains[4] > gains[1] > 1.0


def test_r04_eight_stages_buy_a_small_model_capacity_and_little_speed() -> None:
    """vllm#11500: Llama-3.1-8B, 114k prompt and 17k output tokens of few sequences: PP8 is 0.9 to 1.5 times PP1."""
    load = Workload(concurrency=8, num_prompts=8, input_len=14_250, output_len=2_125, spacing_s=0.0)
    alone, staged = (rate(ask("llama-3.1-8b", H100, load, ParallelPlan(1, pp), name="vllm")) for pp in (1, 8))
    assert 0.9 <= staged / alone <= 1.5
    assert alone == pytest.approx(565, rel=0.25)


def test_r05_eight_requests_over_eight_stages_keep_one_or_two_gpus_busy() -> None:
    """vllm#7202."""
    prediction = ask("llama-3.1-70b", load_hardware("a100-sxm-x8"), EIGHT, ParallelPlan(1, 8), name="vllm")
    assert 0.5 < 8 * (1.0 - prediction.mean("bubble_fraction")) < 2.0


def with_host_gap(box: HardwareProfile, gap: float) -> HardwareProfile:
    """A box whose scheduler takes a time [s] more for every micro-batch."""
    return box.model_copy(update={"host": box.host.model_copy(update={"schedule": box.host.schedule + gap})})


def test_r06_a_host_gap_between_micro_batches_makes_pp4_slow_and_nothing_intrinsic_does() -> None:
    """vllm#15330: Qwen2.5-14B, 2,048 in, 1,000 out: without gaps PP4 is within 1.3 of TP4, with them 2 to 3 slower."""
    load = Workload(concurrency=400, num_prompts=400, input_len=2048, output_len=1000, spacing_s=0.0)
    settings = {"name": "vllm", "max_running_requests": 400}
    by_tp, by_pp = (ask("qwen2.5-14b", H100, load, ParallelPlan(*split), **settings) for split in ((4, 1), (1, 4)))
    assert by_pp.latency("tpot_s").mean < 1.3 * by_tp.latency("tpot_s").mean
    stage = by_pp.mean("step_time_s") / 4
    gapped = ask(
        "qwen2.5-14b", with_host_gap(H100, 2 * stage), load, ParallelPlan(1, 4), **settings, async_scheduling=False
    )
    assert 2.0 <= gapped.latency("tpot_s").mean / by_tp.latency("tpot_s").mean <= 3.5


def test_r07_the_founding_runs_have_one_to_two_micro_batches_in_flight() -> None:
    """Eight users of PP8 decode in one slot; 64 users under a cap of 64 in between one and three.

    So it is for requests that all wait when the scheduler looks. Behind a tokenizer the first of them goes alone, and
    with the founding runs' load the others fill one slot more of 8 users and up to three more of 64.
    """
    for box, lengths, bars in (
        (BARE, (200, 400), ((8, 0.9, 1.3), (64, 1.0, 3.6))),
        (BOX, (50, 600), ((8, 1.0, 2.0), (64, 1.0, 4.0))),
    ):
        for users, low, high in bars:
            load = Workload(users, users, *lengths, spacing_s=0.0)
            prediction = predictor(1, 8, box, pp_max_micro_batch_size=64).predict(load, seeds=1)
            assert low <= prediction.mean("micro_batches_in_flight") <= high


def test_r08_asynchronous_scheduling_gains_tens_of_percent_under_pp() -> None:
    """vllm#32618: Qwen3-30B-A3B on PP4, 128 prompts of 2 in and 512 out: 30.8 % more, and not twice as much."""
    load = Workload(concurrency=128, num_prompts=128, input_len=2, output_len=512, spacing_s=0.0)
    box = without_front_end(H100)
    slow, fast = (
        rate(ask("qwen3-30b-a3b", box, load, ParallelPlan(1, 4), name="vllm", async_scheduling=ahead))
        for ahead in (False, True)
    )
    assert 1.1 <= fast / slow <= 1.6


def test_r16_tp_follows_the_slowest_link_and_pp_decode_barely_moves() -> None:
    """4 GPUs on PCIe 1 and 2: one link at an eighth slows TP4 several-fold; PP4 prefills over 2.5 times faster."""
    box = load_hardware("a100-pcie-x8").with_links_scaled(0.25)
    slow = box.with_links_scaled(0.125)
    decode = Workload(concurrency=1, num_prompts=1, input_len=64, output_len=128)
    tp, pp = ParallelPlan(4, 1), ParallelPlan(1, 4)
    loss = {
        plan.pp: rate(ask("qwen3-30b-a3b", box, decode, plan)) / rate(ask("qwen3-30b-a3b", slow, decode, plan))
        for plan in (tp, pp)
    }
    assert loss[4] < 1.05 < loss[1]
    prompt = Workload(concurrency=8, num_prompts=8, input_len=8192, output_len=1, spacing_s=0.0)
    times = {plan.pp: ask("qwen3-30b-a3b", box, prompt, plan).mean("duration_s") for plan in (tp, pp)}
    assert times[1] / times[4] > 2.5


def test_r21_the_old_split_of_61_layers_is_as_slow_as_its_longest_stage() -> None:
    """sglang#6666: 12 layers on one of eight stages are 1.57 times the ideal; an even split has 7 or 8 everywhere."""
    old = predictor_with_split((7, 7, 7, 7, 7, 7, 7, 12))
    even = predictor_with_split((7, 7, 8, 8, 8, 8, 8, 7))
    step = DecodeStep(requests=8, kv_tokens=512, rows=8, captured=True)
    slowest = {name: max(one.price(step).totals) for name, one in (("old", old), ("even", even))}
    mean = sum(old.price(step).totals) / 8
    assert 12 / 7.625 <= slowest["old"] / mean <= 1.15 * 12 / 7.625  # the head stands on the longest stage, too
    assert slowest["even"] < 0.72 * slowest["old"]


def predictor_with_split(layers: tuple[int, ...]) -> Predictor:
    roomy = BOX.model_copy(update={"gpu": BOX.gpu.model_copy(update={"memory": 200e9})})
    return Predictor(deploy(KIMI, roomy, ParallelPlan(1, len(layers), layers), EngineSettings()))


def test_r21_the_stage_with_17_of_94_layers_runs_out_of_memory_first() -> None:
    """Qwen3-235B over PP8 in BF16: 11 × 7 + 17 does not fit where 11 or 12 everywhere do."""
    model, settings = load_model("qwen3-235b-a22b"), EngineSettings(mem_fraction_static=0.9)
    uneven = ParallelPlan(1, 8, (11,) * 7 + (17,))
    with pytest.raises(InfeasibleDeployment, match=r"GPU 7 \(stage 7\)"):
        deploy(model, load_hardware("h100-sxm-x8"), uneven, settings)
    assert Predictor(deploy(model, load_hardware("h100-sxm-x8"), ParallelPlan(1, 8), settings)).kv_capacity_tokens > 0


def test_r25_the_stage_with_the_least_room_decides_for_all() -> None:
    """vllm#14120: KV tokens are the minimum over stages; one layer more on the last stage costs every stage."""
    model, box = load_model("llama-3.1-70b"), load_hardware("l40s-x8")
    settings = EngineSettings("vllm")
    even, uneven = (
        Predictor(deploy(model, box, ParallelPlan(1, 8, split), settings)).kv_capacity_tokens
        for split in ((10,) * 8, (9,) * 7 + (17,))
    )
    assert uneven < 0.6 * even


def test_r27_a_misjudged_link_between_sockets_ruins_prefill_and_costs_decode_less() -> None:
    """NCCL on dual EPYC: AllReduce of 48.2 us for 26.2 us at 32 KB and a bus bandwidth of 2 to 3 GB/s.

    A prompt of 8k tokens takes some eight times as long, decode loses about 1.6.
    """
    bad = BOX.model_copy(
        update={
            "collectives": tuple(
                curve.model_copy(
                    update={
                        "shape": "max",
                        "lines": tuple(
                            line.model_copy(update={"latency": 48.2e-6, "bandwidth": 2.5e9 * 8 / 14})
                            for line in curve.lines[:1]
                        ),
                    }
                )
                if (curve.op, curve.ranks) == ("all_reduce", 8)
                else curve
                for curve in BOX.collectives
            )
        }
    )
    prompt = Workload(concurrency=1, num_prompts=1, input_len=8192, output_len=1)
    decode = Workload(concurrency=1, num_prompts=1, input_len=1, output_len=128, context_len=512)
    ratio = {}
    for name, load in (("prefill", prompt), ("decode", decode)):
        good, worse = (predictor(8, 1, box=box, name="vllm").predict(load, seeds=1) for box in (BOX, bad))
        ratio[name] = worse.mean("duration_s") / good.mean("duration_s")
    assert ratio["prefill"] > 3.0
    assert 1.1 < ratio["decode"] < 2.0


def prefill_time(prediction: Prediction) -> float:
    return prediction.latency("ttft_s").mean


def test_r03_chunks_of_a_lone_request_cost_where_one_follows_the_other_and_pay_where_stages_overlap_them() -> None:
    """vllm#41682: without pipelined chunks, chunking only adds overhead; with them (R20) it is what fills the pipe."""
    load = Workload(concurrency=1, num_prompts=1, input_len=32_768, output_len=1)
    box = load_hardware("h200-sxm-x8")
    serial, staged = (
        [
            prefill_time(ask("deepseek-v3", box, load, plan, name="vllm", chunked_prefill_size=chunk))
            for chunk in (4096, 32_768)
        ]
        for plan in (ParallelPlan(8, 1), ParallelPlan(1, 8))
    )
    assert serial[0] >= serial[1]
    assert staged[0] < 0.5 * staged[1]


def test_r20_pipeline_stages_over_nodes_prefill_a_long_prompt_over_three_times_as_fast() -> None:
    """LMSYS, January 2026: DeepSeek-V3 on H20, PP4×TP8 3.31 times TP8 with dynamic chunks of 12k."""
    load = Workload(concurrency=1, num_prompts=1, input_len=131_072, output_len=1)
    nodes, node = load_hardware("h20-sxm-x8-n4"), load_hardware("h20-sxm-x8")
    settings = {"mem_fraction_static": 0.95, "chunked_prefill_size": 12_288, "version": "0.5.8"}
    alone = prefill_time(ask("deepseek-v3", node, load, ParallelPlan(8, 1), **settings))
    fixed, dynamic = (
        prefill_time(ask("deepseek-v3", nodes, load, ParallelPlan(8, 4), **settings, enable_dynamic_chunking=sized))
        for sized in (False, True)
    )
    assert 3.0 <= alone / dynamic <= 3.6
    assert dynamic < fixed


@pytest.mark.xfail(reason="6.9 of 8: the head takes 0.56 ms here, 0.75 ms in the report, whose GPU is not named")
def test_r24_an_unsharded_head_on_the_last_of_eight_stages_costs_a_sixth() -> None:
    """aiconfigurator#1459: Qwen3-32B over PP8, stages of 3.150 ms and a last one of 3.901: 6.65 times, not 8."""
    deployment = deploy(load_model("qwen3-32b"), H100, ParallelPlan(1, 8), EngineSettings("vllm"))
    stages = Predictor(deployment).price(DecodeStep(requests=8, kv_tokens=1024, rows=8, captured=True)).totals
    assert stages[1] == pytest.approx(3.150e9, rel=0.05)
    assert 6.6 <= sum(stages) / max(stages) <= 6.7
