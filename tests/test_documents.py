"""A profile or a run file that pipesim writes reads back to what was written."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomlkit
from pydantic import BaseModel

from pipesim.profiles.store import available, document_of, load_hardware, load_model, validated
from pipesim.runs import load_runs

LOADERS: dict[str, Callable[[Path], BaseModel]] = {
    "hardware": lambda path: load_hardware(str(path)),
    "model": lambda path: load_model(str(path)),
    "runs": lambda path: load_runs([path])[0],
}
SHIPPED = [(kind, path) for kind in LOADERS for path in available(kind).values()]


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=[path.stem for _, path in SHIPPED])
def test_every_shipped_document_survives_being_written(kind: str, path: Path) -> None:
    model = LOADERS[kind](path)
    assert validated(type(model), tomllib.loads(tomlkit.dumps(document_of(model))), path) == model
