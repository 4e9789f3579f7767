"""Whole figures for files: several pictures that answer one question."""

import math
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipesim.plots.accuracy import metrics_of, plot_predicted_vs_measured
from pipesim.plots.changes import plot_changes
from pipesim.plots.comparison import ParetoPoint, plot_pareto
from pipesim.plots.shares import MOST_GPU_ROWS, plot_breakdown, plot_gpu_load
from pipesim.plots.style import BOUND_COLOURS, figure_of, finish, new_axes, new_figure, rendered, styled
from pipesim.plots.timeline import plot_timeline
from pipesim.prediction import Prediction
from pipesim.sensitivity import LEVEL, Confidence
from pipesim.timeline import Timeline
from pipesim.validation import Validation
from pipesim.whatif import Explanation

ROW = 0.27
"""Height of one GPU's bar [inches]."""
COLUMNS = 2


def predict_picture(prediction: Prediction, timeline: Timeline, form: str) -> bytes:
    """Returns `predict_figure` as the bytes of a "png", "svg" or "pdf" file."""
    return rendered(predict_figure(prediction, timeline), form)


def validate_picture(validation: Validation, form: str) -> bytes:
    """Returns `validate_figure` as the bytes of a "png", "svg" or "pdf" file."""
    return rendered(validate_figure(validation), form)


def changes_picture(explanation: Explanation, form: str) -> bytes:
    """Returns `plot_changes` as the bytes of a "png", "svg" or "pdf" file."""
    height = 1.5 + 0.4 * len(explanation.changes)
    return rendered(figure_of(plot_changes(explanation, new_axes(9.0, height))), form)


def pareto_picture(points: Sequence[ParetoPoint], form: str) -> bytes:
    """Returns `plot_pareto` as the bytes of a "png", "svg" or "pdf" file."""
    return rendered(figure_of(plot_pareto(points, new_axes(8.6, 5.2))), form)


@styled
def predict_figure(prediction: Prediction, timeline: Timeline) -> Figure:
    """Returns stages over time, load per GPU and what takes the time, under one legend."""
    plan = prediction.deployment.plan
    rows = plan.gpus_per_replica if plan.gpus_per_replica <= MOST_GPU_ROWS else plan.pp
    heights = [min(9.0, 1.6 + 0.42 * plan.pp), min(9.0, 1.1 + ROW * rows), 1.6]
    figure = new_figure(8.6, sum(heights) + 0.4)
    axes: list[Axes] = list(figure.subplots(len(heights), height_ratios=heights))
    plot_timeline(timeline, prediction.deployment, ax=axes[0])
    plot_gpu_load(prediction, axes[1])
    plot_breakdown([prediction], ax=axes[2])
    _share_legend(axes)
    deployment, users = prediction.deployment, prediction.workload.concurrency
    load = f"{users:,} user{'s' * (users > 1)}" if prediction.workload.closed_loop else "open loop"
    rate = rate_words(prediction, Confidence(prediction))
    title = f"{deployment.model.name} on {deployment.hardware.name}, {deployment.engine.name}, {load}: {rate}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
    return figure


def rate_words(prediction: Prediction, confidence: Confidence) -> str:
    """Returns a prediction's throughput with its interval."""
    rate, (low, high) = prediction.mean("output_tokens_per_s"), confidence.interval("output_tokens_per_s")
    return f"{rate:,.0f} tok/s ({low:,.0f} to {high:,.0f} with {LEVEL:.0%} confidence)"


def _share_legend(axes: list[Axes]) -> None:
    """Leaves one legend, above the first axes, of all that any of them shows."""
    found: dict[str, Artist] = {}
    for ax in axes:
        if legend := ax.get_legend():
            labels = [text.get_text() for text in legend.get_texts()]
            found |= dict(zip(labels, legend.legend_handles, strict=True))  # type: ignore[arg-type]
            legend.remove()
    order = list(BOUND_COLOURS)
    handles = [found[label] for label in sorted(found, key=lambda label: order.index(label.split()[0]))]
    for index, ax in enumerate(axes):
        finish(ax, " ".join(ax.get_title(loc="left").split("\n")), [] if index else handles)


@styled
def validate_figure(validation: Validation) -> Figure:
    """Returns predicted over measured, an axes for every metric."""
    metrics = metrics_of(validation)
    columns = min(COLUMNS, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    figure = new_figure(6.4 * columns, 5.8 * rows)
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax, metric in zip(axes, metrics, strict=False):
        plot_predicted_vs_measured(validation, metric, ax)
    for ax in axes[len(metrics) :]:
        ax.remove()
    return figure
