"""What was run end to end, and how far a prediction lies off where it was not.

A deployment is of several kinds at once: a model family, a GPU, an engine of some age, features that are on. The error
of whole runs that no constant explains is taken as a sum of normal parts in the logarithm, one for each of these, one
for the source (its host, client and build) and one for the run. How large each part is on average was learned from all
measured runs that ship (`whole_runs.toml`, written by `benchmarks/coverage.py`), and so was what they cover.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pipesim.deployment import Deployment
from pipesim.engines import ENGINES

Dimension = Literal["model", "gpu", "engine", "version", "feature"]
DIMENSIONS: tuple[Dimension, ...] = ("model", "gpu", "engine", "version", "feature")
RELEASES = 10
"""Releases of an engine that the log standard deviation of "version" is for; the variance grows with their number."""
MOST_RELEASES = 30
"""Beyond this an engine is another one, and not the less known for its age."""


class Kind(NamedTuple):
    """One thing that a deployment has in common with others."""

    dimension: Dimension
    name: str
    weight: float = 1.0
    """Factor on the log standard deviation of the dimension."""

    def __str__(self) -> str:
        words = {"model": "the model family ", "gpu": "the GPU ", "engine": "the engine "}
        return words.get(self.dimension, "") + self.name


class Term(NamedTuple):
    """A part of a prediction's error that all deployments of a kind share."""

    kind: Kind
    log_std: float


@dataclass(frozen=True)
class WholeRuns:
    """What whole runs have taught."""

    log_std: Mapping[str, float]
    """Of the parts of the error: the dimensions of kinds; "source", "run" and "figure", which every prediction has;
    "ttft_source" and "ttft_run" of a time to first token besides; "datasheet" and "extrapolated" of a price that rests
    on nothing else, or lies beyond the sizes measured."""
    checked: Mapping[str, tuple[str, ...]]
    """Names of kinds that a measured run was of, by dimension."""
    drift: tuple[float, float] = (0.0, 0.0)
    """By how much whole runs of engines `RELEASES` away from the kernels' were faster than predicted, as a logarithm,
    and its standard error; nothing is moved by it while it is not sure."""

    def unchecked(self, deployment: Deployment) -> tuple[Term, ...]:
        """Returns the parts of the error of kinds that no measured run was of, and that of the engine's age."""
        return tuple(
            Term(kind, kind.weight * self.log_std[kind.dimension])
            for kind in kinds(deployment)
            if kind.name not in self.checked.get(kind.dimension, ())
        )

    def never_checked(self, deployment: Deployment) -> list[str]:
        """Returns what of a deployment no measured run was of, in words; its engine's age is not among it."""
        return [str(term.kind) for term in self.unchecked(deployment) if term.kind.dimension != "version"]

    def base_variance(self, deployment: Deployment) -> float:
        """Returns the log variance of every whole run of checked kinds: that of the box's own calibration runs.

        Where the box has none, or none of this model family under this engine, that of another source's run.
        """
        unsure = deployment.hardware.uncertainty
        own = unsure.end_to_end
        if own is not None and (not unsure.end_to_end_of or calibrated_kind(deployment) in unsure.end_to_end_of):
            return own**2
        return self._variance("source", "run", "figure")

    def first_token_variance(self, metric: str) -> float:
        """Returns the log variance of a time to first token besides: prefill, queue and front end are its own."""
        return self._variance("ttft_source", "ttft_run") if metric == "ttft_s" else 0.0

    def _variance(self, *parts: str) -> float:
        return sum(self.log_std[part] ** 2 for part in parts)


@cache
def learned() -> WholeRuns:
    """Returns what ships."""
    document = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    checked = {name: tuple(names) for name, names in document["checked"].items()}
    drift = document["drift"]["mean"], document["drift"]["error"]
    return WholeRuns({name: part["log_std"] for name, part in document["part"].items()}, checked, drift)


def kinds(deployment: Deployment) -> Iterator[Kind]:
    """Yields every kind that a deployment is of; the engine's version where it is not that of the kernels."""
    engine = deployment.engine
    yield Kind("model", model_family(deployment))
    yield Kind("gpu", deployment.hardware.gpu.name)
    yield Kind("engine", engine.name)
    apart = releases_apart(deployment)
    if apart:
        yield Kind("version", f"{engine.name} {engine.version}", math.sqrt(min(apart, MOST_RELEASES) / RELEASES))
    for feature in features(deployment):
        yield Kind("feature", f"{feature} under {engine.name}")


def model_family(deployment: Deployment) -> str:
    """Returns the architecture and the format of the weights that most bytes of it are in."""
    model = deployment.model
    storage = model.precision.routed_experts if model.moe else model.precision.dense_mlp
    return f"{model.architecture.removesuffix('ForCausalLM')} in {storage}"


def calibrated_kind(deployment: Deployment) -> str:
    """Returns what calibration runs are of, as `uncertainty.end_to_end_of` names it."""
    return f"{model_family(deployment)} under {deployment.engine.name}"


def features(deployment: Deployment) -> Iterator[str]:
    """Yields what is on that a run may be without."""
    plan, engine = deployment.plan, deployment.engine
    within_node = deployment.ranks_per_node == plan.tp
    found = {
        "TP": plan.tp > 1,
        "TP over several nodes": not within_node,
        "PP over several nodes": plan.pp > 1 and within_node and deployment.hardware.nodes > 1,
        "PP": plan.pp > 1,
        "EP": plan.ep > 1,
        "DP attention": plan.dp_attention,
        "DCP": plan.dcp > 1,
        "no peer access": plan.gpus_per_replica > 1 and not deployment.peer_access,
        "no CUDA graphs": not engine.cuda_graph,
        "speculation": engine.draft_tokens > 0,
        "FP8 KV cache": deployment.model.precision.kv_cache == "fp8" or engine.kv_cache_dtype == "fp8",
        "mixed chunks": engine.enable_mixed_chunk,
        "dynamic chunks": engine.enable_dynamic_chunking,
        "capped decodes": engine.cap_decodes_per_step,
    }
    yield from (name for name, on in found.items() if on)


def releases_apart(deployment: Deployment) -> int:
    """Returns how many releases lie between the engine that runs and that of the kernels; 0 where either is unknown."""
    engine = deployment.engine
    measured = deployment.hardware.measured_with.get(engine.kernels)
    per_minor = ENGINES[engine.name].releases_per_minor
    asked, known = (_release(version, per_minor) for version in (engine.version, measured))
    return 0 if asked is None or known is None else abs(asked - known)


def _release(version: str | None, per_minor: int) -> int | None:
    parts = [int(part) for part in re.findall(r"\d+", version or "")[:3]]
    if len(parts) < 2:
        return None
    major, minor, patch = (*parts, 0)[:3]
    return (100 * major + minor) * per_minor + (patch if per_minor > 1 else 0)
