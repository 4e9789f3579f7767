"""What happened to each request of some runs, as a CSV file with a row per request and seed."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from pipesim.errors import UsageError
from pipesim.timeline import Timeline
from pipesim.units import PICOSECONDS_PER_SECOND

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
        self._draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        self._file: TextIO

    def __enter__(self) -> Self:
        if self._path.exists() and not self._path.is_file():
            raise self._refusal("it is no regular file")
        try:
            self._file = self._draft.open("w", encoding="utf-8", newline="")
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from None
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
            raise self._refusal(error.strerror or str(error)) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
            if kind is None:
                self._draft.replace(self._path)
        except OSError as failure:
            raise self._refusal(failure.strerror or str(failure)) from None
        finally:
            self._draft.unlink(missing_ok=True)

    def _refusal(self, reason: str) -> UsageError:
        return UsageError("--requests", str(self._path), f"a file that can be written ({reason})")


def _seconds(picoseconds: int) -> str:
    whole, rest = divmod(picoseconds, PICOSECONDS_PER_SECOND)
    return f"{whole}.{rest:012d}"
