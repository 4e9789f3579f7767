"""What only whole runs can tell: an engine's CPU times on a host, and the error that no constant explains."""

import math
from collections.abc import Mapping, Sequence
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
    factors: dict[str, dict[str, float]]
    """By engine, its CPU times that the runs tell: "launch" and "scheduler" → factor on the profile's."""
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
    """Returns the CPU times of each engine that calibration runs ask for, by least squares, and what is left.

    Kernel launches are told by runs without CUDA graphs, the scheduler's turn by runs with them: where the errors of
    all other constants leave its logarithm surer than it was.

    Raises:
        ProfileError: when no run of the box has role calibration.
    """
    runs = calibration_runs(files, hardware.name)
    factors: dict[str, dict[str, float]] = {}
    for engine in sorted({run.engine.name for run in runs}):
        own = [run for run in runs if run.engine.name == engine]
        eager, captured = ([run for run in own if run.engine.cuda_graph == graphs] for graphs in (False, True))
        launch = {"launch": _factor("launch", eager, {})} if eager else {}
        turn = {"scheduler": _factor("scheduler", captured, launch)} if _tells("scheduler", captured) else {}
        factors[engine] = launch | turn
    figures, errors, excess = [], [], []
    for run in runs:
        prediction = predict_run(run, SEEDS, factors[run.engine.name])
        confidence = Confidence(prediction)
        for metric, measured in run.timed.items():
            figures.append(f"{run.id} {metric}")
            errors.append(math.log(fmean(prediction.over_seeds(metric)) / measured))
            excess.append(errors[-1] ** 2 - confidence.variance_of_constants(metric))
    left = math.sqrt(max(0.0, fmean(excess)))
    return RunFit(tuple(figures), factors, tuple(errors), left)


def _tells(constant: str, runs: Sequence[MeasuredRun]) -> bool:
    """Whether runs say more of a group of constants than its standard deviation does."""
    information, std = 0.0, 0.0
    for run in runs:
        confidence = Confidence(predict_run(run, 1), arrivals=False)
        for item in (item for item in confidence.sensitivities if item.constant == constant):
            std = item.log_std
            others = {name: confidence.log_std(name) ** 2 - (item.of(name) * std) ** 2 for name in run.timed}
            information += sum(item.of(name) ** 2 / others[name] for name in run.timed)
    return information * std**2 > 1.0


def _factor(constant: str, runs: Sequence[MeasuredRun], given: Mapping[str, float]) -> float:
    from scipy.optimize import least_squares  # noqa: PLC0415 - 0.7 s of start-up that predictions do not need

    def residuals(log_factor: Sequence[float]) -> list[float]:
        scale = {**given, constant: math.exp(log_factor[0])}
        predictions = [predict_run(run, SEEDS, scale) for run in runs]
        return [
            math.log(fmean(prediction.over_seeds(metric)) / measured)
            for prediction, run in zip(predictions, runs, strict=True)
            for metric, measured in run.timed.items()
        ]

    bound = math.log(LARGEST_FACTOR)
    solution = least_squares(residuals, [0.0], bounds=(-bound, bound), diff_step=FIRST_STEP)
    return math.exp(float(solution.x[0]))
