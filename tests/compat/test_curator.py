"""Curator's mutex, a Java program of its own, beside our lock: they exclude each other.

Its znodes have protected names, ``_c_<uuid>-lock-<number>``, by which a create whose reply was lost
is found. With ``COMPAT_SERVER=java`` the members are Debian's, which proves the scenario itself.
"""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.compat.ensembles import ensemble_of_three, member_of
from tests.compat.java_zookeeper import JARS
from tests.compat.tools import debian, needed

from zabd.cli.members import Ensemble
from zabd.client import SyncClient
from zabd.client.recipes import SyncLock

pytestmark = [pytest.mark.compat, pytest.mark.timeout(240)]

PACKAGES = (
    "libcurator-client-java",
    "libcurator-framework-java",
    "libcurator-recipes-java",
    "libzookeeper-java",
    "openjdk-17-jdk-headless",
)
CLASSPATH_JARS = (
    "curator-client.jar",
    "curator-framework.jar",
    "curator-recipes.jar",
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "guava.jar",
    "slf4j-api.jar",
    "slf4j-nop.jar",
    "netty-all.jar",
)
PROGRAM = Path(__file__).parent / "clients" / "CuratorProgram.java"
PATH = "/locks/report"
PROTECTED = re.compile(r"_c_[0-9a-f-]{36}-lock-\d{10}")


class Curator:
    """The program, which answers each order with a line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def order(self, line: str) -> None:
        """Give it something to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        """What it says when that is done."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        """Both."""
        self.order(line)
        return self.answer()


@contextmanager
def curator(hosts: str) -> Iterator[Curator]:
    """A connected program, until the end of the block."""
    needed(lambda: debian(*PACKAGES))
    classpath = os.pathsep.join(str(JARS / jar) for jar in CLASSPATH_JARS)
    command = ["java", "-Xmx128m", "-cp", classpath, str(PROGRAM), hosts, PATH]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Curator(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()


def contenders(zk: SyncClient) -> list[str]:
    """The znodes of all who hold or wait, now."""
    zk.sync(PATH)
    return zk.get_children(PATH)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three members, for all of these tests."""
    with ensemble_of_three(tmp_path_factory.mktemp("members")) as members:
        yield members


def test_curators_mutex_and_our_lock_exclude_each_other(ensemble: Ensemble) -> None:
    """In both directions, and whoever waits is next."""
    with SyncClient(ensemble.hosts) as zk, curator(ensemble.hosts) as other:
        lock = SyncLock(zk, PATH, curator=True)
        assert other.ask("acquire") == "acquired"
        [name] = contenders(zk)
        assert PROTECTED.fullmatch(name)
        assert not lock.acquire(blocking=False)
        waiting = threading.Thread(target=lock.acquire, kwargs={"timeout": 60.0})
        waiting.start()
        assert other.ask("release") == "released"
        waiting.join()
        assert lock.held
        assert other.ask("try") == "busy"
        assert len(contenders(zk)) == 1
        other.order("acquire")
        lock.release()
        assert other.answer() == "acquired"
        assert other.ask("release") == "released"
        assert contenders(zk) == []


def test_nobody_adds_in_between_while_curators_member_is_killed(ensemble: Ensemble) -> None:
    """A read and a write under the lock, by two of Curator's and one of ours, lose nothing."""
    times = 40
    with (
        SyncClient(ensemble.hosts) as zk,
        curator(ensemble.hosts) as one,
        curator(ensemble.hosts) as two,
    ):
        zk.create("/count", b"0")
        member = member_of(ensemble, one.ask("session"))
        for each in (one, two):
            each.order(f"count {times}")
        for done in range(times):
            if done == times // 4:
                member.kill()
            with SyncLock(zk, PATH, curator=True):
                before = int(zk.get("/count").data or b"0")
                zk.set("/count", str(before + 1).encode())
        assert (one.answer(), two.answer()) == ("counted", "counted")
        assert zk.get("/count").data == str(3 * times).encode()
        assert contenders(zk) == []
