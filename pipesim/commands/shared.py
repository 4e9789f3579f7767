"""What every command shares: how an answer is printed, a file written, and progress shown."""

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipesim.errors import UsageError
from pipesim.files import write_whole

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
TABLES, PICTURES = (".json", ".csv", ".md"), (".png", ".svg", ".pdf")
AnswerFile = Annotated[
    Path | None,
    typer.Option("-o", "--output", help=f"Also write the answer to a file: {' '.join((*TABLES, *PICTURES))}."),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="File to write (default: print).")]

import_app = typer.Typer(
    help="Turn the files that people already have into profiles, measured runs and flags.", no_args_is_help=True
)


def print_json(document: dict[str, Any]) -> None:
    """Prints one JSON object."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Says something beside the answer, on stderr."""
    print(text, file=sys.stderr)


def check_answer_file(path: Path | None, forms: Collection[str]) -> None:
    """Refuses a file for the answer before the work is done: of no known form, or where none can be written.

    Raises:
        UsageError: for such a file; it names the forms.
    """
    if path is None:
        return
    if path.suffix.lower() not in forms:
        *most, last = forms
        raise UsageError("--output", str(path), f"a file that ends in {', '.join(most)} or {last}")
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        reason = "it is a folder" if path.is_dir() else f"{folder} is no folder that can be written in"
        raise UsageError("--output", str(path), f"a file that can be written ({reason})")


def write_answer(path: Path | None, forms: Mapping[str, Callable[[], str | bytes]]) -> None:
    """Writes the answer to a file in the form of its suffix, if a file is asked for.

    Raises:
        UsageError: when it cannot be written.
    """
    if path is not None:
        write_whole(path, forms[path.suffix.lower()]())
        note(f"wrote {path}")


def emit_document(
    document: dict[str, Any], kind: str, comment: str, output: Path | None, as_json: bool, **beside: Any
) -> None:
    """Prints an imported document, or writes it where `output` says.

    TOML, with `comment` above it. With `as_json` one object: `schema_version`, `kind`, the document under its kind and
    whatever is `beside` it.
    """
    import tomlkit  # noqa: PLC0415 - only commands that write files need it

    heading = "".join(f"# {line}\n" for line in comment.splitlines())
    text = heading + tomlkit.dumps(document)
    if output is not None:
        write_whole(output, text)
        note(f"wrote {output}")
    if as_json:
        print_json({"schema_version": 1, "kind": kind, kind: document, **beside})
    elif output is None:
        print(text, end="")


def progress(total: int | None = None) -> Callable[[str], None]:
    """Returns a function that shows on a terminal what is being predicted, and out of how many."""
    done = 0

    def show(name: str) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            count = f"{done}/{total}" if total else f"{done}"
            print(f"\r\033[Kpredicting {count} {name}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return show
