"""Which model runs on which box, split how, under which settings: shape is checked here, bytes in the engine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipesim.errors import InfeasibleDeployment, UsageError
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import GqaAttention, ModelProfile

LARGEST_DEGREE = 4096
FP8_BLOCK = 128
"""Rows and columns of weights that share one scale (`weight_block_size` of DeepSeek-V3's FP8)."""
DEFAULT_SMOOTH_FACTOR = 0.75
"""SGLang srt/environ.py."""
ASYNC_BY_DEFAULT, ASYNC_UNDER_PP = (0, 14), (0, 22)
"""First versions of vLLM that schedule ahead by default: without PP, and with it (PR 42187, merged 2026-05)."""
MIXED_CHUNK_UNDER_PP = (0, 5, 23)
"""First version of SGLang known to allow it; 0.5.10.post1 refuses (srt/server_args.py `check_server_args`)."""

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


Balancer = Literal["round-robin", "least-loaded"]
"""How requests are dealt to replicas: in turn, or to the one with the fewest in it."""
AllReduceChoice = Literal["auto", "nccl", "custom", "pcie-oneshot"]


@dataclass(frozen=True)
class ParallelPlan:
    """How a model is split over GPUs: degrees of every kind, and the layers of each stage if a person chose them.

    Raises:
        UsageError: when degrees clash that no model and no box could reconcile.
    """

    tp: int = 1
    pp: int = 1
    layer_partition: tuple[int, ...] | None = None
    ep: int = 1
    """Groups among which a stage's ranks share out whole experts (SGLang `--ep-size`); within one, columns are split.

    vLLM's `--enable-expert-parallel` is `ep` = `tp`.
    """
    dp_attention: bool = False
    """Each rank of a stage does the attention of its own requests (SGLang `--enable-dp-attention`, dp = tp)."""
    dcp: int = 1
    """Ranks over which decode shares out the KV cache of a request (`--decode-context-parallel-size`)."""
    replicas: int = 1
    """Equal copies of the whole deployment behind a balancer."""
    balancer: Balancer = "round-robin"
    placement: tuple[int, ...] | None = None
    """The GPU of each rank, in the order of ranks (CUDA_VISIBLE_DEVICES); None for rank r on GPU r."""

    def __post_init__(self) -> None:
        degrees = {"--tp": self.tp, "--pp": self.pp, "--ep": self.ep, "--dcp": self.dcp, "--replicas": self.replicas}
        for flag, value in degrees.items():
            if not 1 <= value <= LARGEST_DEGREE:
                raise UsageError(flag, value, f"a whole number from 1 to {LARGEST_DEGREE}")
        if self.placement is not None and len(set(self.placement)) < max(len(self.placement), self.gpus):
            given = ",".join(map(str, self.placement))
            raise UsageError("--placement", given, f"{self.gpus} different GPUs, one for each rank")
        if self.tp % self.ep:
            raise UsageError(
                f"--ep with --tp {self.tp}",
                self.ep,
                f"a number that divides {self.tp} (experts are shared out within a stage's TP group; the engine stops "
                "at start-up otherwise)",
            )
        if self.tp % self.dcp:
            raise UsageError(
                f"--dcp with --tp {self.tp}",
                self.dcp,
                f"a number that divides {self.tp} (the KV cache is shared out within a stage's TP group; the engine "
                "stops at start-up otherwise)",
            )
        if self.dp_attention and self.tp == 1:
            raise UsageError(
                "--dp-attention with --tp 1",
                "one rank",
                "--tp 2 or more (attention ranks are those of a TP group; with one SGLang switches the flag off)",
            )
        if self.dp_attention and self.dcp > 1:
            raise UsageError(
                "--dcp with --dp-attention",
                self.dcp,
                "1 (a rank attends alone, with nobody to share a request's KV cache with)",
            )

    @property
    def gpus(self) -> int:
        """GPUs that the plan takes, all replicas together."""
        return self.replicas * self.gpus_per_replica

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one server."""
        return self.tp * self.pp

    @property
    def moe_tp(self) -> int:
        """Ranks over which the columns of one expert are split."""
        return self.tp // self.ep

    @property
    def attention_tp(self) -> int:
        """Ranks over which the heads of one request are split."""
        return 1 if self.dp_attention else self.tp

    @property
    def attention_dp(self) -> int:
        """Ranks over which the requests of a batch are split for attention."""
        return self.tp if self.dp_attention else 1

    @property
    def kv_shards(self) -> int:
        """Ranks of a stage that hold different KV tokens: those of other requests, or others of the same."""
        return self.attention_dp * self.dcp

    @property
    def further_kinds(self) -> dict[str, int | bool | str | list[int]]:
        """What is set beyond TP and PP, by field."""
        names = ("ep", "dp_attention", "dcp", "replicas") + ("balancer",) * (self.replicas > 1)
        kinds = {name: getattr(self, name) for name in names if getattr(self, name) not in {1, False}}
        return kinds | ({"placement": list(self.placement)} if self.placement else {})

    def stage_gpus(self, stage: int, replica: int = 0) -> Sequence[int]:
        """Returns the GPUs of one stage: stage·tp + tp_rank as SGLang and vLLM number them, replica behind replica.

        A placement says which GPU each of these ranks is on.
        """
        first = replica * self.gpus_per_replica + stage * self.tp
        return (self.placement or range(self.gpus))[first : first + self.tp]

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"] * (self.tp > 1 or self.pp == 1) + [f"PP{self.pp}"] * (self.pp > 1)
        kinds = ["×".join(parts)] + [f"EP{self.ep}"] * (self.ep > 1) + ["DP attention"] * self.dp_attention
        text = " ".join(kinds + [f"DCP{self.dcp}"] * (self.dcp > 1))
        return f"{self.replicas} replicas of {text}" if self.replicas > 1 else text


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
        }
        for flag, (value, low, high) in limits.items():
            if value is not None and not low <= value <= high:
                raise UsageError(flag, value, f"a whole number from {low} to {high:,}")
        if self.mem_fraction_static is not None and not 0.0 < self.mem_fraction_static < 1.0:
            raise UsageError("--mem-fraction-static", self.mem_fraction_static, "a number between 0 and 1")
        if not all(0.0 <= acceptance <= 1.0 for acceptance in self.speculative_acceptance):
            raise UsageError("--speculative-acceptance", self.speculative_acceptance, "numbers from 0 to 1")
        if self.version is not None and not re.match(r"v?\d+(\.\d+)+", self.version):
            wanted = "a release such as 0.5.23: defaults of memory, budgets and scheduling are looked up by it"
            raise UsageError("--engine-version", self.version, wanted)
        self._check_chunking()
        if self.gpu_memory_utilization is not None and not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise UsageError("--gpu-memory-utilization", self.gpu_memory_utilization, "a number above 0 and at most 1")

    def _check_chunking(self) -> None:
        for flag, given in (
            ("--enable-mixed-chunk", self.enable_mixed_chunk),
            ("--enable-dynamic-chunking", self.enable_dynamic_chunking),
        ):
            if given and self.name != "sglang":
                raise UsageError(f"{flag} with --engine", self.name, "sglang (the others mix in any case, or cannot)")
        if self.language_only and self.name == "vllm":
            raise UsageError("--language-only with --engine", self.name, "sglang, which has such a flag")
        if self.enable_mixed_chunk and self.draft_tokens:
            raise UsageError("--enable-mixed-chunk", True, "no such flag beside a draft, as the engine does,")
        smooth = self.dynamic_chunking_smooth_factor
        if not 0.0 <= smooth <= 1.0:
            raise UsageError("--dynamic-chunking-smooth-factor", smooth, "a number from 0 to 1")
        if smooth != DEFAULT_SMOOTH_FACTOR and not self.enable_dynamic_chunking:
            raise UsageError("--dynamic-chunking-smooth-factor", smooth, "--enable-dynamic-chunking beside it")

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
    memory_share: float | None = None
    """Share of a GPU's memory that the engine runs with (see `engines.share`); filled in as well."""
    memory_note: str = ""
    """Why that is not the engine's own default, where nobody stated it."""

    def __post_init__(self) -> None:
        self._check_division()
        self._check_partition()
        self._check_engine()
        if self.plan.gpus > self.hardware.gpus:
            raise InfeasibleDeployment(
                [
                    f"{self.plan} takes {self.plan.gpus} GPUs; {self.hardware.name} has {self.hardware.gpus}. "
                    f"{'Replicas × ' * (self.plan.replicas > 1)}TP × PP of at most {self.hardware.gpus} would fit."
                ]
            )
        if self.plan.placement and not all(0 <= gpu < self.hardware.gpus for gpu in self.plan.placement):
            given = ",".join(map(str, self.plan.placement))
            raise UsageError(
                "--placement", given, f"GPUs from 0 to {self.hardware.gpus - 1}, which {self.hardware.name} has"
            )

    @property
    def peer_access(self) -> bool:
        """Whether GPUs reach each other's memory: as asked for, else as the box's driver has it."""
        asked = self.engine.peer_access
        return self.hardware.peer_links.peer_access if asked is None else asked

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a stage on one node: its TP degree over the nodes that the most scattered stage lies on."""
        if self.hardware.nodes == 1:
            return self.plan.tp
        stages = (self.plan.stage_gpus(stage, r) for r in range(self.plan.replicas) for stage in range(self.plan.pp))
        nodes = max(len({self.hardware.node_of(gpu) for gpu in gpus}) for gpus in stages)
        return -(-self.plan.tp // nodes)

    def _check_division(self) -> None:
        tp, model, plan = self.plan.tp, self.model, self.plan
        moe = model.moe
        for what, size, degree in (
            ("attention heads", model.attention.heads, plan.attention_tp),
            ("columns of a routed expert", moe.expert_intermediate if moe else 0, plan.moe_tp),
            ("columns of the shared experts", moe.shared_columns if moe else 0, tp),
            ("columns of the dense MLP", model.dense_columns, tp),
        ):
            if size % degree:
                raise UsageError("--tp", tp, f"a number that divides the {size} {what} of {model.name}")
        self._check_kv_heads()
        self._check_experts()
        self._check_blocks()
        if self.plan.pp > model.layers:
            raise UsageError(
                "--pp", self.plan.pp, f"at most one stage for each of the {model.layers} layers of {model.name}"
            )

    def _check_kv_heads(self) -> None:
        attention, ranks = self.model.attention, self.plan.attention_tp
        if isinstance(attention, GqaAttention):
            if attention.kv_heads % ranks and ranks % attention.kv_heads:
                wanted = f"a number that divides the {attention.kv_heads} KV heads of {self.model.name}, or a multiple"
                raise UsageError("--tp", self.plan.tp, wanted)
            if self.plan.dcp > max(1, ranks // attention.kv_heads):
                wanted = (
                    f"at most {max(1, ranks // attention.kv_heads)} (ranks that hold the same of the "
                    f"{attention.kv_heads} KV heads of {self.model.name} can share out its tokens, others cannot)"
                )
                raise UsageError(f"--dcp with --tp {self.plan.tp}", self.plan.dcp, wanted)

    def _check_experts(self) -> None:
        model, ep = self.model, self.plan.ep
        if model.moe is None:
            if ep > 1:
                raise UsageError("--ep", ep, f"1 ({model.name} has no experts to share out)")
        elif model.moe.experts % ep:
            raise UsageError(
                "--ep",
                ep,
                f"a number that divides the {model.moe.experts} experts of {model.name} (every rank holds equally "
                "many; the engine stops at start-up otherwise)",
            )

    def _check_blocks(self) -> None:
        """Refuses ranks that would cut a block of weights with one scale (SGLang layers/quantization/fp8.py).

        vLLM's rule alike (`validate_fp8_block_shape`). From 0.33 on it splits the scales of experts for kernels that
        were never measured: refused as well.
        """
        model, plan = self.model, self.plan
        moe, attention = model.moe, model.attention
        value_dim = attention.head_dim if isinstance(attention, GqaAttention) else attention.v_head_dim
        for kind, columns, ranks in (
            ("routed_experts", moe.expert_intermediate if moe else 0, plan.moe_tp),
            ("shared_expert", moe.shared_columns if moe else 0, plan.tp),
            ("dense_mlp", model.dense_columns, plan.tp),
            ("attention", attention.heads * value_dim, plan.attention_tp),
        ):
            if getattr(model.precision, kind) == "fp8-block" and (columns // ranks) % FP8_BLOCK:
                raise UsageError(
                    "--tp" if kind != "routed_experts" or plan.ep == 1 else f"--tp with --ep {plan.ep}",
                    plan.tp,
                    f"a split of the {columns:,} columns of {model.name}'s {kind} into whole FP8 blocks of {FP8_BLOCK} "
                    f"({columns // ranks} is not divisible by weight quantization block_n = {FP8_BLOCK}: the engine "
                    f"stops at start-up){'; --ep shares out whole experts' * (kind == 'routed_experts')}",
                )

    def _check_partition(self) -> None:
        stages, model = self.layers, self.model
        if len(stages) != self.plan.pp or sum(stages) != model.layers or min(stages, default=0) < 1:
            raise UsageError(
                "--layer-partition",
                ",".join(map(str, stages)),
                f"{self.plan.pp} positive numbers that add up to the {model.layers} layers of {model.name}",
            )

    def _check_engine(self) -> None:
        """Refuses flags that this engine does not have, or that cancel out."""
        plan, engine = self.plan, self.engine
        if engine.name == "vllm" and plan.ep not in {1, plan.tp}:
            wanted = f"1 or {plan.tp} (vLLM's --enable-expert-parallel shares experts out over all ranks or none)"
            raise UsageError(f"--ep with --tp {plan.tp} and --engine vllm", plan.ep, wanted)
        if engine.name == "vllm" and plan.dp_attention:
            wanted = "sglang (vLLM has no such flag, its --data-parallel-size is another layout)"
            raise UsageError("--dp-attention with --engine", engine.name, wanted)
        if engine.enable_mixed_chunk and plan.pp > 1 and engine.version_before(MIXED_CHUNK_UNDER_PP):
            wanted = f"SGLang {'.'.join(map(str, MIXED_CHUNK_UNDER_PP))} or later (older ones stop at start-up)"
            raise UsageError(f"--enable-mixed-chunk with --pp {plan.pp} and --engine-version", engine.version, wanted)
        cap, limit = engine.pp_max_micro_batch_size, engine.max_running_requests
        if engine.name == "sglang" and cap and limit and cap * plan.attention_dp > limit:
            raise UsageError(
                f"--pp-max-micro-batch-size with --max-running-requests {limit}",
                cap,
                f"at most {limit // plan.attention_dp} (SGLang admits no more requests than that in all slots "
                "together, so the cap could never be reached)",
            )

    @property
    def async_scheduling(self) -> bool:
        """Whether vLLM's scheduler runs ahead of results: as asked, else as its version does by default."""
        if self.engine.async_scheduling is not None:
            return self.engine.async_scheduling
        return not self.engine.version_before(ASYNC_UNDER_PP if self.plan.pp > 1 else ASYNC_BY_DEFAULT)

    def first_layer(self, stage: int) -> int:
        """Returns the index of the first layer of a stage."""
        return sum(self.layers[:stage])
