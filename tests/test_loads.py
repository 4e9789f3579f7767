"""Loads against queueing theory, and metrics against the requests they are made of."""

import csv
import math
from collections import deque
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import MicroBatch, Request
from pipesim.engines.base import DecodeGaps, LoopShape
from pipesim.errors import UsageError
from pipesim.loads import Like, LoadFlags, load_of
from pipesim.measured import Runs
from pipesim.metrics import _tokens_within, measured_window, summarise
from pipesim.passes import PassPrice, StagePrice
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.store import load_model, validated
from pipesim.runs import predict_run
from pipesim.simulation import simulate
from pipesim.timeline import Timeline
from pipesim.workload import Batch, PrefillChunk, Workload
from tests.conftest import BOX, KIMI, RunCli, predictor

SERVICE_PS = 10**9
"""A mean service of 1 ms."""
SEEDS = range(6)


class OneByOne:
    """A server that serves one request at a time, in order of arrival: a prompt of n tokens takes n nanoseconds."""

    def __init__(self) -> None:
        self.loop = LoopShape(slots=1, result_lag=0)
        self.decode_gaps = DecodeGaps()
        self._waiting: deque[Request] = deque()

    def measure(self, first_stage: object) -> None:
        pass

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    @property
    def idle(self) -> bool:
        return not self._waiting

    def form(self, slot: int) -> MicroBatch | None:
        request = self._waiting.popleft()
        request.slot = slot
        return MicroBatch(slot, PrefillChunk(request.input_len, 1, 0, 1, 0, False), [request])

    def outputs(self, micro_batch: MicroBatch) -> int:
        return len(micro_batch.finishing_prefill)

    def complete(self, micro_batch: MicroBatch, now: int) -> list[Request]:
        for request in micro_batch.finishing_prefill:
            request.first_token = request.last_token = now
        return micro_batch.finishing_prefill


def price(batch: Batch) -> PassPrice:
    return PassPrice((StagePrice({"experts": batch.tokens * 1_000}, {}),), (), 0, (0,), 0, 0)


def served(load: Workload, seed: int, random_service: bool = False) -> Timeline:
    """Runs a load on the server of one place, with a service of 1 ms: always, or on average and exponential."""
    count = SERVICE_PS // 1_000
    specs = load.draw(seed)
    services = (
        np.random.default_rng(1_000 + seed).exponential(count, len(specs)) if random_service else [count] * len(specs)
    )
    requests = [
        Request(index, max(1, round(tokens)), 1, 0, spec.submit_ps)
        for index, (spec, tokens) in enumerate(zip(specs, services, strict=True))
    ]
    return simulate(
        OneByOne(), price, requests, stages=1, users=None, idle_turn=0, max_concurrency=load.max_concurrency
    )


def mean_wait(timeline: Timeline) -> float:
    """Returns the mean time in the queue, in mean service times."""
    service = timeline.input_len * 1_000
    return float((timeline.last_token - timeline.arrival - service).mean()) / SERVICE_PS


def open_loop(utilisation: float, requests: int = 8_000, **fields: object) -> Workload:
    rate = utilisation * 1e12 / SERVICE_PS
    return Workload(num_prompts=requests, input_len=1, output_len=1, request_rate=rate, **fields)  # type: ignore[arg-type]


# --- queueing theory


@pytest.mark.parametrize("utilisation", [0.3, 0.6])
@pytest.mark.parametrize("random_service", [False, True])
def test_poisson_arrivals_wait_as_pollaczek_and_khinchine_say(utilisation: float, random_service: bool) -> None:
    # M/D/1: ρ / (2 (1 − ρ)) service times; M/M/1: twice as much (Kleinrock, Queueing Systems I, 5.63).
    expected = utilisation / (1.0 - utilisation) * (1.0 if random_service else 0.5)
    waits = [mean_wait(served(open_loop(utilisation), seed, random_service)) for seed in SEEDS]
    error = stdev(waits) / math.sqrt(len(waits))
    assert error < 0.05 * expected
    assert abs(fmean(waits) - expected) < 4 * error + 0.005 * expected


