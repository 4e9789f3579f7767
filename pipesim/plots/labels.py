"""Labels beside points, none over another, over a point or outside the axes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from pipesim.plots.style import INK, LINE, figure_of

DISTANCES = (5.0, 11.0, 19.0, 29.0, 41.0, 55.0, 75.0)
"""From the point to the nearest edge of its label [points], tried from the nearest on."""
DIRECTIONS = tuple(math.radians(degrees) for degrees in (0, 180, 90, 270, 45, 135, 315, 225, 20, 160, 340, 200))
MARKER = 5.0
"""Half the side of the square that a point takes [points]."""
WRITTEN: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": 8.5, "color": INK}
LEADER = 10.0
"""Distance from which a line joins a label to its point [points]."""


Pixels = np.ndarray[Any, np.dtype[np.float64]]


class Label(NamedTuple):
    """What to write beside a point, in data coordinates."""

    text: str
    x: float
    y: float
    bold: bool = False


def place_labels(ax: Axes, labels: Sequence[Label], others: Sequence[tuple[float, float]] = ()) -> list[str]:
    """Writes labels beside their points, those first in the list first, and returns the texts of those left out.

    A label is left out where it has no room. Limits and scales of the axes have to stand before, since whether labels
    overlap is a matter of pixels.

    Args:
        ax: axes with their points.
        labels: what to write where, the most important first.
        others: further points that no label may cover, in data coordinates.
    """
    figure = figure_of(ax)
    figure.draw_without_rendering()
    points = figure.dpi / 72.0
    drawn = [*((label.x, label.y) for label in labels), *others]
    taken = [_square(ax.transData.transform(place), MARKER * points) for place in drawn]
    left_out = []
    for label in labels:
        weight = "bold" if label.bold else "normal"
        note = ax.annotate(label.text, (label.x, label.y), (0.0, 0.0), **WRITTEN, fontweight=weight)
        note.set_in_layout(False)
        place = _free_place(ax, note.get_window_extent(), np.array(taken), points)
        if place is None:
            note.remove()
            left_out.append(label.text)
            continue
        box, offset, distance = place
        note.set_position((offset[0] / points, offset[1] / points))
        taken.append(np.array(box.extents))
        if distance >= LEADER:
            taken += _lead(ax, label, box)
    return left_out


def _square(centre: Pixels, half: float) -> Pixels:
    """Returns the extents of a square: left, bottom, right and top."""
    return np.concatenate([centre - half, centre + half])


def _free_place(ax: Axes, own: Bbox, taken: Pixels, points: float) -> tuple[Bbox, tuple[float, float], float] | None:
    """Returns a label's box, how far its centre is from the point [pixels], and the distance [points]."""
    inside = ax.bbox.padded(-2.0)
    for distance in DISTANCES:
        for direction in DIRECTIONS:
            reach = (MARKER + distance) * points
            x = math.cos(direction) * (own.width / 2 + reach * abs(math.cos(direction)))
            y = math.sin(direction) * (own.height / 2 + reach * abs(math.sin(direction)))
            box = own.translated(x, y)
            free = _within(box, inside) and not _meets(np.array(box.padded(2.0).extents), taken).any()
            if free and (distance < LEADER or not _crosses(own, box, taken)):
                return box, (x, y), distance
    return None


def _within(box: Bbox, outer: Bbox) -> bool:
    return bool(outer.x0 <= box.x0 and box.x1 <= outer.x1 and outer.y0 <= box.y0 and box.y1 <= outer.y1)


def _meets(box: Pixels, taken: Pixels) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Returns which of the extents in the rows of `taken` a box shares a place with."""
    left, bottom, right, top = box
    beside = (taken[:, 0] > right) | (taken[:, 2] < left)
    common: np.ndarray[Any, np.dtype[np.bool_]] = ~(beside | (taken[:, 1] > top) | (taken[:, 3] < bottom))
    return common


def _crosses(own: Bbox, box: Bbox, taken: Pixels) -> bool:
    """Returns whether the line from a point, where its label would lie on it, to a box meets what is drawn already."""
    start = np.array([(own.x0 + own.x1) / 2, (own.y0 + own.y1) / 2])
    others = taken[~_meets(np.concatenate([start, start]), taken)]
    line = _line(start, _nearest(start, box))
    return any(_meets(np.concatenate([place, place]), others).any() for place in line)


def _nearest(start: Pixels, box: Bbox) -> Pixels:
    """Returns the place of a box that is nearest to a point."""
    return np.clip(start, box.min, box.max)


def _line(start: Pixels, end: Pixels) -> Pixels:
    """Returns places between two points, one a row."""
    return start + (end - start) * np.linspace(0.05, 0.95, 19)[:, np.newaxis]


def _lead(ax: Axes, label: Label, box: Bbox) -> list[Pixels]:
    """Draws a thin line from a point to the nearest edge of its label, and returns what the line takes."""
    start = ax.transData.transform((label.x, label.y))
    end = _nearest(start, box)
    (x0, y0), (x1, y1) = (ax.transData.inverted().transform(pixels) for pixels in (start, end))
    ax.plot([x0, x1], [y0, y1], color=LINE, linewidth=0.7, zorder=1.5, label="_leader", scalex=False, scaley=False)
    return [_square(place, 1.0) for place in _line(start, end)]
