"""Steady state in closed form: the decode cycle of equal micro-batches, and the throughput that follows from it.

Where nothing queues it equals the simulation; what it cannot see is how unevenly slots fill, prefill beside decode and
ragged lengths. Formulas: architecture of the loop in SGLang managers/scheduler_pp_mixin.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipesim.engines.base import LoopShape
from pipesim.passes import NO_FRONT_END, FrontEndPrice, PassPrice, PriceBatch
from pipesim.units import to_seconds
from pipesim.workload import Batch, Workload


@dataclass(frozen=True)
class SteadyState:
    """Decode in steady state and what a whole run makes of it. Seconds, tokens per second, fractions."""

    output_tokens_per_s: float
    step_time_s: float
    bubble_fraction: float
    prefill_time_s: float
    """Time from one prefill launch of a slot to its next."""
    front_end_s: float
    """What the front end adds to a request where nothing queues in it, up to its client's next one."""
    micro_batches: int
    requests_per_micro_batch: int

    @property
    def first_token_s(self) -> float:
        """Time to first token of a request that finds its server's slots as they are."""
        return self.prefill_time_s + self.front_end_s


def cycle_time(price: PassPrice, micro_batches: int, loop: LoopShape, idle_turn: int) -> float:
    """Returns the time [ps] from one launch of a slot to its next when M equal micro-batches circulate in L slots.

    The largest of M times the busiest stage, hop or host turn; the way round of one micro-batch (stages c_s, hops x_s,
    the return r of the result, the host work on the path); and what the loop's order of sends and receives adds.
    With all L slots full, turn k handles the result of launch k − lag, so

        L/(lag+1) · (Σ(c_s + x_s) + r + schedule + process)     where the result is handled before the next turn
        L/lag · (Σ(c_s + x_s) + r)                              where its receipt is waited for (SGLang, depth > 0)
        L/(L−1) · (Σc_s − c_0 + Σx_s + r + process)             where a micro-batch leaves stage 0 only after the
                                                                next slot's result is processed (SGLang, depth 0)
        Σ(c_s + x_s) + r                                        where the tokens stay on the GPU (vLLM, async)

    Exact for M = L and M = 1; for M between them a lower bound. Where every stage forms batches of its own, exact for
    M = 1 alone (`_cycle_of_stage_batches`). Stage 0 counts as no shorter than the host's launch and processing where a
    micro-batch waits for these (SGLang managers/scheduler_pp_mixin.py `event_loop_pp`; vLLM v1/engine/core.py
    `step_with_batch_queue`).
    """
    if loop.batches_per_stage:
        return _cycle_of_stage_batches(price, micro_batches)
    stages, hops, slots, lag = price.totals, price.hops, loop.slots, loop.result_lag
    full = micro_batches == slots
    first = stages[0]
    if loop.send_after_processing:
        launch = 0 if full and loop.host_per_stage and loop.receive_before_launch else price.launches[0]
        first = max(first, launch + price.process if full else launch)
    way = first + sum(stages[1:]) + sum(hops) + price.result_return
    host = price.schedule + price.process
    turns = micro_batches * (host + price.launches[0]) + (slots - micro_batches) * idle_turn
    terms: list[float] = [micro_batches * max(*stages, stages[-1] + price.held, *hops), turns]
    if not full:
        terms.append(way + host)
    elif loop.receive_before_launch:
        terms.append(way * slots / lag)
    else:
        terms.append((way + host) * slots / (lag + 1))
        if loop.send_after_processing:
            terms.append((way - first + price.process) * slots / lag)
        if loop.tokens_stay_on_gpu:
            terms.append(way)
    return max(terms)


def _cycle_of_stage_batches(price: PassPrice, micro_batches: int) -> float:
    """Returns the cycle [ps] of M equal micro-batches that never merge, where each stage forms its batches itself."""
    stages = [price.schedule + stage for stage in price.totals]
    way = sum(stages) + sum(price.hops) + price.result_return + price.process
    return max(micro_batches * max(*stages, *price.hops, 0), way)


def bubble_fraction(stages: Sequence[int], micro_batches: int, cycle: float) -> float:
    """Returns 1 − M·Σc_s / (P·T): the mean share of a cycle in which a stage has nothing to do."""
    return 1.0 - micro_batches * sum(stages) / (len(stages) * cycle)


def steady_state(  # noqa: PLR0913 - what a cycle hangs on
    price: PriceBatch,
    workload: Workload,
    loop: LoopShape,
    slots: tuple[int, int],
    decode: Batch,
    prefill: tuple[Batch, int],
    idle_turn: int,
    *,
    tokens_per_step: float = 1.0,
    front_end: FrontEndPrice = NO_FRONT_END,
) -> SteadyState:
    """Returns the steady state of a closed loop whose load spreads evenly.

    Args:
        price: prices of batches [ps].
        workload: lengths and users.
        loop: order of the engine's loop.
        slots: micro-batches in flight and requests in each.
        decode: the decode step of one slot at mid-length.
        prefill: one prefill launch of one slot, and how many of them a generation of its requests takes.
        idle_turn: CPU time of a turn over an empty slot [ps].
        tokens_per_step: mean tokens that a request gains per decode step.
        front_end: what the front end takes. It binds where its serial work for all requests lasts longer than they do.
    """
    micro_batches, requests = slots
    decode_price = price(decode)
    cycle = cycle_time(decode_price, micro_batches, loop, idle_turn)
    prefill_cycle = cycle_time(price(prefill[0]), micro_batches, loop, idle_turn)
    steps = (workload.output_len - 1) / tokens_per_step
    outside = front_end.unqueued(workload.input_len, requests)
    serial = max(front_end.accept(workload.input_len), (steps + 1) * front_end.per_output)
    generation = max(steps * cycle + prefill[1] * prefill_cycle + outside, micro_batches * requests * serial)
    return SteadyState(
        output_tokens_per_s=micro_batches * requests * workload.output_len / to_seconds(generation),
        step_time_s=to_seconds(cycle),
        bubble_fraction=bubble_fraction(decode_price.totals, micro_batches, cycle),
        prefill_time_s=to_seconds(prefill_cycle),
        front_end_s=to_seconds(outside),
        micro_batches=micro_batches,
        requests_per_micro_batch=requests,
    )
