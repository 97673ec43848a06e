"""The `dedup` recipe: one execution and one recorded outcome per idempotency key."""

from zabd.client.recipes.dedup.attempt import Attempt
from zabd.client.recipes.dedup.errors import (
    AcquireTimeoutError,
    AlreadyInProgressError,
    ContainerChurnError,
    DedupError,
    DuplicateError,
    ExecutionTimeoutError,
    FencedError,
    InDoubtError,
    LockRevokedError,
    MissingOutcomeError,
    NotExecuted,
    PayloadMismatchError,
    PermanentError,
    RecordUnreadableError,
    ReplayedFailureError,
    ResultTooLargeError,
    SessionLostError,
    TooManyContendersError,
)
from zabd.client.recipes.dedup.fingerprint import Fingerprint
from zabd.client.recipes.dedup.log import JsonFormatter
from zabd.client.recipes.dedup.options import Completed, Failed, Options, Outcome, Previous
from zabd.client.recipes.dedup.recipe import Dedup
from zabd.client.recipes.dedup.records import JsonCodec, Result, Started
from zabd.client.recipes.dedup.status import KeyState, LockNode, Status
from zabd.client.recipes.dedup.sweep import Swept

__all__ = [
    "AcquireTimeoutError",
    "AlreadyInProgressError",
    "Attempt",
    "Completed",
    "ContainerChurnError",
    "Dedup",
    "DedupError",
    "DuplicateError",
    "ExecutionTimeoutError",
    "Failed",
    "FencedError",
    "Fingerprint",
    "InDoubtError",
    "JsonCodec",
    "JsonFormatter",
    "KeyState",
    "LockNode",
    "LockRevokedError",
    "MissingOutcomeError",
    "NotExecuted",
    "Options",
    "Outcome",
    "PayloadMismatchError",
    "PermanentError",
    "Previous",
    "RecordUnreadableError",
    "ReplayedFailureError",
    "Result",
    "ResultTooLargeError",
    "SessionLostError",
    "Started",
    "Status",
    "Swept",
    "TooManyContendersError",
]
