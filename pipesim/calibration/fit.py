"""The constants of a class of kernels, fitted to its measured cases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipesim.calibration.cases import BLANK, Array, Cases
from pipesim.calibration.solve import REFIT, Errors, Mask, Matrix, Solution, errors_of, least_squares, log_std, rounded
from pipesim.profiles.hardware import Efficiency, Gpu

LOWEST = {"compute": 1e-3, "memory": 0.02, "overlap": 1e-3, "floor": 1e-7, "split_token": 1e-12}
HIGHEST = {"compute": 1.0, "memory": 1.0, "overlap": 1.0, "floor": 1e-3, "split_token": 1e-5}
STARTS = (
    {"compute": 0.6, "memory": 0.8, "overlap": 0.8, "floor": 10e-6, "split_token": 2e-8},
    {"compute": 0.15, "memory": 0.8, "overlap": 0.3, "floor": 15e-6, "split_token": 6e-8},
    {"compute": 0.1, "memory": 0.8, "overlap": 0.85, "floor": 10e-6, "split_token": 6e-8},
)
"""The first holds the usual values, which decide where rows do not."""


@dataclass(frozen=True)
class KernelFit:
    """The fitted constants of one class of kernels."""

    cases: Cases
    constants: dict[str, float]
    """Fields of Efficiency, fitted and fixed, in SI units."""
    names: tuple[str, ...]
    """The fitted ones, in the order of `covariance`."""
    covariance: Matrix
    """Of the logarithms of the fitted constants."""
    errors: Errors
    note: str = ""
    """What else a reader has to know."""

    @property
    def name(self) -> str:
        """Key of the hardware profile's efficiency table."""
        return self.cases.kernel

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader of the constants has to know beside their errors."""
        told = log_std(self.names, self.covariance)
        untold = ", ".join(name for name in self.names if name not in told)
        parts = (self.note, untold and f"at a bound, or not told apart by the rows: {untold}")
        return tuple(filter(None, parts))

    def efficiency(self, source: str) -> Efficiency:
        """Returns the entry of a hardware profile."""
        seconds = self.cases.seconds
        return BLANK.model_copy(
            update={
                **self.constants,
                "rate": self.cases.rate,
                "measured_seconds": (rounded(float(seconds.min()), 3), rounded(float(seconds.max()), 3)),
                "fit_error": rounded(min(self.errors.mean, 1.0), 2),
                "log_std": log_std(self.names, self.covariance),
                "source": source,
            }
        )


def fit_kernel(candidates: Sequence[Cases], gpu: Gpu) -> KernelFit:
    """Returns the fit of the candidate forms that comes nearest to the measured times."""
    solved = [(cases, _solve(cases, gpu, [_start(cases, start) for start in STARTS])) for cases in candidates]
    cases, best = min(solved, key=lambda pair: pair[1].cost)
    constants = _constants(cases, best.x)

    def predict(kept: Mask, left: Mask) -> Array:
        part = _solve(select(cases, kept), gpu, [best.x], REFIT)
        return kernel_seconds(select(cases, left), gpu, _constants(cases, part.x))

    predicted = kernel_seconds(cases, gpu, constants)
    errors = errors_of(cases.sizes, cases.seconds, predicted, cases.bands, predict)
    return KernelFit(cases, constants, fitted_names(cases), best.covariance, errors)


def with_memory(fit: KernelFit, gpu: Gpu, memory: float, note: str) -> KernelFit:
    """Returns a fit with another memory efficiency, its errors taken anew; held-out ones are those of the fit."""
    constants = {**fit.constants, "memory": memory}
    cases = fit.cases
    predicted = kernel_seconds(cases, gpu, constants)

    def same(kept: Mask, left: Mask) -> Array:
        return kernel_seconds(select(cases, left), gpu, constants)

    errors = errors_of(cases.sizes, cases.seconds, predicted, cases.bands, same)
    covariance = fit.covariance.copy()
    place = fit.names.index("memory")
    covariance[place, :] = covariance[:, place] = 0.0
    return replace(fit, constants=constants, covariance=covariance, errors=errors, note=note)


def kernel_seconds(cases: Cases, gpu: Gpu, constants: dict[str, float]) -> Array:
    """Returns the times [s] of many kernels at once: `CostModel.price` for arrays (a test proves them equal)."""
    bandwidth = gpu.memory_bandwidth * constants["memory"]
    compute = cases.flops / (gpu.tensor_rate[cases.rate] * constants["compute"])
    memory = cases.bytes / bandwidth
    parallel = np.maximum(compute, memory) + (1.0 - constants["overlap"]) * np.minimum(compute, memory)
    parallel = parallel + cases.serial_bytes / bandwidth
    sequential = constants.get("split_token", 0.0) * cases.split_tokens
    exposed = (1.0 - cases.form.get("split_overlap", 1.0)) * np.minimum(parallel, sequential)
    total: Array = constants["floor"] + np.maximum(parallel, sequential) + exposed
    return total


def fitted_names(cases: Cases) -> tuple[str, ...]:
    """Returns the constants that are fitted for a class."""
    left_out = {"split_token"} if not cases.split_tokens.any() else set()
    return tuple(name for name in LOWEST if name not in left_out | ({"floor"} if cases.known_floor else set()))


def _constants(cases: Cases, x: Array) -> dict[str, float]:
    fitted = {name: rounded(float(np.exp(value))) for name, value in zip(fitted_names(cases), x, strict=True)}
    known = {"floor": cases.known_floor} if cases.known_floor else {}
    return {**fitted, **known, **cases.form}


def _start(cases: Cases, start: dict[str, float]) -> Array:
    return np.log([start[name] for name in fitted_names(cases)])


def _solve(cases: Cases, gpu: Gpu, starts: Sequence[Array], tolerance: float = 1e-8) -> Solution:
    names = fitted_names(cases)
    known = {"floor": cases.known_floor} if cases.known_floor else {}
    measured = np.log(cases.seconds)

    def residuals(x: Array) -> Array:
        constants = {**dict(zip(names, np.exp(x), strict=True)), **known}
        difference: Array = np.log(kernel_seconds(cases, gpu, constants)) - measured
        return difference

    high = {**HIGHEST, "memory": cases.ceiling if cases.ceiling > 1.0 else min(cases.ceiling, gpu.most_memory)}
    return least_squares(
        residuals, starts, np.log([LOWEST[name] for name in names]), np.log([high[name] for name in names]), tolerance
    )


def select(cases: Cases, rows: Mask) -> Cases:
    """Returns some of the cases."""
    return replace(
        cases,
        flops=cases.flops[rows],
        bytes=cases.bytes[rows],
        serial_bytes=cases.serial_bytes[rows],
        split_tokens=cases.split_tokens[rows],
        seconds=cases.seconds[rows],
        sizes=cases.sizes[rows],
    )
