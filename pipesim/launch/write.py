"""A deployment as the commands that start its servers."""

import shlex
import textwrap
from collections.abc import Iterator
from typing import Any

from pipesim.deployment import Deployment
from pipesim.errors import UsageError
from pipesim.launch import DIALECTS, Launch, LaunchLine

WIDTH = 80


def launch_text(deployment: Deployment) -> str:
    """Returns the commands that start a deployment's servers, with notes as comments of the shell."""
    started = launch(deployment)
    comments = textwrap.wrap(" ".join(started.notes), WIDTH - 2)
    return "\n".join([*(f"# {line}" for line in comments), *map(wrapped, started.lines)])


def launch_json(deployment: Deployment) -> dict[str, Any]:
    """Returns what `predict --json --launch` adds: a command a line, and what their flags cannot say."""
    started = launch(deployment)
    return {"launch": "\n".join(map(one_line, started.lines)), "launch_notes": list(started.notes)}


def launch(deployment: Deployment) -> Launch:
    """Returns the launch lines of a deployment's engine, one per replica, and notes on what flags cannot say.

    Raises:
        UsageError: for an engine that does not exist.
    """
    if deployment.engine.name not in DIALECTS:
        raise UsageError("--launch with --engine", deployment.engine.name, f"one of {', '.join(DIALECTS)}")
    return DIALECTS[deployment.engine.name].write(deployment)


def one_line(line: LaunchLine) -> str:
    """Returns a server's command on one line, ready for a shell."""
    return " ".join(_pairs(line, whole=False))


def wrapped(line: LaunchLine, width: int = WIDTH) -> str:
    """Returns a server's command over several lines, broken between flags."""
    lines, current = [], ""
    for part in _pairs(line, whole=True):
        if current and len(current) + len(part) + 3 > width:
            lines.append(current)
            current = "  " + part
        else:
            current = f"{current} {part}" if current else part
    return " \\\n".join([*lines, current])


def _pairs(line: LaunchLine, whole: bool) -> Iterator[str]:
    """Yields variables, then words; with `whole` the program stays together, and so do a flag and its value."""
    yield from (f"{name}={shlex.quote(value)}" for name, value in line.environment.items())
    words = [shlex.quote(word) for word in line.words]
    at = next((at for at, word in enumerate(words) if word.startswith("--")), len(words)) if whole else 0
    if at:
        yield " ".join(words[:at])
    while at < len(words):
        together = whole and words[at].startswith("-") and at + 1 < len(words) and not words[at + 1].startswith("-")
        yield " ".join(words[at : at + 1 + together])
        at += 1 + together
