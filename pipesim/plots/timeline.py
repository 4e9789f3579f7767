"""Stages over time: which micro-batch is where, what binds it, and where a stage idles."""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from pipesim.deployment import Deployment
from pipesim.metrics import stage_loads
from pipesim.plots.style import BOUND_COLOURS, PAPER, axes_or_new, bound_handles, finish, name_rows, styled, text_colour
from pipesim.timeline import Clock, Timeline
from pipesim.units import PICOSECONDS_PER_SECOND

HEIGHT = 0.8
"""Of a stage's row; the rows are 1 apart."""
STEPS = 3
"""Decode steps that a picture shows where no window is asked for."""
CANDIDATES = 256
"""Places of the run that are looked at for a window like the whole."""
CHARACTER = 0.012
"""Width of one character of a label, as a share of the axes."""

Box = tuple[float, float, float, float]
"""Left and right [ms], bottom and top."""


class _Span(NamedTuple):
    """One passage on one stage, cut to the window [ps]."""

    start: int
    end: int
    shares: dict[str, float]
    """Of its time, by what binds."""
    label: str
    """The slot, and whether it is a prefill, where they are known."""

    @property
    def ink(self) -> str:
        """The colour of text that is read on its largest part."""
        return text_colour(BOUND_COLOURS[max(self.shares, key=lambda bound: self.shares[bound], default="memory")])


