"""SGLang: micro-batch slots, admission, layer partition, KV rule and captured batch sizes.

Read from SGLang 0.5.10.post1 and 0.5.23; each function names the file it follows.
"""

import heapq
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from pipesim.cost.memory import kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment
from pipesim.engines.base import DecodeGaps, Engine, LoopShape, MicroBatch, Request
from pipesim.workload import DecodeStep, PrefillChunk, Workload, mean_kv_tokens

MIB, GIB = 2**20, 2**30
FEWEST_RUNNING_REQUESTS, MOST_RUNNING_REQUESTS = 2048, 4096


class MemoryClass(NamedTuple):
    """Defaults for GPUs of less than some memory (srt/server_args.py `_handle_gpu_memory_settings`)."""

    below: float
    """Memory [B]."""
    chunked_prefill_size: int
    captured_below_tp4: int
    captured_from_tp4: int


MEMORY_CLASSES = (
    MemoryClass(20 * GIB, 2048, 8, 8),
    MemoryClass(35 * GIB, 2048, 24, 80),
    MemoryClass(60 * GIB, 4096, 32, 160),
    MemoryClass(160 * GIB, 8192, 256, 512),
    MemoryClass(inf, 16384, 512, 512),
)


def layer_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Returns the layers of each stage; the last ones get the remainder (srt/distributed/utils.py `get_pp_indices`)."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stage >= stages - extra) for stage in range(stages))


def memory_class(deployment: Deployment) -> MemoryClass:
    """Returns SGLang's defaults for the box's GPUs."""
    return next(entry for entry in MEMORY_CLASSES if deployment.hardware.gpu.memory < entry.below)


def chunked_prefill_size(deployment: Deployment) -> int:
    """Returns the prefill budget of one launch [tokens]."""
    return deployment.engine.chunked_prefill_size or memory_class(deployment).chunked_prefill_size


def largest_captured(deployment: Deployment) -> int:
    """Returns the largest captured decode batch, 0 without CUDA graphs."""
    if not deployment.engine.cuda_graph:
        return 0
    defaults = memory_class(deployment)
    largest = defaults.captured_below_tp4 if deployment.plan.tp < 4 else defaults.captured_from_tp4
    return min(largest, deployment.engine.max_running_requests or largest)


def captured_sizes(largest: int) -> list[int]:
    """Returns the decode batch sizes that have a CUDA graph (arg_groups/cuda_graph_hook.py)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4097, 32)]
    return sorted({size for size in sizes if size < largest} | {largest}) if largest else []


def prefill_budget(deployment: Deployment) -> int:
    """Returns the most prompt tokens of one launch: a chunk, and never more than `max_prefill_tokens`."""
    return min(chunked_prefill_size(deployment), deployment.engine.max_prefill_tokens)


def padded_decode(captured: list[int], requests: int, kv_tokens: int) -> DecodeStep:
    """Returns the decode step of some requests that hold `kv_tokens` tokens in all.

    Padded to the smallest captured size that holds them; eager and unpadded where none does.
    """
    position = bisect_left(captured, requests)
    rows = captured[position] if position < len(captured) else 0
    return DecodeStep(requests, mean_kv_tokens(requests, kv_tokens), rows or requests, captured=rows > 0)


def mem_fraction_static(deployment: Deployment) -> float:
    """Returns the share of free memory for weights and KV cache (srt/server_args.py `_handle_gpu_memory_settings`).

    The further cut for vision models (`adjust_mem_fraction_for_vlm`) is left out: with it PP8 of Kimi K2.6 would not
    start, and the founding box ran PP8.
    """
    if deployment.engine.mem_fraction_static is not None:
        return deployment.engine.mem_fraction_static
    memory = deployment.hardware.gpu.memory / MIB
    reserved = 512 + 1.5 * max(chunked_prefill_size(deployment), 2048)
    reserved += 2 * largest_captured(deployment) + deployment.plan.gpus / 8 * 1024
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((memory - reserved) / memory, 3)


def kv_capacity_tokens(deployment: Deployment) -> int:
    """Returns the tokens of the KV cache (model_executor: `_profile_available_bytes`, `_apply_token_constraints`).

    The fullest GPU and the deepest stage both bind, even where they are different ones. At most 0 when nothing is left.
    """
    stages = range(deployment.plan.pp)
    ranks = [rank_memory(deployment, stage) for stage in stages]
    before = deployment.hardware.gpu.memory - ranks[0].context
    free = min(before - rank.weights - rank.extra_weights for rank in ranks)
    slack = before * (1.0 - mem_fraction_static(deployment))
    return int((free - slack) // max(kv_bytes_per_token(deployment, stage) for stage in stages))


def max_running_requests(deployment: Deployment, kv_capacity: int) -> int:
    """Returns the most requests in the server (mem_cache/kv_cache_configurator.py `resolve_max_num_reqs`)."""
    if deployment.engine.max_running_requests:
        return deployment.engine.max_running_requests
    wanted = kv_capacity * 512 // deployment.model.max_positions
    return min(max(wanted, FEWEST_RUNNING_REQUESTS), MOST_RUNNING_REQUESTS, max(1, kv_capacity // 2))


def micro_batch_cap(deployment: Deployment, kv_capacity: int) -> int:
    """Returns the most requests in one slot: by default max_running_requests // pp, whatever the number of slots."""
    default = max_running_requests(deployment, kv_capacity) // deployment.plan.pp
    return deployment.engine.pp_max_micro_batch_size or max(1, default)


