"""What is not modelled, assumed or unchecked reaches every answer, not the import of a model alone."""

from dataclasses import replace

import pytest

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.page import report_page, study
from pipesim.prediction import Predictor, deploy
from pipesim.profiles.store import load_hardware, load_model
from pipesim.reasons import caveats, notes
from pipesim.whole_runs import learned
from pipesim.workload import Workload
from tests.conftest import BOX, KIMI, RunCli

SPARSE, ASSUMED, UNCHECKED = "sparse attention is priced as", "over its experts was not measured", "No whole run has"
ASKED = ("--model", "glm-5.1-nvfp4", "--hardware", "h20-sxm-x8", "--tp", 8, "--concurrency", 2, "--dcp", 8)


@pytest.mark.parametrize("command", ["predict", "plan", "explain"])
def test_every_answer_says_it_in_text_and_json(command: str, run_cli: RunCli) -> None:
    told = run_cli(command, *ASKED)
    answer = run_cli(command, *ASKED, "--json").json
    listed = " ".join(answer["plans"][0]["notes"] if command == "plan" else answer["notes"])
    for text in (" ".join(told.out.split()), listed):
        assert SPARSE in text
        assert ASSUMED in text
        assert UNCHECKED in text
        assert "borrowed from h200-sxm-x8" in text


def test_the_page_says_it() -> None:
    load = Workload(2, 2, 64, 16)
    found = study(
        load_model("glm-5.1-nvfp4"),
        load_hardware("h20-sxm-x8"),
        EngineSettings(speculative_acceptance=(0.5,)),
        load,
        seeds=1,
    )
    page = report_page(found)
    assert SPARSE in page
    assert ASSUMED in page
    assert UNCHECKED in page


def test_what_was_measured_and_checked_needs_no_caveat() -> None:
    assert caveats(deploy(KIMI, BOX, ParallelPlan(8, 1), EngineSettings("vllm", gpu_memory_utilization=0.95))) == []


def test_an_engine_of_another_age_is_less_sure_moved_by_its_rules_alone_and_says_so() -> None:
    split, load = ParallelPlan(8, 1), Workload(4, 4, 64, 32)
    now = deploy(KIMI, BOX, split, EngineSettings("vllm", gpu_memory_utilization=0.95, async_scheduling=True))
    older = replace(now, engine=replace(now.engine, version="0.20.0"))
    first, then = (Predictor(each).predict(load, seeds=1) for each in (now, older))
    assert then.mean("output_tokens_per_s") == first.mean("output_tokens_per_s")
    assert any("no sure factor" in text for text in notes(then))
    assert not any("no sure factor" in text for text in notes(first))
    mean, error = learned().drift
    assert 0 < abs(mean) < 2 * error, "surer, it would have to move the figures"


@pytest.mark.parametrize(("engine", "version", "said"), [("vllm", "0.7.3", True), ("vllm", "0.9.2", False)])
def test_rules_that_were_never_read_are_named(engine: str, version: str, said: bool) -> None:
    flags = EngineSettings(engine, version=version)  # type: ignore[arg-type]
    found = caveats(deploy(load_model("llama-3.1-8b"), BOX, ParallelPlan(1, 1), flags))
    assert any("No rules of vllm before 0.8 were read" in text for text in found) is said
