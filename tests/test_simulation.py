"""What holds in every simulated run: nothing lost, nothing served twice at once, every second accounted for."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.metrics import summarise
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.timeline import Timeline
from pipesim.workload import Workload
from tests.conftest import BARE, BOX, KIMI, predictor

SPLITS = [(8, 1), (4, 2), (2, 4), (1, 8)]


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Any split of the box under any engine settings."""
    tp, pp = draw(st.sampled_from(SPLITS))
    running = draw(st.none() | st.integers(1, 40))
    name = draw(st.sampled_from(["sglang", "vllm"]))
    return deploy(
        KIMI,
        BOX,
        ParallelPlan(tp, pp),
        EngineSettings(
            name=name,
            cuda_graph=draw(st.booleans()),
            pp_max_micro_batch_size=draw(st.none() | st.integers(1, min(16, running or 16))),
            pp_async_batch_depth=draw(st.integers(0, 2)),
            max_running_requests=running,
            chunked_prefill_size=draw(st.none() | st.integers(16, 600)),
            peer_access=draw(st.booleans()),
            async_scheduling=draw(st.booleans()),
            enable_mixed_chunk=name == "sglang" and draw(st.booleans()),
            enable_dynamic_chunking=name == "sglang" and draw(st.booleans()),
        ),
    )


workloads = st.builds(
    Workload,
    concurrency=st.integers(1, 24),
    num_prompts=st.integers(1, 40),
    input_len=st.integers(1, 900),
    output_len=st.integers(1, 24),
    random_range_ratio=st.sampled_from([0.0, 0.5, 1.0]),
    context_len=st.sampled_from([0, 3_000]),
    request_rate=st.none() | st.sampled_from([0.5, 20.0]),
)


small_workloads = st.builds(
    Workload,
    concurrency=st.integers(1, 8),
    num_prompts=st.integers(1, 9),
    input_len=st.integers(1, 200),
    output_len=st.integers(1, 6),
    random_range_ratio=st.sampled_from([0.0, 0.5]),
)


@given(deployment=deployments(), workload=workloads, seed=st.integers(0, 99))
def test_every_token_asked_for_comes_out_in_order(deployment: Deployment, workload: Workload, seed: int) -> None:
    timeline = Predictor(deployment).simulate(workload, seed)
    asked = workload.draw(seed)
    assert [int(n) for n in timeline.output_len] == [spec.output_len for spec in asked]
    first_gaps_and_later = int(timeline.gap_weight.sum())
    assert first_gaps_and_later == sum(spec.output_len - 1 for spec in asked)
    assert (timeline.arrival < timeline.first_token).all()
    assert (timeline.first_token <= timeline.last_token).all()
    assert ((timeline.last_token > timeline.first_token) == (timeline.output_len > 1)).all()
    assert int((timeline.gap * timeline.gap_weight).sum()) == int((timeline.last_token - timeline.first_token).sum())


@given(deployment=deployments(), workload=workloads)
def test_busy_bubble_and_other_idle_add_up_to_the_window_on_every_gpu(
    deployment: Deployment, workload: Workload
) -> None:
    metrics = summarise(Predictor(deployment).simulate(workload, 0))
    for load in metrics.stages:
        assert load.busy + load.bubble + load.host == pytest.approx(load.window, rel=1e-9)
        assert min(load.bubble, load.host, *load.by_category.values()) >= -1e-12


@given(deployment=deployments(), workload=workloads)
def test_no_stage_and_no_link_serves_two_micro_batches_at_once(deployment: Deployment, workload: Workload) -> None:
    timeline = Predictor(deployment).simulate(workload, 0)
    assert (timeline.starts[:, 1:] >= timeline.ends[:, :-1]).all()
    assert (timeline.starts >= timeline.arrivals).all()
    assert (timeline.hop_starts >= timeline.ends[:-1]).all()
    assert (timeline.hop_starts[:, 1:] >= timeline.arrivals[1:, :-1]).all()


