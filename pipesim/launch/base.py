"""What a launch line is, whichever engine it starts, and what is gathered while one is read."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipesim.deployment import Deployment
from pipesim.errors import UsageError
from pipesim.flags import options_of

MULTIPLIERS = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 2**10, "M": 2**20, "G": 2**30, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
"""Suffixes of whole numbers (vLLM engine/arg_utils.py `human_readable_int`; SGLang's own differ in M and G alone)."""
TRUE, FALSE = {"1", "true", "yes", "on", "y", "t"}, {"0", "false", "no", "off", "n", "f"}


class LaunchLine(NamedTuple):
    """One server: environment variables that it needs, and its command in words."""

    environment: dict[str, str]
    words: list[str]


@dataclass(frozen=True)
class Launch:
    """The servers of a deployment, one per replica, and what their flags cannot say."""

    lines: tuple[LaunchLine, ...]
    notes: tuple[str, ...]


class Unsupported(NamedTuple):
    """A flag that changes what the server does and that pipesim does not model."""

    flag: str
    given: str
    why: str


@dataclass
class Reading:
    """What the flags of one server mean to pipesim, as far as they were read."""

    flags: dict[str, Any] = field(default_factory=dict)
    """pipesim's flags, with underscores, and their values."""
    raw: dict[str, Any] = field(default_factory=dict)
    """Values of the engine's own flags that mean something only together."""
    ignored: list[str] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    _told: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def once(self, name: str, flag: str, value: Any) -> Any:
        """Returns the value of what may be said once only.

        Raises:
            UsageError: when it was said before, otherwise.
        """
        said, before = self._told.setdefault(name, (flag, value))
        if before != value:
            raise UsageError(f"{said} and {flag}", f"{before} and {value}", "one value of the two, which contradict")
        return value

    def set(self, name: str, flag: str, value: Any) -> None:
        """Sets one of pipesim's flags; the same twice is fine, another value is not. Raises UsageError."""
        self.flags[name] = self.once(name, flag, value)

    def ignore(self, flag: str) -> None:
        """Notes a flag that changes nothing in the answer."""
        if flag not in self.ignored:
            self.ignored.append(flag)

    def refuse(self, flag: str, given: str, why: str) -> None:
        """Notes a flag that changes the answer in a way that pipesim does not model."""
        if flag not in {entry.flag for entry in self.unsupported}:
            self.unsupported.append(Unsupported(flag, given, why))

    def set_if(self, holds: object, name: str, flag: str, value: Any) -> None:
        """Sets one of pipesim's flags where something holds; elsewhere the engine's flag changes nothing."""
        if holds:
            self.set(name, flag, value)
        else:
            self.ignore(flag)

    def refuse_if(self, holds: object, flag: str, given: str, why: str) -> None:
        """Notes what is not modelled where something holds; elsewhere the engine's flag changes nothing."""
        if holds:
            self.refuse(flag, given, why)
        else:
            self.ignore(flag)


Rule = Callable[[Reading, str, str], None]
"""(reading, flag, value) → notes what the flag means."""


@dataclass(frozen=True)
class Vocabulary:
    """The flags of an engine: how many values follow, other names, and why some change the answer."""

    switches: frozenset[str]
    lists: frozenset[str]
    values: frozenset[str]
    aliases: Mapping[str, str]
    changes: tuple[tuple[str, str], ...]
    """(patterns, why): why is empty for flags that change nothing after all."""

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Vocabulary":
        """Returns the vocabulary in one of the files beside this module."""
        switches, lists, values = (frozenset(document[kind].split()) for kind in ("switches", "lists", "values"))
        changes = tuple((row["flags"], row["why"]) for row in document["changes"])
        return cls(switches, lists, values, document["aliases"], changes)

    @cached_property
    def known(self) -> frozenset[str]:
        """Every flag under its first name."""
        return self.switches | self.lists | self.values

    def canonical(self, name: str) -> str:
        """Returns a flag's first name: an alias, or an unambiguous beginning (argparse allows both), or itself."""
        if name in self.aliases:
            return self.aliases[name]
        if name in self.known:
            return name
        meant = {flag for flag in self.known if flag.startswith(name)}
        meant |= {self.aliases[alias] for alias in self.aliases if alias.startswith(name) and len(alias) > 3}
        return meant.pop() if len(meant) == 1 and len(name) > 3 else name

    def why_changed(self, flag: str) -> str:
        """Returns why a flag changes the answer, or nothing when it does not."""
        fits = (why for patterns, why in self.changes if any(fnmatchcase(flag, p) for p in patterns.split()))
        return next(fits, "")


@dataclass(frozen=True)
class Dialect:
    """One engine's way to be launched, in both directions."""

    name: str
    title: str
    program: str
    """`PROGRAM serve MODEL …` starts the server."""
    modules: tuple[str, ...]
    """`python -m MODULE …` starts it too."""
    scripts: tuple[str, ...]
    """`python …/SCRIPT …` as well."""
    json_flags: tuple[str, ...]
    """Flags whose value is a JSON object, which may be given key by key with dots."""
    vocabulary: Vocabulary
    """The engine's flags by name."""
    rows: Mapping[str, Mapping[str, Any]]
    """By the engine's flag: rules that are data, which are read in both directions."""
    rules: Mapping[str, Rule]
    """By the engine's flag: those that mean something to pipesim."""
    partition_variable: str
    """Environment variable with the layers of each stage."""
    variables: Mapping[str, Rule]
    """By environment variable."""
    finish: Callable[[Reading], None]
    """Settles what follows from several flags together."""
    write: Callable[[Deployment], Launch]

    @classmethod
    def read(cls, name: str, rules: Mapping[str, Rule], *rest: Any) -> "Dialect":
        """Returns the dialect in the file NAME_flags.toml; `rules` are those of its flags that need a function."""
        document = tomllib.loads(Path(__file__).with_name(f"{name}_flags.toml").read_text(encoding="utf-8"))
        modules, scripts, json_flags = (tuple(document[key].split()) for key in ("modules", "scripts", "json_flags"))
        rows = document["rules"]
        known = {flag: rule_of(row) for flag, row in rows.items()} | dict(rules)
        vocabulary = Vocabulary.of(document)
        title, program = document["title"], document["program"]
        return cls(name, title, program, modules, scripts, json_flags, vocabulary, rows, known, *rest)

    def stated(self, deployment: Deployment) -> dict[str, Any]:
        """Returns the engine's flags for what a deployment sets beyond the defaults, as far as rows say them."""
        parts = (deployment.plan, deployment.engine)
        options = [(option, getattr(part, option.field)) for part in parts for option in options_of(type(part))]
        left = {option.name: value for option, value in options if value != option.unset}
        flags: dict[str, Any] = {}
        for flag, row in self.rows.items():
            name = row.get("sets", "")
            if "to" in row and left.get(name) == row["to"]:
                del left[name]
                flags[f"--{flag}"] = True
            elif "as" in row and name in left:
                value = left.pop(name)
                flags |= {f"--no-{flag}": True} if value is False else {f"--{flag}": value}
        return flags


def whole(flag: str, text: str) -> int:
    """Returns a whole number, which may have a suffix such as 8k. Raises UsageError."""
    match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)(Ki|Mi|Gi|[kmgKMG])?", text.strip())
    number = float(match[1]) * MULTIPLIERS.get(match[2] or "", 1) if match else 0.5
    if not number.is_integer():
        raise UsageError(flag, text, "a whole number")
    return int(number)


