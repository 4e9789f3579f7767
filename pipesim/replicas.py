"""Equal servers behind a balancer: which requests each of them gets, and their runs told as one.

Where it does not matter how busy they are, requests are dealt by index and a user stays with the server of his first
request, so each server is simulated by itself. That is round-robin, and with users in a closed loop it is least-loaded
too: equally many users are at each server at any time. In an open loop the least loaded server is known only when a
request comes, so the servers are simulated side by side (`simulation.simulate_together`).
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from pipesim.deployment import ParallelPlan
from pipesim.errors import UsageError
from pipesim.timeline import Clock, Rows, Timeline
from pipesim.workload import Workload


class Share(NamedTuple):
    """What one replica serves of a load."""

    requests: slice
    """Which of the load's requests."""
    users: int | None
    """Users of its closed loop; None for an open loop."""
    max_concurrency: int | None
    """Most requests in it in an open loop, where the load has such a limit."""


def deal(plan: ParallelPlan, workload: Workload, requests: int) -> list[Share]:
    """Returns the share of each replica in a load of some requests; one that would get none is left out.

    Raises:
        UsageError: when the limit of requests in the server leaves a replica none.
    """
    limit = workload.max_concurrency
    users = workload.concurrency if workload.closed_loop else None
    if limit is not None and limit < plan.replicas:
        raise UsageError("--replicas", plan.replicas, f"at most one for each of the {limit} requests in the server")
    replicas = min(plan.replicas, requests, requests if users is None else users)
    return [
        Share(slice(replica, None, replicas), _part(users, replica, replicas), _part(limit, replica, replicas))
        for replica in range(replicas)
    ]


def looks_into_servers(plan: ParallelPlan, workload: Workload) -> bool:
    """Returns whether the balancer has to know how many requests each server holds as a request comes."""
    return plan.replicas > 1 and not workload.closed_loop and plan.balancer == "least-loaded"


def per_replica(plan: ParallelPlan, workload: Workload) -> tuple[int, int]:
    """Returns users and requests in all of the replica that gets most of them."""
    return -(-workload.concurrency // plan.replicas), -(-workload.num_prompts // plan.replicas)


def _part(whole: int | None, replica: int, replicas: int) -> int | None:
    return None if whole is None else len(range(replica, whole, replicas))


def pooled(runs: Sequence[Timeline]) -> Timeline:
    """Returns the runs of some replicas as one: requests in the order of the load, passages one run after another."""
    if len(runs) == 1:
        return runs[0]
    prices = [0, *accumulate(len(run.prices) for run in runs)]
    gap, gaps_by_end = _by_end(runs, [np.stack([run.gap, run.gap_weight]) for run in runs], "gaps_by_end")
    cycle, cycles_by_end = _by_end(runs, [run.cycle[np.newaxis] for run in runs], "cycles_by_end")
    return Timeline(
        starts=_joined_rows([run.starts for run in runs]),
        ends=_joined_rows([run.ends for run in runs]),
        arrivals=_joined_rows([run.arrivals for run in runs]),
        hop_starts=_joined_rows([run.hop_starts for run in runs]),
        left=_joined(runs, "left"),
        price_index=np.concatenate([run.price_index + first for run, first in zip(runs, prices[:-1], strict=True)]),
        stage_price_index=_joined_stage_prices(runs, prices),
        prices=tuple(price for run in runs for price in run.prices),
        decode=_joined(runs, "decode"),
        slot=_joined(runs, "slot"),
        requests_in_batch=_joined(runs, "requests_in_batch"),
        request_index=_interleaved(runs, "request_index"),
        arrival=_interleaved(runs, "arrival"),
        first_token=_interleaved(runs, "first_token"),
        last_token=_interleaved(runs, "last_token"),
        input_len=_interleaved(runs, "input_len"),
        output_len=_interleaved(runs, "output_len"),
        gap=gap[0],
        gap_weight=gap[1],
        cycle=cycle[0],
        context_len=_interleaved(runs, "context_len"),
        request_slot=_interleaved(runs, "request_slot"),
        gaps_by_end=gaps_by_end,
        cycles_by_end=cycles_by_end,
        op_spans=tuple(
            span._replace(passage=span.passage + sum(len(before.starts[span.stage]) for before in runs[:replica]))
            for replica, run in enumerate(runs)
            for span in run.op_spans
        ),
        replicas=tuple(runs),
    )


def _joined(runs: Sequence[Timeline], name: str) -> Any:
    return np.concatenate([getattr(run, name) for run in runs], axis=-1)


def _joined_rows(rows: Sequence[Rows]) -> Rows:
    """Returns the rows of some runs behind one another, stage by stage."""
    if isinstance(rows[0], tuple):
        return tuple(np.concatenate(own) for own in zip(*rows, strict=True))
    return np.concatenate(rows, axis=-1)


def _joined_stage_prices(runs: Sequence[Timeline], first: Sequence[int]) -> tuple[Clock, ...]:
    numbered = [[row + offset for row in run.stage_price_index] for run, offset in zip(runs, first, strict=False)]
    return tuple(np.concatenate(own) for own in zip(*numbered, strict=True))


def _interleaved(runs: Sequence[Timeline], name: str) -> Clock:
    whole: Clock = np.empty(sum(len(run.arrival) for run in runs), dtype=np.int64)
    for run in runs:
        whole[run.request_index] = getattr(run, name)
    return whole


def _by_end(runs: Sequence[Timeline], values: Sequence[Clock], counts: str) -> tuple[Clock, Clock]:
    """Merges what the runs recorded between ends of requests, and counts anew what stood there at each end."""
    ends = [np.sort(run.last_token) for run in runs]
    keys = [
        own[np.minimum(np.searchsorted(getattr(run, counts), np.arange(part.shape[1]), side="right"), len(own) - 1)]
        for run, own, part in zip(runs, ends, values, strict=True)
    ]
    order = np.argsort(np.concatenate(keys), kind="stable")
    recorded = np.concatenate(keys)[order]
    return np.concatenate(values, axis=1)[:, order], np.searchsorted(recorded, np.sort(np.concatenate(ends)), "right")
