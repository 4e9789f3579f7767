"""Reads the matrix of `nvidia-smi topo -m`: which GPUs share a switch, a socket, or NVLink.

The words between two GPUs are nvidia-smi's own: PIX within one switch, PXB through several without the CPU, PHB through
a host bridge, NODE through several of one NUMA node, SYS between NUMA nodes, NV# over that many NVLinks.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import permutations, product
from pathlib import Path

from pipesim.errors import ProfileError
from pipesim.importers.text_files import printed_lines

WANTED = "the output of `nvidia-smi topo -m`, from its heading with GPU0 to the row of its last GPU"
SWITCH, SWITCHES, NUMA = ("PIX",), ("PIX", "PXB"), ("PIX", "PXB", "PHB", "NODE")
WORDS = frozenset({"X", "SYS", "SOC", *NUMA})
"""SOC is SYS of older drivers."""
NVLINK = re.compile(r"NV\d{1,3}")
GPU = re.compile(r"GPU(\d{1,3})")
COLUMN = re.compile(r"(?:GPU|NIC)\d{1,3}|(?:mlx|bnxt|irdma|hns|efa|roce|ib)\w*")
TITLE = re.compile(r"^\s*(?:#+|=+|-{2,})\s*(?P<text>\S.*?)\s*[#=-]*$")
LABEL = re.compile(r"^(?P<label>[A-Za-z0-9]{1,12})\s*[:.)]\s*(?P<text>.*)$")
CORES = re.compile(r"^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$")

Sets = tuple[tuple[int, ...], ...]


@dataclass
class TopoMatrix:
    """One matrix of a file."""

    title: str
    line: int
    columns: list[str]
    words: dict[int, list[str]] = field(default_factory=dict)
    """By GPU: what lies between it and each column."""
    numa: dict[int, str] = field(default_factory=dict)
    """By GPU, where printed."""
    lines: dict[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What `--section` calls it: the letter or number before its title's colon, else nothing."""
        found = LABEL.match(self.title)
        return found["label"] if found else ""

    @property
    def gpus(self) -> list[int]:
        """Its GPUs, as numbered in the heading."""
        return [int(found[1]) for column in self.columns if (found := GPU.fullmatch(column))]

    def between(self, one: int, other: int) -> str:
        """Returns the word between two GPUs."""
        return self.words[one][self.columns.index(f"GPU{other}")]


@dataclass(frozen=True)
class BoxTopology:
    """The tree that a matrix describes; sets of GPUs, each set in order."""

    gpus: int
    sockets: Sets
    """By NUMA node: nvidia-smi does not tell nodes of one socket apart from sockets."""
    switches: Sets
    """Outer ones first; a set within another hangs on it."""
    nvlink: Sets
    """GPUs that NVLink joins, two and more together; empty without NVLink."""
    title: str

    @property
    def kind(self) -> str:
        """What GPUs of a group share: "nvlink", "socket" or "switch"."""
        if self.nvlink:
            return "nvlink"
        return "switch" if len(self.sockets) == 1 and self.switches else "socket"

    @property
    def groups(self) -> Sets:
        """GPUs that reach each other at the better of two rates: over NVLink, else in a socket, else below a switch."""
        parts = {"nvlink": self.nvlink, "socket": self.sockets, "switch": _outermost(self.switches)}[self.kind]
        alone = sorted(set(range(self.gpus)) - {gpu for part in parts for gpu in part})
        return tuple(sorted([*parts, *((gpu,) for gpu in alone)]))


def read_topo(path: Path, section: str | None = None) -> BoxTopology:
    """Returns the topology in a file of `nvidia-smi topo -m` output.

    Args:
        path: the output, alone or among other text; with several matrices one has to be chosen.
        section: the letter or number before a matrix's title, its place from 1, or a part of its title.

    Raises:
        ProfileError: when there is no whole matrix, none or several are of that section, or it contradicts itself. The
            line, row or section is named.
    """
    matrices = _matrices(path, printed_lines(path, WANTED))
    matrix = _chosen(path, matrices, section)
    _check_whole(path, matrix)
    return _topology(path, matrix)


def _matrices(path: Path, lines: list[str]) -> list[TopoMatrix]:
    found: list[TopoMatrix] = []
    title = ""
    for number, line in enumerate(lines, start=1):
        tokens = line.replace("\t", " ").split()
        if columns := _heading(tokens):
            found.append(TopoMatrix(title, number, columns))
            title = ""
        elif tokens and GPU.fullmatch(tokens[0].rstrip(":")):
            if not found or (title and len(found[-1].words) == len(found[-1].gpus)):
                raise ProfileError(path, f"line {number}: {tokens[0]}", "a row without a heading above it", WANTED)
            _read_row(path, found[-1], number, tokens)
        elif heading := TITLE.match(line):
            title = heading["text"]
    if not found:
        legend = any("Legend" in line for line in lines)
        raise ProfileError(path, "", "a legend without a matrix" if legend else "no heading with GPU0", WANTED)
    return found


def _heading(tokens: list[str]) -> list[str]:
    """Returns the devices of a heading; nothing where the line is none. A row begins with a device and its words."""
    columns: list[str] = []
    for token in tokens:
        if not COLUMN.fullmatch(token):
            break
        columns.append(token)
    is_row = len(tokens) > len(columns) and (tokens[len(columns)] in WORDS or NVLINK.fullmatch(tokens[len(columns)]))
    return columns if columns and GPU.fullmatch(columns[0]) and not is_row else []


