"""SASL DIGEST-MD5, both ends: user and password are proved, and neither end shows them.

The server's challenge holds a nonce; the client answers with a hash over it, a nonce of its own and
the password, and the server with another one, which proves that it knows the password too. Only
authentication ("auth") is offered, of users in the realm and for the service that ZooKeeper names,
whatever the host. What follows on the connection is not protected: that takes TLS.

Invariants
    I1  Nothing but a complete exchange proves anything, and a step out of turn ends it.
    I2  No password is in an error, a `repr` or a token.

RFC 2831, sections 2.1.1 to 2.1.3; client protocol, section 11.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from zabd.model.errors import AuthFailedError

if TYPE_CHECKING:
    from random import Random

REALM: Final = "zk-sasl-md5"
SERVICE: Final = b"zookeeper/zk-sasl-md5"

TOKEN_BYTES_MAX: Final = 4096
"""The longest token that the RFC lets a client send."""

_NONCE_BITS: Final = 256
_FIRST_USE: Final = b"00000001"
_DIRECTIVE: Final = re.compile(
    # No part can end where the next one begins, so none is tried again with less of it.
    rb'[\s,]*+([A-Za-z-]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s",]++))\s*+(?=,|$)'
)


class Users(Mapping[str, str]):
    """Names and passwords; it shows the names only."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)

    def __getitem__(self, name: str) -> str:
        return self._passwords[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._passwords)

    def __len__(self) -> int:
        return len(self._passwords)

    def __repr__(self) -> str:
        return f"Users({', '.join(self._passwords)})"


class ServerExchange:
    """The server's end, of one connection; `user` is who it is once that is proved."""

    def __init__(self, users: Mapping[str, str], rng: Random) -> None:
        self.user: str | None = None
        self._users = users
        self._rng = rng
        self._nonce = b""
        self._over = False

    def step(self, token: bytes) -> bytes:
        """Take the client's token and return ours.

        Raises:
            AuthFailedError: it proves nothing, or comes out of turn.
        """
        if self._over or len(token) > TOKEN_BYTES_MAX:
            raise AuthFailedError(
                "expected one exchange of SASL, with tokens of at most 4096 bytes"
            )
        if not self._nonce:
            self._nonce = _new_nonce(self._rng)
            return b'realm="%b",nonce="%b",charset=utf-8,algorithm=md5-sess' % (
                REALM.encode(),
                self._nonce,
            )
        self._over = True
        return self._check(directives(token))

    def _check(self, said: dict[str, bytes]) -> bytes:
        charset = "utf-8" if said.get("charset", b"").lower() == b"utf-8" else "latin-1"
        try:
            name = said["username"].decode(charset)
            cnonce, response = said["cnonce"], said["response"]
        except (KeyError, UnicodeDecodeError):
            raise AuthFailedError("expected username, cnonce and response") from None
        expected = {
            "realm": REALM.encode(),
            "nonce": self._nonce,
            "nc": _FIRST_USE,
            "qop": b"auth",
            "digest-uri": SERVICE,
            "authzid": name.encode(),
        }
        for directive, value in ({"qop": b"auth", "authzid": name.encode()} | said).items():
            if expected.get(directive, value) != value:
                raise AuthFailedError(
                    f"{directive} is not {expected[directive]!r}, as it has to be"
                )
        if missing := expected.keys() - said.keys() - {"qop", "authzid"}:
            raise AuthFailedError(f"expected {', '.join(sorted(missing))} too")
        # Who has no password is told as much, and as late, as who has another one.
        secret = secret_of(name, REALM, self._users.get(name, ""), charset)
        proof = Proof(secret, self._nonce, cnonce, SERVICE, said.get("authzid"))
        if not hmac.compare_digest(proof.of_client, response) or name not in self._users:
            raise AuthFailedError(f"user {name[:200]!r} has not proved a password")
        self.user = name
        return b"rspauth=" + proof.of_server


