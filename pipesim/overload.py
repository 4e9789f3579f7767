"""Open loops that send more than the servers carry: the queue then grows for as long as requests come."""

import math
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from pipesim.prediction import Prediction, arrival_rate, as_closed_loop
from pipesim.units import PICOSECONDS_PER_SECOND
from pipesim.variations import once, predictor
from pipesim.workload import LIMITS

SURELY_CARRIED = 0.3
"""Share of the closed form's rate, with the servers full, up to which no simulation is asked."""
MORE_THAN_FIT, MOST_USERS = 1.5, 2_000
WAVES, FEWEST_REQUESTS = 3, 600
"""Users of the closed loop that keeps the servers full, over those whose requests fit and at most, and its requests."""
MIDDLE = slice(0.4, 0.75)
"""Part of its requests, by their end, over which is counted: neither the opening wave nor the drain."""
WITHIN_ERROR = 1.02
"""What is offered over what is carried from which it counts as more."""
PATIENCE_S, IMPATIENT, MOST_REQUESTS = 60.0, 10, 3_000
"""A TTFT [s] that nobody waits for, how many requests pass it before it counts, and requests simulated until then."""


@dataclass(frozen=True)
class Overload:
    """What an open loop offers and what is carried [requests/s]."""

    offered_per_s: float
    carried_per_s: float
    ttft_passes_a_minute_after_s: float | None
    """When requests come whose TTFT is more than a minute; None where it is later than could be simulated."""

    @property
    def queue_growth_per_s(self) -> float:
        """Requests by which the queue grows per second, once the servers are full."""
        return self.offered_per_s - self.carried_per_s


def overload(prediction: Prediction) -> Overload | None:
    """Returns by how much an open loop sends more than its servers carry; None where it does not.

    A run of few requests ends before the servers are full and does not show it. What they carry is what a closed loop
    gets that keeps them full.
    """
    return once(prediction, Overload, lambda: _overload(prediction))


def _overload(prediction: Prediction) -> Overload | None:
    load, offered = prediction.workload, arrival_rate(prediction.workload)
    if load.closed_loop or offered == math.inf:
        return None
    asked = predictor(prediction)
    most = min(load.max_concurrency or MOST_USERS, MOST_USERS)
    alike = replace(as_closed_loop(load, most), num_prompts=most, random_range_ratio=0.0)
    micro_batches, requests = asked.decode_slots(alike)
    inside = micro_batches * requests * asked.deployment.plan.replicas
    if offered * load.output_len < SURELY_CARRIED * asked.steady_state(alike).output_tokens_per_s:
        return None
    users = min(most, ceil(MORE_THAN_FIT * inside))
    full = replace(as_closed_loop(load, users), num_prompts=max(FEWEST_REQUESTS, WAVES * users), warm_up=0)
    ends = np.sort(asked.simulate(full, prediction.first_seed).last_token) / PICOSECONDS_PER_SECOND
    first, last = int(MIDDLE.start * len(ends)), int(MIDDLE.stop * len(ends))
    carried = (last - first) / float(ends[last] - ends[first])
    if offered <= WITHIN_ERROR * carried:
        return None
    # Twice what fits comes until the servers are full, then a queue that takes a minute builds up.
    enough = ceil(2 * (2 * inside + PATIENCE_S * carried * offered / (offered - carried)))
    return Overload(offered, carried, _minute(prediction, min(enough, MOST_REQUESTS)))


def _minute(prediction: Prediction, requests: int) -> float | None:
    load = prediction.workload
    if load.trace is None:
        load = replace(load, num_prompts=min(requests, LIMITS["--num-prompts"][1]), duration_s=None, warm_up=0)
    run = predictor(prediction).simulate(load, prediction.first_seed)
    late = np.sort(run.arrival[run.first_token - run.arrival > PATIENCE_S * PICOSECONDS_PER_SECOND])
    return float(late[IMPATIENT - 1]) / PICOSECONDS_PER_SECOND if len(late) >= IMPATIENT else None
