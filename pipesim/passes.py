"""The price of a whole passage: how long a micro-batch occupies each stage and each hop, and the host work around it.

Both runners take a `PassPricer` (or any function with its signature) and make no time of their own.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from pipesim.cost import CostModel
from pipesim.deployment import Deployment
from pipesim.families import Section
from pipesim.ops import Category, HostWork, StageOp
from pipesim.profiles.base import Basis
from pipesim.profiles.hardware import Implementation
from pipesim.program import PassProgram, lower
from pipesim.units import to_picoseconds
from pipesim.workload import Batch, DecodeStep, MixedStep

VERIFICATION_LAUNCHES, LAUNCHES_PER_DRAFT = 45, 12
"""See `launches_of_a_round`."""


class PricedOp(NamedTuple):
    """An operation on a stage with its time [ps], what binds it and what that rests on."""

    op: StageOp
    picoseconds: int
    bound: str
    basis: Basis
    extrapolated: bool


@dataclass(frozen=True)
class StagePrice:
    """How long a micro-batch holds one stage [ps], and what it does there."""

    by_category: dict[Category, int]
    """Time of kernels and collectives, and under "host" the time the GPU waits for launches."""
    by_basis: dict[Basis, int]
    extrapolated: int = 0
    """Time of operations whose size lies outside the range of their evidence."""
    by_bound: dict[tuple[Category, str], int] = field(default_factory=dict)
    """The same time as `by_category`, by category and what binds the operation."""

    @cached_property
    def total(self) -> int:
        """From the first kernel's turn to the last kernel's end."""
        return sum(self.by_category.values())


@dataclass(frozen=True)
class PassPrice:
    """The price of one micro-batch's way through the pipeline [ps]."""

    stages: tuple[StagePrice, ...]
    hops: tuple[int, ...]
    """From the end on stage s to the arrival at stage s+1."""
    schedule: int
    """CPU time to form the batch."""
    launches: tuple[int, ...]
    """CPU time that each stage's host spends launching it."""
    process: int
    """CPU time to handle its result."""
    result_return: int
    """From the end on the last stage to the tokens being on the scheduler's host."""
    held: int = 0
    """How long the last stage stays occupied behind its end: its worker has a turn of its own before the next launch.
    """

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Occupancy of each stage [ps]."""
        return tuple(stage.total for stage in self.stages)


PriceBatch = Callable[[Batch], PassPrice]


class FrontEndPrice(NamedTuple):
    """What the front end of a server takes [ps]: two processes, one for requests and one for their tokens.

    Each handles one thing after another: requests on their way in, what a step gives to each request on the way out.
    """

    per_request: int = 0
    per_dispatch: int = 0
    per_prompt_token: int = 0
    per_output: int = 0
    latency: int = 0
    round_trip: int = 0

    def accept(self, prompt: int) -> int:
        """Returns the serial time [ps] of taking in a request with a prompt of some tokens."""
        return self.per_request + self.encode(prompt)

    def encode(self, prompt: int) -> int:
        """Returns the part of it [ps] that comes after all requests that wait have been parsed."""
        return self.per_dispatch + prompt * self.per_prompt_token

    def unqueued(self, prompt: int, outputs: int) -> int:
        """Returns what the front end adds [ps] to a request of a client who asks again, where nothing queues in it.

        `outputs` are the requests of one step, whose tokens leave together.
        """
        return self.latency + self.accept(prompt) + outputs * self.per_output + self.round_trip


NO_FRONT_END = FrontEndPrice()


class _SectionTotal(NamedTuple):
    """What one run of a section of the model takes [ps]."""

    by_bound: dict[tuple[Category, str], int]
    by_basis: dict[Basis, int]
    extrapolated: int

    @property
    def picoseconds(self) -> int:
        """All of it."""
        return sum(self.by_bound.values())


def launches_of_a_round(batch: Batch) -> int:
    """Returns the kernels that a round of speculation takes beside the model's: none where nothing is verified.

    Counted in vLLM 0.33 (v1/worker/gpu_model_runner.py `_calc_spec_decode_metadata`, v1/sample/rejection_sampler.py,
    v1/spec_decode/llm_base_proposer.py): copies of indices and gathers, the comparison with the drafts, the drafter's
    inputs and attention metadata; for every draft token its choice, positions, slots and metadata again.
    """
    decode = batch.decode if isinstance(batch, MixedStep) else batch
    drafts = decode.queries - 1 if isinstance(decode, DecodeStep) else 0
    return VERIFICATION_LAUNCHES + LAUNCHES_PER_DRAFT * drafts if drafts else 0


class PassPricer:
    """Prices batches on one deployment; equal batches are priced once."""

    def __init__(
        self,
        deployment: Deployment,
        all_reduce: tuple[Implementation, ...] = ("nccl",),
        scale: Mapping[str, float] | None = None,
        last_worker_waits: bool = False,
    ) -> None:
        self.deployment = deployment
        self._last_worker_waits = last_worker_waits
        engine = deployment.engine
        self._cost = {
            mode: CostModel(
                deployment.hardware,
                mode,
                all_reduce,
                deployment.peer_access,
                scale or {},
                engine.kernels,
                deployment.ranks_per_node,
            )
            for mode in ("graph", "eager")
        }
        self._prices: dict[Batch, PassPrice] = {}
        self._known: dict[int, tuple[Batch, PassPrice]] = {}
        """By identity, for the many times that a scheduler launches the very same batch again."""

    def __call__(self, batch: Batch) -> PassPrice:
        """Returns the price of one batch."""
        known = self._known.get(id(batch))
        if known is not None:
            return known[1]
        price = self._prices.get(batch)
        if price is None:
            slowest = self._slowest(batch)
            price = self._prices[batch] = self(slowest) if slowest is not batch else self._price(batch)
        self._known[id(batch)] = batch, price
        return price

    @cached_property
    def front_end(self) -> FrontEndPrice:
        """What HTTP, tokenizer and detokenizer take."""
        return FrontEndPrice(
            per_request=self._host(HostWork("parse", requests=1)),
            per_dispatch=self._host(HostWork("encode", requests=1)),
            per_prompt_token=self._host(HostWork("encode", tokens=1)),
            per_output=self._host(HostWork("deliver", requests=1)),
            latency=self._host(HostWork("pass_on")),
            round_trip=self._host(HostWork("round_trip")),
        )

    @property
    def idle_turn(self) -> int:
        """CPU time of a turn over an empty slot [ps]."""
        return self._host(HostWork("idle_turn"))

    def section_times(self, batch: Batch) -> dict[Section, tuple[int, int]]:
        """Returns the GPU's time [ps] for each section of the model in one batch, and the host's for its launches.

        None of the host's where a graph is replayed: its one launch per stage is the same whatever the stage holds.
        """
        found = {}
        for section, ops in self._priced_sections(lower(self.deployment, batch), batch).items():
            launches = 0 if batch.captured else sum(priced.op.launches for priced in ops)
            host = self._host(HostWork("launch", launches=launches)) if launches else 0
            found[section] = sum(priced.picoseconds for priced in ops), host
        return found

    def operations(self, batch: Batch, stage: int) -> Iterator[PricedOp]:
        """Yields the priced operations of one stage in the order in which they run."""
        program = lower(self.deployment, batch := self._slowest(batch))
        sections = self._priced_sections(program, batch)
        for run in program.stages[stage]:
            for _ in range(run.times):
                yield from sections[run.section]

    def cost(self, batch: Batch) -> CostModel:
        """Returns the price list that holds for a batch: that of captured kernels, or of launched ones."""
        return self._cost["graph" if batch.captured else "eager"]

    def _slowest(self, batch: Batch) -> Batch:
        """Returns a batch as the rank sees it that the others wait for."""
        if not isinstance(batch, MixedStep) or batch.attends != "apart":
            return batch
        decode, prefill = batch._replace(attends="decode"), batch._replace(attends="prefill")
        return max(decode, prefill, key=lambda seen: sum(self(seen).totals))

    def _price(self, batch: Batch) -> PassPrice:
        program = lower(self.deployment, batch)
        sections = self._priced_sections(program, batch)
        totals = {section: _total(ops) for section, ops in sections.items()}
        eager = [[run for run in runs if run.section == "draft" or not batch.captured] for runs in program.stages]
        launches = [
            sum(run.times * sum(p.op.launches for p in sections[run.section]) for run in runs) for runs in eager
        ]
        launches[-1] += launches_of_a_round(batch)
        late = [self._host(HostWork("launch", launches=count)) if count else 0 for count in launches]
        replay = self._host(HostWork("launch")) if batch.captured else 0
        hosts = [replay + own for own in late]
        cost = self._cost["graph"]
        pipelined = len(program.stages) > 1
        on_rank = -(-batch.requests // self.deployment.plan.attention_dp)  # each has a scheduler
        schedule, process = (self._host(HostWork(name, requests=on_rank)) for name in ("schedule", "process"))
        held = schedule + process if self._last_worker_waits and pipelined else 0
        held += hosts[-1] if held and batch.captured else 0  # launched one by one, kernels begin with the first
        return PassPrice(
            stages=tuple(
                self._stage_price(
                    [(totals[run.section], run.times) for run in runs],
                    own - sum(run.times * totals[run.section].picoseconds for run in beside),
                )
                for runs, own, beside in zip(program.stages, late, eager, strict=True)
            ),
            hops=tuple(max(to_picoseconds(cost.price(send).seconds) for send in sends) for sends in program.sends),
            schedule=schedule,
            launches=tuple(hosts),
            process=process,
            result_return=self._host(HostWork("return")) if pipelined else 0,
            held=held,
        )

    def _priced_sections(self, program: PassProgram, batch: Batch) -> dict[Section, list[PricedOp]]:
        cost = self.cost(batch)
        return {section: [_priced(cost, op) for op in ops] for section, ops in program.operations.items()}

    def _stage_price(self, runs: list[tuple[_SectionTotal, int]], behind: int) -> StagePrice:
        """Adds up a stage; `behind` is how much longer the host takes for its launches than the GPU for what they run.

        The host launches ahead of the GPU, but the drafter only when it is known which tokens of a captured pass count.
        """
        by_category: Counter[Category] = Counter()
        by_basis: Counter[Basis] = Counter()
        by_bound: Counter[tuple[Category, str]] = Counter()
        extrapolated = 0
        for total, times in runs:
            extrapolated += total.extrapolated * times
            for basis, picoseconds in total.by_basis.items():
                by_basis[basis] += picoseconds * times
            for kind, picoseconds in total.by_bound.items():
                by_bound[kind] += picoseconds * times
                by_category[kind[0]] += picoseconds * times
        waiting = max(0, behind)
        by_category["host"] += waiting
        by_bound["host", "host"] += waiting
        by_basis[self._cost["eager"].price(HostWork("launch")).basis] += waiting
        return StagePrice(dict(by_category), dict(by_basis), extrapolated, dict(by_bound))

    def _host(self, op: HostWork) -> int:
        return to_picoseconds(self._cost["graph"].price(op).seconds)


def _priced(cost: CostModel, op: StageOp) -> PricedOp:
    price = cost.price(op)
    return PricedOp(op, to_picoseconds(price.seconds), price.bound, price.basis, price.extrapolated)


def _total(ops: list[PricedOp]) -> _SectionTotal:
    by_bound: dict[tuple[Category, str], int] = {}
    by_basis: dict[Basis, int] = {}
    extrapolated = 0
    for op, picoseconds, bound, basis, beyond in ops:
        kind = op.category, bound
        by_bound[kind] = by_bound.get(kind, 0) + picoseconds
        by_basis[basis] = by_basis.get(basis, 0) + picoseconds
        extrapolated += picoseconds if beyond else 0
    return _SectionTotal(by_bound, by_basis, extrapolated)
