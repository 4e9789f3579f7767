"""Reads what nccl-tests measured: `all_reduce_perf` and its siblings, as printed text or as the JSON of `-J FILE`.

In those files a size is in bytes, a time in microseconds and a bandwidth in GB/s (1e9 bytes per second); what is
returned is in bytes and seconds. A file is believed only when its columns agree with each other:
algbw = size / time, and busbw = algbw * factor, with the factors of nccl-tests doc/PERFORMANCE.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from pipesim.errors import ProfileError, UsageError
from pipesim.files import read_text
from pipesim.importers import RefusedError
from pipesim.importers.nccl_tests_files import (
    ALL_BUT_OWN_SHARE,
    BITS,
    ONE_PROCESS,
    OPS,
    WHOLE_FILE,
    WHOLE_MESSAGE,
    Row,
    Run,
    TextReader,
    json_run,
)

MOST_RANKS = 4096
SECONDS_PER_PRINTED_TIME = Decimal("1e-6")
NEVER_CHECKED_IN_PLACE = frozenset({"alltoall", "sendrecv"})
"""nccl-tests times these in place but cannot check them there: it prints N/A in that column of a checked run."""


@dataclass(frozen=True)
class CollectiveMeasurement:
    """One collective on one group of GPUs, timed over message sizes by nccl-tests."""

    op: str
    """"all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "broadcast", "reduce", "gather", "scatter"."""  # noqa: E501
    ranks: int
    dtype: str
    """As nccl-tests names it: "float", "half", "bfloat16"."""
    points: tuple[tuple[float, float], ...]
    """(message size as nccl-tests counts it [bytes], time [s]), out of place, in the order of the file."""
    in_place_points: tuple[tuple[float, float], ...]
    """The same in place; empty where nccl-tests cannot check it (alltoall, sendrecv)."""
    version: str
    """Such as "nccl-tests 2.17.1, NCCL 2.27.3"; empty when the file does not say."""
    redop: str = "none"


def bus_factor(op: str, ranks: int) -> float:
    """Returns busbw / algbw [1] of a collective over so many ranks (nccl-tests doc/PERFORMANCE.md)."""
    if op in WHOLE_MESSAGE:
        return 1.0
    share = (ranks - 1) / ranks
    return 2 * share if op == "all_reduce" else share


def read_nccl_tests(
    path: Path, *, op: str | None = None, ranks: int | None = None, allow_unchecked: bool = False
) -> list[CollectiveMeasurement]:
    """Returns the measurements in a file of nccl-tests output, one per test, data type, reduction and root.

    Rows of zero bytes, which nccl-tests prints when a message is smaller than one element per rank, are left out.

    Args:
        path: printed output (of one or several tests), or one file that `-J` wrote.
        op: the collective, needed when the file neither names it nor tells it by its columns.
        ranks: the number of ranks, needed when the file neither lists them nor tells it by its bandwidths.
        allow_unchecked: accept results that nccl-tests did not check (`-c 0`).

    Raises:
        UsageError: when `op` or `ranks` is none that nccl-tests knows.
        ProfileError: when the file is cut off, failed, wrong, unchecked, contradictory or not of nccl-tests. The
            line (of text) or the key (of JSON) is named.
    """
    if op is not None and op not in OPS:
        raise UsageError("op", op, f"one of {', '.join(sorted(OPS))}")
    if ranks is not None and ranks < 1:
        raise UsageError("ranks", ranks, "a number of at least one")
    text = read_text(path, WHOLE_FILE)
    try:
        runs = [json_run(text)] if text.lstrip().startswith("{") else TextReader().runs_in(text)
        return [found for run in runs for found in _measurements(run, op, ranks, allow_unchecked)]
    except RefusedError as refusal:
        raise ProfileError(path, *refusal.args) from None


def _measurements(run: Run, op: str | None, ranks: int | None, allow_unchecked: bool) -> list[CollectiveMeasurement]:
    rows = [row for row in run.rows if row.size > 0]
    if not rows:
        raise RefusedError(run.begun, "a table without rows of more than zero bytes", "rows of measured sizes")
    for row in rows:
        _check_algbw(row)
    name, count = _settle(run, rows, op, ranks)
    blind = NEVER_CHECKED_IN_PLACE if not allow_unchecked else frozenset()
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        for half, timing in row.timings.items():
            if not (timing.checked or allow_unchecked or (half == "in-place" and name in NEVER_CHECKED_IN_PLACE)):
                hint = "measure again with -c 1, or allow unchecked results"
                raise RefusedError(f"{row.where}: {half}", "results that were not checked (N/A)", "#wrong of 0", hint)
        groups.setdefault((row.dtype, row.redop or "none", row.root), []).append(row)
    return [
        CollectiveMeasurement(
            name,
            count,
            dtype,
            _points(group, "out-of-place"),
            () if name in blind else _points(group, "in-place"),
            run.version,
            redop,
        )
        for (dtype, redop, _), group in groups.items()
    ]


