"""Pictures of runs, predictions and validations, in matplotlib; the only package that imports it.

Every function draws on the axes given, or on those of a new figure, and returns them.
"""

from pipesim.plots.accuracy import plot_predicted_vs_measured
from pipesim.plots.changes import plot_changes
from pipesim.plots.comparison import ConcurrencyCurve, ParetoPoint, plot_concurrency, plot_pareto
from pipesim.plots.roofline import plot_roofline
from pipesim.plots.shares import plot_breakdown, plot_gpu_load
from pipesim.plots.timeline import plot_timeline

__all__ = [
    "ConcurrencyCurve",
    "ParetoPoint",
    "plot_breakdown",
    "plot_changes",
    "plot_concurrency",
    "plot_gpu_load",
    "plot_pareto",
    "plot_predicted_vs_measured",
    "plot_roofline",
    "plot_timeline",
]
