"""Lines of a server's log: time, ranks and text, whatever stands before them, and the arguments that it prints."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pipesim.importers import COLOUR

TIME = re.compile(r"(?<!\d)(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
BRACKET_RANKS = re.compile(r"\[\d{4}-\d\d-\d\d[ T][\d:.,]+((?:\s+[A-Z][A-Z_]*\d+)+)\]")
"""SGLang: DP, PP, ATTN_CP, MOE_DP, TP, EP, each only if there are several; the order varies between versions."""
WORKER_RANKS = re.compile(r"\(Worker((?:_[A-Z]+\d+)+)")
RANK = re.compile(r"([A-Z][A-Z_]*?)(\d+)")
ARGUMENT = re.compile(r"""['"]?(\w+)['"]?\s*[=:]\s*('[^']*'|"[^"]*"|None|True|False|-?\d[\d.eE+-]*)""")
LEAP_YEAR = 2000
"""Stands for the year where a log leaves it out."""


class Line(NamedTuple):
    """One line without colours; `ended` is false of a last line that no line end follows."""

    number: int
    seconds: float | None
    """Time since some fixed moment [s]; None without a time."""
    ranks: Mapping[str, int]
    text: str
    ended: bool


def lines(text: str) -> Iterator[Line]:
    """Yields the lines of a log."""
    rows = COLOUR.sub("", text).split("\n")
    for number, row in enumerate(rows, start=1):
        if row.strip():
            yield Line(number, _seconds(row), _ranks(row), row, number < len(rows))


def arguments(text: str) -> dict[str, Any]:
    """Returns the arguments that a line prints as Python does, `name=value` or `'name': value`, the first of each.

    Nested ones come out under their own names.
    """
    words = {"None": None, "True": True, "False": False}
    found: dict[str, Any] = {}
    for name, value in ARGUMENT.findall(text):
        found.setdefault(name, words.get(value, value.strip("'\"")) if value in words else value.strip("'\""))
    return found


def degrees_of(log: Sequence[Line], kinds: Sequence[str]) -> dict[str, int]:
    """Returns how many ranks of each kind a log names, of those kinds that have several."""
    seen = {kind: max(line.ranks.get(kind, 0) for line in log) + 1 for kind in kinds}
    return {kind.lower(): ranks for kind, ranks in seen.items() if ranks > 1}


def kv_note(tokens: int) -> str:
    """Returns what a person is told of a KV cache; 0 stands for a size that was not printed."""
    return f"KV cache {tokens:,} tokens" if tokens else "KV cache size not printed"


def _seconds(row: str) -> float | None:
    stamp = TIME.search(row)
    if stamp is None:
        return None
    year, *rest, fraction = stamp.groups()
    try:
        moment = datetime(int(year or LEAP_YEAR), *(int(part) for part in rest))  # type: ignore[arg-type]
    except ValueError:
        return None
    since = moment - datetime(LEAP_YEAR, 1, 1)
    return since.total_seconds() + float(f"0.{fraction or 0}")


def _ranks(row: str) -> dict[str, int]:
    found = BRACKET_RANKS.search(row) or WORKER_RANKS.search(row)
    return {kind.strip("_"): int(rank) for kind, rank in RANK.findall(found[1])} if found else {}
