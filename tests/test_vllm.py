"""vLLM as it schedules: its partition, one budget for prompts and decodes, groups that stay uneven, its KV rule."""

import numpy as np
import pytest

from pipesim.cost.memory import weight_bytes
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import vllm, vllm_memory
from pipesim.metrics import summarise
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.workload import MixedStep, Workload
from tests.conftest import without_front_end

GIB = 2**30


def served(kimi: ModelProfile, box: HardwareProfile, tp: int, pp: int, **flags: object) -> Deployment:
    return deploy(kimi, box, ParallelPlan(tp, pp), EngineSettings("vllm", **flags))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stages", "layers"),
    [
        (2, [31, 30]),
        (3, [20, 21, 20]),
        (4, [15, 15, 16, 15]),
        (5, [12, 12, 12, 13, 12]),
        (6, [10, 10, 10, 10, 11, 10]),
        (7, [8, 9, 9, 9, 9, 9, 8]),
        (8, [7, 7, 8, 8, 8, 8, 8, 7]),
    ],
)
def test_the_remainder_of_61_layers_goes_before_the_last_stage(stages: int, layers: list[int]) -> None:
    assert list(vllm.layer_partition(61, stages)) == layers


@pytest.mark.parametrize(
    ("tp", "pp", "gib"),
    [
        (4, 2, [70.06, 69.81]),
        (2, 4, [65.75, 68.76, 73.35, 69.86]),
        (1, 8, [57.92, 63.94, 73.08, 73.08, 73.08, 73.08, 73.08, 66.13]),
    ],
)
def test_weights_per_gpu_follow_its_own_partition(
    kimi: ModelProfile, box: HardwareProfile, tp: int, pp: int, gib: list[float]
) -> None:
    deployment = served(kimi, box, tp, pp)
    assert [weight_bytes(deployment, stage) / GIB for stage in range(pp)] == pytest.approx(gib, rel=0.002)


def test_the_kv_cache_of_a_published_run_is_met(kimi: ModelProfile, box: HardwareProfile) -> None:
    # BF16 KV on TP8 of Kimi K2.5, about 190k tokens (rtx6kpro wiki, models/kimi-k25.md); utilization not stated.
    capacity = [
        vllm_memory.kv_capacity_tokens(served(kimi, box, 8, 1, gpu_memory_utilization=share)) for share in (0.90, 0.94)
    ]
    assert capacity[0] < 190_000 < capacity[1]


def test_prompts_and_decodes_share_one_launch_under_one_budget(kimi: ModelProfile, box: HardwareProfile) -> None:
    predictor = Predictor(served(kimi, box, 8, 1, chunked_prefill_size=512))
    seen = []
    price = predictor.price

    def spy(batch):  # type: ignore[no-untyped-def]
        seen.append(batch)
        return price(batch)

    predictor.price = spy  # type: ignore[assignment]
    for name in ("idle_turn", "operations", "front_end"):
        setattr(spy, name, getattr(price, name))
    predictor.simulate(Workload(8, 24, 300, 20, 0.5), seed=0)
    mixed = [batch for batch in seen if isinstance(batch, MixedStep)]
    assert mixed
    assert max(batch.tokens for batch in seen) <= 512
    assert all(batch.captured for batch in mixed)


def test_groups_fixed_by_the_end_of_the_prompt_stay_uneven(kimi: ModelProfile, box: HardwareProfile) -> None:
    # 1, 16, 15 and 0 where requests come to the scheduler 0.2 ms apart; the tokenizer spreads them over more steps.
    for bare, spread in ((True, 16), (False, 5)):
        on = without_front_end(box) if bare else box
        timeline = Predictor(served(kimi, on, 2, 4)).simulate(Workload(32, 32, 512, 100), seed=0)
        decode = timeline.decode
        sizes = [int(timeline.requests_in_batch[decode & (timeline.slot == s)].max(initial=0)) for s in range(4)]
        assert sum(sizes) >= 32
        assert max(sizes) - min(sizes) >= spread


def test_the_proposed_cap_evens_the_groups_and_pays(kimi: ModelProfile, box: HardwareProfile) -> None:
    # vLLM PR 57433 reports +23 % output tok/s from such a cap, on another model and box.
    load = Workload(64, 64, 200, 200)
    largest, rates = {}, {}
    for capped in (False, True):
        deployment = served(kimi, box, 1, 8, max_running_requests=64, cap_decodes_per_step=capped)
        timeline = Predictor(deployment).simulate(load, 0)
        largest[capped] = int(timeline.requests_in_batch[timeline.decode].max())
        rates[capped] = summarise(timeline).output_tokens_per_s
    assert largest[True] <= 8 < largest[False]
    assert rates[True] > 1.1 * rates[False]


def test_running_requests_are_bounded_over_all_stages_together(kimi: ModelProfile, box: HardwareProfile) -> None:
    timeline = Predictor(served(kimi, box, 1, 8, max_running_requests=8)).simulate(Workload(64, 64, 64, 20), seed=0)
    events = sorted([(int(t), 1) for t in timeline.first_token] + [(int(t), -1) for t in timeline.last_token])
    assert max(np.cumsum([step for _, step in events])) <= 8


def test_scheduling_ahead_takes_the_host_off_the_path(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(8, 8, 64, 60)
    rates = [
        summarise(Predictor(served(kimi, box, 8, 1, async_scheduling=ahead)).simulate(load, 0)).output_tokens_per_s
        for ahead in (True, False)
    ]
    assert 1.02 < rates[0] / rates[1] < 1.4


def test_enforcing_eager_is_bound_by_launches(kimi: ModelProfile, box: HardwareProfile) -> None:
    load = Workload(1, 1, 64, 30)
    eager = summarise(Predictor(served(kimi, box, 8, 1, cuda_graph=False)).simulate(load, 0))
    graph = summarise(Predictor(served(kimi, box, 8, 1)).simulate(load, 0))
    assert graph.output_tokens_per_s > 2 * eager.output_tokens_per_s
