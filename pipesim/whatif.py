"""What would one change buy: each cost set to zero, each switch flipped, and the speed-up with its interval."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from pipesim.changes import Change, changed, goal, log_ratios, ratio_variance, switched, with_flags
from pipesim.deployment import Deployment
from pipesim.engine_settings import EngineSettings
from pipesim.engines import all_reduce_preference, box_of_group
from pipesim.errors import PipesimError
from pipesim.fitting import deploy
from pipesim.partition import balanced_partition
from pipesim.passes import StagePrice
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.hardware import HardwareProfile
from pipesim.sensitivity import Confidence, Sensitivity, Z

MOST_SEEDS = 3
"""Seeds that a cost at zero, which no box has, is simulated with."""
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
class Explanation:
    """A prediction, and every change sorted by what it buys."""

    prediction: Prediction
    changes: tuple[Change, ...]
    words: tuple[str, ...]
    sensitivities: tuple[Sensitivity, ...]


def explain(prediction: Prediction, progress: Callable[[str], None] = lambda _: None) -> Explanation:
    """Returns what each change of a prediction's deployment would buy, largest first; `progress` hears of each."""
    confidence = Confidence(prediction)
    stds = _cost_stds(prediction, confidence)
    changes = []
    for key, name in COSTS.items():
        progress(name)
        changes.append(_without(prediction, key, stds[key]))
    for label, flags, other in switches(prediction):
        progress(label)
        changes.append(switched(prediction, label, other, flags))
    changes.sort(key=lambda change: -change.speedup)
    return Explanation(prediction, tuple(changes), tuple(_words(prediction, changes)), confidence.sensitivities)


def _cost_stds(prediction: Prediction, confidence: Confidence) -> dict[str, float]:
    """Returns the log standard deviation of each cost: that of the least certain constants that price it."""
    stds = {item.constant: item.log_std for item in confidence.sensitivities}
    predictor = Predictor(prediction.deployment)
    found = {key: stds.get(key, 0.0) for key in COSTS}
    for priced in predictor.operations(predictor.mid_decode(prediction.closed_load)):
        category = priced.op.category
        found[category] = max(found[category], stds.get(priced.op.constant, 0.0))
    return found


def _without(prediction: Prediction, key: str, std: float) -> Change:
    """A cost at zero. To first order the gain moves with the cost, whose log standard deviation is known."""
    seeds, first = min(MOST_SEEDS, len(prediction.runs)), prediction.first_seed
    free = Predictor(prediction.deployment, {key: 0.0}).predict(prediction.workload, seeds, first_seed=first)
    ratios = log_ratios(prediction, free)
    gain, width = fmean(ratios), Z * math.sqrt(ratio_variance(ratios))
    low, high = sorted(gain * math.exp(sign * Z * std) for sign in (-1, 1))
    interval = math.exp(low - width), math.exp(high + width)
    return changed("cost", f"{COSTS[key]} at no cost", free, math.exp(gain), interval, key=key)


def switches(prediction: Prediction) -> Iterator[tuple[str, str, Deployment]]:
    """Yields every deployment that differs in one switch and that the box can run, with what was flipped and flags."""
    deployment = prediction.deployment
    settings, hardware, plan = deployment.engine, deployment.hardware, deployment.plan
    for words, flags, other in with_flags(prediction, every=True):
        yield f"{words} ({flags})" if flags else words, flags, other
    candidates = list(_all_reduce_switches(deployment))
    if settings.cuda_graph:
        eager = replace(settings, cuda_graph=False)
        candidates.append(("without CUDA graphs (--no-cuda-graph)", eager, hardware))
    if plan.gpus > 1:
        p2p = "without peer access (--no-p2p)" if deployment.peer_access else "with peer access (--p2p)"
        candidates += [
            (p2p, replace(settings, peer_access=not deployment.peer_access), hardware),
            ("links one generation faster (2x per byte)", settings, hardware.with_links_scaled(2.0)),
            ("links one generation slower (half per byte)", settings, hardware.with_links_scaled(0.5)),
        ]
    if settings.kv_cache_dtype == "auto":
        candidates.append(("an FP8 KV cache (--kv-cache-dtype fp8)", replace(settings, kv_cache_dtype="fp8"), hardware))
    partition = balanced_partition(Predictor(deployment), prediction.closed_load)
    own = replace(plan, layer_partition=deployment.layers)
    splits = [(own, *candidate) for candidate in candidates]
    if partition != deployment.layers:
        label = f"layers split {','.join(map(str, partition))} (--layer-partition)"
        splits.append((replace(plan, layer_partition=partition), label, settings, hardware))
    for split, label, flags_changed, box in splits:
        try:
            yield label, "", deploy(deployment.model, box, split, flags_changed, prediction.workload)
        except PipesimError:
            continue


def _all_reduce_switches(deployment: Deployment) -> list[tuple[str, EngineSettings, HardwareProfile]]:
    settings, hardware, tp = deployment.engine, deployment.hardware, deployment.plan.tp
    kinds = sorted({curve.implementation for curve in hardware.collectives if curve.ranks == tp})
    found = [
        (f"AllReduce by {kind} (--allreduce {kind})", replace(settings, allreduce=kind), hardware)
        for kind in kinds
        if all_reduce_preference(replace(deployment, engine=replace(settings, allreduce=kind)))
        != all_reduce_preference(deployment)
    ]
    spread = box_of_group(deployment).all_reduce_range
    if tp > 1 and spread:
        for word, factor in (("fastest", spread.fastest), ("slowest", spread.slowest)):
            label = f"AllReduce of the {word} published host of the kind"
            found.append((label, settings, hardware.with_all_reduce_scaled(factor)))
    return found


def _words(prediction: Prediction, changes: list[Change]) -> Iterator[str]:
    costs = [change for change in changes if change.kind == "cost"]
    first, now = costs[0], prediction.mean("output_tokens_per_s")
    gain = f"{now:,.1f} tok/s would be {first.output_tokens_per_s:,.1f}, {first.speedup:.2f} times as much"
    if goal(prediction.workload) == "e2e_s":
        gain = f"a request would be done in {first.latencies[1]:,.1f} s, {first.speedup:.2f} times as fast"
    yield f"The largest cost is {COSTS[first.key]}: without it {gain}."
    if first.key == "launch" and prediction.deployment.plan.tp > 1:
        yield _rival(prediction)


def _rival(prediction: Prediction) -> str:
    """What AllReduce would have to cost to explain a launch-bound step, and what would tell the two causes apart."""
    predictor = Predictor(prediction.deployment)
    batch = predictor.mid_decode(prediction.closed_load)
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
