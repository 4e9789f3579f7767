"""Finding, reading and checking profile files; a complaint names file, key, what was given and what is wanted."""

import ast
import difflib
import inspect
import os
import re
import tomllib
import typing
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipesim.errors import ProfileError
from pipesim.profiles import hardware, model
from pipesim.profiles.borrowing import Borrowing, with_borrowed
from pipesim.profiles.hardware import HardwareProfile
from pipesim.profiles.hf_config import read_hf_config
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.names import base_of, box_name, canonical
from pipesim.profiles.resize import resized

SCHEMA_VERSION = 1
FOLDERS: dict[str, str] = {"hardware": "hardware_profiles", "model": "model_profiles", "runs": "measured_runs"}
SCHEMAS: dict[str, type[BaseModel]] = {"hardware": HardwareProfile, "model": ModelProfile}
LONGEST_FILE = 4_000_000

Document = TypeVar("Document", bound=BaseModel)


def folders(kind: str) -> list[Path]:
    """Returns the folders searched for one kind of file, first match wins.

    $PIPESIM_PROFILES (its sub-folder of that kind, or itself), the working directory's folder, then the shipped one.
    """
    name = FOLDERS[kind]
    found = []
    if root := os.environ.get("PIPESIM_PROFILES"):
        found += [Path(root) / name, Path(root)]
    return [*found, Path.cwd() / name, *_shipped_folders(kind)]


def _shipped_folders(kind: str) -> list[Path]:
    package = Path(__file__).resolve().parent.parent
    return [package / FOLDERS[kind], package.parent / FOLDERS[kind]]


def is_shipped(kind: str, path: Path) -> bool:
    """Returns whether a file is one of those that come with pipesim."""
    return path.resolve().parent in _shipped_folders(kind)


def available(kind: str) -> dict[str, Path]:
    """Returns name → file of every profile of one kind that a name would find."""
    found: dict[str, Path] = {}
    for folder in folders(kind):
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else []:
            found.setdefault(path.stem, path)
    return found


