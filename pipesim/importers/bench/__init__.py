"""Readers of benchmark results: the tool is recognised by a file's content, never by its name.

One function that reads and one that recognises, one row in `TOOLS`, add a format.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pipesim.errors import ProfileError
from pipesim.importers.bench.consistency import check_units
from pipesim.importers.bench.documents import WANTED, Broken, Piece, pieces, read_text
from pipesim.importers.bench.flags import ignores_eos
from pipesim.importers.bench.genai_perf import is_genai_perf, read_genai_perf
from pipesim.importers.bench.inferencex import is_inferencex, read_inferencex
from pipesim.importers.bench.kinds import known_text, look_of_object, look_of_text
from pipesim.importers.bench.one_batch import is_one_batch, is_one_batch_server, read_one_batch, read_one_batch_server
from pipesim.importers.bench.record import BenchRun, RefusedError
from pipesim.importers.bench.sglang import is_sglang_serving, read_sglang_serving
from pipesim.importers.bench.vllm import (
    is_vllm_latency,
    is_vllm_serve,
    is_vllm_throughput,
    read_vllm_latency,
    read_vllm_serve,
    read_vllm_throughput,
)


class Tool(NamedTuple):
    """How one tool's results are told from others', and read."""

    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], BenchRun]


TOOLS: dict[str, Tool] = {
    "sglang.bench_serving": Tool(is_sglang_serving, read_sglang_serving),
    "sglang.bench_one_batch": Tool(is_one_batch, read_one_batch),
    "sglang.bench_one_batch_server": Tool(is_one_batch_server, read_one_batch_server),
    "InferenceX": Tool(is_inferencex, read_inferencex),
    "aiperf or genai-perf": Tool(is_genai_perf, read_genai_perf),
    "vllm bench latency": Tool(is_vllm_latency, read_vllm_latency),
    "vllm bench throughput": Tool(is_vllm_throughput, read_vllm_throughput),
    "vllm bench serve": Tool(is_vllm_serve, read_vllm_serve),
}
"""In the order in which they are tried: the loosest last."""


@dataclass(frozen=True)
class BenchFile:
    """What a file held: runs, each with its place unless it is the only one, and what was refused."""

    runs: tuple[tuple[str, BenchRun], ...]
    refused: tuple[ProfileError, ...]


def read_bench(path: Path) -> BenchFile:
    """Returns the runs of a file, and the complaints about parts of it that are none.

    Raises:
        ProfileError: when no run is left.
    """
    text = read_text(path, WANTED)
    runs, refused = [], []
    found = list(pieces(text))
    for piece in found:
        try:
            runs.append((piece.where if len(found) > 1 else "", _read(piece)))
        except RefusedError as refusal:
            key = f"{piece.where}: {refusal.key}" if refusal.key else piece.where
            refused.append(ProfileError(path, key, refusal.given, refusal.wanted))
    if not runs and (not refused or known_text(text)):
        raise ProfileError(path, "", look_of_text(text), f"{WANTED} of {', '.join(TOOLS)}")
    if not runs:
        first = refused[0]
        more = f"and {len(refused) - 1} more part(s) of this file" if len(refused) > 1 else ""
        raise ProfileError(path, first.key, first.given, first.wanted, more)
    return BenchFile(tuple(runs), tuple(refused))


def _read(piece: Piece | Broken) -> BenchRun:
    if isinstance(piece, Broken):
        raise RefusedError("", piece.given, piece.wanted)
    tool = next((tool for tool in TOOLS.values() if tool.recognises(piece.document)), None)
    if tool is None:
        raise RefusedError("", look_of_object(piece.document), f"a result of {', '.join(TOOLS)}")
    run = tool.read(piece.document)
    if not run.measured:
        raise RefusedError("", f"a result of {run.tool} without a single figure", "a throughput or a latency")
    stated = ignores_eos(piece.document)
    load = run.workload if stated is None else {**run.workload, "ignore_eos": stated}
    return replace(run, workload=load, notes=(*run.notes, *check_units(run)))
