"""vLLM's log (v1/metrics/loggers.py): a line of mean rates every ten seconds, of the whole server."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from pipesim.importers import RefusedError
from pipesim.importers.bench.flags import engine_of, plain, plan_of
from pipesim.importers.bench.record import BenchRun, Fields, tidy
from pipesim.importers.server_log.lines import Line, arguments, degrees_of, kv_note
from pipesim.importers.server_log.steady import Sample, mean_rate, steady

RATES = re.compile(
    r"(?:Engine (\d+): )?Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs?(?:, Swapped: \d+ reqs?)?(?:, (?:Waiting|Pending): (\d+) reqs?)?"
)
ANY_RATES = "Avg generation throughput:"
KV_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
BLOCKS = re.compile(r"# (?:GPU|cuda) blocks: (\d+)")
BLOCK_TOKENS = 16
VERSION = re.compile(r"(?:\(v|version )(\d+\.\d[\w.+-]*)")
ARGUMENT_LINES = ("non-default args:", "LLM engine (v", "with config:", "max_num_batched_tokens=")
USUAL_OUTPUT_LEN = 256
"""Tokens that the log cannot tell: what `predict` takes, too."""


@dataclass
class EngineCore:
    """The lines of rates of one engine."""

    samples: list[Sample] = field(default_factory=list)
    prompt_rates: list[float] = field(default_factory=list)


def is_vllm_line(line: Line) -> bool:
    """Whether a line is one of mean rates."""
    return ANY_RATES in line.text


def read_vllm_log(log: Sequence[Line], pp: int | None) -> tuple[BenchRun, list[tuple[int, str]]]:
    """Returns the run that a log shows, and the numbers and faults of lines that were cut off.

    Engines of data parallelism print a line each, of requests of their own: their rates add up. The log counts tokens
    and no requests: lengths are the usual answer's, and a prompt as many times as long as the rates say.

    Args:
        log: its lines.
        pp: number of stages; the figures are the whole server's under any.

    Raises:
        RefusedError: when no line of a server at work is left.
    """
    cores, broken = _cores_of(log)
    total = sum(len(core.samples) for core in cores)
    working = [core for core in cores if steady(core.samples)]
    if not working:
        given = f"{total} line(s) of rates, none but idle or the first after it" if total else "no whole line of rates"
        raise RefusedError("", given, "at least 2 lines of `Avg generation throughput: …` with requests running")
    counted = [sample for core in working for sample in steady(core.samples)]
    running, waiting = (
        round(sum(median(getattr(sample, name) for sample in steady(core.samples)) for core in working))
        for name in ("running", "waiting")
    )
    taken_in = sum(fmean(core.prompt_rates) for core in working)
    given_out = sum(fmean(sample.tokens_per_s for sample in core.samples) for core in working)
    kv_tokens, models, plan, engine = _printed(log)
    workload = {
        "concurrency": max(1, running + waiting),
        "input_len": max(1, round(USUAL_OUTPUT_LEN * taken_in / given_out)),
        "output_len": USUAL_OUTPUT_LEN,
    }
    notes = [
        kv_note(kv_tokens),
        f"{running} requests running in the server",
        f"{len(counted)} of {total} lines counted, {1 - len(counted) / total:.0%} dropped (idle or just after)",
    ]
    notes += [f"rates of {len(working)} engines are added up"] * (len(working) > 1)
    run = BenchRun(
        tool="vLLM log",
        measured={"output_tokens_per_s": tidy(sum(mean_rate(core.samples) for core in working))}
        | ({"kv_capacity_tokens": float(kv_tokens)} if kv_tokens else {}),
        workload=workload,
        plan=plan,
        engine=engine,
        models=models,
        assumed=tuple(f"workload.{key}" for key in workload),
        notes=tuple(notes),
    )
    return run, broken


def _cores_of(log: Sequence[Line]) -> tuple[list[EngineCore], list[tuple[int, str]]]:
    """Returns the lines of rates by engine, and the lines that are cut off."""
    cores: dict[int, EngineCore] = {}
    broken = []
    for line in filter(is_vllm_line, log):
        found = RATES.search(line.text)
        if found is None or not (line.ended or "KV cache usage" in line.text):
            broken.append((line.number, "a line of rates that is cut off"))
            continue
        core = cores.setdefault(int(found[1] or 0), EngineCore())
        last = core.samples[-1] if core.samples else None
        before = last.seconds if last else None
        silence = line.seconds - before if line.seconds is not None and before is not None else 0.0
        idle = last is not None and not last.running
        core.samples.append(Sample(float(found[3]), int(found[4]), int(found[5] or 0), line.seconds, silence, idle))
        core.prompt_rates.append(float(found[2]))
    return list(cores.values()), broken


def _printed(log: Sequence[Line]) -> tuple[int, tuple[str, ...], dict[str, Any], dict[str, Any]]:
    """Returns the tokens of the KV cache (0 if not printed), the model's names, the split and the engine's settings."""
    given: dict[str, Any] = {}
    sizes, version = [], None
    for line in log:
        if any(marker in line.text for marker in ARGUMENT_LINES):
            given = {**plain(arguments(line.text)), **given}
        if size := KV_TOKENS.search(line.text):
            sizes.append(int(size[1].replace(",", "")))
        elif blocks := BLOCKS.search(line.text):
            sizes.append(int(blocks[1]) * BLOCK_TOKENS)
        if version is None and (found := VERSION.search(line.text)):
            version = found[1]
    plan = degrees_of(log, ("TP", "PP")) | plan_of(given)
    engine = {"name": "vllm", **engine_of({key: value for key, value in given.items() if key != "version"})}
    if version:
        engine["version"] = version
    models = Fields(given).texts("served_model_name", "model", "model_tag")
    return min(sizes, default=0), models, plan, engine
