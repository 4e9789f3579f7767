"""`pipesim sweep`: one row for every point of a grid of questions."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.asking import Grid, asks_grid
from pipesim.axes import Method, grid_size
from pipesim.commands.shared import Output, note
from pipesim.errors import ProfileError, UsageError
from pipesim.profiles.store import load_hardware, load_model

if TYPE_CHECKING:  # start-up does without the modules of one command
    from pipesim.sweeping.rows import Point
    from pipesim.sweeping.run import Sweep

COLUMNS = (
    "model",
    "hardware",
    "engine",
    "tp",
    "pp",
    "ep",
    "dp_attention",
    "dcp",
    "replicas",
    "layer_partition",
    "concurrency",
    "request_rate",
    "num_prompts",
    "input_len",
    "output_len",
    "random_range_ratio",
    "context_len",
    "pp_max_micro_batch_size",
    "pp_async_batch_depth",
    "chunked_prefill_size",
    "kv_cache_dtype",
    "cuda_graph",
)
"""Parameters that every file has as columns; others that vary come after them."""
OF_THE_LOAD = ("concurrency", "num_prompts", "input_len", "output_len", "random_range_ratio")
"""Columns whose default hangs on other flags."""
SHOWN_EVERY_SECONDS = 0.2

MethodName = Annotated[Method, typer.Option("--method", help="Closed form, or simulation of every point.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the rows that the file holds already.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, max=1024, help="Processes (default: one per core).")]
ExecutorAddress = Annotated[
    str | None, typer.Option("--executor", help="Dask scheduler in place of processes: dask://HOST:PORT.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, help="Runs of each point with different seeds.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="First seed of lengths and arrivals.")]


@asks_grid
def sweep_command(
    grid: Grid,
    *,
    output: Output = None,
    resume: Resume = False,
    method: MethodName = "closed-form",
    seeds: Seeds = 1,
    seed: Seed = 0,
    jobs: Jobs = None,
    executor: ExecutorAddress = None,
) -> None:
    """Predict every point of a grid: each flag may have values with commas, or a range 1:128 or 1:128:8.

    Example: pipesim sweep --tp 1,2,4,8 --pp 1,2,4,8 --concurrency 1:128 -o grid.csv
    """
    from pipesim.sweeping.run import run_sweep  # noqa: PLC0415 - only this command needs it

    if resume and output is None:
        raise UsageError("--resume", "no --output", "--output with the file to go on with")
    size = grid_size(grid.axes)
    models = {name: load_model(name) for name in grid.axes.get("model", [grid.defaults["model"]])}
    boxes = {name: load_hardware(name) for name in grid.axes.get("hardware", [grid.defaults["hardware"]])}
    sweep = sweep_of(grid, models, boxes, (method, seeds, seed))
    for line in run_sweep(sweep, output, resume, jobs or os.cpu_count() or 1, executor, _progress(size)):
        print(line)
    if output is not None:
        note(f"wrote {size:,} rows to {output}")


def sweep_of(
    grid: Grid, models: Mapping[str, Any], boxes: Mapping[str, Any], settings: tuple[Method, int, int]
) -> "Sweep":
    """Returns the sweep over a grid with these profiles by name; settings are method, seeds and first seed.

    Raises:
        UsageError: when the grid has too many points.
    """
    from pipesim.sweeping.run import Sweep  # noqa: PLC0415 - only a sweep needs it

    columns = (*COLUMNS, *(name for name in grid.axes if name not in COLUMNS))

    def points() -> "Iterator[Point]":
        for values in product(*grid.axes.values()):
            chosen = grid.defaults | dict(zip(grid.axes, values, strict=True))
            yield _point(grid, chosen, columns, models, boxes)

    identity = repr(
        (
            {name: list(values) for name, values in grid.axes.items()},
            grid.defaults,
            [profile.model_dump_json() for profile in (*models.values(), *boxes.values())],
        )
    )
    return Sweep(columns, points, grid_size(grid.axes), identity, *settings)


def _point(
    grid: Grid, chosen: dict[str, Any], columns: tuple[str, ...], models: Mapping[str, Any], boxes: Mapping[str, Any]
) -> "Point":
    """Returns one point; one that is no question (TP 0, say) says so in its row."""
    from pipesim.sweeping.rows import Point  # noqa: PLC0415 - only this command needs it

    model, hardware = models[chosen["model"]], boxes[chosen["hardware"]]
    key = tuple(chosen[name] for name in columns)
    try:
        asked = grid.ask(**chosen)
    except ProfileError:
        raise
    except UsageError as refusal:
        return Point(key, model, hardware, refused=str(refusal))
    filled = {name: getattr(asked.workload, name) for name in OF_THE_LOAD}
    key = tuple(filled[name] if name in filled and chosen[name] is None else chosen[name] for name in columns)
    return Point(key, model, hardware, asked.plan, asked.settings, asked.workload)


def _progress(size: int) -> Callable[[int], None]:
    """Returns a function that shows on a terminal how far a sweep is and how long it still takes."""
    begin = last = time.monotonic()
    first: int | None = None

    def show(done: int) -> None:
        nonlocal last, first
        now = time.monotonic()
        first = done - 1 if first is None else first
        if not sys.stderr.isatty() or (now - last < SHOWN_EVERY_SECONDS and done < size):
            return
        last = now
        left = (now - begin) / max(1, done - first) * (size - done)
        text = f"\r\033[K{done:,}/{size:,} rows ({done / size:.0%}), {left:,.0f} s left"
        print(text, end="\n" if done == size else "", file=sys.stderr, flush=True)

    return show
