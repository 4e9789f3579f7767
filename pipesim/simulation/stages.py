"""The pipeline at two grains: one event per passage, or real resources for every stage and link.

Both give the same times wherever they overlap: every stage and every link serves micro-batches in launch order, so
`start = max(arrival, free)` is what a queue of capacity one does.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from pipesim.passes import PassPrice, PricedOp
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
    arrivals: list[int]
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    hop_starts: list[int] = field(default_factory=list)
    result: int = -1
    """When its tokens are on the scheduler's host."""
    released: simpy.Event | None = None
    finished: simpy.Event | None = None


class Pipeline(Protocol):
    """What the scheduler's loop needs of the stages."""

    op_spans: list[OpSpan]

    def launch(self, passage: Passage) -> None:
        """Queues a passage on the first stage; `passage.arrivals[0]` says when."""

    def release(self, passage: Passage, at: int) -> None:
        """Lets a passage leave the first stage, not before `at`."""

    def wait(self, passage: Passage) -> Process:
        """Returns when the passage's result time is known, and if that is in the future perhaps only then."""


class PassPipeline:
    """Detail "pass": a passage's whole way follows from a recurrence; no event of its own."""

    def __init__(self, stages: int) -> None:
        self.op_spans: list[OpSpan] = []
        self._stage_free = [0] * stages
        self._link_free = [0] * (stages - 1)

    def launch(self, passage: Passage) -> None:
        """Occupies the first stage from when it is free."""
        self._occupy(passage, 0)

    def release(self, passage: Passage, at: int) -> None:
        """Sends the passage over every hop and stage that remains."""
        price = passage.price
        ready = max(passage.ends[0], at) if price.hops else passage.ends[0]
        for hop, seconds in enumerate(price.hops):
            sent = max(ready, self._link_free[hop])
            self._link_free[hop] = sent + seconds
            passage.hop_starts.append(sent)
            passage.arrivals.append(sent + seconds)
            self._occupy(passage, hop + 1)
            ready = passage.ends[-1]
        passage.result = ready + price.result_return

    def wait(self, passage: Passage) -> Process:
        """Nothing to wait for: the result time is known from the release on."""
        yield from ()

    def _occupy(self, passage: Passage, stage: int) -> None:
        start = max(passage.arrivals[stage], self._stage_free[stage])
        end = start + passage.price.totals[stage]
        self._stage_free[stage] = end
        passage.starts.append(start)
        passage.ends.append(end)


class EventPipeline:
    """Details "stage" and "op": SimPy resources for every stage and link, one process per micro-batch."""

    def __init__(self, environment: simpy.Environment, stages: int, operations: ListOperations | None) -> None:
        self.op_spans: list[OpSpan] = []
        self._environment = environment
        self._stages = [simpy.Resource(environment, capacity=1) for _ in range(stages)]
        self._links = [simpy.Resource(environment, capacity=1) for _ in range(stages - 1)]
        self._operations = operations

    def launch(self, passage: Passage) -> None:
        """Starts the passage's process."""
        passage.released = self._environment.event()
        passage.finished = self._environment.event()
        self._environment.process(self._travel(passage))

    def release(self, passage: Passage, at: int) -> None:
        """Lets the passage leave the first stage at `at`."""
        if passage.released is not None:
            self._environment.process(self._release_at(passage.released, at))

    def wait(self, passage: Passage) -> Process:
        """Waits until the passage's result has come back."""
        if passage.result < 0 and passage.finished is not None:
            yield passage.finished

    def _release_at(self, released: simpy.Event, at: int) -> Process:
        yield self._environment.timeout(max(0, at - self._environment.now))
        released.succeed()

    def _travel(self, passage: Passage) -> Process:
        clock, price = self._environment, passage.price
        yield clock.timeout(passage.arrivals[0] - clock.now)
        yield from self._occupy(passage, 0)
        if passage.released is not None:
            yield passage.released
        for hop, seconds in enumerate(price.hops):
            with self._links[hop].request() as link:
                yield link
                passage.hop_starts.append(clock.now)
                yield clock.timeout(seconds)
            passage.arrivals.append(clock.now)
            yield from self._occupy(passage, hop + 1)
        yield clock.timeout(price.result_return)
        passage.result = clock.now
        if passage.finished is not None:
            passage.finished.succeed()

    def _occupy(self, passage: Passage, stage: int) -> Process:
        clock = self._environment
        with self._stages[stage].request() as turn:
            yield turn
            passage.starts.append(clock.now)
            if self._operations is None:
                yield clock.timeout(passage.price.totals[stage])
            else:
                yield from self._run_operations(passage, stage, self._operations)
            passage.ends.append(clock.now)

    def _run_operations(self, passage: Passage, stage: int, operations: ListOperations) -> Process:
        """Runs a stage kernel by kernel; the wait for launches is spread over them by their number of launches."""
        clock, begin = self._environment, self._environment.now
        ops = list(operations(passage.batch, stage))
        waiting = passage.price.stages[stage].by_category.get("host", 0)
        launches = sum(priced.op.launches for priced in ops)
        launched = busy = 0
        for priced in ops:
            launched += priced.op.launches
            start = begin + busy + waiting * launched // launches
            yield clock.timeout(start - clock.now)
            yield clock.timeout(priced.picoseconds)
            busy += priced.picoseconds
            span = OpSpan(passage.index, stage, priced.op.name, priced.op.category, priced.bound, start, clock.now)
            self.op_spans.append(span)
