"""The forms in which `-o FILE` writes an answer, by the suffix of the file."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pipesim import answer_files, report
from pipesim.commands.shared import PICTURES
from pipesim.prediction import Prediction, Predictor

if TYPE_CHECKING:  # a prediction does without the modules of other commands
    from matplotlib.figure import Figure

    from pipesim.validate import Validation

Forms = Mapping[str, Callable[[], str | bytes]]


def predict_forms(prediction: Prediction, seed: int) -> Forms:
    """Returns what writes a prediction, by suffix; its picture shows the run of one seed."""

    def figure() -> "Figure":
        from pipesim.plots.figures import predict_figure  # noqa: PLC0415 - matplotlib takes a second to load

        return predict_figure(prediction, Predictor(prediction.deployment).simulate(prediction.workload, seed))

    return {
        ".json": lambda: answer_files.json_text(report.predict_json(prediction)),
        ".csv": lambda: answer_files.predict_csv(prediction),
        ".md": lambda: answer_files.predict_markdown(prediction),
        **_pictures(figure),
    }


def validate_forms(validation: "Validation") -> Forms:
    """Returns what writes a validation, by suffix."""

    def figure() -> "Figure":
        from pipesim.plots.figures import validate_figure  # noqa: PLC0415 - matplotlib takes a second to load

        return validate_figure(validation)

    return {
        ".json": lambda: answer_files.json_text(report.validate_json(validation)),
        ".csv": lambda: answer_files.validate_csv(validation),
        ".md": lambda: report.validate_markdown(validation) + "\n",
        **_pictures(figure),
    }


def _pictures(figure: Callable[[], "Figure"]) -> Forms:
    def render(form: str) -> bytes:
        from pipesim.plots.style import rendered  # noqa: PLC0415 - matplotlib takes a second to load

        return rendered(figure(), form)

    return {suffix: lambda form=suffix[1:]: render(form) for suffix in PICTURES}  # type: ignore[misc]
