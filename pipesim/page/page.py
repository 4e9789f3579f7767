"""The page itself: words and tables of a study, put into the template."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipesim.evidence import evidence
from pipesim.hinges import hinges
from pipesim.overload import overload
from pipesim.page.pictures import RATE, pictures
from pipesim.page.study import Study
from pipesim.plots.shares import SHORT_NAMES
from pipesim.prediction import GIB, Prediction
from pipesim.reasons import binding_limit, hinge_words, notes, overload_words
from pipesim.report import arrivals, lengths, time_text
from pipesim.sensitivity import LEVEL, Confidence


class Row(NamedTuple):
    """One split in the table of splits, as it is written there."""

    plan: str
    chosen: bool
    gpus: int
    output: str
    interval: str
    per_user: str
    ttft: str
    tpot: str
    bubbles: str
    largest: str
    kv_tokens: str
    free: str


def report_page(study: Study) -> str:
    """Returns a study as an HTML page that holds all it needs."""
    loader = PackageLoader("pipesim.page", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2").render(_content(study)) + "\n"


def _content(study: Study) -> dict[str, Any]:
    chosen = study.chosen
    deployment = chosen.deployment
    found = evidence(chosen)
    sources = list(dict.fromkeys((item.source, item.basis, item.text) for item in found))
    basis = [f"{share:.0%} {name}" for name, share in chosen.basis.items() if share]
    return {
        "model": deployment.model.name,
        "hardware": deployment.hardware,
        "plan": str(deployment.plan),
        "engine": deployment.engine.name,
        "question": dict(_question(study)),
        "answer": _answer(study),
        "figures": _key_figures(chosen, study.confidence),
        "overload": overload_words(overload(chosen)),
        "limit": binding_limit(chosen),
        "hinges": hinge_words(hinges(chosen)),
        "rivals": _rivals(study),
        "splits": [
            _row(prediction, interval, prediction is chosen)
            for prediction, interval in zip(study.splits, study.intervals, strict=True)
        ],
        "refused": [(str(plan), reason) for plan, reason in study.refused],
        "pictures": pictures(study),
        "launch": study.launch,
        "basis": ", ".join(basis),
        "evidence": found,
        "sources": sources,
        "numbers": {name: number for number, (name, _, _) in enumerate(sources, start=1)},
        "notes": notes(chosen),
        "level": f"{LEVEL:.0%}",
        "seeds": len(chosen.runs),
        "version": version("pipesim"),
    }


def _question(study: Study) -> Iterator[tuple[str, str]]:
    """Yields what was asked, and what was not said and is assumed."""
    deployment, workload = study.chosen.deployment, study.chosen.workload
    settings = deployment.engine
    yield "Model", f"{deployment.model.name} ({deployment.model.layers} layers)"
    yield "Box", deployment.hardware.description
    mode = "CUDA graphs" if settings.cuda_graph else "kernels launched from Python"
    yield "Engine", f"{settings.name}, {mode}"
    yield "Load", f"{arrivals(workload)} of {lengths(workload)} tokens"
    yield "Split", f"{deployment.plan}, as asked" if study.asked_for else "the fastest of those that hold the model"
    if study.defaults:
        yield "Assumed, since not said", ", ".join(study.defaults)


def _answer(study: Study) -> str:
    low, high = study.confidence.interval(RATE)
    rate = f"{study.chosen.mean(RATE):,.0f} tok/s ({low:,.0f} to {high:,.0f} with {LEVEL:.0%} confidence)"
    return f"{study.chosen.deployment.plan}: {rate}"


def _key_figures(chosen: Prediction, confidence: Confidence) -> list[tuple[str, str, str]]:
    """Returns name, value and interval or remark of the numbers that a reader asks for first."""
    figures = []
    for name, metric in (("Output", RATE), ("Per user", "output_tokens_per_s_per_request")):
        low, high = confidence.interval(metric)
        figures.append(
            (name, f"{_three_digits(chosen.mean(metric))} tok/s", " to ".join(map(_three_digits, (low, high))))
        )
    for name, metric in (("TTFT, mean", "ttft_s"), ("TPOT, mean", "tpot_s")):
        low, high = confidence.interval(metric)
        figures.append((name, time_text(chosen.latency(metric).mean), f"{time_text(low)} to {time_text(high)}"))
    stages = range(chosen.deployment.plan.pp)
    tightest = min(stages, key=chosen.free_bytes)
    gpu = chosen.deployment.plan.stage_gpus(tightest)[0]
    figures.append(("Least free memory", f"{chosen.free_bytes(tightest) / GIB:,.1f} GiB", f"GPU {gpu}"))
    figures.append(("Bubbles", f"{chosen.mean('bubble_fraction'):.0%}", "of the GPUs' time"))
    return figures


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def _rivals(study: Study) -> str:
    """Says which other splits may be as fast on the box itself."""
    own = study.confidence.interval(RATE)
    near = [
        str(other.deployment.plan)
        for other, interval in zip(study.splits, study.intervals, strict=True)
        if other is not study.chosen and _overlap(own, interval)
    ]
    if not near:
        return "No other split comes within its interval." if len(study.splits) > 1 else ""
    *most, last = near
    names = f"{', '.join(most)} and {last}" if most else last
    overlap = f"intervals of {names} overlap" if most else f"interval of {names} overlaps"
    return f"The {overlap} with this one: a run on the box may put another split first."


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _row(prediction: Prediction, interval: tuple[float, float], chosen: bool) -> Row:
    plan = prediction.deployment.plan
    largest = max(prediction.breakdown, key=lambda name: prediction.breakdown[name])
    return Row(
        plan=str(plan),
        chosen=chosen,
        gpus=plan.gpus,
        output=f"{prediction.mean(RATE):,.0f}",
        interval=" to ".join(f"{limit:,.0f}" for limit in interval),
        per_user=f"{prediction.mean('output_tokens_per_s_per_request'):,.1f}",
        ttft=time_text(prediction.latency("ttft_s").mean),
        tpot=time_text(prediction.latency("tpot_s").mean),
        bubbles=f"{prediction.mean('bubble_fraction'):.0%}",
        largest=f"{SHORT_NAMES[largest]} {prediction.breakdown[largest]:.0%}",
        kv_tokens=f"{prediction.kv_capacity_tokens:,}",
        free=f"{min(prediction.free_bytes(stage) for stage in range(plan.pp)) / GIB:,.1f}",
    )
