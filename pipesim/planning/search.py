"""The search: all candidates in closed form, then simulation of whatever stands at the front until the front is firm.

The closed form does not know how unevenly slots fill or how prompts hold up decodes. What the simulation makes of it
for one candidate is carried to its like: same split and same kind of slot cap first, same split else. With that
correction, in its most favourable form, candidates are ranked; those at the front that have not been simulated are,
and so on until the first few places and the Pareto front are held by simulated plans. The method is best-first
search with an optimistic bound (A*, Hart et al. 1968), except that the bound is learned and not proven.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pipesim.deployment import Deployment
from pipesim.overload import overload
from pipesim.planning.candidates import Space
from pipesim.planning.evaluate import Candidate, Split, Task, Workers, shortened
from pipesim.planning.odds import Contender, Odds, odds
from pipesim.planning.question import Figures, PlanQuestion
from pipesim.planning.space import Rejection, check_fixed
from pipesim.prediction import Prediction, arrival_rate
from pipesim.sensitivity import HEADLINES, Confidence, Sensitivity, sensitivities
from pipesim.workload import Workload

FIRST_PLACES = 8
"""Places that only simulated plans may hold."""
SEEDED_PLACES = 5
"""Places whose plans are run with every seed."""
MOST_SIMULATIONS, FEWEST_SIMULATIONS = 72, 8
MOST_PASSAGES = 400_000
"""Passages of all simulations together: 10 to 30 s on one core, by how many requests wait for KV cache."""
WAVES, WAVES_OF_LONG_ANSWERS = 6, 3
"""Requests per user that are simulated at most, in a closed loop: as many as a prediction has if none are given."""
LONG_ANSWER = 1024
"""Output tokens from which a request counts as long: its ramp and its tail weigh little."""
Show = Callable[[str], None]


LEADERS = 12
"""Splits whose best candidate in closed form is simulated first, beside the best of each TP × PP × replicas."""
MOST_LEADERS = 24
PARETO_PLACES = 8


@dataclass(frozen=True)
class Plan:
    """A plan that can run, judged."""

    rank: int
    candidate: Candidate
    prediction: Prediction | None
    """None where the closed form is all there is."""
    figures: Figures
    per_request: float
    """Output tokens per second of one request."""
    violation: float
    odds: Odds
    pareto: bool
    """Whether no other plan is better both in tok/s per GPU and in tok/s per request."""
    log_stds: dict[str, float]
    """Log standard deviation of each headline metric."""

    @property
    def deployment(self) -> Deployment:
        """The deployment that it is."""
        return self.candidate.deployment

    @property
    def meets_slo(self) -> bool:
        """Whether every limit is kept."""
        return self.violation == 0

    @property
    def output_tokens_per_s_per_gpu(self) -> float:
        """Output tokens per second over the GPUs that it takes."""
        return self.figures.output_tokens_per_s / self.candidate.gpus


@dataclass(frozen=True)
class PlanSearch:
    """What a search found."""

    question: PlanQuestion
    plans: tuple[Plan, ...]
    """Best first."""
    rejections: tuple[Rejection, ...]
    simulated_load: Workload
    split_odds: dict[Split, float]
    """Chance of each split to hold the best plan."""

    @property
    def considered(self) -> int:
        """Candidates with a closed form, and those refused."""
        return len(self.plans) + len(self.rejections)

    @property
    def simulated(self) -> int:
        """Candidates that were simulated."""
        return sum(plan.prediction is not None for plan in self.plans)

    @property
    def best(self) -> Plan | None:
        """The first plan that keeps every limit."""
        return next((plan for plan in self.plans if plan.meets_slo), None)


def search(question: PlanQuestion, jobs: int = 1, show: Show = lambda _: None) -> PlanSearch:
    """Returns every plan considered, ranked.

    Args:
        question: what is asked.
        jobs: most processes that simulate; above 1 the caller's main module must be importable (see multiprocessing).
        show: hears of every candidate that is simulated.

    Raises:
        UsageError: for a value held fixed that no box could meet, and for a load that no plan could be asked.
    """
    check_fixed(question)
    space = Space(question)
    candidates = space.candidates()
    question = _ranked(question, candidates)
    long = question.workload.output_len >= LONG_ANSWER
    load = shortened(question.workload, WAVES_OF_LONG_ANSWERS if long else WAVES)
    with Workers(load, jobs, show) as workers:
        front = _Front(question, candidates)
        front.firm_up(workers)
        while True:
            front.add_seeds(workers)
            if not front.overloaded_first():
                break
    return _judge(front, tuple(space.rejections), load)


def _ranked(question: PlanQuestion, candidates: Sequence[Candidate]) -> PlanQuestion:
    """Returns the question with what plans are ranked by, where that hangs on the load."""
    if question.objective.rank_by is not None:
        return question
    load = question.workload
    offered = math.inf if load.closed_loop else arrival_rate(load) * load.output_len
    carried = any(candidate.closed_form.output_tokens_per_s >= offered for candidate in candidates)
    objective = replace(question.objective, rank_by="latency" if carried else "throughput")
    return replace(question, objective=objective)


class _Front:
    """The candidates, what the simulation made of some, and what that lets expect of the others."""

    def __init__(self, question: PlanQuestion, candidates: Sequence[Candidate]) -> None:
        self.question, self.candidates = question, candidates
        self.predictions: dict[int, Prediction] = {}
        self._passages = 0
        self._simulated: dict[int, Figures] = {}
        self._hopes: dict[tuple[object, ...], Figures] = {}
        self._overloaded: set[int] = set()

    def firm_up(self, workers: Workers) -> None:
        """Simulates the best candidate of each split, then the front until simulated plans hold it."""
        leaders: dict[Split, int] = {}
        for index in sorted(range(len(self.candidates)), key=lambda i: self.key(i)[:-1]):
            leaders.setdefault(self.candidates[index].split, index)
        shapes: dict[tuple[object, ...], int] = {}
        for index in leaders.values():
            shapes.setdefault(_shape(self.candidates[index].deployment), index)
        wanted = list(dict.fromkeys([*list(leaders.values())[:LEADERS], *shapes.values()]))[:MOST_LEADERS]
        while wanted := self._affordable(wanted):
            self._simulate(workers, wanted, 0, 1)
            places = sorted(range(len(self.candidates)), key=self.key)[:FIRST_PLACES]
            front = sorted(self.pareto(), key=self.key)[:PARETO_PLACES]
            wanted = [index for index in dict.fromkeys([*places, *front]) if index not in self.predictions]

    def add_seeds(self, workers: Workers) -> None:
        """Runs the best plans with the remaining seeds, until those that are best then have them all."""
        seeds = 1 if self.question.workload.trace else self.question.seeds
        while True:
            places = sorted(self.predictions, key=self.key)[:SEEDED_PLACES]
            wanted = [index for index in places if len(self.predictions[index].runs) < seeds]
            if not wanted:
                return
            self._simulate(workers, wanted, 1, seeds - 1)

    def overloaded_first(self) -> bool:
        """Returns whether the first place, of an open loop ranked by latency, turned out to carry less than is offered.

        Its latencies are then those of the run's length, so it goes behind the others.
        """
        first = self.places()[:1]
        by_latency = self.question.objective.rank_by == "latency" and not self.question.workload.closed_loop
        if not by_latency or len(self._overloaded) == SEEDED_PLACES or not {*first} & {*self.predictions}:
            return False
        found = overload(self.predictions[first[0]])
        self._overloaded |= {*first} if found else set()
        return found is not None

    def places(self) -> list[int]:
        """Returns all candidates, best first.

        Where the budget ended before the front was firm, the best simulated ones come before what is only hoped for.
        """
        ranked = sorted(range(len(self.candidates)), key=self.key)
        if all(index in self.predictions for index in ranked[:FIRST_PLACES]):
            return ranked
        first = [index for index in ranked if index in self.predictions][:FIRST_PLACES]
        kept = set(first)
        return first + [index for index in ranked if index not in kept]

    def key(self, index: int) -> tuple[float, ...]:
        """Returns what candidates are sorted by; of equally good ones the one with the fewest flags comes first."""
        candidate = self.candidates[index]
        judged = self.question.objective.key(self.figures(index), candidate.gpus, candidate.deployment.hardware.name)
        return index in self._overloaded, *judged, flags_set(candidate.deployment)

    def figures(self, index: int) -> Figures:
        """Returns what the simulation says of a candidate, or the closed form as far as it may be hoped to hold."""
        if index in self._simulated:
            return self._simulated[index]
        return Figures(*(a * b for a, b in zip(self.candidates[index].closed_figures, self._hope(index), strict=True)))

    def per_request(self, index: int) -> float:
        """Returns output tokens per second of one request."""
        if index in self.predictions:
            return self.predictions[index].mean("output_tokens_per_s_per_request")
        return self.candidates[index].per_request / self._hope(index).e2e_s

    def ratio(self, index: int) -> Figures:
        """Returns simulated over closed form, figure by figure, of a simulated candidate."""
        return Figures(
            *(a / b for a, b in zip(self.figures(index), self.candidates[index].closed_figures, strict=True))
        )

    def like(self, index: int) -> list[int]:
        """Returns the simulated candidates most like one: same split, depth and cap; same split; or any."""
        own = self.candidates[index]
        same_split = [i for i in self.predictions if self.candidates[i].split == own.split]
        return (
            [i for i in same_split if _slots(self.candidates[i]) == _slots(own)] or same_split or list(self.predictions)
        )

    def pareto(self) -> list[int]:
        """Returns the candidates that none beats in both tok/s per GPU and tok/s per request."""
        points = [
            (self.figures(index).output_tokens_per_s / candidate.gpus, self.per_request(index), self.key(index), index)
            for index, candidate in enumerate(self.candidates)
        ]
        found, fastest = [], 0.0
        for _, per_request, _, index in sorted(points, key=lambda point: (-point[0], -point[1], *point[2:])):
            if per_request > fastest:
                found.append(index)
                fastest = per_request
        return found

    def _hope(self, index: int) -> Figures:
        """Returns the most favourable ratios of simulation to closed form among the candidates most like one."""
        candidate = self.candidates[index]
        key = (candidate.split, _slots(candidate))
        if key not in self._hopes:
            ratios = [self.ratio(i) for i in self.like(index)] or [Figures(1.0, 1.0, 1.0, 1.0)]
            output, *latencies = zip(*ratios, strict=True)
            self._hopes[key] = Figures(max(output), *map(min, latencies))
        return self._hopes[key]

    def _affordable(self, wanted: list[int]) -> list[int]:
        """Returns as many of the candidates wanted as the budget of simulations and of passages allows."""
        kept: list[int] = []
        passages = self._passages
        for index in wanted:
            done = len(self.predictions) + len(kept)
            passages += self.candidates[index].passages
            if done >= MOST_SIMULATIONS or (done >= FEWEST_SIMULATIONS and passages > MOST_PASSAGES):
                break
            kept.append(index)
        return kept

    def _simulate(self, workers: Workers, wanted: list[int], first_seed: int, seeds: int) -> None:
        passages = seeds * sum(self.candidates[index].passages for index in wanted)
        self._passages += passages
        first_seed += self.question.first_seed
        tasks = [Task(index, self.candidates[index].deployment, first_seed, seeds) for index in sorted(wanted)]
        for index, prediction in workers.run(tasks, passages):
            before = self.predictions.get(index)
            runs = before.runs + prediction.runs if before else prediction.runs
            self.predictions[index] = replace(before or prediction, runs=runs)
            self._simulated[index] = simulated_figures(self.predictions[index], self.question)
        self._hopes.clear()


def flags_set(deployment: Deployment) -> int:
    """Returns how many settings of a deployment that are searched are not the engine's defaults."""
    engine, plan = deployment.engine, deployment.plan
    return sum(
        (
            engine.pp_max_micro_batch_size is not None,
            engine.pp_async_batch_depth > 0,
            engine.chunked_prefill_size is not None,
            engine.kv_cache_dtype != "auto",
            plan.layer_partition is not None,
            plan.ep > 1,
            plan.dp_attention,
            plan.dcp > 1,
        )
    )


