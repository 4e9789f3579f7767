"""The forms in which `-o FILE` writes an answer, by the suffix of the file."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pipesim import answer_files, report
from pipesim.commands.shared import PICTURES
from pipesim.prediction import Prediction, Predictor

if TYPE_CHECKING:  # a prediction does without the modules of other commands
    from pipesim.planning.search import PlanSearch
    from pipesim.validation import Validation
    from pipesim.whatif import Explanation

Forms = Mapping[str, Callable[[], str | bytes]]


def predict_forms(prediction: Prediction, seed: int) -> Forms:
    """Returns what writes a prediction, by suffix; its picture shows the run of one seed."""

    def picture(form: str) -> Any:
        timeline = Predictor(prediction.deployment).simulate(prediction.workload, seed)
        return _figures().predict_picture(prediction, timeline, form)

    return {
        ".json": lambda: answer_files.json_text(report.predict_json(prediction)),
        ".csv": lambda: answer_files.predict_csv(prediction),
        ".md": lambda: answer_files.predict_markdown(prediction),
        **_pictures(picture),
    }


def validate_forms(validation: "Validation") -> Forms:
    """Returns what writes a validation, by suffix."""
    from pipesim import validation_report  # noqa: PLC0415 - a prediction does without it

    return {
        ".json": lambda: answer_files.json_text(validation_report.validate_json(validation)),
        ".csv": lambda: answer_files.validate_csv(validation),
        ".md": lambda: validation_report.validate_markdown(validation) + "\n",
        **_pictures(lambda form: _figures().validate_picture(validation, form)),
    }


def explain_forms(explanation: "Explanation") -> Forms:
    """Returns what writes an explanation, by suffix."""
    return {
        ".json": lambda: answer_files.json_text(report.explain_json(explanation)),
        ".csv": lambda: answer_files.explain_csv(explanation),
        ".md": answer_files.changes_table(explanation).markdown,
        **_pictures(lambda form: _figures().changes_picture(explanation, form)),
    }


def _figures() -> Any:
    from pipesim.plots import figures  # noqa: PLC0415 - matplotlib takes a second to load

    return figures


def _pictures(picture: Callable[[str], bytes]) -> Forms:
    return {suffix: partial(picture, suffix[1:]) for suffix in PICTURES}


def plan_forms(found: "PlanSearch", document: dict[str, Any]) -> Forms:
    """Returns what writes a search for the best plan, by suffix; its picture shows the simulated ones."""

    def picture(form: str) -> Any:
        from pipesim.plan_report import short_name  # noqa: PLC0415 - a prediction does without it
        from pipesim.plots.comparison import ParetoPoint  # noqa: PLC0415 - matplotlib takes a second to load

        best_of_splits = {plan.candidate.split: plan.rank for plan in reversed(found.plans)}
        points = [
            ParetoPoint(
                short_name(found, plan),
                plan.output_tokens_per_s_per_gpu,
                plan.per_request,
                on_front=plan.pareto,
                feasible=plan.meets_slo,
            )
            for plan in found.plans
            if plan.pareto or (plan.prediction and plan.rank == best_of_splits[plan.candidate.split])
        ]
        return _figures().pareto_picture(points, form)

    return {
        ".json": lambda: answer_files.json_text(document),
        ".csv": lambda: answer_files.plan_csv(document),
        **_pictures(picture),
    }
