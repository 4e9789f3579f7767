"""How a checkpoint stores each kind of tensor, read from the `quantization_config` of its config.json.

Methods: compressed-tensors (its own naming rules: exact names, `re:` patterns, a class), AWQ, GPTQ, FP8 per tensor and
per block, NVFP4 (ModelOpt), MXFP4, Quark, bitsandbytes. Names of modules are those of HF modelling code.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipesim.errors import ProfileError
from pipesim.profiles.model import STORAGE_BYTES

Modules = Mapping[str, tuple[str, ...]]
"""Field of the model profile's `precision` → the names of the modules that it stands for."""


@dataclass(frozen=True)
class Quantised:
    """Storage by kind of tensor, and what a person should know of it."""

    storage: dict[str, str]
    kv_cache: str
    notes: tuple[str, ...] = ()
    mean_bytes: dict[str, float] = field(default_factory=dict)
    """Bytes per parameter of kinds that are stored in several forms."""


def read_quantisation(config: Mapping[str, Any], modules: Modules, file: object) -> Quantised:
    """Returns how each kind of tensor is stored; 16 bits without a `quantization_config`.

    Raises:
        ProfileError: for a method or a width that pipesim does not know; it names the key.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if given is None:
        return Quantised(dict.fromkeys(modules, "bf16"), "bf16")
    if not isinstance(given, Mapping):
        raise ProfileError(file, "quantization_config", repr(given)[:60], "a table, or none for 16-bit weights")
    method = str(given.get("quant_method", "")).lower().replace("_", "-")
    if method not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ProfileError(file, "quantization_config.quant_method", f'"{method}"', f"one of {known}")
    rule = METHODS[method](_text_alone(given), file)
    storage, notes, means = {}, [], {}
    for kind, names in modules.items():
        found = Counter("bf16" if kind == "router" else rule(name) for name in names)
        storage[kind] = found.most_common(1)[0][0] if names else "bf16"
        if len(found) > 1:
            shares = ", ".join(f"{count} of {len(names)} as {form}" for form, count in found.most_common())
            notes.append(f"{kind}: {shares}; all are priced as {storage[kind]}")
            means[kind] = sum(STORAGE_BYTES[form] * count for form, count in found.items()) / len(names)
    return Quantised(storage, _kv_cache(given), tuple(notes), means)


def _text_alone(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table with names of modules as the text model has them alone, without the multimodal one's prefix.

    Keys that hold nothing (`"ignore": null`) are left out, as transformers reads them.
    """

    def bare(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"language_model\\?\.", "", value)
        if isinstance(value, list):
            return [bare(entry) for entry in value]
        if isinstance(value, Mapping):
            return {bare(key): bare(entry) for key, entry in value.items() if entry is not None}
        return value

    return {str(key): value for key, value in bare(given).items()}


Rule = Callable[[str], str]
"""Name of a module → how its weights are stored."""


def _compressed_tensors(given: Mapping[str, Any], file: object) -> Rule:
    groups = [
        (tuple(group.get("targets", ("Linear",))), _weights(group, given, file)) for group in _groups(given, file)
    ]
    ignored = _matcher(given.get("ignore", ()))

    def rule(name: str) -> str:
        if ignored(name):
            return "bf16"
        named = (form for targets, form in groups if _matcher(t for t in targets if t != "Linear")(name))
        anything = (form for targets, form in groups if "Linear" in targets)
        return next(named, next(anything, "bf16"))

    return rule


def _groups(given: Mapping[str, Any], file: object) -> list[Mapping[str, Any]]:
    groups = given.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ProfileError(
            file, "quantization_config.config_groups", repr(groups)[:60], "a table of at least one group"
        )
    return [group for group in groups.values() if isinstance(group, Mapping)]


