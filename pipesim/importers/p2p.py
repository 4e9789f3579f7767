"""Reads what NVIDIA's samples say of transfers between GPUs: p2pBandwidthLatencyTest, its shorter kin and simpleP2P.

Bandwidths are in GB/s (1e9 bytes per second) and latencies in microseconds there, in SI units here. The diagonal, a
copy within a GPU, is left out; whatever stands there ("—", "X", a number) will do.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal

from pipesim.errors import ProfileError
from pipesim.importers.text_files import printed_lines

Kind = Literal["connectivity", "unidirectional", "bidirectional", "latency"]
Matrix = tuple[tuple[float, ...], ...]

WANTED = "the output of p2pBandwidthLatencyTest or simpleP2P: matrices over all GPUs"
HEADING = re.compile(
    r"^\s*(?:(?P<what>D\\D|Dst\S*|Src\S*|GPU|CPU)\s+)?(?P<columns>(?:GPU)?0(?:\s+(?:GPU)?\d{1,3})*)\s*$"
)
ROW = re.compile(r"^\s*(?:GPU\s*)?(?P<gpu>\d{1,3})\s*:?\s+(?P<values>\S.*?)\s*$")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.I)
NOTHING = frozenset({"—", "–", "-", "--", "X", "x", "N/A", "n/a", "nan", "inf"})
PEER = re.compile(r"Device=(\d+)\s+(CAN|CANNOT)\s+Access\s+Peer\s+Device=(\d+)", re.I)
PEER_OF_SIMPLE = re.compile(r"\(GPU(\d+)\)\s*->\s*.*\(GPU(\d+)\)\s*:\s*(Yes|No)", re.I)
SPEED_OF_SIMPLE = re.compile(r"cudaMemcpy\w*.*?GPU(\d+)\s+and\s+GPU(\d+):\s*(\d+(?:\.\d+)?)\s*GB/s", re.I)
TWO_LEVELS = 1.15
"""Quotient of two neighbouring bandwidths beyond which they are two levels; runs of one pair differ by up to 5 %."""


@dataclass
class P2PReport:
    """Everything that a file says; matrices in SI units, by what was measured and whether with peer access."""

    matrices: dict[tuple[Kind, bool], Matrix] = field(default_factory=dict)
    access: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Peer access from one GPU to another, where the file says it in words."""

    @property
    def gpus(self) -> int:
        """GPUs that it is about."""
        largest = [len(matrix) for matrix in self.matrices.values()]
        return max([*largest, *(max(pair) + 1 for pair in self.access)], default=0)


@dataclass(frozen=True)
class MeasuredLinks:
    """What follows for a box; None where the file does not tell."""

    gpus: int
    peer_access: bool | None
    same_group_bandwidth: float | None
    cross_group_bandwidth: float | None
    groups: tuple[tuple[int, ...], ...]
    """GPUs that reach each other faster than the others; empty where all pairs are alike."""
    staged_bandwidth: float | None
    latency: float | None
    """Of a small write with peer access, without the launch of a kernel."""
    staged_latency: float | None
    notes: tuple[str, ...] = ()


def read_p2p(path: Path) -> P2PReport:
    """Returns the matrices of a file, and what it says in words.

    Raises:
        ProfileError: when there is none, or one is not whole. The line is named.
    """
    lines = printed_lines(path, WANTED)
    report = P2PReport()
    title, index = "", 0
    while index < len(lines):
        line = lines[index]
        heading = HEADING.match(line)
        if heading and (title or heading["what"]):
            index = _read_matrix(path, lines, index, heading, title, report)
            continue
        _read_words(line, report)
        if re.search(r"matrix|bandwidth|latency|directional", line, re.I) and not line.strip().startswith("*"):
            title = line.strip("#= \t")
        index += 1
    if not report.matrices and not report.access:
        raise ProfileError(path, "", "no matrix and no word of peer access", WANTED)
    if report.matrices and report.gpus < 2:
        raise ProfileError(path, "", "matrices of one GPU", WANTED)
    sizes = {len(matrix) for matrix in report.matrices.values()}
    if len(sizes) > 1:
        raise ProfileError(path, "", f"matrices of {' and '.join(map(str, sorted(sizes)))} GPUs", "one box")
    return report


def _read_words(line: str, report: P2PReport) -> None:
    if found := PEER.search(line):
        report.access[int(found[1]), int(found[3])] = found[2].upper() == "CAN"
    elif found := PEER_OF_SIMPLE.search(line):
        report.access[int(found[1]), int(found[2])] = found[3].lower() == "yes"
    elif found := SPEED_OF_SIMPLE.search(line):
        speed = float(found[3]) * 1e9
        if speed > 0 and {int(found[1]), int(found[2])} == {0, 1}:
            report.matrices.setdefault(("unidirectional", True), ((0.0, speed), (speed, 0.0)))


