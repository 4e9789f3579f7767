"""Reader of a serving engine's log: steady generation throughput, with what the log says of the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipesim.errors import ProfileError
from pipesim.files import read_text
from pipesim.importers import RefusedError
from pipesim.importers.bench import TOOLS
from pipesim.importers.bench.documents import LONGEST_FILE, Piece, pieces
from pipesim.importers.bench.kinds import look_of_object, look_of_text
from pipesim.importers.bench.record import BenchRun
from pipesim.importers.server_log.lines import Line, lines
from pipesim.importers.server_log.sglang import is_sglang_line, read_sglang_log
from pipesim.importers.server_log.vllm import is_vllm_line, read_vllm_log

WANTED = "the log of an SGLang or vLLM server"


class Log(NamedTuple):
    """How one engine's log is told from others', line by line, and read."""

    recognises: Callable[[Line], bool]
    read: Callable[[Sequence[Line], int | None], tuple[BenchRun, list[tuple[int, str]]]]


LOGS = (Log(is_sglang_line, read_sglang_log), Log(is_vllm_line, read_vllm_log))


@dataclass(frozen=True)
class LogFile:
    """The run of a log, and the complaints about lines that were cut off."""

    run: BenchRun
    refused: tuple[ProfileError, ...]


def read_server_log(path: Path, pp: int | None = None) -> LogFile:
    """Returns the run that a log shows; `pp` is the number of stages where the log is not to say.

    Raises:
        ProfileError: when it is no such log, or no line of a server at work is left.
    """
    text = read_text(path, WANTED, LONGEST_FILE, cut_off=True)
    log = list(lines(text))
    found = [(sum(map(kind.recognises, log)), kind) for kind in LOGS]
    most, kind = max(found, key=lambda pair: pair[0])
    if not most:
        raise ProfileError(path, "", _look(text), f"{WANTED} with lines of its throughput")
    try:
        run, broken = kind.read(log, pp)
    except RefusedError as refusal:
        raise ProfileError(path, *refusal.args) from None
    return LogFile(run, tuple(ProfileError(path, f"line {n}", fault, "a whole line") for n, fault in broken))


def _look(text: str) -> str:
    first = next(iter(pieces(text)), None) if text.lstrip().startswith(("{", "[")) else None
    if not isinstance(first, Piece):
        return look_of_text(text)
    if name := next((name for name, tool in TOOLS.items() if tool.recognises(first.document)), None):
        return f"a result of {name} (for `pipesim import bench`)"
    return look_of_object(first.document)
