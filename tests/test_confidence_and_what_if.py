"""How sure an answer is, and what one change would buy."""

from dataclasses import replace

import pytest

from pipesim.cost.model import CONSTANTS_ALONE
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.measured import Runs
from pipesim.partition import balanced_partition
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_model
from pipesim.reasons import notes
from pipesim.runs import load_runs
from pipesim.sensitivity import HEADLINES, Confidence, sensitivities
from pipesim.validation import Validation, validate
from pipesim.whatif import Explanation, explain
from pipesim.workload import Workload
from tests.conftest import RunCli


@pytest.fixture(scope="module")
def everything() -> Validation:
    return validate(load_runs([]), seeds=6)


def predicted(
    kimi: ModelProfile, box: HardwareProfile, plan: ParallelPlan, load: Workload, **flags: object
) -> Prediction:
    return Predictor(deploy(kimi, box, plan, EngineSettings(**flags))).predict(load, seeds=2)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def founding_tp8() -> Explanation:
    from pipesim.profiles.store import load_hardware, load_model  # noqa: PLC0415

    box, kimi = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
    load = Workload(concurrency=1, num_prompts=1, input_len=200, output_len=400)
    return explain(predicted(kimi, box, ParallelPlan(8, 1), load, cuda_graph=False))


def test_the_80_percent_interval_covers_70_to_95_percent_of_the_validation_rows(everything: Validation) -> None:
    assert len(everything.judged) >= 28
    assert 0.70 <= everything.coverage <= 0.95


def test_no_founding_row_has_an_interval_wider_than_35_percent(everything: Validation) -> None:
    founding = [row for row in everything.rows if row.id[:3] in {"tp8", "pp8"} and row.role != "reported"]
    assert len(founding) == 8
    for row in founding:
        assert row.interval[0] >= 0.65 * row.predicted
        assert row.interval[1] <= 1.35 * row.predicted


def test_measured_costs_predict_tuned_runs_of_other_owners(everything: Validation) -> None:
    rows = [row for row in everything.judged if row.id.startswith("k26-")]
    decode = [abs(row.relative_error) for row in rows if row.metric == "output_tokens_per_s"]
    prefill = [abs(row.relative_error) for row in rows if row.metric == "ttft_s"]
    assert sum(decode) / len(decode) <= 0.08
    assert max(prefill) <= 0.15
    assert len([row for row in everything.rows if row.id.startswith("k26-") and row.role == "calibration"]) == 6


