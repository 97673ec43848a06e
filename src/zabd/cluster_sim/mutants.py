"""Bugs on purpose: each mutant puts one known mistake into the code of production, for one run.

None of them is in the product: a mutant replaces a method from outside while its context is open.
They show that the checks can fail, and how soon chance finds what they find.

The ids are those of INVARIANTS_AND_BUGS section 3, which tells the histories.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from zabd.model.ids import Epoch
from zabd.model.zxid import Zxid
from zabd.storage.storage import Storage
from zabd.zab.log import LogPosition


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
    ) -> None:
        if current < accepted:
            done()  # a promise only; it reaches the disk with the next current epoch
        else:
            persist_epochs(self, accepted, current, cluster_id, done)

    return [(Storage, "persist_epochs", forgetful)]


def _trunc_skipped() -> list[tuple[type, str, object]]:
    def skip(_self: Storage, _position: LogPosition, done: Callable[[bool], None]) -> None:
        done(True)

    return [(Storage, "truncate", skip)]


MUTANTS: Final = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "ack-before-fsync",
            "M01",
            "a member acknowledges a batch when it is handed to the disk, before it is durable",
            "core",
            _ack_before_fsync,
        ),
        Mutant(
            "epoch-not-persisted",
            "M03",
            "a member promises an epoch before its promise is durable",
            "core",
            _epoch_not_persisted,
        ),
        Mutant(
            "trunc-skipped",
            "M14",
            "a follower says that it has cut its history back, and has not",
            "core",
            _trunc_skipped,
        ),
    )
}
