"""SGLang: micro-batch slots, admission, layer partition, KV rule and captured batch sizes.

Read from SGLang 0.5.10.post1 and 0.5.23; each function names the file it follows.
"""

from collections.abc import Callable
from math import inf
from typing import NamedTuple

from pipesim.cost.memory import kv_bytes_per_token, rank_memory
from pipesim.deployment import Deployment
from pipesim.engines.base import Engine, LoopShape, MicroBatch, Prompts, Request
from pipesim.engines.chunk_sizer import ChunkSizer, fitted
from pipesim.engines.slots import Slot, SlotScheduler, padded_decode
from pipesim.workload import Batch, DecodeStep, MixedStep, Workload

MIB, GIB = 2**20, 2**30
FEWEST_RUNNING_REQUESTS, MOST_RUNNING_REQUESTS = 2048, 4096
MAX_PREFILL_TOKENS = 16384
"""Most prompt tokens of one launch, however large a chunk (srt/server_args.py `max_prefill_tokens`)."""
CLIPPED_TOKENS = 4096
"""Most output tokens that admission reckons with (srt/managers/schedule_policy.py)."""
FIRST_NEW_TOKEN_RATIO, LEAST_NEW_TOKEN_RATIO = 0.7, 0.098
RATIO_DECAY = (FIRST_NEW_TOKEN_RATIO - LEAST_NEW_TOKEN_RATIO) / 600
RETRACT_STEPS = 20
"""Share of its output that a running request is reckoned to need still, how it decays, and tokens added on a
retraction (srt/environ.py, `SGLANG_INIT_NEW_TOKEN_RATIO` and its kin)."""

CAPTURED_MLA_TOKENS, OLD_CAPTURED_MLA_TOKENS = 8192, 2048
"""Largest captured prompt launch of an MLA model, and that of 0.5.10 to 0.5.14."""
EXPANDED_PREFIX = 8192
"""Tokens in the KV cache from which fa3 expands them (srt/environ.py `SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD`)."""


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
    """Returns the largest captured decode batch of an attention rank, 0 without CUDA graphs."""
    if not deployment.engine.cuda_graph:
        return 0
    defaults = memory_class(deployment)
    largest = defaults.captured_below_tp4 if deployment.plan.tp < 4 else defaults.captured_from_tp4
    running = deployment.engine.max_running_requests
    return min(largest, -(-running // deployment.plan.attention_dp)) if running else largest


def captured_sizes(largest: int) -> list[int]:
    """Returns the decode batch sizes that have a CUDA graph (arg_groups/cuda_graph_hook.py)."""
    sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 4097, 32)]
    return sorted({size for size in sizes if size < largest} | {largest}) if largest else []


def captured_batches(deployment: Deployment) -> list[int]:
    """Returns the captured batch sizes of a stage: ranks that attend for their own requests are padded alike."""
    return [deployment.plan.attention_dp * size for size in captured_sizes(largest_captured(deployment))]


def prefill_budget(deployment: Deployment) -> int:
    """Returns the most prompt tokens of one launch: a chunk, and never more than the limit of any launch."""
    return min(chunked_prefill_size(deployment), MAX_PREFILL_TOKENS)


