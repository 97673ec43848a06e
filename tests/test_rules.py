"""The ids that comments and tests name are explained in the reference."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = (REFERENCE / "rules.md", REFERENCE / "bug-gallery.md")

NAMED = [
    ("M", "src/zabd", r"\bM[0-9]{2}\b"),
    ("M", "tests", r"\bM[0-9]{2}\b"),
    ("S", "src/zabd/storage", r"\([A-Z0-9, ]*\bS[0-9]+\b"),
    ("F", "tests", r"def test_f[0-9]+(?=_)"),
    ("P", "src/zabd/server", r"\((?:rules, )?P[0-9]+\b"),
    ("P", "tests/wire", r"\bP[0-9]+\b"),
    ("P", "tests/server", r"\bP[0-9]+\b"),
]


def explained() -> set[str]:
    """The ids in the first column of the pages' tables."""
    lines = [line for page in PAGES for line in page.read_text("utf-8").splitlines()]
    cells = [line.split("|")[1] for line in lines if line.startswith("|")]
    return {name for cell in cells for name in re.findall(r"\b[FMPS][0-9]+\b", cell)}


@pytest.mark.parametrize(("kind", "folder", "pattern"), NAMED)
def test_every_id_that_is_named_is_explained(kind: str, folder: str, pattern: str) -> None:
    """An id without its sentence is a riddle to whoever reads the comment."""
    named = {
        match.group().upper()
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "mutants"  # each of those is an explanation
        for place in re.finditer(pattern, path.read_text("utf-8"))
        for match in re.finditer(rf"(?<![a-z]){kind}[0-9]+\b", place.group(), re.IGNORECASE)
    }

    assert named, "the pattern finds nothing any more"
    assert named <= explained()


SHOWN = ROOT / "docs" / "reference" / "fault-tests.md"


def test_every_fault_has_its_tests() -> None:
    """Each row of the faults, and each rule about damage, names tests, and all of them exist."""
    page = SHOWN.read_text("utf-8")
    rows = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("|")}

    for row in [*(f"F{n}" for n in range(1, 36)), "S17", *(f"S{n}" for n in range(20, 25))]:
        assert re.search(r"::test_|\bF[0-9]+\b", rows[row].split("|", 2)[2]), f"{row} names nothing"
    for file, name in re.findall(r"`([a-z_/]+\.py)::(test_[a-z0-9_]+)`", page):
        text = (ROOT / "tests" / file).read_text("utf-8")
        assert re.search(rf"\bdef {name}\(", text), f"{file} has no {name}"
