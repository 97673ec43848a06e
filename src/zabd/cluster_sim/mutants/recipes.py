"""Mistakes about recipes, on the client's side: M70 and M74-M76, and what `dedup` guards from.

All are hunted at the whole level, with programs that use the recipe in question.
"""

from collections.abc import Sequence
from typing import Any, Final

from zabd.client.recipes import place as place_module
from zabd.client.recipes import sequential
from zabd.client.recipes.bound import Bound
from zabd.client.recipes.dedup.contention import Contention
from zabd.client.recipes.dedup.ledger import Ledger
from zabd.client.recipes.dedup.ownership import Ownership
from zabd.client.recipes.dedup.records import Result, Started
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import Place, Queue
from zabd.client.session import Session
from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.errors import SessionExpiredError
from zabd.model.ops import CreateMode, Delete, MultiOp, Op
from zabd.model.results import MultiPart
from zabd.model.results import Result as Answer
from zabd.model.stat import Stat
from zabd.wire.requests import encode_record


def _token_is_sequence() -> list[Patch]:
    return [(Place, "token", property(lambda self: self.sequence))]


def _lease_ignored() -> list[Patch]:
    def never(_self: Session, _sent_ms: int) -> None:
        return

    return [(Session, "_renew_lease", never)]


def _search_without_sync() -> list[Patch]:
    find_own, sync = Place.find_own, Bound.sync

    async def lag(self: Bound, path: str) -> None:
        if not vars(self).get("hasty"):
            await sync(self, path)

    async def search(self: Place) -> bool:
        vars(self.bound)["hasty"] = True
        try:
            return await find_own(self)
        finally:
            vars(self.bound)["hasty"] = False

    return [(Bound, "sync", lag), (Place, "find_own", search)]


def _unbound() -> list[Patch]:
    """Neither the binding of section 4, nor the guard, which would hold as long as no path returns.

    What a session has begun, the client goes on with in the next one.
    """

    async def once(self: Bound, op: Op, *, watch: Any = None) -> Answer:
        while True:
            try:
                return await self.client.call(op, watch=watch, session_id=None, timeout=None)
            except SessionExpiredError:
                await self.client.wait_connected()

    async def multi(self: Bound, ops: Sequence[MultiOp]) -> tuple[MultiPart, ...]:
        while True:
            try:
                return await self.client.multi(self.client.fallbacks.as_known(ops), timeout=None)
            except SessionExpiredError:
                await self.client.wait_connected()

    async def unguarded(self: Ledger, ops: list[MultiOp]) -> tuple[MultiPart, ...]:
        return await multi(self.place.bound, [op for op in ops if op != Delete(self.place.path)])

    return [(Bound, "once", once), (Bound, "multi", multi), (Ledger, "guarded", unguarded)]


def _created_again() -> list[Patch]:
    async def nothing(_self: Place) -> bool:
        return False

    return [(Place, "find_own", nothing)]


def _all_watch_one() -> list[Patch]:
    queue_in = Place.queue_in

    def behind_the_first(self: Place, children: list[str]) -> Queue:
        queue = queue_in(self, children)
        if queue.ahead is None:
            return queue
        return queue._replace(ahead=queue.contenders[0].name)

    return [(Place, "queue_in", behind_the_first)]


def _woken_owns() -> list[Patch]:
    queue_in, wait_for = Place.queue_in, Place.wait_for

    async def wait_once(self: Place, name: str) -> None:
        await wait_for(self, name)
        vars(self)["woken"] = True

    def own(self: Place, children: list[str]) -> Queue:
        queue = queue_in(self, children)
        return queue._replace(ahead=None) if vars(self).get("woken") else queue

    return [(Place, "wait_for", wait_once), (Place, "queue_in", own)]


def _sent_again() -> list[Patch]:
    forget = Session._forget_connection

    def remember(self: Session) -> list[Any]:
        lost = forget(self)
        for request in lost:
            request.record = encode_record(request.op)
        self._requests.waiting.extendleft(reversed(lost))
        return []

    return [(Session, "_forget_connection", remember)]


def _lock_stays() -> list[Patch]:
    create = sequential.create

    async def lasting(bound: Bound, path: str, *more: Any) -> tuple[str, Stat]:
        once = bound.once

        async def persistent(op: Any, **options: Any) -> Answer:
            return await once(op._replace(flags=CreateMode.PERSISTENT_SEQUENTIAL), **options)

        vars(bound)["once"] = persistent
        try:
            return await create(bound, path, *more)
        finally:
            del vars(bound)["once"]

    return [(place_module, "create", lasting)]


def _record_overlooked() -> list[Patch]:
    def blind(_self: Contention, _record: Result) -> bool:
        return False

    return [(Contention, "_settles", blind)]


def _payload_ignored() -> list[Patch]:
    def agree(_self: Request, _payload_hash: str | None, _alg: str, _where: str) -> None:
        return

    return [(Request, "compare", agree)]


def _doubt_overlooked() -> list[Patch]:
    async def cheerful(
        self: Ownership, started: Started, _stat: Stat, _replaces: int | None
    ) -> Result | None:
        self._request.compare(started.payload_hash, started.alg, "an attempt in doubt")
        return None

    return [(Ownership, "_in_doubt", cheerful)]


_LOCKS: Final = {"programs": ("lock", "lock", "lock", "lock"), "voters": 3, "observers": 0}
_KEYS: Final = {"programs": ("dedup",) * 6, "voters": 3, "observers": 0}
_CUTS: Final = ("cut", "half-open", "stall", "partition")

