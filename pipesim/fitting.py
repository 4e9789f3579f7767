"""What a box can hold: a deployment with its layers and share of memory, or which GPU is short and what would fit."""

from pipesim.cost.memory import kv_bytes_per_token, model_bytes, rank_memory
from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.base import settle
from pipesim.errors import InfeasibleDeployment, MissingEvidence, ProfileError
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.workload import Workload

GIB = 2**30
SHORT_REQUEST = 1024
"""KV cache [tokens] that a server has to hold where its load is not known: with less it is of no use."""


def needed_tokens(plan: ParallelPlan, settings: EngineSettings, workload: Workload) -> int:
    """Returns the KV cache [tokens] of a server that holds a load: all requests in it at their full length.

    At least one for every rank that attends for requests of its own.
    """
    users = min(workload.concurrency, workload.num_prompts, settings.max_running_requests or workload.num_prompts)
    return workload.tokens_per_request * max(-(-users // plan.replicas), plan.attention_dp)


def deploy(
    model: ModelProfile,
    hardware: HardwareProfile,
    plan: ParallelPlan,
    settings: EngineSettings,
    workload: Workload | None = None,
) -> Deployment:
    """Returns a deployment that the box can hold, with a share of memory that can work on the load where one is given.

    Raises:
        ProfileError: when the model's shapes do not add up to its published weights.
        UsageError: when no box could run it.
        InfeasibleDeployment: when this box cannot, with the GPU that is short, by how much, and what would fit.
    """
    _check_weights(model)
    _check_all_reduce(hardware, plan, settings)
    needed = needed_tokens(plan, settings, workload) if workload else SHORT_REQUEST
    deployment = settle(model, hardware, plan, settings, ENGINES[settings.name], needed)
    capacity = ENGINES[settings.name].kv_capacity_tokens(deployment)
    if capacity < 1:
        raise InfeasibleDeployment([shortage(deployment), _what_fits(deployment)])
    return deployment


def _check_all_reduce(hardware: HardwareProfile, plan: ParallelPlan, settings: EngineSettings) -> None:
    known = {curve.implementation for curve in hardware.collectives if curve.ranks == plan.tp}
    if plan.tp > 1 and settings.allreduce not in {"auto", *known}:
        key = f'collectives, op = "all_reduce", ranks = {plan.tp}, implementation = "{settings.allreduce}"'
        raise MissingEvidence(hardware.name, key, f"a curve for --allreduce {settings.allreduce}")


def _check_weights(model: ModelProfile) -> None:
    computed = model_bytes(model)
    if model.text_weights is None:
        return
    if abs(computed / model.text_weights - 1.0) > model.text_weights_tolerance:
        raise ProfileError(
            f"model profile {model.name}",
            "text_weights",
            f"{model.text_weights / 1e9:,.1f} GB",
            f"the {computed / 1e9:,.1f} GB that the profile's shapes and precisions add up to",
        )


def shortage(deployment: Deployment) -> str:
    """Returns which GPU is short of memory for a single token of KV cache, and of how much."""
    stages = range(deployment.plan.pp)
    ranks = [rank_memory(deployment, stage) for stage in stages]
    fullest = max(stages, key=lambda stage: ranks[stage].total)
    rank, gpu = ranks[fullest], deployment.hardware.gpu
    engine = ENGINES[deployment.engine.name]
    missing = (1 - engine.kv_capacity_tokens(deployment)) * max(
        kv_bytes_per_token(deployment, stage) for stage in stages
    )
    return (
        f"GPU {deployment.plan.stage_gpus(fullest)[0]} (stage {fullest}) lacks {missing / GIB:.1f} GiB: it would hold "
        f"{rank.weights / GIB:.1f} GiB of weights and {(rank.total - rank.weights) / GIB:.1f} GiB of vision tower, "
        f"copies and context in {gpu.memory / GIB:.1f} GiB, of which the engine keeps a part for activations"
        f" ({engine.share.flag} {engine.share.of(deployment):.4g}{_origin(deployment)})."
    )


def _origin(deployment: Deployment) -> str:
    """Says where the share of memory comes from."""
    if ENGINES[deployment.engine.name].share.stated(deployment.engine) is not None:
        return " as stated"
    return ", the largest that is safe" if deployment.memory_note else ", its own default"


def _what_fits(deployment: Deployment) -> str:
    """Says which splits of the box would hold the model."""
    fitting = fitting_plans(deployment)
    if fitting:
        return f"On {deployment.hardware.name} these would fit: {', '.join(map(str, fitting))}."
    return f"No TP×PP split of the {deployment.hardware.gpus} GPUs of {deployment.hardware.name} holds it."


def fitting_plans(deployment: Deployment) -> list[ParallelPlan]:
    """Returns the splits of the same box, in powers of two, that hold the same model under the same settings."""
    degrees = [2**power for power in range(deployment.hardware.gpus.bit_length())]
    engine = ENGINES[deployment.engine.name]
    found = []
    for plan in (ParallelPlan(tp, pp) for tp in degrees for pp in degrees if tp * pp <= deployment.hardware.gpus):
        try:
            candidate = settle(deployment.model, deployment.hardware, plan, deployment.engine, engine)
        except ValueError:
            continue
        if engine.kv_capacity_tokens(candidate) > 0:
            found.append(plan)
    return found
