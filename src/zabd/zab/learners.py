"""Learners as their leader sees them: one for each link, and how far it has come."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from zabd.model.errors import RemoteProtocolError
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.zab.log import LogPosition
from zabd.zab.member import Member
from zabd.zab.messages import FORMAT, FollowerInfo, Standing

EPOCH_JUMP_MAX: Final = 1 << 20
"""An epoch that much above ours is no promise but damage or an attack (P22)."""


class Stage(IntEnum):
    """In the order in which a learner goes through them."""

    GREETED = 0
    """FollowerInfo is here."""
    PROMISED = 1
    """AckEpoch is here; synchronisation begins when a quorum has promised."""
    FINDING = 2
    """Its place in our history is being looked up on the disk."""
    ALIGNING = 3
    """It was told to cut its history back, or is being sent a snapshot; Aligned is awaited."""
    STREAMING = 4
    """Records come to it from the disk."""
    HELD = 5
    """It refused to truncate, or is damaged: it waits until we are established without it."""
    CAUGHT_UP = 6
    """It has all of our history and gets every new proposal."""
    INVITED = 7
    """NewLeader is sent."""
    SYNCED = 8
    """AckNewLeader is here, and with it the first acknowledgement."""
    SERVING = 9
    """UpToDate is sent; from here on it hears of commits."""


class Learner:
    """One learner on one link. Everything it said is bound to this link and this leadership."""

    __slots__ = (
        "accepted_epoch",
        "cluster_id",
        "counts",
        "heard_ms",
        "installs",
        "link",
        "member",
        "observer",
        "pong_round",
        "position",
        "promised_epoch",
        "request_id",
        "stage",
        "standing",
    )

    def __init__(self, link: LinkId, info: FollowerInfo, now_ms: int, *, counts: bool) -> None:
        self.link = link
        self.member: MemberId = info.member
        self.observer = info.observer
        self.cluster_id = info.cluster_id
        self.standing = info.standing
        self.accepted_epoch: Epoch = info.accepted_epoch
        self.counts = counts
        """Whether it is a voter that can vouch for its past, so that quorums may rest on it."""
        self.promised_epoch: Epoch | None = None
        self.position: LogPosition = info.position
        """Where its history ends, or will when it has done what it was told."""
        self.stage = Stage.GREETED
        self.request_id: int | None = None
        self.pong_round = 0
        self.heard_ms = now_ms
        self.installs = False
        """Whether it has been sent all of a snapshot, and has not said Aligned yet."""

    @property
    def live(self) -> bool:
        """Whether new proposals go to it."""
        return self.stage >= Stage.CAUGHT_UP

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time."""
        return (
            self.link,
            self.member,
            self.accepted_epoch,
            self.counts,
            self.promised_epoch,
            self.position,
            self.stage,
            self.pong_round,
        )


class Learners:
    """The learners of one leadership: one for each member, the one of its present link (G1)."""

    __slots__ = ("_by_member", "_m", "links")

    def __init__(self, member: Member) -> None:
        self._m = member
        self.links: dict[LinkId, Learner] = {}
        self._by_member: dict[MemberId, Learner] = {}

    def __iter__(self) -> Iterator[Learner]:
        # A learner may go while we look at all of them.
        return iter([*self.links.values()])

    def __contains__(self, member: object) -> bool:
        return member in self._by_member

    def of(self, member: MemberId) -> Learner | None:
        """The learner that is this member."""
        return self._by_member.get(member)

    def add(self, learner: Learner) -> None:
        """A learner has introduced itself; an earlier link of its is gone."""
        assert learner.member not in self._by_member, "G1"
        self.links[learner.link] = self._by_member[learner.member] = learner

    def pop(self, link: LinkId) -> Learner | None:
        """The link is gone."""
        learner = self.links.pop(link, None)
        if learner is not None:
            del self._by_member[learner.member]
        return learner

    def counted(self, least: Stage, heard_since_ms: int | None = None) -> list[MemberId]:
        """The voters on whom a decision may rest, ourselves not among them."""
        return [
            learner.member
            for learner in self.links.values()
            if learner.counts
            and learner.stage >= least
            and (heard_since_ms is None or learner.heard_ms >= heard_since_ms)
        ]

    def make_quorum(self, least: Stage, heard_since_ms: int | None = None) -> bool:
        """Whether these voters and we are enough."""
        return self._m.quorum.contains([*self.counted(least, heard_since_ms), self._m.me])

    def in_step(self) -> dict[LinkId, MemberId]:
        """The learners that are in broadcast."""
        return {
            link: learner.member
            for link, learner in self.links.items()
            if learner.stage is Stage.SERVING
        }

    def state_key(self) -> tuple[object, ...]:
        """All that decides what comes next, but for time."""
        return tuple(learner.state_key() for learner in self.links.values())


def check_follower_info(member: Member, info: FollowerInfo) -> None:
    """Whether this learner may talk to us at all; RemoteProtocolError if not."""
    config = member.config
    if info.format != FORMAT:
        raise RemoteProtocolError(
            f"member {info.member} speaks format {info.format}, this member speaks {FORMAT}"
        )
    expected = config.observers if info.observer else config.voters
    if info.member == config.me or info.member not in expected:
        role = "an observer" if info.observer else "a voter"
        raise RemoteProtocolError(f"member {info.member} is not configured here as {role}")
    if None not in (info.cluster_id, member.cluster_id) and info.cluster_id != member.cluster_id:
        raise RemoteProtocolError(
            f"member {info.member} belongs to another cluster; "
            "check its configuration and data directory"
        )
    if info.accepted_epoch > member.accepted_epoch + EPOCH_JUMP_MAX:
        raise RemoteProtocolError(
            f"member {info.member} claims to have accepted epoch {info.accepted_epoch}, "
            f"absurdly far from {member.accepted_epoch}"
        )
    if member.founds_anew and info.standing not in (Standing.BLANK, Standing.FOUNDER):
        raise RemoteProtocolError(
            f"member {info.member} may know of a cluster, and this member founds another one"
        )
    if info.standing is Standing.DAMAGED:
        return  # who it belonged to may be among what it lost
    if (info.cluster_id is None) != (info.standing is not Standing.VOTER):
        raise RemoteProtocolError(f"member {info.member} is blank and has a cluster, or neither")
