"""The price list: no kernel faster than its bound, distinct experts, schedules that reduce, and measured times."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.cost import Cost, CostModel
from pipesim.cost.collectives import ALGORITHMS, curve_seconds
from pipesim.cost.experts import block_rows, distinct_experts, expert_probabilities, expert_work, row_blocks
from pipesim.cost.roofline import roofline_seconds
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.base import settle
from pipesim.errors import MissingEvidence
from pipesim.ops import Collective, CollectiveName, Compute, Experts, HostWork, LatentDecode, Op, SendRecv, Work
from pipesim.passes import PassPricer
from pipesim.profiles.base import Basis
from pipesim.profiles.hardware import Efficiency, Gpu, HardwareProfile, Implementation, LaunchMode
from pipesim.profiles.store import available, load_hardware, load_model
from pipesim.program import lower
from pipesim.workload import Batch, DecodeStep, PrefillChunk

BOX, KIMI = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
OWN_FIRST: tuple[Implementation, ...] = ("custom", "nccl")
GRAPH, EAGER = CostModel(BOX, "graph", OWN_FIRST), CostModel(BOX, "eager", OWN_FIRST)
KIB, MIB = 2**10, 2**20
SPLITS = [(8, 1), (4, 2), (2, 4), (1, 8)]

EXPERT = 3 * 7168 * 2048
"""Parameters of one expert of Kimi K2.6."""


def deployment(tp: int, pp: int, box: HardwareProfile = BOX, *, peer_access: bool = True) -> Deployment:
    flags = EngineSettings(peer_access=peer_access)
    return settle(KIMI, box, ParallelPlan(tp, pp), flags, ENGINES["sglang"])


def experts(tokens: int, *, tp: int = 1, skew: float = 0.0, padding: int = 0) -> Experts:
    """The routed experts of one layer of Kimi K2.6."""
    return Experts(
        name="routed_experts",
        kernel="moe_int4-g32",
        tokens=tokens,
        padding_tokens=padding,
        experts=384,
        top_k=8,
        routing_skew=skew,
        weights_per_expert=EXPERT / tp,
        bytes_per_weight=0.5625,
        bytes_per_token=2.0 * 7168 + 8 * (6 * 7168 + 12 * 2048 / tp),
        launches=6,
    )


def microseconds(op: Op, cost: CostModel = GRAPH) -> float:
    return cost.price(op).seconds * 1e6


# --- roofline

sizes = st.floats(1e3, 1e15)
shares = st.floats(0.01, 1.0)
efficiencies = st.builds(
    Efficiency.model_construct,
    rate=st.just("bf16"),
    compute=shares,
    memory=shares,
    overlap=st.floats(0.0, 1.0),
    floor=st.floats(0.0, 1e-4),
)
works = st.builds(Work, sizes, sizes)


def gpu(rate: float = 400e12, bandwidth: float = 1.8e12) -> Gpu:
    return BOX.gpu.model_copy(update={"tensor_rate": {"bf16": rate}, "memory_bandwidth": bandwidth})


@given(works, efficiencies)
def test_no_kernel_is_faster_than_its_arithmetic_its_bytes_or_its_floor(work: Work, efficiency: Efficiency) -> None:
    seconds, _ = roofline_seconds(work, gpu(), efficiency)
    arithmetic = work.flops / 400e12 / efficiency.compute
    traffic = work.bytes / 1.8e12 / efficiency.memory
    assert seconds >= max(arithmetic, traffic, efficiency.floor)
    assert seconds <= (arithmetic + traffic + efficiency.floor) * (1 + 1e-12)


@given(works, efficiencies, st.floats(1.0, 10.0))
def test_more_bandwidth_or_a_higher_rate_never_slows_a_kernel(
    work: Work, efficiency: Efficiency, factor: float
) -> None:
    now, _ = roofline_seconds(work, gpu(), efficiency)
    assert roofline_seconds(work, gpu(bandwidth=1.8e12 * factor), efficiency)[0] <= now * (1 + 1e-12)
    assert roofline_seconds(work, gpu(rate=400e12 * factor), efficiency)[0] <= now * (1 + 1e-12)


@given(works, efficiencies, st.floats(1.0, 10.0))
def test_more_work_never_takes_less_time(work: Work, efficiency: Efficiency, factor: float) -> None:
    now, _ = roofline_seconds(work, gpu(), efficiency)
    assert roofline_seconds(Work(work.flops * factor, work.bytes), gpu(), efficiency)[0] >= now * (1 - 1e-12)
    assert roofline_seconds(Work(work.flops, work.bytes * factor), gpu(), efficiency)[0] >= now * (1 - 1e-12)


@given(works, efficiencies)
def test_the_bound_named_is_the_resource_whose_doubling_gains_most(work: Work, efficiency: Efficiency) -> None:
    _, bound = roofline_seconds(work, gpu(), efficiency)
    relieved = {
        "compute": roofline_seconds(work, gpu(rate=800e12), efficiency)[0],
        "memory": roofline_seconds(work, gpu(bandwidth=3.6e12), efficiency)[0],
        "latency": roofline_seconds(work, gpu(), efficiency.model_copy(update={"floor": efficiency.floor / 2}))[0],
    }
    assert relieved[bound] <= min(relieved.values()) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("work", "bound"), [(Work(1e15, 1e6), "compute"), (Work(1e6, 1e12), "memory"), (Work(1e3, 1e3), "latency")]
)
def test_a_kernel_is_bound_by_what_it_has_most_of(work: Work, bound: str) -> None:
    cost = GRAPH.price(Compute("gemm", "dense", "gemm_bf16", work))
    assert cost.bound == bound


# --- distinct experts


@pytest.mark.parametrize(
    ("tokens", "distinct"),
    [(1, 8), (2, 15.8), (4, 31.0), (8, 59.5), (16, 109.8), (32, 188.2), (64, 284.2), (128, 358.1), (256, 382.2)],
)
def test_uniform_routing_touches_the_known_number_of_experts(tokens: int, distinct: float) -> None:
    assert distinct_experts(tokens, 384, 8, 0.0) == pytest.approx(distinct, abs=0.051)


routings = st.integers(1, 512).flatmap(lambda many: st.tuples(st.just(many), st.integers(1, many), st.floats(0.0, 4.0)))


@given(routings)
def test_probabilities_of_experts_sum_to_top_k_and_none_is_above_one(routing: tuple[int, int, float]) -> None:
    probabilities = expert_probabilities(*routing)
    assert probabilities.sum() == pytest.approx(routing[1], rel=1e-9)
    assert probabilities.min() >= 0.0
    assert probabilities.max() <= 1.0
    assert (np.diff(probabilities) <= 1e-12).all()


@given(st.integers(1, 4096), st.floats(0.0, 4.0), st.floats(0.0, 4.0))
def test_skew_never_adds_distinct_experts(tokens: int, one: float, other: float) -> None:
    flatter, steeper = sorted((one, other))
    assert distinct_experts(tokens, 384, 8, steeper) <= distinct_experts(tokens, 384, 8, flatter) + 1e-9


@given(st.integers(1, 4096), routings)
def test_distinct_experts_grow_with_the_batch_up_to_all_of_them(tokens: int, routing: tuple[int, int, float]) -> None:
    many, top_k, _ = routing
    now, more = distinct_experts(tokens, *routing), distinct_experts(tokens + 1, *routing)
    assert top_k - 1e-9 <= now <= more + 1e-9
    assert more <= min(many, (tokens + 1) * top_k) + 1e-9


def route(generator: np.random.Generator, tokens: int, skew: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of each expert when every token takes 8 different ones, each with its probability (systematic sampling)."""
    edges = np.cumsum(expert_probabilities(384, 8, skew))
    points = generator.random((tokens, 1)) + np.arange(8)
    chosen = np.minimum(np.searchsorted(edges, points, side="right"), 383)
    return np.bincount(chosen.ravel(), minlength=384)


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("tokens", [2, 16, 64, 256])
def test_expected_distinct_experts_are_what_drawn_tokens_touch(tokens: int, skew: float) -> None:
    generator = np.random.default_rng(20_260)
    touched = np.array([np.count_nonzero(route(generator, tokens, skew)) for _ in range(1500)])
    error = touched.std(ddof=1) / np.sqrt(len(touched))
    assert touched.mean() == pytest.approx(distinct_experts(tokens, 384, 8, skew), abs=4 * error)


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [(1, 8), (345, 8), (346, 16), (691, 16), (692, 32), (1382, 32), (1383, 48), (2073, 48), (2074, 64), (9000, 64)],
)
def test_a_row_block_is_the_smallest_that_is_less_than_nine_tenths_full(tokens: int, rows: int) -> None:
    assert block_rows(tokens, 384, 8) == rows


