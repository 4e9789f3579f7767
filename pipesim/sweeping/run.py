"""Deals points out to workers and writes their rows in grid order, so that a file cut off anywhere can be taken up."""

import csv
import io
import json
import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from pipesim.axes import Method
from pipesim.errors import UsageError
from pipesim.sweeping.rows import METRICS, Point, rows_of

CLOSED_FORM_CHUNK, SIMULATION_CHUNK = 128, 4
"""Points of one task: enough to share prices, few enough that rows keep coming."""
WAITING_PER_WORKER = 3
"""Tasks handed out per worker beyond what has been written."""
DASK = "dask://"
CONNECT_SECONDS = 10

Row = tuple[Any, ...]
Show = Callable[[int], None]


@dataclass(frozen=True)
class Sweep:
    """A grid and how it is answered."""

    columns: tuple[str, ...]
    """Columns of the question."""
    points: Callable[[], Iterator[Point]]
    """Every point, in grid order."""
    size: int
    identity: str
    """Everything that the rows depend on, as text."""
    method: Method = "closed-form"
    seeds: int = 1
    first_seed: int = 0

    @property
    def header(self) -> tuple[str, ...]:
        """Columns of the file."""
        return ("grid", *self.columns, "method", *METRICS)

    @cached_property
    def name(self) -> str:
        """A short digest of all that the rows depend on: a file of another grid is told by it."""
        parts = json.dumps([self.identity, self.columns, self.method, self.seeds, self.first_seed])
        return sha256(parts.encode()).hexdigest()[:12]


def run_sweep(
    sweep: Sweep, output: Path | None, resume: bool, jobs: int, cluster: str | None, show: Show
) -> Iterator[str]:
    """Writes the rows to a file as they come, or yields them as lines of CSV where there is no file.

    Args:
        sweep: the grid.
        output: CSV, or Parquet by its suffix: written at the end, from a CSV file beside it.
        resume: whether to go on after the rows that the file holds.
        jobs: worker processes on this machine; 1 for none.
        cluster: address of a Dask scheduler, "dask://HOST:PORT", in place of processes.
        show: hears how many rows there are.

    Raises:
        UsageError: for a file that is there already, is of another grid or cannot be written, and for a scheduler
            that does not answer.
    """
    with _executor(jobs, cluster) as (executor, workers):
        if output is None:
            yield _line(sweep.header)
            for done, row in enumerate(_rows(sweep, 0, executor, workers), start=1):
                yield _line(row)
                show(done)
            return
        source = _Source(executor, workers)
        if output.suffix != ".parquet":
            _write(sweep, output, resume, source, show)
            return
        _parquet()
        part = output.with_name(output.name + ".part.csv")
        if output.exists() and output.stat().st_size:
            if not resume:
                raise _is_there(output)
            if not part.exists() and _is_whole(sweep, output):
                return
        _write(sweep, part, resume, source, show)
        _to_parquet(part, output)


def sweep_rows(sweep: Sweep, jobs: int = 1) -> Iterator[Row]:
    """Yields the rows of `sweep.header` in grid order, computed in so many processes."""
    with _executor(jobs, None) as (executor, workers):
        yield from _rows(sweep, 0, executor, workers)


@dataclass(frozen=True)
class _Source:
    executor: Executor | None
    workers: int


def _write(sweep: Sweep, path: Path, resume: bool, source: _Source, show: Show) -> None:
    if path.exists() and path.stat().st_size and not resume:
        raise _is_there(path)
    try:
        done = _take_up(sweep, path) if resume and path.exists() else 0
        with path.open("a", encoding="utf-8", newline="") as file:
            if not file.tell():
                file.write(_line(sweep.header) + "\n")
            for row in _rows(sweep, done, source.executor, source.workers):
                file.write(_line(row) + "\n")
                file.flush()
                done += 1
                show(done)
    except OSError as error:
        raise UsageError("--output", str(path), f"a file that can be written ({error.strerror})") from None


def _is_there(path: Path) -> UsageError:
    return UsageError("--output", str(path), "a new file, or --resume to go on with this one")


