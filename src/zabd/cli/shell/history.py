"""What was typed before: numbered within this shell, and kept in a file for the next one.

The file is the user's alone, in XDG_STATE_HOME, and holds the last lines only. Credentials never
reach it.
"""

import os
from pathlib import Path

LINES_MAX = 1000
# A line that holds a znode's content is not worth keeping, and would make the file huge.
LINE_LENGTH_MAX = 4096


def history_file() -> Path:
    """Where the history is kept."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "zabd" / "shell_history"


class History:
    """Lines in the order in which they were typed; `file` None keeps nothing."""

    def __init__(self, file: Path | None = None) -> None:
        self.lines: list[str] = []
        self._file = file
        self.earlier = self._load()

    def add(self, line: str, *, secret: bool = False) -> None:
        """Take a line; of a secret or a very long one only the first word, and not in the file."""
        whole = not secret and len(line) <= LINE_LENGTH_MAX
        self.lines.append(line if whole else line[:LINE_LENGTH_MAX].split(maxsplit=1)[0])
        del self.lines[:-LINES_MAX]
        if whole:
            self._append(line)

    def _load(self) -> list[str]:
        if self._file is None:
            return []
        try:
            lines = self._file.read_text("utf-8", "replace").splitlines()
            if len(lines) > 2 * LINES_MAX:
                self._file.write_text("\n".join(lines[-LINES_MAX:]) + "\n", "utf-8")
        except OSError:
            return []  # the first time, or a home that cannot be read: there is no history
        return lines[-LINES_MAX:]

    def _append(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError:
            self._file = None  # a read-only home: the shell works without
