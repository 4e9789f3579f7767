"""Cuts a file into the JSON objects it holds: one, several appended, one per line, a list; whole or cut off."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

LONGEST_FILE = 512 * 2**20
WANTED = "benchmark results in JSON or JSON lines"

ADJACENT = re.compile(r"[ \t,]*[{\[]")
START = re.compile(r"^[ \t]*[{\[]", re.M)
NEXT_START = re.compile(r"^[{\[]", re.M)


class Piece(NamedTuple):
    """One JSON object of a file."""

    where: str
    """Its first line, and its place in a list."""
    document: Mapping[str, Any]


class Broken(NamedTuple):
    """A part of a file that cannot be used, and what is wrong with it."""

    where: str
    given: str
    wanted: str


def pieces(text: str) -> Iterator[Piece | Broken]:
    """Yields the JSON objects of a text in order, and what is broken between them.

    After a broken part reading goes on at the next line that begins with a brace or a bracket. Lines of plain text
    before and between, as a terminal's copy has them, are passed over.
    """
    decoder = json.JSONDecoder()
    position = 0
    while begin := ADJACENT.match(text, position) or START.search(text, position):
        start = begin.end() - 1
        line = text.count("\n", 0, start) + 1
        yield from _stray(text, position, start)
        try:
            value, position = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError) as error:
            again = NEXT_START.search(text, start + 1)
            yield _broken(text, start, line, again is None, error)
            position = again.start() if again else len(text)
            continue
        yield from _objects(value, f"line {line}")
    yield from _stray(text, position, len(text))


def _stray(text: str, start: int, end: int) -> Iterator[Broken]:
    """Yields a complaint when what lies between two objects looks like the rest of one."""
    between = text[start:end]
    if '":' in between or between.strip(" \n\t,") in {"}", "]"}:
        line = text.count("\n", 0, start + len(between) - len(between.lstrip())) + 1
        yield Broken(f"line {line}", f"the rest of a JSON object ({_cut(between.strip())})", "a complete JSON object")


def _objects(value: Any, where: str) -> Iterator[Piece | Broken]:
    if isinstance(value, dict):
        yield Piece(where, value)
        return
    for index, entry in enumerate(value):
        place = f"{where}, entry {index + 1}"
        if isinstance(entry, dict):
            yield Piece(place, entry)
        else:
            yield Broken(place, type(entry).__name__, "a JSON object")
            return


def _broken(text: str, start: int, line: int, last: bool, error: Exception) -> Broken:
    first_line = text[start : start + 80]
    if isinstance(error, json.JSONDecodeError):
        cut = last and (error.pos >= len(text.rstrip()) - 1 or "Unterminated" in error.msg)
        problem = "cut off" if cut else f"broken: {error.msg}"
    else:
        problem = "nested too deeply"
    return Broken(f"line {line}", f"JSON that is {problem} ({_cut(first_line)})", "a complete JSON object")


def _cut(text: str) -> str:
    first_line = text.split("\n", 1)[0]
    return first_line if len(first_line) <= 40 else first_line[:37] + "…"
