"""The kernels of a decode step on the roofline of their box (Williams et al., CACM 52(4), 2009)."""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from pipesim.deployment import Deployment
from pipesim.ops import SideStream
from pipesim.plots.labels import Label, place_labels
from pipesim.plots.style import (
    BOUND_COLOURS,
    INK,
    LINE,
    PAPER,
    axes_or_new,
    bound_handles,
    figure_of,
    finish,
    log_log,
    styled,
)
from pipesim.prediction import Predictor
from pipesim.profiles.hardware import Gpu
from pipesim.units import PICOSECONDS_PER_SECOND
from pipesim.workload import Workload

SMALLEST, LARGEST = 18.0, 420.0
"""Area of a point of no share of the step and of the whole of it [points²]."""


ABOVE = 1.6
"""Height of the memory roof's own text over it, as a factor."""


class RooflinePoint(NamedTuple):
    """All calls of one kernel in a decode step."""

    name: str
    intensity: float
    """FLOP per byte."""
    flops_per_s: float
    share: float
    """Of the step's time on the GPUs."""
    bound: str
    rate: str
    """The number format it computes in."""


def roofline_points(predictor: Predictor, workload: Workload) -> list[RooflinePoint]:
    """Returns the kernels of the decode step of one slot at mid-length, the longest first.

    Kernels whose work does not matter (norms, copies), those hidden beside others, collectives and transfers have no
    place on a roofline; their time counts in the shares.
    """
    batch = predictor.mid_decode(workload)
    cost = predictor.price.cost(batch)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    step = 0.0
    for priced in predictor.operations(batch):
        seconds = priced.picoseconds / PICOSECONDS_PER_SECOND
        step += seconds
        work = cost.work(priced.op)
        if work.flops and not isinstance(priced.op, SideStream):
            total = found[priced.op.name, cost.rate(priced.op.constant), priced.bound]
            for index, value in enumerate((*work, seconds)):
                total[index] += value
    points = [
        RooflinePoint(name, flops / size, flops / seconds, seconds / step, bound, rate)
        for (name, rate, bound), (flops, size, seconds) in found.items()
    ]
    return sorted(points, key=lambda point: -point.share)


@styled
def plot_roofline(deployment: Deployment, workload: Workload, ax: Axes | None = None) -> Axes:
    """Draws a decode step's kernels by arithmetic intensity and attained rate under the GPU's roofs; returns the axes.

    The area of a point is its share of the step, its colour what binds it. Below the roof lies what efficiency and the
    time of a launch cost.
    """
    ax = axes_or_new(ax, height=4.8)
    gpu = deployment.hardware.gpu
    points = roofline_points(Predictor(deployment), workload)
    rates = sorted({point.rate for point in points}, key=lambda rate: gpu.tensor_rate[rate]) or ["bf16"]
    for point in points:
        area = SMALLEST + (LARGEST - SMALLEST) * point.share
        colour = BOUND_COLOURS[point.bound]
        ax.scatter(point.intensity, point.flops_per_s, area, colour, edgecolors=PAPER, linewidths=0.7, zorder=3)
    _limits(ax, points, gpu, rates)
    ax.set_xlabel("arithmetic intensity [FLOP/B]")
    ax.set_ylabel("attained rate per GPU [TFLOP/s]")
    finish(ax, _finding(deployment, points), bound_handles(point.bound for point in points))
    _roofs(ax, gpu, rates)
    labels = [
        Label(f"{_readable(p.name)} {p.share:.0%}", p.intensity, p.flops_per_s, p.share > 0.2)
        for p in points
        if p.share >= 0.005
    ]
    place_labels(ax, labels, _on_roofs(ax, gpu, rates))
    return ax


def _limits(ax: Axes, points: list[RooflinePoint], gpu: Gpu, rates: list[str]) -> None:
    """Shows all points, the ridge and a little of the flat roofs."""
    top = max(gpu.tensor_rate[rate] for rate in rates)
    ridge = top / gpu.memory_bandwidth
    left = min([ridge, *(point.intensity for point in points)]) / 3
    right = max([ridge, *(point.intensity for point in points)]) * 4
    bottom = min([top, *(point.flops_per_s for point in points)]) / 4
    log_log(ax, (left, right), (bottom, top * 3), y=1e12)


def _roofs(ax: Axes, gpu: Gpu, rates: list[str]) -> None:
    """Draws the memory roof up to the highest flat one, and a flat roof per number format."""
    left, right = ax.get_xlim()
    written: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 8.5, "color": INK}
    highest = max(gpu.tensor_rate[rate] for rate in rates)
    ridge = highest / gpu.memory_bandwidth
    ax.plot([left, ridge], [left * gpu.memory_bandwidth, highest], color=INK, linewidth=1.3, label="_roof")
    for rate in rates:
        height = gpu.tensor_rate[rate]
        ax.plot([height / gpu.memory_bandwidth, right], [height, height], color=INK, linewidth=1.3, label="_roof")
        text = f"{rate.upper()} {height / 1e12:,.0f} TFLOP/s"
        ax.annotate(text, (right, height), (-2, 3), **written)
    figure_of(ax).draw_without_rendering()  # the slope of a text depends on the layout
    (x0, y0), (x1, y1) = ax.transData.transform([(left, left), (right, right)])
    at = ridge / 1.25
    slope: dict[str, Any] = {"rotation": float(np.degrees(np.arctan2(y1 - y0, x1 - x0))), "rotation_mode": "anchor"}
    text = f"memory {gpu.memory_bandwidth / 1e9:,.0f} GB/s"
    ax.annotate(text, (at, at * gpu.memory_bandwidth), (0, 4), **written, **slope)
    if ridge < right:
        ax.axvline(ridge, color=LINE, linewidth=0.7, linestyle=":", label="_ridge", zorder=0.5)


def _on_roofs(ax: Axes, gpu: Gpu, rates: list[str]) -> list[tuple[float, float]]:
    """Returns places on the roofs, which labels keep free."""
    left, right = ax.get_xlim()
    highest = max(gpu.tensor_rate[rate] for rate in rates)
    places = np.geomspace(left, right, 120).tolist()
    below = [x for x in places if x * gpu.memory_bandwidth <= highest]
    sloped = [(x, x * gpu.memory_bandwidth * factor) for x in below for factor in (1.0, ABOVE)]
    flat = [(x, gpu.tensor_rate[r]) for r in rates for x in places if x * gpu.memory_bandwidth >= gpu.tensor_rate[r]]
    return sloped + flat


def _readable(name: str) -> str:
    return name.replace("_", " ")


def _finding(deployment: Deployment, points: list[RooflinePoint]) -> str:
    if not points:
        return f"{deployment.plan}: no kernel of a decode step multiplies matrices"
    first, gpu = points[0], deployment.hardware.gpu
    roof = min(gpu.tensor_rate[first.rate], first.intensity * gpu.memory_bandwidth)
    reached = first.flops_per_s / roof
    share = f"{first.share:.0%} of a decode step in {_readable(first.name)}"
    return f"{deployment.plan}: {share}, at {reached:.0%} of the roof"