def loop_shape(deployment: Deployment) -> LoopShape:
    """Returns the order of the scheduler loop.

    Under PP, `event_loop_pp` (managers/scheduler_pp_mixin.py): P + D slots; with D = 0 a turn launches, then waits for
    the result of the next slot. With TP alone the overlap scheduler handles the result before last behind the launch.
    """
    if deployment.plan.pp == 1:
        return LoopShape(slots=1, result_lag=1, receive_before_launch=False, send_after_processing=False)
    depth = deployment.engine.pp_async_batch_depth
    slots = deployment.plan.pp + depth
    return LoopShape(slots, result_lag=slots - 1, receive_before_launch=depth > 0, send_after_processing=True)


def decode_slots(deployment: Deployment, workload: Workload, kv_capacity: int) -> tuple[int, int]:
    """Returns micro-batches in flight and requests in each when a load spreads as evenly as the cap allows."""
    slots = loop_shape(deployment).slots
    in_server = min(
        workload.concurrency,
        workload.num_prompts,
        max_running_requests(deployment, kv_capacity),
        max(1, kv_capacity // workload.tokens_per_request),
    )
    requests = min(micro_batch_cap(deployment, kv_capacity), -(-in_server // slots))
    return min(slots, -(-in_server // requests)), requests


@dataclass(slots=True)
class _Slot:
    """One micro-batch slot: its running requests, ordered by the decode step that ends them."""

    running: int = 0
    kv_tokens: int = 0
    launched: int = 0
    """Decode steps launched so far."""
    live: int = 0
    """Requests whose second token is out and whose last is not."""
    last_result: int = -1
    after_prefill: bool = True
    prefilled: list[Request] = field(default_factory=list)
    """Requests of the last launch whose prompt it finished; they run from the next launch on."""
    joining: dict[int, list[Request]] = field(default_factory=dict)
    """By decode step: the requests for which it is the first."""
    ending: list[tuple[int, int, Request]] = field(default_factory=list)
    """Heap of (last decode step, request index, request)."""


class SglangPolicy:
    """SGLang's scheduler: requests stay for life in the slot that ran their last prefill chunk.

    Admission reserves a request's whole length in the KV cache, so nothing is ever retracted.
    """

    def __init__(self, deployment: Deployment, kv_capacity: int) -> None:
        self.loop = loop_shape(deployment)
        self.decode_gaps = DecodeGaps()
        self._cap = micro_batch_cap(deployment, kv_capacity)
        self._rows_free = max_running_requests(deployment, kv_capacity)
        self._kv_free = kv_capacity
        self._prefill_budget = prefill_budget(deployment)
        self._waiting: deque[Request] = deque()
        self._chunked: Request | None = None
        self._slots = [_Slot() for _ in range(self.loop.slots)]
        self._in_server = 0
        self._captured = captured_sizes(largest_captured(deployment))

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return self._in_server == 0

    def submit(self, request: Request) -> None:
        """Puts a request into the waiting queue."""
        self._in_server += 1
        self._waiting.append(request)

    def form(self, slot: int) -> MicroBatch | None:
        """Returns the slot's next micro-batch (scheduler.py `get_next_batch_to_run`): prefill goes before decode."""
        state = self._slots[slot]
        self._merge(state)
        if self._chunked or (self._waiting and self._places(state) > 0):
            prefill = self._form_prefill(slot)
            if prefill:
                return prefill
        return self._form_decode(slot) if state.running else None

    def complete(self, micro_batch: MicroBatch, now: int) -> list[Request]:
        """Hands out the tokens of a micro-batch at `now`; returns the requests that ended with them."""
        state = self._slots[micro_batch.slot]
        if micro_batch.decode_step < 0:
            return self._complete_prefill(state, micro_batch, now)
        return self._complete_decode(state, micro_batch.decode_step, now)

    def _merge(self, state: _Slot) -> None:
        for request in state.prefilled:
            request.first_step = state.launched
            state.running += 1
            state.kv_tokens += request.kv_tokens_after_prefill
            state.joining.setdefault(state.launched, []).append(request)
            heapq.heappush(state.ending, (state.launched + request.output_len - 2, request.index, request))
        state.prefilled = []

    def _places(self, state: _Slot) -> int:
        return min(self._cap - state.running, self._rows_free)

    def _form_prefill(self, slot: int) -> MicroBatch | None:
        """Fills one prefill launch; a prompt that does not fit is cut and goes on in the next turn, of any slot."""
        state = self._slots[slot]
        places, budget = self._places(state), self._prefill_budget
        finished: list[Request] = []
        tokens = attended = requests = 0
        prefixed = False
        while budget > 0:
            request = self._chunked or self._admit(places - requests)
            if request is None:
                break
            taken = min(budget, request.input_len - request.prefilled)
            prefix = request.context_len + request.prefilled
            attended += taken * prefix + taken * (taken + 1) // 2
            prefixed = prefixed or prefix > 0
            tokens, budget, requests = tokens + taken, budget - taken, requests + 1
            request.prefilled += taken
            self._chunked = request if request.prefilled < request.input_len else None
            if self._chunked is None:
                request.slot = slot
                finished.append(request)
        if not requests:
            return None
        state.prefilled = [request for request in finished if request.output_len > 1]
        return MicroBatch(slot, PrefillChunk(tokens, requests, attended, len(finished), prefixed), finished)

    def _admit(self, places: int) -> Request | None:
        if places <= 0 or not self._waiting:
            return None
        needed = self._length(self._waiting[0])
        if needed > self._kv_free:
            return None
        self._kv_free -= needed
        self._rows_free -= 1
        return self._waiting.popleft()

    def _form_decode(self, slot: int) -> MicroBatch:
        state = self._slots[slot]
        batch = padded_decode(self._captured, state.running, state.kv_tokens)
        step = state.launched
        state.launched += 1
        state.kv_tokens += state.running
        return MicroBatch(slot, batch, decode_step=step)

    def _complete_prefill(self, state: _Slot, micro_batch: MicroBatch, now: int) -> list[Request]:
        state.after_prefill = True
        for request in micro_batch.finishing_prefill:
            request.first_token = now
        ended = [request for request in micro_batch.finishing_prefill if request.output_len == 1]
        for request in ended:
            self._release(request, now)
        return ended

    def _complete_decode(self, state: _Slot, step: int, now: int) -> list[Request]:
        gaps = self.decode_gaps
        if state.live:
            gaps.gaps.append(now - state.last_result)
            gaps.weights.append(state.live)
        if state.live and not state.after_prefill:
            gaps.cycles.append(now - state.last_result)
        for request in state.joining.pop(step, ()):
            gaps.gaps.append(now - request.first_token)
            gaps.weights.append(1)
            state.live += 1
        state.last_result, state.after_prefill = now, False
        ended = []
        while state.ending and state.ending[0][0] == step:
            request = heapq.heappop(state.ending)[2]
            state.running -= 1
            state.live -= 1
            state.kv_tokens -= request.kv_tokens_after_prefill + state.launched - request.first_step
            self._release(request, now)
            ended.append(request)
        return ended

    def _release(self, request: Request, now: int) -> None:
        request.last_token = now
        self._kv_free += self._length(request)
        self._rows_free += 1
        self._in_server -= 1

    @staticmethod
    def _length(request: Request) -> int:
        return request.context_len + request.input_len + request.output_len


def _decode_batch(deployment: Deployment, requests: int, kv_tokens: int) -> DecodeStep:
    return padded_decode(captured_sizes(largest_captured(deployment)), requests, kv_tokens)


ENGINE = Engine(layer_partition, kv_capacity_tokens, SglangPolicy, prefill_budget, _decode_batch, decode_slots)
"""SGLang's row in the table of engines."""
