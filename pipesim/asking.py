"""How a command asks: the options of `question` as `predict` has them, open to a search, or with many values each."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from pipesim.axes import axis_values
from pipesim.errors import UsageError
from pipesim.options import Question, parse_integers, question

DEGREES = (
    "tp",
    "pp",
    "ep",
    "enable_expert_parallel",
    "dp_attention",
    "dcp",
    "replicas",
    "layer_partition",
    "placement",
)
"""Parameters of `question` that say how a model is split."""
LISTS = {"layer_partition": "15,15,15,16", "placement": "0,2,1,3"}
"""Parameters that hold a list, and an example."""
SEARCHED = (
    *DEGREES,
    "pp_max_micro_batch_size",
    "pp_async_batch_depth",
    "chunked_prefill_size",
    "kv_cache_dtype",
)
"""Parameters of `question` that a search for the best plan chooses where they are not given."""


def takes(source: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator for commands whose first parameter is what `source` makes of options.

    The command then has the options of `source` in the place of that parameter, and its own behind them.
    """
    shared = inspect.signature(source).parameters

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        hints = get_type_hints(source, include_extras=True) | get_type_hints(command, include_extras=True)

        @functools.wraps(command)
        def ask(**given: Any) -> None:
            asked = source(**{name: given.pop(name) for name in shared})
            command(asked, **given)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*shared.values(), *own)]
        ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        ask.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
        return ask

    return decorate


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose first parameter, a `Question`, is replaced by the options of `question`.

    A parameter of the command's own takes the place of the option of the same name.
    """
    return _asking(command, ())


def asks_openly(command: Callable[..., None]) -> Callable[..., None]:
    """Like `asks`, but what is searched has no default: `Question.fixed` holds what was given of it.

    The question's own plan is then the trivial one, and its settings hold what was given and the defaults.
    """
    return _asking(command, SEARCHED)


def _asking(command: Callable[..., None], searched: tuple[str, ...]) -> Callable[..., None]:
    own = {parameter.name: parameter for parameter in list(inspect.signature(command).parameters.values())[1:]}
    shared = {name: p for name, p in inspect.signature(question).parameters.items() if name not in own}
    hints = get_type_hints(question, include_extras=True) | get_type_hints(command, include_extras=True)

    @functools.wraps(command)
    def ask(**given: Any) -> None:
        asked = ask_openly({name: given.pop(name) for name in shared}, searched)
        command(asked, **given)

    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None if p.name in searched else p.default)
        for p in (*shared.values(), *own.values())
    ]
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {
        parameter.name: _optional(hints[parameter.name]) if parameter.name in searched else hints[parameter.name]
        for parameter in parameters
    }
    return ask


def ask_openly(given: Mapping[str, Any], searched: Sequence[str] = SEARCHED) -> Question:
    """Returns the question that values of parameters of `question` ask.

    Of those searched, what is given and not None goes into `Question.fixed`. Raises UsageError.
    """
    fixed = {name: given[name] for name in searched if given.get(name) is not None}
    left_open = {name for name in searched if name in DEGREES or given.get(name) is None}
    asked = question(**{name: value for name, value in given.items() if name not in left_open})
    for name, example in LISTS.items():
        if name in fixed:
            fixed[name] = parse_integers(f"--{name.replace('_', '-')}", fixed[name], example)
    return replace(asked, fixed=fixed)


def _optional(hint: Any) -> Any:
    """Returns the hint of an option that may be left out, whatever its type."""
    kind, option = get_args(hint)
    return Annotated[kind | None, option]


@dataclass(frozen=True)
class Grid:
    """Many questions: the values of what was given, and how a point of them becomes a question."""

    axes: dict[str, Sequence[Any]]
    """Values by parameter of `question`, in its order; the last varies fastest."""
    defaults: dict[str, Any]
    """Of the other parameters."""
    ask: Callable[..., Question]


def asks_grid(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command whose first parameter, a `Grid`, is replaced by the options of `question`, each with an axis.

    A value option takes several values and ranges (see `axis_values`); a switch is set for all points, or varied with
    `--vary NAME=true,false`, which takes any option's name.
    """
    own = {parameter.name: parameter for parameter in list(inspect.signature(command).parameters.values())[1:]}
    shared = {name: p for name, p in inspect.signature(question).parameters.items() if name != "context"}
    hints = get_type_hints(question, include_extras=True)
    kinds = {name: get_args(hints[name])[0] for name in shared}
    flags = {name: str(get_args(hints[name])[1].default).partition("/")[0] for name in shared}

    @functools.wraps(command)
    def ask(context: typer.Context, vary: list[str] | None, **given: Any) -> None:
        texts = {name: given.pop(name) for name in shared}
        switches = {name: texts.pop(name) for name in shared if kinds[name] is bool}
        texts |= dict(_varied(part, shared, flags) for part in vary or [])
        axes = {
            name: axis_values(flags[name], texts[name], *_reader(kinds[name]), _separator(name))
            for name in shared
            if texts.get(name) is not None
        }
        defaults = {name: parameter.default for name, parameter in shared.items()} | switches
        command(Grid(axes, defaults, functools.partial(question, context)), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own_hints = get_type_hints(command, include_extras=True)
    texts = {name: Annotated[str | None, get_args(hints[name])[1]] for name in shared}
    parameters = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        *(
            inspect.Parameter(name, keyword, default=p.default, annotation=hints[name])
            if kinds[name] is bool
            else inspect.Parameter(name, keyword, default=None, annotation=texts[name])
            for name, p in shared.items()
        ),
        inspect.Parameter("vary", keyword, default=None, annotation=Vary),
        *(p.replace(kind=keyword, annotation=own_hints[name]) for name, p in own.items()),
    ]
    ask.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    ask.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return ask


Vary = Annotated[
    list[str] | None, typer.Option("--vary", help="NAME=V1,V2: an axis of any option, switches among them.")
]


def _varied(given: str, shared: Mapping[str, Any], flags: Mapping[str, str]) -> tuple[str, str]:
    name, equals, values = given.partition("=")
    wanted = name.strip().removeprefix("--").replace("-", "_")
    words = {known: {known, flags[known].removeprefix("--").replace("-", "_")} for known in shared}
    found = next((known for known in shared if wanted in words[known]), "")
    if not equals or not found:
        raise UsageError("--vary", given, "NAME=V1,V2 with the name of an option such as cuda-graph")
    return found, values


def _separator(name: str) -> str:
    """Values that have commas themselves are set apart by semicolons."""
    return ";" if name in {*LISTS, "speculative_acceptance"} else ","


def _reader(hint: Any) -> tuple[Callable[[str], Any], type[int] | type[float] | None]:
    """Returns what reads one value of an option of some type, and the type where ranges make sense."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if isinstance(hint, UnionType) else [hint]
    kind = kinds[0]
    if kind in {int, float}:
        return kind, kind
    if get_origin(kind) is Literal:
        return functools.partial(_one_of, get_args(kind)), None
    return (_truth if kind is bool else kind), None


def _one_of(allowed: tuple[str, ...], given: str) -> str:
    if given not in allowed:
        raise ValueError(f"one of {', '.join(allowed)}")
    return given


def _truth(given: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if given.lower() not in words:
        raise ValueError("true or false")
    return words[given.lower()]
