"""A member with an empty directory joins an ensemble that has a history and goes on writing."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.ensemble.harness import BackgroundWriter, serving, wait_until

from zabd.cli.members import Ensemble, Member
from zabd.client import connect

pytestmark = pytest.mark.ensemble

IN_FLIGHT = 500
ZNODES = 100_000
OVERWRITTEN_MAX = 20
FIRST_OF_LOG = "log.00000001"


def digest_at(member: Member) -> tuple[int | None, str | None]:
    """Where the member stands: zxid and the digest of its tree."""
    status = member.status(timeout_s=5.0)
    return status.zxid, status.keys.get("zk_zabd_tree_digest")


def agree(ensemble: Ensemble) -> bool:
    """Whether all members stand at the same zxid with the same digest."""
    standings = {digest_at(member) for member in ensemble.members}
    return len(standings) == 1 and None not in next(iter(standings))


async def fill(hosts: str, count: int) -> None:
    """Make so many znodes of 600 bytes, a hundred of them below each parent."""
    async with connect(hosts) as client:
        await client.create("/fill")
        for start in range(0, count, IN_FLIGHT):
            parents = range(start // 100, (start + IN_FLIGHT) // 100)
            await asyncio.gather(*(client.create(f"/fill/{parent}") for parent in parents))
            await asyncio.gather(
                *(
                    client.create(f"/fill/{number // 100}/{number}", b"x" * 600)
                    for number in range(start, start + IN_FLIGHT)
                )
            )


async def overwrite(hosts: str, count: int) -> None:
    """Write all of them anew."""
    async with connect(hosts) as client:
        for start in range(0, count, IN_FLIGHT):
            await asyncio.gather(
                *(
                    client.set(f"/fill/{number // 100}/{number}", b"y" * 600)
                    for number in range(start, start + IN_FLIGHT)
                )
            )


def rejoin_empty(ensemble: Ensemble) -> Member:
    """Let a follower lose its disk and come back while writes go on; that follower."""
    leader = ensemble.wait_leader()
    follower = next(member for member in ensemble.members if member is not leader)
    with BackgroundWriter(leader.address) as writer:
        follower.kill()
        shutil.rmtree(follower.data)
        follower.data.mkdir()
        writer.wait_for_more(10)

        follower.start()
        ensemble.wait_serving([follower], timeout_s=100)
        writer.wait_for_more(10)
        writer.stop()
        assert writer.missing_from(follower) == []
    wait_until(lambda: agree(ensemble), "equal digests at one zxid")
    return follower


def test_a_member_without_its_disk_is_brought_up_to_date(tmp_path: Path) -> None:
    """A small tree, whose history the log still holds."""
    with serving(tmp_path) as ensemble:
        asyncio.run(fill(ensemble.hosts, 2_000))
        rejoin_empty(ensemble)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_member_joins_a_hundred_thousand_znodes_by_snapshot(tmp_path: Path) -> None:
    """The begin of the log is needed by no snapshot any more, and gone: no way by DIFF."""
    with serving(tmp_path, settings={"snapCount": "10000"}) as ensemble:
        asyncio.run(fill(ensemble.hosts, ZNODES))
        for _ in range(OVERWRITTEN_MAX):
            asyncio.run(overwrite(ensemble.hosts, ZNODES))
            if not any((member.data / FIRST_OF_LOG).exists() for member in ensemble.members):
                break
        follower = rejoin_empty(ensemble)
        lines = [
            line for member in ensemble.members for line in member.log.read_text().splitlines()
        ]
        assert any("event=snap " in line and f"learner={follower.id}" in line for line in lines)
