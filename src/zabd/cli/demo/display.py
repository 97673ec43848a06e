"""What the audience sees: events as lines, and one line of progress that is redrawn on a terminal.

In a pipe the progress is a plain line every second or so.
"""

import sys
import time

import click

BAR_WIDTH = 30
REDRAW_INTERVAL_S = 0.1
PIPE_INTERVAL_S = 2.0
ERASE_LINE = "\r\x1b[K"


class Display:
    """Writes to standard output; `quiet` shows neither events nor progress."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stdout.isatty()
        self._began = time.monotonic()
        self._drawn_at = 0.0
        self._drawn = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the curtain rose."""
        return time.monotonic() - self._began

    def event(self, text: str) -> None:
        """Something happened that is worth a line that stays."""
        if self._quiet:
            return
        self._erase()
        click.echo(f"[{self.elapsed_s:5.1f} s] {text}")

    def progress(self, done: int, total: int, note: str) -> None:
        """Where we are; drawn now and then only."""
        now = time.monotonic()
        interval = REDRAW_INTERVAL_S if self._terminal else PIPE_INTERVAL_S
        if self._quiet or now - self._drawn_at < interval:
            return
        self._drawn_at = now
        filled = BAR_WIDTH * done // max(total, 1)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        line = f"[{self.elapsed_s:5.1f} s] [{bar}] {done}/{total} {note}"
        if not self._terminal:
            click.echo(line)
            return
        click.echo(f"{ERASE_LINE}{line[: _columns() - 1]}", nl=False)
        self._drawn = True

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._erase()

    def _erase(self) -> None:
        if self._drawn:
            click.echo(ERASE_LINE, nl=False)
            self._drawn = False


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns
