"""`plan`: nothing that fits is forgotten, the best is found, limits are kept, and a refusal says why."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import UsageError
from pipesim.partition import minimax_partition
from pipesim.plan_report import arguments
from pipesim.planning.evaluate import Split, closed_loop_of
from pipesim.planning.odds import Contender, odds
from pipesim.planning.question import Figures, Job, Objective, PlanQuestion
from pipesim.planning.search import PlanSearch, search
from pipesim.planning.space import smallest_box
from pipesim.prediction import Predictor, deploy
from pipesim.sensitivity import Sensitivity
from pipesim.variations import SharedPrices
from pipesim.workload import Workload
from tests.conftest import BOX, KIMI, RunCli

LOAD = Workload(concurrency=8, num_prompts=32, input_len=64, output_len=16)
FLAGS = ["--concurrency", 8, "--num-prompts", 32, "--input-len", 64, "--output-len", 16]


def asked(**changed: Any) -> PlanQuestion:
    return PlanQuestion(**({"model": KIMI, "boxes": (BOX,), "workload": LOAD} | changed))


@pytest.fixture(scope="module")
def found() -> PlanSearch:
    return search(asked())


def test_plans_come_best_first_and_rejected_ones_last_with_reasons(run_cli: RunCli) -> None:
    ran = run_cli("plan", "--gpus", 8, *FLAGS, "--json", "--jobs", 1)
    assert ran.code == 0
    document = ran.json
    plans = document["plans"]
    kinds = [plan["feasible"] for plan in plans]
    assert kinds == sorted(kinds, reverse=True)
    able = [plan for plan in plans if plan["feasible"]]
    rates = [plan["output_tokens_per_s"] for plan in able]
    assert rates == sorted(rates, reverse=True)
    assert [plan["rank"] for plan in able] == list(range(1, len(able) + 1))
    assert all(plan["reasons"] and "tp" in plan and "pp" in plan for plan in plans if not plan["feasible"])
    assert {(plan["tp"], plan["pp"]) for plan in able} == {(8, 1), (4, 2), (2, 4), (1, 8), (1, 7)}
    assert all(plan["method"] == "simulation" for plan in able[:5])
    assert all(plan["interval"]["output_tokens_per_s"][0] < plan["output_tokens_per_s"] for plan in able)
    assert sum(plan["probability_best"] for plan in able) == pytest.approx(1.0)


def test_the_first_plan_is_what_predict_says_of_it(found: PlanSearch, run_cli: RunCli) -> None:
    first = found.plans[0]
    told = run_cli("predict", *arguments(first.deployment), *FLAGS, "--random-range-ratio", 0, "--json").json
    assert first.figures.output_tokens_per_s == told["metrics"]["output_tokens_per_s"]
    assert first.figures.tpot_s == told["metrics"]["tpot_s"]["p99"]


def test_the_best_of_an_exhaustive_simulation_is_among_the_first_five() -> None:
    few = search(asked(fixed={"tp": 2, "pp": 4, "ep": 1, "dp_attention": False}))
    prices = SharedPrices()
    everything = [prices.predictor(plan.deployment).predict(LOAD, 3).mean("output_tokens_per_s") for plan in few.plans]
    assert len(everything) > 15
    assert max(everything[:5]) == max(everything)


def test_a_search_cut_short_puts_simulated_plans_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipesim.planning.search.MOST_SIMULATIONS", 2)
    short = search(asked(fixed={"tp": 8}))
    assert [plan.prediction is not None for plan in short.plans[:3]] == [True, True, False]


def test_what_is_given_is_held_fixed(run_cli: RunCli) -> None:
    flags = ["--tp", 2, "--pp-async-batch-depth", 1, "--kv-cache-dtype", "bf16", "--json", "--jobs", 1]
    plans = run_cli("plan", *FLAGS, *flags).json["plans"]
    assert {plan["tp"] for plan in plans} == {2}
    settings_of = [plan["settings"] for plan in plans if plan["feasible"]]
    assert {s["pp_async_batch_depth"] for s in settings_of} == {1}
    assert {s["kv_cache_dtype"] for s in settings_of} == {"bf16"}
    assert len({s["pp_max_micro_batch_size"] for s in settings_of}) > 1


def test_a_limit_that_nothing_keeps_gives_the_nearest_miss_and_exit_code_1(run_cli: RunCli) -> None:
    flags = [*FLAGS, "--tp", 8, "--ep", 1, "--dcp", 1, "--max-tpot", "1ms", "--jobs", 1]
    ran = run_cli("plan", *flags, "--json")
    assert ran.code == 1
    miss = ran.json["nearest_miss"]
    assert miss["missed"]["tpot_s"]["value"] > miss["missed"]["tpot_s"]["limit"] == pytest.approx(0.001)
    assert miss["binding_limit"]
    told = run_cli("plan", *flags)
    assert told.code == 1
    assert "No plan keeps the limits" in told.out


def test_plans_that_keep_the_limits_come_before_those_that_do_not(found: PlanSearch) -> None:
    reached = sorted(p.figures.tpot_s for p in found.plans if p.prediction and p.deployment.plan.tp == 8)
    limit = (reached[0] + reached[-1]) / 2
    limited = search(asked(fixed={"tp": 8}, objective=Objective(max_tpot_s=limit)))
    kept = [plan.figures.tpot_s <= limit for plan in limited.plans]
    assert kept == sorted(kept, reverse=True)
    assert 0 < sum(kept) < len(kept)
    assert limited.best is limited.plans[0]


def test_nothing_fits_says_what_is_short_and_how_many_gpus_would_do(run_cli: RunCli) -> None:
    ran = run_cli("plan", "--gpus", 4, *FLAGS)
    assert ran.code == 1
    assert "lacks" in ran.out
    assert "would fit on 7" in ran.out
    refused = run_cli("plan", "--gpus", 4, *FLAGS, "--json")
    assert refused.code == 1
    assert refused.json["feasible"] is False


def test_the_smallest_box_holds_the_model_and_one_gpu_less_does_not() -> None:
    fewest = smallest_box(asked(), BOX)
    assert fewest is not None
    assert search(asked(gpus=fewest, fixed={"ep": 1, "dcp": 1})).plans
    assert not search(asked(gpus=fewest - 1)).plans


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gpus", 0], "--gpus: 0 was given"),
        (["--gpus", 9], "from 1 to 8"),
        (["--tp", 0], "--tp: 0 was given"),
        (["--max-ttft", "2"], "--max-ttft"),
        (["--max-tpot", "5 parsec"], "--max-tpot"),
        (["--max-tpot", "0 s"], "--max-tpot"),
        (["--gpu-hour-price", "dear"], "--gpu-hour-price"),
        (["--gpu-hour-price", "a100-sxm-x8=1"], "--gpu-hour-price"),
        (["--gpu-watts", "-5"], "--gpu-watts"),
        (["--total-tokens", "inf"], "--total-tokens"),
        (["--hardware", "rtx-pro-6000-x8,nothing"], "nothing"),
        (["--layer-partition", "30,31", "--pp", 3], "--layer-partition"),
    ],
)
def test_bad_values_end_with_one_message(run_cli: RunCli, flags: list[object], said: str) -> None:
    ran = run_cli("plan", *FLAGS, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_the_screen_keeps_within_80_columns(run_cli: RunCli) -> None:
    flags = [
        "--engine",
        "any",
        "--tp",
        4,
        "--gpu-hour-price",
        2,
        "--total-tokens",
        "2e9",
        "--gpu-watts",
        600,
        "--jobs",
        1,
    ]
    ran = run_cli("plan", *FLAGS, *flags)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "kWh" in ran.out


def test_processes_find_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked(fixed={"tp": 8, "ep": 1, "dcp": 1}, seeds=2)
    alone = search(question)
    monkeypatch.setattr("pipesim.planning.evaluate.POOL_FROM_PASSES", 0)
    assert [plan.figures for plan in search(question, jobs=2).plans] == [plan.figures for plan in alone.plans]


def test_the_pareto_front_is_beaten_by_none(found: PlanSearch) -> None:
    points = [(plan.output_tokens_per_s_per_gpu, plan.per_request, plan.pareto) for plan in found.plans]
    front = [point for point in points if point[2]]
    assert front
    assert not any(a[0] > b[0] and a[1] > b[1] for a in points for b in front)


def test_both_engines_are_considered_when_any_will_do() -> None:
    plans = search(asked(engines=("sglang", "vllm"), fixed={"tp": 8, "ep": 1, "dcp": 1})).plans
    assert {plan.deployment.engine.name for plan in plans} == {"sglang", "vllm"}


def test_cheaper_gpus_win_by_cost_and_not_by_throughput() -> None:
    fixed = {"tp": 8, "ep": 1, "dcp": 1, "kv_cache_dtype": "auto"}
    dear, prices = BOX.model_copy(update={"name": "dear"}), {"dear": 3.0, BOX.name: 1.0}
    by = {
        rank: search(asked(boxes=(dear, BOX), fixed=fixed, objective=Objective(rank, gpu_hour_price=prices)))
        for rank in ("cost", "throughput")
    }
    cheap = [plan.deployment.hardware.name for plan in by["cost"].plans]
    assert cheap == sorted(cheap, key=lambda name: name == "dear")
    rates = [plan.figures.output_tokens_per_s for plan in by["throughput"].plans]
    assert rates == sorted(rates, reverse=True)


def test_a_job_takes_its_tokens_over_the_rate() -> None:
    job = Job(output_tokens=2e9, gpu_watts=600)
    assert job.seconds(1000.0, 4.0) == pytest.approx(2e6)
    assert job.kwh(3600.0, 8) == pytest.approx(4.8)
    assert Job(requests=100.0).seconds(1000.0, 4.0) == pytest.approx(25.0)


def test_an_open_loop_stands_for_the_users_that_littles_law_gives() -> None:
    predictor = Predictor(deploy(KIMI, BOX, ParallelPlan(8, 1), EngineSettings()))
    load, rate = closed_loop_of(predictor, Workload(request_rate=2.0, num_prompts=1000, input_len=64, output_len=32))
    steady = predictor.steady_state(load)
    e2e = load.concurrency * load.output_len / steady.output_tokens_per_s
    assert rate == 2.0
    assert load.concurrency - 1 <= rate * e2e <= load.concurrency + 1


def contender(name: str, rate: float, end_to_end: float, elasticity: float) -> Contender:
    constants = (Sensitivity("all_reduce", 0.5, elasticity, -elasticity, -elasticity),)
    figures = Figures(rate, 1.0, 1.0, 1.0)
    return Contender(Split("box", "engine", name), 8, figures, constants, end_to_end, 0.0, 0.0)


def test_a_constant_that_two_plans_share_does_not_blur_which_is_better() -> None:
    ahead, behind = odds([contender("a", 101, 0.0, -0.7), contender("b", 100, 0.0, -0.7)], Objective())
    assert (ahead.best, behind.best) == (1.0, 0.0)


def test_a_constant_that_moves_one_plan_alone_decides_half_of_the_time() -> None:
    even = odds([contender("a", 100, 0.0, -0.7), contender("b", 100, 0.0, 0.0)], Objective())
    assert even[0].best == pytest.approx(0.5, abs=0.03)


@given(st.floats(1.0, 2.0), st.floats(0.01, 0.5))
def test_the_odds_of_being_best_sum_to_one_and_follow_the_rate(lead: float, error: float) -> None:
    better, worse = odds([contender("a", 100 * lead, error, 0.0), contender("b", 100, error, 0.0)], Objective())
    assert better.best + worse.best == pytest.approx(1.0)
    assert better.best >= 0.45


@given(st.lists(st.integers(1, 20), min_size=4, max_size=9), st.integers(1, 4), st.integers(0, 10))
def test_the_layer_split_is_the_minimax_of_all_splits(costs: list[int], stages: int, head: int) -> None:
    def time(stage: int, first: int, count: int) -> float:
        return float(sum(costs[first : first + count]) + head * (stage == stages - 1))

    def busiest(split: tuple[int, ...]) -> float:
        starts = itertools.accumulate(split, initial=0)
        return max(time(stage, first, count) for stage, (first, count) in enumerate(zip(starts, split, strict=False)))

    layers = len(costs)
    cuts = itertools.combinations(range(1, layers), stages - 1)
    every = [tuple(b - a for a, b in itertools.pairwise((0, *cut, layers))) for cut in cuts]
    got = minimax_partition(layers, stages, time)
    assert sum(got) == layers
    assert busiest(got) == pytest.approx(min(map(busiest, every)), rel=1e-5)


def test_a_question_for_more_gpus_than_any_box_has_is_refused() -> None:
    with pytest.raises(UsageError, match="--gpus"):
        asked(gpus=9)


def test_a_search_is_written_as_json_rows_and_a_picture(run_cli: RunCli, tmp_path: Path) -> None:
    for suffix in ("json", "csv", "png"):
        out = tmp_path / f"plans.{suffix}"
        ran = run_cli("plan", "--model", "llama-3.1-8b", "--gpus", 1, "--concurrency", 2, "--jobs", 1, "-o", out)
        assert ran.code == 0
        assert out.stat().st_size > 100
    rows = (tmp_path / "plans.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1 + len(json.loads((tmp_path / "plans.json").read_text(encoding="utf-8"))["plans"])
    assert run_cli("plan", "--gpus", 1, "-o", tmp_path / "plans.gif").code == 2


def test_the_best_plan_comes_with_the_command_that_starts_it(run_cli: RunCli) -> None:
    asked = ("plan", "--model", "llama-3.1-8b", "--gpus", 2, "--concurrency", 2, "--jobs", 1)
    document = run_cli(*asked, "--json").json
    best = document["plans"][0]
    assert f"--tp-size {best['tp']}" in document["launch"] or best["tp"] == 1
    assert "sglang.launch_server" in run_cli(*asked).out


def test_where_sockets_are_numbered_crosswise_ranks_are_placed_group_by_group() -> None:
    """Even GPUs on one socket, odd ones on the other: as numbered, every hop of PP8 crosses between sockets."""
    crosswise = BOX.model_copy(
        update={"topology": BOX.topology.model_copy(update={"groups": ((0, 2, 4, 6), (1, 3, 5, 7))})}
    )
    fixed = {"tp": 1, "pp": 8, "kv_cache_dtype": "auto"}
    found = search(asked(boxes=(crosswise,), fixed=fixed, best_placement=True, seeds=1))
    placed: dict[Any, dict[Any, float]] = {}
    for plan in found.plans:
        deployment = plan.deployment
        if plan.prediction is not None:
            alike = placed.setdefault((deployment.engine, deployment.layers), {})
            alike[deployment.plan.placement] = plan.figures.output_tokens_per_s
    together = (0, 2, 4, 6, 1, 3, 5, 7)
    both = [rates for rates in placed.values() if {None, together} <= rates.keys()]
    assert both
    assert all(rates[together] >= rates[None] for rates in both)
    assert any(rates[together] > rates[None] for rates in both)


def test_a_picture_of_two_boxes_names_them_and_shows_plans_of_both(run_cli: RunCli, tmp_path: Path) -> None:
    boxes = ("rtx-pro-6000-x8", "h200-sxm-x8")
    picture = tmp_path / "plans.svg"
    load = ("--model", "llama-3.1-8b", "--gpus", 1, "--concurrency", 2, "--jobs", 1)
    assert run_cli("plan", "--hardware", ",".join(boxes), *load, "-o", picture).code == 0
    assert all(f"TP1 {box}" in picture.read_text(encoding="utf-8") for box in boxes)
