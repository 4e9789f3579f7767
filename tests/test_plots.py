"""Pictures: what any of them keeps (units, palette, nothing over anything), and what each of them says."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.metrics import stage_loads
from pipesim.plots import (
    ConcurrencyCurve,
    ParetoPoint,
    plot_breakdown,
    plot_changes,
    plot_concurrency,
    plot_gpu_load,
    plot_pareto,
    plot_predicted_vs_measured,
    plot_roofline,
    plot_timeline,
)
from pipesim.plots.figures import pareto_picture, predict_figure, validate_figure
from pipesim.plots.roofline import roofline_points
from pipesim.plots.style import BLACK, BOUND_COLOURS, PALETTE, figure_of
from pipesim.plots.timeline import HEIGHT, typical_window
from pipesim.prediction import Prediction, Predictor, deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.timeline import Timeline
from pipesim.validation import Comparison, Validation
from pipesim.whatif import Change, Explanation
from pipesim.workload import Workload
from tests.conftest import KIMI, predictor

LOAD = Workload(concurrency=16, num_prompts=32, input_len=64, output_len=24, random_range_ratio=0.5)
SPLITS = {"TP8": (8, 1), "TP2×PP4": (2, 4), "PP8": (1, 8)}
ON_DARK = "#fffffe"
"""Text on the two darkest fills."""


def observed(tp: int, pp: int, **flags: object) -> tuple[Prediction, Timeline]:
    """Returns a prediction of the load and the timeline behind it."""
    seen: list[Timeline] = []
    asked = predictor(tp, pp, **flags)
    return asked.predict(LOAD, 1, observe=lambda _, timeline: seen.append(timeline)), seen[0]


RUNS = {name: observed(*split) for name, split in SPLITS.items()}
EAGER = observed(8, 1, cuda_graph=False)
CURVES = [
    ConcurrencyCurve("TP8", (1, 8, 64), (70.0, 380.0, 900.0), ((60.0, 80.0), (300.0, 470.0), (600.0, 1400.0))),
    ConcurrencyCurve("PP8", (1, 8, 64), (30.0, 120.0, 1100.0)),
]
ROWS = [
    Comparison("right", "output_tokens_per_s", 100.0, 104.0, (90.0, 120.0), 0.1, "validation"),
    Comparison("wrong", "output_tokens_per_s", 400.0, 800.0, (700.0, 900.0), 0.1, "validation"),
    Comparison("fitted", "output_tokens_per_s", 30.0, 31.0, (28.0, 34.0), 0.1, "calibration"),
    Comparison("shown", "output_tokens_per_s", 900.0, 300.0, (200.0, 450.0), 0.0, "reported"),
    Comparison("quick", "tpot_s", 0.02, 0.019, (0.015, 0.024), 0.1, "validation"),
]
VALIDATION = Validation(tuple(ROWS), ())
POINTS = [
    ParetoPoint("TP8, 2 users", 18.0, 72.0, on_front=True),
    ParetoPoint("TP4×PP2, 64 users", 126.0, 15.8, (104.0, 150.0), on_front=True),
    ParetoPoint("TP2×PP4, 64 users", 116.0, 14.6),
    ParetoPoint("TP1×PP8, 64 users", 70.0, 8.8, feasible=False),
]

EXPLANATION = Explanation(
    EAGER[0],
    (
        Change("launching kernels from Python at no cost", "cost", 300.0, 1.5, (1.3, 1.8), "launch"),
        Change("async depth 1, slot cap 11 (--pp-async-batch-depth 1)", "switch", 210.0, 1.05, (0.95, 1.15)),
        Change("without peer access (--no-p2p)", "switch", 100.0, 0.5, (0.4, 0.6)),
    ),
    (),
    (),
)

Draw = Callable[[Axes | None], Axes]
PICTURES: dict[str, Draw] = {
    "timeline": lambda ax: plot_timeline(RUNS["TP2×PP4"][1], RUNS["TP2×PP4"][0].deployment, ax=ax),
    "timeline of one stage": lambda ax: plot_timeline(EAGER[1], ax=ax),
    "GPU load": lambda ax: plot_gpu_load(RUNS["PP8"][0], ax),
    "breakdown": lambda ax: plot_breakdown([run for run, _ in RUNS.values()], ax=ax),
    "concurrency": lambda ax: plot_concurrency(CURVES, ax),
    "pareto": lambda ax: plot_pareto(POINTS, ax),
    "predicted vs measured": lambda ax: plot_predicted_vs_measured(VALIDATION, ax=ax),
    "changes": lambda ax: plot_changes(EXPLANATION, ax),
    "roofline": lambda ax: plot_roofline(RUNS["TP8"][0].deployment, LOAD, ax),
}


@pytest.fixture(autouse=True)
def no_figure_stays_open() -> Iterator[None]:
    yield
    pyplot.close("all")


@pytest.fixture(params=PICTURES)
def drawn(request: pytest.FixtureRequest) -> Axes:
    """Every picture, laid out."""
    ax = PICTURES[request.param](None)
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    return ax


def texts(ax: Axes) -> list[Any]:
    """Returns every text that a reader sees."""
    legend = ax.get_legend()
    found = [*ax.texts, ax.xaxis.label, ax.yaxis.label, ax.title, ax._left_title, *ax.get_xticklabels()]  # type: ignore[attr-defined]
    found += [*ax.get_yticklabels(), *(legend.get_texts() if legend else ())]
    return [text for text in found if text.get_visible() and text.get_text() and not outside(ax, text)]


def outside(ax: Axes, text: Any) -> bool:
    """Returns whether a tick label belongs to a tick beyond the limits, which is not drawn."""
    if text in ax.get_xticklabels():
        return (
            not ax.bbox.padded(1).x0 <= ax.transData.transform((text.get_position()[0], 0))[0] <= ax.bbox.padded(1).x1
        )
    if text in ax.get_yticklabels():
        return (
            not ax.bbox.padded(1).y0 <= ax.transData.transform((0, text.get_position()[1]))[1] <= ax.bbox.padded(1).y1
        )
    return False


def overlapping(ax: Axes) -> list[tuple[str, str]]:
    """Returns the pairs of texts that lie on each other by more than a pixel."""
    boxes = [(text.get_text(), text.get_window_extent().padded(-1.0)) for text in texts(ax)]
    return [(one, other) for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]


def colours(ax: Axes) -> set[str]:
    """Returns every colour that a picture uses, without its opacity."""
    found: list[Any] = [spine.get_edgecolor() for spine in ax.spines.values() if spine.get_visible()]
    found += [text.get_color() for text in texts(ax)]
    for line in ax.lines:
        found += [line.get_color(), line.get_markerfacecolor(), line.get_markeredgecolor()]
    for patch in ax.patches:
        found += [patch.get_facecolor(), patch.get_edgecolor()]
    for collection in ax.collections:
        found += [*collection.get_facecolor(), *collection.get_edgecolor()]
    return {to_hex(colour) for colour in found if to_rgba(colour)[3] > 0}


def test_axes_say_what_they_show_and_in_which_unit(drawn: Axes) -> None:
    assert "[" in drawn.get_xlabel()
    assert "[" in drawn.get_ylabel() or (not drawn.get_ylabel() and all(t.get_text() for t in drawn.get_yticklabels()))
    assert len(drawn.get_title(loc="left")) > 10


def test_no_text_lies_on_another_and_the_title_is_not_cut_off(drawn: Axes) -> None:
    assert overlapping(drawn) == []
    figure: Bbox = drawn.figure.bbox.padded(1.0)
    for text in texts(drawn):
        box = text.get_window_extent()
        assert figure.x0 <= box.x0 and box.x1 <= figure.x1 and figure.y0 <= box.y0 and box.y1 <= figure.y1, text


def test_a_legend_covers_no_data(drawn: Axes) -> None:
    legend = drawn.get_legend()
    assert legend is not None
    assert not legend.get_window_extent().padded(-1.0).overlaps(drawn.bbox)


def test_every_colour_is_of_the_palette(drawn: Axes) -> None:
    assert colours(drawn) - PALETTE - {BLACK, ON_DARK} == set()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_on_the_axes_given_and_settings_stay(name: str) -> None:
    before = dict(mpl.rcParams)
    ax = Figure(layout="constrained").subplots()
    assert PICTURES[name](ax) is ax
    assert dict(mpl.rcParams) == before
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_picture_gives_the_same_file(form: str, begins: bytes) -> None:
    first, second = (pareto_picture(POINTS, form) for _ in range(2))
    assert first.startswith(begins)
    assert first == second


def test_the_figure_of_a_prediction_has_one_legend_for_three_pictures() -> None:
    figure = predict_figure(*RUNS["TP2×PP4"])
    legends = [ax.get_legend() for ax in figure.axes]
    assert [legend is not None for legend in legends] == [True, False, False]
    figure.draw_without_rendering()
    assert not any(a.get_tightbbox().overlaps(b.get_tightbbox()) for a, b in combinations(figure.axes, 2))


def test_bars_add_up_to_all_the_time() -> None:
    for ax in (plot_gpu_load(EAGER[0]), plot_breakdown([run for run, _ in RUNS.values()])):
        widths: dict[float, float] = defaultdict(float)
        for bar in ax.patches:
            widths[round(bar.get_y(), 6)] += bar.get_width()  # type: ignore[attr-defined]
        assert len(widths) == len(ax.get_yticks())
        assert list(widths.values()) == pytest.approx([1.0] * len(widths), abs=1e-9)


def replicated() -> Prediction:
    """Returns a prediction of two servers behind a balancer."""
    plan = ParallelPlan(2, 1, replicas=2)
    return Predictor(deploy(load_model("llama-3.1-8b"), load_hardware("l40s-x8"), plan, EngineSettings())).predict(
        LOAD, 1
    )


@pytest.mark.parametrize(
    "prediction", [*(run for run, _ in RUNS.values()), EAGER[0], replicated()], ids=[*RUNS, "eager", "replicas"]
)
def test_what_binds_is_counted_once_and_all_of_it(prediction: Prediction) -> None:
    by_category: dict[str, float] = defaultdict(float)
    for (category, _), share in prediction.bounds.items():
        by_category[category] += share
    assert by_category == pytest.approx(
        {name: share for name, share in prediction.breakdown.items() if name in by_category}
    )
    assert sum(prediction.bounds.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", RUNS)
def test_the_areas_of_a_timeline_are_the_times_of_the_metrics(name: str) -> None:
    timeline = RUNS[name][1]
    begin, end = timeline.window
    ax = plot_timeline(timeline, window_s=(begin / 1e12, end / 1e12))
    drawn: dict[str, float] = defaultdict(float)
    for collection in ax.collections:
        for path in collection.get_paths():
            box = path.get_extents()
            drawn[to_hex(collection.get_facecolor()[0])] += box.width * box.height / HEIGHT / 1e3
    expected: dict[str, float] = defaultdict(float)
    for load in stage_loads(timeline):
        for (_, bound), seconds in load.by_bound.items():
            expected[BOUND_COLOURS[bound]] += seconds
    busy = {colour: area for colour, area in drawn.items() if colour in expected}
    assert sum(busy.values()) == pytest.approx(sum(expected.values()), rel=1e-4)
    # The metrics spread what runs on behind the last token over all that binds; a picture shows when it was.
    assert busy == pytest.approx(dict(expected), rel=0.05, abs=1e-3)


def test_a_timeline_shows_a_part_whose_stages_idle_like_the_whole() -> None:
    prediction, timeline = RUNS["PP8"]
    ax = plot_timeline(timeline, prediction.deployment)
    (grey,) = [c for c in ax.collections if to_hex(c.get_facecolor()[0]) == BOUND_COLOURS["bubble"]]
    assert len(grey.get_paths()) >= 8
    assert f"bubbles {prediction.mean('bubble_fraction'):.0%}" in ax.get_title(loc="left")


def test_a_pipeline_of_very_many_stages_names_some_of_them() -> None:
    load = replace(LOAD, concurrency=61, num_prompts=61, output_len=3)
    asked = Predictor(deploy(KIMI, load_hardware("rtx-pro-6000-8x8"), ParallelPlan(1, 61), EngineSettings()))
    for ax in (plot_gpu_load(asked.predict(load, 1)), plot_timeline(asked.simulate(load, 0), asked.deployment)):
        figure_of(ax).draw_without_rendering()
        assert 20 < len(ax.get_yticks()) < 61
        assert overlapping(ax) == []


@pytest.mark.parametrize("split", [(4, 2), (2, 4), (8, 1)], ids=str)
def test_a_timeline_shows_as_much_prefill_as_the_whole_run_has(split: tuple[int, int]) -> None:
    ragged = Workload(concurrency=64, num_prompts=256, random_range_ratio=0.5)  # equal lengths prefill in waves
    timeline = predictor(*split, mem_fraction_static=0.9).simulate(ragged, 0)
    begin, end = typical_window(timeline)

    def prefilling(window: tuple[int, int]) -> float:
        held = np.clip(timeline.ends, *window) - np.clip(timeline.starts, *window)
        return float(held[:, ~timeline.decode].sum() / (len(held) * (window[1] - window[0])))

    assert prefilling((begin, end)) == pytest.approx(prefilling(timeline.window), abs=0.1)


def test_a_slow_start_and_a_drain_are_no_typical_window() -> None:
    load = Workload(concurrency=64, num_prompts=64, input_len=2000, output_len=200)
    timeline = predictor(1, 8).simulate(load, 0)
    begin, end = typical_window(timeline)
    launched = (timeline.starts[0] >= begin) & (timeline.starts[0] < end)
    assert launched.sum() >= 8
    assert timeline.decode[launched].all()
    assert end <= timeline.last_token.min() + (end - begin)


def test_the_fastest_split_is_named_where_it_changes() -> None:
    assert plot_concurrency(CURVES).get_title(loc="left") == "TP8 is fastest with few users, PP8 from 64 on"
    assert "every concurrency" in plot_concurrency(CURVES[:1]).get_title(loc="left")


def test_bands_are_the_intervals() -> None:
    (band,) = plot_concurrency(CURVES).collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()  # type: ignore[index]
    assert (low, high) == (60.0, 1400.0)


def test_the_front_joins_the_points_on_it_and_no_others() -> None:
    ax = plot_pareto(POINTS)
    (front,) = [line for line in ax.lines if line.get_label() == "_front"]
    assert sorted(zip(front.get_xdata(), front.get_ydata(), strict=True)) == [(15.8, 126.0), (72.0, 18.0)]  # type: ignore[arg-type]
    assert {text.get_text() for text in ax.texts} == {point.label for point in POINTS}
    assert "No plan" in plot_pareto([replace(point, on_front=False) for point in POINTS]).get_title(loc="left")


SPEEDS = st.floats(1.0, 100.0)
CROWDS = st.lists(st.tuples(SPEEDS, SPEEDS, st.booleans()), min_size=1, max_size=30)


@settings(max_examples=8)
@given(crowd=CROWDS)
def test_however_crowded_no_two_labels_overlap(crowd: list[tuple[float, float, bool]]) -> None:
    points = [ParetoPoint(f"TP{i}×PP2, 64", y, x, on_front=front) for i, (x, y, front) in enumerate(crowd)]
    ax = plot_pareto(points)
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    boxes = [text.get_window_extent().padded(-1.0) for text in ax.texts]
    assert boxes
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    pyplot.close(ax.figure)  # type: ignore[arg-type]


def test_a_change_is_drawn_at_its_speed_up_over_its_interval() -> None:
    ax = plot_changes(EXPLANATION)
    points = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]  # type: ignore[index]
    bars = [tuple(bar.get_segments()[0][:, 0]) for bar in ax.collections]  # type: ignore[attr-defined]
    assert points == [change.speedup for change in EXPLANATION.changes]
    assert bars == [change.interval for change in EXPLANATION.changes]
    assert "launching kernels" in ax.get_title(loc="left").replace("\n", " ")


def test_roles_look_different_and_a_row_out_of_tolerance_is_ringed_and_named() -> None:
    ax = plot_predicted_vs_measured(VALIDATION)
    looks = {
        (line.get_marker(), line.get_color(), line.get_markerfacecolor())
        for line in ax.lines
        if line.get_label() == "_row"
    }
    assert len(looks) == 3
    rings = [line for line in ax.lines if line.get_label() == "_out"]
    assert [(ring.get_xdata()[0], ring.get_ydata()[0]) for ring in rings] == [(400.0, 800.0)]  # type: ignore[index]
    assert [text.get_text() for text in ax.texts] == ["wrong +100%"]


def test_a_figure_of_a_validation_has_an_axes_for_each_metric() -> None:
    labels = [ax.get_xlabel() for ax in validate_figure(VALIDATION).axes]
    assert labels == ["measured output [tok/s]", "measured mean TPOT [s]"]


@pytest.mark.parametrize(
    ("model", "box", "tp"),
    [("kimi-k2.6", "rtx-pro-6000-x8", 8), ("llama-3.1-70b", "h100-sxm-x8", 4), ("gpt-oss-120b", "l40s-x8", 8)],
)
def test_no_kernel_is_above_its_roof(model: str, box: str, tp: int) -> None:
    asked = Predictor(deploy(load_model(model), load_hardware(box), ParallelPlan(tp), EngineSettings()))
    points, gpu = roofline_points(asked, LOAD), asked.deployment.hardware.gpu
    assert len(points) > 3
    for point in points:
        assert point.flops_per_s <= 1.001 * min(gpu.tensor_rate[point.rate], point.intensity * gpu.memory_bandwidth)
    assert 0 < sum(point.share for point in points) <= 1.0
