"""A change of a deployment and what it buys: simulated under the load asked for, with the interval of the ratio."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance
from typing import Any, Literal

from pipesim.deployment import Deployment
from pipesim.engines import ENGINES
from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, arrival_rate, deploy
from pipesim.sensitivity import Confidence, Z
from pipesim.variations import beside, gap_variance, over_gaps, short
from pipesim.workload import Workload

Settings = Mapping[str, Any]
NOTEWORTHY_HOST = 0.05
"""Share of the GPUs' time spent waiting for the host from which slots beyond one per stage may help."""
LOOKED_INTO = 2
"""Flags, those that gain most in a short run, that are simulated with every seed until one surely gains."""

FLAGS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "pp_async_batch_depth": ("async depth {}", ()),
    "pp_max_micro_batch_size": ("slot cap {}", ()),
    "cuda_graph": ("with CUDA graphs", (True,)),
    "prefill_decode_interval": ("{} turns between prompts", (32,)),
    "prefill_schedule_interval": ("prompts at every {}th step", (16,)),
    "schedule_conservativeness": ("conservativeness {}", (0.3,)),
}
"""Flags that change how an engine schedules and not what it answers: what they are in words, and values worth trying.

A flag that the engine does not have is refused by its settings and left out; of the first two `levers` tries what goes
together.
"""


@dataclass(frozen=True)
class Change:
    """One change and what it buys."""

    label: str
    kind: Literal["cost", "switch"]
    output_tokens_per_s: float
    speedup: float
    """Ratio of tok/s; of E2E latencies where the rate of arrivals fixes tok/s."""
    interval: tuple[float, float]
    """80 % interval of the speed-up."""
    key: str = ""
    """The cost set to zero."""
    flags: str = ""
    """What would be typed, where the change is one of flags."""
    latencies: tuple[float, float] = (math.nan, math.nan)
    """Mean TTFT and E2E latency [s]."""


def goal(load: Workload) -> str:
    """Returns the metric that a change is judged by: tok/s, or E2E latency where the rate of arrivals fixes tok/s."""
    return "output_tokens_per_s" if load.closed_loop or arrival_rate(load) == math.inf else "e2e_s"


def switched(prediction: Prediction, label: str, deployment: Deployment, flags: str = "") -> Change:
    """Returns what another deployment on the box buys, simulated with the seeds of the prediction.

    The log variance of the ratio: that of its mean and of one more seed, or over plausible gaps between first arrivals
    where that is larger; of the constants on which the two hang unequally; and of whole runs' error (`_of_whole_runs`).

    Raises:
        InfeasibleDeployment: when the deployment does not hold a request of the load.
    """
    after = beside(prediction, deployment)
    ratios = log_ratios(prediction, after)
    pairs = zip(over_gaps(prediction), over_gaps(prediction, deployment), strict=False)
    gaps = {before.workload.spacing_s: log_ratios(before, later)[0] for before, later in pairs}
    spread = max(ratio_variance(ratios), gap_variance(gaps) if gaps else 0.0) + _unequal_constants(prediction, after)
    spread += _of_whole_runs(prediction, after)
    speedup, width = math.exp(fmean(ratios)), math.exp(Z * math.sqrt(spread))
    return changed("switch", label, after, speedup, (speedup / width, speedup * width), flags=flags)


def changed(
    kind: Literal["cost", "switch"],
    label: str,
    after: Prediction,
    speedup: float,
    interval: tuple[float, float],
    **of: str,
) -> Change:
    """Returns a change that leads to a prediction."""
    latencies = after.latency("ttft_s").mean, after.latency("e2e_s").mean
    return Change(label, kind, after.mean("output_tokens_per_s"), speedup, interval, latencies=latencies, **of)


def log_ratios(before: Prediction, after: Prediction) -> list[float]:
    """Returns the logarithm of the speed-up for each seed that both were run with."""
    metric = goal(before.workload)
    sign = -1.0 if metric == "e2e_s" else 1.0
    pairs = zip(before.over_seeds(metric), after.over_seeds(metric), strict=False)
    return [sign * math.log(late / early) for early, late in pairs]


def _of_whole_runs(before: Prediction, after: Prediction) -> float:
    """Returns the log variance of the ratio from what no constant explains.

    Half of a whole run's error, as the other half is taken to cancel where both run on one box, and what was never
    measured end to end of the one and not of the other.
    """
    sure = [Confidence(prediction, arrivals=False) for prediction in (before, after)]
    apart = set(sure[0].unchecked) ^ set(sure[1].unchecked)
    return (sure[0].whole_run_std / 2) ** 2 + sum(term.log_std**2 for term in apart)


