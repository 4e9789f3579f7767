"""The scheduler's loop and the users, as SimPy processes around a pipeline of stages.

The loop is the same for every engine; what differs is in its policy and its `LoopShape`. TP alone is one stage.
"""

from array import array
from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy

from pipesim.engines import MicroBatch, Policy, Request
from pipesim.passes import PassPrice, PriceBatch
from pipesim.simulation.stages import EventPipeline, ListOperations, Passage, PassPipeline, Pipeline, Record
from pipesim.timeline import Clock, Timeline

Detail = Literal["pass", "stage", "op"]
Process = Generator[simpy.Event, Any, None]


class _Launched(NamedTuple):
    passage: Passage
    micro_batch: MicroBatch


def simulate(  # noqa: PLR0913 - all but the first are named at the call
    policy: Policy,
    price: PriceBatch,
    requests: list[Request],
    *,
    stages: int,
    users: int | None,
    idle_turn: int,
    detail: Detail = "pass",
    operations: ListOperations | None = None,
    max_concurrency: int | None = None,
) -> Timeline:
    """Returns the timeline of one run.

    Args:
        policy: a fresh scheduler; the run consumes it.
        price: the price of a batch [ps].
        requests: what the users send; consumed. In a closed loop the first `users` carry their times of arrival, and
            each end of a request sends the next one; in an open loop all carry theirs.
        stages: pipeline stages.
        users: users of the closed loop; None for an open loop.
        idle_turn: CPU time of a turn over an empty slot [ps].
        detail: "pass", "stage" or "op": same times, more or fewer events and spans.
        operations: lists the priced operations of a batch on a stage; needed for detail "op".
        max_concurrency: most requests in the server in an open loop; None for no limit.
    """
    environment = simpy.Environment(initial_time=0)
    pipeline: Pipeline
    if detail == "pass":
        pipeline = PassPipeline(stages)
    else:
        pipeline = EventPipeline(environment, stages, operations if detail == "op" else None)
    run = _Run(environment, pipeline, policy, price, idle_turn)
    run.start(requests, users, len(requests) if max_concurrency is None else max_concurrency)
    environment.run()
    return _timeline(run, policy, requests, pipeline.record)


class _Launches:
    """What was launched, in order; equal prices are numbered once."""

    def __init__(self) -> None:
        self.price_index, self.slot, self.requests, self.decode = array("q"), array("q"), array("q"), array("b")
        self.prices: list[PassPrice] = []
        self._numbers: dict[int, int] = {}

    def add(self, micro_batch: MicroBatch, price: PassPrice) -> int:
        """Returns the index of a launch."""
        number = self._numbers.setdefault(id(price), len(self.prices))
        if number == len(self.prices):
            self.prices.append(price)
        self.price_index.append(number)
        self.slot.append(micro_batch.slot)
        self.requests.append(micro_batch.batch.requests)
        self.decode.append(micro_batch.decode_step >= 0)
        return len(self.slot) - 1


