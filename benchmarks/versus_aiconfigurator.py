"""pipesim and NVIDIA's aiconfigurator on the same measured rows: Kimi K2.6 under vLLM, TP8 on RTX PRO 6000 over PCIe.

pip install "aiconfigurator>=0.12,<0.13"
python benchmarks/versus_aiconfigurator.py [--markdown] [--seeds N]

The rows are those of measured_runs/kimi-k2.6-tuned-tp8.toml. Exit 2 when aiconfigurator is not installed.

pipesim: as `pipesim validate` predicts them, the mean over 20 seeds, under the conditions of the file. The rows of role
calibration, marked *, were used to choose its routing skew and are no evidence for it.

aiconfigurator, written for 0.12.0: `aiconfigurator.cli.api.cli_estimate`, its programmatic estimate of a configuration,
in its static modes, with its default database mode (SILICON), its latest database of vLLM for rtx_pro_6000_server
(0.24.0) and the configuration of moonshotai/Kimi-K2.5 that it ships: Kimi K2.6 has the same shapes and int4 experts.
The split is TP8 with tensor-parallel experts. Quantisation is what it infers from the checkpoint (int4 weight-only
experts, bfloat16 elsewhere), but for the KV cache, with which it is asked twice:

    fp8       what the measured runs used; its vLLM table of decode attention with this cache holds one head per GPU
              only, and for the eight of TP8 it falls back to TensorRT-LLM's, where long contexts are far slower
    bfloat16  its own default for this model; the table holds eight heads per GPU

None of its figures is changed. AllReduce is its default, measured on the host of its database: it has no setting for
another host's, while pipesim's profile holds a published curve of tuned hosts. The comparison is therefore one of what
each tool says about these runs, not of kernel models alone. Both rest on kernels measured by aiconfigurator's authors.

Decode, tok/s: users over the latency of one generation step (`static_gen`) at the middle of the decode, that is with
context + input + half of the output tokens in the KV cache.
Time to first token, s: the context latency of the whole prompt (`static_ctx`). Asked in vLLM's chunks of 8,192 tokens
and added up it is up to 4 % longer.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from statistics import fmean
from typing import Any, NamedTuple

from pipesim.measured import MeasuredRun
from pipesim.profiles.store import available
from pipesim.runs import load_runs
from pipesim.validation import SEEDS, Comparison, compare

RUNS = "kimi-k2.6-tuned-tp8"
SYSTEM = "rtx_pro_6000_server"
MODEL = "moonshotai/Kimi-K2.5"
KV_CACHES = {"fp8": "aiconf. fp8", "bfloat16": "aiconf. bf16"}
DECODE, PREFILL = "output_tokens_per_s", "ttft_s"
TITLES = {DECODE: "Decode, tok/s of all users", PREFILL: "Time to first token, s"}
NONE = "–"

Estimate = Callable[..., Any]
"""`cli_estimate` of aiconfigurator."""


class Answer(NamedTuple):
    """What aiconfigurator says about one row; None and the reason when it raised."""

    value: float | None
    database: str
    reason: str = ""


class Row(NamedTuple):
    """One measured figure and what both say of it."""

    run: MeasuredRun
    ours: Comparison
    theirs: tuple[Answer, ...]
    """In the order of `KV_CACHES`."""

    @property
    def name(self) -> str:
        """The id of the run, marked when it was used to calibrate pipesim."""
        return self.run.id + ("*" if self.run.role == "calibration" else "")

    @property
    def tokens(self) -> int:
        """The context of a decode row, the prompt of a prefill row."""
        return self.run.workload.context_len if self.ours.metric == DECODE else self.run.workload.input_len

    @property
    def errors(self) -> list[float | None]:
        """Relative errors: pipesim's, then aiconfigurator's for each KV cache."""
        values = [self.ours.predicted, *(answer.value for answer in self.theirs)]
        return [None if value is None else value / self.ours.measured - 1.0 for value in values]


def load_estimate() -> Estimate:
    """Returns aiconfigurator's estimate of one configuration. Raises ImportError."""
    estimate: Estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
    return estimate


