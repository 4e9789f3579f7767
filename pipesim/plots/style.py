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
from matplotlib.ticker import FuncFormatter, NullLocator

BLACK, ORANGE, SKY_BLUE, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILLION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"
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


def name_rows(ax: Axes, rows: int, names: Callable[[int], str], **style: Any) -> None:
    """Gives an axes so many rows, the first on top, and names them on its left where its frame is not drawn."""
    shown = range(0, rows, row_step(rows))
    ax.set_yticks(shown, [names(row) for row in shown], **style)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def log_log(ax: Axes, horizontal: tuple[float, float], vertical: tuple[float, float], **scale: float) -> None:
    """Makes both axes logarithmic between limits, with numbers at the large ticks: a value over `x` or `y` of it."""
    ax.set(xscale="log", yscale="log", xlim=horizontal, ylim=vertical)
    ax.grid()
    for axis, unit in ((ax.xaxis, scale.get("x", 1.0)), (ax.yaxis, scale.get("y", 1.0))):
        axis.set_major_formatter(FuncFormatter(lambda value, _, unit=unit: f"{value / unit:,g}"))
        axis.set_minor_locator(NullLocator())


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
    edges = dict.fromkeys(BOUND_COLOURS, "none") | {"bubble": LINE}
    return [
        Patch(facecolor=colour, edgecolor=edges[name], linewidth=0.5, label=names.get(name, name))
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


def new_axes(width: float, height: float) -> Axes:
    """Returns the axes of a new figure that no window knows of."""
    axes: Axes = styled(new_figure(width, height).subplots)()
    return axes


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure in pipesim's style that no window and no pyplot knows of."""
    with matplotlib.style.context(STYLE):
        return Figure(figsize=(width, height), layout="constrained")
