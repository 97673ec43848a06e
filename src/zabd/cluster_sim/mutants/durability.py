"""Mistakes about durability and epochs: M01-M17 of the gallery."""

from collections.abc import Callable
from typing import Final

from zabd.cluster_sim.mutants.mutant import Mutant, Patch
from zabd.model.ids import Epoch
from zabd.model.zxid import Zxid
from zabd.storage.storage import Storage
from zabd.zab.log import LogPosition


def _ack_before_fsync() -> list[Patch]:
    append = Storage.append

    def eager(self: Storage, record: bytes, committed: Zxid, done: Callable[[], None]) -> None:
        append(self, record, committed, lambda: None)
        done()

    return [(Storage, "append", eager)]


def _epoch_not_persisted() -> list[Patch]:
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


def _trunc_skipped() -> list[Patch]:
    def skip(_self: Storage, _position: LogPosition, done: Callable[[bool], None]) -> None:
        done(True)

    return [(Storage, "truncate", skip)]


DURABILITY: Final = (
    Mutant(
        name="ack-before-fsync",
        bug="M01",
        what="a member acknowledges a batch when it is handed to the disk, before it is durable",
        history="A leads, C is cut off; B acknowledges what it has only buffered, A replies; "
        "A and B lose power, B and C go on without the write",
        reference="classical; Ganesan et al., FAST 2017",
        level="zab",
        found_by=frozenset({"D1", "D2"}),
        patches=_ack_before_fsync,
    ),
    Mutant(
        name="epoch-not-persisted",
        bug="M03",
        what="a member promises an epoch before its promise is durable",
        history="B promises epoch 2 to A, restarts, and promises 2 once more, to C",
        reference="the paper's step `f.p := e'`; ZOOKEEPER-335",
        level="zab",
        found_by=frozenset({"D3"}),
        patches=_epoch_not_persisted,
    ),
    Mutant(
        name="trunc-skipped",
        bug="M14",
        what="a follower says that it has cut its history back, and has not",
        history="the disk fails during a TRUNC; the follower goes on with an entry that nobody has",
        reference="ZOOKEEPER-3701",
        level="zab",
        found_by=frozenset({"Z11"}),
        patches=_trunc_skipped,
    ),
)
