"""vLLM V1: the batch queue, one token budget for prompts and decodes, cadence groups, layer partition, KV rule.

Read from vLLM 0.33.0; each function names the file it follows. With asynchronous scheduling a decoding request is
eligible again exactly `pp` scheduler steps later, so requests form up to P groups by the step that ended their prompt:
a group is a slot. Without it the same groups form, since a request in flight is skipped until its result is back.
"""

from pipesim.cost.memory import kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment
from pipesim.engines.base import Engine, LoopShape, MicroBatch, Request
from pipesim.engines.slots import Slot, SlotScheduler, padded_decode
from pipesim.workload import Batch, DecodeStep, MixedStep, PrefillChunk, Workload

GIB = 2**30
LARGE_GPU = 70 * GIB
LARGE_GPU_BUDGET, SMALL_GPU_BUDGET = 8192, 2048
LARGE_GPU_SEQUENCES, SMALL_GPU_SEQUENCES = 1024, 256
MOST_CAPTURED = 512
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
WORKSPACE_PER_TOKEN_AND_CHANNEL = 52.0
"""Bytes of activations and graph pools per budgeted token and hidden channel: Kimi K2.6 on TP8 with 96 GB GPUs, FP8 KV
and utilization 0.94 leaves 437,264 tokens (rtx6kpro wiki, models/kimi-k26.md): 3.0 GiB at 8,192 tokens of 7,168."""


def layer_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Returns the layers of each stage; the last but one get a remainder (distributed/utils.py `get_pp_indices`)."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stages - 1 - extra <= stage < stages - 1) for stage in range(stages))


def token_budget(deployment: Deployment) -> int:
    """Returns the tokens of one step, `max_num_batched_tokens` (engine/arg_utils.py)."""
    large = deployment.hardware.gpu.memory >= LARGE_GPU
    return deployment.engine.chunked_prefill_size or (LARGE_GPU_BUDGET if large else SMALL_GPU_BUDGET)


def max_num_seqs(deployment: Deployment) -> int:
    """Returns the most running requests, over all stages together (engine/arg_utils.py)."""
    large = deployment.hardware.gpu.memory >= LARGE_GPU
    return deployment.engine.max_running_requests or (LARGE_GPU_SEQUENCES if large else SMALL_GPU_SEQUENCES)


def largest_group(deployment: Deployment) -> int:
    """Returns the most requests that decode in one step: no limit of its own, or an even share (PR 57433)."""
    limit = max_num_seqs(deployment)
    return -(-limit // deployment.plan.pp) if deployment.engine.cap_decodes_per_step else limit


def captured_sizes(deployment: Deployment) -> list[int]:
    """Returns the batch sizes that have a CUDA graph (config/vllm.py): none when eager is enforced."""
    if not deployment.engine.cuda_graph:
        return []
    largest = min(2 * max_num_seqs(deployment), MOST_CAPTURED)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, MOST_CAPTURED + 1, 16)]
    return [size for size in sizes if size <= largest]


