"""What the simulator asks of an engine, whichever it is."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines.share import MemoryShare
from pipesim.profiles.hardware import HardwareProfile, Implementation
from pipesim.profiles.model import ModelProfile
from pipesim.workload import Batch, DecodeStep, PrefillChunk, Workload


@dataclass(slots=True, eq=False)
class Request:
    """One request in the server. Times are on the simulated clock [ps], −1 while they have not happened."""

    index: int
    input_len: int
    output_len: int
    context_len: int
    arrival: int
    ignore_eos: bool = True
    """Whether it is told to go on to the most tokens allowed, as benchmarks do."""
    max_new_tokens: int = 0
    """Most output tokens that its client allows; 0 for its `output_len`."""
    sent_len: int = 0
    """Prompt tokens that it brings as text."""
    turn: int = -1
    """How many requests had been let in before it, when it last was."""
    recomputed: int = 0
    """Tokens handed out before it was put back into the queue: they are prefilled again with its prompt."""
    prefilled: int = 0
    """Prompt tokens launched so far."""
    kv_held: float = 0.0
    """Tokens in the KV cache that it holds while it does not decode."""
    in_prefill: bool = True
    """Whether the token of its (last) prefill is still to come."""
    last_emission: int = -1
    """When its last prefill's token, or its last token before it was put back, came out."""
    slot: int = -1
    first_step: int = -1
    """The slot's decode step that produced this request's second token."""
    first_token: int = -1
    last_token: int = -1

    @property
    def allowed(self) -> int:
        """Most output tokens, as the engine knows them: it learns `output_len` only when the request ends."""
        return max(self.max_new_tokens, self.output_len)

    @property
    def prompt_len(self) -> int:
        """Tokens to prefill: its prompt, and what it had been given before it was put back."""
        return self.input_len + self.recomputed

    @property
    def length(self) -> int:
        """Tokens in the KV cache at its end."""
        return self.context_len + self.input_len + self.output_len

    @property
    def kv_tokens_after_prefill(self) -> int:
        """Tokens in the KV cache when its first decode step runs, that step's own token included."""
        return self.context_len + self.prompt_len + 1


class Prompts(NamedTuple):
    """Prompt tokens taken into one launch."""

    chunk: PrefillChunk
    finished: list[Request]
    """Requests whose prompt ends with it."""


@dataclass(slots=True, eq=False)
class MicroBatch:
    """One launch: a batch, the slot it belongs to, and the requests whose prompt it finishes."""

    slot: int
    batch: Batch
    finishing_prefill: Sequence[Request] = ()
    decode_step: int = -1
    """Index of this decode step within its slot; −1 for prefill alone."""

    @property
    def prefills(self) -> bool:
        """Whether it holds prompt tokens."""
        return not isinstance(self.batch, DecodeStep)


@dataclass(slots=True, eq=False)
class Parcel:
    """What goes from stage to stage until a stage puts it together with others that wait before it."""

    decoding: list[Request] = field(default_factory=list)
    """Requests with one step each."""
    kv_tokens: float = 0.0
    """Tokens that they hold in the KV cache, those of the step included."""
    prompts: list[Prompts] = field(default_factory=list)
    beside_prompts: bool = False
    """Whether a prompt ran in one batch with the decodes on some stage of this pass."""
    launches: list[int] = field(default_factory=list)
    """Launches of the first stage that it stems from."""
    sent: int = -1
    arrived: int = -1


class StageBatch(NamedTuple):
    """One batch of one stage, where every stage forms its own."""

    parcel: Parcel
    batch: Batch


@dataclass(frozen=True, slots=True)
class LoopShape:
    """How an engine's scheduler loop is ordered."""

    slots: int
    """Micro-batch slots walked cyclically."""
    result_lag: int
    """Turn k handles the result of launch k − result_lag."""
    receive_before_launch: bool = False
    """Whether that result must have arrived before launch k, or only before turn k + 1."""
    send_after_processing: bool = False
    """Whether a micro-batch leaves the first stage only after that result is processed."""
    tokens_stay_on_gpu: bool = False
    """Whether a slot may be launched before its last result is on the host: the first stage waits for it instead."""
    host_per_stage: bool = False
    """Whether every stage's host walks the same turns, handles every result and waits for its neighbours' messages."""
    batches_per_stage: bool = False
    """Whether every stage forms batches of its own (`StagePolicy`), so that micro-batches merge and split."""


class _Queue(Protocol):
    """What every scheduler has."""

    loop: LoopShape

    def measure(self, first_stage: Callable[[Batch], int]) -> None:
        """Times batches [ps] on the first stage before any request comes, as an engine may at start-up."""

    def submit(self, request: Request) -> None:
        """Puts a request into the waiting queue."""

    @property
    def decode_gaps(self) -> "DecodeGaps":
        """Gaps between tokens so far."""


class Policy(_Queue, Protocol):
    """The scheduler of one run: it owns the queue and the slots, and knows no clock of its own."""

    def form(self, slot: int) -> MicroBatch | None:
        """Returns the next micro-batch of a slot, or None when the slot has nothing to do."""

    def outputs(self, micro_batch: MicroBatch) -> int:
        """Returns how many requests get tokens of a micro-batch whose result is there."""

    def complete(self, micro_batch: MicroBatch, now: int) -> list[Request]:
        """Hands out the tokens of a micro-batch; returns the requests that ended with them."""

    @property
    def idle(self) -> bool:
        """Whether no request waits or runs."""


