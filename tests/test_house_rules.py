"""The rules that the source keeps: style, types, and which module may know which."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from pipesim.engines import ENGINES
from tests.conftest import ROOT

LONGEST_MODULE = 400
MOST_SOURCE_LINES = 17_750
COMMANDS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy strict": ["-m", "mypy"],
    "arrows point down": ["-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_source_passes(name: str) -> None:
    ran = subprocess.run([sys.executable, *COMMANDS[name]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_modules_stay_small() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "pipesim").rglob("*.py")}
    assert {str(path): n for path, n in lengths.items() if n > LONGEST_MODULE} == {}
    assert sum(map(lines_of_code, lengths)) < MOST_SOURCE_LINES


def lines_of_code(path: Path) -> int:
    """Returns the lines of a module that are neither blank, comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documentation |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in documentation for n, line in lines)


def test_source_raises_and_does_not_assert() -> None:
    asserting = [p for p in (ROOT / "pipesim").rglob("*.py") if "\n    assert " in p.read_text(encoding="utf-8")]
    assert asserting == []


def test_every_engine_is_named_in_its_own_file_only() -> None:
    allowed = {"sglang.py", "vllm.py", "rebatch.py", "__init__.py", "options.py", "measured.py"}
    allowed |= {"deployment.py", "engine_settings.py"}
    naming = {
        path.name
        for path in Path(ROOT / "pipesim").rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(f'"{engine}"' in line for engine in ENGINES)
    }
    assert naming <= allowed
