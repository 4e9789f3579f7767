"""What importers of a tool's printed output share: text that is text, without colours and prompts of a terminal."""

from pathlib import Path

from pipesim.errors import ProfileError
from pipesim.importers import COLOUR

LONGEST_FILE = 16 * 2**20


def printed_lines(path: Path, wanted: str) -> list[str]:
    """Returns the lines of a tool's output, colour codes taken out.

    Raises:
        ProfileError: when the file cannot be read, is empty or not text; `wanted` says what should be in it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(path, "", error.strerror or "an unreadable file", wanted) from None
    if len(data) > LONGEST_FILE:
        raise ProfileError(path, "", f"{len(data):,} bytes", f"a file of at most {LONGEST_FILE:,} bytes")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ProfileError(path, "", f"a binary file (byte {error.start} is not text)", wanted) from None
    if "\0" in text:
        raise ProfileError(path, "", f"a binary file (byte {data.index(0)} is zero)", wanted)
    if not text.strip():
        raise ProfileError(path, "", "an empty file", wanted)
    return COLOUR.sub("", text).splitlines()
