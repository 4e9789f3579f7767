"""What only whole runs can tell: the host's time per launched kernel, and the error that no constant explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pipesim.errors import ProfileError
from pipesim.measured import MeasuredRun, Runs
from pipesim.profiles.hardware import HardwareProfile
from pipesim.runs import predict_run
from pipesim.sensitivity import Confidence

SEEDS = 6
FIRST_STEP = 0.05
LARGEST_FACTOR = 20.0


@dataclass(frozen=True)
class RunFit:
    """What the calibration runs of one box say."""

    figures: tuple[str, ...]
    """Run and metric of each timed figure."""
    launch_factor: float
    """Factor on the profile's eager launch time; 1 when no run is eager."""
    log_errors: tuple[float, ...]
    """ln(predicted / measured) of each figure after the fit."""
    excess_std: float
    """Log standard deviation beyond that of the constants: root of the mean excess variance, 0 if there is none."""


def calibration_runs(files: Sequence[Runs], hardware: str) -> list[MeasuredRun]:
    """Returns the runs of role calibration on one box.

    Raises:
        ProfileError: when there is none, since runs of other roles are evidence and no fit may use them.
    """
    runs = [run for file in files for run in file.run if run.hardware == hardware]
    found = [run for run in runs if run.role == "calibration" and run.timed]
    if not found:
        roles = ", ".join(sorted({run.role for run in runs}))
        given = f"runs of role {roles}" if runs else "no run of this box"
        raise ProfileError("measured runs", "role", given, f'a run of role "calibration" on {hardware}')
    return found


def fit_runs(files: Sequence[Runs], hardware: HardwareProfile) -> RunFit:
    """Returns the launch time that calibration runs ask for, by least squares on log throughput, and what is left.

    Raises:
        ProfileError: when no run of the box has role calibration.
    """
    runs = calibration_runs(files, hardware.name)
    eager = [run for run in runs if not run.engine.cuda_graph]
    factor = _launch_factor(eager) if eager else 1.0
    figures, errors, excess = [], [], []
    for run in runs:
        prediction = predict_run(run, SEEDS, {"launch": factor})
        confidence = Confidence(prediction)
        for metric, measured in run.timed.items():
            figures.append(f"{run.id} {metric}")
            errors.append(math.log(fmean(prediction.over_seeds(metric)) / measured))
            excess.append(errors[-1] ** 2 - confidence.variance_of_constants(metric))
    left = math.sqrt(max(0.0, fmean(excess)))
    return RunFit(tuple(figures), factor, tuple(errors), left)


def _launch_factor(runs: Sequence[MeasuredRun]) -> float:
    from scipy.optimize import least_squares  # noqa: PLC0415 - 0.7 s of start-up that predictions do not need

    def residuals(log_factor: Sequence[float]) -> list[float]:
        scale = {"launch": math.exp(log_factor[0])}
        predictions = [predict_run(run, SEEDS, scale) for run in runs]
        return [
            math.log(fmean(prediction.over_seeds(metric)) / measured)
            for prediction, run in zip(predictions, runs, strict=True)
            for metric, measured in run.timed.items()
        ]

    bound = math.log(LARGEST_FACTOR)
    solution = least_squares(residuals, [0.0], bounds=(-bound, bound), diff_step=FIRST_STEP)
    return math.exp(float(solution.x[0]))
