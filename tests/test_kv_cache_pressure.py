"""A KV cache that is too small: requests are put back and prefilled again, and nothing is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, Request
from pipesim.engines.slots import SlotScheduler
from pipesim.metrics import summarise
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.simulation import simulate
from pipesim.timeline import Timeline
from pipesim.workload import Workload

BOX, KIMI = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")


def squeezed(
    workload: Workload, kv_tokens: int, plan: ParallelPlan, flags: EngineSettings, seed: int = 0
) -> tuple[Timeline, SlotScheduler, float]:
    """Runs a load on a KV cache of some tokens; returns the run, its scheduler and the least free KV seen."""
    predictor = Predictor(deploy(KIMI, BOX, plan, flags))
    policy = ENGINES[flags.name].policy(predictor.deployment, kv_tokens)
    assert isinstance(policy, SlotScheduler)
    least = [policy.kv_free]
    form = policy.form

    def watched(slot):  # type: ignore[no-untyped-def]
        formed = form(slot)
        least.append(policy.kv_free)
        return formed

    policy.form = watched  # type: ignore[method-assign]
    requests = [
        Request(index, spec.input_len, spec.output_len, workload.context_len, spec.submit_ps)
        for index, spec in enumerate(workload.draw(seed))
    ]
    users = workload.concurrency
    timeline = simulate(policy, predictor.price, requests, stages=plan.pp, users=users, idle_turn=300_000_000)
    return timeline, policy, min(least)


@settings(max_examples=40)
@given(
    engine=st.sampled_from(["sglang", "vllm"]),
    split=st.sampled_from([(8, 1), (2, 4), (1, 8)]),
    room=st.floats(1.0, 3.0),
    users=st.integers(1, 12),
    output_len=st.integers(1, 60),
    chunk=st.sampled_from([None, 64]),
    drafts=st.sampled_from([(), (0.6, 0.4)]),
    mixed=st.booleans(),
)
def test_no_token_is_lost_and_the_kv_cache_never_overflows_however_small_it_is(
    engine: str,
    split: tuple[int, int],
    room: float,
    users: int,
    output_len: int,
    chunk: int | None,
    drafts: tuple[float, ...],
    mixed: bool,
) -> None:
    workload = Workload(users, 15, 50, output_len, 0.5)
    kv_tokens = int(room * (workload.tokens_per_request + 8))
    flags = EngineSettings(
        engine,  # type: ignore[arg-type]
        chunked_prefill_size=chunk,
        speculative_acceptance=drafts,
        enable_mixed_chunk=mixed and engine == "sglang" and not drafts,
    )
    timeline, policy, least = squeezed(workload, kv_tokens, ParallelPlan(*split), flags)
    assert policy.idle
    assert least >= -1e-6
    assert policy.kv_free == pytest.approx(kv_tokens)
    assert (timeline.last_token >= timeline.first_token).all()
    assert int((timeline.gap * timeline.gap_weight).sum()) == int((timeline.last_token - timeline.first_token).sum())
    if not drafts:
        assert int(timeline.gap_weight.sum()) == int((timeline.output_len - 1).sum())


def test_ample_kv_puts_nothing_back_and_little_kv_costs_throughput() -> None:
    workload = Workload(concurrency=16, num_prompts=32, input_len=100, output_len=100)
    rates, put_back = [], []
    for kv_tokens in (100_000, 900):
        timeline, policy, _ = squeezed(workload, kv_tokens, ParallelPlan(8, 1), EngineSettings("vllm"))
        rates.append(summarise(timeline).output_tokens_per_s)
        put_back.append(policy.put_back)
    assert put_back[0] == 0 < put_back[1]
    assert rates[1] < rates[0]


def test_no_request_starves_behind_those_that_are_put_back() -> None:
    workload = Workload(concurrency=12, num_prompts=40, input_len=60, output_len=60, random_range_ratio=0.5)
    for engine in ("sglang", "vllm"):
        timeline, _, _ = squeezed(workload, 600, ParallelPlan(2, 4), EngineSettings(engine))  # type: ignore[arg-type]
        waits = timeline.first_token - timeline.arrival
        assert waits.max() < 20 * np.median(waits)


def test_under_pp_only_the_current_slots_growth_is_reserved_so_more_is_retracted_than_under_tp() -> None:
    # Admission charges the growth of the current slot alone, while the KV cache is everybody's (SGLang PrefillAdder).
    workload = Workload(concurrency=32, num_prompts=64, input_len=50, output_len=200)
    counts = {}
    for plan in (ParallelPlan(8, 1), ParallelPlan(1, 8)):
        _, policy, _ = squeezed(
            workload, 3_500, plan, EngineSettings(pp_max_micro_batch_size=4 if plan.pp > 1 else None)
        )
        counts[plan.pp] = policy.put_back
    assert counts[8] > counts[1]


@settings(max_examples=25)
@given(
    room=st.floats(1.0, 6.0),
    users=st.integers(2, 16),
    output_len=st.integers(2, 60),
    drafts=st.sampled_from([(), (0.6, 0.4)]),
    most=st.sampled_from([5, 4096]),
)
def test_what_running_requests_still_ask_for_is_their_sum(
    room: float, users: int, output_len: int, drafts: tuple[float, ...], most: int
) -> None:
    """Counted by last steps, as the scheduler does in every turn, it is the sum over requests one by one."""
    plan, flags = ParallelPlan(tp=2, pp=4), EngineSettings(speculative_acceptance=drafts)
    policy = ENGINES["sglang"].policy(deploy(KIMI, BOX, plan, flags), int(room * 1.5 * (100 + output_len)))
    assert isinstance(policy, SlotScheduler)
    form, checked = policy.form, []

    def watched(slot):  # type: ignore[no-untyped-def]
        state = policy.slots[slot]
        checked.append(state.still_asked(most))
        assert checked[-1] == sum(min(most, r.output_len - state.given(r)) for r in state.decoding())
        return form(slot)

    policy.form = watched  # type: ignore[method-assign]
    load = Workload(users, 2 * users, 100, output_len, random_range_ratio=0.5)
    requests = [Request(i, spec.input_len, spec.output_len, 0, spec.submit_ps) for i, spec in enumerate(load.draw(1))]
    price = Predictor(deploy(KIMI, BOX, plan, flags)).price
    simulate(policy, price, requests, stages=plan.pp, users=users, idle_turn=300_000_000)
    assert max(checked) > 0
