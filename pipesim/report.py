"""Answers for people and for scripts: one 80-column screen, one JSON object. Nothing is computed here but layout."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from pipesim.changes import goal
from pipesim.closed_form import SteadyState
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.hinges import hinges
from pipesim.metrics import Latency
from pipesim.overload import Overload, overload
from pipesim.prediction import GIB, Prediction
from pipesim.reasons import NAMES, binding_limit, hinge_words, notes, overload_words
from pipesim.sensitivity import HEADLINES, LEVEL, Confidence
from pipesim.whole_runs import learned
from pipesim.workload import Workload

if TYPE_CHECKING:  # a prediction does without the modules of other commands
    from pipesim.whatif import Explanation

WIDTH = 80
LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s"}


def predict_json(prediction: Prediction) -> dict[str, Any]:
    """Returns the object that `predict --json` prints (architecture, section 6)."""
    deployment, confidence = prediction.deployment, Confidence(prediction)
    return {
        "schema_version": 1,
        "feasible": True,
        "method": "simulation",
        "detail": prediction.detail,
        "deployment": deployment_json(deployment),
        "workload": workload_json(prediction.workload) | {"seeds": len(prediction.runs)},
        "metrics": metrics_json(prediction),
        "interval": {name: list(confidence.interval(name)) for name in HEADLINES} | {"level": LEVEL},
        "overload": overload_json(overload(prediction)),
        "hangs_on": asdict(found) if (found := hinges(prediction)) else None,
        "closed_form": closed_form_json(prediction.closed_form),
        "closed_form_holds": prediction.closed_form_holds,
        "breakdown": prediction.breakdown,
        "binding_limit": binding_limit(prediction),
        "notes": notes(prediction),
        "gpus": [
            _gpu_json(prediction, stage, rank, replica)
            for replica in range(deployment.plan.replicas)
            for stage in range(deployment.plan.pp)
            for rank in range(deployment.plan.tp)
        ],
        "basis": prediction.basis,
        "unchecked": learned().never_checked(deployment),
    }


def deployment_json(deployment: Deployment) -> dict[str, Any]:
    """Returns what runs where, as every answer names it."""
    return {
        "model": deployment.model.name,
        "hardware": deployment.hardware.name,
        "engine": deployment.engine.name,
        "tp": deployment.plan.tp,
        "pp": deployment.plan.pp,
        **deployment.plan.further_kinds,
        "layer_partition": list(deployment.layers),
        "cuda_graph": deployment.engine.cuda_graph,
        "engine_flags": deployment.engine.stated,
        "memory_share": deployment.memory_share,
    }


def overload_json(found: Overload | None) -> dict[str, Any] | None:
    """Returns what an open loop offers beyond what is carried; None where it carries all."""
    return None if found is None else asdict(found) | {"queue_growth_per_s": found.queue_growth_per_s}


def workload_json(workload: Workload) -> dict[str, Any]:
    """Returns the load, as every answer names it."""
    found = {item.name: getattr(workload, item.name) for item in fields(workload)}
    found["concurrency"] = workload.concurrency if workload.closed_loop else None
    found["request_rate"] = "inf" if workload.request_rate == math.inf else workload.request_rate
    return found | {"trace": str(workload.trace.path) if workload.trace else None, "like": workload.like or None}


def metrics_json(prediction: Prediction) -> dict[str, Any]:
    """Returns the numbers of a prediction, means over seeds."""
    numbers = ("output_tokens_per_s", "output_tokens_per_s_per_request", "request_throughput_per_s")
    metrics: dict[str, Any] = {name: prediction.mean(name) for name in numbers}
    metrics |= {name: prediction.latency(name)._asdict() for name in LATENCIES.values()}
    return metrics | {
        name: prediction.mean(name) for name in ("step_time_s", "bubble_fraction", "micro_batches_in_flight")
    }


def closed_form_json(steady: SteadyState) -> dict[str, Any]:
    """Returns the closed form beside a prediction."""
    return {
        "output_tokens_per_s": steady.output_tokens_per_s,
        "step_time_s": steady.step_time_s,
        "bubble_fraction": steady.bubble_fraction,
    }


def _gpu_json(prediction: Prediction, stage: int, rank: int, replica: int) -> dict[str, Any]:
    deployment, memory = prediction.deployment, prediction.memory[stage]
    busy, bubble = prediction.stage_share(stage)
    first = deployment.first_layer(stage)
    return {
        "gpu": deployment.plan.stage_gpus(stage, replica)[rank],
        "stage": stage,
        "tp_rank": rank,
        "layers": [first, first + deployment.layers[stage]],
        "busy_fraction": busy,
        "bubble_fraction": bubble,
        "weights_bytes": round(memory.weights),
        "kv_capacity_tokens": prediction.kv_capacity_tokens,
        "memory_free_bytes": round(prediction.free_bytes(stage)),
    }


def infeasible_text(plan: ParallelPlan, reasons: Sequence[str]) -> str:
    """Returns what a person reads when the box cannot run a plan."""
    return "\n".join([f"{plan} does not fit.", *(line for text in reasons for line in textwrap.wrap(text, WIDTH))])


def infeasible_json(reasons: Sequence[str]) -> dict[str, Any]:
    """Returns the object that stands for "this box cannot"."""
    return {"schema_version": 1, "feasible": False, "reasons": list(reasons)}


def predict_text(prediction: Prediction, defaults: Sequence[str]) -> str:
    """Returns the screen that `predict` prints."""
    confidence = Confidence(prediction)
    low, high = confidence.interval("output_tokens_per_s")
    output, per_request = prediction.mean("output_tokens_per_s"), prediction.mean("output_tokens_per_s_per_request")
    requests = prediction.mean("request_throughput_per_s")
    lines = [
        *_heading(prediction, defaults),
        "",
        *_overload_lines(prediction),
        f"{'output':<13}{output:>9,.1f} tok/s in all, {per_request:,.1f} per request, {requests:.2f} req/s",
        f"{'':<13}{low:>9,.1f} to {high:,.1f} tok/s with {LEVEL:.0%} confidence",
        *_over_seeds(prediction.over_seeds("output_tokens_per_s")),
        *_closed_form_lines(prediction),
        *_hinge_lines(prediction),
        "",
        *_latencies(prediction, confidence),
        "",
        f"{'step time':<13}{time_text(prediction.mean('step_time_s')):>9}   "
        f"bubble {prediction.mean('bubble_fraction'):.1%}   micro-batches in flight "
        f"{prediction.mean('micro_batches_in_flight'):.2f}",
        "",
        "where the GPUs' time goes",
        *(f"  {NAMES[name]:<37}{share:>6.1%}  {bar(share, 30)}" for name, share in largest_first(prediction.breakdown)),
        "",
        *textwrap.wrap(binding_limit(prediction), WIDTH),
        "",
        *_gpu_table(prediction),
        "",
        *(line for note in notes(prediction) for line in textwrap.wrap(note, WIDTH)),
        _basis(prediction.basis),
    ]
    return "\n".join(lines)


def _overload_lines(prediction: Prediction) -> list[str]:
    words = overload_words(overload(prediction))
    return [*textwrap.wrap(words, WIDTH), ""] if words else []


def _closed_form_lines(prediction: Prediction) -> list[str]:
    """Returns the closed form where its assumptions hold, nothing elsewhere."""
    if not prediction.closed_form_holds:
        return []
    steady = prediction.closed_form
    many = steady.micro_batches > 1
    slots = f"{steady.micro_batches} micro-batches of {steady.requests_per_micro_batch}" if many else "one micro-batch"
    return [
        f"{'closed form':<13}{steady.output_tokens_per_s:>9,.1f} tok/s with {slots};",
        f"{'':<13}{'':>9} step {time_text(steady.step_time_s)}, bubble {steady.bubble_fraction:.1%}",
    ]


def _hinge_lines(prediction: Prediction) -> list[str]:
    indent = " " * 13
    words = [line for text in hinge_words(hinges(prediction)) for line in textwrap.wrap(text, WIDTH - len(indent))]
    return [f"{'hangs on' if number == 0 else '':<13}{line}" for number, line in enumerate(words)]


def _over_seeds(rates: Sequence[float]) -> list[str]:
    if f"{min(rates):,.1f}" == f"{max(rates):,.1f}":
        return []
    return [f"{'':<13}{min(rates):>9,.1f} to {max(rates):,.1f} tok/s over {len(rates)} seeds of lengths and arrivals"]


def heading(prediction: Prediction) -> str:
    """Returns in words what runs where."""
    deployment = prediction.deployment
    mode = "CUDA graphs" if deployment.engine.cuda_graph else "eager"
    return f"{deployment.model.name} on {deployment.hardware.name}: {deployment.plan}, {deployment.engine.name}, {mode}"


def _heading(prediction: Prediction, defaults: Sequence[str]) -> list[str]:
    workload = prediction.workload
    like = f" (as {workload.like})" if workload.like else ""
    text = textwrap.wrap(f"load: {arrivals(workload)} of {lengths(workload)}{like}", WIDTH, subsequent_indent="  ")
    if workload.opening:
        until = " until the last request is sent" if workload.steady else " on, without these"
        what = "steady part: " if workload.steady else "metrics "
        text.append(f"{what}from the end of the first {workload.opening:,} requests{until}")
    assumed = textwrap.wrap(f"defaults: {', '.join(defaults)}", WIDTH, subsequent_indent="  ") if defaults else []
    return [heading(prediction), *text, *assumed]


def arrivals(workload: Workload) -> str:
    """Returns in words how requests come."""
    requests = f"{workload.num_prompts:,} requests"
    if workload.closed_loop:
        return f"{workload.concurrency} users, {requests}"
    limit = f", at most {workload.max_concurrency:,} in the server" if workload.max_concurrency else ""
    if workload.trace is not None:
        return f"trace {workload.trace.path.name} ({workload.trace.form}){limit}, {requests}"
    if workload.request_rate == math.inf:
        return f"all at once{limit}, {requests}"
    burstiness = f" of burstiness {workload.burstiness:g}" if workload.burstiness != 1.0 else ""
    rate, until = workload.request_rate or 0.0, ""
    if workload.duration_s:
        until = f", sent for {workload.duration_s:g} s"
        requests = f"at most {requests}" if workload.num_prompts <= rate * workload.duration_s else "requests"
    return f"{rate:g} req/s{burstiness}{limit}{until}, {requests}"


def lengths(workload: Workload) -> str:
    """Returns in words how long requests are."""
    spread = f" ±{workload.random_range_ratio:.0%}" if workload.random_range_ratio else ""
    spread += f" on average, lognormal (log spread {workload.log_spread:g})" if workload.log_spread else ""
    context = f", {workload.context_len:,} in context" if workload.context_len else ""
    mean = " on average" if workload.trace else ""
    cached = f", {workload.cached_len:,} of the prompt cached" if workload.cached_len else ""
    ends = "" if workload.ignore_eos or workload.trace else ", answers that end by themselves"
    return f"{workload.input_len:,} in, {workload.output_len:,} out{spread}{mean}{cached}{context}{ends}"


def _latencies(prediction: Prediction, confidence: Confidence) -> list[str]:
    lines = [f"{'':<13}{'mean':>9}{'p50':>11}{'p99':>11}    {LEVEL:.0%} interval of the mean"]
    for label, name in LATENCIES.items():
        low, high = confidence.interval(name)
        lines.append(f"{label:<13}{_row(prediction.latency(name))}    {time_text(low)} to {time_text(high)}")
    return lines


def _row(latency: Latency) -> str:
    return f"{time_text(latency.mean):>9}{time_text(latency.p50):>11}{time_text(latency.p99):>11}"


def _gpu_table(prediction: Prediction) -> list[str]:
    deployment = prediction.deployment
    lines = [f"{'GPU':<7}{'stage':>5} {'layers':>8} {'busy':>6} {'bubble':>7}  {'load':<16}{'weights':>11}{'free':>9}"]
    for stage in range(deployment.plan.pp):
        busy, bubble = prediction.stage_share(stage)
        gpus, first = deployment.plan.stage_gpus(stage), deployment.first_layer(stage)
        in_a_row = len(gpus) > 1 and list(gpus) == list(range(gpus[0], gpus[0] + len(gpus)))
        name = f"{gpus[0]}–{gpus[-1]}" if in_a_row else ",".join(map(str, gpus))
        layers = f"{first}–{first + deployment.layers[stage] - 1}"
        weights, free = prediction.memory[stage].weights / GIB, prediction.free_bytes(stage) / GIB
        lines.append(
            f"{name:<7}{stage:>5} {layers:>8} {busy:>6.1%} {bubble:>7.1%}  {bar(busy, 15):<16}"
            f"{weights:>7.1f} GiB{free:>5.1f} GiB"
        )
    return [*lines, f"KV cache: {prediction.kv_capacity_tokens:,} tokens"]


def _basis(basis: dict[str, float]) -> str:
    return f"evidence: {', '.join(f'{share:.0%} {name}' for name, share in basis.items() if share)} constants"


def largest_first(shares: dict[str, float]) -> list[tuple[str, float]]:
    """Returns the shares that would show, by name."""
    return sorted(((name, share) for name, share in shares.items() if share >= 0.0005), key=lambda item: -item[1])


def bar(share: float, width: int) -> str:
    """Returns a bar of characters, `width` of them for 100 %."""
    return "█" * round(share * width)


def time_text(seconds: float) -> str:
    """Returns a time in six characters or so."""
    if seconds >= 10:
        return f"{seconds:.1f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms"


def explain_text(explanation: "Explanation", elasticities: bool) -> str:
    """Returns the screen that `explain` prints."""
    prediction = explanation.prediction
    low, high = Confidence(prediction).interval("output_tokens_per_s")
    output = prediction.mean("output_tokens_per_s")
    by_latency = goal(prediction.workload) == "e2e_s"
    lines = [
        *_heading(prediction, []),
        "",
        *_overload_lines(prediction),
        f"now {output:,.1f} tok/s ({low:,.1f} to {high:,.1f} with {LEVEL:.0%} confidence)",
        *([f"and {time_text(prediction.latency('e2e_s').mean)} from sending to the last token"] if by_latency else []),
        "",
        f"{'what one change would buy':<52}{'E2E' if by_latency else 'tok/s':>9}{'speed-up':>9}",
    ]
    for change in explanation.changes:
        first, *rest = textwrap.wrap(change.label, 51)
        value = time_text(change.latencies[1]) if by_latency else f"{change.output_tokens_per_s:,.1f}"
        lines.append(f"{first:<52}{value:>9}{change.speedup:>8.2f}x")
        interval = f"{change.interval[0]:.2f} to {change.interval[1]:.2f}x"
        lines.append(f"  {' '.join(rest):<50}{interval:>18}")
    lines += [line for text in explanation.words for line in ("", *textwrap.wrap(text, WIDTH))]
    lines += ["", *(line for note in notes(prediction) for line in textwrap.wrap(note, WIDTH))]
    if elasticities:
        lines += ["", f"{'constant':<28}{'d ln tok/s / d ln price':>24}{'uncertainty':>13}"]
        lines += [f"{s.constant:<28}{s.throughput:>24.3f}{s.log_std:>12.0%}" for s in explanation.sensitivities]
    return "\n".join(lines)


def explain_json(explanation: "Explanation") -> dict[str, Any]:
    """Returns the object that `explain --json` prints."""
    prediction = explanation.prediction
    return {
        "schema_version": 1,
        "baseline": {
            "output_tokens_per_s": prediction.mean("output_tokens_per_s"),
            "interval": list(Confidence(prediction).interval("output_tokens_per_s")),
            "e2e_s": prediction.latency("e2e_s").mean,
        },
        "speedup_of": goal(prediction.workload),
        "changes": [
            {
                "change": change.label,
                "kind": change.kind,
                "cost": change.key or None,
                "output_tokens_per_s": change.output_tokens_per_s,
                "ttft_s": change.latencies[0],
                "e2e_s": change.latencies[1],
                "speedup": change.speedup,
                "interval": list(change.interval),
            }
            for change in explanation.changes
        ],
        "words": list(explanation.words),
        "notes": notes(prediction),
        "elasticities": [
            {"constant": s.constant, "output_tokens_per_s": s.throughput, "log_std": s.log_std}
            for s in explanation.sensitivities
        ],
    }
