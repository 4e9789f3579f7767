"""How long pipesim takes: a cold prediction as a whole process, and a thousand-request run, against their bars.

python benchmarks/speed.py
"""

import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

PREDICT = ["predict", "--tp", "2", "--pp", "4"]
THOUSAND = ["predict", "--tp", "1", "--pp", "8", "--pp-max-micro-batch-size", "8", "--concurrency", "64"]
THOUSAND += ["--num-prompts", "1000", "--seeds", "1", "--json"]


class Case(NamedTuple):
    """One command and its bar."""

    name: str
    arguments: list[str]
    seconds: float
    megabytes: float | None


CASES = [
    Case("cold `pipesim predict --tp 2 --pp 4`", PREDICT, 1.5, None),
    Case("1,000 requests, PP8, C=64, 512 in, 256 out, detail pass", THOUSAND, 2.0, 300.0),
]


def measure(arguments: list[str], runs: int = 5) -> tuple[list[float], float]:
    """Returns the wall times [s] of whole processes, and the largest resident memory of any child so far [MB]."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pipesim", *arguments], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return times, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000


def main() -> int:
    """Prints one line per case; returns 1 when a bar is not met."""
    missed = False
    for case in CASES:
        times, memory = measure(case.arguments)
        median = statistics.median(times)
        over = median > case.seconds or (case.megabytes is not None and memory > case.megabytes)
        missed = missed or over
        bar = f"at most {case.seconds:g} s" + (f", {case.megabytes:g} MB" if case.megabytes else "")
        print(f"{case.name}: median {median:.2f} s ({min(times):.2f} to {max(times):.2f}), {memory:.0f} MB; bar {bar}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
