"""What a person says of measured runs beside the file that they are imported from."""

from dataclasses import dataclass
from typing import Any

from pipesim.engine_settings import EngineName
from pipesim.errors import UsageError
from pipesim.flags import check_ranges, flag
from pipesim.measured import Role
from pipesim.profiles.names import DEFAULT_HARDWARE, DEFAULT_MODEL

UNSAID = "where the file does not say"
COUNT = 1, 1_000_000
OF_THE_LOAD = ("concurrency", "num_prompts", "input_len", "output_len", "random_range_ratio")


@dataclass(frozen=True)
class Supplied:
    """What a person says of the runs of a file; None where the file, or else a default, is to tell."""

    model: str | None = flag(
        None, f"Model profile (default: the file's own, or {DEFAULT_MODEL}).", "--model", "--model-path"
    )
    hardware: str | None = flag(None, f"Hardware profile (default: the file's own, or {DEFAULT_HARDWARE}).")
    engine: EngineName | None = flag(None, f"Serving engine, {UNSAID}.")
    tp: int | None = flag(None, f"Tensor-parallel degree, {UNSAID}.", "--tp", "--tp-size", within=COUNT)
    pp: int | None = flag(None, f"Pipeline stages, {UNSAID}.", "--pp", "--pp-size", within=COUNT)
    concurrency: int | None = flag(
        None, f"Users, {UNSAID}.", "--concurrency", "--max-concurrency", "--batch-size", within=COUNT
    )
    num_prompts: int | None = flag(None, f"Requests in all, {UNSAID}.", within=COUNT)
    input_len: int | None = flag(None, f"Prompt tokens, {UNSAID}.", within=COUNT)
    output_len: int | None = flag(None, f"Generated tokens, {UNSAID}.", within=COUNT)
    random_range_ratio: float | None = flag(None, f"Lengths uniform in L(1-r) to L(1+r), {UNSAID}.", within=(0.0, 1.0))
    role: Role | None = flag(None, "Judged, used to fit, or only shown (default: validation).")
    tolerance: float = flag(0.15, "Largest relative error of a good prediction.")
    prefix: str | None = flag(None, "How ids of runs begin (default: the file's name).", "--id")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not 0.0 < self.tolerance <= 1.0:
            raise UsageError("--tolerance", self.tolerance, "a number above 0 and at most 1")

    @property
    def workload(self) -> dict[str, Any]:
        """What is said of the load, by the names of `RunWorkload`."""
        return {name: value for name in OF_THE_LOAD if (value := getattr(self, name)) is not None}
