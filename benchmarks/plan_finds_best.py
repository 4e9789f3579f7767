"""Whether `plan` finds the best: how long it takes, and where the best of an exhaustive simulation stands in its list.

Every candidate that the search considers is simulated, in full, and the best of these is looked up among the search's
first five. Returns 1 when the search takes too long, considers too few, or misses the best.

python benchmarks/plan_finds_best.py [--concurrency 64 …]
"""

import argparse
import os
import sys
import time

from pipesim.planning.evaluate import Task, Workers
from pipesim.planning.question import PlanQuestion
from pipesim.planning.search import PlanSearch, search
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload

MOST_SECONDS, FEWEST_CONSIDERED, PLACES = 10.0, 200, 5


def question(concurrency: int, output_len: int, spread: float) -> PlanQuestion:
    """Returns the question: Kimi K2.6 on the founding box."""
    load = Workload(concurrency, 4 * concurrency, output_len=output_len, random_range_ratio=spread)
    return PlanQuestion(load_model("kimi-k2.6"), (load_hardware("rtx-pro-6000-x8"),), load)


def exhaustive(found: PlanSearch, jobs: int) -> list[float]:
    """Returns the simulated output tok/s of every plan of a search, in its order, with all seeds."""
    asked = found.question
    tasks = [Task(number, plan.deployment, 0, asked.seeds) for number, plan in enumerate(found.plans)]
    rates = [0.0] * len(tasks)
    with Workers(asked.workload, jobs, lambda _: None) as workers:
        for number, prediction in workers.run(tasks, 10**9):
            rates[number] = prediction.mean("output_tokens_per_s")
    return rates


def check(concurrency: int, output_len: int, spread: float, jobs: int) -> bool:
    """Prints one row of the table; returns whether every bar is met."""
    asked = question(concurrency, output_len, spread)
    begin = time.perf_counter()
    found = search(asked, jobs)
    seconds = time.perf_counter() - begin
    rates = exhaustive(found, jobs)
    best = max(rates)
    within = max(rates[:PLACES])
    ok = within >= best * (1 - 1e-9) and seconds <= MOST_SECONDS and len(rates) >= FEWEST_CONSIDERED
    print(
        f"| {concurrency} | {output_len} | {spread:g} | {len(rates)} | {found.simulated} | {seconds:.1f} | {best:,.1f} "
        f"| {within:,.1f} | {1 + rates.index(best)} | {'ok' if ok else 'MISSED'} |",
        flush=True,
    )
    return ok


def main() -> int:
    """Prints a table; returns 1 when a bar is not met."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--concurrency", type=int, nargs="*", default=[64])
    parser.add_argument("--output-len", type=int, nargs="*", default=[256])
    parser.add_argument("--random-range-ratio", type=float, nargs="*", default=[0.0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    print("| users | out | spread | candidates | simulated | s | best of all | best of first 5 | its place | |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    rows = [
        check(users, length, spread, given.jobs)
        for users in given.concurrency
        for length in given.output_len
        for spread in given.random_range_ratio
    ]
    return int(not all(rows))


if __name__ == "__main__":
    sys.exit(main())
