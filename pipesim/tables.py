"""A table of an answer, made once and shown in Markdown and in HTML."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

RIGHT = ' style="text-align:right"'


class Table(NamedTuple):
    """Headings and rows of texts. The first columns hold words, as one without a heading does; the others figures."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """Columns of words at the left."""

    @property
    def _right(self) -> list[bool]:
        """Whether each column's texts stand at its right."""
        return [column >= self.words and bool(heading) for column, heading in enumerate(self.headings)]

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        rules = ["--:" if right else "---" for right in self._right]
        cells = ([cell.replace("|", "&#124;") for cell in row] for row in (self.headings, rules, *self.rows))
        return "".join(f"| {' | '.join(row)} |\n" for row in cells)

    def html(self) -> str:
        """Returns the table in HTML."""
        head, *body = (self._row(row, tag) for row, tag in ((self.headings, "th"), *((r, "td") for r in self.rows)))
        return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"

    def _row(self, row: Sequence[str], tag: str) -> str:
        sides = (RIGHT if right else "" for right in self._right)
        cells = zip(row, sides, strict=True)
        return "<tr>" + "".join(f"<{tag}{side}>{escape(cell)}</{tag}>" for cell, side in cells) + "</tr>"
