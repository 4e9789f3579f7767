"""Parses the two kinds of file that nccl-tests writes, printed text and the JSON of `-J`, into checked rows.

Sizes are in bytes, times in microseconds and bandwidths in GB/s, as printed. `nccl_tests` judges what they mean.
"""

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from pipesim.importers import COLOUR, RefusedError

ALL_BUT_OWN_SHARE = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter"})
WHOLE_MESSAGE = frozenset({"sendrecv", "broadcast", "reduce"})
OPS = frozenset({"all_reduce"}) | ALL_BUT_OWN_SHARE | WHOLE_MESSAGE

BITS = {"int8": 8, "uint8": 8, "half": 16, "bfloat16": 16, "float": 32, "double": 64, "int32": 32, "uint32": 32}
BITS |= {"int64": 64, "uint64": 64, "f8e4m3": 8, "f8e5m2": 8, "fp8_e4m3": 8, "fp8_e5m2": 8}

PREFIX = re.compile(r"^\s*(?:\[[^\]<>]*\d,\s*\d+\](?:<std(?:out|err)>)?:|\d+:(?=\s))")
FAILURE = re.compile(
    r"(?:nccl|cuda|mpi) failure|segmentation fault|out of memory|unhandled cuda error|core dumped|caught signal", re.I
)
PROGRAM = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(sorted(OPS))})_perf(?:_mpi)?(?![A-Za-z0-9_])")
THREADS = re.compile(r"#\s*nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)")
VERSION = re.compile(r"#\s*nccl-tests version (\S+)(?:.*nccl-library=(\d+))?")
LIBRARY = re.compile(r"\bNCCL version (\d\S*)")
RANK = re.compile(r"#\s*Rank\s+(\d+)\s")
COLUMNS = re.compile(r"#\s*size\s+count\s+type\b")
BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+(OK|FAILED)", re.I)
AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|-?nan)$", re.I)
ROW = re.compile(rf"(?:^|\s)\d+\s+\d+\s+(?:{'|'.join(BITS)})(?:\s|$)", re.A)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?", re.A)

WHOLE_FILE = "the whole output of one nccl-tests run, from its # nThread line to its # Avg bus bandwidth line"
ONE_PROCESS = "or several processes wrote into this file: under mpirun, nccl-tests must be built with MPI=1"


@dataclass(frozen=True)
class Timing:
    """One half of a row: time [us], bandwidths [GB/s], and whether the results were checked."""

    time: Decimal
    algbw: Decimal
    busbw: Decimal
    checked: bool


@dataclass(frozen=True)
class Row:
    """One measured size [bytes]; `where` names its line or its key."""

    where: str
    size: int
    count: int
    dtype: str
    redop: str
    root: str
    timings: dict[str, Timing]
    """By "out-of-place" and "in-place"."""


@dataclass
class Run:
    """One run of one nccl-tests program, as far as its file tells."""

    begun: str = ""
    named: str = ""
    called: set[str] = field(default_factory=set)
    ranks: list[int] = field(default_factory=list)
    per_process: int = 0
    tests: str = ""
    library: str = ""
    judged: bool = False
    rows: list[Row] = field(default_factory=list)

    @property
    def version(self) -> str:
        """Of the tests and of NCCL, as far as known."""
        parts = [("nccl-tests", self.tests), ("NCCL", self.library)]
        return ", ".join(f"{name} {number}" for name, number in parts if number)


def _timing(where: str, given: dict[str, Decimal], wrong: Decimal | None) -> Timing:
    """Returns one half of a row; `wrong` is the number of wrong values, None when nothing was checked."""
    for name, value in given.items():
        if not (value.is_finite() and abs(value) < Decimal("1e18")):
            raise RefusedError(where, f"{name} {value}", "a finite number")
    if given["time"] <= 0:
        raise RefusedError(where, f"a time of {given['time']} us", "a time above zero")
    if given["algbw"] < 0 or given["busbw"] < 0:
        raise RefusedError(where, "a negative bandwidth", "bandwidths of at least zero")
    if wrong is not None and wrong != 0:
        hint = "the collective returned wrong data; its times mean nothing"
        raise RefusedError(where, f"{wrong} wrong values", "no wrong values", hint)
    return Timing(given["time"], given["algbw"], given["busbw"], wrong is not None)


