"""SGLang's log (srt/managers/scheduler_components/metrics_reporter.py): decode and prefill lines of one rank."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from pipesim.importers import RefusedError
from pipesim.importers.bench.flags import engine_of, plan_of, speculation_of
from pipesim.importers.bench.record import BenchRun, Fields, tidy
from pipesim.importers.bench.sglang import kv_capacity
from pipesim.importers.server_log.lines import Line, arguments, degrees_of, kv_note
from pipesim.importers.server_log.steady import Sample, generated, mean_rate, steady

BATCH = re.compile(r"\b(Decode|Prefill) batch\b(?: ?\[\d+\])?[.,]?")
RUNNING = re.compile(r"#running-req: (\d+)")
WAITING = re.compile(r"#queue-req: (\d+)")
THROUGHPUT = re.compile(r"gen throughput \(token/s\): (\d+(?:\.\d+)?)(?![\d.])")
TOKENS = re.compile(r"#(?:full )?token: (\d+)")
NEW = re.compile(r"#new-seq: (\d+).*?#new-token: (\d+).*?#cached-token: (\d+)")
ACCEPTED = re.compile(r"accept len: (\d+(?:\.\d+)?)")
CAPTURED = re.compile(r"cuda graph: (True|False)")
KV_TOKENS = re.compile(r"\bmax_total_num_tokens=(\d+)")
DECODE_GRAPH_OFF = re.compile(r"""decode['"]?\s*[=:]\s*(?:PhaseConfig\(|\{)\s*['"]?backend['"]?\s*[=:]\s*'disabled'""")
SOURCE = "SGLang log"


@dataclass
class Rank:
    """The batch lines of one rank."""

    samples: list[Sample] = field(default_factory=list)
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    pool_tokens: list[int] = field(default_factory=list)
    captured: list[bool] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    last_s: float | None = None
    silence_s: float = 0.0
    fresh: bool = False

    @property
    def steady(self) -> list[Sample]:
        """The samples of a server at work all the time."""
        return steady(self.samples)

    def usual(self, name: str) -> float:
        """Returns the median of a count over the steady samples."""
        return float(median(getattr(sample, name) for sample in self.steady))

    def pass_time(self, now: float | None) -> None:
        """Notes a line of a batch at a time [s]."""
        if now is not None and self.last_s is not None:
            self.silence_s = max(self.silence_s, now - self.last_s)
        self.last_s = now if now is not None else self.last_s


def is_sglang_line(line: Line) -> bool:
    """Whether a line is of a batch."""
    return BATCH.search(line.text) is not None


def read_sglang_log(log: Sequence[Line], pp: int | None) -> tuple[BenchRun, list[tuple[int, str]]]:
    """Returns the run that a log shows, and the numbers and faults of lines that were cut off.

    Every pipeline stage prints the same events: one rank is read, PP0 or the first there is. Ranks of DP attention
    serve requests of their own: their rates add up. Lengths are estimates from what the log counts.

    Args:
        log: its lines.
        pp: number of stages, where the log is not to say.

    Raises:
        RefusedError: when no decode line of a server at work is left.
    """
    stages = sorted({line.ranks.get("PP", 0) for line in log if is_sglang_line(line)})
    ranks, broken = _ranks_of(log, stages[0])
    total = sum(len(rank.samples) for rank in ranks.values())
    working = {group: rank for group, rank in ranks.items() if rank.steady}
    if not working:
        given = f"{total} decode line(s), none but the first after idle" if total else "no whole decode line"
        raise RefusedError("", given, "at least 2 lines of `Decode batch, … gen throughput (token/s): …` without idle")
    given_arguments, kv_tokens, graphs_off = _printed(log)
    plan = _plan(log, given_arguments)
    engine = _engine(given_arguments, ranks.values(), graphs_off)
    accepted = [length for rank in ranks.values() for length in rank.accepted]
    speculation = speculation_of(fmean(accepted or [0.0]), given_arguments.get("speculative_num_steps"))
    slots = (pp or plan.get("pp", 1)) + engine.get("pp_async_batch_depth", 0)
    workload = _workload(working.values(), slots)
    counted = sum(len(rank.steady) for rank in working.values())
    running = round(fmean(rank.usual("running") for rank in working.values()))
    notes = [
        kv_note(kv_tokens),
        f"{running} requests running" + f" in each of {slots} slots" * (slots > 1),
        f"{counted} of {total} decode lines counted, {1 - counted / total:.0%} dropped (first after idle)",
    ]
    if any("PP" in line.ranks for line in log):
        unsaid = "" if pp or "pp" in plan else "; how many stages there are is not said (--pp)"
        notes.append(f"stage PP{stages[0]} alone is read, each prints the same events{unsaid}")
    notes += [f"rates of {len(working)} DP ranks are added up"] * (len(working) > 1)
    measured = {"output_tokens_per_s": tidy(sum(mean_rate(rank.samples) for rank in working.values()))}
    if kv_tokens:
        measured["kv_capacity_tokens"] = kv_capacity(kv_tokens, plan)
    run = BenchRun(
        tool=SOURCE,
        measured=measured,
        workload=workload,
        plan=plan,
        engine=engine | speculation,
        models=Fields(given_arguments).texts("served_model_name", "model_path"),
        assumed=(*(f"workload.{key}" for key in workload), *(f"engine.{key}" for key in speculation)),
        notes=tuple(notes),
    )
    return run, broken


def _ranks_of(log: Sequence[Line], stage: int) -> tuple[dict[int, Rank], list[tuple[int, str]]]:
    """Returns the batch lines of one stage by DP rank, each of its lowest TP rank, and the lines that are cut off."""
    batches = [line for line in log if is_sglang_line(line) and line.ranks.get("PP", 0) == stage]
    lowest: dict[int, int] = {}
    for line in batches:
        group, tp = line.ranks.get("DP", 0), line.ranks.get("TP", 0)
        lowest[group] = min(tp, lowest.get(group, tp))
    ranks: dict[int, Rank] = {}
    broken = []
    for line in batches:
        group = line.ranks.get("DP", 0)
        if line.ranks.get("TP", 0) == lowest[group] and (fault := _add(ranks.setdefault(group, Rank()), line)):
            broken.append((line.number, fault))
    return ranks, broken


def _add(rank: Rank, line: Line) -> str:
    """Adds a line to its rank; returns what is wrong with it, or nothing."""
    kind = BATCH.search(line.text)
    running, waiting = RUNNING.search(line.text), WAITING.search(line.text)
    if kind is None:
        return ""
    if kind[1] == "Prefill":
        new = NEW.search(line.text)
        if new is None:
            return "a prefill line that is cut off"
        rank.pass_time(line.seconds)
        rank.requests += int(new[1])
        rank.prompt_tokens += int(new[2]) + int(new[3])
        rank.cached_tokens += int(new[3])
        rank.fresh |= "PP" not in line.ranks and running is not None and running[1] == "0"
        return ""
    rate = THROUGHPUT.search(line.text)
    if running is None or rate is None or not (line.ended or waiting):
        return "a decode line that is cut off"
    rank.pass_time(line.seconds)
    seats, queue = int(running[1]), int(waiting[1]) if waiting else 0
    rank.samples.append(Sample(float(rate[1]), seats, queue, line.seconds, rank.silence_s, rank.fresh))
    rank.silence_s, rank.fresh = 0.0, False
    if tokens := TOKENS.search(line.text):
        rank.pool_tokens.append(int(tokens[1]))
    if captured := CAPTURED.search(line.text):
        rank.captured.append(captured[1] == "True")
    if accepted := ACCEPTED.search(line.text):
        rank.accepted.append(float(accepted[1]))
    return ""


def _printed(log: Sequence[Line]) -> tuple[dict[str, Any], int, bool]:
    """Returns the server's arguments, the tokens of its KV cache (0 if not printed), and whether graphs are off."""
    found: dict[str, Any] = {}
    sizes, off = [], False
    for line in log:
        if "server_args=" in line.text:
            text = line.text.partition("server_args=")[2]
            found = {**arguments(text), **found}
            off |= DECODE_GRAPH_OFF.search(text) is not None
        elif size := KV_TOKENS.search(line.text):
            sizes.append(int(size[1]))
            found = {**arguments(line.text[size.start() :]), **found}
    return found, min(sizes, default=0), off


