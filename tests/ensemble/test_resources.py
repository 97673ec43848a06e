"""Out of descriptors or of memory (F34), a member sheds clients or ends, and loses nothing."""

import contextlib
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import KazooException
from tests.ensemble.harness import BackgroundWriter, kazoo, wait_until
from tests.ensemble.test_joining import agree

from zabd.cli.members import Ensemble, Member

pytestmark = [pytest.mark.ensemble, pytest.mark.slow, pytest.mark.timeout(180)]

CLIENTS = 80
LARGE_ZNODES, LARGE_BYTES = 60, 900_000  # together more than a member has mapped to spare


def descriptors(member: Member) -> int:
    """How many it has open."""
    return len([*Path(f"/proc/{member.pid}/fd").iterdir()])


def address_space(member: Member) -> int:
    """How many bytes of it are mapped."""
    pages = int(Path(f"/proc/{member.pid}/statm").read_text("utf-8").split()[0])
    return pages * resource.getpagesize()


@contextlib.contextmanager
def crowd(member: Member) -> Iterator[list[socket.socket]]:
    """Many who connect and say nothing."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(CLIENTS):
            one = stack.enter_context(socket.socket())
            one.settimeout(5)
            with contextlib.suppress(OSError):  # whoever is refused has been shed
                one.connect(("127.0.0.1", member.client_port))
                found.append(one)
        yield found


def mend(ensemble: Ensemble, member: Member) -> None:
    """Start the member again, if it has ended; all three serve and are of one mind."""
    if not member.running:
        member.start()
    ensemble.wait_serving()
    wait_until(lambda: agree(ensemble), "equal digests at one zxid")


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_f34_without_descriptors_clients_are_shed_and_nothing_is_lost(
    ensemble: Ensemble, role: str, record_property: Callable[[str, object], None]
) -> None:
    """The disk and the peers have theirs; a write that needs a new file may end the member."""
    leader = ensemble.wait_leader()
    others = [member for member in ensemble.members if member is not leader]
    member = leader if role == "leader" else others[0]
    with BackgroundWriter(others[1].address) as writer:
        writer.wait_for_more(20)
        limit = descriptors(member) + 2
        resource.prlimit(member.pid, resource.RLIMIT_NOFILE, (limit, limit))

        with crowd(member):
            writer.wait_for_more(200)
            if member.running:
                assert descriptors(member) <= limit
        writer.wait_for_more(20)

        record_property("ended by itself", not member.running)
        member.kill()
        mend(ensemble, member)
        writer.wait_for_more(20)
        writer.stop()
        assert [one for each in ensemble.members for one in writer.missing_from(each)] == []


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_f34_without_memory_a_member_ends_and_nothing_is_lost(
    ensemble: Ensemble, role: str, record_property: Callable[[str, object], None]
) -> None:
    """No allocation of a new region succeeds any more; the others go on, and it comes back."""
    leader = ensemble.wait_leader()
    others = [member for member in ensemble.members if member is not leader]
    member = leader if role == "leader" else others[0]
    with BackgroundWriter(others[1].address) as writer, kazoo(others[1].address) as client:
        writer.wait_for_more(20)
        limit = address_space(member)
        resource.prlimit(member.pid, resource.RLIMIT_AS, (limit, limit))

        with crowd(member):
            for number in range(LARGE_ZNODES):
                # The reply may be lost with the leader.
                with contextlib.suppress(KazooException):
                    client.retry(client.create, f"/large-{number}", bytes(LARGE_BYTES))
        writer.wait_for_more(20)

        record_property("ended by itself", not member.running)
        member.kill()  # what the kernel does next, if it has not ended by itself
        mend(ensemble, member)
        writer.wait_for_more(20)
        writer.stop()
        assert [one for each in ensemble.members for one in writer.missing_from(each)] == []
