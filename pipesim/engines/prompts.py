"""What every engine has in common on the way in: a queue, room in the KV cache, prompts cut into launches."""

from collections import deque
from collections.abc import Callable, Sequence

from pipesim.engine_settings import EngineSettings
from pipesim.engines.base import DecodeGaps, LoopShape, Prompts, Request
from pipesim.workload import Batch, PrefillChunk


def prompts_together(chunks: Sequence[PrefillChunk]) -> PrefillChunk:
    """Returns some pieces of prompts as one."""
    if len(chunks) == 1:
        return chunks[0]
    tokens, requests, attended, finished, context, absorbed, _ = zip(*chunks, strict=True)
    return PrefillChunk(sum(tokens), sum(requests), sum(attended), sum(finished), sum(context), any(absorbed))


class PromptQueue:
    """Queue, KV cache and prompts of one run; an engine adds admission and decoding."""

    def __init__(self, loop: LoopShape, rows: int, kv_capacity: int, settings: EngineSettings) -> None:
        self.loop = loop
        self.decode_gaps = DecodeGaps()
        self.kv_free: float = kv_capacity
        self._settings = settings
        self._rows_free = rows
        self._budget_left = 0
        """Prompt tokens that the launch being filled still takes."""
        self._waiting: deque[Request] = deque()
        self._chunked: Request | None = None
        self._in_server = self._let_in = 0

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return self._in_server == 0

    def submit(self, request: Request) -> None:
        """Puts a request into the waiting queue."""
        self._in_server += 1
        self._waiting.append(request)

    def measure(self, first_stage: Callable[[Batch], int]) -> None:
        """Times batches on the first stage before any request comes; most engines have no need to."""

    def absorbs(self, tokens: int, context: int) -> bool:
        """Returns whether prompt tokens beside `context` in the KV cache attend to the latent itself (MLA)."""
        return False

    def admits(self, request: Request, slot: int, taken: float) -> bool:
        """Returns whether the engine lets a waiting request in, `taken` KV tokens being promised in this launch."""
        raise NotImplementedError

    def promised(self, request: Request) -> int:
        """Returns the KV tokens that a request taken into a launch withholds from those behind it."""
        return 0

    def take_prompts(self, slot: int, budget: int, places: int) -> Prompts | None:
        """Fills a launch with prompt tokens; one that does not fit is cut and goes on in the next turn."""
        finished: list[Request] = []
        tokens = attended = requests = context = 0
        promised = 0.0
        while budget > 0:
            self._budget_left = budget
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
            promised += self.promised(request)
            self._chunked = request if request.prefilled < request.prompt_len else None
            if self._chunked is None:
                request.slot = slot
                finished.append(request)
        if not requests:
            return None
        absorbed = self.absorbs(tokens, context)
        return Prompts(PrefillChunk(tokens, requests, attended, len(finished), context, absorbed), finished)

    def _admit(self, slot: int, places: int, promised: float) -> Request | None:
        if min(places, self._rows_free) <= 0 or not self._waiting:
            return None
        request = self._waiting[0]
        if not self.admits(request, slot, promised):
            return None
        self._waiting.popleft()
        request.turn, self._let_in = self._let_in, self._let_in + 1
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

    def _let_go(self, ended: list[Request], now: int) -> None:
        """Frees what requests held that ended at `now`."""
        for request in ended:
            request.last_token = now
            self.kv_free += request.kv_held
            self._rows_free += 1
            self._in_server -= 1
