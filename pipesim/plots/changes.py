"""What one change would buy: the speed-up of each cost at zero and each switch flipped, with its interval."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pipesim.plots.style import BLUE, LINE, VERMILLION, axes_or_new, finish, name_rows, styled
from pipesim.whatif import Explanation

KINDS = {"cost": ("a cost at zero", BLUE, "o"), "switch": ("a switch flipped", VERMILLION, "s")}
LABEL_WIDTH = 42
"""Characters of one line of a change's name."""


@styled
def plot_changes(explanation: Explanation, ax: Axes | None = None) -> Axes:
    """Draws the speed-up of every change, the largest on top, and returns the axes.

    Bars are 80 % intervals; what lies across the line at 1 may slow the server down.
    """
    changes = explanation.changes
    ax = axes_or_new(ax, height=1.3 + 0.4 * len(changes), width=9.0)
    for row, change in enumerate(changes):
        _, colour, marker = KINDS[change.kind]
        ax.hlines(row, *change.interval, color=colour, alpha=0.45, linewidth=2.4)
        ax.plot([change.speedup], [row], color=colour, marker=marker, linestyle="none")
        ax.text(1.01, row, f"{change.speedup:.2f}×", transform=ax.get_yaxis_transform(), va="center", fontsize=8.5)
    ax.axvline(1.0, color=LINE, linewidth=0.9, zorder=0.5)
    name_rows(ax, len(changes), lambda row: textwrap.fill(changes[row].label, LABEL_WIDTH), fontsize=8.5)
    ax.set_xlim(left=min(0.9, *ax.get_xlim()))
    ax.grid(axis="x")
    ax.set_xlabel("output tok/s after the change over that before [×]")
    present = {change.kind for change in changes}
    handles = [
        Line2D([], [], color=colour, marker=marker, label=name)
        for kind, (name, colour, marker) in KINDS.items()
        if kind in present
    ]
    first, plan = changes[0], explanation.prediction.deployment.plan
    finish(ax, f"{plan}, {first.label}: {first.speedup:.2f} times as fast", handles, room=0.64)
    return ax