class StagePolicy(_Queue, Protocol):
    """The schedulers of one run where every stage forms batches of its own."""

    def form(self, stage: int, waiting: deque[Parcel]) -> StageBatch | None:
        """Takes what a free stage runs next out of what waits before it; None when that is nothing."""

    def complete(self, parcel: Parcel, now: int) -> tuple[list[Request], Parcel | None]:
        """Hands out the tokens of what left the last stage; returns the requests that ended and what goes round."""


@dataclass(slots=True)
class DecodeGaps:
    """Inter-token gaps [ps] and how many requests each was seen by, and the cycle time of slots."""

    gaps: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    """Times between successive decode results of one slot with no prefill between them."""


@dataclass(frozen=True)
class Engine:
    """One serving engine, as functions of a deployment."""

    layer_partition: Callable[[int, int], tuple[int, ...]]
    """(layers, stages) → layers of each stage."""
    kv_capacity_tokens: Callable[[Deployment], int]
    """Tokens that the KV cache holds; at most 0 when the weights leave no room."""
    share: MemoryShare
    """Its flag for the share of memory that it takes."""
    policy: Callable[[Deployment, int], Policy | StagePolicy]
    """(deployment, KV capacity in tokens) → the scheduler of one run."""
    prefill_budget: Callable[[Deployment], int]
    """Most prompt tokens of one launch."""
    decode_batch: Callable[[Deployment, int, int], Batch]
    """(deployment, requests, tokens they hold in all) → their decode step."""
    most_in_slot: Callable[[Deployment, int], int]
    """(deployment, KV capacity) → most requests that decode in one slot."""
    slots_are_flags: bool
    """Whether a slot cap and an async depth are flags of the engine."""
    absorbs: Callable[[Deployment, int, int], bool]
    """(deployment, prompt tokens, tokens in the KV cache) → whether they attend to the latent itself (MLA)."""
    last_worker_waits: Callable[[Deployment], bool]
    """Whether the last stage's GPU waits for its own worker's turn before the next launch."""
    decode_slots: Callable[[Deployment, Workload, int], tuple[int, int]]
    """(deployment, workload, KV capacity) → micro-batches in flight, requests in each, if the load spreads evenly."""
    first_read: tuple[int, ...]
    """The first version whose scheduler and memory rules are known; older ones are taken to follow them."""
    releases_per_minor: int = 10
    """Releases between two minor versions, about: SGLang counts 0.4.9, 0.4.10, 0.5.0, 0.5.1; vLLM 0.24, 0.25."""


def all_reduce_preference(deployment: Deployment) -> tuple[Implementation, ...]:
    """Returns the AllReduce implementations in the order in which the engine tries them.

    Left to itself it takes its own one-shot kernel where every GPU reaches every other over NVLink, and over PCIe only
    for two GPUs with peer access; NCCL otherwise. SGLang's and vLLM's rule alike (SGLang custom_all_reduce_utils.py,
    vLLM device_communicators/custom_all_reduce.py).
    """
    choice, plan = deployment.engine.allreduce, deployment.plan
    if choice == "auto":
        own = deployment.hardware.nvlink_joins(plan.tp) or (plan.tp == 2 and deployment.peer_access)
        choice = "custom" if own else "nccl"
    return ("nccl",) if choice == "nccl" else (choice, "nccl")


def box_of_group(deployment: Deployment) -> HardwareProfile:
    """Returns the box that a tensor-parallel group of a deployment sees: with the AllReduce it may use and no other.

    The range of other hosts' AllReduce is gone where every such curve was measured on the box itself.
    """
    box, usable = deployment.hardware, all_reduce_preference(deployment)
    own = [c for c in box.collectives if c.op == "all_reduce" and c.ranks == deployment.plan.tp]
    own = [curve for curve in own if curve.implementation in usable]
    others = [curve for curve in box.collectives if curve.op != "all_reduce"]
    spread = None if own and all(curve.own for curve in own) else box.all_reduce_range
    return box.model_copy(update={"collectives": (*own, *others), "all_reduce_range": spread})


def settle(
    model: ModelProfile,
    hardware: HardwareProfile,
    plan: ParallelPlan,
    settings: EngineSettings,
    engine: Engine,
    needed_tokens: int = 1,
) -> Deployment:
    """Returns the deployment with layers of each stage and the share of memory as the engine, or the person, sets them.

    `needed_tokens` of KV cache are what the engine's own share of memory has to leave, or a larger one is taken.

    Raises:
        UsageError, InfeasibleDeployment: see `Deployment`.
    """
    if settings.kv_cache_dtype != "auto":
        model = model.with_kv_cache(settings.kv_cache_dtype)
    stages = min(plan.pp, model.layers)
    layers = plan.layer_partition or engine.layer_partition(model.layers, stages)
    return engine.share.settled(
        Deployment(model, hardware, plan, settings, layers), engine.kv_capacity_tokens, needed_tokens
    )
