"""How a command asks: the options of `question` as `predict` has them, open to a search, or with many values each."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from pipesim.axes import axis_values
from pipesim.deployment import ParallelPlan
from pipesim.errors import UsageError
from pipesim.flags import made, options_of
from pipesim.options import OPTIONS, Question, hint_of, question

DEGREES = (*(o.name for o in options_of(ParallelPlan) if o.name != "balancer"), "enable_expert_parallel")
"""Options that say how a model is split."""
SEARCHED = (*DEGREES, "pp_max_micro_batch_size", "pp_async_batch_depth", "chunked_prefill_size", "kv_cache_dtype")
"""Options that a search for the best plan chooses where they are not given."""


def takes(owner: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator for commands with a parameter of a dataclass: it is made of the options of its fields."""
    options = {option.name: (hint_of(option), option.default) for option in options_of(owner)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = _own(command)
        into = next(name for name, (hint, _) in own.items() if hint is owner)
        del own[into]

        @functools.wraps(command)
        def ask(**given: Any) -> None:
            said = made(owner, {name: given.pop(name) for name in options})
            command(**{into: said}, **given)

        return _with(ask, options | own)

    return decorate


def _own(function: Callable[..., Any], skipped: int = 0) -> dict[str, tuple[Any, Any]]:
    """Returns hint and default of a function's parameters by name, without the first few."""
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    return {parameter.name: (hints[parameter.name], parameter.default) for parameter in parameters}


def _with(ask: Callable[..., None], parameters: Mapping[str, tuple[Any, Any]]) -> Callable[..., None]:
    """Returns a function that Typer takes to have parameters of these hints and defaults."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    ask.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, keyword, default=at, annotation=hint) for name, (hint, at) in parameters.items()]
    )
    ask.__annotations__ = {name: hint for name, (hint, _) in parameters.items()}
    return ask


CONTEXT = {"context": (typer.Context, inspect.Parameter.empty)}


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
    own = _own(command, 1)
    shared = {name: option for name, option in OPTIONS.items() if name not in own}

    @functools.wraps(command)
    def ask(**given: Any) -> None:
        asked = ask_openly({name: given.pop(name) for name in (*CONTEXT, *shared)}, searched)
        command(asked, **given)

    parameters = {
        name: (hint_of(option, option.kind | None), None) if name in searched else (hint_of(option), option.default)
        for name, option in shared.items()
    }
    return _with(ask, CONTEXT | parameters | own)


def ask_openly(given: Mapping[str, Any], searched: Sequence[str] = SEARCHED) -> Question:
    """Returns the question that values of parameters of `question` ask.

    Of those searched, what is given and not None goes into `Question.fixed`. Raises UsageError.
    """
    fixed = {name: given[name] for name in searched if given.get(name) is not None}
    left_open = {name for name in searched if name in DEGREES or given.get(name) is None}
    asked = question(**{name: value for name, value in given.items() if name not in left_open})
    lists = {name: OPTIONS[name].read(text) for name, text in fixed.items() if OPTIONS[name].numbers}
    return replace(asked, fixed=fixed | lists)


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
    switches = {name for name, option in OPTIONS.items() if option.kind is bool}

    @functools.wraps(command)
    def ask(context: typer.Context, vary: list[str] | None, **given: Any) -> None:
        texts = {name: given.pop(name) for name in OPTIONS}
        set_for_all = {name: texts.pop(name) for name in switches}
        texts |= dict(map(_varied, vary or []))
        axes = {
            name: axis_values(option.flag, texts[name], *_reader(option.kind), ";" if option.numbers else ",")
            for name, option in OPTIONS.items()
            if texts.get(name) is not None
        }
        defaults = {name: option.default for name, option in OPTIONS.items()} | set_for_all
        command(Grid(axes, defaults, functools.partial(question, context)), **given)

    parameters = {
        name: (hint_of(option), option.default) if name in switches else (hint_of(option, str | None), None)
        for name, option in OPTIONS.items()
    }
    return _with(ask, CONTEXT | parameters | {"vary": (Vary, None)} | _own(command, 1))


Vary = Annotated[
    list[str] | None, typer.Option("--vary", help="NAME=V1,V2: an axis of any option, switches among them.")
]


def _varied(given: str) -> tuple[str, str]:
    name, equals, values = given.partition("=")
    wanted = name.strip().removeprefix("--").replace("-", "_")
    if not equals or wanted not in OPTIONS:
        raise UsageError("--vary", given, "NAME=V1,V2 with the name of an option such as cuda-graph")
    return wanted, values


def _reader(hint: Any) -> tuple[Callable[[str], Any], type[int] | type[float] | None]:
    """Returns what reads one value of an option of some type, and the type where ranges make sense."""
    kind = kinds_of(hint)[0]
    if kind in {int, float}:
        return kind, kind
    if get_origin(kind) is Literal:
        return functools.partial(_one_of, get_args(kind)), None
    return (_truth if kind is bool else kind), None


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Returns the types that an option may have."""
    return get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)


def _one_of(allowed: tuple[str, ...], given: str) -> str:
    if given not in allowed:
        raise ValueError(f"one of {', '.join(allowed)}")
    return given


def _truth(given: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if given.lower() not in words:
        raise ValueError("true or false")
    return words[given.lower()]
