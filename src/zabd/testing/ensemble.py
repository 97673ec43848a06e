"""An ensemble in the hands of a test: what the fixtures `zab_server` and `zab_ensemble` give it.

Members are named by their ids from 1 on, clients by the names a test gives them. Whatever a test
does to members or links spoils the ensemble for others, so it is not given to a second test.
"""

import itertools
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from zabd.cli.members import PORTS_PER_MEMBER, Ensemble, Launcher, Member, MemberError, Process
from zabd.cli.ports import LOOPBACK, PortLeases
from zabd.testing.errands import credentials_of, end_session, make_root

if TYPE_CHECKING:
    from zabd.client import Client
    from zabd.client.sync import SyncClient

# Fast enough for tests of failures, slow enough for a machine that does other things as well: a
# session of 1 s is the shortest, and a member that is silent for 3 s is given up by the others.
SETTINGS: Final[Mapping[str, str]] = {"tickTime": "500", "initLimit": "20", "syncLimit": "6"}
START_ATTEMPTS: Final = 3
CHANNELS: Final = ("quorum", "election")

Party: TypeAlias = int | str
"""A member by its id, a client by the name that `hosts_for` was given."""


class Backend(Launcher, Protocol):
    """Where members and relays run."""

    def open_relays(self, targets: dict[str, int]) -> dict[str, int]:
        """Open a relay for each name and target port; the ports to call in their place."""
        ...

    def act(self, action: str, names: list[str]) -> None:
        """``cut``, ``heal``, ``drop`` or ``close`` these relays."""
        ...


@dataclass(frozen=True)
class Shape:
    """What an ensemble is made of; two of one shape stand in for each other."""

    members: int = 3
    observers: int = 0
    settings: tuple[tuple[str, str], ...] = ()


class Cluster:
    """Members, their ports and the relays between them, over all tests that share them."""

    _names = itertools.count(1)

    def __init__(self, shape: Shape, folder: Path, backend: Backend, leases: PortLeases) -> None:
        self.spoilt = False
        self._shape = shape
        self._folder = folder
        self._backend = backend
        self._leases = leases
        self._name = f"{next(self._names)}"
        self._roots = itertools.count(1)
        self._ports = leases.take((shape.members + shape.observers) * PORTS_PER_MEMBER)
        self.relays: dict[str, tuple[Party, Party]] = {}
        self._lay_out()

    def _lay_out(self) -> None:
        count = self._shape.members + self._shape.observers
        targets: dict[str, int] = {}
        for caller, called in itertools.permutations(range(1, count + 1), 2):
            for at, channel in enumerate(CHANNELS, 1):
                name = f"{self._name}:{caller}>{called}:{channel}"
                targets[name] = self._ports[(called - 1) * PORTS_PER_MEMBER + at]
                self.relays[name] = (caller, called)
        ports = self._backend.open_relays(targets) if targets else {}
        routes = {(*self.relays[name], target): ports[name] for name, target in targets.items()}
        self.ensemble = Ensemble(
            self._folder,
            voters=self._shape.members,
            observers=self._shape.observers,
            settings={**SETTINGS, **dict(self._shape.settings)},
            launcher=_Shared(self._backend),
            ports=self._ports,
            route=lambda caller, called, port: routes[caller, called, port],
        )

    def make_chroot(self) -> str:
        """A new znode, the root of one test."""
        path = f"/test-{next(self._roots)}"
        make_root(self.ensemble.members[0].client_port, path)
        return path

    def relay_clients(self, party: str) -> list[str]:
        """Open relays of this client's own to every member; their addresses, in that order."""
        names = {f"{self._name}:{party}>{member.id}": member for member in self.ensemble.members}
        targets = {name: member.client_port for name, member in names.items()}
        ports = self._backend.open_relays(targets)
        self.relays |= {name: (party, member.id) for name, member in names.items()}
        return [f"{LOOPBACK}:{ports[name]}" for name in names]

    def close_relays(self, parties: Collection[str]) -> None:
        """Close what `relay_clients` has opened for them."""
        names = [name for name, (caller, _) in self.relays.items() if caller in parties]
        for name in names:
            del self.relays[name]
        if names:
            self._backend.act("close", names)

    def act(self, action: str, names: Iterable[str]) -> None:
        """``cut``, ``heal`` or ``drop`` these relays."""
        self._backend.act(action, list(names))

    def close(self) -> None:
        """End the members and give everything back."""
        self.ensemble.close()
        if self.relays:
            self._backend.act("close", list(self.relays))
        self._leases.give_back(self._ports)
        shutil.rmtree(self._folder, ignore_errors=True)