@styled
def plot_timeline(
    timeline: Timeline,
    deployment: Deployment | None = None,
    window_s: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the stages of a run over time and returns the axes: bubbles are the grey gaps.

    A span is one micro-batch on one stage, with the number of its slot. Its height is divided by what binds its
    kernels: how much of it is memory, link and so on is to scale, in which order is not shown. Of several servers the
    first is drawn.

    Args:
        timeline: a run, of any detail.
        deployment: names the stages' GPUs and layers, if given.
        window_s: the part of the run to draw [s]; else a few decode steps whose bubbles are like those of the whole.
        ax: axes to draw on; else those of a new figure.
    """
    server = timeline.replicas[0] if timeline.replicas else timeline
    stages = len(server.starts)
    ax = axes_or_new(ax, height=min(12.0, 1.6 + 0.45 * stages))
    window = _picoseconds(window_s) if window_s else typical_window(server)
    boxes: dict[str, list[Box]] = defaultdict(list)
    for stage in range(stages):
        _idle(server, stage, window, boxes)
        for span in _spans(server, stage, window):
            _busy(span, stage, window, boxes)
            if span.end - span.start > CHARACTER * (len(span.label) + 0.4) * (window[1] - window[0]):
                middle = (span.start + span.end) / 2 - window[0]
                ax.text(middle / 1e9, stage, span.label, ha="center", va="center", fontsize=8, color=span.ink)
    if stages == 1:
        boxes.pop("bubble", None)  # a single stage is busy whenever something is in flight
    for bound in ("bubble", "host", "memory", "compute", "latency", "link"):
        if boxes[bound]:
            edge = {"edgecolor": PAPER, "linewidth": 0.4} if bound != "bubble" else {"edgecolor": "none"}
            corners = [
                [(left, low), (right, low), (right, high), (left, high)] for left, right, low, high in boxes[bound]
            ]
            ax.add_collection(PolyCollection(corners, facecolor=BOUND_COLOURS[bound], **edge), autolim=False)
    ax.set_xlim(0.0, (window[1] - window[0]) / 1e9)
    name_rows(ax, stages, lambda stage: _stage_name(stage, deployment))
    begin = window[0] / PICOSECONDS_PER_SECOND
    ax.set_xlabel(f"time from {begin:.3f} s of the run on [ms]; numbers: micro-batch slots, P: prefill")
    finish(ax, _finding(server, deployment), bound_handles(bound for bound, drawn in boxes.items() if drawn))
    return ax


def typical_window(timeline: Timeline) -> tuple[int, int]:
    """Returns a window [ps] of a few decode steps in which stages decode, prefill and idle as much as in the whole run.

    It lies behind the first prefills, and before the run drains: no later than the last request's sending, or the first
    one's end in a single wave.
    """
    begin, end = timeline.window
    cycle = int(np.median(timeline.cycle)) if timeline.cycle.size else end - begin
    length = min(max(1, STEPS * cycle), end - begin)
    whole = _occupied(timeline, (begin, end))
    latest = min(max(int(timeline.arrival.max()), int(timeline.last_token.min()), begin + length), end) - length
    filled = begin + int((timeline.first_token - timeline.arrival).max())
    starts = np.linspace(filled if filled < latest else begin, latest, CANDIDATES).astype(np.int64).tolist()
    best = min(starts, key=lambda start: np.abs(_occupied(timeline, (start, start + length)) - whole).sum())
    return best, best + length


def _occupied(timeline: Timeline, window: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns the shares of the stages' time in a window that are decode and prefill; the rest is idle.

    Where stages form batches of their own, all of it counts as decode.
    """
    decode = prefill = 0.0
    for starts, ends in zip(timeline.starts, timeline.ends, strict=True):
        held = np.clip(ends, *window) - np.clip(starts, *window)
        decoding = float(held.sum() if timeline.stage_price_index else held[timeline.decode].sum())
        decode, prefill = decode + decoding, prefill + float(held.sum()) - decoding
    return np.array([decode, prefill]) / (len(timeline.starts) * (window[1] - window[0]))


def _picoseconds(window_s: tuple[float, float]) -> tuple[int, int]:
    begin, end = (round(seconds * PICOSECONDS_PER_SECOND) for seconds in window_s)
    return begin, end


def _spans(timeline: Timeline, stage: int, window: tuple[int, int]) -> list[_Span]:
    starts, ends = timeline.starts[stage], timeline.ends[stage]
    found = []
    for passage in np.flatnonzero((ends > window[0]) & (starts < window[1])).tolist():
        by_bound: dict[Any, int] = timeline.prices[timeline.paid(stage)[passage]].stages[stage].by_bound
        total = sum(by_bound.values()) or 1
        shares: dict[str, float] = defaultdict(float)
        for (_, bound), picoseconds in by_bound.items():
            shares[bound] += picoseconds / total
        start, end = max(int(starts[passage]), window[0]), min(int(ends[passage]), window[1])
        found.append(_Span(start, end, shares, _label(timeline, stage, passage)))
    return found


def _label(timeline: Timeline, stage: int, passage: int) -> str:
    """Returns the slot and whether it is a prefill; nothing where a stage has formed a batch of its own."""
    if timeline.stage_price_index and stage:
        return ""
    return f"{'' if timeline.decode[passage] else 'P'}{timeline.slot[passage]}"


def _busy(span: _Span, stage: int, window: tuple[int, int], boxes: dict[str, list[Box]]) -> None:
    """Adds a span's boxes, one above the other in the order of the legend, each as high as its share."""
    bottom = stage + HEIGHT / 2
    for bound in BOUND_COLOURS:
        if share := span.shares.get(bound, 0.0):
            top = bottom - HEIGHT * share
            boxes[bound].append(((span.start - window[0]) / 1e9, (span.end - window[0]) / 1e9, bottom, top))
            bottom = top


def _idle(timeline: Timeline, stage: int, window: tuple[int, int], boxes: dict[str, list[Box]]) -> None:
    """Adds the ground of a stage's row: host where nothing is in flight, bubble elsewhere, and transfers awaited."""
    boxes["host"] += [_box(window, *gap, stage) for gap in _nothing_in_flight(timeline, window)]
    boxes["bubble"] += [_box(window, *span, stage) for span in _in_flight(timeline, window)]
    if stage:
        sent = np.maximum(timeline.hop_starts[stage - 1], np.concatenate([[0], timeline.ends[stage][:-1]]))
        arrived = timeline.arrivals[stage]
        for passage in np.flatnonzero((sent < arrived) & (arrived > window[0]) & (sent < window[1])).tolist():
            boxes["link"].append(_box(window, int(sent[passage]), int(arrived[passage]), stage))


def _box(window: tuple[int, int], start: int, end: int, stage: int) -> Box:
    left, right = ((min(max(time, window[0]), window[1]) - window[0]) / 1e9 for time in (start, end))
    return left, right, stage + HEIGHT / 2, stage - HEIGHT / 2


def _in_flight(timeline: Timeline, window: tuple[int, int]) -> list[tuple[int, int]]:
    """Returns when at least one micro-batch was in the pipeline, within a window."""
    starts: Clock = timeline.starts[0]
    reached = np.maximum.accumulate(timeline.left)
    first = np.flatnonzero(np.concatenate([[True], starts[1:] > reached[:-1]]))
    last = np.concatenate([first[1:], [len(starts)]]) - 1
    spans = zip(starts[first].tolist(), reached[last].tolist(), strict=True)
    return [(start, end) for start, end in spans if end > window[0] and start < window[1]]


def _nothing_in_flight(timeline: Timeline, window: tuple[int, int]) -> list[tuple[int, int]]:
    spans = _in_flight(timeline, window)
    edges = [window[0], *(time for span in spans for time in span), window[1]]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if end > start]


def _stage_name(stage: int, deployment: Deployment | None) -> str:
    if deployment is None:
        return f"stage {stage}"
    gpus = deployment.plan.stage_gpus(stage)
    names = f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {gpus[0]}–{gpus[-1]}"
    return f"stage {stage} ({names})" if deployment.plan.pp > 1 else names


def _finding(timeline: Timeline, deployment: Deployment | None) -> str:
    """Says how much of the stages' time over the whole run is bubble, and what binds most of the rest."""
    loads = stage_loads(timeline)
    total = sum(load.window for load in loads)
    bounds: dict[str, float] = defaultdict(float)
    for load in loads:
        bounds["host"] += load.host
        for (_, bound), seconds in load.by_bound.items():
            bounds[bound] += seconds
    most = max(bounds, key=lambda bound: bounds[bound])
    plan = f"{deployment.plan}: " if deployment else ""
    parts = [(bounds[most] / total, f"{most}-bound")]
    if len(loads) > 1:
        parts.append((sum(load.bubble for load in loads) / total, "idle in bubbles"))
    (share, first), *rest = sorted(parts, reverse=True)
    return f"{plan}{first} {share:.0%} of the time" + "".join(f", {what} {part:.0%}" for part, what in rest)
