"""The answer of `plan`: one 80-column screen, one JSON object. Nothing is computed here but layout and units."""

import math
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pipesim.changes import goal
from pipesim.deployment import ParallelPlan
from pipesim.overload import Overload, overload
from pipesim.planning.flags import arguments, plan_flags, setting_flags, settings_json
from pipesim.planning.question import SECONDS_PER_HOUR, Job
from pipesim.planning.search import Plan, PlanSearch
from pipesim.planning.space import Rejection, smallest_box
from pipesim.reasons import binding_limit, caveats, notes, overload_words
from pipesim.report import (
    WIDTH,
    arrivals,
    closed_form_json,
    deployment_json,
    lengths,
    metrics_json,
    overload_json,
    time_text,
    workload_json,
)
from pipesim.sensitivity import HEADLINES, LEVEL, Z

MOST_ROWS = 10
RANKED_BY = {"throughput": "output tok/s", "latency": "E2E latency", "cost": "cost per output token"}
LIMIT_FLAGS = {"ttft_s": "--max-ttft", "tpot_s": "--max-tpot"}
TOKENS_PRICED = 1e6
LACKS_MEMORY = "too little GPU memory for the weights"
NUMBER, GIVEN = re.compile(r"\d[\d.,]*"), re.compile(r": [^:]* was given, ")
"""A number, and the value in a refusal, which stands in the plan's name already."""


def plan_json(found: PlanSearch, job: Job) -> dict[str, Any]:
    """Returns the object that `plan --json` prints: plans best first, then the rejected ones with reasons."""
    question, objective = found.question, found.question.objective
    return {
        "schema_version": 1,
        "feasible": bool(found.plans),
        "meets_slo": found.best is not None,
        "question": {
            "model": question.model.name,
            "hardware": [box.name for box in question.boxes],
            "engines": list(question.engines),
            "gpus": question.gpus,
            "fixed": {name: list(v) if isinstance(v, tuple) else v for name, v in question.fixed.items()},
            "rank_by": objective.rank_by,
            "slo": {"percentile": objective.percentile, "max_ttft_s": objective.max_ttft_s}
            | {"max_tpot_s": objective.max_tpot_s},
            "gpu_hour_price": dict(objective.gpu_hour_price) if objective.gpu_hour_price else None,
            "workload": workload_json(question.workload),
        },
        "considered": found.considered,
        "simulated": found.simulated,
        "simulated_workload": workload_json(found.simulated_load),
        "nearest_miss": nearest_miss(found),
        "overload": overload_json(_overload(found)),
        "probability_best_by_split": [
            {"hardware": split.hardware, "engine": split.engine, "plan": split.plan, "probability": chance}
            for split, chance in sorted(found.split_odds.items(), key=lambda item: -item[1])
            if chance
        ],
        "plans": [_plan_json(found, plan, job) for plan in found.plans]
        + [_rejection_json(found, rejection) for rejection in found.rejections],
    }


def _plan_json(found: PlanSearch, plan: Plan, job: Job) -> dict[str, Any]:
    deployment, prediction = plan.deployment, plan.prediction
    metrics = metrics_json(prediction) if prediction else _closed_metrics(found, plan)
    return {
        "rank": plan.rank,
        "feasible": True,
        "meets_slo": plan.meets_slo,
        **_split_json(deployment.hardware.name, deployment.engine.name, deployment.plan),
        "gpus": plan.candidate.gpus,
        "output_tokens_per_s": plan.figures.output_tokens_per_s,
        "output_tokens_per_s_per_gpu": plan.output_tokens_per_s_per_gpu,
        "output_tokens_per_s_per_request": plan.per_request,
        **{name: metrics[name]["mean"] for name in ("ttft_s", "tpot_s", "e2e_s")},
        "bubble_fraction": metrics["bubble_fraction"],
        "interval": {name: list(interval(plan, name, _mean(metrics[name]))) for name in HEADLINES if name in metrics}
        | {"level": LEVEL},
        "method": "simulation" if prediction else "closed_form",
        "seeds": len(prediction.runs) if prediction else 0,
        "pareto": plan.pareto,
        "probability_best": plan.odds.best,
        "probability_meets_slo": plan.odds.keeps_limits,
        "settings": settings_json(deployment.engine, list(deployment.layers)),
        "arguments": arguments(deployment),
        "deployment": deployment_json(deployment),
        "notes": notes(prediction) if prediction else caveats(deployment),
        "metrics": metrics,
        "closed_form": closed_form_json(plan.candidate.closed_form),
        **_money(found, plan, job),
    }


