"""Answers as small HTML tables for a notebook. Nothing is computed here but layout."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from pipesim.answer_files import changes_table, figures_table, shares_table
from pipesim.hinges import hinges
from pipesim.overload import overload
from pipesim.plan_report import interval
from pipesim.planning.flags import plan_flags
from pipesim.reasons import binding_limit, hinge_words, notes, overload_words
from pipesim.report import arrivals, heading, lengths, time_text
from pipesim.sensitivity import LEVEL
from pipesim.tables import Table
from pipesim.validation_report import comparison_table

if TYPE_CHECKING:  # a prediction does without the modules of other answers
    from pipesim.planning.search import PlanSearch
    from pipesim.prediction import Prediction
    from pipesim.validation import Validation
    from pipesim.whatif import Explanation

MOST_PLANS = 10


def paragraphs(texts: Iterable[str]) -> str:
    """Returns sentences as paragraphs."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def prediction_html(prediction: "Prediction", assumed: Sequence[str]) -> str:
    """Returns the figures of a prediction with their intervals, and a bar of where the GPUs' time goes."""
    load = f"{arrivals(prediction.workload)} of {lengths(prediction.workload)}"
    words = [heading(prediction), load, *(["defaults: " + ", ".join(assumed)] if assumed else [])]
    return (
        paragraphs(filter(None, [overload_words(overload(prediction))]))
        + paragraphs(words)
        + figures_table(prediction).html()
        + shares_table(prediction).html()
        + paragraphs([binding_limit(prediction), *hinge_words(hinges(prediction)), *notes(prediction)])
    )


def explanation_html(explanation: "Explanation") -> str:
    """Returns what each change would buy."""
    now = f"now {explanation.prediction.mean('output_tokens_per_s'):,.1f} tok/s"
    return paragraphs([now]) + changes_table(explanation).html() + paragraphs(explanation.words)


def validation_html(validation: "Validation") -> str:
    """Returns predictions beside measured figures."""
    worst = validation.worst
    reasons = {row.id: row.reason for row in validation.rows if row.reason}
    words = [f"{run} cannot be predicted: {reason}" for run, reason in reasons.items()]
    words += [f"assumed: {text}" for text in validation.assumptions]
    if worst is not None:
        errors = f"mean absolute error {validation.mean_abs_relative_error:.1%}, worst {worst.relative_error:+.1%}"
        covered = f"{validation.coverage:.0%} lie in the {LEVEL:.0%} interval"
        words.insert(0, f"validation rows: {errors} ({worst.id}); {covered}")
    return comparison_table(validation).html() + paragraphs(words)


def plans_html(found: "PlanSearch") -> str:
    """Returns the first plans, each with its flags beyond the engine's defaults and the interval of its rate."""
    percentile = found.question.objective.percentile
    rows = []
    for plan in found.plans[:MOST_PLANS]:
        deployment, figures = plan.deployment, plan.figures
        low, high = interval(plan, "output_tokens_per_s", figures.output_tokens_per_s)
        name = " ".join([str(deployment.plan), *plan_flags(deployment)])
        rates = (f"{figures.output_tokens_per_s:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{plan.per_request:,.1f}")
        times = (time_text(figures.ttft_s), time_text(figures.tpot_s))
        chances = ("yes" if plan.meets_slo else "no", f"{plan.odds.best:.0%}")
        rows.append((str(plan.rank), name, deployment.hardware.name, deployment.engine.name, *rates, *times, *chances))
    header = ["", "plan", "hardware", "engine", "tok/s", f"{LEVEL:.0%} interval", "per user"]
    header += [f"{percentile} TTFT", f"{percentile} TPOT", "keeps limits", "chance of best"]
    count = f"{found.considered:,} configurations considered, {found.simulated} simulated, "
    count += f"{len(found.rejections)} cannot run"
    return paragraphs([count]) + Table(header, rows, 4).html()


def preformatted(texts: Iterable[str]) -> str:
    """Returns texts whose columns are aligned by blanks."""
    return "".join(f"<pre>{escape(text)}</pre>" for text in texts)