class TextReader:
    """Reads printed output line by line; a run lasts until its closing line."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.run = Run()
        self.halves: list[str] = []
        self.columns: list[str] = []

    def runs_in(self, text: str) -> list[Run]:
        """Returns the runs in a printed output, each of them closed."""
        lines = [PREFIX.sub("", COLOUR.sub("", line)).strip() for line in text.split("\n")]
        if not any(lines):
            raise RefusedError("", "an empty file", WHOLE_FILE)
        for number, line in enumerate(lines, 1):
            if FAILURE.search(line):
                hint = "the run crashed; repair it and measure again"
                raise RefusedError(f"line {number}", f'"{line[:120]}"', "a run without failures", hint)
        for number, line in enumerate(lines, 1):
            self._line(f"line {number}", line)
        last = max(number for number, line in enumerate(lines, 1) if line)
        if self.run.begun:
            self._cut_off(f"line {last}", "the file ends here, before its # Avg bus bandwidth line")
        if not self.runs:
            raise RefusedError(f"line {last}", "no nccl-tests table", WHOLE_FILE)
        return self.runs

    def _cut_off(self, where: str, given: str) -> None:
        raise RefusedError(where, given, WHOLE_FILE, f"the run of {self.run.begun} was cut off, {ONE_PROCESS}")

    def _line(self, where: str, line: str) -> None:
        run = self.run
        if found := THREADS.match(line):
            self._begin(where, again=run.per_process > 0)
            run.per_process = max(1, int(found[1]) * int(found[2]))
        elif found := VERSION.match(line):
            run.tests = found[1]
            run.library = _version_of_code(found[2]) if found[2] else run.library
        elif found := RANK.match(line):
            run.ranks.append(int(found[1]))
        elif found := BOUNDS.match(line):
            if int(found[1]) or found[2].upper() != "OK":
                raise RefusedError(where, f"{found[1]} values out of bounds", "no wrong values")
            run.judged = True
        elif AVERAGE.match(line) and run.begun:
            if "error" in self.columns and not run.judged:
                raise RefusedError(where, "no # Out of bounds values line", "that line above this one")
            self.runs.append(run)
            self.run, self.columns, self.halves = Run(), [], []
        elif line.startswith("#"):
            self._heading(where, line)
        elif ROW.search(line) or (self.columns and re.match(r"-?\d+(?:\s|$)", line, re.A)):
            self._begin(where)
            run.rows.append(self._row(where, line.split()))
        elif found := LIBRARY.search(line):
            run.library = found[1]
        else:
            self._command(line)

    def _begin(self, where: str, again: bool = False) -> None:
        if again or (self.run.rows and not self.columns):
            self._cut_off(where, "the next test begins here, before the # Avg bus bandwidth line of the last")
        self.run.begun = self.run.begun or where

    def _heading(self, where: str, line: str) -> None:
        program = PROGRAM.search(line)
        if "Collective test starting" in line and program:
            self._begin(where, again=bool(self.run.named or self.run.rows))
            self.run.named = program[1]
        elif "Collective test concluded" in line:
            return
        elif halves := re.findall(r"out-of-place|in-place", line):
            self.halves = halves
        elif COLUMNS.match(line):
            self._begin(where, again=bool(self.columns))
            self._set_columns(where, line.lstrip("# ").split())
        elif self.columns and "(B)" in line and ("(us)" not in line or "(GB/s)" not in line):
            raise RefusedError(where, f'the units "{line}"', "times in us and bandwidths in GB/s")
        elif found := LIBRARY.search(line):
            self.run.library = found[1]
        else:
            self._command(line)

    def _command(self, line: str) -> None:
        programs = set(PROGRAM.findall(line))
        if programs and not self.run.begun:
            self.run.called |= programs

    def _set_columns(self, where: str, columns: list[str]) -> None:
        if "cputime" in columns:
            hint = "measure without -C: it reports the time of the host's calls"
            raise RefusedError(where, "CPU times", "times of the GPUs", hint)
        starts = [index for index, name in enumerate(columns) if name == "time"]
        whole = all(columns[s + 1 : s + 3] == ["algbw", "busbw"] and columns[s + 3 : s + 4] for s in starts)
        if not whole or len(starts) != len(self.halves) or sorted(self.halves) not in HALVES:
            given = f'the columns "{" ".join(columns)}" under "{" ".join(self.halves)}"'
            wanted = "time, algbw, busbw and #wrong, once under out-of-place and once under in-place"
            raise RefusedError(where, given, wanted)
        self.columns = columns

    def _row(self, where: str, fields: list[str]) -> Row:
        if not self.columns:
            raise RefusedError(where, "a row without column headings above it", WHOLE_FILE)
        starts = [index for index, name in enumerate(self.columns) if name == "time"]
        width = starts[-1] + 4
        extra = len(self.columns) > width
        if len(fields) < width or (len(fields) > width and not extra):
            given = f"a half or broken row: {len(fields)} of {width} columns"
            raise RefusedError(where, given, "whole rows", f"the file was cut off here, {ONE_PROCESS}")
        label = dict(zip(self.columns[: starts[0]], fields, strict=False))
        for name in ("size", "count"):
            if not re.fullmatch(r"\d{1,18}", label[name], re.A):
                raise RefusedError(where, f'the {name} "{label[name]}"', "a whole number of at least zero")
        timings = {}
        for half, start in zip(self.halves, starts, strict=True):
            values = fields[start : start + 4]
            given_ = dict(zip(("time", "algbw", "busbw"), (_printed(where, v) for v in values[:3]), strict=True))
            timings[half] = _timing(f"{where}: {half}", given_, _wrong(where, values[3], self.columns[start + 3]))
        texts = label["type"], label.get("redop", ""), label.get("root", "")
        return Row(where, int(label["size"]), int(label["count"]), *texts, timings)


HALVES = (["in-place", "out-of-place"], ["out-of-place"])


def _printed(where: str, text: str) -> Decimal:
    if not NUMBER.fullmatch(text):
        raise RefusedError(where, f'"{text}"', "a number")
    return Decimal(text)


def _wrong(where: str, text: str, column: str) -> Decimal | None:
    """Returns the number of wrong values; older versions print the largest error, and judge it in their last lines."""
    if text == "N/A":
        return None
    if column == "error" and re.fullmatch(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", text, re.A):
        return Decimal(0)
    return _printed(where, text)


def _version_of_code(code: str) -> str:
    number = int(code)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text} is no number") from None


def json_run(text: str) -> Run:
    """Returns the run in a file that `-J` wrote."""
    try:
        document = json.loads(text, parse_float=_number, parse_int=_number, parse_constant=_number)
    except json.JSONDecodeError as error:
        given = f"broken or cut-off JSON: {error.msg}"
        raise RefusedError(f"line {error.lineno}", given, "the whole file that nccl-tests -J wrote") from None
    except (ValueError, RecursionError) as error:
        raise RefusedError("", f"broken JSON: {error}", "the file that nccl-tests -J wrote") from None
    results = document.get("results")
    if not isinstance(results, list) or not all(isinstance(r, dict) and "out_of_place" in r for r in results):
        given = f"JSON of another tool, with the keys {', '.join(list(document)[:8])}"
        raise RefusedError("results", given, "a list of rows with size and out_of_place, as nccl-tests -J writes")
    bounds = document.get("out_of_bounds")
    count = bounds.get("out_of_bounds", bounds.get("count")) if isinstance(bounds, dict) else bounds
    if count not in (None, 0, "0") or (isinstance(bounds, dict) and bounds.get("okay") is False):
        raise RefusedError("out_of_bounds", f"{count} values out of bounds", "no wrong values")
    run = Run(begun="results", tests=_text(document, "version"), library=_text(document, "nccl_version"))
    run.called = set(PROGRAM.findall(json.dumps([document.get("args"), document.get("test")], default=str)))
    devices = document.get("devices")
    for index, device in enumerate(devices if isinstance(devices, list) else []):
        rank = device.get("rank", index) if isinstance(device, dict) else index
        run.ranks.append(int(rank) if isinstance(rank, int | Decimal) and rank >= 0 else index)
    run.rows = [_json_row(f"results[{index}]", result) for index, result in enumerate(results)]
    return run


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key, "")
    return str(value) if isinstance(value, str | Decimal) else ""


def _json_row(where: str, result: dict[str, Any]) -> Row:
    size, count = (_json_number(where, result, name) for name in ("size", "count"))
    if min(size, count) < 0 or max(size, count) > 10**18 or size % 1 or count % 1:
        raise RefusedError(f"{where}.size", f"{size} bytes, {count} elements", "whole numbers of at least zero")
    timings = {}
    for half in ("out_of_place", "in_place"):
        part, key = result.get(half), f"{where}.{half}"
        if part is None and half == "in_place":
            continue
        if not isinstance(part, dict):
            raise RefusedError(key, repr(part), "an object with time, alg_bw, bus_bw and nwrong")
        names = {"time": ("time",), "algbw": ("alg_bw", "algbw"), "busbw": ("bus_bw", "busbw")}
        given = {name: _json_number(key, part, *spellings) for name, spellings in names.items()}
        unchecked = part.get("nwrong", part.get("wrong")) in (None, "N/A", -1)
        wrong = None if unchecked else _json_number(key, part, "nwrong", "wrong")
        timings[half.replace("_", "-")] = _timing(key, given, wrong)
    dtype, redop, root = (_text(result, key) for key in ("type", "redop", "root"))
    return Row(where, int(size), int(count), dtype, redop, root, timings)


def _json_number(where: str, part: dict[str, Any], *names: str) -> Decimal:
    value = next((part[name] for name in names if name in part), None)
    value = Decimal(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
    if not isinstance(value, Decimal) or not value.is_finite():
        raise RefusedError(f"{where}.{names[0]}", "nothing" if value is None else repr(value), "a number")
    return value
