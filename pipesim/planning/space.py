"""The candidates: which splits there are on a box, and which settings are worth trying on each."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product, zip_longest
from math import ceil
from typing import Any

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.base import settle
from pipesim.errors import InfeasibleDeployment, MissingEvidence, PipesimError, UsageError
from pipesim.fitting import deploy, shortage
from pipesim.planning.question import PlanQuestion
from pipesim.profiles.hardware import HardwareProfile
from pipesim.workload import Workload

ALL_DEGREES_UP_TO = 16
"""GPUs of a box up to which every degree is tried; beyond, powers of two and what fills the box."""
DEPTHS = (0, 1, 2)
CHUNKS = (2048, 4096, 8192, 16384)
MOST_GPUS_LOOKED_AT = 128


@dataclass(frozen=True)
class Rejection:
    """A split, or one setting of it, that cannot run, and why."""

    hardware: HardwareProfile
    settings: EngineSettings
    plan: ParallelPlan
    reasons: tuple[str, ...]


def check_fixed(question: PlanQuestion) -> None:
    """Raises UsageError for a degree held fixed that is out of range on any box."""
    for name in ("tp", "pp", "replicas"):
        ParallelPlan(**{name: question.fixed.get(name, 1)})
    for name in ("ep", "dcp"):
        degree = question.fixed.get(name, 1)
        ParallelPlan(tp=max(1, degree), **{name: degree})
    partition = question.fixed.get("layer_partition")
    if partition is not None and question.fixed.get("pp", len(partition)) != len(partition):
        text = ",".join(map(str, partition))
        raise UsageError("--layer-partition", text, f"{question.fixed['pp']} numbers, one for each stage of --pp")


def splits(question: PlanQuestion, box: HardwareProfile) -> Iterator[ParallelPlan]:
    """Yields every TP × PP × replicas that fits the GPUs, without the further kinds of parallelism."""
    gpus, fixed = question.gpus_of(box), question.fixed
    partition, placement = fixed.get("layer_partition"), fixed.get("placement")
    stages = _choices(fixed, "pp", _degrees(gpus, gpus)) if partition is None else [len(partition)]
    for tp, pp in product(_choices(fixed, "tp", _degrees(gpus, gpus)), stages):
        most = gpus // (tp * pp)
        for replicas in _choices(fixed, "replicas", _degrees(most, gpus)):
            taken = tp * pp * replicas
            if taken <= gpus and not _clashes(fixed, tp) and (placement is None or len(placement) == taken):
                split = replace(question.plan, tp=tp, pp=pp, replicas=replicas, layer_partition=partition)
                yield replace(split, placement=placement)


def _clashes(fixed: Mapping[str, Any], tp: int) -> bool:
    """Whether a degree held fixed is impossible at this TP."""
    needs_ranks = fixed.get("dp_attention", False) and tp == 1
    return needs_ranks or any(tp % fixed.get(name, 1) for name in ("ep", "dcp"))


def variants(question: PlanQuestion, engine: EngineName, plan: ParallelPlan) -> Iterator[ParallelPlan]:
    """Yields a split with every sensible expert parallelism, DP attention and decode context parallelism.

    Decode context parallelism is tried without pipeline stages alone, unless asked for: neither engine's support of
    both together is known. What an engine does not have, `Deployment` refuses.
    """
    fixed, tp = question.fixed, plan.tp
    divisors = [degree for degree in range(1, tp + 1) if tp % degree == 0]
    if tp > ALL_DEGREES_UP_TO:
        divisors = [1, tp]
    groups = [tp] if fixed.get("enable_expert_parallel") else _choices(fixed, "ep", divisors)
    contexts = _choices(fixed, "dcp", divisors if plan.pp == 1 else [1])
    attention = _choices(fixed, "dp_attention", [False, True] if tp > 1 else [False])
    for ep, by_request, dcp in product(groups, attention, contexts):
        if not (by_request and dcp > 1):
            yield replace(plan, ep=ep, dp_attention=by_request, dcp=dcp)


def placements(question: PlanQuestion, box: HardwareProfile, plan: ParallelPlan) -> list[tuple[int, ...] | None]:
    """Returns the orders of GPUs worth trying: as numbered, and where it is asked for group by group and across groups.

    Where sockets or switches are numbered crosswise, consecutive ranks are neighbours only group by group; across
    groups neighbours in a stage use different uplinks. An order that is the box's own is left out.
    """
    own = tuple(range(plan.gpus))
    if not question.best_placement or plan.placement is not None or plan.gpus == 1:
        return [plan.placement]
    groups = [group for group in box.topology.groups if group]
    together = [gpu for group in groups for gpu in group]
    across = [gpu for turn in zip_longest(*groups) for gpu in turn if gpu is not None]
    found = dict.fromkeys(tuple(order[: plan.gpus]) for order in (together, across))
    return [None, *(order for order in found if order != own)]


def settled(
    question: PlanQuestion, box: HardwareProfile, plan: ParallelPlan, settings: EngineSettings
) -> Deployment | Rejection:
    """Returns the deployment of a split, or why there is none."""
    try:
        deployment = settle(question.model, box, plan, settings, ENGINES[settings.name])
        if ENGINES[settings.name].kv_capacity_tokens(deployment) < 1:
            return Rejection(box, settings, plan, (shortage(deployment),))
        return deploy(question.model, box, plan, settings, question.workload)
    except InfeasibleDeployment as refusal:
        return Rejection(box, settings, plan, tuple(refusal.reasons))
    except (UsageError, MissingEvidence) as refusal:
        return Rejection(box, settings, plan, (str(refusal),))


def slot_settings(question: PlanQuestion, deployment: Deployment, users: int) -> list[EngineSettings]:
    """Returns the settings of micro-batch slots worth trying: caps around an even spread, and none, at every depth."""
    base, plan, fixed = deployment.engine, deployment.plan, question.fixed
    if plan.pp == 1 or not ENGINES[base.name].slots_are_flags:
        return [base]
    found = []
    ranks = plan.attention_dp
    for depth in _choices(fixed, "pp_async_batch_depth", DEPTHS):
        even = ceil(users / ((plan.pp + depth) * ranks))
        tried = [cap for cap in (even, even + 1, even - 1, 2 * even) if 0 < cap < ceil(users / ranks)]
        if base.max_running_requests is not None:
            tried = [cap for cap in tried if cap * ranks <= base.max_running_requests]
        for cap in _choices(fixed, "pp_max_micro_batch_size", [*dict.fromkeys(tried), None]):
            found.append(replace(base, pp_async_batch_depth=depth, pp_max_micro_batch_size=cap))
    return found


def further_settings(
    question: PlanQuestion, deployment: Deployment, workload: Workload, users: int
) -> Iterator[EngineSettings]:
    """Yields the same deployment's settings with other chunk sizes; the ones it has first.

    A chunk that is larger than all prompt tokens that could meet in one launch changes nothing and is left out. The KV
    cache keeps its format: with fewer bits the model answers otherwise, which a person has to ask for.
    """
    base, fixed = deployment.engine, question.fixed
    budget = ENGINES[base.name].prefill_budget
    cap = base.pp_max_micro_batch_size
    together = min(users, cap * deployment.plan.attention_dp) if cap else users
    most = together * (1 + ceil((workload.input_len - workload.cached_len) * (1 + workload.random_range_ratio)))
    chunks: dict[int, int | None] = {min(budget(deployment), most): base.chunked_prefill_size}
    for chunk in _choices(fixed, "chunked_prefill_size", CHUNKS):
        effect = min(budget(replace(deployment, engine=replace(base, chunked_prefill_size=chunk))), most)
        chunks.setdefault(effect, chunk)
    for chunk in chunks.values():
        yield replace(base, chunked_prefill_size=chunk)


def smallest_box(question: PlanQuestion, box: HardwareProfile) -> int | None:
    """Returns the fewest GPUs of the box's kind that would hold the model and one request, None if none is found.

    One replica of any TP × PP; boxes of up to 128 GPUs are looked at.
    """
    for gpus in range(1, MOST_GPUS_LOOKED_AT + 1):
        larger = box.model_copy(update={"gpus": gpus})
        for tp in (degree for degree in range(1, gpus + 1) if gpus % degree == 0):
            if any(_holds(question, larger, ParallelPlan(tp, gpus // tp), engine) for engine in question.engines):
                return gpus
    return None


def _holds(question: PlanQuestion, box: HardwareProfile, plan: ParallelPlan, name: EngineName) -> bool:
    engine, settings = ENGINES[name], replace(question.settings, name=name)
    try:
        deployment = settle(question.model, box, plan, settings, engine)
    except PipesimError:
        return False
    return engine.kv_capacity_tokens(deployment) >= question.workload.tokens_per_request


def _degrees(most: int, gpus: int) -> list[int]:
    if gpus <= ALL_DEGREES_UP_TO:
        return list(range(1, most + 1))
    powers = {2**power for power in range(most.bit_length())} if most else set()
    return sorted(powers | ({most} if most else set()))


def _choices(fixed: Mapping[str, Any], name: str, free: Iterable[Any]) -> list[Any]:
    return [fixed[name]] if name in fixed else list(free)
