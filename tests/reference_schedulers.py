"""Plain references of the engines' schedulers, one request at a time, written from what the engines' loops do.

No clock: in turn k a scheduler forms the batch of slot k mod L, then handles the result of turn k − lag. A batch is
what decodes and how many prompt tokens of whom run, by the requests' numbers.

SGLang (managers/scheduler.py `get_next_batch_to_run`, schedule_policy.py `PrefillAdder`): the slot's finished prompts
join its running batch; prompts first, unless an interval since the last prefill launch defers them; a request is let in
while its prompt and the output it may still ask for fit beside what the slot's running requests are reckoned to need.

vLLM (v1/core/sched/scheduler.py `schedule`): requests that run, in the order in which they were let in, each one token
or the next piece of its prompt, one token budget for all; then those that wait, if their whole prompt fits. A decoding
request is eligible again P turns later.

Neither puts a request back into the queue: `Full` is raised where an engine would.
"""

from collections import deque
from dataclasses import dataclass, field

CLIP = 4096


class Full(Exception):  # noqa: N818 - it says what the KV cache is
    """The KV cache does not hold the next decode step."""


Turn = tuple[list[int], list[tuple[int, int]]] | None
"""Requests that decode, and (request, prompt tokens) of those in prefill; None for nothing."""


@dataclass(eq=False)
class Asked:
    """One request: what it asks for, what has been computed of it, and the tokens handed out."""

    index: int
    prompt: int
    output: int
    allowed: int
    computed: int = 0
    given: int = 0
    kv: int = 0
    launched: int = 0
    """Tokens on their way or handed out."""
    eligible: int = 0


@dataclass
class Sglang:
    """One server's scheduler. `reserves_all`: ignore_eos in a version that reckons with the whole output."""

    slots: int
    lag: int
    kv: int
    chunk: int
    cap: int
    interval: int = 0
    interval_min_bs: int = 0
    reserves_all: bool = False
    conservativeness: float = 1.0
    rows: int = 64
    chunk_takes_a_row: bool = False
    waiting: deque[Asked] = field(default_factory=deque)
    everyone: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running: list[list[Asked]] = [[] for _ in range(self.slots)]
        self.extended: list[list[Asked]] = [[] for _ in range(self.slots)]
        self.chunked: Asked | None = None
        self.remaining = 0
        self.ratio = self.first = min(1.0, 0.7 * self.conservativeness)
        self.results: deque[list[Asked]] = deque([[] for _ in range(self.lag)])
        self.let_in: set[Asked] = set()

    def turn(self, k: int) -> Turn:
        """Forms a batch, then handles the result that is due."""
        slot = k % self.slots
        self.running[slot] += self.extended[slot]
        self.extended[slot] = []
        self.running[slot] = [r for r in self.running[slot] if r.given < r.output]
        formed, tokens = self._form(slot)
        self.results.append(tokens)
        for request in self.results.popleft():
            if request.given < request.output:
                request.given += 1
                if request.given == request.output:
                    self.let_in.discard(request)
        self._free_finished()
        return formed

    def _form(self, slot: int) -> tuple[Turn, list[Asked]]:
        running = self.running[slot]
        if self.remaining and len(running) < self.interval_min_bs:
            self.remaining = 0
        if self.remaining:
            self.remaining -= 1
        else:
            pieces = self._prefill(slot)
            if pieces:
                self.remaining = self.interval
                done = [r for r, _ in pieces if r.computed == r.prompt]
                self.extended[slot] = [r for r in done if r.output > 1]
                return ([], [(r.index, n) for r, n in pieces]), done
        if not running:
            return None, []
        self.ratio = max(self.ratio - self.first * 0.86 / 600, self.first * 0.14)
        if len(running) > self._free():
            raise Full
        for request in running:
            request.kv += 1
        return ([r.index for r in running], []), list(running)

    def _prefill(self, slot: int) -> list[tuple[Asked, int]]:
        budget, pieces, rows = self.chunk, [], self.rows - len(self.let_in)
        ratio = 1.0 if self.reserves_all else self.ratio
        reserved = sum(min(r.allowed - r.given, CLIP) * ratio for r in self.running[slot])
        while budget:
            request = self.chunked
            if request is None:
                resumed = 0 if self.chunk_takes_a_row else sum(r.computed > n for r, n in pieces)
                full = len(pieces) >= min(self.cap - len(self.running[slot]), rows + resumed)
                if full or not self.waiting:
                    break
                request = self.waiting[0]
                if self.let_in and request.prompt + min(request.allowed, CLIP) > self._free() - reserved:
                    break
                self.waiting.popleft()
                self.let_in.add(request)
            taken = min(budget, request.prompt - request.computed, self._free())
            if taken <= 0:
                break
            request.computed += taken
            request.kv += taken
            budget -= taken
            reserved += min(request.allowed, CLIP)
            pieces.append((request, taken))
            self.chunked = request if request.computed < request.prompt else None
        return pieces

    def _free(self) -> int:
        return self.kv - sum(r.kv for r in self.everyone)

    def _free_finished(self) -> None:
        for request in self.everyone:
            if request.given == request.output:
                request.kv = 0


@dataclass
class Vllm:
    """One server's scheduler; results come back `lag` turns later."""

    stages: int
    lag: int
    kv: int
    budget: int
    sequences: int
    interval: int = 1
    whole_prompts: bool = True
    waiting: deque[Asked] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.running: list[Asked] = []
        self.results: deque[list[Asked]] = deque([[] for _ in range(self.lag)])
        self.executed, self.last_prefill, self.capacity_bound = 0, -self.interval, False

    def turn(self, k: int) -> Turn:
        """Forms a batch, then handles the result that is due."""
        decodes, pieces = self._schedule(k)
        self.results.append([*decodes, *(r for r, _ in pieces if r.computed == r.prompt)])
        for request in self.results.popleft():
            request.given += 1
            if request.given == request.output:
                self.running.remove(request)
        return ([r.index for r in decodes], [(r.index, n) for r, n in pieces]) if decodes or pieces else None

    def _schedule(self, k: int) -> tuple[list[Asked], list[tuple[Asked, int]]]:
        budget, decodes, pieces = self.budget, [], []
        decoding = [r for r in self.running if r.computed == r.prompt]
        held = self.executed + 1 - self.last_prefill < self.interval and not self.capacity_bound and bool(decoding)
        for request in self.running:
            prefilling = request.computed < request.prompt
            if (held and prefilling) or not budget:
                continue
            if not prefilling and (request.launched == request.output or k < request.eligible):
                continue
            needed = min(budget, request.prompt - request.computed) if prefilling else 1
            if needed > self._free():
                raise Full
            request.kv += needed
            budget -= needed
            if prefilling:
                request.computed += needed
                pieces.append((request, needed))
            else:
                decodes.append(request)
        while budget and self.waiting and not held and len(self.running) < self.sequences:
            request = self.waiting[0]
            taken = min(budget, request.prompt)
            if (request.prompt if self.whole_prompts else taken) > self._free():
                break
            self.running.append(self.waiting.popleft())
            request.computed = request.kv = taken
            budget -= taken
            pieces.append((request, taken))
        if not held:
            self.capacity_bound = bool(self.waiting)
        for request in [*decodes, *(r for r, _ in pieces if r.computed == r.prompt)]:
            request.launched += 1
            request.eligible = k + self.stages
        self.executed += bool(decodes or pieces)
        if pieces:
            self.last_prefill = self.executed
        return decodes, pieces

    def _free(self) -> int:
        return self.kv - sum(r.kv for r in self.running)