def _read_matrix(
    path: Path, lines: Sequence[str], start: int, heading: re.Match[str], title: str, report: P2PReport
) -> int:
    """Reads one matrix into a report; returns the index of the line after it."""
    gpus = len(heading["columns"].split())
    kind, peer_access = _meaning(title)
    rows: list[tuple[float, ...]] = []
    index = start + 1
    while index < len(lines) and len(rows) < gpus:
        row = ROW.match(lines[index]) or re.match(r"^\s*(?:GPU\s*)?(?P<gpu>\d{1,3})\s*:?(?P<values>)\s*$", lines[index])
        if not row or int(row["gpu"]) != len(rows):
            break
        rows.append(_row(path, index + 1, len(rows), gpus, row["values"].split(), kind))
        index += 1
    if len(rows) < gpus:
        given = f'{len(rows)} of {gpus} rows in "{title}"'
        raise ProfileError(path, f"line {index + 1}: GPU{len(rows)}", given, WANTED, "the output was cut off here")
    if heading["what"] != "CPU":  # The CPU's view of a latency is the second table below one title.
        report.matrices.setdefault((kind, peer_access), tuple(rows))
    return index


def _meaning(title: str) -> tuple[Kind, bool]:
    """Returns what a matrix below a title holds, and whether with peer access."""
    text = title.lower()
    peer_access = not re.search(r"p2p\s*=?\s*\(?(?:disabled|off)|without p2p|no p2p", text)
    if "connectivity" in text:
        return "connectivity", True
    if "latency" in text:
        return "latency", peer_access
    return "bidirectional" if "bidir" in text else "unidirectional", peer_access


def _row(path: Path, line: int, gpu: int, gpus: int, words: Sequence[str], kind: Kind) -> tuple[float, ...]:
    where = f"line {line}: GPU{gpu}"
    if len(words) != gpus:
        raise ProfileError(path, where, f"{len(words)} columns", f"{gpus} columns", "cut off, or edited?")
    scale = {"connectivity": 1.0, "latency": 1e-6}.get(kind, 1e9)
    values = []
    for other, word in enumerate(words):
        number = NUMBER.fullmatch(word)
        value = float(word) if number else 0.0
        if other != gpu and (not number or not (value > 0 or kind == "connectivity")):
            raise ProfileError(path, where, f'"{word}" towards GPU{other}', "a number above 0")
        if other == gpu and not number and word not in NOTHING:
            raise ProfileError(path, where, f'"{word}" on the diagonal', 'a number or "-"')
        values.append(value * scale)
    return tuple(values)


def links_of(report: P2PReport) -> MeasuredLinks:
    """Returns what a report means for the links of a box: levels of bandwidth, staging, peer access, latencies."""
    notes: list[str] = []
    access = _peer_access(report, notes)
    matrices = report.matrices
    fast = matrices.get(("unidirectional", True))
    if fast is None and (both := matrices.get(("bidirectional", True))):
        fast = tuple(tuple(value / 2 for value in row) for row in both)
        notes.append("no unidirectional matrix: half of the bidirectional one stands for it")
    levels = None if fast is None or access is False else _levels(fast, notes)
    same, cross, groups = levels or (None, None, ())
    staged = matrices.get(("unidirectional", False))
    if staged is None and access is False:
        staged = fast
    return MeasuredLinks(
        report.gpus,
        access,
        same,
        cross,
        groups,
        _usual(staged),
        _usual(matrices.get(("latency", True))) if access is not False else None,
        _usual(matrices.get(("latency", False))),
        tuple(notes),
    )


def _peer_access(report: P2PReport, notes: list[str]) -> bool | None:
    connected = report.matrices.get(("connectivity", True))
    known = list(report.access.values())
    if connected:
        known = [value > 0 for value in _off_diagonal(connected)]
    if not known:
        return None
    if any(known) and not all(known):
        notes.append(f"{known.count(False)} of {len(known)} pairs have no peer access: taken as a box without")
    return all(known)


def _off_diagonal(matrix: Matrix) -> list[float]:
    return [value for row, values in enumerate(matrix) for column, value in enumerate(values) if row != column]


def _usual(matrix: Matrix | None) -> float | None:
    values = _off_diagonal(matrix) if matrix else []
    return median(values) if values else None


def _levels(matrix: Matrix, notes: list[str]) -> tuple[float, float, tuple[tuple[int, ...], ...]]:
    """Returns bandwidth within groups, across them, and the groups; none where all pairs are of one level.

    Two levels lie on either side of the widest gap between neighbouring bandwidths, if it is wide enough and the pairs
    above it are exactly those within groups. Otherwise the median stands for all pairs.
    """
    gpus = range(len(matrix))
    both_ways = {(a, b): min(matrix[a][b], matrix[b][a]) for a in gpus for b in gpus if a < b}
    values = sorted(both_ways.values())
    gaps = [(high / low, (high * low) ** 0.5) for low, high in pairwise(values)]
    widest, border = max(gaps, default=(1.0, 0.0))
    middle = median(_off_diagonal(matrix))
    if widest < TWO_LEVELS:
        return middle, middle, ()
    groups = tuple(_groups(len(matrix), [pair for pair, value in both_ways.items() if value > border]))
    within = {pair: any(set(pair) <= set(group) for group in groups) for pair in both_ways}
    if any((value > border) != within[pair] for pair, value in both_ways.items()):
        notes.append("bandwidths are of several levels that make no groups: the median stands for all pairs")
        return middle, middle, ()
    levels = [
        median(matrix[a][b] for a in gpus for b in gpus if a != b and within[min(a, b), max(a, b)] == inside)
        for inside in (True, False)
    ]
    return levels[0], levels[1], groups


def _groups(gpus: int, pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, ...]]:
    left = set(range(gpus))
    while left:
        first = min(left)
        group = {first} | {b for a, b in pairs if a == first}
        yield tuple(sorted(group & left))
        left -= group