def _points(rows: Iterable[Row], half: str) -> tuple[tuple[float, float], ...]:
    timed = [(row.size, row.timings[half].time) for row in rows if half in row.timings]
    return tuple((float(size), float(time * SECONDS_PER_PRINTED_TIME)) for size, time in timed)


def _rounding(printed: Decimal) -> float:
    """Returns half a unit of the last printed digit."""
    return 0.5 * 10.0 ** int(printed.as_tuple().exponent)


def _check_algbw(row: Row) -> None:
    for half, timing in row.timings.items():
        time, algbw = float(timing.time), float(timing.algbw)
        slack = _rounding(timing.algbw) + 1e-9 * algbw
        low, high = (row.size / 1e3 / (time + sign * _rounding(timing.time)) for sign in (1, -1))
        if not low - slack <= algbw <= high + slack:
            given, wanted = f"algbw {algbw} GB/s", f"{row.size} B / {time} us = {row.size / 1e3 / time:.4g} GB/s"
            raise RefusedError(f"{row.where}: {half}", given, wanted, "columns were mixed up or edited")


def _explains(op: str, ranks: int, row: Row) -> bool:
    """Whether the bandwidths and the element count of a row are those of this collective over so many ranks."""
    factor = bus_factor(op, ranks)
    for timing in row.timings.values():
        slack = factor * _rounding(timing.algbw) + _rounding(timing.busbw) + 1e-9 * float(timing.busbw)
        if abs(float(timing.algbw) * factor - float(timing.busbw)) > slack:
            return False
    whole = row.count * BITS.get(row.dtype, 0) // 8
    return whole in (0, row.size) or (op in ALL_BUT_OWN_SHARE and whole * ranks == row.size)


def _settle(run: Run, rows: list[Row], op: str | None, ranks: int | None) -> tuple[str, int]:
    """Returns the collective and the number of ranks: the one pair that explains every row."""
    known = _known_ranks(run, ranks)
    named = run.named or (next(iter(run.called)) if len(run.called) == 1 else "")
    if op and named and op != named:
        raise RefusedError(run.begun, f"a test of {named}", op)
    step = max(1, run.per_process)
    counts = [known] if known else range(step, MOST_RANKS + 1, step)
    name = named or op
    ops = [name] if name else _ops_by_columns(rows)
    fits = {o: [n for n in counts if all(_explains(o, n, row) for row in rows)] for o in ops}
    fits = {o: found for o, found in fits.items() if found}
    if not fits:
        tried = f"{' or '.join(ops)} over {known or 'any number of'} ranks"
        row = next((r for r in rows if not any(_explains(o, n, r) for o in ops for n in counts)), rows[0])
        out = row.timings["out-of-place"]
        given = f"busbw {out.busbw} with algbw {out.algbw} GB/s and {row.count} elements of {row.dtype}"
        raise RefusedError(row.where, given, f"what {tried} gives", "the file contradicts itself")
    if len(fits) > 1:
        raise RefusedError(run.begun, f"a table of {' or '.join(fits)}", "the name of the test", "give op")
    chosen, found = next(iter(fits.items()))
    if len(found) > 1:
        given = f"a table that fits {found[0]}, {found[1]} or more ranks"
        raise RefusedError(run.begun, given, "# Rank lines", "give ranks")
    return chosen, found[0]


def _known_ranks(run: Run, ranks: int | None) -> int | None:
    listed = len(run.ranks) or None
    if sorted(run.ranks) != list(range(len(run.ranks))):
        raise RefusedError(run.begun, f"the ranks {run.ranks}", "each rank once", ONE_PROCESS)
    if listed and ranks and listed != ranks:
        raise RefusedError(run.begun, f"{listed} ranks", f"{ranks} ranks")
    if listed and run.per_process and listed % run.per_process:
        raise RefusedError(run.begun, f"{listed} ranks", f"a multiple of the {run.per_process} GPUs of a process")
    return listed or ranks


def _ops_by_columns(rows: list[Row]) -> list[str]:
    """Returns the collectives that print such redop and root columns (sendrecv prints a redop in some versions)."""
    row = rows[0]
    reduces, rooted = row.redop not in ("", "none"), row.root not in ("", "-1")
    if rooted:
        return ["reduce"] if reduces else ["broadcast", "gather", "scatter"]
    ops = ["all_reduce", "reduce_scatter", "sendrecv"] if reduces else ["all_gather", "alltoall", "sendrecv"]
    out, within = (row.timings.get(half) for half in ("out-of-place", "in-place"))
    if out and within and out.checked:
        ops = [
            o for o in ops if (o in NEVER_CHECKED_IN_PLACE) != within.checked or (within.checked and o == "alltoall")
        ]
    return ops
