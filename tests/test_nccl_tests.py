"""What nccl-tests printed is read to the digit, and what cannot be believed is refused at its line."""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import ProfileError, UsageError
from pipesim.importers.nccl_tests import bus_factor, read_nccl_tests

DATA = Path(__file__).parent / "data"
TWO = (DATA / "nccl_all_reduce_2.txt").read_text(encoding="utf-8")
FOUR = (DATA / "nccl_all_gather_4.txt").read_text(encoding="utf-8")
EIGHT = (DATA / "nccl_two_tests_8.txt").read_text(encoding="utf-8")
JSON = (DATA / "nccl_all_gather_4.json").read_text(encoding="utf-8")

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: str | bytes) -> Path:
        path = tmp_path / "measured"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to_file


def refusal(path: Path, **more: Any) -> ProfileError:
    with pytest.raises(ProfileError) as refused:
        read_nccl_tests(path, **more)
    return refused.value


def without(text: str, pattern: str) -> str:
    return "\n".join(line for line in text.split("\n") if not re.search(pattern, line))


def test_two_gpus_named_by_the_command_line() -> None:
    (found,) = read_nccl_tests(DATA / "nccl_all_reduce_2.txt")
    assert (found.op, found.ranks, found.dtype, found.redop, found.version) == ("all_reduce", 2, "float", "sum", "")
    assert found.points == ((16384, 8.82e-6), (131072, 15.22e-6), (1048576, 66.48e-6), (8388608, 476.54e-6))
    assert found.in_place_points == ((16384, 8.70e-6), (131072, 15.16e-6), (1048576, 66.77e-6), (8388608, 479.70e-6))


def test_four_gpus_named_by_the_header() -> None:
    (found,) = read_nccl_tests(DATA / "nccl_all_gather_4.txt")
    assert (found.op, found.ranks, found.dtype, found.redop) == ("all_gather", 4, "bfloat16", "none")
    assert found.version == "nccl-tests 2.17.1, NCCL 2.27.3"
    assert found.points[0] == (16384, 12.88e-6)
    assert found.in_place_points[-1] == (8388608, 414.17e-6)


def test_several_tests_in_one_file() -> None:
    reduced, sent = read_nccl_tests(DATA / "nccl_two_tests_8.txt")
    assert (reduced.op, reduced.ranks, len(reduced.in_place_points)) == ("all_reduce", 8, 4)
    assert (sent.op, sent.ranks, sent.points[0]) == ("sendrecv", 8, (16384, 11.61e-6))


def test_in_place_times_that_nccl_tests_never_checks_are_left_out_unless_allowed() -> None:
    assert read_nccl_tests(DATA / "nccl_two_tests_8.txt")[1].in_place_points == ()
    allowed = read_nccl_tests(DATA / "nccl_two_tests_8.txt", allow_unchecked=True)[1]
    assert allowed.in_place_points[0] == (16384, 11.44e-6)


def test_json() -> None:
    (found,) = read_nccl_tests(DATA / "nccl_all_gather_4.json")
    assert (found.op, found.ranks, found.dtype) == ("all_gather", 4, "float")
    assert found.version == "nccl-tests 2.17.1, NCCL 2.27.3"
    assert found.points == ((131072, 84.79e-6), (1048576, 201.5e-6))
    assert found.in_place_points == ((131072, 83.9e-6), (1048576, 203.25e-6))


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\n".join(f"[1,0]<stdout>:{line}" for line in text.split("\n")),
        lambda text: "\n".join(f"[prterun-box-7@1,0]<stdout>: {line}" for line in text.split("\n")),
        lambda text: "\n".join(f"0: {line}" for line in text.split("\n")),
        lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.split("\n")),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("#  Rank  0", "box:1:1 [0] NCCL INFO Channel 00/02\n#  Rank  0"),
        lambda text: text.replace(
            "       16384 ", "           0             0  half none -1 0.3 0 0 0 0.3 0 0 0\n 16384 ", 1
        ),
    ],
    ids=["CRLF", "mpirun", "prterun", "srun", "colours", "BOM", "log lines", "empty messages"],
)
def test_what_surrounds_the_output_does_not_matter(write: Write, dress: Callable[[str], str]) -> None:
    assert read_nccl_tests(write(dress(EIGHT))) == read_nccl_tests(DATA / "nccl_two_tests_8.txt")


def test_swapped_halves_are_told_by_the_heading(write: Write) -> None:
    swapped = EIGHT.replace("out-of-place", "x").replace("in-place", "out-of-place").replace("x ", "in-place ")
    (plain, _), swapped_text = read_nccl_tests(DATA / "nccl_two_tests_8.txt"), swapped.split("# nccl-tests")[1]
    (found,) = read_nccl_tests(write("# nccl-tests" + swapped_text))
    assert (found.points, found.in_place_points) == (plain.in_place_points, plain.points)


