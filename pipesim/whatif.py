"""What would one change buy: each cost set to zero, each switch flipped, and the speed-up with its interval."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, pvariance
from typing import Literal

from pipesim.deployment import Deployment, EngineSettings
from pipesim.engines import ENGINES, all_reduce_preference
from pipesim.errors import PipesimError
from pipesim.partition import balanced_partition
from pipesim.passes import StagePrice
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.sensitivity import Confidence, Sensitivity, Z
from pipesim.workload import Workload

SEEDS = 3

COSTS = {
    "experts": "reading and multiplying routed experts",
    "attention": "attention",
    "dense": "dense layers, shared expert, head",
    "all_reduce": "AllReduce",
    "send_recv": "send/recv between stages",
    "launch": "launching kernels from Python",
    "scheduler": "the scheduler's turn on the host",
}
"""Costs that can be set to zero, by category or by name of the constants."""


@dataclass(frozen=True)
class Change:
    """One change and what it buys."""

    label: str
    kind: Literal["cost", "switch"]
    output_tokens_per_s: float
    speedup: float
    interval: tuple[float, float]
    """80 % interval of the speed-up."""
    key: str = ""
    """The cost set to zero."""


@dataclass(frozen=True)
class Explanation:
    """A prediction, and every change sorted by what it buys."""

    prediction: Prediction
    changes: tuple[Change, ...]
    words: tuple[str, ...]
    sensitivities: tuple[Sensitivity, ...]


def explain(prediction: Prediction, progress: Callable[[str], None] = lambda _: None) -> Explanation:
    """Returns what each change of a prediction's deployment would buy, largest first; `progress` hears of each."""
    deployment, workload = prediction.deployment, prediction.workload
    confidence = Confidence(prediction)
    base = Predictor(deployment).predict(workload, SEEDS).over_seeds("output_tokens_per_s")
    stds = _cost_stds(prediction, confidence)
    changes = []
    for key, name in COSTS.items():
        progress(name)
        changes.append(_without(prediction, base, key, stds[key]))
    for label, changed in switches(deployment, workload):
        progress(label)
        rates = Predictor(changed).predict(workload, SEEDS).over_seeds("output_tokens_per_s")
        changes.append(_switched(label, base, rates, confidence.whole_run_std))
    changes.sort(key=lambda change: -change.speedup)
    return Explanation(prediction, tuple(changes), tuple(_words(prediction, changes)), confidence.sensitivities)


def _cost_stds(prediction: Prediction, confidence: Confidence) -> dict[str, float]:
    """Returns the log standard deviation of each cost: that of the least certain constants that price it."""
    stds = {item.constant: item.log_std for item in confidence.sensitivities}
    predictor = Predictor(prediction.deployment)
    found = {key: stds.get(key, 0.0) for key in COSTS}
    for priced in predictor.operations(predictor.mid_decode(prediction.workload)):
        category = priced.op.category
        found[category] = max(found[category], stds.get(priced.op.constant, 0.0))
    return found


def _without(prediction: Prediction, base: list[float], key: str, std: float) -> Change:
    """A cost at zero. To first order the gain moves with the cost, whose log standard deviation is known."""
    free = Predictor(prediction.deployment, {key: 0.0}).predict(prediction.workload, SEEDS)
    rates = free.over_seeds("output_tokens_per_s")
    gain = math.log(fmean(rates) / fmean(base))
    interval = math.exp(gain * math.exp(-Z * std)), math.exp(gain * math.exp(Z * std))
    label = f"{COSTS[key]} at no cost"
    return Change(label, "cost", fmean(rates), math.exp(gain), (min(interval), max(interval)), key)


def _switched(label: str, base: list[float], rates: list[float], end_to_end: float) -> Change:
    """A switch flipped. Both runs share a box, so half of its end-to-end error is taken to cancel."""
    ratios = [math.log(after / before) for before, after in zip(base, rates, strict=True)]
    spread = math.exp(Z * math.sqrt(pvariance(ratios) + (end_to_end / 2) ** 2))
    speedup = math.exp(fmean(ratios))
    return Change(label, "switch", fmean(rates), speedup, (speedup / spread, speedup * spread))


