"""`pipesim report`: the question, the answer, its pictures and its evidence as one web page."""

from typing import Annotated

import typer

from pipesim.asking import asks
from pipesim.commands.shared import Output, check_answer_file, note, progress
from pipesim.deployment import ParallelPlan
from pipesim.files import write_whole
from pipesim.options import Question
from pipesim.profiles.store import load_hardware, load_model

FORMS = (".html", ".htm")
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="First seed of lengths and arrivals.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=100, help="Runs of each split with different seeds.")]


@asks
def report_command(asked: Question, seed: Seed = 0, seeds: Seeds = 5, output: Output = None) -> None:
    """Make a web page of a question: the best split or the one given, all others, pictures and evidence.

    Example: pipesim report --model kimi-k2.6 --concurrency 64 -o report.html
    """
    check_answer_file(output, FORMS)
    from pipesim.page import report_page, study  # noqa: PLC0415 - matplotlib and the template take a second to load

    plan = None if asked.plan == ParallelPlan() else asked.plan
    found = study(
        load_model(asked.model),
        load_hardware(asked.hardware),
        asked.settings,
        asked.workload,
        plan,
        seeds=seeds,
        first_seed=seed,
        defaults=asked.defaults,
        progress=progress(),
    )
    page = report_page(found)
    if output is None:
        print(page, end="")
        return
    write_whole(output, page)
    note(f"wrote {output}")
