"""Traces of real traffic: when each request came, how long its prompt was and how long its answer.

Three forms are recognised by content:

* CSV with a header, columns in any order, times in seconds (in milliseconds where the name says so, or dates).
* The Azure LLM inference traces (github.com/Azure/AzurePublicDataset): TIMESTAMP, ContextTokens, GeneratedTokens.
* JSON lines. With the names of the Mooncake traces (github.com/kvcache-ai/Mooncake: timestamp, input_length,
  output_length) times are in milliseconds and `hash_ids` name blocks of 512 prompt tokens, each id standing for the
  block and all before it. Other names as in CSV.

A file is read line by line into arrays, 20 bytes per request.
"""

import csv
import itertools
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from pipesim.errors import ProfileError
from pipesim.units import PICOSECONDS_PER_SECOND, to_picoseconds

BLOCK_TOKENS = 512
"""Prompt tokens of one entry of `hash_ids` (Mooncake, FAST25-release/README.md)."""
LONGEST_LINE = 2**22
"""Bytes; a longer line is no row of a trace."""
MOST_TOKENS = 10_000_000
LONGEST_SPAN_S = 9_000_000
"""The simulated clock counts picoseconds in 64 bits, which is 106 days."""
LATEST = 1e18
"""A number beyond is no time, whatever its unit."""
PROGRESS_ROWS = 2**16

TIME, INPUT, OUTPUT = "arrival time", "input length", "output length"
NAMES = {
    TIME: ("arrivals", "arrival", "arrivaltime", "arrivedat", "arrivalms", "timestampms", "timestamp", "time"),
    INPUT: ("inputlen", "inputlength", "inputtokens", "prompttokens", "promptlen", "contexttokens", "requesttokens"),
    OUTPUT: ("outputlen", "outputlength", "outputtokens", "completiontokens", "generatedtokens", "responsetokens"),
}
"""Column names that are understood, in lower case without underscores and spaces."""
EXAMPLES = {TIME: "arrival_s", INPUT: "input_len", OUTPUT: "output_len"}
DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?")
Ints = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Trace:
    """The requests of a trace, by arrival."""

    path: Path
    form: str
    """What it was recognised as, in words."""
    arrival_ps: Ints
    """[R] time after the first request [ps]."""
    input_len: Ints
    """[R] prompt tokens, cached ones among them."""
    output_len: Ints
    """[R] generated tokens."""
    cached_len: Ints
    """[R] prompt tokens that are in the KV cache already; at least one of each prompt is not."""

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @cached_property
    def longest(self) -> int:
        """Most tokens of one request, prompt and answer together."""
        return int((self.input_len.astype(np.int64) + self.output_len).max())

    @cached_property
    def mean_lengths(self) -> tuple[int, int, int]:
        """Mean prompt, answer and cached prompt tokens, in whole tokens."""
        columns = (self.input_len, self.output_len, self.cached_len)
        prompt, answer, cached = (round(float(lengths.mean())) for lengths in columns)
        return prompt, answer, min(cached, prompt - 1)


