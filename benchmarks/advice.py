"""Does advice keep what it promises? The simulated gain on fresh seeds against the interval printed with the advice.

Random deployments under random loads, until so many were advised a flag. Both settings are then simulated with seeds
that the advice never saw. Run it with `python benchmarks/advice.py [--scenarios 60] [--first 0]`.
"""

import argparse
import random
from statistics import fmean, median

from pipesim.changes import advice, goal, with_flags
from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.workload import Workload

SEEDS, FRESH = 5, 1000
BAR = 0.75
BOXES = {
    "rtx-pro-6000-x8": ("kimi-k2.6", ((8, 1), (4, 2), (2, 4), (1, 8))),
    "h100-sxm-x4": ("llama-3.3-70b-instruct", ((4, 1), (2, 2), (1, 4))),
    "l40s-x8": ("qwen3-30b-a3b", ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4))),
}


def scenario(draw: random.Random) -> Prediction:
    """Returns the prediction of a random deployment and load."""
    hardware = draw.choice(sorted(BOXES))
    model, splits = BOXES[hardware]
    tp, pp = draw.choice(splits)
    users = draw.choice([8, 16, 32, 48])
    lengths = {"input_len": draw.choice([64, 256, 512, 1024]), "output_len": draw.choice([32, 64, 128])}
    ratio = draw.choice([0.0, 0.25, 0.5, 0.75])
    kind = draw.choice(["wave", "steady", "open"])
    load = Workload(users, 4 * users, **lengths, random_range_ratio=ratio, steady=kind == "steady")
    if kind == "open":
        load = Workload(num_prompts=96, **lengths, random_range_ratio=ratio, request_rate=draw.choice([1.0, 2.0, 4.0]))
    cap = draw.choice([None, None, 4, 32]) if pp > 1 else None
    name = draw.choice(["sglang", "sglang", "sglang", "vllm"])
    settings = EngineSettings(
        name=name, cuda_graph=draw.random() < 0.8, pp_max_micro_batch_size=cap if name == "sglang" else None
    )
    deployment = deploy(load_model(model), load_hardware(hardware), ParallelPlan(tp, pp), settings, load)
    return Predictor(deployment).predict(load, SEEDS)


def on_fresh_seeds(prediction: Prediction, flags: str) -> float:
    """Returns the gain of flags with seeds that the prediction does not have."""
    changed = next(other for _, typed, other in with_flags(prediction) if typed == flags)
    metric = goal(prediction.workload)
    before, after = (
        fmean(Predictor(one).predict(prediction.workload, SEEDS, first_seed=FRESH).over_seeds(metric))
        for one in (prediction.deployment, changed)
    )
    return before / after if metric == "e2e_s" else after / before


def main() -> None:
    """Prints every scenario with an advised flag, and how many intervals held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=60, help="scenarios with an advised flag")
    parser.add_argument("--first", type=int, default=0, help="seed of the scenarios")
    asked = parser.parse_args()
    draw, looked_at = random.Random(asked.first), 0
    inside: list[bool] = []
    widths: list[float] = []
    while len(inside) < asked.scenarios:
        try:
            prediction = scenario(draw)
            change = advice(prediction)
        except PipesimError:
            continue
        looked_at += 1
        if change is None:
            continue
        gain = on_fresh_seeds(prediction, change.flags)
        low, high = change.interval
        inside.append(low <= gain <= high)
        widths.append(high / low)
        deployment, load = prediction.deployment, prediction.workload
        kind = (
            "steady" if load.steady else f"{load.concurrency} users" if load.closed_loop else f"{load.request_rate}/s"
        )
        name = (
            f"{deployment.model.name} {deployment.plan} {deployment.engine.name} {kind} ±{load.random_range_ratio:.0%}"
        )
        held = "" if inside[-1] else "  OUT"
        promised = f"{change.speedup:5.2f} ({low:.2f} to {high:.2f})"
        print(f"{name:<52} {change.flags or change.label:<58} {promised} {gain:5.2f}{held}", flush=True)
    share = fmean(inside)
    print(
        f"{sum(inside)} of {len(inside)} gains on fresh seeds lie in the interval printed with the advice ({share:.0%},"
    )
    print(f"bar {BAR:.0%}); {looked_at} scenarios looked at; median interval a factor of {median(widths):.2f} wide")
    raise SystemExit(share < BAR)


if __name__ == "__main__":
    main()
