"""Results of aiperf (`profile_export_aiperf.json`) and its forerunner genai-perf (`*_genai_perf.json`).

Every metric is an object with its unit and `avg`. Their inter_token_latency is a request's average: TPOT elsewhere.
The gaps that other tools call ITL are inter_chunk_latency (aiperf common/models/export_models.py, schema 1.4).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pipesim.importers.bench.record import (
    BenchRun,
    Fields,
    RefusedError,
    arrivals,
    as_number,
    shown,
    spread_ratio,
    tidy,
)

METRICS = {
    "ttft_s": "time_to_first_token",
    "tpot_s": "inter_token_latency",
    "itl_s": "inter_chunk_latency",
    "e2e_s": "request_latency",
    "output_tokens_per_s": "output_token_throughput",
    "request_throughput_per_s": "request_throughput",
}
SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0}
SECONDS |= {"second": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
RATE_UNITS = {"tokens/sec", "requests/sec", "tokens/s", "requests/s", "tokens/second", "requests/second"}
OPEN_LOOPS = {"poisson", "gamma", "constant"}


def is_genai_perf(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is of aiperf or genai-perf."""
    document = _flat(document)
    known = [document.get(key) for key in METRICS.values()]
    return any(isinstance(entry, dict) and "avg" in entry and "unit" in entry for entry in known)


def read_genai_perf(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of one file. Raises RefusedError naming the metric."""
    document = _flat(document)
    measured = {name: value for name, key in METRICS.items() if (value := _metric(document, key))}
    config = document.get("input_config")
    config = config if isinstance(config, dict) else {}
    served = _served(document)
    lengths, estimated = _lengths(document)
    load, assumed = _load(config, measured, served)
    notes = []
    if failed := _metric(document, "error_request_count"):
        notes.append(f"{failed:.0f} request(s) failed")
    if document.get("was_cancelled"):
        notes.append("the run was cancelled")
    if document.get("is_complete") is False:
        notes.append(f"the run is incomplete: {document.get('incomplete_reason')}")
    duration = _metric(document, "benchmark_duration")
    keys = METRICS | {"duration_s": "benchmark_duration", "completed": "request_count"}
    return BenchRun(
        tool="aiperf" if "aiperf_version" in document or "schema_version" in document else "genai-perf",
        measured=measured,
        workload={**load, **({"num_prompts": served} if served else {}), **lengths},
        models=tuple(_names(config)),
        assumed=(*assumed, *estimated),
        notes=tuple(notes),
        fields=keys,
        totals={name: value for name, value in (("duration_s", duration), ("completed", float(served or 0))) if value},
    )


def _flat(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a document with its metrics at the top: the first versions of aiperf had them under `records`."""
    records = document.get("records")
    if not isinstance(records, dict):
        return document
    first = {"time_to_first_token": records["ttft"]} if "ttft" in records else {}
    return {**document, **first, **records}


def _metric(document: Mapping[str, Any], key: str, statistic: str = "avg") -> float | None:
    """Returns one statistic of a metric in SI units; None when it is not there, null or not finite."""
    entry = document.get(key)
    if not isinstance(entry, dict):
        return None
    value = Fields(entry).number(statistic)
    unit = str(entry.get("unit", "")).strip().lower()
    if value is None:
        return None
    if value < 0:
        raise RefusedError(f"{key}.{statistic}", shown(value), "a number of at least 0")
    if key.endswith("throughput"):
        if unit not in RATE_UNITS:
            raise RefusedError(f"{key}.unit", shown(entry.get("unit")), "tokens/sec or requests/sec")
        return value
    if key in METRICS.values() or key == "benchmark_duration":
        if unit not in SECONDS:
            raise RefusedError(f"{key}.unit", shown(entry.get("unit")), f"one of {', '.join(sorted(SECONDS))}")
        return tidy(value * SECONDS[unit])
    return value


def _served(document: Mapping[str, Any]) -> int | None:
    served = _metric(document, "request_count")
    if served == 0:
        raise RefusedError("request_count", "0, a run in which no request was completed,", "at least 1")
    if served is None:
        entry = document.get("request_latency")
        served = as_number(entry.get("count")) if isinstance(entry, dict) else None
    return round(served) if served else None


def _lengths(document: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    prompt, answer = (_metric(document, f"{which}_sequence_length") for which in ("input", "output"))
    if not answer:
        answer = _metric(document, "output_token_count")
    lengths: dict[str, Any] = {}
    if prompt:
        lengths["input_len"] = max(1, round(prompt))
    if answer:
        lengths["output_len"] = max(1, round(answer))
        deviation = _metric(document, "output_sequence_length", "std")
        if deviation is not None:
            lengths["random_range_ratio"] = spread_ratio(answer, deviation)
            return lengths, ("workload.random_range_ratio",) * (deviation > 0)
    return lengths, ()


def _load(
    config: Mapping[str, Any], measured: Mapping[str, float], served: int | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns how requests come: as the configuration says, or a closed loop of as many users as were in flight."""
    for phase in _phases(config):
        users, rate = as_number(phase.get("concurrency")), as_number(phase.get("request_rate", phase.get("rate")))
        if rate and phase.get("type", "poisson") in OPEN_LOOPS:
            return arrivals(rate, round(users) if users else None, served or 1, _in_flight(measured)), ()
        if users:
            return {"concurrency": max(1, round(users)), "spacing": "0 s"}, ()
    in_flight = _in_flight(measured)
    return ({"concurrency": max(1, round(in_flight))}, ("workload.concurrency",)) if in_flight else ({}, ())


def _in_flight(measured: Mapping[str, float]) -> float | None:
    """Returns the mean number of requests in flight by Little's law: rate × latency."""
    rate, latency = measured.get("request_throughput_per_s"), measured.get("e2e_s")
    return rate * latency if rate and latency else None


def _phases(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the tables that say how requests come, in every version's place; warm-up phases are passed over.

    aiperf: `phases`, earlier `loadgen`; genai-perf: `perf_analyzer.stimulus`; the oldest: at the top.
    """
    phases = config.get("phases")
    for phase in phases if isinstance(phases, list) else []:
        if isinstance(phase, dict) and not phase.get("exclude_from_results") and "warmup" not in phase.values():
            yield phase
    analyzer = config.get("perf_analyzer")
    stimulus = analyzer.get("stimulus") if isinstance(analyzer, dict) else None
    for table in (stimulus, config.get("loadgen"), config):
        if isinstance(table, dict):
            yield table


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the models that the configuration names, in every version's place."""
    endpoint = config.get("endpoint")
    places = [config.get("models"), config.get("model_names"), config.get("model_name"), config.get("model")]
    places += (
        [endpoint.get(key) for key in ("model_names", "model_name", "model")] if isinstance(endpoint, dict) else []
    )
    for place in places:
        found = place.get("items") if isinstance(place, dict) else place
        for entry in found if isinstance(found, list) else [found]:
            name = entry.get("name") if isinstance(entry, dict) else entry
            if isinstance(name, str) and name:
                yield name