def _read_row(path: Path, matrix: TopoMatrix, number: int, tokens: list[str]) -> None:
    row = tokens[0].rstrip(":")
    gpu, words = int(row[3:]), tokens[1:]
    where = f"line {number}: {row}"
    if row not in matrix.columns:
        raise ProfileError(path, where, "a row of no column", f"one of {', '.join(matrix.columns)}")
    if gpu in matrix.words:
        raise ProfileError(path, where, "a second row of this GPU", "each GPU once", "the next matrix has no heading?")
    count = len(matrix.columns)
    known = next((i for i, word in enumerate(words) if word not in WORDS and not NVLINK.fullmatch(word)), len(words))
    if known < count:
        ended = known == len(words) or CORES.match(words[known])
        given = f"{known} column(s)" if ended else f'"{words[known]}" towards {matrix.columns[known]}'
        raise ProfileError(path, where, given, f"{count} of {', '.join(sorted(WORDS))} or NV#", "cut off, or edited?")
    matrix.words[gpu], matrix.lines[gpu] = words[:count], number
    if numa := _numa(words[count:]):
        matrix.numa[gpu] = numa


def _numa(rest: list[str]) -> str:
    """Returns what tells NUMA nodes apart: the node after the list of cores, else the list of cores itself."""
    rest = [word for word in rest if CORES.match(word)]
    return rest[1] if len(rest) > 1 else rest[0] if rest else ""


def _chosen(path: Path, matrices: list[TopoMatrix], section: str | None) -> TopoMatrix:
    if section is None and len(matrices) == 1:
        return matrices[0]
    names = ", ".join(f'{m.label or place} "{m.title or f"line {m.line}"}"' for place, m in enumerate(matrices, 1))
    if section is None:
        raise ProfileError(path, "", f"{len(matrices)} matrices: {names}", "one of them", "choose it with --section")
    wish = section.strip().lower()
    for fits in (
        lambda place, m: m.label.lower() == wish,
        lambda place, m: str(place) == wish and not any(n.label == wish for n in matrices),
        lambda place, m: len(wish) > 2 and wish in m.title.lower(),
    ):
        fitting = [m for place, m in enumerate(matrices, start=1) if fits(place, m)]
        if len(fitting) == 1:
            return fitting[0]
    raise ProfileError(path, "--section", f'"{section}"', f"one of {names}")


def _check_whole(path: Path, matrix: TopoMatrix) -> None:
    gpus = matrix.gpus
    if gpus != list(range(len(gpus))):
        given = f"the columns {', '.join(matrix.columns)}"
        raise ProfileError(path, f"line {matrix.line}", given, f"GPU0 to GPU{len(gpus) - 1} in order")
    for gpu in gpus:
        if gpu not in matrix.words:
            hint = "the output was cut off"
            raise ProfileError(path, f"line {matrix.line}: GPU{gpu}", "a column without a row", WANTED, hint)
    for gpu, other in product(gpus, repeat=2):
        word, back = matrix.between(gpu, other), matrix.between(other, gpu)
        where = f"line {matrix.lines[gpu]}: GPU{gpu}"
        if (word == "X") != (gpu == other):
            raise ProfileError(path, where, f"{word} towards GPU{other}", "X towards itself and nothing else")
        if word != back:
            raise ProfileError(path, where, f"{word} towards GPU{other}, which has {back}", "the same both ways")


def _topology(path: Path, matrix: TopoMatrix) -> BoxTopology:
    gpus = matrix.gpus

    def by(words: Collection[str]) -> Sets:
        return _classes(gpus, lambda one, other: matrix.between(one, other) in words)

    def near(one: int, other: int) -> bool:
        """NVLink hides the way over PCIe: the NUMA column tells it, and without one they are together."""
        if NVLINK.fullmatch(matrix.between(one, other)):
            return matrix.numa.get(one) == matrix.numa.get(other)
        return matrix.between(one, other) in NUMA

    sockets = _classes(gpus, near)
    leaves, roots = (tuple(part for part in by(words) if len(part) > 1) for words in (SWITCH, SWITCHES))
    for parts, words in ((leaves, SWITCH), (roots, SWITCHES)):
        _check_together(path, matrix, parts, words)
    nvlink = _classes(gpus, lambda one, other: bool(NVLINK.fullmatch(matrix.between(one, other))))
    nvlink = tuple(part for part in nvlink if len(part) > 1)
    switches = (*roots, *(part for part in leaves if part not in roots))
    return BoxTopology(len(gpus), sockets, switches, nvlink, matrix.title)


def _check_together(path: Path, matrix: TopoMatrix, parts: Sets, words: Collection[str]) -> None:
    """GPUs below one switch are below it pair by pair; NVLink may stand in the place of the word."""
    for one, other in (pair for part in parts for pair in permutations(part, 2)):
        word = matrix.between(one, other)
        if word not in words and not NVLINK.fullmatch(word):
            given = f"{word} towards GPU{other}, with which it shares a switch through another GPU"
            raise ProfileError(path, f"line {matrix.lines[one]}: GPU{one}", given, " or ".join(words))


def _classes(gpus: Iterable[int], joined: Callable[[int, int], bool]) -> Sets:
    """Returns the GPUs in sets that a relation joins, directly or through others."""
    parts: list[list[int]] = []
    for gpu in gpus:
        near = [part for part in parts if any(joined(gpu, other) for other in part)]
        parts = [part for part in parts if part not in near]
        parts.append(sorted([gpu, *(other for part in near for other in part)]))
    return tuple(tuple(part) for part in sorted(parts))


def _outermost(switches: Sets) -> Sets:
    return tuple(part for part in switches if not any(set(part) < set(other) for other in switches))