class _Run:
    """One run: its clock, its users, its loop and what it launched."""

    def __init__(
        self, environment: simpy.Environment, pipeline: Pipeline, policy: Policy, price: PriceBatch, idle_turn: int
    ) -> None:
        self.launches = _Launches()
        self._environment, self._pipeline = environment, pipeline
        self._policy, self._price, self._idle_turn = policy, price, idle_turn
        lag = policy.loop.result_lag
        self._recent: deque[_Launched | None] = deque([None] * lag, maxlen=lag)
        self._last_in_slot: list[Passage | None] = [None] * policy.loop.slots
        self._arrived = environment.event()
        self._unsent: deque[Request] = deque()
        self._unfinished = 0
        self._places = 0
        self.marks: list[tuple[int, int]] = []

    @property
    def _now(self) -> int:
        return int(self._environment.now)

    def start(self, requests: list[Request], users: int | None, max_concurrency: int) -> None:
        """Starts the scheduler and the users."""
        self._unfinished = len(requests)
        first = requests[:users]
        self._unsent.extend(requests[len(first) :])
        self._places = max_concurrency if users is None else len(first)
        self._environment.process(self._send(sorted(first, key=lambda request: request.arrival)))
        self._environment.process(self.loop())

    def loop(self) -> Process:
        """The engine's scheduler: walks the slots for ever, one turn each (SGLang `event_loop_pp` and its kin)."""
        shape, policy, pipeline, environment = self._policy.loop, self._policy, self._pipeline, self._environment
        turn, begin = 0, self._now
        while self._unfinished:
            if policy.idle:
                yield self._arrived
                begin = self._now
            clock = begin
            micro_batch = policy.form(turn % shape.slots)
            result = self._recent[0] if self._recent else None
            launched, now = None, begin + self._idle_turn
            if micro_batch is not None:
                price = self._price(micro_batch.batch)
                now = begin + price.schedule
                if shape.receive_before_launch and result:
                    if (pending := pipeline.pending(result.passage)) is not None:
                        yield pending
                        clock = self._now
                    now = max(now, result.passage.result)
                launched = self._launch(micro_batch, price, now)
                now += price.launch
                if not shape.send_after_processing:
                    pipeline.release(launched.passage, 0)
            self._recent.append(launched)
            ended: list[Request] = []
            if result := launched if shape.result_lag == 0 else result:
                if (pending := pipeline.pending(result.passage)) is not None:
                    yield pending
                    clock = self._now
                now = max(now, result.passage.result) + result.passage.price.process
                ended = policy.complete(result.micro_batch, now)
            if launched and shape.send_after_processing:
                pipeline.release(launched.passage, now)
            yield environment.timeout(now - clock)
            begin = now
            if ended:
                self._send_next(ended)
            turn += 1

    def _launch(self, micro_batch: MicroBatch, price: PassPrice, now: int) -> _Launched:
        slot = micro_batch.slot
        passage = Passage(self.launches.add(micro_batch, price), micro_batch.batch, price, now)
        if self._policy.loop.tokens_stay_on_gpu:
            passage.after, self._last_in_slot[slot] = self._last_in_slot[slot], passage
        self._pipeline.launch(passage)
        return _Launched(passage, micro_batch)

    def _send(self, requests: list[Request]) -> Process:
        """Sends each request at its time, or lets it wait at the client for a place in the server."""
        for request in requests:
            if request.arrival > self._now:
                yield self._environment.timeout(request.arrival - self._now)
            if self._places:
                self._places -= 1
                self._submit(request)
            else:
                self._unsent.append(request)

    def _send_next(self, ended: list[Request]) -> None:
        """Every request that has ended makes room for the next that waits: its user's own, in a closed loop."""
        self._unfinished -= len(ended)
        gaps = self._policy.decode_gaps
        self.marks += [(len(gaps.gaps), len(gaps.cycles))] * len(ended)
        for _ in ended:
            if self._unsent:
                request = self._unsent.popleft()
                request.arrival = self._now
                self._submit(request)
            else:
                self._places += 1

    def _submit(self, request: Request) -> None:
        self._policy.submit(request)
        self._arrived.succeed()
        self._arrived = self._environment.event()


def _timeline(run: _Run, policy: Policy, requests: list[Request], record: Record) -> Timeline:
    gaps = policy.decode_gaps

    launches = run.launches
    count = len(launches.slot)
    price_index = np.array(launches.price_index, dtype=np.int64)
    starts, hop_starts = _stages(record.starts, count), _stages(record.hop_starts, count)
    if record.ends[0]:
        ends, arrivals = _stages(record.ends, count), _stages(record.arrivals, count)
    else:
        ends = starts + _paid([price.totals for price in launches.prices], price_index)
        received = hop_starts + _paid([price.hops for price in launches.prices], price_index)
        arrivals = np.concatenate([_stages(record.arrivals[:1], count), received])
    return Timeline(
        starts=starts,
        ends=ends,
        arrivals=arrivals,
        hop_starts=hop_starts,
        price_index=price_index,
        prices=tuple(launches.prices),
        decode=np.array(launches.decode, dtype=np.bool_),
        slot=np.array(launches.slot, dtype=np.int64),
        requests_in_batch=np.array(launches.requests, dtype=np.int64),
        arrival=_clock(request.arrival for request in requests),
        first_token=_clock(request.first_token for request in requests),
        last_token=_clock(request.last_token for request in requests),
        input_len=_clock(request.input_len for request in requests),
        output_len=_clock(request.output_len for request in requests),
        gap=_clock(gaps.gaps),
        gap_weight=_clock(gaps.weights),
        cycle=_clock(gaps.cycles),
        op_spans=tuple(record.op_spans),
        context_len=_clock(request.context_len for request in requests),
        request_slot=_clock(request.slot for request in requests),
        gaps_by_end=_clock(gaps for gaps, _ in run.marks),
        cycles_by_end=_clock(cycles for _, cycles in run.marks),
    )


def _paid(times: list[tuple[int, ...]], price_index: Clock) -> Clock:
    """Returns [stages or hops, N]: the times of the price that each passage paid."""
    return np.ascontiguousarray(np.array(times, dtype=np.int64).reshape(len(times), -1)[price_index].T)


def _stages(columns: "list[array[int]]", passages: int) -> Clock:
    return np.array(columns, dtype=np.int64).reshape(len(columns), passages)


def _clock(values: Iterable[int]) -> Clock:
    return np.fromiter(values, dtype=np.int64)
