"""A Hugging Face config.json as a model profile: shapes, layers with experts or windows, and how tensors are stored."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipesim.errors import ProfileError
from pipesim.files import read_text
from pipesim.profiles.architectures import (
    ARCHITECTURES,
    DECODERS,
    FLAT_MULTIMODAL,
    GROUPED_DENSE,
    LATENT,
    MODEL_TYPES,
    NESTED_DEFAULTS,
    Decoder,
    foreign_layers,
)
from pipesim.profiles.quantisation import Modules, read_quantisation

DEFAULT_ROUTING_SKEW = 0.65
ROUTING_TEXT = (
    "not measured for this model: rank exponent 0.65, in the middle of what the power-law rows of INT4 MoE kernel "
    "tables ask of Kimi K2.6 (aiconfigurator 0.12.0, rtx_pro_6000_server)"
)

PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
"""Every so many layers one attends to everything; in words, "LLLG" (EXAONE 4)."""
SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
DENSE_LAYERS_FIRST = ("first_k_dense_replace", "moe_layer_start_index", "moe_layer_num_skipped")


@dataclass(frozen=True)
class ImportedModel:
    """A model profile as a document, its `text_weights` still to be added, and what was assumed on the way."""

    document: dict[str, Any]
    notes: tuple[str, ...]


def read_hf_config(path: Path, name: str | None = None) -> ImportedModel:
    """Returns the model profile that a config.json describes.

    `name` is that of the profile; left out, it is made of the file's own `_name_or_path` or of its folder.

    Raises:
        ProfileError: for a file that is no JSON object, is of no decoder that pipesim knows, lacks a key or
            contradicts itself; the key is named.
    """
    whole = _read_json(path)
    architecture, config = _text_config(path, whole)
    reader = _Reader(path, architecture, config | _quantised_beside(path, config))
    hf_id = _hf_id(path, whole)
    return reader.profile(name or hf_id.rpartition("/")[2].lower(), hf_id, whole)


def _read_json(path: Path) -> dict[str, Any]:
    text = read_text(path, "a config.json")
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise ProfileError(path, "", f"broken or cut-off JSON ({where})", "a complete config.json") from None
    if not isinstance(document, dict):
        raise ProfileError(path, "", f"a JSON {type(document).__name__}", "an object: a model's config.json")
    return document


def _quantised_beside(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what ModelOpt wrote beside the file (hf_quant_config.json), where the file itself says nothing of it."""
    beside = path.with_name("hf_quant_config.json")
    if config.get("quantization_config") or config.get("compression_config") or not beside.is_file():
        return {}
    return {"quantization_config": {"quant_method": "modelopt"} | _read_json(beside)}


def _hf_id(path: Path, whole: Mapping[str, Any]) -> str:
    given = whole.get("_name_or_path")
    if isinstance(given, str) and given.strip("./ "):
        return given.strip("/")
    return path.stem if path.stem != "config" else path.resolve().parent.name or "model"


