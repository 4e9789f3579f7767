"""`pipesim plan`: the best splits and settings for a model, boxes and a load."""

import math
import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from pipesim.asking import asks_openly, takes
from pipesim.commands.forms import plan_forms
from pipesim.commands.shared import PICTURES, AnswerFile, Json, check_answer_file, print_json, progress, write_answer
from pipesim.engine_settings import SERVERS, EngineName
from pipesim.errors import UsageError
from pipesim.flags import flag
from pipesim.loads import parse_flag
from pipesim.options import DEFAULT_ENGINE, Question
from pipesim.planning.question import Job, Objective, Percentile, PlanQuestion, RankBy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.names import DEFAULT_HARDWARE
from pipesim.profiles.store import load_hardware, load_model

Boxes = Annotated[
    list[str] | None,
    typer.Option("--hardware", help=f"Hardware profiles, repeated or with commas (default: {DEFAULT_HARDWARE})."),
]
AnyEngine = Annotated[
    Literal[EngineName, "any"],
    typer.Option("--engine", help="Serving engine, or any for the better one."),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=100, help="Runs of each of the five best plans.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="First seed of lengths and arrivals.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, max=1024, help="Processes (default: one per core).")]


@dataclass(frozen=True)
class SearchFlags:
    """What a person says of a search."""

    gpus: int | None = flag(None, "Most GPUs of a plan (default: all of the box).")
    max_ttft: str | None = flag(None, 'Longest time to first token, such as "2s".')
    max_tpot: str | None = flag(None, 'Longest time per output token, such as "50ms".')
    slo_percentile: Percentile = flag("p99", "Of TTFT, TPOT and E2E over requests, for limits and ranks.")
    rank_by: RankBy | None = flag(
        None, "What plans that keep the limits are ranked by (default: throughput; open: latency)."
    )
    gpu_hour_price: str | None = flag(None, 'Price of a GPU-hour: "2.5", or "BOX=2.5,OTHER=1.2".')
    gpu_watts: float | None = flag(None, "Power of one GPU at work, for energy.")
    total_tokens: float | None = flag(None, "Output tokens of a whole batch job.")
    num_requests: float | None = flag(None, "Requests of a whole batch job.")
    best_partition: bool = flag(False, "Balance the layers of the stages for every setting.")
    best_placement: bool = flag(False, "Try other orders of GPUs: group by group, and across groups.")

    def question(
        self,
        asked: Question,
        model: ModelProfile,
        boxes: tuple[HardwareProfile, ...],
        engine: Literal[EngineName, "any"],
        seeds: tuple[int, int],
    ) -> PlanQuestion:
        """Returns the question of a search, with what a person asked left open, on boxes of a choice.

        Args:
            asked: what is left open, and the load.
            model: what is served.
            boxes: those to choose from.
            engine: or any of those that exist.
            seeds: how many, and the first of them.

        Raises:
            PipesimError: for a limit that is no time, and a price that is none.
        """
        goal = Objective(
            self.rank_by,
            self.slo_percentile,
            parse_flag("--max-ttft", self.max_ttft, "s"),
            parse_flag("--max-tpot", self.max_tpot, "s"),
            prices(self.gpu_hour_price, [box.name for box in boxes]),
        )
        return PlanQuestion(
            model=model,
            boxes=boxes,
            workload=asked.workload,
            engines=SERVERS if engine == "any" else (engine,),
            plan=asked.plan,
            settings=asked.settings,
            fixed=asked.fixed,
            objective=goal,
            gpus=self.gpus,
            best_partition=self.best_partition,
            best_placement=self.best_placement,
            seeds=seeds[0],
            first_seed=seeds[1],
        )

    @property
    def job(self) -> Job:
        """The batch job of which cost and energy are asked. Raises UsageError."""
        return Job(
            *(
                _positive(f"--{name.replace('_', '-')}", getattr(self, name))
                for name in ("total_tokens", "num_requests", "gpu_watts")
            )
        )


@takes(SearchFlags)
@asks_openly
def plan_command(  # noqa: PLR0913 - one for each option
    asked: Question,
    *,
    search_flags: SearchFlags,
    hardware: Boxes = None,
    engine: AnyEngine = DEFAULT_ENGINE,
    seeds: Seeds = 5,
    seed: Seed = 0,
    jobs: Jobs = None,
    output: AnswerFile = None,
    as_json: Json = False,
) -> None:
    """Rank every split and setting that fits; flags given of what is searched are held fixed.

    Example: pipesim plan --gpus 8 --concurrency 64 --max-tpot 80ms
    """
    from pipesim.launch.write import launch_json, launch_text  # noqa: PLC0415
    from pipesim.plan_report import plan_json, plan_text  # noqa: PLC0415
    from pipesim.planning.search import search  # noqa: PLC0415 - only this command needs them

    check_answer_file(output, (".json", ".csv", *PICTURES))
    names = list(dict.fromkeys(name for given in hardware or [DEFAULT_HARDWARE] for name in given.split(",") if name))
    boxes = tuple(load_hardware(name) for name in names)
    question = search_flags.question(asked, load_model(asked.model), boxes, engine, (seeds, seed))
    job = search_flags.job
    found = search(question, jobs or os.cpu_count() or 1, progress())
    winner = found.plans[0].deployment if found.plans else None
    started = winner if winner is not None and winner.engine.name in SERVERS else None
    document = plan_json(found, job) | (launch_json(started) if started else {})
    write_answer(output, plan_forms(found, document))
    if as_json:
        print_json(document)
    else:
        print(plan_text(found, job, asked.defaults))
        if started:
            print("", "start number 1 with", launch_text(started), sep="\n")
    if found.best is None:
        raise typer.Exit(1)


def prices(given: str | None, boxes: list[str]) -> dict[str, float] | None:
    """Returns the price of a GPU-hour on each box: one for all, or NAME=PRICE for each. Raises UsageError."""
    if given is None:
        return None
    wanted = 'a price such as "2.5", or one for each box such as "' + ",".join(f"{name}=2.5" for name in boxes) + '"'
    prices: dict[str, float] = {}
    for part in given.split(","):
        name, equals, price = part.rpartition("=")
        try:
            value = float(price)
        except ValueError:
            raise UsageError("--gpu-hour-price", given, wanted) from None
        prices |= {name.strip(): value} if equals else dict.fromkeys(boxes, value)
    if set(prices) != set(boxes):
        raise UsageError("--gpu-hour-price", given, wanted)
    return prices


def _positive(flag: str, value: Any) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise UsageError(flag, value, "a number above 0")
    return None if value is None else float(value)
