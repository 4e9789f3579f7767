"""What the commands print: names scripts rely on, a screen of 80 columns, profiles that can be found."""

import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunCli

METRICS = {
    "output_tokens_per_s", "output_tokens_per_s_per_request", "request_throughput_per_s", "ttft_s", "tpot_s", "itl_s",
    "e2e_s", "step_time_s", "bubble_fraction", "micro_batches_in_flight",
}  # fmt: skip
QUICK = ["--num-prompts", 8, "--concurrency", 8, "--output-len", 12, "--seeds", 2]


def test_predict_json_has_the_documented_names(run_cli: RunCli) -> None:
    answer = run_cli("predict", "--tp", 2, "--pp", 4, *QUICK, "--json").json
    assert answer["schema_version"] == 1
    assert (answer["feasible"], answer["method"], answer["detail"]) == (True, "simulation", "pass")
    assert answer["deployment"]["layer_partition"] == [15, 15, 15, 16]
    assert (
        answer["workload"] | {"concurrency": 8, "input_len": 512, "output_len": 12, "num_prompts": 8}
        == answer["workload"]
    )
    assert set(answer["metrics"]) == METRICS
    assert all(
        set(answer["metrics"][name]) == {"mean", "p50", "p99"} for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")
    )
    assert answer["interval"]["level"] == 0.8
    low, high = answer["interval"]["output_tokens_per_s"]
    assert low <= answer["metrics"]["output_tokens_per_s"] <= high
    assert set(answer["closed_form"]) == {"output_tokens_per_s", "step_time_s", "bubble_fraction"}
    assert set(answer["breakdown"]) == {"experts", "attention", "dense", "all_reduce", "send_recv", "host", "bubble"}
    assert sum(answer["breakdown"].values()) == pytest.approx(1, abs=1e-9)
    assert set(answer["basis"]) == {"measured", "fitted", "datasheet"}
    assert sum(answer["basis"].values()) == pytest.approx(1, abs=1e-9)
    assert [gpu["gpu"] for gpu in answer["gpus"]] == list(range(8))
    assert [(gpu["stage"], gpu["tp_rank"]) for gpu in answer["gpus"]] == [(s, r) for s in range(4) for r in range(2)]
    assert answer["gpus"][-1]["layers"] == [45, 61]
    assert all(gpu["memory_free_bytes"] > 0 for gpu in answer["gpus"])


def test_the_screen_fits_80_columns_and_says_which_defaults_were_used(run_cli: RunCli) -> None:
    screen = run_cli("predict", "--pp", 8, *QUICK).out
    assert max(map(len, screen.splitlines())) <= 80
    assert len(screen.splitlines()) <= 50
    defaults = " ".join(screen[screen.index("defaults:") :].split())
    assert "CUDA graphs" in defaults
    assert "512 in" in defaults
    assert "users in closed loop" not in defaults
    for word in (
        "tok/s",
        "TTFT",
        "TPOT",
        "ITL",
        "step time",
        "bubble",
        "in flight",
        "hangs on",
        "seeds",
        "evidence",
    ):
        assert word in screen


def test_flags_mean_the_same_under_the_engines_other_names(run_cli: RunCli) -> None:
    first = run_cli("predict", "--tp", 2, "--pp", 4, "--concurrency", 8, "--input-len", 64, "--output-len", 9, "--json")
    names = [
        "--tensor-parallel-size",
        2,
        "--pipeline-parallel-size",
        4,
        "--max-concurrency",
        8,
        "--isl",
        64,
        "--osl",
        9,
    ]
    assert run_cli("predict", *names, "--json").out == first.out


def test_without_peer_access_a_pipeline_is_slower(run_cli: RunCli) -> None:
    rates = [
        run_cli("predict", "--pp", 8, "--concurrency", 1, "--num-prompts", 1, flag, "--json").json["metrics"]
        for flag in ("--p2p", "--no-p2p")
    ]
    assert rates[1]["tpot_s"]["mean"] > rates[0]["tpot_s"]["mean"]


def test_an_fp8_kv_cache_holds_twice_the_tokens(run_cli: RunCli) -> None:
    capacity = [
        run_cli("predict", "--tp", 8, *QUICK, "--kv-cache-dtype", dtype, "--json").json["gpus"][0]["kv_capacity_tokens"]
        for dtype in ("bf16", "fp8")
    ]
    assert capacity[1] == pytest.approx(2 * capacity[0], abs=2)


def test_a_prompt_already_in_context_is_decoded_without_prefilling_it(run_cli: RunCli) -> None:
    flags = ["--tp", 8, "--concurrency", 1, "--num-prompts", 1, "--input-len", 1, "--output-len", 20, "--json"]
    empty, full = (run_cli("predict", *flags, "--context-len", n).json["metrics"] for n in (0, 100_000))
    assert full["tpot_s"]["mean"] > 1.3 * empty["tpot_s"]["mean"]
    assert full["ttft_s"]["mean"] < 1.0


def test_profiles_are_listed_shown_and_described(run_cli: RunCli) -> None:
    listed = run_cli("profiles", "list").out
    assert "rtx-pro-6000-x8" in listed
    assert "kimi-k2.6" in listed
    assert "[sources.moe]" in run_cli("profiles", "show", "rtx-pro-6000-x8").out
    schema = run_cli("profiles", "schema", "hardware").json
    assert schema["additionalProperties"] is False
    assert "quoted peak" in schema["$defs"]["Gpu"]["properties"]["memory_bandwidth"]["description"].lower()
    assert run_cli("profiles", "show", "no-such-profile").code == 2


def test_a_profile_can_come_from_a_path_or_a_folder_of_ones_own(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "hardware_profiles" / "rtx-pro-6000-x8.toml").read_text(encoding="utf-8")
    folder = tmp_path / "hardware_profiles"
    folder.mkdir()
    (folder / "my-box.toml").write_text(text.replace('name = "rtx-pro-6000-x8"', 'name = "my-box"'), encoding="utf-8")
    by_path = run_cli("predict", "--tp", 8, *QUICK, "--hardware", folder / "my-box.toml", "--json").json
    assert by_path["deployment"]["hardware"] == "my-box"
    monkeypatch.setenv("PIPESIM_PROFILES", str(tmp_path))
    assert run_cli("predict", "--tp", 8, *QUICK, "--hardware", "my-box", "--json").json == by_path


def test_a_wheel_unpacked_elsewhere_finds_its_profiles(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import pipesim, sys; print(pipesim.__file__); sys.argv[1:] = ['profiles', 'list']; import pipesim.__main__"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    assert lines[0].startswith(str(tmp_path / "site"))
    assert all(str(tmp_path / "site") in line for line in lines[1:])
    assert {"rtx-pro-6000-x8", "kimi-k2.6"} <= {line.split()[1] for line in lines[1:]}


def test_help_loads_no_plotting_fitting_or_simulation_it_does_not_need() -> None:
    code = "import sys, pipesim.cli; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"scipy", "matplotlib", "pandas"} & set(json.loads(loaded.replace("'", '"')))


def test_the_installed_package_carries_a_command() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts", name="pipesim")
    assert [script.value for script in scripts] == ["pipesim.cli:main"]