class _Shared:
    """A backend that one of its ensembles must not close."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def launch(self, config: Path, member_id: int, log: Path) -> Process:
        """As the backend."""
        return self._backend.launch(config, member_id, log)

    def close(self) -> None:
        """Members are killed one by one, and the backend stays."""


class ZabEnsemble:
    """The members, the links between them and to clients, and what a test may do to each.

    Everything raises `MemberError`, with the end of each member's log, when it does not come about.
    """

    def __init__(self, cluster: Cluster, chroot: str) -> None:
        self._cluster = cluster
        self._ensemble = cluster.ensemble
        self._parties: dict[str, list[str]] = {}
        self._clients: list[SyncClient] = []
        self.chroot = chroot
        """The znode that is this test's own root; it exists."""

    # Finding it.

    @property
    def hosts(self) -> str:
        """The connect string, for any client: every member, and the test's own chroot."""
        return self._ensemble.hosts + self.chroot

    def hosts_for(self, party: str) -> str:
        """A connect string for one client, whose links `cut` and `drop` then know by this name."""
        if party not in self._parties:
            self._parties[party] = self._cluster.relay_clients(party)
        return ",".join(self._parties[party]) + self.chroot

    def hosts_of(self, *members: int) -> str:
        """A connect string with these members only."""
        return ",".join(self.member(each).address for each in members) + self.chroot

    def client(self, party: str = "", **options: Any) -> "SyncClient":  # noqa: ANN401 - Client's
        """A blocking client of the test's own, started; it is closed after the test."""
        from zabd.client.sync import SyncClient

        client = SyncClient(self.hosts_for(party) if party else self.hosts, **options)
        client.start()
        self._clients.append(client)
        return client

    def connect(self, party: str = "", **options: Any) -> "Client":  # noqa: ANN401 - Client's
        """An asyncio client for ``async with``."""
        from zabd.client import connect

        return connect(self.hosts_for(party) if party else self.hosts, **options)

    # Members.

    @property
    def members(self) -> list[int]:
        """The ids, of voters first, then of observers."""
        return [member.id for member in self._ensemble.members]

    def member(self, member_id: int) -> Member:
        """One member with its process id, address, folder and log."""
        return self._ensemble.member(member_id)

    @property
    def leader(self) -> int | None:
        """Who says that it leads just now."""
        leader = self._ensemble.leader()
        return None if leader is None else leader.id

    def wait_for_leader(self, *, other_than: int | None = None, timeout: float = 30.0) -> int:
        """Wait until a member leads (which a frozen or cut off one may still believe of itself)."""
        but = None if other_than is None else self.member(other_than)
        return self._ensemble.wait_leader(other_than=but, timeout_s=timeout).id

    def wait_serving(self, *members: int, timeout: float = 30.0) -> None:
        """Wait until these members serve; without any, all that run."""
        chosen = [self.member(each) for each in members] or None
        self._ensemble.wait_serving(chosen, timeout_s=timeout)

    def kill(self, member_id: int) -> None:
        """SIGKILL: gone, and what was not on disk with it."""
        self._spoil()
        self.member(member_id).kill()

    def stop(self, member_id: int) -> None:
        """SIGTERM: it leaves in order."""
        self._spoil()
        self.member(member_id).terminate()

    def restart(self, member_id: int, *, wait: bool = True, timeout: float = 30.0) -> None:
        """Start a member again, after its end if it runs, and wait until it serves."""
        self._spoil()
        member = self.member(member_id)
        if member.running:
            member.kill()
        member.start()
        if wait:
            self._ensemble.wait_serving([member], timeout_s=timeout)

    def pause(self, member_id: int) -> None:
        """SIGSTOP: it is silent, and its connections stay open."""
        self._spoil()
        self.member(member_id).send(SIGSTOP)

    def resume(self, member_id: int) -> None:
        """SIGCONT after `pause`."""
        self.member(member_id).send(SIGCONT)

    # Links.

    def cut(self, one: Party, other: Party | None = None) -> None:
        """Let nothing through between two parties; without `other`, between `one` and anybody.

        It is silence: connections stay open, and new ones reach nobody. Clients have links that
        can be cut if they were given `hosts_for` their name.
        """
        self._spoil()
        self._cluster.act("cut", self._between(one, other))

    def heal(self, one: Party | None = None, other: Party | None = None) -> None:
        """Undo `cut`; without any party, all that was cut."""
        names = self._cluster.relays if one is None else self._between(one, other)
        self._cluster.act("heal", names)

    def drop(self, one: Party, other: Party | None = None) -> None:
        """Break the connections between two parties off; they may connect again at once."""
        self._spoil()
        self._cluster.act("drop", self._between(one, other))

    def _between(self, one: Party, other: Party | None) -> list[str]:
        for party in filter(None, (one, other)):
            if party not in self._parties and party not in self.members:
                raise MemberError(
                    f"{party!r} is no party here: members are {self.members}, clients "
                    f"{sorted(self._parties)} (a client is one once it has `hosts_for` its name)"
                )
        return [
            name
            for name, ends in self._cluster.relays.items()
            if one in ends and (other is None or other in ends)
        ]

    # Sessions.

    def expire(self, client: object) -> None:
        """End the session of a started client, ours or kazoo's, or of ``(id, password)``.

        Its ephemerals are gone when this returns; the client hears of it once it has reconnected.
        """
        session_id, password = credentials_of(client)
        serving = next((m for m in self._ensemble.running() if m.mode() is not None), None)
        if serving is None:
            raise MemberError(f"no member serves, so no session can end\n{self.logs()}")
        if not end_session(serving.client_port, session_id, password):
            raise MemberError(f"expire: session 0x{session_id:x} was over already")

    # The end.

    def logs(self) -> str:
        """The end of each member's log."""
        return self._ensemble.logs()

    def release(self) -> None:
        """Close what `client` and `hosts_for` have made."""
        for client in self._clients:
            client.close(timeout=0 if self._cluster.spoilt else 2)
        self._cluster.close_relays(self._parties)

    def _spoil(self) -> None:
        self._cluster.spoilt = True


