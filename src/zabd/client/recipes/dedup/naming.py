"""What goes wrong below is called by the recipe's own names from here on up."""

from zabd.client.recipes.dedup.errors import (
    AcquireTimeoutError,
    ContainerChurnError,
    DedupError,
    LockRevokedError,
    SessionLostError,
)
from zabd.client.recipes.dedup.request import Request
from zabd.client.recipes.place import ParentChurnError, PlaceGoneError
from zabd.model.errors import ClosingError, SessionExpiredError
from zabd.model.ids import SessionId

_NAMES: dict[type[BaseException], type[DedupError]] = {
    SessionExpiredError: SessionLostError,
    ClosingError: SessionLostError,
    PlaceGoneError: LockRevokedError,
    ParentChurnError: ContainerChurnError,
}


def named(request: Request, error: BaseException, session_id: SessionId) -> BaseException:
    """The error to raise in the place of this one, which is its cause; perhaps the same."""
    if isinstance(error, TimeoutError):
        return request.error(
            AcquireTimeoutError, "the key was not free in time", session_id=session_id
        )
    if isinstance(error, DedupError) and not error.key:
        return request.error(type(error), str(error), session_id=session_id)
    kind = _NAMES.get(type(error))
    return error if kind is None else request.error(kind, str(error), session_id=session_id)
