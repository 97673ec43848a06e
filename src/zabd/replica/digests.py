"""Whose tree is right, when the members' digests at one zxid differ.

Every member tells the leader the digest its tree had where all of them look. The leader counts as
one of them: a bit may flip in its memory as well as in any other.

Invariants
    V1  A tree is called wrong, and its disk with it, only if more than half of the voters have
        another one and all of these agree. So what a quorum holds is never thrown away.
"""

from collections import Counter
from collections.abc import Collection

from zabd.model.ids import MemberId
from zabd.zab.quorum import MajorityQuorum

DIGESTS_KEPT = 64
"""Zxids of which digests are remembered; members are apart by less, or one is being brought up."""


class DigestTally:
    """What a leader was told of the trees, itself included, during its leadership."""

    __slots__ = ("_quorum", "_told")

    def __init__(self, quorum: MajorityQuorum) -> None:
        self._quorum = quorum
        self._told: dict[int, dict[MemberId, int]] = {}

    def tell(self, zxid: int, member: MemberId, digest: int) -> None:
        """A member's tree had this digest there."""
        if zxid not in self._told and len(self._told) >= DIGESTS_KEPT:
            del self._told[next(iter(self._told))]
        self._told.setdefault(zxid, {})[member] = digest

    def right(self, zxid: int) -> int | None:
        """The digest that a quorum's trees had there, once that is known (V1)."""
        voted = Counter(self._of_voters(zxid).values())
        [(digest, count)] = voted.most_common(1) or [(0, 0)]
        return digest if count >= self._quorum.size else None

    def is_open(self, zxid: int, members: Collection[MemberId]) -> bool:
        """Whether these voters have all been heard, and still no quorum agrees."""
        told = self._of_voters(zxid)
        voters = [member for member in members if member in self._quorum.voters]
        return self.right(zxid) is None and all(voter in told for voter in voters)

    def others(self, zxid: int, digest: int) -> set[MemberId]:
        """Who has told another digest than this one."""
        told = self._told.get(zxid, {})
        return {member for member, theirs in told.items() if theirs != digest}

    def _of_voters(self, zxid: int) -> dict[MemberId, int]:
        told = self._told.get(zxid, {})
        return {voter: told[voter] for voter in self._quorum.voters if voter in told}
