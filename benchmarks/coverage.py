"""How often the 80 % interval holds what was measured, where nothing of the kind was measured before.

Every figure of the measured runs that ship is predicted. Its error is taken as a sum of normal parts (see
`pipesim.whole_runs`): one for each model family, GPU, engine, engine version, feature and source that figures share,
one for the run and one for the figure, beside what the constants' own errors make of it. The size of each part is the
mode of its posterior: the marginal likelihood of all errors together (a model of random effects, figures of one kind
correlated), times a weak prior, a scaled inverse chi-square worth `PRIOR_GROUPS` groups of the size in `PRIOR`, so
that few groups do not give zero.

* Leave one family out: parts are learned from the figures of all other families, nothing of the family counts as
  checked, and no box keeps the error of its own calibration runs. The interval is then held against the figures of the
  family. Constants are those that ship: the launch time of one box and the routing skew of Kimi K2.6 were fitted to
  its six calibration runs, which are learned from and judged by nowhere.
* Drift: the slope of errors over the releases between an engine and the measured kernels, by generalised least squares
  under the covariance of all parts. It moves no figure while its error is as large as it is.
* As shipped: parts learned from all figures, everything checked that a run was of.

Usage: python benchmarks/coverage.py [--write]      # --write puts the parts into pipesim/whole_runs.toml
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
from scipy.optimize import minimize

from pipesim.errors import UnpredictableRun
from pipesim.prediction import Prediction
from pipesim.runs import load_runs, predict_run
from pipesim.sensitivity import Confidence, Z
from pipesim.validation import ENOUGH_REQUESTS
from pipesim.whole_runs import DIMENSIONS, RELEASES, WholeRuns, kinds, model_family, releases_apart

SEEDS = 5
PRIOR = {
    "model": 0.10,
    "gpu": 0.10,
    "engine": 0.10,
    "version": 0.10,
    "feature": 0.10,
    "source": 0.10,
    "run": 0.10,
    "figure": 0.05,
    "ttft_source": 0.20,
    "ttft_run": 0.20,
    "datasheet": 0.35,
    "extrapolated": 0.35,
}
"""Log standard deviations. 10 %: what two builds of one engine on one box differ by at times; datasheet and
extrapolated: kernels reach half to nearly all of a quoted rate."""
PRIOR_GROUPS = 2.0
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class Figure:
    """One measured figure and its prediction."""

    id: str
    role: str
    metric: str
    measured: float
    prediction: Prediction
    confidence: Confidence
    source: str

    @property
    def family(self) -> str:
        """The model family that is left out together."""
        return model_family(self.prediction.deployment)

    @property
    def error(self) -> float:
        """By how much the run was faster than predicted, as a logarithm."""
        error = math.log(self.measured / fmean(self.prediction.over_seeds(self.metric)))
        return -error if self.metric in LATENCIES else error

    def loads(self) -> dict[tuple[str, str], float]:
        """What the parts of the error are multiplied by: by name of the part and of the group that shares its draw."""
        deployment = self.prediction.deployment
        box = deployment.hardware.name
        found = {(kind.dimension, kind.name): kind.weight for kind in kinds(deployment)}
        found |= {("source", f"{self.source} on {box}"): 1.0, ("run", self.id): 1.0}
        found |= {("figure", f"{self.id} {self.metric}"): 1.0}
        if self.metric == "ttft_s":
            found |= {("ttft_source", f"{self.source} on {box}"): 1.0, ("ttft_run", self.id): 1.0}
        found["datasheet", box] = self.prediction.basis["datasheet"]
        found["extrapolated", box] = self.prediction.extrapolated_fraction
        return found

    def constants(self) -> dict[tuple[str, str], float]:
        """The same for the box's constants, whose log standard deviations are known."""
        sign, gpu = -1.0 if self.metric in LATENCIES else 1.0, self.prediction.deployment.hardware.gpu.name
        return {(gpu, s.constant): sign * s.of(self.metric) * s.log_std for s in self.confidence.sensitivities}


