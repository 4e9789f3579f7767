"""What a benchmark wrote becomes a measured run: every figure in SI units, what is not stated listed, errors named."""

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.cost.memory import model_bytes
from pipesim.engine_settings import EngineSettings
from pipesim.errors import PipesimError, ProfileError
from pipesim.importers.bench import TOOLS, read_bench
from pipesim.importers.bench.flags import acceptance_of, engine_of, plain, plan_of
from pipesim.importers.bench.sglang import read_sglang_serving
from pipesim.importers.run_files import matching_hardware, matching_model, run_file
from pipesim.importers.supplied import Supplied
from pipesim.measured import METRICS, MeasuredRun, Runs
from pipesim.profiles.names import DEFAULT_HARDWARE
from pipesim.profiles.store import document_of
from pipesim.runs import load_runs, workload_of
from tests.conftest import RunCli

DATA = Path(__file__).parent / "data" / "bench"
SAMPLES = sorted(DATA.iterdir())
SERVED = ["sglang_serving.jsonl", "sglang_serving_old.jsonl", "vllm_serve.json", "vllm_serve_old.json", "aiperf.json"]

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str | bytes) -> Path:
        path = tmp_path / "result"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to_file


def imported(path: Path, **said: Any) -> tuple[MeasuredRun, ...]:
    supplied = Supplied(**said)
    return run_file([(path, where, record) for where, record in read_bench(path).runs], supplied, model_bytes).runs.run


def first_line(name: str) -> dict[str, Any]:
    text = (DATA / name).read_text(encoding="utf-8")
    document: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return document


def changed(name: str, **fields: Any) -> str:
    return json.dumps(first_line(name) | fields)


def test_every_tool_has_a_sample_and_every_sample_is_read_as_one_tool() -> None:
    tools = {record.tool for path in SAMPLES for _, record in read_bench(path).runs}
    assert tools == {*TOOLS, "aiperf", "genai-perf"} - {"aiperf or genai-perf"}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_file_of_runs_reads_back_to_the_runs_that_were_written(path: Path, tmp_path: Path, run_cli: RunCli) -> None:
    file = tmp_path / "runs.toml"
    ran = run_cli("import", "bench", path, "-o", file, "--json")
    assert ran.code == 0
    (runs,) = load_runs([file])
    assert document_of(runs) == ran.json["runs"] == tomllib.loads(file.read_text(encoding="utf-8"))
    assert Runs.model_validate(document_of(runs)) == runs
    assert len(runs.run) == len(read_bench(path).runs)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_imported_run_is_a_load_that_can_be_predicted_and_says_what_was_assumed(path: Path) -> None:
    for run in imported(path):
        assert workload_of(run).output_len == run.workload.output_len
        assert set(run.measured) <= set(METRICS)
        assert set(run.tolerance) == set(run.measured)
        document = run.model_dump()
        for key in run.assumed:
            table, _, name = key.rpartition(".")
            assert name in (document[table] if table else document), key
        assert run.role == "validation"


@pytest.mark.parametrize("name", ["sglang_serving.jsonl", "vllm_serve.json", "aiperf.json", "inferencex_old.json"])
def test_an_imported_run_validates_from_end_to_end(name: str, tmp_path: Path, run_cli: RunCli) -> None:
    file = tmp_path / "runs.toml"
    assert run_cli("import", "bench", DATA / name, "-o", file).code == 0
    ran = run_cli("validate", file, "--json", "--seeds", 1)
    assert ran.code in {0, 1}
    rows = {(row["id"], row["metric"]): row["measured"] for row in ran.json["runs"]}
    (runs,) = load_runs([file])
    assert rows == {(run.id, metric): value for run in runs.run for metric, value in run.measured.items()}


