"""One configuration from all its sources.

Precedence is command line, environment, file, default. An unknown key is a notice that names it; a
value that is not allowed is a ConfigError that names place, key, value and what is allowed. Nothing
here opens a file: texts come in.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from zabd.model.errors import ConfigError
from zabd.model.ids import MemberId
from zabd.server.config import CLIENT_PORT, METRICS_PORT, ServerConfig, default_members
from zabd.server.keys import (
    BY_NAME,
    KEYS,
    SECURE_PORT,
    environment_name,
    reason_to_ignore,
    reason_to_refuse,
)
from zabd.server.zoo_cfg import MEMBER_ID_MAX, Member, Setting, parse_member, parse_text

ENSEMBLE_MAX = 99
_MYID_DIGITS_MAX = 20
# Environment variables of the commands that are no keys of zoo.cfg.
OPTION_VARIABLES = frozenset(
    environment_name(name)
    for name in (
        "config",
        "ensemble",
        "id",
        "log.format",
        "new.cluster",
        "no.uvloop",
        "standalone",
    )
)


class Resolved(NamedTuple):
    """A configuration, and one sentence for each thing that its author should know."""

    config: ServerConfig
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was given, from where; every part may be missing."""

    file_name: str | None = None
    file_text: str | None = None
    environment: Mapping[str, str] | None = None
    options: Mapping[str, str] | None = None  # key of zoo.cfg -> value, from the command line
    member_id: int | None = None
    ensemble: int | None = None
    standalone: bool = False
    new_cluster: bool = False
    give_up_damaged: bool = False
    found_anew: str | None = None


def resolve(sources: Sources, read_myid: Callable[[str], str | None]) -> Resolved:
    """One configuration from all sources.

    Args:
        sources: what was given.
        read_myid: the text of the file `myid` in a directory, or None where there is none.

    Raises:
        ConfigError: a value is not allowed, or a value that is needed is missing.
    """
    return _Resolution(sources, read_myid).resolved()


