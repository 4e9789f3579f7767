"""Results of `sglang.bench_serving` (benchmark/serving.py), one JSON line per run."""

import json
from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any

from pipesim.engine_settings import EngineName
from pipesim.importers import RefusedError
from pipesim.importers.bench.flags import engine_of, plain, plan_of, speculation_of
from pipesim.importers.bench.record import (
    MILLISECOND,
    BenchRun,
    Fields,
    arrivals,
    as_number,
    as_table,
    shown,
    spread_ratio,
)

ENGINE: EngineName = "sglang"
TOOL = "sglang.bench_serving"
LATENCIES = {
    "ttft_s": "mean_ttft_ms",
    "tpot_s": "mean_tpot_ms",
    "itl_s": "mean_itl_ms",
    "e2e_s": "mean_e2e_latency_ms",
}
RATES = {"output_tokens_per_s": "output_throughput", "request_throughput_per_s": "request_throughput"}
TOTALS = {"duration_s": "duration", "output_tokens": "total_output_tokens", "in_flight": "concurrency"}


def read_sglang_serving(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of one line. Times in `*_ms` are milliseconds, `duration` is seconds.

    Raises:
        RefusedError: naming the field.
    """
    fields = Fields(document)
    served = fields.completed("completed")
    arguments = server_arguments(document.get("server_info"))
    measured = fields.metrics(LATENCIES, MILLISECOND) | fields.metrics(RATES)
    if size := as_number(arguments.get("max_total_num_tokens")):
        measured["kv_capacity_tokens"] = kv_capacity(size, plan_of(arguments))
    workload, estimated = _lengths(fields, served)
    load, arrivals_assumed = _arrivals(fields, served)
    speculation = speculation_of(fields.number("accept_length"), arguments.get("speculative_num_steps"))
    return BenchRun(
        tool=TOOL,
        measured=measured,
        workload={**load, "num_prompts": served, **workload},
        plan=plan_of(arguments),
        engine=_engine(arguments, fields) | speculation,
        models=Fields(arguments).texts("served_model_name", "model_path"),
        assumed=(*estimated, *arrivals_assumed, *(f"engine.{key}" for key in speculation)),
        notes=tuple(fields.notes),
        fields=LATENCIES | RATES | TOTALS | {"completed": "completed"},
        totals=fields.numbers(TOTALS) | {"completed": float(served)},
    )


def server_arguments(server_info: object) -> dict[str, Any]:
    """Returns the server's arguments out of `server_info`: an object, the same as text, or null.

    With separate prefill and decode servers it is the decode server's that are returned.
    """
    if isinstance(server_info, str):
        try:
            server_info = json.loads(server_info)
        except ValueError:
            return {}
    told = as_table(server_info)
    decode = told.get("decode")
    if isinstance(decode, list) and decode:
        told = as_table(decode[0]) or told
    return plain(as_table(told.get("server_args"))) | plain(told)


def kv_capacity(tokens_per_rank: float, plan: Mapping[str, Any]) -> float:
    """Returns the tokens that a server's KV caches hold: with DP attention every rank holds others."""
    return tokens_per_rank * (plan.get("tp", 1) if plan.get("dp_attention") else 1)


def engine_name(backend: str | None) -> str | None:
    """Returns the engine that a backend such as "sglang-oai-chat" or "dynamo-vllm" drives; None for other ones."""
    words = (backend or "").lower().replace("_", "-").split("-")
    return next((name for name in ("sglang", "vllm") if name in words), None)


def _engine(arguments: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    backend = fields.text("backend")
    name = engine_name(backend)
    if name is None and backend is not None:
        raise RefusedError("backend", shown(backend), "a run of SGLang or vLLM, the engines that are simulated")
    return ({"name": name} if name else {}) | engine_of(arguments)


def _arrivals(fields: Fields, served: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    rate = fields.document.get("request_rate")
    most, in_flight = fields.count("max_concurrency"), fields.number("concurrency")
    if rate == "trace":
        per_second = fields.number("request_throughput")
        return arrivals(per_second, most, served, in_flight), ("workload.request_rate",)
    if rate is not None and as_number(rate) is None:
        raise RefusedError("request_rate", shown(rate), 'requests per second, Infinity or "trace"')
    return arrivals(rate, most, served, in_flight), ()


def _lengths(fields: Fields, served: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the keys of a workload that say how long requests are, and those of them that are estimates.

    SGLang draws lengths of its `random` data set uniformly from [rL, L] (benchmark/datasets/common.py
    `compute_random_lens`): about its mean that is our ratio (1−r)/(1+r). Other data sets' spread is that of the
    lists of lengths, if they are there.
    """
    load = fields.mean_lengths(served)
    dataset = fields.text("dataset_name") or ""
    ratio = fields.number("random_range_ratio")
    if dataset.startswith("random") and ratio is not None and 0.0 <= ratio <= 1.0:
        return load | {"random_range_ratio": round((1.0 - ratio) / (1.0 + ratio), 4)}, ()
    return with_spread(load, fields)


def with_spread(load: dict[str, Any], fields: Fields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns lengths with the spread of the list `output_lens`, which is an estimate: its shape need not be ours."""
    lengths = fields.lengths("output_lens")
    if len(lengths) < 2:
        return load, ()
    ratio = spread_ratio(fmean(lengths), pstdev(lengths))
    return load | {"random_range_ratio": ratio}, ("workload.random_range_ratio",) * (ratio > 0)
