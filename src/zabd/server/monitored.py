"""What the keys of the word `mntr` are on the page for Prometheus: their names and sentences.

All of them are gauges, as on ZooKeeper's page: what only rises begins anew at the word `srst`.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final

from zabd.model.metrics import Metric, MetricKind

OMITTED: Final = frozenset({"quorum_size", "zabd_tree_digest"})
"""The first means something else on the page; the second is no number, and never the same."""

LABELS: Final[Mapping[str, str]] = {
    "version": "version",
    "server_state": "state",
    "peer_state": "state",
    "zabd_standing": "standing",
}
"""What is a word is the label of a 1."""

HELP: Final[Mapping[str, str]] = {
    "version": "The version that is offered, and that of zabd.",
    "server_state": "standalone, leader, follower, observer, looking or read-only.",
    "peer_state": "What the member is doing, and in which phase.",
    "ephemerals_count": "Ephemeral znodes.",
    "num_alive_connections": "Client connections of this member.",
    "avg_latency": "Milliseconds from a request to its answer since the last reset, on average.",
    "min_latency": "The least of them.",
    "max_latency": "The greatest of them.",
    "outstanding_requests": "Requests that came and are not answered.",
    "znode_count": "Znodes, the root counted twice as ZooKeeper does.",
    "watch_count": "Watches of this member's connections.",
    "approximate_data_size": "Bytes of all paths and data.",
    "global_sessions": "Sessions of the ensemble.",
    "local_sessions": "Sessions that this member alone knows.",
    "packets_received": "Requests since the last reset.",
    "packets_sent": "Answers and events since the last reset.",
    "open_file_descriptor_count": "File descriptors that are open.",
    "max_file_descriptor_count": "File descriptors that may be open.",
    "uptime": "Milliseconds since the member began.",
    "connection_drop_probability": "Always 0: connections are refused by limits, not by chance.",
    "outstanding_tls_handshake": "Always 0: there is no TLS.",
    "auth_failed_count": "Credentials that were refused since the last reset.",
    "last_client_response_size": "Bytes of the last answer, -1 before the first.",
    "min_client_response_size": "Bytes of the smallest answer since the last reset.",
    "max_client_response_size": "Bytes of the largest answer since the last reset.",
    "non_mtls_remote_conn_count": "Always 0: there is no TLS.",
    "non_mtls_local_conn_count": "Always 0: there is no TLS.",
    "synced_observers": "Observers that this leader has in step.",
    "learners": "Followers and observers that this leader has in step.",
    "synced_followers": "Voters besides the leader that it has in step.",
    "synced_non_voting_followers": "Always 0: there are none.",
    "pending_syncs": "Learners that the leader is synchronising.",
    "leader_uptime": "Milliseconds since this leader was established.",
    "last_proposal_size": "Bytes of the last batch.",
    "min_proposal_size": "Bytes of the smallest batch since the last reset.",
    "max_proposal_size": "Bytes of the largest batch since the last reset.",
    "cnt_fsynctime": "Syncs of the log.",
    "sum_fsynctime": "Milliseconds of all syncs of the log.",
    "max_fsynctime": "Milliseconds of the slowest sync of the log.",
    "zabd_slow_syncs": "Syncs that were slow enough to be logged.",
    "zabd_log_records": "Records written to the log.",
    "zabd_bytes_written": "Bytes written to the log.",
    "zabd_snapshots": "Snapshots taken.",
    "zabd_snapshot_failures": "Snapshots that could not be taken.",
    "zabd_standing": "Whether the member can vouch for its past.",
    "zabd_epoch": "The epoch that the member is in.",
}


@cache
def monitored(key: str) -> Metric:
    """The metric that a key of `mntr` is."""
    labels = (LABELS[key],) if key in LABELS else ()
    return Metric(f"zk_{key}", MetricKind.GAUGE, HELP[key], labels)
