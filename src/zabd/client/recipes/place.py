"""A place in a queue: an ephemeral sequential znode of this session, taken and left safely.

Invariants
    I1  Whatever is lost, cancelled, timed out or refused for now, `leave` ends with no znode of
        this place on the servers, or with the session gone, or says in `stuck` why it could not.
    I2  After a lost create the znode is looked for by its owner behind a `sync`: a server that lags
        would show nothing, and creating again would make a second one. A znode of an earlier
        session is dying and never adopted.
    I3  One place watches one other znode at most, the next lower one that blocks it.
    I4  A place tells its log: created, watch_fired*, acquired?, then exactly one of released and
        session_expired.
    I5  Nobody becomes the holder of a place whose session is over: `acquired` compares.

The dedup recipe, sections 5 and 6; its lock and the plain `Lock` share this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import NamedTuple

from zabd.client.client import Client
from zabd.client.effects import SessionState
from zabd.client.events import EventStream, StateChange
from zabd.client.recipes.bound import Bound, Resends
from zabd.client.recipes.contenders import (
    EXCLUSIVE,
    Contender,
    Rule,
    contenders_among,
    sequence_of,
)
from zabd.client.recipes.parents import ensure_path
from zabd.client.recipes.sequential import create, find_own
from zabd.client.recipes.transition_log import TransitionLog
from zabd.model.acl import Acl
from zabd.model.errors import (
    ClosingError,
    ConnectionLossError,
    KeeperError,
    NoNodeError,
    SessionExpiredError,
    ZabdError,
)
from zabd.model.ids import SessionId
from zabd.model.paths import join, name_of
from zabd.model.stat import Stat
from zabd.model.watch_events import EventType, WatchEvent

log = logging.getLogger("zabd.client.recipes")

# A parent that is collected again and again between two requests: somebody's settings are wrong.
PARENT_ROUNDS_MAX = 16


class PlaceGoneError(ZabdError):
    """The session lives but the place's znode does not: somebody has deleted it."""


class ParentChurnError(ZabdError):
    """The parent vanished between two requests too often."""


class Queue(NamedTuple):
    """What a place sees when it looks: who contends, and who is next before us."""

    children: list[str]
    contenders: list[Contender]
    ahead: str | None