def test_sglang_serving_states_latencies_in_ms_its_split_and_its_flags() -> None:
    run, fuller = imported(DATA / "sglang_serving.jsonl")
    stated = first_line("sglang_serving.jsonl")
    assert run.measured["ttft_s"] == pytest.approx(stated["mean_ttft_ms"] / 1000)
    assert run.measured["e2e_s"] == pytest.approx(stated["mean_e2e_latency_ms"] / 1000)
    assert run.measured["output_tokens_per_s"] == pytest.approx(stated["output_throughput"])
    assert run.measured["kv_capacity_tokens"] == stated["server_info"]["max_total_num_tokens"]
    assert (run.plan.tp, run.plan.pp, run.plan.dp_attention) == (2, 4, False)
    assert (run.engine.pp_max_micro_batch_size, run.engine.max_running_requests) == (16, 64)
    assert (run.engine.version, run.engine.cuda_graph) == ("0.5.23", True)
    load = run.workload
    assert (load.concurrency, load.num_prompts, load.input_len, load.output_len) == (32, 128, 1024, 256)
    assert (load.request_rate, load.random_range_ratio) == (None, 0.0)
    assert run.assumed == ("hardware",)
    assert fuller.workload.concurrency == 64


def test_lengths_are_means_of_what_was_served_and_sglangs_range_ratio_is_not_ours() -> None:
    (run,) = imported(DATA / "sglang_serving_old.jsonl")
    assert (run.workload.input_len, run.workload.output_len) == (512, 128)
    assert run.workload.random_range_ratio == pytest.approx(1 / 3, abs=1e-4)
    assert {"model", "plan.tp", "plan.pp", "engine.kv_cache_dtype"} <= set(run.assumed)


@given(ratio=st.floats(0, 1), length=st.integers(64, 100_000))
def test_the_converted_range_ratio_spans_the_lengths_that_sglang_draws(ratio: float, length: int) -> None:
    served = 100
    mean = length * (1 + ratio) / 2
    document = first_line("sglang_serving_old.jsonl") | {
        "random_range_ratio": ratio,
        "completed": served,
        "total_input_tokens": served * mean,
        "total_output_tokens": served * mean,
    }
    load = read_sglang_serving(document).workload
    longest = load["output_len"] * (1 + load["random_range_ratio"])
    assert longest == pytest.approx(length, rel=0.02)


def test_an_open_loop_keeps_its_rate_and_lists_of_lengths_give_the_spread() -> None:
    (run,) = imported(DATA / "sglang_serving_details.jsonl")
    assert (run.workload.request_rate, run.workload.max_concurrency) == (2.0, None)
    assert 0.6 < run.workload.random_range_ratio < 0.9
    assert "workload.random_range_ratio" in run.assumed


def test_one_batch_is_one_wave_at_once_with_tpot_over_the_steps_after_the_first_token() -> None:
    alone, batch = imported(DATA / "sglang_one_batch.jsonl")
    stated = first_line("sglang_one_batch.jsonl")
    assert alone.measured["ttft_s"] == stated["prefill_latency"]
    assert alone.measured["itl_s"] == stated["median_decode_latency"]
    assert alone.measured["tpot_s"] == pytest.approx(stated["median_decode_latency"], rel=0.01)
    assert (batch.workload.concurrency, batch.workload.num_prompts, batch.workload.spacing) == (16, 16, 0.0)
    assert batch.measured["output_tokens_per_s"] == pytest.approx(16 * 128 / batch.measured["e2e_s"])


def test_the_slowest_first_token_of_a_large_batch_is_no_mean() -> None:
    alone, batch = imported(DATA / "sglang_one_batch_server.jsonl")
    assert alone.measured["ttft_s"] == 0.175
    assert alone.measured["tpot_s"] == pytest.approx((2.281 - 0.175) / 127)
    assert set(batch.measured) == {"e2e_s", "output_tokens_per_s"}
    assert "last_ttft" in batch.note


