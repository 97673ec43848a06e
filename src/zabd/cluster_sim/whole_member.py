"""One member at the whole level: `zabd.server.Server`, unchanged, on a loop and disks of its own.

The only thing that is not production code is a peer that tells the checker what it hears and asks
for. Nothing of the server is called but its public door, and what a fault needs.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from zabd.cluster_sim.core_member import CoreMember
from zabd.cluster_sim.core_process import recovered_state
from zabd.cluster_sim.disks import SimDisk
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.placed_faults import turn_of
from zabd.cluster_sim.replica_member import hasten_snapshot
from zabd.cluster_sim.schedule import Action
from zabd.cluster_sim.virtual_loop import VirtualLoop
from zabd.cluster_sim.watched_peer import WatchedPeer
from zabd.cluster_sim.zab_checks import Incarnation
from zabd.model.errors import StorageError
from zabd.model.ids import MemberId
from zabd.replica import Replica
from zabd.replica.rebuild import TreeBuilder
from zabd.server.app import Server
from zabd.server.config import ServerConfig
from zabd.server.driver import MemberStoppedError
from zabd.server.identity import Identity
from zabd.server.zoo_cfg import Member
from zabd.storage import Recovered
from zabd.storage.disk import Disk
from zabd.zab import events as ev
from zabd.zab.effects import Deliver, Effect, Notify
from zabd.zab.messages import PeerState
from zabd.zab.peer import Peer

if TYPE_CHECKING:
    from zabd.cluster_sim.whole_level import WholeLevel

CLIENT_PORT: Final = 2181
_QUORUM_PORT: Final = 2881
_ELECTION_PORT: Final = 3881


class _WatchedServer(Server):
    """A server whose replica's peer is watched."""

    process: "WholeProcess"

    def _make_replica(self, recovered: Recovered, builder: TreeBuilder) -> Replica:
        replica = super()._make_replica(recovered, builder)
        self.process.watch(replica, recovered)
        return replica


