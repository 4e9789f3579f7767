"""Time of a collective: the box's own fitted curve, or a schedule priced on its links where there is none.

A schedule is data: `ring_all_reduce(ranks)` lists who sends which chunk to whom in each round, so it can be priced
and it can be executed on arrays to see that it reduces.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipesim.ops import Collective
from pipesim.profiles.hardware import CollectiveCurve, HardwareProfile, Implementation, LaunchMode, Network, PeerLinks

LAUNCH, STEP, STAGED_STEP = 4e-6, 1.6e-6, 2.5e-6
"""NCCL launches one kernel; then each step of the ring takes a flag and a copy of a few bytes [s].

Published for small messages: 14.7 us over 4 GPUs with peer access (gardenlinux#4556; 13.6 here), 17 to 32 us over 8
(rtx6kpro wiki, hardware/; 26.4 here); staged through host memory 8.4 us over 2 (tinygrad/open-gpu-kernel-modules#45;
9.0 here), 42 and 54 us over 8 (NVIDIA/nccl#1530, #1439; 39 here)."""
STAGED_SHARE = 0.5
"""Of the bandwidth of one staged pair, what a step gets as all ranks stage at once through NCCL's default channels: 28
and 35 GB/s are published for 8 and 4 RTX 5090 only with tuned channels (NVIDIA/nccl#1639)."""


class Transfer(NamedTuple):
    """One chunk from one rank to another."""

    sender: int
    receiver: int
    chunk: int
    reduce: bool
    """Added to what the receiver holds, or put in its place."""


Round = list[Transfer]


def ring_all_reduce(ranks: int) -> list[Round]:
    """Returns the ring schedule: ranks−1 rounds of reduce-scatter, then of all-gather (Patarasuk & Yuan, 2009)."""
    scatter = [
        [Transfer(r, (r + 1) % ranks, (r - step) % ranks, True) for r in range(ranks)] for step in range(ranks - 1)
    ]
    gather = [
        [Transfer(r, (r + 1) % ranks, (r + 1 - step) % ranks, False) for r in range(ranks)] for step in range(ranks - 1)
    ]
    return scatter + gather


def ring_all_gather(ranks: int) -> list[Round]:
    """Returns the ring schedule of an all-gather: ranks−1 rounds, every rank passing on what it got last."""
    return [
        [Transfer(r, (r + 1) % ranks, (r - step) % ranks, False) for r in range(ranks)] for step in range(ranks - 1)
    ]


ALGORITHMS: dict[str, Callable[[int], list[Round]]] = {"all_reduce": ring_all_reduce, "all_gather": ring_all_gather}


def curve_seconds(curve: CollectiveCurve, size: float) -> float:
    """Returns the time [s] of one collective of `size` bytes on its fitted curve."""
    times = [line.latency + size / line.bandwidth for line in curve.lines]
    return max(times) if curve.shape == "max" else min(times)


def find_curve(
    hardware: HardwareProfile, op: Collective, launch: LaunchMode, preference: Sequence[Implementation]
) -> CollectiveCurve | None:
    """Returns the curve of the first implementation that takes messages of this size over this many ranks.

    In the launch mode asked for, if it was measured in both.
    """
    for implementation in preference:
        fitting = [
            curve
            for curve in hardware.collectives
            if (curve.op, curve.ranks, curve.implementation) == (op.op, op.ranks, implementation)
            and (curve.up_to is None or op.bytes <= curve.up_to)
        ]
        if fitting:
            return next((curve for curve in fitting if curve.launch == launch), fitting[0])
    return None


def across_nodes_seconds(op: Collective, nodes: int, within_seconds: float, network: Network) -> float:
    """Returns the time [s] of a collective whose ranks lie on several nodes, in the hierarchical schedule.

    What a node does among its own ranks (reduce-scatter before, all-gather after), and between them a ring over the
    nodes of every rank with its peers, which moves 1/ranks-per-node of the message through each rank's network port
    (as in Goyal et al., arXiv:1706.02677, section 4.2).
    """
    rounds = ALGORITHMS[op.op](nodes)
    return within_seconds + len(rounds) * (network.latency + op.bytes / op.ranks / network.bandwidth)


def schedule_seconds(op: Collective, links: PeerLinks, peer_access: bool) -> float:
    """Returns the time [s] of the ring schedule on the box's peer links, in one launch: for groups never measured."""
    rounds = ALGORITHMS[op.op](op.ranks)
    chunk = op.bytes / op.ranks
    if not peer_access:
        return LAUNCH + len(rounds) * (STAGED_STEP + chunk / (STAGED_SHARE * links.staged_bandwidth))
    return LAUNCH + len(rounds) * (STEP + chunk / links.cross_group_bandwidth)
