"""Time of a kernel from its work: the roofline (Williams et al., CACM 52(4), 2009) with measured efficiencies."""

from typing import Literal

from pipesim.ops import Work
from pipesim.profiles.hardware import Efficiency, Gpu

RooflineBound = Literal["compute", "memory", "latency"]


def roofline_seconds(work: Work, gpu: Gpu, efficiency: Efficiency) -> tuple[float, RooflineBound]:
    """Returns the time of one call [s] and what binds it.

    floor + max(c, m) + (1 − overlap)·min(c, m); c [s]: FLOPs over effective rate, m [s]: bytes over bandwidth.
    """
    compute = work.flops / (gpu.tensor_rate[efficiency.rate] * efficiency.compute)
    memory = work.bytes / (gpu.memory_bandwidth * efficiency.memory)
    longer, shorter = (compute, memory) if compute >= memory else (memory, compute)
    seconds = efficiency.floor + longer + (1.0 - efficiency.overlap) * shorter
    if efficiency.floor > longer:
        return seconds, "latency"
    return seconds, "compute" if compute >= memory else "memory"
