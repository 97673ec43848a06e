"""What is looked at again and again in a run: silence around leaders (L4), and sizes (L7).

Both are about time or memory, so no single event breaks them. They are looked at twice a tick, from
outside and without a word to the members.
"""

from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.schedule import US_PER_MS
from zabd.model.ids import MemberId
from zabd.zab.broadcast import OUTSTANDING_BATCHES_MAX
from zabd.zab.messages import PeerState

if TYPE_CHECKING:
    from zabd.cluster_sim.core_level import CoreLevel
    from zabd.cluster_sim.core_process import CoreProcess
    from zabd.cluster_sim.zab_checks import Incarnation

_SLACK_TICKS: Final = 2
"""A leader looks twice a tick, and we look twice a tick as well."""

LATE_BATCHES_MAX: Final = OUTSTANDING_BATCHES_MAX
"""What may reach a slow learner's disk while its leader commits without it, in half a sync limit:
the leader's limit once more is far above what a run submits in that time."""


class Vigil:
    """Looks at every member of a run, twice a tick."""

    def __init__(self, level: "CoreLevel") -> None:
        self._level = level
        shape = level.shape
        self._every_us = max(1, shape.tick_ms * US_PER_MS // 2)
        self._patience_ms = (shape.sync_limit + _SLACK_TICKS) * shape.tick_ms
        self._awake_us: dict[MemberId, int] = {}

    def begin(self) -> None:
        """Look, and look again later."""
        level = self._level
        level.schedule.after(self._every_us, self.begin)
        for member in level.members.values():
            process = member.process
            if process is None or process.paused:
                self._awake_us[member.id] = level.schedule.now_us
            elif process.seen is not None and process.peer is not None:
                self._look_at(process, process.seen)

    def _look_at(self, process: "CoreProcess", seen: "Incarnation") -> None:
        peer = process.peer
        assert peer is not None, "only those who have one are looked at"
        if peer.serving and peer.state is PeerState.LEADING:
            self._require_heard(process, seen)
        history = peer._m  # noqa: SLF001 - what it keeps is nobody's business but a checker's
        settled = len(history.tail) - len(history.tail.after(history.delivered))
        if settled > self._level.shape.tail_batches:
            self._level.checker.fail("L7", f"{seen} keeps {settled} batches that are settled")
        # What a learner has missed comes as fast as it takes it, up to the whole log: how much of
        # that waits for its disk is its host's to bound (`server.backlog`).
        waiting = len(history.appends)
        if peer.serving and waiting > OUTSTANDING_BATCHES_MAX + LATE_BATCHES_MAX:
            self._level.checker.fail("L7", f"{seen} waits for the disk with {waiting} batches")

    def _require_heard(self, process: "CoreProcess", seen: "Incarnation") -> None:
        """By the leader's own clock, which may be made to run at half its speed."""
        level, member = self._level, process.member
        if member.ms_since(self._awake_us.get(seen.member, 0)) < self._patience_ms:
            return  # it has just been woken up, and has the past in its inbox
        heard = [
            other
            for other, at_us in seen.heard_us.items()
            if member.ms_since(at_us) <= self._patience_ms
        ]
        if not level.checker.quorum.contains([*heard, seen.member]):
            level.checker.fail("L4", f"{seen} serves, and has heard only {heard} of late")
