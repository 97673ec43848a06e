"""The picture: a record of one run as one page of HTML that needs nothing else.

The page is `page/picture.html` with its style, its script and the record put in; it asks for
nothing from anywhere, and its content policy would not let it.
"""

import json
from importlib.resources import files
from pathlib import Path

from zabd.cluster_sim.record import Record


def page(record: Record) -> str:
    """The whole page as text."""
    told = record.as_object()
    title = f"zabd: seed {told['run']['seed']}, level {told['run']['level']}"
    # "<" is the only character that could end the element that the record stands in.
    content = json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")
    text = _part("picture.html")
    text = text.replace("@TITLE@", title).replace("@STYLE@", _part("picture.css"))
    return text.replace("@SCRIPT@", _part("picture.js")).replace("@RECORD@", content)


def draw(record: Record, file: Path) -> None:
    """Write the page to `file`."""
    file.write_text(page(record), encoding="utf-8")


def _part(name: str) -> str:
    return files("zabd.cluster_sim").joinpath("page", name).read_text(encoding="utf-8")
