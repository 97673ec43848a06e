"""One entry of the table of commands, and how its arguments are read.

Options have one dash and a name, as in ``-v 3``; they may stand anywhere before ``--``. A word like
``-5`` is a number, no option.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from zabd.cli.shell.lines import LineError
from zabd.model.paths import check_path

if TYPE_CHECKING:
    from zabd.cli.shell.shell import Shell

PATH = "path"


class Option(NamedTuple):
    """An option: without `value` it is there or not, else it takes an argument of that name."""

    name: str
    value: str = ""

    @property
    def usage(self) -> str:
        """As the usage shows it."""
        return f"[-{self.name} {self.value}]" if self.value else f"[-{self.name}]"


@dataclass(slots=True)
class Arguments:
    """What was typed behind a command's name."""

    words: list[str] = field(default_factory=list)
    options: dict[str, list[str]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path, which is the first word, or the root."""
        return self.words[0] if self.words else "/"

    def word(self, at: int) -> str | None:
        """The word at this place, None if there is none."""
        return self.words[at] if at < len(self.words) else None

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return name in self.options

    def value(self, name: str) -> str | None:
        """The option's value, the last if it was given several times."""
        return self.options[name][-1] if name in self.options else None

    def number(self, name: str, default: int) -> int:
        """The option's value as a number."""
        text = self.value(name)
        return default if text is None else number(text, f"-{name}")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it is called, what it takes, what it does."""

    name: str
    takes: str
    help: str
    run: "Callable[[Shell, Arguments], Awaitable[None]]"
    options: tuple[Option, ...] = ()

    @property
    def usage(self) -> str:
        """The line that shows how it is typed."""
        return " ".join([self.name, *(option.usage for option in self.options), self.takes]).strip()

    def parse(self, words: list[str]) -> Arguments:
        """Read what was typed behind the name; LineError says how it should have been."""
        arguments = Arguments()
        rest = iter(words)
        for word in rest:
            if word == "--":
                arguments.words += rest
            elif len(word) > 1 and word[0] == "-" and not word[1].isdigit():
                self._take_option(word[1:], rest, arguments)
            else:
                arguments.words.append(word)
        self._check(arguments.words)
        return arguments

    def _take_option(self, text: str, rest: "object", arguments: Arguments) -> None:
        name, equals, value = text.partition("=")
        known = next((option for option in self.options if option.name == name), None)
        if known is None or (equals and not known.value):
            raise LineError(f"{self.name} has no option -{text}; usage: {self.usage}")
        if known.value and not equals:
            value = next(rest, "")  # type: ignore[call-overload] # the iterator over the words
            if not value:
                raise LineError(f"-{name} needs a value; usage: {self.usage}")
        arguments.options.setdefault(name, []).append(value)

    def _check(self, words: list[str]) -> None:
        names = self.takes.split()
        required = sum(not name.startswith("[") for name in names)
        if not required <= len(words) <= len(names):
            raise LineError(f"usage: {self.usage}")
        for name, word in zip(names, words, strict=False):
            if name.strip("[]") == PATH:
                check_path(word)


def number(text: str, what: str) -> int:
    """A whole number of 64 bits; LineError names what should have been one."""
    if len(text) < 20 and text.lstrip("-").isdecimal():  # noqa: PLR2004 - 64 bits have 19 digits
        try:
            return int(text)
        except ValueError:
            pass
    raise LineError(f"{what}: {text!r} is not a number")
