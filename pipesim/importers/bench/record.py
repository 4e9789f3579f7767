"""What every benchmark file is turned into: the facts of one run, under the names of a measured-run file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MILLISECOND = 1e-3
LARGEST = 10**15


class RefusedError(Exception):
    """A part of a file that is no usable run: its key, what was given and what is wanted."""

    def __init__(self, key: str, given: str, wanted: str) -> None:
        super().__init__(key, given, wanted)
        self.key, self.given, self.wanted = key, given, wanted


@dataclass(frozen=True)
class BenchRun:
    """One run as its file states it. `plan`, `engine` and `workload` hold only what is stated or follows from it."""

    tool: str
    """The program that wrote the file."""
    measured: Mapping[str, float]
    """By the names of `measured.METRICS`, in SI units, means."""
    workload: Mapping[str, Any]
    plan: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    """Names that the file has for the model: Hugging Face ids, paths, names that it was served under."""
    gpu: str | None = None
    """As the file names it."""
    date: str | None = None
    assumed: tuple[str, ...] = ()
    """Keys above that the file does not state and the reader estimated."""
    notes: tuple[str, ...] = ()
    """For a person: what was left out or looks odd."""
    unjudged: str = ""
    """Why a prediction cannot be held against this run; empty if it can."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Metric, or fact of `totals` → the file's own field."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """What the file's own figures are checked against: `duration_s`, `output_tokens`, `completed`, `in_flight`."""


class Fields:
    """The fields of one JSON object. What is null, NaN or infinite is told apart from what is there."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.notes: list[str] = []

    def number(self, key: str) -> float | None:
        """Returns a field's number; None when it is missing, null, NaN or infinite.

        Raises:
            RefusedError: when it is of another kind.
        """
        value = self.document.get(key)
        if value is None:
            return None
        number = as_number(value)
        if number is None:
            raise RefusedError(key, shown(value), "a number")
        if not math.isfinite(number):
            self.notes.append(f"{key} is {value} and is left out")
            return None
        if abs(number) > LARGEST:
            raise RefusedError(key, shown(value), f"a number of at most {LARGEST:,}")
        return number

    def count(self, key: str) -> int | None:
        """Returns a field's whole number, rounded; None when there is none. Raises RefusedError."""
        number = self.number(key)
        if number is not None and number < 0:
            raise RefusedError(key, shown(self.document[key]), "a number of at least 0")
        return None if number is None else round(number)

    def text(self, key: str) -> str | None:
        """Returns a field's text; None when it is missing, null, empty or of another kind."""
        value = self.document.get(key)
        return value if isinstance(value, str) and value else None

    def texts(self, *keys: str) -> tuple[str, ...]:
        """Returns the texts of those fields that have one."""
        return tuple(text for key in keys if (text := self.text(key)) is not None)

    def completed(self, key: str) -> int:
        """Returns how many requests were served. Raises RefusedError when there is none."""
        served = self.count(key)
        if not served:
            given = "nothing" if served is None else "0, a run in which no request was completed,"
            raise RefusedError(key, given, "the number of completed requests, at least 1")
        return served

    def metrics(self, keys: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
        """Returns metric → value × `scale` of those of `keys` (metric → field) that are there and above zero.

        Raises:
            RefusedError: for a negative one.
        """
        found = {}
        for metric, key in keys.items():
            value = self.number(key)
            if value is None or value == 0:
                continue
            if value < 0:
                raise RefusedError(key, shown(self.document[key]), "a number above 0")
            found[metric] = tidy(value * scale)
        return found

    def lengths(self, key: str) -> list[float]:
        """Returns the numbers above zero of a list; empty when there is no such list."""
        values = self.document.get(key)
        found = [as_number(value) for value in values] if isinstance(values, list) else []
        return [value for value in found if value is not None and 0 < value < math.inf]


def tidy(value: float) -> float:
    """Returns a number without what binary fractions add in the last digits: 0.0419 for 41.9 × 0.001."""
    return float(f"{value:.12g}")


def as_number(value: object) -> float | None:
    """Returns a number, or a string that holds one, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def as_flag(value: object) -> bool | None:
    """Returns a truth value, or a word or number for one, as a bool; None for anything else."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return words.get(str(value).lower())


def shown(value: object) -> str:
    """Returns a value as a complaint shows it, cut to one line's length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def spread_ratio(mean: float, deviation: float) -> float:
    """Returns the `random_range_ratio` r whose uniform lengths in [L(1−r), L(1+r)] have this standard deviation.

    That of a uniform distribution of half-width rL is rL/√3; a wider one than [0, 2L] is cut to it.
    """
    return round(min(1.0, math.sqrt(3.0) * deviation / mean), 3) if mean > 0 else 0.0


def arrivals(
    rate: object, most: int | None, served: int, in_flight: float | None, burstiness: float | None = None
) -> dict[str, Any]:
    """Returns the keys of a workload that say how requests come.

    An infinite rate, or none, is a closed loop: `most` users who all begin at once and ask again when they are
    answered, or everyone at once. A finite rate is an open loop, in which `most` is a limit.

    Args:
        rate: requests per second as the file gives it: a number, "inf" or None.
        most: the limit on requests in flight, if any.
        served: requests in all.
        in_flight: mean number of requests in the server, if stated.
        burstiness: shape of the gamma distribution of gaps, if stated.
    """
    per_second = as_number(rate)
    if per_second is None or not math.isfinite(per_second):
        return {"concurrency": most or served, "spacing": "0 s"}
    load: dict[str, Any] = {"concurrency": most or max(1, round(in_flight or served)), "request_rate": per_second}
    if most:
        load["max_concurrency"] = most
    if burstiness is not None:
        load["burstiness"] = burstiness
    return load
