"""Which GPUs and hosts a tool's output names, whatever tool it is."""

import re
from collections.abc import Iterable
from pathlib import Path

from pipesim.importers.text_files import LONGEST_FILE
from pipesim.profiles.names import base_of, box_name

MODEL = re.compile(r"\bNVIDIA (?!Corporation|Driver|System)([A-Z][A-Za-z0-9]*(?:[ -][A-Za-z0-9]+)*)")
HOST = re.compile(r"^#?\s*Rank\s+\d+\b.*?\bon\s+(\S+)\s+device\b", re.MULTILINE)


def text_of(files: Iterable[Path]) -> str:
    """Returns what some files say, as far as it is text; the reader of each complains of what it cannot use."""
    return "\n".join(
        path.read_bytes().decode("utf-8", "ignore")
        for path in files
        if path.is_file() and path.stat().st_size <= LONGEST_FILE
    )


def boxes_named(text: str, known: Iterable[str]) -> list[str]:
    """Returns the profiles of the GPUs that a text names ("Device: 0, NVIDIA H100 80GB HBM3"), each once."""
    names = list(known)
    found = (base_of(box_name(name), names) for name in dict.fromkeys(MODEL.findall(text)))
    return list(dict.fromkeys(name for name in found if name))


def hosts_named(text: str) -> list[str]:
    """Returns the hosts that the ranks of an nccl-tests run lie on."""
    return list(dict.fromkeys(HOST.findall(text)))
