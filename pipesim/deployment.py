"""Which model runs on which box, split how, under which settings: shape is checked here, bytes in the engine."""

from dataclasses import dataclass, field
from typing import Literal

from pipesim.errors import InfeasibleDeployment, UsageError
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile

LARGEST_DEGREE = 4096

EngineName = Literal["sglang", "vllm"]
KvCacheDtype = Literal["auto", "bf16", "fp8"]
AllReduceChoice = Literal["auto", "nccl", "custom", "pcie-oneshot"]


@dataclass(frozen=True)
class ParallelPlan:
    """Tensor-parallel and pipeline-parallel degree, and the layers of each stage if a person chose them."""

    tp: int = 1
    pp: int = 1
    layer_partition: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for flag, value in (("--tp", self.tp), ("--pp", self.pp)):
            if not 1 <= value <= LARGEST_DEGREE:
                raise UsageError(flag, value, f"a whole number from 1 to {LARGEST_DEGREE}")

    @property
    def gpus(self) -> int:
        """GPUs that the plan takes."""
        return self.tp * self.pp

    def stage_gpus(self, stage: int) -> range:
        """Returns the GPUs of one stage: rank = stage·tp + tp_rank (SGLang and vLLM number them so)."""
        return range(stage * self.tp, (stage + 1) * self.tp)

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"] * (self.tp > 1 or self.pp == 1) + [f"PP{self.pp}"] * (self.pp > 1)
        return "×".join(parts)


@dataclass(frozen=True)
class EngineSettings:
    """Flags of the serving engine, under the engine's own names; None stands for the engine's default."""

    name: EngineName = "sglang"
    cuda_graph: bool = True
    pp_max_micro_batch_size: int | None = None
    pp_async_batch_depth: int = 0
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    mem_fraction_static: float | None = None
    peer_access: bool = True
    allreduce: AllReduceChoice = "auto"
    kv_cache_dtype: KvCacheDtype = "auto"
    """auto is the model's own."""
    gpu_memory_utilization: float | None = None
    """vLLM's share of all memory for everything; SGLang's is `mem_fraction_static`."""
    async_scheduling: bool = True
    """vLLM's."""
    speculative_acceptance: tuple[float, ...] = ()
    """Probability that a draft token is accepted when those before it were, by position; empty without a draft."""
    version: str | None = None
    """Version of the engine that runs, if known."""

    def __post_init__(self) -> None:
        limits = {
            "--pp-max-micro-batch-size": (self.pp_max_micro_batch_size, 1, 1_000_000),
            "--pp-async-batch-depth": (self.pp_async_batch_depth, 0, 64),
            "--max-running-requests": (self.max_running_requests, 1, 1_000_000),
            "--chunked-prefill-size": (self.chunked_prefill_size, 16, 10_000_000),
        }
        for flag, (value, low, high) in limits.items():
            if value is not None and not low <= value <= high:
                raise UsageError(flag, value, f"a whole number from {low} to {high:,}")
        if self.mem_fraction_static is not None and not 0.0 < self.mem_fraction_static < 1.0:
            raise UsageError("--mem-fraction-static", self.mem_fraction_static, "a number between 0 and 1")
        if not all(0.0 <= acceptance <= 1.0 for acceptance in self.speculative_acceptance):
            raise UsageError("--speculative-acceptance", self.speculative_acceptance, "numbers from 0 to 1")
        if self.gpu_memory_utilization is not None and not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise UsageError("--gpu-memory-utilization", self.gpu_memory_utilization, "a number above 0 and at most 1")

    @property
    def draft_tokens(self) -> int:
        """Draft tokens of one round; 0 without speculation."""
        return len(self.speculative_acceptance)

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens a request gains per decode step: the model's own, and the draft's up to the first refusal."""
        gained, reached = 1.0, 1.0
        for acceptance in self.speculative_acceptance:
            reached *= acceptance
            gained += reached
        return gained


@dataclass(frozen=True)
class Deployment:
    """A model on a box under a plan and engine settings, with the layers of every stage settled.

    Raises:
        UsageError: when the plan fits no box: a degree that does not divide the model, more stages than layers,
            a partition that does not add up.
        InfeasibleDeployment: when it would fit a larger box.
    """

    model: ModelProfile
    hardware: HardwareProfile
    plan: ParallelPlan
    engine: EngineSettings
    layers: tuple[int, ...] = field(default=())
    """Layers of each stage; filled in by `engines.deploy`."""

    def __post_init__(self) -> None:
        self._check_division()
        self._check_partition()
        if self.plan.gpus > self.hardware.gpus:
            raise InfeasibleDeployment(
                [
                    f"{self.plan} takes {self.plan.gpus} GPUs; {self.hardware.name} has {self.hardware.gpus}. "
                    f"TP × PP of at most {self.hardware.gpus} would fit."
                ]
            )

    def _check_division(self) -> None:
        tp, model = self.plan.tp, self.model
        for what, size in (
            ("attention heads", model.attention.heads),
            ("columns of a routed expert", model.moe.expert_intermediate),
            ("columns of the dense MLP", model.dense_intermediate),
        ):
            if size % tp:
                raise UsageError("--tp", tp, f"a number that divides the {size} {what} of {model.name}")
        if self.plan.pp > model.layers:
            raise UsageError(
                "--pp", self.plan.pp, f"at most one stage for each of the {model.layers} layers of {model.name}"
            )

    def _check_partition(self) -> None:
        stages, model = self.layers, self.model
        if len(stages) != self.plan.pp or sum(stages) != model.layers or min(stages, default=0) < 1:
            raise UsageError(
                "--layer-partition",
                ",".join(map(str, stages)),
                f"{self.plan.pp} positive numbers that add up to the {model.layers} layers of {model.name}",
            )

    def first_layer(self, stage: int) -> int:
        """Returns the index of the first layer of a stage."""
        return sum(self.layers[:stage])

    def dense_layers(self, stage: int) -> int:
        """Returns how many layers of a stage have no routed experts."""
        first = self.first_layer(stage)
        return max(0, min(self.model.moe.dense_layers_first, first + self.layers[stage]) - first)
