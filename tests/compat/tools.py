"""Other people's software: fetched by the ordinary package clients, kept out of the repository.

Everything lands below ``build/compat``, which git ignores and `make clean` removes, or in the
system where it is Debian's. What cannot be had raises `MissingToolError`: a test that needs it is
skipped with that sentence, never quietly passed.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build" / "compat"
INSTALL_TIMEOUT_S = 600.0
SAID_CHARS_MAX = 600


class MissingToolError(Exception):
    """A tool of somebody else's is not here and could not be installed; the message says why."""


def needed(have: Callable[[], T]) -> T:
    """What `have` provides, or the calling test is skipped, loudly."""
    try:
        return have()
    except MissingToolError as error:
        pytest.skip(f"COMPAT PART SKIPPED: {error}")


def run_quietly(command: Sequence[str], what: str, **environment: str) -> None:
    """Run an installer; what it says is shown only if it fails."""
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_TIMEOUT_S,
            env=os.environ | environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingToolError(f"{what} cannot be installed: {error}") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()[-SAID_CHARS_MAX:]
        raise MissingToolError(f"{what} cannot be installed: {said}")


@functools.cache
def debian(*packages: str) -> None:
    """Have these packages of Debian's, installing them when this is root on a Debian system."""
    absent = [package for package in packages if not _installed(package)]
    if not absent:
        return
    names = " ".join(absent)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise MissingToolError(f"not installed, and this is not root on Debian: {names}")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent]
    try:
        run_quietly(install, names, DEBIAN_FRONTEND="noninteractive")
    except MissingToolError:  # a list of packages older than the archive names files that are gone
        run_quietly(["apt-get", "update", "-qq"], names)
        run_quietly(install, names, DEBIAN_FRONTEND="noninteractive")


def _installed(package: str) -> bool:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Status}", package],  # noqa: S607 - wherever it is
        capture_output=True,
        check=False,
    )
    return asked.stdout == b"install ok installed"


@functools.cache
def python_with(requirements: Path) -> Path:
    """A Python of its own that has these requirements; its directory is named after theirs."""
    home = BUILD / "venv" / requirements.parent.name
    python, stamp = home / "bin" / "python", home / ".installed"
    wanted = requirements.read_text(encoding="utf-8")
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    run_quietly([sys.executable, "-m", "venv", "--clear", str(home)], "a virtual environment")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run_quietly([*pip, "--requirement", str(requirements)], requirements.parent.name)
    stamp.write_text(wanted, encoding="utf-8")
    return python