def figures() -> list[Figure]:
    """Returns the figures of all runs that ship."""
    found = []
    for file in load_runs([]):
        for run in file.run:
            requests = run.workload.num_prompts or run.workload.waves * run.workload.concurrency
            try:
                prediction = predict_run(run, min(SEEDS, max(2, ENOUGH_REQUESTS // requests)))
            except UnpredictableRun as error:
                print(f"{run.id}: {error.reason}", file=sys.stderr)
                continue
            confidence = Confidence(prediction)
            for metric, value in run.timed.items():
                found.append(Figure(run.id, run.role_of(metric), metric, value, prediction, confidence, run.source))
    return found


def _together(loads: Sequence[dict[tuple[str, str], float]], wanted: Callable[[tuple[str, str]], bool]) -> Floats:
    """Returns the sum over groups of the outer products of their loads."""
    groups = sorted({key for load in loads for key in load if wanted(key)})
    matrix = np.array([[load.get(group, 0.0) for group in groups] for load in loads])
    return matrix @ matrix.T if groups else np.zeros((len(loads), len(loads)))


def learn(rows: Sequence[Figure]) -> WholeRuns:
    """Returns the parts that make the errors of some figures likeliest, and what the figures cover."""
    errors, loads = np.array([row.error for row in rows]), [row.loads() for row in rows]
    shares = {part: _together(loads, lambda key, part=part: key[0] == part) for part in PRIOR}  # type: ignore[misc]
    seeds = np.diag([row.confidence.seed_variance(row.metric) for row in rows])
    fixed = _together([row.constants() for row in rows], lambda key: True) + seeds
    prior = np.array(list(PRIOR.values()))

    def badness(logs: Floats) -> float:
        variances = np.exp(2 * logs)
        covariance = fixed + sum(v * shares[part] for part, v in zip(PRIOR, variances, strict=True))
        factor = np.linalg.cholesky(covariance + 1e-8 * np.eye(len(rows)))
        white = np.linalg.solve(factor, errors)
        likelihood = np.log(np.diag(factor)).sum() + white @ white / 2
        return float(likelihood + PRIOR_GROUPS * np.sum(logs + prior**2 / variances / 2))

    starts = (np.log(factor * prior) for factor in (1.0, 0.5, 2.0))
    solutions = [minimize(badness, start, method="L-BFGS-B", bounds=[(-7.0, 1.0)] * len(prior)) for start in starts]
    solution = min(solutions, key=lambda found: round(found.fun, 6))
    checked: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for kind in kinds(row.prediction.deployment):
            checked[kind.dimension].add(kind.name)
    covered = {name: tuple(sorted(checked[name])) for name in DIMENSIONS if name != "version"}
    return WholeRuns(dict(zip(PRIOR, map(float, np.exp(solution.x)), strict=True)), covered)


def drift(rows: Sequence[Figure], runs: WholeRuns) -> tuple[float, float]:
    """Returns by how much (ln) engines `RELEASES` releases away are faster than predicted, and the standard error."""
    loads, errors = [row.loads() for row in rows], np.array([row.error for row in rows])
    apart = np.array([releases_apart(row.prediction.deployment) / RELEASES for row in rows])
    seeds = np.diag([row.confidence.seed_variance(row.metric) for row in rows])
    covariance = _together([row.constants() for row in rows], lambda key: True) + seeds
    for part in PRIOR:
        share = _together(loads, lambda key, part=part: key[0] == part)  # type: ignore[misc]
        covariance += runs.log_std[part] ** 2 * share
    weights = np.linalg.solve(covariance + 1e-8 * np.eye(len(rows)), apart)
    return float(weights @ errors / (weights @ apart)), float((weights @ apart) ** -0.5)


def _uncalibrated(prediction: Prediction) -> Prediction:
    """The same prediction for a box without the error of its own calibration runs."""
    deployment = prediction.deployment
    unsure = deployment.hardware.uncertainty.model_copy(update={"end_to_end": None})
    hardware = deployment.hardware.model_copy(update={"uncertainty": unsure})
    return replace(prediction, deployment=replace(deployment, hardware=hardware))


def half_width(row: Figure, runs: WholeRuns, left_out: bool) -> float:
    """Returns ln(upper end / middle) of a figure's interval."""
    prediction = _uncalibrated(row.prediction) if left_out else row.prediction
    return Z * Confidence(prediction, row.confidence.sensitivities, runs).log_std(row.metric)


def table(title: str, rows: Sequence[Figure], halves: Sequence[float]) -> None:
    """Prints coverage by family and over all."""
    print(f"\n{title}\n{'family':<34}{'figures':>8}{'covered':>9}{'half-width':>12}{'median error':>14}")
    families = sorted({row.family for row in rows})
    for family in [*families, "all"]:
        chosen = [(row, half) for row, half in zip(rows, halves, strict=True) if family in {row.family, "all"}]
        covered = fmean(abs(row.error) <= half for row, half in chosen)
        width = median(math.exp(half) - 1 for _, half in chosen)
        error = median(abs(math.expm1(-row.error)) for row, _ in chosen)
        print(f"{family:<34}{len(chosen):>8}{covered:>9.0%}{width:>12.0%}{error:>14.0%}")


def write(runs: WholeRuns, rows: Sequence[Figure]) -> None:
    """Writes what ships."""
    loads = [row.loads() for row in rows]
    groups = {part: len({key for load in loads for key, by in load.items() if key[0] == part and by}) for part in PRIOR}
    lines = [
        "# Written by `python benchmarks/coverage.py --write`, which says how. Log standard deviations of the parts of",
        f"# the error of whole runs, from {len(rows)} figures of {groups['run']} measured runs that ship, none of role",
        "# calibration. groups: between how many the part was told apart; prior: the size that two groups more have.",
    ]
    for part, std in runs.log_std.items():
        lines += ["", f"[part.{part}]", f"log_std = {std:.3f}", f"groups = {groups[part]}", f"prior = {PRIOR[part]}"]
    lines += ["", f"# ln of how much faster engines {RELEASES} releases from the measured kernels were than predicted."]
    lines += ["[drift]", f"mean = {runs.drift[0]:.3f}", f"error = {runs.drift[1]:.3f}"]
    lines += ["", "# Kinds that a measured run was of.", "[checked]"]
    for name, kinds_of in runs.checked.items():
        lines += [f"{name} = [", *(f'  "{kind}",' for kind in kinds_of), "]"]
    path = Path(__file__).resolve().parent.parent / "pipesim" / "whole_runs.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Prints the tables."""
    everything = figures()
    rows = [row for row in everything if row.role != "calibration"]
    judged = []
    for family in sorted({row.family for row in rows}):
        runs = learn([row for row in rows if row.family != family])
        judged += [(row, half_width(row, runs, left_out=True)) for row in rows if row.family == family]
    table("leave one family out", *zip(*judged, strict=True))
    shipped = learn(rows)
    shipped = replace(shipped, drift=drift(rows, shipped))
    print("drift per {} releases: {:+.3f} ± {:.3f}".format(RELEASES, *shipped.drift))
    table("as shipped", rows, [half_width(row, shipped, left_out=False) for row in rows])
    k26 = [row for row in rows if row.prediction.deployment.model.name == "kimi-k2.6" and row.role == "validation"]
    table("Kimi K2.6, validation rows, as shipped", k26, [half_width(row, shipped, left_out=False) for row in k26])
    print("\npart of the error  log std    prior")
    for part, std in shipped.log_std.items():
        print(f"{part:<17}{std:>9.3f}{PRIOR[part]:>9.2f}")
    if "--rows" in sys.argv:
        for row, half in judged:
            inside = "in" if abs(row.error) <= half else "OUT"
            print(f"{row.id:<22}{row.metric:<21}{-row.error:>+8.2f}{half:>7.2f} {inside}")
    if "--write" in sys.argv:
        write(shipped, rows)


if __name__ == "__main__":
    main()