def test_vllm_serve_takes_metadata_as_stated_and_its_backend_as_no_engine() -> None:
    (run,) = imported(DATA / "vllm_serve.json")
    assert (run.model, run.engine.name, run.plan.tp) == ("kimi-k2.6", "vllm", 8)
    assert run.engine.gpu_memory_utilization == 0.94
    assert {"engine.name", "plan.pp", "workload.random_range_ratio"} <= set(run.assumed)
    assert not {"plan.tp", "engine.gpu_memory_utilization", "model"} & set(run.assumed)
    (other,) = imported(DATA / "vllm_serve.json", engine="sglang")
    assert other.engine.name == "sglang"
    (old,) = imported(DATA / "vllm_serve_old.json")
    assert old.measured["tpot_s"] == 0.031


@pytest.mark.parametrize(
    "file",
    ["sglang_serving.jsonl", "vllm_serve.json", "aiperf.json", "inferencex.json", "sglang_one_batch.jsonl"],
)
def test_the_users_of_a_closed_loop_begin_all_at_once_and_ignore_the_ends_of_answers(file: str) -> None:
    for run in imported(DATA / file):
        assert (run.workload.spacing, run.workload.ignore_eos, run.workload.steady) == (0.0, True, False)


@pytest.mark.parametrize(
    ("file", "stated", "ignored"),
    [
        ("vllm_serve.json", {"ignore_eos": "false"}, False),
        ("vllm_serve.json", {"ignore-eos": "true"}, True),
        ("sglang_serving_old.jsonl", {"disable_ignore_eos": True}, False),
        ("sglang_serving_old.jsonl", {"extra_request_body": {"ignore_eos": False}}, False),
        ("aiperf.json", {"input_config": {"input": {"extra": [["max_tokens", 9], ["ignore_eos", False]]}}}, False),
        ("genai_perf.json", {"input_config": {"extra_inputs": {"ignore_eos": True}}}, True),
        ("sglang_one_batch_server.jsonl", {"num_early_stopped": 3}, False),
    ],
)
def test_whether_answers_went_on_past_their_ends_is_taken_where_a_file_states_it(
    tmp_path: Path, file: str, stated: dict[str, object], ignored: bool
) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(first_line(file) | stated), encoding="utf-8")
    ((_, run),) = read_bench(path).runs
    assert run.workload["ignore_eos"] is ignored
    (imported_run,) = imported(path)
    assert imported_run.workload.ignore_eos is ignored


def test_appended_and_pretty_printed_objects_are_all_read() -> None:
    first, second = imported(DATA / "vllm_serve_appended.json")
    assert first.measured["e2e_s"] == 11.355
    assert second.workload.concurrency == 16


def test_what_vllm_latency_and_throughput_leave_out_is_assumed_or_supplied() -> None:
    (run,) = imported(DATA / "vllm_latency.json")
    assert (run.workload.concurrency, run.workload.input_len, run.workload.output_len) == (8, 32, 128)
    assert {"workload.concurrency", "workload.input_len", "workload.output_len"} <= set(run.assumed)
    (run,) = imported(DATA / "vllm_throughput.json")
    assert set(run.measured) == {"request_throughput_per_s"}
    (run,) = imported(DATA / "vllm_throughput.json", output_len=152)
    assert run.workload.input_len == 1000
    assert run.measured["output_tokens_per_s"] == pytest.approx(152 * 250 / 222.2)


def test_the_inter_token_latency_of_aiperf_is_tpot_and_its_warm_up_phase_no_load() -> None:
    (run,) = imported(DATA / "aiperf.json")
    assert (run.measured["tpot_s"], run.measured["itl_s"]) == (0.04, 0.0398)
    assert (run.workload.concurrency, run.workload.num_prompts) == (32, 128)
    (old,) = imported(DATA / "aiperf_old.json")
    (elder,) = imported(DATA / "genai_perf.json")
    assert (old.workload.concurrency, elder.workload.concurrency) == (16, 8)
    assert old.model == elder.model == "kimi-k2.6"


def test_units_of_aiperf_are_read_not_guessed(write: Write) -> None:
    seconds = first_line("aiperf.json")
    for key in ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency"):
        seconds[key] = {"unit": "s", "avg": seconds[key]["avg"] / 1000}
    (run,) = imported(write(json.dumps(seconds)))
    (same,) = imported(DATA / "aiperf.json")
    assert run.measured == pytest.approx(same.measured)
    seconds["time_to_first_token"]["unit"] = "fortnights"
    with pytest.raises(ProfileError, match=r"time_to_first_token\.unit"):
        read_bench(write(json.dumps(seconds)))


