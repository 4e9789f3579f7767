"""When prompts are launched and who is let in: every turn as in a plain scheduler, and what the levers buy."""

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, MicroBatch, Request, sglang, vllm
from pipesim.engines.base import Policy
from pipesim.engines.slots import SlotScheduler
from pipesim.engines.vllm import VllmPolicy
from pipesim.errors import UsageError
from pipesim.launch.read import read
from pipesim.launch.servers import servers
from pipesim.metrics import summarise
from pipesim.prediction import deploy
from pipesim.profiles.store import load_hardware
from pipesim.workload import Workload
from tests.conftest import BOX, KIMI, RunCli, predictor
from tests.reference_schedulers import Asked, Full, Sglang, Turn, Vllm

TURNS = 400
shapes = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=14)
"""Prompt, output, and tokens that the client would have allowed beyond it."""


def new_policy(pp: int, kv: int, settings: EngineSettings) -> SlotScheduler:
    policy = ENGINES[settings.name].policy(deploy(KIMI, BOX, ParallelPlan(8 // pp, pp), settings), kv)
    assert isinstance(policy, SlotScheduler)
    return policy


def walk(policy: Policy, requests: list[Request], turns: int = TURNS) -> list[tuple[int, int, int] | None]:
    """Returns how many decode, prompt tokens and prompts that end in each turn, no clock between them."""
    for request in requests:
        policy.submit(request)
    shape, found = policy.loop, []
    due: deque[MicroBatch | None] = deque([None] * shape.result_lag)
    for turn in range(turns):
        formed = policy.form(turn % shape.slots)
        due.append(formed)
        if (result := due.popleft()) is not None:
            policy.complete(result, turn)
        found.append(formed and summary(formed))
    return found


def summary(formed: MicroBatch) -> tuple[int, int, int]:
    chunk = getattr(formed.batch, "prefill", formed.batch if formed.decode_step < 0 else None)
    decode = getattr(formed.batch, "decode", formed.batch if formed.decode_step >= 0 else None)
    return decode.requests if decode else 0, chunk.tokens if chunk else 0, len(formed.finishing_prefill)


def expected(turn: Callable[[int], Turn], asked: list[Asked]) -> list[tuple[int, int, int] | None]:
    left, found = {request.index: request.prompt for request in asked}, []
    for k in range(TURNS):
        try:
            formed = turn(k)
        except Full:
            reject()
        pieces = formed[1] if formed else []
        for index, tokens in pieces:
            left[index] -= tokens
        ends = sum(left[index] == 0 for index, _ in pieces)
        found.append(formed and (len(formed[0]), sum(tokens for _, tokens in pieces), ends))
    return found


@given(
    pp=st.sampled_from([1, 2, 4]),
    depth=st.integers(0, 1),
    lengths=shapes,
    chunk=st.sampled_from([32, 64, 256]),
    cap=st.integers(1, 6),
    interval=st.integers(0, 5),
    least=st.integers(0, 3),
    fixed=st.booleans(),
    version=st.sampled_from(["0.5.21", "0.5.22", None]),
    conservativeness=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    room=st.floats(1.0, 6.0),
    rows=st.integers(6, 12),
)
def test_sglang_forms_what_a_plain_scheduler_forms(
    pp: int,
    depth: int,
    lengths: list[tuple[int, int, int]],
    chunk: int,
    cap: int,
    interval: int,
    least: int,
    fixed: bool,
    version: str | None,
    conservativeness: float,
    room: float,
    rows: int,
) -> None:
    depth = depth if pp > 1 else 0
    kv = int(room * max(prompt + output + more + 8 for prompt, output, more in lengths))
    flags = EngineSettings(
        chunked_prefill_size=chunk,
        pp_async_batch_depth=depth,
        pp_max_micro_batch_size=cap,
        max_running_requests=rows,
        prefill_decode_interval=interval,
        prefill_decode_interval_min_bs=least,
        schedule_conservativeness=conservativeness,
        version=version if not interval else None,
    )
    policy = new_policy(pp, kv, flags)
    requests = [Request(i, p, o, 0, 0, fixed, o + more) for i, (p, o, more) in enumerate(lengths)]
    asked = [Asked(i, p, o, o + more) for i, (p, o, more) in enumerate(lengths)]
    shape = policy.loop.slots, policy.loop.result_lag, kv, chunk, cap, interval, least
    plain = Sglang(
        *shape,
        reserves_all=fixed and flags.version != "0.5.21",
        conservativeness=conservativeness,
        rows=rows,
        chunk_takes_a_row=flags.version is not None,
        waiting=deque(asked),
        everyone=asked,
    )
    assert walk(policy, requests) == expected(plain.turn, asked)


@given(
    pp=st.sampled_from([1, 2, 4]),
    asynchronous=st.booleans(),
    lengths=shapes,
    budget=st.sampled_from([32, 64, 256]),
    sequences=st.integers(1, 8),
    interval=st.integers(1, 6),
    version=st.sampled_from(["0.18.0", None]),
    room=st.floats(1.0, 6.0),
)
def test_vllm_forms_what_a_plain_scheduler_forms(
    pp: int,
    asynchronous: bool,
    lengths: list[tuple[int, int, int]],
    budget: int,
    sequences: int,
    interval: int,
    version: str | None,
    room: float,
) -> None:
    kv = int(room * max(prompt + output + 8 for prompt, output, _ in lengths))
    version = version if interval == 1 else None
    flags = EngineSettings(
        "vllm",
        chunked_prefill_size=budget,
        max_running_requests=sequences,
        async_scheduling=asynchronous,
        prefill_schedule_interval=interval,
        version=version,
    )
    policy = new_policy(pp, kv, flags)
    requests = [Request(i, p, o, 0, 0) for i, (p, o, _) in enumerate(lengths)]
    asked = [Asked(i, p, o, o) for i, (p, o, _) in enumerate(lengths)]
    plain = Vllm(pp, policy.loop.result_lag, kv, budget, sequences, interval, version is None, deque(asked))
    assert walk(policy, requests) == expected(plain.turn, asked)


def mean_over_seeds(load: Workload, **flags: object) -> tuple[float, float]:
    """Returns mean TTFT and TPOT [s] of Kimi K2.6 on TP2×PP4."""
    runs = [summarise(predictor(2, 4, **flags).simulate(load, seed)) for seed in range(3)]
    return float(np.mean([run.ttft_s.mean for run in runs])), float(np.mean([run.tpot_s.mean for run in runs]))


def test_under_pp_an_interval_between_prefills_buys_tpot_with_ttft() -> None:
    # A prompt stalls the in-order ring for a whole pass: fewer, fuller prefill launches stall it less often.
    load = Workload(64, 256, 512, 256, 0.5)
    ttft, tpot = zip(
        *(mean_over_seeds(load, pp_max_micro_batch_size=16, prefill_decode_interval=turns) for turns in (0, 31, 63)),
        strict=True,
    )
    assert ttft[0] < ttft[1] < ttft[2]
    assert tpot[0] > tpot[1] > tpot[2]
    assert tpot[2] < 0.85 * tpot[0]


def test_an_interval_that_moves_prefills_from_slot_to_slot_evens_the_groups() -> None:
    # With 4 slots an interval of 4 gives every fifth turn to prompts, which is another slot each time; 7 the same one.
    load = Workload(num_prompts=200, input_len=512, output_len=256, random_range_ratio=0.5, request_rate=1.6)
    tpot = {turns: mean_over_seeds(load, prefill_decode_interval=turns)[1] for turns in (0, 4, 7)}
    assert tpot[4] < 0.6 * tpot[0]
    assert tpot[7] > 1.5 * tpot[4]


def test_below_its_least_batch_the_interval_holds_nothing_back() -> None:
    load = Workload(8, 32, 512, 64, 0.5)
    runs = [
        predictor(8, 1, prefill_decode_interval=turns, prefill_decode_interval_min_bs=least).simulate(load, 0)
        for turns, least in ((0, 0), (20, 9), (20, 0))
    ]
    assert np.array_equal(runs[0].last_token, runs[1].last_token)
    assert not np.array_equal(runs[0].last_token, runs[2].last_token)


def test_vllms_interval_lets_running_requests_decode_and_ends_once_requests_are_left_waiting() -> None:
    def longest_gap(budget: int, interval: int) -> float:
        load = Workload(16, 64, 2_048, 128, 0.5)
        flags = {"name": "vllm", "chunked_prefill_size": budget, "prefill_schedule_interval": interval}
        return summarise(predictor(8, 1, **flags).simulate(load, 0)).ttft_s.mean

    assert longest_gap(16_384, 32) > 1.3 * longest_gap(16_384, 1)
    assert longest_gap(64, 32) == pytest.approx(longest_gap(64, 1), rel=0.05), "one step cannot take all that wait"


@pytest.mark.parametrize(
    ("version", "ignore_eos", "let_in"),
    [("0.5.21", True, 12), ("0.5.22", True, 9), (None, True, 9), (None, False, 12)],
)
def test_from_0_5_22_on_sglang_reckons_with_all_of_an_output_of_fixed_length(
    version: str | None, ignore_eos: bool, let_in: int
) -> None:
    policy = new_policy(1, 1_000, EngineSettings(version=version))
    for index in range(20):
        policy.submit(Request(index, 10, 100, 0, 0, ignore_eos))
    most = 0
    for turn in range(30):
        formed = policy.form(0)
        most = max(most, policy.slots[0].running)
        if formed:
            policy.complete(formed, turn)
    assert most == let_in


def test_a_client_that_allows_more_than_comes_is_let_in_later() -> None:
    policies = [new_policy(1, 1_000, EngineSettings()) for _ in range(2)]
    for policy, allowed in zip(policies, (0, 400), strict=True):
        walk(policy, [Request(index, 10, 20, 0, 0, False, allowed) for index in range(20)], turns=1)
    taken = [len(policy.slots[0].prefilled) for policy in policies]
    assert taken == [20, 2]


@pytest.mark.parametrize(("version", "let_in"), [("0.18.0", 2), ("0.19.0", 1), (None, 1)])
def test_from_0_19_on_vllm_lets_a_request_in_only_where_its_whole_prompt_fits(version: str | None, let_in: int) -> None:
    policy = new_policy(1, 1_000, EngineSettings("vllm", chunked_prefill_size=400, version=version))
    walk(policy, [Request(0, 700, 50, 0, 0), Request(1, 500, 50, 0, 0)], turns=3)
    assert policy._let_in == let_in


def test_vllm_puts_back_the_request_let_in_last_whatever_its_group() -> None:
    policy = new_policy(2, 150, EngineSettings("vllm", chunked_prefill_size=40, async_scheduling=False))
    first, second = Request(0, 40, 100, 0, 0), Request(1, 40, 100, 0, 0)
    walk(policy, [first, second], turns=80)
    assert isinstance(policy, VllmPolicy)
    assert first.slot != second.slot or second.slot < 0
    assert policy.put_back >= 1
    assert first.recomputed == 0 < second.recomputed


def test_a_launch_of_prompts_alone_waits_for_no_tokens() -> None:
    # Two prompts of one group, each a launch: what they need of the GPU's tokens is nothing.
    load = Workload(2, 2, 4_000, 1)
    both = predictor(2, 4, name="vllm", chunked_prefill_size=4_000).simulate(load, 0)
    launched = both.starts[0]
    assert launched[1] < both.left[0], "the second prompt enters the first stage before the first has left the last"


def test_levers_go_through_a_launch_line_and_the_answer(run_cli: RunCli) -> None:
    levers = ("--prefill-decode-interval", 4, "--prefill-decode-interval-min-bs", 2, "--schedule-conservativeness", 0.5)
    levers += ("--enable-dynamic-chunking", "--dynamic-chunking-smooth-factor", 0.65)
    small = ("--concurrency", 2, "--num-prompts", 2, "--input-len", 64, "--output-len", 4, "--seeds", 1)
    asked = run_cli("predict", "--tp", 2, "--pp", 4, *levers, *small, "--json").json["deployment"]["engine_flags"]
    assert asked["prefill_decode_interval"] == 4
    assert asked["schedule_conservativeness"] == 0.5
    line = (
        "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR=0.65 python -m sglang.launch_server --model-path moonshotai/Kimi-K2.6 "
        "--tp-size 2 --pp-size 4 --enable-dynamic-chunking --prefill-decode-interval 4 "
        "--prefill-decode-interval-min-bs 2 --schedule-conservativeness 0.5"
    )
    imported = read(servers(line)[0])
    assert {name: imported.flags[name] for name in asked} == asked
    assert not imported.unsupported


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"name": "vllm", "prefill_decode_interval": 4}, "--prefill-decode-interval"),
        ({"name": "vllm", "schedule_conservativeness": 2.0}, "--schedule-conservativeness"),
        ({"prefill_schedule_interval": 4}, "--prefill-schedule-interval"),
        ({"prefill_decode_interval": -1}, "--prefill-decode-interval"),
        ({"name": "vllm", "prefill_schedule_interval": 0}, "--prefill-schedule-interval"),
        ({"schedule_conservativeness": -0.1}, "--schedule-conservativeness"),
        ({"schedule_conservativeness": float("nan")}, "--schedule-conservativeness"),
        ({"prefill_decode_interval": 4, "version": "0.5.18"}, "0.5.19"),
        ({"name": "vllm", "prefill_schedule_interval": 4, "version": "0.32.0"}, "0.33"),
    ],
)
def test_a_lever_that_the_engine_does_not_have_is_refused(flags: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named.replace(".", r"\.")):
        deploy(KIMI, BOX, ParallelPlan(2, 4), EngineSettings(**flags))  # type: ignore[arg-type]


def test_with_a_draft_sglang_captures_small_batches_one_by_one() -> None:
    deployment = deploy(KIMI, BOX, ParallelPlan(8, 1), EngineSettings(speculative_acceptance=(0.5, 0.5)))
    assert sglang.captured_batches(deployment)[:14] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20]


@pytest.mark.parametrize(
    ("gpu", "drafts", "version", "largest"),
    [
        ("h200-sxm-x8", 0, None, 512),
        ("b200-sxm-x8", 0, None, 1024),
        ("b200-sxm-x8", 0, "0.22.0", 512),
        ("h200-sxm-x8", 1, None, 256),
        ("h200-sxm-x8", 3, None, 128),
    ],
)
def test_vllm_captures_decode_steps_up_to_a_number_of_tokens(
    gpu: str, drafts: int, version: str | None, largest: int
) -> None:
    flags = EngineSettings("vllm", max_running_requests=1024, speculative_acceptance=(0.5,) * drafts, version=version)
    assert vllm.captured_sizes(deploy(KIMI, load_hardware(gpu), ParallelPlan(8, 1), flags))[-1] == largest
