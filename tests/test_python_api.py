"""The Python API: the commands as functions, with the same names and the same answers."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import pipesim
from pipesim.options import OPTIONS
from tests.conftest import RunCli

QUICK: dict[str, Any] = {"concurrency": 4, "num_prompts": 8, "input_len": 64, "output_len": 16}
FLAGS = ["--concurrency", 4, "--num-prompts", 8, "--input-len", 64, "--output-len", 16]
FUNCTIONS = ("predict", "explain", "sweep", "plan", "validate", "calibrate", "load", "load_model", "load_hardware")


def test_the_public_names_are_these() -> None:
    assert set(pipesim.__all__) == {
        *FUNCTIONS,
        *("Prediction", "Explanation", "Sweep", "Plans", "Validation", "Calibration"),
        *("HardwareProfile", "ModelProfile"),
        *("PipesimError", "ProfileError", "UsageError", "InfeasibleDeployment", "MissingEvidence"),
    }
    for name in pipesim.__all__:
        found = getattr(pipesim, name)
        assert not inspect.ismodule(found), name
        assert found.__doc__, name
    assert set(pipesim.__all__) <= set(dir(pipesim))
    with pytest.raises(AttributeError, match="predicted"):
        _ = pipesim.predicted  # type: ignore[attr-defined]


def test_the_import_is_cheap_and_the_core_needs_no_picture_and_no_table() -> None:
    code = (
        "import sys, pipesim; before = set(sys.modules); pipesim.predict(tp=8, concurrency=1, num_prompts=1);"
        "print([m for m in ('pydantic', 'numpy', 'simpy', 'typer') if m in before],"
        "[m for m in ('matplotlib', 'pandas', 'scipy', 'tomlkit', 'IPython') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[0] == "[] []"


def test_functions_have_the_options_of_the_commands_with_their_defaults() -> None:
    for name in ("predict", "sweep", "plan"):
        parameters = inspect.signature(getattr(pipesim, name)).parameters
        for option in OPTIONS.values():
            assert option.name in parameters, (name, option.name)
            assert parameters[option.name].default == option.default
        help_text = getattr(pipesim, name).__doc__
        assert all(
            option.said.help in help_text
            for option in OPTIONS.values()
            if option.name not in {"model", "hardware", "engine"}
        )


def test_predict_says_what_the_command_says(run_cli: RunCli) -> None:
    prediction = pipesim.predict(tp=2, pp=4, pp_max_micro_batch_size=2, **QUICK)
    command = run_cli("predict", "--tp", 2, "--pp", 4, "--pp-max-micro-batch-size", 2, *FLAGS, "--json")
    assert json.loads(json.dumps(prediction.to_dict())) == command.json
    assert prediction.output_tokens_per_s == command.json["metrics"]["output_tokens_per_s"]
    assert "CUDA graphs" in prediction.assumed
    assert "512 in" not in prediction.assumed


def test_a_profile_is_as_good_as_its_name_and_a_spelling_as_good_as_another() -> None:
    by_name = pipesim.predict("kimi-k2.6", "rtx-pro-6000-x8", tp=8, **QUICK)
    model, box = pipesim.load("kimi-k2.6"), pipesim.load("rtx-pro-6000-x8")
    assert isinstance(model, pipesim.ModelProfile)
    assert isinstance(box, pipesim.HardwareProfile)
    by_profile = pipesim.predict(model, box, tensor_parallel_size=np.int64(8), **QUICK)
    assert by_profile.runs == by_name.runs
    layers = pipesim.predict(tp=4, pp=2, layer_partition=[30, 31], **QUICK)
    assert layers.deployment.layers == (30, 31)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tp": "8"}, "--tp: '8' was given, a whole number"),
        ({"tp": True}, "--tp: True was given, a whole number"),
        ({"engine": "trt"}, "one of sglang, vllm, rebatch"),
        ({"cuda_graph": 1}, "--cuda-graph: 1 was given, True or False"),
        ({"submit_spacing": 5}, "--submit-spacing: 5 was given, a text, quantities with their unit"),
        ({"submit_spacing": "5 m"}, "--submit-spacing"),
        ({"seeds": 0}, "--seeds: 0 was given"),
        ({"model": "kimi-k2.7"}, "did you mean kimi-k2.6"),
        ({"hardware": "kimi-k2.6"}, "kimi-k2.6"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_wanted(given: dict[str, Any], words: str) -> None:
    with pytest.raises(pipesim.PipesimError) as refusal:
        pipesim.predict(**given)
    assert words in str(refusal.value)


def test_a_misspelt_keyword_is_a_type_error_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match="did you mean 'concurrency'"):
        pipesim.predict(concurency=4)
    with pytest.raises(TypeError, match="given twice"):
        pipesim.predict(tp=8, tp_size=8)
    with pytest.raises(TypeError, match="either of them"):
        pipesim.explain(pipesim.predict(tp=8, **QUICK), tp=8)


def test_what_a_box_cannot_hold_says_why() -> None:
    with pytest.raises(pipesim.InfeasibleDeployment) as refusal:
        pipesim.predict(tp=2, pp=1)
    assert "lacks" in refusal.value.reasons[0]


def test_a_sweep_is_that_of_the_command(run_cli: RunCli, tmp_path: Path) -> None:
    swept = pipesim.sweep(tp=[4, 8], pp=[1, 2], concurrency="1:4", output_len=16, input_len=32)
    out = tmp_path / "grid.csv"
    axes = ("--tp", "4,8", "--pp", "1,2", "--concurrency", "1:4", "--output-len", 16, "--input-len", 32)
    assert run_cli("sweep", *axes, "-o", out, "--jobs", 1).code == 0
    ours, theirs = pd.DataFrame(swept.to_records()), pd.read_csv(out)
    assert list(ours.columns) == list(theirs.columns)[1:]
    for name in ("tp", "pp", "concurrency", "feasible", "output_tokens_per_s", "tpot_mean_s", "kv_capacity_tokens"):
        pd.testing.assert_series_equal(ours[name], theirs[name], check_dtype=False)
    assert len(swept) == 12
    assert swept.best == max((row for row in swept if row.feasible), key=lambda row: row.output_tokens_per_s)


def test_an_axis_may_be_anything_that_has_values_profiles_too() -> None:
    box = pipesim.load_hardware("rtx-pro-6000-x8")
    swept = pipesim.sweep(
        hardware=[box, box.with_link("16 GB/s")], tp=8, concurrency=np.array([1, 64]), cuda_graph=[True, False]
    )
    assert swept.axes == ("hardware", "concurrency", "cuda_graph")
    rates = {(row.hardware, row.concurrency, row.cuda_graph): row.output_tokens_per_s for row in swept}
    assert len(rates) == 8
    assert rates[box.name, 64, True] > rates["rtx-pro-6000-x8-with-16GB/s", 64, True]
    with pytest.raises(pipesim.UsageError, match="every value once"):
        pipesim.sweep(tp=[8, 8])
    with pytest.raises(pipesim.UsageError, match="at least one value"):
        pipesim.sweep(tp=[])
    with pytest.raises(pipesim.UsageError, match="names of their own"):
        pipesim.sweep(hardware=[box, box], tp=8)
    one = pipesim.sweep(tp=2, pp=4, layer_partition=[15, 15, 15, 16], speculative_acceptance=[[0.7], [0.7, 0.5]])
    assert one.axes == ("speculative_acceptance",)


def test_a_plan_is_that_of_the_command_and_holds_what_is_given_fixed(run_cli: RunCli) -> None:
    plans = pipesim.plan(tp=8, max_tpot="80 ms", gpu_hour_price=2.0, **QUICK)
    limits = ("--max-tpot", "80 ms", "--gpu-hour-price", 2.0, "--jobs", 1)
    command = run_cli("plan", "--tp", 8, *limits, *FLAGS, "--json").json
    assert plans.to_dict()["plans"] == command["plans"]
    assert {plan.deployment.plan.tp for plan in plans.plans} == {8}
    best = plans.prediction()
    assert best.output_tokens_per_s == pytest.approx(plans.plans[0].figures.output_tokens_per_s)
    frame = pd.DataFrame(plans.to_records())
    assert list(frame["rank"]) == [plan.rank for plan in plans.plans]
    assert list(frame["output_tokens_per_s"]) == [plan.figures.output_tokens_per_s for plan in plans.plans]
    assert list(frame["tpot_p99_s"]) == [plan.figures.tpot_s for plan in plans.plans]
    assert (frame["cost_per_million_output_tokens"] > 0).all()


def test_answers_show_themselves_in_a_line_and_as_html() -> None:
    prediction = pipesim.predict(tp=8, **QUICK)
    answers = [
        prediction,
        pipesim.explain(prediction),
        pipesim.sweep(tp=[1, 8], **QUICK),
        pipesim.plan(tp=8, pp=1, **QUICK),
        pipesim.validate(Path(__file__).parent.parent / "measured_runs" / "founding.toml", seeds=1),
    ]
    for answer in answers:
        assert "\n" not in repr(answer)
        assert len(repr(answer)) < 200
        shown = answer._repr_html_()
        assert shown.count("<table>") == shown.count("</table>") >= 1
        records = answer.to_records()
        frame = pd.DataFrame(records)
        assert len(frame) == len(records) > 0
        assert tuple(frame.columns) == records[0]._fields
        assert not any(is_dataclass(value) or isinstance(value, dict | list) for value in records[0])


def test_names_in_html_are_escaped() -> None:
    model = pipesim.load_model("kimi-k2.6").model_copy(update={"name": "<script>"})
    shown = pipesim.predict(model, tp=8, **QUICK)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_load_tells_a_model_from_a_box(tmp_path: Path) -> None:
    for name, kind in (("kimi-k2.6", pipesim.ModelProfile), ("h100-sxm-2x8", pipesim.HardwareProfile)):
        assert isinstance(pipesim.load(name), kind)
    box = tmp_path / "mine.toml"
    box.write_text('schema_version = 1\nextends = "rtx-pro-6000-x8"\nname = "mine"\n', encoding="utf-8")
    assert isinstance(pipesim.load(box), pipesim.HardwareProfile)
    for wrong in ("kimi-k2", tmp_path / "none.toml"):
        with pytest.raises(pipesim.ProfileError):
            pipesim.load(wrong)


def test_other_links_are_a_what_if_and_say_so() -> None:
    box = pipesim.load_hardware("rtx-pro-6000-x8")
    assert box.with_link() is box
    half = f"{box.peer_links.same_group_bandwidth / 2:g} B/s"
    slower = box.with_link(half)
    scaled = box.with_links_scaled(0.5)
    assert slower.peer_links.cross_group_bandwidth == pytest.approx(scaled.peer_links.cross_group_bandwidth)
    for ours, other in zip(slower.collectives, scaled.collectives, strict=True):
        assert [line.bandwidth for line in ours.lines] == pytest.approx([line.bandwidth for line in other.lines])
    source = slower.sources[slower.peer_links.source]
    assert (source.basis, half in source.text) == ("datasheet", True)
    later = box.with_link(latency=f"{box.peer_links.launch * 3:g} s")
    assert later.peer_links.staged_launch == pytest.approx(3 * box.peer_links.staged_launch, rel=1e-4)
    now, then = (pipesim.predict(hardware=one, tp=8, **QUICK) for one in (box, slower))
    assert then.output_tokens_per_s < now.output_tokens_per_s
    assert then.to_dict()["basis"]["datasheet"] > now.to_dict()["basis"]["datasheet"]
    for wrong in ("128 Gb/s", "0 GB/s", "fast"):
        with pytest.raises(ValueError, match="wanted"):
            box.with_link(wrong)


def test_a_box_may_have_another_number_of_gpus() -> None:
    box = pipesim.load_hardware("rtx-pro-6000-x8")
    assert box.with_gpus(4) == pipesim.load_hardware("rtx-pro-6000-x4")
    assert box.with_gpus(8, nodes=4) == pipesim.load_hardware("rtx-pro-6000-4x8")
    with pytest.raises(pipesim.ProfileError):
        box.with_gpus(0)


def test_a_calibration_writes_what_the_command_writes(run_cli: RunCli, tmp_path: Path) -> None:
    tests = Path(__file__).parent / "data" / "nccl_all_reduce_2.txt"
    paths = [tmp_path / name for name in ("ours.toml", "theirs.toml")]
    for path in paths:
        path.write_text('schema_version = 1\nextends = "rtx-pro-6000-x8"\nname = "mine"\n', encoding="utf-8")
    before = paths[0].read_text(encoding="utf-8")
    dry = pipesim.calibrate(paths[0], nccl_tests=tests, dry_run=True)
    assert paths[0].read_text(encoding="utf-8") == before
    assert dry.differences
    done = pipesim.calibrate(paths[0], nccl_tests=[tests])
    assert run_cli("calibrate", paths[1], "--nccl-tests", tests).code == 0
    assert paths[0].read_text(encoding="utf-8") == paths[1].read_text(encoding="utf-8") != before
    for answer in (dry, done):
        assert "\n" not in repr(answer)
        assert "<pre>" in answer._repr_html_()


def test_an_answer_is_one_of_the_core_with_nothing_lost() -> None:
    prediction = pipesim.predict(tp=8, **QUICK)
    (base,) = type(prediction).__bases__
    assert {field.name for field in fields(base)} <= {field.name for field in fields(prediction)}
    assert prediction.timeline(0).starts.shape[0] == 1
    assert prediction.binding_limit
    assert isinstance(prediction.notes, list)


def test_a_run_that_cannot_be_predicted_is_shown_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "runs.toml"
    path.write_text(
        'schema_version = 1\n[[run]]\nid = "too-big"\nrole = "validation"\nsource = "a test"\nmodel = "kimi-k2.6"\n'
        'hardware = "rtx-pro-6000-x2"\nplan = { tp = 2, pp = 1 }\nengine = { name = "sglang" }\n'
        "workload = { concurrency = 1, num_prompts = 1, input_len = 64, output_len = 16 }\n"
        "measured = { output_tokens_per_s = 25.0 }\ntolerance = { output_tokens_per_s = 0.1 }\n",
        encoding="utf-8",
    )
    validation = pipesim.validate(path, seeds=1)
    assert not validation.ok
    assert "too-big cannot be predicted" in validation._repr_html_()
    (record,) = validation.to_records()
    assert (record.predicted, record.low, record.high) == (None, None, None)
    assert "lacks" in record.reason
