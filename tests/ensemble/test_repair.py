"""Damage on the disk of one member of three: the others repair it, and nobody notices."""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.ensemble.harness import BackgroundWriter, lay_out, serving, wait_until
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


def test_a_cluster_is_founded_anew_from_one_copy_when_an_operator_says_so(tmp_path: Path) -> None:
    """Two of three directories are empty. They wait; one option, with the cluster's id, goes on."""
    with serving(tmp_path) as ensemble:
        copy, *others = ensemble.members
        with BackgroundWriter(copy.address) as writer:
            writer.wait_for_more(50)
            writer.stop()
            wait_until(lambda: agree(ensemble), "equal digests at one zxid")
            for member in ensemble.members:
                member.kill()
            for member in others:
                shutil.rmtree(member.data)
            for member in ensemble.members:
                member.start()
            wait_until(lambda: "waits_for_repair" in copy.log_tail(), "a line in the log")
            cluster = found(r"event=waits_for_repair .*cluster=(\w+)", copy.log_tail())

            copy.kill()
            with told_to_found_anew(copy, cluster):
                ensemble.wait_serving()
                assert writer.missing_from(copy) == []
                assert writer.missing_from(others[0]) == []
                wait_until(lambda: agree(ensemble), "equal digests at one zxid")
        copy.kill()
        copy.start()  # without the option, and it is a voter of the new cluster like the others
        others[1].kill()
        ensemble.wait_serving([copy, others[0]])


def test_one_member_becomes_one_of_three(tmp_path: Path) -> None:
    """Nobody else has ever had anything, so what it has is all there is."""
    with serving(tmp_path / "one", voters=1) as alone:
        with BackgroundWriter(alone.members[0].address) as writer:
            writer.wait_for_more(50)
            writer.stop()
        cluster = found(r"cluster (\w+)", (alone.members[0].data / "identity").read_text())
        alone.members[0].kill()
        with lay_out(tmp_path / "three", voters=3) as three:
            first, *added = three.members
            shutil.copytree(alone.members[0].data, first.data, dirs_exist_ok=True)
            for member in added:
                member.start()
            with told_to_found_anew(first, cluster):
                three.wait_serving()
                assert writer.missing_from(added[1]) == []


@contextmanager
def told_to_found_anew(member: Member, cluster: str) -> Iterator[None]:
    """Start it as the operator does, once; it is killed in the end."""
    with closing(CommandLauncher([*daemon_command(), "--found-anew", cluster])) as launcher:
        ordinary, member._launcher = member._launcher, launcher
        member.start()
        yield
        member._launcher = ordinary


def found(pattern: str, text: str) -> str:
    """What the pattern's group stands for in a text that has to have it."""
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


def srvr(member: Member) -> str:
    """What the word says, or nothing while nobody answers."""
    try:
        return ask("127.0.0.1", member.client_port, "srvr", timeout_s=1.0)
    except OSError:
        return ""