def _take_up(sweep: Sweep, path: Path) -> int:
    """Cuts off a line that was not written to its end; returns how many rows of this very grid a file holds.

    Raises:
        UsageError: when it holds something else.
    """
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    if not whole:
        return 0
    lines = whole.decode("utf-8", errors="replace").splitlines()
    header = _line(sweep.header)
    if lines[0] != header:
        raise UsageError("--resume", str(path), "a file of this grid: its columns are others")
    if any(not line.startswith(f"{sweep.name},") for line in lines[1:]):
        raise UsageError(
            "--resume", str(path), "a file of this grid: it was written for other values, profiles or settings"
        )
    if len(lines) - 1 > sweep.size:
        raise UsageError("--resume", str(path), f"at most the {sweep.size:,} rows of this grid")
    return len(lines) - 1


def _rows(sweep: Sweep, done: int, executor: Executor | None, workers: int) -> Iterator[Row]:
    """Yields the rows that are missing, in grid order; never more than a few tasks ahead."""
    size = CLOSED_FORM_CHUNK if sweep.method == "closed-form" else SIMULATION_CHUNK
    size = max(1, min(size, math.ceil((sweep.size - done) / max(1, workers))))
    points = islice(sweep.points(), done, None)
    chunks = iter(lambda: list(islice(points, size)), [])
    settings = (sweep.method, sweep.seeds, sweep.first_seed)
    if executor is None:
        for chunk in chunks:
            for row in rows_of(chunk, *settings):
                yield _named(sweep, row)
        return
    waiting: deque[Future[list[Row]]] = deque()
    while True:
        for chunk in islice(chunks, workers * WAITING_PER_WORKER - len(waiting)):
            waiting.append(executor.submit(rows_of, chunk, *settings))
        if not waiting:
            return
        for row in waiting.popleft().result():
            yield _named(sweep, row)


def _named(sweep: Sweep, row: Row) -> Row:
    columns = len(sweep.columns)
    return (sweep.name, *row[:columns], sweep.method, *row[columns:])


def _line(row: Sequence[Any]) -> str:
    """Returns one line of CSV: floats as Python reads them back, nothing for None, lists with blanks."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([_cell(value) for value in row])
    return text.getvalue().replace("\n", " ")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _executor(jobs: int, cluster: str | None) -> AbstractContextManager[tuple[Executor | None, int]]:
    if cluster is not None:
        return _dask(cluster)
    return _processes(jobs) if jobs > 1 else nullcontext((None, 1))


@contextmanager
def _processes(jobs: int) -> Iterator[tuple[Executor, int]]:
    # Started afresh: a fork of a process with threads (NumPy's) may hang.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool, jobs


@contextmanager
def _dask(address: str) -> Iterator[tuple[Executor, int]]:
    if not address.startswith(DASK) or not address.removeprefix(DASK):
        raise UsageError("--executor", address, '"dask://HOST:PORT"')
    try:
        from distributed import Client  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("--executor", address, "Dask: pip install 'pipesim[dask]'") from None
    try:
        client = Client(  # type: ignore[no-untyped-call]
            f"tcp://{address.removeprefix(DASK)}", timeout=CONNECT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError) as error:
        raise UsageError("--executor", address, f"a Dask scheduler that answers ({error})") from None
    with closing(client):
        workers = len(client.scheduler_info()["workers"])
        if not workers:
            raise UsageError("--executor", address, "a scheduler with at least one worker")
        yield client.get_executor(pure=False), workers  # type: ignore[no-untyped-call]


def _parquet() -> Any:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("--output", ".parquet", "pyarrow: pip install 'pipesim[parquet]', or a .csv file") from None
    return parquet


def _to_parquet(part: Path, output: Path) -> None:
    from pyarrow import csv as arrow_csv  # noqa: PLC0415 - an extra

    whole = output.with_name(output.name + ".part")
    try:
        _parquet().write_table(arrow_csv.read_csv(part), whole)
        whole.replace(output)
        part.unlink()
    except OSError as error:
        raise UsageError("--output", str(output), f"a file that can be written ({error.strerror})") from None


def _is_whole(sweep: Sweep, output: Path) -> bool:
    """Returns whether a Parquet file holds every row of this very grid. Raises UsageError when it is something else."""
    try:
        grid = _parquet().read_table(output, columns=["grid"]).column("grid").to_pylist()
    except (OSError, ValueError, KeyError):
        grid = []
    if grid != [sweep.name] * sweep.size:
        raise UsageError("--resume", str(output), "a file of this grid")
    return True
