"""A profile or a run file that pipesim writes reads back to what was written."""

import tomllib
from pathlib import Path

import pytest
import tomlkit
from pydantic import BaseModel

from pipesim.measured import Runs
from pipesim.profiles.store import FOLDERS, SCHEMAS, available, document_of, read_toml, validated

SHIPPED = [(kind, path) for kind in FOLDERS for path in available(kind).values()]
KINDS: dict[str, type[BaseModel]] = {**SCHEMAS, "runs": Runs}


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=[path.stem for _, path in SHIPPED])
def test_every_shipped_document_survives_being_written(kind: str, path: Path) -> None:
    document = read_toml(path)
    if "extends" in document:
        pytest.skip("it is laid over another, which the loader does")
    model = validated(KINDS[kind], document, path)
    assert validated(KINDS[kind], tomllib.loads(tomlkit.dumps(document_of(model))), path) == model
