"""Enough members: any two quorums share one, which is what carries a decision over to the next.

Each member counts once, and only voters count.
"""

from collections.abc import Collection, Mapping

from zabd.model.ids import MemberId


class MajorityQuorum:
    """More than half of the voters."""

    __slots__ = ("size", "voters")

    def __init__(self, voters: Collection[MemberId]) -> None:
        self.voters = tuple(sorted(voters))
        self.size = len(self.voters) // 2 + 1

    def __deepcopy__(self, memo: dict[int, object]) -> "MajorityQuorum":
        return self  # it never changes

    def contains(self, members: Collection[MemberId]) -> bool:
        """Whether these members, without those who are no voters, are a quorum."""
        return sum(voter in members for voter in self.voters) >= self.size

    def acked(self, values: Mapping[MemberId, int]) -> int:
        """The largest value that a quorum has reached; a voter that is missing has reached 0."""
        return sorted([values.get(voter, 0) for voter in self.voters])[-self.size]