def test_an_inferencex_rate_is_per_gpu_and_its_times_are_seconds() -> None:
    (run,) = imported(DATA / "inferencex.json")
    stated = first_line("inferencex.json")
    assert run.measured["output_tokens_per_s"] == pytest.approx(8 * stated["output_tput_per_gpu"])
    assert run.measured["ttft_s"] == stated["mean_ttft"]
    assert (run.plan.tp, run.plan.pp, run.engine.name, run.hardware) == (2, 4, "sglang", "rtx-pro-6000-x8")
    (old,) = imported(DATA / "inferencex_old.json")
    assert "plan.pp" in old.assumed
    assert [run.engine.name for run in imported(DATA / "inferencex_list.json")] == ["vllm", "vllm"]


def test_separate_prefill_servers_and_unknown_acceptance_are_not_judged(write: Write) -> None:
    with pytest.raises(ProfileError, match="disagg"):
        read_bench(write(changed("inferencex.json", disagg=True)))
    (run,) = imported(write(changed("inferencex.json", spec_decoding="mtp")))
    assert run.role == "reported"
    assert "mtp" in run.note


MS_FIELDS = ["mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2e_latency_ms"]
WRONG_UNITS = [
    *(("sglang_serving.jsonl", (field,), 0.001) for field in MS_FIELDS),
    ("sglang_serving.jsonl", tuple(MS_FIELDS), 0.001),
    ("sglang_serving.jsonl", ("duration",), 1000),
    ("sglang_serving.jsonl", ("output_throughput",), 0.001),
    ("sglang_serving.jsonl", ("request_throughput",), 0.001),
    *(("vllm_serve.json", (field,), 0.001) for field in MS_FIELDS[:3]),
    ("vllm_serve.json", tuple(MS_FIELDS[:3]), 0.001),
    *(("inferencex.json", (field,), 1000) for field in ("mean_ttft", "mean_tpot", "mean_itl", "mean_e2el")),
    ("sglang_one_batch.jsonl", ("total_latency",), 1000),
    ("sglang_one_batch_server.jsonl", ("latency",), 1000),
    ("vllm_latency.json", ("avg_latency",), 1000),
]


@pytest.mark.parametrize(("name", "fields", "factor"), WRONG_UNITS)
def test_a_figure_in_another_unit_than_its_name_says_is_refused_by_name(
    name: str, fields: tuple[str, ...], factor: float, write: Write
) -> None:
    document = first_line(name)
    wrong = write(json.dumps(document | {field: document[field] * factor for field in fields}))
    with pytest.raises(ProfileError) as refused:
        read_bench(wrong)
    assert all(field in refused.value.key for field in fields)


def test_a_long_wait_in_seconds_is_found_though_it_is_longer_than_a_step(write: Write) -> None:
    document = first_line("vllm_serve.json")
    users, step, wait, answer = 64, 0.055, 20.0, 256
    rate = users / (wait + (answer - 1) * step)
    document |= {"mean_ttft_ms": wait, "request_throughput": rate, "output_throughput": rate * answer}
    document |= {"duration": 256 / rate}
    with pytest.raises(ProfileError, match="mean_ttft_ms"):
        read_bench(write(json.dumps(document)))
    assert read_bench(write(json.dumps(document | {"mean_ttft_ms": 1000 * wait}))).runs


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_consistent_figures_are_noted_by_nobody(path: Path) -> None:
    assert not [note for _, record in read_bench(path).runs for note in record.notes if "factor" in note]


