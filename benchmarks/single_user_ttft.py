"""Time to first token of a single user, whose request queues nowhere, against what was published.

python benchmarks/single_user_ttft.py

What lies beside the GPUs' time is the front end's; see pipesim/profiles/front_end.toml.
"""

import math
import statistics
import sys

from pipesim.measured import MeasuredRun
from pipesim.runs import load_runs, predict_run

BAR = 1.5
REQUESTS = 3


def single_user_runs() -> list[MeasuredRun]:
    """Returns the shipped runs of one user that state a TTFT, cut to a few requests: all are alike."""
    runs = [run for file in load_runs([]) for run in file.run]
    return [
        run.model_copy(update={"workload": run.workload.model_copy(update={"num_prompts": REQUESTS})})
        for run in runs
        if "ttft_s" in run.measured and run.workload.concurrency == 1 and run.workload.request_rate is None
    ]


def main() -> int:
    """Prints one line per run and the median factor; returns 1 when that is beyond the bar."""
    print("| run | engine | prompt | measured s | predicted s | of it front end s | predicted / measured |")
    print("|---|---|--:|--:|--:|--:|--:|")
    factors = []
    for run in single_user_runs():
        prediction = predict_run(run, 1)
        measured, predicted = run.measured["ttft_s"], prediction.latency("ttft_s").mean
        own = prediction.closed_form.front_end_s
        factors.append(math.exp(abs(math.log(predicted / measured))))
        figures = f"{measured:.3f} | {predicted:.3f} | {own:.3f} | {predicted / measured:.2f}"
        print(f"| {run.id} | {run.engine.name} | {run.workload.input_len:,} | {figures} |")
    median = statistics.median(factors)
    print(f"\nmedian factor {median:.2f}, worst {max(factors):.2f}, over {len(factors)} runs; bar {BAR}")
    return int(median > BAR)


if __name__ == "__main__":
    sys.exit(main())
