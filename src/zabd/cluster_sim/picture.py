"""The picture: a record of one run as one page of HTML that needs nothing else.

The page is `page/picture.html` with its style, its script and the record put in; it asks for
nothing from anywhere, and its content policy would not let it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from zabd.cluster_sim.core_level import CoreLevel
from zabd.cluster_sim.record import Record
from zabd.cluster_sim.recording import recording


def page(record: Record) -> str:
    """The whole page as text."""
    told = record.as_object()
    title = f"zabd: seed {told['run']['seed']}, level {told['run']['level']}"
    text = _part("picture.html")
    text = text.replace("@TITLE@", title).replace("@STYLE@", _part("picture.css"))
    return text.replace("@SCRIPT@", _part("picture.js")).replace("@RECORD@", _as_json(told))


def playable(drawn: str, game: Mapping[str, Any]) -> str:
    """A page with the buttons of `zabctl sim play`, which ask its server for the next page."""
    panel = _part("play.html").replace("@GAME@", _as_json(game))
    script = f"<script>\n{_part('play.js')}</script>\n"
    return drawn.replace("</nav>", f"{panel}</nav>", 1).replace("</body>", f"{script}</body>", 1)


def draw(record: Record, file: Path) -> None:
    """Write the page to `file`."""
    file.write_text(page(record), encoding="utf-8")


def _as_json(told: Mapping[str, Any]) -> str:
    # "<" is the only character that could end the element that it stands in.
    return json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")


@contextmanager
def drawing(level: CoreLevel, file: str | PathLike[str]) -> Iterator[Record]:
    """Record an experiment while this is open, and write its page when it ends, however it ends."""
    try:
        with recording(level) as record:
            yield record
    except Exception as error:
        record.fail(error)
        raise
    finally:
        record.run = {
            "seed": level.schedule.seed,
            "level": level.name,
            "mutant": None,
            "events": level.trace.recorded,
            "virtual_ms": level.schedule.now_ms,
            "faults": level.nemesis.happened,
        }
        draw(record, Path(file))


def _part(name: str) -> str:
    return files("zabd.cluster_sim").joinpath("page", name).read_text(encoding="utf-8")
