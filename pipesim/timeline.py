"""What happened in a run: spans of stages and hops, and the requests; every metric is a function of it.

Times are whole picoseconds on the simulated clock.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Clock = np.ndarray[Any, np.dtype[np.int64]]
Rows = Clock | tuple[Clock, ...]
"""One row per stage, or per hop: of equal length, but where stages form batches of their own."""


class OpSpan(NamedTuple):
    """One operation on one stage (detail "op" only)."""

    passage: int
    """Index of the stage's span that it lies in."""
    stage: int
    name: str
    category: str
    bound: str
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """One run of the simulator: N passages of micro-batches over P stages.

    Where stages form batches of their own, stage s has N_s batches in a row of its own, and N is that of the first.
    """

    starts: Rows
    """[P, N] when each passage began on each stage."""
    ends: Rows
    """[P, N] when it left the stage."""
    arrivals: Rows
    """[P, N] when it could have begun: launched (stage 0) or received; the first of what a batch is made of."""
    hop_starts: Rows
    """[P−1, N] when its activations were sent on; the first of what the next stage's batch is made of."""
    left: Clock
    """[N] when all of it had left the last stage."""
    price_index: Clock
    """[N] which of `prices` it cost."""
    prices: tuple[Any, ...]
    """The distinct prices of passages."""
    decode: np.ndarray[Any, np.dtype[np.bool_]]
    """[N] whether it was a decode step."""
    slot: Clock
    """[N] the micro-batch slot."""
    requests_in_batch: Clock
    """[N] requests in the micro-batch."""
    request_index: Clock
    """[R] which of the load's requests each is, in rising order."""
    arrival: Clock
    """[R] when each request was sent."""
    first_token: Clock
    """[R]"""
    last_token: Clock
    """[R]"""
    input_len: Clock
    output_len: Clock
    gap: Clock
    """[G] times between consecutive tokens of a request, equal ones of one micro-batch once."""
    gap_weight: Clock
    """[G] how many requests saw that gap."""
    cycle: Clock
    """[C] times from one decode result of a slot to the next."""
    context_len: Clock
    """[R] tokens in the KV cache before each request's prompt, a cached prefix among them."""
    request_slot: Clock
    """[R] the slot that served each request."""
    gaps_by_end: Clock
    """[R] entries of `gap` recorded when the first, second, … request ended."""
    cycles_by_end: Clock
    """[R] entries of `cycle` recorded by then."""
    stage_price_index: tuple[Clock, ...] = ()
    """[P][N_s] which of `prices` each batch cost, of which only the own stage's part was paid, where stages form
    batches of their own; empty where they do not."""
    op_spans: tuple[OpSpan, ...] = ()
    replicas: tuple["Timeline", ...] = ()
    """The runs of several servers that this one pools, if it does."""

    def paid(self, stage: int) -> Clock:
        """Returns which of `prices` each batch on a stage cost."""
        return self.stage_price_index[stage] if self.stage_price_index else self.price_index

    @property
    def window(self) -> tuple[int, int]:
        """From the first request's sending to the last token."""
        return int(self.arrival.min()), int(self.last_token.max())
