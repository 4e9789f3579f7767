"""Measured runs as files: what was run, what was measured, what the source does not say and was assumed."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

from pydantic import Field, create_model, model_validator

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.flags import options_of
from pipesim.profiles.base import Frozen
from pipesim.units import Seconds

Role = Literal["validation", "calibration", "reported"]
"""Judged; used to fit a constant and therefore never judged as evidence; or only shown: its conditions unknown or, as
its note says, a known miss."""

KV_CAPACITY = "kv_capacity_tokens"
METRICS = ("output_tokens_per_s", "request_throughput_per_s", "ttft_s", "tpot_s", "itl_s", "e2e_s", KV_CAPACITY)
"""What can be compared; of a latency the mean. The last is what the KV caches of one server hold, all ranks together.
"""


ENGINE_FLAGS: dict[EngineName, tuple[str, ...]] = {
    "sglang": ("cuda_graph", "max_running_requests", "chunked_prefill_size", "mem_fraction_static", "kv_cache_dtype"),
    "vllm": (
        "cuda_graph",
        "max_running_requests",
        "chunked_prefill_size",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "async_scheduling",
    ),
}
"""Fields of `RunEngine` that change what an engine does on one GPU or many."""
PIPELINE_FLAGS: dict[EngineName, tuple[str, ...]] = {
    "sglang": ("pp_max_micro_batch_size", "pp_async_batch_depth"),
    "vllm": (),
}
"""Those that matter besides where there are several stages."""


def table_of(owner: Any) -> Any:
    """Returns the table of a file that sets the fields of a dataclass: their types, ranges and defaults.

    It holds what a file says; the dataclass itself refuses what clashes, run by run, when it is made of a table.
    """
    hints, default = get_type_hints(owner), {item.name: item.default for item in fields(owner)}
    least = {option.field: option.said.within[0] for option in options_of(owner) if option.said.within}
    keys: Any = {name: (hints[name], Field(default=default[name], ge=least.get(name))) for name in default}
    return create_model(f"Run{owner.__name__}", __base__=Frozen, **keys)


if TYPE_CHECKING:
    from pipesim.deployment import ParallelPlan as RunPlan
    from pipesim.engine_settings import EngineSettings as RunEngine
else:
    RunPlan, RunEngine = table_of(ParallelPlan), table_of(EngineSettings)


class RunWorkload(Frozen):
    """The load of a run."""

    concurrency: int = Field(ge=1)
    num_prompts: int | None = None
    """Requests in all; left out, `waves` times the users."""
    waves: int = Field(default=4, ge=1)
    input_len: int
    output_len: int
    random_range_ratio: float = 0.0
    context_len: int = 0
    spacing: Seconds | None = None
    """Mean gap between the users' first requests [s]; see `Workload.spacing_s`."""
    request_rate: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    prefix_cache_hit_rate: float = 0.0
    warm_up: int = 0
    steady: bool = False
    ignore_eos: bool = True
    log_spread: float = 0.0


class MeasuredRun(Frozen):
    """One run of a source."""

    id: str
    role: Role
    source: str
    model: str
    hardware: str
    plan: RunPlan
    engine: RunEngine
    workload: RunWorkload
    assumed: tuple[str, ...] = ()
    """Keys of this run that the source does not state."""
    measured: dict[str, float]
    tolerance: dict[str, float] = Field(default_factory=dict)
    reported: tuple[str, ...] = ()
    """Metrics of `measured` that are only shown, whatever the run's role: they need no tolerance and cannot fail."""
    note: str = ""

    def role_of(self, metric: str) -> Role:
        """Returns the role of one metric."""
        return "reported" if metric in self.reported else self.role

    @property
    def timed(self) -> dict[str, float]:
        """What was measured that hangs on time: rates and latencies."""
        return {name: value for name, value in self.measured.items() if name != KV_CAPACITY}

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        if not self.measured:
            raise ValueError(f"measured with nothing in it; one of {', '.join(METRICS)} is wanted")
        for name, value in self.measured.items():
            if name not in METRICS:
                raise ValueError(f"measured.{name} is no metric; one of {', '.join(METRICS)} is wanted")
            if not 0 < value < math.inf:
                raise ValueError(f"measured.{name} is {value}; a finite number above 0 is wanted")
        for name, value in self.tolerance.items():
            if name not in METRICS:
                raise ValueError(f"tolerance.{name} is of no metric; one of {', '.join(METRICS)} is wanted")
            if not 0 < value <= 1:
                raise ValueError(f"tolerance.{name} is {value}; a number above 0 and at most 1 is wanted")
        for name in self.measured:
            if self.role_of(name) != "reported" and name not in self.tolerance:
                raise ValueError(f"tolerance.{name} is nothing; the tolerance of measured.{name} is wanted")
        return self


class Runs(Frozen):
    """A file of measured runs."""

    schema_version: Literal[1]
    run: tuple[MeasuredRun, ...] = Field(min_length=1)
    assumption: str = ""
    """What was assumed for the whole source, in words."""

    @model_validator(mode="before")
    @classmethod
    def _spread_common(cls, document: Any) -> Any:
        """Merges the file's `common` table under every run: what holds for the whole source is written once."""
        if not isinstance(document, dict) or not isinstance(document.get("run"), list):
            return document
        document = dict(document)
        common = document.pop("common", {})
        if not isinstance(common, dict):
            raise ValueError(f"common is {common!r}; a table is wanted")
        document["run"] = [_merged(common, run) if isinstance(run, dict) else run for run in document["run"]]
        return document

    @model_validator(mode="after")
    def _check_unique(self) -> Self:
        names = [run.id for run in self.run]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f'run.id "{name}" stands {names.count(name)} times; each id once is wanted')
        return self


def _merged(common: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    merged = dict(common)
    for key, value in run.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged
