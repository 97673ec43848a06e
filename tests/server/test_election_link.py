"""Claims about the election channel: the newest news gets through, and noise does not matter."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.server.helpers import Trail, config_of, members, run, until

from zabd.model.ids import MemberId
from zabd.model.zxid import ZXID_ZERO
from zabd.server.election_link import ElectionChannel
from zabd.zab.codec import encode
from zabd.zab.messages import Notification, PeerState, Ping, Standing


def vote(sender: MemberId, election_round: int = 1) -> Notification:
    """A member's vote for itself."""
    return Notification(
        sender=sender,
        cluster_id=None,
        round=election_round,
        leader=sender,
        zxid=ZXID_ZERO,
        epoch=0,
        state=PeerState.LOOKING,
        standing=Standing.BLANK,
        history_empty=True,
    )


class End:
    def __init__(self, member_id: MemberId, ensemble: tuple[object, ...]) -> None:
        self.heard: list[Notification] = []
        self.trail = Trail()
        self.config = config_of(member_id, ensemble)  # type: ignore[arg-type]
        self.channel = ElectionChannel(
            asyncio.get_running_loop(), self.config, self, random.Random(member_id), self.trail
        )

    def notified(self, notification: Notification) -> None:
        self.heard.append(notification)


@asynccontextmanager
async def three(*, listening: tuple[MemberId, ...] = (1, 2, 3)) -> AsyncIterator[list[End]]:
    """Members 1 to 3; those that listen can be reached."""
    ensemble = members(3)
    ends = [End(number, ensemble) for number in (1, 2, 3)]
    for number in listening:
        await ends[number - 1].channel.listen()
    try:
        yield ends
    finally:
        for end in ends:
            end.channel.close()
        await until(lambda: not any(end.channel._receivers for end in ends))


def test_every_member_hears_every_other() -> None:
    """Each direction has a connection of its own: nobody has to agree who dials."""

    async def scenario() -> None:
        async with three() as ends:
            for sender in (1, 2, 3):
                for receiver in {1, 2, 3} - {sender}:
                    ends[sender - 1].channel.notify(receiver, vote(sender))

            await until(lambda: all(len(end.heard) == 2 for end in ends))

            assert [sorted(n.sender for n in end.heard) for end in ends] == [[2, 3], [1, 3], [1, 2]]

    run(scenario)


def test_the_newest_notification_waits_for_a_member_that_is_not_up() -> None:
    """Older votes are worth nothing once there is a newer one."""

    async def scenario() -> None:
        async with three(listening=(2, 3)) as [first, second, _]:
            for number in range(1, 6):
                second.channel.notify(1, vote(2, number))
            await asyncio.sleep(0.05)
            await first.channel.listen()

            await until(lambda: first.heard)

            assert first.heard == [vote(2, 5)]

    run(scenario)


def test_a_member_that_is_heard_is_dialled_at_once() -> None:
    """A restarted member joins the election without waiting for the others' pauses to end."""

    async def scenario() -> None:
        async with three(listening=(2, 3)) as [first, second, _]:
            sender = second.channel._senders[1]
            sender._pause_ms = 1_000_000
            second.channel.notify(1, vote(2))
            await until(lambda: sender._retry is not None)
            await first.channel.listen()
            first.channel.notify(2, vote(1))

            await until(lambda: first.heard)

            assert first.heard == [vote(2)]

    run(scenario)


def test_a_restarted_member_is_reached_again() -> None:
    """The old connection ends with the old process; the next notification makes a new one."""

    async def scenario() -> None:
        async with three() as [first, second, _]:
            second.channel.notify(1, vote(2, 1))
            await until(lambda: first.heard)
            first.channel.close()
            await until(lambda: second.channel._senders[1]._transport is None)
            again = End(1, first.config.members)
            await again.channel.listen()
            second.channel.notify(1, vote(2, 2))

            await until(lambda: again.heard)

            assert again.heard == [vote(2, 2)]
            again.channel.close()
            await until(lambda: not again.channel._receivers)

    run(scenario)


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x40\x00\x00\x00",
        encode(vote(9)),
        encode(vote(1)),
        encode(Ping(1)),
        b"\x00\x00\x01\xff" + bytes(600),
    ],
    ids=["http", "a gigabyte", "a stranger", "itself", "another message", "no message"],
)
def test_only_notifications_of_members_are_heard(noise: bytes) -> None:
    """A vote counts, so whoever is not a member has none (P22)."""

    async def scenario() -> None:
        async with three() as [first, second, _]:
            port = first.config.me.election_port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)  # noqa: TID251
            writer.write(noise)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
            second.channel.notify(1, vote(2))

            await until(lambda: first.heard)

            assert first.heard == [vote(2)]
            assert len(first.trail.of("election_link_dropped")) == 1

    run(scenario)


def test_connections_to_the_election_port_are_bounded() -> None:
    """A flood of connections must not use up the descriptors that clients and peers need."""

    async def scenario() -> None:
        async with three() as [first, second, _]:
            port = first.config.me.election_port
            writers = [
                (await asyncio.open_connection("127.0.0.1", port))[1]  # noqa: TID251
                for _ in range(60)
            ]
            await until(lambda: len(first.trail.of("election_link_dropped")) == 60 - (16 + 8 * 2))
            await until(lambda: len(first.channel._receivers) == 16 + 8 * 2)
            for writer in writers:
                writer.close()
            await until(lambda: not first.channel._receivers)
            second.channel.notify(1, vote(2))
            await until(lambda: first.heard)

    run(scenario)
