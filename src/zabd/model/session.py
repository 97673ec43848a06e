"""The handshake that opens or resumes a session (client protocol, section 2)."""

from typing import Final, NamedTuple

from zabd.model.ids import SessionId

PASSWORD_SIZE: Final = 16
"""The size in bytes of every password a server gives out, all zeros in a refusal."""


class ConnectRequest(NamedTuple):
    """A client's first frame: open a session (id 0) or resume the one it has the password of.

    `read_only` is None when the client, an old one, did not send the field; then the answer has to
    leave it out as well.
    """

    protocol_version: int
    last_zxid_seen: int
    timeout_ms: int
    session_id: SessionId
    password: bytes | None
    read_only: bool | None


class ConnectResponse(NamedTuple):
    """The answer: the session and its negotiated timeout, or all zeros if it is over."""

    protocol_version: int
    timeout_ms: int
    session_id: SessionId
    password: bytes
    read_only: bool | None

    @property
    def refused(self) -> bool:
        """Whether the session to be resumed is expired, closed or not the client's own."""
        return self.timeout_ms <= 0


def refusal(*, with_read_only: bool) -> ConnectResponse:
    """The answer that tells a client its session is over."""
    read_only = False if with_read_only else None
    return ConnectResponse(0, 0, 0, bytes(PASSWORD_SIZE), read_only)
