"""What peers say to each other, under ZooKeeper's names; docstrings give the paper's.

There are two channels. On the *election* channel travel notifications only, and their loss,
duplication and order do not matter. On the *quorum* channel travels everything else: the learner
dials the leader, and one FIFO connection, a link, serves one leadership. Messages are values.

Junqueira, Reed and Serafini, "Zab" (DSN 2011), section IV.
"""

from enum import IntEnum
from typing import Final, TypeAlias

from zabd.model.ids import Epoch, MemberId
from zabd.model.values import value
from zabd.model.zxid import Zxid
from zabd.zab.log import LogPosition

__all__ = [
    "FORMAT",
    "Ack",
    "AckEpoch",
    "AckNewLeader",
    "Aligned",
    "Carried",
    "Commit",
    "Diff",
    "FollowerInfo",
    "LeaderInfo",
    "Message",
    "NewLeader",
    "Notification",
    "PeerState",
    "Ping",
    "Pong",
    "Propose",
    "Snap",
    "SnapshotChunk",
    "Standing",
    "Trunc",
    "TruncRefused",
    "UpToDate",
]

FORMAT: Final = 1
"""The version of this conversation; a peer that speaks another one is refused."""


class PeerState(IntEnum):
    """What a peer is doing."""

    LOOKING = 0
    FOLLOWING = 1
    LEADING = 2
    OBSERVING = 3


class Standing(IntEnum):
    """What a member can vouch for, and so whether it votes and counts."""

    VOTER = 0
    """It belongs to a cluster and remembers its promises."""
    BLANK = 1
    """It has no cluster id: new, or its disk was replaced. It votes only in a founding."""
    FOUNDER = 2
    """Told by its operator that this is a new cluster; blank, or to begin it with its history."""
    DAMAGED = 3
    """It lost a part of its history or of its promises. It never votes, not even in a founding."""


@value
class Notification:
    """A vote, or the news of a leader, on the election channel.

    While `sender` is looking, (`epoch`, `zxid`, `leader`) is its vote in the election `round`, and
    `leader` is None if it has no vote to give. Otherwise `leader` is the one it follows, or itself.
    """

    sender: MemberId
    cluster_id: bytes | None
    round: int
    leader: MemberId | None
    zxid: Zxid
    epoch: Epoch
    state: PeerState
    standing: Standing
    history_empty: bool


@value
class FollowerInfo:
    """Learner to leader, the first frame of a link: who I am and what I promised (CEPOCH)."""

    format: int
    cluster_id: bytes | None
    member: MemberId
    observer: bool
    accepted_epoch: Epoch
    position: LogPosition
    standing: Standing


@value
class LeaderInfo:
    """Leader to learner: the epoch I want to lead (NEWEPOCH)."""

    epoch: Epoch


@value
class AckEpoch:
    """Learner to leader: I promise that epoch, and this is my history (ACK-E)."""

    current_epoch: Epoch
    position: LogPosition


@value
class Diff:
    """Leader to learner: your history is a prefix of mine; what follows continues `position`."""

    position: LogPosition


@value
class Trunc:
    """Leader to learner: cut your history back to `position`, then say Aligned."""

    position: LogPosition


@value
class Snap:
    """Leader to learner: replace your history by the snapshot in the chunks that follow."""

    position: LogPosition


@value
class TruncRefused:
    """Learner to leader: I have no such position; send a snapshot."""


@value
class Aligned:
    """Learner to leader, after Trunc or Snap: my durable history now ends at `position`."""

    position: LogPosition


@value
class SnapshotChunk:
    """A piece of a snapshot. Hosts produce and consume it; it never enters a Peer."""

    offset: int
    data: bytes
    last: bool
    digest: bytes


@value
class Propose:
    """Leader to learner: append this batch, then acknowledge its last zxid (PROPOSE)."""

    first: Zxid
    count: int
    record: bytes  # framed once by the leader; the same bytes on every link and in every log


@value
class NewLeader:
    """Leader to learner: my history ends at `position`; make it yours and say so (NEWLEADER)."""

    epoch: Epoch
    cluster_id: bytes
    position: LogPosition


@value
class AckNewLeader:
    """Learner to leader: history up to `zxid`, then the epoch, are durable here (ACK-LD)."""

    epoch: Epoch
    zxid: Zxid


@value
class UpToDate:
    """Leader to learner: serve, everything up to `zxid` is committed (COMMIT-LD)."""

    zxid: Zxid


@value
class Ack:
    """Follower to leader: everything up to `zxid` is durable here (ACK)."""

    zxid: Zxid


@value
class Commit:
    """Leader to learner: everything up to `zxid` is committed (COMMIT)."""

    zxid: Zxid


@value
class Ping:
    """Leader to learner: I am alive and lead; `round` numbers the question."""

    round: int


@value
class Pong:
    """Learner to leader: I still follow you, and heard the question `round`."""

    round: int


@value
class Carried:
    """What the hosts of two peers say to each other, opaque, in order with all the rest."""

    payload: bytes


Message: TypeAlias = (
    Notification
    | FollowerInfo
    | LeaderInfo
    | AckEpoch
    | Diff
    | Trunc
    | Snap
    | TruncRefused
    | Aligned
    | SnapshotChunk
    | Propose
    | NewLeader
    | AckNewLeader
    | UpToDate
    | Ack
    | Commit
    | Ping
    | Pong
    | Carried
)
