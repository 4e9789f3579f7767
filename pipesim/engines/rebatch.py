"""No engine that exists: every stage, when it is free, takes all that waits before it and runs it as one batch.

It answers what would be gained if micro-batches were not fixed: whatever reaches a stage while it is busy merges there,
decode steps and prompts in one launch. A batch splits only where its prompt tokens exceed the chunk budget. A request
is let in when the KV cache has room for all of it, so none is ever put back. Layer partition, memory, captured sizes,
prompt budget and the host's times are SGLang's; every stage's scheduler takes the time to form a batch when the stage
is free, since it cannot know the batch before.
"""

from collections import Counter, deque
from math import ceil

from pipesim.deployment import Deployment
from pipesim.engines import sglang
from pipesim.engines import sglang_memory as memory
from pipesim.engines.base import Engine, LoopShape, Parcel, Request, StageBatch
from pipesim.engines.prompts import PromptQueue, prompts_together
from pipesim.engines.slots import padded_decode
from pipesim.workload import Batch, DecodeStep, MixedStep, Workload, mean_kv_tokens


def loop_shape(deployment: Deployment) -> LoopShape:
    """Returns the shape of the loop: one micro-batch per stage at a time, whatever is in it."""
    stages = deployment.plan.pp
    return LoopShape(slots=stages, result_lag=stages - 1, batches_per_stage=True)


