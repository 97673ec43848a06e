"""Who is who: members, sessions, connections, links and epochs are integers with a name.

They are aliases rather than types of their own because they cross the wire, the log and the hot
path as what they are.
"""

from typing import Final, TypeAlias

MemberId: TypeAlias = int
"""A configured server of the ensemble, 1 to 254 (`server.N` in the configuration)."""

SessionId: TypeAlias = int
"""A client's session: a signed 64-bit number, never 0, unique in the ensemble for ever."""

ConnectionId: TypeAlias = int
"""One client connection of one member, numbered by that member."""

LinkId: TypeAlias = int
"""One connection between two peers, numbered by the member that holds its end."""

Epoch: TypeAlias = int
"""The number of a leadership; each is greater than all that a quorum ever heard of before."""

SESSION_ID_MASK: Final = 2**64 - 1


def format_session(session_id: SessionId) -> str:
    """The session id as people and four-letter words write it: hexadecimal, unsigned."""
    return f"0x{session_id & SESSION_ID_MASK:x}"
