"""A timeline put together from what a run recorded."""

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from pipesim.engines import Request
from pipesim.engines.base import DecodeGaps
from pipesim.passes import PassPrice
from pipesim.simulation.stages import Record
from pipesim.timeline import Clock, Timeline


class Prices:
    """The distinct prices of a run: equal ones are numbered once."""

    def __init__(self) -> None:
        self.distinct: list[PassPrice] = []
        self._numbers: dict[int, int] = {}

    def number(self, price: PassPrice) -> int:
        """Returns the index of a price."""
        number = self._numbers.setdefault(id(price), len(self.distinct))
        if number == len(self.distinct):
            self.distinct.append(price)
        return number


class Launches:
    """What the first stage launched, in order."""

    def __init__(self) -> None:
        self.prices = Prices()
        self.price_index, self.slot, self.requests, self.decode = array("q"), array("q"), array("q"), array("b")

    def add(self, price: PassPrice, slot: int, requests: int, decode: bool) -> int:
        """Returns the index of a launch."""
        self.price_index.append(self.prices.number(price))
        self.slot.append(slot)
        self.requests.append(requests)
        self.decode.append(decode)
        return len(self.slot) - 1


def of_passages(
    launches: Launches, record: Record, requests: list[Request], gaps: DecodeGaps, marks: list[tuple[int, int]]
) -> Timeline:
    """Returns the timeline of a run whose micro-batches go whole through all stages."""
    count = len(launches.slot)
    price_index = _clock(launches.price_index)
    starts, hop_starts = _rows(record.starts, count), _rows(record.hop_starts, count)
    if record.ends[0]:
        ends, arrivals = _rows(record.ends, count), _rows(record.arrivals, count)
    else:
        prices = launches.prices.distinct
        ends = starts + _paid([price.totals for price in prices], price_index)
        received = hop_starts + _paid([price.hops for price in prices], price_index)
        arrivals = np.concatenate([_rows(record.arrivals[:1], count), received])
    return Timeline(
        starts=starts,
        ends=ends,
        arrivals=arrivals,
        hop_starts=hop_starts,
        left=ends[-1],
        op_spans=tuple(record.op_spans),
        **_common(launches, requests, gaps, marks),
    )


def of_stage_batches(
    launches: Launches,
    paid: list["array[int]"],
    left: list[int],
    record: Record,
    requests: list[Request],
    gaps: DecodeGaps,
    marks: list[tuple[int, int]],
) -> Timeline:
    """Returns the timeline of a run in which every stage formed batches of its own: rows differ in length."""
    return Timeline(
        starts=tuple(map(_clock, record.starts)),
        ends=tuple(map(_clock, record.ends)),
        arrivals=tuple(map(_clock, record.arrivals)),
        hop_starts=tuple(map(_clock, record.hop_starts)),
        left=_clock(left),
        stage_price_index=tuple(map(_clock, paid)),
        op_spans=tuple(record.op_spans),
        **_common(launches, requests, gaps, marks),
    )


def _common(
    launches: Launches, requests: list[Request], gaps: DecodeGaps, marks: list[tuple[int, int]]
) -> dict[str, Any]:
    """Returns the fields of a timeline that do not depend on how stages form batches."""
    requests = sorted(requests, key=lambda request: request.index)
    fields = ("arrival", "first_token", "last_token", "input_len", "output_len", "context_len")
    of_requests = {name: _clock(getattr(request, name) for request in requests) for name in fields}
    return of_requests | {
        "request_index": _clock(request.index for request in requests),
        "price_index": _clock(launches.price_index),
        "prices": tuple(launches.prices.distinct),
        "decode": np.array(launches.decode, dtype=np.bool_),
        "slot": _clock(launches.slot),
        "requests_in_batch": _clock(launches.requests),
        "gap": _clock(gaps.gaps),
        "gap_weight": _clock(gaps.weights),
        "cycle": _clock(gaps.cycles),
        "request_slot": _clock(request.slot for request in requests),
        "gaps_by_end": _clock(gaps for gaps, _ in marks),
        "cycles_by_end": _clock(cycles for _, cycles in marks),
    }


def _paid(times: list[tuple[int, ...]], price_index: Clock) -> Clock:
    """Returns [stages or hops, N]: the times of the price that each passage paid."""
    return np.ascontiguousarray(np.array(times, dtype=np.int64).reshape(len(times), -1)[price_index].T)


def _rows(columns: list["array[int]"], passages: int) -> Clock:
    return np.array(columns, dtype=np.int64).reshape(len(columns), passages)


def _clock(values: Iterable[int]) -> Clock:
    return np.fromiter(values, dtype=np.int64)
