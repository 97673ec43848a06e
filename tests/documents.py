"""What a page tells its reader to write and to run, taken from the page itself."""

import re
import shlex
from pathlib import Path

_FILE = re.compile(r"`([\w./-]+)`[^`\n]*:\n\n```(?:python|toml|ini|text)\n(.*?)```", re.DOTALL)
_CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def files_of(page: Path) -> dict[str, str]:
    """Each block that a line with a file's name and a colon stands before."""
    return dict(_FILE.findall(page.read_text("utf-8")))


def commands_of(page: Path) -> list[list[str]]:
    """Each command of the console blocks, in words."""
    return [
        shlex.split(line.removeprefix("$ "))
        for block in _CONSOLE.findall(page.read_text("utf-8"))
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
