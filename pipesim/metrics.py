"""What a timeline says: rates, latencies, bubbles, load per GPU and where the time went.

Every stage's share of the run's window is kernels and collectives, waiting for a transfer that is on its way (these
two are "busy"), bubble (idle while a micro-batch is somewhere else in the pipeline) or host (idle while none is, and
waiting for kernel launches within a pass). The four add up to the window exactly.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pipesim.errors import UsageError
from pipesim.timeline import Clock, Timeline
from pipesim.units import PICOSECONDS_PER_SECOND

Floats = np.ndarray[Any, np.dtype[np.float64]]
Key = TypeVar("Key", str, tuple[str, str])


class Latency(NamedTuple):
    """Mean, median and 99th percentile of a time [s]."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True)
class StageLoad:
    """Seconds of one stage's GPUs within the window, by what they did."""

    window: float
    by_category: Mapping[str, float]
    """Kernels, collectives and exposed transfers [s]; without host."""
    bubble: float
    host: float
    by_bound: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The same seconds as `by_category`, by category and what binds."""

    @property
    def busy(self) -> float:
        """Seconds of kernels, collectives and exposed transfers."""
        return sum(self.by_category.values())


@dataclass(frozen=True)
class Metrics:
    """The headline numbers of one run. Times in seconds, rates per second, fractions 0 to 1."""

    output_tokens_per_s: float
    output_tokens_per_s_per_request: float
    """Mean over requests of output tokens over the time from sending to last token."""
    request_throughput_per_s: float
    ttft_s: Latency
    tpot_s: Latency
    """Per request: (E2E − TTFT) / (output tokens − 1)."""
    itl_s: Latency
    """Over all gaps between consecutive tokens of a request."""
    e2e_s: Latency
    step_time_s: float
    """Mean time from one decode result of a slot to its next."""
    bubble_fraction: float
    micro_batches_in_flight: float
    """Mean number of micro-batches between the first stage's start and the last stage's end, of one server."""
    slots_used: int
    duration_s: float
    output_tokens: int
    stages: tuple[StageLoad, ...]
    basis_s: Mapping[str, float]
    """Priced seconds by what they rest on: measured, fitted, datasheet."""
    extrapolated_s: float
    """Priced seconds of operations whose size lies outside the range of their evidence."""


def summarise(timeline: Timeline, warm_up: int = 0, steady: bool = False) -> Metrics:
    """Returns the metrics of one run, from the end of its first `warm_up` requests on and without these.

    Of a `steady` part until the last request is sent: requests that end later are left out. Tokens of a request that
    straddles an edge of the window count in proportion to its time of decoding within.

    Raises:
        UsageError: when the warm-up leaves no request or no time.
    """
    begin, end = measured_window(timeline, warm_up, steady)
    window = (end - begin) / PICOSECONDS_PER_SECOND
    servers = timeline.replicas or (timeline,)
    stages = _mean_loads([stage_loads(server, (begin, end)) for server in servers])
    by_end = np.argsort(timeline.last_token, kind="stable")
    last = int(np.searchsorted(timeline.last_token[by_end], end, side="right"))
    kept = np.sort(by_end[warm_up:last])
    output_len = timeline.output_len[kept]
    e2e = _seconds(timeline.last_token - timeline.arrival)[kept]
    ttft = _seconds(timeline.first_token - timeline.arrival)[kept]
    several = output_len > 1
    tpot = (e2e - ttft)[several] / (output_len[several] - 1)
    tokens = _tokens_within(begin, end, timeline, np.sort(by_end[warm_up:]))
    gaps, cycles = (
        slice(int(counts[warm_up - 1]) if warm_up else 0, int(counts[last - 1]) if steady else None)
        for counts in (timeline.gaps_by_end, timeline.cycles_by_end)
    )
    cycle = timeline.cycle[cycles]
    in_flight = np.clip(timeline.left, begin, end) - np.clip(timeline.starts[0], begin, end)
    return Metrics(
        output_tokens_per_s=tokens / window,
        output_tokens_per_s_per_request=float(np.mean(output_len / e2e)),
        request_throughput_per_s=len(e2e) / window,
        ttft_s=latency(ttft),
        tpot_s=latency(tpot),
        itl_s=latency(_seconds(timeline.gap[gaps]), timeline.gap_weight[gaps]),
        e2e_s=latency(e2e),
        step_time_s=float(_seconds(cycle).mean()) if cycle.size else 0.0,
        bubble_fraction=sum(stage.bubble for stage in stages) / (window * len(stages)),
        micro_batches_in_flight=float(in_flight.sum()) / (end - begin) / len(servers),
        slots_used=len(np.unique(timeline.slot)),
        duration_s=window,
        output_tokens=round(tokens),
        stages=stages,
        basis_s=_basis(timeline),
        extrapolated_s=_extrapolated(timeline),
    )


def _mean_loads(servers: list[tuple[StageLoad, ...]]) -> tuple[StageLoad, ...]:
    """Returns the mean load of each stage over equal servers."""
    if len(servers) == 1:
        return servers[0]
    return tuple(
        StageLoad(
            window=loads[0].window,
            by_category=_mean_by_key([load.by_category for load in loads]),
            bubble=fmean(load.bubble for load in loads),
            host=fmean(load.host for load in loads),
            by_bound=_mean_by_key([load.by_bound for load in loads]),
        )
        for loads in zip(*servers, strict=True)
    )


def _mean_by_key(parts: list[Mapping[Key, float]]) -> dict[Key, float]:
    return {key: fmean(part.get(key, 0.0) for part in parts) for key in sorted({key for part in parts for key in part})}


def measured_window(timeline: Timeline, warm_up: int, steady: bool = False) -> tuple[int, int]:
    """Returns the window [ps] that is measured: all of the run, or from the end of the last of `warm_up` requests on.

    A `steady` window ends where the first server has been sent its last request.

    Raises:
        UsageError: when the warm-up leaves no request or no time.
    """
    begin, end = timeline.window
    if steady:
        end = min(int(server.arrival.max()) for server in timeline.replicas or (timeline,))
    ends = np.sort(timeline.last_token)
    if warm_up >= len(ends):
        raise UsageError("--warm-up", warm_up, f"fewer than the {len(ends):,} requests of the run")
    if warm_up:
        begin = int(ends[warm_up - 1])
    if steady and not begin < end >= ends[warm_up]:
        wanted = "more, so that requests end between the opening wave and the end of the run,"
        raise UsageError("--num-prompts", len(ends), wanted)
    if begin == end:
        raise UsageError("--warm-up", warm_up, "a number of requests after whose end others still run")
    return begin, end


def _tokens_within(begin: int, end: int, timeline: Timeline, counted: Clock) -> float:
    """Returns how many tokens some requests got within a window."""
    first, last = timeline.first_token[counted], timeline.last_token[counted]
    later = timeline.output_len[counted] - 1
    share = (np.minimum(last, end) - np.maximum(first, begin)).clip(0) / np.maximum(last - first, 1)
    at_once = (first >= begin) & (first <= end)
    return float((np.where(later > 0, later * share, 0.0) + at_once).sum())


def latency(seconds: Floats, weights: Clock | None = None) -> Latency:
    """Returns mean, median and 99th percentile; with weights, of values that each stand for several. Zeros if empty."""
    if not seconds.size:
        return Latency(0.0, 0.0, 0.0)
    if weights is None:
        return Latency(float(seconds.mean()), *(float(p) for p in np.percentile(seconds, [50, 99])))
    order = np.argsort(seconds, kind="stable")
    reached = np.cumsum(weights[order])
    quantiles = [float(seconds[order][np.searchsorted(reached, q * reached[-1])]) for q in (0.5, 0.99)]
    return Latency(float((seconds * weights).sum() / reached[-1]), *quantiles)


def stage_loads(timeline: Timeline, window: tuple[int, int] | None = None) -> tuple[StageLoad, ...]:
    """Returns what each stage's GPUs did in a window [ps]: that of the run if none is given."""
    begin, end = window or timeline.window
    in_flight = _InFlight(timeline.starts[0], timeline.left)
    categories = _by_category(timeline, (begin, end))
    loads = []
    for stage in range(len(timeline.starts)):
        starts, ends = np.clip(timeline.starts[stage], begin, end), np.clip(timeline.ends[stage], begin, end)
        idle_from = np.concatenate([[begin], ends])
        idle_to = np.concatenate([starts, [end]])
        transfer = _exposed_transfer(timeline, stage, idle_from, idle_to)
        idle_in_flight = in_flight.within(idle_from, idle_to) - transfer
        seconds = {name: float(values[stage].sum()) for name, values in categories.items()}
        held = float((ends - starts).sum())
        full = sum(seconds.values())
        seconds = {name: value * held / full if full else 0.0 for name, value in seconds.items()}
        launch_gap = seconds.pop("host", 0.0)
        seconds["send_recv"] = seconds.get("send_recv", 0.0) + float(transfer.sum())
        bubble = float(idle_in_flight.sum())
        host = float((idle_to - idle_from).sum()) - bubble - float(transfer.sum()) + launch_gap
        loads.append(
            StageLoad(
                window=(end - begin) / PICOSECONDS_PER_SECOND,
                by_category={name: value / PICOSECONDS_PER_SECOND for name, value in seconds.items()},
                bubble=bubble / PICOSECONDS_PER_SECOND,
                host=host / PICOSECONDS_PER_SECOND,
                by_bound=_by_bound(timeline, stage, (begin, end), held / full if full else 0.0, float(transfer.sum())),
            )
        )
    return tuple(loads)


