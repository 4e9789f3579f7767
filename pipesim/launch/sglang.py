"""How SGLang is launched: its flags as pipesim's, and the other way round.

Flags as in SGLang 0.5.10.post1 (srt/server_args.py) and 0.5.23 (srt/arg_groups/fields). What is written is spelt so
that both releases take it.
"""

from typing import Any

from pipesim.deployment import DEFAULT_SMOOTH_FACTOR, Deployment
from pipesim.errors import UsageError
from pipesim.launch import common
from pipesim.launch.base import (
    Dialect,
    Launch,
    Reading,
    changes_unless,
    keeps,
    number,
    partition,
    plain,
    sets,
    sets_when,
    truth,
    whole,
)

PARTITION_VARIABLE = "SGLANG_PP_LAYER_PARTITION"
SMOOTH_VARIABLE = "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR"
DEFAULT_PORT = 30000
BALANCERS = {"auto": "round-robin", "round_robin": "round-robin", "total_requests": "least-loaded"}
BALANCERS |= {"shortest_queue": "least-loaded"}


def _chunk(reading: Reading, flag: str, text: str) -> None:
    size = whole(flag, text)
    if size <= 0:
        reading.refuse(flag, text, "prompts in one piece; pipesim cuts them into chunks")
    else:
        reading.set("chunked_prefill_size", flag, size)


def _decode_graph(reading: Reading, flag: str, text: str) -> None:
    if text.strip().lower() == "disabled":
        reading.set("cuda_graph", flag, False)
    elif text.strip().lower() == "full":
        reading.ignore(flag)
    else:
        reading.refuse(flag, text, "pipesim captures the decode step as a whole or not at all")


def _all_to_all(reading: Reading, flag: str, text: str) -> None:
    if text.strip().lower() in {"", "none"}:
        reading.ignore(flag)
    else:
        reading.raw["all_to_all"] = flag
        reading.refuse(flag, text, "pipesim sums experts with an AllReduce; an all-to-all of tokens has another cost")


RULES = {
    "model-path": common.model,
    "tp-size": sets("tp", whole),
    "pp-size": sets("pp", whole),
    "ep-size": sets("ep", whole),
    "dcp-size": sets("dcp", whole),
    "dp-size": keeps("dp", whole),
    "attn-dp-size": keeps("attn_dp", whole),
    "enable-dp-attention": keeps("dp_attention", truth),
    "load-balance-method": keeps("balance", plain),
    "pp-max-micro-batch-size": sets("pp_max_micro_batch_size", whole),
    "pp-async-batch-depth": sets("pp_async_batch_depth", whole),
    "max-running-requests": sets("max_running_requests", whole),
    "chunked-prefill-size": _chunk,
    "mem-fraction-static": sets("mem_fraction_static", number),
    "language-only": sets("language_only", truth),
    "disable-cuda-graph": sets_when(True, "cuda_graph", False),
    "disable-decode-cuda-graph": sets_when(True, "cuda_graph", False),
    "cuda-graph-backend-decode": _decode_graph,
    "disable-custom-all-reduce": sets_when(True, "allreduce", "nccl"),
    "enable-pcie-oneshot-allreduce": common.one_shot,
    "kv-cache-dtype": common.kv_cache_dtype,
    "quantization": common.quantization,
    "dtype": common.DTYPE,
    "nnodes": common.several_boxes,
    "moe-a2a-backend": _all_to_all,
    "disable-overlap-schedule": keeps("no_overlap", truth),
    "context-length": keeps("context_length", whole),
    "speculative-algorithm": keeps("draft", plain),
    "speculative-num-steps": keeps("draft_steps", whole),
    "speculative-num-draft-tokens": keeps("draft_tokens", whole),
    "speculative-eagle-topk": keeps("draft_topk", whole),
    "max-prefill-tokens": changes_unless({"16384"}, "pipesim launches at most SGLang's default of 16384 prompt tokens"),
    "schedule-policy": changes_unless({"fcfs", "lpm"}, "pipesim admits requests in the order in which they came"),
    "schedule-conservativeness": sets("schedule_conservativeness", number),
    "prefill-decode-interval": sets("prefill_decode_interval", whole),
    "prefill-decode-interval-min-bs": sets("prefill_decode_interval_min_bs", whole),
    "enable-mixed-chunk": sets_when(True, "enable_mixed_chunk", True),
    "enable-dynamic-chunking": sets_when(True, "enable_dynamic_chunking", True),
}