def _split_json(hardware: str, engine: str, plan: ParallelPlan) -> dict[str, Any]:
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "ep", "replicas", "dp_attention", "dcp")}
    return {"hardware": hardware, "engine": engine, **degrees}


def _rejection_json(found: PlanSearch, rejection: Rejection) -> dict[str, Any]:
    plan = rejection.plan
    partition = None if plan.layer_partition is None else list(plan.layer_partition)
    split = _split_json(rejection.hardware.name, rejection.settings.name, plan)
    return {
        "rank": None,
        "feasible": False,
        "meets_slo": False,
        **split,
        "gpus": plan.gpus,
        "settings": settings_json(rejection.settings, partition),
        "deployment": {"model": found.question.model.name, **split, "layer_partition": partition},
        "reasons": list(rejection.reasons),
    }


def _closed_metrics(found: PlanSearch, plan: Plan) -> dict[str, Any]:
    """Returns what the closed form, corrected by simulated plans of the kind, says under the names of `predict`."""
    figures, steady = plan.figures, plan.candidate.closed_form
    # It knows one value, and no spread over requests.
    one: dict[str, Any] = {
        name: dict.fromkeys(("mean", "p50", "p99"), getattr(figures, name)) for name in ("ttft_s", "tpot_s", "e2e_s")
    }
    return {
        "output_tokens_per_s": figures.output_tokens_per_s,
        "output_tokens_per_s_per_request": plan.per_request,
        "request_throughput_per_s": figures.output_tokens_per_s / found.question.workload.output_len,
        **one,
        "step_time_s": steady.step_time_s,
        "bubble_fraction": steady.bubble_fraction,
        "micro_batches_in_flight": float(steady.micro_batches),
    }


def interval(plan: Plan, metric: str, middle: float) -> tuple[float, float]:
    """Returns the 80 % interval of a headline metric around its value."""
    spread = math.exp(Z * plan.log_stds[metric])
    return middle / spread, middle * spread


def _mean(value: Any) -> float:
    return float(value["mean"]) if isinstance(value, dict) else float(value)


def _money(found: PlanSearch, plan: Plan, job: Job) -> dict[str, Any]:
    objective = found.question.objective
    gpus, output = plan.candidate.gpus, plan.figures.output_tokens_per_s
    per_hour = gpus * objective.price_of(plan.deployment.hardware.name) if objective.gpu_hour_price else None
    document: dict[str, Any] = {}
    if per_hour is not None:
        document["cost_per_million_output_tokens"] = per_hour / (output * SECONDS_PER_HOUR) * TOKENS_PRICED
    if job.output_tokens or job.requests:
        seconds = job.seconds(output, output / found.question.workload.output_len)
        document["job"] = {
            "hours": seconds / SECONDS_PER_HOUR,
            "cost": None if per_hour is None else per_hour * seconds / SECONDS_PER_HOUR,
            "energy_kwh": job.kwh(seconds, gpus),
        }
    return document


def nearest_miss(found: PlanSearch) -> dict[str, Any] | None:
    """Returns the plan that comes nearest to the limits when none keeps them, and by how much it misses each."""
    if found.best is not None or not found.plans:
        return None
    plan, objective = found.plans[0], found.question.objective
    missed = {
        name: {"value": getattr(plan.figures, name), "limit": limit}
        for name, limit in objective.limits.items()
        if getattr(plan.figures, name) > limit
    }
    binds = binding_limit(plan.prediction) if plan.prediction else None
    return {"rank": plan.rank, "plan": str(plan.deployment.plan), "missed": missed, "binding_limit": binds}


def _overload(found: PlanSearch) -> Overload | None:
    first = found.plans[0].prediction if found.plans else None
    return overload(first) if first else None


def plan_text(found: PlanSearch, job: Job, defaults: Sequence[str]) -> str:
    """Returns the screen that `plan` prints."""
    if not found.plans:
        return "\n".join([*_heading(found, defaults), "", *_nothing_fits(found)])
    lines = [*_heading(found, defaults), "", *_table(found), "", *_sure(found)]
    if words := overload_words(_overload(found)):
        lines = [*textwrap.wrap(f"{found.plans[0].deployment.plan} is best. {words}", WIDTH), "", *lines]
    lines += [line for text in _advice(found, job) for line in textwrap.wrap(text, WIDTH)]
    return "\n".join([*lines, "", *_rejected(found)]).rstrip()