def find(kind: str, name: str) -> Path:
    """Returns the file that a name or a path stands for.

    Raises:
        ProfileError: when there is none; the nearest names are offered.
    """
    if name.endswith(".toml") or os.sep in name:
        path = Path(name)
        if not path.is_file():
            given = "a directory" if path.is_dir() else "no such file"
            hint = "of a model's config.json `pipesim import hf-config` makes one" if kind == "model" else ""
            raise ProfileError(name, "", given, f"a {kind} profile in TOML", hint)
        return path
    names = available(kind)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "see `pipesim profiles list`"
        raise ProfileError(
            f"--{kind}", "", f'"{name}"', f"one of {', '.join(sorted(names)) or 'no profiles found'}", hint
        )
    return names[name]


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the parsed TOML document of a file.

    Raises:
        ProfileError: when the file cannot be read, is not text, or is not TOML; the line is named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(path, "", error.strerror or "an unreadable file", "a readable TOML file") from None
    if len(data) > LONGEST_FILE:
        raise ProfileError(path, "", f"{len(data):,} bytes", f"a TOML file of at most {LONGEST_FILE:,} bytes")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ProfileError(
            path, "", f"a binary file (byte {error.start} is not text)", "a TOML file in UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(path, "", f"broken or cut-off TOML: {error}", "a complete TOML file") from None


def validated(schema: type[Document], document: dict[str, Any], path: Path) -> Document:
    """Returns a document checked against its schema.

    Raises:
        ProfileError: naming the first key that is wrong, unknown or missing, and how many more there are.
    """
    version = document.get("schema_version")
    if version != SCHEMA_VERSION or type(version) is not int:
        given = "nothing" if version is None else repr(version)
        later = isinstance(version, int) and version > SCHEMA_VERSION
        hint = "it was written for a later pipesim; update pipesim" if later else ""
        raise ProfileError(path, "schema_version", given, str(SCHEMA_VERSION), hint)
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        raise _phrase(schema, error, path) from None


def load_hardware(name: str) -> HardwareProfile:
    """Returns a hardware profile by name or path, or a box of another number of the GPUs of one, or of several nodes.

    A profile that `extends` another is laid over it; one that `borrows` takes what it lacks from its relative.

    Raises:
        ProfileError: when there is none, or when it, or one that it rests on, is wrong.
    """
    resting_on: list[str] = []
    base, resize = _base_of(name)
    path = find("hardware", base)
    document = hardware_document(base, resting_on)
    try:
        profile = validated(HardwareProfile, document, path)
    except ProfileError:
        for below in resting_on:
            load_hardware(below)  # What is wrong there is named with its own file.
        raise
    return profile if resize is None else resized(profile, *resize)


def _base_of(name: str) -> tuple[str, tuple[int | None, int, str] | None]:
    """Returns the file, by name or path, that a name of a box rests on; and how many GPUs and nodes, if others."""
    if name.endswith(".toml") or os.sep in name or name in (names := available("hardware")):
        return name, None
    wanted = box_name(name)
    base = base_of(wanted, names)
    if base is None:
        return name, None
    own = box_name(base)
    if wanted.nodes == 1 and wanted.gpus in {None, own.gpus}:
        return base, None
    return base, (wanted.gpus, wanted.nodes, canonical(base, wanted.gpus, wanted.nodes))


def is_derived(name: str) -> bool:
    """Returns whether a name stands for a box that has no file of its own, but is made from one of the same GPUs."""
    base, _ = _base_of(name)
    return base != name


def hardware_document(name: str, resting_on: list[str] | None = None, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns a hardware profile as one document, with what it extends and borrows filled in, not yet checked.

    `resting_on` collects the names of the profiles below it.

    Raises:
        ProfileError: when a file cannot be read or the profiles rest on each other in a circle.
    """
    base, resize = _base_of(name)
    path = find("hardware", base)
    if resize:
        return document_of(load_hardware(name))
    return _filled_in(read_toml(path), path, above, resting_on if resting_on is not None else [])


def check_hardware_document(document: dict[str, Any], path: Path) -> HardwareProfile:
    """Returns the hardware profile that a file with this document would be. Raises ProfileError, naming `path`."""
    return validated(HardwareProfile, _filled_in(dict(document), path, (), []), path)


def _filled_in(document: dict[str, Any], path: Path, above: tuple[str, ...], below: list[str]) -> dict[str, Any]:
    chain = (*above, str(path))
    if "extends" in document:
        under = _below(document.pop("extends"), path, "extends", chain, below)
        document = _laid_over(under, document)
    if "borrows" in document:
        borrowing = _borrowing(document.pop("borrows"), path)
        relative = _below(borrowing.profile, path, "borrows.profile", chain, below)
        linked = relative
        if borrowing.collectives is not None:
            linked = _below(borrowing.collectives, path, "borrows.collectives", chain, below)
        document = with_borrowed(document, borrowing, relative, linked)
    return _with_front_ends(document)


def _with_front_ends(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document whose host has a front end for every engine: its own, or as the engines come."""
    host, sources = document.get("host"), document.get("sources")
    own = host.get("front_end", {}) if isinstance(host, dict) else None
    usual = read_toml(Path(__file__).with_name("front_end.toml"))
    engines = usual["host"]["front_end"]
    if not (isinstance(host, dict) and isinstance(sources, dict) and isinstance(own, dict) and engines.keys() - own):
        return document
    host, sources = {**host, "front_end": {**engines, **own}}, {**usual["sources"], **sources}
    return {**document, "host": host, "sources": sources}


def _borrowing(given: Any, path: Path) -> Borrowing:
    try:
        return Borrowing.model_validate({"profile": given} if isinstance(given, str) else given)
    except ValidationError as error:
        refusal = _phrase(Borrowing, error, path)
        refusal.key = f"borrows.{refusal.key}".rstrip(".")
        raise refusal from None


def _below(name: Any, path: Path, key: str, above: tuple[str, ...], resting_on: list[str]) -> dict[str, Any]:
    """Returns the checked document of a profile that another rests on."""
    known = ", ".join(sorted(available("hardware")))
    if isinstance(name, str) and name.endswith(".toml"):
        name = str(path.parent / name)
    if not isinstance(name, str) or not _found(name):
        raise ProfileError(path, key, repr(name), f"the name of a hardware profile: {known}")
    if str(find("hardware", _base_of(name)[0])) in above:
        raise ProfileError(path, key, f'"{name}", which rests on this profile', "a profile that does not")
    resting_on.append(name)
    document = hardware_document(name, None, above)
    validated(HardwareProfile, document, find("hardware", _base_of(name)[0]))
    return document


def _found(name: str) -> bool:
    try:
        return bool(find("hardware", _base_of(name)[0]))
    except ProfileError:
        return False


def load_model(name: str) -> ModelProfile:
    """Returns a model profile by name or path, or made of a Hugging Face config.json. Raises ProfileError."""
    config = Path(name) if name.endswith(".json") else Path(name) / "config.json"
    if name.endswith(".json") or config.is_file():
        return validated(ModelProfile, read_hf_config(config).document, config)
    own = name.endswith(".toml") or Path(name).exists() or name in available("model")
    path = find("model", name if own else matching_model(name) or name)
    return validated(ModelProfile, read_toml(path), path)


def matching_model(stated: str) -> str | None:
    """Returns the name of the model profile that a Hugging Face id, a path or a name stands for; None for no one.

    Compared are whole parts of the path by their letters, digits and dots, without case; where none is the same, those
    of the base model that an "Instruct" or "Chat" of the same shapes was tuned from.
    """
    profiles = {}
    for name, path in available("model").items():
        try:
            profile = validated(ModelProfile, read_toml(path), path)
        except ProfileError:
            continue
        profiles[name] = {_folded(name), _folded(profile.name), _folded(profile.hf_id.rpartition("/")[2])}
    parts = {_folded(part) for part in re.split(r"[/\\]|--", stated)} - {""}
    base = {re.sub("instruct|chat", "", part) for part in parts} - {""}
    return next((name for wanted in (parts, base) for name, own in profiles.items() if wanted & own), None)


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.casefold())


def document_of(model: BaseModel) -> dict[str, Any]:
    """Returns the document that reads back to an equal model: what `validated` was given, or would have been.

    Plain dicts, lists, strings and numbers for TOML or JSON; quantities are strings with their unit. What was not set
    is left out and so keeps its default; so is None, which TOML cannot write.
    """
    return model.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def json_schema(kind: str) -> dict[str, Any]:
    """Returns the JSON Schema of one kind of profile, each key described by the docstring under its field."""
    schema = SCHEMAS[kind].model_json_schema()
    if kind == "hardware":
        borrowing = Borrowing.model_json_schema()
        schema["properties"]["extends"] = {"type": "string", "description": "The profile that this one is laid over."}
        schema["properties"]["borrows"] = {"anyOf": [{"type": "string"}, borrowing]}
    texts = {name: text for module in (hardware, model) for name, text in _field_docstrings(module).items()}
    for table in (schema, *schema.get("$defs", {}).values()):
        for key, entry in table.get("properties", {}).items():
            if text := texts.get(f"{table.get('title')}.{key}"):
                entry["description"] = text
    return schema


def _field_docstrings(module: ModuleType) -> dict[str, str]:
    """Returns "Class.field" → the string under that field. Read from the source here, not at every start-up."""
    found = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            for field, text in pairwise(node.body):
                documented = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                if documented and isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found[f"{node.name}.{field.target.id}"] = str(text.value.value)  # type: ignore[attr-defined]
    return found


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Returns one document over another: tables key by key, collectives curve by curve, all else replaced."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            merged[key] = _laid_over(under, value)
        elif key == "collectives" and isinstance(value, list) and isinstance(under, list):
            merged[key] = [*value, *(curve for curve in under if _curve_name(curve) not in map(_curve_name, value))]
        else:
            merged[key] = value
    return merged


def _curve_name(curve: Any) -> tuple[Any, ...]:
    keys = ("op", "ranks", "launch", "implementation")
    return tuple(curve.get(key) for key in keys) if isinstance(curve, dict) else ()


def _phrase(schema: type[BaseModel], error: ValidationError, path: Path) -> ProfileError:
    """Phrases the first problem of a document; a key that looks misspelt goes before the one it leaves missing."""
    problems = error.errors(include_url=False)
    missing = {problem["loc"] for problem in problems if problem["type"] == "missing"}
    misspelt = (p for p in problems if (*p["loc"][:-1], _misspelt(schema, p)) in missing)
    first = next(misspelt, problems[0])
    key = ".".join(str(part) for part in first["loc"])
    more = f"and {len(problems) - 1} more problem(s) in this file" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        known = sorted(_keys_at(schema, first["loc"][:-1]))
        near = _misspelt(schema, first)
        hint = "; ".join(part for part in (f"did you mean {near}?" if near else "", more) if part)
        return ProfileError(path, key, "an unknown key", f"one of {', '.join(known)}" if known else "no such key", hint)
    if first["type"] == "missing":
        return ProfileError(path, key, "nothing", "this key", more)
    given, wanted = _given_and_wanted(first)
    return ProfileError(path, key, given, wanted, more)


def _misspelt(schema: type[BaseModel], problem: ErrorDetails) -> str:
    """Returns the known key that an unknown one looks like, or nothing."""
    if problem["type"] != "extra_forbidden":
        return ""
    known = sorted(_keys_at(schema, problem["loc"][:-1]))
    return next(iter(difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)), "")


def _given_and_wanted(problem: ErrorDetails) -> tuple[str, str]:
    """Splits one of pydantic's complaints, or one of our own validators', into its two halves."""
    text = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "value_error" and text.endswith(" is wanted"):
        given, _, wanted = text.removesuffix(" is wanted").rpartition("; ")
        return given, wanted
    given = repr(problem["input"])
    return given if len(given) <= 60 else given[:57] + "…", text[0].lower() + text[1:]


def _keys_at(schema: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    """Returns the keys that a table at one place of the document may have."""
    node: Any = schema
    for part in location:
        if isinstance(node, type) and issubclass(node, BaseModel) and part in node.model_fields:
            node = node.model_fields[str(part)].annotation
        else:
            arguments = [argument for argument in typing.get_args(node) if argument is not Ellipsis]
            node = arguments[-1] if arguments else None
        while typing.get_origin(node) is not None and type(None) in typing.get_args(node):
            node = next(argument for argument in typing.get_args(node) if argument is not type(None))
    return set(node.model_fields) if isinstance(node, type) and issubclass(node, BaseModel) else set()
