"""Which layers each stage should hold: the split whose busiest stage is least busy."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from pipesim.deployment import Deployment
from pipesim.prediction import Predictor
from pipesim.program import stage_sections
from pipesim.workload import Workload

StageTime = Callable[[int, int, int], float]
"""(stage, first layer, layers) → time."""


def balanced_partition(predictor: Predictor, workload: Workload) -> tuple[int, ...]:
    """Returns the layers of each stage with the least busy busiest stage over a request's life in closed form.

    A stage is charged with the decode steps of a generation and with the prefill launches before it. Of the splits
    that are equally good it is the engine's own or one near it: layers move from the busiest stage to the least busy
    one, and only where that ends above the exact minimum (layers of unequal cost) is the exact split taken.
    """
    deployment = predictor.deployment
    if deployment.plan.pp == 1:
        return deployment.layers
    time = _stage_time(predictor, workload)
    moved = _move_layers(list(deployment.layers), time)
    exact = minimax_partition(deployment.model.layers, deployment.plan.pp, time)
    return moved if _busiest(moved, time) <= _busiest(exact, time) * (1 + 1e-9) else exact


def minimax_partition(layers: int, stages: int, time: StageTime) -> tuple[int, ...]:
    """Returns the split of a chain of layers whose largest stage time is the least there is.

    For a bound on the stage time, filling stages from the front as far as it allows uses the fewest; the least bound
    that gets all layers placed is found by halving, down to a millionth of the time.
    """
    high = _busiest(best := (1,) * (stages - 1) + (layers - stages + 1,), time)
    low = 0.0
    while high - low > 1e-6 * high:
        bound = (low + high) / 2
        filled = _fill(layers, stages, bound, time)
        if filled is None:
            low = bound
        else:
            best, high = filled, min(bound, _busiest(filled, time))
    return best


def _fill(layers: int, stages: int, bound: float, time: StageTime) -> tuple[int, ...] | None:
    """Returns a split that keeps every stage within a bound, each at least one layer, or None."""
    found: list[int] = []
    first = 0
    for stage in range(stages):
        most = layers - first - (stages - 1 - stage)
        if stage == stages - 1:
            count = most if time(stage, first, most) <= bound else 0
        else:
            counts = range(1, most + 1)
            count = bisect_right(counts, bound, key=lambda n, s=stage, f=first: time(s, f, n))  # type: ignore[misc]
        if count < 1:
            return None
        found.append(count)
        first += count
    return tuple(found)


def _move_layers(layers: list[int], time: StageTime) -> tuple[int, ...]:
    times = _times(layers, time)
    while True:
        slowest, fastest = times.index(max(times)), times.index(min(times))
        moved = [count - (s == slowest) + (s == fastest) for s, count in enumerate(layers)]
        if min(moved) < 1 or max(moved_times := _times(moved, time)) >= max(times):
            return tuple(layers)
        layers, times = moved, moved_times


def _times(layers: list[int] | tuple[int, ...], time: StageTime) -> list[float]:
    return [time(stage, sum(layers[:stage]), count) for stage, count in enumerate(layers)]


def _busiest(layers: tuple[int, ...], time: StageTime) -> float:
    return max(_times(layers, time))


def _stage_time(predictor: Predictor, workload: Workload) -> StageTime:
    deployment = predictor.deployment
    chunk, launches = predictor.mid_prefill(workload)
    steps = max(1.0, (workload.output_len - 1) / deployment.engine.tokens_per_step)
    phases = [
        (steps, predictor.price.section_times(predictor.mid_decode(workload))),
        (float(launches), predictor.price.section_times(chunk)),
    ]
    known: dict[tuple[int, int, int], float] = {}

    def time(stage: int, first: int, count: int) -> float:
        key = (stage, first, count)
        if key not in known:
            runs = stage_sections(_with_stage(deployment, stage, first, count), stage)
            known[key] = sum(
                weight * max(sum(run.times * sections[run.section][side] for run in runs) for side in (0, 1))
                for weight, sections in phases
            )
        return known[key]

    return time


def _with_stage(deployment: Deployment, stage: int, first: int, count: int) -> Deployment:
    """Returns a deployment one stage of which holds some layers; what the others hold does not matter."""
    after = deployment.plan.pp - 1 - stage
    before = (1,) * (stage - 1) + (first - stage + 1,) if stage else ()
    rest = deployment.model.layers - first - count
    return replace(deployment, layers=before + (count,) + ((1,) * (after - 1) + (rest - after + 1,) if after else ()))
