"""What a candidate comes to: in closed form with prices that candidates share, or simulated, on several cores."""

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import NamedTuple, Self

from pipesim.closed_form import SteadyState
from pipesim.deployment import Deployment
from pipesim.planning.question import Figures, Percentile
from pipesim.prediction import Prediction, Predictor, arrival_rate, as_closed_loop
from pipesim.variations import SharedPrices
from pipesim.workload import LIMITS, Workload

POOL_FROM_PASSES = 40_000
"""Passages to simulate from which worker processes are worth their start (half a second each)."""
LARGEST_TASK = 4
"""Candidates that a worker takes at a time; they share prices."""
FIXED_POINT_ROUNDS = 12


class Split(NamedTuple):
    """What candidates that differ in settings alone have in common."""

    hardware: str
    engine: str
    plan: str


@dataclass(frozen=True)
class Candidate:
    """A deployment and its closed form under the load."""

    deployment: Deployment
    closed_form: SteadyState
    closed_load: Workload
    """The closed loop that stands for the load."""
    closed_figures: Figures
    per_request: float
    """Output tokens per second of one request, in closed form."""
    passages: int
    """Passages that a run takes, roughly."""

    @cached_property
    def split(self) -> Split:
        """What it shares with other settings of the same split."""
        plan = replace(self.deployment.plan, layer_partition=None)
        return Split(self.deployment.hardware.name, self.deployment.engine.name, str(plan))

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.deployment.plan.gpus


def consider(predictor: Predictor, workload: Workload, percentile: Percentile) -> Candidate:
    """Returns a candidate with its closed form.

    Raises:
        InfeasibleDeployment: when the KV cache does not hold a single request of the load.
    """
    predictor.check_kv(workload)
    load, rate = closed_loop_of(predictor, workload)
    steady = predictor.steady_state(load)
    tpot = steady.step_time_s / predictor.deployment.engine.tokens_per_step
    e2e = load.concurrency * load.output_len / steady.output_tokens_per_s
    ttft = max(steady.first_token_s, e2e - (load.output_len - 1) * tpot)
    output = min(steady.output_tokens_per_s, rate * load.output_len)
    slots = steady.micro_batches * predictor.deployment.plan.replicas
    in_server = slots * steady.requests_per_micro_batch
    rounds = max(1.0, load.num_prompts / in_server) * (load.output_len / predictor.deployment.engine.tokens_per_step)
    figures = Figures(output, ttft, max(tpot, 1e-12), e2e)
    return Candidate(predictor.deployment, steady, load, figures, load.output_len / e2e, math.ceil(rounds * slots))


def closed_loop_of(predictor: Predictor, workload: Workload) -> tuple[Workload, float]:
    """Returns the closed loop that stands for a load in closed form, and the load's rate of requests [1/s].

    Of an open loop the users are those that Little's law puts into the server: rate times E2E latency, which itself
    grows with them; up to the most that the load lets in.
    """
    if workload.closed_loop:
        return workload, math.inf
    rate = arrival_rate(workload)
    most = min(workload.max_concurrency or workload.num_prompts, workload.num_prompts, LIMITS["--concurrency"][1])
    load = as_closed_loop(workload, most if rate == math.inf else min(most, predictor.deployment.plan.replicas))
    for _ in range(FIXED_POINT_ROUNDS):
        output = predictor.steady_state(load).output_tokens_per_s
        users = math.ceil(rate * load.concurrency * load.output_len / output) if rate < math.inf else most
        if users <= load.concurrency or load.concurrency == most:
            break
        load = replace(load, concurrency=min(users, most))
    return load, rate


def shortened(workload: Workload, waves: int) -> Workload:
    """Returns a closed loop cut to some requests per user (and its warm-up); other loads as they are."""
    if not workload.closed_loop:
        return workload
    requests = min(workload.num_prompts, waves * workload.concurrency + workload.warm_up)
    return replace(workload, num_prompts=requests)


class Task(NamedTuple):
    """Runs of one candidate."""

    number: int
    """The candidate's."""
    deployment: Deployment
    first_seed: int
    seeds: int


def run_tasks(tasks: Sequence[Task], workload: Workload) -> list[tuple[int, Prediction]]:
    """Returns the prediction of each task."""
    prices = SharedPrices()
    return [
        (
            task.number,
            prices.predictor(task.deployment).predict(workload, task.seeds, first_seed=task.first_seed),
        )
        for task in tasks
    ]


class Workers:
    """Simulates candidates: here, or in worker processes once there is enough to do.

    Args:
        workload: the load that is simulated.
        jobs: most processes; 1 for none beside this one.
        show: hears of every candidate that is done.
    """

    def __init__(self, workload: Workload, jobs: int, show: Callable[[str], None]) -> None:
        self._workload, self._jobs, self._show = workload, jobs, show
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[Task], passages: int) -> Iterator[tuple[int, Prediction]]:
        """Yields the prediction of each task by its number, in any order; `passages` says how much work they are."""
        if self._pool is None and self._jobs > 1 and passages >= POOL_FROM_PASSES:
            # Started afresh: a fork of a process with threads (NumPy's) may hang.
            self._pool = ProcessPoolExecutor(self._jobs, mp_context=multiprocessing.get_context("spawn"))
        parts = _parts(tasks, self._jobs if self._pool else len(tasks) or 1)
        if self._pool is None:
            done: Iterator[list[tuple[int, Prediction]]] = (run_tasks(part, self._workload) for part in parts)
        else:
            pool, load = self._pool, self._workload
            futures = [pool.submit(run_tasks, part, load) for part in parts]
            done = (future.result() for future in as_completed(futures))
        for part in done:
            for number, prediction in part:
                self._show(str(prediction.deployment.plan))
                yield number, prediction


def _parts(tasks: Sequence[Task], jobs: int) -> list[list[Task]]:
    """Returns the tasks in parts of neighbours (they share prices), small enough that every worker gets several."""
    size = max(1, min(LARGEST_TASK, math.ceil(len(tasks) / (2 * jobs))))
    return [list(tasks[first : first + size]) for first in range(0, len(tasks), size)]