class Pool:
    """The ensembles of a test run: one for each shape, and another once it was spoilt."""

    def __init__(self, folder: Path, backend: Backend) -> None:
        self._folder = folder
        self._backend = backend
        self._clusters: dict[Shape, Cluster] = {}
        self._leases = PortLeases()
        self._starts = itertools.count(1)

    def take(self, shape: Shape, *, fresh: bool = False) -> Cluster:
        """An ensemble of this shape that serves and that nobody has done anything to."""
        cluster = self._clusters.get(shape)
        if cluster is None or fresh:
            self.drop(shape)
            cluster = self._clusters[shape] = self._start(shape)
        return cluster

    def settle(self, shape: Shape) -> None:
        """A test is through with its ensemble: keep it, or not."""
        if self._clusters[shape].spoilt:
            self.drop(shape)

    def drop(self, shape: Shape) -> None:
        """End the ensemble of this shape if there is one."""
        if cluster := self._clusters.pop(shape, None):
            cluster.close()

    def close(self) -> None:
        """End everything."""
        for shape in list(self._clusters):
            self.drop(shape)
        self._backend.close()

    def _start(self, shape: Shape) -> Cluster:
        attempt = 0
        while True:
            attempt += 1
            folder = self._folder / f"ensemble-{next(self._starts)}"
            cluster = Cluster(shape, folder, self._backend, self._leases)
            try:
                cluster.ensemble.start()
            except MemberError as error:
                cluster.close()
                # Somebody who knows nothing of leases may have taken a port in between.
                if "cannot listen" not in str(error) or attempt == START_ATTEMPTS:
                    raise
            else:
                return cluster