def test_burstier_arrivals_wait_longer_and_steady_ones_not_at_all() -> None:
    waits = [
        fmean(mean_wait(served(open_loop(0.6, 4_000, burstiness=shape), seed)) for seed in SEEDS)
        for shape in (0.2, 0.5, 1.0, 3.0, 1e5)
    ]
    assert all(burstier > 1.3 * steadier for burstier, steadier in pairwise(waits))
    assert waits[-1] < 1e-3


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gaps_between_arrivals_are_gamma_of_the_shape_asked_for(shape: float) -> None:
    gaps = np.diff([spec.submit_ps for spec in open_loop(0.5, 200_000, burstiness=shape).draw(0)])
    assert gaps.mean() == pytest.approx(2 * SERVICE_PS, rel=0.02)
    assert (gaps.std() / gaps.mean()) ** 2 == pytest.approx(1 / shape, rel=0.05)


@given(limit=st.none() | st.integers(1, 5), burstiness=st.sampled_from([0.3, 1.0, 4.0]), seed=st.integers(0, 99))
def test_littles_law_holds_in_the_server(limit: int | None, burstiness: float, seed: int) -> None:
    timeline = served(open_loop(0.9, 60, burstiness=burstiness, max_concurrency=limit), seed, random_service=True)
    begin, end = timeline.window
    steps = sorted([(int(t), 1) for t in timeline.arrival] + [(int(t), -1) for t in timeline.last_token])
    area, inside, before = 0, 0, begin
    for time, step in steps:
        area, inside, before = area + inside * (time - before), inside + step, time
    mean_time = (timeline.last_token - timeline.arrival).mean()
    assert area / (end - begin) == pytest.approx(len(timeline.arrival) / (end - begin) * mean_time, rel=1e-9)


# --- the open loop


@given(limit=st.integers(1, 6), rate=st.sampled_from([3.0, 50.0, math.inf]), seed=st.integers(0, 9))
def test_the_server_never_holds_more_requests_than_max_concurrency(limit: int, rate: float, seed: int) -> None:
    load = Workload(num_prompts=25, input_len=60, output_len=8, request_rate=rate, max_concurrency=limit)
    timeline = predictor(2, 4).simulate(load, seed)
    steps = sorted([(int(t), 1) for t in timeline.arrival] + [(int(t), -1) for t in timeline.last_token])
    assert max(np.cumsum([step for _, step in steps])) <= limit
    asked = np.array([spec.submit_ps for spec in load.draw(seed)])
    assert (timeline.arrival >= asked).all(), "a request that waits at the client is sent later, and timed from then"
    assert (np.diff(timeline.arrival) >= 0).all()
    if limit == 1:
        assert (timeline.arrival[1:] >= timeline.last_token[:-1]).all()


def test_an_infinite_rate_under_a_limit_is_the_closed_loop_without_spacing() -> None:
    lengths: dict[str, Any] = {"num_prompts": 20, "input_len": 90, "output_len": 12, "random_range_ratio": 0.5}
    closed = predictor(2, 4).simulate(Workload(concurrency=6, spacing_s=0.0, **lengths), 3)
    limited = predictor(2, 4).simulate(Workload(request_rate=math.inf, max_concurrency=6, **lengths), 3)
    assert (closed.arrival == limited.arrival).all()
    assert (closed.last_token == limited.last_token).all()


def test_an_infinite_rate_sends_all_at_once(run_cli: RunCli) -> None:
    load = Workload(num_prompts=9, request_rate=math.inf)
    assert {spec.submit_ps for spec in load.draw(0)} == {0}
    ran = run_cli("predict", "--tp", 8, "--request-rate", "inf", "--num-prompts", 9, "--output-len", 4)
    assert "load: all at once, 9 requests" in ran.out


