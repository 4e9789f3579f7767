"""The scheduler's loop, as a SimPy process around a pipeline of stages.

The loop is the same for every engine; what differs is in its policy and its `LoopShape`. TP alone is one stage.
"""

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Literal, NamedTuple, cast

import simpy

from pipesim.engines import MicroBatch, Policy, Request, StagePolicy
from pipesim.engines.base import LoopShape
from pipesim.passes import NO_FRONT_END, FrontEndPrice, PriceBatch
from pipesim.simulation.assembly import Launches, of_passages
from pipesim.simulation.hosts import EventPipelineOfHosts, PassPipelineOfHosts
from pipesim.simulation.rebatching import StageRun
from pipesim.simulation.stages import EventPipeline, ListOperations, Passage, PassPipeline, Pipeline
from pipesim.simulation.users import Server, Users
from pipesim.timeline import Timeline

Detail = Literal["pass", "stage", "op"]
Process = Generator[simpy.Event, Any, None]


class _Launched(NamedTuple):
    passage: Passage
    micro_batch: MicroBatch


def simulate(policy: Policy | StagePolicy, price: PriceBatch, requests: list[Request], **how: Any) -> Timeline:
    """Returns the timeline of one server's run; for what else is asked see `simulate_together`."""
    return simulate_together([policy], price, requests, **how)[0]


def simulate_together(  # noqa: PLR0913 - all but the first three are named at the call
    policies: Sequence[Policy | StagePolicy],
    price: PriceBatch,
    requests: list[Request],
    *,
    stages: int,
    users: int | None,
    idle_turn: int,
    detail: Detail = "pass",
    operations: ListOperations | None = None,
    max_concurrency: int | None = None,
    front_end: FrontEndPrice = NO_FRONT_END,
) -> list[Timeline]:
    """Returns the timelines of some equal servers; each request is sent to the one with the fewest in it.

    Args:
        policies: a fresh scheduler for each server; the run consumes them.
        price: the price of a batch [ps].
        requests: what the users send; consumed. In a closed loop the first `users` carry their times of arrival, and
            each end of a request sends the next one; in an open loop all carry theirs.
        stages: pipeline stages of a server.
        users: users of the closed loop; None for an open loop.
        idle_turn: CPU time of a turn over an empty slot [ps].
        detail: "pass", "stage" or "op": same times, more or fewer events and spans.
        operations: lists the priced operations of a batch on a stage; needed for detail "op".
        max_concurrency: most requests in the servers in an open loop; None for no limit.
        front_end: what each server's takes; nothing if none is given.
    """
    environment = simpy.Environment(initial_time=0)
    listed = operations if detail == "op" else None
    servers = [Server(environment, policy, front_end) for policy in policies]
    runs: list[_Run | StageRun] = []
    for policy, server in zip(policies, servers, strict=True):
        policy.measure(lambda batch: price(batch).totals[0])
        if policy.loop.batches_per_stage:
            runs.append(StageRun(environment, stages, cast(StagePolicy, policy), price, server, listed))
            continue
        pipeline = _pipeline(environment, policy.loop, stages, idle_turn, detail, listed)
        runs.append(_Run(environment, pipeline, cast(Policy, policy), price, idle_turn, server))
    everyone = Users(environment, servers, requests, users, max_concurrency)
    for run in runs:
        run.start(everyone)
    environment.run()
    return [run.timeline() for run in runs]


def _pipeline(
    environment: simpy.Environment,
    loop: LoopShape,
    stages: int,
    idle_turn: int,
    detail: Detail,
    operations: ListOperations | None,
) -> Pipeline:
    if detail == "pass":
        return PassPipelineOfHosts(stages, loop, idle_turn) if loop.host_per_stage else PassPipeline(stages)
    if loop.host_per_stage:
        return EventPipelineOfHosts(environment, stages, operations, loop, idle_turn)
    return EventPipeline(environment, stages, operations)


