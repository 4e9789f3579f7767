"""What a report is about: every split of the box that holds the model, under the load asked for and under others."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from pipesim.deployment import Deployment, ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.engines import ENGINES
from pipesim.engines.base import settle
from pipesim.errors import InfeasibleDeployment, PipesimError
from pipesim.fitting import deploy, fitting_plans
from pipesim.launch.write import launch_text
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.sensitivity import Confidence
from pipesim.timeline import Timeline
from pipesim.variations import short
from pipesim.workload import LIMITS, Workload

COMPARED = 4
"""Splits whose throughput is shown over concurrency."""
HALVINGS = 5
"""Times that the users asked for are halved for the lowest concurrency shown; the highest is twice as many."""
MOST_WAVES = 3
"""Requests per user at most where concurrency is varied."""


@dataclass(frozen=True)
class Study:
    """The answer and all that it is compared with."""

    chosen: Prediction
    """Of the split asked for, or of the fastest."""
    asked_for: bool
    """Whether the split was asked for."""
    splits: tuple[Prediction, ...]
    """Under the load asked for, the fastest first; `chosen` among them."""
    refused: tuple[tuple[ParallelPlan, str], ...]
    """Splits that hold the model but not this load, and why."""
    by_concurrency: tuple[tuple[Prediction, ...], ...]
    """Of the fastest splits: the same load with fewer and more users; empty for an open loop."""
    timeline: Timeline
    """One run of the chosen split."""
    defaults: tuple[str, ...] = ()
    """In words, what was not said and is assumed."""
    launch: str = ""
    """The command that starts the server, where it is known."""

    @cached_property
    def confidence(self) -> Confidence:
        """How sure the answer is."""
        return Confidence(self.chosen)

    @cached_property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """80 % intervals of the splits' output [tok/s]."""
        sure = (self.confidence if split is self.chosen else Confidence(split) for split in self.splits)
        return tuple(confidence.interval("output_tokens_per_s") for confidence in sure)


def study(  # noqa: PLR0913 - what a question consists of
    model: ModelProfile,
    hardware: HardwareProfile,
    settings: EngineSettings,
    workload: Workload,
    plan: ParallelPlan | None = None,
    *,
    seeds: int = 2,
    first_seed: int = 0,
    defaults: tuple[str, ...] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Study:
    """Returns a study of the splits of a box in powers of two; `progress` hears of each prediction.

    Args:
        model: what is served.
        hardware: the box.
        settings: engine and flags of every split.
        workload: the load asked for.
        plan: the split that is asked for; None for the fastest.
        seeds: runs of each split under the load asked for.
        first_seed: seed of the first of them.
        defaults: in words, what was not said and is assumed.
        progress: is told what is being predicted.

    Raises:
        InfeasibleDeployment: when no split, or not the one asked for, holds the model and the load.
    """
    found: list[Prediction] = []
    refused: list[tuple[ParallelPlan, str]] = []
    for candidate in _candidates(model, hardware, settings, plan):
        progress(str(candidate))
        try:
            predictor = Predictor(deploy(model, hardware, candidate, settings, workload))
            found.append(predictor.predict(workload, seeds, first_seed=first_seed))
        except PipesimError as error:
            if candidate == plan:
                raise
            refused.append((candidate, str(error)))
    if not found:
        raise InfeasibleDeployment([reason for _, reason in refused] or _nothing_fits(model, hardware))
    found.sort(key=lambda prediction: -prediction.mean("output_tokens_per_s"))
    chosen = next((p for p in found if p.deployment.plan == plan), found[0])
    return Study(
        chosen,
        plan is not None,
        tuple(found),
        tuple(refused),
        tuple(_with_other_users(prediction, progress) for prediction in _compared(found, chosen)),
        Predictor(chosen.deployment).simulate(workload, first_seed),
        defaults,
        _launch_line(chosen.deployment),
    )


def _launch_line(deployment: Deployment) -> str:
    """Returns the commands that start the servers; nothing for an engine that has no such form."""
    try:
        return launch_text(deployment)
    except PipesimError:
        return ""


def _candidates(
    model: ModelProfile, hardware: HardwareProfile, settings: EngineSettings, plan: ParallelPlan | None
) -> list[ParallelPlan]:
    """Returns the splits that hold the model, and the one asked for whether it does or not."""
    single = settle(model, hardware, ParallelPlan(), settings, ENGINES[settings.name])
    fitting = fitting_plans(single)
    return fitting if plan is None or plan in fitting else [plan, *fitting]


def _nothing_fits(model: ModelProfile, hardware: HardwareProfile) -> list[str]:
    return [f"No TP×PP split in powers of two of the {hardware.gpus} GPUs of {hardware.name} holds {model.name}."]


def _compared(found: list[Prediction], chosen: Prediction) -> list[Prediction]:
    """Returns the fastest splits, the chosen one among them; none for an open loop, which has no users to vary."""
    if not chosen.workload.closed_loop:
        return []
    first = found[:COMPARED]
    return first if chosen in first else [*first[:-1], chosen]


def _with_other_users(prediction: Prediction, progress: Callable[[str], None]) -> tuple[Prediction, ...]:
    def predicted() -> Iterator[Prediction]:
        predictor, workload = Predictor(prediction.deployment), prediction.workload
        for users in _concurrencies(workload.concurrency):
            if users == workload.concurrency:
                yield prediction
                continue
            progress(f"{prediction.deployment.plan}, {users} users")
            load = short(replace(workload, concurrency=users, num_prompts=MOST_WAVES * users, warm_up=0))
            try:
                yield predictor.predict(load, seeds=1)
            except PipesimError:
                continue

    return tuple(predicted())


def _concurrencies(users: int) -> list[int]:
    _, most = LIMITS["--concurrency"]
    lower = {users // 2**halvings for halvings in range(HALVINGS + 1)} - {0}
    return sorted(lower | {min(2 * users, most)})