def simulated_figures(prediction: Prediction, question: PlanQuestion) -> Figures:
    """Returns what a simulated plan is judged by."""
    percentile = question.objective.percentile
    latencies = (getattr(prediction.latency(name), percentile) for name in ("ttft_s", "tpot_s", "e2e_s"))
    # An answer of one token has no TPOT; a limit on it is kept.
    return Figures(prediction.mean("output_tokens_per_s"), *(max(latency, 1e-12) for latency in latencies))


def _shape(deployment: Deployment) -> tuple[object, ...]:
    plan = deployment.plan
    return deployment.hardware.name, deployment.engine.name, plan.tp, plan.pp, plan.replicas


def _slots(candidate: Candidate) -> tuple[int, int | None]:
    engine = candidate.deployment.engine
    return engine.pp_async_batch_depth, engine.pp_max_micro_batch_size


def _judge(front: _Front, rejections: tuple[Rejection, ...], load: Workload) -> PlanSearch:
    """Ranks what was found and says how sure the ranking is."""
    question = front.question
    places = front.places()
    confidences = _confidences(front)
    simulated = [index for index in places if index in front.predictions]
    contenders = [_contender(front, index, confidences[index]) for index in simulated]
    chances = dict(zip(simulated, odds(contenders, question.objective), strict=True))
    pareto = set(front.pareto())
    plans, split_odds = [], dict.fromkeys((candidate.split for candidate in front.candidates), 0.0)
    for rank, index in enumerate(places, start=1):
        figures = front.figures(index)
        violation = question.objective.violation(figures)
        chance = chances.get(index, Odds(0.0, float(violation == 0)))
        split_odds[front.candidates[index].split] += chance.best
        plans.append(
            Plan(
                rank=rank,
                candidate=front.candidates[index],
                prediction=front.predictions.get(index),
                figures=figures,
                per_request=front.per_request(index),
                violation=violation,
                odds=chance,
                pareto=index in pareto,
                log_stds=_log_stds(front, index, confidences),
            )
        )
    return PlanSearch(question, tuple(plans), rejections, load, split_odds)


