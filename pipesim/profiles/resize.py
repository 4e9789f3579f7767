"""The same GPUs in another number: the first of a box, more of them, or several nodes over a network."""

from typing import TypeVar

from pipesim.errors import ProfileError
from pipesim.profiles.base import Source
from pipesim.profiles.hardware import HardwareProfile, Network, Switch, Topology

MOST_PCIE_GPUS = 20
"""In one server; the largest published boxes with PCIe switches have 16 to 20."""
MOST_NODES = 256
NETWORK_SOURCE = "network-default"
DEFAULT_NETWORK = Network.model_construct(nodes=1, bandwidth=50e9, latency=5e-6, source=NETWORK_SOURCE)
DEFAULT_NETWORK_SOURCE = Source.model_construct(
    basis="datasheet",
    text="one 400 Gb/s InfiniBand NDR or RoCE port per GPU, 50 GB/s; 5 us a message, of the usual order with GPUDirect "
    "RDMA; not measured",
)

Box = TypeVar("Box", bound=HardwareProfile)


def resized(profile: Box, gpus: int | None, nodes: int, name: str) -> Box:
    """Returns a box of the same GPUs: `gpus` in each of so many nodes, or as many as the profile has.

    Fewer are the first of the box: its groups and switches are cut, its curves of as many ranks or fewer kept. More
    continue its layout, with no curve for more ranks than it had. GPUs joined by NVLink come in servers of as many as
    the profile has, so more of them are whole nodes. Nodes are joined by the profile's [network], or by one 400 Gb/s
    port per GPU.

    Raises:
        ProfileError: when no server holds so many.
    """
    per_node = profile.gpus // profile.nodes
    gpus = per_node if gpus is None else gpus
    nvlink = profile.topology.kind == "nvlink"
    if nvlink and nodes == 1 and gpus > per_node and gpus % per_node == 0:
        gpus, nodes = per_node, gpus // per_node
    most = per_node if nvlink else max(per_node, MOST_PCIE_GPUS)
    if not 1 <= gpus <= most or not 1 <= nodes <= MOST_NODES:
        wanted = f"1 to {most} {profile.gpu.name} in a node, and 1 to {MOST_NODES} nodes"
        hint = f'nodes are named such as "{name.partition("-x")[0]}-2x{per_node}"'
        raise ProfileError("--hardware", "", f'"{name}"', wanted, hint)
    node = _one_node(profile, gpus)
    shape = f"{gpus}x {profile.gpu.name}" if nodes == 1 else f"{nodes} nodes of {gpus}x {profile.gpu.name}"
    network = (profile.network or DEFAULT_NETWORK).model_copy(update={"nodes": nodes})
    sources = profile.sources
    if nodes > 1 and network.source not in sources:
        sources = {**sources, network.source: DEFAULT_NETWORK_SOURCE}
    return profile.model_copy(
        update={
            "name": name,
            "description": f"{shape}; constants of {profile.name} ({profile.description})",
            "gpus": gpus * nodes,
            "topology": _repeated(node, gpus, nodes),
            "network": network if nodes > 1 or profile.network else None,
            "collectives": tuple(curve for curve in profile.collectives if curve.ranks <= gpus),
            "sources": sources,
        }
    )


def _one_node(profile: HardwareProfile, gpus: int) -> Topology:
    """Returns the topology of the first `gpus` of a box, which repeats its own layout beyond its end."""
    per_node = profile.gpus // profile.nodes

    def laid_out(parts: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(
            kept
            for first in range(0, gpus, per_node)
            for part in parts
            if (kept := tuple(gpu + first for gpu in part if gpu < per_node and gpu + first < gpus))
        )

    topology = profile.topology
    switches = [
        Switch.model_construct(gpus=part, uplink=switch.uplink)
        for switch in topology.switches
        for part in laid_out((switch.gpus,))
    ]
    return topology.model_copy(
        update={
            "groups": laid_out(topology.groups),
            "sockets": laid_out(topology.sockets),
            "switches": tuple({switch.gpus: switch for switch in switches}.values()),
        }
    )


def _repeated(node: Topology, gpus: int, nodes: int) -> Topology:
    firsts = range(0, gpus * nodes, gpus)

    def on_all(parts: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(gpu + first for gpu in part) for first in firsts for part in parts)

    switches = tuple(
        Switch.model_construct(gpus=tuple(gpu + first for gpu in switch.gpus), uplink=switch.uplink)
        for first in firsts
        for switch in node.switches
    )
    return node.model_copy(
        update={"groups": on_all(node.groups), "sockets": on_all(node.sockets), "switches": switches}
    )
