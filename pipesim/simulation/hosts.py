"""Pipelines whose stages have a host each, and all of them walk the same turns (SGLang `event_loop_pp`).

In its turn k, for slot k mod L, the host of every stage

1. takes the list of new requests from the host before it and passes it on,
2. forms the batch,
3. waits until the host before it has announced the batch's activations,
4. with asynchronous depth, exchanges tokens,
5. launches the batch,
6. without, exchanges tokens,
7. handles the result of launch k + 1 − L, when its tokens are there,
8. announces its own activations to the next host.

Tokens go from the last stage to the first and on from host to host: each sends what it received a turn before, so a
host is a turn behind the one before it. Hosts of odd number receive before they send. While the first host is in its
turn k, host s is thus in k − s, and one sweep over the hosts settles all that its turn needs to know. Messages are the
engine's (managers/scheduler_pp_mixin.py); their own time is in `hops`, `result_return` and `idle_turn`.
"""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from pipesim.engines.base import LoopShape
from pipesim.simulation.stages import EventPipeline, ListOperations, Passage, PassPipeline

Process = Generator[simpy.Event, Any, None]


class _Host:
    """A stage and its host: when each was last free, and where the stage's times are recorded."""

    __slots__ = ("add_hop", "add_start", "free", "link_free", "listed", "receives_first", "stage", "stage_free")

    def __init__(self, stage: int, add_start: Callable[[int], None], add_hop: Callable[[int], None]) -> None:
        self.stage, self.add_start, self.add_hop = stage, add_start, add_hop
        self.receives_first = stage % 2 == 1
        self.free = self.listed = self.stage_free = self.link_free = 0


class PassPipelineOfHosts(PassPipeline):
    """Detail "pass": the hosts' turns as a recurrence, with no events of their own."""

    def __init__(self, stages: int, loop: LoopShape, idle_turn: int) -> None:
        super().__init__(stages)
        self._slots, self._exchange_first, self._idle_turn = loop.slots, loop.receive_before_launch, idle_turn
        self._others = [_Host(stage, self._add_start[stage], self._add_hop[stage - 1]) for stage in range(1, stages)]
        self._recent: list[Passage | None] = [None] * (stages + loop.slots)
        """What the last turns launched, the newest first."""
        self._turns = 0
        self._begin = self._begin_before = 0

    def turn(self, begin: int, passage: Passage | None, result: Passage | None) -> None:
        """Begins a turn of the first host."""
        self._recent.insert(0, passage)
        self._recent.pop()
        self._turns += 1
        self._begin_before, self._begin = self._begin, begin

    def release(self, passage: Passage, at: int) -> None:
        """Announces a passage to the second stage's host."""
        passage.announced = at

    def exchange(self, at: int) -> None:
        """Lets every other host go through the turn that it is behind; then the first knows of its result."""
        recent, slots, first, list_sent, sent = self._recent, self._slots, self._exchange_first, self._begin_before, at
        others = self._others if self._turns > len(self._others) else self._others[: self._turns - 1]
        for host, passage, result in zip(others, recent[1:], recent[slots:], strict=False):
            now = host.free
            now = list_sent if list_sent > now else now
            list_sent, host.listed = host.listed, now
            if passage is None:
                now += self._idle_turn
            else:
                price, announced = passage.price, passage.announced
                now += price.schedule
                now = announced if announced > now else now
            own, tokens = now, -1
            if result is not None:
                tokens = sent + result.price.result_return
                if first:
                    now = max(now, sent)
                    own = now if host.receives_first else own
            if passage is not None:
                stage, ready = host.stage, passage.ready
                ready = announced if announced > ready else ready
                ready = host.link_free if host.link_free > ready else ready
                host.add_hop(ready)
                start = host.link_free = ready + price.hops[stage - 1]
                start = host.stage_free if host.stage_free > start else start
                start = now if now > start else start
                if first and tokens > start:
                    start = tokens
                host.add_start(start)
                passage.ready = host.stage_free = start + price.totals[stage]
                now += price.launches[stage]
            if not first:
                own = now
            if result is not None:
                if sent > own and host.receives_first and not first:
                    own = sent
                now = (tokens if tokens > now else now) + result.price.process
            if passage is not None:
                passage.announced = now
            host.free, sent = now, own
        if (returning := recent[slots - 1]) is not None:
            returning.returning = sent
            returning.result = max(sent, returning.ready) + returning.price.result_return


class _Turn:
    """What the hosts are told of one turn."""

    def __init__(self, sent: int, passage: Passage | None, result: Passage | None) -> None:
        self.sent, self.passage, self.result = sent, passage, result