class ClientExchange:
    """The client's end, of one connection; its first token is empty."""

    def __init__(self, user: str, password: str, rng: Random) -> None:
        self._user = user
        self._password = password
        self._rng = rng
        self._proof: Proof | None = None

    def step(self, token: bytes) -> bytes | None:
        """Take the server's token and return ours; None when both ends are proved.

        Raises:
            AuthFailedError: the server does not speak DIGEST-MD5, or does not know the password.
        """
        said = directives(token)
        if self._proof is not None:
            if not hmac.compare_digest(said.get("rspauth", b""), self._proof.of_server):
                raise AuthFailedError("the server has not proved that it knows the password")
            return None
        if (
            "nonce" not in said
            or b"auth" not in said.get("qop", b"auth").replace(b",", b" ").split()
        ):
            raise AuthFailedError("expected a challenge of DIGEST-MD5 that offers auth")
        charset = "utf-8" if said.get("charset", b"").lower() == b"utf-8" else "latin-1"
        return self._answer(said["nonce"], said.get("realm", REALM.encode()), charset)

    def _answer(self, nonce: bytes, realm: bytes, charset: str) -> bytes:
        try:
            name = self._user.encode(charset)
            secret = secret_of(self._user, realm.decode(charset), self._password, charset)
        except UnicodeError:
            raise AuthFailedError("the server takes user and password in Latin-1 only") from None
        cnonce = _new_nonce(self._rng)
        self._proof = Proof(secret, nonce, cnonce, SERVICE)
        parts = [
            b'username="%b"' % _quoted(name),
            b'realm="%b"' % _quoted(realm),
            b'nonce="%b"' % _quoted(nonce),
            b"nc=" + _FIRST_USE,
            b'cnonce="%b"' % cnonce,
            b'digest-uri="%b"' % SERVICE,
            b"response=" + self._proof.of_client,
            b"qop=auth",
        ]
        return b",".join([b"charset=utf-8", *parts] if charset == "utf-8" else parts)


class Proof:
    """What both ends compute from a secret, the nonces and the service."""

    def __init__(
        self,
        secret: bytes,
        nonce: bytes,
        cnonce: bytes,
        service: bytes,
        authzid: bytes | None = None,
    ) -> None:
        self._key = _hex(b":".join([secret, nonce, cnonce, *([authzid] if authzid else [])]))
        self._middle = b":".join([nonce, _FIRST_USE, cnonce, b"auth"])
        self._service = service

    @property
    def of_client(self) -> bytes:
        """The `response`."""
        return self._of(b"AUTHENTICATE:" + self._service)

    @property
    def of_server(self) -> bytes:
        """The `rspauth`."""
        return self._of(b":" + self._service)

    def _of(self, what: bytes) -> bytes:
        return _hex(b":".join([self._key, self._middle, _hex(what)]))


def secret_of(user: str, realm: str, password: str, charset: str = "utf-8") -> bytes:
    """The hash that takes the place of the password.

    Each part is in Latin-1 as far as that goes, also where names travel in UTF-8.
    """
    return _md5(b":".join(_narrow(part, charset) for part in (user, realm, password))).digest()


def directives(token: bytes) -> dict[str, bytes]:
    """The directives of a token; of those that come again the first counts.

    Raises:
        AuthFailedError: it has another form.
    """
    found: dict[str, bytes] = {}
    at = 0
    while match := _DIRECTIVE.match(token, at):
        at = match.end()
        quoted = match[2]
        value = match[3] if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL)
        found.setdefault(match[1].decode().lower(), value)
    if token[at:].strip(b" \t\r\n,"):
        raise AuthFailedError("expected directives of SASL DIGEST-MD5, name=value, with commas")
    return found


def _quoted(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _narrow(part: str, charset: str) -> bytes:
    try:
        return part.encode("latin-1")
    except UnicodeEncodeError:
        return part.encode(charset)


def _new_nonce(rng: Random) -> bytes:
    return b"%x" % rng.getrandbits(_NONCE_BITS)


def _hex(data: bytes) -> bytes:
    return _md5(data).hexdigest().encode()


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)
