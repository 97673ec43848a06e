"""The driver: events into the replica, its effects out into the world, a turn at a time.

A turn takes everything that happened since the last one: peers' messages, finished disk work,
timers, client bytes. It steps the replica through the events in their order, ends with one `flush`,
and makes one write per peer and one per client. Nothing here decides anything about the protocol.

Invariants
    R1  The replica is never called from within the performing of its effects: what happens
        meanwhile waits in line.
    R2  One turn is due at a time, however much happens before it.
    R3  After the first failure nothing is performed any more: peers' links are cut at once, so that
        they elect, and the process ends (S9).
    R4  Time that passed while the process stood still is told before anything that came meanwhile:
        a leader that was paused for too long learns that it leads no more before it can answer.
"""

import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from zabd.model.errors import StorageError, ZabdError
from zabd.model.ids import ConnectionId, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.replica import Replica
from zabd.replica import effects as replica_effects
from zabd.replica import events as replica_events
from zabd.server.backlog import Backlog
from zabd.server.client_link import ClientChannel
from zabd.server.config import ServerConfig
from zabd.server.election_link import ElectionChannel
from zabd.server.logging import Trace
from zabd.server.loop import Handle, Loop
from zabd.server.pace import Pace
from zabd.server.peer_link import PeerLink, QuorumChannel
from zabd.server.streams import (
    Installation,
    RecordStream,
    SnapshotStream,
    SnapshotTaking,
    Stream,
)
from zabd.storage import Storage
from zabd.zab import effects, events
from zabd.zab.log import LogPosition
from zabd.zab.messages import Message, Notification, SnapshotChunk
from zabd.znode_tree.tree import ZnodeTree

LATE_MS = 200
"""A timer this late means that the process stood still, paused or starved; a loaded loop is late by
less."""

_NEVER_MS = sys.maxsize


class MemberStoppedError(ZabdError):
    """This incarnation of the member is over; the sentence says why and what to do.

    `distrust`: the next one may not believe what is on the disk either.
    """

    def __init__(self, why: str, *, distrust: bool = False) -> None:
        super().__init__(why)
        self.distrust = distrust


class Sizes:
    """The last, the least and the greatest of something, in bytes; -1 before the first."""

    __slots__ = ("high", "last", "low")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.last = self.low = self.high = -1

    def note(self, size_bytes: int) -> None:
        """One more."""
        self.last = size_bytes
        self.high = max(self.high, size_bytes)
        if self.low < 0 or size_bytes < self.low:
            self.low = size_bytes


class _Chunk(NamedTuple):
    """A piece of the leader's snapshot, in its place behind the Snap that announced it."""

    link: PeerLink
    chunk: SnapshotChunk