def kv_capacity_tokens(deployment: Deployment) -> int:
    """Returns the tokens of the KV cache: the smallest worker's (v1/core/kv_cache_planning.py); 0 or less if none."""
    utilization = deployment.engine.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION
    usable = deployment.hardware.gpu.memory * utilization
    workspace = WORKSPACE_PER_TOKEN_AND_CHANNEL * token_budget(deployment) * deployment.model.hidden_size
    return min(
        int((usable - workspace - rank_memory(deployment, stage).total) // kv_bytes_per_token(deployment, stage))
        for stage in range(deployment.plan.pp)
    )


def loop_shape(deployment: Deployment) -> LoopShape:
    """Returns the order of `step_with_batch_queue` (v1/engine/core.py): P + 1 batches queued, P if synchronous."""
    stages = deployment.plan.pp
    if deployment.async_scheduling:
        return LoopShape(slots=stages, result_lag=stages, tokens_stay_on_gpu=True)
    return LoopShape(slots=stages, result_lag=stages - 1)


def last_worker_waits(deployment: Deployment) -> bool:
    """Returns whether the last worker copies tokens to its host before it takes up the next batch.

    Without asynchronous scheduling it does (v1/worker/gpu_model_runner.py `_bookkeeping_sync`, v1/executor):
    its GPU idles while it replies and prepares inputs. Asynchronous scheduling gains tens of percent under PP by it
    (issue 32618).
    """
    return not deployment.async_scheduling


def decode_slots(deployment: Deployment, workload: Workload, kv_capacity: int) -> tuple[int, int]:
    """Returns groups in flight and requests in each when a load spreads evenly over them."""
    room = max(1, kv_capacity // workload.tokens_per_request)
    in_server = min(workload.concurrency, workload.num_prompts, max_num_seqs(deployment), room)
    requests = -(-in_server // deployment.plan.pp)
    return -(-in_server // requests), requests


class VllmPolicy(SlotScheduler):
    """vLLM's scheduler: decodes of the group first, then prompt tokens, in one batch under one token budget."""

    leave_at_launch = True  # max_tokens is known, so no step is wasted
    requeue_first = True

    def __init__(self, deployment: Deployment, kv_capacity: int) -> None:
        super().__init__(loop_shape(deployment), max_num_seqs(deployment), kv_capacity, deployment.engine)
        self._budget = token_budget(deployment)
        self._largest_group = largest_group(deployment)
        self._captured = captured_sizes(deployment)

    def form(self, slot: int) -> MicroBatch | None:
        """Returns the next step of a group (v1/core/sched/scheduler.py `schedule`)."""
        state = self.slots[slot]
        state.start_prefilled()
        decode, step, before = None, -1, self.put_back
        budget = self._budget
        if self.make_room(state):
            decode = self.form_decode(state, self._captured, padding_routed=False)
            budget -= decode.routed_tokens
            step = self.launch_decode(state)
        places = self._largest_group - state.running if self.put_back == before else 0  # none joins those put back
        prompts = self.take_prompts(slot, budget, places)
        if prompts is None:
            return MicroBatch(slot, decode, decode_step=step) if decode else None
        if decode is None:
            return MicroBatch(slot, prompts.chunk, prompts.finished)
        return MicroBatch(slot, self._mixed(decode, prompts.chunk), prompts.finished, step)

    def admits(self, request: Request, slot: int, taken: float) -> bool:
        """Room for the prompt tokens that this step would run (v1/core/kv_cache_manager.py `allocate_slots`)."""
        return request.context_len + min(request.prompt_len, self._budget) <= self.kv_free

    def victim(self, state: Slot) -> Request | None:
        """The request that came last (v1/core/sched/scheduler.py); of its group, since others are in flight."""
        return max(state.decoding(), key=lambda request: (request.arrival, request.index), default=None)

    def _mixed(self, decode: DecodeStep, chunk: PrefillChunk) -> MixedStep:
        """Both in one launch; between the attention calls it is replayed piecewise up to the largest captured size."""
        tokens = decode.routed_tokens + chunk.tokens
        return MixedStep(decode, chunk, captured=bool(self._captured) and tokens <= self._captured[-1])


def _decode_batch(deployment: Deployment, requests: int, kv_tokens: int) -> Batch:
    return padded_decode(captured_sizes(deployment), requests, kv_tokens, deployment.engine, padding_routed=False)


ENGINE = Engine(
    layer_partition=layer_partition,
    kv_capacity_tokens=kv_capacity_tokens,
    policy=VllmPolicy,
    prefill_budget=token_budget,
    decode_batch=_decode_batch,
    slots_are_flags=False,
    absorbs=lambda *_: False,
    last_worker_waits=last_worker_waits,
    decode_slots=decode_slots,
)
"""vLLM's row in the table of engines."""
