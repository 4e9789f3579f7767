"""What a search for a plan is asked, and how it judges one plan against another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.errors import UsageError
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.workload import Workload

RankBy = Literal["throughput", "latency", "cost"]
Percentile = Literal["mean", "p50", "p99"]
JOULES_PER_KWH = 3.6e6
SECONDS_PER_HOUR = 3600.0


class Figures(NamedTuple):
    """What a plan is judged by. Latencies [s] are at the percentile of the question."""

    output_tokens_per_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float


@dataclass(frozen=True)
class Objective:
    """Limits that a plan has to keep, and what the plans that keep them are ranked by."""

    rank_by: RankBy | None = None
    """Output tokens per second of the whole plan; E2E latency; or what a token costs: GPUs over tokens per second.

    None is throughput, or latency in an open loop that some plan carries, whose rate fixes tokens per second."""
    percentile: Percentile = "p99"
    """Of TTFT, TPOT and E2E over requests, for limits and for ranking by latency."""
    max_ttft_s: float | None = None
    max_tpot_s: float | None = None
    gpu_hour_price: Mapping[str, float] | None = None
    """By hardware name; None where only the number of GPUs counts."""

    def __post_init__(self) -> None:
        for flag, limit in (("--max-ttft", self.max_ttft_s), ("--max-tpot", self.max_tpot_s)):
            if limit is not None and not 0 < limit < math.inf:
                raise UsageError(flag, limit, 'a time above 0 s such as "50 ms"')
        for price in (self.gpu_hour_price or {}).values():
            if not 0 < price < math.inf:
                raise UsageError("--gpu-hour-price", price, "a price above 0")

    @property
    def limits(self) -> dict[str, float]:
        """Limits by name of the figure."""
        given = {"ttft_s": self.max_ttft_s, "tpot_s": self.max_tpot_s}
        return {name: limit for name, limit in given.items() if limit is not None}

    def violation(self, figures: Figures) -> float:
        """Returns the logarithm of how many times over its limit the worst figure is; 0 when all are kept."""
        over = [math.log(getattr(figures, name) / limit) for name, limit in self.limits.items()]
        return max(0.0, *over) if over else 0.0

    def price_of(self, hardware: str) -> float:
        """Returns the price of a GPU-hour, 1 where none is given."""
        return self.gpu_hour_price[hardware] if self.gpu_hour_price else 1.0

    def badness(self, figures: Figures, gpus: int, hardware: str) -> float:
        """Returns the logarithm of what is ranked by, the lower the better."""
        if self.rank_by == "latency":
            return math.log(figures.e2e_s)
        cost = math.log(gpus * self.price_of(hardware)) if self.rank_by == "cost" else 0.0
        return cost - math.log(figures.output_tokens_per_s)

    def key(self, figures: Figures, gpus: int, hardware: str) -> tuple[float, float, float]:
        """Returns what plans are sorted by: limits first, then the rank, then the shorter E2E latency."""
        by_rate = self.rank_by in {"throughput", None}
        exact = -figures.output_tokens_per_s if by_rate else self.badness(figures, gpus, hardware)
        return self.violation(figures), exact, figures.e2e_s


@dataclass(frozen=True)
class Job:
    """A batch job: how much there is to do, and what a GPU draws."""

    output_tokens: float | None = None
    requests: float | None = None
    gpu_watts: float | None = None
    """Power [W] of one GPU at work; None where it is not known."""

    def seconds(self, output_tokens_per_s: float, requests_per_s: float) -> float:
        """Returns the time that the whole job takes at these rates."""
        tokens = (self.output_tokens or 0.0) / output_tokens_per_s
        return max(tokens, (self.requests or 0.0) / requests_per_s)

    def kwh(self, seconds: float, gpus: int) -> float | None:
        """Returns the energy [kWh] of so many GPUs over a time, None where their power is not known."""
        return None if self.gpu_watts is None else seconds * gpus * self.gpu_watts / JOULES_PER_KWH


@dataclass(frozen=True)
class PlanQuestion:
    """For which model, on which boxes, under which load, with what held fixed."""

    model: ModelProfile
    boxes: tuple[HardwareProfile, ...]
    workload: Workload
    engines: tuple[EngineName, ...] = (EngineSettings().name,)
    gpus: int | None = None
    """Most GPUs of a plan; None for all of the box."""
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    """What is not searched of the split: the balancer."""
    settings: EngineSettings = field(default_factory=EngineSettings)
    """What is not searched of the settings, and the values of those held fixed."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values, by name of the field of `ParallelPlan` or `EngineSettings`, that every candidate has to have."""
    objective: Objective = field(default_factory=Objective)
    best_partition: bool = False
    """Whether every setting is tried with its own balanced layer split, not the front-runners' alone."""
    best_placement: bool = False
    """Whether every split is tried with its ranks group by group and across groups of the box, too."""
    seeds: int = 5
    """Runs of each of the best plans; the other front-runners are run once."""
    first_seed: int = 0

    def __post_init__(self) -> None:
        largest = max(box.gpus for box in self.boxes)
        names = " and ".join(f"{box.name} has {box.gpus}" for box in self.boxes)
        if self.gpus is not None and not 1 <= self.gpus <= largest:
            raise UsageError("--gpus", self.gpus, f"a whole number from 1 to {largest} ({names})")

    def gpus_of(self, box: HardwareProfile) -> int:
        """Returns the most GPUs that a plan may take on a box."""
        return min(self.gpus or box.gpus, box.gpus)