def ask(estimate: Estimate, run: MeasuredRun, metric: str, kv_cache: str) -> Answer:
    """Returns aiconfigurator's figure for one row [tok/s or s]; whatever it raises is an answer too."""
    load = run.workload
    decode = metric == DECODE
    shape = {"isl": load.context_len + load.input_len, "osl": 1, "prefix": load.context_len}
    if decode:
        shape = {"isl": load.context_len + load.input_len + load.output_len // 2, "osl": 2, "prefix": 0}
    try:
        result = estimate(
            MODEL,
            SYSTEM,
            mode="static_gen" if decode else "static_ctx",
            backend_name=run.engine.name,
            batch_size=load.concurrency,
            tp_size=run.plan.tp,
            pp_size=run.plan.pp,
            moe_tp_size=run.plan.tp,
            moe_ep_size=1,
            kvcache_quant_mode=kv_cache,
            **shape,
        )
        value = load.concurrency / (result.tpot / 1e3) if decode else result.ttft / 1e3
    except Exception as error:  # whatever it raises, the row has no answer and the reason is printed
        return Answer(None, "", f"{type(error).__name__}: {error}")
    return Answer(float(value), f"{result.backend_name} {result.backend_version}")


def rows_of(runs: Iterable[MeasuredRun], estimate: Estimate, seeds: int) -> list[Row]:
    """Returns every measured figure with both predictions; names the run at work on stderr."""
    rows = []
    for run in runs:
        print(f"{run.id} …", file=sys.stderr)
        for ours in compare(run, seeds):
            if ours.metric in TITLES:
                theirs = tuple(ask(estimate, run, ours.metric, kv_cache) for kv_cache in KV_CACHES)
                rows.append(Row(run, ours, theirs))
    return rows


def number(value: float | None, metric: str) -> str:
    """Returns a figure with the decimals of its metric."""
    return NONE if value is None else f"{value:,.{1 if metric == DECODE else 2}f}"


def percent(value: float | None, sign: str = "+") -> str:
    """Returns a relative error in per cent."""
    return NONE if value is None else f"{100.0 * value:{sign}.1f}%"


def cells(row: Row) -> list[str]:
    """Returns one line of the table of rows."""
    values = [row.ours.predicted, *(answer.value for answer in row.theirs)]
    line = [row.name, f"{row.run.workload.concurrency}", f"{row.tokens:,}", number(row.ours.measured, row.ours.metric)]
    for value, error in zip(values, row.errors, strict=True):
        line += [number(value, row.ours.metric), percent(error)]
    return line


def heading(metric: str) -> list[str]:
    """Returns the head of the table of rows."""
    line = ["row", "users", "context" if metric == DECODE else "prompt", "measured", "pipesim", "error"]
    for label in KV_CACHES.values():
        line += [label, "error"]
    return line


def means(rows: Sequence[Row]) -> list[list[str]]:
    """Returns the mean absolute errors, each over the rows that have an answer, and how many have none."""
    groups = {
        "decode": [row for row in rows if row.ours.metric == DECODE],
        "prefill": [row for row in rows if row.ours.metric == PREFILL],
        "role validation only": [row for row in rows if row.run.role == "validation"],
    }
    table = [["mean absolute error", "rows", "pipesim", *KV_CACHES.values()]]
    for name, group in groups.items():
        columns = zip(*(row.errors for row in group), strict=True)
        known = [[abs(error) for error in column if error is not None] for column in columns]
        table.append([name, f"{len(group)}", *(percent(fmean(errors) if errors else None, "") for errors in known)])
    missing = [sum(error is None for error in column) for column in zip(*(row.errors for row in rows), strict=True)]
    return [*table, ["without an answer", f"{len(rows)}", *(f"{count}" for count in missing)]]


def layout(table: Sequence[Sequence[str]], markdown: bool) -> str:
    """Returns a table whose first line is its head: the first column to the left, the others to the right."""
    if markdown:
        lines = ["| " + " | ".join(line) + " |" for line in table]
        return "\n".join([lines[0], "|---|" + "--:|" * (len(table[0]) - 1), *lines[1:]])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in table
    )


def notes(rows: Sequence[Row]) -> list[str]:
    """Returns what a reader of the tables must know: marks, versions, and why a figure is missing."""
    databases = sorted({answer.database for row in rows for answer in row.theirs if answer.database})
    found = [
        "* role calibration: used to choose pipesim's routing skew, no evidence for it",
        "aiconf.: aiconfigurator with that KV cache; the runs had fp8, its own default is bfloat16",
        f"pipesim {version('pipesim')}; aiconfigurator {version('aiconfigurator')}, "
        f"mode static, SILICON, {SYSTEM}, {', '.join(databases) or 'no database'}",
    ]
    for row in rows:
        for kv_cache, answer in zip(KV_CACHES, row.theirs, strict=True):
            if answer.reason:
                found.append(f"{row.run.id}, {kv_cache}: {answer.reason.splitlines()[0]}"[:100])
    return found


def report(rows: Sequence[Row], markdown: bool) -> str:
    """Returns all that is printed."""
    blocks = []
    for metric, title in TITLES.items():
        lines = [cells(row) for row in rows if row.ours.metric == metric]
        blocks += [f"**{title}**" if markdown else title, layout([heading(metric), *lines], markdown)]
    blocks.append(layout(means(rows), markdown))
    found = notes(rows)
    blocks.append(
        "\n".join(f"- {note.replace('*', chr(92) + '*')}" for note in found) if markdown else "\n".join(found)
    )
    return "\n\n".join(blocks)


def main() -> int:
    """Prints the tables; returns 2 when there is nothing to compare with."""
    parser = argparse.ArgumentParser(description="pipesim and aiconfigurator on the same measured rows.")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of pipesim's mean [%(default)s]")
    asked = parser.parse_args()
    if asked.seeds < 1:
        parser.error(f"--seeds: {asked.seeds} was given, 1 or more is wanted")
    try:
        estimate = load_estimate()
    except ImportError as error:
        print(f'error: {error}; `pip install "aiconfigurator>=0.12,<0.13"` beside pipesim is wanted', file=sys.stderr)
        return 2
    runs = [run for file in load_runs([available("runs")[RUNS]]) for run in file.run]
    print(report(rows_of(runs, estimate, asked.seeds), asked.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
