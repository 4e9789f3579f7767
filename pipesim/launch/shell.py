"""Shell text as commands: quotes, continued lines, variables, arrays and comments as launch scripts use them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipesim.errors import UsageError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
VARIABLE = re.compile(
    r"\$(?:\{(?P<braced>\w+)(?P<all>\[[@*]\])?(?:(?P<operator>:?[-=+?])(?P<other>[^{}]*))?\}|(?P<bare>[A-Za-z_]\w*))"
)
PROMPT = re.compile(r"^\s*(?:\$|>|%)\s+")
KEYWORDS = {"then", "do", "else", "elif", "if", "while", "{", "}", "!", "time", "exec", "nohup", "fi", "done"}
DECLARING = {"export", "declare", "local", "readonly", "typeset"}
TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " "})
TOKEN = re.compile(
    r"""(?P<continued> [ \t]*[\\^`]?[ \t]*\n[ \t]*(?=--?[A-Za-z]) )
    | (?P<joined> \\\n )
    | (?P<escaped> \\. )
    | (?P<single> '[^']*' )
    | (?P<double> "(?:\\.|[^"\\])*" )
    | (?P<comment> (?<![^\s;&|()])\#[^\n]* )
    | (?P<heredoc> <<-?\s*['"]?(?P<mark>\w+)['"]?(?<!<<<) )
    | (?P<redirection> &?[<>]+\|?(?:&\s*[\w-]+|[ \t]*(?:'[^']*'|"[^"]*"|[^\s;&|()<>'"]*)) )
    | (?P<separator> [;&|()\n] )
    | (?P<blank> [^\S\n]+ )
    | (?P<bare> (?: \$\{[^{}]*\}
                | \$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)
                | `[^`]*`
                | [^\s'"\\<>;&|()\#] | (?<=[^\s;&|()])\# )+ )
    | (?P<trailing> \\\Z )""",
    re.VERBOSE | re.DOTALL,
)
UNIT_START, UNIT_VARIABLE = re.compile(r"^ExecStart=[-@:+!|]*"), re.compile(r"^Environment=(?=\S)")
"""Keys of a systemd unit."""
SHOWN = 60


class Piece(NamedTuple):
    """A part of a word under one kind of quoting."""

    text: str
    expands: bool = True
    splits: bool = False


Word = list[Piece]


class Command(NamedTuple):
    """One simple command: its words, and the variables that it is given."""

    environment: dict[str, str]
    words: list[str]


@dataclass
class _State:
    variables: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)


def commands(text: str, name: str, variables: Mapping[str, str] | None = None) -> list[Command]:
    """Returns the simple commands of some shell text in their order; conditions and loops are not followed.

    Args:
        text: one command or a script.
        name: what to call the text in a complaint.
        variables: those set before.

    Raises:
        UsageError: when a quote is not closed.
    """
    state = _State({key: [value] for key, value in (variables or {}).items()})
    found = []
    for words in _simple_commands(_tidied(text), name):
        if command := _evaluated(words, state):
            found.append(command)
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Returns text with its variables' values in place; those that are not known stay as they stand."""
    values = {key: [value] for key, value in variables.items()}
    return VARIABLE.sub(lambda match: " ".join(_value(match, values)), text)


def _tidied(text: str) -> str:
    """Returns text as it was typed before it was copied: plain line ends, quotes and dashes, no prompts.

    Fences of code go, and lines that are comments: these stand between the lines of one command.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").translate(TYPOGRAPHY)
    text = re.sub(r"(?<=\s)[–—](?=[A-Za-z])", "--", text)
    kept = (line for line in text.split("\n") if not line.lstrip().startswith(("#", "```")))
    lines = [UNIT_START.sub("", UNIT_VARIABLE.sub("export ", PROMPT.sub("", line))) for line in kept]
    return re.sub(r"\\[ \t]+\n", "\\\n", "\n".join(lines))


@dataclass
class _Gathered:
    """Words and commands as the tokens come in; a word of None stands for none begun."""

    commands: list[list[Word]] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    word: Word | None = None
    in_array: bool = False

    def add(self, piece: Piece) -> None:
        """Adds to the word."""
        self.word = [*(self.word or []), piece]

    def end_word(self) -> None:
        """Ends the word, if one has begun."""
        if self.word is not None:
            self.words.append(self.word)
            self.word = None

    def end_command(self) -> None:
        """Ends the command, if one has begun."""
        self.end_word()
        if self.words:
            self.commands.append(self.words)
            self.words = []
        self.in_array = False

    def separate(self, mark: str) -> None:
        """Takes a mark that ends a command, or begins or ends an array: its words follow the word `NAME=(`."""
        if mark == "(" and self.word and re.fullmatch(r"[A-Za-z_]\w*\+?=", _plain(self.word)):
            self.add(Piece(mark))
            self.end_word()
            self.in_array = True
        elif self.in_array and mark == "\n":
            self.end_word()
        else:
            self.end_command()


def _simple_commands(text: str, name: str) -> list[list[Word]]:
    """Returns the words of each simple command; `NAME=(…)` comes as the words of the array behind `NAME=(`.

    A line that begins with a flag belongs to the one before it, whether or not that ends in a backslash.
    """
    gathered, heredocs, at = _Gathered(), list[str](), 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            line, shown = text.count("\n", 0, at) + 1, text[at : at + SHOWN].partition("\n")[0]
            raise UsageError(f"{name}, line {line}", shown, f"a closing {text[at]}")
        kind, token, at = match.lastgroup, match[0], match.end()
        if kind in PIECES:
            gathered.add(PIECES[kind](token))
        elif kind in {"blank", "continued"}:
            gathered.end_word()
        elif kind == "separator":
            gathered.separate(token)
            while token == "\n" and heredocs:
                end = re.compile(rf"^[\t ]*{heredocs.pop(0)}[\t ]*$", re.MULTILINE).search(text, at)
                at = end.end() if end else len(text)
        elif kind == "heredoc":
            heredocs.append(match["mark"])
        elif kind == "redirection" and gathered.word and _plain(gathered.word).isdigit():
            gathered.word = None
    gathered.end_command()
    return gathered.commands


def _unescaped(token: str) -> str:
    """Returns what double quotes hold; an escaped $ keeps its backslash until variables are put in."""
    return re.sub(r'\\(["\\`\n])', lambda match: match[1].strip("\n"), token[1:-1])


PIECES: dict[str | None, Callable[[str], Piece]] = {
    "bare": lambda token: Piece(token, splits=True),
    "escaped": lambda token: Piece(token[1:], expands=False),
    "single": lambda token: Piece(token[1:-1], expands=False),
    "double": lambda token: Piece(_unescaped(token)),
}


def _plain(word: Word) -> str:
    return "".join(piece.text for piece in word)


def _evaluated(words: list[Word], state: _State) -> Command | None:
    """Carries out assignments; returns the command that is left, if one is."""
    words = [word for at, word in enumerate(words) if at or _plain(word) not in KEYWORDS]
    while words and _plain(words[0]) in KEYWORDS:
        words = words[1:]
    if not words:
        return None
    declares = _plain(words[0]) in DECLARING
    if declares:
        words = [word for word in words[1:] if not _plain(word).startswith("-")]
    if words and (match := re.fullmatch(r"([A-Za-z_]\w*)(\+?)=\(", _plain(words[0]))):
        values = [text for word in words[1:] for text in _texts(word, state)]
        state.variables[match[1]] = [*(state.variables.get(match[1], []) if match[2] else []), *values]
        return None
    given: dict[str, str] = {}
    while words and (assigned := _assigned(words[0], state)):
        given |= assigned
        words = words[1:]
    if declares or not words:
        state.variables |= {key: [value] for key, value in given.items()}
        if declares:
            state.exported |= set(given) | {_plain(word) for word in words}
        return None
    exported = {key: " ".join(state.variables[key]) for key in sorted(state.exported) if key in state.variables}
    return Command(exported | given, [text for word in words for text in _texts(word, state)])


def _assigned(word: Word, state: _State) -> dict[str, str]:
    match = ASSIGNMENT.match(word[0].text) if word and word[0].splits else None
    if not match:
        return {}
    value = _joined([Piece(match[3]), *word[1:]], state.variables)
    before = " ".join(state.variables.get(match[1], [])) if match[2] else ""
    return {match[1]: before + value}


def _texts(word: Word, state: _State) -> list[str]:
    """Returns the words that one word expands to: several for an array, or a variable without quotes."""
    if len(word) == 1 and not word[0].splits and (match := VARIABLE.fullmatch(word[0].text)) and match["all"]:
        return _value(match, state.variables)
    joined = _joined(word, state.variables)
    bare = word and all(piece.splits for piece in word) and VARIABLE.search(_plain(word))
    return joined.split() if bare else [joined]


def _joined(word: Word, variables: Mapping[str, list[str]]) -> str:
    return "".join(_expanded(piece, variables) if piece.expands else piece.text for piece in word)


def _expanded(piece: Piece, variables: Mapping[str, list[str]]) -> str:
    parts = piece.text.split("\\$")
    return "$".join(VARIABLE.sub(lambda match: " ".join(_value(match, variables)), part) for part in parts)


def _value(match: re.Match[str], variables: Mapping[str, list[str]]) -> list[str]:
    """Returns a variable's value: its words if it is an array, its default, or the text itself when it is not known."""
    known = variables.get(match["braced"] or match["bare"])
    operator, other = match["operator"] or "", match["other"]
    if operator.endswith("+"):
        return [other] if known else []
    if known is not None and (known != [""] or ":" not in operator):
        return known
    if operator.endswith(("-", "=")):
        return [other]
    return [match[0]]
