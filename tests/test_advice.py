"""What a person is told was simulated: advice, what the answer hangs on, overload, and where the closed form holds."""

import math
import random
import re
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from pipesim.changes import Change, advice, switched, with_flags
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import PipesimError
from pipesim.hinges import hinges
from pipesim.overload import overload
from pipesim.planning.question import PlanQuestion
from pipesim.planning.search import search
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.reasons import binding_limit
from pipesim.sensitivity import Confidence
from pipesim.units import PICOSECONDS_PER_SECOND
from pipesim.variations import GAPS_S, arrival_variance, beside
from pipesim.whatif import explain
from pipesim.workload import Workload
from tests.conftest import BOX, KIMI, RunCli, predictor

RAGGED = Workload(16, 48, 256, 64, 0.5)
FLAGS = ["--concurrency", 16, "--num-prompts", 48, "--input-len", 256, "--output-len", 64, "--random-range-ratio", 0.5]
LLAMA = {"model": "llama-3.1-8b", "hardware": "h100-sxm-x4"}


def predicted(tp: int, pp: int, load: Workload, **flags: Any) -> Prediction:
    """Kimi K2.6 on the founding box under a load, with a share of memory that holds it."""
    return Predictor(deploy(KIMI, BOX, ParallelPlan(tp, pp), EngineSettings(**flags), load)).predict(load, seeds=3)


@pytest.fixture(scope="module")
def uneven() -> Prediction:
    """TP2×PP4 with SGLang's default slot cap: slots fill unevenly."""
    return predicted(2, 4, RAGGED)


@pytest.fixture(scope="module")
def advised(uneven: Prediction) -> Change:
    change = advice(uneven)
    assert change is not None
    return change


def test_a_flag_is_advised_with_what_a_prediction_with_that_flag_says(advised: Change, run_cli: RunCli) -> None:
    flags = ["--tp", 2, "--pp", 4, *FLAGS, "--seeds", 3, "--json", *advised.flags.split()]
    answer = run_cli("predict", *flags).json
    assert answer["metrics"]["output_tokens_per_s"] == pytest.approx(advised.output_tokens_per_s, rel=1e-9)
    assert answer["metrics"]["ttft_s"]["mean"] == pytest.approx(advised.latencies[0], rel=1e-9)


def test_explain_and_the_advice_say_the_same_of_a_flag(uneven: Prediction, advised: Change) -> None:
    twin = next(change for change in explain(uneven).changes if change.flags == advised.flags)
    assert (twin.speedup, twin.interval) == (advised.speedup, advised.interval)
    assert advised.flags in binding_limit(uneven)
    assert f"{advised.output_tokens_per_s:,.0f} tok/s" in binding_limit(uneven)


def test_advice_gains_beyond_its_interval_and_there_is_none_where_nothing_does() -> None:
    for users, tp, pp in ((1, 8, 1), (16, 4, 2), (16, 2, 4)):
        prediction = predicted(tp, pp, replace(RAGGED, concurrency=users))
        change = advice(prediction)
        assert change is None or change.interval[0] > 1
        assert ("simulated under this load" in binding_limit(prediction)) == (change is not None)
    assert advice(predictor(8, 1).predict(Workload(1, 2, 64, 16), seeds=2)) is None


def test_cuda_graphs_are_advised_where_kernels_are_launched_one_by_one() -> None:
    change = advice(predictor(8, 1, cuda_graph=False).predict(Workload(1, 2, 64, 32), seeds=2))
    assert change is not None
    assert (change.flags, change.speedup > 2) == ("--cuda-graph", True)


def test_a_flag_of_another_engine_is_no_lever() -> None:
    load = replace(RAGGED, num_prompts=32)
    deployments = [deploy(KIMI, BOX, ParallelPlan(2, 4), EngineSettings(name=name)) for name in ("sglang", "vllm")]
    ours, theirs = (
        {flags.split()[0] for _, flags, _ in with_flags(Predictor(one).predict(load, 1), every=True) if flags}
        for one in deployments
    )
    assert {"--prefill-decode-interval", "--pp-max-micro-batch-size"} <= ours
    assert theirs == {"--prefill-schedule-interval"}


