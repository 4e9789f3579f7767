"""How SGLang is launched: its flags as pipesim's, and the other way round.

Flags as in SGLang 0.5.10.post1 (srt/server_args.py) and 0.5.23 (srt/arg_groups/fields). What is written is spelt so
that both releases take it.
"""

from typing import Any

from pipesim.deployment import Deployment
from pipesim.engine_settings import DEFAULT_SMOOTH_FACTOR
from pipesim.errors import UsageError
from pipesim.launch import common
from pipesim.launch.base import Dialect, Launch, Reading, keeps, number, partition, whole

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


def _all_to_all(reading: Reading, flag: str, text: str) -> None:
    if text.strip().lower() in {"", "none"}:
        reading.ignore(flag)
    else:
        reading.raw["all_to_all"] = flag
        reading.refuse(flag, text, "pipesim sums experts with an AllReduce; an all-to-all of tokens has another cost")


RULES = common.RULES | {
    "model-path": common.model,
    "chunked-prefill-size": _chunk,
    "enable-pcie-oneshot-allreduce": common.one_shot,
    "moe-a2a-backend": _all_to_all,
}


VARIABLES = common.VARIABLES | {
    PARTITION_VARIABLE: keeps("layer_partition", partition),
    SMOOTH_VARIABLE: keeps("smooth", number),
}


def finish(reading: Reading) -> None:
    """Settles replicas against attention by request, drafts, and what holds under PP only."""
    raw, flags = reading.raw, reading.flags
    pipelined = flags.get("pp", 1) > 1
    if "all_to_all" in raw:
        reading.set("ep", raw["all_to_all"], flags.get("tp", 1))  # server_args.py sets it with an all-to-all
    _settle_data_parallel(reading)
    if "no_overlap" in raw:
        why = "pipesim runs the overlap scheduler, SGLang's default without PP"
        reading.refuse_if(raw["no_overlap"] and not pipelined, "--disable-overlap-schedule", "", why)
    if "smooth" in raw:
        dynamic = "enable_dynamic_chunking" in flags
        reading.set_if(dynamic, "dynamic_chunking_smooth_factor", SMOOTH_VARIABLE, raw["smooth"])
    if "layer_partition" in raw:  # distributed/utils.py `get_pp_indices` leaves it out with one stage
        reading.set_if(pipelined, "layer_partition", PARTITION_VARIABLE, raw["layer_partition"])
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
        why = f"pipesim splits attention by request over all {tp} ranks of a stage or none"
        reading.refuse(flag, str(attention), why)
    if servers > 1:
        reading.set("replicas", "--dp-size", servers)
    _settle_balancer(reading, servers)


def _settle_balancer(reading: Reading, servers: int) -> None:
    method, flag = reading.raw.get("balance"), "--load-balance-method"
    if method in BALANCERS:
        reading.set_if(servers > 1, "balancer", flag, BALANCERS[method])
    elif method is not None:
        why = "pipesim deals requests in turn or to the server with the fewest"
        reading.refuse_if(servers > 1, flag, method, why)


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
        **DIALECT.stated(deployment),
        "--dp-size": plan.tp if plan.dp_attention else None,
        "--enable-dp-attention": plan.dp_attention,
        "--chunked-prefill-size": engine.chunked_prefill_size,
        "--mem-fraction-static": common.memory_share(deployment),
        "--kv-cache-dtype": {"auto": None, "bf16": "bf16", "fp8": "fp8_e4m3"}[engine.kv_cache_dtype],
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
    notes = []
    if plan.dcp > 1:
        notes.append("--dcp-size is a flag of later releases than 0.5.10.")
    if engine.draft_tokens and plan.pp > 1:
        notes.append("Drafts under pipeline parallelism need SGLang 0.5.23 or later.")
    return common.launch(deployment, environment, words, DEFAULT_PORT, notes)


DIALECT = Dialect.read("sglang", RULES, PARTITION_VARIABLE, VARIABLES, finish, write)
"""SGLang's row in the table of dialects."""