def _heading(found: PlanSearch, defaults: Sequence[str]) -> list[str]:
    question, objective = found.question, found.question.objective
    boxes = " or ".join(f"{question.gpus_of(box)} GPUs of {box.name}" for box in question.boxes)
    workload = question.workload
    text = [f"{question.model.name} on {boxes}, {' or '.join(question.engines)}"]
    text.append(f"load: {arrivals(workload)} of {lengths(workload)}")
    limits = [
        f"{objective.percentile} {name[:4].upper()} at most {time_text(limit)}"
        for name, limit in objective.limits.items()
    ]
    kept = f"; limits: {', '.join(limits)}" if limits else ""
    fixed = " (the rate of requests fixes tok/s)" if goal(workload) == "e2e_s" else ""
    ranked = objective.rank_by or "throughput"
    text.append(f"ranked by {RANKED_BY[ranked]}{fixed * (ranked == 'latency')}{kept}")
    if defaults:
        text.append(f"defaults: {', '.join(defaults)}")
    shorter = found.simulated_load.num_prompts
    if shorter < workload.num_prompts:
        text.append(f"simulated with {shorter:,} of the {workload.num_prompts:,} requests")
    text.append(
        f"{found.considered:,} configurations considered, {found.simulated} simulated, "
        f"{len(found.rejections)} cannot run"
    )
    return [line for part in text for line in textwrap.wrap(part, WIDTH, subsequent_indent="  ")]


def _table(found: PlanSearch) -> list[str]:
    percentile = found.question.objective.percentile
    lines = [
        f"{'':<21}{'':>8}{'80 %':>13}{'tok/s per':>13}{percentile:>9}{percentile:>9}",
        f"{'':>6}{'split':<15}{'tok/s':>8}{'interval':>13}{'GPU':>7}{'user':>6}{'TTFT':>9}{'TPOT':>9}{'bubble':>7}",
    ]
    for plan in _best_of_splits(found):
        lines += _row(found, plan)
    marks = ["* on the Pareto front of tok/s per GPU against tok/s per user"]
    if any(plan.prediction is None for plan in _best_of_splits(found)):
        marks.append("~ closed form alone")
    if found.plans and (note := found.plans[0].deployment.memory_note):
        marks += textwrap.wrap(note, WIDTH)
    return [*lines, *marks]


def _row(found: PlanSearch, plan: Plan) -> list[str]:
    low, high = interval(plan, "output_tokens_per_s", plan.figures.output_tokens_per_s)
    rank = f"{plan.rank}{'*' if plan.pareto else ' '}"
    mark = "~" if plan.prediction is None else " "
    name = short_name(found, plan)
    numbers = (
        f"{mark}{plan.figures.output_tokens_per_s:>7,.0f}{f'{_short(low)}–{_short(high)}':>13}"
        f"{plan.output_tokens_per_s_per_gpu:>7,.0f}{plan.per_request:>6,.1f}{time_text(plan.figures.ttft_s):>9}"
        f"{time_text(plan.figures.tpot_s):>9}{_bubble(plan):>7.0%}"
    )
    lead = f"{rank:>5} {name:<15}"
    first = [lead + numbers] if len(name) < 15 else [lead, f"{'':<21}{numbers}"]
    flags = " ".join(plan_flags(plan.deployment))
    missed = "" if plan.meets_slo else "misses the limits; "
    note = textwrap.wrap(missed + (flags or "engine defaults"), WIDTH - 7, break_on_hyphens=False)
    return first + [f"{'':>7}{line}" for line in note]


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate < 9999.5 else f"{rate / 1000:.1f}k"


def short_name(found: PlanSearch, plan: Plan) -> str:
    """Returns what tells a plan's split from the others of its search."""
    deployment = plan.deployment
    parts = [str(deployment.plan)]
    parts += [deployment.engine.name] * (len(found.question.engines) > 1)
    parts += [deployment.hardware.name] * (len(found.question.boxes) > 1)
    return " ".join(parts)


def _bubble(plan: Plan) -> float:
    return plan.prediction.mean("bubble_fraction") if plan.prediction else plan.candidate.closed_form.bubble_fraction


def _best_of_splits(found: PlanSearch) -> list[Plan]:
    """Returns the first plan of every split, of those simulated where any was: what was only hoped for is no row."""
    best: dict[object, Plan] = {}
    for plan in sorted(found.plans, key=lambda plan: (plan.prediction is None, plan.rank)):
        best.setdefault(plan.candidate.split, plan)
    return sorted(best.values(), key=lambda plan: plan.rank)[:MOST_ROWS]