def test_straight_from_kernel_tables_the_same_runs_are_within_15_percent_on_average(
    kimi: ModelProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The routing skew that the MoE kernel tables alone ask for, without any serving run.
    tables_only = kimi.model_copy(update={"moe": kimi.moe.model_copy(update={"routing_skew": 0.65})})
    monkeypatch.setattr("pipesim.runs.load_model", lambda name: tables_only)
    files = [file for file in load_runs([]) if file.run[0].id.startswith("k26-")]
    rows = [row for row in validate(files, seeds=1).rows if row.metric == "output_tokens_per_s"]
    assert len(rows) == 22
    assert sum(abs(row.relative_error) for row in rows) / len(rows) <= 0.15


def test_every_headline_has_an_interval_around_it(kimi: ModelProfile, box: HardwareProfile) -> None:
    prediction = predicted(kimi, box, ParallelPlan(2, 4), Workload(8, 16, 100, 30, 0.5))
    confidence = Confidence(prediction)
    for metric in HEADLINES:
        low, high = confidence.interval(metric)
        values = prediction.over_seeds(metric)
        assert 0 < low < sum(values) / len(values) < high


def test_another_engine_version_is_named_and_widens_the_interval(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(4, 4, 100, 30)
    known, other = (predicted(kimi, box, ParallelPlan(8, 1), load, version=version) for version in ("0.5.14", "0.7.0"))
    assert Confidence(other).log_std("tpot_s") > Confidence(known).log_std("tpot_s")
    assert any("0.7.0" in note for note in notes(other))
    assert not any("0.5.14" in note for note in notes(known))


def test_sizes_beyond_the_evidence_are_named_and_widen_the_interval(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(1, 1, 30_000, 2)
    boxes = [
        box.model_copy(
            update={"collectives": tuple(c.model_copy(update={"measured_bytes": measured}) for c in box.collectives)}
        )
        for measured in ((1.0, 1e12), (1.0, 2.0))
    ]
    within, beyond = (predicted(kimi, one, ParallelPlan(8, 1), load) for one in boxes)
    assert within.extrapolated_fraction == 0 < beyond.extrapolated_fraction
    assert Confidence(beyond).log_std("ttft_s") > Confidence(within).log_std("ttft_s")
    assert any("outside the sizes" in note and "all_reduce" in note for note in notes(beyond))


def test_explain_names_host_launch_first_for_the_founding_tp8_run(founding_tp8: Explanation) -> None:
    costs = [change for change in founding_tp8.changes if change.kind == "cost"]
    assert costs[0].key == "launch"
    assert costs[0].speedup > 2
    assert next(change for change in costs if change.key == "all_reduce").speedup < 1.05
    assert founding_tp8.changes[0].label.startswith("with CUDA graphs")


def test_explain_says_what_all_reduce_would_have_to_cost_and_what_tells_them_apart(founding_tp8: Explanation) -> None:
    rival = founding_tp8.words[1]
    microseconds = float(rival.split("AllReduce at ")[1].split(" us")[0])
    assert 200 <= microseconds <= 320  # founding-run notes: 0.24 to 0.3 ms
    assert "all_reduce_perf" in rival
    assert "CUDA graphs" in rival


def test_changes_are_sorted_by_what_they_buy_and_carry_their_interval(founding_tp8: Explanation) -> None:
    speedups = [change.speedup for change in founding_tp8.changes]
    assert speedups == sorted(speedups, reverse=True)
    assert all(change.interval[0] <= change.speedup <= change.interval[1] for change in founding_tp8.changes)
    assert len({change.label for change in founding_tp8.changes}) == len(speedups)


def test_explain_finds_the_slot_cap_and_a_better_layer_split(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(concurrency=64, num_prompts=64, input_len=200, output_len=60)
    prediction = predicted(kimi, box, ParallelPlan(1, 8), load, pp_max_micro_batch_size=64)
    changes = {change.label: change.speedup for change in explain(prediction).changes if change.kind == "switch"}
    assert changes["slot cap 8 (--pp-max-micro-batch-size 8)"] > 1.4
    partition = balanced_partition(Predictor(prediction.deployment), load)
    assert sum(partition) == 61
    assert partition[-1] < 8, "the stage with the head holds fewer layers"


def test_all_reduce_by_a_one_shot_kernel_is_a_choice(run_cli: RunCli) -> None:
    flags = ["--tp", 8, "--concurrency", 1, "--num-prompts", 1, "--hardware", "rtx-pro-6000-x8-tuned", "--json"]
    rates = [
        run_cli("predict", *flags, "--allreduce", kind).json["metrics"]["output_tokens_per_s"]
        for kind in ("nccl", "pcie-oneshot")
    ]
    assert rates[1] > 1.05 * rates[0]
    refused = run_cli("predict", "--tp", 8, "--allreduce", "custom")
    assert refused.code == 2
    assert "custom" in refused.err


def test_strict_refuses_datasheet_guesses(run_cli: RunCli) -> None:
    flags = ["--tp", 8, "--concurrency", 2, "--num-prompts", 2, "--output-len", 5, "--strict"]
    assert run_cli("predict", *flags).code == 0
    refused = run_cli("predict", *flags, "--no-p2p")
    assert refused.code == 1
    assert "all_reduce" in refused.err
    assert refused.out == ""


def test_explain_prints_a_screen_and_json(run_cli: RunCli) -> None:
    flags = ["--tp", 8, "--concurrency", 1, "--num-prompts", 1, "--output-len", 8, "--no-cuda-graph"]
    screen = run_cli("explain", *flags, "--elasticities").out
    assert max(map(len, screen.splitlines())) <= 80
    assert "what one change would buy" in screen
    answer = run_cli("explain", *flags, "--json").json
    assert answer["changes"][0]["speedup"] >= answer["changes"][-1]["speedup"]
    assert {row["constant"] for row in answer["elasticities"]} >= {"launch", "all_reduce"}


def test_a_calibration_run_is_refused_as_a_validation_run(tmp_path, run_cli: RunCli) -> None:  # type: ignore[no-untyped-def]
    file = next(file for file in load_runs([]) if file.run[0].id == "tp8-eager-c1")
    calibration = file.run[0]
    twice = Runs(
        schema_version=1, run=(calibration, calibration.model_copy(update={"id": "again", "role": "validation"}))
    )
    path = tmp_path / "twice.toml"
    lines = ["schema_version = 1"]
    for run in twice.run:
        lines += ["[[run]]", f'id = "{run.id}"', f'role = "{run.role}"', 'source = "x"', f'model = "{run.model}"']
        lines += [f'hardware = "{run.hardware}"', "plan = { tp = 8 }", "engine = { cuda_graph = false }"]
        lines += ["workload = { concurrency = 1, input_len = 10, output_len = 10 }"]
        lines += ["measured = { output_tokens_per_s = 26.45 }", "tolerance = { output_tokens_per_s = 0.1 }"]
    path.write_text("\n".join(lines), encoding="utf-8")
    ran = run_cli("validate", path)
    assert ran.code == 2
    assert "again" in ran.err
    assert "calibration" in ran.err


def test_a_price_scaled_to_zero_takes_no_time(kimi: ModelProfile, box: HardwareProfile) -> None:
    deployment = deploy(kimi, box, ParallelPlan(8, 1), EngineSettings())
    free = Predictor(deployment, {"all_reduce": 0.0})
    batch = free.mid_decode(Workload(8, 8))
    assert free.price(batch).stages[0].by_category["all_reduce"] == 0
    assert replace(deployment) == deployment


@pytest.mark.parametrize(
    ("model", "plan", "flags"),
    [
        ("kimi-k2.6", ParallelPlan(8, 1), {}),
        ("kimi-k2.6", ParallelPlan(8, 1), {"name": "vllm"}),
        ("kimi-k2.6", ParallelPlan(8, 1), {"cuda_graph": False}),
        ("kimi-k2.6", ParallelPlan(2, 4), {}),
        ("glm-4.5-air", ParallelPlan(4, 1), {}),
        ("llama-3.3-70b-instruct", ParallelPlan(4, 1), {"name": "vllm"}),
    ],
)
def test_where_nothing_runs_side_by_side_elasticities_add_up_to_one(
    model: str, plan: ParallelPlan, flags: dict[str, object], box: HardwareProfile
) -> None:
    load = Workload(concurrency=1, num_prompts=1, input_len=512, output_len=256)
    found = sensitivities(deploy(load_model(model), box, plan, EngineSettings(**flags)), load)  # type: ignore[arg-type]
    assert sum(item.throughput for item in found) == pytest.approx(-1.0, rel=0.02)
    assert sum(item.step_time for item in found) == pytest.approx(1.0, rel=0.02)
    assert sum(item.prefill_time for item in found) == pytest.approx(1.0, rel=0.02)


def test_a_factor_on_a_name_of_constants_and_category_counts_once(kimi: ModelProfile, box: HardwareProfile) -> None:
    deployment, load = deploy(kimi, box, ParallelPlan(8, 1), EngineSettings()), Workload(8, 8)

    def all_reduce(scale: dict[str, float]) -> int:
        predictor = Predictor(deployment, scale)
        return predictor.price(predictor.mid_decode(load)).stages[0].by_category["all_reduce"]

    now = all_reduce({})
    assert all_reduce({"all_reduce": 3.0}) == pytest.approx(3.0 * now, rel=1e-6)
    parts = [all_reduce({f"{CONSTANTS_ALONE}{name}": 3.0}) - now for name in ("all_reduce", "all_gather")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(2.0 * now, rel=1e-6)
