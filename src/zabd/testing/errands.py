"""Two errands for a test, each over a connection of its own that is gone afterwards.

No session stays open for them, so that a test that counts what a member receives counts its own.
"""

import socket
from typing import Any, Final

from zabd.cli.members import MemberError
from zabd.cli.ports import LOOPBACK
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import SessionMovedError, error_for
from zabd.model.ops import CloseSession, Create, Op
from zabd.model.session import ConnectRequest, ConnectResponse
from zabd.wire.connection import ClientConnection, ClientItem, Reply

TIMEOUT_S: Final = 30.0
CHUNK_BYTES: Final = 65_536
SESSION_TIMEOUT_MS: Final = 30_000
ATTEMPTS_MAX: Final = 10
NEW_SESSION: Final = (0, bytes(16))


def make_root(port: int, path: str) -> None:
    """Create a znode."""
    _run(port, *NEW_SESSION, [Create(path, b"", OPEN_ACL_UNSAFE, 0), CloseSession()])


def end_session(port: int, session_id: int, password: bytes) -> bool:
    """Close somebody else's session; False if it was over before.

    Whoever has the id and the password of a session may take it over, and close it. The client that
    it was taken from hears of it when it reconnects, as of any expiry (client protocol, section 2).
    """
    for attempt in range(ATTEMPTS_MAX):
        try:
            if not _run(port, session_id, password, [CloseSession()]):
                return attempt > 0  # else it was our last try that ended it
        except (ConnectionError, SessionMovedError):  # its client has taken it back meanwhile
            continue
        return True
    raise MemberError(f"session 0x{session_id:x} was taken back {ATTEMPTS_MAX} times")


def credentials_of(client: Any) -> tuple[int, bytes]:  # noqa: ANN401 - anybody's client
    """The session of our clients, of kazoo's, or a pair of id and password as it is."""
    if (own := getattr(client, "credentials", None)) is not None:
        return own.session_id, own.password
    match getattr(client, "client_id", client):  # kazoo's, or the pair itself
        case (int() as session_id, bytes() as password):
            return session_id, password
        case _:
            pass
    raise MemberError(
        f"expire({client!r}): expected a connected client, zabd's or kazoo's, or (id, password)"
    )


def _run(port: int, session_id: int, password: bytes, ops: list[Op]) -> bool:
    """Open or take over a session, do these, and see each answered; False if it was refused."""
    connection = ClientConnection()
    request = ConnectRequest(0, 0, SESSION_TIMEOUT_MS, session_id, password, read_only=False)
    with socket.create_connection((LOOPBACK, port), TIMEOUT_S) as link:
        # All at once: a client that is left without its session soon takes it back.
        frames = [connection.connect(request), *(connection.send(op)[1] for op in ops)]
        link.sendall(b"".join(frames))
        return all(_is_done(item) for item in _received(link, connection, len(frames)))


def _is_done(item: ClientItem) -> bool:
    match item:
        case ConnectResponse():
            return not item.refused
        case Reply() if item.error:
            raise error_for(item.error, operation="errand")
        case _:
            return True


def _received(link: socket.socket, connection: ClientConnection, count: int) -> list[ClientItem]:
    items: list[ClientItem] = []
    while len(items) < count and not (items and not _is_done(items[0])):
        chunk = link.recv(CHUNK_BYTES)
        if not chunk:
            raise ConnectionResetError("a member closed the connection of an errand")
        items += connection.receive(chunk)
    return items