def test_a_duration_sends_every_request_until_then_and_none_later(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "requests.csv"
    load = ("--request-rate", 8, "--duration", "5 s", "--output-len", 2, "--input-len", 20, "--seeds", 30)
    ran = run_cli("predict", "--tp", 8, *load, "--requests", out)
    assert ran.code == 0
    assert "8 req/s, sent for 5 s, requests of 20 in, 2 out" in ran.out
    rows = read(out)
    assert max(float(row["arrival_s"]) for row in rows) <= 5.0
    assert len(rows) / 30 == pytest.approx(41, abs=4), "the first request stands at time 0"


def test_num_prompts_cuts_a_duration() -> None:
    load = Workload(num_prompts=7, request_rate=100.0, duration_s=60.0)
    assert len(load.draw(0)) == 7
    assert len(Workload(num_prompts=7, request_rate=0.001, duration_s=1e-6).draw(0)) == 1


@pytest.mark.parametrize(
    ("arguments", "flag", "given_", "wanted"),
    [
        ("--burstiness 0 --request-rate 1", "--burstiness", "0.0", "a number from 0.001"),
        ("--burstiness nan --request-rate 1", "--burstiness", "nan", "a number from 0.001"),
        ("--burstiness -1 --request-rate 1", "--burstiness", "-1.0", "a number from 0.001"),
        ("--burstiness 2", "--burstiness", "2.0", "1 unless a finite --request-rate is given"),
        ("--burstiness 2 --request-rate inf", "--burstiness", "2.0", "1 unless a finite --request-rate is given"),
        ("--duration 60", "--duration", '"60"', "a quantity in s"),
        ("--duration 0s --request-rate 1", "--duration", "0.0", "a time above 0 s"),
        ("--duration 60s", "--duration", "60.0", "a duration with --request-rate or --trace"),
        ("--duration 3000s --request-rate 1e6", "--duration", "3000.0", "at most 1,000,000 requests come"),
        ("--max-concurrency 0 --request-rate 1", "--concurrency", "0", "a whole number from 1 to 100,000"),
        ("--prefix-cache-hit-rate 1.5", "--prefix-cache-hit-rate", "1.5", "a share from 0 to 1"),
        ("--prefix-cache-hit-rate nan", "--prefix-cache-hit-rate", "nan", "a share from 0 to 1"),
        ("--prefix-cache", "--prefix-cache", "True", "it beside --trace only"),
        ("--warm-up -1", "--warm-up", "-1", "a whole number from 0 to 1,000,000"),
        ("--warm-up 192", "--warm-up", "192", "fewer than the 192 requests of the run"),
        (
            "--warm-up 1 --concurrency 4 --num-prompts 4 --submit-spacing 0s --random-range-ratio 0",
            "--warm-up",
            "1",
            "others still run",
        ),
    ],
)
def test_a_load_that_makes_no_sense_is_refused(
    run_cli: RunCli, arguments: str, flag: str, given_: str, wanted: str
) -> None:
    ran = run_cli("predict", "--tp", 8, "--output-len", 2, *arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {flag}: ")
    assert given_ in ran.err
    assert wanted in ran.err


# --- the prefix cache


@given(rate=st.floats(0.0, 1.0), prompt=st.integers(1, 3_000), context=st.sampled_from([0, 500]))
def test_a_hit_moves_prompt_tokens_into_the_context_and_leaves_one_to_prefill(
    rate: float, prompt: int, context: int
) -> None:
    (spec,) = Workload(num_prompts=1, input_len=prompt, context_len=context, prefix_cache_hit_rate=rate).draw(0)
    assert spec.input_len + spec.context_len == prompt + context
    assert spec.input_len >= 1
    assert spec.context_len - context == pytest.approx(min(rate * prompt, prompt - 1), abs=1.0)


def test_the_more_of_a_prompt_is_cached_the_sooner_its_first_token() -> None:
    # vLLM expands a cached prefix; SGLang's Triton backend attends to the latent itself, which short prompts pay for.
    asked = predictor(2, 4, name="vllm")
    rates = (0.0, 0.5, 0.9, 1.0)
    loads = [
        Workload(concurrency=4, num_prompts=4, input_len=4_000, output_len=4, prefix_cache_hit_rate=r) for r in rates
    ]
    times = [summarise(asked.simulate(load, 0)).ttft_s.mean for load in loads]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.25 * times[0]
    steady = [asked.steady_state(load).prefill_time_s for load in loads]
    assert steady[-1] < 0.25 * steady[0]


# --- the warm-up


warm_loads = st.builds(
    Workload,
    concurrency=st.integers(2, 10),
    num_prompts=st.integers(10, 30),
    input_len=st.integers(1, 400),
    output_len=st.integers(2, 12),
    random_range_ratio=st.sampled_from([0.3, 0.9]),
    request_rate=st.none() | st.sampled_from([2.0, 40.0]),
)


@given(
    split=st.sampled_from([(8, 1), (2, 4), (1, 8)]),
    engine=st.sampled_from(["sglang", "vllm"]),
    load=warm_loads,
    warm_up=st.integers(0, 9),
)
def test_busy_bubble_and_other_idle_add_up_to_the_window_after_a_warm_up(
    split: tuple[int, int], engine: str, load: Workload, warm_up: int
) -> None:
    timeline = predictor(*split, name=engine).simulate(load, 0)
    ends = np.sort(timeline.last_token)
    if warm_up and ends[warm_up - 1] == ends[-1]:
        return
    metrics = summarise(timeline, warm_up)
    begin = ends[warm_up - 1] if warm_up else timeline.arrival.min()
    for stage in metrics.stages:
        assert stage.window == pytest.approx((ends[-1] - begin) / 1e12, rel=1e-12)
        assert stage.busy + stage.bubble + stage.host == pytest.approx(stage.window, rel=1e-9)
        assert min(stage.bubble, stage.host, *stage.by_category.values()) >= -1e-12
    assert 0 <= metrics.micro_batches_in_flight <= len(np.unique(timeline.slot)) + 1e-9


def test_a_warm_up_leaves_out_the_first_to_end_and_measures_from_there_on() -> None:
    load = Workload(concurrency=6, num_prompts=30, input_len=200, output_len=20, random_range_ratio=0.8)
    timeline = predictor(2, 4).simulate(load, 1)
    metrics, warm_up = summarise(timeline, 10), 10
    order = np.argsort(timeline.last_token, kind="stable")
    begin, kept = timeline.last_token[order[warm_up - 1]], order[warm_up:]
    window = (timeline.last_token.max() - begin) / 1e12
    assert metrics.duration_s == pytest.approx(window)
    assert metrics.request_throughput_per_s == pytest.approx(20 / window)
    assert metrics.ttft_s.mean == pytest.approx(((timeline.first_token - timeline.arrival)[kept] / 1e12).mean())
    assert metrics.e2e_s.p99 == pytest.approx(np.percentile((timeline.last_token - timeline.arrival)[kept] / 1e12, 99))
    inside = timeline.first_token[kept] >= begin
    whole = int(timeline.output_len[kept][inside].sum())
    assert whole <= metrics.output_tokens <= whole + int((timeline.output_len[kept][~inside] - 1).sum())


def test_in_a_steady_load_the_tokens_after_a_warm_up_are_those_of_its_decode_steps() -> None:
    # One wave of equal requests but for one that ends early: after it, every step gives a token to each of the others.
    timeline = predictor(8, 1).simulate(Workload(concurrency=1, num_prompts=3, input_len=64, output_len=50), 0)
    metrics = summarise(timeline, 1)
    assert metrics.output_tokens == 100
    gaps = timeline.gap[timeline.gaps_by_end[0] :] / 1e12
    assert metrics.itl_s.mean == pytest.approx(gaps.mean())
    assert len(gaps) == 98


def test_without_a_warm_up_the_metrics_are_those_of_the_whole_run() -> None:
    load = Workload(concurrency=4, num_prompts=12, input_len=100, output_len=9, random_range_ratio=0.5)
    timeline = predictor(2, 4).simulate(load, 0)
    metrics = summarise(timeline)
    assert metrics.output_tokens == int(timeline.output_len.sum())
    assert metrics == summarise(timeline, 0)


def test_the_screen_and_the_json_say_that_there_is_a_warm_up(run_cli: RunCli) -> None:
    load = ("predict", "--tp", 8, "--output-len", 5, "--random-range-ratio", 0.5, "--warm-up", 40, "--seeds", 1)
    assert "metrics from the end of the first 40 requests on, without these" in run_cli(*load).out
    assert run_cli(*load, "--json").json["workload"]["warm_up"] == 40
    assert "metrics from" not in run_cli(*load[:-4]).out


# --- loads as people have them


def like(preset: Like | None, **flags: Any) -> Workload:
    """Returns the load of a preset with some flags given."""
    return load_of(list(flags), LoadFlags(like=preset, **flags))


def lengths(load: Workload, seed: int = 0) -> tuple[list[int], list[int]]:
    specs = load.draw(seed)
    return [spec.input_len + spec.context_len for spec in specs], [spec.output_len for spec in specs]


@given(length=st.integers(1, 5_000), ratio=st.floats(0.0, 1.0))
def test_sglangs_tool_draws_lengths_from_rl_to_l(length: int, ratio: float) -> None:
    # sglang 0.5.23 benchmark/datasets/common.py `compute_random_lens`: integers from max(⌊rL⌋, 1) to L.
    asked = like("sglang-bench", input_len=length, output_len=length, random_range_ratio=ratio)
    for drawn in lengths(asked):
        assert max(1, math.floor(ratio * length)) - 1 <= min(drawn)
        assert max(drawn) <= length + 1
        assert max(drawn) - min(drawn) >= 0.9 * (1 - ratio) * length - 2, "1,000 of them come near both ends"


@given(length=st.integers(1, 5_000), ratio=st.floats(0.0, 0.999))
def test_vllms_tool_draws_lengths_from_l_less_to_l_more_than_r(length: int, ratio: float) -> None:
    # vllm 0.33.0 benchmarks/datasets/utils.py: integers from ⌊L(1−r)⌋ to ⌈L(1+r)⌉, 0 ≤ r < 1.
    for drawn in lengths(like("vllm-bench", input_len=length, output_len=length, random_range_ratio=ratio)):
        assert max(1, math.floor((1 - ratio) * length)) <= min(drawn)
        assert max(drawn) <= math.ceil((1 + ratio) * length)
        assert max(drawn) - min(drawn) >= 0.9 * 2 * ratio * length - 2


def test_one_is_fixed_for_sglangs_tool_and_zero_for_vllms() -> None:
    assert set(lengths(like("sglang-bench", random_range_ratio=1.0))[0]) == {1024}
    assert set(lengths(like("vllm-bench", random_range_ratio=0.0))[1]) == {128}
    assert set(lengths(like(None, random_range_ratio=0.0))[1]) == {256}


@pytest.mark.parametrize(
    ("preset", "shortest", "longest", "requests"),
    [
        ("sglang-bench", (1, 1), (1024, 1024), 1000),
        ("vllm-bench", (1024, 128), (1024, 128), 1000),
        (None, (256, 128), (768, 384), 192),
        ("batch", (256, 128), (768, 384), 512),
    ],
)
def test_what_flags_leave_open_is_the_tools_own(
    preset: Like | None, shortest: tuple[int, int], longest: tuple[int, int], requests: int
) -> None:
    asked = like(preset)
    assert asked.num_prompts == requests
    assert asked.ignore_eos == (preset != "batch"), "both tools ignore the end of answers to random prompts"
    for drawn, low, high in zip(lengths(asked), shortest, longest, strict=True):
        spread = max(1, 0.03 * (high - low))
        assert low <= min(drawn) <= low + spread
        assert high - spread <= max(drawn) <= high


@pytest.mark.parametrize(("preset", "means"), [("chat", (1155, 211)), ("agent", (8596, 182))])
def test_chats_and_agents_have_lognormal_lengths_that_end_by_themselves(preset: Like, means: tuple[int, int]) -> None:
    asked = like(preset, num_prompts=100_000)
    for drawn, mean in zip(lengths(asked), means, strict=True):
        assert fmean(drawn) == pytest.approx(mean, rel=0.015)
        logs = np.log(drawn)
        assert logs.std() == pytest.approx(0.8, rel=0.02)
        assert abs(float(((logs - logs.mean()) ** 3).mean()) / 0.8**3) < 0.1, "symmetric in the logarithm"
        assert max(drawn) <= asked.longest_of(mean) <= mean * math.exp(3 * 0.8)
    assert not asked.ignore_eos
    assert {spec.max_new_tokens for spec in asked.draw(0)} == {4096}
    assert (
        like(preset, ignore_eos=True).draw(0)[0].max_new_tokens == like(preset, ignore_eos=True).draw(0)[0].output_len
    )


def test_most_of_an_agents_prompt_is_cached() -> None:
    specs = like("agent").draw(0)
    shares = [spec.context_len / (spec.context_len + spec.input_len) for spec in specs]
    assert fmean(shares) == pytest.approx(0.59, abs=0.005)
    assert {spec.context_len for spec in like("agent", prefix_cache_hit_rate=0.0).draw(0)} == {0}


def test_a_batch_comes_all_at_once_with_as_many_in_the_server_as_a_limit_lets_in() -> None:
    assert {spec.submit_ps for spec in like("batch").draw(0)} == {0}
    assert like("batch").max_concurrency is None
    assert like("batch", concurrency=8).max_concurrency == 8


def test_one_line_says_which_load_is_assumed(run_cli: RunCli) -> None:
    flags = ("predict", "--tp", 8, "--like", "chat", "--concurrency", 2, "--num-prompts", 6, "--seeds", 1)
    out = " ".join(run_cli(*flags).out.split())
    words = "1,155 in, 211 out on average, lognormal (log spread 0.8), answers that end by themselves (as chat)"
    assert f"load: 2 users, 6 requests of {words}" in out
    stated = run_cli(*flags, "--json").json["workload"]
    assert (stated["like"], stated["ignore_eos"], stated["log_spread"]) == ("chat", False, 0.8)


@pytest.mark.parametrize(
    ("arguments", "flag", "given_", "wanted"),
    [
        ("--like chat --random-range-ratio 0.3", "--random-range-ratio with --like chat", "0.3", "lognormal"),
        ("--like vllm-bench --random-range-ratio 1", "--random-range-ratio with --like vllm-bench", "1.0", "below 1"),
        ("--like sglang-bench --random-range-ratio 1.5", "--random-range-ratio with --like sglang", "1.5", "0 to 1"),
        ("--random-range-ratio -0.1", "--random-range-ratio", "-0.1", "a number from 0 to 1"),
        ("--like batch --request-rate 3", "--request-rate with --like batch", "3.0", "all comes at once"),
        ("--like batch --steady", "--steady", "an open loop", "a closed loop of at least 3 requests per user"),
        ("--request-rate 3 --steady", "--steady", "an open loop", "never becomes steady"),
        ("--num-prompts 40 --steady", "--steady", "40 requests", "never becomes steady"),
        ("--like nonsense", "--like", "nonsense", "sglang-bench"),
        ("--like sglang-bench --input-len 0", "--input-len", "0", "a whole number from 1 to"),
        ("--like sglang-bench --output-len -4", "--output-len", "-4", "a whole number from 1 to"),
    ],
)
def test_a_preset_that_its_flags_contradict_and_a_load_that_never_becomes_steady_are_refused(
    run_cli: RunCli, arguments: str, flag: str, given_: str, wanted: str
) -> None:
    ran = run_cli("predict", "--tp", 8, *arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert flag in ran.err
    assert given_ in ran.err
    assert wanted in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_a_preset_beside_a_trace_is_refused(run_cli: RunCli, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": []}\n', encoding="utf-8")
    ran = run_cli("predict", "--tp", 8, "--trace", trace, "--like", "agent")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --like: 'agent' was given, no such flag beside --trace")


# --- the steady part


def steady(**fields: Any) -> Workload:
    load = {"concurrency": 16, "num_prompts": 96, "input_len": 256, "output_len": 64, "random_range_ratio": 0.5}
    return Workload(**load | fields, steady=True)


@pytest.mark.parametrize("split", [(8, 1), (2, 4)])
def test_every_token_is_got_before_in_or_after_the_steady_part(split: tuple[int, int]) -> None:
    timeline = predictor(*split).simulate(steady(), 0)
    begin, end = measured_window(timeline, 16, steady=True)
    first, last = timeline.window
    everyone = np.arange(len(timeline.arrival))
    parts = [_tokens_within(*edges, timeline, everyone) for edges in ((first, begin), (begin, end), (end, last))]
    at_an_edge = int(np.isin(timeline.first_token, [begin, end]).sum())
    assert sum(parts) == pytest.approx(int(timeline.output_len.sum()) + at_an_edge, rel=1e-9)
    assert summarise(timeline, 16, steady=True).output_tokens == round(parts[1])


def test_the_steady_part_lasts_from_as_many_ends_as_there_are_users_to_the_last_request_sent() -> None:
    timeline = predictor(8, 1).simulate(steady(), 3)
    metrics = summarise(timeline, 16, steady=True)
    begin, end = np.sort(timeline.last_token)[15], timeline.arrival.max()
    within = (timeline.last_token > begin) & (timeline.last_token <= end)
    assert metrics.duration_s == pytest.approx((end - begin) / 1e12)
    assert metrics.request_throughput_per_s == pytest.approx(int(within.sum()) / metrics.duration_s)
    sent, first, last = (
        times[within] / 1e12 for times in (timeline.arrival, timeline.first_token, timeline.last_token)
    )
    assert metrics.ttft_s.mean == pytest.approx((first - sent).mean())
    assert metrics.e2e_s.p99 == pytest.approx(np.percentile(last - sent, 99))
    assert metrics.tpot_s.mean == pytest.approx(((last - first) / (timeline.output_len[within] - 1)).mean())
    for stage in metrics.stages:
        assert stage.busy + stage.bubble + stage.host == pytest.approx(stage.window, rel=1e-9)


def test_how_the_users_begin_does_not_show_in_the_steady_part_and_does_in_the_whole_run() -> None:
    # TP: one slot, so that no grouping of the first requests can last.
    asked, seeds = predictor(8, 1), 4
    openings = [{"spacing_s": 0.0}, {"spacing_s": 0.002}, {}]
    parts = [asked.predict(steady(**opening), seeds) for opening in openings]
    rates = [part.mean("output_tokens_per_s") for part in parts]
    assert max(rates) < 1.03 * min(rates)
    for name in ("ttft_s", "tpot_s"):
        times = [part.latency(name).mean for part in parts]
        assert max(times) < 1.08 * min(times)
    wave = asked.predict(replace(steady(spacing_s=0.0), steady=False), seeds)
    assert wave.latency("ttft_s").p99 > 1.3 * parts[0].latency("ttft_s").p99


def test_a_run_in_whose_steady_part_no_request_ends_asks_for_more() -> None:
    short = Workload(
        concurrency=2, num_prompts=6, input_len=20, output_len=40, random_range_ratio=0.95, steady=True, spacing_s=0.0
    )
    llama = load_model("llama-3.1-8b")
    asked = Predictor(deploy(llama, BOX, ParallelPlan(1, 1, replicas=2), EngineSettings()))
    with pytest.raises(UsageError, match=r"^--num-prompts: 6 was given, more, so that requests end between"):
        for seed in range(20):
            asked.predict(short, 1, first_seed=seed)


def test_a_warm_up_measures_from_its_end_to_that_of_the_run() -> None:
    assert like(None).steady
    assert like(None, warm_up=10).steady is False
    assert like(None, num_prompts=500).steady is False
    assert like(None, num_prompts=500, steady=True).steady
    assert like(None, steady=False).num_prompts == 192


def test_runs_that_two_seeds_cannot_tell_apart_are_made_once(run_cli: RunCli) -> None:
    fixed = ("predict", "--tp", 8, "--concurrency", 2, "--num-prompts", 4, "--random-range-ratio", 0, "--output-len", 4)
    assert "seeds" not in run_cli(*fixed, "--submit-spacing", "0s").out
    assert "over 5 seeds" in run_cli(*fixed[:-4], "--output-len", 4).out


# --- records of requests


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_records_of_requests_give_the_printed_metrics_by_hand(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "requests.csv"
    load = ("--concurrency", 6, "--num-prompts", 18, "--input-len", 90, "--output-len", 30)
    more = ("--random-range-ratio", 0.6, "--prefix-cache-hit-rate", 0.25, "--seeds", 2, "--seed", 5)
    printed = run_cli("predict", "--tp", 2, "--pp", 4, *load, *more, "--requests", out, "--json").json["metrics"]
    rates, ttfts, tpots = [], [], []
    for seed in ("5", "6"):
        rows = [row for row in read(out) if row["seed"] == seed]
        assert [int(row["index"]) for row in rows] == list(range(18))
        assert {int(row["slot"]) for row in rows} <= {0, 1, 2, 3}
        sent, first, last = (
            np.array([float(row[n]) for row in rows]) for n in ("arrival_s", "first_token_s", "last_token_s")
        )
        tokens = np.array([int(row["output_len"]) for row in rows])
        rates.append(tokens.sum() / (last.max() - sent.min()))
        ttfts.append(first - sent)
        tpots.append(((last - first) / (tokens - 1))[tokens > 1])
        specs = Workload(6, 18, 90, 30, 0.6, prefix_cache_hit_rate=0.25).draw(int(seed))
        assert [(int(r["input_len"]), int(r["context_len"])) for r in rows] == [
            (s.input_len, s.context_len) for s in specs
        ]
    assert fmean(rates) == pytest.approx(printed["output_tokens_per_s"])
    assert fmean(times.mean() for times in ttfts) == pytest.approx(printed["ttft_s"]["mean"])
    assert fmean(float(np.percentile(times, 99)) for times in ttfts) == pytest.approx(printed["ttft_s"]["p99"])
    assert fmean(times.mean() for times in tpots) == pytest.approx(printed["tpot_s"]["mean"])


@pytest.mark.parametrize("where", ["missing/requests.csv", "."])
def test_a_file_of_records_that_cannot_be_written_is_refused(run_cli: RunCli, tmp_path: Path, where: str) -> None:
    ran = run_cli("predict", "--tp", 8, "--output-len", 2, "--requests", tmp_path / where)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: --requests: ")
    assert "a file that can be written" in ran.err


def test_a_run_that_fails_leaves_the_old_records_as_they_were(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "requests.csv"
    out.write_text("old", encoding="utf-8")
    assert run_cli("predict", "--tp", 1, "--pp", 4, "--requests", out).code == 1
    assert run_cli("predict", "--tp", 8, "--warm-up", 500, "--requests", out).code == 2
    assert out.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["requests.csv"]


# --- measured runs


def test_a_measured_run_states_its_load_in_the_same_fields() -> None:
    lengths = {"concurrency": 3, "num_prompts": 9, "input_len": 200, "output_len": 8, "random_range_ratio": 0.5}
    stated = {"request_rate": 20.0, "burstiness": 0.5, "prefix_cache_hit_rate": 0.5, "warm_up": 2, "max_concurrency": 3}
    spaced = {**lengths, "spacing": "30 ms"}
    document = {"schema_version": 1, "run": [run("a", {**lengths, **stated}), run("b", spaced)]}
    first, second = validated(Runs, document, Path("runs.toml")).run
    assert predict_run(first, 1).workload == Workload(**lengths, **stated)  # type: ignore[arg-type]
    assert predict_run(second, 1).workload == Workload(**lengths, spacing_s=0.03)  # type: ignore[arg-type]


def run(name: str, load: dict[str, object]) -> dict[str, object]:
    common = {"role": "reported", "source": "none", "model": KIMI.name, "hardware": BOX.name, "engine": {}}
    return {"id": name, **common, "plan": {"tp": 8}, "workload": load, "measured": {"ttft_s": 1.0}}


def test_a_limit_belongs_to_the_open_loop() -> None:
    with pytest.raises(UsageError, match=r"--max-concurrency: 3 was given, a limit with --request-rate or --trace"):
        Workload(max_concurrency=3)
