"""A plain reference of SGLang's pipeline loop, written from its description alone: every rank walks the same steps.

Each rank is a program; messages between neighbours are queues of times. A rank that waits for a message lets the
others go on, and goes on at the later of its own time and the message's, so the order in which ranks are visited does
not matter. Iteration k of a rank serves slot k mod L, L = P + D:

1 take the list of new requests from the rank before, pass it on
2 form the batch
3 wait for the activations' announcement from the rank before
4 with D > 0, exchange outputs
5 launch the batch; the GPU runs launches in order, once the activations are there
6 with D = 0, exchange outputs
7 when the tokens of slot m + 1 are on the host, handle them
8 announce the activations to the next rank; a link carries those of one launch at a time

Exchange: the last rank sends the output of launch k − D to rank 0, the others send on what they received in their
iteration before; then all receive that of launch k + 1 − L. Ranks of odd number receive first.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

Queue = deque[tuple[float, float]]


@dataclass
class Times:
    """What one launch costs, in any unit."""

    stages: tuple[float, ...]
    hops: tuple[float, ...] = ()
    back: float = 0.0
    """From the last stage's end to the tokens being on a host; from host to host as well."""
    schedule: float = 0.0
    launch: float = 0.0
    process: float = 0.0
    depth: int = 0


@dataclass
class Rank:
    """One rank: its queues of messages and when its GPU ended each launch."""

    index: int
    lists: Queue = field(default_factory=deque)
    activations: Queue = field(default_factory=deque)
    outputs: Queue = field(default_factory=deque)
    ends: list[float] = field(default_factory=list)


def program(ranks: list[Rank], me: Rank, times: Times, iterations: int) -> Iterator[Queue]:  # noqa: C901 - one rank's steps in one place
    """Walks the iterations of one rank; yields the queue that it waits for."""
    stages, last = len(ranks), len(ranks) - 1
    slots = stages + times.depth
    after = ranks[(me.index + 1) % stages]
    host = gpu = tokens = link = 0.0
    received: tuple[float, float] | None = None

    def exchange(k: int) -> Iterator[Queue]:
        nonlocal host, received, tokens
        held, received = received, None
        for step in ("receive", "send") if me.index % 2 else ("send", "receive"):
            if step == "send" and me.index == last:
                if k >= times.depth:
                    after.outputs.append((host, max(host, me.ends[k - times.depth]) + times.back))
            elif step == "send":
                if held and me.index + 1 <= last:
                    after.outputs.append((host, max(host, held[1]) + times.back))
            elif k + 1 - slots >= 0:
                yield me.outputs
                received = me.outputs.popleft()
                host, tokens = max(host, received[0]), received[1]

    for k in range(iterations):
        if me.index:
            yield me.lists
            host = max(host, me.lists.popleft()[0])
        if me.index < last:
            after.lists.append((host, host))
        host += times.schedule
        there = 0.0
        if me.index:
            yield me.activations
            announced, there = me.activations.popleft()
            host = max(host, announced)
        if times.depth:
            yield from exchange(k)
            there = max(there, tokens)
        gpu = max(gpu, host, there) + times.stages[me.index]
        me.ends.append(gpu)
        host += times.launch
        if not times.depth:
            yield from exchange(k)
        if k + 1 - slots >= 0:
            host = max(host, tokens) + times.process
        if me.index < last:
            link = max(host, gpu, link) + times.hops[me.index]
            after.activations.append((host, link))


def launches(times: Times, iterations: int) -> list[Rank]:
    """Returns the ranks after some iterations, all slots full from the first on."""
    ranks = [Rank(index) for index in range(len(times.stages))]
    walks = {rank.index: program(ranks, rank, times, iterations) for rank in ranks}
    waiting = {index: next(walk) for index, walk in walks.items()}
    moved = True
    while moved:
        moved = False
        for index, walk in walks.items():
            while waiting.get(index):
                moved = True
                waiting[index] = next(walk, deque())
    return ranks


def period(times: Times, iterations: int = 600) -> float:
    """Returns the mean time between launches in steady state, all slots full."""
    ends = launches(times, iterations)[-1].ends
    half = len(ends) // 2
    return (ends[-1] - ends[half]) / (len(ends) - 1 - half)