class _Run:
    """One server: its loop and what it launched."""

    def __init__(
        self,
        environment: simpy.Environment,
        pipeline: Pipeline,
        policy: Policy,
        price: PriceBatch,
        idle_turn: int,
        server: Server,
    ) -> None:
        self._environment, self._pipeline, self._server = environment, pipeline, server
        self._policy, self._price, self._idle_turn = policy, price, idle_turn
        self._launches = Launches()
        lag = policy.loop.result_lag
        self._recent: deque[_Launched | None] = deque([None] * lag, maxlen=lag)
        self._last_in_slot: list[Passage | None] = [None] * policy.loop.slots

    @property
    def _now(self) -> int:
        return int(self._environment.now)

    def start(self, users: Users) -> None:
        """Starts the scheduler."""
        self._users = users
        self._environment.process(self.loop())

    def timeline(self) -> Timeline:
        """Returns what has happened."""
        server = self._server
        return of_passages(
            self._launches, self._pipeline.record, server.requests, self._policy.decode_gaps, server.marks
        )

    def loop(self) -> Process:
        """The engine's scheduler: walks the slots for ever, one turn each (SGLang `event_loop_pp` and its kin)."""
        shape, policy, pipeline, environment = self._policy.loop, self._policy, self._pipeline, self._environment
        turn, begin = 0, self._now
        while self._users.unfinished:
            if policy.idle:
                yield self._server.arrived
                begin = self._now
            micro_batch = policy.form(turn % shape.slots)
            result = self._recent[0] if self._recent else None
            launched = self._formed(micro_batch) if micro_batch else None
            pipeline.turn(begin, launched and launched.passage, result and result.passage)
            now = begin + (launched.passage.price.schedule if launched else self._idle_turn)
            if shape.receive_before_launch:
                pipeline.exchange(now)
                if result and launched:
                    now = yield from self._receive(result.passage, launched.passage, now)
            if launched:
                now = self._launch(launched, now)
            if not shape.receive_before_launch:
                pipeline.exchange(now)
            self._recent.append(launched)
            ended: list[Request] = []
            seen = now
            if result := launched if shape.result_lag == 0 else result:
                if (pending := pipeline.pending(result.passage)) is not None:
                    yield pending
                now, seen, ended = self._handle(result, now)
            if launched and shape.send_after_processing:
                pipeline.release(launched.passage, now)
            if ended or environment.peek() <= now:  # else nobody sees the clock before the turn after this one
                yield environment.timeout(now - self._now)
            begin = now
            if ended:
                self._users.ended(self._server, len(ended), seen)
            turn += 1

    def _receive(self, result: Passage, launching: Passage, now: int) -> Generator[simpy.Event, Any, int]:
        """Waits for the tokens that a launch needs to be on their way; returns when the host knows of them."""
        if (pending := self._pipeline.announcement(result)) is not None:
            yield pending
        launching.after = result
        return max(now, result.returning)

    def _handle(self, result: _Launched, now: int) -> tuple[int, int, list[Request]]:
        """Handles a result; returns when the host is done, when clients see it, and the requests that ended with it."""
        now = max(now, result.passage.result) + result.passage.price.process
        seen = self._server.deliver(now, self._policy.outputs(result.micro_batch))
        return now, seen, self._policy.complete(result.micro_batch, seen)

    def _formed(self, micro_batch: MicroBatch) -> _Launched:
        price, batch, slot = self._price(micro_batch.batch), micro_batch.batch, micro_batch.slot
        index = self._launches.add(price, slot, batch.requests, micro_batch.decode_step >= 0)
        passage = Passage(index, batch, price)
        if self._policy.loop.tokens_stay_on_gpu:
            before, self._last_in_slot[slot] = self._last_in_slot[slot], passage
            passage.after = before if micro_batch.decode_step >= 0 else None  # prompts need nobody's tokens
        return _Launched(passage, micro_batch)

    def _launch(self, launched: _Launched, now: int) -> int:
        """Launches a micro-batch; returns when the host is done with that."""
        passage = launched.passage
        passage.launched = now
        self._pipeline.launch(passage)
        now += passage.price.launches[0]
        if not self._policy.loop.send_after_processing:
            self._pipeline.release(passage, 0)
        return now
