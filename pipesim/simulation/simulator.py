"""The scheduler's loop and the users, as SimPy processes around a pipeline of stages.

The loop is the same for every engine; what differs is in its policy and its `LoopShape`. TP alone is one stage.
"""

from collections import deque
from collections.abc import Generator, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import simpy

from pipesim.engines import MicroBatch, Policy, Request
from pipesim.passes import PassPrice, PriceBatch
from pipesim.simulation.stages import EventPipeline, ListOperations, Passage, PassPipeline, Pipeline
from pipesim.timeline import Clock, Timeline

Detail = Literal["pass", "stage", "op"]
Process = Generator[simpy.Event, Any, None]


class _Launched(NamedTuple):
    passage: Passage
    micro_batch: MicroBatch


def simulate(
    policy: Policy,
    price: PriceBatch,
    requests: list[Request],
    *,
    stages: int,
    users: int | None,
    idle_turn: int,
    detail: Detail = "pass",
    operations: ListOperations | None = None,
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
    """
    environment = simpy.Environment(initial_time=0)
    pipeline: Pipeline
    if detail == "pass":
        pipeline = PassPipeline(stages)
    else:
        pipeline = EventPipeline(environment, stages, operations if detail == "op" else None)
    run = _Run(environment, pipeline, policy, price, idle_turn)
    run.start(requests, len(requests) if users is None else users)
    environment.run()
    return _timeline(run, policy, requests, pipeline)


class _Run:
    """One run: its clock, its users, its loop and what it launched."""

    def __init__(
        self, environment: simpy.Environment, pipeline: Pipeline, policy: Policy, price: PriceBatch, idle_turn: int
    ) -> None:
        self.launched: list[_Launched] = []
        self._environment, self._pipeline = environment, pipeline
        self._policy, self._price, self._idle_turn = policy, price, idle_turn
        self._turns: list[_Launched | None] = []
        self._arrived = environment.event()
        self._unsent: deque[Request] = deque()
        self._unfinished = 0

    def start(self, requests: list[Request], users: int) -> None:
        """Starts the scheduler and the users."""
        self._unfinished = len(requests)
        self._unsent.extend(requests[users:])
        for request in requests[:users]:
            self._environment.process(self._send(request))
        self._environment.process(self.loop())

    def loop(self) -> Process:
        """The engine's scheduler: walks the slots for ever, one turn each (SGLang `event_loop_pp` and its kin)."""
        shape, policy = self._policy.loop, self._policy
        turn = 0
        while self._unfinished:
            if policy.idle:
                yield self._arrived
            micro_batch = policy.form(turn % shape.slots)
            handled = turn - shape.result_lag
            result = self._turns[handled] if 0 <= handled < turn else None
            if micro_batch is None:
                launched, now = None, self._environment.now + self._idle_turn
            else:
                launched, now = yield from self._launch(micro_batch, result if shape.receive_before_launch else None)
                if not shape.send_after_processing:
                    self._pipeline.release(launched.passage, 0)
            self._turns.append(launched)
            ended: list[Request] = []
            if result := launched if shape.result_lag == 0 else result:
                now = yield from self._receive(result, now)
                now += result.passage.price.process
                ended = policy.complete(result.micro_batch, now)
            if launched and shape.send_after_processing:
                self._pipeline.release(launched.passage, now)
            yield self._environment.timeout(now - self._environment.now)
            self._send_next(ended)
            turn += 1

    def _launch(self, micro_batch: MicroBatch, awaited: _Launched | None) -> Generator[simpy.Event, Any, tuple[_Launched, int]]:
        """Forms, waits for the result that has to be in first, launches; returns the launch and when the host is free."""
        price = self._price(micro_batch.batch)
        now = self._environment.now + price.schedule
        if awaited:
            now = yield from self._receive(awaited, now)
        passage = Passage(len(self.launched), micro_batch.batch, price, arrivals=[now])
        launched = _Launched(passage, micro_batch)
        self.launched.append(launched)
        self._pipeline.launch(passage)
        return launched, now + price.launch

    def _receive(self, launched: _Launched, now: int) -> Generator[simpy.Event, Any, int]:
        """Waits for a result; returns when the host has it, given that it is busy until `now`."""
        yield from self._pipeline.wait(launched.passage)
        return max(now, launched.passage.result)

    def _send(self, request: Request) -> Process:
        yield self._environment.timeout(request.arrival)
        self._submit(request)

    def _send_next(self, ended: list[Request]) -> None:
        """Every user of the closed loop whose request has ended sends the next one."""
        self._unfinished -= len(ended)
        for _ in ended:
            if self._unsent:
                request = self._unsent.popleft()
                request.arrival = self._environment.now
                self._submit(request)

    def _submit(self, request: Request) -> None:
        self._policy.submit(request)
        self._arrived.succeed()
        self._arrived = self._environment.event()


def _timeline(run: _Run, policy: Policy, requests: list[Request], pipeline: Pipeline) -> Timeline:
    passages = [launched.passage for launched in run.launched]
    numbers: dict[int, int] = {}
    prices: list[PassPrice] = []
    for passage in passages:
        if numbers.setdefault(id(passage.price), len(prices)) == len(prices):
            prices.append(passage.price)
    gaps = policy.decode_gaps

    def stages_first(columns: list[list[int]]) -> Clock:
        return np.ascontiguousarray(np.array(columns, dtype=np.int64).T)

    return Timeline(
        starts=stages_first([passage.starts for passage in passages]),
        ends=stages_first([passage.ends for passage in passages]),
        arrivals=stages_first([passage.arrivals for passage in passages]),
        hop_starts=stages_first([passage.hop_starts for passage in passages]),
        price_index=_clock(numbers[id(passage.price)] for passage in passages),
        prices=tuple(prices),
        decode=np.array([launched.micro_batch.decode_step >= 0 for launched in run.launched], dtype=np.bool_),
        slot=_clock(launched.micro_batch.slot for launched in run.launched),
        requests_in_batch=_clock(passage.batch.requests for passage in passages),
        arrival=_clock(request.arrival for request in requests),
        first_token=_clock(request.first_token for request in requests),
        last_token=_clock(request.last_token for request in requests),
        input_len=_clock(request.input_len for request in requests),
        output_len=_clock(request.output_len for request in requests),
        gap=_clock(gaps.gaps),
        gap_weight=_clock(gaps.weights),
        cycle=_clock(gaps.cycles),
        op_spans=tuple(pipeline.op_spans),
    )


def _clock(values: Iterable[int]) -> Clock:
    return np.fromiter(values, dtype=np.int64)
