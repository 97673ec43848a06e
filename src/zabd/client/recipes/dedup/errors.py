"""What may come instead of an outcome. Each error says which key, which znode, which session.

`http_status` is a hint for services that speak HTTP, `retry` whether asking again may help.
"""

from typing import ClassVar

from zabd.model.errors import ZabdError
from zabd.model.ids import SessionId


class DedupError(ZabdError):
    """The base of all of them."""

    http_status: ClassVar[int] = 500
    retry: ClassVar[bool] = False

    def __init__(
        self, message: str = "", *, key: str = "", znode_path: str = "", session_id: SessionId = 0
    ) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])
        self.key = key
        self.znode_path = znode_path
        self.session_id = session_id


class AlreadyInProgressError(DedupError):
    """Another caller works on this key, and `on_conflict="fail"` was asked for."""

    http_status = 409
    retry = True
    holder: object = None


class AcquireTimeoutError(DedupError):
    """The deadline passed before the key was free; no znode is left behind."""

    http_status = 503
    retry = True


class PayloadMismatchError(DedupError):
    """The key was used with another payload: a client has reused it by mistake."""

    http_status = 422
    reason: str = "payload"


class DuplicateError(DedupError):
    """The key has an outcome already, and `reuse="reject"` was asked for."""

    http_status = 409


class ReplayedFailureError(DedupError):
    """The recorded outcome is a failure; `failure` is what was recorded of it."""

    failure: object = None


class InDoubtError(DedupError):
    """An earlier attempt may have happened; `previous` says what is known of it."""

    http_status = 409
    previous: object = None


class SessionLostError(DedupError):
    """The session ended while waiting or working.

    `committed` is False when nothing was recorded, nor will be; None when the ensemble could not
    tell in time.
    """

    http_status = 503
    retry = True
    committed: bool | None = False


class LockRevokedError(DedupError):
    """Somebody deleted our lock znode though our session lives."""

    http_status = 503
    retry = True


class FencedError(DedupError):
    """The guard of a write failed: the key is not ours any more. Final, never to be retried."""

    http_status = 409


class ExecutionTimeoutError(DedupError):
    """The function did not end within `execution_timeout`; the attempt stays in doubt."""

    http_status = 504


class MissingOutcomeError(DedupError):
    """The block was left without complete(), fail() or release(); the attempt stays in doubt."""


class TooManyContendersError(DedupError):
    """More callers wait for this key than `max_contenders`."""

    http_status = 503
    retry = True


class ContainerChurnError(DedupError):
    """The key's parent znode vanished again and again between two requests."""

    http_status = 503
    retry = True


class ResultTooLargeError(DedupError):
    """The outcome is recorded, its value is not: it is larger than `max_inline`."""


class RecordUnreadableError(DedupError):
    """A record under the key is not one that this version understands."""


class PermanentError(Exception):
    """Raise it in a function to record the failure: later callers get it replayed."""

    def __init__(self, message: str = "", data: object = None) -> None:
        super().__init__(message)
        self.data = data


class NotExecuted(Exception):  # noqa: N818 - says what happened rather than what went wrong
    """Raise it when certainly nothing has happened: the key is free again, nothing is in doubt."""
