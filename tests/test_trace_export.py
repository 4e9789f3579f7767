"""The trace of a run keeps the Trace Event Format, and says what the run did."""

import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import PipesimError
from pipesim.export import FLAG, Window, export_trace, parse_window
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.store import load_hardware
from pipesim.workload import Workload
from tests.conftest import KIMI, RunCli, predictor

SMALL = Workload(concurrency=6, num_prompts=9, input_len=64, output_len=6)
REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ts", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
}
"""Keys that each phase of the Trace Event Format must have."""

Event = dict[str, Any]


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_trace(path: Path) -> list[Event]:
    """Reads a trace strictly: JSON without NaN, and times exact."""
    document = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, parse_constant=refuse_constant)
    assert document["displayTimeUnit"] in {"ms", "ns"}
    events: list[Event] = document["traceEvents"]
    return events


def check_format(events: list[Event]) -> None:
    """Holds events to the Trace Event Format and to what a viewer needs."""
    spans = defaultdict(list)
    flows: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert isinstance(event["pid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            flows[event["id"], event["cat"]].append(event)
        elif event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    for thread in spans.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(thread))
    for pair in flows.values():
        assert [event["ph"] for event in pair] == ["s", "f"]
        for event in pair:
            around = spans[event["pid"], event["tid"]]
            assert any(start <= event["ts"] <= end for start, end in around)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(spans) <= named


def traced(asked: Predictor, path: Path, load: Workload = SMALL, window: Window | None = None) -> list[Event]:
    written = export_trace(asked, load, 0, path, window or Window())
    events = read_trace(path)
    assert len(events) == written
    check_format(events)
    return events


def two_servers() -> Predictor:
    plan = ParallelPlan(4, 1, replicas=2)
    return Predictor(deploy(KIMI, load_hardware("b200-sxm-x8"), plan, EngineSettings(name="vllm")))


@pytest.mark.parametrize(
    "asked",
    [
        predictor(2, 4),
        predictor(1, 8, name="vllm"),
        predictor(8, 1, cuda_graph=False),
        predictor(2, 4, speculative_acceptance=(0.7,)),
        two_servers(),
    ],
    ids=["TP2×PP4", "PP8 vLLM", "TP8 eager", "drafts", "replicas"],
)
def test_a_trace_keeps_the_format_and_holds_every_span(asked: Predictor, tmp_path: Path) -> None:
    events = traced(asked, tmp_path / "trace.json")
    plan, timeline = asked.deployment.plan, asked.simulate(SMALL, 0, "op")
    spans = [event for event in events if event["ph"] == "X"]
    ranks = [event for event in spans if event["tid"] < plan.tp]
    assert len(ranks) == plan.tp * len(timeline.op_spans)
    assert {event["pid"] for event in ranks} == set(range(plan.pp * plan.replicas))
    busy = sum(span.end - span.start for span in timeline.op_spans)
    assert sum(event["dur"] for event in ranks) * 1_000_000 == plan.tp * busy
    batches = [event for event in spans if event["cat"] == "micro_batch"]
    assert len(batches) == timeline.starts.size
    assert sum(event["ph"] == "s" for event in events) == timeline.hop_starts.size
    for event in batches:
        assert float(sum(event["args"]["basis"].values())) == pytest.approx(1.0, abs=1e-3)


def test_counters_follow_the_requests(tmp_path: Path) -> None:
    asked = predictor(2, 4)
    events = [event for event in traced(asked, tmp_path / "trace.json") if event["ph"] == "C"]
    timeline = asked.simulate(SMALL, 0)
    requests = [event for event in events if event["name"] == "requests"]
    assert max(event["args"]["before first token"] + event["args"]["decoding"] for event in requests) == 6
    assert requests[-1]["args"] == {"before first token": 0, "decoding": 0}
    for event in requests:
        at = int(event["ts"] * 1_000_000)
        decoding = (timeline.first_token <= at) & (at < timeline.last_token)
        assert event["args"]["decoding"] == decoding.sum()
    held = [event["args"]["tokens"] for event in events if event["name"] == "KV cache tokens"]
    assert 64 < max(held) <= 6 * (64 + 6)
    assert held[-1] == 0


def test_a_window_holds_what_begins_in_it(tmp_path: Path) -> None:
    asked = predictor(2, 4)
    whole = traced(asked, tmp_path / "whole.json")
    window = parse_window("200ms:0.4 s")
    part = traced(asked, tmp_path / "part.json", window=window)
    spans = [event for event in whole if event["ph"] == "X" and 200_000 <= event["ts"] < 400_000]
    assert [event for event in part if event["ph"] == "X"] == spans
    assert 0 < len(spans) < len(whole) / 2


@pytest.mark.parametrize("given", ["1s", "2s:1s", "a:b", "1:2", "1s:1s", "-1s:2s", "nan s:1s"])
def test_a_window_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(PipesimError, match="--trace-window"):
        parse_window(given)


def test_too_many_events_are_refused_before_they_are_made(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for window, output_len, wanted in ((Window(), 256, "--trace-window"), (Window(0, 10**12), 4000, "--num-prompts")):
        load = Workload(concurrency=32, num_prompts=64, input_len=512, output_len=output_len)
        with pytest.raises(PipesimError, match=f"{FLAG}: .*{wanted}"):
            export_trace(predictor(8, 1), load, 0, path, window)
        assert list(tmp_path.iterdir()) == []


def test_the_command_writes_beside_the_same_answer(run_cli: RunCli, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    load = ("predict", "--tp", 2, "--pp", 4, "--concurrency", 4, "--num-prompts", 4, "--output-len", 4, "--json")
    ran = run_cli(*load, "--perfetto", path)
    assert ran.json == run_cli(*load).json
    assert "events of seed 0" in ran.err
    check_format(read_trace(path))
    for flags, says in (
        (("--trace-out", tmp_path / "none" / "trace.json"), "--trace-out"),
        (("--trace-out", tmp_path), "no regular file"),
        (("--trace-window", "1s:2s"), "beside --trace-out only"),
    ):
        refused = run_cli(*load, *flags)
        assert (refused.code, refused.out) == (2, "")
        assert says in refused.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]
