"""`sweep`: every point a row, in grid order, wherever it was computed and however often it was cut off."""

import csv
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipesim.axes import axis_values
from pipesim.errors import UsageError
from tests.conftest import ROOT, RunCli

GRID = ["--tp", "2,4,8", "--pp", "1:4", "--concurrency", "1:8", "--output-len", 8, "--input-len", 32]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_point_is_a_row_in_grid_order_and_what_cannot_run_says_why(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "grid.csv"
    assert run_cli("sweep", *GRID, "-o", out, "--jobs", 1).code == 0
    found = rows(out)
    assert [(row["tp"], row["pp"], row["concurrency"]) for row in found] == [
        (tp, pp, users) for tp in ("2", "4", "8") for pp in ("1", "2", "4") for users in ("1", "2", "4", "8")
    ]
    assert {(row["tp"], row["pp"]) for row in found if row["feasible"] == "true"} == {
        ("2", "4"),
        ("4", "2"),
        ("8", "1"),
    }
    assert all(bool(row["reason"]) != (row["feasible"] == "true") for row in found)


def test_a_simulated_row_is_what_predict_says(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "grid.csv"
    load = ["--input-len", 32, "--output-len", 8, "--concurrency", 4]
    run_cli("sweep", "--tp", "4,8", "--pp", "1,2", *load, "--method", "simulation", "-o", out, "--jobs", 1)
    row = next(row for row in rows(out) if (row["tp"], row["pp"]) == ("4", "2"))
    told = run_cli("predict", "--tp", 4, "--pp", 2, *load, "--seeds", 1, "--json").json["metrics"]
    assert float(row["output_tokens_per_s"]) == told["output_tokens_per_s"]
    assert float(row["ttft_p99_s"]) == told["ttft_s"]["p99"]


def test_without_a_file_the_rows_are_printed(run_cli: RunCli) -> None:
    ran = run_cli("sweep", "--tp", "8", "--concurrency", "1,2", "--output-len", 4, "--jobs", 1)
    assert len(list(csv.DictReader(ran.out.splitlines()))) == 2


def test_switches_and_words_vary_too(run_cli: RunCli) -> None:
    flags = ["--tp", 8, "--engine", "sglang,vllm", "--vary", "cuda-graph=true,false", "--output-len", 4, "--jobs", 1]
    found = list(csv.DictReader(run_cli("sweep", *flags).out.splitlines()))
    assert [(row["engine"], row["cuda_graph"]) for row in found] == [
        (engine, graph) for engine in ("sglang", "vllm") for graph in ("true", "false")
    ]
    assert len({row["output_tokens_per_s"] for row in found}) == 4


def test_processes_write_the_same_bytes(run_cli: RunCli, tmp_path: Path) -> None:
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for jobs, file in enumerate(files, start=1):
        assert run_cli("sweep", *GRID, "-o", file, "--jobs", jobs).code == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an uninterrupted sweep."""
    file = tmp_path_factory.mktemp("sweep") / "whole.csv"
    sweep(*GRID, "-o", file)
    return file


@settings(max_examples=15)
@given(cut=st.floats(0.0, 1.0))
def test_a_file_cut_off_anywhere_is_completed_byte_for_byte(whole: Path, cut: float) -> None:
    part, data = whole.with_name("part.csv"), whole.read_bytes()
    part.write_bytes(data[: round(cut * len(data))])
    sweep(*GRID, "-o", part, "--resume")
    assert part.read_bytes() == data


def sweep(*flags: object) -> None:
    """Runs the command in this process, where no fixture of one test may be used by many examples."""
    from pipesim import cli  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.argv", ["pipesim", "sweep", *map(str, flags), "--jobs", "1"])
        cli.main()
    assert not ended.value.code


def test_a_sweep_killed_halfway_and_resumed_equals_one_that_was_not(tmp_path: Path) -> None:
    flags = ["--tp", "2,4", "--pp", "2,4", "--concurrency", "1:24:1", "--output-len", "48", "--method", "simulation"]
    command = [sys.executable, "-m", "pipesim", "sweep", *flags, "--jobs", "1", "-o"]
    killed, whole = tmp_path / "killed.csv", tmp_path / "whole.csv"
    running = subprocess.Popen([*command, str(killed)], cwd=ROOT, stderr=subprocess.DEVNULL)
    while not killed.exists() or killed.read_bytes().count(b"\n") < 40:
        time.sleep(0.02)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = killed.read_bytes().count(b"\n") - 1
    assert 0 < before < 96
    for path, resume in ((killed, ["--resume"]), (whole, [])):
        subprocess.run([*command, str(path), *resume], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
    assert killed.read_bytes() == whole.read_bytes()


def test_a_file_of_another_grid_is_left_alone(run_cli: RunCli, tmp_path: Path) -> None:
    out = tmp_path / "grid.csv"
    base = ["--tp", 8, "--output-len", 4, "--jobs", 1, "-o", out]
    run_cli("sweep", *base, "--concurrency", "1,2")
    before = out.read_bytes()
    for flags in (["--concurrency", "1,4"], ["--concurrency", "1,2", "--mem-fraction-static", "0.8"]):
        ran = run_cli("sweep", *base, *flags, "--resume")
        assert ran.code == 2
        assert "--resume" in ran.err
    refused = run_cli("sweep", *base, "--concurrency", "1,2")
    assert refused.code == 2
    assert "--resume" in refused.err
    out_other = tmp_path / "notes.csv"
    out_other.write_text("dear diary,\n", encoding="utf-8")
    assert run_cli("sweep", "--tp", 8, "--jobs", 1, "-o", out_other, "--resume").code == 2
    assert out.read_bytes() == before
    assert out_other.read_text(encoding="utf-8") == "dear diary,\n"


def test_parquet_holds_the_same_rows(run_cli: RunCli, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table_file, text = tmp_path / "grid.parquet", tmp_path / "grid.csv"
    for out in (table_file, text):
        assert run_cli("sweep", *GRID, "-o", out, "--jobs", 1).code == 0
    found = parquet.read_table(table_file).to_pylist()
    assert [row["output_tokens_per_s"] for row in found] == [
        float(row["output_tokens_per_s"]) if row["output_tokens_per_s"] else None for row in rows(text)
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.csv", "grid.parquet"]
    before = table_file.stat().st_mtime_ns
    assert run_cli("sweep", *GRID, "-o", table_file, "--jobs", 1, "--resume").code == 0
    assert table_file.stat().st_mtime_ns == before
    assert run_cli("sweep", *GRID, "--seeds", 2, "-o", table_file, "--jobs", 1, "--resume").code == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tp", ","], "--tp"),
        (["--concurrency", "8:1"], "--concurrency"),
        (["--concurrency", "1:x"], "--concurrency"),
        (["--concurrency", "1:9:0"], "--concurrency"),
        (["--tp", "1,1"], "every value once"),
        (["--engine", "sglang,triton"], "triton"),
        (["--vary", "colour=red"], "--vary"),
        (["--concurrency", "1:1000000:1", "--input-len", "1:1000000:1"], "1,000,000,000,000 points"),
        (["--concurrency", "1:1000000000000:1"], "--concurrency"),
        (["--executor", "spark://host:1"], "dask://"),
        (["--executor", "dask://localhost:1"], "--executor"),
        (["-o", "/nowhere/at/all.csv"], "/nowhere/at/all.csv"),
        (["--resume"], "--output"),
    ],
)
def test_bad_input_ends_with_one_message(
    run_cli: RunCli, flags: list[object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipesim.sweeping.run.CONNECT_SECONDS", 1)
    ran = run_cli("sweep", "--output-len", 4, "--jobs", 1, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


@given(st.integers(1, 1000), st.integers(0, 1000), st.integers(1, 100))
def test_a_range_stays_within_its_ends_and_starts_at_the_first(low: int, more: int, step: int) -> None:
    counted = axis_values("--n", f"{low}:{low + more}:{step}", int, int)
    assert counted == list(range(low, low + more + 1, step))
    doubled = axis_values("--n", f"{low}:{low + more}", int, int)
    assert doubled[0] == low
    assert all(b == 2 * a for a, b in itertools.pairwise(doubled))
    assert doubled[-1] <= low + more < 2 * doubled[-1]


def test_an_axis_without_values_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        axis_values("--tp", " , ", int, int)


@pytest.fixture
def dask_scheduler() -> Iterator[str]:
    """A real scheduler and two workers, as processes of their own."""
    pytest.importorskip("distributed")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    python = [sys.executable, "-W", "ignore", "-m"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": ROOT}
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = ["distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--no-dashboard"]
    processes = [subprocess.Popen([*python, *command], **quiet) for command in (scheduler, worker, worker)]  # type: ignore[call-overload]
    try:
        yield f"dask://127.0.0.1:{port}"
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_writes_the_same_bytes(dask_scheduler: str, run_cli: RunCli, tmp_path: Path) -> None:
    from distributed import Client  # noqa: PLC0415 - an extra

    with Client(dask_scheduler.replace("dask://", "tcp://"), timeout=60, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    far, near = tmp_path / "far.csv", tmp_path / "near.csv"
    assert run_cli("sweep", *GRID, "-o", far, "--executor", dask_scheduler).code == 0
    assert run_cli("sweep", *GRID, "-o", near, "--jobs", 1).code == 0
    assert far.read_bytes() == near.read_bytes()
