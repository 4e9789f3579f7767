"""What importers of a tool's printed output share: text that is text, without colours and prompts of a terminal."""

from pathlib import Path

from pipesim.files import read_text
from pipesim.importers import COLOUR

LONGEST_FILE = 16 * 2**20


def printed_lines(path: Path, wanted: str) -> list[str]:
    """Returns the lines of a tool's output, colour codes taken out.

    Raises:
        ProfileError: when the file cannot be read, is empty or not text; `wanted` says what should be in it.
    """
    return COLOUR.sub("", read_text(path, wanted, LONGEST_FILE)).splitlines()