class _Resolution:
    """The one pass over the sources; notices gather on the way."""

    def __init__(self, sources: Sources, read_myid: Callable[[str], str | None]) -> None:
        self._sources = sources
        self._read_myid = read_myid
        self._notices: list[str] = []
        self._settings: dict[str, Setting] = {}  # the winner of each key
        self._in_file: dict[str, Setting] = {}
        self._secure_port: Setting | None = None

    def resolved(self) -> Resolved:
        self._gather()
        values = self._values()
        given_id, origin = self._member_id(values)
        members = self._members(given_id)
        member_id = _checked_id(given_id, origin, members)
        me = self._with_client_address(_member(members, member_id), values)
        members = tuple(me if member.id == member_id else member for member in members)
        self._check_peer_type(me, values.pop("peer_type", None))
        self._complete(values)
        self._check_auth(values)
        self._choose_metrics(values)
        values.setdefault("data_dir", f"./zabd-data/{member_id}")
        config = ServerConfig(
            member_id=member_id,
            members=members,
            new_cluster=self._sources.new_cluster,
            give_up_damaged=self._sources.give_up_damaged,
            found_anew=self._found_anew(me),
            **values,
        )
        self._check_voters(config)
        if config.give_up_damaged:
            self._notices.append(
                "--give-up-damaged: whatever is damaged in this member's directory is lost for "
                "good, acknowledged writes among it; leave the option out of the next start"
            )
        if config.found_anew is not None:
            self._notices.append(
                "--found-anew: a new cluster begins with what this member has; acknowledged writes "
                "that only others had are lost for good, and so is their way back"
            )
        return Resolved(config, tuple(self._notices))

    def _found_anew(self, me: Member) -> bytes | None:
        given = self._sources.found_anew
        if given is None:
            return None
        if me.observer:
            raise ConfigError("--found-anew is for a member that votes, and this is an observer")
        try:
            cluster_id = bytes.fromhex(given)
        except ValueError:
            cluster_id = b""
        if not cluster_id:
            raise ConfigError(
                f"--found-anew {given!r}: the id of a cluster is hexadecimal, as the log lines "
                "waits_for_repair and recovered have it"
            )
        return cluster_id

    # Which value each key has.

    def _gather(self) -> None:
        for setting in map(Setting.canonical, self._file_settings()):
            if setting.key.startswith("server.") and setting.key in self._in_file:
                raise setting.refuse(f"the first {setting.key}: name each member once")
            self._in_file[setting.key] = setting
        self._settings |= self._in_file
        later = [*self._environment_settings(), *self._option_settings()]
        for setting in map(Setting.canonical, later):
            self._settings[setting.key] = setting

    def _file_settings(self) -> Iterator[Setting]:
        name = self._sources.file_name or "configuration"
        for setting in parse_text(self._sources.file_text or "", name):
            yield from self._known(setting)

    def _option_settings(self) -> Iterator[Setting]:
        for key, value in (self._sources.options or {}).items():
            yield from self._known(Setting(key, value.strip(), f"command line, --{key}"))

    def _environment_settings(self) -> Iterator[Setting]:
        names = {key.environment: key.name for key in KEYS}
        for variable, value in sorted((self._sources.environment or {}).items()):
            if not variable.startswith("ZABD_") or variable in OPTION_VARIABLES:
                continue
            origin = f"environment, {variable}"
            if variable in names:
                yield Setting(names[variable], value.strip(), origin)
            elif variable.startswith("ZABD_SERVER_"):
                number = variable.removeprefix("ZABD_SERVER_")
                yield Setting(f"server.{number}", value.strip(), origin)
            else:
                self._unknown(variable, origin, names)

    def _known(self, setting: Setting) -> Iterator[Setting]:
        """The setting if it means something here; else a notice, or a refusal."""
        if setting.key.startswith("server.") or setting.key in BY_NAME:
            yield setting
            return
        short = setting.key.removeprefix("zookeeper.")
        if short in BY_NAME:  # as a Java system property is named
            yield setting._replace(key=short)
        elif (why := reason_to_refuse(short, setting.value)) is not None:
            raise ConfigError(f"{setting.origin}: {setting.key} is not supported: {why}")
        elif (why := reason_to_ignore(short) or reason_to_ignore(setting.key)) is not None:
            if short == SECURE_PORT:
                self._secure_port = setting
            self._notices.append(f"{setting.origin}: {setting.key} has no effect: {why}")
        else:
            self._unknown(setting.key, setting.origin, BY_NAME)

    def _unknown(self, name: str, origin: str, known: Iterable[str]) -> None:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        self._notices.append(f"{origin}: unknown key {name}{hint}")

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, setting in self._settings.items():
            key = BY_NAME.get(name)
            if key is None:
                continue
            try:
                values[key.field] = key.parse(setting.value)
            except ValueError:
                raise setting.refuse(key.allowed) from None
        return values

    # Who the members are, and which of them this is.

    def _members(self, member_id: MemberId | None) -> tuple[Member, ...]:
        servers = [setting for key, setting in self._settings.items() if key.startswith("server.")]
        if self._sources.ensemble is not None:
            return self._default_ensemble(self._sources.ensemble, servers)
        if self._sources.standalone or (not servers and self._sources.file_text is not None):
            if servers:
                raise servers[0].refuse("compatible with --standalone: leave one of them out")
            return (replace(self._alone(), id=1 if member_id is None else member_id),)
        if not servers:
            return default_members()
        members = sorted((parse_member(setting) for setting in servers), key=lambda m: m.id)
        _check_addresses(members)
        return tuple(members)

    def _default_ensemble(self, count: int, servers: list[Setting]) -> tuple[Member, ...]:
        if self._sources.standalone or servers:
            raise ConfigError(
                "--ensemble says who the members are: leave out --standalone, server.N"
            )
        if not 1 <= count <= ENSEMBLE_MAX:
            raise ConfigError(f"command line: --ensemble {count} is not from 1 to {ENSEMBLE_MAX}")
        return default_members(count)

    def _alone(self) -> Member:
        """The only member; a file opens it to every address, as ZooKeeper does."""
        alone = default_members(1)[0]
        return alone if self._sources.file_text is None else replace(alone, client_host=None)

    def _member_id(self, values: Mapping[str, Any]) -> tuple[MemberId | None, str]:
        """Who this member is, as far as it was said, and where."""
        if self._sources.member_id is not None:
            return self._sources.member_id, "command line, --id"
        directory = values.get("data_dir")
        if directory is None:
            return None, ""
        return self._myid(directory), f"{directory}/myid"

    def _myid(self, directory: str) -> MemberId | None:
        text = self._read_myid(directory)
        if text is None:
            return None
        number = text.strip()
        if not re.fullmatch(f"[0-9]{{1,{_MYID_DIGITS_MAX}}}", number):
            raise ConfigError(f"{directory}/myid: {number[:20]!r} is not a member's number")
        return int(number)

    # What follows from other values.

    def _with_client_address(self, me: Member, values: dict[str, Any]) -> Member:
        """The member with its client address settled, in the table and in the values."""
        port = self._settings.get("clientPort")
        in_file = self._in_file.get("clientPort")
        spec = self._in_file.get(f"server.{me.id}")
        if (
            port is not None
            and port is in_file
            and spec
            and me.client_port not in {None, int(port.value)}
        ):
            raise port.refuse(f"the client port that server.{me.id} names: {me.client_port}")
        named = port is not None or (f"server.{me.id}" in self._settings and me.client_port)
        if self._secure_port is not None and not named:
            raise self._secure_port.refuse(
                "offered yet, for want of TLS: name a clientPort if clients may do without"
            )
        values.setdefault("client_port", me.client_port or CLIENT_PORT)
        values.setdefault("client_host", me.client_host)
        return replace(me, client_host=values["client_host"], client_port=values["client_port"])

    def _check_peer_type(self, me: Member, peer_type: str | None) -> None:
        if peer_type is not None and (peer_type == "observer") != me.observer:
            raise self._settings["peerType"].refuse(f"what server.{me.id} says")

    def _complete(self, values: dict[str, Any]) -> None:
        """Session bounds follow from the tick unless they are said."""
        tick = values.get("tick_ms", ServerConfig.__dataclass_fields__["tick_ms"].default)
        for field, ticks in (("session_timeout_ms_min", 2), ("session_timeout_ms_max", 20)):
            if values.get(field, -1) <= 0:
                values[field] = ticks * tick
        if values["session_timeout_ms_min"] > values["session_timeout_ms_max"]:
            low = self._settings.get("minSessionTimeout") or self._settings["maxSessionTimeout"]
            raise low.refuse(
                f"possible: sessions from {values['session_timeout_ms_min']} ms"
                f" to {values['session_timeout_ms_max']} ms"
            )
        if values.get("backlog") == -1:
            del values["backlog"]

    def _check_auth(self, values: dict[str, Any]) -> None:
        if values.get("auth_enforced") and not values.get("auth_schemes"):
            switch = self._settings["enforce.auth.enabled"]
            raise switch.refuse("false, where no enforce.auth.schemes says what is asked for")
        asked = "enforce.auth.schemes" if values.get("auth_enforced") else ""
        if values.get("sasl_required"):
            asked = "sessionRequireClientSASLAuth"
        sasl = values.get("sasl_required") or "sasl" in values.get("auth_schemes", ())
        if asked and sasl and not values.get("sasl_users"):
            raise self._settings[asked].refuse(
                "possible: java.security.auth.login.config names no user of SASL"
            )

    def _choose_metrics(self, values: dict[str, Any]) -> None:
        """ZooKeeper asks for the class of a provider; a port alone says as much."""
        provider = values.pop("metrics_provider", None)
        if provider is True:
            values.setdefault("metrics_port", METRICS_PORT)
        elif provider is False and values.pop("metrics_port", None) is not None:
            port = self._settings["metricsProvider.httpPort"]
            self._notices.append(
                f"{port.origin}: {port.key} has no effect: metricsProvider.className shows no page"
            )

    def _check_voters(self, config: ServerConfig) -> None:
        count = len(config.voters)
        if count == 0:
            raise ConfigError("the ensemble has no voter: every server.N is an observer")
        if count == 1 and not config.standalone_enabled:
            raise ConfigError("standaloneEnabled=false, and the ensemble has one voter: name more")
        if count % 2 == 0:
            failures = (count - 1) // 2
            self._notices.append(
                f"{count} voters tolerate {failures} failure{'s' * (failures != 1)},"
                f" no more than {count - 1} would: an odd number is better"
            )


def _member(members: Iterable[Member], member_id: MemberId) -> Member:
    return next(member for member in members if member.id == member_id)


def _checked_id(given: MemberId | None, origin: str, members: tuple[Member, ...]) -> MemberId:
    ids = ", ".join(str(member.id) for member in members)
    if given is None:
        if len(members) > 1:
            raise ConfigError(f"which member is this? Give --id, one of {ids}, or dataDir/myid")
        return members[0].id
    if not 1 <= given <= MEMBER_ID_MAX:
        raise ConfigError(
            f"{origin}: {given} is not a member id, a number from 1 to {MEMBER_ID_MAX}"
        )
    if given not in {member.id for member in members}:
        raise ConfigError(f"{origin}: {given} is no member of the ensemble, which is {ids}")
    return given


def _check_addresses(members: list[Member]) -> None:
    """Two listeners on one address would make a member that can never start."""
    taken: dict[tuple[str, int], str] = {}
    for member in members:
        ports = [(member.quorum_port, "quorum port"), (member.election_port, "election port")]
        for port, role in ports:
            holder = f"the {role} of server.{member.id}"
            first = taken.setdefault((member.host, port), holder)
            if first != holder:
                raise ConfigError(f"{member.host}:{port} is both {first} and {holder}")
