"""Answers as files for other programs: CSV and Markdown beside the JSON of `report`."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipesim.prediction import Prediction
from pipesim.reasons import NAMES
from pipesim.report import LATENCIES, bar, explain_json, heading, largest_first, predict_json, time_text
from pipesim.sensitivity import LEVEL, Confidence
from pipesim.tables import Table

if TYPE_CHECKING:  # a prediction does without the modules of other commands
    from pipesim.validation import Validation
    from pipesim.whatif import Explanation

BAR = 40
"""Characters of a bar of 100 %."""


def json_text(document: Mapping[str, Any]) -> str:
    """Returns a document as `--json` prints it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def predict_csv(prediction: Prediction) -> str:
    """Returns one row under its header: every single number and name of the JSON, nested keys joined by dots.

    Intervals end in `.low` and `.high`. GPUs and notes, of which there are several, are in the JSON alone.
    """
    document = {key: value for key, value in predict_json(prediction).items() if key not in {"gpus", "notes"}}
    flat = dict(_flat("", document))
    return csv_text(list(flat), [list(flat.values())])


def plan_csv(document: Mapping[str, Any]) -> str:
    """Returns one row per plan, best first and the rejected ones last: the single values of its JSON entry."""
    plain = (str, int, float, bool, type(None))
    plans = [
        {key: value for key, value in plan.items() if isinstance(value, plain)}
        | {"reasons": " ".join(plan.get("reasons", ()))}
        for plan in document["plans"]
    ]
    header = list(dict.fromkeys(key for plan in plans for key in plan))
    return csv_text(header, [[plan.get(key) for key in header] for plan in plans])


def _flat(key: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(f"{key}.{name}" if key else name, part)
    elif isinstance(value, list):
        if key.startswith("interval."):
            yield from zip((f"{key}.low", f"{key}.high"), value, strict=True)
        else:
            yield key, ",".join(map(str, value))
    else:
        yield key, value


def validate_csv(validation: "Validation") -> str:
    """Returns a row for every comparison, under the names of the JSON."""
    from pipesim.validation_report import validate_json  # noqa: PLC0415 - a prediction does without it

    return _rows_csv(validate_json(validation)["runs"])


def explain_csv(explanation: "Explanation") -> str:
    """Returns a row for every change, under the names of the JSON."""
    return _rows_csv(explain_json(explanation)["changes"])


def _rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns objects of the same keys as CSV, their interval in two columns at the end."""
    names = [name for name in rows[0] if name != "interval"] if rows else []
    table = [[*(row[name] for name in names), *row["interval"]] for row in rows]
    return csv_text([*names, "interval_low", "interval_high"], table)


def changes_table(explanation: "Explanation") -> Table:
    """Returns what each change would buy."""
    rows = [
        (
            change.label,
            f"{change.output_tokens_per_s:,.1f}",
            f"{change.speedup:.2f}×",
            f"{change.interval[0]:.2f} to {change.interval[1]:.2f}×",
        )
        for change in explanation.changes
    ]
    return Table(["what one change would buy", "tok/s", "speed-up", f"{LEVEL:.0%} interval"], rows)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns a table as CSV: RFC 4180, but lines end in a line feed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def figures_table(prediction: Prediction) -> Table:
    """Returns the throughput and the latencies of a prediction with their intervals."""
    confidence = Confidence(prediction)
    low, high = confidence.interval("output_tokens_per_s")
    rate = f"{prediction.mean('output_tokens_per_s'):,.1f} tok/s"
    rows = [["output", rate, "", "", f"{low:,.1f} to {high:,.1f} tok/s"]]
    for label, name in LATENCIES.items():
        interval = " to ".join(map(time_text, confidence.interval(name)))
        rows.append([label, *map(time_text, prediction.latency(name)), interval])
    return Table(["", "mean", "p50", "p99", f"{LEVEL:.0%} interval of the mean"], rows)


def shares_table(prediction: Prediction) -> Table:
    """Returns where the GPUs' time goes, largest share first, with bars of characters, which show everywhere."""
    rows = [(NAMES[name], f"{share:.1%}", bar(share, BAR)) for name, share in largest_first(prediction.breakdown)]
    return Table(["where the GPUs' time goes", "share", ""], rows)


def predict_markdown(prediction: Prediction) -> str:
    """Returns a prediction as two tables in Markdown: its numbers with their intervals, and where the time goes."""
    tables = figures_table(prediction), shares_table(prediction)
    return "\n".join([f"### {heading(prediction)}\n", *(table.markdown() for table in tables)])
