"""Steady state in closed form: the decode cycle of equal micro-batches, and the throughput that follows from it.

Where nothing queues it equals the simulation; what it cannot see is how unevenly slots fill, prefill beside decode and
ragged lengths. Formulas: architecture of the loop in SGLang managers/scheduler_pp_mixin.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipesim.engines.base import LoopShape
from pipesim.passes import PassPrice, PriceBatch
from pipesim.units import to_seconds
from pipesim.workload import Batch, Workload


@dataclass(frozen=True)
class SteadyState:
    """Decode in steady state and what a whole run makes of it. Seconds, tokens per second, fractions."""

    output_tokens_per_s: float
    step_time_s: float
    bubble_fraction: float
    micro_batches: int
    requests_per_micro_batch: int


def cycle_time(price: PassPrice, micro_batches: int, loop: LoopShape) -> float:
    """Returns the time [ps] from one launch of a slot to its next when M equal micro-batches circulate.

    The largest of: the way round of one micro-batch (stages c_s, hops x_s, the result's return and the host work on the
    path), M times the busiest stage, hop or host, and what the loop's order of sends and receives adds:

        T = max( Σ(c_s + x_s) + r + host,  M·max c_s,  M·max x_s,  M·(schedule + launch + process),  order )

    With all L slots full and depth 0 the order term is L/(L−1)·(Σc − c_0 + Σx + r + process): a micro-batch leaves stage
    0 only after the next slot's result is processed. With depth D the launch waits for the receipt of launch k + 1 − L
    alone, so the way round is L/(L−1)·(Σ(c + x) + r) and the host work is off it.
    """
    stages, hops = price.totals, price.hops
    host = price.schedule + price.process
    way = sum(stages) + sum(hops) + price.result_return
    busiest = max(*stages, *hops, host + price.launch) if hops else max(*stages, host + price.launch)
    terms: list[float] = [micro_batches * busiest]
    if micro_batches < loop.slots or loop.result_lag == 0:
        terms.append(way + host)
    elif loop.slots == 1:
        terms.append((way + host) / (loop.result_lag + 1))
    elif loop.receive_before_launch:
        terms.append(way * loop.slots / (loop.slots - 1))
    else:
        terms.append(way + host)
        terms.append((way - stages[0] + price.process) * loop.slots / (loop.slots - 1))
    return max(terms)


def bubble_fraction(stages: Sequence[int], micro_batches: int, cycle: float) -> float:
    """Returns 1 − M·Σc_s / (P·T): the mean share of a cycle in which a stage has nothing to do."""
    return 1.0 - micro_batches * sum(stages) / (len(stages) * cycle)


def steady_state(
    price: PriceBatch,
    workload: Workload,
    loop: LoopShape,
    slots: tuple[int, int],
    decode: Batch,
    prefill: Batch,
    prefill_launches: float,
) -> SteadyState:
    """Returns the steady state of a closed loop whose load spreads evenly.

    Args:
        price: prices of batches [ps].
        workload: lengths and users.
        loop: order of the engine's loop.
        slots: micro-batches in flight and requests in each.
        decode: the decode step of one slot at mid-length.
        prefill: one prefill launch of one slot.
        prefill_launches: prefill launches that one generation of a slot's requests takes.
    """
    micro_batches, requests = slots
    decode_price = price(decode)
    cycle = cycle_time(decode_price, micro_batches, loop)
    prefill_cycle = cycle_time(price(prefill), micro_batches, loop)
    generation = (workload.output_len - 1) * cycle + prefill_launches * prefill_cycle
    return SteadyState(
        output_tokens_per_s=micro_batches * requests * workload.output_len / to_seconds(generation),
        step_time_s=to_seconds(cycle),
        bubble_fraction=bubble_fraction(decode_price.totals, micro_batches, cycle),
        micro_batches=micro_batches,
        requests_per_micro_batch=requests,
    )
