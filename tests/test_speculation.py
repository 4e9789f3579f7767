"""Speculative decoding: tokens gained per round, what a round costs, and what it costs under PP."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.closed_form import cycle_time
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.metrics import summarise
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload
from tests.conftest import RunCli

ACCEPTANCE = (0.65, 0.55, 0.45)


@given(st.lists(st.floats(0, 1), max_size=6))
def test_a_round_gains_one_token_and_the_drafts_up_to_the_first_refusal(acceptance: list[float]) -> None:
    settings = EngineSettings(speculative_acceptance=tuple(acceptance))
    assert 1 <= settings.tokens_per_step <= 1 + len(acceptance)
    if acceptance:
        first, rest = acceptance[0], EngineSettings(speculative_acceptance=tuple(acceptance[1:]))
        assert settings.tokens_per_step == pytest.approx(1 + first * rest.tokens_per_step)


def test_three_drafts_on_the_tuned_host_give_a_lone_user_100_to_140_tokens_a_second() -> None:
    box, kimi = load_hardware("rtx-pro-6000-x8-tuned"), load_model("kimi-k2.6")
    settings = EngineSettings("vllm", allreduce="pcie-oneshot", kv_cache_dtype="fp8", speculative_acceptance=ACCEPTANCE)
    assert settings.tokens_per_step == pytest.approx(2.2, abs=0.05)
    load = Workload(concurrency=1, num_prompts=1, input_len=1, output_len=512)
    metrics = summarise(Predictor(deploy(kimi, box, ParallelPlan(8, 1), settings)).simulate(load, 0))
    assert 100 <= metrics.output_tokens_per_s <= 140


def test_a_draft_that_is_never_accepted_only_costs(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(concurrency=4, num_prompts=8, input_len=64, output_len=40)
    rates = [
        summarise(
            Predictor(
                deploy(kimi, box, ParallelPlan(8, 1), EngineSettings(speculative_acceptance=acceptance))
            ).simulate(load, 0)
        ).output_tokens_per_s
        for acceptance in ((), (0.0, 0.0), (1.0, 1.0))
    ]
    assert rates[1] < rates[0] < rates[2]


@given(
    split=st.sampled_from([(8, 1), (2, 4)]),
    engine=st.sampled_from(["sglang", "vllm"]),
    acceptance=st.lists(st.sampled_from([0.0, 0.4, 0.9, 1.0]), min_size=1, max_size=4),
    output_len=st.integers(1, 30),
)
def test_every_token_asked_for_comes_out(
    split: tuple[int, int], engine: str, acceptance: list[float], output_len: int
) -> None:
    kimi, box = load_model("kimi-k2.6"), load_hardware("rtx-pro-6000-x8")
    settings = EngineSettings(engine, speculative_acceptance=tuple(acceptance))  # type: ignore[arg-type]
    load = Workload(concurrency=3, num_prompts=5, input_len=20, output_len=output_len)
    timeline = Predictor(deploy(kimi, box, ParallelPlan(*split), settings)).simulate(load, 0)
    assert timeline.output_len.tolist() == [output_len] * 5
    assert (timeline.last_token >= timeline.first_token).all()
    rounds = math.ceil(round((output_len - 1) / settings.tokens_per_step, 9))
    assert int(timeline.gap_weight.sum()) == 5 * rounds


def test_under_pp_a_round_exchanges_first_and_cannot_fill_the_last_slot(
    kimi: ModelProfile, box: HardwareProfile
) -> None:
    # Maintainers' model of that order: the period is at least ΣT / (P − 1) (engine semantics A.4).
    deployment = deploy(
        kimi, box, ParallelPlan(2, 4), EngineSettings(speculative_acceptance=ACCEPTANCE, pp_max_micro_batch_size=8)
    )
    predictor = Predictor(deployment)
    load = Workload(concurrency=32, num_prompts=32)
    price = predictor.price(predictor.mid_decode(load))
    loop = ENGINES["sglang"].policy(deployment, predictor.kv_capacity_tokens).loop
    period = cycle_time(price, 4, loop, 0) / 4
    assert period >= sum(price.totals) / 3


def test_an_acceptance_outside_0_to_1_or_not_a_number_is_refused(run_cli: RunCli) -> None:
    for given_ in ("1.2", "0.5,nan", "half"):
        ran = run_cli("predict", "--tp", 8, "--speculative-acceptance", given_)
        assert ran.code == 2
        assert "--speculative-acceptance" in ran.err


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("users", [1, 32, 256])
def test_drafts_that_are_never_accepted_cost_at_any_load_and_good_ones_gain(engine: str, users: int) -> None:
    glm, h200 = load_model("glm-4.6"), load_hardware("h200-sxm-x8")
    load = Workload(users, users, 1_024, 64)
    rates = [
        Predictor(deploy(glm, h200, ParallelPlan(8, 1), EngineSettings(engine, speculative_acceptance=acceptance)))  # type: ignore[arg-type]
        .steady_state(load)
        .output_tokens_per_s
        for acceptance in ((), (0.0,), (0.0, 0.0), (0.9,))
    ]
    assert rates[2] < rates[1] < rates[0] < rates[3]


def test_the_host_launches_drafter_and_verification_behind_a_captured_pass(
    kimi: ModelProfile, box: HardwareProfile
) -> None:
    host = []
    for drafts in range(4):
        flags = EngineSettings("vllm", speculative_acceptance=(0.5,) * drafts)
        found = Predictor(deploy(kimi, box, ParallelPlan(8, 1), flags))
        price = found.price(found.mid_decode(Workload(1, 1, 512, 256)))
        host.append(price.stages[-1].by_category["host"] * 1e-12)
    assert host[0] == 0.0
    assert 0.0005 < host[1] < host[2] < host[3] < 0.01


def test_older_sglang_runs_its_rounds_one_by_one(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(16, 16, 512, 64)

    def step(version: str | None) -> float:  # the prompts' attention changes its form between these versions
        flags = EngineSettings(speculative_acceptance=(0.6,), version=version)
        return summarise(Predictor(deploy(kimi, box, ParallelPlan(8, 1), flags)).simulate(load, 0)).step_time_s

    assert step("0.5.10.post1") > step("0.5.14") == step(None)