def _sure(found: PlanSearch) -> list[str]:
    """How sure the first place is, in words."""
    first = found.plans[0]
    ranked = sorted(found.split_odds.items(), key=lambda item: -item[1])
    own = found.split_odds[first.candidate.split]
    others = [f"{split.plan} {chance:.0%}" for split, chance in ranked if split != first.candidate.split][:3]
    text = f"{first.candidate.split.plan} is truly the best split with a chance of {own:.0%}"
    text += f" (then {', '.join(others)})" if others and not own >= 0.995 else ""
    if first.odds.keeps_limits < 0.995 and found.question.objective.limits:
        text += f"; it keeps the limits with a chance of {first.odds.keeps_limits:.0%}"
    return textwrap.wrap(f"{text}. Errors of plans on one box go together, as they share its constants.", WIDTH)


def _advice(found: PlanSearch, job: Job) -> Iterator[str]:
    """What to do with the first plan, or why there is none that keeps the limits."""
    miss, first = nearest_miss(found), found.plans[0]
    if miss is not None:
        over = " and ".join(
            f"{found.question.objective.percentile} {name[:4].upper()} is {time_text(item['value'])} where "
            f"{LIMIT_FLAGS[name]} allows {time_text(item['limit'])}"
            for name, item in miss["missed"].items()
        )
        yield f"No plan keeps the limits. The nearest is number {miss['rank']}, {miss['plan']}: its {over}."
    if first.prediction is not None:
        yield binding_limit(first.prediction)
    if first.deployment.engine.kv_cache_dtype == "fp8":
        yield (
            "Number 1 stores the KV cache in 8 bits, which can change answers: check quality, or leave it out with "
            "--kv-cache-dtype auto."
        )
    yield from _job_words(found, first, job)
    yield from notes(first.prediction) if first.prediction else caveats(first.deployment)
    yield f"Look closer: pipesim predict {shlex.join(arguments(first.deployment))} (with the flags of the load)."


def _job_words(found: PlanSearch, plan: Plan, job: Job) -> Iterator[str]:
    money = _money(found, plan, job)
    if "cost_per_million_output_tokens" in money:
        yield f"A million output tokens cost {money['cost_per_million_output_tokens']:,.2f} on number {plan.rank}."
    if "job" in money:
        cost, energy = money["job"]["cost"], money["job"]["energy_kwh"]
        text = f"The job takes {money['job']['hours']:,.1f} h on number {plan.rank}"
        text += f", costs {cost:,.2f}" if cost is not None else ""
        yield text + (f" and draws {energy:,.1f} kWh." if energy is not None else ".")


def _rejected(found: PlanSearch) -> list[str]:
    """The refused ones by reason, most frequent first."""
    groups: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for rejection in found.rejections:
        reason = LACKS_MEMORY if " lacks " in rejection.reasons[0] else GIVEN.sub(": ", rejection.reasons[0])
        kind = NUMBER.sub("#", reason)
        texts.setdefault(kind, reason)
        flags = setting_flags(rejection.settings, rejection.plan)
        groups.setdefault(kind, []).append(" ".join([str(rejection.plan), *flags]))
    lines = ["cannot run"] if groups else []
    for kind, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        unique = list(dict.fromkeys(names))
        shown = ", ".join(unique[:8]) + (f" and {len(unique) - 8} more" if len(unique) > 8 else "")
        lines += textwrap.wrap(f"{shown}: {texts[kind]}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    return lines


def _nothing_fits(found: PlanSearch) -> list[str]:
    question = found.question
    lines = ["No plan can run."]
    short = [refused for refused in found.rejections if " lacks " in refused.reasons[0]]
    if short:
        largest = max(short, key=lambda refused: (refused.plan.gpus_per_replica, refused.plan.tp))
        lines.append(f"{largest.plan} on {largest.hardware.name}: {largest.reasons[0]}")
    for box in question.boxes if short else ():
        fewest = smallest_box(question, box)
        lines.append(
            f"On GPUs like those of {box.name} ({box.gpu.name}) the model and one request would fit on "
            + (f"{fewest}." if fewest else "no number up to 128.")
        )
    return [line for text in lines for line in textwrap.wrap(text, WIDTH)] + ["", *_rejected(found)]
