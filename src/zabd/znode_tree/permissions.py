"""Permissions: who a connection is, and what an ACL lets it do.

There is no inheritance: the ACL of one znode decides, never that of its ancestors.

Client protocol, section 11.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from zabd.model.acl import OPEN_ACL_UNSAFE, Acl, Identity, Perms
from zabd.model.errors import AuthFailedError, InvalidAclError

ACL_ENTRIES_MAX: Final = 1000
"""Entries in one ACL: far more than people write, and a check stays below 1 ms."""

ACL_CHARS_MAX: Final = 1 << 16
"""All ids of one ACL together."""

CREDENTIALS_BYTES_MAX: Final = 4096
"""A user and a password: what is stored of them goes along with every write."""

_ADDRESSES_CACHED_MAX: Final = 4096
_BITS_DIGITS_MAX: Final = 3
_ADDRESS_CHARS_MAX: Final = 64  # the longest IPv6 address has 45, and there may be bits or a zone

Identities: TypeAlias = Iterable[Identity]


class Scheme(NamedTuple):
    """A way to say who somebody is, as ACLs use it.

    `accepts` says whether an id may stand in an ACL; `matches` whether an entry's id (first) means
    a connection's id (second); `authenticates` whether the scheme `auth` stands for its ids.
    """

    accepts: Callable[[str], bool]
    matches: Callable[[str, str], bool]
    authenticates: bool


def allowed(acl: tuple[Acl, ...], perms_wanted: int, identities: Identities) -> bool:
    """Whether `acl` grants one of the bits of `perms_wanted` to one of the identities."""
    if acl is OPEN_ACL_UNSAFE or not acl:
        return True
    for perms, scheme, id in acl:
        if perms & perms_wanted and _means(scheme, id, identities):
            return True
    return any(identity.scheme == SUPER for identity in identities)


def _means(scheme: str, id: str, identities: Identities) -> bool:
    if scheme == "world":
        return id == "anyone"
    known = SCHEMES.get(scheme)
    if known is None:
        return False
    return any(mine.scheme == scheme and known.matches(id, mine.id) for mine in identities)


def expand_acl(
    acl: tuple[Acl, ...] | None, identities: Identities, *, sasl: bool = False
) -> tuple[Acl, ...]:
    """The ACL to store for the one that a client asked for.

    Duplicates go, the order stays, and the scheme `auth` becomes the connection's own identities.
    Entries of the scheme `sasl` are taken where there is SASL.
    Raises InvalidAclError for an empty ACL, one beyond the limits, as asked for or as stored, and
    for whom nobody can be.
    """
    if acl == OPEN_ACL_UNSAFE:
        return OPEN_ACL_UNSAFE
    if not acl:
        raise InvalidAclError("an ACL needs at least one entry")
    _require_small(acl)
    expanded: dict[Acl, None] = {}
    for entry in dict.fromkeys(map(_without_ignored, acl)):
        expanded.update(dict.fromkeys(_expand(entry, identities, sasl=sasl)))
        if len(expanded) > ACL_ENTRIES_MAX:
            break  # refused below; what `auth` stands for would go on growing until then
    # Again: an entry of a few bytes may have become all that the connection has shown.
    _require_small(expanded)
    return tuple(expanded)


def _without_ignored(entry: Acl) -> Acl:
    """The entry, with the id of `auth` left out, so that each is expanded once."""
    return entry._replace(id="") if entry.scheme == "auth" else entry


def _require_small(acl: Collection[Acl]) -> None:
    if len(acl) > ACL_ENTRIES_MAX or sum(len(entry.id) for entry in acl) > ACL_CHARS_MAX:
        raise InvalidAclError(
            f"an ACL has at most {ACL_ENTRIES_MAX} entries and {ACL_CHARS_MAX} characters of ids"
        )


def _expand(entry: Acl, identities: Identities, *, sasl: bool) -> list[Acl]:
    if entry.scheme == "auth":
        mine = [
            Acl(entry.perms, identity.scheme, identity.id)
            for identity in identities
            if identity.scheme in SCHEMES and SCHEMES[identity.scheme].authenticates
        ]
        if mine:
            return mine
    elif entry.scheme == "world":
        if entry.id == "anyone":
            return [entry]
    elif entry.scheme == SASL and not sasl:
        pass  # as if the scheme were not known
    elif entry.scheme in SCHEMES and SCHEMES[entry.scheme].accepts(entry.id):
        return [entry]
    raise InvalidAclError(f"the ACL entry {entry.scheme!r} {entry.id[:200]!r} stands for nobody")


def visible_acl(acl: tuple[Acl, ...], identities: Identities) -> tuple[Acl, ...]:
    """What getACL shows: only who may change the ACL sees the secret part of digest ids."""
    if allowed(acl, Perms.ADMIN, identities):
        return acl
    return tuple(
        entry._replace(id=f"{entry.id.partition(':')[0]}:x") if entry.scheme == "digest" else entry
        for entry in acl
    )


def authenticate(
    scheme: str,
    auth: bytes,
    *,
    address: str,
    super_digest: str | None = None,
    algorithm: str = "sha1",
) -> tuple[Identity, ...]:
    """The identities that an auth packet adds to a connection from `address`.

    `super_digest` is the configured digest id whose owner may do everything; `algorithm`, by its
    name in hashlib, is the same on all members. Raises AuthFailedError for a scheme that takes no
    packet, and for credentials beyond the limit.
    """
    if scheme == "ip":
        return (Identity("ip", address),)
    if scheme != "digest":
        raise AuthFailedError(f"the scheme {scheme[:200]!r} takes no credentials")
    if len(auth) > CREDENTIALS_BYTES_MAX:
        raise AuthFailedError(f"credentials have at most {CREDENTIALS_BYTES_MAX} bytes")
    id = _digest_id(auth, algorithm)
    mine = Identity("digest", id)
    return (mine, Identity(SUPER, "")) if id == super_digest else (mine,)


def _digest_id(auth: bytes, algorithm: str) -> str:
    # Unlike make_digest_id: text without a colon is a user with no password at all.
    text = auth.decode("utf-8", "replace")
    digest = hashlib.new(algorithm, text.encode()).digest()
    return f"{text.partition(':')[0]}:{base64.b64encode(digest).decode()}"


def user_of(identity: Identity) -> str:
    """The user that whoAmI shows: of a digest id the part that is no secret."""
    return identity.id.partition(":")[0] if identity.scheme == "digest" else identity.id


def _accepts_digest(id: str) -> bool:
    _user, _colon, rest = id.partition(":")
    return bool(rest) and ":" not in rest


@lru_cache(maxsize=_ADDRESSES_CACHED_MAX)
def _network(
    id: str,
) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int] | None:
    """The address and the number of low bits that do not count; None if `id` is no address."""
    text, slash, bits_text = id.partition("/")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if not slash:
        return address, 0
    if not (bits_text.isascii() and bits_text.isdigit() and len(bits_text) <= _BITS_DIGITS_MAX):
        return None
    ignored = address.max_prefixlen - int(bits_text)
    return (address, ignored) if ignored >= 0 else None


def _accepts_ip(id: str) -> bool:
    return len(id) <= _ADDRESS_CHARS_MAX and _network(id) is not None


def _matches_ip(id: str, address: str) -> bool:
    wanted, mine = _network(id), _network(address)
    if wanted is None or mine is None or wanted[0].version != mine[0].version:
        return False
    return int(wanted[0]) >> wanted[1] == int(mine[0]) >> wanted[1]


def _accepts_sasl(id: str) -> bool:
    """A name as Kerberos writes them: ``user``, ``user/host`` or ``user/host@REALM``."""
    return "@" not in id or _PRINCIPAL.fullmatch(id) is not None


def _matches_sasl(id: str, mine: str) -> bool:
    # ZooKeeper lets a user of this name in wherever there is an entry for any of them.
    return mine in (id, SUPER)


_PRINCIPAL: Final = re.compile(r"[^/@]+(/[^/@]+)?@[^/@]+")

SASL: Final = "sasl"
"""The scheme of who has proved to be a user by SASL."""

SUPER: Final = "super"
"""The scheme of an identity that may do everything; no ACL can name it."""

SCHEMES: Final[dict[str, Scheme]] = {
    "digest": Scheme(_accepts_digest, str.__eq__, authenticates=True),
    "ip": Scheme(_accepts_ip, _matches_ip, authenticates=False),
    SASL: Scheme(_accepts_sasl, _matches_sasl, authenticates=True),
}
"""The schemes that ACLs may name besides `world` and `auth`."""