def _unequal_constants(before: Prediction, after: Prediction) -> float:
    """Returns the log variance of the ratio from constants, each moved alike in both."""
    metric = goal(before.workload)
    moved: dict[str, float] = {}
    for sign, prediction in ((1.0, before), (-1.0, after)):
        for item in Confidence(prediction).sensitivities:
            moved[item.constant] = moved.get(item.constant, 0.0) + sign * item.of(metric) * item.log_std
    return sum(value**2 for value in moved.values())


def ratio_variance(ratios: Sequence[float]) -> float:
    """Returns the log variance of a mean over some seeds as a prediction of one more; 0 for one seed, which tells none.

    Enlarged by Student's 90 % quantile over the normal one (Abramowitz & Stegun 26.7.5, two terms).
    """
    if len(ratios) < 2:
        return 0.0
    freedom = len(ratios) - 1
    student = 1 + (Z**2 + 1) / 4 / freedom + (5 * Z**4 + 16 * Z**2 + 3) / 96 / freedom**2
    return variance(ratios) * (1 + 1 / len(ratios)) * student**2


def levers(prediction: Prediction, every: bool) -> Iterator[Settings]:
    """Yields changes of flags, by field of `EngineSettings`, that the engine may schedule a load better with.

    Unless every one is asked for, those that cannot matter are left out: how sparingly requests are admitted where the
    KV cache holds all of them, and slots beyond one per stage where the host is not on the path.
    """
    deployment, load = prediction.deployment, prediction.closed_load
    settings = deployment.engine
    room = load.concurrency * load.tokens_per_request < prediction.kv_capacity_tokens * deployment.plan.replicas
    for name, (_, values) in FLAGS.items():
        if every or not (room and name == "schedule_conservativeness"):
            yield from ({name: value} for value in values if value != getattr(settings, name))
    pp, slots = deployment.plan.pp, "pp_max_micro_batch_size"
    if pp == 1 or not ENGINES[settings.name].slots_are_flags:
        return
    users = -(-load.concurrency // deployment.plan.replicas)
    waiting = every or prediction.breakdown["host"] > NOTEWORTHY_HOST
    for depth in (0, 1, 2) if waiting else (settings.pp_async_batch_depth,):
        ranks = (pp + depth) * deployment.plan.attention_dp
        change = {slots: -(-users // ranks), "pp_async_batch_depth": depth}
        yield {name: value for name, value in change.items() if value != getattr(settings, name)}
    if settings.pp_max_micro_batch_size is not None:
        yield {slots: None}


def with_flags(prediction: Prediction, every: bool = False) -> Iterator[tuple[str, str, Deployment]]:
    """Yields what differs in flags of `levers` and the box can run: in words, as it is typed, and deployed."""
    deployment = prediction.deployment
    own = replace(deployment.plan, layer_partition=deployment.layers)
    for change in filter(None, levers(prediction, every)):
        values = sorted(change.items(), key=lambda item: list(FLAGS).index(item[0]))
        words = ", ".join(FLAGS[name][0].format(value) for name, value in values)
        flags = " ".join(
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in values
        )
        if None in change.values():
            words, flags = "the engine's default slot cap", ""
        try:
            settings = replace(deployment.engine, **change)
            other = deploy(deployment.model, deployment.hardware, own, settings, prediction.workload)
            beside(prediction, other, short(prediction.workload), 1)
        except PipesimError:
            continue
        yield words, flags, other


def advice(prediction: Prediction) -> Change | None:
    """Returns the change of flags that gains most, and that beyond its interval, under the load asked for.

    Which gains most is told by short runs; None where none gains beyond its interval.
    """
    least = Z * math.sqrt(_of_whole_runs(prediction, prediction))  # half the width of any interval
    tried = list(with_flags(prediction))
    if not tried:
        return None
    first = beside(prediction, load=short(prediction.workload), seeds=1)
    gains = [log_ratios(first, beside(prediction, other, first.workload, 1))[0] for *_, other in tried]
    ranked = sorted(zip(gains, tried, strict=True), key=lambda entry: -entry[0])
    for gain, (words, flags, other) in ranked[:LOOKED_INTO]:
        if gain > least and (change := switched(prediction, words, other, flags)).interval[0] > 1.0:
            return change
    return None
