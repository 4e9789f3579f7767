"""Pictures as SVG inside a page: colours that follow the page's scheme, names that meet no other picture's."""

import html
import re
from collections.abc import Callable

from matplotlib.axes import Axes

from pipesim.plots.style import BUBBLE, GRID, INK, LINE, PAPER, figure_of, new_axes, rendered

SCHEME = {INK: "--ink", LINE: "--line", GRID: "--grid", BUBBLE: "--bubble", PAPER: "--card"}
"""Neutral colours of the pictures and the page's variables that stand for them."""


def inline_svg(name: str, label: str, height: float, draw: Callable[[Axes], object], width: float = 8.6) -> str:
    """Returns a picture as an SVG element for a page; the same picture gives the same text.

    Args:
        name: tells its identifiers from those of other pictures of the page.
        label: what a reader who does not see it is told.
        height: of the picture [inches].
        draw: draws it on the axes given.
        width: of the picture [inches].
    """
    ax = new_axes(width, height)
    draw(ax)
    text = rendered(figure_of(ax), "svg").decode()
    box = re.search(r'viewBox="[^"]+"', text)
    body = re.sub(r"<metadata>.*?</metadata>", "", text[text.index(">", text.index("<svg")) + 1 :], flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = body.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    body = body.replace("stroke: #000000", "stroke: var(--ink)")
    for colour, variable in SCHEME.items():
        body = body.replace(colour, f"var({variable})")
    opening = f'<svg role="img" aria-label="{html.escape(label)}" {box.group() if box else ""} data-picture="{name}">'
    return opening + body.strip()
