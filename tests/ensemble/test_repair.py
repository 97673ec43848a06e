"""Damage on the disk of one member of three: the others repair it, and nobody notices."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.ensemble.harness import BackgroundWriter, serving, wait_until
from tests.ensemble.test_joining import agree

from zabd.cli.members import CommandLauncher, Ensemble, Member, daemon_command
from zabd.cli.words import ask
from zabd.zab.log import RECORD_MAGIC

pytestmark = pytest.mark.ensemble


def follower_of(ensemble: Ensemble) -> Member:
    """A member that does not lead."""
    leader = ensemble.wait_leader()
    return next(member for member in ensemble.members if member is not leader)


def log_of(member: Member) -> Path:
    """The first file of its log."""
    return min(member.data.glob("log.*"))


def flip_a_bit(file: Path) -> None:
    """In the header of its fifth record."""
    data = bytearray(file.read_bytes())
    at = -1
    for _ in range(5):
        at = data.index(RECORD_MAGIC, at + 1)
    data[at + 10] ^= 4
    file.write_bytes(data)


def test_a_flipped_bit_in_a_followers_log_is_repaired_by_the_others(tmp_path: Path) -> None:
    """F1 with real processes: the writes go on, the member votes again, the file is kept."""
    with serving(tmp_path) as ensemble:
        follower = follower_of(ensemble)
        others = [member for member in ensemble.members if member is not follower]
        with BackgroundWriter(ensemble.wait_leader().address) as writer:
            writer.wait_for_more(50)
            follower.kill()
            writer.wait_for_more(20)
            flip_a_bit(log_of(follower))

            follower.start()
            ensemble.wait_serving([follower])
            writer.wait_for_more(20)
            writer.stop()
            assert writer.missing_from(follower) == []
        wait_until(lambda: agree(ensemble), "equal digests at one zxid")
        assert [*follower.data.glob("log.*.damaged*")]
        assert not (follower.data / "distrust").exists()

        # It is a voter like the others: with it, and without one of them, there is a quorum.
        others[0].kill()
        ensemble.wait_serving([follower, others[1]])


def test_all_of_its_promises_lost_a_member_is_repaired_too(tmp_path: Path) -> None:
    """F20: without the epochs file it does not know what it has promised, and does not vote."""
    with serving(tmp_path) as ensemble:
        follower = follower_of(ensemble)
        follower.kill()
        (follower.data / "epochs").unlink()

        follower.start()
        ensemble.wait_serving([follower])

        assert follower.status().keys["zk_zabd_standing"] == "voter"


def test_a_member_that_nobody_can_repair_says_so_and_an_operator_decides(tmp_path: Path) -> None:
    """S20: two of three are damaged. They wait; the words say why; one option goes on."""
    with serving(tmp_path) as ensemble:
        with BackgroundWriter(ensemble.wait_leader().address) as writer:
            writer.wait_for_more(50)
            writer.stop()
        for member in ensemble.members:
            member.kill()
        hurt = ensemble.members[:2]
        for member in hurt:
            flip_a_bit(log_of(member))
        for member in ensemble.members:
            member.start()

        wait_until(lambda: "is damaged" in srvr(hurt[0]), "a word about the damage")
        wait_until(lambda: "waits_for_repair" in hurt[1].log_tail(), "a line in the log")
        assert srvr(hurt[1]).startswith("This ZooKeeper instance is not currently serving")

        hurt[0].kill()
        with closing(CommandLauncher([*daemon_command(), "--give-up-damaged"])) as launcher:
            hurt[0]._launcher = launcher  # as the operator starts it, once
            hurt[0].start()
            ensemble.wait_serving()
            assert "given_up" in hurt[0].log_tail()
            wait_until(lambda: agree(ensemble), "equal digests at one zxid")


def srvr(member: Member) -> str:
    """What the word says, or nothing while nobody answers."""
    try:
        return ask("127.0.0.1", member.client_port, "srvr", timeout_s=1.0)
    except OSError:
        return ""
