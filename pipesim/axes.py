"""What a person writes for an axis of a grid: one value, several with commas, or a range."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from pipesim.errors import UsageError

Method = Literal["closed-form", "simulation"]
"""How the points of a grid are answered."""
MOST_POINTS = 1_000_000

RANGE_WANTED = "LOW:HIGH (doubling) or LOW:HIGH:STEP, with 0 < LOW <= HIGH and STEP above 0,"


def axis_values(
    flag: str, given: str, read: Callable[[str], Any], number: type[int] | type[float] | None, separator: str = ","
) -> Sequence[Any]:
    """Returns the values of one axis.

    "1,2,8" is three values, "1:128" doubles from 1 up to at most 128, "1:128:8" counts up in steps. Values whose own
    form has commas take another `separator`.

    Args:
        flag: named in errors.
        given: the text.
        read: turns one value's text into the value; ValueError when it is none.
        number: type of the values where a range makes sense.
        separator: between values.

    Raises:
        UsageError: for no value, one that cannot be read, a range that is none, or one value twice.
    """
    values: list[Any] = []
    for part in (part.strip() for part in given.split(separator)):
        if not part:
            continue
        if number is not None and ":" in part:
            found = _range(flag, part, number)
            if len(found) > MOST_POINTS:
                raise UsageError(flag, given, f"at most {MOST_POINTS:,} values")
            values += found
            continue
        try:
            values.append(read(part))
        except ValueError as error:
            wanted = f"numbers with commas, or {RANGE_WANTED}" if number else str(error)
            raise UsageError(flag, part, wanted) from None
    if not values:
        raise UsageError(flag, given, "at least one value")
    if len(set(values)) < len(values):
        raise UsageError(flag, given, "every value once")
    return values


def _range(flag: str, given: str, number: type[int] | type[float]) -> Sequence[Any]:
    parts = given.split(":")
    try:
        low, high, *step = (number(part) for part in parts)
    except ValueError:
        raise UsageError(flag, given, RANGE_WANTED) from None
    if len(parts) > 3 or not 0 < low <= high < math.inf or any(not 0 < size < math.inf for size in step):
        raise UsageError(flag, given, RANGE_WANTED)
    if not step:
        doublings = int(math.log2(high / low) + 1e-9) + 1
        return [low * 2**power for power in range(doublings)]
    count = int((high - low) / step[0] + 1e-9) + 1
    return [low + step[0] * index for index in range(min(count, MOST_POINTS + 1))]


def grid_size(axes: Mapping[str, Sequence[Any]]) -> int:
    """Returns the number of points of a grid. Raises UsageError when they are too many."""
    size = math.prod(len(values) for values in axes.values())
    if size > MOST_POINTS:
        sizes = " x ".join(f"{len(values):,} {name}" for name, values in axes.items() if len(values) > 1)
        raise UsageError("sweep", f"{sizes} = {size:,} points", f"a grid of at most {MOST_POINTS:,} points")
    return size
