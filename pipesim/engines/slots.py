"""What engines that decode in fixed groups have in common: a queue, slots of running requests, tokens handed out.

A request belongs for life to the slot that ran its last prompt tokens. Admission reserves a request's whole length in
the KV cache, so nothing is ever retracted or preempted.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from pipesim.deployment import EngineSettings
from pipesim.engines.base import DecodeGaps, LoopShape, MicroBatch, Request
from pipesim.workload import DecodeStep, PrefillChunk, mean_kv_tokens


def padded_decode(
    captured: list[int], requests: int, kv_tokens: float, settings: EngineSettings, padding_routed: bool = True
) -> DecodeStep:
    """Returns the decode step of some requests that hold `kv_tokens` tokens in all.

    Padded to the smallest captured size that holds them; eager and unpadded where none does.
    """
    position = bisect_left(captured, requests)
    rows = captured[position] if position < len(captured) else 0
    mean = mean_kv_tokens(requests, kv_tokens)
    return DecodeStep(requests, mean, rows or requests, rows > 0, padding_routed, settings.draft_tokens + 1)


class Prompts(NamedTuple):
    """Prompt tokens taken into one launch."""

    chunk: PrefillChunk
    finished: list[Request]
    """Requests whose prompt ends with it."""


@dataclass(slots=True)
class Slot:
    """One micro-batch slot and its running requests."""

    tokens_per_step: float = 1.0
    """Mean tokens that a request gains per decode step."""
    running: int = 0
    kv_tokens: float = 0.0
    launched: int = 0
    """Decode steps launched so far."""
    live: int = 0
    """Requests whose second token is out and whose last is not."""
    last_result: int = -1
    after_prefill: bool = True
    prefilled: list[Request] = field(default_factory=list)
    """Requests whose prompt the last launch finished; they decode from the next launch on."""
    joining: dict[int, list[Request]] = field(default_factory=dict)
    """By decode step: the requests for which it is the first."""
    ending: dict[int, list[Request]] = field(default_factory=dict)
    """By decode step: the requests for which it is the last."""

    def start_prefilled(self) -> None:
        """Lets the requests whose prompt is done take part in the next decode step."""
        for request in self.prefilled:
            request.first_step = self.launched
            self.running += 1
            self.kv_tokens += request.kv_tokens_after_prefill
            self.joining.setdefault(self.launched, []).append(request)
            steps = ceil(round((request.output_len - 1) / self.tokens_per_step, 9))
            self.ending.setdefault(self.launched + steps - 1, []).append(request)
        self.prefilled = []

    def leave(self, requests: list[Request]) -> None:
        """Takes requests out of the running batch."""
        for request in requests:
            self.running -= 1
            gained = (self.launched - request.first_step) * self.tokens_per_step
            self.kv_tokens -= request.kv_tokens_after_prefill + gained


class SlotScheduler:
    """Queue, admission, prompts and token hand-out of one run; an engine adds how a micro-batch is formed."""

    leave_at_launch = False
    """Whether a request leaves its slot when its last step is launched, or when that step's result is handled."""
    absorbs_context = False
    """Whether a prompt with tokens in the KV cache attends to the latent itself (MLA)."""

    def __init__(self, loop: LoopShape, rows: int, kv_capacity: int, settings: EngineSettings) -> None:
        self.loop = loop
        self._settings = settings
        self.decode_gaps = DecodeGaps()
        self.slots = [Slot(settings.tokens_per_step) for _ in range(loop.slots)]
        self._rows_free, self._kv_free = rows, kv_capacity
        self._waiting: deque[Request] = deque()
        self._chunked: Request | None = None
        self._in_server = 0

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return self._in_server == 0

    def submit(self, request: Request) -> None:
        """Puts a request into the waiting queue."""
        self._in_server += 1
        self._waiting.append(request)

    def complete(self, micro_batch: MicroBatch, now: int) -> list[Request]:
        """Hands out the tokens of a micro-batch at `now`; returns the requests that ended with them."""
        state = self.slots[micro_batch.slot]
        ended = self._complete_decode(state, micro_batch.decode_step, now) if micro_batch.decode_step >= 0 else []
        if micro_batch.prefills:
            state.after_prefill = True
        for request in micro_batch.finishing_prefill:
            request.first_token = now
            if request.output_len == 1:
                ended.append(request)
        for request in ended:
            request.last_token = now
            self._kv_free += request.length
            self._rows_free += 1
            self._in_server -= 1
        return ended

    def take_prompts(self, slot: int, budget: int, places: int) -> Prompts | None:
        """Fills a launch with prompt tokens; one that does not fit is cut and goes on in the next turn."""
        finished: list[Request] = []
        tokens = attended = requests = context = 0
        while budget > 0:
            request = self._chunked or self._admit(places - requests)
            if request is None:
                break
            taken = min(budget, request.input_len - request.prefilled)
            prefix = request.context_len + request.prefilled
            attended += taken * prefix + taken * (taken + 1) // 2
            context += prefix
            tokens, budget, requests = tokens + taken, budget - taken, requests + 1
            request.prefilled += taken
            self._chunked = request if request.prefilled < request.input_len else None
            if self._chunked is None:
                request.slot = slot
                finished.append(request)
        if not requests:
            return None
        self.slots[slot].prefilled = [request for request in finished if request.output_len > 1]
        absorbed = self.absorbs_context and context > 0
        return Prompts(PrefillChunk(tokens, requests, attended, len(finished), context, absorbed), finished)

    def launch_decode(self, state: Slot) -> int:
        """Counts one decode step of a slot as launched; returns its index."""
        step = state.launched
        state.launched += 1
        state.kv_tokens += state.running * state.tokens_per_step
        if self.leave_at_launch:
            state.leave(state.ending.get(step, []))
        return step

    def _admit(self, places: int) -> Request | None:
        if min(places, self._rows_free) <= 0 or not self._waiting or self._waiting[0].length > self._kv_free:
            return None
        request = self._waiting.popleft()
        self._kv_free -= request.length
        self._rows_free -= 1
        return request

    def _complete_decode(self, state: Slot, step: int, now: int) -> list[Request]:
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
        ended = state.ending.pop(step, [])
        if not self.leave_at_launch:
            state.leave(ended)
        state.live -= len(ended)
        return ended
