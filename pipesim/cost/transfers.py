"""Time of a point-to-point transfer between two GPUs of the box."""

from pipesim.links import pair_bandwidth
from pipesim.ops import SendRecv
from pipesim.profiles.hardware import HardwareProfile


def send_recv_seconds(op: SendRecv, hardware: HardwareProfile) -> float:
    """Returns the time [s] from the sender's data being ready to the receiver having it.

    launch + bytes / bandwidth, at the share that transfers on the same links leave; without peer access the copy is
    staged through host memory, between nodes the network adds its latency.
    """
    links, network = hardware.peer_links, hardware.network
    launch = links.launch if op.peer_access else links.staged_launch
    if op.across_nodes and network is not None:
        launch += network.latency
    bandwidth = op.share * pair_bandwidth(links, network, op.same_group, op.across_nodes, op.peer_access)
    return launch * op.tensors + op.bytes / bandwidth