def test_ranks_and_names_are_inferred_from_the_columns(write: Write) -> None:
    bare = without(EIGHT.split("# nccl-tests")[1], r"Rank|Collective|nThread")
    assert [(m.op, m.ranks) for m in read_nccl_tests(write(bare))] == [("all_reduce", 8)]
    bare = without(FOUR, "Rank|Collective|nThread")
    assert "give op" in str(refusal(write(bare)))
    assert [(m.op, m.ranks) for m in read_nccl_tests(write(bare), op="all_gather")] == [("all_gather", 4)]


def test_ranks_of_sendrecv_cannot_be_inferred(write: Write) -> None:
    bare = without("# nccl-tests" + EIGHT.split("# nccl-tests")[2], "Rank")
    assert "give ranks" in str(refusal(write(bare)))
    assert read_nccl_tests(write(bare), ranks=8)[0].ranks == 8


def test_an_older_table_with_the_error_column(write: Write) -> None:
    older = without(TWO, "nothing").replace("#wrong", "error").replace("      0 ", "  2e-07 ")
    assert read_nccl_tests(write(older)) == read_nccl_tests(DATA / "nccl_all_reduce_2.txt")
    assert "Out of bounds" in str(refusal(write(without(older, "Out of bounds"))))


def test_types_in_one_table_are_kept_apart(write: Write) -> None:
    row = ROW.replace("32768     float", "65536      half")
    both = read_nccl_tests(write(TWO.replace("# Out of", row + "\n# Out of")))
    assert [(m.dtype, len(m.points)) for m in both] == [("float", 4), ("half", 1)]


def test_factors() -> None:
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 4) == bus_factor("alltoall", 4) == bus_factor("reduce_scatter", 4) == 0.75
    assert bus_factor("sendrecv", 8) == 1.0


ROW = re.search(r"\n( +131072 .*)\n", TWO).group(1)  # type: ignore[union-attr]
UNCHECKED = re.sub(r" 0(?=\s)", " N/A", ROW + "\n").rstrip()
BROKEN = {
    "no closing line": (without(TWO, "Avg bus"), "line 16", "cut off"),
    "cut closing line": (TWO[: TWO.index("Avg bus bandwidth") + 22], "line 16", "cut off"),
    "cut before its rows": (TWO[: TWO.index("# Using")], "line 3", "cut off"),
    "half row": (TWO[: TWO.index(ROW) + 60], "line 12", "half or broken row"),
    "next test too early": (without(TWO, "Avg bus") + TWO, "line 18", "cut off"),
    "unchecked": (TWO.replace(ROW, UNCHECKED), "line 12", "-c 1"),
    "wrong values": (TWO.replace(ROW, ROW[:-1] + "7"), "line 12: in-place", "7 wrong values"),
    "out of bounds": (TWO.replace(": 0 OK", ": 3 FAILED"), "line 15", "3 values out of bounds"),
    "zero time": (TWO.replace("15.22", " 0.00"), "line 12: out-of-place", "above zero"),
    "negative time": (TWO.replace("15.16", "-5.16"), "line 12: in-place", "above zero"),
    "no number": (TWO.replace("15.16", "  nan"), "line 12", '"nan"'),
    "negative size": (TWO.replace("  131072", " -131072"), "line 12", "-131072"),
    "no rows": (without(TWO, r"^ +\d"), "line 2", "without rows"),
    "no headings": (without(TWO, "algbw"), "line 10", "without column headings"),
    "one heading": (without(TWO, "out-of-place"), "line 8", "in-place"),
    "other units": (TWO.replace("(us)", "(ms)"), "line 10", "(ms)"),
    "CPU times": (TWO.replace(" time ", " cputime "), "line 9", "-C"),
    "busbw of other ranks": (TWO.replace(" 8.61      0", " 9.99      0"), "line 12", "contradicts itself"),
    "algbw of another time": (TWO.replace("15.22", "25.22"), "line 12: out-of-place", "mixed up"),
    "ranks twice": (TWO.replace("# Using", "#  Rank  0 x\n#  Rank  1 x\n# Using"), "line 2", "MPI=1"),
    "other program": (TWO.replace("all_reduce_perf", "all_gather_perf"), "line 11", "contradicts itself"),
    "noise before a row": (TWO.replace(ROW, "NCCL INFO x" + ROW), "line 12", "half or broken row"),
    "other text": ("hello\nworld\n", "line 2", "no nccl-tests table"),
    "empty": ("", "measured", "empty file"),
    "blank": (" \n\n", "measured", "empty file"),
    "binary": (b"\x7fELF\xff\xfe", "measured", "binary"),
    "zero bytes": (b"a\0b", "measured", "binary"),
}

CRASHES = [
    "box: Test NCCL failure common.cu:1005 'unhandled system error'",
    "NCCL failure common.cu:12",
    "box: Test CUDA failure common.cu:892 'invalid device ordinal'",
    "Cuda failure 2",
    "Segmentation fault (core dumped)",
    "cudaMalloc: out of memory",
]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_text_is_refused_at_its_line(write: Write, name: str) -> None:
    content, where, why = BROKEN[name]
    told = str(refusal(write(content)))
    assert f"{where}:" in told
    assert why in told


