"""The four-letter words: what a member says about itself to monitoring programs and to people.

Each word is a function from a `Report`, which only reads, to the text that is sent before the
connection is closed. The shapes of the lines are ZooKeeper's, since programs parse them.
Source: client protocol, section 21.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Final, NamedTuple, Protocol

from zabd.model.ids import SessionId, format_session
from zabd.server.clock import java_date
from zabd.server.config import ServerConfig

NOT_SERVING: Final = "This ZooKeeper instance is not currently serving requests\n"
TRACE_MASK: Final = 306
ANSWER_CHARACTERS_MAX: Final = 8 * 2**20  # a dump of a million watches is cut here


@cache
def version_line() -> str:
    """The version of ZooKeeper whose behaviour is offered, in the form that programs match."""
    from importlib.metadata import version  # noqa: PLC0415  (20 ms, which no start has to wait for)

    return f"3.9.4-zabd-{version('zabd')}, built on 2026-11-30 00:00 UTC"


class Spread(NamedTuple):
    """The extremes and the mean of something measured."""

    low: float
    mean: float
    high: float


class ConnectionReport(NamedTuple):
    """One client connection, for `stat` and `cons`."""

    address: str  # as Java shows it: /127.0.0.1:40678
    reading: bool
    queued: int
    received: int
    sent: int
    session_id: SessionId = 0  # 0: none yet, and what follows means nothing
    last_op: str = "NA"
    established_ms: int = 0  # wall time
    timeout_ms: int = 0
    last_xid: int = 0
    last_zxid: int = 0
    last_response_ms: int = 0
    last_latency_ms: int = 0
    latency_ms: Spread = Spread(0, 0, 0)


class Report(Protocol):
    """What the words are answered from; every call reads and none waits."""

    @property
    def config(self) -> ServerConfig:
        """What this member was told."""
        ...

    @property
    def serving(self) -> bool:
        """Whether clients are served now, if only reads."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether only reads are served, for want of a quorum."""
        ...

    @property
    def damaged(self) -> str | None:
        """Why this member waits for the others to repair it; None if it is whole."""
        ...

    @property
    def mode(self) -> str:
        """One of standalone, leader, follower, observer, read-only."""
        ...

    @property
    def zxid(self) -> int:
        """The last zxid that was applied here."""
        ...

    @property
    def node_count(self) -> int:
        """The znodes, the root counted twice as ZooKeeper does."""
        ...

    @property
    def latency_ms(self) -> Spread:
        """From a request's arrival to its reply, since the last reset."""
        ...

    @property
    def packets(self) -> tuple[int, int]:
        """Received and sent since the last reset."""
        ...

    @property
    def outstanding(self) -> int:
        """Requests that came and are not answered."""
        ...

    @property
    def proposal_sizes(self) -> tuple[int, int, int] | None:
        """Last, least and greatest, in bytes; None unless leading."""
        ...

    def connections(self) -> Sequence[ConnectionReport]:
        """Every client connection."""
        ...

    def expiries(self) -> Sequence[tuple[int, Sequence[SessionId]]] | None:
        """Sessions by the wall time in ms at which they expire; None unless leading."""
        ...

    def sessions(self) -> Sequence[tuple[SessionId, int]]:
        """Every session of the ensemble with its timeout in ms."""
        ...

    def ephemerals(self) -> Sequence[tuple[SessionId, Sequence[str]]]:
        """The ephemerals of each session that has any."""
        ...

    def watches_by_session(self) -> Iterable[tuple[SessionId, Sequence[str]]]:
        """Watched paths of each session that is connected here and has any."""
        ...

    def watches_by_path(self) -> Iterable[tuple[str, Sequence[SessionId]]]:
        """Watching sessions of each path of the data table."""
        ...

    def watch_summary(self) -> tuple[int, int, int]:
        """Connections, paths and watches."""
        ...

    def digests(self) -> Sequence[tuple[int, int]]:
        """Zxid and tree digest, oldest first."""
        ...

    def directory_sizes(self) -> tuple[int, int]:
        """Bytes of the snapshots and of the log."""
        ...

    def monitor(self) -> Iterable[tuple[str, object]]:
        """The keys of `mntr` after zk_version and zk_server_state, without their prefix."""
        ...

    def environment(self) -> Iterable[tuple[str, str]]:
        """The lines of `envi` after zookeeper.version."""
        ...

    def reset_server(self) -> None:
        """Begin all counts anew (`srst`)."""
        ...

    def reset_connections(self) -> None:
        """Begin the counts of every connection anew (`crst`)."""
        ...


