"""What is one engine's own: layer partition, slots and admission, KV rule, captured batch sizes. One file each.

`ENGINES` is the only place where an engine is chosen by name; the simulator knows no engine.
"""

from pipesim.engines import rebatch, sglang, vllm
from pipesim.engines.base import Engine, MicroBatch, Policy, Request, StagePolicy, all_reduce_preference, box_of_group

ENGINES: dict[str, Engine] = {"sglang": sglang.ENGINE, "vllm": vllm.ENGINE, "rebatch": rebatch.ENGINE}

__all__ = [
    "ENGINES",
    "Engine",
    "MicroBatch",
    "Policy",
    "Request",
    "StagePolicy",
    "all_reduce_preference",
    "box_of_group",
]
