"""The pipeline at two grains: one event per passage, or real resources for every stage and link.

Both give the same times wherever they overlap: every stage and every link serves micro-batches in launch order, so
`start = max(arrival, free)` is what a queue of capacity one does.
"""

from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import simpy

from pipesim.passes import PassPrice, PricedOp, StagePrice
from pipesim.timeline import OpSpan
from pipesim.workload import Batch

ListOperations = Callable[[Batch, int], Iterator[PricedOp]]
Process = Generator[simpy.Event, Any, None]


@dataclass(slots=True, eq=False)
class Passage:
    """One micro-batch on its way through the stages."""

    index: int
    batch: Batch
    price: PassPrice
    launched: int = -1
    """When the scheduler launched it."""
    ready: int = -1
    """When it left the last stage that it has been through."""
    announced: int = -1
    """When the host of that stage had told the next one of it."""
    returning: int = -1
    """When the last stage's host had told the first of its tokens."""
    result: int = -1
    """When its tokens are on the scheduler's host."""
    after: "Passage | None" = None
    """The passage whose tokens the first stage needs, where they stay on the GPU."""
    released: simpy.Event | None = None
    finished: simpy.Event | None = None


class Record:
    """When every passage arrived at, began on and left every stage [ps].

    Every stage and hop serves passages in launch order, so each column is filled in that order.
    """

    def __init__(self, stages: int) -> None:
        self.arrivals, self.starts, self.ends = ([array("q") for _ in range(stages)] for _ in range(3))
        self.hop_starts = [array("q") for _ in range(stages - 1)]
        self.op_spans: list[OpSpan] = []


class Pipeline(Protocol):
    """What the scheduler's loop needs of the stages."""

    record: Record

    def turn(self, begin: int, passage: Passage | None, result: Passage | None) -> None:
        """Begins a turn: what it will launch, and whose result it will handle."""

    def exchange(self, at: int) -> None:
        """Lets the first stage's host send on the tokens it holds and wait for those of this turn's result."""

    def announcement(self, passage: Passage) -> simpy.Event | None:
        """Returns what to wait for until `passage.returning` is known, or None when it is."""

    def launch(self, passage: Passage) -> None:
        """Queues a passage on the first stage, not before `passage.launched`."""

    def release(self, passage: Passage, at: int) -> None:
        """Lets a passage leave the first stage, not before `at`."""

    def pending(self, passage: Passage) -> simpy.Event | None:
        """Returns what to wait for until the passage's result time is known, or None when it is."""


class PassPipeline:
    """Detail "pass": a passage's whole way follows from a recurrence; no event of its own.

    It records starts and sends alone; arrivals and ends follow from them and the prices. Other stages' hosts are taken
    to keep up.
    """

    def __init__(self, stages: int) -> None:
        self.record = Record(stages)
        self._stage_free = [0] * stages
        self._link_free = [0] * (stages - 1)
        self._add_start = [column.append for column in self.record.starts]
        self._add_hop = [column.append for column in self.record.hop_starts]

    def launch(self, passage: Passage) -> None:
        """Occupies the first stage from when it is free."""
        if passage.after:
            passage.launched = max(passage.launched, passage.after.result)
        start = max(passage.launched, self._stage_free[0])
        self._stage_free[0] = passage.ready = start + passage.price.totals[0]
        self.record.arrivals[0].append(passage.launched)
        self._add_start[0](start)

    def release(self, passage: Passage, at: int) -> None:
        """Sends the passage over every hop and stage that remains.

        The innermost loop of a run: comparisons instead of `max`, and methods looked up beforehand, halve its time.
        """
        price, stage_free, link_free = passage.price, self._stage_free, self._link_free
        totals, add_start, add_hop = price.totals, self._add_start, self._add_hop
        ready = passage.ready
        if at > ready and price.hops:
            ready = at
        for stage, seconds in enumerate(price.hops, start=1):
            free = link_free[stage - 1]
            sent = ready if ready > free else free
            arrival = link_free[stage - 1] = sent + seconds
            add_hop[stage - 1](sent)
            free = stage_free[stage]
            start = arrival if arrival > free else free
            add_start[stage](start)
            ready = stage_free[stage] = start + totals[stage]
        stage_free[-1] = ready + price.held
        passage.returning = passage.result = ready + price.result_return

    def turn(self, begin: int, passage: Passage | None, result: Passage | None) -> None:
        """Nothing to do: nobody else walks the turns."""

    def exchange(self, at: int) -> None:
        """Nothing to do: a result comes back by itself."""

    def announcement(self, passage: Passage) -> simpy.Event | None:
        """Returns None: see `pending`."""
        return None

    def pending(self, passage: Passage) -> simpy.Event | None:
        """Returns None: the result time is known from the release on."""
        return None


