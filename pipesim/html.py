"""Answers as small HTML tables for a notebook. Nothing is computed here but layout."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from pipesim.hinges import hinges
from pipesim.overload import overload
from pipesim.reasons import NAMES, binding_limit, hinge_words, notes, overload_words
from pipesim.report import arrivals, lengths, time_text
from pipesim.sensitivity import LEVEL, Confidence
from pipesim.validation_report import compared, verdict

if TYPE_CHECKING:  # a prediction does without the modules of other answers
    from pipesim.planning.search import PlanSearch
    from pipesim.prediction import Prediction
    from pipesim.validation import Validation
    from pipesim.whatif import Explanation

BAR = 40
"""Characters of a bar of 100 %."""
MOST_PLANS = 10
LATENCIES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "ITL": "itl_s", "E2E": "e2e_s"}
RIGHT = ' style="text-align:right"'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """Returns a table whose first columns are words, on the left, and the others figures, on the right."""
    sides = ["" if column < words else RIGHT for column in range(len(header))]
    head = "".join(f"<th{side}>{escape(cell)}</th>" for side, cell in zip(sides, header, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{side}>{escape(cell)}</td>" for side, cell in zip(sides, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def paragraphs(texts: Iterable[str]) -> str:
    """Returns sentences as paragraphs."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def prediction_html(prediction: "Prediction", assumed: Sequence[str]) -> str:
    """Returns the figures of a prediction with their intervals, and a bar of where the GPUs' time goes."""
    deployment, confidence = prediction.deployment, Confidence(prediction)
    mode = "CUDA graphs" if deployment.engine.cuda_graph else "eager"
    heading = (
        f"{deployment.model.name} on {deployment.hardware.name}: {deployment.plan}, {deployment.engine.name}, {mode}"
    )
    load = f"{arrivals(prediction.workload)} of {lengths(prediction.workload)}"
    low, high = confidence.interval("output_tokens_per_s")
    rate = prediction.mean("output_tokens_per_s")
    rows = [["output", f"{rate:,.1f} tok/s", "", "", f"{low:,.1f} to {high:,.1f} tok/s"]]
    for label, name in LATENCIES.items():
        low, high = confidence.interval(name)
        figures = map(time_text, prediction.latency(name))
        rows.append([label, *figures, f"{time_text(low)} to {time_text(high)}"])
    return (
        paragraphs(filter(None, [overload_words(overload(prediction))]))
        + paragraphs([heading, load, *(["defaults: " + ", ".join(assumed)] if assumed else [])])
        + table(["", "mean", "p50", "p99", f"{LEVEL:.0%} interval of the mean"], rows)
        + shares(prediction.breakdown)
        + paragraphs([binding_limit(prediction), *hinge_words(hinges(prediction)), *notes(prediction)])
    )


def shares(breakdown: Mapping[str, float]) -> str:
    """Returns where the GPUs' time goes, largest share first, with bars of characters, which show everywhere."""
    largest = sorted(((name, share) for name, share in breakdown.items() if share >= 0.0005), key=lambda s: -s[1])
    rows = "".join(
        f"<tr><td>{escape(NAMES[name])}</td><td{RIGHT}>{share:.1%}</td>"
        f'<td style="text-align:left"><code>{"█" * round(share * BAR)}</code></td></tr>'
        for name, share in largest
    )
    head = f"<tr><th>where the GPUs' time goes</th><th{RIGHT}>share</th><th></th></tr>"
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def explanation_html(explanation: "Explanation") -> str:
    """Returns what each change would buy."""
    prediction = explanation.prediction
    rows = [
        (change.label, f"{change.output_tokens_per_s:,.1f}", f"{change.speedup:.2f}×", _span(*change.interval, "×"))
        for change in explanation.changes
    ]
    now = f"now {prediction.mean('output_tokens_per_s'):,.1f} tok/s"
    header = ["what one change would buy", "tok/s", "speed-up", f"{LEVEL:.0%} interval"]
    return paragraphs([now]) + table(header, rows) + paragraphs(explanation.words)


def _span(low: float, high: float, unit: str) -> str:
    return f"{low:.2f} to {high:.2f}{unit}"


def validation_html(validation: "Validation") -> str:
    """Returns predictions beside measured figures."""
    rows = [
        (row.id, row.metric, row.role, *compared(row), f"{row.tolerance:.0%}", verdict(row)) for row in validation.rows
    ]
    header = ["run", "metric", "role", "measured", "predicted", "error", "tolerance", ""]
    worst = validation.worst
    reasons = {row.id: row.reason for row in validation.rows if row.reason}
    words = [f"{run} cannot be predicted: {reason}" for run, reason in reasons.items()]
    words += [f"assumed: {text}" for text in validation.assumptions]
    if worst is not None:
        words.insert(
            0,
            f"validation rows: mean absolute error {validation.mean_abs_relative_error:.1%}, worst "
            f"{worst.relative_error:+.1%} ({worst.id}); {validation.coverage:.0%} lie in the {LEVEL:.0%} interval",
        )
    return table(header, rows, 3) + paragraphs(words)


def plans_html(found: "PlanSearch", settings: Sequence[str], intervals: Sequence[tuple[float, float]]) -> str:
    """Returns the first plans, each with its flags beyond the engine's defaults and the interval of its rate."""
    percentile = found.question.objective.percentile
    rows = []
    for plan, flags, (low, high) in zip(found.plans[:MOST_PLANS], settings, intervals, strict=False):
        deployment, figures = plan.deployment, plan.figures
        name = f"{deployment.plan} {flags}".strip()
        rates = (f"{figures.output_tokens_per_s:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{plan.per_request:,.1f}")
        times = (time_text(figures.ttft_s), time_text(figures.tpot_s))
        chances = ("yes" if plan.meets_slo else "no", f"{plan.odds.best:.0%}")
        rows.append((str(plan.rank), name, deployment.hardware.name, deployment.engine.name, *rates, *times, *chances))
    header = ["", "plan", "hardware", "engine", "tok/s", f"{LEVEL:.0%} interval", "per user"]
    header += [f"{percentile} TTFT", f"{percentile} TPOT", "keeps limits", "chance of best"]
    count = f"{found.considered:,} configurations considered, {found.simulated} simulated, "
    count += f"{len(found.rejections)} cannot run"
    return paragraphs([count]) + table(header, rows, 4)


def preformatted(texts: Iterable[str]) -> str:
    """Returns texts whose columns are aligned by blanks."""
    return "".join(f"<pre>{escape(text)}</pre>" for text in texts)
