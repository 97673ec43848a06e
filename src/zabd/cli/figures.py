"""Where figures go: JSON files, tables in markdown between markers, what the machine was.

F1  A page is only ever changed between its markers, so what people wrote stays, and a later run
    replaces what an earlier one has measured.
"""

import json
import os
import platform
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

PAGE: Final = "README.md"


def machine() -> dict[str, object]:
    """What a reader has to know to compare: processor, memory, system, interpreter, when, load."""
    return {
        "processor": _first(r"model name\s*: (.+)", "/proc/cpuinfo") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(_first(r"MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / 2**20, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "measured": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _first(pattern: str, file: str) -> str | None:
    try:
        found = re.search(pattern, Path(file).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found.group(1).strip() if found else None


def machine_line(known: dict[str, object]) -> str:
    """The same as a line under a table."""
    return (
        f"{known['processor']}, {known['cores']} cores, {known['memory_gib']} GiB, "
        f"{known['system']}, Python {known['python']}; measured {known['measured']} UTC, "
        f"load average before it {known['load_before']}."
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; what is None shows as a dash."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "| " + " | ".join("-" if cell is None else str(cell) for cell in line) + " |"
        for line in lines
    )


def write_json(folder: Path, name: str, content: object) -> None:
    """`NAME.json` in the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_section(folder: Path, name: str, text: str) -> None:
    """Put text between the page's markers of this name; without them it goes to the page's end."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / PAGE
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{text}\n{end}"
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    if begin in old:
        head, _, rest = old.partition(begin)
        new = head + section + rest.partition(end)[2]
    else:
        new = f"{old}\n{section}\n".lstrip()
    page.write_text(new, encoding="utf-8")