@given(st.integers(1, 20_000), routings)
def test_blocks_hold_all_rows_and_every_touched_expert_has_one(tokens: int, routing: tuple[int, int, float]) -> None:
    many, top_k, _ = routing
    blocks = row_blocks(tokens, *routing)
    assert blocks >= distinct_experts(tokens, *routing) - 1e-9
    assert blocks >= tokens * top_k / block_rows(tokens, many, top_k) - 1e-9


@pytest.mark.parametrize("tokens", [8, 64, 256, 1024])
def test_expected_row_blocks_are_near_those_of_drawn_tokens(tokens: int) -> None:
    generator = np.random.default_rng(20_261)
    block = block_rows(tokens, 384, 8)
    drawn = [int((-(-route(generator, tokens, 0.8) // block)).sum()) for _ in range(200)]
    assert row_blocks(tokens, 384, 8, 0.8) == pytest.approx(np.mean(drawn), rel=0.03)


@given(st.integers(1, 512), st.integers(1, 31), st.floats(0.0, 2.0))
def test_padding_rows_touch_at_most_top_k_further_experts(tokens: int, padding: int, skew: float) -> None:
    alone = expert_work(experts(tokens, skew=skew), 0.0).bytes
    padded = expert_work(experts(tokens, skew=skew, padding=padding), 0.0).bytes
    reread = [expert_work(experts(tokens, skew=skew, padding=rows), 1.0).bytes for rows in (0, padding)]
    blocks = -(-padding // 8) * 8
    assert reread[1] - reread[0] <= (blocks + 1e-9) * EXPERT * 0.5625
    assert alone - 1.0 <= padded <= alone + 8 * EXPERT * 0.5625 + 1.0


@given(st.integers(1, 2048), st.integers(1, 2048), st.sampled_from([1, 2, 4, 8]))
def test_a_larger_batch_never_reads_fewer_experts(one: int, other: int, tp: int) -> None:
    fewer, more = (expert_work(experts(tokens, tp=tp, skew=0.8), 0.0) for tokens in sorted((one, other)))
    assert fewer.bytes <= more.bytes
    assert more.bytes <= 384 * EXPERT * 0.5625 / tp * (1 + 1e-12)


# --- measured kernel tables (aiconfigurator 0.12.0, rtx_pro_6000_server, sglang 0.5.14)


@pytest.mark.parametrize(("tp", "measured"), [(1, 6307), (8, 820)])
def test_a_balanced_batch_of_48_takes_the_measured_time(tp: int, measured: float) -> None:
    """48 tokens on 384 experts, one row on each: the same work as one token that takes all 384 experts."""
    batch = experts(48, tp=tp)
    balanced = dataclasses.replace(batch, tokens=1, top_k=384, bytes_per_token=48 * batch.bytes_per_token)
    assert expert_work(balanced, 1.0).bytes == pytest.approx(384 * EXPERT * 0.5625 / tp)
    assert microseconds(balanced) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize("skew", [0.6, 0.75])
@pytest.mark.parametrize(("tp", "measured"), [(1, 4146), (8, 561)])
def test_a_skewed_batch_of_64_takes_the_measured_time(tp: int, measured: float, skew: float) -> None:
    """The table's power law over counts is no power law over ranks; its rows ask for exponents of 0.60 to 0.75."""
    assert microseconds(experts(64, tp=tp, skew=skew)) == pytest.approx(measured, rel=0.12)


ATTENTION_ROWS = [
    (64, 8, 32, 633),
    (64, 64, 2, 400),
    (64, 64, 8, 1227),
    (8, 8, 32, 239),
    (8, 16, 16, 242),
    (8, 128, 1, 191),
    (8, 64, 2, 148),
    (8, 64, 8, 551),
]
"""Query heads, requests, KV length in units of 1024 tokens, measured us; KV larger than the L2 cache."""


def test_latent_attention_takes_the_measured_times_as_nearly_as_its_fit_claims() -> None:
    errors = [
        abs(microseconds(LatentDecode(requests, kv * 1024, heads, 512, 64, 2.0)) / measured - 1)
        for heads, requests, kv, measured in ATTENTION_ROWS
    ]
    assert np.mean(errors) < 0.12
    assert max(errors) < 0.35


# --- collectives

Chunks = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def run_schedule(name: str, held: Chunks) -> Chunks:
    """Returns what every rank (row) holds of every chunk (column) after all rounds; within a round all send at once."""
    held = held.copy()
    for rounds in ALGORITHMS[name](len(held)):
        sent = [(transfer, held[transfer.sender, transfer.chunk]) for transfer in rounds]
        for transfer, value in sent:
            before = held[transfer.receiver, transfer.chunk] if transfer.reduce else 0
            held[transfer.receiver, transfer.chunk] = before + value
    return held


@pytest.mark.parametrize("ranks", range(2, 9))
def test_the_ring_all_reduce_leaves_the_sum_on_every_rank(ranks: int) -> None:
    own = np.random.default_rng(ranks).integers(1, 1000, (ranks, ranks))
    assert (run_schedule("all_reduce", own) == own.sum(axis=0)).all()


@pytest.mark.parametrize("ranks", range(2, 9))
def test_the_ring_all_gather_leaves_the_part_of_every_rank_on_every_rank(ranks: int) -> None:
    parts = np.random.default_rng(ranks).integers(1, 1000, ranks)
    assert (run_schedule("all_gather", np.diag(parts)) == parts).all()


@pytest.mark.parametrize(("name", "passes"), [("all_reduce", 2), ("all_gather", 1)])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_a_ring_sends_the_fewest_bytes_and_uses_every_link_once_a_round(name: str, passes: int, ranks: int) -> None:
    rounds = ALGORITHMS[name](ranks)
    sent = Counter(transfer.sender for transfers in rounds for transfer in transfers)
    assert sent == dict.fromkeys(range(ranks), passes * (ranks - 1))
    for transfers in rounds:
        assert len({(transfer.sender, transfer.receiver) for transfer in transfers}) == len(transfers) == ranks


@pytest.mark.parametrize(
    ("ranks", "size", "published"),
    [
        # 2x EPYC 9575F, 8 cards on two sockets: NCCL with a corrected graph, and NCCL 2.28.3 as it comes.
        (8, 32 * KIB, 26.2),
        (8, 64 * KIB, 25.6),
        (8, 64 * KIB, 23.1),
        (8, 256 * KIB, 37.3),
        (8, 256 * KIB, 49.0),
        (8, 512 * KIB, 70.3),
        (8, 1 * MIB, 111.4),
        (8, 2 * MIB, 192.1),
        (8, 4 * MIB, 219.4),
        (8, 16 * MIB, 726.9),
        # Two cards: SGLang's own kernel in a CUDA graph up to 8 MiB, NCCL beyond. The tables count elements of 2 bytes.
        (2, 32 * KIB, 5.4),
        (2, 128 * KIB, 7.9),
        (2, 512 * KIB, 17.3),
        (2, 2 * MIB, 55.9),
        (2, 8 * MIB, 207.2),
        (2, 16 * MIB, 473.5),
    ],
)
def test_all_reduce_takes_the_published_time(ranks: int, size: int, published: float) -> None:
    assert microseconds(Collective("all_reduce", "all_reduce", ranks, size)) == pytest.approx(published, rel=0.20)


@settings(max_examples=300)
@given(
    box=st.sampled_from([load_hardware(name) for name in sorted(available("hardware"))]),
    op=st.sampled_from(get_args(CollectiveName)),
    ranks=st.integers(2, 8),
    launch=st.sampled_from(get_args(LaunchMode)),
    first=st.sampled_from(get_args(Implementation)),
    size=st.floats(1.0, 1e9),
    factor=st.floats(1.0, 10.0),
)
def test_a_larger_message_never_takes_less_time_whichever_implementation_carries_it(
    box: HardwareProfile,
    op: CollectiveName,
    ranks: int,
    launch: LaunchMode,
    first: Implementation,
    size: float,
    factor: float,
) -> None:
    cost = CostModel(box, launch, (first, "nccl"))
    smaller, larger = (Collective(op, "all_reduce", ranks, bytes_) for bytes_ in (size, size * factor))
    assert 0 < cost.price(smaller).seconds <= cost.price(larger).seconds


@given(st.integers(0, len(BOX.collectives) - 1), st.floats(1.0, 1e9))
def test_a_curve_is_one_of_its_two_lines_and_on_the_side_its_shape_says(index: int, size: float) -> None:
    curve = BOX.collectives[index]
    lines = sorted(line.latency + size / line.bandwidth for line in curve.lines)
    assert curve_seconds(curve, size) == lines[curve.shape == "max"]


@pytest.mark.parametrize("ranks", [3, 5, 6, 7])
def test_a_group_without_a_curve_is_priced_from_the_links_and_says_so(ranks: int) -> None:
    size = 64 * MIB
    cost = GRAPH.price(Collective("all_reduce", "all_reduce", ranks, size))
    assert cost.basis == "datasheet"
    assert cost.bound == "link"
    fewest_bytes = 2 * (ranks - 1) / ranks * size
    links = BOX.peer_links
    assert fewest_bytes / links.same_group_bandwidth < cost.seconds
    assert cost.seconds == pytest.approx(fewest_bytes / links.cross_group_bandwidth, rel=0.1)


def test_a_group_with_a_curve_rests_on_the_measurements_of_the_curve() -> None:
    for curve in BOX.collectives:
        size = min(MIB, curve.up_to or MIB)
        cost = CostModel(BOX, curve.launch, (curve.implementation,)).price(
            Collective(curve.op, "all_reduce", curve.ranks, size)
        )
        assert cost.basis == BOX.sources[curve.source].basis
        assert cost.seconds == curve_seconds(curve, size)


def test_two_gpus_take_the_engines_own_kernel_up_to_8_mib_and_nccl_beyond() -> None:
    nccl = CostModel(BOX, "graph", ("nccl",))
    at_limit, beyond = (Collective("all_reduce", "all_reduce", 2, size) for size in (8 * MIB, 8 * MIB + 1))
    assert GRAPH.price(at_limit).seconds != nccl.price(at_limit).seconds
    assert GRAPH.price(beyond).seconds == nccl.price(beyond).seconds


@given(st.sampled_from(get_args(CollectiveName)), st.integers(2, 8), st.integers(1, 512 * KIB))
def test_without_peer_access_no_curve_holds_and_a_decode_step_waits_longer_for_its_collectives(
    name: CollectiveName, ranks: int, size: int
) -> None:
    op = Collective(name, "all_reduce", ranks, size)
    staged = CostModel(BOX, "graph", OWN_FIRST, peer_access=False).price(op)
    assert staged.basis == "datasheet"
    assert staged.seconds > GRAPH.price(op).seconds


def test_a_collective_of_one_gpu_takes_no_time() -> None:
    assert GRAPH.price(Collective("all_reduce", "all_reduce", 1, MIB)).seconds == 0.0


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_scaling_all_reduce_scales_it_alone(factor: float) -> None:
    scaled = CostModel(BOX.with_all_reduce_scaled(factor), "graph", OWN_FIRST)
    for ranks in (2, 4, 8):
        reduce = Collective("all_reduce", "all_reduce", ranks, MIB)
        gather = Collective("all_gather", "send_recv", ranks, MIB)
        assert scaled.price(reduce).seconds == pytest.approx(factor * GRAPH.price(reduce).seconds)
        assert scaled.price(gather) == GRAPH.price(gather)


# --- send/recv


@given(st.integers(1, 8192), st.sampled_from([(4, 2), (2, 4), (1, 8), (1, 4), (2, 2)]))
def test_all_slices_of_a_hop_carry_28672_bytes_a_token(tokens: int, plan: tuple[int, int]) -> None:
    tp, pp = plan
    for batch in (DecodeStep(tokens, 64, tokens, True), PrefillChunk(tokens, 1, tokens, 0, 0, False)):
        hops = lower(deployment(tp, pp), batch).sends
        assert [len(sends) for sends in hops] == [tp] * (pp - 1)
        assert [sum(send.bytes for send in sends) for sends in hops] == [28_672 * tokens] * (pp - 1)


def test_only_the_hop_from_gpu_3_to_4_crosses_sockets() -> None:
    batch = DecodeStep(1, 64, 1, True)
    assert [send.same_group for (send,) in lower(deployment(1, 8), batch).sends] == [True] * 3 + [False] + [True] * 3
    assert [{send.same_group for send in sends} for sends in lower(deployment(2, 4), batch).sends] == [
        {True},
        {False},
        {True},
    ]


@given(st.floats(0.0, 1e9), st.integers(1, 4))
def test_a_hop_across_sockets_is_not_faster_and_one_without_peer_access_is_slower(size: float, tensors: int) -> None:
    within = GRAPH.price(SendRecv(size, True, True, tensors)).seconds
    across = GRAPH.price(SendRecv(size, False, True, tensors)).seconds
    assert within <= across
    for same_group in (True, False):
        assert across < GRAPH.price(SendRecv(size, same_group, False, tensors)).seconds


@pytest.mark.parametrize("plan", [(4, 2), (2, 4), (1, 8)])
def test_without_peer_access_every_hop_and_every_collective_is_slower(plan: tuple[int, int]) -> None:
    batch = DecodeStep(8, 1024, 8, True)
    direct = PassPricer(deployment(*plan))(batch)
    staged = PassPricer(deployment(*plan, peer_access=False))(batch)
    assert all(fast < slow for fast, slow in zip(direct.hops, staged.hops, strict=True))
    if plan[0] == 1:
        assert direct.totals == staged.totals
    else:
        assert all(fast < slow for fast, slow in zip(direct.totals, staged.totals, strict=True))


# --- passes


decode_steps = st.builds(
    lambda requests, blocks, padding, captured: DecodeStep(
        requests, 64 * blocks, requests + padding * captured, captured
    ),
    st.integers(1, 64),
    st.integers(1, 500),
    st.integers(0, 7),
    st.booleans(),
)
prefill_chunks = st.builds(
    lambda tokens, context, finished: PrefillChunk(
        tokens, 4, tokens * (context + tokens // 2 + 1), finished, 4 * context, context > 0
    ),
    st.integers(4, 8192),
    st.sampled_from([0, 4096]),
    st.integers(0, 4),
)
batches = decode_steps | prefill_chunks
plans = st.sampled_from(SPLITS)
PRICERS = {plan: PassPricer(deployment(*plan)) for plan in SPLITS}


@given(batches, plans)
def test_a_stage_takes_its_operations_and_the_wait_for_launches_and_nothing_else(
    batch: Batch, plan: tuple[int, int]
) -> None:
    pricer = PRICERS[plan]
    for stage, price in enumerate(pricer(batch).stages):
        priced = Counter[str]()
        for op in pricer.operations(batch, stage):
            priced[op.op.category] += op.picoseconds
        waiting = price.by_category["host"]
        assert {name: time for name, time in price.by_category.items() if name != "host"} == dict(priced)
        assert priced.total() + waiting == price.total == sum(price.by_basis.values())
        assert waiting >= 0


@given(decode_steps, plans, st.floats(0.0, 60e-6))
def test_an_eager_stage_lasts_as_long_as_the_longer_of_its_launches_and_its_kernels(
    step: DecodeStep, plan: tuple[int, int], eager_launch: float
) -> None:
    step = step._replace(rows=step.requests, captured=False)

    def priced(launch: float) -> tuple[tuple[int, ...], int]:
        host = BOX.host.model_copy(update={"eager_launch": launch})
        price = PassPricer(deployment(*plan, BOX.model_copy(update={"host": host})))(step)
        return price.totals, price.launches[0]

    kernels, _ = priced(0.0)
    totals, launch = priced(eager_launch)
    assert totals[0] == max(kernels[0], launch)
    assert all(total >= kernel for total, kernel in zip(totals, kernels, strict=True))


def test_a_layer_is_27_to_30_kernels_as_counted_in_sglang_two_of_them_all_reduce() -> None:
    step = DecodeStep(8, 1024, 8, False)
    tp8, alone = (
        sum(op.launches for op in lower(deployment(*plan), step).operations["expert_layer"])
        for plan in ((8, 1), (1, 8))
    )
    assert 27 <= tp8 <= 30
    assert tp8 - alone == 2


def test_a_captured_stage_does_not_wait_for_kernel_launches() -> None:
    for plan in SPLITS:
        for stage in PRICERS[plan](DecodeStep(8, 1024, 8, True)).stages:
            assert stage.by_category["host"] == 0


@given(st.integers(1, 256), plans)
def test_a_captured_batch_is_the_next_captured_size(requests: int, plan: tuple[int, int]) -> None:
    captured = [1, 2, 4, 8, 12, *range(16, 257, 8)]
    step = ENGINES["sglang"].decode_batch(deployment(*plan), requests, 1000 * requests)
    assert isinstance(step, DecodeStep)
    assert step.captured
    assert step.rows == next(size for size in captured if size >= requests)
    dense = next(op for op in lower(deployment(*plan), step).operations["expert_layer"] if isinstance(op, Compute))
    assert dense.work.flops == 2 * step.rows * 7168 * (1536 + 576)


@given(decode_steps, plans, st.integers(1, 64))
def test_longer_contexts_and_more_requests_never_take_less_time(
    step: DecodeStep, plan: tuple[int, int], more: int
) -> None:
    step = step._replace(rows=step.requests)
    longer = step._replace(kv_tokens=step.kv_tokens + 64 * more)
    larger = step._replace(requests=step.requests + more, rows=step.rows + more)
    now = PRICERS[plan](step).totals
    assert all(a <= b for a, b in zip(now, PRICERS[plan](longer).totals, strict=True))
    assert all(a <= b for a, b in zip(now, PRICERS[plan](larger).totals, strict=True))


# --- evidence


def every_operation() -> Iterator[tuple[LaunchMode, Op]]:
    """Every operation that some batch makes of Kimi K2.6 on some split."""
    for plan in SPLITS:
        split = deployment(*plan)
        for batch in (
            DecodeStep(8, 1024, 8, True),
            DecodeStep(7, 1024, 8, True),
            DecodeStep(8, 1024, 8, False),
            PrefillChunk(2048, 2, 2_098_176, 2, 0, False),
            PrefillChunk(2048, 2, 10_486_784, 0, 8192, True),
        ):
            program = lower(split, batch)
            launch: LaunchMode = "graph" if batch.captured else "eager"
            ops: list[Op] = [op for section in program.operations.values() for op in section]
            ops += [send for sends in program.sends for send in sends]
            yield from ((launch, op) for op in ops)
    for name in ("launch", "schedule", "process", "idle_turn", "return"):
        for launches in (0, 1800):
            yield "eager", HostWork(name, requests=8, launches=launches)


@pytest.mark.parametrize("key", sorted(key for key in BOX.efficiency if "@" in key))
def test_the_constants_of_an_engines_own_kernel_go_before_the_common_ones(key: str) -> None:
    kernel, _, stack = key.partition("@")
    op = Compute("kernel", "attention", kernel, Work(1e12, 1e9))
    own = BOX.model_copy(update={"efficiency": {**BOX.efficiency, kernel: BOX.efficiency[key]}})
    assert CostModel(BOX, "graph", stack=stack).price(op) == CostModel(own, "graph").price(op)
    assert CostModel(BOX, "graph", stack=stack).price(op) != CostModel(BOX, "graph").price(op)
    assert CostModel(BOX, "graph", stack="another").price(op) == CostModel(BOX, "graph").price(op)


def test_the_price_of_every_operation_names_what_it_rests_on() -> None:
    kinds = set()
    for launch, op in every_operation():
        cost: Cost = CostModel(BOX, launch).price(op)
        kinds.add(type(op).__name__)
        assert cost.basis in get_args(Basis)
        assert 0 <= cost.seconds < 1
    assert kinds == {
        "Compute",
        "SmallKernels",
        "Experts",
        "SideStream",
        "LatentDecode",
        "Collective",
        "SendRecv",
        "HostWork",
    }


@given(st.sampled_from(["measured", "fitted", "datasheet"]))
def test_the_basis_of_a_price_is_that_of_the_source_of_its_constants(basis: Basis) -> None:
    name = BOX.efficiency["gemm_bf16"].source
    source = BOX.sources[name].model_copy(update={"basis": basis})
    box = BOX.model_copy(update={"sources": {**BOX.sources, name: source}})
    gemm = Compute("gemm", "dense", "gemm_bf16", Work(1e9, 1e9))
    assert CostModel(box, "graph").price(gemm).basis == basis
    assert CostModel(box, "graph").price(experts(8)).basis == "fitted"


@pytest.mark.parametrize("key", ["gemm_bf16", "mla_decode", "mla_prefill", "mla_absorb"])
def test_a_missing_efficiency_is_missing_evidence_and_named(key: str) -> None:
    efficiency = {name: entry for name, entry in BOX.efficiency.items() if name.partition("@")[0] != key}
    box = BOX.model_copy(update={"efficiency": efficiency})
    with pytest.raises(MissingEvidence, match=rf"rtx-pro-6000-x8: efficiency\.{key}: nothing was given") as missing:
        for launch, op in every_operation():
            CostModel(box, launch).price(op)
    assert missing.value.key == f"efficiency.{key}"


@pytest.mark.parametrize(
    ("kernel", "lender", "basis"),
    [("gemm_int4-g128", "gemm_bf16", "datasheet"), ("moe_int4-g128", "moe_int4-g32", "fitted")],
)
def test_a_kernel_never_measured_borrows_the_efficiency_of_its_nearest_relative(
    kernel: str, lender: str, basis: str
) -> None:
    """The same kernel at another group size is as good as measured; another kernel rests on the datasheet."""
    work = Work(1e9, 1e9)
    borrowed, own = (CostModel(BOX, "graph").price(Compute("x", "dense", name, work)) for name in (kernel, lender))
    assert (borrowed.seconds, borrowed.basis) == (own.seconds, basis)


def test_a_kernel_measured_on_another_stack_alone_is_priced_with_it_and_said_to_be_extrapolated() -> None:
    other = BOX.efficiency["moe_int4-g32@vllm"]
    box = BOX.model_copy(update={"efficiency": {n: e for n, e in BOX.efficiency.items() if n != "moe_int4-g32"}})
    there, here = (CostModel(box, "graph", stack=stack).price(experts(8)) for stack in ("vllm", "sglang"))
    assert here.seconds == there.seconds
    assert (here.extrapolated, there.extrapolated) == (True, False)
    assert box.sources[other.source].basis == here.basis
