"""Two runners, one price list: where nothing queues by chance, the closed form is what the simulation does."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.closed_form import bubble_fraction, cycle_time
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, Policy, Request
from pipesim.engines.base import LoopShape, settle
from pipesim.passes import PassPrice, StagePrice
from pipesim.profiles.store import load_hardware, load_model
from pipesim.simulation import simulate
from pipesim.timeline import Timeline
from tests.reference_recurrence import Times, launches, period

BOX, KIMI = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
WARM_UP, STEPS = 60, 150

times = st.integers(1, 5_000)
LONG = st.integers(4_000, 20_000)
"""Stage times beyond all that a host does in a turn, the wait for a message among it: the closed forms' regime."""


@st.composite
def prices(draw: st.DrawFn, stages: int, stage_times: st.SearchStrategy[int] = times) -> PassPrice:
    """Stage times, hops and host work of one micro-batch, in any proportion to each other."""
    return PassPrice(
        stages=tuple(StagePrice({"experts": draw(stage_times)}, {}) for _ in range(stages)),
        hops=tuple(draw(st.integers(0, 500)) for _ in range(stages - 1)),
        schedule=draw(st.integers(0, 1_000)),
        launches=(draw(st.integers(0, 1_000)),) * stages,
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
    price = data.draw(prices(stages, LONG if stages > 1 else times))
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
    price = data.draw(prices(stages, LONG))
    loop = new_policy(stages, sglang(depth)).loop
    timeline = circulate(price, sglang(depth), 1, idle_turn)
    assert float(measured_cycle(timeline, loop)) == pytest.approx(cycle_time(price, 1, loop, idle_turn), rel=1e-9)


@given(data=st.data(), stages=st.integers(2, 8), depth=st.integers(0, 2))
def test_every_launch_ends_when_the_plain_reference_says(data: st.DataObject, stages: int, depth: int) -> None:
    # In any proportion of GPU and host: prompts cost what decodes do here, so the slots are full from the first turn.
    price = data.draw(prices(stages))
    timeline = circulate(price, sglang(depth), stages + depth)
    expected = launches(reference(price, depth), 20 * stages)
    for rank in expected:
        known = rank.ends[: min(len(other.ends) for other in expected)]
        assert timeline.ends[rank.index][: len(known)].tolist() == known


def test_a_pair_of_stages_sends_the_activations_of_one_launch_after_another() -> None:
    # "P2P ops are serialized on one stream per peer pair" (SGLang 0.5.23 managers/scheduler_pp_mixin.py): hops of 2 ps
    # after launches of 1 ps are on their way from 1 to 3 and from 3 to 5, so the fourth launch ends at 7 and not at 6.
    price = PassPrice((StagePrice({"experts": 1}, {}),) * 2, (2,), 0, (0, 0), 0, 0)
    assert circulate(price, sglang(1), 3).ends[0][:6].tolist() == [1, 2, 5, 7, 9, 11]
    assert launches(reference(price, 1), 6)[0].ends == [1, 2, 5, 7, 9, 11]


def reference(price: PassPrice, depth: int) -> Times:
    return Times(price.totals, price.hops, price.result_return, price.schedule, price.launches[0], price.process, depth)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("host", [(250, 250, 500), (0, 0, 1_000), (500, 0, 500), (200, 600, 200)])
def test_where_a_stage_takes_no_longer_than_the_host_the_period_is_the_references(
    stages: int, depth: int, host: tuple[int, int, int]
) -> None:
    # T = 1 ms, c = 1 ms: there the closed forms are off by up to a quarter (engine semantics A.4).
    schedule, launch, process = host
    price = PassPrice(
        (StagePrice({"experts": 1_000}, {}),) * stages, (20,) * (stages - 1), schedule, (launch,) * stages, process, 100
    )
    loop = new_policy(stages, sglang(depth)).loop
    simulated = float(measured_cycle(circulate(price, sglang(depth), loop.slots), loop)) / loop.slots
    assert simulated == pytest.approx(period(reference(price, depth)), rel=0.02)


@given(data=st.data(), stages=st.integers(2, 6), micro_batches=st.integers(1, 6))
def test_no_run_beats_the_closed_form(data: st.DataObject, stages: int, micro_batches: int) -> None:
    price = data.draw(prices(stages))
    loop = new_policy(stages, sglang(0)).loop
    micro_batches = min(micro_batches, loop.slots)
    timeline = circulate(price, sglang(0), micro_batches)
    assert float(measured_cycle(timeline, loop)) >= cycle_time(price, micro_batches, loop, 0) * (1 - 1e-9)


STAGES = st.lists(LONG, min_size=2, max_size=8)


def priced(stages: list[int], hop: int, back: int, schedule: int, process: int) -> PassPrice:
    hops = (hop,) * (len(stages) - 1)
    stage_prices = tuple(StagePrice({"experts": time}, {}) for time in stages)
    return PassPrice(stage_prices, hops, schedule, (0,) * len(stages), process, back)


def period_of(price: PassPrice, depth: int) -> float:
    loop = new_policy(len(price.stages), sglang(depth)).loop
    return cycle_time(price, loop.slots, loop, 0) / loop.slots


@given(stages=st.lists(LONG, min_size=3, max_size=8), hop=st.integers(0, 100), back=st.integers(0, 100))
def test_depth_0_has_the_period_of_the_published_formula(stages: list[int], hop: int, back: int) -> None:
    # τ = max(max T, (ΣT + (P − 1)h + r + c) / P) for P of 3 or more (engine semantics A.4), where the host's time is
    # in forming the batch and T_0 is not the longest by far.
    stages[0] = min(stages)
    price, last = priced(stages, hop, back, 1_000, 0), len(stages) - 1
    expected = max(*stages, (sum(stages) + last * hop + back + 1_000) / len(stages))
    unhidden = (sum(stages[1:]) + last * hop + back) / last
    assert period_of(price, 0) == pytest.approx(max(expected, unhidden))


@given(stages=st.lists(LONG, min_size=2, max_size=2), hop=st.integers(0, 500), back=st.integers(0, 300))
def test_two_stages_at_depth_0_hide_nothing(stages: list[int], hop: int, back: int) -> None:
    # τ = max T + h + r + c, the longer stage being the last and the host's work all in processing (A.4).
    price = priced(sorted(stages), hop, back, 0, 1_000)
    assert period_of(price, 0) == pytest.approx(max(stages) + hop + back + 1_000)


@given(stages=STAGES, hop=st.integers(0, 500), back=st.integers(0, 300))
def test_depth_1_takes_the_hosts_time_off_the_path_and_depth_2_the_way_itself(
    stages: list[int], hop: int, back: int
) -> None:
    # D = 1: τ = max(max T, (ΣT + (P − 1)h + r) / P); D = 2: τ = max T while the way fits into P + 1 of it (A.4).
    price = priced(stages, hop, back, 600, 400)
    way = sum(stages) + (len(stages) - 1) * hop + back
    assert period_of(price, 1) == pytest.approx(max(*stages, way / len(stages)))
    assert period_of(price, 2) == pytest.approx(max(*stages, way / (len(stages) + 1)))


@given(stages=STAGES, hop=st.integers(0, 500), back=st.integers(0, 300))
def test_vllm_has_the_period_of_its_published_formula(stages: list[int], hop: int, back: int) -> None:
    # Asynchronous: τ = max(max T, (ΣT + (P − 1)h + broadcast) / P); synchronous: the host's time on the path (B.2).
    price, count = priced(stages, hop, back, 600, 400), len(stages)
    way = sum(stages) + (count - 1) * hop + back
    for asynchronous, on_the_path in ((True, 0), (False, 1_000)):
        loop = new_policy(count, EngineSettings("vllm", async_scheduling=asynchronous)).loop
        expected = max(*stages, (way + on_the_path) / count)
        assert cycle_time(price, count, loop, 0) / count == pytest.approx(expected)


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
