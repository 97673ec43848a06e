"""What a search keeps beside the members: the checker, and what each disk holds for certain.

A search goes back and forth between states, so all of this is forked before it changes, and two
states count as one only if the checker remembers the same of both.
"""

from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Final

from zabd.cluster_sim.ghosts import History
from zabd.cluster_sim.link_checks import Talk
from zabd.cluster_sim.zab_checks import Incarnation, ZabChecker
from zabd.model.ids import Epoch, LinkId, MemberId
from zabd.model.zxid import Zxid
from zabd.storage.epochs import Epochs
from zabd.zab.config import RecoveredState
from zabd.zab.log import GENESIS, Batch, LogPosition

CLUSTER_ID: Final = b"a cluster id, 16"

_FROZEN: Final = "frozen"  # where a life keeps what it was found to be
_NOT_FROZEN: Final = frozenset(
    {"number", "history", "terms", "talks", "rank", "initial", "heard_us", _FROZEN}
)
_TALK: Final = [name for name in Talk.__slots__ if name != "term"]
_MAY_CHANGE: Final = (dict, list, set, Talk)


@dataclass(frozen=True, slots=True)
class Store:
    """A member's durable state, exactly: its promises and its records. It is what a checker asks.

    The log's durable watermark is taken to be the beginning: the least that a restart may find.
    """

    member: MemberId
    accepted: Epoch = 0
    current: Epoch = 0
    cluster_id: bytes | None = CLUSTER_ID
    batches: tuple[Batch, ...] = ()

    def recovered(self) -> RecoveredState:
        """What a restart finds."""
        return RecoveredState(
            self.accepted, self.current, self.cluster_id, GENESIS, self.batches, damaged=False
        )

    def append(self, batch: Batch) -> "Store":
        """One record more."""
        return replace(self, batches=(*self.batches, batch))

    def cut(self, position: LogPosition) -> "Store":
        """The records up to `position` only."""
        kept = tuple(batch for batch in self.batches if batch.last <= position.zxid)
        return replace(self, batches=kept)

    @property
    def end(self) -> LogPosition:
        """Where it ends."""
        return self.batches[-1].position if self.batches else GENESIS

    # --- as a checker asks it (see `ghosts.Durable`) ----------------------------------------------

    def holds(self, position: LogPosition) -> bool:
        """Whether the record that ends there is durable; each names all before it."""
        return position == GENESIS or any(batch.position == position for batch in self.batches)

    def epochs(self) -> Epochs:
        """The promises."""
        return Epochs(self.accepted, self.current)

    def unreachable(self, position: LogPosition) -> str | None:
        """Files and their names are not modelled."""

    def fresh(self) -> "Store":
        """Nothing is damaged in a search."""
        return self

    def truncate(self, zxid: Zxid) -> None:
        """It is cut already."""

    def restart_at(self, position: LogPosition) -> None:
        """There are no snapshots in a search."""

    def adopt(self, found: RecoveredState) -> None:
        """Recovery hands out what is here."""


_COUNTED: Final = frozenset({"_lives", "leaderships"})
"""What a checker only counts: nothing is judged by it here, and no two states would be the same."""


class Ghost:
    """The checker, and the present life of each member that is up.

    A ghost that has a number does not change any more, so ghosts share what they have in common: a
    check may change the life of the member that acts, and what the checker itself keeps.
    """

    __slots__ = ("checker", "lives")

    def __init__(self, voters: tuple[MemberId, ...], off: frozenset[str] = frozenset()) -> None:
        self.checker = ZabChecker(voters)
        self.checker.off = off
        self.lives: dict[MemberId, Incarnation] = {}
        for member in voters:
            self.keep(Store(member))

    def keep(self, store: Store) -> None:
        """This is durable now."""
        self.checker.durable[store.member] = store

    def store(self, member: MemberId) -> Store:
        """What a member's disk holds."""
        store = self.checker.durable[member]
        assert isinstance(store, Store), "a search keeps no other"
        return store

    def fork(self, member: MemberId) -> "Ghost":
        """A copy in which this member acts next."""
        twin = Ghost.__new__(Ghost)
        twin.checker = ZabChecker.__new__(ZabChecker)
        kept = vars(twin.checker)
        for name, value in vars(self.checker).items():
            kept[name] = _fork(value)
        twin.lives = self.lives.copy()
        if (life := self.lives.get(member)) is not None:
            twin.lives[member] = acting = _fork_life(life)
            for epoch, leader in self.checker.leaders.items():
                if leader is life:
                    twin.checker.leaders[epoch] = acting
        return twin

    def forget_link(self, member: MemberId, link: LinkId) -> None:
        """The link is gone for this member; another one may get its number."""
        life = self.lives[member]
        life.infos.pop(link, None)
        life.offered.pop(link, None)
        life.talks.pop(link, None)
        life.acked_new_leader.discard(link)
        life.over.discard(link)

    def key(self) -> Hashable:
        """Equal for ghosts that will judge alike. From now on this one does not change."""
        told = [
            tuple(
                [
                    (epoch, life is self.lives.get(life.member), _freeze_life(life))
                    for epoch, life in value.items()
                ]
            )
            if name == "leaders"
            else _freeze(value)
            for name, value in vars(self.checker).items()
            if name not in _COUNTED
        ]
        lives = [(member, _freeze_life(self.lives[member])) for member in sorted(self.lives)]
        return (*told, *lives)


def _fork(value: Any) -> Any:  # noqa: ANN401 - whatever a checker keeps
    """A copy of what may change."""
    match value:
        case dict():
            if value and isinstance(next(iter(value.values())), _MAY_CHANGE):
                return {key: _fork(each) for key, each in value.items()}
            return value.copy()
        case list() | set():
            return value.copy()
        case Talk():
            return copy(value)
        case _:
            return value


def _fork_life(life: Incarnation) -> Incarnation:
    twin = Incarnation.__new__(Incarnation)
    kept = vars(twin)
    for name, value in vars(life).items():
        if name != _FROZEN:
            kept[name] = _fork(value)
    twin.history = History(life.history.base)
    twin.history.ends.update(life.history.ends)
    return twin


def _freeze(value: Any) -> Hashable:  # noqa: ANN401 - as above
    match value:
        case dict():
            if value and isinstance(next(iter(value.values())), _MAY_CHANGE):
                return frozenset([(key, _freeze(each)) for key, each in value.items()])
            return frozenset(value.items())
        case list():
            return tuple(value)
        case set():
            return frozenset(value)
        case _:
            return value  # type: ignore[no-any-return]  # the rest does not change, or is a value


def _freeze_life(life: Incarnation) -> Hashable:
    """What a life is, computed once: many ghosts share it."""
    kept = vars(life)
    if _FROZEN not in kept:
        told = [_freeze(value) for name, value in kept.items() if name not in _NOT_FROZEN]
        talks = [
            (link, talk.term - life.terms, *[getattr(talk, name) for name in _TALK])
            for link, talk in life.talks.items()
        ]
        history = (life.history.base, *life.history.ends.items())
        # Leaderships are counted from the present one: how many there were says nothing, nor does
        # what an earlier one began with. Time stands still, so neither does when one was heard.
        leads = (life.rank, life.initial) if life.leading else None
        kept[_FROZEN] = (history, leads, tuple(talks), *told)
    frozen: Hashable = kept[_FROZEN]
    return frozen
