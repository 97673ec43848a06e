import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zabd.cli.members import Ensemble, MemberError, clean_environment

# Takes the place of the daemon: says what it was started with, then waits to be ended.
STAND_IN = [
    sys.executable,
    "-c",
    "import sys, time; print(sys.argv[1:], flush=True); time.sleep(60)",
]


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_gone(pid: int) -> bool:
    """Whether the process ends within a few seconds."""
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


def test_a_member_is_started_with_its_configuration(tmp_path: Path) -> None:
    """Each has a file that names all of them, and its own directory."""
    with Ensemble(
        tmp_path, voters=2, observers=1, settings={"tickTime": "500"}, command=STAND_IN
    ) as ensemble:
        member = ensemble.member(3)
        member.start()
        ensemble.wait_for(member.log.read_bytes, "its first line", timeout_s=10)

        config = member.config.read_text(encoding="utf-8").splitlines()
        printed = member.log.read_text(encoding="utf-8")

    assert "tickTime=500" in config
    assert f"dataDir={member.data}" in config
    assert [line.partition("=")[0] for line in config if line.startswith("server.")] == [
        "server.1",
        "server.2",
        "server.3",
    ]
    assert sum(":observer;" in line for line in config) == 1
    assert printed.strip() == str(["--config", str(member.config), "--id", "3"])


def test_leaving_the_block_ends_every_member(tmp_path: Path) -> None:
    """Stopped ones too, which no SIGTERM would reach."""
    with Ensemble(tmp_path, voters=2, command=STAND_IN) as ensemble:
        for member in ensemble.members:
            member.start()
        ensemble.member(2).stop()
        pids = [member.pid for member in ensemble.members]

    assert not any(alive(pid) for pid in pids)


def test_a_killed_test_leaves_no_member_behind(tmp_path: Path) -> None:
    """SIGKILL runs no `finally`; the reaper sees its pipe close and does the rest."""
    program = f"""
import sys, time
from pathlib import Path
from zabd.cli.members import Ensemble
ensemble = Ensemble(Path({str(tmp_path)!r}), voters=1, command={STAND_IN!r})
ensemble.member(1).start()
print(ensemble.member(1).pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        os.kill(owner.pid, signal.SIGKILL)

    assert wait_gone(pid)


def test_a_member_that_ends_by_itself_is_reported_with_its_log(tmp_path: Path) -> None:
    """Waiting for a dead member would only hide what it said."""
    command = [sys.executable, "-c", "print('no, thank you'); raise SystemExit(3)"]
    ensemble = Ensemble(tmp_path, voters=1, command=command)
    with ensemble, pytest.raises(MemberError) as failure:
        ensemble.start()

    assert "status 3" in str(failure.value)
    assert "no, thank you" in str(failure.value)


def test_waiting_in_vain_says_for_what(tmp_path: Path) -> None:
    """With every member's log behind it."""
    ensemble = Ensemble(tmp_path, voters=1, command=STAND_IN)
    with ensemble, pytest.raises(MemberError, match="in vain for rain"):
        ensemble.wait_for(lambda: False, "rain", timeout_s=0.05)


def test_what_the_user_set_for_himself_is_kept_from_the_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZABD_DATADIR, say, would send all of them to one directory."""
    monkeypatch.setenv("ZABD_DATADIR", "/somewhere")

    assert "ZABD_DATADIR" not in clean_environment()
    assert clean_environment()["PATH"] == os.environ["PATH"]
