"""The pictures of a report, each with what it says and how it is read."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from pipesim.page.study import Study
from pipesim.plots import (
    ConcurrencyCurve,
    ParetoPoint,
    plot_breakdown,
    plot_concurrency,
    plot_gpu_load,
    plot_pareto,
    plot_roofline,
    plot_timeline,
)
from pipesim.plots.inline import inline_svg
from pipesim.plots.shares import MOST_GPU_ROWS
from pipesim.prediction import Prediction
from pipesim.sensitivity import Confidence

RATE = "output_tokens_per_s"


class Picture(NamedTuple):
    """One picture of a report."""

    title: str
    svg: Markup
    reading: str
    """How it is read."""


def pictures(study: Study) -> list[Picture]:
    """Returns the pictures of a report: splits against each other first, then the chosen one from inside."""
    return [*_of_all(study), *_of_chosen(study)]


def _of_all(study: Study) -> list[Picture]:
    found = []
    if study.by_concurrency:
        curves = [_curve(predictions) for predictions in study.by_concurrency]
        points = pareto_points(study)
        found += [
            _drawn("concurrency", _concurrency_label(curves), 4.6, lambda ax: plot_concurrency(curves, ax)),
            _drawn("pareto", _pareto_label(points), 5.0, lambda ax: plot_pareto(points, ax)),
        ]
    splits = list(study.splits)
    rates = ", ".join(f"{p.deployment.plan}: {p.mean(RATE):,.0f} tok/s" for p in splits)
    label = f"Bars of GPU time per split. {rates}. The shares are in the table of splits."
    found.append(_drawn("breakdown", label, 1.6 + 0.46 * len(splits), lambda ax: plot_breakdown(splits, ax=ax)))
    return found


def _of_chosen(study: Study) -> list[Picture]:
    chosen, deployment, plan = study.chosen, study.chosen.deployment, study.chosen.deployment.plan
    rows = plan.gpus_per_replica if plan.gpus_per_replica <= MOST_GPU_ROWS else plan.pp
    busy = [chosen.stage_share(stage) for stage in range(plan.pp)]
    loads = "; ".join(f"stage {stage}: {b:.0%} busy, {w:.0%} bubbles" for stage, (b, w) in enumerate(busy))
    over_time = f"Stages of {plan} over a few decode steps. Over the whole run {loads}."
    per_gpu = f"Busy and idle shares of each GPU: {loads}."
    kernels = f"Roofline of {deployment.hardware.gpu.name} with the kernels of a decode step of {plan}."
    height = min(12.0, 1.7 + 0.45 * plan.pp)
    timeline = _drawn("timeline", over_time, height, lambda ax: plot_timeline(study.timeline, deployment, ax=ax))
    return [
        timeline._replace(title=f"{plan} {timeline.title}"),
        _drawn("load", per_gpu, 1.5 + 0.27 * rows, lambda ax: plot_gpu_load(chosen, ax)),
        _drawn("roofline", kernels, 4.8, lambda ax: plot_roofline(deployment, chosen.workload, ax)),
    ]


def _drawn(name: str, label: str, height: float, draw: Callable[[Any], object]) -> Picture:
    """Returns a picture for the template, which takes it as it stands: matplotlib made it, and its label is escaped."""
    words = tomllib.loads(Path(__file__).with_name("pictures.toml").read_text(encoding="utf-8"))[name]
    return Picture(words["title"], Markup(inline_svg(name, label, height, draw)), words["reading"])


def _curve(predictions: tuple[Prediction, ...]) -> ConcurrencyCurve:
    return ConcurrencyCurve(
        str(predictions[0].deployment.plan),
        tuple(p.workload.concurrency for p in predictions),
        tuple(p.mean(RATE) for p in predictions),
        tuple(Confidence(p).interval(RATE) for p in predictions),
    )


def pareto_points(study: Study) -> list[ParetoPoint]:
    """Returns every split with every number of users, those on the front marked."""
    points = [
        ParetoPoint(
            f"{p.deployment.plan} @{p.workload.concurrency}",
            p.mean(RATE) / p.deployment.plan.gpus,
            p.mean("output_tokens_per_s_per_request"),
        )
        for predictions in study.by_concurrency
        for p in predictions
    ]
    return [replace(point, on_front=not any(_dominates(other, point) for other in points)) for point in points]


def _dominates(one: ParetoPoint, other: ParetoPoint) -> bool:
    mine, theirs = ((p.tokens_per_s_per_gpu, p.tokens_per_s_per_user) for p in (one, other))
    return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


def _concurrency_label(curves: list[ConcurrencyCurve]) -> str:
    ends = (
        f"{curve.label} from {curve.output_tokens_per_s[0]:,.0f} tok/s with {curve.users[0]:,} users "
        f"to {curve.output_tokens_per_s[-1]:,.0f} with {curve.users[-1]:,}"
        for curve in curves
    )
    return f"Output over concurrency. {'; '.join(ends)}."


def _pareto_label(points: list[ParetoPoint]) -> str:
    front = (
        f"{p.label} users: {p.tokens_per_s_per_gpu:,.0f} tok/s per GPU, {p.tokens_per_s_per_user:,.0f} per user"
        for p in points
        if p.on_front
    )
    return f"Output per GPU over speed for a user. On the front: {'; '.join(front)}."
