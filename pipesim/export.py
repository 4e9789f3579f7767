"""A run as a trace that Perfetto opens: Chrome's Trace Event Format, in which every stage is a process.

Its threads are the micro-batches, the ranks with their operations, and the sends; arrows lead from a send to the stage
that waits for it. Each server has a process more, with its counters. Times are µs with the clock's six decimals.
"""

import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from pipesim.deployment import Deployment
from pipesim.errors import PipesimError, UsageError
from pipesim.files import whole_file
from pipesim.ops import Category
from pipesim.prediction import Predictor
from pipesim.timeline import Clock, OpSpan, Timeline
from pipesim.units import PICOSECONDS_PER_SECOND, parse_quantity
from pipesim.workload import Workload

FLAG, WINDOW_FLAG = "--trace-out", "--trace-window"
MOST_EVENTS = 2_000_000
"""About 340 MB; a browser struggles with more."""
MOST_OPERATIONS = 5_000_000
"""Simulated in all, whether or not they are written: about a minute and a gigabyte."""
COUNTER_SAMPLES = 5_000
PICOSECONDS_PER_MICROSECOND = 1_000_000
COLOURS: dict[Category, str] = {
    "experts": "thread_state_running",
    "attention": "rail_response",
    "dense": "rail_animation",
    "all_reduce": "bad",
    "send_recv": "thread_state_iowait",
    "host": "grey",
}
"""Colours of Chrome's palette (catapult tracing/base/color_scheme.html); Perfetto colours by name."""


class Window(NamedTuple):
    """The part of a run that is written [ps]: spans that begin in it."""

    begin: int = 0
    end: int = 2**62


class Event(NamedTuple):
    """One event and when it is [ps]."""

    at: int
    text: str


def parse_window(given: str | None) -> Window:
    """Returns a part of a run given as "2s:2.5s"; either side may be left out. Raises UsageError."""
    if given is None:
        return Window()
    begin, colon, end = given.partition(":")
    try:
        first, last = (
            round(parse_quantity(side, "s") * PICOSECONDS_PER_SECOND) if side.strip() else None for side in (begin, end)
        )
    except (ValueError, OverflowError) as error:
        raise PipesimError(f"{WINDOW_FLAG}: {error}") from None
    window = Window(first or 0, Window().end if last is None else last)
    if not colon or not 0 <= window.begin < window.end:
        raise UsageError(WINDOW_FLAG, given, 'two times that follow each other, such as "2s:2.5s"')
    return window


def export_trace(predictor: Predictor, workload: Workload, seed: int, path: Path, window: Window) -> int:
    """Runs a load kernel by kernel, writes its trace, and returns the number of events.

    Raises:
        UsageError: when there would be too many events, or the file cannot be written.
    """
    _check_size(predictor, workload, seed, window)
    with whole_file(path, FLAG) as file:
        timeline = predictor.simulate(workload, seed, "op")
        events = trace_events(predictor.deployment, timeline, window)
        about = {"deployment": str(predictor.deployment.plan), "engine": predictor.deployment.engine.name, "seed": seed}
        about |= {"model": predictor.deployment.model.name, "hardware": predictor.deployment.hardware.name}
        return _write(file, events, about)


def trace_events(deployment: Deployment, timeline: Timeline, window: Window) -> Iterator[str]:
    """Yields the events of a run as JSON: names first, then everything by time."""
    servers = timeline.replicas or (timeline,)
    yield from (text for replica in range(len(servers)) for text in _names(deployment, replica, len(servers)))
    streams = [stream for replica, run in enumerate(servers) for stream in _streams(deployment, run, replica, window)]
    yield from (event.text for event in heapq.merge(*streams, key=lambda event: event.at))


def _check_size(predictor: Predictor, workload: Workload, seed: int, window: Window) -> None:
    """Refuses a run with too many operations, before any is simulated: passes are counted, which is quick."""
    plan = predictor.deployment.plan
    timeline = predictor.simulate(workload, seed)
    if timeline.stage_price_index:
        wanted = "an engine whose micro-batches keep together from stage to stage, so that arrows can follow them"
        raise UsageError(f"{FLAG} with --engine", predictor.deployment.engine.name, wanted)
    batches = (predictor.mid_decode(workload), predictor.mid_prefill(workload)[0])
    operations = [
        max(sum(1 for _ in predictor.price.operations(batch, stage)) for batch in batches) for stage in range(plan.pp)
    ]
    within = [int(((row >= window.begin) & (row < window.end)).sum()) for row in timeline.starts]
    spans = sum(operations) * len(timeline.slot)
    if spans > MOST_OPERATIONS:
        wanted = f"a load of at most {MOST_OPERATIONS:,}, such as by a smaller --num-prompts or --output-len"
        raise UsageError(FLAG, f"a run of about {spans:,} operations", wanted)
    events = int(sum(count * (each * plan.tp + 4) for count, each in zip(within, operations, strict=True)))
    if events > MOST_EVENTS:
        wanted = f'at most {MOST_EVENTS:,}, such as by --trace-window "1s:1.2s"'
        raise UsageError(FLAG, f"about {events:,} events", wanted)