def mem_fraction_static(deployment: Deployment) -> float:
    """Returns the share of free memory for weights and KV cache (srt/server_args.py `_handle_gpu_memory_settings`).

    The further cut for vision models (`adjust_mem_fraction_for_vlm`) is left out: with it PP8 of Kimi K2.6 would not
    start, and the founding box ran PP8.
    """
    if deployment.engine.mem_fraction_static is not None:
        return deployment.engine.mem_fraction_static
    memory = deployment.hardware.gpu.memory / MIB
    reserved = 512 + 1.5 * max(chunked_prefill_size(deployment), 2048)
    reserved += 2 * largest_captured(deployment) + deployment.plan.gpus_per_replica / 8 * 1024
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
    """Returns the most requests in the server (mem_cache/kv_cache_configurator.py `resolve_max_num_reqs`).

    Ranks that attend for their own requests share a stated limit and each have the default one.
    """
    if deployment.engine.max_running_requests:
        return deployment.engine.max_running_requests
    ranks = deployment.plan.attention_dp
    own = kv_capacity // ranks
    wanted = own * 512 // deployment.model.max_positions
    return ranks * min(max(wanted, FEWEST_RUNNING_REQUESTS), MOST_RUNNING_REQUESTS, max(1, own // 2))


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
    overlap scheduler handles the result before last behind the launch.
    """
    if deployment.plan.pp == 1:
        return LoopShape(slots=1, result_lag=1)
    depth = deployment.engine.pp_async_batch_depth
    slots = deployment.plan.pp + depth
    speculating = deployment.engine.draft_tokens > 0
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


def largest_captured_prefill(deployment: Deployment) -> int:
    """Returns the most tokens of a prompt launch that a CUDA graph replays for an MLA model, 0 for none.

    Graphs of prompts are off under PP, under DCP, on the data centre Blackwell backend of DeepSeek, and for mixed
    batches (arg_groups/cuda_graph_hook.py, runner/prefill_cuda_graph_runner.py `can_replay_locally`). Their limit is a
    chunk, and 8,192 tokens (arg_groups/memory_hook.py); up to 0.5.14 2,048, without vision models and DP attention.
    """
    plan, engine = deployment.plan, deployment.engine
    off = not engine.cuda_graph or plan.pp > 1 or plan.dcp > 1 or engine.enable_mixed_chunk
    old = engine.version_before((0, 5, 15))
    off = off or (old and (deployment.model.vision_tower > 0 or plan.attention_dp > 1))
    if off or deployment.hardware.gpu.architecture == "sm_100":
        return 0
    return min(chunked_prefill_size(deployment), OLD_CAPTURED_MLA_TOKENS if old else CAPTURED_MLA_TOKENS)


def absorbs(deployment: Deployment, tokens: int, context: int) -> bool:
    """Returns whether prompt tokens attend to the MLA latent itself, or to keys and values expanded from it.

    models/deepseek_common/attention_backend_handler.py: a captured launch always does. Otherwise fa3, the default on
    Hopper, does over a short prefix, flashinfer and trtllm_mla on data centre Blackwell never, and Triton, the default
    elsewhere, over any prefix (arg_groups/model_override_base.py `get_default_attn_backend`).
    """
    if tokens <= largest_captured_prefill(deployment):
        return True
    architecture = deployment.hardware.gpu.architecture
    return architecture != "sm_100" and 0 < context < (EXPANDED_PREFIX if architecture == "sm_90" else inf)


class SglangPolicy(SlotScheduler):
    """SGLang's scheduler: requests stay for life in the slot that ran their last prefill chunk.

    A prompt's tokens go alone, or with mixed chunks together with the slot's decode requests.
    """

    def __init__(self, deployment: Deployment, kv_capacity: int) -> None:
        rows = max_running_requests(deployment, kv_capacity)
        super().__init__(loop_shape(deployment), rows, kv_capacity, deployment.engine)
        self._cap = micro_batch_cap(deployment, kv_capacity)
        self._new_token_ratio = FIRST_NEW_TOKEN_RATIO
        self._prefill_budget = prefill_budget(deployment)
        self._captured = captured_batches(deployment)
        self._sizer: ChunkSizer | None = None
        self._growth: float | None = None
        """KV tokens that the running requests of the slot whose turn it is are expected to take."""
        self._deployment = deployment

    def measure(self, first_stage: Callable[[Batch], int]) -> None:
        """Fits the sizer of dynamic chunks; without pipeline stages the flag has no effect (managers/scheduler.py)."""
        if self._settings.enable_dynamic_chunking and self._deployment.plan.pp > 1:
            base, positions = chunked_prefill_size(self._deployment), self._deployment.model.max_positions
            smooth = self._settings.dynamic_chunking_smooth_factor
            self._sizer = fitted(first_stage, base=base, smooth=smooth, most=MAX_PREFILL_TOKENS, positions=positions)

    def absorbs(self, tokens: int, context: int) -> bool:
        """Returns whether prompt tokens attend to the MLA latent itself."""
        return absorbs(self._deployment, tokens, context)

    def form(self, slot: int) -> MicroBatch | None:
        """Returns the slot's next micro-batch (scheduler.py `get_next_batch_to_run`): prefill goes before decode."""
        state = self.slots[slot]
        state.start_prefilled()
        prompts = self._take_prompts(slot, state) if self._chunked or self._waiting else None
        if prompts:
            return self._with_decodes(state, slot, prompts)
        before = self.put_back
        if not self.make_room(state):
            return None
        self._adapt_ratio(state, self.put_back > before)
        batch = self.form_decode(state, self._captured, padding_routed=True)
        return MicroBatch(slot, batch, decode_step=self.launch_decode(state))

    def _take_prompts(self, slot: int, state: Slot) -> Prompts | None:
        """Prompt tokens up to the chunk, less those of the decodes that it is mixed with (`PrefillAdder`)."""
        budget, kept, self._growth = self._budget(), 0.0, None
        if self._settings.enable_mixed_chunk:
            budget, kept = budget - state.running, state.running * state.tokens_per_step
        self.kv_free -= kept
        prompts = self.take_prompts(slot, budget, self._cap - state.running)
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
            self._growth = self.slots[slot].still_asked(CLIPPED_TOKENS) * self._new_token_ratio
        left = min(request.output_len - request.recomputed, CLIPPED_TOKENS)
        needed = request.context_len + request.prompt_len + left
        return needed <= self.kv_free - self._growth - taken or self._nothing_runs()

    def victim(self, state: Slot) -> Request | None:
        """The one with the fewest tokens given, then the longest prompt (schedule_batch.py `retract_decode`)."""
        return min(state.decoding(), key=lambda r: (state.given(r), -r.input_len, r.index), default=None)

    def _nothing_runs(self) -> bool:
        return self._in_server == len(self._waiting)

    def _adapt_ratio(self, state: Slot, retracted: bool) -> None:
        """The estimate of how much of its output a request still needs (scheduler.py `update_running_batch`)."""
        if not retracted:
            self._new_token_ratio = max(self._new_token_ratio - RATIO_DECAY, LEAST_NEW_TOKEN_RATIO)
            return
        given = sum(state.given(request) + RETRACT_STEPS for request in state.decoding())
        asked = sum(request.output_len for request in state.decoding())
        self._new_token_ratio = min(1.0, given / max(1, asked))


def _decode_batch(deployment: Deployment, requests: int, kv_tokens: int) -> DecodeStep:
    return padded_decode(captured_batches(deployment), requests, kv_tokens, deployment.engine)


ENGINE = Engine(
    layer_partition=layer_partition,
    kv_capacity_tokens=kv_capacity_tokens,
    policy=SglangPolicy,
    prefill_budget=prefill_budget,
    decode_batch=_decode_batch,
    slots_are_flags=True,
    absorbs=absorbs,
    last_worker_waits=lambda _: False,
    decode_slots=decode_slots,
)
"""SGLang's row in the table of engines."""
