"""What an answer hangs on that nobody knows in advance: how ragged lengths are, and how far apart users first ask."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf

from pipesim.deployment import Deployment
from pipesim.engines import ENGINES
from pipesim.errors import PipesimError, UsageError
from pipesim.prediction import Prediction, deploy, fitting_plans
from pipesim.variations import GAPS_S, beside, once, over_gaps, short
from pipesim.workload import Workload

RATE = "output_tokens_per_s"
RAGGED = 0.5
WITHIN_REACH = 0.8
"""Share of the best split's rate below which a split is not compared under other loads."""
WITHIN_ERROR = 1.02
"""By how much another split has to be faster to take the place of the one that is best under the load asked for."""
MOST_PASSAGES = 20_000
"""Passages of a short run from which the other splits are not simulated."""


@dataclass(frozen=True)
class Hinges:
    """An answer in output tok/s under other loads of the kind, and which split is best under each."""

    equal_lengths: float
    ragged_lengths: float
    by_gap: dict[float, float]
    """By mean gap [s] between the users' first requests."""
    best_split: dict[str, str]
    """By load in words; empty where there is no other split of these GPUs, or where it would take too long."""
    requests: int
    """Of each run, which has one seed."""


def hinges(prediction: Prediction) -> Hinges | None:
    """Returns what an answer hangs on; None for open loops, whose arrivals are given, and for single requests.

    Runs are short and of one seed; what they say in proportion is said of the prediction.
    """
    load = short(prediction.workload)
    if not load.closed_loop or load.num_prompts == 1:
        return None
    try:
        return once(prediction, Hinges, lambda: _hinges(prediction, load))
    except UsageError:  # so few requests that none ends in the steady part
        return None


def _hinges(prediction: Prediction, load: Workload) -> Hinges:
    asked = beside(prediction, load=load, seeds=1).mean(RATE)
    scale = prediction.mean(RATE) / asked
    lengths = {"equal lengths": 0.0, f"lengths ±{RAGGED:.0%}": RAGGED}
    loads = {name: replace(load, random_range_ratio=ratio, log_spread=0.0) for name, ratio in lengths.items()}
    equal, ragged = (beside(prediction, load=changed, seeds=1).mean(RATE) * scale for changed in loads.values())
    gaps = {gap: run.mean(RATE) * scale for run in over_gaps(prediction) if (gap := run.workload.spacing_s) in GAPS_S}
    loads[f"users {GAPS_S[-1] * 1e3:g} ms apart"] = replace(load, spacing_s=GAPS_S[-1])
    return Hinges(equal, ragged, gaps, _best_splits(prediction, load, loads), load.num_prompts)


def _best_splits(prediction: Prediction, load: Workload, loads: dict[str, Workload]) -> dict[str, str]:
    """Returns the best split of the same GPUs under each load, all with their slots filled as evenly as a cap can."""
    run = prediction.runs[0]
    passages = run.slots_used * run.duration_s / run.step_time_s if run.step_time_s else inf
    if passages * load.num_prompts / prediction.workload.num_prompts > MOST_PASSAGES:
        return {}

    def rate(split: Deployment, under: Workload) -> float:
        try:
            return beside(prediction, split, under, 1).mean(RATE)
        except PipesimError:
            return 0.0

    splits = list(_splits(prediction.deployment, load))
    rates = [rate(split, load) for split in splits]
    near = [split for split, own in zip(splits, rates, strict=True) if own > WITHIN_REACH * max(rates)]
    if len(splits) < 2:
        return {}
    leader = splits[rates.index(max(rates))]

    def lead(split: Deployment, under: Workload) -> float:
        return rate(split, under) * (WITHIN_ERROR if split is leader else 1.0)

    return {name: str(max(near, key=partial(lead, under=under)).plan) for name, under in loads.items()}


def _splits(deployment: Deployment, load: Workload) -> Iterator[Deployment]:
    plan, users = deployment.plan, -(-load.concurrency // deployment.plan.replicas)
    for fitting in fitting_plans(deployment):
        if fitting.gpus != plan.gpus_per_replica:
            continue
        settings = deployment.engine
        try:
            split = replace(plan, tp=fitting.tp, pp=fitting.pp, layer_partition=None, placement=None)
            if ENGINES[settings.name].slots_are_flags and split.pp > 1:
                slots = (split.pp + settings.pp_async_batch_depth) * split.attention_dp
                settings = replace(settings, pp_max_micro_batch_size=ceil(users / slots))
            yield deploy(deployment.model, deployment.hardware, split, settings, load)
        except PipesimError:
            continue