def switches(deployment: Deployment, workload: Workload) -> Iterator[tuple[str, Deployment]]:
    """Yields every deployment that differs in one switch and that the box can run, with what was flipped."""
    settings, hardware, plan = deployment.engine, deployment.hardware, deployment.plan
    graph = "without CUDA graphs (--no-cuda-graph)" if settings.cuda_graph else "with CUDA graphs (--cuda-graph)"
    candidates = [
        (graph, replace(settings, cuda_graph=not settings.cuda_graph), hardware),
        *_pipeline_switches(deployment, workload),
        *_all_reduce_switches(deployment),
    ]
    if plan.gpus > 1:
        p2p = "without peer access (--no-p2p)" if deployment.peer_access else "with peer access (--p2p)"
        candidates += [
            (p2p, replace(settings, peer_access=not deployment.peer_access), hardware),
            ("links one generation faster (2x per byte)", settings, hardware.with_links_scaled(2.0)),
            ("links one generation slower (half per byte)", settings, hardware.with_links_scaled(0.5)),
        ]
    if settings.kv_cache_dtype == "auto":
        candidates.append(("an FP8 KV cache (--kv-cache-dtype fp8)", replace(settings, kv_cache_dtype="fp8"), hardware))
    own = replace(plan, layer_partition=deployment.layers)
    for label, changed, box in candidates:
        try:
            yield label, deploy(deployment.model, box, own, changed)
        except PipesimError:
            continue
    partition = balanced_partition(Predictor(deployment), workload)
    if partition != deployment.layers:
        text = ",".join(map(str, partition))
        moved = replace(plan, layer_partition=partition)
        yield f"layers split {text} (--layer-partition)", deploy(deployment.model, hardware, moved, settings)


def _pipeline_switches(deployment: Deployment, workload: Workload) -> list[tuple[str, EngineSettings, HardwareProfile]]:
    settings, hardware, pp = deployment.engine, deployment.hardware, deployment.plan.pp
    if pp == 1 or not ENGINES[settings.name].slots_are_flags:
        return []
    found = []
    users = -(-workload.concurrency // deployment.plan.replicas)
    for depth in {0, 1, 2} - {settings.pp_async_batch_depth}:
        cap = -(-users // (pp + depth))
        label = f"async depth {depth}, slot cap {cap} (--pp-async-batch-depth {depth})"
        found.append((label, replace(settings, pp_async_batch_depth=depth, pp_max_micro_batch_size=cap), hardware))
    even = -(-users // (pp + settings.pp_async_batch_depth))
    if settings.pp_max_micro_batch_size != even:
        label = f"slot cap {even} (--pp-max-micro-batch-size {even})"
        found.append((label, replace(settings, pp_max_micro_batch_size=even), hardware))
    if settings.pp_max_micro_batch_size is not None:
        found.append(("the engine's default slot cap", replace(settings, pp_max_micro_batch_size=None), hardware))
    return found


def _all_reduce_switches(deployment: Deployment) -> list[tuple[str, EngineSettings, HardwareProfile]]:
    settings, hardware, tp = deployment.engine, deployment.hardware, deployment.plan.tp
    kinds = sorted({curve.implementation for curve in hardware.collectives if curve.ranks == tp})
    found = [
        (f"AllReduce by {kind} (--allreduce {kind})", replace(settings, allreduce=kind), hardware)
        for kind in kinds
        if all_reduce_preference(replace(deployment, engine=replace(settings, allreduce=kind)))
        != all_reduce_preference(deployment)
    ]
    spread = hardware.all_reduce_range
    if tp > 1 and spread:
        for word, factor in (("fastest", spread.fastest), ("slowest", spread.slowest)):
            label = f"AllReduce of the {word} published host of the kind"
            found.append((label, settings, hardware.with_all_reduce_scaled(factor)))
    return found


def _words(prediction: Prediction, changes: list[Change]) -> Iterator[str]:
    costs = [change for change in changes if change.kind == "cost"]
    now = prediction.mean("output_tokens_per_s")
    first = costs[0]
    yield (
        f"The largest cost is {COSTS[first.key]}: without it {now:,.1f} tok/s would be "
        f"{first.output_tokens_per_s:,.1f}, {first.speedup:.2f} times as much."
    )
    if first.key == "launch" and prediction.deployment.plan.tp > 1:
        yield _rival(prediction)


def _rival(prediction: Prediction) -> str:
    """What AllReduce would have to cost to explain a launch-bound step, and what would tell the two causes apart."""
    predictor = Predictor(prediction.deployment)
    batch = predictor.mid_decode(prediction.workload)
    stage: StagePrice = predictor.price(batch).stages[0]
    calls = [priced for priced in predictor.price.operations(batch, 0) if priced.op.constant == "all_reduce"]
    now = stage.by_category["all_reduce"] / len(calls)
    needed = (stage.total - sum(stage.by_category.values()) + stage.by_category["host"]) / len(calls) + now
    tp = prediction.deployment.plan.tp
    return (
        f"A rival cause would be AllReduce at {needed / 1e6:,.0f} us a call instead of {now / 1e6:,.0f} us "
        f"({needed / now:.1f} times), as on hosts whose peer loads are staged through host memory. Two measurements "
        f"tell them apart: an AllReduce sweep (all_reduce_perf -b 8K -e 4M -f 2 -g {tp}), or one run with CUDA graphs, "
        "which removes launches and leaves AllReduce as it is. AllReduce would also grow with the batch; launches do "
        "not."
    )
