"""A launch line as pipesim's flags: what it means, what does not matter, and what pipesim cannot say."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pipesim.deployment import ParallelPlan
from pipesim.engine_settings import EngineSettings
from pipesim.errors import UsageError
from pipesim.flags import made
from pipesim.launch.base import Dialect, Reading, Unsupported, json_object
from pipesim.launch.common import NCCL_TUNING, NCCL_TUNING_CHANGES, RELEVANT_VARIABLE, VISIBLE
from pipesim.launch.servers import Server
from pipesim.profiles.model import ModelProfile
from pipesim.profiles.store import load_model, matching_model

LEFT_OVER = re.compile(r"\$[@*]|\$\{[@*]\}|\$\{\w+\[[@*]\]\}|\$\d")
UNKNOWN = re.compile(r"\$\{?\w+|\$\(|`")
PLACES = ("port", "base-gpu-id", "device-ids", "nccl-port", "dist-init-addr", "master-port")


class Given(NamedTuple):
    """A flag on the line under its first name, as it was spelt, and its value."""

    name: str
    spelt: str
    value: str


@dataclass(frozen=True)
class Imported:
    """A server's launch line as pipesim reads it."""

    dialect: Dialect
    flags: dict[str, Any]
    ignored: tuple[str, ...]
    unsupported: tuple[Unsupported, ...]
    profiled: bool
    """Whether the model has a profile."""
    service: str
    copies: int
    visible: str
    """The GPUs that it is shown, in its order."""
    place: str
    """What tells it from an equal server: its port and its GPUs."""

    @property
    def plan(self) -> ParallelPlan:
        """The split. Raises UsageError when its degrees clash."""
        plan: ParallelPlan = made(ParallelPlan, self.flags)
        return plan

    @property
    def settings(self) -> EngineSettings:
        """The engine's settings. Raises UsageError for a value that no engine could take."""
        settings: EngineSettings = made(EngineSettings, self.flags)
        return settings

    @property
    def predict(self) -> str:
        """The command that predicts it, to be pasted into a shell."""
        words = ["pipesim", "predict"]
        for name, value in self.flags.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return shlex.join(words)


def read(server: Server) -> Imported:
    """Returns what a server's flags and variables mean to pipesim.

    Raises:
        UsageError: for a missing or impossible value, flags that contradict, or no model.
    """
    dialect, reading = server.dialect, Reading()
    given = sorted(_flags(server.arguments, dialect), key=lambda flag: flag.name not in {"model", "model-path"})
    for variable, text in server.environment.items():
        _apply_variable(reading, dialect, variable, text)
    _apply(reading, dialect, given)
    name = str(reading.raw.get("model", ""))
    if not name:
        raise UsageError(dialect.title, "no model", f"one, as in `{dialect.program} serve MODEL …`")
    profile = matching_profile(name)
    reading.raw["dense"] = profile is not None and getattr(profile[1].moe, "experts", 0) < 2
    dialect.finish(reading)
    first = {"model": profile[0] if profile else name, "engine": dialect.name, "tp": 1, "pp": 1}
    place = [f"{flag.name}={flag.value}" for flag in given if flag.name in PLACES]
    visible = server.environment.get(VISIBLE, "")
    imported = Imported(
        dialect,
        first | reading.flags,
        tuple(reading.ignored),
        tuple(reading.unsupported),
        profile is not None,
        server.service,
        server.copies,
        visible,
        " ".join([server.service, *place, visible]),
    )
    _check(imported)
    return imported


def distinct(found: list[Imported]) -> list[Imported]:
    """Returns servers that differ; equal ones at several places are replicas of one."""
    groups: list[list[Imported]] = []
    for server in found:
        same = next((group for group in groups if group[0].flags == server.flags), None)
        if same is None:
            groups.append([server])
        elif server.place not in {other.place for other in same}:
            same.append(server)
    merged = []
    for group in groups:
        replicas = group[0].flags.get("replicas", 1) * sum(server.copies for server in group)
        flags = group[0].flags | ({"replicas": replicas} if replicas > 1 else {})
        placed = _placement(flags, [server.visible for server in group])
        ignored = tuple(name for name in group[0].ignored if name != VISIBLE or not placed)
        merged.append(replace(group[0], flags=flags | placed, ignored=ignored))
        _check(merged[-1])
    return merged


def _placement(flags: dict[str, Any], visible: list[str]) -> dict[str, str]:
    """Returns the flag for the GPU of each rank, where servers are shown just theirs, and in another order."""
    gpus = ",".join(visible).split(",")
    ranks = flags["tp"] * flags["pp"] * flags.get("replicas", 1)
    each = len(gpus) == len(set(gpus)) == ranks and all(gpu.isdecimal() for gpu in gpus)
    return {"placement": ",".join(gpus)} if each and gpus != sorted(gpus, key=int) else {}


def matching_profile(given: str) -> tuple[str, ModelProfile] | None:
    """Returns name and profile of the model that a path or repository stands for.

    Whole names are compared, so that a requantised repository (…-FP8, …-NVFP4) is a model of its own.
    """
    name = matching_model(given)
    return None if name is None else (name, load_model(name))


