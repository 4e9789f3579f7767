"""Constants of a box from files that were measured on it: nccl-tests output and runs of role calibration."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from pipesim.calibration.curves import CurveFit, fit_curve
from pipesim.calibration.runs import RunFit
from pipesim.errors import ProfileError
from pipesim.importers.nccl_tests import CollectiveMeasurement, read_nccl_tests
from pipesim.profiles.hardware import CollectiveOp

WIDTH = 80


@dataclass(frozen=True)
class MeasuredCurves:
    """Curves of a box from nccl-tests, and the collectives in the files that no price needs."""

    fits: tuple[CurveFit, ...]
    left_out: tuple[str, ...]


def curves_from_nccl_tests(paths: Sequence[Path]) -> MeasuredCurves:
    """Returns one curve per collective and number of ranks in some nccl-tests files, out of place.

    nccl-tests launches back to back, so that the CPU's launch hides: the curve is that of a captured launch.

    Raises:
        ProfileError: for a file that cannot be used, or two that measure the same.
    """
    fits: dict[tuple[str, int], CurveFit] = {}
    left_out = []
    for path in paths:
        for measurement in read_nccl_tests(path):
            if measurement.op not in get_args(CollectiveOp):
                left_out.append(f"{path.name}: {measurement.op} over {measurement.ranks} ranks")
                continue
            key = (measurement.op, measurement.ranks)
            if key in fits:
                given = f"{measurement.op} over {measurement.ranks} ranks a second time"
                raise ProfileError(path, "", given, "each collective and number of ranks once")
            fits[key] = _fit(path, measurement)
    return MeasuredCurves(tuple(fits.values()), tuple(left_out))


def _fit(path: Path, measurement: CollectiveMeasurement) -> CurveFit:
    op: CollectiveOp = "all_reduce" if measurement.op == "all_reduce" else "all_gather"
    fit = fit_curve(op, measurement.ranks, "graph", "nccl", measurement.points)
    return replace(fit, origin=f"{_tool(measurement.version)}, {path.name}")


def _tool(version: str) -> str:
    return version if version.startswith("nccl-tests") else f"nccl-tests {version}".strip()


def measured_curves_text(curves: MeasuredCurves) -> str:
    """Returns the report of curves from files."""
    lines = [f"{'collective from nccl-tests':<34}{'sizes':>7}{'mean':>8}{'held-out':>11}{'left out':>11}"]
    for fit in curves.fits:
        errors = fit.errors
        figures = f"{errors.mean:>8.1%}{errors.held_out:>11.1%}{errors.one_out:>11.1%}"
        lines.append(f"{fit.name:<34}{fit.points:>7}{figures}")
    lines += [line for text in curves.left_out for line in textwrap.wrap(f"not needed: {text}", WIDTH)]
    return "\n".join(lines)


def run_fit_text(fit: RunFit, eager_launch: float) -> str:
    """Returns the report of a fit to whole runs."""
    lines = [f"{'calibration run':<34}{'ln(predicted / measured)':>26}"]
    lines += [f"{name:<34}{error:>+26.3f}" for name, error in zip(fit.runs, fit.log_errors, strict=True)]
    lines.append(f"eager_launch {eager_launch * 1e6:.3g} us -> {eager_launch * fit.launch_factor * 1e6:.3g} us")
    lines.append(f"error beyond that of the constants: {fit.excess_std:.1%}")
    return "\n".join(lines)
