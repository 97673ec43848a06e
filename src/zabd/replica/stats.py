"""What a member counts about its clients, for the four-letter words and the metrics."""

from __future__ import annotations


class ClientStats:
    """Counters since the start or the last reset; latencies in milliseconds."""

    __slots__ = (
        "answered_at_once",
        "auth_failed",
        "latency_max_ms",
        "latency_min_ms",
        "latency_total_ms",
        "notifications",
        "outstanding",
        "received",
        "response_last_bytes",
        "response_max_bytes",
        "response_min_bytes",
        "sent",
        "waited",
    )

    def __init__(self) -> None:
        self.outstanding = 0
        self.reset()

    def reset(self) -> None:
        """Start counting anew, as the word `srst` asks; what is outstanding stays."""
        self.received = 0
        self.sent = 0
        self.auth_failed = 0
        self.response_last_bytes = self.response_min_bytes = self.response_max_bytes = -1
        self.notifications = 0
        self.answered_at_once = 0
        self.waited = 0
        self.latency_total_ms = 0
        self.latency_max_ms = 0
        self.latency_min_ms = 0

    def note_responses(self, output: list[bytes]) -> None:
        """These frames leave for a client; -1 stands for a size as long as none has."""
        sizes = [len(frame) for frame in output]
        self.sent += len(sizes)
        self.response_last_bytes = sizes[-1]
        self.response_max_bytes = max(self.response_max_bytes, *sizes)
        least = min(sizes)
        if not 0 <= self.response_min_bytes <= least:
            self.response_min_bytes = least

    def note_latency(self, latency_ms: int) -> None:
        """A request that had to wait was answered after this time."""
        if not self.waited and not self.answered_at_once:
            self.latency_min_ms = latency_ms
        self.waited += 1
        self.latency_total_ms += latency_ms
        if latency_ms > self.latency_max_ms:  # noqa: PLR1730  (a fifth of what `max` costs)
            self.latency_max_ms = latency_ms
        if latency_ms < self.latency_min_ms:  # noqa: PLR1730
            self.latency_min_ms = latency_ms

    @property
    def latency_avg_ms(self) -> float:
        """The mean over all answered requests; what is answered at once counts as 0 ms."""
        answered = self.waited + self.answered_at_once
        return self.latency_total_ms / answered if answered else 0.0
