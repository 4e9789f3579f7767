"""Splits against each other: throughput over concurrency, and the Pareto front of speed against efficiency."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from pipesim.plots.labels import Label, place_labels
from pipesim.plots.style import BLUE, LINE, MARKERS, PAPER, SERIES_COLOURS, axes_or_new, finish, styled, unbroken

MOST_TICKS = 12
WIDE = 8.0
"""Ratio of the most to the fewest users from which the axis is logarithmic."""


@dataclass(frozen=True)
class ConcurrencyCurve:
    """Predicted throughput of one split under several numbers of users."""

    label: str
    users: tuple[int, ...]
    output_tokens_per_s: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] = ()
    """80 % interval at each number of users; empty where none is known."""


@styled
def plot_concurrency(curves: Sequence[ConcurrencyCurve], ax: Axes | None = None) -> Axes:
    """Draws output throughput over users in the closed loop, a line per split, and returns the axes.

    Bands are 80 % intervals: where two bands overlap, a run on the box may turn the order round.
    """
    ax = axes_or_new(ax, height=4.4)
    users = sorted({count for curve in curves for count in curve.users})
    handles = []
    for index, curve in enumerate(curves):
        colour, marker = SERIES_COLOURS[index % len(SERIES_COLOURS)], MARKERS[index % len(MARKERS)]
        dash = ("-", "--", ":")[index // len(SERIES_COLOURS) % 3]
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": dash, "label": curve.label}
        edge: dict[str, Any] = {"markeredgecolor": PAPER, "markeredgewidth": 0.6}
        (line,) = ax.plot(curve.users, curve.output_tokens_per_s, **style, **edge)
        if curve.intervals:
            low, high = zip(*curve.intervals, strict=True)
            ax.fill_between(curve.users, low, high, color=colour, alpha=0.13, linewidth=0)
        handles.append(line)
    if users[-1] > WIDE * users[0]:
        ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(users if len(users) <= MOST_TICKS else users[:: len(users) // MOST_TICKS]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.set_ylim(bottom=0.0)
    ax.grid(axis="y")
    ax.set(xlabel="concurrency [users]", ylabel="output [tok/s]")
    finish(ax, _leaders(curves), handles, columns=4)
    return ax


def _leaders(curves: Sequence[ConcurrencyCurve]) -> str:
    """Says which split is fastest with how many users."""
    best: dict[int, tuple[float, str]] = {}
    for curve in curves:
        for users, rate in zip(curve.users, curve.output_tokens_per_s, strict=True):
            best[users] = max(best.get(users, (0.0, "")), (rate, curve.label))
    changes: list[tuple[int, str]] = []
    for users in sorted(best):
        if not changes or changes[-1][1] != best[users][1]:
            changes.append((users, best[users][1]))
    if len(changes) == 1:
        return f"{unbroken(changes[0][1])} is fastest at every concurrency"
    first, *rest = changes
    later = ", ".join(f"{unbroken(label)} from {users:,} on" for users, label in rest)
    return f"{unbroken(first[1])} is fastest with few users, {later}"


@dataclass(frozen=True)
class ParetoPoint:
    """One plan, by what its owner pays for and what its users feel."""

    label: str
    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    interval: tuple[float, float] | None = None
    """80 % interval of the tokens per second and GPU."""
    on_front: bool = False
    """Whether no other plan is better at both."""
    feasible: bool = True
    """Whether it keeps the limits asked for."""

    @property
    def kind(self) -> str:
        """What the legend calls it, a key of `POINT_STYLES`."""
        return "on the front" if self.on_front else "dominated" if self.feasible else "breaks a limit"


POINT_STYLES: dict[str, dict[str, Any]] = {
    "on the front": {"color": BLUE, "marker": "o"},
    "dominated": {"color": LINE, "marker": "o", "markersize": 4.5},
    "breaks a limit": {"color": LINE, "marker": "X", "markerfacecolor": PAPER},
}


@styled
def plot_pareto(points: Sequence[ParetoPoint], ax: Axes | None = None) -> Axes:
    """Draws plans by tok/s per GPU over tok/s per user, joins the front, and returns the axes.

    Points of the front are labelled first; another is left without a label where there is no room for it.
    """
    ax = axes_or_new(ax, height=4.8)
    front = sorted((point for point in points if point.on_front), key=lambda point: point.tokens_per_s_per_user)
    handles = []
    for kind, style in POINT_STYLES.items():
        group = [point for point in points if point.kind == kind]
        for point in group:
            _pareto_point(ax, point, style)
        if group:
            handles.append(Line2D([], [], linestyle="none", label=kind, **style))
    users, gpus = [p.tokens_per_s_per_user for p in front], [p.tokens_per_s_per_gpu for p in front]
    ax.plot(users, gpus, color=BLUE, linewidth=1.4, zorder=1.8, label="_front")
    ax.margins(0.12, 0.14)
    ax.set_ylim(bottom=0.0)
    ax.autoscale_view()
    ax.set_xlim(left=max(0.0, ax.get_xlim()[0]))
    ax.grid()
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    ax.set(xlabel="speed that a user feels [tok/s per user]", ylabel="output per GPU [tok/s per GPU]")
    finish(ax, _front_finding(front), handles)
    others = sorted((point for point in points if not point.on_front), key=lambda point: -point.tokens_per_s_per_gpu)
    labels = [
        Label(p.label, p.tokens_per_s_per_user, p.tokens_per_s_per_gpu, p.on_front) for p in (*reversed(front), *others)
    ]
    place_labels(ax, labels, _along(users, gpus))
    return ax


def _along(users: Sequence[float], gpus: Sequence[float]) -> list[tuple[float, float]]:
    """Returns places on the line of the front, which labels keep free."""
    places = zip(users[:-1], users[1:], gpus[:-1], gpus[1:], strict=True)
    return [(x0 + (x1 - x0) * k / 24, y0 + (y1 - y0) * k / 24) for x0, x1, y0, y1 in places for k in range(1, 24)]


def _pareto_point(ax: Axes, point: ParetoPoint, style: dict[str, Any]) -> None:
    x, y = point.tokens_per_s_per_user, point.tokens_per_s_per_gpu
    if point.interval and point.on_front:
        ax.vlines(x, *point.interval, color=BLUE, alpha=0.35, linewidth=3.0, zorder=1.6)
    ax.plot([x], [y], zorder=3, markeredgewidth=0.9, linestyle="none", label="_point", **style)


def _front_finding(front: Sequence[ParetoPoint]) -> str:
    if not front:
        return "No plan keeps the limits"
    slow, quick = front[0], front[-1]
    if len(front) == 1:
        return f"{unbroken(slow.label)} is best for the box and for its users"
    return (
        f"{unbroken(slow.label)} gets most from a GPU ({slow.tokens_per_s_per_gpu:,.0f} tok/s), "
        f"{unbroken(quick.label)} is quickest for a user ({quick.tokens_per_s_per_user:,.0f} tok/s)"
    )
