"""The map of the rooms, as the import rules and the README see it."""

import importlib
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

ROOMS = [
    "model",
    "wire",
    "zab",
    "znode_tree",
    "replica",
    "storage",
    "server",
    "client",
    "cluster_sim",
    "testing",
    "cli",
]
CORE = ["model", "wire", "zab", "znode_tree", "replica"]


REPOSITORY = Path(__file__).parent.parent


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is(room: str) -> None:
    """A newcomer who opens a room reads one sentence about it before anything else."""
    module = importlib.import_module(f"zabd.{room}")

    assert module.__doc__


@pytest.mark.parametrize("room", ROOMS)
def test_the_readme_leads_to_the_room(room: str) -> None:
    """The table of rooms is the newcomer's first map."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")

    assert f"| {room} | [src/zabd/{room}](src/zabd/{room}) |" in readme


def test_no_room_is_off_the_map() -> None:
    """A new folder has to take its place in the layers, or the import rules do not bind it."""
    folders = {entry.name for entry in files("zabd").iterdir() if entry.is_dir()}

    assert folders - {"__pycache__"} == set(ROOMS)


def test_importing_the_core_starts_no_event_loop_machinery() -> None:
    """Static rules see one import at a time; this sees what the core really pulls in."""
    imports = ", ".join(f"zabd.{room}" for room in CORE)
    program = (
        f"import sys; import {imports}; print(sorted({{'asyncio', 'socket'}} & set(sys.modules)))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "[]"


def test_the_types_are_published() -> None:
    """Without the marker a user's type checker ignores every hint in the package."""
    assert files("zabd").joinpath("py.typed").is_file()