class Driver:
    """Performs one replica's effects on one loop. Made once recovery is over."""

    def __init__(
        self,
        loop: Loop,
        config: ServerConfig,
        storage: Storage,
        rng: random.Random,
        trace: Trace,
        failed: Callable[[Exception], None],
    ) -> None:
        self.clients = ClientChannel(loop, config, self, trace)
        self.quorum = QuorumChannel(loop, config, self, trace)
        self.election = ElectionChannel(loop, config, self, rng, trace, self.quorum.names)
        self.answer_word: Callable[[str], str] = lambda _word: ""
        self.tree_loaded: Callable[[], None] = lambda: None
        self.proposals = Sizes()
        self._loop = loop
        self._config = config
        self._storage = storage
        self._trace = trace
        self._failed = failed
        self._over = False
        self._events: deque[replica_events.Event | _Chunk] = deque()
        self._turn_due = False
        self._timer: Handle | None = None
        self._timer_ms = 0
        self._late_ms = _NEVER_MS  # past this, the timer is late
        self._streams: dict[LinkId, Stream] = {}
        self._sent: dict[LinkId, SnapshotStream] = {}  # to learners that are not in step yet
        self._progress_ms: dict[LinkId, int] = {}  # of each stream and installation, as last told
        self._installations: dict[LinkId, Installation] = {}
        self._space_low = False
        self._backlog = Backlog(storage)
        self._pace = Pace(loop, self._heard, lambda: self.replica.snapshot_is_late)
        self._replica: Replica | None = None
        self._performers = self._table()
        storage.on_failure = self._storage_failed
        storage.on_snapshot_wanted = partial(self.happened, replica_events.SnapshotWanted())

    @property
    def replica(self) -> Replica:
        """The replica that is driven."""
        assert self._replica is not None, "the driver was not started"
        return self._replica

    @property
    def started(self) -> bool:
        """Whether there is a replica to drive."""
        return self._replica is not None

    def now_ms(self) -> int:
        """The time that the replica is told: milliseconds on the loop's clock."""
        return int(self._loop.time() * 1000)

    def start(self, replica: Replica) -> None:
        """Begin to drive; the channels listen already, and what peers said meanwhile has waited."""
        self._replica = replica
        self._storage.write_in_turns()
        self._events.appendleft(events.Start())
        self._want_turn()

    def stop(self) -> None:
        """Perform nothing any more and let go of every connection."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        self._pace.stop()
        self.quorum.close()
        self.election.close()
        self.clients.close()

    # The turn.

    def happened(self, event: replica_events.Event) -> None:
        """Something happened that the replica has to hear of, in its turn."""
        self._events.append(event)
        self._want_turn()

    def _want_turn(self) -> None:
        if not self._turn_due and self.started:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._over:
            return
        # In every turn: at full speed a disk goes from its floor to full within a second.
        self._look_at_the_disk()
        try:
            self._step_and_flush()
        except Exception as error:  # noqa: BLE001  (whatever it is, this incarnation is over)
            self.fail(error)
            return
        self.quorum.flush()
        self._storage.flush()
        self._set_timer()

    def _step_and_flush(self) -> None:
        replica, waiting, performers = self.replica, self._events, self._performers
        now_ms = self.now_ms()
        if now_ms > self._late_ms:
            waiting.appendleft(events.Elapsed())  # R4
        while waiting:
            event = waiting.popleft()
            if isinstance(event, _Chunk):
                self._take_chunk(event)
                continue
            for effect in replica.step(event, now_ms):
                performers[type(effect)](effect)
        for effect in replica.flush(now_ms):
            performers[type(effect)](effect)

    def _set_timer(self) -> None:
        """One timer, for the earliest of all deadlines; one that is early enough stays."""
        deadline_ms = self.replica.deadline_ms
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms, self._late_ms = deadline_ms, deadline_ms + LATE_MS
        # The loop's clock has a finer grain: half a millisecond later is surely not too early.
        self._timer = self._loop.call_at((deadline_ms + 0.5) / 1000, self._elapsed)

    def _elapsed(self) -> None:
        self._timer, self._late_ms = None, _NEVER_MS
        if self._sent:
            self._release_snapshots()
        self.happened(events.Elapsed())

    def _release_snapshots(self) -> None:
        """A learner that is in step needs no log from before; a leader looks twice a tick."""
        in_step = self.replica.peer.learner_links
        for link in [*self._sent]:
            if link in in_step:
                self._release_snapshot(link)

    def _release_snapshot(self, link: LinkId) -> None:
        if (sent := self._sent.pop(link, None)) is not None:
            sent.release()

    # Failure.

    def fail(self, error: Exception) -> None:
        """This incarnation is over (R3)."""
        if self._over:
            return
        self.stop()
        if isinstance(error, MemberStoppedError) and error.distrust:
            self._storage.distrust(str(error), partial(self._failed, error))
        else:
            self._failed(error)

    def _storage_failed(self, error: StorageError) -> None:
        self.fail(error)

    def _look_at_the_disk(self) -> None:
        """A disk that is nearly full still has room for what makes the tree smaller (S11)."""
        if self._storage.space_low != self._space_low:
            self._space_low = self._storage.space_low
            self._trace("disk_space", {"level": "warning", "low": self._space_low})
            self.happened(replica_events.SpaceLow(self._space_low))

    # What the channels tell.

    def client_opened(self, connection: ConnectionId, address: str) -> bool:
        """A client connected; it may ask a word, or open a session if this member serves."""
        if self._over or self._replica is None:
            return False
        self._replica.accept(connection, address, self.now_ms())
        return True

    def client_received(self, connection: ConnectionId, data: bytes) -> None:
        """Bytes of a client; reads are answered in this call, and leave at the end of the turn."""
        now_ms = self.now_ms()
        if now_ms > self._late_ms:
            self._turn()  # R4
            if self._over:
                return
        try:
            self.replica.receive(connection, data, now_ms)
        except Exception as error:  # noqa: BLE001  (whatever it is, this incarnation is over)
            self.fail(error)
            return
        if not self._turn_due:  # of many clients' bytes only the first ask for it
            self._want_turn()

    def client_closed(self, connection: ConnectionId) -> None:
        """A client's connection is gone."""
        if not self._over:
            self.replica.closed(connection)
            self._want_turn()

    def notified(self, notification: Notification) -> None:
        """A member's notification came."""
        self.happened(events.Notified(notification))

    def dialled(self, link: LinkId, member: MemberId) -> None:
        """A dial has succeeded."""
        self.happened(events.Dialled(link, member))

    def dial_failed(self, member: MemberId) -> None:
        """A dial has not."""
        self.happened(events.DialFailed(member))

    def link_received(self, link: PeerLink, messages: list[Message]) -> None:
        """A peer's messages; the chunks of a snapshot go to the disk and not to the replica."""
        waiting, link_id = self._events, link.id
        urgent = False
        for message in messages:
            if type(message) is SnapshotChunk:
                waiting.append(_Chunk(link, message))
            else:
                waiting.append(events.Received(link_id, message))
            urgent = urgent or not (self.started and self.replica.can_wait(message))
        if urgent:
            self._want_turn()

    def link_lost(self, link: PeerLink) -> None:
        """A peer's connection is gone; jobs on it end before the replica hears of it."""
        if self._over:
            return
        if (stream := self._streams.pop(link.id, None)) is not None:
            stream.abandon()
        self._release_snapshot(link.id)
        if (installation := self._installations.get(link.id)) is not None:
            installation.abandon()
        self.happened(events.Disconnected(link.id))

    def _take_chunk(self, came: _Chunk) -> None:
        # One that nobody asked for comes from a leader that was left meanwhile.
        if (installation := self._installations.get(came.link.id)) is not None:
            installation.take(came.chunk)

    # What effects ask for.

    def _table(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            replica_effects.Write: self._write,
            replica_effects.CloseConnection: self._close_connection,
            replica_effects.PauseReading: self._pause_reading,
            replica_effects.ResumeReading: self._resume_reading,
            replica_effects.ReportDrained: self._report_drained,
            replica_effects.AnswerWord: self._answer_word,
            replica_effects.TakeSnapshot: self._take_snapshot,
            effects.Notify: self._notify,
            effects.Dial: self._dial,
            effects.Hangup: self._hang_up,
            effects.Send: self._send,
            effects.Append: self._append,
            effects.PersistEpochs: self._persist_epochs,
            effects.Truncate: self._truncate,
            effects.FindRecord: self._find_record,
            effects.StreamRecords: self._stream_records,
            effects.StreamSnapshot: self._stream_snapshot,
            effects.InstallSnapshot: self._install_snapshot,
            effects.Stop: self._stop,
        }

    def _write(self, effect: replica_effects.Write) -> None:
        if (link := self.clients.link(effect.connection_id)) is not None:
            link.write(effect.data)

    def _close_connection(self, effect: replica_effects.CloseConnection) -> None:
        if (link := self.clients.link(effect.connection_id)) is not None:
            link.finish()

    def _pause_reading(self, effect: replica_effects.PauseReading) -> None:
        if (link := self.clients.link(effect.connection_id)) is not None:
            link.hold()

    def _resume_reading(self, effect: replica_effects.ResumeReading) -> None:
        if (link := self.clients.link(effect.connection_id)) is not None:
            link.release()

    def _report_drained(self, effect: replica_effects.ReportDrained) -> None:
        if (link := self.clients.link(effect.connection_id)) is not None:
            drained = replica_events.Drained(effect.connection_id)
            link.when_writable(partial(self.happened, drained))

    def _answer_word(self, effect: replica_effects.AnswerWord) -> None:
        link = self.clients.link(effect.connection_id)
        if link is not None:
            link.write(self.answer_word(effect.word).encode("utf-8", "replace"))
            link.finish()
        self._loop.call_soon(self.client_closed, effect.connection_id)  # not from in here (R1)

    def _take_snapshot(self, effect: replica_effects.TakeSnapshot) -> None:
        self._trace("snapshot_begun", {"at": effect.position.zxid})
        SnapshotTaking(
            self._storage, self._loop, effect.position, effect.walk, self._pace, self.happened
        ).start()

    def _heard(self) -> int:
        """Another number than before if clients of this or of another member want something."""
        replica = self.replica
        return replica.clients.stats.received + replica.tree.zxid

    def _notify(self, effect: effects.Notify) -> None:
        self.election.notify(effect.member, effect.notification)

    def _dial(self, effect: effects.Dial) -> None:
        self.quorum.dial(effect.member)

    def _hang_up(self, effect: effects.Hangup) -> None:
        self.quorum.hang_up(effect.link)

    def _send(self, effect: effects.Send) -> None:
        self.quorum.send(effect.link, effect.message)

    def _append(self, effect: effects.Append) -> None:
        self.proposals.note(len(effect.record))
        self._storage.append(
            effect.record, effect.committed, partial(self._persisted, effect.append_id)
        )
        if self._backlog.is_full() and (leader := self.replica.peer.leader_link) is not None:
            self._backlog.hold(self.quorum.link(leader))

    def _persisted(self, append_id: int) -> None:
        self._backlog.written()
        # Cumulative: of several that one write made durable, the last says it all.
        if self._events and type(self._events[-1]) is events.Persisted:
            self._events[-1] = events.Persisted(append_id)
        else:
            self.happened(events.Persisted(append_id))

    def _persist_epochs(self, effect: effects.PersistEpochs) -> None:
        done = events.EpochsPersisted(effect.request_id)
        self._storage.persist_epochs(
            effect.accepted,
            effect.current,
            effect.cluster_id,
            partial(self.happened, done),
            repaired=effect.repaired,
        )

    def _truncate(self, effect: effects.Truncate) -> None:
        def truncated(done: bool) -> None:  # noqa: FBT001  (the storage's callback)
            self.happened(events.Truncated(effect.request_id, done))

        self._storage.truncate(effect.position, truncated)

    def _find_record(self, effect: effects.FindRecord) -> None:
        def found(position: LogPosition | None) -> None:
            exact = position is not None and position.zxid == effect.zxid
            self.happened(events.RecordFound(effect.request_id, position, exact))

        self._storage.find_record(Zxid(effect.zxid), found)

    def _stream_records(self, effect: effects.StreamRecords) -> None:
        link = self.quorum.link(effect.link)
        if link is None:
            self.happened(events.StreamFailed(effect.link))
            return
        report = partial(self._stream_reported, effect.link)
        stream = RecordStream(
            self._storage, link, effect.after, effect.upto, report, told=effect.told
        )
        self._start_stream(effect.link, stream)

    def _stream_snapshot(self, effect: effects.StreamSnapshot) -> None:
        link = self.quorum.link(effect.link)
        if link is None:
            self.happened(events.StreamFailed(effect.link))
            return
        stream = SnapshotStream(self._storage, link, partial(self._stream_reported, effect.link))
        self._start_stream(effect.link, stream)

    def _start_stream(self, link: LinkId, stream: Stream) -> None:
        if (running := self._streams.get(link)) is not None:
            # The learner claims to be where what is still being sent to it was to bring it. Both
            # end, which costs it the link: of one that is forgotten nobody would close the reader.
            running.abandon()
            stream.abandon()
            return
        self._streams[link] = stream
        self._progress_ms[link] = self.now_ms()
        stream.start()

    def _stream_reported(self, link: LinkId, event: replica_events.Event) -> None:
        if not self._progressed(link, event):
            stream = self._streams.pop(link, None)
            if type(event) is events.SnapshotStreamed and isinstance(stream, SnapshotStream):
                self._release_snapshot(link)
                self._sent[link] = stream
            self.happened(event)

    def _progressed(self, link: LinkId, event: replica_events.Event) -> bool:
        """Whether it is progress and not the end; then it is told, but not of every piece."""
        if type(event) is not events.StreamProgressed:
            self._progress_ms.pop(link, None)
            return False
        now_ms = self.now_ms()
        if now_ms >= self._progress_ms[link] + self._config.tick_ms // 2:
            self._progress_ms[link] = now_ms
            self.happened(event)
        return True

    def _install_snapshot(self, effect: effects.InstallSnapshot) -> None:
        link = self.quorum.link(effect.link)
        if link is None:
            self.happened(events.StreamFailed(effect.link))
            return
        self._trace("snapshot_comes", {"at": effect.position.zxid, "link": effect.link})
        self._progress_ms[effect.link] = self.now_ms()
        self._installations[effect.link] = Installation(
            self._storage,
            link,
            effect.position,
            self._install_tree,
            partial(self._installation_reported, effect.link),
        )

    def _install_tree(self, tree: ZnodeTree) -> None:
        self.replica.install_tree(tree)
        self.tree_loaded()

    def _installation_reported(self, link: LinkId, event: replica_events.Event) -> None:
        if not self._progressed(link, event):
            del self._installations[link]
            self.happened(event)

    def _stop(self, effect: effects.Stop) -> None:
        raise MemberStoppedError(effect.reason, distrust=effect.distrust)
