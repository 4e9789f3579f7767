"""What a person says of measured runs beside the file that they are imported from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipesim.engine_settings import EngineName
from pipesim.errors import UsageError
from pipesim.measured import Role

DEFAULT_TOLERANCE = 0.15


@dataclass(frozen=True)
class Supplied:
    """What a person says of the runs of a file; None where the file, or else a default, is to tell."""

    default_model: str
    default_hardware: str
    model: str | None = None
    hardware: str | None = None
    engine: EngineName | None = None
    tp: int | None = None
    pp: int | None = None
    role: Role | None = None
    tolerance: float = DEFAULT_TOLERANCE
    prefix: str | None = None
    workload: Mapping[str, Any] | None = None
    """By the names of `RunWorkload`."""

    def __post_init__(self) -> None:
        if not 0.0 < self.tolerance <= 1.0:
            raise UsageError("--tolerance", self.tolerance, "a number above 0 and at most 1")
