"""Answers as the Python API gives them: those of the core, which show themselves in a notebook and tabulate themselves.

`to_records()` of each is a list of NamedTuples, which pandas.DataFrame and polars.DataFrame take as they are. Names and
units are those of the JSON that the command line prints.
"""

from collections import namedtuple
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from pipesim import html, prediction, report, validation, validation_report, whatif
from pipesim.calibration.apply import Calibration as Calibrated
from pipesim.metrics import Latency
from pipesim.plan_report import plan_json
from pipesim.planning.question import Job
from pipesim.planning.search import PlanSearch
from pipesim.prediction import Predictor
from pipesim.reasons import binding_limit, notes
from pipesim.sensitivity import Confidence
from pipesim.sweeping.rows import METRICS
from pipesim.tables import Table
from pipesim.timeline import Timeline

SHOWN_ROWS = 20
UNNAMED = {"deployment", "metrics", "settings"}
"""Parts of the JSON whose names need no other before them in a table."""

Answer = TypeVar("Answer")
Records = list[NamedTuple]


def shown(kind: type[Answer], answer: Any, **further: Any) -> Answer:
    """Returns an answer of the core as the class of this module that extends its own."""
    return kind(**{field.name: getattr(answer, field.name) for field in fields(answer)}, **further)


def records(name: str, rows: Sequence[Mapping[str, Any]]) -> Records:
    """Returns rows of equal keys as NamedTuples; an interval becomes two columns, a list a text."""
    flat = [dict(_flat(row)) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    record = _record(name, columns)
    return [record(*(row.get(column) for column in columns)) for row in flat]


def _record(name: str, columns: Sequence[str]) -> Any:
    """Returns a class of NamedTuples whose columns are known only now."""
    return namedtuple(name, columns)


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if key == "interval":
            pairs = value if isinstance(value, Mapping) else {"": value}
            for metric, ends in pairs.items():
                if metric != "level":
                    stem = f"{metric}_" if metric else ""
                    yield from zip((f"{stem}low", f"{stem}high"), ends or (None, None), strict=True)
        elif isinstance(value, Mapping):
            yield from _nested(key, value)
        elif isinstance(value, list | tuple):
            yield key, ",".join(map(str, value))
        else:
            yield key, value


def _nested(key: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the columns of a part of a row; those of a latency have the names that they have in a sweep."""
    if set(value) == set(Latency._fields):
        yield from ((f"{key.removesuffix('_s')}_{kind}_s", seconds) for kind, seconds in value.items())
        return
    stem = "" if key in UNNAMED else f"{key}_"
    yield from ((stem + name, part) for name, part in _flat(value))


@dataclass(frozen=True, repr=False)
class Prediction(prediction.Prediction):
    """What pipesim says of one deployment under one load."""

    assumed: tuple[str, ...] = ()
    """In words, what was not said and is assumed."""

    def __repr__(self) -> str:
        low, high = self.interval("output_tokens_per_s")
        name = f"{self.deployment.model.name} on {self.deployment.hardware.name}, {self.deployment.plan}"
        rate = self.mean("output_tokens_per_s")
        return f"<Prediction {name}, {self.deployment.engine.name}: {rate:,.1f} tok/s ({low:,.1f} to {high:,.1f})>"

    def _repr_html_(self) -> str:
        return html.prediction_html(self, self.assumed)

    @cached_property
    def _confidence(self) -> Confidence:
        return Confidence(self)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens per second of the whole deployment, mean over seeds."""
        return self.mean("output_tokens_per_s")

    def interval(self, metric: str) -> tuple[float, float]:
        """Returns the 80 % interval of the mean of a metric, such as "output_tokens_per_s" or "ttft_s"."""
        return self._confidence.interval(metric)

    @property
    def binding_limit(self) -> str:
        """In words, what holds the deployment back."""
        return binding_limit(self)

    @property
    def notes(self) -> list[str]:
        """In words, what a reader of the numbers has to know."""
        return notes(self)

    def timeline(self, seed: int = 0) -> Timeline:
        """Returns one run, for pictures: which micro-batch was on which stage when."""
        return Predictor(self.deployment).simulate(self.workload, seed, self.detail)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `pipesim predict --json` prints."""
        return report.predict_json(self)

    def to_records(self) -> Records:
        """Returns one record: deployment, load, the metrics under the names of a sweep, and shares of GPU time."""
        row = report.deployment_json(self.deployment) | report.workload_json(self.workload)
        row |= {"gpus": self.deployment.plan.gpus, "kv_capacity_tokens": self.kv_capacity_tokens}
        row |= report.metrics_json(self)
        row |= {f"{name}_fraction": share for name, share in self.breakdown.items() if name != "bubble"}
        interval = {"output_tokens_per_s": self.interval("output_tokens_per_s")}
        return records("PredictionRecord", [row | {"interval": interval}])


@dataclass(frozen=True, repr=False)
class Explanation(whatif.Explanation):
    """A prediction, and what each change of its deployment would buy, largest first."""

    def __repr__(self) -> str:
        first = self.changes[0]
        return f"<Explanation, {len(self.changes)} changes; the first: {first.label}, {first.speedup:.2f} times>"

    def _repr_html_(self) -> str:
        return html.explanation_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `pipesim explain --json` prints."""
        return report.explain_json(self)

    def to_records(self) -> Records:
        """Returns a record for every change, largest speed-up first."""
        return records("ChangeRecord", report.explain_json(self)["changes"])


@dataclass(frozen=True, repr=False)
class Validation(validation.Validation):
    """Predictions beside measured figures."""

    def __repr__(self) -> str:
        judged = f"{len(self.judged)} of them validation, mean absolute error {self.mean_abs_relative_error:.1%}"
        return f"<Validation, {len(self.rows)} figures, {judged}: {'ok' if self.ok else 'out of tolerance'}>"

    def _repr_html_(self) -> str:
        return html.validation_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `pipesim validate --json` prints."""
        return validation_report.validate_json(self)

    def to_records(self) -> Records:
        """Returns a record for every measured figure."""
        return records("ComparisonRecord", validation_report.validate_json(self)["runs"])


@dataclass(frozen=True, repr=False)
class Plans(PlanSearch):
    """Every plan that was considered, best first."""

    job: Job = field(default_factory=Job)
    """The batch job whose cost and energy were asked for."""

    def __repr__(self) -> str:
        best = self.best
        text = f"best {best.deployment.plan}, {best.figures.output_tokens_per_s:,.0f} tok/s" if best else "none will do"
        return f"<Plans, {self.considered:,} considered, {self.simulated} simulated: {text}>"

    def _repr_html_(self) -> str:
        return html.plans_html(self)

    def prediction(self, rank: int = 1) -> Prediction:
        """Returns the prediction of the plan of some rank; one that was not simulated in the search is now."""
        found = self.plans[rank - 1]
        core = found.prediction or Predictor(found.deployment).predict(self.simulated_load, self.question.seeds)
        return shown(Prediction, core)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object that `pipesim plan --json` prints."""
        return plan_json(self, self.job)

    def to_records(self) -> Records:
        """Returns a record for every plan that can run, best first."""
        return records("PlanRecord", [row for row in self.to_dict()["plans"] if row["feasible"]])


@dataclass(frozen=True, repr=False)
class Sweep(Sequence[Any]):
    """The rows of a grid, in its order: NamedTuples of the question, then of the answer."""

    columns: tuple[str, ...]
    axes: tuple[str, ...]
    """Columns of the question with more than one value."""
    rows: Records

    def __repr__(self) -> str:
        axes = ", ".join(self.axes) or "one point"
        return f"<Sweep over {axes}: {len(self.rows):,} rows, {sum(map(_runs, self.rows)):,} of them can run>"

    def _repr_html_(self) -> str:
        metrics = ("output_tokens_per_s", "output_tokens_per_s_per_request", "ttft_mean_s", "tpot_mean_s")
        header = [*self.axes, *metrics, "reason"]
        rows = [[_cell(getattr(row, name)) for name in header] for row in self.rows[:SHOWN_ROWS]]
        more = len(self.rows) - SHOWN_ROWS
        left = [f"and {more:,} more rows"] if more > 0 else []
        return Table(header, rows, len(self.axes)).html() + html.paragraphs(left)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def best(self) -> Any:
        """The row with the most output tokens per second, None where nothing can run."""
        return max(filter(_runs, self.rows), key=_rate, default=None)

    def to_records(self) -> Records:
        """Returns the rows; one that cannot run has its reason, and None for the figures."""
        return list(self.rows)


def sweep_result(columns: tuple[str, ...], axes: Mapping[str, Sequence[Any]], rows: Sequence[Sequence[Any]]) -> Sweep:
    """Returns the rows of a sweep (see `sweep.run.Sweep.header`) without the digest of the grid, as a `Sweep`."""
    names = (*columns, "method", *METRICS)
    record = _record("SweepRecord", names)
    several = tuple(name for name, values in axes.items() if len(values) > 1)
    return Sweep(names, several, [record(*row[1:]) for row in rows])


def _runs(row: Any) -> bool:
    return bool(row.feasible)


def _rate(row: Any) -> float:
    return float(row.output_tokens_per_s)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)


@dataclass(frozen=True, repr=False)
class Calibration(Calibrated):
    """What was fitted of a box, and what it changes in the file of its profile."""

    def __repr__(self) -> str:
        done = "written" if self.written else "nothing written"
        return f"<Calibration of {self.path.name}, {done}>"

    def _repr_html_(self) -> str:
        texts = (*self.texts, *(() if self.written else self.differences))
        return html.preformatted(texts)