def number(flag: str, text: str) -> float:
    """Returns a number. Raises UsageError."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(flag, text, "a number") from None


def truth(flag: str, text: str) -> bool:
    """Returns whether a switch is on. Raises UsageError."""
    if text.strip().lower() in TRUE | FALSE:
        return text.strip().lower() in TRUE
    raise UsageError(flag, text, "true or false")


def partition(flag: str, text: str) -> str:
    """Returns layers per stage in the form of --layer-partition. Raises UsageError."""
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise UsageError(flag, text, 'whole numbers with commas such as "15,15,15,16"')
    return ",".join(str(int(part)) for part in text.split(","))


def json_object(flag: str, text: str) -> dict[str, Any]:
    """Returns a JSON object. Raises UsageError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UsageError(flag, text, "a JSON object in quotes, such as '{\"key\": 1}'")
    return document


def sets(name: str, convert: Callable[[str, str], Any]) -> Rule:
    """Returns the rule of a flag that is one of pipesim's under another name."""
    return lambda reading, flag, text: reading.set(name, flag, convert(flag, text))


def keeps(name: str, convert: Callable[[str, str], Any]) -> Rule:
    """Returns the rule of a flag that means something with others only: kept for `Dialect.finish`."""

    def rule(reading: Reading, flag: str, text: str) -> None:
        reading.raw[name] = reading.once(name, flag, convert(flag, text))

    return rule


def switches(name: str, value: Any) -> Rule:
    """Returns the rule of a switch that sets one of pipesim's flags when it is on."""

    def rule(reading: Reading, flag: str, text: str) -> None:
        on = reading.once(f"switch for {name} {value}", flag, truth(flag, text))
        reading.set_if(on, name, flag, value)

    return rule


def changes_unless(same: set[str], why: str, name: str = "", meanings: Mapping[str, Any] | None = None) -> Rule:
    """Returns the rule of a flag that changes nothing with some values, and with others what is not modelled.

    With the values in `meanings` it sets pipesim's flag `name`.
    """

    def rule(reading: Reading, flag: str, text: str) -> None:
        value = text.strip().lower()
        if meanings and value in meanings:
            reading.set(name, flag, meanings[value])
        else:
            reading.refuse_if(value not in same, flag, text, why)

    return rule


def plain(_flag: str, text: str) -> str:
    """Returns the value as it is."""
    return text


CONVERTERS: dict[str, Callable[[str, str], Any]] = {
    function.__name__: function for function in (whole, number, truth, partition, json_object, plain)
}


def rule_of(row: Mapping[str, Any]) -> Rule:
    """Returns the rule that a row of an engine's file of flags describes; see there for its forms."""
    if "why" in row:
        return changes_unless(set(row["same"].split()), row["why"], row.get("sets", ""), row.get("meanings"))
    if "to" in row:
        return switches(row["sets"], row["to"])
    convert = CONVERTERS[row["as"]]
    return sets(row["sets"], convert) if "sets" in row else keeps(row["keeps"], convert)