def _by_bound(
    timeline: Timeline, stage: int, window: tuple[int, int], held: float, transfer: float
) -> dict[tuple[str, str], float]:
    """Returns the busy seconds of a stage by category and bound; `held` is the share of them within the window."""
    paid = _paid_within(timeline, stage, window)
    total: Counter[tuple[str, str]] = Counter()
    for price, times in zip(timeline.prices, paid, strict=True):
        if times:
            for kind, picoseconds in price.stages[stage].by_bound.items():
                total[kind] += picoseconds * times
    total.pop(("host", "host"), None)
    seconds = {kind: picoseconds * held / PICOSECONDS_PER_SECOND for kind, picoseconds in sorted(total.items())}
    if transfer:
        sent = ("send_recv", "link")
        seconds[sent] = seconds.get(sent, 0.0) + transfer / PICOSECONDS_PER_SECOND
    return seconds


class _InFlight:
    """How long at least one micro-batch was in the pipeline, up to any time."""

    def __init__(self, starts: Clock, ends: Clock) -> None:
        reached = np.maximum.accumulate(ends)
        fresh = np.concatenate([[True], starts[1:] > reached[:-1]])
        first = np.flatnonzero(fresh)
        last = np.concatenate([first[1:], [len(starts)]]) - 1
        self._times = np.column_stack([starts[first], reached[last]]).ravel()
        spans = np.column_stack([np.zeros(len(first), np.int64), reached[last] - starts[first]]).ravel()
        self._measure = np.cumsum(spans)

    def until(self, times: Clock) -> Clock:
        """Returns the time in flight before each time."""
        at = np.searchsorted(self._times, times, side="right") - 1
        inside = at % 2 == 0
        base = np.where(at >= 0, self._measure[at], 0)
        return base + np.where(inside & (at >= 0), times - self._times[at], 0)

    def within(self, begins: Clock, ends: Clock) -> Clock:
        """Returns the time in flight within each interval."""
        return self.until(ends) - self.until(begins)


