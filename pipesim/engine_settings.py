"""Flags of the serving engines, under the engines' own names."""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from pipesim.errors import UsageError

DEFAULT_SMOOTH_FACTOR = 0.75
"""SGLang srt/environ.py."""
OWN_FLAGS = {
    "sglang": (
        "enable_mixed_chunk",
        "enable_dynamic_chunking",
        "prefill_decode_interval",
        "prefill_decode_interval_min_bs",
        "schedule_conservativeness",
        "language_only",
    ),
    "vllm": ("prefill_schedule_interval",),
}
"""Settings that one engine alone has."""

EngineName = Literal["sglang", "vllm", "rebatch"]
"""rebatch is no engine that exists: every stage batches whatever waits before it (engines/rebatch.py)."""
SERVERS: tuple[EngineName, ...] = ("sglang", "vllm")
"""The engines that exist."""
KvCacheDtype = Literal["auto", "bf16", "fp8"]
KV_CACHE_DTYPES: dict[str, KvCacheDtype] = {
    "auto": "auto",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "fp8_inc": "fp8",
}
"""What `--kv-cache-dtype` takes, in pipesim's words and in the engines'."""


def storage_of_kv_cache(given: str) -> KvCacheDtype:
    """Returns the storage that `--kv-cache-dtype` names. Raises UsageError for what no engine calls one."""
    if given not in KV_CACHE_DTYPES:
        raise UsageError("--kv-cache-dtype", given, f"one of {', '.join(KV_CACHE_DTYPES)}")
    return KV_CACHE_DTYPES[given]


AllReduceChoice = Literal["auto", "nccl", "custom", "pcie-oneshot"]


@dataclass(frozen=True)
class EngineSettings:
    """Flags of the serving engine, under the engine's own names; None stands for the engine's default."""

    name: EngineName = "sglang"
    cuda_graph: bool = True
    pp_max_micro_batch_size: int | None = None
    pp_async_batch_depth: int = 0
    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    mem_fraction_static: float | None = None
    peer_access: bool | None = None
    """None is as the box's driver has it."""
    allreduce: AllReduceChoice = "auto"
    kv_cache_dtype: KvCacheDtype = "auto"
    """auto is the model's own."""
    gpu_memory_utilization: float | None = None
    """vLLM's share of all memory for everything; SGLang's is `mem_fraction_static`."""
    async_scheduling: bool | None = None
    """vLLM's; None is the default of its `version`, see `Deployment.async_scheduling`."""
    cap_decodes_per_step: bool = False
    """vLLM's open proposal (PR 57433): at most ceil(max_num_seqs / pp) decodes in one step."""
    enable_mixed_chunk: bool = False
    """SGLang's: the decode requests of a slot run in one launch with its prompt tokens, not a turn later."""
    enable_dynamic_chunking: bool = False
    """SGLang's under PP: chunks of a long prompt shrink so that each takes about as long."""
    dynamic_chunking_smooth_factor: float = DEFAULT_SMOOTH_FACTOR
    """Share of the way from the set chunk size to the one of equal time (`SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR`)."""
    prefill_decode_interval: int = 0
    """SGLang's: turns of the scheduler after a prefill launch that launch none."""
    prefill_decode_interval_min_bs: int = 0
    """SGLang's: running requests of the slot from which `prefill_decode_interval` holds."""
    prefill_schedule_interval: int = 1
    """vLLM's: steps from one with prompt tokens to the next, while requests decode and none is left waiting."""
    schedule_conservativeness: float = 1.0
    """SGLang's: factor on the share of its output that a running request is reckoned to need still."""
    speculative_acceptance: tuple[float, ...] = ()
    """Probability that a draft token is accepted when those before it were, by position; empty without a draft."""
    version: str | None = None
    """Version of the engine that runs, if known."""
    language_only: bool = False
    """SGLang's: the vision tower is left out (`--language-only`)."""

    def __post_init__(self) -> None:
        limits = {
            "--pp-max-micro-batch-size": (self.pp_max_micro_batch_size, 1, 1_000_000),
            "--pp-async-batch-depth": (self.pp_async_batch_depth, 0, 64),
            "--max-running-requests": (self.max_running_requests, 1, 1_000_000),
            "--chunked-prefill-size": (self.chunked_prefill_size, 16, 10_000_000),
            "--prefill-decode-interval": (self.prefill_decode_interval, 0, 1_000_000),
            "--prefill-decode-interval-min-bs": (self.prefill_decode_interval_min_bs, 0, 1_000_000),
            "--prefill-schedule-interval": (self.prefill_schedule_interval, 1, 1_000_000),
        }
        for flag, (value, low, high) in limits.items():
            if value is not None and not low <= value <= high:
                raise UsageError(flag, value, f"a whole number from {low} to {high:,}")
        if self.mem_fraction_static is not None and not 0.0 < self.mem_fraction_static < 1.0:
            raise UsageError("--mem-fraction-static", self.mem_fraction_static, "a number between 0 and 1")
        if not all(0.0 <= acceptance <= 1.0 for acceptance in self.speculative_acceptance):
            raise UsageError("--speculative-acceptance", self.speculative_acceptance, "numbers from 0 to 1")
        if self.version is not None and not re.match(r"v?0(\.\d+)+", self.version):
            wanted = "a release such as 0.5.23: defaults of memory, budgets and scheduling are looked up by it"
            raise UsageError("--engine-version", self.version, wanted)
        if not 0.0 <= self.schedule_conservativeness <= 1000.0:
            raise UsageError("--schedule-conservativeness", self.schedule_conservativeness, "a number from 0 to 1000")
        self._check_chunking()
        if self.gpu_memory_utilization is not None and not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise UsageError("--gpu-memory-utilization", self.gpu_memory_utilization, "a number above 0 and at most 1")

    def _check_chunking(self) -> None:
        for engine, names in OWN_FLAGS.items():
            for name in names if self.name != engine else ():
                if getattr(self, name) != getattr(EngineSettings, name):
                    flag = "--" + name.replace("_", "-")
                    raise UsageError(f"{flag} with --engine", self.name, f"{engine}, the one engine with that flag,")
        if self.enable_mixed_chunk and self.draft_tokens:
            raise UsageError("--enable-mixed-chunk", True, "no such flag beside a draft, as the engine does,")
        smooth = self.dynamic_chunking_smooth_factor
        if not 0.0 <= smooth <= 1.0:
            raise UsageError("--dynamic-chunking-smooth-factor", smooth, "a number from 0 to 1")
        if smooth != DEFAULT_SMOOTH_FACTOR and not self.enable_dynamic_chunking:
            raise UsageError("--dynamic-chunking-smooth-factor", smooth, "--enable-dynamic-chunking beside it")

    @property
    def stated(self) -> dict[str, Any]:
        """What is set beyond the engine's defaults, by field."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "name"}
        return {name: value for name, value in given.items() if value != getattr(EngineSettings, name)}

    @property
    def kernels(self) -> str:
        """The engine whose kernels run: a scheduler that does not exist is taken to drive SGLang's."""
        return "sglang" if self.name == "rebatch" else self.name

    def version_before(self, version: tuple[int, ...]) -> bool:
        """Returns whether the engine is known to be older than a version."""
        parts = re.findall(r"\d+", self.version or "")[: len(version)]
        return bool(parts) and tuple(map(int, parts)) < version

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
