"""What a server's log shows becomes a measured run: one rank, no idle gap in a rate, estimates marked as such."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.cost.memory import model_bytes
from pipesim.errors import ProfileError
from pipesim.importers.run_files import run_file
from pipesim.importers.server_log import read_server_log
from pipesim.importers.server_log.lines import arguments
from pipesim.importers.supplied import Supplied
from pipesim.measured import MeasuredRun
from pipesim.profiles.names import DEFAULT_HARDWARE
from pipesim.runs import load_runs, workload_of
from tests.conftest import RunCli

DATA = Path(__file__).parent / "data" / "server_log"
SAMPLES = sorted(DATA.iterdir())
START = datetime(2026, 11, 20, 23, 59, 0)

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str) -> Path:
        path = tmp_path / "server.log"
        path.write_text(content, encoding="utf-8")
        return path

    return to_file


def imported(path: Path) -> MeasuredRun:
    supplied = Supplied()
    (run,) = run_file([(path, "", read_server_log(path).run)], supplied, model_bytes).runs.run
    return run


def decode(seconds: float, rate: float, ranks: str = "", running: int = 8, more: str = "") -> str:
    stamp = f"{START + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}"
    return (
        f"[{stamp}{ranks}] Decode batch{more}, #running-req: {running}, #token: 900, token usage: 0.01, "
        f"cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0\n"
    )


def rates(values: Iterable[float], ranks: str = "", start: float = 0.0) -> str:
    return "".join(decode(start + 2 * index, rate, ranks) for index, rate in enumerate(values))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_log_becomes_a_file_that_reads_back(path: Path, tmp_path: Path, run_cli: RunCli) -> None:
    file = tmp_path / "runs.toml"
    ran = run_cli("import", "server-log", path, "-o", file, "--json")
    assert ran.code == 0
    (runs,) = load_runs([file])
    assert workload_of(runs.run[0]).concurrency == ran.json["runs"]["run"][0]["workload"]["concurrency"]
    assert {"workload.concurrency", "workload.input_len", "workload.output_len", "hardware"} <= set(runs.run[0].assumed)


def test_a_log_validates_from_end_to_end(tmp_path: Path, run_cli: RunCli) -> None:
    file = tmp_path / "runs.toml"
    assert run_cli("import", "server-log", DATA / "sglang_tp2_pp4.log", DATA / "vllm_tp4_pp2.log", "-o", file).code == 0
    ran = run_cli("validate", file, "--json", "--seeds", 1)
    assert ran.code in {0, 1}
    capacity = {row["id"]: row for row in ran.json["runs"] if row["metric"] == "kv_capacity_tokens"}
    assert len(ran.json["runs"]) == 4
    assert capacity["sglang_tp2_pp4-tp2-pp4-c64"]["predicted"] > 100_000


def test_kv_capacity_is_compared_and_never_fitted(tmp_path: Path, run_cli: RunCli) -> None:
    run = imported(DATA / "sglang_tp8_ray.log")
    assert set(run.measured) - set(run.timed) == {"kv_capacity_tokens"}
    file = tmp_path / "runs.toml"
    run_cli("import", "server-log", DATA / "sglang_tp8_ray.log", "--role", "calibration", "-o", file)
    ran = run_cli("calibrate", DEFAULT_HARDWARE, "--runs", file, "--dry-run")
    assert ran.code == 0
    fitted = [line.split()[1] for line in ran.out.splitlines() if line.startswith("sglang_tp8_ray-tp8-c32 ")]
    assert fitted == ["output_tokens_per_s"]


def test_stages_print_the_same_events_and_are_never_summed() -> None:
    run = imported(DATA / "sglang_tp2_pp4.log")
    assert 990 < run.measured["output_tokens_per_s"] < 1010
    assert run.measured["kv_capacity_tokens"] == 801_234
    assert (run.plan.tp, run.plan.pp, run.workload.concurrency) == (2, 4, 4 * 16)
    assert (run.engine.pp_max_micro_batch_size, run.engine.chunked_prefill_size) == (16, 8192)
    assert run.workload.input_len == 1024
    assert "9 of 11 decode lines" in run.note


@pytest.mark.parametrize("order", [" PP{p} TP0", " TP0 PP{p}", " PP{p}", " DP0 PP{p} ATTN_CP0 MOE_DP0 TP0 EP0"])
@pytest.mark.parametrize("first", [0, 2])
def test_ranks_are_told_apart_in_any_order_and_the_first_stage_there_is_read(
    order: str, first: int, write: Write
) -> None:
    log = "".join(rates([5, 300 + p, 300 + p], order.format(p=p)) for p in range(first, 4))
    assert imported(write(log)).measured["output_tokens_per_s"] == 300 + first


def test_ranks_of_dp_attention_serve_requests_of_their_own() -> None:
    run = imported(DATA / "sglang_dp_attention.log")
    assert run.measured["output_tokens_per_s"] == 200 + 210 + 220 + 230
    assert run.workload.concurrency == 32
    assert run.plan.dp_attention


def test_colours_ray_prefixes_iteration_numbers_milliseconds_and_crlf_are_read_through() -> None:
    run = imported(DATA / "sglang_tp8_ray.log")
    assert run.measured["output_tokens_per_s"] == pytest.approx((575.5 + 580.25 + 578 + 582.1 + 431) / 5, rel=1e-3)
    assert (run.plan.tp, run.plan.pp, run.engine.cuda_graph, run.engine.kv_cache_dtype) == (8, 1, False, "fp8")
    assert (run.workload.concurrency, run.workload.input_len, run.workload.num_prompts) == (32, 200, 32)


@given(steady=st.floats(50, 5000), diluted=st.floats(1, 40), before=st.integers(2, 6), idle=st.floats(20, 4000))
def test_the_first_line_after_idle_never_counts(
    tmp_path_factory: pytest.TempPathFactory, steady: float, diluted: float, before: int, idle: float
) -> None:
    again = 2 * before + idle
    path = tmp_path_factory.getbasetemp() / "idle.log"
    path.write_text(rates([diluted] + [steady] * before) + rates([diluted, steady, steady], start=again))
    assert imported(path).measured["output_tokens_per_s"] == pytest.approx(steady, abs=0.01)


def test_rates_count_by_the_time_they_cover(write: Write) -> None:
    log = decode(0, 1) + decode(2, 100) + decode(4, 100) + decode(8, 400)
    assert imported(write(log)).measured["output_tokens_per_s"] == (2 * 100 + 2 * 100 + 4 * 400) / 8


def test_a_log_without_times_counts_every_rate_alike(write: Write) -> None:
    log = "".join(line.partition("] ")[2] + "\n" for line in rates([1, 100, 200]).splitlines())
    assert imported(write(log)).measured["output_tokens_per_s"] == 150


def test_a_last_line_that_is_cut_off_is_named_and_no_half_number_counts(write: Write, run_cli: RunCli) -> None:
    log = rates([1, 500, 500, 500])
    cut = log[: log.rindex("00.00")]
    ran = run_cli("import", "server-log", write(cut), "--json")
    assert ran.code == 0
    assert "line 4: a decode line that is cut off" in ran.err
    assert ran.json["runs"]["run"][0]["measured"]["output_tokens_per_s"] == 500


def test_one_decode_line_is_too_few(write: Write) -> None:
    with pytest.raises(ProfileError, match="none but the first after idle"):
        read_server_log(write(decode(0, 500)))


def test_under_pp_a_slot_is_not_the_server(write: Write, run_cli: RunCli) -> None:
    path = write(rates([1, 500, 500], " PP0"))
    assert "--pp" in run_cli("import", "server-log", path).err
    ran = run_cli("import", "server-log", path, "--pp", 4, "--json")
    assert ran.json["runs"]["run"][0]["workload"]["concurrency"] == 4 * 8


def test_an_accepted_length_in_the_log_is_speculation(write: Write) -> None:
    line = "cuda graph: True, accept len: 2.00, accept rate: 0.50, "
    run = imported(write(rates([1, 500, 500]).replace("cuda graph: True, ", line)))
    assert sum(run.engine.speculative_acceptance) > 1.0
    assert "engine.speculative_acceptance" in run.assumed


def test_vllm_counts_the_whole_server_and_idle_lines_are_dropped() -> None:
    run = imported(DATA / "vllm_tp4_pp2.log")
    assert run.measured == {"output_tokens_per_s": 1398.0, "kv_capacity_tokens": 437_264}
    assert (run.plan.tp, run.plan.pp, run.workload.concurrency) == (4, 2, 64)
    assert (run.engine.name, run.engine.max_running_requests, run.engine.kv_cache_dtype) == ("vllm", 128, "fp8")
    assert run.engine.version == "0.33.0"


def test_arguments_are_read_as_python_prints_them() -> None:
    expected = {"tp_size": "2", "model_path": "a/b", "revision": None, "enable_x": True}
    assert arguments("ServerArgs(tp_size=2, model_path='a/b', revision=None, enable_x=True)") == expected
    assert arguments("{'tp_size': 2, 'model_path': \"a/b\", 'revision': None, 'enable_x': True}") == expected


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "empty"),
        ("nothing here\n", "text that begins with"),
        ('{"model_id": "m", "completed": 3, "output_throughput": 5}', "vllm bench serve"),
        ('{"architectures": ["X"], "hidden_size": 8}', "config.json"),
        ("[run]\nx = 1\n", "TOML"),
    ],
)
def test_a_file_of_another_kind_is_told_what_it_looks_like(
    content: str, word: str, write: Write, run_cli: RunCli
) -> None:
    ran = run_cli("import", "server-log", write(content))
    assert (ran.code, ran.out) == (2, "")
    assert word in ran.err
