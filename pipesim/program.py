"""Lowering: a batch on a deployment becomes one program of operations per pipeline stage."""

from dataclasses import dataclass

from pipesim.deployment import Deployment
from pipesim.families import Section, batch_on_rank, family_of
from pipesim.links import fair_shares
from pipesim.ops import Collective, SendRecv, StageOp
from pipesim.profiles.model import STORAGE_BYTES
from pipesim.workload import Batch


@dataclass(frozen=True, slots=True)
class SectionRun:
    """A section of the model and how many times in a row a stage runs it."""

    section: Section
    times: int


@dataclass(frozen=True, slots=True)
class PassProgram:
    """What one micro-batch does on its way through all stages."""

    operations: dict[Section, list[StageOp]]
    """Per section, on each rank of a stage."""
    stages: tuple[tuple[SectionRun, ...], ...]
    sends: tuple[tuple[SendRecv, ...], ...]
    """Per hop from a stage to the next, one transfer per rank; side by side, they share the uplinks where they meet."""


def stage_sections(deployment: Deployment, stage: int) -> tuple[SectionRun, ...]:
    """Returns what one stage runs, in order: embedding on the first, head on the last, layers of one kind together."""
    kinds = deployment.model.layer_kinds(deployment.first_layer(stage), deployment.layers[stage])
    runs = [
        SectionRun("embedding", int(stage == 0)),
        SectionRun("receive", int(stage > 0 and deployment.plan.attention_tp > 1)),
        *(SectionRun(kind, times) for kind, times in kinds.items()),
        SectionRun("head", int(stage == deployment.plan.pp - 1)),
        SectionRun("draft", deployment.engine.draft_tokens if stage == deployment.plan.pp - 1 else 0),
    ]
    return tuple(run for run in runs if run.times)


def lower(deployment: Deployment, batch: Batch) -> PassProgram:
    """Returns the program of one batch on one deployment."""
    model, plan = deployment.model, deployment.plan
    family = family_of(model)
    stages = tuple(stage_sections(deployment, stage) for stage in range(plan.pp))
    sections = {run.section for runs in stages for run in runs}
    operations = {
        section: _receive(deployment, batch) if section == "receive" else family.operations(model, section, batch, plan)
        for section in sections
    }
    sends = tuple(_sends(deployment, batch, stage) for stage in range(plan.pp - 1))
    return PassProgram(operations, stages, sends)


def _receive(deployment: Deployment, batch: Batch) -> list[StageOp]:
    """A stage gathers its slices of hidden state and residual (SGLang parallel_state.py `recv_tensor_dict`)."""
    model = deployment.model
    size = STORAGE_BYTES[model.precision.activations] * batch.tokens * model.hidden_size
    return [Collective("all_gather", "send_recv", deployment.plan.tp, size)] * 2


def _sends(deployment: Deployment, batch: Batch, stage: int) -> tuple[SendRecv, ...]:
    """Hidden state and residual, each rank its 1/tp slice (SGLang parallel_state.py `send_tensor_dict`).

    With attention split by request each rank sends the rows of its own requests: as many, on the fullest rank.
    """
    model, plan, hardware = deployment.model, deployment.plan, deployment.hardware
    size = 2 * STORAGE_BYTES[model.precision.activations] * batch_on_rank(batch, plan.attention_dp).tokens
    size *= model.hidden_size / plan.attention_tp
    pairs = list(zip(plan.stage_gpus(stage), plan.stage_gpus(stage + 1), strict=True))
    return tuple(
        SendRecv(
            size,
            hardware.same_group(sender, receiver),
            deployment.peer_access,
            tensors=2,
            across_nodes=hardware.node_of(sender) != hardware.node_of(receiver),
            share=share,
        )
        for (sender, receiver), share in zip(pairs, fair_shares(hardware, pairs, deployment.peer_access), strict=True)
    )
