"""Clients that nobody here wrote, each through one scenario on three members.

A program of its own per client (`clients/`) makes the claims; the test starts it, kills the member
it is connected to when it says so, changes a znode it watches while it is away, and looks for its
ephemerals after it has closed its session. With ``COMPAT_SERVER=java`` the members are Debian's,
which proves the scenario itself.
"""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from tests.compat.ensembles import ensemble_of_three, member_of
from tests.compat.tools import BUILD, MissingToolError, debian, needed, python_with, run_quietly

from zabd.cli.members import Ensemble

pytestmark = [pytest.mark.compat, pytest.mark.timeout(400)]

PROGRAMS = Path(__file__).parent / "clients"
PROGRAM_TIMEOUT_S = 240.0
NODE_CLIENT = "node-zookeeper-client@1.1.3"
STEPS = ("connect", "kinds", "versions", "watches", "multi", "acl", "reconnect", "close")


@dataclass(frozen=True)
class Program:
    """How to run a client's program, once what it needs is there."""

    name: str
    command: Callable[[], list[str]]
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _c_client() -> list[str]:
    debian("libzookeeper-mt2")
    return [sys.executable, str(PROGRAMS / "c_program.py")]


def _aiozk() -> list[str]:
    python = python_with(PROGRAMS / "aiozk" / "requirements.txt")
    return [str(python), str(PROGRAMS / "aiozk_program.py")]


def _node() -> list[str]:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise MissingToolError("node-zookeeper-client needs node and npm, which are not installed")
    home = BUILD / "node"
    if not (home / "node_modules" / "node-zookeeper-client").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        quiet = ["--silent", "--no-fund", "--no-audit", "--ignore-scripts"]
        run_quietly([npm, "install", *quiet, "--prefix", str(home), NODE_CLIENT], NODE_CLIENT)
    return [node, str(PROGRAMS / "node_program.js")]


CLIENTS = (
    Program("C", _c_client, ("perishable",)),
    Program("node-zookeeper-client", _node),
    Program("aiozk", _aiozk),
)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_client_meets_no_surprise(client: Program, tmp_path: Path) -> None:
    """What works with ZooKeeper works here, even when the member it talks to dies."""
    command = needed(client.command)
    with ensemble_of_three(tmp_path / "members") as ensemble:
        steps = _play(ensemble, [*command, ensemble.hosts, "/scenario"], tmp_path / "said")

        assert set(steps) == {*STEPS, *client.extra}
        assert _left_behind(ensemble) == []


def _play(ensemble: Ensemble, command: list[str], said: Path) -> list[str]:
    """Run the program to its end, and do what it asks for; the steps that it finished."""
    steps: list[str] = []
    environment = os.environ | {"NODE_PATH": str(BUILD / "node" / "node_modules")}
    with (
        said.open("wb") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        hangs = threading.Timer(PROGRAM_TIMEOUT_S, program.kill)
        hangs.start()
        try:
            for line in program.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "step":
                    steps.append(rest)
                elif word == "session":
                    _lose_member(ensemble, rest)
                    program.stdin.write("killed\n")
                    program.stdin.flush()
        finally:
            hangs.cancel()
            program.kill()
    story = said.read_text("utf-8", "replace")
    assert program.returncode == 0, f"after the steps {steps}: {story}\n{ensemble.logs()}"
    return steps


def _lose_member(ensemble: Ensemble, session: str) -> None:
    """Kill the member of this session, and change what it watches before it is back."""
    member_of(ensemble, session).kill()
    other = _client(ensemble)
    try:
        other.retry(other.set, "/scenario/watched", b"changed meanwhile")
    finally:
        other.stop()
        other.close()


def _left_behind(ensemble: Ensemble) -> list[str]:
    """The ephemerals that are there though the session was closed."""
    other = _client(ensemble)
    try:
        other.sync("/scenario")
        names = other.get_children("/scenario")
        stats = {name: other.exists(f"/scenario/{name}") for name in names}
        return [name for name, stat in stats.items() if stat and stat.ephemeralOwner]
    finally:
        other.stop()
        other.close()


def _client(ensemble: Ensemble) -> KazooClient:
    hosts = ",".join(member.address for member in ensemble.running())
    client = KazooClient(hosts=hosts, timeout=10.0)
    client.start(timeout=30.0)
    return client