@pytest.mark.parametrize("line", CRASHES)
def test_crashed_runs_are_refused(write: Write, line: str) -> None:
    assert refusal(write(TWO.replace(ROW, ROW[:50] + "\n" + line))).key == "line 13"
    assert refusal(write(TWO + line)).key == f"line {TWO.count(chr(10)) + 1}"


def test_unchecked_results_can_be_allowed(write: Write) -> None:
    path = write(TWO.replace(ROW, UNCHECKED))
    assert read_nccl_tests(path, allow_unchecked=True) == read_nccl_tests(DATA / "nccl_all_reduce_2.txt")


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(JSON)
    change(document)
    return json.dumps(document)


BROKEN_JSON = {
    "cut off": (JSON[:900], "cut-off JSON"),
    "other tool": ('{"model": "x", "results": {}}', "another tool"),
    "no results": (edited(lambda d: d.update(results=[])), "without rows"),
    "zero time": (edited(lambda d: d["results"][0]["in_place"].update(time=0)), "results[0].in_place"),
    "no time": (edited(lambda d: d["results"][0]["in_place"].pop("time")), "results[0].in_place.time"),
    "no size": (edited(lambda d: d["results"][1].pop("size")), "results[1].size"),
    "wrong": (edited(lambda d: d["results"][1]["out_of_place"].update(nwrong=4)), "4 wrong values"),
    "unchecked": (edited(lambda d: d["results"][1]["out_of_place"].update(nwrong="N/A")), "-c 1"),
    "no half": (edited(lambda d: d["results"][1].update(out_of_place=3)), "results[1].out_of_place"),
    "bounds": (edited(lambda d: d.update(out_of_bounds={"out_of_bounds": 2, "okay": False})), "2 values"),
    "ranks": (edited(lambda d: d["devices"].pop()), "contradicts itself"),
    "NaN": (JSON.replace("84.79,", "NaN,"), "results[0].out_of_place.time"),
    "too large": (JSON.replace("84.79,", "1e999999999999999999999,"), "broken JSON"),
}


@pytest.mark.parametrize("name", BROKEN_JSON)
def test_broken_json_is_refused(write: Write, name: str) -> None:
    content, why = BROKEN_JSON[name]
    assert why in str(refusal(write(content)))


def test_bad_arguments_and_files() -> None:
    path = DATA / "nccl_all_reduce_2.txt"
    with pytest.raises(UsageError):
        read_nccl_tests(path, op="all_reduced")
    with pytest.raises(UsageError):
        read_nccl_tests(path, ranks=0)
    assert "2 ranks" in str(refusal(path, ranks=4))
    assert "all_reduce" in str(refusal(path, op="sendrecv"))
    assert "No such file" in str(refusal(DATA / "nccl_none.txt"))


times = st.integers(100, 9_999_999).map(lambda hundredths: hundredths / 100)
HEAD, TAIL = TWO[: TWO.index("       16384")].split("\n", 1)[1], TWO[TWO.index("# Out of") :]


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv"]),
    st.integers(2, 16),
    st.lists(st.tuples(st.integers(1, 2**20), times, times), min_size=1, max_size=12),
)
def test_rendered_rows_read_back_to_the_printed_digits(
    op: str, ranks: int, given_rows: list[tuple[int, float, float]]
) -> None:
    shares = ranks if op in ("all_gather", "reduce_scatter", "alltoall") else 1
    lines = []
    for count, *both in given_rows:
        size = count * 4 * shares
        halves = [
            f"{t:7.2f}  {size / t / 1e3:6.2f}  {size / t / 1e3 * bus_factor(op, ranks):6.2f}      0" for t in both
        ]
        lines.append(f"{size:>12}  {count:>12}     float     sum      -1  {'  '.join(halves)}")
    devices = "".join(f"#  Rank {rank:2d} Group  0\n" for rank in range(ranks))
    head = (
        without(HEAD, "Rank").replace("nGpus 2", "nGpus 1").replace("# Using devices\n", f"# Using devices\n{devices}")
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.txt"
        path.write_text(f"{head}{chr(10).join(lines)}\n{TAIL}", encoding="utf-8")
        (found,) = read_nccl_tests(path, op=op, allow_unchecked=True)
    assert (found.op, found.ranks) == (op, ranks)
    sizes = [count * 4.0 * shares for count, _, _ in given_rows]
    assert found.points == tuple((s, float(f"{o:.2f}e-6")) for s, (_, o, _) in zip(sizes, given_rows, strict=True))
    within = tuple((s, float(f"{i:.2f}e-6")) for s, (_, _, i) in zip(sizes, given_rows, strict=True))
    assert found.in_place_points == within
