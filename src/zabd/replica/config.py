"""What one member needs to know about itself and its ensemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zabd.model.errors import ConfigError
from zabd.model.metrics import PREFIX_COMPONENTS
from zabd.wire.digest_md5 import Users
from zabd.zab.config import EnsembleConfig

BATCH_OPS_MAX = 1000
"""Ops in one proposal batch: at 10 us each to prepare, a batch holds the loop for 10 ms at most."""

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""Payload bytes after which a batch is closed; one more op of at most `JUTE_MAXBUFFER_MAX` fits."""

JUTE_MAXBUFFER_MAX = 8 * 1024 * 1024
"""The largest `request_bytes_max`. Behind 4 MiB of others in its batch such a request comes to
12 MiB, with the 2 MiB by which the ACLs of a multi may grow to 14 MiB, and what stands beside each
txn is a few bytes: it fits the 16 MiB of a batch. Forwarded it fits the 24 MiB of a frame."""

OUTSTANDING_MAX = 1000
"""Unanswered requests of one connection before the member stops reading from it."""

OUTSTANDING_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of unanswered requests of one connection before the member stops reading from it."""

DIGEST_INTERVAL_TXNS = 1024
"""Members compare the digests of their trees once in about this many transactions."""

SMALL_TREE_BYTES = 16 * 1024 * 1024
"""Paths and data of a tree whose snapshot costs nothing worth mentioning: a tenth of a second."""


class Clock(Protocol):
    """The seam for wall time: only a leader asks, to stamp transactions."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by the machine's wall clock."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Settings of one member; times in milliseconds, sizes in bytes.

    Raises ConfigError for one that cannot work.

    `request_bytes_max` bounds a client's request frame (jute.maxbuffer). `snapshot_every_txns`
    and `snapshot_every_bytes` say when the next snapshot is due, whichever comes first; where a
    tree holds more than `SMALL_TREE_BYTES`, half of what is above that has to be in the log. Every
    `container_check_ms` the leader looks for containers and znodes whose time is over; a container
    that was never used goes after `container_unused_ms_max` (0: never). `outstanding_max` is for
    one connection, `outstanding_global_max` for all. `large_request_threshold` is -1 where large
    requests are not counted, `throttled_op_wait_ms` 0 where requests may wait as long as they must.
    Connections may ask for sessions as long as there are tokens, of which `connection_tokens_max`
    are there at once (0: any number) and `connection_token_fill_count` come with each fill. Where
    `enforced_auth` has schemes, only who has an identity of one of them is served. `sasl_users` are
    those who may prove who they are by SASL; None: there is no SASL. Watch events are counted by
    the first `prefix_components` of their paths.
    """

    ensemble: EnsembleConfig
    min_session_timeout_ms: int
    max_session_timeout_ms: int
    request_bytes_max: int = 1_048_575
    snapshot_every_txns: int = 100_000
    snapshot_every_bytes: int = 256 * 1024 * 1024
    container_check_ms: int = 60_000
    containers_per_minute_max: int = 10_000
    container_unused_ms_max: int = 300_000
    ttl_enabled: bool = True
    local_sessions: bool = False
    local_sessions_upgrade: bool = False
    read_only_enabled: bool = False
    super_digest: str | None = None
    sasl_users: Users | None = None
    skip_acl: bool = False
    enforce_quota: bool = False
    outstanding_max: int = OUTSTANDING_MAX
    outstanding_bytes_max: int = OUTSTANDING_BYTES_MAX
    outstanding_global_max: int = OUTSTANDING_MAX
    large_request_threshold: int = -1
    large_request_bytes_max: int = 100 * 1024 * 1024
    throttled_op_wait_ms: int = 0
    connection_tokens_max: int = 0
    connection_token_fill_ms: int = 1
    connection_token_fill_count: int = 1
    enforced_auth: tuple[str, ...] = ()
    digest_algorithm: str = "sha1"
    config_text: str = ""
    prefix_components: int = PREFIX_COMPONENTS

    def __post_init__(self) -> None:
        if self.request_bytes_max > JUTE_MAXBUFFER_MAX:
            raise ConfigError(
                f"jute.maxbuffer is at most {JUTE_MAXBUFFER_MAX}, not {self.request_bytes_max}: "
                "a larger request would not fit a batch"
            )

    def clamp_timeout(self, requested_ms: int) -> int:
        """The session timeout granted for a requested one (client protocol, section 2)."""
        return max(self.min_session_timeout_ms, min(self.max_session_timeout_ms, requested_ms))
