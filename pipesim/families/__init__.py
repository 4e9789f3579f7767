"""Model families: which tensors a layer holds and which operations a batch makes of it, per tensor-parallel rank.

A family is two functions and a row in `FAMILIES`, keyed by HF `architectures[0]`. All of today's are decoders of one
shape, put together from an attention (`latent`, `grouped`) and an MLP (`feed_forward`), so they share both functions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipesim.deployment import ParallelPlan
from pipesim.errors import ProfileError
from pipesim.families.decoder import decoder_operations, decoder_tensors
from pipesim.families.shared import Section, Tensor, batch_on_rank, padded_over_ranks
from pipesim.ops import StageOp
from pipesim.profiles.architectures import ARCHITECTURES
from pipesim.profiles.model import ModelProfile
from pipesim.workload import Batch

__all__ = ["FAMILIES", "Family", "Section", "Tensor", "batch_on_rank", "family_of", "padded_over_ranks"]


@dataclass(frozen=True)
class Family:
    """What one model architecture consists of and does."""

    tensors: Callable[[ModelProfile, Section], list[Tensor]]
    operations: Callable[[ModelProfile, Section, Batch, ParallelPlan], list[StageOp]]


DECODER = Family(decoder_tensors, decoder_operations)

FAMILIES: dict[str, Family] = dict.fromkeys(ARCHITECTURES, DECODER)


def family_of(model: ModelProfile) -> Family:
    """Returns the family of a model. Raises ProfileError for an architecture without one."""
    if model.architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ProfileError(f"model profile {model.name}", "architecture", f'"{model.architecture}"', f"one of {known}")
    return FAMILIES[model.architecture]
