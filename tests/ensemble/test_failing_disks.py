"""The disk of a leader fails or stalls under a real process (F13, F16): the others go on.

The system call itself is made to fail, by strace, from some sync on.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.ensemble.harness import BackgroundWriter, lay_out, wait_until
from tests.ensemble.test_joining import agree

from zabd.cli.members import CommandLauncher, Ensemble, Member, daemon_command

STRACE = shutil.which("strace")
CALLS = "pwritev2,fdatasync"  # the first is a synced write where the system has it
SYNC = 60  # the first ones belong to the start and to the founding

pytestmark = [
    pytest.mark.ensemble,
    pytest.mark.slow,
    pytest.mark.skipif(STRACE is None, reason="strace is not installed: NO DISK HAS FAILED"),
]


@contextlib.contextmanager
def leader_with(folder: Path, injection: str) -> Iterator[tuple[Ensemble, Member]]:
    """Three members that serve; the one that leads has this done to each of its later syncs."""
    strace = [STRACE or "", "-f", "--seccomp-bpf", "-o", os.devnull, "-e", f"trace={CALLS}"]
    command = [*strace, "-e", f"inject={CALLS}:{injection}:when={SYNC}+", *daemon_command()]
    with lay_out(folder) as ensemble, contextlib.closing(CommandLauncher(command)) as launcher:
        victim = ensemble.members[-1]  # of three that know nothing the last one is elected
        usual, victim._launcher = victim._launcher, launcher
        ensemble.start()
        assert ensemble.wait_leader() is victim
        victim._launcher = usual  # its next life is an ordinary one
        group = victim.pid
        try:
            yield ensemble, victim
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)  # strace would leave it alone if it were killed


def go_on_without(
    ensemble: Ensemble, victim: Member, property_of: Callable[[str, object], None]
) -> None:
    """Writes go on under another leader; what was acknowledged is on all members in the end."""
    others = [member for member in ensemble.members if member is not victim]
    group = victim.pid
    with BackgroundWriter(others[0].address) as writer:
        wait_until(
            lambda: any(member.mode() == "leader" for member in others), "another leader", 60
        )
        elected = time.monotonic()
        property_of("writes went on after (s)", round(writer.wait_acknowledged_after(elected), 2))
        writer.wait_for_more(50)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        victim.wait(timeout_s=10)
        victim.start()
        ensemble.wait_serving()
        writer.wait_for_more(20)
        writer.stop()
        wait_until(lambda: agree(ensemble), "equal digests at one zxid")
        assert [one for each in ensemble.members for one in writer.missing_from(each)] == []


def test_f13_a_leader_whose_sync_fails_ends_and_the_others_go_on(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """It acknowledges nothing more, says why, and is whole again after its next start."""
    with leader_with(tmp_path, "error=EIO") as (ensemble, victim):
        go_on_without(ensemble, victim, record_property)
        assert "Input/output error" in victim.log.read_text("utf-8")


def test_f16_a_leader_whose_sync_stalls_gives_up_its_office(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A sync of a minute is a failure of its member; nobody waits for it."""
    with leader_with(tmp_path, "delay_enter=60000000") as (ensemble, victim):
        go_on_without(ensemble, victim, record_property)
