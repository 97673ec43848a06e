"""Bugs on purpose: each mutant puts one known mistake into the code of production, for one run.

None of them is in the product: a mutant replaces a method from outside while its context is open.
They show that the checks can fail, and how soon chance finds what they find.

The ids are those of the known mistakes in docs/reference/rules.md.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from zabd.model.ids import Epoch, SessionId
from zabd.model.zxid import Zxid
from zabd.replica.clients import Clients
from zabd.replica.effects import Effect
from zabd.storage.storage import Storage
from zabd.zab.log import LogPosition
from zabd.znode_tree import txns
from zabd.znode_tree.prepare import Preparer
from zabd.znode_tree.tree import Change


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: what is wrong, and how to make it so."""

    name: str
    bug: str  # its id in the gallery
    what: str
    level: str
    patches: Callable[[], list[tuple[type, str, object]]]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The mistake is in the code while this context is open."""
        patches = self.patches()
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
        for owner, name, value in patches:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)


def _ack_before_fsync() -> list[tuple[type, str, object]]:
    append = Storage.append

    def eager(self: Storage, record: bytes, committed: Zxid, done: Callable[[], None]) -> None:
        append(self, record, committed, lambda: None)
        done()

    return [(Storage, "append", eager)]


def _epoch_not_persisted() -> list[tuple[type, str, object]]:
    persist_epochs = Storage.persist_epochs

    def forgetful(
        self: Storage,
        accepted: Epoch,
        current: Epoch,
        cluster_id: bytes | None,
        done: Callable[[], None],
        *,
        repaired: bool = False,
    ) -> None:
        if current < accepted:
            done()  # a promise only; it reaches the disk with the next current epoch
        else:
            persist_epochs(self, accepted, current, cluster_id, done, repaired=repaired)

    return [(Storage, "persist_epochs", forgetful)]


def _trunc_skipped() -> list[tuple[type, str, object]]:
    def skip(_self: Storage, _position: LogPosition, done: Callable[[bool], None]) -> None:
        done(True)

    return [(Storage, "truncate", skip)]


def _ephemeral_left() -> list[tuple[type, str, object]]:
    close_session = Preparer.close_session

    def forgetful(self: Preparer, zxid: int, time_ms: int, session_id: SessionId) -> txns.Txn:
        close_session(self, zxid, time_ms, session_id)
        return txns.close_session(())

    return [(Preparer, "close_session", forgetful)]


def _watch_after_reply() -> list[tuple[type, str, object]]:
    fire, take_effects = Clients.fire, Clients.take_effects
    late: WeakKeyDictionary[Clients, list[tuple[Sequence[Change], int]]] = WeakKeyDictionary()

    def put_off(self: Clients, changes: Sequence[Change], zxid: int) -> None:
        late.setdefault(self, []).append((changes, zxid))

    def fire_at_the_end(self: Clients) -> list[Effect]:
        for changes, zxid in late.pop(self, []):
            fire(self, changes, zxid)
        return take_effects(self)

    return [(Clients, "fire", put_off), (Clients, "take_effects", fire_at_the_end)]


MUTANTS: Final = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "ack-before-fsync",
            "M01",
            "a member acknowledges a batch when it is handed to the disk, before it is durable",
            "zab",
            _ack_before_fsync,
        ),
        Mutant(
            "epoch-not-persisted",
            "M03",
            "a member promises an epoch before its promise is durable",
            "zab",
            _epoch_not_persisted,
        ),
        Mutant(
            "trunc-skipped",
            "M14",
            "a follower says that it has cut its history back, and has not",
            "zab",
            _trunc_skipped,
        ),
        Mutant(
            "ephemeral-left",
            "M69",
            "the close of a session leaves its ephemerals behind",
            "core",
            _ephemeral_left,
        ),
        Mutant(
            "watch-after-reply",
            "M43",
            "the event of a change leaves after the replies that reveal it",
            "core",
            _watch_after_reply,
        ),
    )
}