def decode_slots(deployment: Deployment, workload: Workload, kv_capacity: int) -> tuple[int, int]:
    """Returns micro-batches in flight and requests in each, if they spread evenly over the stages.

    An approximation: how many micro-batches remain apart is for the simulation to say. Exact for one user.
    """
    in_server = min(
        workload.concurrency,
        workload.num_prompts,
        sglang.max_running_requests(deployment, kv_capacity),
        max(1, kv_capacity // workload.tokens_per_request),
    )
    requests = -(-in_server // deployment.plan.pp)
    return -(-in_server // requests), requests


class RebatchPolicy(PromptQueue):
    """The schedulers of all stages, and the KV cache that they share."""

    def __init__(self, deployment: Deployment, kv_capacity: int) -> None:
        self._rows = sglang.max_running_requests(deployment, kv_capacity)
        super().__init__(loop_shape(deployment), self._rows, kv_capacity, deployment.engine)
        self._budget = memory.prefill_budget(deployment)
        self._captured = memory.captured_batches(deployment)
        self._gained = deployment.engine.tokens_per_step
        self._uncommitted: float = kv_capacity
        self._steps_left: dict[Request, int] = {}
        self._decodes: dict[tuple[int, int], DecodeStep] = {}
        self._deployment = deployment

    def absorbs(self, tokens: int, context: int) -> bool:
        """Returns whether prompt tokens attend to the MLA latent itself."""
        return sglang.absorbs(self._deployment, tokens, context)

    def form(self, stage: int, waiting: deque[Parcel]) -> StageBatch | None:
        """Returns all decode steps that wait, and prompts in their order up to the chunk budget.

        The first stage cuts new prompts to what the decode steps leave of the budget, as SGLang does where it mixes
        (managers/schedule_policy.py `PrefillAdder`).
        """
        taken = self._merged(waiting)
        if stage == 0:
            steps = len(taken.decoding) * self._gained
            self.kv_free -= steps
            taken.kv_tokens += steps
            prompts = self.take_prompts(0, self._budget - len(taken.decoding), self._rows)
            if prompts:
                taken.prompts.append(prompts)
        if not taken.decoding and not taken.prompts:
            return None
        taken.beside_prompts |= bool(taken.prompts)
        return StageBatch(taken, self._batch(taken))

    def complete(self, parcel: Parcel, now: int) -> tuple[list[Request], Parcel | None]:
        """Hands out one step's tokens to every decoding request, and their first to those whose prompt ends."""
        ended = self._complete_decodes(parcel, now)
        held = parcel.kv_tokens - sum(request.kv_held for request in ended)
        going = [request for request in parcel.decoding if request in self._steps_left]
        for request in (request for prompts in parcel.prompts for request in prompts.finished):
            self._complete_prefill(request, now)
            if steps := self._steps(request):
                self._steps_left[request] = steps
                going.append(request)
                held += request.context_len + request.prompt_len
            else:
                ended.append(request)
        for request in ended:
            request.kv_held = self._kv_at_end(request)
            self._uncommitted += request.kv_held
        self._let_go(ended, now)
        return ended, Parcel(going, held) if going else None

    def admits(self, request: Request, slot: int, taken: float) -> bool:
        """Room for its prompt and all of its output beside all that is promised to others."""
        alone = self._in_server == len(self._waiting)
        return self._kv_at_end(request) <= self._uncommitted or alone

    def _admit(self, slot: int, places: int, promised: float) -> Request | None:
        request = super()._admit(slot, places, promised)
        if request:
            self._uncommitted -= self._kv_at_end(request)
        return request

    def _steps(self, request: Request) -> int:
        """Returns the decode steps of a request: its first token comes with its prompt."""
        return ceil(round((request.output_len - 1) / self._gained, 9))

    def _kv_at_end(self, request: Request) -> float:
        return request.context_len + request.prompt_len + self._steps(request) * self._gained

    def _complete_decodes(self, parcel: Parcel, now: int) -> list[Request]:
        gaps, ended = self.decode_gaps, []
        before = Counter(request.last_emission for request in parcel.decoding)
        for emission, requests in before.items():
            gaps.gaps.append(now - emission)
            gaps.weights.append(requests)
            if not parcel.beside_prompts:
                gaps.cycles.append(now - emission)
        for request in parcel.decoding:
            request.last_emission = now
            self._steps_left[request] -= 1
            if not self._steps_left[request]:
                del self._steps_left[request]
                request.kv_held = self._kv_at_end(request)
                ended.append(request)
        return ended

    def _merged(self, waiting: deque[Parcel]) -> Parcel:
        """Takes all that waits, but for prompts beyond the budget: these stay in front of what comes later."""
        if len(waiting) == 1:
            return waiting.popleft()
        taken, left, tokens = Parcel(), Parcel(), 0
        while waiting:
            parcel = waiting.popleft()
            taken.decoding += parcel.decoding
            taken.kv_tokens += parcel.kv_tokens
            taken.beside_prompts |= parcel.beside_prompts
            for prompts in parcel.prompts:
                tokens += prompts.chunk.tokens
                into = taken if tokens <= self._budget else left
                into.prompts.append(prompts)
            for part in (taken, left) if left.prompts else (taken,):
                part.launches += parcel.launches
                if part.arrived < 0:
                    part.sent, part.arrived = parcel.sent, parcel.arrived
        if left.prompts:
            waiting.append(left)
        return taken

    def _batch(self, parcel: Parcel) -> Batch:
        chunks = [prompts.chunk for prompts in parcel.prompts]
        if not parcel.decoding:
            return prompts_together(chunks)
        decode = self._decode(len(parcel.decoding), parcel.kv_tokens)
        return MixedStep(decode, prompts_together(chunks), captured=False) if chunks else decode

    def _decode(self, requests: int, kv_tokens: float) -> DecodeStep:
        """Returns a decode step; equal ones are the same object, which is what makes their price quick to find."""
        key = requests, mean_kv_tokens(requests, kv_tokens)
        step = self._decodes.get(key)
        if step is None:
            step = self._decodes[key] = padded_decode(self._captured, requests, kv_tokens, self._settings)
        return step


ENGINE = Engine(
    layer_partition=sglang.layer_partition,
    kv_capacity_tokens=memory.kv_capacity_tokens,
    share=memory.SHARE,
    policy=RebatchPolicy,
    prefill_budget=memory.prefill_budget,
    decode_batch=sglang.ENGINE.decode_batch,
    most_in_slot=lambda _, kv_capacity: kv_capacity,
    slots_are_flags=False,
    absorbs=sglang.absorbs,
    last_worker_waits=lambda _: False,
    decode_slots=decode_slots,
    first_read=(0, 5, 10),
)
"""Its row in the table of engines."""
