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
from pipesim.profiles.hardware import CollectiveOp, HardwareProfile

WIDTH = 80


@dataclass(frozen=True)
class MeasuredCurves:
    """Curves of a box from nccl-tests, and the collectives in the files that no price needs."""

    fits: tuple[CurveFit, ...]
    left_out: tuple[str, ...]


def curves_from_nccl_tests(paths: Sequence[Path], box: HardwareProfile) -> MeasuredCurves:
    """Returns one curve per collective and number of ranks in some nccl-tests files, out of place.

    nccl-tests launches back to back, so that the CPU's launch hides: the curve is that of a captured launch. Where the
    box has another for launches from Python, that is replaced too: by the same lines, none sooner than the old one's
    start, which is the launch and not the link.

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
    eager = [_eager(fit, box) for fit in fits.values()]
    return MeasuredCurves((*fits.values(), *filter(None, eager)), tuple(left_out))


def _fit(path: Path, measurement: CollectiveMeasurement) -> CurveFit:
    op: CollectiveOp = "all_reduce" if measurement.op == "all_reduce" else "all_gather"
    fit = fit_curve(op, measurement.ranks, "graph", "nccl", measurement.points)
    curve = fit.curve.model_copy(update={"own": True})
    return replace(fit, curve=curve, origin=f"{_tool(measurement.version)}, {path.name}")


def _eager(fit: CurveFit, box: HardwareProfile) -> CurveFit | None:
    """Returns a measured curve as launched from Python, where the box has one so launched."""
    key = (fit.curve.op, fit.curve.ranks, "eager", "nccl")
    old = next((c for c in box.collectives if (c.op, c.ranks, c.launch, c.implementation) == key), None)
    if old is None:
        return None
    start = min(line.latency for line in old.lines)
    lines = tuple(line.model_copy(update={"latency": max(line.latency, start)}) for line in fit.curve.lines)
    return replace(fit, curve=fit.curve.model_copy(update={"launch": "eager", "lines": lines}))


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


def run_fit_text(fit: RunFit) -> str:
    """Returns the report of a fit to whole runs."""
    lines = [f"{'calibration run and metric':<40}{'ln(predicted / measured)':>26}"]
    lines += [f"{name:<40}{error:>+26.3f}" for name, error in zip(fit.figures, fit.log_errors, strict=True)]
    for engine, factors in fit.factors.items():
        lines += [f"host.engines.{engine}.{name}: {factor:.3g} times as long" for name, factor in factors.items()]
    lines.append(f"error beyond that of the constants: {fit.excess_std:.1%}")
    return "\n".join(lines)