def read_trace(
    path: Path,
    most: int | None = None,
    duration_s: float | None = None,
    prefix_cache: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Trace:
    """Returns the requests of a trace file.

    Args:
        path: the file.
        most: requests to read; the rest of the file is not looked at.
        duration_s: requests later than this after the first [s] are left out.
        prefix_cache: whether prompt blocks that an earlier request of the trace brought count as cached, none ever
            evicted; only a trace with `hash_ids` knows.
        progress: hears the number of rows read, every now and then.

    Raises:
        ProfileError: for a file that is no trace; it names file and line.
    """
    try:
        with path.open("rb") as file:
            return _read(file, _Rows(path, most, duration_s, progress), prefix_cache)
    except OSError as error:
        raise ProfileError(path, "", error.strerror or str(error), "a trace that can be read") from None


def _read(file: BinaryIO, rows: "_Rows", prefix_cache: bool) -> Trace:
    lines = _lines(file, rows)
    first = next(lines, "").removeprefix("\ufeff")
    if not first:
        rows.refuse(0, "an empty file", "a trace with a request per line")
    lines = itertools.chain([first], lines)
    if first.lstrip().startswith("{"):
        form = _read_json_lines(lines, rows, prefix_cache)
    elif prefix_cache:
        rows.refuse(0, "a CSV trace", "a trace with hash_ids for --prefix-cache")
    else:
        form = _read_csv(lines, rows)
    if not rows.arrival:
        rows.refuse(0, "no request", "at least one request")
    return Trace(rows.path, form, *(np.frombuffer(column, dtype=f"i{column.itemsize}") for column in rows.columns))


class _Rows:
    """The requests read so far, and the refusal of the next."""

    def __init__(self, path: Path, most: int | None, duration_s: float | None, progress: Callable[[int], None]) -> None:
        self.path, self._progress = path, progress
        self._most = math.inf if most is None else most
        self._duration = math.inf if duration_s is None else to_picoseconds(duration_s)
        self.arrival = array("q")
        self.columns = (self.arrival, array("i"), array("i"), array("i"))
        """Of arrivals, prompts, answers and cached prompt tokens."""
        self._first: float | None = None
        self._last: float = 0
        self._cached_seconds = ("", 0)

    def refuse(self, line: int, given: str, wanted: str) -> NoReturn:
        """Raises ProfileError for a line, counted from 1; 0 stands for the whole file."""
        raise ProfileError(self.path, f"line {line}" if line else "", given, wanted)

    def add(self, line: int, time: float, unit: int, tokens: tuple[int, int, int]) -> bool:
        """Takes a request: its time, in units of so many ps, and its lengths. Returns whether more are wanted."""
        if self._first is None:
            self._first = time
        elif time < self._last:
            self.refuse(line, f"a time {(self._last - time) * unit / 1e12:g} s before the line above", "rising times")
        self._last = time
        after = round((time - self._first) * unit)
        if after > self._duration:
            return False
        if after > LONGEST_SPAN_S * PICOSECONDS_PER_SECOND:
            self.refuse(line, f"a request {after / 1e12:,.0f} s after the first", f"at most {LONGEST_SPAN_S:,} s")
        for column, value in zip(self.columns, (after, *tokens), strict=True):
            column.append(value)
        rows = len(self.arrival)
        if rows % PROGRESS_ROWS == 0:
            self._progress(rows)
        return rows < self._most

    def number(self, line: int, value: object) -> float:
        """Returns a time that is a number."""
        time = math.nan
        if isinstance(value, str) and "_" not in value:
            try:
                time = float(value)
            except ValueError:
                self.refuse(line, _quoted(value), "an arrival time of at least 0")
        elif type(value) in (int, float):
            time = value  # type: ignore[assignment]
        if not 0 <= time < LATEST:
            self.refuse(line, _quoted(value), "an arrival time of at least 0")
        return time

    def date(self, line: int, text: str) -> int:
        """Returns a time that is a date, in picoseconds."""
        found = DATE.fullmatch(text.strip())
        if not found:
            self.refuse(line, _quoted(text), "a date such as 2023-11-16 18:17:03.9799600")
        whole, fraction, zone = found.groups()
        whole += zone or "+00:00"
        if whole != self._cached_seconds[0]:
            try:
                self._cached_seconds = whole, int(datetime.fromisoformat(whole).timestamp())
            except ValueError:
                self.refuse(line, _quoted(text), "a date that exists")
        return self._cached_seconds[1] * PICOSECONDS_PER_SECOND + int((fraction or "").ljust(12, "0"))

    def length(self, line: int, name: str, value: object) -> int:
        """Returns a number of tokens."""
        if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 12:
            value = int(value)
        if type(value) is not int or not 1 <= value <= MOST_TOKENS:
            self.refuse(line, f"{name} {_quoted(value)}", f"a whole number of tokens from 1 to {MOST_TOKENS:,}")
        return value


def _lines(file: BinaryIO, rows: _Rows) -> Iterator[str]:
    """Yields the lines of a file as text."""
    for number, raw in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
        if len(raw) == LONGEST_LINE:
            rows.refuse(number, f"a line of more than {LONGEST_LINE:,} bytes", "a request per line")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            rows.refuse(number, "bytes that are no text", "a trace in CSV or JSON lines")
        yield text


def _read_csv(lines: Iterator[str], rows: _Rows) -> str:
    reader = csv.reader(lines, strict=True, skipinitialspace=True)
    try:
        header = next(reader)
        names = [_plain(name) for name in header]
        found = {role: _column(names, role, rows) for role in NAMES}
        time_at, input_at, output_at = found.values()
        unit = 10**9 if names[time_at].endswith("ms") else PICOSECONDS_PER_SECOND
        dates: bool | None = None
        for row in reader:
            line = reader.line_num
            if not row:
                continue
            if len(row) != len(header):
                rows.refuse(line, f"{len(row)} columns", f"the {len(header)} columns of the header")
            if dates is None:
                dates = DATE.fullmatch(row[time_at].strip()) is not None
                unit = 1 if dates else unit
            time = rows.date(line, row[time_at]) if dates else rows.number(line, row[time_at])
            tokens = rows.length(line, INPUT, row[input_at]), rows.length(line, OUTPUT, row[output_at]), 0
            if not rows.add(line, time, unit, tokens):
                break
    except csv.Error as error:
        rows.refuse(reader.line_num, str(error), "a row of CSV")
    if dates and names[input_at] == "contexttokens":
        return "Azure"
    return "CSV, dates" if dates else "CSV, times in ms" if unit == 10**9 else "CSV, times in s"


def _read_json_lines(lines: Iterator[str], rows: _Rows, prefix_cache: bool) -> str:
    keys: tuple[str, ...] = ()
    unit = 0
    seen: set[object] = set()
    for line, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        row = _json_object(text, line, rows)
        if not keys:
            names = list(map(_plain, row))
            keys = tuple(list(row)[_column(names, role, rows)] for role in NAMES)
            mooncake = "hash_ids" in row or {"timestamp", "input_length", "output_length"} <= row.keys()
            unit = 10**9 if mooncake or _plain(keys[0]).endswith("ms") else PICOSECONDS_PER_SECOND
        if missing := [key for key in keys if key not in row]:
            rows.refuse(line, "nothing", f'the key "{missing[0]}"')
        time = rows.number(line, row[keys[0]])
        prompt, answer = rows.length(line, INPUT, row[keys[1]]), rows.length(line, OUTPUT, row[keys[2]])
        cached = min(_seen_blocks(row, line, rows, seen) * BLOCK_TOKENS, prompt - 1) if prefix_cache else 0
        if not rows.add(line, time, unit, (prompt, answer, cached)):
            break
    return "JSON lines, times in ms" if unit == 10**9 else "JSON lines, times in s"


def _json_object(text: str, line: int, rows: _Rows) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        rows.refuse(line, _quoted(text.strip()) if text.endswith("\n") else "half a line", "a JSON object")
    if not isinstance(row, dict):
        rows.refuse(line, _quoted(text.strip()), "a JSON object")
    return row


def _seen_blocks(row: dict[str, Any], line: int, rows: _Rows, seen: set[object]) -> int:
    """Returns how many blocks at the start of a prompt were seen before, and keeps all of them in mind."""
    blocks = row.get("hash_ids")
    if not isinstance(blocks, list) or not all(isinstance(block, int | str) for block in blocks):
        given = "no hash_ids" if blocks is None else f"hash_ids {_quoted(blocks)}"
        rows.refuse(line, given, "a list of block numbers, for --prefix-cache")
    known = next((n for n, block in enumerate(blocks) if block not in seen), len(blocks))
    seen.update(blocks[known:])
    return known


def _column(names: list[str], role: str, rows: _Rows) -> int:
    """Returns where a column stands whose name means something."""
    name = next((name for name in NAMES[role] if name in names), "")
    if not name:
        given = f"no column for the {role} among {_quoted(', '.join(names))}"
        rows.refuse(1, given, f'a header with a name such as "{EXAMPLES[role]}" for it')
    if names.count(name) > 1:
        rows.refuse(1, f'"{name}" twice', f"one column for the {role}")
    return names.index(name)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return f'"{text[:60]}…"' if len(text) > 60 else f'"{text}"'
