"""One life of one member at the core level: a bare `zab.Peer`, one effect at a time.

Invariants
    M1  A peer hears one event at a time, in the order in which they happened to its process, and
        never from within the performing of its own effects.
    M2  A process that is dead does nothing: what it had asked for comes back to nobody.
    M3  A crash may fall between any two effects.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.connections import End
from zabd.cluster_sim.core_disk_work import DiskWork
from zabd.cluster_sim.disk_image import DiskImage
from zabd.cluster_sim.disks import SimDisk
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.placed_faults import turn_of
from zabd.cluster_sim.schedule import US_PER_MS, Action, Appointment
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.model.errors import RemoteProtocolError, StorageError
from zabd.model.ids import LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.storage.recovery import Recovered
from zabd.zab import effects as fx
from zabd.zab import events as ev
from zabd.zab.config import RecoveredState
from zabd.zab.messages import Message, PeerState, SnapshotChunk
from zabd.zab.peer import Peer

if TYPE_CHECKING:
    from zabd.cluster_sim.core_member import CoreMember

QUORUM_PORT: Final = 2888


class _LinkEnd:
    """The receiver of one quorum connection at one process."""

    __slots__ = ("_link", "_process")

    def __init__(self, process: "CoreProcess", link: LinkId) -> None:
        self._process = process
        self._link = link

    def received(self, payload: object) -> None:
        self._process.enter(partial(self._process.message, self._link, payload))

    def finished(self) -> None:
        self._process.enter(partial(self._process.link_gone, self._link))

    def lost(self, _error: OSError) -> None:
        self._process.enter(partial(self._process.link_gone, self._link))

    def drained(self) -> None:
        """Links at the core level are not bounded: a run is."""


class CoreProcess(DiskWork):
    """One life of one member."""

    def __init__(self, member: "CoreMember") -> None:
        super().__init__()
        level = member.level
        self.member = member
        self.level = level
        self.alive = True
        self.paused = False
        self.peer: Peer | None = None
        self.seen: Incarnation | None = None
        self.fuse: tuple[int, bool] | None = None  # a crash before the n-th effect from now
        self.turn: tuple[str, int, bool] | None = None  # light that fuse at such an effect
        self.state = self.new_state()
        self.rng = level.schedule.stream(f"life {level.next_life()}")
        self._inbox: deque[Action] = deque()
        self.busy = False
        self.links: dict[LinkId, End] = {}
        self._timer: Appointment | None = None
        self._busy_us = 0  # how long a turn takes
        self._rest: Appointment | None = None
        self._performers: dict[type, Callable[..., object]] = {
            fx.Send: self._send,
            fx.Append: self._append,
            fx.Deliver: self._deliver,
            fx.Notify: self._notify,
            fx.Dial: self._dial,
            fx.Hangup: self._hangup,
            fx.PersistEpochs: self._persist_epochs,
            fx.Truncate: self._truncate,
            fx.FindRecord: self._find_record,
            fx.StreamRecords: self._stream_records,
            fx.StreamSnapshot: self._stream_snapshot,
            fx.InstallSnapshot: self._install,
            fx.Became: self._became,
            fx.Confirmed: self._confirmed,
            fx.Stop: self._stop,
        }
        self.stack = level.network.open_stack(member.host)
        self.stack.listen("", QUORUM_PORT, self._accept)
        self.disks = [self._open_disk(image) for image in member.images]
        config = level.storage_config(member.id)
        self.storage = level.storage_class(self.disks[0], self.disks[-1], config, member.now_ms)
        self.storage.on_failure = self._storage_failed
        self.storage.on_snapshot_wanted = lambda: self.enter(self.take_snapshot)
        self.enter(lambda: self.storage.recover(self.state, member.id, None, self._recovered))

    def _open_disk(self, image: DiskImage) -> SimDisk:
        level = self.level
        return SimDisk(
            level.schedule,
            image,
            level.trace,
            name=f"{self.member.host.name}/{'disk' if image is self.member.image else 'log'}",
            rng=level.disk_rng,
            speed=level.shape.disk_speed,
            post=self.enter,
            failed=lambda: level.checker.disk_failed(self.member.id),
        )

    # --- one thing at a time ---------------------------------------------------------------------

    def enter(self, action: Action) -> None:
        """Something happens to this process: now, or as soon as it can take it (M1)."""
        if not self.alive:
            return
        self._inbox.append(action)
        if not self.busy and not self.paused and self._rest is None:
            self._work()

    def slow_down(self, busy_us: int) -> None:
        """Let each turn take so long from now on; what happens meanwhile waits for the next."""
        self._busy_us = busy_us
        if not busy_us and self._rest is not None:
            self._rest.cancel()
            self._rested()

    def _rested(self) -> None:
        self._rest = None
        if self.alive and self._inbox and not self.busy and not self.paused:
            self._look_at_the_clock()
            self._work()

    def _look_at_the_clock(self) -> None:
        """Time that passed comes before what came meanwhile, as in the driver (its R4)."""
        due_ms = self._deadline_ms()
        if due_ms is not None and due_ms < self.member.now_ms():
            self._inbox.appendleft(self._elapsed)

    def _work(self) -> None:
        if self._busy_us and self._rest is None:
            self._rest = self.level.schedule.after(self._busy_us, self._rested)
        self.busy = True
        inbox = self._inbox
        try:
            while self.alive and not self.paused:
                if inbox:
                    self.level.events += 1
                    inbox.popleft()()
                elif not self._end_turn():
                    break
        except InvariantError:
            raise
        except Exception as error:
            raise InvariantError("X6", f"{self}: {error!r}") from error
        finally:
            self.busy = False
        if self.alive:
            self._set_timer()

    def _end_turn(self) -> bool:
        """Nothing is left to take: finish the turn; whether that did anything."""
        return False

    def pause(self) -> None:
        """Take nothing until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Take what has happened meanwhile, in its order."""
        if self.paused:
            self.paused = False
            if not self.busy and self._rest is None:
                self._look_at_the_clock()
                self._work()

    def die(self, *, power: bool) -> None:
        """End (M2)."""
        self.alive = False
        self._inbox.clear()
        for disk in self.disks:
            disk.kill()
        if power:
            self.stack.power_off()
        else:
            self.stack.kill()
        if self._timer is not None:
            self._timer.cancel()

    def __str__(self) -> str:
        return f"member {self.member.id}" if self.seen is None else str(self.seen)

    # --- the peer --------------------------------------------------------------------------------

    def _recovered(self, found: Recovered | StorageError) -> None:
        if isinstance(found, StorageError) and self.disturbed:
            self._storage_failed(found)
            return
        if isinstance(found, StorageError):
            raise InvariantError("D11", f"{self} does not start: {found}")
        given_up = self.level.storage_config(self.member.id).found_anew
        state = recovered_state(found, given_up)
        self.seen = self.level.checker.recovered(self.member.id, state)
        self._begin(state)
        self.step(ev.Start())

    def _begin(self, state: RecoveredState) -> None:
        assert self.state.position == state.delivered, "R3: the tree stands there"
        config = self.level.ensemble_config(self.member.id)
        self.peer = self.level.peer_class(config, state, self.rng, self.narrate)

    def narrate(self, name: str, facts: Mapping[str, object]) -> None:
        """Put what the peer says of itself into the trace."""
        told = " ".join(f"{key}={value}" for key, value in facts.items())
        self.level.trace.record(self.member.host.name, f"{name} {told}")

    def step(self, event: ev.Event) -> None:
        """Let the peer take one event, and perform what it asks for, one effect after another."""
        if self.peer is not None:
            self._perform(self.peer.step(event, self.member.now_ms()))

    def _perform(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if self.fuse is not None and self._burn():
                return
            self.note_asked(effect)
            self._performers[type(effect)](effect)
            if not self.alive:
                return

    def note_asked(self, effect: object) -> None:
        """Tell the checker, in the order of the effects."""
        self.turn_at(effect)
        assert self.seen is not None, "an effect has a peer"
        assert self.peer is not None, "an effect has a peer"
        self.level.checker.asks(self.seen, effect, self.peer.epoch)  # type: ignore[arg-type]

    def turn_at(self, effect: object) -> None:
        """Light the fuse if this is the effect to crash at."""
        if self.turn is not None and self.fuse is None and turn_of(effect) == self.turn[0]:
            _, near, power = self.turn
            self.fuse, self.turn = (near, power), None
            self.level.fault_happened("crash at a turn")

    def submit(self, count: int, payload: bytes) -> None:
        """Propose something, if this is still a leader that may."""
        if self.peer is not None and self.peer.can_submit:
            self.step(ev.Submit(count, payload))

    def confirm(self, token: int) -> None:
        """Ask a leader to prove that it leads."""
        if self.peer is not None and self.seen is not None and self.peer.can_submit:
            self.level.checker.asked(self.seen, token)
            self.step(ev.Confirm(token))

    def name_leader(self, leader: MemberId) -> None:
        """Decide this peer's election, if it is still looking."""
        if self.peer is not None and self.peer.state is PeerState.LOOKING:
            assert self.seen is not None, "it has a peer"
            self.seen.named = True
            self.step(ev.Elected(leader))

    def _burn(self) -> bool:
        assert self.fuse is not None, "asked only while it burns"
        left, power = self.fuse
        if left > 0:
            self.fuse = (left - 1, power)
            return False
        self.level.fault_happened("crash between effects")
        self.level.crash(self.member, power=power)
        return True

    def _deadline_ms(self) -> int | None:
        return self.peer.deadline_ms if self.peer is not None else None

    def _set_timer(self) -> None:
        deadline_ms = self._deadline_ms()
        timer = self._timer
        if deadline_ms is None:
            return
        wait_ms = max(0, deadline_ms - self.member.now_ms())
        at_us = self.level.schedule.now_us + int((wait_ms + 1) * US_PER_MS / self.member.rate)
        if timer is not None and timer.pending:
            if timer.at_us <= at_us:
                return  # it comes early, looks, and is set again
            timer.cancel()
        self._timer = self.level.schedule.at(at_us, self._tick, self)

    def clock_changed(self) -> None:
        """Its machine's clock runs at another rate: wake up by that."""
        if self._timer is not None and self.alive:
            self._timer.cancel()
            self._set_timer()

    def _tick(self) -> None:
        if not self.alive:
            return
        due_ms = self._deadline_ms()
        if self.paused or (due_ms is not None and due_ms <= self.member.now_ms()):
            self.enter(self._elapsed)
        else:
            self._set_timer()

    def _elapsed(self) -> None:
        self.level.trace.record(self.member.host.name, "timer")
        self.step(ev.Elapsed())

    # --- links -----------------------------------------------------------------------------------

    def _accept(self, end: End) -> _LinkEnd:
        link = end.connection.id
        self.links[link] = end
        return _LinkEnd(self, link)

    def _dial(self, effect: fx.Dial) -> None:
        member, level = effect.member, self.level

        def connected(end: End) -> _LinkEnd:
            patience.cancel()
            link = end.connection.id
            self.links[link] = end
            self.enter(lambda: self.step(ev.Dialled(link, member)))
            return _LinkEnd(self, link)

        def failed(_error: OSError) -> None:
            patience.cancel()
            self.enter(lambda: self.step(ev.DialFailed(member)))

        def give_up() -> None:
            dial.cancel()
            self.enter(lambda: self.step(ev.DialFailed(member)))

        patience = level.schedule.after(level.shape.tick_ms * US_PER_MS, give_up)
        name = level.members[member].host.name
        dial = self.stack.dial(name, QUORUM_PORT, connected=connected, failed=failed)

    def message(self, link: LinkId, payload: object) -> None:
        """Something came over a link."""
        if link not in self.links or self.seen is None:
            return
        if isinstance(payload, SnapshotChunk):
            if (installation := self.installations.get(link)) is not None:
                installation.take(payload)
            return
        message: Message = payload  # type: ignore[assignment]  # links carry nothing else
        self.level.checker.received(self.seen, link, message)
        try:
            self.step(ev.Received(link, message))
        except RemoteProtocolError as error:
            self.level.checker.fail("A5", f"{self} refuses {message}: {error}")
            self._hangup(fx.Hangup(link))
            self.step(ev.Disconnected(link))

    def link_gone(self, link: LinkId) -> None:
        """A link has ended."""
        end = self.links.pop(link, None)
        if end is None:
            return
        end.close()
        if self.seen is not None:
            self.level.checker.link_over(self.seen, link)
        if (installation := self.installations.get(link)) is not None:
            installation.give_up()
        self.step(ev.Disconnected(link))

    def _hangup(self, effect: fx.Hangup) -> None:
        end = self.links.pop(effect.link, None)
        if end is not None:
            end.close()
        if (installation := self.installations.get(effect.link)) is not None:
            self.enter(installation.give_up)

    def _send(self, effect: fx.Send) -> None:
        end = self.links.get(effect.link)
        if end is not None and self.seen is not None:
            self.level.checker.sent(self.seen, effect.link, effect.message)
            end.send(effect.message)

    def _notify(self, effect: fx.Notify) -> None:
        level, target = self.level, self.level.members[effect.member]
        if self.seen is not None:
            level.checker.voting(self.seen, effect.notification)
        event = ev.Notified(effect.notification)

        def arrive() -> None:
            if (process := target.process) is not None:
                level.trace.record(target.host.name, f"vote {describe_vote(event)}")
                process.enter(lambda: process.hear_vote(event))

        level.network.datagram(self.member.host, target.host, arrive)

    def hear_vote(self, event: ev.Notified) -> None:
        """A notification has arrived."""
        if self.seen is not None:
            self.level.checker.heard_vote(self.seen, event.notification)
            self.step(event)

    # --- what the peer tells ---------------------------------------------------------------------

    def _deliver(self, effect: fx.Deliver) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.delivered(self.seen, effect.batches)
        for batch in effect.batches:
            self.state.record(batch)
        self._since_snapshot += len(effect.batches)
        if self._since_snapshot >= self.level.shape.snapshot_every:
            self.enter(self.take_snapshot)

    def _became(self, effect: fx.Became) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.became(self.seen, effect)
        self.level.note_became(self.member, effect)

    def _confirmed(self, effect: fx.Confirmed) -> None:
        assert self.seen is not None, "an effect has a peer"
        self.level.checker.confirmed(self.seen, effect.token)

    def _stop(self, effect: fx.Stop) -> None:
        if not effect.distrust or self.member.id not in self.level.checker.damaged:
            raise InvariantError("X6", f"{self} stops: {effect.reason}")
        self.storage.distrust(effect.reason, self._end)

    def _end(self) -> None:
        self.level.crash(self.member, power=False)

    def _storage_failed(self, error: StorageError) -> None:
        self.level.storage_failed(self.member, error)


def recovered_state(found: Recovered, given_up: bytes | None = None) -> RecoveredState:
    """What a disk holds, as a peer is told; `given_up` is the cluster that it has to leave."""
    return RecoveredState(
        found.accepted_epoch,
        found.current_epoch,
        found.cluster_id,
        found.delivered,
        found.tail,
        damaged=found.damaged is not None,
        founds_anew=given_up is not None and found.cluster_id == given_up,
    )


def describe_vote(event: ev.Notified) -> str:
    """A notification as the trace names it."""
    told = event.notification
    return (
        f"from {told.sender} round {told.round} for {told.leader} at "
        f"{Zxid(told.zxid)!r} epoch {told.epoch} {told.state.name.lower()}"
    )
