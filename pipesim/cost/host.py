"""CPU time of the serving engine."""

from pipesim.ops import HostWork
from pipesim.profiles.hardware import FrontEnd, HostTimes

MESSAGES_PER_OBJECT = 2
"""A pickled object is two gloo messages: its size and its body (SGLang srt/utils/common.py `point_to_point_pyobj`)."""


def host_seconds(op: HostWork, host: HostTimes, stack: str) -> float:
    """Returns the CPU time [s] of one piece of work of an engine, or a latency of its front end."""
    return host.fitted(op.constant, stack)[0] * _shared_seconds(op, host, stack)


def _shared_seconds(op: HostWork, host: HostTimes, stack: str) -> float:
    if op.constant == "front_end":
        return front_end_seconds(op, host.front_end[stack]) if stack in host.front_end else 0.0
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
    raise ValueError(f'the work is "{op.name}"; work of the host is wanted')


def front_end_seconds(op: HostWork, front_end: FrontEnd) -> float:
    """Returns the time [s] of one piece of work of the tokenizer, HTTP and detokenizer processes."""
    match op.name:
        case "parse":
            return op.requests * front_end.per_request
        case "encode":
            return op.requests * front_end.per_dispatch + op.tokens * front_end.per_prompt_token
        case "deliver":
            return op.requests * front_end.per_output
        case "pass_on":
            return front_end.latency
    return front_end.round_trip