def _now(clock: simpy.Environment) -> int:
    return int(clock.now)


class EventPipeline:
    """Details "stage" and "op": SimPy resources for every stage and link, one process per micro-batch."""

    def __init__(self, environment: simpy.Environment, stages: int, operations: ListOperations | None) -> None:
        self.record = Record(stages)
        self._environment = environment
        self._stages = [simpy.Resource(environment, capacity=1) for _ in range(stages)]
        self._links = [simpy.Resource(environment, capacity=1) for _ in range(stages - 1)]
        self._operations = operations

    def turn(self, begin: int, passage: Passage | None, result: Passage | None) -> None:
        """Prepares what will be launched."""
        if passage:
            passage.finished = self._environment.event()

    def exchange(self, at: int) -> None:
        """Nothing to do: a result comes back by itself."""

    def launch(self, passage: Passage) -> None:
        """Starts the passage's process."""
        passage.released = self._environment.event()
        self._environment.process(self._travel(passage))

    def release(self, passage: Passage, at: int) -> None:
        """Lets the passage leave the first stage at `at`."""
        if passage.released is not None:
            self._environment.process(self._release_at(passage.released, at))

    def pending(self, passage: Passage) -> simpy.Event | None:
        """Returns the event of the passage's result, or None once it has come back."""
        return passage.finished if passage.result < 0 else None

    def announcement(self, passage: Passage) -> simpy.Event | None:
        """Returns the event of the passage's result: it is told when it is there."""
        return self.pending(passage)

    def _release_at(self, released: simpy.Event, at: int) -> Process:
        yield self._until(at)
        released.succeed()

    def _travel(self, passage: Passage) -> Process:
        clock, price = self._environment, passage.price
        yield clock.timeout(passage.launched - clock.now)
        if passage.after and (pending := self.pending(passage.after)) is not None:
            yield pending
        self.record.arrivals[0].append(_now(clock))
        yield from self._occupy(passage, 0)
        if passage.released is not None:
            yield passage.released
        for hop in range(len(price.hops)):
            yield from self._hop(passage, hop)
            yield from self._occupy(passage, hop + 1)
        yield clock.timeout(price.result_return)
        self._finish(passage)

    def _hold(self, stage: int, turn: simpy.resources.resource.Request, held: int) -> Process:
        """Keeps a stage occupied for a while behind a passage that goes on."""
        yield self._environment.timeout(held)
        self._stages[stage].release(turn)

    def _finish(self, passage: Passage) -> None:
        passage.result = _now(self._environment)
        passage.returning = passage.result if passage.returning < 0 else passage.returning
        if passage.finished is not None:
            passage.finished.succeed()

    def _hop(self, passage: Passage, hop: int) -> Process:
        clock = self._environment
        with self._links[hop].request() as link:
            yield link
            self.record.hop_starts[hop].append(_now(clock))
            yield clock.timeout(passage.price.hops[hop])
        self.record.arrivals[hop + 1].append(_now(clock))

    def _occupy(self, passage: Passage, stage: int) -> Process:
        clock, price = self._environment, passage.price
        turn = self._stages[stage].request()
        yield turn
        self.record.starts[stage].append(_now(clock))
        if self._operations is None:
            yield clock.timeout(price.totals[stage])
        else:
            ops = list(self._operations(passage.batch, stage))
            yield from run_operations(clock, self.record, passage.index, stage, price.stages[stage], ops)
        self.record.ends[stage].append(_now(clock))
        if price.held and stage == len(self._stages) - 1:
            clock.process(self._hold(stage, turn, price.held))
        else:
            self._stages[stage].release(turn)

    def _until(self, time: int) -> simpy.Event:
        return self._environment.timeout(max(0, time - _now(self._environment)))


def run_operations(
    clock: simpy.Environment, record: Record, index: int, stage: int, price: StagePrice, ops: list[PricedOp]
) -> Process:
    """Runs a stage kernel by kernel; the wait for launches is spread over them by their number of launches."""
    begin = _now(clock)
    waiting = price.by_category.get("host", 0)
    launches = sum(priced.op.launches for priced in ops)
    launched = busy = 0
    for priced in ops:
        launched += priced.op.launches
        start = begin + busy + waiting * launched // launches
        yield clock.timeout(start - clock.now)
        yield clock.timeout(priced.picoseconds)
        busy += priced.picoseconds
        span = OpSpan(index, stage, priced.op.name, priced.op.category, priced.bound, start, _now(clock))
        record.op_spans.append(span)