@given(cut=st.integers(0, (DATA / "sglang_serving.jsonl").stat().st_size))
def test_wherever_a_file_is_cut_off_the_whole_lines_are_kept_and_the_last_is_named(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    data = (DATA / "sglang_serving.jsonl").read_bytes()
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(data[:cut])
    ends = [len(line) for line in data.splitlines()]
    whole = (cut >= ends[0]) + (cut >= sum(ends) + 1)
    if not whole:
        with pytest.raises(ProfileError):
            read_bench(path)
        return
    file = read_bench(path)
    assert len(file.runs) == whole
    assert [error.key for error in file.refused] == ["line 2"] * (whole == 1 and cut > ends[0] + 1)


@given(
    path=st.sampled_from(SAMPLES),
    at=st.floats(0, 1),
    junk=st.sampled_from(
        [b"null", b"NaN", b"Infinity", b"-1", b'"x"', b"{", b"]", b"\n", b"\xff", b"0", b"1e999", b"[1]"]
    ),
)
def test_a_garbled_file_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, path: Path, at: float, junk: bytes
) -> None:
    data = path.read_bytes()
    numbers = [match.span() for match in re.finditer(rb"(?<=: )-?[\d.]+|(?<=: )null", data)]
    start, end = numbers[int(at * (len(numbers) - 1))]
    garbled = tmp_path_factory.getbasetemp() / f"garbled-{path.name}"
    garbled.write_bytes(data[:start] + junk + data[end:])
    try:
        runs = imported(garbled)
    except PipesimError as error:
        assert str(garbled) in str(error) or "imported" in str(error)
        return
    assert all(math.isfinite(value) for run in runs for value in run.measured.values())


@given(
    path=st.sampled_from(SAMPLES),
    at=st.floats(0, 1),
    odd=st.sampled_from([None, [], {}, "x", True, -1, 0, 1e308, math.inf, [None], {"avg": []}, {"avg": 1, "unit": 3}]),
)
def test_a_field_of_another_kind_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, path: Path, at: float, odd: object
) -> None:
    document = json.JSONDecoder().raw_decode(path.read_text(encoding="utf-8"))[0]
    document = document[0] if isinstance(document, list) else document
    key = list(document)[int(at * (len(document) - 1))]
    changed_file = tmp_path_factory.getbasetemp() / f"odd-{path.name}"
    changed_file.write_text(json.dumps(document | {key: odd}), encoding="utf-8")
    try:
        runs = imported(changed_file)
    except PipesimError as error:
        assert str(error)
        return
    assert all(0 < value < math.inf for run in runs for value in run.measured.values())


