"""SGLang: micro-batch slots, admission and layer partition. Memory is next door (`sglang_memory`).

Read from SGLang 0.5.10.post1 and 0.5.23; each function names the file it follows.
"""

from collections.abc import Callable
from math import inf

from pipesim.deployment import Deployment
from pipesim.engines.attention_ranks import AttentionRanks
from pipesim.engines.base import Engine, LoopShape, MicroBatch, Policy, Prompts, Request
from pipesim.engines.chunk_sizer import ChunkSizer, fitted
from pipesim.engines.sglang_memory import (
    MAX_PREFILL_TOKENS,
    SHARE,
    captured_batches,
    captured_prefill_tokens,
    chunked_prefill_size,
    kv_capacity_tokens,
    prefill_budget,
)
from pipesim.engines.slots import Slot, SlotScheduler, padded_decode
from pipesim.workload import Batch, DecodeStep, MixedStep, Workload

FEWEST_RUNNING_REQUESTS, MOST_RUNNING_REQUESTS = 2048, 4096
CLIPPED_TOKENS = 4096
"""Most output tokens that admission reckons with (srt/managers/schedule_policy.py)."""
FIRST_NEW_TOKEN_RATIO, LEAST_SHARE, DECAY_STEPS, RETRACT_STEPS = 0.7, 0.14, 600, 20
"""Share of its output that a running request is reckoned to need still, the share of that to which it decays and in how
many decode launches, and tokens added on a retraction (srt/environ.py, `SGLANG_INIT_NEW_TOKEN_RATIO` and its kin)."""
DP_ATTENTION_FACTOR = 0.3
"""On `--schedule-conservativeness` where ranks attend by request (arg_groups/parallel_hook.py)."""
RESERVES_FIXED_LENGTHS = (0, 5, 22)
"""First version that reckons with all of the output of a running request that ignores its end of sequence
(managers/schedule_policy.py `_get_running_request_total_token_offset`; absent from 0.5.21)."""
OVERLAPS_ROUNDS = (0, 5, 14)
"""First version known to prepare a round of speculation while the one before runs (arg_groups/speculative_hook.py;
0.5.10.post1 does with `SGLANG_ENABLE_SPEC_V2` alone)."""
CHUNK_KEEPS_ITS_ROW = (0, 5, 23)
"""First version in which a prompt in progress is not counted once more against the free rows of requests
(managers/scheduler.py `get_num_allocatable_reqs`; 0.5.10.post1 to 0.5.22 count it)."""
EXPANDED_PREFIX = 8192
"""Tokens in the KV cache from which fa3 expands them (srt/environ.py `SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD`)."""


