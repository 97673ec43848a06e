"""What the four-letter words are told: replica, storage and connections, as they stand now."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from zabd.model.ids import SessionId
from zabd.replica.connection import Connection
from zabd.server.clock import Clock
from zabd.server.config import ServerConfig
from zabd.server.driver import Driver
from zabd.server.four_letter import ConnectionReport, Spread
from zabd.server.identity import Identity
from zabd.storage import Storage
from zabd.zab.messages import PeerState, Standing

_STATES: Final = {
    PeerState.LOOKING: "looking",
    PeerState.FOLLOWING: "following",
    PeerState.LEADING: "leading",
    PeerState.OBSERVING: "observing",
}
_MODES: Final = {
    PeerState.LOOKING: "looking",
    PeerState.FOLLOWING: "follower",
    PeerState.LEADING: "leader",
    PeerState.OBSERVING: "observer",
}

# client protocol, section 21: the codes of `lop`.
_LAST_OPS: Final = {
    -10: "SESS",
    11: "PING",
    1: "CREA",
    15: "CREA",
    19: "CREA",
    21: "CREA",
    2: "DELE",
    3: "EXIS",
    4: "GETD",
    5: "SETD",
    6: "GETA",
    7: "SETA",
    8: "GETC",
    12: "GETC",
    9: "SYNC",
    14: "MULT",
    22: "MLTR",
    13: "CHEC",
    16: "RECO",
    101: "SETW",
    105: "STW2",
    106: "ADDW",
    17: "CHKW",
    18: "REMW",
    103: "GETE",
    104: "GETACN",
    107: "HOMI",
    -11: "CLOS",
}


class MemberReport:
    """See `four_letter.Report`."""

    def __init__(
        self,
        config: ServerConfig,
        driver: Driver,
        storage: Storage,
        clock: Clock,
        identity: Identity,
    ) -> None:
        self.config = config
        self._driver = driver
        self._replica = driver.replica
        self._clients = driver.replica.clients
        self._storage = storage
        self._clock = clock
        self._identity = identity
        self._started_ms = driver.now_ms()
        self.why_damaged: str | None = None

    @property
    def serving(self) -> bool:
        """Whether clients are served, be it only those that asked for reads alone."""
        return self._replica.serving or self.read_only

    @property
    def read_only(self) -> bool:
        """Whether there is no quorum, and only clients are served that said they would read."""
        return self._clients.read_only

    @property
    def damaged(self) -> str | None:
        """Why this member cannot vouch for its past, as long as it cannot."""
        peer = self._replica.peer
        if peer.standing is not Standing.DAMAGED:
            return None
        return self.why_damaged or "its directory was found damaged"

    @property
    def mode(self) -> str:
        """standalone, leader, follower or observer; `looking` is seen only where none is served."""
        if self.read_only:
            return "read-only"
        if self.config.standalone:
            return "standalone"
        return _MODES[self._replica.peer.state]

    @property
    def zxid(self) -> int:
        """The last zxid that was applied here."""
        return self._replica.tree.zxid

    @property
    def node_count(self) -> int:
        """ZooKeeper counts its second name for the root."""
        return len(self._replica.tree.nodes) + 1

    @property
    def latency_ms(self) -> Spread:
        """Since the last reset."""
        stats = self._clients.stats
        return Spread(stats.latency_min_ms, stats.latency_avg_ms, stats.latency_max_ms)

    @property
    def packets(self) -> tuple[int, int]:
        """Received and sent."""
        return self._clients.stats.received, self._clients.stats.sent

    @property
    def outstanding(self) -> int:
        """Requests without an answer."""
        return self._clients.stats.outstanding

    @property
    def proposal_sizes(self) -> tuple[int, int, int] | None:
        """Of the batches, which are what is proposed."""
        if self.mode != "leader":
            return None
        sizes = self._driver.proposals
        return sizes.last, sizes.low, sizes.high

    def connections(self) -> Sequence[ConnectionReport]:
        """Every client connection, the one that asks included."""
        return [self._connection(link) for link in self._clients.connections.values()]

    def _connection(self, connection: Connection) -> ConnectionReport:
        now_ms, wall_ms = self._driver.now_ms(), self._clock.wall_ms()
        link = self._driver.clients.link(connection.connection_id)
        answered = max(connection.sent, 1)
        return ConnectionReport(
            address=f"/{connection.address}",
            reading=connection.session_id != 0 and (link is None or link.reading),
            queued=len(connection.queue),
            received=connection.received,
            sent=connection.sent,
            session_id=connection.session_id,
            last_op=_LAST_OPS.get(connection.last_opcode, "NA"),
            established_ms=wall_ms - (now_ms - connection.accepted_ms),
            timeout_ms=connection.timeout_ms,
            last_xid=connection.last_xid,
            last_zxid=self.zxid,
            last_response_ms=connection.heard_ms,
            latency_ms=Spread(
                connection.latency_min_ms,
                connection.latency_total_ms / answered,
                connection.latency_max_ms,
            ),
        )

    def expiries(self) -> Sequence[tuple[int, Sequence[SessionId]]] | None:
        """The tracker's buckets, on the wall clock."""
        leadership = self._replica.leadership
        if leadership is None:
            return None
        offset_ms = self._clock.wall_ms() - self._driver.now_ms()
        return [(deadline + offset_ms, ids) for deadline, ids in leadership.tracker.buckets()]

    def sessions(self) -> Sequence[tuple[SessionId, int]]:
        """The replicated table."""
        return list(self._replica.tree.sessions.items())

    def ephemerals(self) -> Sequence[tuple[SessionId, Sequence[str]]]:
        """Of each session that has any."""
        return [(owner, list(paths)) for owner, paths in self._replica.tree.ephemerals.items()]

    def watches_by_session(self) -> Iterable[tuple[SessionId, Sequence[str]]]:
        """The table's watchers are connections."""
        return (
            (watcher.session_id, paths)
            for watcher, paths in self._clients.watches.by_watcher()
            if isinstance(watcher, Connection)
        )

    def watches_by_path(self) -> Iterable[tuple[str, Sequence[SessionId]]]:
        """The other way round."""
        return (
            (path, [w.session_id for w in watchers if isinstance(w, Connection)])
            for path, watchers in self._clients.watches.by_path()
        )

    def watch_summary(self) -> tuple[int, int, int]:
        """Connections, paths and watches."""
        watches = self._clients.watches
        return watches.watcher_count, watches.path_count, len(watches)

    def digests(self) -> Sequence[tuple[int, int]]:
        """What the members compared lately, and the digest as of now; reading it settles it."""
        return self._replica.digests()

    def directory_sizes(self) -> tuple[int, int]:
        """As the storage keeps count: the disk is not asked for the sake of a word."""
        return self._storage.sizes_bytes

    def monitor(self) -> Iterable[tuple[str, object]]:
        """The gauges of section 21, then our own counters."""
        if not self.config.standalone:
            yield "peer_state", self._peer_state()
        stats, tree, replica = self._clients.stats, self._replica.tree, self._replica
        opened, limit = self._identity.descriptors()
        yield from (
            ("ephemerals_count", sum(len(paths) for paths in tree.ephemerals.values())),
            ("num_alive_connections", len(self._clients.connections)),
            ("avg_latency", float(stats.latency_avg_ms)),
            ("min_latency", stats.latency_min_ms),
            ("max_latency", stats.latency_max_ms),
            ("outstanding_requests", stats.outstanding),
            ("znode_count", self.node_count),
            ("watch_count", len(self._clients.watches)),
            ("approximate_data_size", tree.data_bytes),
            ("global_sessions", len(tree.sessions)),
            ("local_sessions", len(self._clients.local)),
            ("packets_received", stats.received),
            ("packets_sent", stats.sent),
            ("open_file_descriptor_count", opened),
            ("max_file_descriptor_count", limit),
            ("uptime", self._driver.now_ms() - self._started_ms),
            ("connection_drop_probability", 0.0),
            ("outstanding_tls_handshake", 0),
            ("auth_failed_count", stats.auth_failed),
            ("last_client_response_size", stats.response_last_bytes),
            ("min_client_response_size", stats.response_min_bytes),
            ("max_client_response_size", stats.response_max_bytes),
            ("non_mtls_remote_conn_count", 0),
            ("non_mtls_local_conn_count", 0),
        )
        if not self.config.standalone:
            yield "quorum_size", len(self.config.voters)
            yield "synced_observers", self._synced_observers()
        if replica.peer.state is PeerState.LEADING and not self.config.standalone:
            links = len(replica.peer.learner_links)
            yield "learners", links
            yield "synced_followers", links - self._synced_observers()
            yield "synced_non_voting_followers", 0
            yield "pending_syncs", replica.peer.learners_behind
            if replica.leadership is not None:
                yield "leader_uptime", self._driver.now_ms() - replica.leadership.since_ms
            yield "last_proposal_size", self._driver.proposals.last
            yield "min_proposal_size", self._driver.proposals.low
            yield "max_proposal_size", self._driver.proposals.high
        yield from self._counters()

    def _peer_state(self) -> str:
        peer = self._replica.peer
        return f"{_STATES[peer.state]} - {peer.phase.name.lower()}"

    def _synced_observers(self) -> int:
        observers = self.config.observers
        return sum(member in observers for member in self._replica.peer.learner_links.values())

    def _counters(self) -> Iterator[tuple[str, object]]:
        counters = self._storage.counters
        yield "cnt_fsynctime", counters.syncs
        yield "sum_fsynctime", counters.sync_ms
        yield "max_fsynctime", counters.sync_ms_max
        yield "zabd_slow_syncs", counters.slow_syncs
        yield "zabd_log_records", counters.records
        yield "zabd_bytes_written", counters.bytes_written
        yield "zabd_snapshots", counters.snapshots
        yield "zabd_snapshot_failures", counters.snapshot_failures
        yield "zabd_standing", self._replica.peer.standing.name.lower()
        yield "zabd_epoch", self._replica.peer.epoch
        yield "zabd_tree_digest", f"{self._replica.tree.digest:016x}"

    def environment(self) -> Iterable[tuple[str, str]]:
        """Who runs this."""
        yield "host.name", self._identity.host
        yield from self._identity.environment

    def reset_server(self) -> None:
        """Begin all counts anew."""
        self._clients.stats.reset()
        self._driver.proposals.reset()

    def reset_connections(self) -> None:
        """Begin the counts of every connection anew."""
        for connection in self._clients.connections.values():
            connection.received = connection.sent = 0
            connection.latency_min_ms = connection.latency_max_ms = connection.latency_total_ms = 0
