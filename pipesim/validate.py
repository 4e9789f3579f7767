"""Are we right? Predictions beside measured runs, each with its tolerance."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pipesim.deployment import EngineSettings, ParallelPlan
from pipesim.errors import ProfileError
from pipesim.measured import MeasuredRun, Role, Runs
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.store import available, load_hardware, load_model, read_toml, validated
from pipesim.workload import Workload

SEEDS = 20
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


@dataclass(frozen=True)
class Comparison:
    """One measured figure and the prediction of it."""

    id: str
    metric: str
    measured: float
    predicted: float
    interval: tuple[float, float]
    tolerance: float
    role: Role

    @property
    def relative_error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def ok(self) -> bool:
        """Within tolerance; a run that is only reported cannot fail."""
        return self.role == "reported" or abs(self.relative_error) <= self.tolerance


@dataclass(frozen=True)
class Validation:
    """All comparisons of one or more files of measured runs."""

    rows: tuple[Comparison, ...]
    assumptions: tuple[str, ...]

    @property
    def judged(self) -> list[Comparison]:
        """The rows that are evidence: not used for calibration, conditions known."""
        return [row for row in self.rows if row.role == "validation"]

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


def load_runs(paths: Iterable[Path]) -> list[Runs]:
    """Returns the measured runs of some files, of all that ship if none is named. Raises ProfileError."""
    files = list(paths) or list(available("runs").values())
    for path in files:
        if not path.is_file():
            raise ProfileError(path, "", "no such file", "a file of measured runs in TOML")
    return [validated(Runs, read_toml(path), path) for path in files]


def validate(files: Iterable[Runs], seeds: int = SEEDS, progress: Callable[[str], None] = lambda _: None) -> Validation:
    """Returns the comparison of every measured figure with its prediction, the mean over `seeds` seeds."""
    rows: list[Comparison] = []
    assumptions = []
    for file in files:
        if file.assumption:
            assumptions.append(file.assumption)
        for run in file.run:
            progress(run.id)
            rows += compare(run, seeds)
    return Validation(tuple(rows), tuple(assumptions))


def compare(run: MeasuredRun, seeds: int) -> list[Comparison]:
    """Returns the comparison of each figure of one run."""
    prediction = predict_run(run, seeds)
    return [
        Comparison(
            id=run.id,
            metric=metric,
            measured=value,
            predicted=prediction.latency(metric).mean if metric in LATENCIES else prediction.mean(metric),
            interval=prediction.interval(metric) if metric not in LATENCIES else (0.0, 0.0),
            tolerance=run.tolerance.get(metric, 0.0),
            role=run.role,
        )
        for metric, value in run.measured.items()
    ]


def predict_run(run: MeasuredRun, seeds: int) -> Prediction:
    """Returns the prediction of one run under the conditions it states or assumes."""
    load = run.workload
    workload = Workload(
        concurrency=load.concurrency,
        num_prompts=load.num_prompts or load.waves * load.concurrency,
        input_len=load.input_len,
        output_len=load.output_len,
        random_range_ratio=load.random_range_ratio,
        context_len=load.context_len,
        request_rate=load.request_rate,
    )
    deployment = deploy(
        load_model(run.model),
        load_hardware(run.hardware),
        ParallelPlan(run.plan.tp, run.plan.pp, run.plan.layer_partition),
        EngineSettings(**run.engine.model_dump()),
    )
    return Predictor(deployment).predict(workload, seeds)
