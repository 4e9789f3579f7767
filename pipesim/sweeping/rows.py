"""From a point of the grid to a row of the file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipesim.axes import Method
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import InfeasibleDeployment, MissingEvidence, UsageError
from pipesim.fitting import deploy, needed_tokens
from pipesim.planning.evaluate import consider
from pipesim.prediction import Predictor
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.variations import SharedPrices
from pipesim.workload import Workload

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
RATES = ("output_tokens_per_s", "output_tokens_per_s_per_request", "request_throughput_per_s")
STEP = ("step_time_s", "bubble_fraction", "micro_batches_in_flight")
METRICS: tuple[str, ...]
METRICS = ("feasible", "reason", "gpus", "kv_capacity_tokens", RATES[0], "output_tokens_per_s_per_gpu", *RATES[1:])
METRICS += (*(f"{name[:-2]}_{kind}_s" for name in LATENCIES for kind in ("mean", "p50", "p99")), *STEP)
"""Columns of the answer, after those of the question."""

REFUSALS = (InfeasibleDeployment, UsageError, MissingEvidence)


@dataclass(frozen=True)
class Point:
    """One point of the grid: everything that a worker needs, by value."""

    key: tuple[Any, ...]
    """Columns of the question."""
    model: ModelProfile
    hardware: HardwareProfile
    plan: ParallelPlan | None = None
    settings: EngineSettings | None = None
    workload: Workload | None = None
    refused: str = ""
    """Why it is no question at all."""


def rows_of(points: Sequence[Point], method: Method, seeds: int, first_seed: int) -> list[tuple[Any, ...]]:
    """Returns the row of each point; one that cannot run says why, and has no figures."""
    worker = _Worker(method, seeds, first_seed)
    return [(*point.key, *worker.answer(point)) for point in points]


class _Worker:
    """Answers points that come one after another; neighbours share prices and refusals."""

    def __init__(self, method: Method, seeds: int, first_seed: int) -> None:
        self._method, self._seeds, self._first_seed = method, seeds, first_seed
        self._prices = SharedPrices()
        self._predictors: dict[tuple[object, ...], Predictor | str] = {}

    def answer(self, point: Point) -> tuple[Any, ...]:
        """Returns the columns of `METRICS`."""
        if point.plan is None or point.settings is None or point.workload is None:
            return _refused(point.refused)
        needed = needed_tokens(point.plan, point.settings, point.workload)
        key = (point.model.name, point.hardware.name, point.plan, point.settings, needed)
        if key not in self._predictors:
            deployment = _deployed(point.model, point.hardware, point.plan, point.settings, point.workload)
            self._predictors[key] = deployment if isinstance(deployment, str) else self._prices.predictor(deployment)
        predictor = self._predictors[key]
        if isinstance(predictor, str):
            return _refused(predictor)
        try:
            if self._method == "closed-form":
                return _closed_form(predictor, point.workload)
            return self._simulated(predictor, point.workload)
        except REFUSALS as refusal:
            return _refused(str(refusal))

    def _simulated(self, predictor: Predictor, workload: Workload) -> tuple[Any, ...]:
        prediction = predictor.predict(workload, self._seeds, first_seed=self._first_seed)
        latencies = {name: prediction.latency(name)._asdict() for name in LATENCIES}
        means = {name: prediction.mean(name) for name in (*RATES, *STEP)}
        return _answered(predictor, means, latencies)


def _closed_form(predictor: Predictor, workload: Workload) -> tuple[Any, ...]:
    candidate = consider(predictor, workload, "mean")
    figures, steady = candidate.closed_figures, candidate.closed_form
    rate = figures.output_tokens_per_s
    per_step = (steady.step_time_s, steady.bubble_fraction, steady.micro_batches)
    values = (rate, candidate.per_request, rate / workload.output_len, *per_step)
    latencies = {name: {"mean": getattr(figures, name)} for name in LATENCIES}
    return _answered(predictor, dict(zip((*RATES, *STEP), values, strict=True)), latencies)


def _answered(predictor: Predictor, means: dict[str, float], latencies: dict[str, dict[str, float]]) -> tuple[Any, ...]:
    """Returns the columns of `METRICS` of what can run; a latency that is not known is None."""
    gpus = predictor.deployment.plan.gpus
    found = means | {"output_tokens_per_s_per_gpu": means["output_tokens_per_s"] / gpus}
    found |= {f"{name[:-2]}_{kind}_s": value for name, kinds in latencies.items() for kind, value in kinds.items()}
    capacity = predictor.kv_capacity_tokens
    known = found | {"feasible": True, "reason": "", "gpus": gpus, "kv_capacity_tokens": capacity}
    return tuple(known.get(name) for name in METRICS)


def _deployed(
    model: ModelProfile, hardware: HardwareProfile, plan: ParallelPlan, settings: EngineSettings, workload: Workload
) -> Deployment | str:
    try:
        return deploy(model, hardware, plan, settings, workload)
    except REFUSALS as refusal:
        return str(refusal)


def _refused(reason: str) -> tuple[Any, ...]:
    return (False, reason, *[None] * (len(METRICS) - 2))
