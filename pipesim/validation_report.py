"""What `validate` prints: a table for a person, one for a CI summary, and an object for a script."""

import textwrap
from typing import Any

from pipesim.report import WIDTH
from pipesim.sensitivity import LEVEL
from pipesim.tables import Table
from pipesim.validation import Comparison, Validation


def validate_json(validation: Validation) -> dict[str, Any]:
    """Returns the object that `validate --json` prints."""
    worst = validation.worst
    return {
        "schema_version": 1,
        "runs": [
            {
                "id": row.id,
                "metric": row.metric,
                "measured": row.measured,
                "predicted": None if row.reason else row.predicted,
                "relative_error": None if row.reason else row.relative_error,
                "tolerance": row.tolerance,
                "role": row.role,
                "ok": row.ok,
                "interval": None if row.reason else list(row.interval),
                "reason": row.reason or None,
            }
            for row in validation.rows
        ],
        "summary": {
            "mean_abs_relative_error": validation.mean_abs_relative_error if worst is not None else None,
            "interval_coverage": validation.coverage,
            "worst": None
            if worst is None
            else {"id": worst.id, "metric": worst.metric, "relative_error": worst.relative_error},
        },
    }


def validate_text(validation: Validation) -> str:
    """Returns the table that `validate` prints."""
    width = max([16, *(len(row.id) for row in validation.rows)]) + 2
    lines = [f"{'run':<{width}}{'metric':<22}{'measured':>9}{'predicted':>10}{'error':>8}{'tol.':>6}  {'':<11}"]
    for row in validation.rows:
        metric = row.metric.removesuffix("_per_s") + "/s" if row.metric.endswith("_per_s") else row.metric
        measured, predicted, error = _compared(row)
        lines.append(
            f"{row.id:<{width}}{metric:<22}{measured:>9}{predicted:>10}{error:>8}"
            f"{row.tolerance:>6.0%}  {_verdict(row):<11}".rstrip()
        )
    lines.append("")
    if validation.worst is not None:
        worst = validation.worst
        lines.append(
            f"validation rows: mean absolute error {validation.mean_abs_relative_error:.1%}, "
            f"worst {worst.relative_error:+.1%} ({worst.id}); "
        )
        lines.append(f"{validation.coverage:.0%} of them lie in the predicted {LEVEL:.0%} interval")
    for run, reason in {row.id: row.reason for row in validation.rows if row.reason}.items():
        lines += textwrap.wrap(f"{run} cannot be predicted: {reason}", WIDTH, subsequent_indent="  ")
    for text in validation.assumptions:
        lines += textwrap.wrap(f"assumed: {text}", WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def comparison_table(validation: Validation) -> Table:
    """Returns predictions beside measured figures."""
    headings = ["run", "metric", "measured", "predicted", "error", "tolerance", ""]
    rows = [(row.id, row.metric, *_compared(row), f"{row.tolerance:.0%}", _verdict(row)) for row in validation.rows]
    return Table(headings, rows, 2)


def validate_markdown(validation: Validation) -> str:
    """Returns the table in Markdown, and why some runs cannot be predicted."""
    reasons = [f"{row.id} cannot be predicted: {row.reason}" for row in validation.rows if row.reason]
    return "\n".join([comparison_table(validation).markdown(), *reasons]).rstrip()


def _compared(row: Comparison) -> tuple[str, str, str]:
    """Returns what was measured, what is predicted and the error, dashes where nothing can be predicted."""
    measured = _figure(row.metric, row.measured)
    if row.reason:
        return measured, "–", "–"
    return measured, _figure(row.metric, row.predicted), f"{row.relative_error:+.1%}"


def _figure(metric: str, value: float) -> str:
    """Returns a measured or predicted figure: times to three digits, others to a tenth, tokens whole."""
    if metric.endswith("_s") and not metric.endswith("_per_s"):
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,.0f}" if metric.endswith("_tokens") else f"{value:,.1f}"


def _verdict(row: Comparison) -> str:
    """Returns whether a row is within its tolerance, in a word or two."""
    if row.role == "reported":
        return "reported"
    if row.reason:
        return "NO ANSWER"
    if row.role == "calibration":
        return "calibration" if row.ok else "CALIB. OUT"
    return "ok" if row.ok else "OUT"
