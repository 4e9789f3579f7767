"""All candidates in closed form: slot settings of every split first, then other settings of the better ones."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import log

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.errors import InfeasibleDeployment, MissingEvidence, UsageError
from pipesim.partition import balanced_partition
from pipesim.planning.evaluate import Candidate, Split, consider
from pipesim.planning.question import PlanQuestion
from pipesim.planning.space import Rejection, further_settings, placements, settled, slot_settings, splits, variants
from pipesim.profiles.hardware import HardwareProfile
from pipesim.variations import SharedPrices

REFINED_PER_SPLIT = 3
"""Slot settings of a split of which further settings are tried."""
REFINED_SPLITS = 48
REFINED_WITHIN = log(2.0)
"""Splits whose best closed form is this much worse than the best of all get no further settings."""


class Space:
    """All candidates of a question, and what was refused on the way."""

    def __init__(self, question: PlanQuestion) -> None:
        self._question = question
        self._prices = SharedPrices()
        self.rejections: list[Rejection] = []

    def candidates(self) -> list[Candidate]:
        """Returns every candidate: slot settings of every split first, then the other settings of the better ones."""
        question = self._question
        by_split: dict[Split, list[Candidate]] = {}
        for box in question.boxes:
            for engine in question.engines:
                for plan in splits(question, box):
                    for candidate in self._split(box, engine, plan):
                        by_split.setdefault(candidate.split, []).append(candidate)
        found = {_identity(c.deployment): c for group in by_split.values() for c in group}
        for leader in self._worth_refining(by_split):
            best = sorted(by_split[leader.split], key=self._closed_key)[:REFINED_PER_SPLIT]
            for further in (further for candidate in best for further in self._refine(candidate)):
                found.setdefault(_identity(further.deployment), further)
        return list(found.values())

    def _worth_refining(self, by_split: dict[Split, list[Candidate]]) -> list[Candidate]:
        """Returns the best candidate of each split that is not far behind the best of all."""
        leaders = sorted((min(group, key=self._closed_key) for group in by_split.values()), key=self._closed_key)
        worst = self._badness(leaders[0]) + REFINED_WITHIN if leaders else 0.0
        return [leader for leader in leaders[:REFINED_SPLITS] if self._badness(leader) <= worst]

    def _closed_key(self, candidate: Candidate) -> tuple[float, ...]:
        hardware = candidate.deployment.hardware.name
        return self._question.objective.key(candidate.closed_figures, candidate.gpus, hardware)

    def _badness(self, candidate: Candidate) -> float:
        hardware = candidate.deployment.hardware.name
        return self._question.objective.badness(candidate.closed_figures, candidate.gpus, hardware)

    def _split(self, box: HardwareProfile, engine: EngineName, plan: ParallelPlan) -> Iterator[Candidate]:
        """Yields the candidates of a split and its further kinds of parallelism."""
        question = self._question
        settings = replace(question.settings, name=engine)
        # What is wrong with a split is wrong with its variants, which hold at least as many weights per GPU; but whole
        # experts may be shared out where their columns cannot be split.
        plain = settled(question, box, plan, settings)
        if isinstance(plain, Rejection):
            self.rejections.append(plain)
            if isinstance(settled(question, box, replace(plan, ep=plan.tp), settings), Rejection):
                return
        orders = placements(question, box, plan)
        for variant, order in product(variants(question, engine, plan), orders):
            if variant == plan and isinstance(plain, Rejection):
                continue
            base = settled(question, box, replace(variant, placement=order), settings)
            if isinstance(base, Rejection):
                self.rejections.append(base)
                continue
            first = self._consider(base)
            if first is None:
                continue
            yield from self._slots(base, first)

    def _slots(self, base: Deployment, first: Candidate) -> Iterator[Candidate]:
        users = -(-first.closed_load.concurrency // base.plan.replicas)
        for settings in slot_settings(self._question, base, users):
            candidate = first if settings == base.engine else self._with(base, settings, None)
            if candidate is None:
                continue
            yield candidate
            if self._question.best_partition:
                yield from self._balanced(candidate)

    def _refine(self, candidate: Candidate) -> Iterator[Candidate]:
        """Yields a candidate's deployment with other chunks, KV cache formats and layer splits."""
        base = candidate.deployment
        users = -(-candidate.closed_load.concurrency // base.plan.replicas)
        for settings in further_settings(self._question, base, self._question.workload, users):
            further = candidate if settings == base.engine else self._with(base, settings, None)
            if further is None:
                continue
            yield further
            if not self._question.best_partition:
                yield from self._balanced(further)

    def _balanced(self, candidate: Candidate) -> Iterator[Candidate]:
        base = candidate.deployment
        if base.plan.pp == 1 or "layer_partition" in self._question.fixed:
            return
        layers = balanced_partition(self._prices.predictor(base), candidate.closed_load)
        if layers != base.layers:
            further = self._with(base, base.engine, layers)
            if further is not None:
                yield further

    def _with(self, base: Deployment, settings: EngineSettings, layers: tuple[int, ...] | None) -> Candidate | None:
        """Returns a candidate that differs from a deployment in settings or layers; None where it cannot run."""
        partition = base.plan.layer_partition if layers is None else layers
        changed = settled(self._question, base.hardware, replace(base.plan, layer_partition=partition), settings)
        if isinstance(changed, Rejection):
            self.rejections.append(changed)
            return None
        return self._consider(changed)

    def _consider(self, deployment: Deployment) -> Candidate | None:
        try:
            return consider(
                self._prices.predictor(deployment), self._question.workload, self._question.objective.percentile
            )
        except InfeasibleDeployment as refusal:
            reasons = tuple(refusal.reasons)
        except (UsageError, MissingEvidence) as refusal:
            reasons = (str(refusal),)
        self.rejections.append(Rejection(deployment.hardware, deployment.engine, deployment.plan, reasons))
        return None


def _identity(deployment: Deployment) -> tuple[object, ...]:
    plan = replace(deployment.plan, layer_partition=None)
    return deployment.hardware.name, plan, deployment.layers, deployment.engine
