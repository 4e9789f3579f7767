"""Stages that batch whatever waits before them: nothing lost, nothing over capacity, and what it does to a pipeline."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.closed_form import cycle_time
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, Request
from pipesim.engines.rebatch import RebatchPolicy
from pipesim.metrics import summarise
from pipesim.passes import PassPrice, StagePrice
from pipesim.prediction import Predictor, deploy
from pipesim.simulation import simulate
from pipesim.timeline import Timeline
from pipesim.workload import MixedStep, Workload
from tests.conftest import BOX, KIMI, RunCli, predictor

SPLITS = st.sampled_from([(8, 1), (4, 2), (2, 4), (1, 8)])
loads = st.builds(
    Workload,
    concurrency=st.integers(1, 16),
    num_prompts=st.integers(1, 30),
    input_len=st.integers(1, 400),
    output_len=st.integers(1, 20),
    random_range_ratio=st.sampled_from([0.0, 0.7]),
    context_len=st.sampled_from([0, 2_000]),
    request_rate=st.none() | st.sampled_from([2.0, 30.0]),
)


def watched(
    workload: Workload, split: tuple[int, int], kv_tokens: int | None = None, **flags: object
) -> tuple[Timeline, RebatchPolicy, float]:
    """Runs a load; returns the run, its scheduler and the least free KV seen."""
    settings_ = EngineSettings("rebatch", **flags)  # type: ignore[arg-type]
    asked = Predictor(deploy(KIMI, BOX, ParallelPlan(*split), settings_))
    policy = ENGINES["rebatch"].policy(asked.deployment, kv_tokens or asked.kv_capacity_tokens)
    assert isinstance(policy, RebatchPolicy)
    form, least = policy.form, [policy.kv_free]

    def watching(stage, waiting):  # type: ignore[no-untyped-def]
        formed = form(stage, waiting)
        least.append(policy.kv_free)
        return formed

    policy.form = watching  # type: ignore[method-assign]
    requests = [
        Request(index, spec.input_len, spec.output_len, spec.context_len, spec.submit_ps)
        for index, spec in enumerate(workload.draw(0))
    ]
    users = workload.concurrency if workload.closed_loop else None
    run = simulate(policy, asked.price, requests, stages=split[1], users=users, idle_turn=0)
    return run, policy, min(least)


@settings(max_examples=40)
@given(
    split=SPLITS,
    load=loads,
    room=st.floats(1.0, 4.0),
    chunk=st.sampled_from([None, 64]),
    drafts=st.sampled_from([(), (0.6, 0.4)]),
)
def test_no_token_is_lost_and_the_kv_cache_never_overflows(
    split: tuple[int, int], load: Workload, room: float, chunk: int | None, drafts: tuple[float, ...]
) -> None:
    kv_tokens = int(room * (load.tokens_per_request + 8))
    run, policy, least = watched(load, split, kv_tokens, chunked_prefill_size=chunk, speculative_acceptance=drafts)
    assert policy.idle
    assert least >= -1e-6
    assert policy.kv_free == pytest.approx(kv_tokens)
    assert (run.arrival < run.first_token).all()
    assert ((run.last_token > run.first_token) == (run.output_len > 1)).all()
    assert int((run.gap * run.gap_weight).sum()) == int((run.last_token - run.first_token).sum())
    if not drafts:
        assert int(run.gap_weight.sum()) == int((run.output_len - 1).sum())


@given(split=SPLITS, load=loads)
def test_no_stage_serves_two_batches_at_once_and_every_second_is_accounted_for(
    split: tuple[int, int], load: Workload
) -> None:
    run, _, _ = watched(load, split, chunked_prefill_size=128)
    for stage in range(split[1]):
        assert (run.starts[stage][1:] >= run.ends[stage][:-1]).all()
        assert (run.starts[stage] >= run.arrivals[stage]).all()
    for hop in range(split[1] - 1):
        assert (run.arrivals[hop + 1] >= run.hop_starts[hop]).all()
        assert (np.diff(run.hop_starts[hop]) >= 0).all()
    for share in summarise(run).stages:
        assert share.busy + share.bubble + share.host == pytest.approx(share.window, rel=1e-9)
        assert min(share.bubble, share.host) >= -1e-12


@given(split=SPLITS, load=loads)
def test_requests_are_served_in_the_order_in_which_they_came(split: tuple[int, int], load: Workload) -> None:
    run, _, _ = watched(load, split)
    order = np.lexsort((np.arange(len(run.arrival)), run.arrival))
    assert (np.diff(run.first_token[order]) >= 0).all()


@settings(max_examples=10)
@given(
    split=SPLITS, load=st.builds(Workload, st.integers(1, 5), st.integers(1, 6), st.integers(1, 90), st.integers(1, 5))
)
def test_every_grain_of_events_gives_the_same_run(split: tuple[int, int], load: Workload) -> None:
    asked = predictor(*split, name="rebatch", chunked_prefill_size=64)
    whole, by_op = (asked.simulate(load, 0, detail) for detail in ("pass", "op"))
    for name in ("starts", "ends", "arrivals", "hop_starts"):
        pairs = zip(getattr(whole, name), getattr(by_op, name), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs), name
    assert by_op.op_spans
    assert all(
        by_op.starts[span.stage][span.passage] <= span.start <= span.end <= by_op.ends[span.stage][span.passage]
        for span in by_op.op_spans
    )


times = st.integers(1, 5_000)


@given(stages=st.lists(times, min_size=1, max_size=6), hop=times, host=st.tuples(times, times, times))
def test_one_user_walks_the_stages_in_series_as_the_closed_form_says(
    stages: list[int], hop: int, host: tuple[int, int, int]
) -> None:
    schedule, process, back = host
    price = PassPrice(
        tuple(StagePrice({"experts": time}, {}) for time in stages),
        (hop,) * (len(stages) - 1),
        schedule,
        (0,) * len(stages),
        process,
        back if len(stages) > 1 else 0,
    )
    settings_ = EngineSettings("rebatch")
    policy = ENGINES["rebatch"].policy(deploy(KIMI, BOX, ParallelPlan(8, 1), settings_), 10**6)
    run = simulate(policy, lambda batch: price, [Request(0, 1, 9, 0, 0)], stages=len(stages), users=1, idle_turn=0)
    cycles = np.diff(run.starts[0][1:])
    assert cycles.tolist() == [cycle_time(price, 1, policy.loop, 0)] * len(cycles)


def test_whatever_waits_runs_as_one_batch_prompts_and_decodes_together() -> None:
    asked = predictor(2, 4, name="rebatch", chunked_prefill_size=512)
    seen, price = [], asked.price
    policy = ENGINES["rebatch"].policy(asked.deployment, asked.kv_capacity_tokens)
    requests = [Request(index, 300, 12, 0, 0) for index in range(24)]
    run = simulate(
        policy, lambda batch: (seen.append(batch), price(batch))[1], requests, stages=4, users=8, idle_turn=0
    )
    mixed = [batch for batch in seen if isinstance(batch, MixedStep)]
    assert mixed
    assert max(batch.prefill.tokens for batch in mixed) <= 512
    assert len({len(row) for row in run.starts}) > 1, "stages run different numbers of batches"


def test_decode_steps_merge_and_do_not_split_so_a_pipeline_ends_up_half_empty() -> None:
    # The founding question: would it pay if a stage took all that waits? Steps that meet once stay together, so fewer
    # and fewer micro-batches go round, while fixed slots keep them apart.
    load = Workload(64, 64, 200, 400, 0.5)
    fixed = summarise(predictor(1, 8, pp_max_micro_batch_size=8).simulate(load, 0))
    merged = summarise(predictor(1, 8, name="rebatch").simulate(load, 0))
    assert merged.output_tokens_per_s < 0.8 * fixed.output_tokens_per_s
    assert merged.bubble_fraction > fixed.bubble_fraction


def test_it_is_asked_for_by_name_and_a_run_repeats(run_cli: RunCli) -> None:
    arguments = ("--engine", "rebatch", "--pp", 4, "--tp", 2, "--concurrency", 4, "--num-prompts", 8)
    answers = [run_cli("predict", *arguments, "--output-len", 6, "--json") for _ in range(2)]
    assert answers[0].code == 0, answers[0].err
    assert answers[0].out == answers[1].out
    document = answers[0].json
    assert document["deployment"]["engine"] == "rebatch"
    assert sum(document["breakdown"].values()) == pytest.approx(1.0)


def test_no_slot_cap_is_advised_where_there_are_no_slots(run_cli: RunCli) -> None:
    arguments = ("--pp", 8, "--concurrency", 64, "--num-prompts", 64, "--output-len", 60, "--seeds", 1)
    texts = {name: run_cli("predict", *arguments, "--engine", name).out for name in ENGINES}
    for words in ("--pp-max-micro-batch-size", "unevenly filled slots"):
        assert {name for name, text in texts.items() if words in " ".join(text.split())} <= {"sglang"}
    assert "--pp-max-micro-batch-size 8 gives" in " ".join(texts["sglang"].split())


def test_replicas_are_pooled_stage_by_stage() -> None:
    wall = BOX.model_copy(update={"gpus": 16})
    plan = ParallelPlan(2, 4, replicas=2)
    asked = Predictor(deploy(KIMI, wall, plan, EngineSettings("rebatch")))
    pair = asked.simulate(Workload(8, 16, 100, 8, 0.5), 0, "op")
    assert [len(row) for row in pair.starts] == [sum(len(one.starts[s]) for one in pair.replicas) for s in range(4)]
    assert all(pair.starts[span.stage][span.passage] <= span.start for span in pair.op_spans)
    assert summarise(pair).output_tokens == int(pair.output_len.sum())
