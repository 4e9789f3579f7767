"""Files that are there as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    with _draft_of(path, flag) as draft, draft.open("w", encoding="utf-8", newline="") as file:
        yield file


def write_whole(path: Path, content: str | bytes, flag: str = "--output") -> None:
    """Writes a file in one go: whoever looks sees the old one or the new one, never a half.

    Raises:
        UsageError: naming the flag, when it cannot be written.
    """
    with _draft_of(path, flag) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def _draft_of(path: Path, flag: str) -> Iterator[Path]:
    """Yields where to write what becomes the file when the `with` block ends well."""
    path = path.resolve()
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.exists() and not path.is_file():
        raise unwritable(flag, path, "it is no regular file")
    try:
        yield draft
        draft.replace(path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(flag, path, error.strerror or str(error)) from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
