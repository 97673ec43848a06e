"""What the shell prints: text as ZooKeeper's command line writes it, or JSON, a document a line.

Colours are for a terminal, and for nobody who has set NO_COLOR. What the ensemble holds is shown
to a terminal with its control characters written out: data must not give a terminal orders.
"""

import os
import sys
from datetime import UTC, datetime

import click

from zabd.cli.output import print_json, text_or_base64
from zabd.cli.shell.lines import one_line, visible
from zabd.model.acl import Acl
from zabd.model.stat import Stat

_LETTERS = (("c", 4), ("d", 8), ("r", 1), ("w", 2), ("a", 16))  # in ZooKeeper's order


class Printer:
    """Standard output and standard error of one shell."""

    def __init__(self, *, as_json: bool, terminal: bool | None = None) -> None:
        self.as_json = as_json
        self._terminal = sys.stdout.isatty() if terminal is None else terminal
        self.colour = self._terminal and not os.environ.get("NO_COLOR")

    def line(self, text: str, *, fg: str | None = None) -> None:
        """A line of text."""
        shown = visible(text) if self._terminal else text
        click.echo(click.style(shown, fg=fg) if self.colour and fg else shown, color=self.colour)

    def json(self, document: object) -> None:
        """A document, on a line of its own."""
        print_json(document)

    def error(self, message: str) -> None:
        """A failure, in one line on standard error."""
        text = "zabctl: " + one_line(message)
        coloured = self.colour and sys.stderr.isatty()
        click.echo(click.style(text, fg="red") if coloured else text, err=True, color=self.colour)

    def note(self, message: str) -> None:
        """What goes on besides, on standard error."""
        click.echo(f"zabctl: {one_line(message)}", err=True)

    def data(self, data: bytes | None) -> None:
        """A znode's data and a newline: byte for byte, but for a terminal."""
        if data is None:
            self.line("null")
        elif self._terminal:
            self.line(data.decode("utf-8", "replace"))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(data + b"\n")
            sys.stdout.buffer.flush()

    def names(self, names: list[str]) -> None:
        """Names in brackets."""
        self.line(f"[{', '.join(names)}]", fg="cyan")

    def stat(self, stat: Stat) -> None:
        """A Stat, a field a line, under the names that ZooKeeper's command line has for them."""
        self.line("\n".join(f"{name} = {value}" for name, value in _stat_rows(stat)))

    def acl(self, entries: tuple[Acl, ...]) -> None:
        """An ACL, two lines an entry."""
        for entry in entries:
            letters = "".join(letter for letter, bit in _LETTERS if entry.perms & bit)
            self.line(f"'{entry.scheme},'{entry.id}\n: {letters}")


def data_document(path: str, data: bytes | None, stat: Stat) -> dict[str, object]:
    """A znode, for JSON."""
    return {"path": path, **text_or_base64(data), "stat": stat._asdict()}


def acl_document(entries: tuple[Acl, ...]) -> list[dict[str, object]]:
    """An ACL, for JSON."""
    return [
        {
            "scheme": entry.scheme,
            "id": entry.id,
            "perms": "".join(letter for letter, bit in _LETTERS if entry.perms & bit),
        }
        for entry in entries
    ]


def _stat_rows(stat: Stat) -> list[tuple[str, object]]:
    return [
        ("cZxid", f"{stat.czxid:#x}"),
        ("ctime", _date(stat.ctime)),
        ("mZxid", f"{stat.mzxid:#x}"),
        ("mtime", _date(stat.mtime)),
        ("pZxid", f"{stat.pzxid:#x}"),
        ("cversion", stat.cversion),
        ("dataVersion", stat.version),
        ("aclVersion", stat.aversion),
        ("ephemeralOwner", f"{stat.ephemeral_owner & (1 << 64) - 1:#x}"),
        ("dataLength", stat.data_length),
        ("numChildren", stat.num_children),
    ]


def _date(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):  # a server's clock may say anything
        return f"{time_ms} ms"