def answer(word: str, report: Report) -> str:
    """The whole text a word is answered with; `word` is one of `WORDS`."""
    allowed = report.config.words
    if allowed is not None and word not in allowed and not _always_allowed(word, report):
        return f"{word} is not executed because it is not in the whitelist.\n"
    if not report.serving and word not in _ALWAYS_ANSWERED:
        return NOT_SERVING + _damage(report)
    return WORDS[word](report)[:ANSWER_CHARACTERS_MAX]


def _joined(lines: Iterable[str]) -> str:
    """The lines, as far as they are shown: those behind are not even made."""
    shown: list[str] = []
    left = ANSWER_CHARACTERS_MAX
    for line in lines:
        shown.append(line)
        left -= len(line)
        if left <= 0:
            break
    return "".join(shown)


def _always_allowed(word: str, report: Report) -> bool:
    """Clients in read-only mode look for a better server with `isro`."""
    return word == "isro" and report.config.read_only_enabled


def _damage(report: Report) -> str:
    """A second line for people; programs look for the first."""
    why = report.damaged
    if why is None:
        return ""
    return f"This member is damaged and waits to be repaired by the others: {why}\n"


def _ruok(_: Report) -> str:
    return "imok"


def _isro(report: Report) -> str:
    if not report.serving:
        return "null"
    return "ro" if report.read_only else "rw"


def _srvr(report: Report) -> str:
    return "".join([_version_lines(report), *_server_lines(report)])


def _stat(report: Report) -> str:
    clients = (f" {_brief(connection)}\n" for connection in report.connections())
    head = (_version_lines(report), "Clients:\n")
    return _joined(chain(head, clients, ("\n",), _server_lines(report)))


def _version_lines(report: Report) -> str:
    read_only = "READ-ONLY mode; serving only read-only clients\n" if report.read_only else ""
    return f"Zookeeper version: {version_line()}\n{read_only}"


def _server_lines(report: Report) -> Iterator[str]:
    low, mean, high = report.latency_ms
    received, sent = report.packets
    yield f"Latency min/avg/max: {low:.0f}/{_decimal(mean)}/{high:.0f}\n"
    yield f"Received: {received}\n"
    yield f"Sent: {sent}\n"
    yield f"Connections: {len(report.connections())}\n"
    yield f"Outstanding: {report.outstanding}\n"
    yield f"Zxid: {hex(report.zxid)}\n"
    yield f"Mode: {report.mode}\n"
    yield f"Node count: {report.node_count}\n"
    if (sizes := report.proposal_sizes) is not None:
        yield "Proposal sizes last/min/max: {}/{}/{}\n".format(*sizes)


def _decimal(value: float) -> str:
    """At most four decimals, at least one, as Java prints a rounded double."""
    return repr(round(float(value), 4))


def _brief(connection: ConnectionReport) -> str:
    return (
        f"{connection.address}[{int(connection.reading)}]"
        f"(queued={connection.queued},recved={connection.received},sent={connection.sent})"
    )


def _cons(report: Report) -> str:
    lines = (f" {_full(connection)}\n" for connection in report.connections())
    return _joined(chain(lines, ("\n",)))


def _full(connection: ConnectionReport) -> str:
    if connection.session_id == 0:
        return _brief(connection)
    low, mean, high = connection.latency_ms
    return (
        f"{_brief(connection)[:-1]}"
        f",sid={format_session(connection.session_id)},lop={connection.last_op}"
        f",est={connection.established_ms},to={connection.timeout_ms}"
        f",lcxid={_hex(connection.last_xid, 32)},lzxid={_hex(connection.last_zxid, 64)}"
        f",lresp={connection.last_response_ms},llat={connection.last_latency_ms}"
        f",minlat={low:.0f},avglat={int(mean)},maxlat={high:.0f})"
    )


def _hex(value: int, bits: int) -> str:
    """Unsigned, as Java prints a number in hexadecimal."""
    return hex(value & (2**bits - 1))


def _mntr(report: Report) -> str:
    lines = [("version", version_line()), ("server_state", report.mode), *report.monitor()]
    return "".join(f"zk_{key}\t{_number(value)}\n" for key, value in lines)


def _number(value: object) -> str:
    return _decimal(value) if isinstance(value, float) else str(value)


def _conf(report: Report) -> str:
    config = report.config
    data_size, log_size = report.directory_sizes()
    lines: list[tuple[str, object]] = [
        ("clientPort", config.client_port),
        ("secureClientPort", -1),
        ("dataDir", config.data_dir),
        ("dataDirSize", data_size),
        ("dataLogDir", config.log_dir or config.data_dir),
        ("dataLogSize", log_size),
        ("tickTime", config.tick_ms),
        ("maxClientCnxns", config.connections_per_address_max),
        ("minSessionTimeout", config.session_timeout_ms_min),
        ("maxSessionTimeout", config.session_timeout_ms_max),
        ("clientPortListenBacklog", config.backlog),
        ("serverId", config.member_id),
    ]
    text = "".join(f"{key}={value}\n" for key, value in lines)
    return text if config.standalone else text + _ensemble_conf(config)


def _ensemble_conf(config: ServerConfig) -> str:
    me = config.me
    return (
        f"initLimit={config.init_limit}\nsyncLimit={config.sync_limit}\nelectionAlg=3\n"
        f"electionPort={me.election_port}\nquorumPort={me.quorum_port}\n"
        f"peerType={int(me.observer)}\nmembership: \n{config.membership()}"
    )


def _dump(report: Report) -> str:
    return _joined(chain(_dump_sessions(report), _dump_ephemerals(report), _dump_links(report)))


def _dump_sessions(report: Report) -> Iterator[str]:
    yield "SessionTracker dump:\n"
    expiries = report.expiries()
    if expiries is None:
        sessions = report.sessions()
        yield f"Global Sessions({len(sessions)}):\n"
        for session_id, timeout_ms in sessions:
            yield f"{format_session(session_id)}\t{timeout_ms}ms\n"
        return
    yield f"Session Sets ({len(expiries)})/({sum(len(ids) for _, ids in expiries)}):\n"
    for wall_ms, ids in expiries:
        yield f"{len(ids)} expire at {java_date(wall_ms)}:\n"
        yield from (f"\t{format_session(session_id)}\n" for session_id in ids)


def _dump_ephemerals(report: Report) -> Iterator[str]:
    owners = report.ephemerals()
    yield f"ephemeral nodes dump:\nSessions with Ephemerals ({len(owners)}):\n"
    for session_id, paths in owners:
        yield f"{format_session(session_id)}:\n"
        yield from (f"\t{_line(path)}\n" for path in paths)


def _dump_links(report: Report) -> Iterator[str]:
    connections = report.connections()
    yield f"Connections dump:\nConnections Sets (1)/({len(connections)}):\n"
    for connection in connections:
        session = format_session(connection.session_id)
        yield f"\tip: {connection.address} sessionId: {session}\n"


def _wchs(report: Report) -> str:
    connections, paths, watches = report.watch_summary()
    return f"{connections} connections watching {paths} paths\nTotal watches:{watches}\n"


def _wchc(report: Report) -> str:
    return _grouped(
        (format_session(session_id), paths) for session_id, paths in report.watches_by_session()
    )


def _wchp(report: Report) -> str:
    return _grouped(
        (_line(path), [format_session(session_id) for session_id in sessions])
        for path, sessions in report.watches_by_path()
    )


def _grouped(groups: Iterable[tuple[str, Sequence[str]]]) -> str:
    return _joined(_group_lines(groups))


def _group_lines(groups: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for head, items in groups:
        yield f"{head}\n"
        yield from (f"\t{_line(item)}\n" for item in items)
    yield "\n"


def _line(path: str) -> str:
    """A path cannot hold a line end, except as a watch on what can never exist."""
    return path if path.isprintable() else path.encode("unicode_escape").decode("ascii")


def _dirs(report: Report) -> str:
    return "datadir_size: {}\nlogdir_size: {}\n".format(*report.directory_sizes())


def _envi(report: Report) -> str:
    lines = [("zookeeper.version", version_line()), *report.environment()]
    return "Environment:\n" + "".join(f"{key}={value}\n" for key, value in lines)


def _hash(report: Report) -> str:
    return "".join(f"{zxid:x}: {digest}\n" for zxid, digest in report.digests())


def _crst(report: Report) -> str:
    report.reset_connections()
    return "Connection stats reset.\n"


def _srst(report: Report) -> str:
    report.reset_server()
    return "Server stats reset.\n"


def _mask(_: Report) -> str:
    """There is no trace mask here; programs that ask are told the default of ZooKeeper."""
    return str(TRACE_MASK)


_ALWAYS_ANSWERED: Final = frozenset({"ruok", "isro", "envi", "gtmk", "stmk"})

WORDS: Final[Mapping[str, Callable[[Report], str]]] = {
    "conf": _conf,
    "cons": _cons,
    "crst": _crst,
    "dirs": _dirs,
    "dump": _dump,
    "envi": _envi,
    "gtmk": _mask,
    "hash": _hash,
    "isro": _isro,
    "mntr": _mntr,
    "ruok": _ruok,
    "srst": _srst,
    "srvr": _srvr,
    "stat": _stat,
    "stmk": _mask,
    "wchc": _wchc,
    "wchp": _wchp,
    "wchs": _wchs,
}