def _confidences(front: _Front) -> dict[int, Confidence]:
    """Returns how sure each simulated plan is; plans with the same closed form share their sensitivities.

    What other arrivals do is simulated of the places that are run with every seed.
    """
    seeded = [index for index in front.places() if index in front.predictions][:SEEDED_PLACES]
    known: dict[tuple[object, ...], tuple[Sensitivity, ...]] = {}
    found = {}
    for index, prediction in front.predictions.items():
        candidate = front.candidates[index]
        key = (candidate.split, candidate.deployment.layers, candidate.closed_form)
        if key not in known:
            known[key] = sensitivities(candidate.deployment, candidate.closed_load)
        found[index] = Confidence(prediction, known[key], arrivals=index in seeded)
    return found


def _contender(front: _Front, index: int, confidence: Confidence) -> Contender:
    candidate = front.candidates[index]
    return Contender(
        split=candidate.split,
        gpus=candidate.gpus,
        figures=front.figures(index),
        sensitivities=confidence.sensitivities,
        end_to_end=confidence.whole_run_std,
        unchecked=confidence.unchecked,
        first_token_variance=confidence.first_token_variance("ttft_s"),
        doubt_variance=confidence.doubt_variance,
        seed_variance=confidence.seed_variance("output_tokens_per_s"),
    )


def _log_stds(front: _Front, index: int, confidences: dict[int, Confidence]) -> dict[str, float]:
    """Returns the log standard deviation of each headline metric of a plan.

    One that was not simulated takes those of the simulated plan most like it, and on top the root mean square error
    that the closed form shows on such plans.
    """
    if index in confidences:
        return {name: confidences[index].log_std(name) for name in HEADLINES}
    like = front.like(index)
    error = fmean(math.log(front.ratio(i).output_tokens_per_s) ** 2 for i in like)
    nearest = confidences[like[0]]
    return {name: math.sqrt(nearest.log_std(name) ** 2 + error) for name in HEADLINES}