def test_an_open_loop_is_advised_by_latency() -> None:
    load = replace(RAGGED, request_rate=1.6, num_prompts=64)
    prediction = predicted(2, 4, load)
    changes = [switched(prediction, words, other, flags) for words, flags, other in with_flags(prediction)]
    for change in changes:
        e2e = prediction.latency("e2e_s").mean / change.latencies[1]
        assert change.speedup == pytest.approx(e2e, rel=0.1)
    best = advice(prediction)
    assert best is None or "times as fast" in binding_limit(prediction)


def scenarios(count: int, seed: int) -> list[Prediction]:
    """Predictions of random deployments and closed or open loops, of Kimi K2.6 under both engines."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        tp, pp = draw.choice([(8, 1), (4, 2), (2, 4), (1, 8)])
        users, ratio = draw.choice([8, 16, 32]), draw.choice([0.0, 0.3, 0.5, 0.8])
        load = Workload(users, 3 * users, draw.choice([64, 256, 512]), draw.choice([32, 64]), ratio)
        settings = EngineSettings(name=draw.choice(["sglang", "sglang", "vllm"]), cuda_graph=draw.random() < 0.8)
        found.append(Predictor(deploy(KIMI, BOX, ParallelPlan(tp, pp), settings, load)).predict(load, seeds=5))
    return found


def test_what_advice_gains_on_other_seeds_lies_in_the_interval_it_came_with() -> None:
    inside = []
    for prediction in scenarios(12, seed=1):
        change = advice(prediction)
        if change is None:
            continue
        other = next(other for _, flags, other in with_flags(prediction) if flags == change.flags)
        rates = [
            Predictor(one).predict(prediction.workload, 2, first_seed=100).mean("output_tokens_per_s")
            for one in (prediction.deployment, other)
        ]
        inside.append(change.interval[0] <= rates[1] / rates[0] <= change.interval[1])
    assert len(inside) >= 5
    assert fmean(inside) >= 0.75


def test_the_interval_holds_plausible_arrivals(uneven: Prediction) -> None:
    confidence = Confidence(uneven)
    assert confidence.log_std("output_tokens_per_s") ** 2 >= arrival_variance(uneven, "output_tokens_per_s")
    single = predictor(8, 1).predict(Workload(1, 4, 64, 16), seeds=1)
    assert arrival_variance(single, "output_tokens_per_s") == 0
    open_loop = predictor(8, 1).predict(Workload(1, 8, 64, 16, request_rate=4.0), seeds=1)
    assert arrival_variance(open_loop, "output_tokens_per_s") == 0


def test_what_an_answer_hangs_on_is_simulated_and_shown(run_cli: RunCli) -> None:
    answer = run_cli("predict", "--tp", 2, "--pp", 4, *FLAGS, "--json").json["hangs_on"]
    assert {float(gap) for gap in answer["by_gap"]} == set(GAPS_S)
    assert set(answer["best_split"]) == {"equal lengths", "lengths ±50%", "users 20 ms apart"}
    assert set(answer["best_split"].values()) <= {"TP8", "TP4×PP2", "TP2×PP4", "PP8"}
    screen = " ".join(run_cli("predict", "--tp", 2, "--pp", 4, *FLAGS).out.split())
    assert f"{answer['equal_lengths']:,.0f} tok/s with equal lengths" in screen
    assert f"{answer['ragged_lengths']:,.0f} with lengths ±50%" in screen


def test_what_an_answer_hangs_on_agrees_with_the_answer(uneven: Prediction) -> None:
    found = hinges(uneven)
    assert found is not None
    assert found.ragged_lengths == pytest.approx(uneven.mean("output_tokens_per_s"), rel=1e-9)
    assert hinges(predictor(8, 1).predict(Workload(1, 8, 64, 8, request_rate=2.0), seeds=1)) is None


def test_one_question_is_simulated_once(uneven: Prediction, monkeypatch: pytest.MonkeyPatch) -> None:
    binding_limit(uneven), hinges(uneven), Confidence(uneven).interval("ttft_s")
    monkeypatch.setattr(Predictor, "simulate", lambda *_: pytest.fail("simulated again"))
    binding_limit(uneven), hinges(uneven), Confidence(uneven).interval("ttft_s")
    assert beside(uneven) is uneven


def test_the_closed_form_is_shown_where_it_holds_and_not_mentioned_elsewhere(run_cli: RunCli) -> None:
    whole = ["--concurrency", 16, "--num-prompts", 32, "--output-len", 128]
    for flags, holds in (
        (["--tp", 8, "--random-range-ratio", 0], True),
        (["--tp", 8, "--random-range-ratio", 0.5], False),
        (["--tp", 2, "--pp", 4, "--random-range-ratio", 0], False),
        (["--tp", 8, "--random-range-ratio", 0, "--request-rate", 1], False),
    ):
        assert run_cli("predict", *whole, *flags, "--json").json["closed_form_holds"] is holds
        assert ("closed form" in run_cli("predict", *whole, *flags).out) is holds


def test_where_the_closed_form_is_said_to_hold_the_simulation_is_near() -> None:
    draw, ratios = random.Random(7), []
    splits = {"kimi-k2.6": [(8, 1), (4, 2), (2, 4)], "llama-3.1-8b": [(1, 1), (2, 1), (1, 2), (2, 2)]}
    boxes = {"kimi-k2.6": "rtx-pro-6000-x8", "llama-3.1-8b": "h100-sxm-x4"}
    while len(ratios) < 30:
        model, users = draw.choice(sorted(boxes)), draw.choice([1, 4, 8, 16, 32])
        tp, pp = draw.choice(splits[model])
        cap = None if pp == 1 else -(-users // pp)
        load = Workload(users, 2 * users, draw.choice([64, 256, 1024]), draw.choice([32, 128, 256]))
        settings = EngineSettings(pp_max_micro_batch_size=cap, cuda_graph=draw.random() < 0.8)
        asked = Predictor(deploy(load_model(model), load_hardware(boxes[model]), ParallelPlan(tp, pp), settings, load))
        if asked.closed_form_holds(load):
            found = asked.predict(load, seeds=1)
            ratios.append(found.mean("output_tokens_per_s") / found.closed_form.output_tokens_per_s)
    assert 0.8 <= min(ratios) <= max(ratios) <= 1.1
    assert fmean(ratios) == pytest.approx(1, abs=0.05)


def carried_in_a_long_run(asked: Predictor, load: Workload) -> float:
    """Requests per second that end in the later half of a long run while requests still come."""
    run = asked.simulate(replace(load, num_prompts=3000), seed=5)
    ends, last = run.last_token / PICOSECONDS_PER_SECOND, float(run.arrival[-1]) / PICOSECONDS_PER_SECOND
    return float(((ends > last / 2) & (ends <= last)).sum()) / (last / 2)


@pytest.mark.parametrize(("tp", "pp", "engine"), [(2, 1, "sglang"), (1, 2, "vllm")])
def test_what_an_overloaded_server_carries_is_what_a_long_run_shows(tp: int, pp: int, engine: Any) -> None:
    model, box = load_model(LLAMA["model"]), load_hardware(LLAMA["hardware"])
    load = Workload(num_prompts=40, input_len=2000, output_len=200, random_range_ratio=0.5, request_rate=60.0)
    asked = Predictor(deploy(model, box, ParallelPlan(tp, pp), EngineSettings(name=engine, max_running_requests=48)))
    found = overload(asked.predict(load, seeds=1))
    assert found is not None
    assert found.offered_per_s == 60
    assert found.carried_per_s == pytest.approx(carried_in_a_long_run(asked, load), rel=0.07)
    assert found.queue_growth_per_s == pytest.approx(60 - found.carried_per_s)
    assert found.ttft_passes_a_minute_after_s is not None
    run = asked.simulate(replace(load, num_prompts=6000), seed=9)
    late = run.arrival[run.first_token - run.arrival > 60 * PICOSECONDS_PER_SECOND]
    assert float(np.min(late)) / PICOSECONDS_PER_SECOND == pytest.approx(found.ttft_passes_a_minute_after_s, rel=0.15)
    assert overload(asked.predict(replace(load, request_rate=0.8 * found.carried_per_s), seeds=1)) is None


def test_overload_is_the_first_line_and_stands_in_the_json(run_cli: RunCli) -> None:
    flags = ["--model", LLAMA["model"], "--hardware", LLAMA["hardware"], "--max-running-requests", 8]
    flags += ["--input-len", 512, "--output-len", 64, "--num-prompts", 40, "--seeds", 1, "--request-rate", 200]
    lines = run_cli("predict", *flags).out.splitlines()
    first = next(line for line in lines[1:] if not line.startswith(("load", "defaults", "  ", "steady")) and line)
    assert first.startswith("Overloaded: 200.00 requests/s are offered")
    answer = run_cli("predict", *flags, "--json").json
    assert answer["overload"]["offered_per_s"] == 200
    assert answer["overload"]["carried_per_s"] < 200
    growth = answer["overload"]["offered_per_s"] - answer["overload"]["carried_per_s"]
    assert answer["overload"]["queue_growth_per_s"] == pytest.approx(growth)
    carried = run_cli("predict", *flags[:-1], 1, "--json").json
    assert carried["overload"] is None


def test_users_of_a_closed_loop_are_not_said_of_an_open_one(run_cli: RunCli) -> None:
    flags = ["--input-len", 64, "--output-len", 24, "--num-prompts", 30, "--request-rate", 1.5, "--seeds", 1]
    for split in (["--tp", 8], ["--tp", 2, "--pp", 4]):
        for command in ("predict", "explain"):
            screen = run_cli(command, *split, *flags[: -2 if command == "explain" else None]).out
            assert not re.search(r"\b32 (users|requests)|micro-batch of 32|of 32 filled|\busers\b", screen)
    answer = run_cli("predict", "--tp", 8, *flags, "--json").json
    assert answer["workload"]["concurrency"] is None


def test_an_open_loops_closed_form_is_that_of_the_requests_inside() -> None:
    prediction = predictor(8, 1).predict(Workload(num_prompts=60, input_len=64, output_len=32, request_rate=2.0), 2)
    inside = prediction.mean("request_throughput_per_s") * prediction.latency("e2e_s").mean
    assert prediction.closed_load.closed_loop
    assert abs(prediction.closed_load.concurrency - inside) <= 1
    assert not prediction.closed_form_holds


def test_plans_for_an_open_loop_that_is_carried_are_ranked_by_latency() -> None:
    fixed: dict[str, Any] = {"ep": 1, "dcp": 1, "dp_attention": False, "kv_cache_dtype": "auto", "replicas": 1}
    closed = Workload(4, 8, 64, 8)
    opened, flood = replace(closed, request_rate=1.0), replace(closed, request_rate=1e5, num_prompts=2000)
    ranked = {}
    for name, load in (("closed", closed), ("open", opened), ("flood", flood)):
        found = search(PlanQuestion(KIMI, (BOX,), load, fixed=fixed, seeds=1))
        ranked[name] = found.question.objective.rank_by
        if name == "open":
            latencies = [plan.figures.e2e_s for plan in found.plans if plan.prediction]
            assert latencies == sorted(latencies)
    assert ranked == {"closed": "throughput", "open": "latency", "flood": "throughput"}


def test_plan_and_predict_give_one_figure(run_cli: RunCli) -> None:
    load = ["--concurrency", 8, "--input-len", 64, "--output-len", 16]
    best = run_cli("plan", "--tp", 8, "--pp", 1, *load, "--ep", 1, "--dcp", 1, "--jobs", 1, "--json").json["plans"][0]
    same = run_cli("predict", *best["arguments"], *load, "--json").json
    assert best["output_tokens_per_s"] == pytest.approx(same["metrics"]["output_tokens_per_s"], rel=1e-9)
    assert best["interval"]["output_tokens_per_s"] == pytest.approx(same["interval"]["output_tokens_per_s"], rel=0.02)


def test_a_split_that_cannot_run_is_not_compared() -> None:
    whole = predictor(8, 1).predict(Workload(4, 8, 64, 8), seeds=1)
    with pytest.raises(PipesimError):
        deploy(KIMI, BOX, ParallelPlan(1, 4), EngineSettings())
    found = hinges(whole)
    assert found is not None
    assert math.isfinite(found.equal_lengths)
    assert set(found.best_split.values()) <= {"TP8", "TP4×PP2", "TP2×PP4", "PP8"}
