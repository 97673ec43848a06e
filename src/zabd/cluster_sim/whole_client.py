"""Programs that use the ensemble at the whole level: `zabd.client` and its recipes, unchanged.

Each runs as a process of its own, on a `VirtualLoop`. What they are told is compared with what was
true (`replica_checks`), and what they do outside with a resource that checks fencing tokens.
"""

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from zabd.client import Client
from zabd.client.identity import Identity
from zabd.client.recipes.dedup import Attempt, Dedup, DedupError
from zabd.client.recipes.lock import Lock, LockError
from zabd.cluster_sim.invariants import InvariantError
from zabd.cluster_sim.resource import Resource
from zabd.cluster_sim.schedule import US_PER_MS
from zabd.cluster_sim.session_checks import Issued
from zabd.cluster_sim.virtual_loop import VirtualLoop
from zabd.model.acl import OPEN_ACL_UNSAFE
from zabd.model.errors import KeeperError, NodeExistsError, NoNodeError, ZabdError
from zabd.model.results import GetDataResult
from zabd.model.stat import Stat
from zabd.model.zxid import Zxid

if TYPE_CHECKING:
    from zabd.cluster_sim.whole_level import WholeLevel

PATHS: Final = tuple(f"/{letter}" for letter in "abcd")
LEASE_SLACK_TICKS: Final = 2
LOCK: Final = "/locks/one"
KEYS: Final = 6
NEW_KEYS_TICKS: Final = 10  # after so many, requests have other keys: what is recorded is replayed


class Program:
    """One process that uses the ensemble, until the work ends."""

    def __init__(self, level: "WholeLevel", name: str) -> None:
        self.level = level
        self.name = name
        self.rng = level.schedule.stream(f"client {name}")
        self.done = 0
        self.failed = 0
        host = level.network.add_host(name)
        self.loop = VirtualLoop(
            level.schedule, level.network.open_stack(host), level.trace, turn_us=level.turn_us
        )
        self.loop.set_exception_handler(self._unhandled)
        self.finished = False

    @property
    def alive(self) -> bool:
        """Whether it has not been killed."""
        return self.loop.alive

    def start(self) -> None:
        """Begin."""
        self.loop.call_soon(lambda: self.loop.create_task(self._live()))

    def kill(self) -> None:
        """SIGKILL."""
        self.loop.kill()

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, InvariantError):
            error = InvariantError("X6", f"client {self.name}: {context.get('message')}: {error!r}")
        self.level.report(error)

    async def _live(self) -> None:
        tick_s = self.level.shape.tick_ms / 1000
        timeout = tick_s * self.rng.choice((4, 10))
        while not self.level.idle:
            client = Client(
                ",".join(f"m{member}:2181" for member in self.level.members),
                timeout=timeout,
                operation_timeout=20 * tick_s,
                rng=self.rng,
                identity=Identity(self.name, 1),
            )
            try:
                async with client:
                    while not self.level.idle:
                        await self.work(client)
            except ZabdError:
                self.failed += 1
                await asyncio.sleep(tick_s)
        self.finished = True

    async def work(self, client: Client) -> None:
        """Do one thing. A ZabdError that is raised makes it begin anew with another client."""
        raise NotImplementedError

    async def rest(self, ticks: float) -> None:
        """Do nothing for about so many ticks."""
        await asyncio.sleep(self.rng.expovariate(1 / ticks) * self.level.shape.tick_ms / 1000)

    def fail(self, check: str, what: str) -> None:
        """A check did not hold."""
        self.level.report(InvariantError(check, f"client {self.name}: {what}"))


class RegisterUser(Program):
    """Sets, gets and creates a few znodes, and compares every answer."""

    def __init__(self, level: "WholeLevel", name: str) -> None:
        super().__init__(level, name)
        self._count = 0
        self._session = 0
        self._seen: dict[str, int] = {}

    async def work(self, client: Client) -> None:
        """One set or get."""
        if client.session_id != self._session:
            self._session, self._seen = client.session_id, {}
        path = self.rng.choice(PATHS)
        try:
            if self.rng.randrange(3):
                await self._set(client, path)
            elif self.rng.getrandbits(1):
                await self._get(client, path, current=False)
            else:
                await self._get(client, path, current=True)
            self.done += 1
        except KeeperError:
            self.failed += 1
        await self.rest(1)

    async def _set(self, client: Client, path: str) -> None:
        self._count += 1
        data = f"{self.name} {self._count}".encode()
        checker, floor = self.level.checker, self.level.checker.completed_write
        session = client.session_id
        checker.sessions.issued[data] = Issued(self.name, 0, self._count)
        try:
            stat = await client.set(path, data)
        except NoNodeError:
            await self._create(client, path)
            return
        if stat.mzxid <= floor:
            self.fail("C1", f"{Zxid(stat.mzxid)!r} is before a write that was complete")
        checker.completed_write = max(checker.completed_write, stat.mzxid)
        self._require(path, data, stat, session == client.session_id)

    async def _create(self, client: Client, path: str) -> None:
        try:
            await client.create(path, b"new", acl=OPEN_ACL_UNSAFE)
        except NodeExistsError:
            return

    async def _get(self, client: Client, path: str, *, current: bool) -> None:
        floor = 0
        session = client.session_id
        if current:
            floor = self.level.checker.completed_write
            await client.sync(path)
        try:
            result: GetDataResult = await client.get(path)
        except NoNodeError:
            return
        if not current or client.session_id != session:
            floor = 0
        newest = self.level.checker.at(path, floor)
        if newest.there and result.stat.mzxid < newest.mzxid:
            self.fail(
                "C6",
                f"read {path} of {Zxid(result.stat.mzxid)!r} after a sync, when "
                f"{Zxid(newest.mzxid)!r} was complete",
            )
        self._require(path, result.data, result.stat, session == client.session_id)

    def _require(self, path: str, data: bytes | None, stat: Stat, same_session: bool) -> None:  # noqa: FBT001
        version = self.level.checker.at(path, stat.mzxid)
        if not version.there or version.data != data or version.mzxid != stat.mzxid:
            self.fail("C3", f"{path} never held {data!r} at {Zxid(stat.mzxid)!r}")
        if same_session and stat.mzxid < self._seen.get(path, 0):
            self.fail("C3", f"{path} of {Zxid(stat.mzxid)!r} after a newer one in one session")
        if same_session:
            self._seen[path] = stat.mzxid


