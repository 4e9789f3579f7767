"""`import launch`: the command that starts a server, as flags of pipesim."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipesim.commands.shared import Json, import_app, note, print_json
from pipesim.errors import UsageError

if TYPE_CHECKING:  # other commands do without the readers of launch lines
    from pipesim.launch.read import Imported

Line = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND", help="A command in quotes, a shell script, a compose file, or - to read standard input."
    ),
]
Service = Annotated[str | None, typer.Option("--service", help="The service of a compose file to read.")]


@import_app.command("launch")
def import_launch(command: Line, service: Service = None, as_json: Json = False) -> None:
    """Turn a command that starts an SGLang or vLLM server into a `pipesim predict` command.

    Example: pipesim import launch "vllm serve moonshotai/Kimi-K2.6 -tp 4 -pp 2 --max-num-seqs 64"
    """
    from pipesim.launch.read import distinct, read  # noqa: PLC0415 - only this command needs them
    from pipesim.launch.servers import servers  # noqa: PLC0415

    given = command[0] if len(command) == 1 else shlex.join(command)
    found = distinct([read(server) for server in servers(sys.stdin.read() if given == "-" else given)])
    if service is not None:
        names = [server.service for server in found]
        if service not in names:
            known = ", ".join(filter(None, names))
            raise UsageError(
                "--service", service, f"one of {known}" if known else "no such flag: nothing here has a name"
            )
        found = [server for server in found if server.service == service]
    for server in found:
        _tell(server, len(found) > 1)
    if as_json:
        rest = {"servers": [launch_json(server) for server in found]} if len(found) > 1 else {}
        print_json({"schema_version": 1, "kind": "launch", **launch_json(found[0]), **rest})
    else:
        print("\n".join(server.predict for server in found))


def launch_json(server: "Imported") -> dict[str, Any]:
    """Returns what `import launch --json` says of one server."""
    return {
        "service": server.service or None,
        "engine": server.dialect.name,
        "flags": server.flags,
        "predict": server.predict,
        "ignored": list(server.ignored),
        "unsupported": [entry._asdict() for entry in server.unsupported],
    }


def _tell(server: "Imported", several: bool) -> None:
    """Says on stderr what is not in the answer."""
    where = f"{server.service}: " if several and server.service else ""
    if not server.profiled:
        note(f"{where}no model profile stands for {server.flags['model']}: the name is kept as it was given")
    for entry in server.unsupported:
        note(f"{where}not modelled: {' '.join(filter(None, [entry.flag, entry.given]))}: {entry.why}")
    if server.ignored:
        note(f"{where}changes nothing here: {' '.join(server.ignored)}")