def _names(deployment: Deployment, replica: int, replicas: int) -> Iterator[str]:
    plan = deployment.plan
    for stage in range(plan.pp):
        pid, first = _stage_pid(deployment, replica, stage), deployment.first_layer(stage)
        gpus = plan.stage_gpus(stage, replica)
        server = f"replica {replica} " if replicas > 1 else ""
        name = f"{server}stage {stage}: layers {first}–{first + deployment.layers[stage] - 1}"
        yield _metadata("process_name", pid, 0, name=name)
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        threads = {plan.tp: "micro-batches", **{rank: f"rank {rank} (GPU {gpu})" for rank, gpu in enumerate(gpus)}}
        threads |= {plan.tp + 1: f"sends to stage {stage + 1}"} if stage < plan.pp - 1 else {}
        for order, (tid, thread) in enumerate(threads.items()):
            yield _metadata("thread_name", pid, tid, name=thread)
            yield _metadata("thread_sort_index", pid, tid, sort_index=order)
    pid = _server_pid(deployment, replica, replicas)
    yield _metadata("process_name", pid, 0, name=f"server {replica}" if replicas > 1 else "server")
    yield _metadata("process_sort_index", pid, 0, sort_index=-1)


def _stage_pid(deployment: Deployment, replica: int, stage: int) -> int:
    return replica * deployment.plan.pp + stage


def _server_pid(deployment: Deployment, replica: int, replicas: int) -> int:
    return replicas * deployment.plan.pp + replica


def _streams(deployment: Deployment, run: Timeline, replica: int, window: Window) -> list[Iterator[Event]]:
    """Returns the events of one server, each stream by time."""
    stages = range(deployment.plan.pp)
    replicas = deployment.plan.replicas
    pids = [_stage_pid(deployment, replica, stage) for stage in stages]
    streams = [_operations(run.op_spans, pids, deployment.plan.tp, window)]
    streams += [_passages(run, stage, pids[stage], deployment.plan.tp, window) for stage in stages]
    for hop in stages[:-1]:
        streams.append(_sends(run, hop, pids[hop], deployment.plan.tp + 1, window))
        streams += _arrows(run, hop, pids, replicas * len(stages), deployment.plan.tp, window)
    streams.append(_counters(run, _server_pid(deployment, replica, replicas), window))
    return streams


def _operations(spans: Iterable[OpSpan], pids: list[int], ranks: int, window: Window) -> Iterator[Event]:
    """Yields each operation on every rank of its stage: they run it side by side."""
    chosen = [span for span in spans if window.begin <= span.start < window.end]
    for span in sorted(chosen, key=lambda span: span.start):
        args = f'{{"bound":{json.dumps(span.bound)},"micro_batch":{span.passage}}}'
        head = _head(span.name, span.category, span.start, span.end)
        colour = f'"cname":"{COLOURS[span.category]}",' if span.category in COLOURS else ""
        for rank in range(ranks):
            yield Event(span.start, f'{head}{colour}"pid":{pids[span.stage]},"tid":{rank},"args":{args}}}')


def _passages(run: Timeline, stage: int, pid: int, tid: int, window: Window) -> Iterator[Event]:
    """Yields the micro-batches on a stage, with what their time rests on."""
    for index in _chosen(run.starts[stage], window):
        start, end = int(run.starts[stage][index]), int(run.ends[stage][index])
        price = run.prices[int(run.price_index[index])].stages[stage]
        basis = {name: round(part / (price.total or 1), 4) for name, part in price.by_basis.items() if part}
        requests, kind = int(run.requests_in_batch[index]), "decode" if run.decode[index] else "prefill"
        args = {"micro_batch": index, "slot": int(run.slot[index]), "requests": requests, "basis": basis}
        head = _head(f"{kind} of {requests}", "micro_batch", start, end)
        yield Event(start, f'{head}"pid":{pid},"tid":{tid},"args":{json.dumps(args)}}}')


