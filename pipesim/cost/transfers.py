"""Time of a point-to-point transfer between two GPUs of the box."""

from pipesim.ops import SendRecv
from pipesim.profiles.hardware import PeerLinks


def send_recv_seconds(op: SendRecv, links: PeerLinks) -> float:
    """Returns the time [s] from the sender's data being ready to the receiver having it.

    launch + bytes / bandwidth; without peer access the copy is staged through host memory.
    """
    if not op.peer_access:
        return links.staged_launch * op.tensors + op.bytes / links.staged_bandwidth
    bandwidth = links.same_group_bandwidth if op.same_group else links.cross_group_bandwidth
    return links.launch * op.tensors + op.bytes / bandwidth
