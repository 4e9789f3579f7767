"""A trace is read as what it is, in bounded memory, and refused with file and line where it is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipesim.errors import ProfileError
from pipesim.traces import BLOCK_TOKENS, PROGRESS_ROWS, Trace, read_trace
from tests.conftest import RunCli

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,374,44
2023-11-16 18:17:04.0319600,396,109
2023-11-17 00:00:00.0000001,879,55
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 3000, "input_length": 1300, "output_length": 26, "hash_ids": [46, 47, 49]},
    {"timestamp": 3000, "input_length": 1024, "output_length": 1, "hash_ids": [46, 47]},
    {"timestamp": 4500, "input_length": 700, "output_length": 9, "hash_ids": [50, 47]},
]


def written(folder: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def columns(trace: Trace) -> tuple[list[int], list[int], list[int]]:
    return trace.arrival_ps.tolist(), trace.input_len.tolist(), trace.output_len.tolist()


# --- what is understood


@pytest.mark.parametrize(
    "header",
    [
        "{output},{time},{input}",
        "id,{input},{output},{time}",
        "{time}, {input}, {output}, note",
    ],
)
@pytest.mark.parametrize(
    "names",
    [
        ("arrival_s", "input_len", "output_len"),
        ("Timestamp", "input_length", "output_length"),
        ("time", "prompt_tokens", "completion_tokens"),
        ("arrival", "ContextTokens", "GeneratedTokens"),
        ("Timestamp", "Request tokens", "Response tokens"),
    ],
)
def test_csv_columns_are_found_by_name_in_any_order(tmp_path: Path, header: str, names: tuple[str, str, str]) -> None:
    line = header.format(time=names[0], input=names[1], output=names[2])
    rows = [("7.5", "100", "9"), ("8", "1", "1"), ("8.0", "20", "300")]
    body = [header.format(time=time, input=prompt, output=answer) for time, prompt, answer in rows]
    trace = read_trace(written(tmp_path, "\n".join([line, *body])))
    assert columns(trace) == ([0, 500 * 10**9, 500 * 10**9], [100, 1, 20], [9, 1, 300])


def test_the_azure_trace_is_read_to_the_tenth_of_a_microsecond(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE))
    assert trace.form == "Azure"
    assert columns(trace) == ([0, 52 * 10**9, 20_576_020_040_100 * 10**3], [374, 396, 879], [44, 109, 55])


def test_dates_with_a_zone_are_read_as_points_in_time(tmp_path: Path) -> None:
    text = "time,input_len,output_len\n2024-05-10 00:00:00.5+00:00,1,1\n2024-05-10 02:00:01+02:00,1,1\n"
    assert read_trace(written(tmp_path, text)).arrival_ps.tolist() == [0, 500 * 10**9]


def test_the_mooncake_trace_counts_milliseconds(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, json_lines(MOONCAKE)))
    assert columns(trace) == ([0, 3 * 10**12, 3 * 10**12, 45 * 10**11], [1300, 1300, 1024, 700], [52, 26, 1, 9])
    assert trace.cached_len.tolist() == [0, 0, 0, 0], "without a prefix cache nothing is cached"


def test_json_lines_with_other_names_count_seconds(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"arrival_s": 1.5, "prompt_tokens": 5, "output_len": 6},
        {"output_len": 3, "arrival_s": 2, "prompt_tokens": 7},
    ]
    assert columns(read_trace(written(tmp_path, json_lines(rows)))) == ([0, 500 * 10**9], [5, 7], [6, 3])


def test_leading_blocks_seen_before_are_cached_and_one_token_is_always_prefilled(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, json_lines(MOONCAKE)), prefix_cache=True)
    # The third prompt is two whole known blocks; the fourth has a known block behind a new one.
    assert trace.cached_len.tolist() == [0, 2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS - 1, 0]


def test_num_prompts_and_duration_cut_a_trace_and_look_no_further(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE + "half a row")
    assert len(read_trace(path, most=2)) == 2
    assert len(read_trace(path, duration_s=1.0)) == 2
    assert len(read_trace(path, most=1, duration_s=1.0)) == 1


def test_a_trace_is_replayed_request_by_request(run_cli: RunCli, tmp_path: Path) -> None:
    path, out = written(tmp_path, json_lines(MOONCAKE), "trace.jsonl"), tmp_path / "requests.csv"
    asked = ("predict", "--tp", 8, "--trace", path, "--prefix-cache", "--context-len", 10, "--requests", out)
    ran = run_cli(*asked, "--json")
    assert (ran.code, ran.json["workload"]["trace"], ran.json["workload"]["seeds"]) == (0, str(path), 1)
    rows = [line.split(",") for line in out.read_text(encoding="utf-8").splitlines()[1:]]
    assert [float(row[2]) for row in rows] == [0.0, 3.0, 3.0, 4.5]
    assert [[int(n) for n in row[6:]] for row in rows] == [[1300, 52, 10], [276, 26, 1034], [1, 1, 1033], [700, 9, 10]]
    screen = " ".join(run_cli(*asked).out.split())
    assert "trace trace.jsonl (JSON lines, times in ms), 4 requests of 1,081 in, 22 out" in screen
    assert "seeds" not in screen


# --- what is refused

HEAD = "arrival_s,input_len,output_len\n"
ROW = "1,5,6\n"


@pytest.mark.parametrize(
    ("content", "line", "given_", "wanted"),
    [
        (HEAD + "2,5,6\n1.5,5,6\n", "line 3: ", "a time 0.5 s before the line above", "rising times"),
        (HEAD + "-1,5,6\n", "line 2: ", '"-1"', "an arrival time of at least 0"),
        (HEAD + ROW + "nan,5,6\n", "line 3: ", '"nan"', "an arrival time of at least 0"),
        (HEAD + "inf,5,6\n", "line 2: ", '"inf"', "an arrival time of at least 0"),
        (HEAD + "soon,5,6\n", "line 2: ", '"soon"', "an arrival time of at least 0"),
        (HEAD + "1_0,5,6\n", "line 2: ", '"1_0"', "an arrival time of at least 0"),
        (HEAD + ROW + "1e9,5,6\n", "line 3: ", "999,999,999 s after the first", "at most 9,000,000 s"),
        (HEAD + "1,0,6\n", "line 2: ", 'input length "0"', "a whole number of tokens from 1 to 10,000,000"),
        (HEAD + "1,5,0\n", "line 2: ", 'output length "0"', "a whole number of tokens"),
        (HEAD + "1,-5,6\n", "line 2: ", 'input length "-5"', "a whole number of tokens"),
        (HEAD + "1,5.5,6\n", "line 2: ", 'input length "5.5"', "a whole number of tokens"),
        (HEAD + "1,nan,6\n", "line 2: ", 'input length "nan"', "a whole number of tokens"),
        (HEAD + "1,5,99999999999999\n", "line 2: ", 'output length "99999999999999"', "a whole number of tokens"),
        (HEAD + "1,5\n", "line 2: ", "2 columns", "the 3 columns of the header"),
        (HEAD + '1,5,"6\n', "line 2: ", "unexpected end of data", "a row of CSV"),
        ("arrival_s,output_len\n1,5\n", "line 1: ", "no column for the input length", '"input_len"'),
        ("input_len,output_len\n1,5\n", "line 1: ", "no column for the arrival time", '"arrival_s"'),
        ("time,time,input_len,output_len\n", "line 1: ", '"time" twice', "one column for the arrival time"),
        ("1,5,6\n2,5,6\n", "line 1: ", "no column for the arrival time", "a header"),
        ("", "", "an empty file", "a trace with a request per line"),
        (HEAD, "", "no request", "at least one request"),
        (b"\x1f\x8b\x08\x00 packed", "line 1: ", "bytes that are no text", "a trace in CSV or JSON lines"),
        (HEAD.encode() + b"1,5,\xff\n", "line 2: ", "bytes that are no text", "a trace in CSV or JSON lines"),
        (HEAD.encode() + b"1,\x005,6\n", "line 2: ", "bytes that are no text", "a trace in CSV or JSON lines"),
        (AZURE + "2023-11-16 18:17:04,1,1\n", "line 5: ", "before the line above", "rising times"),
        (AZURE + "2023-13-16 18:17:04,1,1\n", "line 5: ", '"2023-13-16 18:17:04"', "a date that exists"),
        (AZURE + "12.5,1,1\n", "line 5: ", '"12.5"', "a date such as 2023-11-16 18:17:03.9799600"),
        ('{"timestamp": 1, "input_length": 5}\n', "line 1: ", "no column for the output length", '"output_len"'),
        (json_lines(MOONCAKE) + '{"timestamp": 5000, "inp', "line 5: ", "half a line", "a JSON object"),
        (json_lines(MOONCAKE) + "[1, 2]\n", "line 5: ", '"[1, 2]"', "a JSON object"),
        (json_lines(MOONCAKE) + '{"timestamp": 5000}\n', "line 5: ", "nothing", 'the key "input_length"'),
        (json_lines(MOONCAKE[::-1]), "line 2: ", "a time 1.5 s before the line above", "rising times"),
        (json_lines([{**MOONCAKE[0], "timestamp": "x"}]), "line 1: ", '"x"', "an arrival time of at least 0"),
        (json_lines([{**MOONCAKE[0], "timestamp": -3}]), "line 1: ", '"-3"', "an arrival time of at least 0"),
        (json_lines([{**MOONCAKE[0], "timestamp": float("nan")}]), "line 1: ", '"nan"', "an arrival time of"),
        (json_lines([{**MOONCAKE[0], "timestamp": True}]), "line 1: ", '"True"', "an arrival time of at least 0"),
        (json_lines([{**MOONCAKE[0], "timestamp": 10**400}]), "line 1: ", '"1000', "an arrival time of at least 0"),
        (json_lines([{**MOONCAKE[0], "input_length": 1.5}]), "line 1: ", 'input length "1.5"', "a whole number"),
        (json_lines([{**MOONCAKE[0], "output_length": True}]), "line 1: ", 'output length "True"', "a whole number"),
        (json_lines([{**MOONCAKE[0], "output_length": None}]), "line 1: ", 'output length "None"', "a whole number"),
    ],
)
def test_a_bad_trace_is_refused_with_file_line_given_and_wanted(
    run_cli: RunCli, tmp_path: Path, content: str | bytes, line: str, given_: str, wanted: str
) -> None:
    path = written(tmp_path, content)
    ran = run_cli("predict", "--tp", 8, "--trace", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {path}: {line}")
    assert given_ in ran.err
    assert " was given, " in ran.err
    assert wanted in ran.err.partition(" was given, ")[2]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"line 2: a line of more than 4,194,304 bytes"):
        read_trace(written(tmp_path, HEAD + "9" * 5_000_000))


@pytest.mark.parametrize("name", [".", "none.csv"])
def test_a_trace_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError, match="a trace that can be read is wanted"):
        read_trace(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (AZURE, "a CSV trace was given, a trace with hash_ids for --prefix-cache is wanted"),
        (json_lines([{**MOONCAKE[0], "hash_ids": None}]), "line 1: no hash_ids was given"),
        (json_lines([{**MOONCAKE[0], "hash_ids": [[1]]}]), "line 1: hash_ids"),
    ],
)
def test_a_prefix_cache_needs_block_numbers(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ProfileError) as refusal:
        read_trace(written(tmp_path, content), prefix_cache=True)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        (["--input-len", 5], "--input-len"),
        (["--output-len", 5], "--output-len"),
        (["--random-range-ratio", 0.5], "--random-range-ratio"),
        (["--submit-spacing", "1 ms"], "--submit-spacing"),
        (["--request-rate", 5], "--request-rate"),
        (["--burstiness", 2], "--burstiness"),
        (["--num-prompts", 0], "--num-prompts"),
        (["--prefix-cache", "--prefix-cache-hit-rate", 0.5], "--prefix-cache-hit-rate"),
        (["--warm-up", 4], "--warm-up"),
    ],
)
def test_a_flag_that_contradicts_a_trace_is_refused(
    run_cli: RunCli, tmp_path: Path, flags: list[object], flag: str
) -> None:
    ran = run_cli("predict", "--tp", 8, "--trace", written(tmp_path, json_lines(MOONCAKE)), *flags)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {flag}: ")


# --- size

READ = """
import resource, sys
from pathlib import Path
from pipesim.traces import read_trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace = read_trace(Path(sys.argv[1]))
print(len(trace), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_million_rows_are_read_in_seconds_and_in_40_bytes_each(tmp_path: Path) -> None:
    path = tmp_path / "million.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        file.writelines(f"{n / 64},{1 + n % 4_000},{1 + n % 300}\n" for n in range(10**6))
    command = [sys.executable, "-c", READ, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    rows, kibibytes = map(int, ran.stdout.split())
    assert rows == 10**6
    assert kibibytes * 1024 < 40 * rows


def test_a_long_trace_tells_how_far_it_is(tmp_path: Path) -> None:
    heard: list[int] = []
    rows = 2 * PROGRESS_ROWS + 1
    read_trace(written(tmp_path, HEAD + ROW * rows), progress=heard.append)
    assert heard == [PROGRESS_ROWS, 2 * PROGRESS_ROWS]
