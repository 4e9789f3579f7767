"""Files that are there as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipesim.errors import UsageError


def unwritable(flag: str, path: Path, reason: str) -> UsageError:
    """Returns the refusal of a file that cannot be written."""
    return UsageError(flag, str(path), f"a file that can be written ({reason})")


@contextmanager
def whole_file(path: Path, flag: str) -> Iterator[TextIO]:
    """Yields a file to write; it is in its place when the `with` block ends well, and not at all otherwise.

    Raises:
        UsageError: naming the flag, when the file cannot be written.
    """
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.exists() and not path.is_file():
        raise unwritable(flag, path, "it is no regular file")
    try:
        file = draft.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise unwritable(flag, path, error.strerror or str(error)) from None
    try:
        with file:
            yield file
        draft.replace(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(flag, path, error.strerror or str(error)) from None
    finally:
        draft.unlink(missing_ok=True)
