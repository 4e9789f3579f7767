"""Results of `vllm bench serve`, `latency` and `throughput` (benchmarks/serve.py, latency.py, throughput.py)."""

from collections.abc import Mapping
from typing import Any

from pipesim.importers import RefusedError
from pipesim.importers.bench.flags import engine_of, plain, plan_of
from pipesim.importers.bench.record import MILLISECOND, BenchRun, Fields, arrivals, as_number, shown
from pipesim.importers.bench.sglang import engine_name, with_spread

LATENCIES = {"ttft_s": "mean_ttft_ms", "tpot_s": "mean_tpot_ms", "itl_s": "mean_itl_ms", "e2e_s": "mean_e2el_ms"}
RATES = {"output_tokens_per_s": "output_throughput", "request_throughput_per_s": "request_throughput"}
TOTALS = {"duration_s": "duration", "output_tokens": "total_output_tokens"}
LATENCY_DEFAULTS = {"concurrency": 8, "input_len": 32, "output_len": 128}
"""What `vllm bench latency` does unless told otherwise, and does not write down (benchmarks/latency.py)."""
THROUGHPUT_LENGTHS = (1024, 128)
"""Default lengths of the random data set (benchmarks/datasets `RandomDataset`)."""


def read_vllm_serve(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of one object of `vllm bench serve`; `--metadata` of the server's flags counts as stated.

    `backend` names the API that was called, which other engines have too: the engine is stated only by metadata.
    Raises RefusedError naming the field.
    """
    fields = Fields(document)
    served = fields.completed("completed")
    arguments = plain(document)
    name = engine_name(str(arguments.get("engine") or arguments.get("framework") or ""))
    ratio = fields.number("random_range_ratio")
    lengths, estimated = fields.mean_lengths(served), tuple[str, ...]()
    if ratio is not None:
        lengths["random_range_ratio"] = ratio
    else:
        lengths, estimated = with_spread(lengths, fields)
    rate = document.get("request_rate")
    if rate is not None and as_number(rate) is None:
        raise RefusedError("request_rate", shown(rate), 'requests per second or "inf"')
    most, in_flight = fields.count("max_concurrency"), fields.number("max_concurrent_requests")
    load = arrivals(rate, most, served, in_flight, fields.number("burstiness"))
    if failed := fields.count("failed"):
        fields.notes.append(f"{failed} request(s) failed")
    if document.get("ramp_up_strategy"):
        fields.notes.append("the request rate was ramped up; it is taken as constant")
    engine = engine_of({key: value for key, value in arguments.items() if key != "version"})
    return BenchRun(
        tool="vllm bench serve",
        measured=fields.metrics(LATENCIES, MILLISECOND) | fields.metrics(RATES),
        workload={**load, "num_prompts": served, **lengths},
        plan=plan_of(arguments),
        engine={"name": name or "vllm", **engine},
        models=fields.texts("model_id", "tokenizer_id"),
        date=fields.text("date"),
        assumed=(("engine.name",) * (name is None)) + estimated,
        notes=tuple(fields.notes),
        fields=LATENCIES | RATES | TOTALS | {"completed": "completed"},
        totals=fields.numbers(TOTALS) | {"completed": float(served)},
    )


def read_vllm_latency(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of `vllm bench latency`: batches of one size, one after another, seconds per batch.

    The file does not say how large a batch was or how long its requests: they are the tool's defaults unless the
    caller knows better. Raises RefusedError.
    """
    fields = Fields(document)
    measured = fields.metrics({"e2e_s": "avg_latency"})
    if not measured:
        raise RefusedError("avg_latency", shown(document.get("avg_latency")), "a time in seconds above 0")
    single = fields.lengths("latencies")
    if single and not min(single) / 30 <= measured["e2e_s"] <= max(single) * 30:
        given = f"{measured['e2e_s']} beside latencies from {min(single)} to {max(single)}"
        raise RefusedError("avg_latency", given, "their mean, in seconds")
    return BenchRun(
        tool="vllm bench latency",
        measured=measured,
        workload={**LATENCY_DEFAULTS, "waves": 1, "random_range_ratio": 0.0, "spacing": "0 s"},
        plan=plan_of(plain(document)),
        engine={"name": "vllm"},
        models=fields.texts("model_id"),
        assumed=tuple(f"workload.{key}" for key in LATENCY_DEFAULTS),
        notes=tuple(fields.notes),
        fields={"e2e_s": "avg_latency"},
    )


def read_vllm_throughput(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of `vllm bench throughput`: all requests at once, offline.

    The file counts input and output tokens together; they are split as the tool's default lengths are. Output tok/s is
    therefore not measured, requests per second are. Raises RefusedError.
    """
    fields = Fields(document)
    served = fields.completed("num_requests")
    tokens = fields.needed("total_num_tokens", "input and output tokens")
    measured = fields.metrics({"request_throughput_per_s": "requests_per_second"})
    seconds = fields.number("elapsed_time")
    if not measured and seconds:
        measured = {"request_throughput_per_s": served / seconds}
    each = max(2, round(tokens / served))
    output_len = max(1, round(each * THROUGHPUT_LENGTHS[1] / sum(THROUGHPUT_LENGTHS)))
    return BenchRun(
        tool="vllm bench throughput",
        measured=measured,
        workload={
            "concurrency": served,
            "num_prompts": served,
            "input_len": each - output_len,
            "output_len": output_len,
            "spacing": "0 s",
        },
        plan=plan_of(plain(document)),
        engine={"name": "vllm"},
        models=fields.texts("model_id"),
        assumed=("workload.input_len", "workload.output_len"),
        notes=(f"input and output are {each} tokens together; --input-len or --output-len splits them", *fields.notes),
        fields={"request_throughput_per_s": "requests_per_second", "duration_s": "elapsed_time"},
        totals={"completed": float(served), "tokens_per_request": float(each)}
        | ({"duration_s": seconds} if seconds else {}),
    )