class LockUser(Program):
    """Takes a lock, writes to the resource with its token, and lets go."""

    writes = (1, 4)  # at least, and less than

    def __init__(self, level: "WholeLevel", name: str) -> None:
        super().__init__(level, name)
        self._patience = level.schedule.stream(f"client {name} patience")

    async def work(self, client: Client) -> None:
        """One time through the lock; some do not wait for it for long."""
        tick_s = self.level.shape.tick_ms / 1000
        lock = Lock(client, LOCK, identifier=self.name)
        ticks = self._patience.choice((2, 40, 40))
        try:
            async with asyncio.timeout(ticks * tick_s), lock:
                for _ in range(self.rng.randrange(*self.writes)):
                    await self._use(lock)
                    await self.rest(0.5)
            self.done += 1
        except (LockError, KeeperError, TimeoutError):
            self.failed += 1
        await self.rest(1)

    async def _use(self, lock: Lock) -> None:
        level, token = self.level, lock.fencing_token
        assert level.checker.recipes is not None, "programs of this level are checked"
        with level.reporting():
            level.checker.recipes.require_front(f"client {self.name}", token)
        if lock.held:
            self._require_lease(lock)
        accepted = level.resource.write(token)
        if not accepted and lock.held and await self._still_holds(lock):
            self.fail("C9", f"token {token} is refused of one that holds the lock")

    def _require_lease(self, lock: Lock) -> None:
        """One who believes to hold the lock has had an answer within its lease."""
        level = self.level
        session_id = lock._held_place().session_id  # noqa: SLF001 - whose lease it is
        closed_us = level.checker.closed_us.get(session_id)
        if closed_us is None:
            return
        since_ms = (level.schedule.now_us - closed_us) / US_PER_MS
        # A member that is cut off answers pings for syncLimit ticks, and each of them renews the
        # lease; a tick more is what members and leaders need to look at their clocks.
        if since_ms > (level.shape.sync_limit + LEASE_SLACK_TICKS) * level.shape.tick_ms:
            self.fail(
                "C9", f"believes to hold the lock {since_ms:.0f} ms after its session was closed"
            )

    async def _still_holds(self, lock: Lock) -> bool:
        try:
            await lock.verify()
        except (LockError, KeeperError):
            return False
        return True


class LockKeeper(LockUser):
    """The same, for so long that its session may end meanwhile."""

    writes = (20, 80)


class DedupUser(Program):
    """Handles requests that come several times, once for each key; a few come with another body."""

    def __init__(self, level: "WholeLevel", name: str) -> None:
        super().__init__(level, name)
        self._bodies = level.schedule.stream(f"client {name} bodies")

    async def work(self, client: Client) -> None:
        """One request, which others have too."""
        age = self.level.schedule.now_ms // (NEW_KEYS_TICKS * self.level.shape.tick_ms)
        key = f"key-{age * KEYS + self.rng.randrange(KEYS)}"
        ticks = self._bodies.choice((2, 40, 40))
        dedup = Dedup(client, acquire_timeout=ticks * self.level.shape.tick_ms / 1000)
        body = key.encode() if self._bodies.randrange(6) else b"another"
        try:
            outcome = await dedup.run(key, lambda attempt: self._charge(key, attempt), payload=body)
        except (DedupError, KeeperError):
            self.failed += 1
        else:
            self.done += 1
            self._require_recorded(key, body, outcome.value)
        await self.rest(1)

    def _require_recorded(self, key: str, body: bytes, value: object) -> None:
        """What a caller is given is what the ensemble has recorded, for this very request."""
        assert self.level.checker.recipes is not None, "programs of this level are checked"
        records = self.level.checker.recipes.recorded.get(f"/dedup/{key}", [])
        own = [record for record in records if record["value"] == value]
        if not own:
            self.fail("P3", f"{key} was answered {value!r}; recorded is {records}")
        elif own[0]["payload_hash"] != hashlib.sha256(body).hexdigest():
            self.fail("P4", f"{key} with body {body!r} was answered what another body has got")

    async def _charge(self, key: str, attempt: Attempt) -> str:
        resource = self.level.accounts.setdefault(key, Resource())
        await self.rest(0.5)
        resource.write(attempt.fencing_token)
        return f"{key} by {self.name} {attempt.fencing_token}"


PROGRAMS: Final[dict[str, type[Program]]] = {
    "register": RegisterUser,
    "lock": LockUser,
    "long lock": LockKeeper,
    "dedup": DedupUser,
}


def programs(level: "WholeLevel") -> list[Program]:
    """The programs of one run: some of each kind, and one at least that always has to write."""
    rng = level.schedule.stream("programs")
    choices: tuple[type[Program], ...] = (RegisterUser, RegisterUser, LockUser, DedupUser)
    kinds: list[type[Program]] = [RegisterUser]
    kinds += [rng.choice(choices) for _ in range(rng.choice((1, 3, 5)))]
    if level.shape.programs:
        kinds[1:] = [PROGRAMS[name] for name in level.shape.programs]
    return [kind(level, f"c{number}") for number, kind in enumerate(kinds, 1)]
