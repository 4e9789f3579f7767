"""Which split and setting serves Kimi K2.6 best on the founding box, by engine, number of users and spread of lengths.

python benchmarks/best_split.py
"""

from collections.abc import Iterator

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.errors import PipesimError
from pipesim.fitting import deploy
from pipesim.prediction import Prediction, Predictor
from pipesim.profiles.store import load_hardware, load_model
from pipesim.sensitivity import Confidence
from pipesim.workload import Workload

USERS = (1, 8, 32, 64, 128)
ENGINES: tuple[EngineName, ...] = ("sglang", "vllm", "rebatch")
SPLITS = ((8, 1), (4, 2), (2, 4), (1, 8))
SEEDS, WAVES = 3, 6


def settings_of(engine: EngineName, pp: int, users: int) -> Iterator[tuple[str, EngineSettings]]:
    """Yields every setting worth trying: SGLang's slot cap as it comes or even, at async depth 0 to 2."""
    yield "defaults", EngineSettings(engine)
    if engine == "sglang" and pp > 1:
        for depth in (0, 1, 2):
            cap = -(-users // (pp + depth))
            text = f"slot cap {cap}" + (f", async depth {depth}" if depth else "")
            yield text, EngineSettings(engine, pp_max_micro_batch_size=cap, pp_async_batch_depth=depth)


def loads(users: int) -> dict[str, Workload]:
    """Returns both loads: a wave of equal requests and another behind it, and the steady part of ragged ones."""
    lengths = {"concurrency": users, "input_len": 512, "output_len": 256}
    equal = Workload(num_prompts=2 * users, **lengths)
    return {
        "equal": equal,
        "±50 %": Workload(num_prompts=WAVES * users, random_range_ratio=0.5, steady=True, **lengths),
    }


def candidates(engine: EngineName, load: Workload) -> Iterator[tuple[str, Prediction]]:
    """Yields the prediction of every split and setting that fits."""
    box, model = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
    for tp, pp in SPLITS:
        plan = ParallelPlan(tp, pp)
        for text, settings in settings_of(engine, pp, load.concurrency):
            try:
                yield f"{plan}, {text}", Predictor(deploy(model, box, plan, settings, load)).predict(load, SEEDS)
            except PipesimError:
                continue


def best_two(engine: EngineName, load: Workload) -> str:
    """Returns the best split and setting, its tok/s with their interval, and the best of another split: cells."""
    ranked = sorted(candidates(engine, load), key=lambda row: -row[1].mean("output_tokens_per_s"))
    (name, best), *others = ranked
    low, high = Confidence(best).interval("output_tokens_per_s")
    second, next_best = next(row for row in others if row[0].split(",")[0] != name.split(",")[0])
    rate, behind = (one.mean("output_tokens_per_s") for one in (best, next_best))
    return f"{name} | {rate:,.0f} ({low:,.0f}–{high:,.0f}) | {second}: {behind:,.0f}"


def main() -> None:
    """Prints, for each engine and number of users, the two best splits with equal lengths and with ragged ones."""
    print("| users | engine | lengths | best split and setting | tok/s, 80 % interval | next best split |")
    print("|--:|---|---|---|--:|---|")
    for users in USERS:
        for engine in ENGINES:
            for name, load in loads(users).items():
                print(f"| {users} | {engine} | {name} | {best_two(engine, load)} |", flush=True)


if __name__ == "__main__":
    main()