def _weights(group: Mapping[str, Any], given: Mapping[str, Any], file: object) -> str:
    weights = group.get("weights") or {}
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    form = str(group.get("format") or given.get("format") or "")
    if kind == "float" and bits == 4:
        return "nvfp4" if "nvfp4" in form or weights.get("group_size") == 16 else "mxfp4"
    if kind == "float" and bits == 8:
        return "fp8-block" if weights.get("strategy") == "block" else "fp8"
    if bits == 8:
        return "int8"
    if bits == 4:
        return _int4(weights.get("group_size"), not weights.get("symmetric", True), file)
    raise ProfileError(file, "quantization_config.config_groups", f"weights of {bits} bits", "4 or 8 bits")


def _int4(group_size: object, zero_points: bool, file: object) -> str:
    if group_size in {None, -1, 0}:
        return "int4"
    name = f"int4-g{group_size}"
    if zero_points and f"{name}-zp" in STORAGE_BYTES:
        return f"{name}-zp"
    if name not in STORAGE_BYTES:
        raise ProfileError(file, "quantization_config.group_size", repr(group_size), "32, 64, 128 or -1")
    return name


def _by_bits(zero_points: Callable[[Mapping[str, Any]], bool]) -> Callable[[Mapping[str, Any], object], Rule]:
    """Returns the reader of a method that gives `bits` and `group_size` for every linear layer it does not spare."""

    def read(given: Mapping[str, Any], file: object) -> Rule:
        bits = given.get("bits", given.get("w_bit", 4))
        if bits not in {4, 8}:
            raise ProfileError(file, "quantization_config.bits", repr(bits), "4 or 8")
        group = given.get("group_size", given.get("q_group_size", 128))
        form = "int8" if bits == 8 else _int4(group, zero_points(given), file)
        spared = _containing([*(given.get("modules_to_not_convert") or ()), *_skipped(given)])
        head = bool(given.get("lm_head", False))

        def rule(name: str) -> str:
            return "bf16" if spared(name) or (name == "lm_head" and not head) else form

        return rule

    return read


def _skipped(given: Mapping[str, Any]) -> list[str]:
    """Modules that GPTQModel's `dynamic` rules leave out: "-:" and a pattern."""
    dynamic = given.get("dynamic")
    return [f"re:{rule[2:]}" for rule in dynamic if rule.startswith("-:")] if isinstance(dynamic, Mapping) else []


def _fp8(given: Mapping[str, Any], file: object) -> Rule:
    block = given.get("weight_block_size")
    if block and list(block) != [128, 128]:
        wanted = "[128, 128], the blocks that the engines' FP8 kernels take (SGLang layers/quantization/fp8_utils.py)"
        raise ProfileError(file, "quantization_config.weight_block_size", repr(block)[:60], wanted)
    form = "fp8-block" if block else "fp8"
    spared = _containing([*(given.get("modules_to_not_convert") or ()), *(given.get("ignored_layers") or ())])

    def rule(name: str) -> str:
        return "bf16" if name == "lm_head" or spared(name) else form

    return rule


def _mxfp4(given: Mapping[str, Any], file: object) -> Rule:
    spared = _containing(given.get("modules_to_not_convert") or ())
    return lambda name: "mxfp4" if ".experts." in name and not spared(name) else "bf16"


MODELOPT_FORMS = {
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8-block",
    "FP8_PB_REAL": "fp8-block",
    "W4A16_AWQ": "int4-g128",
    "W4A8_AWQ": "int4-g128",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
}
"""Of ModelOpt's `quant_algo`."""


