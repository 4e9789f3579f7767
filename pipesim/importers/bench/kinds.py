"""What a file looks like that is not of the kind wanted, so that a complaint can say what it is instead."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KINDS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Other tools' files: patterns in a text, keys of a JSON object, and what the file is."""


def look_of_text(text: str) -> str:
    """Returns in words what a text without JSON in it looks like."""
    first = text.strip().split("\n", 1)[0]
    return known_text(text) or f"text that begins with {first[:40]!r}"


def known_text(text: str) -> str:
    """Returns in words the other kind of text that this is; empty for none that is known."""
    try:
        return "a TOML file" if tomllib.loads(text) else ""
    except ValueError:
        return next((row["name"] for row in KINDS["text"] if re.search(row["pattern"], text[:200_000])), "")


def look_of_object(document: Mapping[str, Any]) -> str:
    """Returns in words what a JSON object looks like."""
    for row in KINDS["object"]:
        if set(row["keys"]) <= document.keys():
            return str(row["name"])
    names = [str(key) for key in list(document)[:5]]
    return f"a JSON object with {', '.join(names)}{', …' * (len(document) > 5)}" if names else "an empty JSON object"
