"""`-o FILE`: the answer in the form of the file's suffix, whole or not at all."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunCli

ASKED = ["predict", "--tp", 2, "--pp", 4, "--concurrency", 4, "--num-prompts", 4, "--output-len", 6, "--seeds", 1]
RUNS = ["validate", ROOT / "measured_runs" / "founding.toml", "--seeds", 2]
BEGINS = {
    ".png": b"\x89PNG",
    ".svg": b"<?xml",
    ".pdf": b"%PDF",
    ".json": b"{",
    ".csv": b"schema_version,",
    ".md": b"###",
}


@pytest.mark.parametrize("suffix", BEGINS)
def test_a_prediction_is_written_in_the_form_of_the_suffix_beside_the_screen(
    run_cli: RunCli, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"answer{suffix.upper()}"
    ran = run_cli(*ASKED, "-o", file)
    assert ran.code == 0
    assert file.read_bytes().startswith(BEGINS[suffix])
    assert list(tmp_path.iterdir()) == [file]
    assert ran.out == run_cli(*ASKED).out
    assert str(file) in ran.err


def test_csv_and_json_hold_the_numbers_of_the_screen(run_cli: RunCli, tmp_path: Path) -> None:
    answer = run_cli(*ASKED, "--json", "-o", tmp_path / "a.json").json
    run_cli(*ASKED, "-o", tmp_path / "a.csv")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == answer
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["metrics.ttft_s.p99"]) == answer["metrics"]["ttft_s"]["p99"]
    assert float(row["interval.output_tokens_per_s.low"]) == answer["interval"]["output_tokens_per_s"][0]
    assert row["deployment.layer_partition"] == "15,15,15,16"
    assert row["binding_limit"] == answer["binding_limit"]


def test_a_validation_is_written_too_and_its_verdict_stays(run_cli: RunCli, tmp_path: Path) -> None:
    verdict = run_cli(*RUNS, "--json")
    for suffix in (".csv", ".md", ".json", ".png"):
        assert run_cli(*RUNS, "-o", tmp_path / f"v{suffix}").code == verdict.code
    with (tmp_path / "v.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [row["id"] for row in verdict.json["runs"]]
    assert [float(row["interval_high"]) for row in rows] == [row["interval"][1] for row in verdict.json["runs"]]
    assert (tmp_path / "v.md").read_text(encoding="utf-8").count("\n") == len(rows) + 2
    assert (tmp_path / "v.png").read_bytes().startswith(BEGINS[".png"])


def test_an_explanation_is_written_too(run_cli: RunCli, tmp_path: Path) -> None:
    asked = ["explain", *ASKED[1:-2]]
    answer = run_cli(*asked, "--json", "-o", tmp_path / "e.csv").json
    with (tmp_path / "e.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["change"], float(row["speedup"])) for row in rows] == [
        (change["change"], change["speedup"]) for change in answer["changes"]
    ]
    assert run_cli(*asked, "-o", tmp_path / "e.svg").code == 0
    assert (tmp_path / "e.svg").read_bytes().startswith(BEGINS[".svg"])


@pytest.mark.parametrize("command", [ASKED, RUNS, ["explain"], ["report"]], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("answer.xyz", "ends in"),
        ("answer", "ends in"),
        ("no/such/folder/answer{}", "no folder"),
        ("folder{}", "folder"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_the_work(
    run_cli: RunCli, tmp_path: Path, command: list[object], name: str, said: str
) -> None:
    suffix = ".html" if command == ["report"] else ".png"
    (tmp_path / f"folder{suffix}").mkdir()
    file = tmp_path / name.format(suffix)
    ran = run_cli(*command, "-o", file)
    assert ran.code == 2
    assert ran.out == ""
    assert str(file) in ran.err
    assert said in ran.err
    assert [path.name for path in tmp_path.iterdir()] == [f"folder{suffix}"]


def test_a_full_disk_leaves_the_old_file_whole(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    file.write_text("old", encoding="utf-8")

    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as half:
            half.write(content[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    ran = run_cli(*ASKED, "-o", file)
    assert ran.code == 2
    assert "No space left on device" in ran.err
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("a.json", "old")]


def test_an_answer_without_a_picture_loads_no_matplotlib(tmp_path: Path) -> None:
    asked = [*map(str, ASKED), "-o", str(tmp_path / "a.csv")]
    code = f"import sys, pipesim.cli; sys.argv[1:] = {asked!r}\ntry: pipesim.cli.main()\nexcept SystemExit: pass\n"
    code += "print(*sorted({'matplotlib', 'jinja2'} & set(sys.modules)), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stderr.splitlines()[-1] == ""