class EventPipelineOfHosts(EventPipeline):
    """Details "stage" and "op": every host but the first is a SimPy process, and messages wait in stores."""

    def __init__(
        self,
        environment: simpy.Environment,
        stages: int,
        operations: ListOperations | None,
        loop: LoopShape,
        idle_turn: int,
    ) -> None:
        super().__init__(environment, stages, operations)
        self._exchange_first, self._idle_turn = loop.receive_before_launch, idle_turn
        self._last, self._depth = stages - 1, loop.slots - stages
        self._lists, self._announcements, self._outputs = (
            [simpy.Store(environment) for _ in range(stages)] for _ in range(3)
        )
        self._result: Passage | None = None
        self._held: Passage | None = None
        self._told: dict[Passage, simpy.Event] = {}
        self._left: dict[Passage, simpy.Event] = {}
        self._launched: dict[tuple[Passage, int], simpy.Event] = {}
        self._on_stage: dict[tuple[Passage, int], simpy.Event] = {}
        for stage in range(1, stages):
            environment.process(self._host(stage))

    def turn(self, begin: int, passage: Passage | None, result: Passage | None) -> None:
        """Passes the list on to the second host."""
        super().turn(begin, passage, result)
        self._held, self._result = self._result, result
        if passage:
            self._told[passage], self._left[passage] = self._environment.event(), self._environment.event()
            self._on_stage[passage, 0] = self._environment.event()
        self._lists[1].put(_Turn(begin, passage, result))

    def exchange(self, at: int) -> None:
        """Sends the tokens that the first host holds on to the second."""
        if self._held:
            self._outputs[1].put(at)
        if self._result:
            self._environment.process(self._receive(self._result))

    def launch(self, passage: Passage) -> None:
        """Starts the first stage."""
        self._environment.process(self._first_stage(passage))

    def release(self, passage: Passage, at: int) -> None:
        """Announces a passage to the second host."""
        self._announce(passage, 1, at)

    def announcement(self, passage: Passage) -> simpy.Event | None:
        """Returns the event of the last host's telling the first of the passage's tokens."""
        return self._told[passage] if passage.returning < 0 else None

    def _receive(self, passage: Passage) -> Process:
        """The first host's wait for tokens, and these on their way."""
        sent = yield self._outputs[0].get()
        yield self._until(sent)
        passage.returning = sent
        self._told.pop(passage).succeed()
        yield self._left[passage]
        del self._left[passage]
        yield self._environment.timeout(passage.price.result_return)
        self._finish(passage)

    def _first_stage(self, passage: Passage) -> Process:
        yield self._until(passage.launched)
        if passage.after and (pending := self.pending(passage.after)) is not None:
            yield pending
        self.record.arrivals[0].append(int(self._environment.now))
        yield from self._occupy(passage, 0)
        self._on_stage[passage, 0].succeed()

    def _later_stage(self, passage: Passage, stage: int, sent: int, launched: simpy.Event) -> Process:
        yield self._on_stage[passage, stage - 1]
        del self._on_stage[passage, stage - 1]
        yield self._until(sent)
        yield from self._hop(passage, stage - 1)
        yield launched
        yield from self._occupy(passage, stage)
        if stage < self._last:
            self._on_stage[passage, stage].succeed()
        else:
            self._left[passage].succeed()

    def _announce(self, passage: Passage, stage: int, at: int) -> None:
        """Tells a stage's host of a passage, whose activations go there as soon as they are ready."""
        launched = self._launched[passage, stage] = self._environment.event()
        if stage < self._last:
            self._on_stage[passage, stage] = self._environment.event()
        self._environment.process(self._later_stage(passage, stage, at, launched))
        self._announcements[stage].put(at)

    def _host(self, stage: int) -> Process:
        """One host's turns, for ever."""
        clock, held = self._environment, None
        recent: deque[Passage | None] = deque([None] * (self._depth + 1), maxlen=self._depth + 1)
        while True:
            turn: _Turn = yield self._lists[stage].get()
            yield self._until(turn.sent)
            passage, result = turn.passage, turn.result
            if stage < self._last:
                self._lists[stage + 1].put(_Turn(int(clock.now), passage, result))
            if passage is None:
                yield clock.timeout(self._idle_turn)
            else:
                yield clock.timeout(passage.price.schedule)
                announced = yield self._announcements[stage].get()
                yield self._until(announced)
                launched = self._launched.pop((passage, stage))
            if not self._exchange_first and passage is not None:
                launched.succeed()
                yield clock.timeout(passage.price.launches[stage])
            recent.append(passage)
            tokens = yield from self._exchange(stage, held if stage < self._last else recent[0], result)
            if self._exchange_first and passage is not None:
                clock.process(self._launch_with(launched, tokens))
                yield clock.timeout(passage.price.launches[stage])
            if result is not None:
                yield self._until(tokens)
                yield clock.timeout(result.price.process)
            if passage is not None and stage < self._last:
                self._announce(passage, stage + 1, int(clock.now))
            held = result

    def _launch_with(self, launched: simpy.Event, tokens: int) -> Process:
        yield self._until(tokens)
        launched.succeed()

    def _exchange(
        self, stage: int, to_send: Passage | None, result: Passage | None
    ) -> Generator[simpy.Event, Any, int]:
        """Sends and receives tokens; returns when those of the result are there."""
        tokens = -1
        for sends in (False, True) if stage % 2 else (True, False):
            if sends and to_send is not None:
                self._outputs[(stage + 1) % (self._last + 1)].put(int(self._environment.now))
            elif not sends and result is not None:
                sent = yield self._outputs[stage].get()
                yield self._until(sent)
                tokens = sent + result.price.result_return
        return tokens