@settings(max_examples=12)
@given(deployment=deployments(), workload=small_workloads)
def test_every_grain_of_events_gives_the_same_run(deployment: Deployment, workload: Workload) -> None:
    asked = Predictor(deployment)
    runs = [asked.simulate(workload, 0, detail) for detail in ("pass", "stage", "op")]
    for name in ("starts", "ends", "arrivals", "hop_starts", "first_token", "last_token", "gap", "slot", "price_index"):
        reference = getattr(runs[0], name)
        assert all(np.array_equal(reference, getattr(run, name)) for run in runs[1:]), name
    assert_spans_fill_the_stages(runs[2])


def assert_spans_fill_the_stages(timeline: Timeline) -> None:
    """Kernels lie within their stage's span, one after the other, and only launches lie between them."""
    last: dict[tuple[int, int], int] = {}
    for span in timeline.op_spans:
        key = (span.stage, span.passage)
        assert span.start >= last.get(key, int(timeline.starts[span.stage, span.passage]))
        assert span.end >= span.start
        last[key] = span.end
    for (stage, passage), end in last.items():
        assert end == timeline.ends[stage, passage]


def test_the_same_seed_gives_the_same_bytes_in_two_processes() -> None:
    command = [sys.executable, "-m", "pipesim", "predict", "--pp", "8", "--random-range-ratio", "0.5"]
    command += ["--num-prompts", "40", "--output-len", "30", "--seed", "3", "--seeds", "2", "--json"]
    first, second = (subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second
    other = subprocess.run([*command, "--seed", "4"], capture_output=True, check=True).stdout
    assert other != first


@settings(max_examples=25)
@given(
    split=st.sampled_from(SPLITS),
    users=st.integers(1, 8),
    faster=st.floats(1.0, 8.0),
    what=st.sampled_from(["memory", "links", "all_reduce", "host"]),
)
def test_more_bandwidth_or_less_latency_never_costs_throughput(
    split: tuple[int, int], users: int, faster: float, what: str
) -> None:
    # One request per slot and one wave, so that the scheduler has nothing to choose.
    workload = Workload(concurrency=users, num_prompts=users, input_len=64, output_len=20, spacing_s=0.0)
    rates = []
    for box in (BOX, improved(BOX, what, faster)):
        cap = -(-users // split[1])
        timeline = predictor(*split, box=box, pp_max_micro_batch_size=cap).simulate(workload, 0)
        rates.append(summarise(timeline).output_tokens_per_s)
    assert rates[1] >= rates[0] * (1 - 1e-9)


def improved(box: HardwareProfile, what: str, factor: float) -> HardwareProfile:
    """Returns the box with one thing better by a factor."""
    if what == "all_reduce":
        return box.with_all_reduce_scaled(1.0 / factor)
    part, fields = {
        "memory": ("gpu", ("memory_bandwidth",)),
        "links": ("peer_links", ("same_group_bandwidth", "cross_group_bandwidth")),
        "host": ("host", ("schedule", "process", "message", "graph_launch", "idle_turn")),
    }[what]
    old = getattr(box, part)
    scale = factor if what != "host" else 1.0 / factor
    return box.model_copy(update={part: old.model_copy(update={name: getattr(old, name) * scale for name in fields})})


def test_a_burst_fills_the_slots_unevenly_when_the_cap_is_high() -> None:
    workload = Workload(concurrency=64, num_prompts=64, input_len=200, output_len=40)
    for box in (BARE, BOX):
        capped, free = (
            slot_sizes(predictor(1, 8, box, pp_max_micro_batch_size=cap).simulate(workload, 0)) for cap in (8, 64)
        )
        assert capped == [8] * 8
        assert sum(free) == 64
        if box is BARE:  # the first is launched alone, and those that come meanwhile go into few slots
            assert free[0] == 1
            assert 3 <= len(free) <= 6
        else:  # one tokenizer hands them over 0.4 ms apart: most of them go into one slot, turn by turn
            assert max(free) > 4 * 8


def slot_sizes(timeline: Timeline) -> list[int]:
    """Returns the largest decode batch of each slot that ran one."""
    slots = timeline.slot[timeline.decode]
    batches = timeline.requests_in_batch[timeline.decode]
    return [int(batches[slots == slot].max()) for slot in np.unique(slots)]


def test_the_default_cap_divides_by_the_stages_not_by_the_slots() -> None:
    # With depth 4 and room for 32 requests, the first four of eight slots take all of them.
    flags = {"max_running_requests": 32, "pp_async_batch_depth": 4}
    workload = Workload(concurrency=32, num_prompts=32, input_len=16, output_len=30, spacing_s=0.0)
    timeline = predictor(2, 4, BARE, **flags).simulate(workload, 0)
    assert slot_sizes(timeline) == [8, 8, 8, 8]


def test_a_request_stays_in_its_slot_and_prefill_goes_before_the_slots_decodes() -> None:
    workload = Workload(concurrency=2, num_prompts=6, input_len=64, output_len=10, random_range_ratio=0.5)
    timeline = predictor(1, 8, pp_max_micro_batch_size=1).simulate(workload, 1)
    decodes = timeline.decode
    # Slots of one request: each is either prefilling or decoding its own, never another's.
    assert set(timeline.requests_in_batch[decodes].tolist()) == {1}
    assert int(decodes.sum()) == int((timeline.output_len - 1).sum())


def test_chunks_of_one_prompt_run_in_consecutive_slots_without_waiting() -> None:
    workload = Workload(concurrency=1, num_prompts=1, input_len=4_000, output_len=2)
    timeline = predictor(1, 8, chunked_prefill_size=500).simulate(workload, 0)
    prefills = ~timeline.decode
    assert timeline.slot[prefills].tolist() == list(range(8))
    assert (timeline.starts[0, 1:8] < timeline.ends[-1, 0:7]).all(), "a chunk starts before the one before it has left"
    assert timeline.slot[timeline.decode].tolist() == [7], "it decodes in the slot that ran its last chunk"


def test_a_closed_loop_never_holds_more_requests_than_users() -> None:
    workload = Workload(concurrency=5, num_prompts=30, input_len=40, output_len=12, random_range_ratio=1.0)
    timeline = predictor(2, 4).simulate(workload, 2)
    events = sorted([(int(t), 1) for t in timeline.arrival] + [(int(t), -1) for t in timeline.last_token])
    assert max(np.cumsum([step for _, step in events])) <= 5


FLAGS: list[dict[str, object]] = [
    {"pp_max_micro_batch_size": 4},
    {"enable_mixed_chunk": True, "enable_dynamic_chunking": True, "chunked_prefill_size": 256},
    {"name": "vllm"},
    {"name": "rebatch"},
]


@given(flags=st.sampled_from(FLAGS), workload=workloads, seed=st.integers(0, 9))
def test_littles_law_holds_in_every_run(flags: dict[str, object], workload: Workload, seed: int) -> None:
    timeline = predictor(2, 4, **flags).simulate(workload, seed)
    begin, end = timeline.window
    events = sorted([(int(t), 1) for t in timeline.arrival] + [(int(t), -1) for t in timeline.last_token])
    area, inside, before = 0, 0, begin
    for time, step in events:
        area, inside, before = area + inside * (time - before), inside + step, time
    mean_time = (timeline.last_token - timeline.arrival).mean()
    throughput = len(timeline.arrival) / (end - begin)
    assert area / (end - begin) == pytest.approx(throughput * mean_time, rel=1e-9)


def test_requests_that_arrive_far_apart_gather_in_one_slot_and_halve_the_throughput() -> None:
    # Founding finding 5. While the loop waits for the only busy slot, that slot is the next to admit.
    # Behind a tokenizer, whose gaps add to the clients', that is against users who send all at once.
    for box, together in ((BARE, 0.0002), (BOX, 0.0)):
        rates, slots = {}, {}
        for spacing in (together, 0.02):
            workload = Workload(64, 64, 200, 400, 0.5, spacing_s=spacing)
            timeline = predictor(1, 8, box, pp_max_micro_batch_size=64).simulate(workload, 0)
            rates[spacing], slots[spacing] = summarise(timeline).output_tokens_per_s, len(slot_sizes(timeline))
        assert slots[0.02] <= 2 < slots[together]
        assert rates[together] > 1.5 * rates[0.02]


def test_an_overlapped_engine_without_stages_hides_the_host_behind_the_gpu() -> None:
    workload = Workload(concurrency=8, num_prompts=8, input_len=64, output_len=60)
    metrics = summarise(predictor(8, 1, BARE).simulate(workload, 0))
    assert metrics.bubble_fraction == 0
    assert metrics.stages[0].host / metrics.stages[0].window < 0.05
