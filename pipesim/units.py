"""Quantity strings and SI floats: the only place where a unit is read or written.

Inside the program every quantity is a float in SI units (seconds, bytes, bytes per second, FLOP per second).
In a file it is a string with its unit, for example "64 GB/s", "5 us", "96 GiB".
The simulated clock alone counts whole picoseconds (`Picoseconds`), so that its sums are exact.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from quantiphy import InvalidNumber, Quantity

PICOSECONDS_PER_SECOND = 10**12

type_examples = {"s": "5 us", "B": "96 GiB", "B/s": "64 GB/s", "FLOP/s": "467.8 TFLOP/s"}


def to_picoseconds(seconds: float) -> int:
    """Returns a duration [s] as whole picoseconds of the simulated clock."""
    return round(seconds * PICOSECONDS_PER_SECOND)


def to_seconds(picoseconds: float) -> float:
    """Returns a time on the simulated clock [ps] in seconds."""
    return picoseconds / PICOSECONDS_PER_SECOND


def parse_quantity(given: object, unit: str) -> float:
    """Returns the SI value of a quantity string such as "64 GB/s".

    Args:
        given: what stands in the file or after the flag.
        unit: the unit wanted, without prefix: "s", "B", "B/s" or "FLOP/s".

    Raises:
        ValueError: when it is no string, has no number, another unit (bits for bytes among them), or is not a
            finite number of at least zero. The text says what was given and what is wanted.
    """
    wanted = f'a quantity in {unit} such as "{type_examples[unit]}"'
    if not isinstance(given, str):
        raise ValueError(f"{given!r} without a unit; {wanted} is wanted")
    try:
        quantity = Quantity(given, binary=True)
    except InvalidNumber:
        quantity = None
    if quantity is None or set(given) & {",", "_"}:
        raise ValueError(f'"{given}", which is no quantity; {wanted} is wanted')
    if quantity.units.replace("b", "B") == unit and quantity.units != unit:
        raise ValueError(f'"{given}", which counts bits, 8 to a byte; {wanted} is wanted')
    if quantity.units != unit:
        found = f'with the unit "{quantity.units}"' if quantity.units else "without a unit"
        raise ValueError(f'"{given}" {found}; {wanted} is wanted')
    value = float(quantity)
    if not math.isfinite(value) or value < 0:
        raise ValueError(f'"{given}", which is not finite and at least zero; {wanted} is wanted')
    return value


def format_quantity(value: float, unit: str) -> str:
    """Returns a quantity string that `parse_quantity` reads back to the same float."""
    if value and not 1e-15 < value < 1e18:
        return f"{value!r} {unit}"
    text = Quantity(value, unit).render(prec="full", strip_zeros=True)
    return text if parse_quantity(text, unit) == value else f"{value!r} {unit}"


def _reader(unit: str) -> Callable[[object], float]:
    def read(given: object) -> float:
        return parse_quantity(given, unit)

    return read


def _writer(unit: str) -> Callable[[float], str]:
    def write(value: float) -> str:
        return format_quantity(value, unit)

    return write


def _schema(unit: str) -> dict[str, Any]:
    return {"type": "string", "description": f"a quantity in {unit}", "examples": [type_examples[unit]]}


Seconds = Annotated[float, BeforeValidator(_reader("s")), PlainSerializer(_writer("s")), WithJsonSchema(_schema("s"))]
Bytes = Annotated[float, BeforeValidator(_reader("B")), PlainSerializer(_writer("B")), WithJsonSchema(_schema("B"))]
BytesPerSecond = Annotated[
    float,
    BeforeValidator(_reader("B/s")),
    Field(ge=1e3),
    PlainSerializer(_writer("B/s")),
    WithJsonSchema(_schema("B/s")),
]
FlopsPerSecond = Annotated[
    float,
    BeforeValidator(_reader("FLOP/s")),
    Field(ge=1e6),
    PlainSerializer(_writer("FLOP/s")),
    WithJsonSchema(_schema("FLOP/s")),
]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
EfficiencyFraction = Annotated[float, Field(ge=1e-4, le=1.0)]
