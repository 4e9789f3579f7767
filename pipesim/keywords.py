"""The options of the command line as keywords of Python: the same names, defaults and meaning, checked as they are."""

import difflib
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

import numpy as np
import typer

from pipesim.asking import kinds_of
from pipesim.axes import axis_values
from pipesim.errors import UsageError
from pipesim.flags import Option
from pipesim.options import OPTIONS

PROFILES = ("model", "hardware")
"""Options that every function has as parameters of its own."""

Function = TypeVar("Function", bound=Callable[..., Any])
Flags = Mapping[str, Any]


def documented(lists: bool = False) -> Callable[[Function], Function]:
    """Returns a decorator for a function whose `**flags` are options: its signature and docstring then name them."""

    def decorate(function: Function) -> Function:
        own = [p for p in inspect.signature(function).parameters.values() if p.name != "flags"]
        names = {parameter.name for parameter in own}
        shared = [option for option in OPTIONS.values() if option.name not in names]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(
                o.name, keyword, default=o.default, annotation=o.kind | Sequence[Any] if lists else o.kind
            )
            for o in shared
        ]
        function.__signature__ = inspect.Signature([*own, *parameters])  # type: ignore[attr-defined]
        lines = "".join(f"    {o.name}: {o.said.help}{_default(o)}\n" for o in shared)
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nFlags, as on the command line:\n{lines}"
        return function

    return decorate


def _default(option: Option) -> str:
    return "" if option.default is None else f" Default: {option.default!r}."


def checked(flags: Flags) -> dict[str, Any]:
    """Returns parameters of `question` for keywords that a person gave.

    Raises:
        TypeError: for a keyword that is no option.
        UsageError: for a value of the wrong type.
    """
    return {name: value_of(name, given) for name, given in named(flags).items()}


def named(flags: Flags) -> dict[str, Any]:
    """Returns keywords under the names of parameters, whichever spelling was given. Raises TypeError."""
    spellings = {word: option.name for option in OPTIONS.values() for word in _spellings(option)}
    found: dict[str, Any] = {}
    for word, value in flags.items():
        if word not in spellings:
            near = difflib.get_close_matches(word, spellings, n=1)
            raise TypeError(f"unexpected keyword {word!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        if spellings[word] in found:
            raise TypeError(f"{word!r} was given twice, under two of its names")
        found[spellings[word]] = value
    return found


def _spellings(option: Option) -> tuple[str, ...]:
    """Returns every spelling of an option as a keyword."""
    words = () if option.name in PROFILES else option.words
    return (option.name, *(word.partition("/")[0].removeprefix("--").replace("-", "_") for word in words))


def context_of(given: Flags) -> typer.Context:
    """Returns what stands for the command line's context: it knows which options were given, and their values."""
    return cast(typer.Context, _Given(dict(given)))


class _Default(NamedTuple):
    name: str = "DEFAULT"


class _Given:
    """The part of a typer.Context that `question` looks at."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params = params

    def get_parameter_source(self, name: str) -> _Default | None:
        return None if name in self.params else _Default()


def value_of(name: str, given: Any) -> Any:
    """Returns the value of one option as `question` takes it. Raises UsageError for a value of another type."""
    option, kinds = OPTIONS[name], kinds_of(OPTIONS[name].kind)
    if given is None and type(None) in kinds:
        return None
    if option.numbers is not None and _is_several(given):
        return ",".join(map(str, given))
    kind = kinds[0]
    if get_origin(kind) is Literal:
        if given in get_args(kind):
            return given
        raise UsageError(option.flag, given, f"one of {', '.join(get_args(kind))}")
    read, wanted = _READERS[kind]
    try:
        return read(given)
    except TypeError:
        raise UsageError(option.flag, given, wanted) from None


def axis_of(name: str, given: Any) -> Sequence[Any]:
    """Returns the values of one option in a grid: those of a list, of a range such as "1:128", or the one given.

    Raises:
        UsageError: for none, one twice, or one of the wrong type.
    """
    option, kinds = OPTIONS[name], kinds_of(OPTIONS[name].kind)
    if isinstance(given, str) and kinds[0] in {int, float}:
        return axis_values(option.flag, given, kinds[0], kinds[0])
    several = _is_several(given) and not (option.numbers is not None and all(isinstance(part, Real) for part in given))
    values = [value_of(name, part) for part in (given if several else [given])]
    if not values:
        raise UsageError(option.flag, given, "at least one value")
    if len(set(values)) < len(values):
        raise UsageError(option.flag, given, "every value once")
    return values


def _is_several(given: Any) -> bool:
    return isinstance(given, list | tuple | range | np.ndarray)


def _whole(given: Any) -> int:
    if isinstance(given, bool):
        raise TypeError
    return operator.index(given)


def _real(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError
    return float(given)


def _truth(given: Any) -> bool:
    if not isinstance(given, bool | np.bool_):
        raise TypeError
    return bool(given)


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


_READERS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (_whole, "a whole number"),
    float: (_real, "a number"),
    bool: (_truth, "True or False"),
    str: (_text, "a text, quantities with their unit"),
    Path: (Path, "a path"),
}
