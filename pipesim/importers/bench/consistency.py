"""Whether a run's figures can be true together: seconds where milliseconds belong are found, and the field named.

What a benchmark prints is bound together by definitions: tokens = rate × time, end-to-end = TTFT + (n−1)·TPOT, requests
in flight = rate × end-to-end (Little's law). A ratio nearer to 1000 than to 1 is a unit; a smaller one is a note.
"""

import math
from collections.abc import Mapping
from itertools import combinations

from pipesim.importers import RefusedError
from pipesim.importers.bench.record import BenchRun

A_UNIT = math.sqrt(1000.0)
"""A ratio beyond this is nearer to 1000 than to 1."""
ODD = 1.5
LEAST_TPOT_S, MOST_TPOT_S = 1e-4, 30.0
"""No server gives one request 10,000 tokens a second; none that is measured gives it two a minute."""
LEAST_TTFT_IN_TPOT = 0.2
"""A first token takes a forward pass at least; a fifth of a decode step is already generous."""
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
SUSPECTS: tuple[tuple[str, ...], ...] = (
    *((name,) for name in ("duration_s", *LATENCIES, "output_tokens_per_s", "request_throughput_per_s")),
    *(names for size in (2, 3, 4) for names in combinations(LATENCIES, size)),
)
"""What may be in a wrong unit: one figure, or several latencies alike. The fewest that explain all are named."""

Facts = Mapping[str, float]


def check_units(run: BenchRun) -> tuple[str, ...]:
    """Returns notes on figures of a run that do not fit together, though no unit explains it.

    Raises:
        RefusedError: when one is, or several alike are, about 1000 times too large or small; it names the field.
    """
    facts = {**run.measured, **run.totals}
    answer = float(run.workload.get("output_len", 0))
    if answer:
        facts["answer"] = answer
    if "in_flight" not in facts and "request_rate" not in run.workload and "concurrency" in run.workload:
        facts["in_flight"] = float(min(run.workload["concurrency"], run.workload.get("num_prompts", math.inf)))
    for names in SUSPECTS if _broken(facts) else ():
        for factor in (1000.0, 0.001):
            scaled = {name: value * factor if name in names else value for name, value in facts.items()}
            if set(names) <= facts.keys() and not _broken(scaled):
                raise _wrong_unit(run, names, facts, factor)
    return tuple(f"{text} (a factor of {ratio:.2g})" for text, ratio in _ratios(facts) if not _near(ratio, ODD))


def _ratios(facts: Facts) -> list[tuple[str, float]]:
    """Returns each identity that can be checked, in words, and its left side over its right."""
    get = facts.get
    found = []
    if (time := get("duration_s")) and (rate := get("output_tokens_per_s")) and (tokens := get("output_tokens")):
        found.append(("tokens are not rate × time", rate * time / tokens))
    if (time := get("duration_s")) and (rate := get("request_throughput_per_s")) and (served := get("completed")):
        found.append(("requests are not rate × time", rate * time / served))
    first, step, answer = get("ttft_s"), get("tpot_s"), get("answer")
    whole = first + (answer - 1) * step if first and step and answer else None
    if (end := get("e2e_s")) and whole:
        found.append(("end-to-end is not TTFT + (n−1)·TPOT", end / whole))
    requests = get("request_throughput_per_s")
    if requests is None and (rate := get("output_tokens_per_s")) and answer:
        requests = rate / answer
    if requests and (end := get("e2e_s") or whole) and (crowd := get("in_flight")):
        found.append(("requests in flight are not rate × latency", requests * end / crowd))
    return found


def _broken(facts: Facts) -> bool:
    """Whether some figure is out by a unit."""
    first, step, gap, end = (facts.get(name) for name in LATENCIES)
    signs = (
        step and not LEAST_TPOT_S < step < MOST_TPOT_S,
        first and step and first < LEAST_TTFT_IN_TPOT * step,
        first and end and first > 1.5 * end,
        gap and step and not _near(gap / step, A_UNIT),
        any(not _near(ratio, A_UNIT) for _, ratio in _ratios(facts)),
    )
    return any(signs) or _first_token_hides(facts)


def _first_token_hides(facts: Facts) -> bool:
    """Whether TTFT 1000 times as long would make right what is wrong: as a term of a sum it can be lost unseen."""
    longer = {**facts, "ttft_s": 1000.0 * facts.get("ttft_s", 0.0)}
    return (
        any(not _near(ratio, 1.2) for _, ratio in _ratios(facts))
        and longer["ttft_s"] > 0.0
        and all(_near(ratio, 1.1) for _, ratio in _ratios(longer))
    )


def _near(ratio: float, factor: float) -> bool:
    return 1.0 / factor <= ratio <= factor


def _wrong_unit(run: BenchRun, names: tuple[str, ...], facts: Facts, factor: float) -> RefusedError:
    keys = [run.fields.get(name, name) for name in names]
    given = ", ".join(f"{facts[name]:.6g} {_unit(name)}" for name in names)
    wanted = ", ".join(f"{facts[name] * factor:.6g} {_unit(name)}" for name in names)
    looks = "seconds where milliseconds belong" if factor > 1 else "milliseconds where seconds belong"
    if any(_unit(name) != "s" for name in names):
        looks = "a rate per another unit of time"
    text = f"{given}, which the other figures contradict by a factor of 1000 (it looks like {looks}),"
    return RefusedError(", ".join(keys), text, f"about {wanted}")


def _unit(name: str) -> str:
    return "s" if name in {"duration_s", *LATENCIES} else "per s"