def _layers(reading: Reading, variable: str, text: str) -> None:
    reading.raw["layer_partition"] = partition(variable, text)


def _pipelined_drafts(reading: Reading, variable: str, _text: str) -> None:
    reading.ignore(variable)


VARIABLES = common.VARIABLES | {
    PARTITION_VARIABLE: _layers,
    SMOOTH_VARIABLE: keeps("smooth", number),
    "SGLANG_ENABLE_PP_SPEC": _pipelined_drafts,
}


def finish(reading: Reading) -> None:
    """Settles replicas against attention by request, drafts, and what holds under PP only."""
    raw, flags = reading.raw, reading.flags
    pipelined = flags.get("pp", 1) > 1
    if "all_to_all" in raw:
        reading.set("ep", raw["all_to_all"], flags.get("tp", 1))  # server_args.py sets it with an all-to-all
    _settle_data_parallel(reading)
    if raw.get("no_overlap") and not pipelined:
        reading.refuse(
            "--disable-overlap-schedule", "", "pipesim runs the overlap scheduler, SGLang's default without PP"
        )
    elif "no_overlap" in raw:
        reading.ignore("--disable-overlap-schedule")
    if "context_length" in raw:
        if "max_running_requests" in flags:
            reading.ignore("--context-length")
        else:
            why = "SGLang derives its limit of requests from it: add --max-running-requests to be exact"
            reading.refuse("--context-length", str(raw["context_length"]), why)
    if "smooth" in raw and "enable_dynamic_chunking" in flags:
        reading.set("dynamic_chunking_smooth_factor", SMOOTH_VARIABLE, raw["smooth"])
    elif "smooth" in raw:
        reading.ignore(SMOOTH_VARIABLE)
    if "layer_partition" in raw and pipelined:
        reading.set("layer_partition", PARTITION_VARIABLE, raw["layer_partition"])
    elif "layer_partition" in raw:
        reading.ignore(PARTITION_VARIABLE)  # distributed/utils.py `get_pp_indices` leaves it out with one stage
    if raw.get("draft", "none").lower() != "none":
        steps = raw.get("draft_steps", raw["draft_tokens"] - 1 if "draft_tokens" in raw else None)
        common.refuse_draft(reading, "--speculative-algorithm", steps)


def _settle_data_parallel(reading: Reading) -> None:
    """`--dp-size` means servers, with `--enable-dp-attention` ranks of a TP group, as `--attn-dp-size` always does."""
    raw, tp = reading.raw, reading.flags.get("tp", 1)
    attention, servers, flag = raw.get("attn_dp", 1), raw.get("dp", 1), "--attn-dp-size"
    if raw.get("dp_attention"):
        if attention > 1 and servers not in {1, attention}:
            wanted = "one value of the two, which contradict"
            raise UsageError("--dp-size and --attn-dp-size", f"{servers} and {attention}", wanted)
        attention, servers, flag = max(attention, servers), 1, "--enable-dp-attention"
        if attention == 1:
            reading.ignore(flag)  # with one rank SGLang switches it off (server_args.py `_handle_data_parallelism`)
    if attention > 1 and tp % attention:
        raise UsageError(f"{flag} with --tp-size {tp}", attention, f"a number that divides {tp}")
    if attention == tp > 1:
        reading.set("dp_attention", flag, True)
    elif attention > 1:
        reading.refuse(
            flag, str(attention), f"pipesim splits attention by request over all {tp} ranks of a stage or none"
        )
    if servers > 1:
        reading.set("replicas", "--dp-size", servers)
    _settle_balancer(reading, servers)


