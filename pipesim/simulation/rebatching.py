"""Stages that form batches of their own: one SimPy process per stage, links between them, tokens that go round."""

from array import array
from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from pipesim.engines import StagePolicy
from pipesim.engines.base import Parcel, StageBatch
from pipesim.passes import PassPrice, PriceBatch
from pipesim.simulation.assembly import Launches, of_stage_batches
from pipesim.simulation.stages import ListOperations, Record, run_operations
from pipesim.simulation.users import Server, Users
from pipesim.timeline import Timeline

Process = Generator[simpy.Event, Any, None]


class StageRun:
    """One server whose stages each take, when free, what waits before them."""

    def __init__(
        self,
        environment: simpy.Environment,
        stages: int,
        policy: StagePolicy,
        price: PriceBatch,
        server: Server,
        operations: ListOperations | None,
    ) -> None:
        self._environment, self._policy, self._price, self._server = environment, policy, price, server
        self._operations = operations
        self._last = stages - 1
        self._waiting: list[deque[Parcel]] = [deque() for _ in range(stages)]
        self._links = [0] * (stages - 1)
        """When each is free."""
        self._roused = [environment.event() for _ in range(stages)]
        self._record = Record(stages)
        self._paid = [array("q") for _ in range(stages)]
        self._launches = Launches()
        self._left: list[int] = []

    def start(self, users: Users) -> None:
        """Starts all stages."""
        self._users = users
        for stage in range(self._last + 1):
            self._environment.process(self._stage(stage))

    def timeline(self) -> Timeline:
        """Returns what has happened."""
        gaps, requests, marks = self._policy.decode_gaps, self._server.requests, self._server.marks
        return of_stage_batches(self._launches, self._paid, self._left, self._record, requests, gaps, marks)

    @property
    def _now(self) -> int:
        return int(self._environment.now)

    def _stage(self, stage: int) -> Process:
        waiting = self._waiting[stage]
        while True:
            formed = self._policy.form(stage, waiting)
            if formed is None:
                yield self._roused[stage] if stage else self._roused[0] | self._server.arrived
                continue
            price = self._price(formed.batch)
            yield self._environment.timeout(price.schedule)
            yield from self._run(stage, formed, price)
            if stage == self._last:
                self._environment.process(self._return(formed.parcel, price))
            else:
                self._environment.process(self._send(stage, formed.parcel, price.hops[stage]))

    def _run(self, stage: int, formed: StageBatch, price: PassPrice) -> Process:
        record, parcel, start = self._record, formed.parcel, self._now
        if stage == 0:
            parcel.launches = [self._launch(formed, price)]
            parcel.arrived = start
        else:
            record.hop_starts[stage - 1].append(parcel.sent)
        record.arrivals[stage].append(parcel.arrived)
        record.starts[stage].append(start)
        self._paid[stage].append(self._launches.prices.number(price))
        if self._operations is None:
            yield self._environment.timeout(price.totals[stage])
        else:
            ops = list(self._operations(formed.batch, stage))
            index = len(record.starts[stage]) - 1
            yield from run_operations(self._environment, record, index, stage, price.stages[stage], ops)
        record.ends[stage].append(self._now)

    def _launch(self, formed: StageBatch, price: PassPrice) -> int:
        self._left.append(-1)
        return self._launches.add(price, 0, formed.batch.requests, bool(formed.parcel.decoding))

    def _send(self, stage: int, parcel: Parcel, seconds: int) -> Process:
        sent = max(self._now, self._links[stage])
        arrival = self._links[stage] = sent + seconds
        yield self._environment.timeout(arrival - self._now)
        parcel.sent, parcel.arrived = sent, arrival
        self._add(stage + 1, parcel)

    def _return(self, parcel: Parcel, price: PassPrice) -> Process:
        for launch in parcel.launches:
            self._left[launch] = self._now
        yield self._environment.timeout(price.result_return + price.process)
        outputs = len(parcel.decoding) + sum(len(prompts.finished) for prompts in parcel.prompts)
        seen = self._server.deliver(self._now, outputs)
        ended, goes_round = self._policy.complete(parcel, seen)
        if goes_round:
            self._waiting[0].append(goes_round)
        if ended:
            self._users.ended(self._server, len(ended), seen)
        self._rouse(0)

    def _add(self, stage: int, parcel: Parcel) -> None:
        self._waiting[stage].append(parcel)
        self._rouse(stage)

    def _rouse(self, stage: int) -> None:
        self._roused[stage].succeed()
        self._roused[stage] = self._environment.event()
