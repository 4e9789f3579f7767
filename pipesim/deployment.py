"""Which model runs on which box, split how, under which settings: shape is checked here, bytes in the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipesim.engine_settings import EngineSettings
from pipesim.errors import InfeasibleDeployment, UsageError
from pipesim.flags import check_ranges, flag
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import GqaAttention, ModelProfile

DEGREES = 1, 4096
"""Least and largest degree of a kind of parallelism."""
FP8_BLOCK = 128
"""Rows and columns of weights that share one scale (`weight_block_size` of DeepSeek-V3's FP8)."""
ASYNC_BY_DEFAULT, ASYNC_UNDER_PP = (0, 14), (0, 22)
"""First versions of vLLM that schedule ahead by default: without PP, and with it (PR 42187, merged 2026-05)."""
MIXED_UNDER_PP = "SGLang", (0, 5, 23)
"""First version of SGLang known to allow it; 0.5.10.post1 refuses (srt/server_args.py `check_server_args`)."""
PREFILL_DECODE_INTERVAL, PREFILL_SCHEDULE_INTERVAL = ("SGLang", (0, 5, 19)), ("vLLM", (0, 33))
"""First versions with these flags (managers/scheduler.py; v1/core/sched/scheduler.py); older vLLM has the second for
data parallelism alone."""

Balancer = Literal["round-robin", "least-loaded"]
"""How requests are dealt to replicas: in turn, or to the one with the fewest in it."""


@dataclass(frozen=True)
class ParallelPlan:
    """How a model is split over GPUs: degrees of every kind, and the layers of each stage if a person chose them.

    Raises:
        UsageError: when degrees clash that no model and no box could reconcile.
    """

    tp: int = flag(1, "Tensor-parallel degree.", "--tp", "--tp-size", "--tensor-parallel-size", within=DEGREES)
    pp: int = flag(1, "Pipeline stages.", "--pp", "--pp-size", "--pipeline-parallel-size", within=DEGREES)
    layer_partition: tuple[int, ...] | None = flag(
        None, 'Layers of each stage, such as "15,15,15,16".', example="15,15,15,16"
    )
    ep: int = flag(
        1, "Ranks of a stage that share out experts.", "--ep", "--ep-size", "--expert-parallel-size", within=DEGREES
    )
    """Groups among which a stage's ranks share out whole experts (SGLang `--ep-size`); within one, columns are split.

    vLLM's `--enable-expert-parallel` is `ep` = `tp`.
    """
    dp_attention: bool = flag(
        False, "Each rank attends for its own requests.", "--dp-attention", "--enable-dp-attention"
    )
    """SGLang's, dp = tp."""
    dcp: int = flag(
        1, "Ranks that share out a request's KV cache.", "--dcp", "--decode-context-parallel-size", within=DEGREES
    )
    replicas: int = flag(1, "Equal servers behind a balancer, on GPUs of their own.", within=DEGREES)
    balancer: Balancer = flag("round-robin", "How requests are dealt to replicas.")
    placement: tuple[int, ...] | None = flag(
        None, 'GPU of each rank, such as "0,2,1,3" (default: in order).', example="0,2,1,3"
    )
    """In the order of ranks (CUDA_VISIBLE_DEVICES); None for rank r on GPU r."""

    def __post_init__(self) -> None:
        check_ranges(self)
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
        for spelt, given, title, first in (
            (f"--enable-mixed-chunk with --pp {plan.pp}", engine.enable_mixed_chunk and plan.pp > 1, *MIXED_UNDER_PP),
            ("--prefill-decode-interval", engine.prefill_decode_interval > 0, *PREFILL_DECODE_INTERVAL),
            ("--prefill-schedule-interval", engine.prefill_schedule_interval > 1, *PREFILL_SCHEDULE_INTERVAL),
        ):
            if given and engine.version_before(first):
                wanted = f"{title} {'.'.join(map(str, first))} or later (older ones stop at start-up)"
                raise UsageError(f"{spelt} and --engine-version", engine.version, wanted)
        if self.positions > self.model.max_positions:
            wanted = f"at most the {self.model.max_positions:,} positions of {self.model.name}, as the engine does,"
            raise UsageError("--context-length", engine.context_length, wanted)
        cap, limit = engine.pp_max_micro_batch_size, engine.max_running_requests
        if engine.name == "sglang" and cap and limit and cap * plan.attention_dp > limit:
            raise UsageError(
                f"--pp-max-micro-batch-size with --max-running-requests {limit}",
                cap,
                f"at most {limit // plan.attention_dp} (SGLang admits no more requests than that in all slots "
                "together, so the cap could never be reached)",
            )

    @property
    def positions(self) -> int:
        """Most tokens of a request, prompt and output."""
        return self.engine.context_length or self.model.max_positions

    @property
    def async_scheduling(self) -> bool:
        """Whether vLLM's scheduler runs ahead of results: as asked, else as its version does by default."""
        if self.engine.async_scheduling is not None:
            return self.engine.async_scheduling
        return not self.engine.version_before(ASYNC_UNDER_PP if self.plan.pp > 1 else ASYNC_BY_DEFAULT)

    def first_layer(self, stage: int) -> int:
        """Returns the index of the first layer of a stage."""
        return sum(self.layers[:stage])