def _exposed_transfer(timeline: Timeline, stage: int, idle_from: Clock, idle_to: Clock) -> Clock:
    """Returns, for each idle interval of a stage, the part in which the micro-batch that ends it is on the wire."""
    exposed = np.zeros(len(idle_from), dtype=np.int64)
    if stage:
        sent, arrived = timeline.hop_starts[stage - 1], timeline.arrivals[stage]
        overlap = np.minimum(arrived, idle_to[:-1]) - np.maximum(sent, idle_from[:-1])
        exposed[:-1] = np.maximum(0, overlap)
    return exposed


def _paid_within(timeline: Timeline, stage: int, window: tuple[int, int]) -> list[int]:
    """Returns how often each price was paid for on a stage by what ran within a window, if only in part."""
    inside = (timeline.ends[stage] > window[0]) & (timeline.starts[stage] < window[1])
    return [int(n) for n in np.bincount(timeline.paid(stage)[inside], minlength=len(timeline.prices))]


def _by_category(timeline: Timeline, window: tuple[int, int]) -> dict[str, Floats]:
    """Returns per category the picoseconds [P, prices] within a window: each price times how often it was paid."""
    paid = [_paid_within(timeline, stage, window) for stage in range(len(timeline.ends))]
    names = sorted({name for price in timeline.prices for stage in price.stages for name in stage.by_category})
    return {
        name: np.array(
            [
                [
                    price.stages[stage].by_category.get(name, 0) * n
                    for price, n in zip(timeline.prices, paid[stage], strict=True)
                ]
                for stage in range(len(timeline.starts))
            ],
            dtype=np.float64,
        )
        for name in names
    }


def _basis(timeline: Timeline) -> dict[str, float]:
    total: dict[str, float] = {}
    for stage, times in _paid_stages(timeline):
        for basis, picoseconds in stage.by_basis.items():
            total[basis] = total.get(basis, 0.0) + picoseconds * times / PICOSECONDS_PER_SECOND
    return total


def _extrapolated(timeline: Timeline) -> float:
    total: int = sum(stage.extrapolated * times for stage, times in _paid_stages(timeline))
    return total / PICOSECONDS_PER_SECOND


def _paid_stages(timeline: Timeline) -> Iterator[tuple[Any, int]]:
    """Yields the price of a stage and how often it was paid."""
    for server in timeline.replicas or (timeline,):
        for stage in range(len(server.starts)):
            paid = np.bincount(server.paid(stage), minlength=len(server.prices)).tolist()
            for price, times in zip(server.prices, paid, strict=True):
                if times:
                    yield price.stages[stage], times


def _seconds(picoseconds: Clock) -> Floats:
    return picoseconds / PICOSECONDS_PER_SECOND
