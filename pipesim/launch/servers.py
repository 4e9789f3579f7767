"""Where in a text a server is started: in a command, a script, a container's run line, or a file of services."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipesim.errors import UsageError
from pipesim.files import read_text
from pipesim.launch import DIALECTS, Dialect, shell

LONGEST_FILE = 1_000_000
SHOWN = 60
CONTAINER_PROGRAMS = {"docker", "podman", "nerdctl", "singularity", "apptainer"}
CONTAINER_SWITCHES = {"-d", "-i", "-t", "-it", "-ti", "-id", "-td", "-dit", "-itd", "-idt", "-P", "-q", "--rm", "--nv"}
CONTAINER_SWITCHES |= {"--detach", "--interactive", "--tty", "--privileged", "--init", "--read-only", "--publish-all"}
CONTAINER_SWITCHES |= {"--no-healthcheck", "--quiet", "--oom-kill-disable", "--sig-proxy", "--replace"}
SHELLS = {"bash", "sh", "zsh", "dash", "ash"}
YAML_START = re.compile(r"\s*(services|version|name|x-[\w-]+|apiVersion|kind|networks|volumes|---)\s*(:|$)")


class Server(NamedTuple):
    """A server as it is started: which engine's, with which arguments and variables."""

    dialect: Dialect
    arguments: list[str]
    environment: dict[str, str]
    service: str = ""
    """Its name in a file of services."""
    copies: int = 1


def servers(given: str) -> list[Server]:
    """Returns the servers that a command, or the file that it names, starts.

    Raises:
        UsageError: when there is none, or when a quote is not closed.
        ProfileError: when the file cannot be read.
    """
    text, name = _text(given)
    if Path(name).suffix.lower() in {".yml", ".yaml"} or (name != "COMMAND" and _looks_like_yaml(text)):
        found = list(_of_services(_yaml(text, name), name))
    else:
        found = [server for command in shell.commands(text, name) for server in of_command(command, name)]
    if not found:
        engines = " or ".join(dialect.title for dialect in DIALECTS.values())
        shown = " ".join(text.split()) if name == "COMMAND" else "no such command"
        example = " or ".join(f"`{dialect.program} serve MODEL …`" for dialect in DIALECTS.values())
        raise UsageError(name, _short(shown), f"the start of a server of {engines}, such as {example}")
    return found


def of_command(command: shell.Command, name: str, image: str = "") -> list[Server]:
    """Returns the servers that one simple command starts: behind wrappers, in a container, in a shell's -c."""
    environment, words = command
    for at, word in enumerate(words):
        program = word.rsplit("/", 1)[-1]
        if program in SHELLS and (script := _inline_script(words[at + 1 :])) is not None:
            return [
                server
                for inner in shell.commands(script, name)
                for server in of_command(shell.Command(environment | inner.environment, inner.words), name, image)
            ]
        if program in CONTAINER_PROGRAMS and "run" in words[at + 1 : at + 3]:
            return _of_container(words[words.index("run", at) + 1 :], environment, name)
        for dialect in DIALECTS.values():
            if (start := _arguments_from(words, at, dialect)) is not None:
                given = dict(pair.split("=", 1) for pair in words[:at] if re.match(r"[A-Za-z_]\w*=", pair))
                return [Server(dialect, words[start:], environment | given)]
    if image:
        return [Server(dialect, words, environment) for dialect in DIALECTS.values() if dialect.program in image][:1]
    return []


def _arguments_from(words: list[str], at: int, dialect: Dialect) -> int | None:
    """Returns where the server's arguments begin if the word at a place starts it."""
    word, following = words[at], words[at + 1] if at + 1 < len(words) else ""
    if word == "-m" and following in dialect.modules:
        return at + 2
    program = word.rsplit("/", 1)[-1]
    if following == "serve" and (program == dialect.program or word == f"{dialect.program}.entrypoints.cli.main"):
        return at + 2
    return at + 1 if (program in dialect.scripts and "/" in word) or word in dialect.scripts else None


def _inline_script(words: list[str]) -> str | None:
    """Returns what a shell's -c is followed by."""
    for at, word in enumerate(words):
        if re.fullmatch(r"-[a-z]*c", word):
            return words[at + 1] if at + 1 < len(words) else ""
        if not word.startswith("-"):
            return None
    return None


def _of_container(words: list[str], environment: dict[str, str], name: str) -> list[Server]:
    """Returns the server that `docker run OPTIONS IMAGE ARGUMENTS` starts; the container has variables of its own."""
    at, given, entry = 0, {}, ""
    while at < len(words) and words[at].startswith("-"):
        option, equals, value = words[at].partition("=")
        if not equals and option not in CONTAINER_SWITCHES:
            at += 1
            value = words[at] if at < len(words) else ""
        if option in {"-e", "--env"}:
            variable, _, text = value.partition("=")
            given[variable] = text if "=" in value else environment.get(variable, "")
        elif option == "--entrypoint":
            entry = value
        elif option == "--gpus" and (devices := re.search(r"device=([\w,-]+)", value)):
            given["CUDA_VISIBLE_DEVICES"] = devices[1]
        at += 1
    if at >= len(words):
        return []
    inner = [*shlex.split(entry), *words[at + 1 :]] if entry else words[at + 1 :]
    return of_command(shell.Command(given, inner), name, image=words[at].lower())


