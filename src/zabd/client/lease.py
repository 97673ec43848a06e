"""How long a session may be relied on without the network.

It ends `margin_ms` before the moment at which the ensemble, counting from the last request that it
is known to have received, may expire the session.
"""

LEASE_MARGIN_MS_MIN = 100


class Lease:
    """The lease of one session; `deadline_ms` is None before the first server has granted it."""

    def __init__(self, margin_ms: int | None) -> None:
        self.deadline_ms: int | None = None
        self._margin_ms = margin_ms

    def forget(self) -> None:
        """A server has taken the session, and its timeout counts, not an earlier, longer one."""
        self.deadline_ms = None

    def renew(self, sent_ms: int, timeout_ms: int) -> None:
        """A request that was sent then was answered: the ensemble has heard of us since."""
        margin = self._margin_ms
        if margin is None:
            margin = max(timeout_ms // 20, LEASE_MARGIN_MS_MIN)
        self.deadline_ms = max(self.deadline_ms or 0, sent_ms + timeout_ms - margin)

    def is_over(self, now_ms: int) -> bool:
        """Whether it has run out."""
        return self.deadline_ms is not None and now_ms >= self.deadline_ms
