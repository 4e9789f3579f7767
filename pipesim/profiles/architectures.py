"""Decoders by HF `architectures[0]`, read from architectures.toml: their layers, and what their files leave unsaid."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Decoder:
    """What is known of an architecture beside its configuration; see the file for each field."""

    layers: Literal["latent", "grouped-experts", "grouped-dense"]
    model_types: Sequence[str] = ()
    multimodal: Sequence[str] = ()
    tied: bool = False
    full_attention_every: int = 0
    modules: Sequence[str] = ("mlp", "gate_proj", "gate", "shared_experts")
    note: str = ""


_FILE = tomllib.loads(Path(__file__).with_name("architectures.toml").read_text(encoding="utf-8"))
DECODERS = {name: Decoder(**entry) for name, entry in _FILE["decoders"].items()}
ARCHITECTURES = tuple(DECODERS)
"""HF `architectures[0]` that pipesim knows the layers of."""
LATENT = tuple(name for name, decoder in DECODERS.items() if decoder.layers == "latent")
GROUPED_DENSE = tuple(name for name, decoder in DECODERS.items() if decoder.layers == "grouped-dense")
MODEL_TYPES = {kind: name for name, decoder in DECODERS.items() for kind in decoder.model_types}
FLAT_MULTIMODAL = {outer: name for name, decoder in DECODERS.items() for outer in decoder.multimodal}
NESTED_DEFAULTS: dict[str, dict[str, int]] = _FILE["defaults"]
FOREIGN_KEYS: dict[str, str] = _FILE["foreign_keys"]
FOREIGN_LAYERS = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "gated_deltanet", "hybrid"}
"""Entries of `layer_types` that are no attention."""


def foreign_layers(config: Mapping[str, Any]) -> str:
    """Returns what a text model has that pipesim cannot describe, empty where it names nothing of the kind."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and (found := {str(kind) for kind in kinds} & FOREIGN_LAYERS):
        return f"layers of {', '.join(sorted(found))}"
    if config.get("use_cla") and config.get("cla_share_factor", 1) != 1:
        return "keys and values shared between layers (use_cla)"
    for key, what in FOREIGN_KEYS.items():
        value = config.get(key)
        if value and not (key == "attn_type_list" and isinstance(value, list) and set(value) == {1}):
            return what
    return ""
