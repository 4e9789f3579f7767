"""Transfers that run at the same time share links fairly: the max–min rates on the tree of a box.

A transfer goes up from its GPU through the switches that do not also hold the receiver, across, and down again; every
link has the same bandwidth in either direction. Between nodes it goes through the network port of each GPU.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from pipesim.profiles.hardware import HardwareProfile, Network, PeerLinks, Topology

Link = TypeVar("Link", bound=Hashable)
Path = list[tuple[str, int]]


def max_min_rates(flows: Sequence[Collection[Link]], capacities: Mapping[Link, float]) -> list[float]:
    """Returns the max–min fair rate of each flow, in the unit of the capacities.

    No flow can get more without another that has no more than it getting less. By progressive filling (Bertsekas &
    Gallager, Data Networks, 2nd ed., 6.5.2): all rates grow alike until a link is full, whose flows then stand still.

    Args:
        flows: the links that each flow passes, at least one.
        capacities: of every link that is passed.
    """
    rates = [0.0] * len(flows)
    growing = set(range(len(flows)))
    room = dict(capacities)
    while growing:
        users = {link: [i for i in growing if link in flows[i]] for link in room}
        fullest = min((link for link in room if users[link]), key=lambda link: room[link] / len(users[link]))
        rate = room[fullest] / len(users[fullest])
        for index in users[fullest]:
            rates[index] = rate
            growing.discard(index)
            for link in set(flows[index]):
                room[link] = max(0.0, room[link] - rate)
    return rates


def fair_shares(hardware: HardwareProfile, pairs: Sequence[tuple[int, int]], peer_access: bool) -> list[float]:
    """Returns which part of its bandwidth each (sender, receiver) keeps while all of them send, from 0 to 1."""
    nodes = tuple((hardware.node_of(sender), hardware.node_of(receiver)) for sender, receiver in pairs)
    return _shares(hardware.topology, hardware.peer_links, hardware.network, tuple(pairs), nodes, peer_access)


def pair_bandwidth(
    links: PeerLinks, network: Network | None, same_group: bool, across_nodes: bool, peer_access: bool
) -> float:
    """Returns the bandwidth [B/s] of one transfer that is alone."""
    if across_nodes and network is not None:
        return network.bandwidth if peer_access else min(network.bandwidth, links.staged_bandwidth)
    if not peer_access:
        return links.staged_bandwidth
    return links.same_group_bandwidth if same_group else links.cross_group_bandwidth


@lru_cache(maxsize=4096)
def _shares(
    topology: Topology,
    links: PeerLinks,
    network: Network | None,
    pairs: tuple[tuple[int, int], ...],
    nodes: tuple[tuple[int, int], ...],
    peer_access: bool,
) -> list[float]:
    capacities: dict[tuple[str, int], float] = {}
    flows: list[Path] = []
    alone: list[float] = []
    for index, ((sender, receiver), (here, there)) in enumerate(zip(pairs, nodes, strict=True)):
        together = any(sender in group and receiver in group for group in topology.groups)
        rate = pair_bandwidth(links, network, together, here != there, peer_access)
        path = [("pair", index), *_path(topology, sender, receiver, here != there, peer_access)]
        port = max(links.same_group_bandwidth, links.cross_group_bandwidth)
        if here != there and network is not None:
            port = network.bandwidth
        for link in path:
            kind, number = link
            uplink = topology.switches[number].uplink if kind in {"up", "down"} else port
            capacities[link] = rate if kind == "pair" else uplink
        flows.append(path)
        alone.append(rate)
    return [rate / own for rate, own in zip(max_min_rates(flows, capacities), alone, strict=True)]


def _path(topology: Topology, sender: int, receiver: int, across_nodes: bool, peer_access: bool) -> Path:
    """Returns the links of one transfer; staged through the host it leaves every switch on both sides."""
    if across_nodes:
        return [("port-out", sender), ("port-in", receiver)]
    ends: Path = [("out", sender), ("in", receiver)]
    if topology.kind == "nvlink" and any(sender in group and receiver in group for group in topology.groups):
        return ends
    up = topology.switches_between(sender, receiver if peer_access else None)
    down = topology.switches_between(receiver, sender if peer_access else None)
    return [*ends, *(("up", switch) for switch in up), *(("down", switch) for switch in down)]
