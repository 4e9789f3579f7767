"""`pipesim import hf-config`: a Hugging Face config.json as a model profile."""

from pathlib import Path
from typing import Annotated

import typer

from pipesim.commands.shared import Json, Output, emit_document, import_app, note
from pipesim.cost.memory import active_parameters, model_bytes, parameters
from pipesim.profiles.hf_config import read_hf_config
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import validated


@import_app.command("hf-config")
def import_hf_config(
    config: Annotated[Path, typer.Argument(help="config.json, or the folder that it lies in.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile (default: of the model).")] = None,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Make a model profile of a Hugging Face config.json.

    Example: pipesim import hf-config ./Qwen3-30B-A3B/config.json -o model_profiles/qwen3-30b-a3b.toml
    """
    path = config / "config.json" if config.is_dir() else config
    imported = read_hf_config(path, name)
    model = validated(ModelProfile, imported.document, path)
    weights, total, active = model_bytes(model), parameters(model), active_parameters(model)
    for text in imported.notes:
        note(f"note: {text}")
    size, total_b, active_b = weights / 1e9, total / 1e9, active / 1e9
    note(f"{model.name}: {size:,.1f} GB of text weights, {total_b:,.2f} B parameters, {active_b:,.2f} B active")
    sizes = {"weights_bytes": round(weights), "parameters": total, "active_parameters": active}
    comment = f"{model.hf_id}, made from its config.json."
    emit_document(imported.document, "model", comment, output, as_json, notes=list(imported.notes), **sizes)
