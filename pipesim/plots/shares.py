"""Where the GPUs' time goes: bars that add up to the whole, per GPU or per split."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes

from pipesim.plots.style import (
    BOUND_COLOURS,
    PAPER,
    axes_or_new,
    bound_handles,
    finish,
    name_rows,
    row_step,
    styled,
    text_colour,
)
from pipesim.prediction import Prediction
from pipesim.reasons import NAMES

MOST_GPU_ROWS = 16
"""GPUs that get a bar each; of more, the GPUs of a stage share one."""
SHORT_NAMES = {
    "experts": "experts",
    "attention": "attention",
    "dense": "dense",
    "all_reduce": "AllReduce",
    "send_recv": "send",
    "host": "host",
    "bubble": "bubbles",
}
CHARACTER = 0.0105
"""Width of one character of a label, as a share of an axes 8 inches wide."""
VISIBLE = 0.002
"""Share of a bar from which its colour stands in the legend."""


@styled
def plot_gpu_load(prediction: Prediction, ax: Axes | None = None) -> Axes:
    """Draws for every GPU the shares of its time by what binds it, host and bubble, and returns the axes.

    Of several equal servers the GPUs of the first are drawn.
    """
    plan = prediction.deployment.plan
    single = plan.gpus_per_replica <= MOST_GPU_ROWS
    of_stages = [(list(plan.stage_gpus(stage)), stage) for stage in range(plan.pp)]
    rows = [([gpu], stage) for gpus, stage in of_stages for gpu in gpus] if single else of_stages
    ax = axes_or_new(ax, height=min(14.0, 1.4 + 0.27 * len(rows)))
    shares = [_stage_bounds(prediction, stage) for stage in range(plan.pp)]
    for row, (_, stage) in enumerate(rows):
        left = 0.0
        for bound, share in shares[stage].items():
            ax.barh(row, share, 0.74, left, color=BOUND_COLOURS[bound], edgecolor=PAPER, linewidth=0.4)
            left += share
        busy = 1.0 - shares[stage]["bubble"] - shares[stage]["host"]
        if row % row_step(len(rows)) == 0:
            ax.text(1.01, row, f"{busy:.0%} busy", va="center", fontsize=8.5)
    name_rows(ax, len(rows), lambda row: _row_name(prediction, *rows[row]))
    first = f"; the first of {plan.replicas} replicas" if plan.replicas > 1 else ""
    _share_axis(ax, f"share of the GPU's time [%]{first}")
    present = {bound for stage in shares for bound, share in stage.items() if share >= VISIBLE}
    finish(ax, _load_finding(prediction), bound_handles(present))
    return ax


def _stage_bounds(prediction: Prediction, stage: int) -> dict[str, float]:
    """Returns the shares of one stage's time by what binds, host and bubble: mean over seeds, they sum to 1."""
    loads = [run.stages[stage] for run in prediction.runs]
    shares = dict.fromkeys(BOUND_COLOURS, 0.0)
    for load in loads:
        for (_, bound), seconds in load.by_bound.items():
            shares[bound] += seconds / load.window / len(loads)
    shares["host"] += fmean(load.host / load.window for load in loads)
    shares["bubble"] = fmean(load.bubble / load.window for load in loads)
    return shares


def _row_name(prediction: Prediction, gpus: list[int], stage: int) -> str:
    name = f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {gpus[0]}–{gpus[-1]}"
    return f"{name} · stage {stage}" if prediction.deployment.plan.pp > 1 else name


def _load_finding(prediction: Prediction) -> str:
    plan = prediction.deployment.plan
    busy = [prediction.stage_share(stage)[0] for stage in range(plan.pp)]
    least, most = min(busy), max(busy)
    if f"{least:.0%}" == f"{most:.0%}":
        return f"{plan}: every GPU is busy {most:.0%} of the time"
    return f"{plan}: GPUs are busy {least:.0%} to {most:.0%} of the time, stage {busy.index(most)} most of all"


@styled
def plot_breakdown(
    predictions: Sequence[Prediction], labels: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draws what takes the GPUs' time under several splits side by side and returns the axes.

    Colour is what binds; the work is written into the bar where there is room. Every bar adds up to 1.
    """
    ax = axes_or_new(ax, height=min(14.0, 1.5 + 0.5 * len(predictions)))
    present, works = set(), set()
    for row, prediction in enumerate(predictions):
        left = 0.0
        for (category, bound), share in _ordered(prediction):
            colour = BOUND_COLOURS[bound]
            if share >= VISIBLE:
                present.add(bound)
                works.add(category)
            ax.barh(row, share, 0.72, left, color=colour, edgecolor=PAPER, linewidth=0.6)
            if text := _label(SHORT_NAMES[category], share):
                ax.text(left + share / 2, row, text, ha="center", va="center", fontsize=8, color=text_colour(colour))
            left += share
        rate = prediction.mean("output_tokens_per_s")
        ax.text(1.01, row, f"{rate:,.0f} tok/s", va="center", fontsize=8.5)
    names = labels or [str(prediction.deployment.plan) for prediction in predictions]
    name_rows(ax, len(predictions), names.__getitem__)
    order = ", ".join(SHORT_NAMES[work] for work in SHORT_NAMES if work in works and work not in BOUND_COLOURS)
    _share_axis(ax, f"share of the GPUs' time [%]; in a colour, from the left: {order}")
    finish(ax, _breakdown_finding(predictions, names), bound_handles(present))
    return ax


def _ordered(prediction: Prediction) -> list[tuple[tuple[str, str], float]]:
    """Returns the parts of a bar, those of one bound together, always in one order."""
    bounds, works = list(BOUND_COLOURS), list(SHORT_NAMES)
    parts = [(kind, share) for kind, share in prediction.bounds.items() if share > 0]
    return sorted(parts, key=lambda part: (bounds.index(part[0][1]), works.index(part[0][0])))


def _label(name: str, share: float) -> str:
    """Returns what fits into a part of a bar: name and percentage, one of them, or nothing."""
    for text in (f"{name} {share:.0%}", name, f"{share:.0%}"):
        if (len(text) + 1) * CHARACTER < share:
            return text
    return ""


def _breakdown_finding(predictions: Sequence[Prediction], names: Sequence[str]) -> str:
    rates = [prediction.mean("output_tokens_per_s") for prediction in predictions]
    best = rates.index(max(rates))
    shares = predictions[best].breakdown
    most = max(shares, key=lambda name: shares[name])
    fastest = " is fastest" if len(predictions) > 1 else ""
    return f"{names[best]}{fastest}: {shares[most]:.0%} of its GPUs' time goes to {NAMES[most]}"


def _share_axis(ax: Axes, label: str) -> None:
    ax.set_xlim(0.0, 1.0)
    ax.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "25", "50", "75", "100"])
    ax.set_xlabel(label)
