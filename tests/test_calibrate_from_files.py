"""Constants of a box from what was measured on it: nccl-tests output and whole runs of role calibration."""

import math
import shutil
from pathlib import Path

import pytest

from pipesim.calibration.box_files import curves_from_nccl_tests
from pipesim.calibration.runs import calibration_runs, fit_runs
from pipesim.cost import CostModel
from pipesim.errors import ProfileError
from pipesim.ops import Collective
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.store import available, load_hardware
from pipesim.reasons import notes
from pipesim.runs import load_runs
from pipesim.sensitivity import Confidence
from pipesim.workload import Workload
from tests.conftest import BOX, ROOT, RunCli, predictor

DATA = ROOT / "tests" / "data"


@pytest.fixture
def my_box(tmp_path: Path) -> Path:
    path = tmp_path / "my-box.toml"
    shutil.copy(ROOT / "hardware_profiles" / "rtx-pro-6000-x8.toml", path)
    return path


def test_calibration_runs_give_the_shipped_launch_time_back_to_a_tenth() -> None:
    # It was fitted while only the first stage had a host in the model. Now that every stage has, a lone user's way
    # under PP holds schedule and process of each, and the runs ask for 8 % less launch time. A fit of launch and turn
    # together meets both runs to 1 % and misses the mean bar of the founding rows, so the times stand as they were.
    box = load_hardware("rtx-pro-6000-x8")
    fit = fit_runs(load_runs([ROOT / "measured_runs" / "founding.toml"]), box)
    assert fit.figures == ("tp8-eager-c1 output_tokens_per_s", "pp8-eager-c1 output_tokens_per_s")
    assert fit.factors == {"sglang": {"launch": pytest.approx(1, abs=0.1)}}
    assert max(map(abs, fit.log_errors)) < 0.07


def test_no_error_beyond_that_of_the_constants_is_seen_in_the_calibration_runs() -> None:
    for name in ("rtx-pro-6000-x8", "rtx-pro-6000-x8-tuned"):
        box = load_hardware(name)
        assert fit_runs(load_runs([]), box).excess_std <= box.uncertainty.end_to_end


def test_runs_of_other_roles_are_not_fitted_to() -> None:
    files = [
        file.model_copy(update={"run": tuple(r for r in file.run if r.role != "calibration")}) for file in load_runs([])
    ]
    with pytest.raises(ProfileError, match="calibration"):
        calibration_runs(files, "rtx-pro-6000-x8")


def test_an_nccl_tests_file_replaces_the_curve_of_the_box_and_names_itself(my_box: Path, run_cli: RunCli) -> None:
    measured = DATA / "nccl_two_tests_8.txt"
    curve, eager = (fit.curve for fit in curves_from_nccl_tests([measured], load_hardware(str(my_box))).fits)
    before = my_box.read_text(encoding="utf-8")
    dry = run_cli("calibrate", my_box, "--nccl-tests", measured, "--dry-run")
    assert dry.code == 0
    assert my_box.read_text(encoding="utf-8") == before
    assert '+source = "collectives-nccl-tests"' in dry.out
    assert run_cli("calibrate", my_box, "--nccl-tests", measured).code == 0
    box = load_hardware(str(my_box))
    written = next(c for c in box.collectives if (c.op, c.ranks, c.launch) == ("all_reduce", 8, "graph"))
    assert written.lines == curve.lines
    assert [c for c in box.collectives if (c.op, c.ranks, c.launch) == ("all_reduce", 8, "eager")] == [
        eager.model_copy(update={"source": written.source})
    ]
    assert "nccl_two_tests_8.txt" in box.sources[written.source].text
    assert my_box.read_text(encoding="utf-8").startswith(before.splitlines()[0]), "comments are kept"
    assert "# CPU times of the engine on this host." in my_box.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["calibrate", "import"])
def test_a_measured_all_reduce_ends_the_doubt_about_the_host(command: str, tmp_path: Path, run_cli: RunCli) -> None:
    measured, path = DATA / "nccl_two_tests_8.txt", tmp_path / "mine.toml"
    if command == "calibrate":
        ran = run_cli("calibrate", "rtx-pro-6000-x8", "--nccl-tests", measured, "-o", path)
    else:
        ran = run_cli("import", "nccl-tests", measured, "--base", "rtx-pro-6000-x8", "--name", "mine", "-o", path)
    assert ran.code == 0, ran.err
    own = load_hardware(str(path))
    assert own.name == "mine"
    for launch in ("graph", "eager"):
        before, after = (
            CostModel(box, launch).price(Collective("all_reduce", "all_reduce", 8, 2.0**20)) for box in (BOX, own)
        )
        assert after.seconds == pytest.approx(181e-6, rel=0.1)
        assert after.seconds > 1.3 * before.seconds

    def answer(box: HardwareProfile, tp: int, **flags: object) -> tuple[float, list[str]]:
        prediction = predictor(tp, 8 // tp, box, mem_fraction_static=0.93, **flags).predict(
            Workload(32, 32, 8, 128), seeds=1
        )
        low, high = Confidence(prediction).interval("output_tokens_per_s")
        return high / low, [text for text in notes(prediction) if "property of the host" in text]

    (wide, said), (narrow, unsaid) = (answer(box, 8) for box in (BOX, own))
    assert said
    assert not unsaid
    assert math.log(narrow) < 0.6 * math.log(wide)
    assert answer(own, 4)[1], "what was measured over 8 ranks says nothing of 4"
    assert answer(own, 8, allreduce="pcie-oneshot")[1], "nor of another implementation"


