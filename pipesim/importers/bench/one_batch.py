"""Results of SGLang's one-batch tools (benchmark/one_batch.py, one_batch_server.py), JSON lines, seconds."""

from collections.abc import Mapping
from typing import Any

from pipesim.importers.bench.flags import acceptance_of
from pipesim.importers.bench.record import BenchRun, Fields, RefusedError, shown, tidy
from pipesim.importers.bench.sglang import ENGINE, USUAL_DRAFT_TOKENS

ONE_CHUNK_TOKENS = 8192
"""Prompt tokens that the server prefills at once by default on a GPU of 90 to 160 GiB (arg_groups/memory_hook.py)."""


def is_one_batch(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a line of `bench_one_batch`."""
    return {"prefill_latency", "batch_size", "input_len"} <= document.keys()


def is_one_batch_server(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a line of `bench_one_batch_server`."""
    return {"batch_size", "input_len", "latency"} <= document.keys()


def read_one_batch(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of one line of `bench_one_batch`: one prefill of the whole batch, then decode, no server.

    TPOT is (total − prefill)/(n − 1); the tool's median of single decode steps stands as ITL. Raises RefusedError.
    """
    fields = Fields(document)
    load, batch, prompt, answer = _batch(fields)
    measured = fields.metrics({"ttft_s": "prefill_latency", "itl_s": "median_decode_latency", "e2e_s": "total_latency"})
    total, prefill = measured.get("e2e_s"), measured.get("ttft_s")
    if total and prefill and answer > 1:
        if total <= prefill:
            given = f"{document['total_latency']} beside a prefill_latency of {document['prefill_latency']}"
            raise RefusedError("total_latency", given, "the longer time of the two")
        measured["tpot_s"] = tidy((total - prefill) / (answer - 1))
        measured["output_tokens_per_s"] = tidy(batch * answer / total)
    notes = fields.notes
    if batch * prompt > ONE_CHUNK_TOKENS:
        notes.append("the tool prefills the whole batch at once; a prediction does so in chunks")
    return BenchRun(
        tool="sglang.bench_one_batch",
        measured=measured,
        workload=load,
        engine={"name": ENGINE},
        notes=tuple(notes),
        fields={
            "ttft_s": "prefill_latency",
            "itl_s": "median_decode_latency",
            "e2e_s": "total_latency",
            "tpot_s": "total_latency",
        },
        totals=_overall(fields, batch * (prompt + answer), "total_latency"),
    )


def read_one_batch_server(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of one line of `bench_one_batch_server`: one batch sent at once to a server.

    `last_ttft` is the slowest request's; it is every request's, and gives TPOT, where all prompts fit in one chunk.
    Output tok/s is over the whole latency (the tool's own leaves the prefill out). Raises RefusedError.
    """
    fields = Fields(document)
    load, batch, prompt, answer = _batch(fields)
    measured = fields.metrics({"e2e_s": "latency"})
    latency, last = measured.get("e2e_s"), fields.number("last_ttft")
    if latency is None:
        raise RefusedError("latency", shown(document["latency"]), "a time in seconds above 0")
    measured["output_tokens_per_s"] = tidy((fields.count("total_output_tokens") or batch * answer) / latency)
    notes = list(fields.notes)
    if last and last >= latency and answer > 1:
        raise RefusedError("last_ttft", f"{last} beside a latency of {latency}", "the shorter time of the two")
    if last and (batch == 1 or batch * prompt <= ONE_CHUNK_TOKENS):
        measured["ttft_s"] = last
        if answer > 1:
            measured["tpot_s"] = tidy((latency - last) / (answer - 1))
    elif last:
        notes.append("last_ttft is the slowest request's and no mean; TTFT and TPOT are left out")
    hit = fields.number("cache_hit_rate")
    if hit and 0 < hit <= 1:
        load["prefix_cache_hit_rate"] = hit
    engine: dict[str, Any] = {"name": ENGINE}
    if acceptance := acceptance_of(fields.number("acc_length") or 0.0, USUAL_DRAFT_TOKENS):
        engine["speculative_acceptance"] = acceptance
    if stopped := fields.count("num_early_stopped"):
        notes.append(f"{stopped} request(s) stopped early")
        load["ignore_eos"] = False
    return BenchRun(
        tool="sglang.bench_one_batch_server",
        measured=measured,
        workload=load,
        engine=engine,
        assumed=("engine.speculative_acceptance",) * ("speculative_acceptance" in engine),
        notes=tuple(notes),
        fields={"e2e_s": "latency", "ttft_s": "last_ttft", "tpot_s": "last_ttft"},
        totals=_overall(fields, batch * (prompt + answer), "latency"),
    )


def _batch(fields: Fields) -> tuple[dict[str, Any], int, int, int]:
    """Returns the workload of one batch that is sent at once, and its size, prompt and answer."""
    sizes = {key: fields.count(key) for key in ("batch_size", "input_len", "output_len")}
    for key, value in sizes.items():
        if not value:
            raise RefusedError(key, shown(fields.document.get(key)), "a whole number of at least 1")
    batch, prompt, answer = (value or 0 for value in sizes.values())
    load = {"concurrency": batch, "num_prompts": batch, "waves": 1, "input_len": prompt, "output_len": answer}
    return load | {"random_range_ratio": 0.0, "spacing": "0 s"}, batch, prompt, answer


def _overall(fields: Fields, tokens: int, latency: str) -> dict[str, float]:
    """Refuses a latency that `overall_throughput`, (input + output) × batch / latency, contradicts by about 1000."""
    rate, seconds = fields.number("overall_throughput"), fields.number(latency)
    if rate and seconds and not 1 / 30 < rate * seconds / tokens < 30:
        given = f"{seconds} with an overall_throughput of {rate} tokens/s over {tokens:,} tokens"
        raise RefusedError(latency, given, f"seconds: about {tokens / rate:.4g}")
    return {}
