"""ZooKeeper's configuration file: its lines, and the `server.N` specification of a member.

The file is a Java properties file: `key=value`, `#` and `!` begin a comment, a backslash at the
end joins lines. A member is `host:quorumPort:electionPort[:role][;[clientHost:]clientPort]`, IPv6
addresses in brackets. Source: the administrator's guide of ZooKeeper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zabd.model.errors import ConfigError
from zabd.model.ids import MemberId
from zabd.server.keys import PORT_MAX, is_host

_REFUSED_CHARS_MAX = 200  # of a key or a value, in the sentence that refuses it
MEMBER_ID_MAX = 254  # TTL nodes mark their owner with 0xff in the byte that holds the id
SPECIFICATION = "host:quorumPort:electionPort[:participant|observer][;[clientHost:]clientPort]"


MEMBER_PREFIX = "server."


def member_number(text: str) -> MemberId | None:
    """The id of a member that a text of whatever length says; None if it says none."""
    if not re.fullmatch("0*[1-9][0-9]{0,2}", text) or int(text[-3:]) > MEMBER_ID_MAX:
        return None
    return int(text[-3:])


class Setting(NamedTuple):
    """One key with its value, and where it was given, for the error message."""

    key: str
    value: str
    origin: str

    def refuse(self, allowed: str) -> ConfigError:
        """The error that names place, key and value, and what would have been right."""
        key, value = self.key[:_REFUSED_CHARS_MAX], self.value[:_REFUSED_CHARS_MAX]
        return ConfigError(f"{self.origin}: {key}={value} is not {allowed}")

    def canonical(self) -> Setting:
        """The setting under the one name that its key has: `server.01` is `server.1`."""
        number = member_number(self.key.removeprefix(MEMBER_PREFIX))
        if number is None or not self.key.startswith(MEMBER_PREFIX):
            return self
        return self._replace(key=f"{MEMBER_PREFIX}{number}")


@dataclass(frozen=True, slots=True)
class Member:
    """One configured member of the ensemble: who it is and where it listens."""

    id: MemberId
    host: str
    quorum_port: int
    election_port: int
    observer: bool = False
    client_host: str | None = None  # None: not said, or every address
    client_port: int | None = None  # None: not said (the old form)

    def line(self) -> str:
        """The member as /zookeeper/config and the word `conf` show it."""
        role = "observer" if self.observer else "participant"
        text = f"server.{self.id}={bracketed(self.host)}:{self.quorum_port}:{self.election_port}"
        if self.client_port is None:
            return f"{text}:{role}"
        return f"{text}:{role};{bracketed(self.client_host or '0.0.0.0')}:{self.client_port}"  # noqa: S104  (shown, not bound)


def bracketed(host: str) -> str:
    """An address as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def parse_text(text: str, name: str) -> list[Setting]:
    """The settings of a file called `name`, in order; ConfigError for a line that is none."""
    return [_parse_line(line, f"{name}, line {number}") for number, line in _lines(text)]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first physical one."""
    joined, start = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        start = start or number
        if not joined and (not line or line[0] in "#!"):
            start = 0
            continue
        if line.endswith("\\"):
            joined += line[:-1].rstrip()
            continue
        yield start, joined + line
        joined, start = "", 0
    if joined:
        yield start, joined


def _parse_line(line: str, origin: str) -> Setting:
    match = re.match(r"([^\s=:]+)\s*(?:[=:]|\s)\s*(.*)", line)
    if match is None:
        raise ConfigError(f"{origin}: {line[:80]!r} is not key=value")
    return Setting(match[1], match[2].strip(), origin)


def parse_member(setting: Setting) -> Member:
    """The member that a `server.N` setting describes; ConfigError if it describes none."""
    number = member_number(setting.key.removeprefix(MEMBER_PREFIX))
    if number is None:
        raise setting.refuse(f"a member: N in server.N is a number from 1 to {MEMBER_ID_MAX}")
    peer, _, client = setting.value.partition(";")
    if "|" in peer or ";" in client:
        raise setting.refuse("a member with one address and one client port")
    fields = _fields(peer)
    client_fields = _fields(client) if client else []
    try:
        host, quorum_port, election_port, *role = fields
        *client_host, client_port = client_fields or ["0"]
        return Member(
            id=number,
            host=_checked_host(host),
            quorum_port=_port(quorum_port),
            election_port=_port(election_port),
            observer=_is_observer(role),
            client_host=_optional_host(client_host),
            client_port=_port(client_port) if client else None,
        )
    except ValueError:
        raise setting.refuse(SPECIFICATION) from None


def _fields(text: str) -> list[str]:
    """Split at the colons outside brackets."""
    return [part.strip() for part in re.findall(r"(?:^|:)(\[[^\]]*\]|[^:]*)", text.strip())]


def _checked_host(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if not is_host(bare):
        raise ValueError(text)
    return bare


def _optional_host(hosts: list[str]) -> str | None:
    if len(hosts) > 1:
        raise ValueError(hosts)
    return _checked_host(hosts[0]) if hosts else None


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= PORT_MAX:
        raise ValueError(text)
    return int(text)


def _is_observer(role: list[str]) -> bool:
    if len(role) > 1 or (role and role[0].lower() not in {"participant", "observer"}):
        raise ValueError(role)
    return bool(role) and role[0].lower() == "observer"
