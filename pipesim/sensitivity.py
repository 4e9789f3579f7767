"""How sure: what a prediction hangs on, and the interval that follows.

Three things make a prediction uncertain: its constants (fit errors, and how AllReduce differs between hosts), what no
constant explains (the error of whole runs: `pipesim.whole_runs`), and the draw of lengths and arrivals, with the gaps
between a closed loop's first requests as far apart as is plausible. Their log variances add up. What rests on a
datasheet or lies beyond the measured sizes widens it, and so does each kind of deployment that was never measured end
to end.
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
from pipesim.variations import arrival_variance
from pipesim.whole_runs import Term, WholeRuns, learned
from pipesim.workload import Workload

LEVEL = 0.8
Z = 1.2815515655446004
"""The normal quantile that leaves 10 % above."""
STD_PER_MEAN_ABSOLUTE_ERROR = math.sqrt(math.pi / 2)
"""Of a normal distribution."""
DATASHEET_STD = 0.35
"""Log standard deviation of a collective without a curve: half to nearly all of a quoted rate is reached."""
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
    front_end = hardware.host.front_end.get(stack)
    return stds | {
        "front_end": front_end.log_std if front_end else 0.0,
        "launch": unsure.launch,
        "scheduler": unsure.scheduler,
        "small_kernel": unsure.small_kernel,
        "send_recv": unsure.send_recv,
    }


class Confidence:
    """How sure one prediction is.

    Args:
        prediction: which one.
        known: what each group of constants does to it, if that is known.
        arrivals: whether to simulate what other gaps between first arrivals do to it.
        runs: what whole runs have taught, if not all that ship.
    """

    def __init__(
        self,
        prediction: Prediction,
        known: tuple[Sensitivity, ...] | None = None,
        arrivals: bool = True,
        runs: WholeRuns | None = None,
    ) -> None:
        self.prediction = prediction
        self._known, self._arrivals, self._runs = known, arrivals, runs or learned()

    @cached_property
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """What each group of constants does to the prediction."""
        return self._known or sensitivities(self.prediction.deployment, self.prediction.closed_load)

    @cached_property
    def unchecked(self) -> tuple[Term, ...]:
        """The parts of the error that no measured run of their kind has bounded."""
        return self._runs.unchecked(self.prediction.deployment)

    @property
    def whole_run_std(self) -> float:
        """Log standard deviation of a whole run of checked kinds that no constant explains."""
        return math.sqrt(self._runs.base_variance(self.prediction.deployment))

    def log_std(self, metric: str) -> float:
        """Returns the log standard deviation of one headline metric."""
        whole_run = self.whole_run_std**2 + self.first_token_variance(metric)
        unchecked = sum(term.log_std**2 for term in self.unchecked)
        return math.sqrt(self.variance_of_constants(metric) + whole_run + unchecked)

    def variance_of_constants(self, metric: str) -> float:
        """Returns the log variance of one headline metric that constants, weak evidence and draws explain."""
        constants = sum((item.of(metric) * item.log_std) ** 2 for item in self.sensitivities)
        return constants + self.seed_variance(metric) + self.doubt_variance

    def seed_variance(self, metric: str) -> float:
        """Returns the log variance of one headline metric over lengths and arrivals.

        Over seeds, or over plausible gaps between first arrivals where that is larger: these differ by their draw, too.
        """
        drawn = pvariance([math.log(value) for value in self.prediction.over_seeds(metric) if value > 0] or [0.0])
        return max(drawn, arrival_variance(self.prediction, metric)) if self._arrivals else drawn

    def first_token_variance(self, metric: str) -> float:
        """Returns the log variance that whole runs show of a time to first token besides."""
        return self._runs.first_token_variance(metric)

    @property
    def doubt_variance(self) -> float:
        """Log variance for weak evidence: datasheet figures, and sizes never measured."""
        variance = (self._runs.log_std["datasheet"] * self.prediction.basis["datasheet"]) ** 2
        return variance + (self._runs.log_std["extrapolated"] * self.prediction.extrapolated_fraction) ** 2

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
            _slope(getattr(low, name), getattr(high, name), by) for name in ("step_time_s", "first_token_s")
        )
        found.append(Sensitivity(constant, std, throughput, step, prefill))
    return tuple(sorted(found, key=lambda item: -abs(item.throughput * item.log_std)))


def _steady(deployment: Deployment, workload: Workload, scale: Mapping[str, float]) -> SteadyState:
    return Predictor(deployment, scale).steady_state(workload)


def _slope(low: float, high: float, std: float) -> float:
    return math.log(high / low) / (2 * std)