RECIPES: Final = (
    Mutant(
        name="lease-ignored",
        bug="M70",
        what="a client believes in its session until a member tells it that it is over",
        history="it is cut off, or stood still: the next holder has begun, and it goes on as well",
        reference="kazoo's lock; the recipe's section on the local lease",
        level="whole",
        found_by=frozenset({"C9"}),
        patches=_lease_ignored,
        shape={
            **_LOCKS,
            "programs": ("long lock",) * 4,
            "kinds": ("session expiry", "partition"),
            "sync_limit": 2,
        },
    ),
    Mutant(
        name="token-is-sequence",
        bug="M70",
        what="the fencing token is the number of the lock's znode, not the zxid that created it",
        history="a parent that is made anew begins its numbers again: the resource refuses the new "
        "holder, and takes the old one for the newer",
        reference="fencing tokens (Kleppmann; Junqueira's note)",
        level="whole",
        found_by=frozenset({"C9"}),
        patches=_token_is_sequence,
        shape=_LOCKS,
    ),
    Mutant(
        name="created-again",
        bug="M74",
        what="a create whose reply was lost is simply done again",
        history="the create had succeeded: its znode stands in the queue, nobody knows of it, and "
        "nobody behind it is ever next",
        reference="Curator's protection of creates",
        level="whole",
        found_by=frozenset({"P8"}),
        patches=_created_again,
        shape={**_LOCKS, "kinds": _CUTS},
    ),
    Mutant(
        name="all-watch-one",
        bug="M75",
        what="everybody who waits watches the first in the queue",
        history="50 wait, one lets go: 50 events and 50 reads",
        reference="the herd effect",
        level="whole",
        found_by=frozenset({"P7"}),
        patches=_all_watch_one,
        shape=_LOCKS,
    ),
    Mutant(
        name="woken-owns",
        bug="M76",
        what="who is woken takes the lock without another look at the queue",
        history="the one before gives up or dies, and the holder before that one still holds",
        reference="classical",
        level="whole",
        found_by=frozenset({"C9"}),
        patches=_woken_owns,
        shape=_LOCKS,
    ),
    Mutant(
        name="woken-begins",
        bug="M76",
        what="as `woken-owns`, for the key of a request",
        history="two callers work on one request at the same time",
        reference="classical",
        level="whole",
        found_by=frozenset({"P1"}),
        patches=_woken_owns,
        shape={**_KEYS, "kinds": ("session expiry",)},
    ),
    Mutant(
        name="search-without-sync",
        bug="M96",
        what="after a lost reply a lock's znode is looked for without a sync",
        history="the member that the client came to had not applied the create: a second znode",
        reference="CURATOR-264; kazoo's lock",
        level="whole",
        found_by=frozenset({"P8"}),
        patches=_search_without_sync,
        shape={**_KEYS, "kinds": ("reconnect storm", "slow path")},
    ),
    Mutant(
        name="unbound",
        bug="M97",
        what="a holder's requests go on in whatever session its client has, and without the guard",
        history="a holder's session ends in the middle of its commit; the next holder has begun, "
        "and the first one records its outcome over the new session",
        reference="the recipe's section on zombies",
        level="whole",
        found_by=frozenset({"P2"}),
        patches=_unbound,
        without=frozenset({"P1", "P8"}),  # giving the lock back is a guard too, and is left out
        shape={**_KEYS, "kinds": ("session expiry", "cut")},
    ),
    Mutant(
        name="sent-again",
        bug="M95",
        what="a client sends again what was not answered when its connection broke",
        history="the write had been done: it is done twice",
        reference="classical",
        level="whole",
        found_by=frozenset({"C7"}),
        patches=_sent_again,
        shape={
            "programs": ("register", "register", "register"),
            "voters": 3,
            "observers": 0,
            "kinds": _CUTS,
        },
    ),
    Mutant(
        name="lock-stays",
        bug="M98",
        what="the znode that stands for a holder is not an ephemeral",
        history="the holder dies, and its key is never free again",
        reference="powertools-lambda-python issues 738 and 1038",
        level="whole",
        found_by=frozenset({"P5"}),
        patches=_lock_stays,
        shape=_KEYS,
    ),
    Mutant(
        name="record-overlooked",
        bug="M99",
        what="who comes to the front does not look whether an outcome is recorded",
        history="every request is handled as often as it comes",
        reference="classical",
        level="whole",
        found_by=frozenset({"P3"}),
        patches=_record_overlooked,
        shape=_KEYS,
    ),
    Mutant(
        name="payload-ignored",
        bug="M100",
        what="a request with the key of another one is taken for it",
        history="a client uses a key again by mistake, and its payment never happens",
        reference="Stripe's and AWS Powertools' checks of the payload",
        level="whole",
        found_by=frozenset({"P4"}),
        patches=_payload_ignored,
        shape=_KEYS,
    ),
    Mutant(
        name="doubt-overlooked",
        bug="M101",
        what="who comes after an attempt in doubt begins as if there had been none",
        history="a holder dies in the middle of a payment; the next one pays again, and nobody "
        "could know that it might",
        reference="powertools-lambda-python issue 8049",
        level="whole",
        found_by=frozenset({"P6"}),
        patches=_doubt_overlooked,
        shape=_KEYS,
    ),
)
