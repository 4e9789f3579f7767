"""Files that are there as a whole or not at all, and text that somebody hands in."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pipesim.errors import ProfileError, UsageError

LONGEST_FILE = 64 * 2**20


def read_text(path: Path, wanted: str, most: int = LONGEST_FILE, cut_off: bool = False) -> str:
    """Returns the text of a file, whatever its line ends and byte order mark.

    Args:
        path: the file.
        wanted: what should be in it, in words.
        most: bytes that it may have.
        cut_off: whether a last character that is not whole is left out, as of a log that is being written.

    Raises:
        ProfileError: when it cannot be read, is too large, empty or binary.
    """
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= most else b""
    except OSError as error:
        raise ProfileError(path, "", error.strerror or "an unreadable file", wanted) from None
    if size > most:
        raise ProfileError(path, "", f"{size:,} bytes", f"{wanted}, in a file of at most {most:,} bytes")
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        if not cut_off or error.end < len(data) - 3 or error.reason != "unexpected end of data":
            raise ProfileError(path, "", f"a binary file (byte {error.start} is not text)", wanted) from None
        text = data[: error.start].decode("utf-8-sig")
    if "\0" in text:
        raise ProfileError(path, "", f"a binary file (byte {text.index(chr(0))} is zero)", wanted)
    if not text.strip():
        raise ProfileError(path, "", "an empty file", wanted)
    return text.replace("\r\n", "\n").replace("\r", "\n")


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
