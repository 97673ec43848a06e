"""Mistakes about sessions, reads and watches: M38-M49, M59, M69 and M73 of the gallery."""

from collections.abc import Sequence
from typing import Final
from weakref import WeakKeyDictionary

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.ids import SessionId
from zabd.replica.clients import Clients
from zabd.replica.effects import Effect
from zabd.znode_tree import txns
from zabd.znode_tree.prepare import Preparer
from zabd.znode_tree.tree import Change


def _ephemeral_left() -> list[Patch]:
    close_session = Preparer.close_session

    def forgetful(self: Preparer, zxid: int, time_ms: int, session_id: SessionId) -> txns.Txn:
        close_session(self, zxid, time_ms, session_id)
        return txns.close_session(())

    return [(Preparer, "close_session", forgetful)]


def _watch_after_reply() -> list[Patch]:
    fire, take_effects = Clients.fire, Clients.take_effects
    late: WeakKeyDictionary[Clients, list[tuple[Sequence[Change], int]]] = WeakKeyDictionary()

    def put_off(self: Clients, changes: Sequence[Change], zxid: int) -> None:
        late.setdefault(self, []).append((changes, zxid))

    def fire_at_the_end(self: Clients) -> list[Effect]:
        for changes, zxid in late.pop(self, []):
            fire(self, changes, zxid)
        return take_effects(self)

    return [(Clients, "fire", put_off), (Clients, "take_effects", fire_at_the_end)]


SESSIONS: Final = (
    Mutant(
        name="ephemeral-left",
        bug="M69",
        what="the close of a session leaves its ephemerals behind",
        history="which ephemerals go is not written into the close; one restored from a snapshot "
        "removes others",
        reference="ZOOKEEPER-3145",
        level="core",
        found_by=frozenset({"S2"}),
        patches=_ephemeral_left,
    ),
    Mutant(
        name="watch-after-reply",
        bug="M43",
        what="the event of a change leaves after the replies that reveal it",
        history="events and replies go through two queues, and the reply overtakes the event",
        reference="classical",
        level="core",
        found_by=frozenset({"W1"}),
        patches=_watch_after_reply,
    ),
)