def test_a_profile_that_comes_with_pipesim_is_never_written_to(run_cli: RunCli, tmp_path: Path) -> None:
    measured, shipped = DATA / "nccl_two_tests_8.txt", ROOT / "hardware_profiles" / "rtx-pro-6000-x8.toml"
    before = shipped.read_bytes()
    for name in ("rtx-pro-6000-x8", shipped):
        ran = run_cli("calibrate", name, "--nccl-tests", measured)
        assert (ran.code, ran.out) == (2, "")
        assert "comes with pipesim" in ran.err
        assert "-o FILE" in ran.err
    assert run_cli("calibrate", "rtx-pro-6000-x8", "--nccl-tests", measured, "--dry-run").code == 0
    new = tmp_path / "mine.toml"
    assert run_cli("calibrate", "rtx-4090-x2", "--nccl-tests", DATA / "nccl_all_reduce_2.txt", "-o", new).code == 0
    assert load_hardware(str(new)).gpus == 2
    ran = run_cli("calibrate", new, "--nccl-tests", tmp_path / "none.txt", "-o", tmp_path / "other.toml")
    assert ran.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    assert shipped.read_bytes() == before


@pytest.mark.parametrize("name", sorted(available("hardware")))
def test_the_range_of_published_hosts_is_of_boxes_with_this_gpu(name: str) -> None:
    assert (load_hardware(name).all_reduce_range is not None) == name.startswith("rtx-pro-6000")


def test_the_same_collective_twice_is_refused() -> None:
    with pytest.raises(ProfileError, match="second time"):
        curves_from_nccl_tests([DATA / "nccl_all_reduce_2.txt", DATA / "nccl_all_reduce_2.txt"], BOX)


def test_a_cut_off_file_is_refused_and_the_profile_left_alone(my_box: Path, tmp_path: Path, run_cli: RunCli) -> None:
    whole = (DATA / "nccl_all_reduce_2.txt").read_text(encoding="utf-8")
    cut = tmp_path / "cut.txt"
    cut.write_text(whole[: len(whole) * 2 // 3], encoding="utf-8")
    before = my_box.read_bytes()
    ran = run_cli("calibrate", my_box, "--nccl-tests", cut)
    assert ran.code == 2
    assert "cut.txt" in ran.err
    assert my_box.read_bytes() == before


def test_whole_runs_set_the_launch_time_of_their_engine(my_box: Path, run_cli: RunCli) -> None:
    ran = run_cli("calibrate", my_box, "--runs", ROOT / "measured_runs" / "founding.toml", "--dry-run")
    assert ran.code == 0
    assert "host.engines.sglang.launch" in ran.out
    assert "tp8-eager-c1" in ran.out


def test_nothing_to_calibrate_from_is_a_question_back(my_box: Path, run_cli: RunCli) -> None:
    ran = run_cli("calibrate", my_box)
    assert ran.code == 2
    assert "--nccl-tests" in ran.err


def test_a_calibration_run_may_have_several_figures(run_cli: RunCli, tmp_path: Path) -> None:
    box, run = tmp_path / "box.toml", tmp_path / "run.toml"
    box.write_text('schema_version = 1\nextends = "rtx-pro-6000-x8"\nname = "box"\n', encoding="utf-8")
    run.write_text(
        'schema_version = 1\n[[run]]\nid = "a"\nrole = "calibration"\nsource = "a test"\nmodel = "kimi-k2.6"\n'
        'hardware = "box"\nplan = { tp = 8, pp = 1 }\nengine = { cuda_graph = false }\n'
        "workload = { concurrency = 1, num_prompts = 1, input_len = 64, output_len = 16 }\n"
        "measured = { output_tokens_per_s = 25.0, tpot_s = 0.038 }\n"
        "tolerance = { output_tokens_per_s = 0.1, tpot_s = 0.1 }\n",
        encoding="utf-8",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPESIM_PROFILES", str(tmp_path))
        ran = run_cli("calibrate", "box", "--runs", run, "--dry-run")
    assert ran.code == 0, ran.err
    assert "a output_tokens_per_s" in ran.out
    assert "a tpot_s" in ran.out
