"""How sure: what a prediction hangs on, and the interval that follows.

Three things make a prediction uncertain: its constants (fit errors, and how AllReduce differs between hosts), what no
constant explains (the error of whole runs, learned on calibration runs alone), and the draw of lengths and arrivals.
Their log variances add up. What rests on a datasheet, lies beyond the measured sizes or runs on another engine version
widens it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, pvariance

from pipesim.closed_form import SteadyState
from pipesim.cost.model import CONSTANTS_ALONE
from pipesim.deployment import Deployment
from pipesim.engines import box_of_group
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.hardware import HardwareProfile
from pipesim.workload import Workload

LEVEL = 0.8
Z = 1.2815515655446004
"""The normal quantile that leaves 10 % above."""
STD_PER_MEAN_ABSOLUTE_ERROR = math.sqrt(math.pi / 2)
"""Of a normal distribution."""
DATASHEET_STD = 0.35
"""Log standard deviation of a price that rests on a datasheet: kernels reach half to nearly all of a quoted rate."""
EXTRAPOLATED_STD = 0.35
"""Log standard deviation of a price outside the measured sizes."""
OTHER_VERSION_STD = 0.10
"""Log standard deviation of a whole run on another engine version: two builds on one box differ by up to 29 %."""
SMALL_STEP = 0.05
"""Change of a logarithm by which an elasticity is found where no error is known."""

HEADLINES = (
    "output_tokens_per_s",
    "output_tokens_per_s_per_request",
    "request_throughput_per_s",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_s",
    "step_time_s",
)


@dataclass(frozen=True)
class Sensitivity:
    """What one group of constants does to a prediction. Elasticities are d ln(metric) / d ln(price)."""

    constant: str
    log_std: float
    """0 where none is known."""
    throughput: float
    step_time: float
    prefill_time: float

    def of(self, metric: str) -> float:
        """Returns the elasticity of a headline metric."""
        if metric == "ttft_s":
            return self.prefill_time
        return self.step_time if metric in {"tpot_s", "itl_s", "e2e_s", "step_time_s"} else self.throughput


def log_stds(hardware: HardwareProfile, stack: str = "") -> dict[str, float]:
    """Returns the log standard deviation of every group of constants of a box, of a kernel that of the stack's own."""
    unsure, stds = hardware.uncertainty, {}
    nearest_last = sorted(hardware.efficiency, key=lambda name: (name.endswith(f"@{stack}"), "@" not in name))
    for name in nearest_last:
        stds[name.partition("@")[0]] = STD_PER_MEAN_ABSOLUTE_ERROR * hardware.efficiency[name].fit_error
    for op in ("all_reduce", "all_gather"):
        errors = [curve.fit_error for curve in hardware.collectives if curve.op == op]
        stds[op] = STD_PER_MEAN_ABSOLUTE_ERROR * max(errors) if errors else DATASHEET_STD
    if hardware.all_reduce_range:
        width = math.log(hardware.all_reduce_range.slowest / hardware.all_reduce_range.fastest)
        stds["all_reduce"] = max(stds["all_reduce"], width / (2 * Z))
    return stds | {
        "launch": unsure.launch,
        "scheduler": unsure.scheduler,
        "small_kernel": unsure.small_kernel,
        "send_recv": unsure.send_recv,
    }


class Confidence:
    """How sure one prediction is."""

    def __init__(self, prediction: Prediction, known: tuple[Sensitivity, ...] | None = None) -> None:
        self.prediction = prediction
        self._known = known

    @cached_property
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """What each group of constants does to the prediction."""
        return self._known or sensitivities(self.prediction.deployment, self.prediction.workload)

    def log_std(self, metric: str) -> float:
        """Returns the log standard deviation of one headline metric."""
        constants = sum((item.of(metric) * item.log_std) ** 2 for item in self.sensitivities)
        end_to_end = self.prediction.deployment.hardware.uncertainty.end_to_end
        return math.sqrt(constants + self.seed_variance(metric) + self.doubt_variance + end_to_end**2)

    def seed_variance(self, metric: str) -> float:
        """Returns the log variance of one headline metric over lengths and arrivals."""
        return pvariance([math.log(value) for value in self.prediction.over_seeds(metric) if value > 0] or [0.0])

    @property
    def doubt_variance(self) -> float:
        """Log variance for weak evidence: datasheet figures, sizes never measured, another version of the engine."""
        prediction = self.prediction
        variance = (DATASHEET_STD * prediction.basis["datasheet"]) ** 2
        variance += (EXTRAPOLATED_STD * prediction.extrapolated_fraction) ** 2
        return variance + (OTHER_VERSION_STD**2 if other_version(prediction.deployment) else 0.0)

    def interval(self, metric: str) -> tuple[float, float]:
        """Returns the 80 % interval of one headline metric."""
        spread = math.exp(Z * self.log_std(metric))
        middle = fmean(self.prediction.over_seeds(metric))
        return middle / spread, middle * spread


def sensitivities(deployment: Deployment, workload: Workload) -> tuple[Sensitivity, ...]:
    """Returns every group of constants that prices a load, by the closed form, largest effect first.

    Each is moved one log std both ways, one whose error is not known (log_std 0) by `SMALL_STEP`. Prices are all there
    is to a time: where one user walks through the stages, elasticities add up to −1 (throughput) and 1 (times).
    """
    found, stds = [], log_stds(box_of_group(deployment), deployment.engine.kernels)
    for constant in sorted(Predictor(deployment).constants(workload)):
        std = stds.get(constant, 0.0)
        by = std or SMALL_STEP
        scales = ({CONSTANTS_ALONE + constant: math.exp(sign * by)} for sign in (-1, 1))
        low, high = (_steady(deployment, workload, scale) for scale in scales)
        throughput = _slope(low.output_tokens_per_s, high.output_tokens_per_s, by)
        step, prefill = (
            _slope(getattr(low, name), getattr(high, name), by) for name in ("step_time_s", "prefill_time_s")
        )
        found.append(Sensitivity(constant, std, throughput, step, prefill))
    return tuple(sorted(found, key=lambda item: -abs(item.throughput * item.log_std)))


def other_version(deployment: Deployment) -> bool:
    """Returns whether the engine version asked for is another minor version than that of the measured kernels."""
    asked, measured = deployment.engine.version, deployment.hardware.measured_with.get(deployment.engine.kernels)
    return asked is not None and measured is not None and asked.split(".")[:2] != measured.split(".")[:2]


def _steady(deployment: Deployment, workload: Workload, scale: Mapping[str, float]) -> SteadyState:
    return Predictor(deployment, scale).steady_state(workload)


def _slope(low: float, high: float, std: float) -> float:
    return math.log(high / low) / (2 * std)
