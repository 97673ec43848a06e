"""Completion: of commands, of their options, and of paths as the ensemble has them."""

import shlex
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from zabd.cli.shell.table import COMMANDS
from zabd.model.errors import ZabdError
from zabd.model.paths import ROOT, join, parent_of

# More than this in one menu helps nobody.
CANDIDATES_MAX = 500
ChildrenOf = Callable[[str], Awaitable[list[str]]]


class Candidate(NamedTuple):
    """What the word before the cursor may become, and what it means."""

    text: str
    replaces: int  # so many characters before the cursor
    meaning: str = ""


async def candidates(before: str, children_of: ChildrenOf) -> list[Candidate]:
    """What may stand at the end of this text; nothing where nobody knows."""
    words = before.split()
    if not words or (len(words) == 1 and not before[-1].isspace()):
        return _commands(words[0] if words else "")
    last = "" if before[-1].isspace() else words[-1]
    command = COMMANDS.get(words[0])
    if command is None:
        return []
    if last.startswith("-"):
        options = command.options
        texts = [(f"-{option.name}", option.value) for option in options]
        return [Candidate(t, len(last), value) for t, value in texts if t.startswith(last)]
    if words[0] == "help":
        return _commands(last)
    takes_path = any(name.strip("[]") == "path" for name in command.takes.split())
    if last.startswith("/") and takes_path:
        return await _paths(last, children_of)
    return []


def _commands(start: str) -> list[Candidate]:
    found = [command for name, command in COMMANDS.items() if name.startswith(start)]
    return [Candidate(command.name, len(start), command.help) for command in found]


async def _paths(word: str, children_of: ChildrenOf) -> list[Candidate]:
    parent = ROOT if word == ROOT else parent_of(word)
    start = word[word.rfind("/") + 1 :]
    try:
        names = await children_of(parent)
    except ZabdError:
        return []  # no such parent, or no member at hand: there is nothing to offer
    chosen = [name for name in names if name.startswith(start)][:CANDIDATES_MAX]
    return [Candidate(shlex.quote(join(parent, name)), len(word)) for name in chosen]