class Place:
    """One place under `parent`; znodes are named `prefix` and a number.

    Within one session `prefix` must tell this place's znode from all others under the parent, by
    being unique or by a rule that there is only one. `make_parent` makes the parent when it is
    missing, by default as an ordinary znode.
    """

    def __init__(
        self,
        client: Client,
        parent: str,
        prefix: str,
        data: bytes,
        transitions: TransitionLog,
        *,
        acl: tuple[Acl, ...] | None = None,
        rule: Rule = EXCLUSIVE,
        make_parent: Callable[[Bound], Awaitable[None]] | None = None,
    ) -> None:
        self.client = client
        self.parent = parent
        self.prefix = prefix
        self.data = data
        self.acl = client.default_acl if acl is None else acl
        self.rule = rule
        self.name = ""
        self.sequence = 0
        self.stat: Stat | None = None
        self.stuck: KeeperError | None = None  # why the znode stays as long as the session
        self._transitions = transitions
        self._make_parent = make_parent or self._make_plain_parent
        self._bound: Bound | None = None
        self._taking: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._may_exist = False
        self._told_acquired = False
        self._told_end = False
        self._at_end = [client.on_transition(self._on_transition)]

    # What is known about it.

    @property
    def path(self) -> str:
        """The znode's path."""
        assert self.name, "the place was taken"
        return join(self.parent, self.name)

    @property
    def token(self) -> int:
        """The fencing token: the zxid that created the znode, rising with every new holder."""
        assert self.stat is not None, "the place was taken"
        return self.stat.czxid

    @property
    def session_id(self) -> SessionId:
        """The session that the place is bound to, 0 before there is one."""
        return self._bound.session_id if self._bound else 0

    @property
    def bound(self) -> Bound:
        """The client bound to the place's session."""
        assert self._bound is not None, "the place is being taken"
        return self._bound

    @property
    def alive(self) -> bool:
        """Whether the session that holds the place still holds, by the local lease too."""
        if self._bound is None or self._told_end or not self.client.check_lease():
            return False
        return self.client.session_id == self._bound.session_id

    # Taking it.

    async def bind(self) -> Bound:
        """Bind to the client's session; done once, before anything is written."""
        if self._bound is None:
            self._bound = await Bound.now(self.client)
        return self._bound

    async def take(self) -> None:
        """Create the znode, or find the one that a lost reply hid.

        Cancelling the caller does not stop the creation; `leave` waits for it and undoes it.

        Raises:
            ConnectionLossError: the connection broke each of the many times that it was asked for,
                as by data above the server's ``jute.maxbuffer``; there is no znode.
            ParentChurnError: the parent kept vanishing.
            SessionExpiredError: the session ended.
        """
        await self.run_as_taking(self._take())

    async def run_as_taking(self, work: Coroutine[object, object, None]) -> None:
        """Run `work`, which takes the place in a way of its own, so that `leave` waits for it."""
        assert self._taking is None or self._taking.done(), "one way of taking at a time"
        self._taking = self.client.spawn(work)
        # Whoever awaits it hears of its error; when nobody does any more, `leave` looks at it.
        await asyncio.shield(self._taking)

    async def taken(self) -> None:
        """Wait until nothing takes the place any more, however that ended."""
        if self._taking is not None:
            await asyncio.wait([self._taking])

    def adopt(self, path: str, stat: Stat) -> None:
        """Note that this znode is the place."""
        self.name = name_of(path)
        self.sequence = sequence_of(self.name)
        self.stat = stat
        if self.sequence < 0:
            log.error(
                "%s: the sequence of %s overflowed; recreate it when empty", path, self.parent
            )
        self._transitions.created(self)

    async def find_own(self) -> bool:
        """Look for a znode of ours after a lost reply (I2); return whether it was adopted."""
        bound = self.bound
        # Until the search has ended well there may be one (I1).
        self._may_exist = True
        own = await find_own(bound, self.parent, self.prefix, self.rule)
        self._may_exist = False
        if not own:
            return False
        name, stat = own[0]
        self.adopt(join(self.parent, name), stat)
        self._transitions.adopted(self)
        for extra, extra_stat in own[1:]:
            log.warning("deleting %s, a second znode of this session", join(self.parent, extra))
            await bound.delete_this(join(self.parent, extra), extra_stat)
            self._transitions.orphan_deleted(self, extra)
        return True

    async def _take(self) -> None:
        bound = await self.bind()
        resends = Resends()
        rounds = 0
        while True:
            try:
                self.adopt(
                    *await create(bound, join(self.parent, self.prefix), self.data, self.acl)
                )
            except NoNodeError:
                rounds += 1
                if rounds > PARENT_ROUNDS_MAX:
                    message = f"{self.parent} vanished {PARENT_ROUNDS_MAX} times in a row"
                    raise ParentChurnError(message) from None
                log.debug("creating %s, which is not there (yet, or any more)", self.parent)
                self._transitions.parent_missing(self)
                await self._make_parent(bound)
            except ConnectionLossError as error:
                if await self.find_own():
                    return
                error.maybe_applied = False
                await resends.pause(error)
                self._transitions.resent(self)
            else:
                return

    async def _make_plain_parent(self, bound: Bound) -> None:
        await ensure_path(bound, self.parent, self.acl)

    # Waiting in it.

    async def look(self) -> Queue:
        """List the queue.

        Raises:
            PlaceGoneError: our znode is missing though the session lives.
        """
        try:
            children = await self.bound.children(self.parent)
        except NoNodeError:
            children = []
        return self.queue_in(children)

    def queue_in(self, children: list[str]) -> Queue:
        """The queue among the names of the parent's children; raises as `look`."""
        queue = contenders_among(children, self.rule.contends)
        names = [contender.name for contender in queue]
        if self.name not in names:
            raise PlaceGoneError(f"{self.path} was deleted by somebody else")
        before = names[: names.index(self.name)]
        blocking = [name for name in before if self.rule.blocks.search(name)]
        return Queue(children, queue, blocking[-1] if blocking else None)

    async def wait_for_turn(self) -> None:
        """Wait until nobody blocks; each wake looks at the queue again."""
        while (ahead := (await self.look()).ahead) is not None:
            await self.wait_for(ahead)

    async def wait_for(self, name: str) -> None:
        """Wait until the next lower znode changes or goes; that alone never means ownership (I3).

        Raises:
            SessionExpiredError: the place's own session ended.
        """
        path = join(self.parent, name)
        stream: EventStream[WatchEvent] = EventStream()
        try:
            if await self.bound.get(path, watch=stream) is None:
                return
            event = await anext(stream)
        finally:
            self.client.unwatch(path, stream)
        if event.type is EventType.NONE:
            raise SessionExpiredError(
                f"{self.path}: the session ended while waiting", session_id=self.session_id
            )
        self._transitions.watch_fired(self, name)

    async def is_still(self) -> bool:
        """Whether the znode is there, by all that the leader knows, after a lost reply."""
        assert self.stat is not None, "it was adopted"
        return await self.bound.is_still(self.path, self.stat)

    def replace(self, name: str, stat: Stat) -> None:
        """Note that a multi has put this znode of ours in the place of the old one."""
        self.name = name
        self.stat = stat

    def acquired(self) -> None:
        """Note that nobody is ahead; once is enough.

        Raises:
            SessionExpiredError: the session ended since that was seen. It is told once, and whoever
                listens from now on would not hear of it (I5).
        """
        if not self.alive:
            raise SessionExpiredError(
                f"{self.path}: the session ended before it was ours", session_id=self.session_id
            )
        if not self._told_acquired:
            self._told_acquired = True
            self._transitions.acquired(self)

    async def verify(self) -> None:
        """Ask the leader whether the znode exists at this moment.

        Raises:
            PlaceGoneError: it does not.
            SessionExpiredError: the session ended.
        """
        try:
            tx = self.client.transaction().check(self.path)
            await self.bound.insist_multi(tx.ops)
        except NoNodeError as error:
            raise PlaceGoneError(f"{self.path} is gone") from error

    # Leaving it.

    async def leave(self, outcome: str) -> None:
        """Delete the znode, whatever state it is in (I1); a cancelled caller does not stop it.

        What the server refuses for good, by an ACL for example, is logged and noted in `stuck`.
        """
        await asyncio.shield(self.leave_soon(outcome))

    def leave_soon(self, outcome: str) -> asyncio.Task[None]:
        """Begin to leave in the background; the same task however often it is called."""
        if self._leaving is None:
            self._leaving = self.client.spawn(self._leave(outcome))
        return self._leaving

    def left(self, outcome: str) -> None:
        """Note that the znode is deleted, by a multi for example."""
        if not self._told_end:
            self._end()
            if self.name:
                self._transitions.released(self, outcome)

    async def _leave(self, outcome: str) -> None:
        await self.taken()
        try:
            if self._may_exist and not self._told_end:
                await self.find_own()
            if self.name and not self._told_end:
                assert self.stat is not None, "it was adopted"
                await self.bound.delete_this(self.path, self.stat)
        except (SessionExpiredError, ClosingError):
            # A session that is lost has told so, and ended the place, before its requests fail: so
            # this one is being closed by its client, and its znodes go with it.
            pass
        except KeeperError as error:
            # Not ours to delete any more (an ACL was changed): it ends with the session.
            path = join(self.parent, self.name or self.prefix)
            log.exception("cannot delete %s, which stays until our session ends", path)
            self.stuck = error
            return
        self.left(outcome)

    def _on_transition(self, change: StateChange) -> None:
        ours = self._bound is not None and change.session_id == self._bound.session_id
        if ours and change.state is SessionState.LOST:
            self._end_with_session()

    def when_ended(self, call: Callable[[], None]) -> None:
        """Call once when the place is left or lost."""
        self._at_end.append(call)

    def _end(self) -> None:
        self._told_end = True
        for call in self._at_end:
            call()

    def _end_with_session(self) -> None:
        if not self._told_end:
            self._end()
            if self.name:
                self._transitions.session_expired(self)
