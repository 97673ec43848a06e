"""A member's page for Prometheus: the gauges of the word `mntr`, and what an alert wants to know.

The page is made when it is asked for, from what is counted anyway. Where `mntr` and the page use
one name for two things, `zk_quorum_size`, the page means the voters that serve in sync; the number
that are configured is `zk_ensemble_size`.

The dedup recipe, section 13; client protocol, section 23.
"""

from collections.abc import Callable
from typing import Final

from zabd.model.metrics import (
    ENSEMBLE_SIZE,
    EPHEMERAL_NODES,
    EXPOSITION_TYPE,
    OPERATION_LATENCY,
    QUORUM_SIZE,
    WATCH_NOTIFICATIONS,
    MemoryMetrics,
    Metric,
    MetricKind,
    exposition,
)
from zabd.server.census import EphemeralCensus
from zabd.server.config import ServerConfig
from zabd.server.driver import Driver
from zabd.server.four_letter import Report, version_line
from zabd.server.http_link import Page
from zabd.server.loop import Loop
from zabd.server.monitored import LABELS, OMITTED, monitored
from zabd.zab.messages import PeerState

SESSION_EXPIRED: Final = Metric(
    "zk_session_expired_total",
    MetricKind.COUNTER,
    "Sessions whose end this member has declared: as the leader, or of local ones.",
)
SERVER_METRICS: Final = (
    SESSION_EXPIRED,
    WATCH_NOTIFICATIONS,
    EPHEMERAL_NODES,
    QUORUM_SIZE,
    ENSEMBLE_SIZE,
    OPERATION_LATENCY,
)
"""All that a member declares besides what `mntr` has."""


class MetricsPage:
    """Makes one member's page."""

    def __init__(self, loop: Loop, config: ServerConfig, driver: Driver, report: Report) -> None:
        self._loop = loop
        self._config = config
        self._driver = driver
        self._report = report
        self._waiting: list[Callable[[Page], None]] = []

    def make(self, done: Callable[[Page], None]) -> None:
        """Hand over a page as of now, after as many turns as the census takes.

        Who asks while one is being made gets that one.
        """
        self._waiting.append(done)
        if len(self._waiting) == 1:
            tree = self._driver.replica.tree
            self._count(EphemeralCensus(tree, self._config.metrics_keys_max))

    def _count(self, census: EphemeralCensus) -> None:
        if census.step():
            self._loop.call_soon(self._count, census)
            return
        page = Page(EXPOSITION_TYPE, exposition(self.measure(census)).encode())
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(page)

    def measure(self, census: EphemeralCensus) -> MemoryMetrics:
        """All figures, with those of a census that is over."""
        metrics = MemoryMetrics()
        metrics.declare(SERVER_METRICS)
        stats = self._driver.replica.clients.stats
        metrics.set(QUORUM_SIZE, self._quorum_size())
        metrics.set(ENSEMBLE_SIZE, len(self._config.voters))
        metrics.add(SESSION_EXPIRED, stats.sessions_expired)
        for labels, count in stats.notified.items():
            metrics.add(WATCH_NOTIFICATIONS, count, labels)
        for prefix, count in census.result().items():
            metrics.set(EPHEMERAL_NODES, count, (prefix,))
        for op, histogram in stats.histograms.items():
            metrics.hold(OPERATION_LATENCY, histogram, (op,))
        self._add_monitored(metrics)
        return metrics

    def _quorum_size(self) -> int:
        """Voters that are known to serve in sync.

        The leader knows each of them. A learner that serves knows that there is a quorum, so it
        says as many as that; the greatest of all members' figures is the leader's.
        """
        replica = self._driver.replica
        if not replica.serving:
            return 0
        if replica.peer.state is PeerState.LEADING:
            return 1 + replica.peer.synced_followers
        return len(self._config.voters) // 2 + 1

    def _add_monitored(self, metrics: MemoryMetrics) -> None:
        words = [("version", version_line()), ("server_state", self._report.mode)]
        for key, value in [*words, *self._report.monitor()]:
            if key in OMITTED:
                continue
            metric = monitored(key)
            metrics.declare([metric])
            if key in LABELS:
                metrics.set(metric, 1, (str(value),))
            else:
                assert isinstance(value, int | float), f"{key} is {value!r}: it needs a label"
                metrics.set(metric, value)