def _text_config(path: Path, whole: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the architecture and the configuration of the text model, which may lie inside a multimodal one."""
    names = whole.get("architectures")
    first = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    thinker = whole.get("thinker_config")
    outer = thinker if isinstance(thinker, dict) else whole
    text = outer.get("text_config") or outer.get("llm_config") or outer.get("language_config")
    if isinstance(text, dict):
        inner = text.get("architectures")
        kind = str(text.get("model_type"))
        candidates = [*(inner if isinstance(inner, list) else []), MODEL_TYPES.get(kind, ""), first]
        found = next((name for name in candidates if name in ARCHITECTURES), None)
        if found and not foreign_layers(text):
            kept = ("quantization_config", "compression_config", "tie_word_embeddings")
            said = {key: value for key, value in text.items() if value is not None or key not in kept}
            return found, NESTED_DEFAULTS.get(kind, {}) | {key: whole[key] for key in kept if key in whole} | said
    found = FLAT_MULTIMODAL.get(first, first) or MODEL_TYPES.get(str(whole.get("model_type")), "")
    foreign = foreign_layers(text if isinstance(text, dict) else whole)
    if found in ARCHITECTURES and not foreign:
        return found, whole
    if not first and not whole.get("model_type"):
        raise ProfileError(path, "architectures", "nothing", f"the name of a decoder: {', '.join(ARCHITECTURES)}")
    raise ProfileError(
        path,
        "architectures",
        f'"{first or whole.get("model_type")}"' + (f" with {foreign}" if foreign else ""),
        f"a decoder whose layers pipesim knows ({', '.join(ARCHITECTURES)})",
        "another one needs its attention and MLP described in pipesim/families and a row in FAMILIES; "
        "where its layers are those of one named here, name that one in a copy of the file",
    )


@dataclass(frozen=True)
class _Reader:
    """One config.json on its way to a profile."""

    path: Path
    architecture: str
    config: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    @property
    def decoder(self) -> Decoder:
        """What is known of the architecture."""
        return DECODERS[self.architecture]

    def profile(self, name: str, hf_id: str, whole: Mapping[str, Any]) -> ImportedModel:
        moe = self._experts() if self.architecture not in GROUPED_DENSE else None
        layers = self.whole("num_hidden_layers")
        dense = self._dense_intermediate(moe, layers)
        quantised = read_quantisation(self.config, self._modules(moe, layers), self.path)
        self.notes.extend(quantised.notes)
        document: dict[str, Any] = {
            "schema_version": 1,
            "name": name,
            "hf_id": hf_id,
            "architecture": self.architecture,
            "layers": layers,
            "hidden_size": self.whole("hidden_size"),
            "vocab_size": self.whole("vocab_size"),
            "max_positions": self.whole("max_position_embeddings", "model_max_length", "max_seq_len"),
            "tied_embeddings": bool(self.config.get("tie_word_embeddings", self.decoder.tied)),
            "vision_tower": f"{self._vision_bytes(whole)} B",
            **self._vision_shape(whole),
            "source": "config",
            "attention": self._latent() if self.architecture in LATENT else self._grouped(layers),
        }
        if dense:
            document["dense_intermediate"] = dense
        if moe is not None:
            document["moe"] = {**moe, "routing_skew": DEFAULT_ROUTING_SKEW, "routing_source": "routing"}
        document["precision"] = {
            **quantised.storage,
            "embedding": "bf16",
            "activations": "bf16",
            "kv_cache": quantised.kv_cache,
            **({"mean_bytes": quantised.mean_bytes} if quantised.mean_bytes else {}),
        }
        document["sources"] = {"config": {"basis": "datasheet", "text": f"config.json of {hf_id}"}}
        if moe is not None:
            document["sources"]["routing"] = {"basis": "datasheet", "text": ROUTING_TEXT}
        if self.decoder.note:
            self.notes.append(self.decoder.note)
        if self.config.get("num_nextn_predict_layers") or self.config.get("num_mtp_modules"):
            self.notes.append("multi-token prediction layers are left out: engines load them for speculation only")
        return ImportedModel(document, tuple(self.notes))

    def whole(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """Returns the first of some keys that the file has, as a whole number; a list gives one for all layers."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, list) and value and all(entry == value[0] for entry in value):
                value = value[0]
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ProfileError(self.path, key, repr(value)[:60], f"a whole number of at least {least}")
            return value
        if default is None:
            raise ProfileError(self.path, " or ".join(keys), "nothing", "this key")
        return default

    def _latent(self) -> dict[str, Any]:
        return {
            "kind": "mla",
            "heads": self.whole("num_attention_heads"),
            "q_lora_rank": self.whole("q_lora_rank", default=0, least=0),
            "kv_lora_rank": self.whole("kv_lora_rank"),
            "qk_nope_head_dim": self.whole("qk_nope_head_dim"),
            "qk_rope_head_dim": self.whole("qk_rope_head_dim"),
            "v_head_dim": self.whole("v_head_dim"),
            "index_heads": self.whole("index_n_heads", default=0, least=0),
            "index_head_dim": self.whole("index_head_dim", default=0, least=0),
        }

    def _grouped(self, layers: int) -> dict[str, Any]:
        hidden, heads = self.whole("hidden_size"), self.whole("num_attention_heads")
        head_dim = self.whole("head_dim", "attention_head_dim", default=0, least=0) or self._head_dim(hidden, heads)
        kv_heads = self.whole("num_key_value_heads", default=heads)
        if heads % kv_heads:
            given = f"{kv_heads} beside {heads} num_attention_heads"
            raise ProfileError(self.path, "num_key_value_heads", given, "a number that divides the attention heads")
        norm = bool(self.config.get("use_qk_norm", self.architecture.startswith(("Qwen3", "Gemma3"))))
        attention = {"kind": "gqa", "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "qk_norm": norm}
        return {**attention, **self._window(layers)}

    def _head_dim(self, hidden: int, heads: int) -> int:
        if hidden % heads:
            given = f"{heads} beside a hidden_size of {hidden} and no head_dim"
            raise ProfileError(self.path, "num_attention_heads", given, "a number that divides the hidden size")
        return hidden // heads

    def _window(self, layers: int) -> dict[str, int]:
        """Returns which layers attend to a window only; none where it holds every position that the model has."""
        window = self.whole("sliding_window", default=0, least=0)
        longest = self.whole("max_position_embeddings", "model_max_length", "max_seq_len")
        if not window or self.config.get("use_sliding_window") is False or window >= longest:
            return {}
        kinds = self.config.get("layer_types")
        if isinstance(kinds, list) and len(kinds) == layers:
            full = [index for index, kind in enumerate(kinds) if kind == "full_attention"]
            if len(full) == layers:
                return {}
            every = full[0] + 1 if full else 0
            if full != list(range(every - 1, layers, every)) if every else False:
                self.notes.append("layer_types is no regular pattern: full attention is taken at its mean distance")
                every = max(1, round(layers / len(full)))
            return {"sliding_window": window, "full_attention_every": every}
        key = next((key for key in PATTERNS if self.config.get(key) is not None), PATTERNS[0])
        text = self.config.get(key)
        pattern = len(text) if isinstance(text, str) else self.whole(key, default=0, least=0)
        return {"sliding_window": window, "full_attention_every": pattern or self.decoder.full_attention_every}

    def _experts(self) -> dict[str, Any] | None:
        experts = self.whole(
            "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", default=0, least=0
        )
        if not experts:
            if self.architecture in LATENT:
                return None
            raise ProfileError(self.path, "num_experts", "nothing", f"the experts of a layer of {self.architecture}")
        top_k = self.whole("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk")
        if top_k > experts:
            given = f"{top_k} beside {experts} experts"
            raise ProfileError(self.path, "num_experts_per_tok", given, "at most as many as there are")
        moe: dict[str, Any] = {
            "experts": experts,
            "top_k": top_k,
            "expert_intermediate": self.whole("moe_intermediate_size", "intermediate_size"),
            "shared_experts": self.whole(*SHARED_EXPERTS, default=0, least=0),
            "dense_layers_first": self.whole(*DENSE_LAYERS_FIRST, default=0, least=0),
        }
        if self.architecture == "Llama4ForCausalLM":
            moe |= {"shared_experts": 1}
        if shared := self.whole("shared_expert_intermediate_size", "shared_intermediate_size", default=0, least=0):
            moe |= {"shared_experts": max(1, moe["shared_experts"]), "shared_intermediate": shared}
        return moe | self._expert_layers()

    def _expert_layers(self) -> dict[str, int]:
        every = self.whole("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval", default=1)
        frequency = self.config.get("moe_layer_freq", 1)
        if frequency != 1 and not (isinstance(frequency, list) and set(frequency) <= {0, 1}):
            raise ProfileError(self.path, "moe_layer_freq", repr(frequency)[:60], "1: experts in every later layer")
        places: dict[str, int] = {"every": every} if every > 1 else {}
        if isinstance(frequency, list):
            places["dense_layers_first"] = frequency.index(1) if 1 in frequency else len(frequency)
        if dense := self.config.get("mlp_only_layers"):
            if sorted(dense) != list(range(len(dense))):
                raise ProfileError(self.path, "mlp_only_layers", repr(dense)[:60], "the first layers, or none")
            places["dense_layers_first"] = len(dense)
        return places

    def _dense_intermediate(self, moe: Mapping[str, Any] | None, layers: int) -> int:
        """Returns the columns of a dense layer's MLP, 0 where every layer has experts."""
        if moe is None or moe["dense_layers_first"] or moe.get("every", 1) > 1:
            return self.whole("intermediate_size_mlp", "intermediate_size", "mlp_intermediate_size")
        return 0

    def _modules(self, moe: Mapping[str, Any] | None, layers: int) -> Modules:
        """Returns names of the modules of each kind, in the words of HF modelling code."""
        dense = layers if moe is None else min(layers, moe["dense_layers_first"])
        own, up, router, shared = self.decoder.modules

        def named(first: int, text: str) -> tuple[str, ...]:
            return tuple(f"model.layers.{index}.{text}" for index in range(first, layers))

        return {
            "attention": named(0, "self_attn.o_proj"),
            "dense_mlp": tuple(f"model.layers.{index}.mlp.down_proj" for index in range(dense)),
            "routed_experts": named(dense, f"{own}.experts.0.{up}"),
            "shared_expert": named(dense, f"{own}.{shared}.{up}"),
            "router": named(dense, f"{own}.{router}"),
            "lm_head": ("lm_head",),
        }

    def _vision_shape(self, whole: Mapping[str, Any]) -> dict[str, int]:
        """Returns the layers and the width that SGLang finds in the vision tower's configuration."""
        vision, prefix = whole.get("vision_config"), "vt_" * (whole.get("model_type") == "kimi_k25")
        if not isinstance(vision, Mapping):
            return {}
        keys = {"vision_layers": f"{prefix}num_hidden_layers", "vision_width": f"{prefix}hidden_size"}
        return {name: vision[key] for name, key in keys.items() if isinstance(vision.get(key), int)}

    def _vision_bytes(self, whole: Mapping[str, Any]) -> int:
        """Returns the 16-bit weights [B] of a vision tower: its layers, and the projector that merges 2 × 2 patches."""
        vision = whole.get("vision_config")
        if not isinstance(vision, Mapping):
            return 0

        def first(*keys: str) -> int:
            return next((vision[key] for key in keys if isinstance(vision.get(key), int)), 0)

        width = first("vt_hidden_size", "hidden_size", "embed_dim")
        depth = first("vt_num_hidden_layers", "num_hidden_layers", "depth")
        inner = first("vt_intermediate_size", "intermediate_size") or 4 * width
        if not width or not depth:
            self.notes.append("vision_config gives no width and depth: the vision tower is left out")
            return 0
        merged = 4 * width
        self.notes.append("the vision tower is reckoned from its width and depth; only text is served")
        layers = depth * (4 * width * width + 2 * width * inner)
        return 2 * (layers + merged * merged + merged * self.whole("hidden_size"))
