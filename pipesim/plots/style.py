"""How every picture looks: one colour for each thing that binds, the shipped style, legends outside, files."""

import functools
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, ParamSpec, TypeVar

import matplotlib
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath

BLACK, ORANGE, SKY_BLUE, GREEN, BLUE, VERMILLION, PURPLE = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
"""The colour-blind-safe palette of Okabe and Ito (2008), without its yellow, which is faint on white."""

INK, LINE, GRID, BUBBLE, PAPER = "#262626", "#8c8c8c", "#d9d9d9", "#e4e4e4", "#ffffff"
"""Neutral colours; a page with a dark scheme puts others in their place."""

BOUND_COLOURS: Mapping[str, str] = {
    "compute": BLUE,
    "memory": ORANGE,
    "latency": SKY_BLUE,
    "link": VERMILLION,
    "host": PURPLE,
    "bubble": BUBBLE,
}
"""What binds, and idle stages in their bubbles: the same colour in every picture."""

SERIES_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE, BLACK)
"""For lines that stand for splits."""

PALETTE = frozenset({*SERIES_COLOURS, INK, LINE, GRID, BUBBLE, PAPER})

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

MOST_ROW_NAMES = 48
"""Rows of bars that are all named; of more, some."""

SHARE_OF_AXES = 0.84
"""Of the width of a figure: what ticks and their labels usually leave."""

STYLE = str(files("pipesim") / "pipesim.mplstyle")

P = ParamSpec("P")
R = TypeVar("R")


def styled(plot: Callable[P, R]) -> Callable[P, R]:
    """Returns a function that draws in pipesim's style and leaves matplotlib's settings as they were."""

    @functools.wraps(plot)
    def draw(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.style.context(STYLE):
            return plot(*args, **kwargs)

    return draw


def axes_or_new(ax: Axes | None, height: float, width: float = 8.0) -> Axes:
    """Returns the axes given, or those of a new pyplot figure of a height [inches], which a notebook shows."""
    if ax is not None:
        return ax
    from matplotlib import pyplot  # noqa: PLC0415 - chooses a backend, which a given axes has already

    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]


def text_colour(fill: str) -> str:
    """Returns the colour of text on a fill: dark but on the two darkest."""
    return "#fffffe" if fill in {BLUE, BLACK} else INK if fill in {BUBBLE, PAPER} else BLACK


def finish(ax: Axes, title: str, handles: Sequence[Artist] = (), columns: int = 6, room: float = SHARE_OF_AXES) -> None:
    """Puts the finding above the axes, and between the two the legend, where it covers no data.

    `room` is the share of the axes' column of the figure that the names on its left leave.
    """
    rows = -(-len(handles) // columns)
    if handles:
        length = 1.1 if all(isinstance(handle, Patch) for handle in handles) else 2.0
        legend = ax.legend(handles=handles, loc="lower left", ncols=columns, handlelength=length)
        legend.set_bbox_to_anchor((0.0, 1.0, 0.0, 0.02), ax.transAxes)
    ax.set_title("\n".join(_wrapped(title, room * _column_width(ax))), loc="left", pad=7.0 + 16.0 * rows)


def row_step(rows: int) -> int:
    """Returns which of some rows are named, the first and every so-maniest, so that their names stay apart."""
    return -(-rows // MOST_ROW_NAMES)


def figure_of(ax: Axes) -> Figure:
    """Returns the whole figure that an axes is on."""
    figure = ax.figure
    return figure if isinstance(figure, Figure) else figure.get_figure(root=True)


def unbroken(label: str) -> str:
    """Returns a label that no line of a title ends within."""
    return label.replace(" ", "\N{NO-BREAK SPACE}")


def _column_width(ax: Axes) -> float:
    """Returns the width of an axes' column of the figure [points]."""
    grid = ax.get_subplotspec()
    columns = grid.get_gridspec().ncols if grid else 1
    width: float = figure_of(ax).get_figwidth() * 72.0 / columns
    return width


def _wrapped(text: str, width: float) -> list[str]:
    """Returns the lines of a title, of about equal length, in as few as fit into a width [points]."""
    font = FontProperties(weight="bold", size=matplotlib.rcParams["axes.titlesize"])
    length = TextPath((0, 0), text, prop=font).get_extents().width
    lines = max(1, math.ceil(length / width))
    return textwrap.wrap(text, max(len(word) for word in text.split()) + len(text) // lines)


def bound_handles(bounds: Iterable[str]) -> list[Patch]:
    """Returns legend entries of what binds, in the one order of all pictures."""
    present = set(bounds)
    names = {"latency": "latency (small kernels)", "bubble": "bubble (idle)"}
    return [
        Patch(
            facecolor=colour, edgecolor=LINE if name == "bubble" else "none", linewidth=0.5, label=names.get(name, name)
        )
        for name, colour in BOUND_COLOURS.items()
        if name in present
    ]


def rendered(figure: Figure, form: str) -> bytes:
    """Returns a figure as the bytes of a "png", "svg" or "pdf" file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    with matplotlib.style.context(STYLE):
        figure.savefig(buffer, format=form, metadata=metadata)
    return buffer.getvalue()


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure in pipesim's style that no window and no pyplot knows of."""
    with matplotlib.style.context(STYLE):
        return Figure(figsize=(width, height), layout="constrained")
