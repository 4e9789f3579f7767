"""What engines that decode in fixed groups have in common: a queue, slots of running requests, tokens handed out.

A request belongs to the slot that ran its last prompt tokens. When a decode step no longer fits the KV cache, requests
of that slot are put back into the queue with what they have been given, and prefilled again later.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
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
    completed: int = 0
    """Decode steps whose result has been handled."""
    live: int = 0
    """Requests whose second token is out and whose last is not."""
    last_result: int = -1
    after_prefill: bool = True
    step: DecodeStep | None = None
    """The last decode step formed: most steps equal the one before, within a KV block."""
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
            self.ending.setdefault(self._last_step(request), []).append(request)
        self.prefilled = []

    def leave(self, requests: Iterable[Request]) -> None:
        """Takes requests out of the running batch; what they hold of the KV cache stays theirs until it is freed."""
        for request in requests:
            self.running -= 1
            gained = (self.launched - request.first_step) * self.tokens_per_step
            request.kv_held = request.context_len + request.prompt_len + gained
            self.kv_tokens -= request.kv_tokens_after_prefill + gained

    def retract(self, request: Request) -> None:
        """Takes a request out and back to its beginning; it keeps the tokens it was given, one in flight is lost."""
        self.ending[self._last_step(request)].remove(request)
        self.leave([request])
        given = max(0, self.completed - request.first_step)
        if given:
            self.live -= 1
            request.last_emission = self.last_result
        else:
            self.joining[request.first_step].remove(request)
        request.recomputed = min(request.output_len - 1, request.recomputed + 1 + int(given * self.tokens_per_step))
        request.prefilled, request.slot, request.first_step, request.in_prefill = 0, -1, -1, True

    def decoding(self) -> Iterator[Request]:
        """Yields the requests with steps still to launch and a token out."""
        for step, requests in self.ending.items():
            if step >= self.launched:
                yield from (request for request in requests if not request.in_prefill)

    def given(self, request: Request) -> int:
        """Returns the tokens that a running request has been given."""
        return request.recomputed + 1 + int(max(0, self.completed - request.first_step) * self.tokens_per_step)

    def _last_step(self, request: Request) -> int:
        left = request.output_len - request.recomputed - 1
        return request.first_step + ceil(round(left / self.tokens_per_step, 9)) - 1


class SlotScheduler:
    """Queue, KV cache, prompts and token hand-out of one run; an engine adds admission and what a turn runs."""

    leave_at_launch = False
    """Whether a request leaves its slot when its last step is launched, or when that step's result is handled."""
    absorbs_context = False
    """Whether a prompt with tokens in the KV cache attends to the latent itself (MLA)."""
    requeue_first = False
    """Whether a request that is put back goes to the head of the queue, or to its tail."""

    def __init__(self, loop: LoopShape, rows: int, kv_capacity: int, settings: EngineSettings) -> None:
        self.loop = loop
        self._settings = settings
        self.decode_gaps = DecodeGaps()
        self.slots = [Slot(settings.tokens_per_step) for _ in range(loop.slots)]
        self.kv_free: float = kv_capacity
        self.put_back = 0
        """Times that a request was put back into the queue for want of KV cache."""
        self._rows_free = rows
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

    def admits(self, request: Request, state: Slot, taken: float) -> bool:
        """Returns whether the engine lets a waiting request in, `taken` KV tokens being promised in this launch."""
        raise NotImplementedError

    def victim(self, state: Slot) -> Request | None:
        """Returns the running request of a slot that is put back when the KV cache is full."""
        raise NotImplementedError

    def complete(self, micro_batch: MicroBatch, now: int) -> list[Request]:
        """Hands out the tokens of a micro-batch at `now`; returns the requests that ended with them."""
        state = self.slots[micro_batch.slot]
        ended = self._complete_decode(state, micro_batch.decode_step, now) if micro_batch.decode_step >= 0 else []
        if micro_batch.prefills:
            state.after_prefill = True
        for request in micro_batch.finishing_prefill:
            self._complete_prefill(request, now)
            if request.output_len == request.recomputed + 1:
                request.kv_held = request.context_len + request.prompt_len
                ended.append(request)
        for request in ended:
            request.last_token = now
            self.kv_free += request.kv_held
            self._rows_free += 1
            self._in_server -= 1
        return ended

    def take_prompts(self, slot: int, budget: int, places: int) -> Prompts | None:
        """Fills a launch with prompt tokens; one that does not fit is cut and goes on in the next turn."""
        finished: list[Request] = []
        tokens = attended = requests = context = 0
        promised = 0.0
        while budget > 0:
            request = self._chunked or self._admit(slot, places - requests, promised)
            if request is None:
                break
            taken = min(budget, request.prompt_len - request.prefilled, max(0, int(self.kv_free)))
            if taken <= 0:
                break
            prefix = request.context_len + request.prefilled
            attended += taken * prefix + taken * (taken + 1) // 2
            context += prefix
            tokens, budget, requests = tokens + taken, budget - taken, requests + 1
            request.prefilled += taken
            self.kv_free -= taken
            promised += request.output_len - request.recomputed
            self._chunked = request if request.prefilled < request.prompt_len else None
            if self._chunked is None:
                request.slot = slot
                finished.append(request)
        if not requests:
            return None
        self.slots[slot].prefilled = [request for request in finished if request.output_len > request.recomputed + 1]
        absorbed = self.absorbs_context and context > 0
        return Prompts(PrefillChunk(tokens, requests, attended, len(finished), context, absorbed), finished)

    def make_room(self, state: Slot) -> bool:
        """Puts requests of a slot back until its next decode step fits; returns whether any is left to decode."""
        while state.running and state.running * state.tokens_per_step > self.kv_free:
            request = self.victim(state)
            alone = state.running == 1 and self._in_server - len(self._waiting) == 1
            if request is None or alone:
                return False
            state.retract(request)
            self.put_back += 1
            self.kv_free += request.kv_held
            self._rows_free += 1
            if self.requeue_first:
                self._waiting.appendleft(request)
            else:
                self._waiting.append(request)
        return state.running > 0

    def form_decode(self, state: Slot, captured: list[int], padding_routed: bool) -> DecodeStep:
        """Returns the next decode step of a slot."""
        step = state.step
        mean = mean_kv_tokens(state.running, state.kv_tokens)
        if step is None or step.requests != state.running or step.kv_tokens != mean:
            step = padded_decode(captured, state.running, state.kv_tokens, self._settings, padding_routed)
            state.step = step
        return step

    def launch_decode(self, state: Slot) -> int:
        """Counts one decode step of a slot as launched; returns its index."""
        step = state.launched
        state.launched += 1
        gained = state.running * state.tokens_per_step
        state.kv_tokens += gained
        self.kv_free -= gained
        if self.leave_at_launch:
            state.leave(state.ending.get(step, []))
        return step

    def _admit(self, slot: int, places: int, promised: float) -> Request | None:
        if min(places, self._rows_free) <= 0 or not self._waiting:
            return None
        request = self._waiting[0]
        if not self.admits(request, self.slots[slot], promised):
            return None
        self._waiting.popleft()
        self.kv_free -= request.context_len
        self._rows_free -= 1
        return request

    def _complete_prefill(self, request: Request, now: int) -> None:
        if request.first_token < 0:
            request.first_token = now
        else:
            self.decode_gaps.gaps.append(now - request.last_emission)
            self.decode_gaps.weights.append(1)
        request.last_emission, request.in_prefill = now, False

    def _complete_decode(self, state: Slot, step: int, now: int) -> list[Request]:
        gaps = self.decode_gaps
        if state.live:
            gaps.gaps.append(now - state.last_result)
            gaps.weights.append(state.live)
        if state.live and not state.after_prefill:
            gaps.cycles.append(now - state.last_result)
        for request in state.joining.pop(step, ()):
            gaps.gaps.append(now - request.last_emission)
            gaps.weights.append(1)
            state.live += 1
        state.last_result, state.after_prefill, state.completed = now, False, step + 1
        ended = state.ending.pop(step, [])
        if not self.leave_at_launch:
            state.leave(ended)
        state.live -= len(ended)
        return ended
