"""How `zabctl` speaks: results on standard output, failures in one line on standard error.

Exit statuses, the same for every command:

    0   done
    1   the service refused: no such znode, wrong version, not empty, no permission, ...
    2   the command line is wrong
    65  (dedup) the key was used with another payload
    69  no ensemble: no member serves, or none could be reached in time
    74  standard output cannot be written
    75  not now: somebody else holds it, time ran out, or the session or the reply was lost on the
        way, so that a write may or may not have been applied; trying again may help
    76  (dedup) an earlier attempt may have run and nobody knows how it ended
    130 interrupted by Ctrl-C
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum

import click


class ExitStatus(IntEnum):
    """What the calling script may tell one failure from another by."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    MISMATCH = 65
    NO_ENSEMBLE = 69
    OUTPUT = 74
    TRY_AGAIN = 75
    IN_DOUBT = 76
    INTERRUPTED = 130


EXIT_HELP = """\b
Exit status:
  0   done
  1   refused by the service (no such znode, wrong version, ...)
  2   wrong usage
  69  no member serves or could be reached
  74  standard output cannot be written
  75  connection or session lost on the way, outcome unknown: try again
  130 interrupted
"""


class CommandError(click.ClickException):
    """Ends the command with one line on standard error and an exit status of its own."""

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(message)
        self.exit_code = int(status)  # type: ignore[misc] # click reads it from the instance

    def show(self, file: object = None) -> None:
        """Print the line; no usage, no traceback."""
        del file
        say(self.format_message())


def say(message: str) -> None:
    """A line about what goes on, to standard error, so that pipes carry results alone."""
    click.echo(f"zabctl: {message}", err=True)


def leave_output_alone() -> None:
    """What could not be written is not tried once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(value: object) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_data(data: bytes | None) -> None:
    """A znode's data as it is; a newline is added only where a person reads it at a terminal."""
    out = sys.stdout.buffer
    out.write(data or b"")
    if sys.stdout.isatty() and not (data or b"").endswith(b"\n"):
        out.write(b"\n")
    out.flush()


def text_or_base64(data: bytes | None) -> dict[str, str | None]:
    """Data for JSON: as `data` where it is UTF-8, else as `data_base64`."""
    if data is None:
        return {"data": None}
    try:
        return {"data": data.decode("utf-8")}
    except UnicodeDecodeError:
        import base64

        return {"data_base64": base64.b64encode(data).decode("ascii")}


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Left-aligned columns; what is None shows as ``-``."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
