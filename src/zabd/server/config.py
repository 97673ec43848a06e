"""What one member needs to know before it starts: a value, complete and checked.

`zabd.server.resolution` makes one from a file, the environment and the command line; a simulated or
a test's member is given one directly.
"""

from dataclasses import dataclass

from zabd.model.ids import MemberId
from zabd.model.metrics import PREFIX_COMPONENTS
from zabd.server.keys import READ_ONLY_WORDS
from zabd.server.zoo_cfg import Member
from zabd.storage.config import SEGMENT_BYTES
from zabd.wire.digest_md5 import Users

LOOPBACK = "127.0.0.1"
CLIENT_PORT = 2181
QUORUM_PORT = 2881
ELECTION_PORT = 3881
METRICS_PORT = 7000  # ZooKeeper's, where its provider is chosen without a port
ENSEMBLE = 3

BACKLOG = 1024
"""Clients that connect at the same time, as all of a lost member's do, and wait to be accepted. The
kernel leaves those beyond it to try again, a fifth of a second or more later: 200 at once with room
for 128 were 340 sessions a second instead of 5,700. Linux allows no more than `somaxconn`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything one member needs to know; immutable, complete and already checked by `resolve`."""

    member_id: MemberId
    members: tuple[Member, ...]
    data_dir: str
    log_dir: str | None = None
    client_host: str | None = LOOPBACK  # None: every address
    client_port: int = CLIENT_PORT
    backlog: int = BACKLOG
    tick_ms: int = 2000
    init_limit: int = 10
    sync_limit: int = 5
    session_timeout_ms_min: int = 4_000
    session_timeout_ms_max: int = 40_000
    connections_per_address_max: int = 60
    connections_max: int = 0
    words: tuple[str, ...] | None = READ_ONLY_WORDS  # None: all of them
    request_bytes_max: int = 1_048_575
    snapshot_txns: int = 100_000
    snapshots_kept: int = 3
    segment_bytes: int = SEGMENT_BYTES
    standalone_enabled: bool = True
    outstanding_max: int = 1_000  # of the whole ensemble; a member's share is `outstanding_share`
    large_request_threshold: int = -1
    large_request_bytes_max: int = 104_857_600
    throttled_op_wait_ms: int = 0
    connection_tokens_max: int = 0
    connection_token_fill_ms: int = 1
    connection_token_fill_count: int = 1
    quorum_on_all_addresses: bool = False
    new_cluster: bool = False
    give_up_damaged: bool = False
    found_anew: bytes | None = None  # the id of the cluster that is given up for a new one
    read_only_enabled: bool = False
    local_sessions: bool = False
    local_sessions_upgrade: bool = False
    extended_types: bool = True
    enforce_quota: bool = False
    skip_acl: bool = False
    super_digest: str | None = None
    sasl_users: Users | None = None
    sasl_required: bool = False
    digest_algorithm: str = "sha1"
    auth_enforced: bool = False
    auth_schemes: tuple[str, ...] = ()
    container_check_ms: int = 60_000
    containers_per_minute_max: int = 10_000
    container_unused_ms_max: int = 300_000
    metrics_host: str = LOOPBACK
    metrics_port: int | None = None  # None: no page for Prometheus; 0: on any port that is free
    metrics_prefix_components: int = PREFIX_COMPONENTS
    metrics_keys_max: int = 100

    @property
    def me(self) -> Member:
        """This member's own entry."""
        return next(member for member in self.members if member.id == self.member_id)

    @property
    def voters(self) -> tuple[MemberId, ...]:
        """The members whose votes count, in order of their ids."""
        return tuple(sorted(member.id for member in self.members if not member.observer))

    @property
    def observers(self) -> tuple[MemberId, ...]:
        """The members that follow without a vote, in order of their ids."""
        return tuple(sorted(member.id for member in self.members if member.observer))

    @property
    def standalone(self) -> bool:
        """Whether this member is the whole ensemble: it needs no ports for peers."""
        return len(self.members) == 1

    @property
    def outstanding_share(self) -> int:
        """Requests in progress here: what all followers pass on comes together at the leader."""
        voters = len(self.voters)
        return max(1, self.outstanding_max // (voters - 1)) if voters > 2 else self.outstanding_max  # noqa: PLR2004

    @property
    def enforced_schemes(self) -> tuple[str, ...]:
        """The schemes of which a client has to show an identity; none are asked of anybody."""
        if self.sasl_required:
            return ("sasl",)
        return self.auth_schemes if self.auth_enforced else ()

    def membership(self) -> str:
        """The configuration text of /zookeeper/config and of the word `conf`."""
        lines = [member.line() for member in self.members] if not self.standalone else []
        return "\n".join([*lines, "version=0"])


def default_members(count: int = ENSEMBLE) -> tuple[Member, ...]:
    """The ensemble that needs no file: members 1 to `count` on loopback."""
    return tuple(
        Member(
            id=number,
            host=LOOPBACK,
            quorum_port=QUORUM_PORT + number - 1,
            election_port=ELECTION_PORT + number - 1,
            client_host=LOOPBACK,
            client_port=CLIENT_PORT + number - 1,
        )
        for number in range(1, count + 1)
    )
