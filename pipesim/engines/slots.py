"""What engines that decode in fixed groups have in common: slots of running requests, tokens handed out.

A request belongs to the slot that ran its last prompt tokens. When a decode step no longer fits the KV cache, requests
of that slot are put back into the queue with what they have been given, and prefilled again later.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil

from pipesim.engine_settings import EngineSettings
from pipesim.engines.base import LoopShape, MicroBatch, Prompts, Request
from pipesim.engines.prompts import PromptQueue
from pipesim.workload import DecodeStep, mean_kv_tokens


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

    def unfinished(self, first: int) -> Iterator[Request]:
        """Yields the running requests whose last step is no earlier than some step."""
        for step, requests in self.ending.items():
            if step >= first:
                yield from requests

    def decoding(self) -> Iterator[Request]:
        """Yields the requests with steps still to launch and a token out."""
        return (request for request in self.unfinished(self.launched) if not request.in_prefill)

    def given(self, request: Request) -> int:
        """Returns the tokens that a running request has been given."""
        if request.in_prefill:
            return request.recomputed
        return request.recomputed + 1 + int(max(0, self.completed - request.first_step) * self.tokens_per_step)

    def still_asked(self, most: int, one_by_one: bool = False) -> int:
        """Returns the tokens that the running requests may still ask for, of each at most `most`.

        Asked in every turn in which a request waits, so where all run to the most tokens allowed it counts requests by
        their last step rather than one by one.
        """
        if one_by_one or self.tokens_per_step != 1:
            return sum(min(most, request.allowed - self.given(request)) for request in self.unfinished(self.completed))
        first, done = self.completed, self.completed - 1
        total = sum(len(ending) * min(most, step - done) for step, ending in self.ending.items() if step >= first)
        for joined, requests in self.joining.items():  # those without a decode result: some are still in prefill
            for request in requests:
                last = self._last_step(request)
                if last >= first:
                    total += min(most, last - joined + 1 + request.in_prefill) - min(most, last - done)
        return total

    def _last_step(self, request: Request) -> int:
        left = request.output_len - request.recomputed - 1
        return request.first_step + ceil(round(left / self.tokens_per_step, 9)) - 1


class SlotScheduler(PromptQueue):
    """Slots and token hand-out of one run; an engine adds admission and what a turn runs."""

    leave_at_launch = False
    """Whether a request leaves its slot when its last step is launched, or when that step's result is handled."""
    requeue_first = False
    """Whether a request that is put back goes to the head of the queue, or to its tail."""

    def __init__(self, loop: LoopShape, rows: int, kv_capacity: int, settings: EngineSettings) -> None:
        super().__init__(loop, rows, kv_capacity, settings)
        self.slots = [Slot(settings.tokens_per_step) for _ in range(loop.slots)]
        self.put_back = 0
        """Times that a request was put back into the queue for want of KV cache."""

    def form(self, slot: int) -> MicroBatch | None:
        """Returns the next micro-batch of a slot, or None when the slot has nothing to do."""
        raise NotImplementedError

    def after_prefill_launch(self) -> None:
        """Hears of a launch with prompts, its own or that of a rank in step with it."""

    def victim(self, state: Slot) -> Request | None:
        """Returns the running request of a slot that is put back when the KV cache is full."""
        raise NotImplementedError

    def outputs(self, micro_batch: MicroBatch) -> int:
        """Returns how many requests get tokens of a micro-batch; launched ahead of a result, it holds ended ones."""
        state, step = self.slots[micro_batch.slot], micro_batch.decode_step
        decoding = state.live + len(state.joining.get(step, ())) if step >= 0 else 0
        return decoding + len(micro_batch.finishing_prefill)

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
        self._let_go(ended, now)
        return ended

    def take_prompts(self, slot: int, budget: int, places: int) -> Prompts | None:
        """Fills a launch with prompt tokens; requests whose prompt ends with it decode from the next turn on."""
        prompts = super().take_prompts(slot, budget, places)
        if prompts:
            self.slots[slot].prefilled = [
                request for request in prompts.finished if request.output_len > request.recomputed + 1
            ]
        return prompts

    def make_room(self, state: Slot) -> bool:
        """Puts requests of a slot back until its next decode step fits; returns whether any is left to decode."""
        while state.running and state.running * state.tokens_per_step > self.kv_free:
            request = self.victim(state)
            alone = state.running == 1 and self._in_server - len(self._waiting) == 1
            if request is None or alone:
                return False
            if request is self._chunked:
                request.kv_held, request.prefilled = request.context_len + request.prefilled, 0
                self._chunked = None
            else:
                self.slots[request.slot].retract(request)
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
