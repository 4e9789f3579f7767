"""Flags of the serving engines, under the engines' own names."""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from pipesim.errors import UsageError
from pipesim.flags import check_ranges, flag, options_of

DEFAULT_SMOOTH_FACTOR = 0.75
"""SGLang srt/environ.py."""
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

    name: EngineName = flag("sglang", "Serving engine.", "--engine")
    pp_max_micro_batch_size: int | None = flag(None, "Most requests in one micro-batch slot.", within=(1, 1_000_000))
    pp_async_batch_depth: int = flag(0, "Slots beyond one per stage.", within=(0, 64))
    max_running_requests: int | None = flag(
        None, "Most requests in the server.", "--max-running-requests", "--max-num-seqs", within=(1, 1_000_000)
    )
    chunked_prefill_size: int | None = flag(
        None,
        "Prompt tokens of one launch.",
        "--chunked-prefill-size",
        "--max-num-batched-tokens",
        within=(16, 10_000_000),
    )
    context_length: int | None = flag(
        None,
        "Most tokens of a request, output included.",
        "--context-length",
        "--max-model-len",
        within=(1, 10_000_000),
    )
    """None for the model's positions."""
    mem_fraction_static: float | None = flag(
        None, "SGLang's share of free memory for weights and KV cache (default: SGLang's own where that starts)."
    )
    gpu_memory_utilization: float | None = flag(None, "vLLM's share of all GPU memory (default: its own).")
    """Of all memory for everything; SGLang's is `mem_fraction_static`."""
    async_scheduling: bool | None = flag(
        None, "vLLM's scheduler runs ahead (by version).", "--async-scheduling/--no-async-scheduling"
    )
    """None is the default of vLLM's `version`, see `Deployment.async_scheduling`."""
    cap_decodes_per_step: bool = flag(False, "vLLM's open proposal: even groups of --max-num-seqs / pp.")
    """PR 57433: at most ceil(max_num_seqs / pp) decodes in one step."""
    version: str | None = flag(None, "Version of the engine that runs.", "--engine-version")
    language_only: bool = flag(
        False, "SGLang: without the vision tower, and its cut of the memory share.", engine="sglang"
    )
    enable_mixed_chunk: bool = flag(
        False, "SGLang: a slot's decodes run in one launch with its prompts.", engine="sglang"
    )
    """Not a turn later."""
    enable_dynamic_chunking: bool = flag(
        False, "SGLang: chunks of a long prompt shrink to equal times.", engine="sglang"
    )
    """Under PP."""
    dynamic_chunking_smooth_factor: float = flag(
        DEFAULT_SMOOTH_FACTOR, "Share of the way to the chunk of equal time.", within=(0.0, 1.0)
    )
    """From the set chunk size (`SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR`)."""
    prefill_decode_interval: int = flag(
        0, "SGLang: turns that decode between two prefill launches.", within=(0, 1_000_000), engine="sglang"
    )
    prefill_decode_interval_min_bs: int = flag(
        0, "SGLang: running requests from which that holds.", within=(0, 1_000_000), engine="sglang"
    )
    """Of the slot."""
    prefill_schedule_interval: int = flag(
        1, "vLLM: prompt tokens in every n-th step only.", within=(1, 1_000_000), engine="vllm"
    )
    """While requests decode and none is left waiting."""
    schedule_conservativeness: float = flag(
        1.0, "SGLang: factor on the output expected at admission.", within=(0.0, 1000.0), engine="sglang"
    )
    """On the share of its output that a running request is reckoned to need still."""
    speculative_acceptance: tuple[float, ...] = flag(
        (), 'Acceptance of each draft token, such as "0.7,0.6,0.5".', example="0.7,0.6,0.5"
    )
    """Probability that a draft token is accepted when those before it were, by position; empty without a draft."""
    cuda_graph: bool = flag(True, "Captured decode, or kernels launched eagerly.", "--cuda-graph/--no-cuda-graph")
    kv_cache_dtype: KvCacheDtype = flag(
        "auto", "Storage of the KV cache.", kind=str, read=storage_of_kv_cache, metavar="<auto|bf16|fp8>"
    )
    """auto is the model's own."""
    peer_access: bool | None = flag(
        None, "Peer access between GPUs, or staging through the host (default: as the box).", "--p2p/--no-p2p"
    )
    """None is as the box's driver has it."""
    allreduce: AllReduceChoice = flag("auto", "AllReduce implementation; auto is the engine's own rule.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.mem_fraction_static is not None and not 0.0 < self.mem_fraction_static < 1.0:
            raise UsageError("--mem-fraction-static", self.mem_fraction_static, "a number between 0 and 1")
        if not all(0.0 <= acceptance <= 1.0 for acceptance in self.speculative_acceptance):
            raise UsageError("--speculative-acceptance", self.speculative_acceptance, "numbers from 0 to 1")
        if self.version is not None and not re.match(r"v?0(\.\d+)+", self.version):
            wanted = "a release such as 0.5.23: defaults of memory, budgets and scheduling are looked up by it"
            raise UsageError("--engine-version", self.version, wanted)
        self._check_chunking()
        if self.gpu_memory_utilization is not None and not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise UsageError("--gpu-memory-utilization", self.gpu_memory_utilization, "a number above 0 and at most 1")

    def _check_chunking(self) -> None:
        for option in options_of(type(self)):
            if option.said.engine not in {"", self.name} and getattr(self, option.field) != option.unset:
                wanted = f"{option.said.engine}, the one engine with that flag,"
                raise UsageError(f"{option.flag} with --engine", self.name, wanted)
        if self.enable_mixed_chunk and self.draft_tokens:
            raise UsageError("--enable-mixed-chunk", True, "no such flag beside a draft, as the engine does,")
        smooth = self.dynamic_chunking_smooth_factor
        if smooth != DEFAULT_SMOOTH_FACTOR and not self.enable_dynamic_chunking:
            raise UsageError("--dynamic-chunking-smooth-factor", smooth, "--enable-dynamic-chunking beside it")

    @property
    def stated(self) -> dict[str, Any]:
        """What is set beyond the engine's defaults, by field."""
        given = {item: getattr(self, item.name) for item in fields(self) if item.name != "name"}
        return {item.name: value for item, value in given.items() if value != item.default}

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
