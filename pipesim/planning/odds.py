"""How sure a ranking is: the chance of each plan to be truly the best.

Errors of plans on one box go together: they share its constants. So the plans are drawn together, many times: every
group of constants of a box once per draw, each plan moved by its own elasticity to it (`Sensitivity`), and on top the
parts that a plan's interval consists of besides (see `Confidence`):

* the end-to-end error of whole runs, half of its variance common to the box, 3/8 to a split and 1/8 a setting's own:
  so half the error cancels between two settings of a split (as `whatif` has it), and between two splits what the box
  has not in common;
* what was never measured end to end (`pipesim.whole_runs`), common to all plans of the kind: of a model, a GPU or an
  engine to all that have it, of a feature to the plans that use it;
* what whole runs show of times to first token, common to the box;
* weak evidence (datasheet, sizes never measured), common to a split;
* the spread over seeds, a plan's own.

Latencies take these parts with the opposite sign: a run that is faster than predicted is so throughout.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.planning.evaluate import Split
from pipesim.planning.question import Figures, Objective
from pipesim.sensitivity import Sensitivity
from pipesim.whole_runs import Term

DRAWS = 4000
BOX_SHARE, SPLIT_SHARE, OWN_SHARE = 1 / 2, 3 / 8, 1 / 8
NOT_KEPT = 1e6
"""Added to the badness of a plan that breaks a limit, whatever its rank."""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True)
class Contender:
    """A plan in the draw."""

    split: Split
    gpus: int
    figures: Figures
    sensitivities: tuple[Sensitivity, ...]
    end_to_end: float
    """Log standard deviation of whole runs on the box."""
    doubt_variance: float
    seed_variance: float
    unchecked: tuple[Term, ...] = ()
    """Parts of the error of kinds that were never measured end to end."""
    first_token_variance: float = 0.0
    """Log variance that a time to first token has besides."""


@dataclass(frozen=True)
class Odds:
    """What the draws say of one plan. Fractions 0 to 1."""

    best: float
    keeps_limits: float


def odds(contenders: Sequence[Contender], objective: Objective) -> list[Odds]:
    """Returns the chances of each of some plans; the chances to be best sum to 1. The same plans give the same."""
    draws = _Draws(np.random.default_rng(0))
    badness = np.empty((len(contenders), DRAWS))
    kept = np.empty(len(contenders))
    for row, plan in enumerate(contenders):
        faster = draws.common(plan)
        violation = np.zeros(DRAWS)
        for name, limit in objective.limits.items():
            over = np.log(getattr(plan.figures, name) / limit) + draws.constants(plan, name) - faster
            over = over + draws.first_token(plan, name)
            violation = np.maximum(violation, over)
        moved = draws.constants(plan, "output_tokens_per_s") + faster
        if objective.rank_by == "latency":
            moved = faster - draws.constants(plan, "e2e_s")
        base = objective.badness(plan.figures, plan.gpus, plan.split.hardware)
        badness[row] = np.where(violation > 0, NOT_KEPT + violation, base - moved)
        kept[row] = float(np.mean(violation <= 0))
    if not contenders:
        return []
    first = np.bincount(badness.argmin(axis=0), minlength=len(contenders)) / DRAWS
    return [Odds(float(best), float(keeps)) for best, keeps in zip(first, kept, strict=True)]


class _Draws:
    """Standard normal draws by what they belong to, each drawn once."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._known: dict[tuple[str, ...], Floats] = {}

    def _of(self, *owner: str) -> Floats:
        if owner not in self._known:
            self._known[owner] = self._generator.standard_normal(DRAWS)
        return self._known[owner]

    def constants(self, plan: Contender, metric: str) -> Floats:
        """Returns how a metric's logarithm moves with the box's constants."""
        moved = np.zeros(DRAWS)
        for item in plan.sensitivities:
            moved += item.of(metric) * item.log_std * self._of("constant", plan.split.hardware, item.constant)
        return moved

    def first_token(self, plan: Contender, metric: str) -> Floats:
        """Returns how a time to first token moves besides."""
        std = math.sqrt(plan.first_token_variance) if metric == "ttft_s" else 0.0
        return np.asarray(std * self._of("first token", plan.split.hardware))

    def common(self, plan: Contender) -> Floats:
        """Returns by how much a plan is faster for other reasons, as a logarithm."""
        whole = plan.end_to_end**2
        shared: Floats = np.sqrt(BOX_SHARE * whole) * self._of("box", plan.split.hardware)
        for kind, log_std in plan.unchecked:
            shared = shared + log_std * self._of(kind.dimension, kind.name)
        shared = shared + np.sqrt(SPLIT_SHARE * whole + plan.doubt_variance) * self._of("split", *plan.split)
        own = self._of("own", *plan.split, repr(plan.figures))  # settings that change nothing are one plan
        return np.asarray(shared + np.sqrt(OWN_SHARE * whole + plan.seed_variance) * own)
