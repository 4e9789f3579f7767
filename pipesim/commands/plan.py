"""`pipesim plan`: the best splits and settings for a model, boxes and a load."""

import math
import os
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from pipesim.asking import asks_openly
from pipesim.commands.forms import plan_forms
from pipesim.commands.shared import PICTURES, AnswerFile, Json, check_answer_file, print_json, progress, write_answer
from pipesim.engine_settings import SERVERS, EngineName
from pipesim.errors import UsageError
from pipesim.options import DEFAULT_ENGINE, DEFAULT_HARDWARE, AnyEngine, Question, parse_flag
from pipesim.planning.question import Job, Objective, Percentile, PlanQuestion, RankBy
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_hardware, load_model

Boxes = Annotated[
    list[str] | None,
    typer.Option("--hardware", help=f"Hardware profiles, repeated or with commas (default: {DEFAULT_HARDWARE})."),
]
Gpus = Annotated[int | None, typer.Option("--gpus", help="Most GPUs of a plan (default: all of the box).")]
MaxTtft = Annotated[str | None, typer.Option("--max-ttft", help='Longest time to first token, such as "2s".')]
MaxTpot = Annotated[str | None, typer.Option("--max-tpot", help='Longest time per output token, such as "50ms".')]
SloPercentile = Annotated[
    Percentile, typer.Option("--slo-percentile", help="Of TTFT, TPOT and E2E over requests, for limits and ranks.")
]
RankByChoice = Annotated[
    RankBy | None,
    typer.Option(
        "--rank-by", help="What plans that keep the limits are ranked by (default: throughput; open: latency)."
    ),
]
Price = Annotated[
    str | None, typer.Option("--gpu-hour-price", help='Price of a GPU-hour: "2.5", or "BOX=2.5,OTHER=1.2".')
]
Watts = Annotated[float | None, typer.Option("--gpu-watts", help="Power of one GPU at work, for energy.")]
TotalTokens = Annotated[float | None, typer.Option("--total-tokens", help="Output tokens of a whole batch job.")]
NumRequests = Annotated[float | None, typer.Option("--num-requests", help="Requests of a whole batch job.")]
BestPartition = Annotated[
    bool, typer.Option("--best-partition", help="Balance the layers of the stages for every setting.")
]
BestPlacement = Annotated[
    bool, typer.Option("--best-placement", help="Try other orders of GPUs: group by group, and across groups.")
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=100, help="Runs of each of the five best plans.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="First seed of lengths and arrivals.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, max=1024, help="Processes (default: one per core).")]


@asks_openly
def plan_command(  # noqa: PLR0913 - one for each option
    asked: Question,
    *,
    hardware: Boxes = None,
    engine: AnyEngine = DEFAULT_ENGINE,
    gpus: Gpus = None,
    max_ttft: MaxTtft = None,
    max_tpot: MaxTpot = None,
    slo_percentile: SloPercentile = "p99",
    rank_by: RankByChoice = None,
    gpu_hour_price: Price = None,
    gpu_watts: Watts = None,
    total_tokens: TotalTokens = None,
    num_requests: NumRequests = None,
    best_partition: BestPartition = False,
    best_placement: BestPlacement = False,
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
    goal = objective(rank_by, slo_percentile, max_ttft, max_tpot, prices(gpu_hour_price, [box.name for box in boxes]))
    question = replace(
        plan_question(asked, load_model(asked.model), boxes, engine, goal),
        gpus=gpus,
        best_partition=best_partition,
        best_placement=best_placement,
        seeds=seeds,
        first_seed=seed,
    )
    job = batch_job(total_tokens, num_requests, gpu_watts)
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


def plan_question(
    asked: Question,
    model: ModelProfile,
    boxes: tuple[HardwareProfile, ...],
    engine: EngineName | Literal["any"],
    goal: Objective,
) -> PlanQuestion:
    """Returns the question of a search, with what a person asked left open, on boxes of a choice."""
    return PlanQuestion(
        model=model,
        boxes=boxes,
        workload=asked.workload,
        engines=SERVERS if engine == "any" else (engine,),
        plan=asked.plan,
        settings=asked.settings,
        fixed=asked.fixed,
        objective=goal,
    )


def objective(
    rank_by: RankBy | None,
    percentile: Percentile,
    max_ttft: str | None,
    max_tpot: str | None,
    gpu_hour_price: dict[str, float] | None,
) -> Objective:
    """Returns what plans are judged by; limits are times such as "50 ms". Raises PipesimError."""
    return Objective(
        rank_by,
        percentile,
        None if max_ttft is None else parse_flag("--max-ttft", max_ttft, "s"),
        None if max_tpot is None else parse_flag("--max-tpot", max_tpot, "s"),
        gpu_hour_price,
    )


def batch_job(total_tokens: float | None, num_requests: float | None, gpu_watts: float | None) -> Job:
    """Returns the batch job of which cost and energy are asked. Raises UsageError."""
    return Job(
        _positive("--total-tokens", total_tokens),
        _positive("--num-requests", num_requests),
        _positive("--gpu-watts", gpu_watts),
    )


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
