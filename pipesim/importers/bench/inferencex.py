"""InferenceX (once InferenceMAX) aggregates, `agg_<name>.json` (utils/process_result.py): seconds, rates per GPU."""

from collections.abc import Mapping
from typing import Any

from pipesim.importers.bench.flags import plan_of
from pipesim.importers.bench.record import BenchRun, Fields, RefusedError, as_flag, shown, tidy
from pipesim.importers.bench.sglang import engine_name

LATENCIES = {"ttft_s": "mean_ttft", "tpot_s": "mean_tpot", "itl_s": "mean_itl", "e2e_s": "mean_e2el"}


def is_inferencex(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an InferenceX aggregate."""
    return {"tput_per_gpu", "conc"} <= document.keys()


def read_inferencex(document: Mapping[str, Any]) -> BenchRun:
    """Returns the run of one aggregate: a closed loop of `conc` users.

    Output tok/s is `output_tput_per_gpu` × tp × pp × pcp, by which the tool divided. Raises RefusedError naming the
    field; for separate prefill and decode servers, which are not simulated, too.
    """
    if as_flag(document.get("disagg")) or "prefill_tp" in document or "decode_tp" in document:
        key = "disagg" if as_flag(document.get("disagg")) else "prefill_tp"
        raise RefusedError(
            key, shown(document[key]), "one server that does prefill and decode; others are not simulated"
        )
    fields = Fields(document)
    name = engine_name(fields.text("framework"))
    if name is None and fields.text("framework"):
        given = shown(document["framework"])
        raise RefusedError("framework", given, "a run of SGLang or vLLM, the engines that are simulated")
    plan, notes = _plan(document), []
    sizes = {key: fields.count(key) for key in ("conc", "isl", "osl")}
    for key, value in sizes.items():
        if not value:
            raise RefusedError(key, shown(document.get(key)), "a whole number of at least 1")
    measured = fields.metrics(LATENCIES)
    gpus = plan.get("tp", 1) * plan.get("pp", 1) * (fields.count("pcp_size") or 1)
    rate = fields.number("output_tput_per_gpu")
    if rate is None and (total := fields.number("tput_per_gpu")):
        rate = total * sizes["osl"] / (sizes["isl"] + sizes["osl"])  # type: ignore[operator]
        notes.append("output tok/s is all tok/s × osl / (isl + osl)")
    if rate:
        measured["output_tokens_per_s"] = tidy(rate * gpus)
    speculation = (fields.text("spec_decoding") or "none").lower()
    unjudged = (
        "" if speculation in {"none", "off", "false"} else f"spec_decoding {speculation}, its acceptance not stated"
    )
    if (fields.count("pcp_size") or 1) > 1:
        unjudged = "prefill context parallelism, which is not simulated"
    if interactivity := fields.number("mean_intvty"):
        _check_interactivity(document, measured, interactivity)
    return BenchRun(
        tool="InferenceX",
        measured=measured,
        workload={
            "concurrency": sizes["conc"],
            "input_len": sizes["isl"],
            "output_len": sizes["osl"],
            "spacing": "0 s",
        },
        plan=plan,
        engine={"name": name} if name else {},
        models=fields.texts("model", "infmax_model_prefix"),
        gpu=fields.text("hw"),
        notes=(*notes, *fields.notes),
        unjudged=unjudged,
        fields=LATENCIES | {"output_tokens_per_s": "output_tput_per_gpu", "in_flight": "conc"},
        totals={"in_flight": float(sizes["conc"] or 1)},
    )


def _plan(document: Mapping[str, Any]) -> dict[str, Any]:
    plan = plan_of({key: document.get(key) for key in ("tp", "pp", "ep", "dcp_size", "dp_attention")})
    if not plan.get("dp_attention") and as_flag(document.get("dp_attention")) is not None:
        plan["dp_attention"] = False
    return plan


def _check_interactivity(document: Mapping[str, Any], measured: Mapping[str, float], interactivity: float) -> None:
    """Refuses a TPOT that is not in seconds: interactivity [tok/s per user] was made of the same figure."""
    tpot = measured.get("tpot_s")
    if tpot and not 1 / 30 < tpot * interactivity < 30:
        given = f"{document['mean_tpot']} beside a mean_intvty of {interactivity} tok/s"
        raise RefusedError("mean_tpot", given, f"seconds: about {1 / interactivity:.4g}")