def _of_services(document: Any, name: str) -> Iterator[Server]:
    """Yields the servers of every container in a document: a compose file's services, a Kubernetes manifest's."""
    beside = _variables_beside(Path(name))
    for label, container, copies in _containers(document, "", 1, set()):
        environment = _environment(container.get("environment", container.get("env")))
        environment = {key: shell.expand(value, beside) for key, value in environment.items()}
        words: list[str] = []
        for key in ("entrypoint", "command", "args"):
            words += _words(container.get(key), f"{name}, {label}.{key}", beside | environment)
        image = str(container.get("image", "")).lower()
        for server in of_command(shell.Command(environment, words), f"{name}, {label}", image):
            yield server._replace(service=label, copies=copies)


def _containers(node: Any, label: str, copies: int, seen: set[int]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yields (name, table, copies) of everything that has an image or a command."""
    if not isinstance(node, dict | list) or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, list):
        for part in node:
            yield from _containers(part, label, copies, seen)
        return
    if any(isinstance(node.get(key), str | list) for key in ("image", "command", "args", "entrypoint")):
        yield str(node.get("name") or label), node, _copies(node.get("deploy"), _copies(node.get("scale"), copies))
        return
    own = _copies(node, copies)
    for key, part in node.items():
        if not str(key).startswith("x-"):
            yield from _containers(part, str(key), own, seen)


def _copies(node: Any, otherwise: int) -> int:
    count = node.get("replicas") if isinstance(node, dict) else node
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else otherwise


def _environment(given: Any) -> dict[str, str]:
    """Returns variables given as a table, as NAME=value texts, or as {name, value} tables."""
    if isinstance(given, dict):
        return {str(key): _scalar(value) for key, value in given.items()}
    found = {}
    for entry in given if isinstance(given, list) else []:
        if isinstance(entry, dict) and "name" in entry:
            found[str(entry["name"])] = _scalar(entry.get("value"))
        elif isinstance(entry, str):
            variable, _, value = entry.partition("=")
            found[variable] = value
    return found


def _words(given: Any, name: str, environment: Mapping[str, str]) -> list[str]:
    """Returns a command given as a list or as text."""
    if isinstance(given, list):
        return [shell.expand(_scalar(part), environment) for part in given]
    if isinstance(given, str):
        return [
            word for command in shell.commands(given.replace("$$", "$"), name, environment) for word in command.words
        ]
    return []


def _variables_beside(path: Path) -> dict[str, str]:
    """Returns what a compose file's .env file sets, for the variables in its commands."""
    try:
        text = path.with_name(".env").read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = re.findall(r"^\s*(?:export\s+)?(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE)
    return {variable: value.strip("'\"") for variable, value in pairs}


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _text(given: str) -> tuple[str, str]:
    """Returns the text to read and what to call it: the file that the argument names, or the argument itself."""
    path = Path(given.strip())
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if is_file:
        return read_text(path, "a script or a compose file", LONGEST_FILE), str(path)
    if re.fullmatch(r"\S+\.(ya?ml|sh|bash|txt|json)", given.strip()):
        raise UsageError("COMMAND", given, "a file that exists, or a command in quotes")
    if not given.strip():
        raise UsageError("COMMAND", given, "a command that starts a server, or a file with one")
    return given, "COMMAND"


def _looks_like_yaml(text: str) -> bool:
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return bool(YAML_START.fullmatch(next(lines, "").split("#")[0].rstrip()) or _is_kubernetes(text))


def _is_kubernetes(text: str) -> bool:
    return bool(re.search(r"^apiVersion:", text, re.MULTILINE) or re.search(r"^services:\s*$", text, re.MULTILINE))


def _yaml(text: str, name: str) -> Any:
    """Returns the documents of a YAML file. Raises UsageError naming the line that is wrong."""
    import yaml  # noqa: PLC0415 - only files of services need it

    try:
        return list(yaml.load_all(text, Loader=_loader(yaml)))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(f"{name}, line {line}", error.problem or "broken YAML", "a file in YAML") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise UsageError(name, "broken YAML", "a file in YAML") from None


def _loader(yaml: Any) -> Any:
    """Returns a safe loader that reads tags of other programs, such as compose's !reset, as what they stand before."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        pass

    def untagged(loader: Any, _suffix: str, node: Any) -> Any:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return loader.construct_scalar(node)

    Loader.add_multi_constructor("!", untagged)
    return Loader


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