def layer_partition(layers: int, stages: int) -> tuple[int, ...]:
    """Returns the layers of each stage; the last ones get the remainder (srt/distributed/utils.py `get_pp_indices`)."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stage >= stages - extra) for stage in range(stages))


def max_running_requests(deployment: Deployment, kv_capacity: int) -> int:
    """Returns the most requests in the server (mem_cache/kv_cache_configurator.py `resolve_max_num_reqs`).

    Ranks that attend for their own requests share a stated limit and each have the default one.
    """
    if deployment.engine.max_running_requests:
        return deployment.engine.max_running_requests
    ranks = deployment.plan.attention_dp
    own = kv_capacity // ranks
    wanted = own * 512 // deployment.positions
    return ranks * min(max(wanted, FEWEST_RUNNING_REQUESTS), MOST_RUNNING_REQUESTS, max(1, own // 2))


def first_new_token_ratio(deployment: Deployment) -> float:
    """Returns the estimate of an idle server (managers/scheduler_components/new_token_ratio_tracker.py)."""
    factor = DP_ATTENTION_FACTOR if deployment.plan.dp_attention else 1.0
    return min(1.0, FIRST_NEW_TOKEN_RATIO * factor * deployment.engine.schedule_conservativeness)


def micro_batch_cap(deployment: Deployment, kv_capacity: int) -> int:
    """Returns the most requests in one slot: by default max_running_requests // pp, whatever the number of slots.

    A stated cap holds for each scheduler, and with attention split by request each rank has one of its own.
    """
    default = max_running_requests(deployment, kv_capacity) // deployment.plan.pp
    stated = deployment.engine.pp_max_micro_batch_size
    return deployment.plan.attention_dp * stated if stated else max(1, default)


def loop_shape(deployment: Deployment) -> LoopShape:
    """Returns the order of the scheduler loop.

    Under PP, `event_loop_pp` (managers/scheduler_pp_mixin.py): P + D slots; with D = 0 a turn launches, then waits for
    the result of the next slot; every rank walks the same turns. With speculation (`SGLANG_ENABLE_PP_SPEC=1`) it
    exchanges first, in an order that is not known of the other ranks: they are taken to keep up. With TP alone the
    overlap scheduler handles the result before last behind the launch; older versions run rounds of speculation one by
    one.
    """
    speculating = deployment.engine.draft_tokens > 0
    if deployment.plan.pp == 1:
        serial = speculating and deployment.engine.version_before(OVERLAPS_ROUNDS)
        return LoopShape(slots=1, result_lag=0 if serial else 1)
    depth = deployment.engine.pp_async_batch_depth
    slots = deployment.plan.pp + depth
    return LoopShape(
        slots,
        result_lag=slots - 1,
        receive_before_launch=depth > 0 or speculating,
        send_after_processing=True,
        host_per_stage=not speculating,
    )


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


def absorbs(deployment: Deployment, tokens: int, context: int) -> bool:
    """Returns whether prompt tokens attend to the MLA latent itself, or to keys and values expanded from it.

    models/deepseek_common/attention_backend_handler.py: a captured launch always does. Otherwise fa3, the default on
    Hopper, does over a short prefix, flashinfer and trtllm_mla on data centre Blackwell never, and Triton, the default
    elsewhere, over any prefix (arg_groups/model_override_base.py `get_default_attn_backend`); launches of trtllm_mla
    are not captured by default (arg_groups/cuda_graph_hook.py).
    """
    architecture = deployment.hardware.gpu.architecture
    if architecture == "sm_100":
        return False
    captured = tokens <= captured_prefill_tokens(deployment) and not deployment.engine.enable_mixed_chunk
    return captured or 0 < context < (EXPANDED_PREFIX if architecture == "sm_90" else inf)


class SglangPolicy(SlotScheduler):
    """SGLang's scheduler: requests stay for life in the slot that ran their last prefill chunk.

    A prompt's tokens go alone, or with mixed chunks together with the slot's decode requests. Where attention is split
    by request it is that of one rank, with its share of the limits.
    """

    def __init__(self, deployment: Deployment, kv_capacity: int) -> None:
        ranks = deployment.plan.attention_dp
        rows = max_running_requests(deployment, kv_capacity) // ranks
        super().__init__(loop_shape(deployment), max(1, rows), kv_capacity // ranks, deployment.engine)
        self._cap = max(1, micro_batch_cap(deployment, kv_capacity) // ranks)
        self._first_ratio = first_new_token_ratio(deployment)
        self._new_token_ratio = self._first_ratio
        self._fixed_lengths = not deployment.engine.version_before(RESERVES_FIXED_LENGTHS)
        self._chunk_takes_a_row = deployment.engine.version_before(CHUNK_KEEPS_ITS_ROW)
        self._reserves_all = self._natural_ends = False
        self._turns_without_prefill = 0
        self._prefill_budget = prefill_budget(deployment) // ranks
        self._captured = [size // ranks for size in captured_batches(deployment)]
        self._sizer: ChunkSizer | None = None
        self._growth: float | None = None
        """KV tokens that the running requests of the slot whose turn it is are expected to take."""
        self._deployment = deployment

    def submit(self, request: Request) -> None:
        """Puts a request into the waiting queue; turns over an empty server have put estimate and interval back."""
        if self.idle:
            self._new_token_ratio, self._turns_without_prefill = self._first_ratio, 0
        self._reserves_all = self._fixed_lengths and request.ignore_eos
        self._natural_ends |= request.allowed != request.output_len
        super().submit(request)

    def measure(self, first_stage: Callable[[Batch], int]) -> None:
        """Fits the sizer of dynamic chunks; without pipeline stages the flag has no effect (managers/scheduler.py)."""
        if self._settings.enable_dynamic_chunking and self._deployment.plan.pp > 1:
            base = chunked_prefill_size(self._deployment) // self._deployment.plan.attention_dp
            positions = self._deployment.positions
            smooth = self._settings.dynamic_chunking_smooth_factor
            self._sizer = fitted(first_stage, base=base, smooth=smooth, most=MAX_PREFILL_TOKENS, positions=positions)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Returns whether prompt tokens attend to the MLA latent itself."""
        return absorbs(self._deployment, tokens, context)

    def form(self, slot: int) -> MicroBatch | None:
        """Returns the slot's next micro-batch (scheduler.py `get_next_batch_to_run`): prefill goes before decode."""
        state = self.slots[slot]
        state.start_prefilled()
        held_back = self._defers_prefill(state)
        prompts = self._take_prompts(slot, state) if not held_back and (self._chunked or self._waiting) else None
        if prompts:
            self.after_prefill_launch()
            return self._with_decodes(state, slot, prompts)
        before = self.put_back
        if not self.make_room(state):
            return None
        self._adapt_ratio(state, self.put_back > before)
        batch = self.form_decode(state, self._captured, padding_routed=True)
        return MicroBatch(slot, batch, decode_step=self.launch_decode(state))

    def after_prefill_launch(self) -> None:
        """Begins the interval in which no prompts are launched (`_arm_prefill_decode_interval`)."""
        self._turns_without_prefill = self._settings.prefill_decode_interval

    def _defers_prefill(self, state: Slot) -> bool:
        """Turns left to decode alone after a prefill launch, whichever slot's it was (`_should_defer_prefill`)."""
        if self._turns_without_prefill and state.running < self._settings.prefill_decode_interval_min_bs:
            self._turns_without_prefill = 0
        self._turns_without_prefill -= (deferred := self._turns_without_prefill > 0)
        return deferred

    def _take_prompts(self, slot: int, state: Slot) -> Prompts | None:
        """Prompt tokens up to the chunk, less those of the decodes that it is mixed with (`PrefillAdder`)."""
        budget, kept, self._growth = self._budget(), 0.0, None
        if self._settings.enable_mixed_chunk:
            budget, kept = budget - state.running, state.running * state.tokens_per_step
        self.kv_free -= kept
        places = self._cap - state.running
        places = min(places, self._rows_free) if self._chunk_takes_a_row else places
        prompts = self.take_prompts(slot, budget, places)
        self.kv_free += kept
        return prompts

    def _budget(self) -> int:
        if self._sizer and self._chunked:
            return self._sizer.next_chunk(self._chunked.context_len + self._chunked.prefilled)
        return self._prefill_budget

    def _with_decodes(self, state: Slot, slot: int, prompts: Prompts) -> MicroBatch:
        """One launch of prompt tokens and, if chunks are mixed, the slot's decodes: kernel by kernel, no graph."""
        if not (self._settings.enable_mixed_chunk and state.running):
            return MicroBatch(slot, prompts.chunk, prompts.finished)
        decode = self.form_decode(state, self._captured, padding_routed=True)
        step = self.launch_decode(state)
        return MicroBatch(slot, MixedStep(decode, prompts.chunk, captured=False), prompts.finished, step)

    def admits(self, request: Request, slot: int, taken: float) -> bool:
        """Room for its prompt and its output, clipped, beside the expected growth of this slot's running requests.

        Only the current slot's growth is charged, though the KV cache is shared (schedule_policy.py `PrefillAdder`).
        """
        if self._growth is None:  # the same for all requests that one turn looks at
            ratio = 1.0 if self._reserves_all else self._new_token_ratio
            self._growth = self.slots[slot].still_asked(CLIPPED_TOKENS, self._natural_ends) * ratio
        left = min(request.allowed - request.recomputed, CLIPPED_TOKENS)
        needed = request.context_len + request.prompt_len + left
        return needed <= self.kv_free - self._growth - taken or self._nothing_runs()

    def promised(self, request: Request) -> int:
        """Its whole output, clipped, even where a part was given before it was put back (`_update_prefill_budget`)."""
        return min(request.allowed, CLIPPED_TOKENS)

    def victim(self, state: Slot) -> Request | None:
        """The one with the fewest tokens given, then the longest prompt (schedule_batch.py `retract_decode`)."""
        return min(state.decoding(), key=lambda r: (state.given(r), -r.input_len, r.index), default=None)

    def _nothing_runs(self) -> bool:
        return self._in_server == len(self._waiting)

    def _adapt_ratio(self, state: Slot, retracted: bool) -> None:
        """The estimate of how much of its output a request still needs (scheduler.py `update_running_batch`)."""
        if not retracted:
            least = self._first_ratio * LEAST_SHARE
            decay = (self._first_ratio - least) / DECAY_STEPS
            self._new_token_ratio = max(self._new_token_ratio - decay, least)
            return
        left = list(state.unfinished(state.launched))
        given = sum(state.given(request) + RETRACT_STEPS for request in left)
        asked = sum(request.allowed for request in left)
        self._new_token_ratio = min(1.0, given / (asked + 1))


def _policy(deployment: Deployment, kv_capacity: int) -> Policy:
    """Returns the scheduler of a server, or those of its attention ranks as one."""
    ranks = [SglangPolicy(deployment, kv_capacity) for _ in range(deployment.plan.attention_dp)]
    return ranks[0] if len(ranks) == 1 else AttentionRanks(ranks)


def _decode_batch(deployment: Deployment, requests: int, kv_tokens: int) -> DecodeStep:
    return padded_decode(captured_batches(deployment), requests, kv_tokens, deployment.engine)


ENGINE = Engine(
    layer_partition=layer_partition,
    kv_capacity_tokens=kv_capacity_tokens,
    share=SHARE,
    policy=_policy,
    prefill_budget=prefill_budget,
    decode_batch=_decode_batch,
    most_in_slot=micro_batch_cap,
    slots_are_flags=True,
    absorbs=absorbs,
    last_worker_waits=lambda _: False,
    decode_slots=decode_slots,
    first_read=(0, 5, 10),
)
"""SGLang's row in the table of engines."""
