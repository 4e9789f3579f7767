"""Bounds of closed queueing networks: what N users can get out of stages in series, whatever the scheduler does."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES, Request
from pipesim.passes import PassPrice, StagePrice
from pipesim.prediction import deploy
from pipesim.simulation import simulate
from tests.conftest import BOX, KIMI

STEPS, WARM_UP = 120, 20


@st.composite
def prices(draw: st.DrawFn, stages: int, hosts: int) -> PassPrice:
    """Stage times, hops and host work of one micro-batch; the host is short beside the stages if it does anything."""
    host = st.integers(0, hosts)
    return PassPrice(
        stages=tuple(StagePrice({"experts": draw(st.integers(4_000, 20_000))}, {}) for _ in range(stages)),
        hops=tuple(draw(st.integers(0, 500)) for _ in range(stages - 1)),
        schedule=draw(host),
        launches=(draw(host),) * stages,
        process=draw(host),
        result_return=draw(host),
    )


def rate(price: PassPrice, users: int, settings_: EngineSettings) -> float:
    """Returns micro-batches of one request per time unit, in steady state."""
    stages = len(price.stages)
    engine = ENGINES[settings_.name]
    deployment = deploy(KIMI, BOX.model_copy(update={"gpus": 64}), ParallelPlan(8, stages), settings_)
    requests = [Request(index, 15, STEPS, 0, 0) for index in range(users)]
    policy = engine.policy(deployment, 10**6)
    run = simulate(policy, lambda batch: price, requests, stages=stages, users=users, idle_turn=1)
    ends = run.ends[-1]
    first, last = WARM_UP * users, (STEPS - WARM_UP) * users
    return float((last - first) / (ends[last] - ends[first]))


def demands(price: PassPrice) -> tuple[float, float]:
    """Returns the demand of a round at all stages and hops, and at the busiest of them."""
    stations = (*price.totals, *price.hops)
    return sum(stations), max(stations)


@settings(max_examples=50)
@given(data=st.data(), stages=st.integers(2, 6), users=st.integers(1, 6), depth=st.integers(0, 2))
def test_no_more_users_are_served_than_the_asymptotic_bounds_allow(
    data: st.DataObject, stages: int, users: int, depth: int
) -> None:
    # X(N) <= min(N / D, 1 / D_max): Denning and Buzen 1978, whatever the host adds.
    users = min(users, stages + depth)
    price = data.draw(prices(stages, 1_000))
    demand, busiest = demands(price)
    flags = EngineSettings(pp_async_batch_depth=depth, pp_max_micro_batch_size=1)
    assert rate(price, users, flags) <= min(users / demand, 1 / busiest) * (1 + 1e-9)


@settings(max_examples=50)
@given(data=st.data(), stages=st.integers(2, 6), users=st.integers(1, 6), name=st.sampled_from(["sglang", "vllm"]))
def test_no_fewer_are_served_than_the_balanced_job_bounds_allow(
    data: st.DataObject, stages: int, users: int, name: str
) -> None:
    # X(N) >= N / (D + (N - 1) D_max): balanced job bounds without think time (Zahorjan, Sevcik, Eager and Galler 1982)
    # hold for exponential service; times that do not vary queue less, so the lower bound holds for them a fortiori.
    # The host takes no time, since a loop that waits for it is not work conserving.
    users = min(users, stages)
    price = data.draw(prices(stages, 0))
    demand, busiest = demands(price)
    flags = EngineSettings(
        name,  # type: ignore[arg-type]
        pp_max_micro_batch_size=1 if name == "sglang" else None,
        chunked_prefill_size=16 if name == "vllm" else None,
    )
    served = rate(price, users, flags)
    assert served >= users / (demand + (users - 1) * busiest) * (1 - 1e-9)
    # The upper balanced job bound is for exponential service; the one that holds for any is the asymptotic one.
    assert served <= min(users / demand, 1 / busiest) * (1 + 1e-9)
