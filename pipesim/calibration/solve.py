"""Least squares on log time, and the errors of a fit on sizes that it has not seen."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pipesim.calibration.cases import Array

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
Predict = Callable[[Mask, Mask], Array]
"""Rows to fit, rows to predict: the predicted seconds of the latter."""

REFIT = 1e-5
"""Tolerance of fits that only predict sizes left out."""
UNTOLD = 1.0
"""Variance of a logarithm above which the cases say nothing about a constant: it is then kept fixed."""
PRIOR_WEIGHT = 0.05
"""What a constant a factor e off its usual value costs, in units of a row's log error: as one row 5 % off.

Next to nothing where hundreds of rows tell a constant; where none does, it decides, and every machine finds the same.
"""
FLAT = 1e-4
"""Singular value of the Jacobian, columns normalised, over the largest, below which a direction is not measured.

Seen: 1e-10 for the two constants of a class whose rows lie on one side of the ridge, 0.09 and more elsewhere.
"""
FLAT_SHARE = 0.1
"""Share in such a direction above which a constant is untold."""
EQUAL = 1e-9
"""Relative difference of costs below which two minima are one, and the earlier start is taken."""
DIGITS = 4
"""Significant digits of a constant in a profile."""


class Band(NamedTuple):
    """The error over the sizes from one bound to the next."""

    smallest: float
    rows: int
    mean: float
    """Mean absolute relative error."""
    bias: float
    """Mean relative error: above zero where the fit is slower than measured."""


class Errors(NamedTuple):
    """Relative errors of a fit against measured times, as fractions."""

    mean: float
    """Mean absolute error over the rows of the fit."""
    bands: tuple[Band, ...]
    held_out: float
    """The same over every second size, predicted by a fit to the others."""
    one_out: float
    """The same over all sizes, each predicted by a fit to all others."""


class Solution(NamedTuple):
    """A minimum in the logarithms of the constants, and their covariance; 0 for a constant at a bound or untold.

    Untold are constants that the prior alone decides, since only a combination of them shows in the measured times.
    """

    x: Array
    covariance: Matrix
    cost: float


def least_squares(
    residuals: Callable[[Array], Array], starts: Sequence[Array], low: Array, high: Array, tolerance: float = 1e-8
) -> Solution:
    """Returns the best minimum from several starts, the first of equals; residuals and constants are logarithms.

    A weak prior holds every constant near its value in the first start.
    """
    from scipy import optimize  # noqa: PLC0415 - slow to import

    usual = np.clip(starts[0], low, high)

    def with_prior(x: Array) -> Array:
        return np.concatenate([residuals(x), PRIOR_WEIGHT * (x - usual)])

    found = [
        optimize.least_squares(
            with_prior, np.clip(x, low + 1e-6, high - 1e-6), bounds=(low, high), ftol=tolerance, xtol=tolerance
        )
        for x in starts
    ]
    least = min(float(result.cost) for result in found)
    best = next(result for result in found if float(result.cost) <= least * (1.0 + EQUAL))
    jacobian = best.jac[: -len(low)]
    free = (best.x - low > 1e-3) & (high - best.x > 1e-3)
    free[free] = _told(jacobian[:, free])
    variance = 2.0 * best.cost / max(1, len(jacobian) - int(free.sum()))
    covariance = _covariance(jacobian, free, variance)
    told = np.diag(covariance) <= UNTOLD
    covariance = covariance if told.all() else _covariance(jacobian, free & told, variance)
    return Solution(best.x, covariance, float(best.cost))


def _told(jacobian: Matrix) -> Mask:
    """Whether the rows tell each constant from the others: it has no part in a direction that changes no time."""
    norms = np.linalg.norm(jacobian, axis=0)
    if not len(norms):
        return np.ones(0, dtype=bool)
    _, sizes, directions = np.linalg.svd(jacobian / np.where(norms > 0.0, norms, 1.0), full_matrices=False)
    flat = directions[sizes < FLAT * sizes[0]]
    told: Mask = (norms > 0.0) & ~(np.abs(flat) > FLAT_SHARE).any(axis=0)
    return told


def errors_of(sizes: Array, seconds: Array, predicted: Array, bands: Sequence[float], predict: Predict) -> Errors:
    """Returns the errors of a fit: in all, by band of size, and on sizes left out of it."""
    relative = predicted / seconds - 1.0
    ends = [*bands[1:], float("inf")]
    found = []
    for start, end in zip(bands, ends, strict=True):
        inside = relative[(sizes >= start) & (sizes < end)]
        if len(inside):
            found.append(Band(start, len(inside), float(np.abs(inside).mean()), float(inside.mean())))
    different = np.unique(sizes)
    half = np.isin(sizes, different[1::2])
    held_out = _mean(predict(~half, half), seconds[half])
    missed = np.zeros(len(sizes))
    for size in different:
        left = sizes == size
        missed[left] = np.abs(predict(~left, left) / seconds[left] - 1.0)
    return Errors(float(np.abs(relative).mean()), tuple(found), held_out, float(missed.mean()))


def _covariance(jacobian: Matrix, free: Mask, variance: float) -> Matrix:
    covariance = np.zeros((len(free), len(free)))
    part = jacobian[:, free]
    covariance[np.ix_(free, free)] = np.linalg.inv(part.T @ part) * variance
    return covariance


def log_std(names: Sequence[str], covariance: Matrix) -> dict[str, float]:
    """Returns the standard error of the logarithm of each constant that is not at a bound."""
    return {name: rounded(float(v) ** 0.5, 2) for name, v in zip(names, np.diag(covariance), strict=True) if v > 0}


def rounded(value: float, digits: int = DIGITS) -> float:
    """Returns a number as it will stand in a file."""
    return float(f"{value:.{digits}g}")


def _mean(predicted: Array, seconds: Array) -> float:
    return float(np.abs(predicted / seconds - 1.0).mean()) if len(seconds) else float("nan")
