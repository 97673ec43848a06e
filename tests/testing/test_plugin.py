"""The plugin as this project's own run has it, and as runs of others' have it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from tests.testing.runs import QUIET, environment, passed, processes_naming, run

from zabd.cli.members import MemberError
from zabd.client.sync import SyncClient
from zabd.testing import ZabEnsemble
from zabd.testing.ensemble import Pool, Shape
from zabd.testing.launcher import ProcessLauncher

pytestmark = pytest.mark.ensemble


def test_loading_the_plugin_loads_nothing_else_of_zabd() -> None:
    """Every pytest run of everybody who has zabd installed imports it."""
    program = (
        "import sys, pytest; before = set(sys.modules); import zabd.testing.plugin; "
        "print(sorted(set(sys.modules) - before))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "['zabd', 'zabd.testing', 'zabd.testing.plugin']"


def test_a_fixture_gives_members_that_serve(zab_ensemble: ZabEnsemble) -> None:
    """Three of them, of which one leads."""
    assert zab_ensemble.members == [1, 2, 3]
    assert zab_ensemble.wait_for_leader() in zab_ensemble.members
    assert zab_ensemble.hosts.count(",") == 2


def test_a_member_can_be_killed_and_started_again(zab_ensemble: ZabEnsemble) -> None:
    """It comes back with what it had."""
    before = zab_ensemble.member(1).pid
    client = zab_ensemble.client()
    client.create("/kept", b"1")

    zab_ensemble.kill(1)
    assert not zab_ensemble.member(1).running
    zab_ensemble.restart(1)

    assert zab_ensemble.member(1).pid != before
    with SyncClient(zab_ensemble.hosts_of(1)) as back:
        back.sync("/kept")
        assert back.get("/kept").data == b"1"


def test_who_was_cut_off_is_heard_again_once_healed(zab_ensemble: ZabEnsemble) -> None:
    """A write waits while its client's link is cut, and is answered afterwards."""
    client = zab_ensemble.client("alice", timeout=10)
    zab_ensemble.cut("alice")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(client.create, "/late")
        with pytest.raises(TimeoutError):
            pending.result(timeout=0.3)

        zab_ensemble.heal("alice")

        assert pending.result(timeout=20) == "/late"


def test_a_party_that_is_none_is_refused(zab_ensemble: ZabEnsemble) -> None:
    """A misspelt name would cut nothing, and the test would pass."""
    with pytest.raises(MemberError, match="'bob' is no party here"):
        zab_ensemble.cut("bob")


def test_the_session_of_kazoo_can_be_expired(zab_ensemble: ZabEnsemble) -> None:
    """The client hears of it from the ensemble, as after a real expiry."""
    client = KazooClient(zab_ensemble.hosts)
    client.start()
    states: list[str] = []
    client.add_listener(states.append)
    client.create("/mine", ephemeral=True)

    zab_ensemble.expire(client)

    assert zab_ensemble.client().exists("/mine") is None
    deadline = time.monotonic() + 20
    while "LOST" not in states and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "LOST" in states
    client.stop()
    client.close()


def test_a_spoilt_ensemble_is_not_given_to_the_next(tmp_path: Path) -> None:
    """And one that nobody touched is."""
    (tmp_path / "test_it.py").write_text(
        """
pids = []

def test_a(zab_ensemble):
    pids.append(zab_ensemble.member(1).pid)

def test_b(zab_ensemble):
    assert pids == [zab_ensemble.member(1).pid]
    zab_ensemble.kill(1)

def test_c(zab_ensemble):
    assert zab_ensemble.member(1).running and zab_ensemble.member(1).pid not in pids
""",
        encoding="utf-8",
    )

    assert passed(run(tmp_path, "-p", "no:cacheprovider")) == 3


def test_members_may_run_in_the_test_run_itself(tmp_path: Path) -> None:
    """The same controls; no process is started."""
    (tmp_path / "test_it.py").write_text(
        """
import subprocess

def test_it(zab_ensemble, zab_client, monkeypatch):
    leader = zab_ensemble.wait_for_leader()
    zab_ensemble.kill(leader)
    zab_ensemble.wait_for_leader(other_than=leader)
    zab_client.create("/a")
    zab_ensemble.restart(leader)
    zab_ensemble.pause(leader)
    assert zab_ensemble.member(leader).mode(timeout_s=0.2) is None
    zab_ensemble.resume(leader)
    zab_ensemble.wait_serving()
    zab_ensemble.stop(leader)
    assert zab_ensemble.member(leader).wait() == 0
""",
        encoding="utf-8",
    )

    assert passed(run(tmp_path, "--zab-inprocess")) == 1


def test_a_failed_test_shows_the_members_logs(tmp_path: Path) -> None:
    """Without them nobody could say what went wrong."""
    (tmp_path / "test_it.py").write_text("def test_it(zab_server): assert not 1", encoding="utf-8")

    output = run(tmp_path, expect=1)

    assert "zabd's members" in output
    assert "event=started" in output


WAITS = """
import os, time
from pathlib import Path

def test_it(zab_ensemble, zab_client):
    ports = [member.address for member in map(zab_ensemble.member, zab_ensemble.members)]
    zab_ensemble.pause(1)  # a stopped process takes no notice of anything but SIGKILL
    ready = Path(os.environ["READY_FILE"])
    part = ready.with_suffix(".part")
    part.write_text(" ".join(ports))
    part.rename(ready)
    time.sleep(600)
"""


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["plain", "xdist"])
def test_a_killed_test_run_leaves_nothing_behind(arguments: list[str], tmp_path: Path) -> None:
    """SIGKILL runs no fixture's end: no process stays, no port, not even of a frozen member."""
    (tmp_path / "test_it.py").write_text(WAITS, encoding="utf-8")
    ready = tmp_path / "ready"
    # The processes of this run are those that have its file in their environment.
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *QUIET, *arguments],
        cwd=tmp_path,
        env=environment() | {"READY_FILE": str(ready)},
        stdout=subprocess.DEVNULL,
    ) as owner:
        _wait(ready.exists, "the members")
        assert len(processes_naming(str(ready))) > 4
        os.kill(owner.pid, signal.SIGKILL)

    _wait(lambda: not processes_naming(str(ready)), "the end of every process")
    for address in ready.read_text(encoding="utf-8").split():
        assert not _listens(int(address.rpartition(":")[2]))


def test_members_end_with_their_nursery(tmp_path: Path) -> None:
    """Whoever runs out of memory kills the greatest process, whichever that is."""
    backend = ProcessLauncher()
    pool = Pool(tmp_path, backend)
    members = pool.take(Shape(members=1)).ensemble.members
    assert members[0].running

    os.kill(backend.pid, signal.SIGKILL)

    _wait(lambda: not members[0].running, "the news of it")
    _wait(lambda: not _listens(members[0].client_port), "the member's end")
    with pytest.raises(MemberError, match="nursery"):
        pool.take(Shape(members=1), fresh=True)
    pool.close()


def test_workers_of_xdist_have_members_of_their_own(tmp_path: Path) -> None:
    """They run at once, so they must not share what they may kill."""
    (tmp_path / "test_it.py").write_text(
        """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_it(zab_server, zab_client, number):
    zab_client.create("/only-once")
    zab_server.kill(1)
""",
        encoding="utf-8",
    )

    assert passed(run(tmp_path, "-n", "2")) == 4


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.02)
