"""CPU time of the serving engine."""

from pipesim.ops import HostWork
from pipesim.profiles.hardware import HostTimes

MESSAGES_PER_OBJECT = 2
"""A pickled object is two gloo messages: its size and its body (SGLang srt/utils/common.py `point_to_point_pyobj`)."""


def host_seconds(op: HostWork, host: HostTimes) -> float:
    """Returns the CPU time [s] of one piece of engine work."""
    match op.name:
        case "launch":
            return op.launches * host.eager_launch if op.launches else host.graph_launch
        case "schedule":
            return host.schedule + op.requests * host.schedule_per_request
        case "process":
            return host.process + op.requests * host.process_per_request
        case "idle_turn":
            return host.idle_turn
        case "return":
            return MESSAGES_PER_OBJECT * host.message
