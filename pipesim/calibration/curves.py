"""The curve of a collective through measured points: the smaller or the larger of straight lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pipesim.calibration.cases import Array
from pipesim.calibration.solve import REFIT, Errors, Mask, Matrix, Solution, errors_of, least_squares, log_std, rounded
from pipesim.errors import UsageError
from pipesim.importers.kernel_tables import CollectiveRow, Table
from pipesim.profiles.hardware import CollectiveCurve, CollectiveOp, Implementation, LaunchMode, Line

Shape = Literal["min", "max"]
FEWEST_SIZES = 4
GOOD_ENOUGH = 0.04
"""Error on sizes left out below which a third line is not tried."""
BYTE_BANDS = (1.0, 2.0**15, 2.0**20)
"""Up to 32 KiB, up to 1 MiB, above."""
LOWEST_LATENCY, HIGHEST_LATENCY = 1e-9, 0.1
LOWEST_BANDWIDTH, HIGHEST_BANDWIDTH = 1e6, 1e13


@dataclass(frozen=True)
class CurveFit:
    """The fitted curve of one collective."""

    curve: CollectiveCurve
    table: Table | None
    points: int
    covariance: Matrix
    """Of the logarithms of latency and bandwidth of each line in turn."""
    errors: Errors
    origin: str = ""
    """The file it was measured in on the box itself, where it comes from no table."""

    @property
    def name(self) -> str:
        """What it is a curve of."""
        curve = self.curve
        return f"{curve.op} {curve.ranks} {curve.launch} {curve.implementation}"


class _Lines(NamedTuple):
    shape: Shape
    solution: Solution
    errors: Errors


def curve_from_points(
    op: CollectiveOp,
    ranks: int,
    launch: LaunchMode,
    implementation: Implementation,
    points: Sequence[tuple[float, float]],
    source: str,
) -> CollectiveCurve:
    """Returns the curve through measured (bytes, seconds) points.

    Raises:
        UsageError: with fewer than four different sizes, or a size or a time that is not positive.
    """
    fit = fit_curve(op, ranks, launch, implementation, points)
    return fit.curve.model_copy(update={"source": source})


def fit_curve(
    op: CollectiveOp,
    ranks: int,
    launch: LaunchMode,
    implementation: Implementation,
    points: Sequence[tuple[float, float]],
    table: Table | None = None,
) -> CurveFit:
    """Returns the curve of two lines, the smaller or the larger of them, whichever comes nearer.

    Three lines where that takes a third off the error on sizes left out, both ways of leaving out agreeing.

    Raises:
        UsageError: as `curve_from_points`.
    """
    ordered = np.array(sorted(points), dtype=np.float64).reshape(-1, 2)
    if len(set(ordered[:, 0])) < FEWEST_SIZES or not (ordered > 0).all():
        wanted = f"(bytes, seconds) above zero at {FEWEST_SIZES} different sizes or more"
        raise UsageError("points", [tuple(point) for point in points][:FEWEST_SIZES], wanted)
    ordered = _without_spikes(ordered)
    best = _fit_lines(ordered, 2)
    if len(ordered) >= 3 * FEWEST_SIZES and best.errors.one_out > GOOD_ENOUGH:
        three = _fit_lines(ordered, 3)
        better = (three.errors.held_out / best.errors.held_out, three.errors.one_out / best.errors.one_out)
        best = three if max(better) < 2 / 3 else best
    curve = _curve(op, ranks, launch, implementation, best).model_copy(
        update={"measured_bytes": (float(ordered[0, 0]), float(ordered[-1, 0]))}
    )
    return CurveFit(curve, table, len(ordered), best.solution.covariance, best.errors)


def fit_collectives(table: Table, rows: Sequence[CollectiveRow], implementation: Implementation) -> list[CurveFit]:
    """Returns one curve per collective, number of ranks and launch mode of a table."""
    groups: dict[tuple[CollectiveOp, int, LaunchMode], list[tuple[float, float]]] = {}
    for row in rows:
        groups.setdefault((row.op, row.ranks, row.launch), []).append((row.bytes, row.seconds))
    return [fit_curve(*key, implementation, points, table) for key, points in sorted(groups.items())]


def _without_spikes(points: Matrix) -> Matrix:
    """Sets points aside that take more than twice as long as the next larger message: a disturbed measurement."""
    later = np.append(points[1:, 1], np.inf)
    return points[points[:, 1] <= 2.0 * later]


SHAPES: tuple[Shape, ...] = ("min", "max")


def _curve(
    op: CollectiveOp, ranks: int, launch: LaunchMode, implementation: Implementation, fit: _Lines
) -> CollectiveCurve:
    values = [rounded(float(value)) for value in np.exp(fit.solution.x)]
    names = [f"{part}_{line}" for line in range(len(values) // 2) for part in ("latency", "bandwidth")]
    lines = zip(values[::2], values[1::2], strict=True)
    return CollectiveCurve.model_construct(
        op=op,
        ranks=ranks,
        launch=launch,
        implementation=implementation,
        shape=fit.shape,
        lines=tuple(Line.model_construct(latency=latency, bandwidth=bandwidth) for latency, bandwidth in lines),
        measured_bytes=(0.0, 0.0),
        fit_error=rounded(min(fit.errors.mean, 1.0), 2),
        log_std=log_std(names, fit.solution.covariance),
        source="",
    )


def _fit_lines(points: Matrix, count: int) -> _Lines:
    size, seconds = points[:, 0], points[:, 1]
    solved = [(shape, _solve(size, seconds, shape, _starts(size, seconds, shape, count))) for shape in SHAPES]
    shape, solution = min(solved, key=lambda pair: pair[1].cost)

    def predict(kept: Mask, left: Mask) -> Array:
        x = _solve(size[kept], seconds[kept], shape, [solution.x], REFIT).x
        return _line_seconds(size[left], x, shape)

    predicted = _line_seconds(size, solution.x, shape)
    return _Lines(shape, solution, errors_of(size, seconds, predicted, BYTE_BANDS, predict))


def _line_seconds(size: Array, x: Array, shape: Shape) -> Array:
    values = np.exp(x)
    times = values[::2, None] + size[None, :] / values[1::2, None]
    picked: Array = times.max(axis=0) if shape == "max" else times.min(axis=0)
    return picked


def _solve(size: Array, seconds: Array, shape: Shape, starts: Sequence[Array], tolerance: float = 1e-8) -> Solution:
    lines = len(starts[0]) // 2
    low = np.log([LOWEST_LATENCY, LOWEST_BANDWIDTH] * lines)
    high = np.log([HIGHEST_LATENCY, HIGHEST_BANDWIDTH] * lines)
    measured = np.log(seconds)

    def residuals(x: Array) -> Array:
        difference: Array = np.log(_line_seconds(size, x, shape)) - measured
        return difference

    return least_squares(residuals, starts, low, high, tolerance)


def _starts(size: Array, seconds: Array, shape: Shape, count: int) -> list[Array]:
    """Lines through parts of the points: slow and soon first for the smaller of lines, flat and late for the larger."""
    floor, rate = float(seconds.min()), float(size[-1] / seconds[-1])
    starts = []
    for near in (0.2, 0.5, 1.0):
        for far in (1.5, 4.0):
            if shape == "min":
                lines = [(floor * far**i, rate * near ** (count - 1 - i)) for i in range(count)]
            else:
                lines = [(floor * (near / far) ** i, rate * (4.0 / near) ** (count - 1 - i)) for i in range(count)]
            starts.append(np.log([value for line in lines for value in line]))
    return starts
