"""Which split and setting serves Kimi K2.6 best on the founding box, by engine and number of users. Prints Markdown.

python benchmarks/best_split.py
"""

from collections.abc import Iterator

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineName, EngineSettings
from pipesim.errors import PipesimError
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.sensitivity import Confidence
from pipesim.workload import Workload

USERS = (1, 8, 32, 64, 128)
ENGINES: tuple[EngineName, ...] = ("sglang", "vllm", "rebatch")
SPLITS = ((8, 1), (4, 2), (2, 4), (1, 8))
SEEDS = 2


def settings_of(engine: EngineName, pp: int, users: int) -> Iterator[tuple[str, EngineSettings]]:
    """Yields every setting worth trying: SGLang's slot cap as it comes or even, at async depth 0 to 2."""
    yield "defaults", EngineSettings(engine)
    if engine == "sglang" and pp > 1:
        for depth in (0, 1, 2):
            cap = -(-users // (pp + depth))
            text = f"slot cap {cap}" + (f", async depth {depth}" if depth else "")
            yield text, EngineSettings(engine, pp_max_micro_batch_size=cap, pp_async_batch_depth=depth)


def candidates(engine: EngineName, users: int) -> Iterator[tuple[str, Prediction]]:
    """Yields the prediction of every split and setting that fits."""
    box, model = load_hardware("rtx-pro-6000-x8"), load_model("kimi-k2.6")
    load = Workload(concurrency=users, num_prompts=2 * users, input_len=512, output_len=256)
    for tp, pp in SPLITS:
        plan = ParallelPlan(tp, pp)
        for text, settings in settings_of(engine, pp, users):
            try:
                yield f"{plan}, {text}", Predictor(deploy(model, box, plan, settings)).predict(load, SEEDS)
            except PipesimError:
                continue


def main() -> None:
    """Prints the two best of each engine and number of users."""
    print("| users | engine | best split and setting | tok/s | 80 % interval | bubble | next best | tok/s |")
    print("|--:|---|---|--:|--:|--:|---|--:|")
    for users in USERS:
        for engine in ENGINES:
            ranked = sorted(candidates(engine, users), key=lambda row: -row[1].mean("output_tokens_per_s"))
            (name, best), *others = ranked
            low, high = Confidence(best).interval("output_tokens_per_s")
            second = next(row for row in others if row[0].split(",")[0] != name.split(",")[0])
            print(
                f"| {users} | {engine} | {name} | {best.mean('output_tokens_per_s'):,.0f} | {low:,.0f}–{high:,.0f} "
                f"| {best.mean('bubble_fraction'):.0%} | {second[0]} | {second[1].mean('output_tokens_per_s'):,.0f} |"
            )


if __name__ == "__main__":
    main()
