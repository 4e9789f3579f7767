"""How a command asks: its `Question` becomes the options of `question`, as `predict` has them or open to a search."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, get_args, get_type_hints

from pipesim.options import parse_partition, question

DEGREES = ("tp", "pp", "ep", "enable_expert_parallel", "dp_attention", "dcp", "replicas", "layer_partition")
"""Parameters of `question` that say how a model is split."""
SEARCHED = (
    *DEGREES,
    "pp_max_micro_batch_size",
    "pp_async_batch_depth",
    "chunked_prefill_size",
    "kv_cache_dtype",
)
"""Parameters of `question` that a search for the best plan chooses where they are not given."""


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
        fixed = {name: given[name] for name in searched if given[name] is not None}
        for name in searched:
            if name in DEGREES or given[name] is None:
                given[name] = shared[name].default
        asked = question(**{name: given.pop(name) for name in shared})
        if "layer_partition" in fixed:
            fixed["layer_partition"] = parse_partition(fixed["layer_partition"])
        command(replace(asked, fixed=fixed), **given)

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


def _optional(hint: Any) -> Any:
    """Returns the hint of an option that may be left out, whatever its type."""
    kind, option = get_args(hint)
    return Annotated[kind | None, option]
