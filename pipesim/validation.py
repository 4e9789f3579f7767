"""Are we right? Predictions beside measured runs, each with its tolerance."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from pipesim.errors import UnpredictableRun
from pipesim.measured import KV_CAPACITY, MeasuredRun, Role, Runs
from pipesim.runs import predict_run
from pipesim.sensitivity import Confidence

SEEDS = 20
ENOUGH_REQUESTS = 1280
"""Requests, over all seeds, beyond which another seed tells nothing new of a mean."""


@dataclass(frozen=True)
class Comparison:
    """One measured figure and the prediction of it."""

    id: str
    metric: str
    measured: float
    predicted: float
    """Not a number where nothing can be predicted."""
    interval: tuple[float, float]
    tolerance: float
    role: Role
    reason: str = ""
    """Why nothing can be predicted, empty where something was."""

    @property
    def relative_error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool:
        """Whether the measured figure lies in the predicted interval."""
        return self.interval[0] <= self.measured <= self.interval[1]

    @property
    def ok(self) -> bool:
        """Predicted and within tolerance; a run that is only reported cannot fail."""
        return self.role == "reported" or (not self.reason and abs(self.relative_error) <= self.tolerance)


@dataclass(frozen=True)
class Validation:
    """All comparisons of one or more files of measured runs."""

    rows: tuple[Comparison, ...]
    assumptions: tuple[str, ...]

    @property
    def judged(self) -> list[Comparison]:
        """The rows that are evidence: not used for calibration, conditions known, and predicted."""
        return [row for row in self.rows if row.role == "validation" and not row.reason]

    @property
    def coverage(self) -> float:
        """Share of the judged rows whose measured figure lies in the predicted interval; 0 when there is none.

        KV capacity has no interval and is left out.
        """
        unsure = [row for row in self.judged if row.metric != KV_CAPACITY]
        return fmean(row.covered for row in unsure) if unsure else 0.0

    @property
    def mean_abs_relative_error(self) -> float:
        """Over the judged rows; 0 when there is none."""
        return fmean(abs(row.relative_error) for row in self.judged) if self.judged else 0.0

    @property
    def worst(self) -> Comparison | None:
        """The judged row with the largest error."""
        return max(self.judged, key=lambda row: abs(row.relative_error), default=None)

    @property
    def ok(self) -> bool:
        """Whether every row is within its tolerance."""
        return all(row.ok for row in self.rows)


def validate(files: Iterable[Runs], seeds: int = SEEDS, progress: Callable[[str], None] = lambda _: None) -> Validation:
    """Returns the comparison of every measured figure with its prediction, the mean over at most `seeds` seeds.

    A run that pipesim holds to be impossible was measured all the same, so its rows fail with the reason and the others
    are compared. Of a run with many requests fewer seeds are drawn, at least two.
    """
    rows: list[Comparison] = []
    assumptions = []
    for file in files:
        if file.assumption:
            assumptions.append(file.assumption)
        for run in file.run:
            progress(run.id)
            requests = run.workload.num_prompts or run.workload.waves * run.workload.concurrency
            try:
                rows += compare(run, min(seeds, max(1, ENOUGH_REQUESTS // requests)))
            except UnpredictableRun as error:
                rows += _unpredicted(run, error.reason)
    return Validation(tuple(rows), tuple(assumptions))


def _unpredicted(run: MeasuredRun, reason: str) -> list[Comparison]:
    return [
        Comparison(
            run.id, name, value, math.nan, (math.nan, math.nan), run.tolerance.get(name, 0.0), run.role_of(name), reason
        )
        for name, value in run.measured.items()
    ]


def compare(run: MeasuredRun, seeds: int) -> list[Comparison]:
    """Returns the comparison of each figure of one run. Raises PipesimError when it cannot be predicted."""
    prediction = predict_run(run, seeds)
    confidence = Confidence(prediction)
    rows = []
    for metric, value in run.measured.items():
        if metric == KV_CAPACITY:
            predicted = float(prediction.kv_capacity_tokens)
            interval = predicted, predicted
        else:
            predicted, interval = fmean(prediction.over_seeds(metric)), confidence.interval(metric)
        tolerance = run.tolerance.get(metric, 0.0)
        rows.append(Comparison(run.id, metric, value, predicted, interval, tolerance, run.role_of(metric)))
    return rows