def _plan(log: Sequence[Line], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the split: of the arguments, or else of the ranks that any line names."""
    plan = degrees_of(log, ("TP", "PP", "EP")) | plan_of(given)
    ranks = degrees_of(log, ("DP",)).get("dp", 1)
    if ranks > 1 and not {"replicas", "dp_attention"} & plan.keys():
        shared = any(line.ranks.get("DP", 0) and line.ranks.get("TP", 0) for line in log)
        plan |= {"dp_attention": True} if shared else {"replicas": ranks}
    return plan


def _engine(given: Mapping[str, Any], ranks: Iterable[Rank], graphs_off: bool) -> dict[str, Any]:
    """Returns the settings that the engine's arguments state, and whether decode lines say that graphs are replayed."""
    engine = {"name": "sglang", **engine_of(given)}
    captured = [flag for rank in ranks for flag in rank.captured]
    if captured:
        engine["cuda_graph"] = sum(captured) * 2 > len(captured)
    elif graphs_off:
        engine["cuda_graph"] = False
    return engine


def _workload(ranks: Collection[Rank], slots: int) -> dict[str, Any]:
    """Returns a closed loop like what the log shows.

    Under PP `#running-req` counts one slot; users are those of all slots and DP ranks, and those who wait. Lengths:
    prompt tokens, and tokens generated, per request that began.
    """
    users = max(1, round(sum(rank.usual("running") * slots + rank.usual("waiting") for rank in ranks)))
    load: dict[str, Any] = {"concurrency": users}
    requests, prompts = sum(rank.requests for rank in ranks), sum(rank.prompt_tokens for rank in ranks)
    if not requests:
        pools = sum(median(rank.pool_tokens) for rank in ranks if rank.pool_tokens)
        return load | ({"input_len": max(1, round(pools / users))} if pools else {})
    load["input_len"] = max(1, round(prompts / requests))
    made = sum(rate * gap for rank in ranks for rate, gap in generated(rank.samples))
    if made >= requests:
        load["output_len"] = round(made / requests)
    if requests >= users:
        load["num_prompts"] = requests
    if cached := sum(rank.cached_tokens for rank in ranks):
        load["prefix_cache_hit_rate"] = round(cached / prompts, 3)
    return load
