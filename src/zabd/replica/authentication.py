"""Who is at the other end of a connection: the auth packets it sends, and who is served at all.

What a connection has shown is its own and never the session's; nothing is taken from it until it
ends (client protocol, section 11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zabd.model.acl import Acl, Identity
from zabd.model.errors import AuthFailedError, MarshallingError
from zabd.model.ops import Auth, OpCode
from zabd.replica.messages import size_of
from zabd.wire.requests import decode_as
from zabd.znode_tree.permissions import SASL, allowed, authenticate

if TYPE_CHECKING:
    from zabd.replica.config import ReplicaConfig
    from zabd.replica.connection import Connection

IDENTITIES_MAX = 64
"""Identities of one connection: every write carries them to the leader."""

IDENTITIES_BYTES_MAX = 16 * 1024
"""All ids of one connection together: four users of the longest credentials, as they come along
with the writes of each turn."""

_AUTH_OPCODES = frozenset((OpCode.AUTH, OpCode.SASL))


def takes_credentials(connection: Connection, frame: bytes, config: ReplicaConfig) -> bool:
    """Whether the auth packet is accepted; the connection then has what it proves."""
    try:
        _, scheme, credentials = decode_as(Auth, frame)
        gained = authenticate(
            scheme,
            credentials,
            address=connection.host,
            super_digest=config.super_digest,
            algorithm=config.digest_algorithm,
        )
    except (MarshallingError, AuthFailedError):
        return False
    known = connection.identities
    new = tuple(identity for identity in gained if identity not in known)
    identities = known + new
    if len(identities) > IDENTITIES_MAX or size_of(identities) > IDENTITIES_BYTES_MAX:
        return False
    connection.identities = identities
    return True


def proved_by_sasl(connection: Connection, token: bytes | None) -> bytes | None:
    """Take a step of the connection's exchange; at its end the connection has what it proves.

    Raises AuthFailedError if it proves nothing. None where there is no SASL.
    """
    exchange = connection.sasl
    if exchange is None:
        return None
    answer = exchange.step(token or b"")
    if exchange.user is not None:
        connection.identities += (Identity(SASL, exchange.user),)
    return answer


def may_ask(connection: Connection, opcode: int, schemes: tuple[str, ...]) -> bool:
    """Whether the connection has shown an identity of one of `schemes`, or is about to."""
    return opcode in _AUTH_OPCODES or any(
        identity.scheme in schemes for identity in connection.identities
    )


def may(connection: Connection, acl: tuple[Acl, ...], perms: int) -> bool:
    """Whether the connection has one of the rights here; a write's are the preparer's to ask."""
    return connection.skips_acl or allowed(acl, perms, connection.identities)