def _check(imported: Imported) -> None:
    """Raises UsageError where the engine would not start."""
    plan, _ = imported.plan, imported.settings  # either refuses values that no engine could take
    if plan.layer_partition and len(plan.layer_partition) != plan.pp:
        layers = imported.flags["layer_partition"]
        raise UsageError(imported.dialect.partition_variable, layers, f"layers of {plan.pp} stages (pipeline parallel)")


def _apply_variable(reading: Reading, dialect: Dialect, variable: str, text: str) -> None:
    if variable in dialect.variables:
        dialect.variables[variable](reading, variable, _known(variable, text))
    elif variable in NCCL_TUNING:
        NCCL_TUNING_CHANGES(reading, variable, text)
    elif RELEVANT_VARIABLE.fullmatch(variable):
        reading.ignore(variable)


def _apply(reading: Reading, dialect: Dialect, given: list[Given]) -> None:
    for flag in _with_whole_objects(given, dialect):
        if flag.name in dialect.rules:
            dialect.rules[flag.name](reading, flag.spelt, _known(flag.spelt, flag.value))
        elif flag.name == "":
            reading.refuse(flag.value, "", "a word that belongs to no flag; if a value has blanks, put it in quotes")
        elif why := dialect.vocabulary.why_changed(flag.name):
            if flag.name not in dialect.vocabulary.switches or flag.value != "false":
                reading.refuse(flag.spelt, "" if flag.value == "true" else flag.value, why)
        elif flag.name in dialect.vocabulary.known:
            reading.ignore(flag.spelt)
        else:
            reading.refuse(
                flag.spelt, flag.value, f"not a flag of {dialect.title} that pipesim knows, so it was left out"
            )


def _known(flag: str, value: str) -> str:
    if UNKNOWN.match(value) or UNKNOWN.search(value.partition("{")[0]):
        raise UsageError(flag, value, "a value in place of what only a shell would know")
    return value


def _flags(words: list[str], dialect: Dialect) -> Iterator[Given]:
    """Yields the flags of a line. The first word that belongs to none is the model; further ones have no name."""
    vocabulary, at, model = dialect.vocabulary, 0, "model" if "model" in dialect.rules else "model-path"
    named = False
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            if not LEFT_OVER.fullmatch(word) and word != "--":
                yield Given("" if named else model, word if named else "MODEL", word)
                named = True
            continue
        spelt, equals, value = word.partition("=")
        spelt, value, equals = _level(spelt, value, equals)
        name, _, key = _bare(spelt).partition(".")
        name, on = _switched(vocabulary.canonical(name), dialect)
        following = _following(words, at)
        if name in vocabulary.switches:
            if not equals and following[:1] and following[0].lower() in {"true", "false"}:
                value, at = following[0], at + 1
            value = (value or "true") if on else "false"
        elif not equals and name in vocabulary.lists:
            value, at = " ".join(following), at + len(following)
        elif not equals and following:
            value, at = following[0], at + 1
        elif not equals and name in vocabulary.values:
            given = words[at] if at < len(words) else "nothing"
            raise UsageError(spelt, given, "a value behind it")
        named = named or name == model
        yield Given(f"{name}.{key}" if key else name, spelt, value)


def _bare(spelt: str) -> str:
    name, dot, key = spelt.lstrip("-").partition(".")
    return name.replace("_", "-") + dot + key


def _level(spelt: str, value: str, equals: str) -> tuple[str, str, str]:
    """Takes the number off -O3."""
    match = re.fullmatch(r"(-O)(\d)", spelt)
    return (match[1], match[2], "=") if match else (spelt, value, equals)


def _switched(name: str, dialect: Dialect) -> tuple[str, bool]:
    """Takes the no- off a switch."""
    vocabulary = dialect.vocabulary
    positive = vocabulary.canonical(name.removeprefix("no-"))
    off = name.startswith("no-") and name not in vocabulary.known and positive in vocabulary.switches
    return (positive, False) if off else (name, True)


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def _following(words: list[str], at: int) -> list[str]:
    end = at
    while end < len(words) and not _is_flag(words[end]):
        end += 1
    return words[at:end]


def _with_whole_objects(given: list[Given], dialect: Dialect) -> Iterator[Given]:
    """Yields flags once more, with `--flag.key value` put together to one JSON object for each flag."""
    import json  # noqa: PLC0415 - seldom needed

    dotted: dict[str, dict[str, Any]] = {}
    for flag in given:
        name, _, key = flag.name.partition(".")
        if not key:
            yield flag
        elif name in dialect.json_flags:
            dotted.setdefault(name, {})[key] = _json_value(flag.value)
        else:
            yield Given(name, flag.spelt, flag.value)
    for name, value in dotted.items():
        yield Given(name, f"--{name}", json.dumps(value))


def _json_value(text: str) -> Any:
    try:
        return json_object("", f'{{"value": {text}}}')["value"]
    except UsageError:
        return text