def _settle_balancer(reading: Reading, servers: int) -> None:
    if "balance" not in reading.raw:
        return
    method = reading.raw["balance"]
    if servers == 1:
        reading.ignore("--load-balance-method")
    elif method in BALANCERS:
        reading.set("balancer", "--load-balance-method", BALANCERS[method])
    else:
        reading.refuse(
            "--load-balance-method", method, "pipesim deals requests in turn or to the server with the fewest"
        )


def write(deployment: Deployment) -> Launch:
    """Returns the commands that start a deployment's servers."""
    plan, engine = deployment.plan, deployment.engine
    environment = common.shared_environment(deployment, PARTITION_VARIABLE)
    if engine.draft_tokens and plan.pp > 1:
        environment["SGLANG_ENABLE_PP_SPEC"] = "1"
    if engine.dynamic_chunking_smooth_factor != DEFAULT_SMOOTH_FACTOR:
        environment[SMOOTH_VARIABLE] = str(engine.dynamic_chunking_smooth_factor)
    flags: dict[str, Any] = {
        "--model-path": deployment.model.hf_id,
        "--tp-size": plan.tp,
        "--pp-size": plan.pp,
        "--ep-size": None if plan.ep == 1 else plan.ep,
        "--dp-size": plan.tp if plan.dp_attention else None,
        "--enable-dp-attention": plan.dp_attention,
        "--dcp-size": None if plan.dcp == 1 else plan.dcp,
        "--pp-max-micro-batch-size": engine.pp_max_micro_batch_size,
        "--pp-async-batch-depth": engine.pp_async_batch_depth or None,
        "--max-running-requests": engine.max_running_requests,
        "--chunked-prefill-size": engine.chunked_prefill_size,
        "--mem-fraction-static": common.memory_share(deployment),
        "--language-only": engine.language_only,
        "--enable-mixed-chunk": engine.enable_mixed_chunk,
        "--enable-dynamic-chunking": engine.enable_dynamic_chunking,
        "--prefill-decode-interval": engine.prefill_decode_interval or None,
        "--prefill-decode-interval-min-bs": engine.prefill_decode_interval_min_bs or None,
        "--schedule-conservativeness": engine.stated.get("schedule_conservativeness"),
        "--disable-cuda-graph": not engine.cuda_graph,
        "--kv-cache-dtype": {"auto": None, "bf16": "bf16", "fp8": "fp8_e4m3"}[engine.kv_cache_dtype],
        "--disable-custom-all-reduce": engine.allreduce == "nccl",
        "--enable-pcie-oneshot-allreduce": engine.allreduce == "pcie-oneshot",
    }
    if engine.draft_tokens:
        flags |= {
            "--speculative-algorithm": "EAGLE",
            "--speculative-draft-model-path": common.DRAFT_MODEL,
            "--speculative-num-steps": engine.draft_tokens,
            "--speculative-eagle-topk": 1,
            "--speculative-num-draft-tokens": engine.draft_tokens + 1,
        }
    words = ["python", "-m", "sglang.launch_server", *common.flag_words(flags)]
    notes = common.shared_notes(deployment, "over NVLink, and over PCIe between two GPUs")
    if plan.dcp > 1:
        notes.append("--dcp-size is a flag of later releases than 0.5.10.")
    if engine.draft_tokens and plan.pp > 1:
        notes.append("Drafts under pipeline parallelism need SGLang 0.5.23 or later.")
    return common.launch(common.replicas(deployment, environment, words, DEFAULT_PORT), notes)


DIALECT = Dialect(
    name="sglang",
    title="SGLang",
    program="sglang",
    modules=("sglang.launch_server", "sglang_router.launch_server", "sglang.srt.server"),
    scripts=("launch_server.py",),
    partition_variable=PARTITION_VARIABLE,
    vocabulary_file="sglang_flags.toml",
    rules=RULES,
    variables=VARIABLES,
    json_flags=frozenset(),
    finish=finish,
    write=write,
)
"""SGLang's row in the table of dialects."""
