"""A scheduler for each rank that attends for its own requests (SGLang DP attention), all in step with each other.

Requests go to the ranks in turn (arg_groups/serving_hook.py `handle_load_balance_method`). In every turn each rank
forms a batch of its own; they run as one launch, since the ranks meet in every layer. Where one of them has prompts
the launch runs kernel by kernel, and the others go on decoding in it (managers/scheduler_components/dp_attn.py
`prepare_mlp_sync_batch`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pipesim.engines.base import DecodeGaps, LoopShape, MicroBatch, Request
from pipesim.engines.prompts import prompts_together
from pipesim.engines.slots import SlotScheduler
from pipesim.workload import Batch, DecodeStep, MixedStep, PrefillChunk, mean_kv_tokens


@dataclass(slots=True, eq=False)
class Joined(MicroBatch):
    """What the ranks launch together."""

    parts: Sequence[MicroBatch | None] = field(default_factory=list)


class AttentionRanks:
    """The schedulers of the ranks of a stage as one."""

    def __init__(self, ranks: Sequence[SlotScheduler]) -> None:
        self._ranks, self._next = ranks, 0
        self.loop: LoopShape = ranks[0].loop
        self.decode_gaps = DecodeGaps()
        for rank in ranks:
            rank.decode_gaps = self.decode_gaps
        self._joined: dict[tuple[Batch | None, ...], Batch] = {}

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""
        return all(rank.idle for rank in self._ranks)

    @property
    def put_back(self) -> int:
        """Times that a request was put back into a queue for want of KV cache."""
        return sum(rank.put_back for rank in self._ranks)

    def measure(self, first_stage: Callable[[Batch], int]) -> None:
        """Times batches on the first stage before any request comes, as an engine may at start-up."""
        for rank in self._ranks:
            rank.measure(first_stage)

    def submit(self, request: Request) -> None:
        """Puts a request into the queue of the rank whose turn it is."""
        self._ranks[self._next].submit(request)
        self._next = (self._next + 1) % len(self._ranks)

    def form(self, slot: int) -> MicroBatch | None:
        """Returns what the ranks launch together for a slot, or None when none of them has anything to do."""
        parts = [rank.form(slot) for rank in self._ranks]
        if any(part and part.prefills for part in parts):
            for rank in self._ranks:
                rank.after_prefill_launch()
        batches = tuple(None if part is None else part.batch for part in parts)
        if not any(batches):
            return None
        if batches not in self._joined:
            self._joined[batches] = joined([batch for batch in batches if batch], len(batches))
        finishing = [request for part in parts if part for request in part.finishing_prefill]
        step = max(part.decode_step for part in parts if part)
        return Joined(slot, self._joined[batches], finishing, step, parts)

    def outputs(self, micro_batch: MicroBatch) -> int:
        """Returns how many requests get tokens of a launch."""
        return sum(rank.outputs(part) for rank, part in self._parts(micro_batch))

    def complete(self, micro_batch: MicroBatch, now: int) -> list[Request]:
        """Hands out the tokens of a launch, rank by rank; returns the requests that ended with them."""
        return [request for rank, part in self._parts(micro_batch) for request in rank.complete(part, now)]

    def _parts(self, micro_batch: MicroBatch) -> Iterator[tuple[SlotScheduler, MicroBatch]]:
        parts = micro_batch.parts if isinstance(micro_batch, Joined) else ()
        return ((rank, part) for rank, part in zip(self._ranks, parts, strict=True) if part)


def joined(batches: Sequence[Batch], ranks: int) -> Batch:
    """Returns the batches of some of the ranks as one, of which the fullest decodes most rows."""
    decodes = [batch.decode if isinstance(batch, MixedStep) else batch for batch in batches]
    steps = [step for step in decodes if isinstance(step, DecodeStep)]
    chunks = [batch.prefill if isinstance(batch, MixedStep) else batch for batch in batches]
    prompts = [chunk for chunk in chunks if isinstance(chunk, PrefillChunk)]
    if not prompts:
        return _decodes(steps, ranks)
    chunk = prompts_together(prompts)._replace(holders=len(prompts))
    if not steps:
        return chunk
    together = len(steps) + len(prompts) > len(batches)  # mixed chunks: the same ranks do both
    return MixedStep(_decodes(steps, ranks), chunk, captured=False, attends="both" if together else "apart")


def _decodes(steps: Sequence[DecodeStep], ranks: int) -> DecodeStep:
    """Every rank is padded to as many rows as the fullest, and all are captured or none."""
    requests = sum(step.requests for step in steps)
    mean = mean_kv_tokens(requests, sum(step.requests * step.kv_tokens for step in steps))
    captured = all(step.captured for step in steps)
    rows = ranks * max(step.rows for step in steps) if captured else requests
    return steps[0]._replace(requests=requests, kv_tokens=mean, rows=rows, captured=captured)
