"""What happened to each request of some runs, as a CSV file with a row per request and seed."""

from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from pipesim.files import unwritable, whole_file
from pipesim.timeline import Timeline
from pipesim.units import PICOSECONDS_PER_SECOND

FLAG = "--requests"
COLUMNS = (
    "seed",
    "index",
    "arrival_s",
    "slot",
    "first_token_s",
    "last_token_s",
    "input_len",
    "output_len",
    "context_len",
)
"""Times on the simulated clock [s], exact; `input_len` was prefilled, `context_len` was in the KV cache before."""


class RequestRecords:
    """A file of request records, in place as a whole when the `with` block ends well, and not at all otherwise.

    Raises:
        UsageError: when the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._whole = whole_file(path, FLAG)
        self._file: TextIO

    def __enter__(self) -> Self:
        self._file = self._whole.__enter__()
        self._file.write(",".join(COLUMNS) + "\n")
        return self

    def add(self, seed: int, timeline: Timeline) -> None:
        """Writes the requests of one run."""
        arrivals, firsts, lasts = (
            map(_seconds, clock.tolist()) for clock in (timeline.arrival, timeline.first_token, timeline.last_token)
        )
        slots, inputs, outputs, contexts = (
            values.tolist()
            for values in (timeline.request_slot, timeline.input_len, timeline.output_len, timeline.context_len)
        )
        rows = zip(arrivals, slots, firsts, lasts, inputs, outputs, contexts, strict=True)
        try:
            self._file.writelines(f"{seed},{index},{','.join(map(str, row))}\n" for index, row in enumerate(rows))
        except OSError as error:
            raise unwritable(FLAG, self._path, error.strerror or str(error)) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._whole.__exit__(kind, error, trace)


def _seconds(picoseconds: int) -> str:
    whole, rest = divmod(picoseconds, PICOSECONDS_PER_SECOND)
    return f"{whole}.{rest:012d}"
