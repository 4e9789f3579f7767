"""Those who send requests, in a closed or an open loop, to one server or to the least loaded of several."""

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

import simpy

from pipesim.engines import Request
from pipesim.engines.base import DecodeGaps
from pipesim.passes import NO_FRONT_END, FrontEndPrice


def later(environment: simpy.Environment, delay: int, act: Callable[[], None]) -> None:
    """Does something after a delay [ps]."""
    environment.timeout(delay).callbacks.append(lambda _: act())


class Queue(Protocol):
    """What users need of a scheduler."""

    def submit(self, request: Request) -> None:
        """Puts a request into the waiting queue."""

    @property
    def decode_gaps(self) -> DecodeGaps:
        """Gaps between tokens so far."""


class Server:
    """One scheduler as its users see it: through a process that takes requests in and one that hands out tokens."""

    def __init__(self, environment: simpy.Environment, queue: Queue, front_end: FrontEndPrice) -> None:
        self.arrived = environment.event()
        """What a scheduler that has nothing to do waits for."""
        self.requests: list[Request] = []
        """All that were sent to it, in the order of their sending."""
        self.marks: list[tuple[int, int]] = []
        """Gaps and cycles recorded when each request ended."""
        self.inside = 0
        self._environment, self._queue = environment, queue
        self.front_end = front_end
        self._to_do: deque[tuple[Request, bool]] = deque()
        """What the intake has before it: requests, and whether they are parsed already."""
        self._busy = False
        self._output_free = 0

    def submit(self, request: Request) -> None:
        """Takes a request in; the scheduler has it as soon as the front end is through with it."""
        self.inside += 1
        self.requests.append(request)
        if self.front_end == NO_FRONT_END:
            self._queue_up(request)
        else:
            later(self._environment, self.front_end.latency, lambda: self._take(request, parsed=False))

    def _take(self, request: Request, parsed: bool) -> None:
        self._to_do.append((request, parsed))
        if not self._busy:
            self._work()

    def _work(self) -> None:
        """The intake's event loop: the first of what is to do, and what follows from it goes to the end."""
        self._busy = bool(self._to_do)
        if self._busy:
            request, parsed = self._to_do.popleft()
            own = self.front_end
            seconds = own.encode(request.sent_len) if parsed else own.per_request
            later(self._environment, seconds, lambda: self._worked(request, parsed))

    def _worked(self, request: Request, parsed: bool) -> None:
        if parsed:
            self._queue_up(request)
        else:
            self._to_do.append((request, True))
        self._work()

    def deliver(self, at: int, outputs: int) -> int:
        """Returns when clients see what a step gave to some requests, known to the scheduler's host `at` a time."""
        self._output_free = max(at, self._output_free) + outputs * self.front_end.per_output
        return self._output_free

    def _queue_up(self, request: Request) -> None:
        self._queue.submit(request)
        self.arrived.succeed()
        self.arrived = self._environment.event()

    def let_go(self, requests: int) -> None:
        """Notes that some requests have ended."""
        self.inside -= requests
        gaps = self._queue.decode_gaps
        self.marks += [(len(gaps.gaps), len(gaps.cycles))] * requests


class Users:
    """The users of some equal servers; each request goes to the server with the fewest in it.

    Of several with as few, to the one that has had the fewest of all, and of these to the first.

    Args:
        environment: the clock.
        servers: one, or several behind a balancer.
        requests: what the users send; in a closed loop the first `users` carry their times of arrival, and each end of
            a request sends the next one; in an open loop all carry theirs.
        users: users of the closed loop; None for an open loop.
        max_concurrency: most requests in the servers in an open loop; None for no limit.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        servers: list[Server],
        requests: list[Request],
        users: int | None,
        max_concurrency: int | None,
    ) -> None:
        self.unfinished = len(requests)
        self._environment, self._servers = environment, servers
        first = requests[:users]
        self._unsent = deque(requests[len(first) :])
        limit = len(requests) if max_concurrency is None else max_concurrency
        self._places = limit if users is None else len(first)
        environment.process(self._send(sorted(first, key=lambda request: request.arrival)))

    def ended(self, server: Server, requests: int, seen: int) -> None:
        """Every request that has ended makes room for the next that waits: its user's own, in a closed loop.

        Its client sees its end at the time `seen`, and asks a round trip later.
        """
        self.unfinished -= requests
        server.let_go(requests)
        delay = seen + server.front_end.round_trip - int(self._environment.now)
        if delay:
            later(self._environment, delay, lambda: self._make_room(requests))
        else:
            self._make_room(requests)

    def _make_room(self, requests: int) -> None:
        for _ in range(requests):
            if self._unsent:
                request = self._unsent.popleft()
                request.arrival = int(self._environment.now)
                self._submit(request)
            else:
                self._places += 1

    def _send(self, requests: list[Request]) -> Generator[simpy.Event, Any, None]:
        """Sends each request at its time, or lets it wait at the client for a place in the server."""
        for request in requests:
            if request.arrival > self._environment.now:
                yield self._environment.timeout(request.arrival - self._environment.now)
            if self._places:
                self._places -= 1
                self._submit(request)
            else:
                self._unsent.append(request)

    def _submit(self, request: Request) -> None:
        min(self._servers, key=lambda server: (server.inside, len(server.requests))).submit(request)
