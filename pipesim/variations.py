"""The same question with something changed, simulated with the same seeds: what an answer is compared with.

Whoever compares (the interval over arrivals, advice, what-if, which split) asks here. So one question is simulated once
and has one answer, and deployments that differ in their scheduler's flags alone share prices.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pipesim.deployment import Deployment
from pipesim.errors import UsageError
from pipesim.passes import PassPricer
from pipesim.prediction import Prediction, Predictor, pricer_of
from pipesim.workload import BURST_SPACING_S, FEWEST_STEADY_WAVES, Workload

Found = TypeVar("Found")
WAVES, FEWEST_REQUESTS = 2, 24
"""Requests per user, and in all, of the runs that something is compared in, in a closed loop."""
GAPS_S = (0.0002, 0.001, 0.005, 0.02)
LIKELIEST_GAP_S, GAP_LOG_STD = 0.0005, math.log(4.0)
"""Mean gaps [s] between the users' first requests that are plausible, and how likely they are: log-normal.

Of the clients alone, as the front end has its own time for each: a benchmark's loop sends requests 0.1 to 0.2 ms apart,
a client that encodes or opens a connection for each about 1 ms, people and slow clients further."""
PRICED = ("name", "version", "peer_access", "allreduce", "speculative_acceptance")
"""Flags that change the price of a batch; the storage of the KV cache is the model's."""


class SharedPrices:
    """Predictors of deployments that differ in their scheduler's flags alone share one price list."""

    def __init__(self) -> None:
        self._pricers: dict[tuple[object, ...], PassPricer] = {}

    def predictor(self, deployment: Deployment) -> Predictor:
        """Returns a predictor of a deployment."""
        flags = tuple(getattr(deployment.engine, name) for name in PRICED)
        plan = replace(deployment.plan, replicas=1, balancer="round-robin", layer_partition=None)
        engine = flags, deployment.async_scheduling
        key = (_profiles(deployment), plan, deployment.layers, engine)
        if key not in self._pricers:
            self._pricers[key] = pricer_of(deployment)  # holds the profiles, so that their ids stay theirs
        return Predictor(deployment, price=self._pricers[key])


def _profiles(deployment: Deployment) -> tuple[object, ...]:
    """Returns what tells the profiles of a deployment from others; those with changed costs keep their name."""
    return id(deployment.hardware), deployment.model.name, deployment.model.precision.kv_cache


def beside(
    prediction: Prediction, deployment: Deployment | None = None, load: Workload | None = None, seeds: int | None = None
) -> Prediction:
    """Returns what a prediction would be with another deployment or load, from its own first seed on.

    Asked again, it is the same one; with as many seeds and nothing changed, it is the prediction itself.

    Raises:
        InfeasibleDeployment: when the deployment does not hold a request of the load.
    """
    deployment, load = deployment or prediction.deployment, load or prediction.workload
    seeds = seeds or len(prediction.runs)
    own = _key(prediction.deployment, prediction.workload, len(prediction.runs))
    if (key := _key(deployment, load, seeds)) == own:
        return prediction
    run = partial(predictor(prediction, deployment).predict, load, seeds, first_seed=prediction.first_seed)
    return once(prediction, key, run)


def predictor(prediction: Prediction, deployment: Deployment | None = None) -> Predictor:
    """Returns a predictor of a deployment, a prediction's own if none is given; all that are compared share prices."""
    return once(prediction, SharedPrices, SharedPrices).predictor(deployment or prediction.deployment)


def once(prediction: Prediction, key: object, find: Callable[[], Found]) -> Found:
    """Returns what was found beside a prediction under a key, or finds it."""
    if key not in prediction.beside:
        prediction.beside[key] = find()
    found: Found = prediction.beside[key]
    return found


def _key(deployment: Deployment, load: Workload, seeds: int) -> tuple[object, ...]:
    plan = replace(deployment.plan, layer_partition=None)
    settings = plan, deployment.layers, deployment.engine, deployment.memory_share
    return _profiles(deployment), settings, replace(load, trace=None), id(load.trace), seeds


def short(load: Workload, waves: int = WAVES) -> Workload:
    """Returns a closed loop cut to a few requests per user, as comparisons are simulated; other loads as they are."""
    if not load.closed_loop:
        return load
    waves = max(waves, FEWEST_STEADY_WAVES) if load.steady else waves
    requests = max(FEWEST_REQUESTS, waves * load.concurrency + load.warm_up)
    return replace(load, num_prompts=min(load.num_prompts, requests))


def over_gaps(prediction: Prediction, deployment: Deployment | None = None) -> Sequence[Prediction]:
    """Returns short runs of one seed with the first requests of a closed loop as they are, then by `GAPS_S` apart.

    Nothing for an open loop, whose arrivals are the load itself, and for a single user.
    """
    load = short(prediction.workload)
    if not load.closed_loop or load.concurrency == 1:
        return ()
    asked = BURST_SPACING_S if load.spacing_s is None and not load.steady else load.spacing_s
    found = []
    for gap in dict.fromkeys((asked, *GAPS_S)):
        try:
            found.append(beside(prediction, deployment, replace(load, spacing_s=gap), 1))
        except UsageError:  # so few requests that none ends in the steady part
            return ()
    return found


def arrival_variance(prediction: Prediction, metric: str) -> float:
    """Returns the log variance of a metric over plausible gaps between first arrivals."""
    runs = over_gaps(prediction)
    values = [run.over_seeds(metric)[0] for run in runs]
    if not runs or min(values) <= 0:
        return 0.0
    return gap_variance({run.workload.spacing_s: math.log(value) for run, value in zip(runs, values, strict=True)})


def gap_variance(by_gap: Mapping[float | None, float]) -> float:
    """Returns the mean square of what a value by gap [s] is away from its first, which is as likely as the others."""
    asked = next(iter(by_gap.values()))
    weights = {gap: math.exp(-((math.log(gap / LIKELIEST_GAP_S) / GAP_LOG_STD) ** 2) / 2) for gap in GAPS_S}
    away = sum(weight * (by_gap[gap] - asked) ** 2 for gap, weight in weights.items()) / sum(weights.values())
    return away / 2
