"""Predicted against measured, on two logarithmic axes of the same unit."""

from collections import Counter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from pipesim.plots.labels import Label, place_labels
from pipesim.plots.style import BLUE, GRID, INK, LINE, ORANGE, PAPER, VERMILLION, axes_or_new, finish, log_log, styled
from pipesim.validation import Comparison, Validation

UNITS = {
    "output_tokens_per_s": ("output", "tok/s"),
    "request_throughput_per_s": ("request throughput", "req/s"),
    "ttft_s": ("mean TTFT", "s"),
    "tpot_s": ("mean TPOT", "s"),
    "itl_s": ("mean ITL", "s"),
    "e2e_s": ("mean E2E", "s"),
}
"""Name and unit of what can be measured."""

ROLES: dict[str, dict[str, Any]] = {
    "validation": {"color": BLUE, "marker": "o"},
    "calibration": {"color": ORANGE, "marker": "s", "markerfacecolor": PAPER},
    "reported": {"color": LINE, "marker": "^"},
}
"""How a row looks: judged; used to fit a constant; shown alone, its conditions unknown."""

RING: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 9,
    "markerfacecolor": "none",
    "markeredgecolor": VERMILLION,
    "markeredgewidth": 1.6,
}
"""Around a row out of its tolerance."""

LABELLED = 5
"""Rows that are named where none is out of tolerance: those with the largest errors."""


def metrics_of(validation: Validation) -> list[str]:
    """Returns the metrics that a validation compares, those with most rows first."""
    return [metric for metric, _ in Counter(row.metric for row in validation.rows).most_common()]


@styled
def plot_predicted_vs_measured(validation: Validation, metric: str | None = None, ax: Axes | None = None) -> Axes:
    """Draws predictions of one metric over its measured values and returns the axes.

    On the diagonal a prediction is right; the grey band is the usual tolerance, bars are predicted 80 % intervals. Rows
    out of their tolerance are ringed and named, else the rows with the largest errors.

    Args:
        validation: comparisons with measured runs.
        metric: what to compare; else that with the most rows.
        ax: axes to draw on; else those of a new figure.
    """
    ax = axes_or_new(ax, height=5.6, width=6.4)
    metric = metric or metrics_of(validation)[0]
    rows = [row for row in validation.rows if row.metric == metric]
    name, unit = UNITS.get(metric, (metric, ""))
    handles: list[Any] = []
    for role, style in ROLES.items():
        of_role = [row for row in rows if row.role == role]
        for row in of_role:
            bar: dict[str, Any] = {"color": style["color"], "alpha": 0.45, "linewidth": 1.2, "zorder": 2}
            ax.vlines(row.measured, *row.interval, **bar)
            ax.plot([row.measured], [row.predicted], zorder=3, linestyle="none", label="_row", **style)
        if of_role:
            handles.append(Line2D([], [], linestyle="none", label=f"{role} ({len(of_role)})", **style))
    out = [row for row in rows if not row.ok]
    for row in out:
        ax.plot([row.measured], [row.predicted], zorder=4, label="_out", **(RING | {"markersize": 11}))
    if out:
        handles.append(Line2D([], [], label=f"out of tolerance ({len(out)})", **RING))
    handles.append(_diagonal(ax, rows))
    ax.set_xlabel(f"measured {name} [{unit}]")
    ax.set_ylabel(f"predicted {name} [{unit}]")
    finish(ax, _finding(rows, name), handles, columns=3)
    worst = sorted(rows, key=lambda row: -abs(row.relative_error))
    named = out or [row for row in worst if row.role == "validation"][:LABELLED]
    labels = [Label(f"{row.id} {row.relative_error:+.0%}", row.measured, row.predicted) for row in named]
    place_labels(ax, labels, [(row.measured, row.predicted) for row in rows])
    return ax


def _diagonal(ax: Axes, rows: list[Comparison]) -> Patch:
    """Draws the line of equality with the tolerance that most rows have, on logarithmic axes of one scale."""
    values = [value for row in rows for value in (row.measured, row.predicted, *row.interval) if value > 0]
    low, high = min(values) / 1.3, max(values) * 1.3
    tolerances = Counter(row.tolerance for row in rows if row.tolerance)
    usual = max(tolerances, key=tolerances.__getitem__, default=0.0)
    band = [(1.0 - usual) * low, (1.0 - usual) * high], [(1.0 + usual) * low, (1.0 + usual) * high]
    ax.fill_between([low, high], *band, color=GRID, alpha=0.7, linewidth=0, zorder=0)
    ax.plot([low, high], [low, high], color=INK, linewidth=0.9, zorder=1, label="_diagonal")
    log_log(ax, (low, high), (low, high))
    ax.set_aspect("equal", adjustable="box")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
    return Patch(facecolor=GRID, label=f"within ±{usual:.0%}")


def _finding(rows: list[Comparison], name: str) -> str:
    judged = [row for row in rows if row.role == "validation"] or rows
    error = sum(abs(row.relative_error) for row in judged) / len(judged)
    kept = sum(row.ok for row in judged)
    of_all = f"{kept} of {len(judged)} {judged[0].role} rows keep their tolerance"
    return f"Predicted {name} is {error:.0%} off on average; {of_all}"