def _sends(run: Timeline, hop: int, pid: int, tid: int, window: Window) -> Iterator[Event]:
    for index in _chosen(run.hop_starts[hop], window):
        start = int(run.hop_starts[hop][index])
        end = start + run.prices[int(run.price_index[index])].hops[hop]
        head = _head(f"send to stage {hop + 1}", "send_recv", start, end)
        yield Event(start, f'{head}"pid":{pid},"tid":{tid},"args":{{"micro_batch":{index}}}}}')


def _arrows(run: Timeline, hop: int, pids: list[int], stages: int, ranks: int, window: Window) -> list[Iterator[Event]]:
    """Returns the two ends of the arrows from a send to the micro-batch on the next stage, where both are written.

    Perfetto takes whole numbers for their ids: launch × stages of all servers + stage.
    """
    sent, begun = run.hop_starts[hop], run.starts[hop + 1]
    both = [index for index in _chosen(begun, window) if window.begin <= sent[index] < window.end]

    def ends(times: Clock, phase: str, pid: int, tid: int) -> Iterator[Event]:
        for index in both:
            at = int(times[index])
            name = f'"name":"send","cat":"send_recv","id":{index * stages + pids[hop]}'
            yield Event(at, f'{{"ph":{phase},{name},"ts":{_microseconds(at)},"pid":{pid},"tid":{tid}}}')

    finish = '"f","bp":"e"'
    return [ends(sent, '"s"', pids[hop], ranks + 1), ends(begun, finish, pids[hop + 1], ranks)]


def _counters(run: Timeline, pid: int, window: Window) -> Iterator[Event]:
    """Yields the server's load over time, from when requests were sent, got their first token and ended.

    Tokens of a request are in the KV cache from its first token to its last, and grow evenly between them.
    """
    begin, end = max(window.begin, int(run.arrival.min())), min(window.end, int(run.last_token.max()) + 1)
    marks = np.unique(np.concatenate([run.arrival, run.first_token, run.last_token, run.ends[-1], [begin]]))
    marks = marks[(marks >= begin) & (marks < end)]
    marks = marks[:: max(1, -(-len(marks) // COUNTER_SAMPLES))]
    sent, first, last = (_up_to(times, marks) for times in (run.arrival, run.first_token, run.last_token))
    tokens = _kv_tokens(run, marks)
    for at, waiting, decoding, held in zip(marks.tolist(), sent - first, first - last, tokens, strict=True):
        time = _microseconds(at)
        shared = f'"ph":"C","ts":{time},"pid":{pid},"tid":0'
        yield Event(
            at, f'{{"name":"requests",{shared},"args":{{"before first token":{waiting},"decoding":{decoding}}}}}'
        )
        yield Event(at, f'{{"name":"KV cache tokens",{shared},"args":{{"tokens":{held}}}}}')


def _up_to(times: Clock, marks: Clock) -> Clock:
    return np.searchsorted(np.sort(times), marks, side="right")


def _kv_tokens(run: Timeline, marks: Clock) -> list[int]:
    """Returns the tokens in the KV cache at some times: sums of straight lines that begin and end."""
    span = np.maximum(run.last_token - run.first_token, 1).astype(np.float64)
    slope = run.output_len / span
    base = (run.context_len + run.input_len) - slope * run.first_token
    total = np.zeros(len(marks))
    for times, sign in ((run.first_token, 1.0), (run.last_token, -1.0)):
        order = np.argsort(times, kind="stable")
        count = np.searchsorted(times[order], marks, side="right")
        for part, factor in ((base, 1.0), (slope, marks.astype(np.float64))):
            total += sign * factor * np.concatenate([[0.0], np.cumsum(part[order])])[count]
    return [max(0, round(value)) for value in total.tolist()]


def _chosen(times: Clock, window: Window) -> list[int]:
    chosen: list[int] = np.flatnonzero((times >= window.begin) & (times < window.end)).tolist()
    return chosen


def _head(name: str, category: str, start: int, end: int) -> str:
    times = f'"ts":{_microseconds(start)},"dur":{_microseconds(end - start)}'
    return f'{{"ph":"X","name":{json.dumps(name)},"cat":{json.dumps(category)},{times},'


def _metadata(kind: str, pid: int, tid: int, **args: Any) -> str:
    event = {"ph": "M", "name": kind, "ts": 0, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, ensure_ascii=False)


def _microseconds(picoseconds: int) -> str:
    whole, rest = divmod(picoseconds, PICOSECONDS_PER_MICROSECOND)
    return f"{whole}.{rest:06d}"


def _write(file: TextIO, events: Iterator[str], about: dict[str, Any]) -> int:
    file.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[')
    written = 0
    for event in events:
        file.write(f"{',' if written else ''}\n{event}")
        written += 1
    file.write("\n]}\n")
    return written