def test_a_half_written_line_between_good_ones_is_named_and_they_are_kept(write: Write) -> None:
    first, second = (DATA / "sglang_serving.jsonl").read_text(encoding="utf-8").splitlines()
    for end in (10, len(first) // 2, len(first) - 1):
        file = read_bench(write("\n".join([first, second[:end], first])))
        assert [where for where, _ in file.runs] == ["line 1", "line 3"]
        assert [error.key for error in file.refused] == ["line 2"]


def test_line_ends_byte_order_marks_and_terminal_text_do_not_matter(write: Write) -> None:
    plain_text = (DATA / "vllm_serve.json").read_text(encoding="utf-8")
    expected = imported(DATA / "vllm_serve.json", prefix="x")
    for content in (
        b"\xef\xbb\xbf" + plain_text.replace("\n", "\r\n").encode(),
        plain_text.encode("utf-16"),
        f"Namespace(backend='openai')\n============ Result ============\n{plain_text}\ndone\n".encode(),
        f"[{plain_text}]".encode(),
    ):
        (run,) = imported(write(content), prefix="x")
        assert run.model_copy(update={"source": expected[0].source}) == expected[0]


REFUSALS = {
    "an empty file": (b"", "empty"),
    "a binary file": (bytes(range(256)), "binary"),
    "a model's config": (b'{"architectures": ["X"], "hidden_size": 8}', "config.json"),
    "a log": (b"[2026-11-20 10:12:33] Decode batch, #running-req: 3", "server-log"),
    "a TOML file": (b"[common]\nx = 1\n[[run]]\ny = 2\n", "TOML"),
    "a table": (b"a,b,c\n1,2,3\n", "CSV"),
    "single requests": (b'{"metadata": {}, "metrics": {}}', "profile_export_aiperf.json"),
    "an empty list": (b"[]", "[]"),
    "a list of numbers": (b"[1, 2]", "int"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_file_of_another_kind_is_told_what_it_looks_like(kind: str, write: Write, run_cli: RunCli) -> None:
    content, word = REFUSALS[kind]
    ran = run_cli("import", "bench", write(content))
    assert (ran.code, ran.out) == (2, "")
    assert word in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("sglang_serving.jsonl", "completed"),
        ("vllm_serve.json", "completed"),
        ("vllm_throughput.json", "num_requests"),
    ],
)
def test_a_run_without_a_completed_request_is_refused(name: str, field: str, write: Write) -> None:
    with pytest.raises(ProfileError, match="no request was completed"):
        read_bench(write(changed(name, **{field: 0})))


def test_figures_that_are_null_or_not_finite_are_left_out_and_said(write: Write) -> None:
    path = write(changed("vllm_serve.json", mean_ttft_ms=math.nan, mean_tpot_ms=None, mean_itl_ms=math.inf))
    (run,) = imported(path)
    assert set(run.measured) == {"output_tokens_per_s", "request_throughput_per_s"}
    assert "mean_ttft_ms is nan" in run.note
    assert "mean_itl_ms is inf" in run.note


def test_a_refused_import_writes_nothing(write: Write, tmp_path: Path, run_cli: RunCli) -> None:
    output = tmp_path / "runs.toml"
    assert run_cli("import", "bench", write("{"), "-o", output).code == 2
    assert not output.exists()


def test_what_was_assumed_and_left_out_is_said_on_stderr_one_line_each(tmp_path: Path, run_cli: RunCli) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text((DATA / "sglang_serving.jsonl").read_text(encoding="utf-8")[:-100], encoding="utf-8")
    ran = run_cli("import", "bench", path, "--json")
    left_out, line = ran.err.splitlines()
    assert "line 2" in left_out
    assert line.startswith("mine-tp2-pp4-c32 (sglang.bench_serving, line 1): assumed hardware rtx-pro-6000-x8")
    assert ran.json["notes"] == [line]
    assert len(ran.json["left_out"]) == 1


def test_a_model_is_matched_by_its_id_or_name_and_an_unknown_one_wants_a_flag(write: Write, run_cli: RunCli) -> None:
    for stated in (
        "moonshotai/Kimi-K2.6",
        "KIMI-K2.6",
        "/models/kimi_k2.6/",
        "~/hub/models--moonshotai--Kimi-K2.6/x",
        "kimik2.6",
    ):
        assert matching_model(stated) == "kimi-k2.6"
    assert matching_model("moonshotai/Kimi-K2.6-Base") is None
    path = write(changed("vllm_serve.json", model_id="acme/Other-1", tokenizer_id="acme/Other-1"))
    ran = run_cli("import", "bench", path)
    assert ran.code == 2
    assert "acme/Other-1" in ran.err
    assert "--model" in ran.err
    assert run_cli("import", "bench", path, "--model", "kimi-k2.6").code == 0


def test_a_gpu_is_matched_by_the_words_of_its_name() -> None:
    assert matching_hardware("rtx6000pro", DEFAULT_HARDWARE) == DEFAULT_HARDWARE
    assert matching_hardware("h200", DEFAULT_HARDWARE) == "h200-sxm-x8"
    assert matching_hardware("mi355x", DEFAULT_HARDWARE) is None


def test_a_flag_may_supply_but_not_contradict(run_cli: RunCli) -> None:
    ran = run_cli("import", "bench", DATA / "sglang_serving.jsonl", "--tp", 8)
    assert ran.code == 2
    assert "--tp: 8 was given, 2, which" in ran.err
    assert run_cli("import", "bench", DATA / "sglang_serving.jsonl", "--tp", 2).code == 0
    (run,) = imported(DATA / "vllm_serve_old.json", tp=4, pp=2)
    assert (run.plan.tp, run.plan.pp) == (4, 2)
    assert {"plan.tp", "plan.pp"} <= set(run.assumed)


def test_role_tolerance_and_id_are_the_callers(run_cli: RunCli) -> None:
    flags = ("--role", "calibration", "--tolerance", "0.3", "--id", "box7")
    ran = run_cli("import", "bench", DATA / "inferencex_list.json", "--json", *flags)
    runs = ran.json["runs"]["run"]
    assert [run["id"] for run in runs] == ["box7-tp8-c8", "box7-tp8-c32"]
    assert {run["role"] for run in runs} == {"calibration"}
    assert {value for run in runs for value in run["tolerance"].values()} == {0.3}
    assert run_cli("import", "bench", DATA / "inferencex.json", "--tolerance", 2).code == 2


def test_several_files_give_one_file_and_no_id_twice(run_cli: RunCli) -> None:
    ran = run_cli("import", "bench", DATA / "inferencex.json", DATA / "inferencex.json", "--json")
    assert [run["id"] for run in ran.json["runs"]["run"]] == ["inferencex-tp2-pp4-c64", "inferencex-tp2-pp4-c64-2"]


@given(acceptance=st.floats(0.05, 0.98), drafts=st.integers(1, 7))
def test_an_accepted_length_becomes_the_acceptance_that_gives_it(acceptance: float, drafts: int) -> None:
    length = EngineSettings(speculative_acceptance=(acceptance,) * drafts).tokens_per_step
    assert acceptance_of(length, drafts) == pytest.approx((acceptance,) * drafts, abs=1e-3)


def test_data_parallelism_is_attention_or_servers_in_every_version() -> None:
    assert plan_of({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}) == {"tp": 8, "dp_attention": True}
    assert plan_of({"tp_size": 8, "dp_size": 1, "attn_dp_size": 8})["dp_attention"]
    assert plan_of({"tp_size": 4, "dp_size": 2, "enable_dp_attention": False}) == {"tp": 4, "replicas": 2}
    assert plan_of(plain({"--tensor-parallel-size": "8", "enable-expert-parallel": "true"})) == {"tp": 8, "ep": 8}


def test_graphs_are_off_in_every_versions_words() -> None:
    off = (
        {"cuda_graph_config": {"decode": {"backend": "disabled"}}},
        {"disable_cuda_graph": True},
        {"enforce_eager": "True"},
    )
    assert [engine_of(arguments)["cuda_graph"] for arguments in off] == [False] * 3
    assert "cuda_graph" not in engine_of({})


def test_the_first_versions_of_aiperf_had_their_metrics_one_level_down(write: Write) -> None:
    document = first_line("aiperf.json")
    records = {key: value for key, value in document.items() if isinstance(value, dict) and "unit" in value}
    records["ttft"] = records.pop("time_to_first_token")
    (run,) = imported(write(json.dumps({"records": records, "input_config": document["input_config"]})))
    (same,) = imported(DATA / "aiperf.json")
    assert run.measured == same.measured


def test_a_tp_group_too_small_for_the_weights_had_stages(write: Write) -> None:
    (run,) = imported(write(changed("vllm_serve.json", tensor_parallel_size="2")))
    assert (run.plan.tp, run.plan.pp) == (2, 4)
    assert "plan.pp" in run.assumed
    (whole,) = imported(write(changed("vllm_serve.json", tensor_parallel_size="8")))
    assert (whole.plan.tp, whole.plan.pp) == (8, 1)


def test_weights_that_no_page_states_are_added_up(write: Write) -> None:
    """671 GB of DeepSeek-V3 on four of eight 141 GB GPUs: two stages, though the profile names no checkpoint size."""
    path = write(changed("vllm_serve.json", tensor_parallel_size="4"))
    (run,) = imported(path, model="deepseek-v3", hardware="h200-sxm-x8")
    assert (run.plan.tp, run.plan.pp) == (4, 2)
