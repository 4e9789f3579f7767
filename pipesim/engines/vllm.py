"""vLLM V1: the batch queue, one token budget for prompts and decodes, cadence groups, layer partition.

Read from vLLM 0.33.0; each function names the file it follows. With asynchronous scheduling a decoding request is
eligible again exactly `pp` scheduler steps later, so requests form up to P groups by the step that ended their prompt:
a group is a slot. Without it the same groups form, since a request in flight is skipped until its result is back.
"""

from pipesim.deployment import Deployment
from pipesim.engines.base import Engine, LoopShape, MicroBatch, Prompts, Request
from pipesim.engines.slots import Slot, SlotScheduler, padded_decode
from pipesim.engines.vllm_memory import (
    SHARE,
    captured_sizes,
    kv_capacity_tokens,
    largest_captured,
    max_num_seqs,
    token_budget,
)
from pipesim.workload import Batch, DecodeStep, MixedStep, PrefillChunk, Workload

ADMITS_WHOLE_PROMPTS = (0, 19)
"""First version that lets a request in only where its whole prompt fits (config/scheduler.py
`scheduler_reserve_full_isl`; absent from 0.18.0)."""


def layer_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Returns the layers of each stage; the last but one get a remainder (distributed/utils.py `get_pp_indices`)."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stages - 1 - extra <= stage < stages - 1) for stage in range(stages))


def largest_group(deployment: Deployment) -> int:
    """Returns the most requests that decode in one step: no limit of its own, or an even share (PR 57433)."""
    limit = max_num_seqs(deployment)
    return -(-limit // deployment.plan.pp) if deployment.engine.cap_decodes_per_step else limit


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
        self._whole_prompts = not deployment.engine.version_before(ADMITS_WHOLE_PROMPTS)
        self._executed, self._last_prefill = 0, -deployment.engine.prefill_schedule_interval
        self._left_waiting = False
        self._largest_group = largest_group(deployment)
        self._captured, self._largest_captured = captured_sizes(deployment), largest_captured(deployment)

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
        prompts = self._prompts_in_turn(slot, budget, places)
        self._executed += bool(prompts or decode)
        if prompts is None:
            return MicroBatch(slot, decode, decode_step=step) if decode else None
        self._last_prefill = self._executed
        if decode is None:
            return MicroBatch(slot, prompts.chunk, prompts.finished)
        return MicroBatch(slot, self._mixed(decode, prompts.chunk), prompts.finished, step)

    def _prompts_in_turn(self, slot: int, budget: int, places: int) -> Prompts | None:
        """Prompt tokens, or none while `prefill_schedule_interval` holds them back.

        It does so while a request decodes, counted in steps that ran anything, and not once a step that might take
        prompts has left a request waiting (v1/core/sched/scheduler.py `schedule`).
        """
        due = self._executed + 1 - self._last_prefill >= self._settings.prefill_schedule_interval
        decoding = self._in_server - len(self._waiting) - (self._chunked is not None)
        if not due and not self._left_waiting and decoding:
            return None
        prompts = self.take_prompts(slot, budget, places)
        self._left_waiting = bool(self._waiting) if places else self._left_waiting
        return prompts

    def admits(self, request: Request, slot: int, taken: float) -> bool:
        """Room for its prompt, of the whole of it by version (v1/core/kv_cache_manager.py `allocate_slots`)."""
        prompt = request.prompt_len if self._whole_prompts else min(request.prompt_len, self._budget_left)
        return request.context_len + prompt <= self.kv_free

    def victim(self, state: Slot) -> Request | None:
        """The request that was let in last, whatever its group (v1/core/sched/scheduler.py `running.pop`).

        A prompt in progress, or one with a token out: what is on its first way through the stages is left there.
        """
        if self._chunked:
            return self._chunked
        decoding = (request for slot in self.slots for request in slot.decoding())
        return max(decoding, key=lambda request: request.turn, default=None)

    def _mixed(self, decode: DecodeStep, chunk: PrefillChunk) -> MixedStep:
        """Both in one launch; between the attention calls it is replayed piecewise up to the largest captured size."""
        tokens = decode.routed_tokens + chunk.tokens
        return MixedStep(decode, chunk, captured=tokens <= self._largest_captured)


def _decode_batch(deployment: Deployment, requests: int, kv_tokens: int) -> Batch:
    return padded_decode(captured_sizes(deployment), requests, kv_tokens, deployment.engine, padding_routed=False)


ENGINE = Engine(
    layer_partition=layer_partition,
    kv_capacity_tokens=kv_capacity_tokens,
    share=SHARE,
    policy=VllmPolicy,
    prefill_budget=token_budget,
    decode_batch=_decode_batch,
    most_in_slot=lambda deployment, _: largest_group(deployment),
    slots_are_flags=False,
    absorbs=lambda *_: False,
    last_worker_waits=last_worker_waits,
    decode_slots=decode_slots,
    first_read=(0, 8),
    releases_per_minor=1,
)
"""vLLM's row in the table of engines."""
