"""Two runners, one price list: where nothing queues by chance, the closed form is what the simulation does."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.closed_form import bubble_fraction, cycle_time
from pipesim.deployment import EngineSettings, ParallelPlan
from pipesim.engines import ENGINES, Policy, Request
from pipesim.engines.base import LoopShape, settle
from pipesim.passes import PassPrice, StagePrice
from pipesim.profiles.store import load_hardware, load_model
from pipesim.simulation import simulate
from pipesim.timeline import Timeline

BOX, KIMI = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
WARM_UP, STEPS = 60, 150

times = st.integers(1, 5_000)


@st.composite
def prices(draw: st.DrawFn, stages: int) -> PassPrice:
    """Stage times, hops and host work of one micro-batch, in any proportion to each other."""
    return PassPrice(
        stages=tuple(StagePrice({"experts": draw(times)}, {}) for _ in range(stages)),
        hops=tuple(draw(st.integers(0, 500)) for _ in range(stages - 1)),
        schedule=draw(st.integers(0, 1_000)),
        launch=draw(st.integers(0, 1_000)),
        process=draw(st.integers(0, 1_000)),
        result_return=draw(st.integers(0, 300)) if stages > 1 else 0,
    )


def new_policy(stages: int, settings: EngineSettings) -> Policy:
    engine = ENGINES[settings.name]
    return engine.policy(settle(KIMI, BOX, ParallelPlan(1, stages), settings, engine), 10**6)


def circulate(price: PassPrice, settings: EngineSettings, micro_batches: int, idle_turn: int = 0) -> Timeline:
    """Runs one request in each of some slots, all of them sent at once."""
    stages = len(price.stages)
    requests = [Request(index, 1, STEPS, 0, 0) for index in range(micro_batches)]
    policy = new_policy(stages, settings)
    return simulate(policy, lambda batch: price, requests, stages=stages, users=micro_batches, idle_turn=idle_turn)


def sglang(depth: int) -> EngineSettings:
    return EngineSettings(pp_async_batch_depth=depth, pp_max_micro_batch_size=1)


def measured_cycle(timeline: Timeline, loop: LoopShape) -> Fraction:
    """Returns the mean time between launches of slot 0, long after the start, over whole periods of the loop."""
    launches = timeline.arrivals[0][(timeline.slot == 0) & timeline.decode]
    periods = 2 * max(1, loop.slots - 1) * (loop.result_lag + 1)
    periods = min(periods, len(launches) - WARM_UP - 1)
    return Fraction(int(launches[WARM_UP + periods] - launches[WARM_UP]), periods)


@given(data=st.data(), stages=st.integers(1, 8), depth=st.integers(0, 2))
def test_with_every_slot_full_the_cycle_is_the_closed_forms(data: st.DataObject, stages: int, depth: int) -> None:
    price = data.draw(prices(stages))
    settings = sglang(depth if stages > 1 else 0)
    loop = new_policy(stages, settings).loop
    timeline = circulate(price, settings, loop.slots)
    assert float(measured_cycle(timeline, loop)) == pytest.approx(cycle_time(price, loop.slots, loop, 0), rel=1e-9)


@given(data=st.data(), stages=st.integers(1, 6), asynchronous=st.booleans())
def test_with_every_group_of_vllm_full_the_cycle_is_the_closed_forms(
    data: st.DataObject, stages: int, asynchronous: bool
) -> None:
    # One request is prefilled a step, so that each of the groups holds one.
    price = data.draw(prices(stages))
    settings = EngineSettings("vllm", async_scheduling=asynchronous, chunked_prefill_size=16)
    loop = new_policy(stages, settings).loop
    requests = [Request(index, 15, STEPS, 0, 0) for index in range(stages)]
    timeline = simulate(
        new_policy(stages, settings), lambda batch: price, requests, stages=stages, users=stages, idle_turn=0
    )
    assert len(set(timeline.slot.tolist())) == stages
    assert float(measured_cycle(timeline, loop)) == pytest.approx(cycle_time(price, loop.slots, loop, 0), rel=1e-9)


@given(data=st.data(), stages=st.integers(2, 8), depth=st.integers(0, 2), idle_turn=st.integers(1, 2_000))
def test_one_micro_batch_alone_walks_the_stages_in_series(
    data: st.DataObject, stages: int, depth: int, idle_turn: int
) -> None:
    price = data.draw(prices(stages))
    loop = new_policy(stages, sglang(depth)).loop
    timeline = circulate(price, sglang(depth), 1, idle_turn)
    assert float(measured_cycle(timeline, loop)) == pytest.approx(cycle_time(price, 1, loop, idle_turn), rel=1e-9)


@given(data=st.data(), stages=st.integers(2, 6), micro_batches=st.integers(1, 6))
def test_no_run_beats_the_closed_form(data: st.DataObject, stages: int, micro_batches: int) -> None:
    price = data.draw(prices(stages))
    loop = new_policy(stages, sglang(0)).loop
    micro_batches = min(micro_batches, loop.slots)
    timeline = circulate(price, sglang(0), micro_batches)
    assert float(measured_cycle(timeline, loop)) >= cycle_time(price, micro_batches, loop, 0) * (1 - 1e-9)


def test_the_loop_of_depth_0_has_the_period_of_the_published_formula() -> None:
    # P = 4, T = 10, h = 0.1, r = 0.1, c = 0.6 + 0.4: period = (ΣT + (P−1)h + r + c) / P (engine semantics A.4).
    stage, hop, back = 10_000, 100, 100
    price = PassPrice(tuple(StagePrice({"experts": stage}, {}) for _ in range(4)), (hop,) * 3, 600, 0, 400, back)
    period = cycle_time(price, 4, new_policy(4, sglang(0)).loop, 0) / 4
    assert period == pytest.approx((4 * stage + 3 * hop + back + 1_000) / 4)


def test_two_stages_at_depth_0_hide_nothing() -> None:
    # P = 2: period = max T + h + r + c, with the host's work all in processing (engine semantics A.4).
    price = PassPrice(
        (StagePrice({"experts": 10_000}, {}), StagePrice({"experts": 10_000}, {})), (100,), 0, 0, 1_000, 50
    )
    assert cycle_time(price, 2, new_policy(2, sglang(0)).loop, 0) / 2 == pytest.approx(10_000 + 100 + 50 + 1_000)


def test_depth_2_is_bound_by_the_slowest_stage_alone() -> None:
    stages = (9_000, 10_000, 9_000, 9_000)
    price = PassPrice(tuple(StagePrice({"experts": t}, {}) for t in stages), (100,) * 3, 600, 0, 400, 100)
    assert cycle_time(price, 6, new_policy(4, sglang(2)).loop, 0) / 6 == pytest.approx(10_000)


@given(
    stages=st.lists(st.integers(1, 10**9), min_size=1, max_size=16),
    micro_batches=st.integers(1, 64),
    slack=st.floats(1, 10),
)
def test_bubble_fraction_is_the_idle_share_of_the_mean_stage(
    stages: list[int], micro_batches: int, slack: float
) -> None:
    cycle = slack * micro_batches * max(stages)
    idle = [1 - micro_batches * stage / cycle for stage in stages]
    assert bubble_fraction(stages, micro_batches, cycle) == pytest.approx(float(np.mean(idle)), abs=1e-12)