class WholeProcess:
    """One life of one member."""

    def __init__(self, member: CoreMember) -> None:
        level: WholeLevel = member.level  # type: ignore[assignment]  # members of this level
        self.member = member
        self.level = level
        level.lives.append(self)
        self.alive = True
        self.replica: Replica | None = None
        self.seen: Incarnation | None = None
        self._fuse: tuple[int, bool] | None = None
        self.turn: tuple[str, int, bool] | None = None
        self._applied = False
        self._rng = level.schedule.stream(f"life {level.next_life()}")
        self.stack = level.network.open_stack(member.host)
        self.loop = VirtualLoop(
            level.schedule,
            self.stack,
            level.trace,
            turn_us=level.turn_us,
            drift_ppm=round((member.rate - 1) * 1e6),
        )
        self.loop.set_exception_handler(self._unhandled)
        self.disks: list[SimDisk] = []
        self._server = _WatchedServer(
            level.server_config(member.id),
            disk_factory=self._open_disk,
            clock=member.wall_clock,
            identity=Identity(member.host.name, 1000 + member.id),
            rng=self._rng,
            trace=self.narrate,
        )
        self._server.process = self
        self.loop.call_soon(lambda: self.loop.create_task(self._live()))

    def _open_disk(self, root: str, post: Callable[[Callable[[], None]], None]) -> Disk:
        level, member = self.level, self.member
        disk = SimDisk(
            level.schedule,
            member.image if root == "data" else member.log_image,
            level.trace,
            name=f"{member.host.name}/{root}",
            rng=level.disk_rng,
            speed=level.shape.disk_speed,
            post=post,
            failed=lambda: level.checker.disk_failed(member.id),
        )
        self.disks.append(disk)
        return disk

    @property
    def disturbed(self) -> bool:
        """Whether one of its disks is made to fail, or was."""
        return any(disk.disturbed for disk in self.disks)

    async def _live(self) -> None:
        try:
            await self._server.start()
            await self._server.serve()
        except (StorageError, MemberStoppedError) as error:
            self.level.server_failed(self, error)

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, InvariantError):
            error = InvariantError("X6", f"{self}: {context.get('message')}: {error!r}")
        self.level.report(error)

    def __str__(self) -> str:
        return f"member {self.member.id}" if self.seen is None else str(self.seen)

    # --- what the checker hears ------------------------------------------------------------------

    def watch(self, replica: Replica, found: Recovered) -> None:
        """A replica has been made: its peer tells the checker what happens to it."""
        state = recovered_state(found)
        with self.level.reporting():
            self.seen = self.level.checker.recovered(self.member.id, state)
            self.level.checker.stands_at(self.seen, replica.tree)
        self.replica = replica
        watched = WatchedPeer(
            replica.peer._m.config,  # noqa: SLF001 - the peer is replaced by one like it
            state,
            self._rng,
            self.narrate,
            self,
        )
        replica.peer = watched

    def heard(self, event: ev.Event) -> None:
        """The peer is about to take an event."""
        assert self.seen is not None, "a peer that steps is watched"
        try:
            if self._applied and self.replica is not None:
                self._applied = False
                self.level.checker.stands_at(self.seen, self.replica.tree)
            self.level.watcher.heard(self.seen, event, self._end_of_log)
        except InvariantError as error:  # not by `reporting`: this is asked at every step
            self.level.report(error)

    def asked(self, effects: list[Effect]) -> None:
        """The peer has asked for effects; deliveries are applied before the next event."""
        assert self.seen is not None, "a peer that steps is watched"
        assert self.replica is not None, "a peer that steps is watched"
        try:
            self.level.watcher.asked(self.seen, effects, self.replica.peer.epoch)
            self.level.note_effects(self.member, effects)
            for effect in effects:
                self.turn_at(effect)
                self._applied = self._applied or isinstance(effect, Deliver)
        except InvariantError as error:
            self.level.report(error)

    def sends_votes(self, effects: list[Effect]) -> list[Effect]:
        """What its host sends; while a fault hurts them, votes go as datagrams instead."""
        network = self.level.network
        if not network.hurts_votes:
            return effects
        for effect in effects:
            if isinstance(effect, Notify):
                target = self.level.members[effect.member]
                told = ev.Notified(effect.notification)
                network.datagram(self.member.host, target.host, partial(_arrive, target, told))
        return [effect for effect in effects if not isinstance(effect, Notify)]

    def turn_at(self, effect: object) -> None:
        """Light the fuse if this is the effect to crash at."""
        if self.turn is not None and self.fuse is None and turn_of(effect) == self.turn[0]:
            _, near, power = self.turn
            self.fuse, self.turn = (near, power), None
            self.level.fault_happened("crash at a turn")

    def _end_of_log(self) -> object:
        storage = self._server._storage  # noqa: SLF001 - the disk's own word on where it ends
        assert storage is not None, "asked of a server that has started"
        return storage.durable

    def narrate(self, name: str, facts: Mapping[str, object]) -> None:
        """Put what the server says of itself into the trace; some of it must not be."""
        told = " ".join(f"{key}={value}" for key, value in facts.items())
        self.level.trace.record(self.member.host.name, f"{name} {told}")
        if name == "link dropped":
            self.level.report(InvariantError("A5", f"{self} drops a link: {facts['reason']}"))

    # --- what faults need ------------------------------------------------------------------------

    @property
    def peer(self) -> Peer | None:
        """The peer, once there is one."""
        return self.replica.peer if self.replica is not None else None

    @property
    def paused(self) -> bool:
        """Whether the process is stopped."""
        return self.loop.paused

    def pause(self) -> None:
        """SIGSTOP."""
        self.loop.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self.loop.resume()

    def die(self, *, power: bool) -> None:
        """SIGKILL, or the end of its machine's power."""
        self.alive = False
        for disk in self.disks:
            disk.kill()
        if power:
            self.loop.power_off()
        else:
            self.loop.kill()

    def forget(self) -> None:
        """Empty what its suspended coroutines hold, once the run is over."""
        server = self._server
        for each in (*([server.driver] if self.replica is not None else []), server, self):
            vars(each).clear()

    @property
    def fuse(self) -> tuple[int, bool] | None:
        """A crash before the n-th thing that leaves the process from now, if one is prepared."""
        return self._fuse

    @fuse.setter
    def fuse(self, fuse: tuple[int, bool] | None) -> None:
        self._fuse = fuse
        self.stack.before_send = None if fuse is None else self._burn

    def _burn(self) -> None:
        assert self._fuse is not None, "asked only while it burns"
        left, power = self._fuse
        if left > 0:
            self._fuse = (left - 1, power)
            return
        self.fuse = None
        if self.alive:
            self.level.fault_happened("crash between effects")
            self.level.crash(self.member, power=power)

    def enter(self, action: Action) -> None:
        """Something happens to this process, in its next turn."""
        self.loop.call_soon(action)

    def step(self, event: ev.Event) -> None:
        """Tell the server of an event as if its host had."""
        if self.replica is not None and self.alive:
            self._server.driver.happened(event)

    def name_leader(self, leader: MemberId) -> None:
        """Decide this peer's election, if it is still looking."""
        if self.peer is not None and self.peer.state is PeerState.LOOKING:
            self.step(ev.Elected(leader))

    def take_snapshot(self) -> None:
        """Let the next batch be the one after which a snapshot is due."""
        if self.replica is not None and self.alive:
            hasten_snapshot(self.replica)

    def slow_down(self, busy_us: int) -> None:
        """Let each turn take so long from now on (0: as long as usual)."""
        self.loop.turn_us = busy_us or self.level.turn_us

    def clock_changed(self) -> None:
        """Its machine's clock runs at another rate."""
        self.loop.set_drift(round((self.member.rate - 1) * 1e6))


def _arrive(target: CoreMember, told: ev.Notified) -> None:
    process = target.process
    if process is not None:
        process.enter(lambda: process.step(told))


def server_config(
    member: MemberId,
    voters: tuple[MemberId, ...],
    observers: tuple[MemberId, ...],
    *,
    log_disk: bool,
    **more: int,
) -> ServerConfig:
    """The configuration of one member of a simulated ensemble: machine `m<id>` for each."""
    members = tuple(
        Member(
            id=each,
            host=f"10.0.0.{each}",  # where the network puts them: a look-up would cost turns
            quorum_port=_QUORUM_PORT,
            election_port=_ELECTION_PORT,
            observer=each in observers,
            client_host=f"m{each}",
            client_port=CLIENT_PORT,
        )
        for each in (*voters, *observers)
    )
    return ServerConfig(
        member_id=member,
        members=members,
        data_dir="data",
        log_dir="log" if log_disk else None,
        client_host=None,
        client_port=CLIENT_PORT,
        **more,  # type: ignore[arg-type]  # times and sizes
    )