def _modelopt_table(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns where the algorithm stands: at the top, or under `quantization` (hf_quant_config.json)."""
    nested = given.get("quantization")
    return nested if isinstance(nested, Mapping) else given


def _by_layer(layers: Mapping[str, Any], forms: Mapping[str, str]) -> Rule:
    named = {str(name): forms.get(str(entry.get("quant_algo")).upper(), "bf16") for name, entry in layers.items()}

    def rule(name: str) -> str:
        return named.get(name) or next((named[part] for part in (name.rpartition(".")[0],) if part in named), "bf16")

    return rule


def _modelopt(given: Mapping[str, Any], file: object) -> Rule:
    table = _modelopt_table(given)
    algorithm = str(table.get("quant_algo", "")).upper()
    forms = MODELOPT_FORMS
    if not algorithm and isinstance(given.get("config_groups"), Mapping):
        return _compressed_tensors(given, file)
    layers = table.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" and isinstance(layers, Mapping):
        return _by_layer(layers, forms)
    if algorithm not in forms:
        raise ProfileError(file, "quantization_config.quant_algo", f'"{algorithm}"', f"one of {', '.join(forms)}")
    spared = _matcher([*(table.get("exclude_modules") or ()), *(table.get("ignore") or ())])
    return lambda name: "bf16" if spared(name) or name == "lm_head" else forms[algorithm]


def _bitsandbytes(given: Mapping[str, Any], file: object) -> Rule:
    form = "int4-g64" if given.get("load_in_4bit", True) and not given.get("load_in_8bit") else "int8"
    spared = _containing(given.get("llm_int8_skip_modules") or ())
    return lambda name: "bf16" if name == "lm_head" or spared(name) else form


def _quark(given: Mapping[str, Any], file: object) -> Rule:
    table = given.get("global_quant_config")
    weight = table.get("weight") if isinstance(table, Mapping) else None
    kind = str(weight.get("dtype", "")).lower() if isinstance(weight, Mapping) else ""
    forms = {"fp8_e4m3": "fp8", "int8": "int8", "fp4": "mxfp4"}
    if kind not in forms:
        key = "quantization_config.global_quant_config.weight.dtype"
        raise ProfileError(file, key, f'"{kind}"', f"one of {', '.join(forms)}")
    spared = _containing(given.get("exclude") or ())
    return lambda name: "bf16" if spared(name) else forms[kind]


METHODS: dict[str, Callable[[Mapping[str, Any], object], Rule]] = {
    "compressed-tensors": _compressed_tensors,
    "awq-marlin": _by_bits(lambda given: bool(given.get("zero_point", True))),
    "gptq-marlin": _by_bits(lambda given: not given.get("sym", True)),
    "awq": _by_bits(lambda given: bool(given.get("zero_point", True))),
    "auto-round": _by_bits(lambda given: not given.get("sym", True)),
    "gptq": _by_bits(lambda given: not given.get("sym", True)),
    "fp8": _fp8,
    "fbgemm-fp8": _fp8,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "nvfp4": _modelopt,
    "quark": _quark,
    "bitsandbytes": _bitsandbytes,
}


def _kv_cache(given: Mapping[str, Any]) -> str:
    scheme = given.get("kv_cache_scheme")
    narrow = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8
    return "fp8" if narrow or str(_modelopt_table(given).get("kv_cache_quant_algo")).upper() == "FP8" else "bf16"


def _matcher(patterns: Any) -> Callable[[str], bool]:
    """Returns whether a name is one of some, matches a `re:` pattern or a glob, or lies below one of them."""
    rules = list(_rules(patterns))
    return lambda name: any(rule(name) for rule in rules)


def _rules(patterns: Any) -> Iterator[Callable[[str], bool]]:
    for pattern in map(str, patterns):
        if pattern.startswith("re:"):
            try:
                yield re.compile(pattern[3:]).match  # type: ignore[misc]
            except re.error:
                continue
        elif "*" in pattern:
            yield lambda name, glob=pattern: fnmatch.fnmatch(name, glob) or fnmatch.fnmatch(name, glob + ".*")  # type: ignore[misc]
        else:
            yield lambda name, whole=pattern: name == whole or name.startswith(whole + ".")  # type: ignore[misc]


def _containing(patterns: Any) -> Callable[[str], bool]:
    """Returns whether a name matches as in `_matcher`, or has a part of the path in it (AutoAWQ, transformers FP8)."""
    patterns = list(map(str, patterns))
    parts = [pattern.strip(".") for pattern in patterns if not pattern.startswith("re:") and "*" not in pattern]
    exact = _matcher(patterns)
    return lambda name: exact(name) or any(f".{part}." in f".{name}." for part in parts)
