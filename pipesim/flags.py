"""What people set is described once, where its field is declared: all that names flags reads it there."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_origin, get_type_hints

from pipesim.errors import UsageError


@dataclass(frozen=True)
class Flag:
    """How a person sets a field."""

    help: str
    words: tuple[str, ...]
    """Every spelling, pipesim's own first; none for the field's name."""
    within: tuple[float, float] | None
    """Least and largest value."""
    example: str
    """Of a list, as a person writes it."""
    kind: Any
    """Type of what is written, where it is another than the field's."""
    read: Callable[[str], Any] | None
    """Turns that into the field's value."""
    metavar: str | None
    engine: str
    """The one engine that has it; none where several have."""


def flag(
    default: Any,
    help: str,
    *words: str,
    within: tuple[float, float] | None = None,
    example: str = "",
    kind: Any = None,
    read: Callable[[str], Any] | None = None,
    metavar: str | None = None,
    engine: str = "",
) -> Any:
    """Returns the field of a dataclass that a person sets with a flag; see `Flag`."""
    return field(default=default, metadata={"flag": Flag(help, words, within, example, kind, read, metavar, engine)})


@dataclass(frozen=True)
class Option:
    """A flag with what its field says of it."""

    name: str
    """Keyword in Python and parameter of a command: pipesim's spelling without dashes."""
    field: str
    kind: Any
    """Type of what a person writes."""
    default: Any
    """Where nothing is written."""
    unset: Any
    """The field's value there."""
    words: tuple[str, ...]
    """Every spelling, with its negation behind a slash where it has one."""
    numbers: type[int] | type[float] | None
    """Of a field that is a list: what it lists."""
    said: Flag

    @property
    def flag(self) -> str:
        """Pipesim's spelling."""
        return self.words[0].partition("/")[0]

    def read(self, given: Any) -> Any:
        """Returns the field's value of what was written. Raises UsageError."""
        if given is None:
            return self.unset
        if self.numbers is not None:
            return parse_numbers(self.flag, given, self.said.example, self.numbers)
        return given if self.said.read is None else self.said.read(given)


def options_of(owner: Any) -> tuple[Option, ...]:
    """Returns the options that set the fields of a dataclass, in its order."""
    return _known(owner)


@functools.cache
def _known(owner: type) -> tuple[Option, ...]:
    return tuple(_options(owner))


def _options(owner: type) -> Iterator[Option]:
    hints = get_type_hints(owner)
    for item in fields(owner):
        if "flag" in item.metadata:
            said = item.metadata["flag"]
            words = said.words or ("--" + item.name.replace("_", "-"),)
            listed = next((part for part in (hints[item.name], *get_args(hints[item.name])) if _is_list(part)), None)
            kind = str | None if listed else said.kind or hints[item.name]
            default = None if listed else item.default
            name = words[0].partition("/")[0].removeprefix("--").replace("-", "_")
            numbers = get_args(listed)[0] if listed else None
            yield Option(name, item.name, kind, default, item.default, words, numbers, said)


def made(owner: Any, given: Mapping[str, Any]) -> Any:
    """Returns an instance of a dataclass of what was written, by names of options. Raises UsageError."""
    return owner(
        **{option.field: option.read(given[option.name]) for option in options_of(owner) if option.name in given}
    )


def words_of(described: Any, names: Collection[str] | None = None) -> list[str]:
    """Returns the flags of what an instance of a dataclass sets beyond its defaults, of those named or of all."""
    words: list[str] = []
    for option in options_of(type(described)):
        value = getattr(described, option.field)
        if value == option.unset or not (names is None or option.name in names):
            continue
        with_it, _, without = option.words[0].partition("/")
        if isinstance(value, bool):
            words.append(with_it if value else without)
        else:
            words += [with_it, ",".join(map(str, value)) if option.numbers else str(value)]
    return words


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is tuple


def parse_numbers(name: str, given: str, example: str, number: type[int] | type[float] = int) -> tuple[Any, ...]:
    """Returns the numbers of a list with commas. Raises UsageError for what is none."""
    try:
        return tuple(number(part) for part in given.split(","))
    except ValueError:
        kind = "whole numbers" if number is int else "numbers"
        raise UsageError(name, given, f'{kind} with commas such as "{example}"') from None


def check_ranges(described: Any) -> None:
    """Raises UsageError for a field of a dataclass that is set to a number outside the range of its flag."""
    for option in options_of(type(described)):
        value = getattr(described, option.field)
        if option.said.within is not None and value is not None:
            low, high = option.said.within
            if not low <= value <= high:
                most = f"{high:,}" if high >= 10_000 else f"{high:g}"
                kind = "a whole number" if isinstance(low, int) else "a number"
                raise UsageError(option.flag, value, f"{kind} from {low:g} to {most}")
