"""What is known of a key (dedup recipe, sections 4 and 12)."""

from dataclasses import dataclass
from enum import StrEnum

from zabd.client.recipes.dedup.records import Result, Started
from zabd.model.ids import SessionId


class KeyState(StrEnum):
    """Derived from the znodes, never stored as such."""

    FREE = "FREE"
    CLAIMED = "CLAIMED"
    IN_PROGRESS = "IN_PROGRESS"
    IN_DOUBT = "IN_DOUBT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class LockNode:
    """One contender: its znode, its session and its fencing token."""

    name: str
    sequence: int
    session_id: SessionId
    fencing_token: int
    payload_hash: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Status:
    """The key's state, who contends for it in order, and its records."""

    state: KeyState
    contenders: tuple[LockNode, ...]
    started: Started | None
    record: Result | None

    @property
    def holder(self) -> LockNode | None:
        """Who owns the key."""
        return self.contenders[0] if self.contenders else None


def derive_state(
    contenders: tuple[LockNode, ...], started: Started | None, record: Result | None
) -> KeyState:
    """The state that the znodes stand for."""
    if record is not None:
        return KeyState(record.status)
    if started is not None:
        holds = any(node.name == started.lock for node in contenders)
        return KeyState.IN_PROGRESS if holds else KeyState.IN_DOUBT
    return KeyState.CLAIMED if contenders else KeyState.FREE
